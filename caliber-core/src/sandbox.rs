//! Running code tools in isolation.

use std::fmt;

use async_trait::async_trait;

use crate::admission::Permit;
use crate::error::Result;
use crate::gateway::Answer;

/// Runs code tools in isolation that the kernel enforces, and tells truthfully what it enforces.
///
/// No adapter exists yet, and [`Caliber`](crate::Caliber) calls none.
#[async_trait]
pub trait Sandbox: Send + Sync + fmt::Debug {
    /// Runs the admitted call.
    ///
    /// # Errors
    ///
    /// `Unavailable` when a guarantee that the policy demands cannot be enforced: then nothing runs.
    async fn run(&self, permit: Permit) -> Result<Answer>;
}
