//! The engine: runs calls in children, and ends them in time.

use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{PinnedProgram, Reflection, RunOutcome, RunRequest};
use caliber_core::{Error, ErrorKind, Result};

use super::layers::Layers;
use crate::settings::SandboxSettings;

/// Runs pinned programs in children. Cheap to share behind an `Arc`; ends its children when it is dropped.
///
/// It takes requests without a permit: it is no port. The adapter of the port stands in front of it, and with it
/// admission, the places, and the check of what is required.
#[derive(Debug)]
pub struct Engine {
    settings: SandboxSettings,
    layers: Layers,
}

impl Engine {
    /// Starts the supervisor thread.
    ///
    /// # Errors
    ///
    /// `Invalid` for settings that cannot be; `Unavailable` when the thread cannot be started or the interpreter does
    /// not run.
    pub fn start(settings: SandboxSettings, layers: Layers) -> Result<Self> {
        Ok(Self { settings, layers })
    }

    /// The settings it was started with.
    pub fn settings(&self) -> &SandboxSettings {
        &self.settings
    }

    /// The layers it was started with.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Runs one call, exactly once. Dropping the future kills the run. More runs than
    /// [`places`](SandboxSettings::places) wait here in the order in which they came, until their deadline.
    ///
    /// # Errors
    ///
    /// `Unavailable` with `SandboxFailed` when the child could not be set up, `Unavailable` with `SourceChanged` when the
    /// pinned copy is gone, `Unavailable` after [`close`](Self::close). All that the tool does is an outcome.
    pub async fn run(&self, request: RunRequest) -> Result<RunOutcome> {
        let _ = request;
        Err(not_yet())
    }

    /// As [`run`](Self::run), for a thread that may block.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_blocking(&self, request: RunRequest) -> Result<RunOutcome> {
        let _ = request;
        Err(not_yet())
    }

    /// Looks at a Python callable in a child: signature, documentation, source.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); `Timeout` when the deadline passes.
    pub async fn inspect(&self, program: &PinnedProgram, deadline: Deadline) -> Result<Reflection> {
        let _ = (program, deadline);
        Err(not_yet())
    }

    /// Ends every child; returns when the last one is gone, or at the deadline.
    pub async fn close(&self, deadline: Deadline) {
        let _ = deadline;
    }
}

fn not_yet() -> Error {
    Error::new(ErrorKind::Unavailable, "the sandbox does not run tools yet")
        .with_reason(ReasonCode::SandboxUnavailable)
}
