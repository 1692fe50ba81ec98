//! When reading ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind, Result};

/// When reading has to end, whatever is left of it.
#[derive(Clone, Debug)]
pub struct Stop {
    deadline: Deadline,
    given_up: Arc<AtomicBool>,
}

impl Stop {
    /// Ends at `deadline`.
    pub fn at(deadline: Deadline) -> Self {
        Self {
            deadline,
            given_up: Arc::default(),
        }
    }

    /// Ends also when the returned guard is dropped: for a caller that may go away.
    pub fn guard(&self) -> StopGuard {
        StopGuard(Arc::clone(&self.given_up))
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "the caller gave up"));
        }
        if self.deadline.remaining().is_zero() {
            return Err(
                Error::new(ErrorKind::Timeout, "the source was not read by the deadline")
                    .with_reason(ReasonCode::Timeout),
            );
        }
        Ok(())
    }
}

/// Ends a reading when it is dropped.
#[derive(Debug)]
pub struct StopGuard(Arc<AtomicBool>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
