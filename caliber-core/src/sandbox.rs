//! Running code tools in isolation that the kernel enforces.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::admission::{RunPermit, Slot};
use crate::clock::Deadline;
use crate::digest::{EnvironmentDigest, SourceDigest};
use crate::error::Result;
use crate::id::ProjectId;
use crate::json::JsonText;
use crate::secret::SecretText;

mod guarantees;
mod outcome;

pub use guarantees::{Enforcement, Guarantee, SandboxReport};
pub use outcome::{Captured, ExecutionMode, Exit, Phase, PhaseTimes, Resource, RunOutcome, RunStatus, Usage};

/// Runs code tools in isolation that the kernel enforces, and tells truthfully what it enforces.
///
/// Contract: nothing of a tool runs in the caller's process, its import included; every operation ends by its
/// deadline; dropping a future kills what it started; when a run has been answered, nothing of it is left that could
/// act; a guarantee that the settings require and that cannot be enforced means that nothing runs.
#[async_trait]
pub trait Sandbox: Send + Sync + fmt::Debug {
    /// What is enforced here, found out by trying.
    fn report(&self) -> Arc<SandboxReport>;

    /// Reads the source of a program once, keeps a private copy of it, and names it by its digest. What runs later is
    /// that copy.
    ///
    /// # Errors
    ///
    /// `Invalid` for a program that cannot be one (a root that is no folder, a file beyond the limits);
    /// `Unavailable`, `Timeout`.
    async fn pin(&self, program: &Program, deadline: Deadline) -> Result<PinnedProgram>;

    /// Looks at a pinned program in a child of its own: signature, documentation, source.
    ///
    /// # Errors
    ///
    /// `Unavailable` when nothing may run; `Timeout`. What is wrong with the program is in the reflection.
    async fn inspect(&self, program: &PinnedProgram, deadline: Deadline) -> Result<Reflection>;

    /// Reserves one of the places for runs, waiting for a free one until `deadline`.
    ///
    /// # Errors
    ///
    /// `Unavailable` with [`SandboxUnavailable`](crate::reason::ReasonCode::SandboxUnavailable) when a required
    /// guarantee is missing, with [`SandboxBusy`](crate::reason::ReasonCode::SandboxBusy) when the deadline passes
    /// or the queue is full.
    async fn reserve(&self, deadline: Deadline) -> Result<Slot>;

    /// Runs the admitted call, exactly once.
    ///
    /// # Errors
    ///
    /// `Unavailable` with `SandboxUnavailable` when a required guarantee cannot be enforced (nothing ran), with
    /// [`SandboxFailed`](crate::reason::ReasonCode::SandboxFailed) when the child could not be set up (the tool did not
    /// run), with [`SourceChanged`](crate::reason::ReasonCode::SourceChanged) when the pinned copy is gone and the
    /// source is no longer the same. Everything that the tool did is an outcome.
    async fn run(&self, permit: RunPermit) -> Result<RunOutcome>;

    /// Ends everything, children included, until `deadline`.
    async fn close(&self, deadline: Deadline);
}

/// What a code tool is made of, as an admin wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "runtime", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Program {
    /// A callable of a Python module.
    Python {
        /// The dotted path of the module.
        module_path: String,
        /// The name of the callable in it.
        callable_name: String,
        /// The folders that hold the source: absolute; copied whole when the program is pinned, and all that is on
        /// the path of imports besides the interpreter's own library.
        #[serde(default)]
        source_roots: Vec<PathBuf>,
        /// Folders with installed packages, such as a virtual environment's: absolute; shown to the tool read-only,
        /// and named by a digest over their files' names, sizes and times.
        #[serde(default)]
        package_roots: Vec<PathBuf>,
    },
    /// An executable file.
    Native {
        /// The absolute path; the file is copied when the program is pinned.
        executable: PathBuf,
        /// Its arguments.
        #[serde(default)]
        args: Vec<String>,
        /// How it is spoken to.
        protocol: NativeProtocol,
    },
}

/// How a native executable is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NativeProtocol {
    /// The sandbox's frames on descriptor 3; the secrets of a call are in its frame.
    Framed,
    /// One JSON value on standard input, one on standard output. Its secrets have no other way than the environment of
    /// the program, as `CALIBER_SECRET_` and their name: what it starts inherits them, and the programs of this one call
    /// see them in `/proc`. With [`Framed`](Self::Framed) they are in the frame of the call.
    Json,
}

/// A program whose source was read and is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedProgram {
    /// The program.
    pub program: Program,
    /// What of it runs: every file of the source, by name and content.
    pub source: SourceDigest,
    /// What it runs on: the interpreter with its version, and the package roots; for a native program nothing.
    pub environment: EnvironmentDigest,
}

/// What a look at a callable showed. Untrusted text, bounded, not escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reflection {
    /// Whether the module was imported to its end and the callable is there.
    #[serde(default)]
    pub callable: bool,
    /// Whether the source could be read.
    pub available: bool,
    /// The callable with its signature.
    pub signature: String,
    /// Its documentation.
    pub doc: String,
    /// Its source.
    pub source: String,
    /// Whether the source was cut at the limit.
    pub truncated: bool,
    /// Why something is missing.
    pub error: Option<String>,
}

/// How a tool wants to be run, within what the installation allows. `None` means the setting of the installation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunLimits {
    /// The longest run, in milliseconds, 1 to 3,600,000.
    pub timeout_ms: Option<u64>,
    /// The memory of one process, in bytes, 32 MiB to 16 GiB; of all together, where a control group can be made.
    pub memory_bytes: Option<u64>,
    /// The most processes and threads, 1 to 4,096.
    pub processes: Option<u32>,
    /// The size of the scratch folder, in bytes, up to 16 GiB.
    pub scratch_bytes: Option<u64>,
    /// The largest result, in bytes, 1 to 64 MiB.
    pub result_bytes: Option<u64>,
}

/// Which way of running a tool asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionPreference {
    /// The fastest one that keeps calls apart: spares, a zygote, or one process for each call.
    #[default]
    Isolated,
    /// A new interpreter for each call.
    Cold,
    /// One process for many calls: nothing keeps them apart, and every outcome says so.
    Persistent,
}

/// One run as a sandbox is asked for it. Inside caliber it comes in a [`RunPermit`]; what takes one without a permit
/// is no port and says so.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// What runs.
    pub program: Arc<PinnedProgram>,
    /// The arguments: an object.
    pub arguments: JsonText,
    /// Secrets by the name that the tool knows them under; delivered for this run only.
    pub secrets: Vec<(String, SecretText)>,
    /// The project of the caller. Runs of two projects never meet in one process, nor in one zygote.
    pub tenant: ProjectId,
    /// How it is run.
    pub preference: ExecutionPreference,
    /// Its limits.
    pub limits: RunLimits,
    /// How long start-up may take before the clock of the run starts; zero: it spends the run's time.
    pub startup_grace: Duration,
    /// The end of everything that is done for the run; `startup_grace` stands before it.
    pub deadline: Deadline,
    /// The largest result, in bytes.
    pub result_bytes: usize,
}
