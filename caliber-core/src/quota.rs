//! Rates: how many calls a tool takes.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;

/// Counts calls. The in-process one is in `caliber-policy`; a shared one makes replicas agree.
#[async_trait]
pub trait QuotaStore: Send + Sync + fmt::Debug {
    /// Spends one call of `key` under a limit of `per_minute`, atomically.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the quota cannot be asked; admission then refuses.
    async fn spend(&self, key: &str, per_minute: u32) -> Result<QuotaOutcome>;
}

/// Whether a call was within its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaOutcome {
    /// It was, and has been counted.
    Spent,
    /// It was not, and has not been counted.
    Exhausted {
        /// When the next call may pass.
        retry_after: Duration,
    },
}
