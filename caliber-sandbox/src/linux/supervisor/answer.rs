//! The answer to a job: what the supervisor knows of a call, with a value that it has not looked into.
//!
//! A value may be many megabytes of anything. To check it takes longer than other calls have until their deadlines, so
//! whoever waits for the call checks it, not the one thread that ends all of them in time.

use caliber_core::sandbox::{Captured, ExecutionMode, Guarantee, PhaseTimes, RunOutcome, RunStatus, Usage};

use super::super::value;

/// How a call ended.
#[derive(Debug)]
pub(crate) enum End {
    /// With these bytes, which are to be a value.
    Value(Vec<u8>),
    /// In another way.
    Status(RunStatus),
}

impl From<RunStatus> for End {
    fn from(status: RunStatus) -> Self {
        Self::Status(status)
    }
}

/// What a call comes back with.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) end: End,
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
    pub(crate) mode: ExecutionMode,
    pub(crate) unenforced: Vec<Guarantee>,
    pub(crate) times: PhaseTimes,
    pub(crate) usage: Usage,
}

impl Answer {
    /// How many bytes are to be checked.
    pub(crate) fn unchecked_bytes(&self) -> usize {
        match &self.end {
            End::Value(bytes) => bytes.len(),
            End::Status(_) => 0,
        }
    }

    /// The outcome; checks the value, which takes milliseconds for each megabyte.
    pub(crate) fn into_outcome(self) -> RunOutcome {
        let status = match self.end {
            End::Status(status) => status,
            End::Value(bytes) => match value::check(bytes) {
                Ok(value) => RunStatus::Ok { value },
                Err(problem) => RunStatus::ResultInvalid { problem },
            },
        };
        RunOutcome {
            status,
            stdout: self.stdout,
            stderr: self.stderr,
            mode: self.mode,
            unenforced: self.unenforced,
            times: self.times,
            usage: self.usage,
        }
    }
}
