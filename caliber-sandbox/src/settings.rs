//! The settings of a sandbox.

use std::path::PathBuf;
use std::time::Duration;

use caliber_core::sandbox::Guarantee;

#[cfg(target_os = "linux")]
mod check;
mod launcher;
mod pin;

pub use launcher::{LauncherSettings, ServerLimits, ServerMatch, ServerProfile};
pub use pin::PinLimits;

/// How code tools are run on this machine. Every field has a default that holds back rather than lets through.
#[derive(Clone, Debug)]
pub struct SandboxSettings {
    /// The interpreter of Python tools: an absolute path to a real interpreter, never a shim that searches `PATH`.
    /// Default: `/usr/bin/python3`.
    pub interpreter: PathBuf,
    /// Where the private copies of pinned programs are kept; made with mode 0700 when it is missing. It must lie on a
    /// file system that the sandbox may show to a tool read-only. Default: `/var/lib/caliber/snapshots`.
    pub snapshot_folder: PathBuf,
    /// Files and folders that no copy holds, where a source lies around them: the host's own, such as its database and
    /// keys. Default: none beside the folder of the copies.
    pub left_out: Vec<PathBuf>,
    /// How much source is read and kept.
    pub pin: PinLimits,
    /// The control group that the runs' groups are made in, as `/proc/self/cgroup` shows paths. Default: `None`, this
    /// process's own where that can be done.
    pub control_group: Option<PathBuf>,
    /// Runs at once. Default: 8; at most 4,096.
    pub places: usize,
    /// Runs that may wait for a place; what comes beyond is refused as busy. Default: 256.
    pub queue: usize,
    /// Looks at tools' source that are remembered; the least used one is forgotten first. Default: 256.
    pub reflections: usize,
    /// What a run may use unless its tool says less, or more within [`ceiling`](Self::ceiling).
    pub limits: Limits,
    /// What a tool may ask for at most.
    pub ceiling: Limits,
    /// How much of standard output, and of standard error, is kept: the beginning and the end, in bytes. The rest is
    /// read, counted and dropped. Default: 64 KiB.
    pub output_bytes: usize,
    /// The longest run, start-up beyond its grace included, whatever its caller allows. Default: one hour, the most that a
    /// tool may ask for; at most 30 days.
    pub timeout: Duration,
    /// How long start-up and import may take before the clock of the run starts, whatever its caller allows; zero: they
    /// spend the run's time. Default: 15 seconds; at most 30 days.
    pub startup_grace: Duration,
    /// The guarantees without which nothing runs. Default: [`Guarantee::DEFAULT_REQUIRED`].
    pub required: Vec<Guarantee>,
    /// Runs tools although required guarantees are missing; every outcome says which. Default: false.
    pub allow_unenforced: bool,
    /// Lets tools ask for [`Persistent`](caliber_core::sandbox::ExecutionPreference::Persistent), where nothing keeps
    /// calls apart; every outcome says so. Default: false.
    pub allow_persistent: bool,
    /// Processes that are kept for later calls at once, over all tools, whatever way they serve them; the least used one
    /// ends first. Zero: every call starts an interpreter. Default: 16; at most 4,096.
    pub zygotes: usize,
    /// After how long without a call such a process ends. Default: 10 minutes; at most 30 days.
    pub zygote_idle: Duration,
    /// After how many calls such a process is replaced, because the calls share its address layout and hash seed.
    /// Default: 10,000.
    pub zygote_calls: u64,
    /// Processes that are forked ahead of the next call, for each tool that was called twice within
    /// [`zygote_idle`](Self::zygote_idle). Zero: none. Default: 2.
    pub spares: usize,
    /// Where caliber runs as root: the first of the user (and group) ids that runs are given, one for each process at
    /// once. They must belong to nobody; at least 65,536. Default: 2,000,000,000.
    pub first_uid: u32,
    /// How many ids from [`first_uid`](Self::first_uid) on there are: at least two for each place, and for each zygote one and
    /// one for each of its [`spares`](Self::spares). Default: 4,096.
    pub uid_count: u32,
}

/// What one run may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Address space of one process, in bytes; memory of all processes together, where a control group can be made.
    /// Default: 256 MiB; at most 16 GiB.
    pub memory_bytes: u64,
    /// Processes and threads at once. Default: 32; at most 4,096.
    pub processes: u32,
    /// The scratch folder, in bytes. It is held in memory. Default: 64 MiB; at most 16 GiB.
    pub scratch_bytes: u64,
    /// Files and folders in the scratch folder. Default: 4,096; at most 1,048,576.
    pub scratch_inodes: u64,
    /// Open descriptors of one process. Default: 64; at most 65,536.
    pub open_files: u32,
    /// The largest result, in bytes of JSON. Default: 16 MiB; at most 64 MiB.
    pub result_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            processes: 32,
            scratch_bytes: 64 << 20,
            scratch_inodes: 4096,
            open_files: 64,
            result_bytes: 16 << 20,
        }
    }
}

impl Limits {
    /// The most that the settings allow a tool to ask for unless an operator changes it.
    pub const CEILING: Self = Self {
        memory_bytes: 16 << 30,
        processes: 4096,
        scratch_bytes: 16 << 30,
        scratch_inodes: 1 << 20,
        open_files: 65_536,
        result_bytes: 64 << 20,
    };
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            interpreter: PathBuf::from("/usr/bin/python3"),
            snapshot_folder: PathBuf::from("/var/lib/caliber/snapshots"),
            left_out: Vec::new(),
            pin: PinLimits::default(),
            control_group: None,
            places: 8,
            queue: 256,
            reflections: 256,
            limits: Limits::default(),
            ceiling: Limits::CEILING,
            output_bytes: 64 << 10,
            timeout: Duration::from_secs(3600),
            startup_grace: Duration::from_secs(15),
            required: Guarantee::DEFAULT_REQUIRED.to_vec(),
            allow_unenforced: false,
            allow_persistent: false,
            zygotes: 16,
            zygote_idle: Duration::from_secs(600),
            zygote_calls: 10_000,
            spares: 2,
            first_uid: 2_000_000_000,
            uid_count: 4096,
        }
    }
}
