//! Durable calibration jobs.

use std::fmt;

use async_trait::async_trait;

use crate::error::Result;
use crate::id::{InstanceId, JobId};

/// Keeps calibration jobs: each is claimed by one worker under a fence number, and none is silently run again.
///
/// No adapter exists yet, and [`Caliber`](crate::Caliber) calls none.
#[async_trait]
pub trait CalibrationQueue: Send + Sync + fmt::Debug {
    /// Claims the oldest queued job for `worker`, if there is one.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the store is away.
    async fn claim(&self, worker: &InstanceId) -> Result<Option<Claim>>;
}

/// One worker's right to run a job. Every later write carries the fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which job.
    pub job: JobId,
    /// Grows with each claim of the job.
    pub fence: u64,
}
