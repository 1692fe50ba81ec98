//! What a sandbox promises, and whether it holds here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One promise of a sandbox. The set is closed: what is not here is not promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// A tool reads only its own source, its interpreter and its scratch folder.
    FsRead,
    /// A tool writes only into its scratch folder.
    FsWrite,
    /// A tool reaches no network.
    Net,
    /// A tool reaches no socket, queue or shared memory of other processes.
    Ipc,
    /// A tool sees no processes but its own.
    ProcVisibility,
    /// When a call has been answered, every process that it started has been killed; its place is given on when they have
    /// ended.
    TreeKill,
    /// The memory of all processes of a call together is bounded.
    TreeMemory,
    /// The number of processes of a call is bounded.
    TreePids,
    /// Only the system calls that tools need are let through.
    SyscallSurface,
    /// Nothing of one call is left for the next.
    CallIsolation,
    /// What runs is what was registered.
    SourcePinned,
}

impl Guarantee {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::FsRead,
        Self::FsWrite,
        Self::Net,
        Self::Ipc,
        Self::ProcVisibility,
        Self::TreeKill,
        Self::TreeMemory,
        Self::TreePids,
        Self::SyscallSurface,
        Self::CallIsolation,
        Self::SourcePinned,
    ];

    /// What is required unless the settings say otherwise: all but the two that need a control group.
    pub const DEFAULT_REQUIRED: [Self; 9] = [
        Self::FsRead,
        Self::FsWrite,
        Self::Net,
        Self::Ipc,
        Self::ProcVisibility,
        Self::TreeKill,
        Self::SyscallSurface,
        Self::CallIsolation,
        Self::SourcePinned,
    ];

    /// The word, as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FsRead => "fs_read",
            Self::FsWrite => "fs_write",
            Self::Net => "net",
            Self::Ipc => "ipc",
            Self::ProcVisibility => "proc_visibility",
            Self::TreeKill => "tree_kill",
            Self::TreeMemory => "tree_memory",
            Self::TreePids => "tree_pids",
            Self::SyscallSurface => "syscall_surface",
            Self::CallIsolation => "call_isolation",
            Self::SourcePinned => "source_pinned",
        }
    }
}

/// Whether a promise holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Enforcement {
    /// It holds, and was seen to hold.
    Enforced {
        /// The means, such as `mount_namespace` or `landlock:7`.
        by: Vec<String>,
    },
    /// Some of it holds.
    Partial {
        /// The means.
        by: Vec<String>,
        /// What is left open.
        gaps: Vec<String>,
    },
    /// It does not hold.
    NotEnforced {
        /// The step that failed, such as `mount_proc`.
        stage: String,
        /// The system's error, such as `EPERM`; empty where there was none.
        errno: String,
        /// What an operator can do about it.
        remedy: String,
    },
}

impl Enforcement {
    /// Whether all of it holds.
    pub fn is_enforced(&self) -> bool {
        matches!(self, Self::Enforced { .. })
    }
}

/// What a sandbox enforces on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// The kind of sandbox, such as `linux`, `remote` or `none`.
    pub backend: String,
    /// Every promise with its state.
    pub guarantees: BTreeMap<Guarantee, Enforcement>,
    /// What the settings require.
    pub required: Vec<Guarantee>,
    /// The interpreter that Python tools run on, with its version; `None` where there is none.
    pub interpreter: Option<String>,
    /// Why no tool runs although nothing required is missing, such as an interpreter that does not start.
    pub problem: Option<String>,
    /// Whether the operator chose to run tools although required guarantees are missing; every outcome says so.
    pub unenforced_allowed: bool,
}

impl SandboxReport {
    /// What is required and does not hold whole.
    pub fn missing(&self) -> Vec<Guarantee> {
        let holds = |guarantee: &Guarantee| {
            self.guarantees
                .get(guarantee)
                .is_some_and(Enforcement::is_enforced)
        };
        self.required
            .iter()
            .copied()
            .filter(|guarantee| !holds(guarantee))
            .collect()
    }

    /// Whether tools may run.
    pub fn is_available(&self) -> bool {
        self.problem.is_none() && (self.unenforced_allowed || self.missing().is_empty())
    }
}
