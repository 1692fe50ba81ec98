//! The sandbox of systems that this crate does not know how to isolate on: it enforces nothing, says so, and runs
//! nothing.

use std::sync::Arc;

use async_trait::async_trait;
use caliber_core::admission::{RunPermit, Slot};
use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{
    Enforcement, Guarantee, PinnedProgram, Program, Reflection, RunOutcome, Sandbox, SandboxReport,
};
use caliber_core::{Error, ErrorKind, Result};

/// What an operator can do on such a system.
const REMEDY: &str = "run caliber on Linux, or name the address of a sandbox service that runs there";

/// A sandbox that enforces nothing and therefore runs nothing, whatever the settings allow.
#[derive(Clone, Debug)]
pub struct UnsupportedSandbox {
    report: Arc<SandboxReport>,
}

impl UnsupportedSandbox {
    /// Says of each of `required` that it does not hold.
    pub fn new(required: Vec<Guarantee>) -> Self {
        let guarantees = Guarantee::ALL
            .into_iter()
            .map(|guarantee| {
                let enforcement = Enforcement::NotEnforced {
                    stage: "platform".to_owned(),
                    errno: String::new(),
                    remedy: REMEDY.to_owned(),
                };
                (guarantee, enforcement)
            })
            .collect();
        Self {
            report: Arc::new(SandboxReport {
                backend: "none".to_owned(),
                guarantees,
                required,
                interpreter: None,
                problem: Some(format!(
                    "code tools cannot be isolated on {}; {REMEDY}",
                    std::env::consts::OS
                )),
                unenforced_allowed: false,
            }),
        }
    }

    fn refusal(&self) -> Error {
        let problem = self.report.problem.clone().unwrap_or_default();
        Error::new(ErrorKind::Unavailable, problem).with_reason(ReasonCode::SandboxUnavailable)
    }
}

#[async_trait]
impl Sandbox for UnsupportedSandbox {
    fn report(&self) -> Arc<SandboxReport> {
        Arc::clone(&self.report)
    }

    async fn pin(&self, _program: &Program, _deadline: Deadline) -> Result<PinnedProgram> {
        Err(self.refusal())
    }

    async fn inspect(&self, _program: &PinnedProgram, _deadline: Deadline) -> Result<Reflection> {
        Err(self.refusal())
    }

    async fn reserve(&self, _deadline: Deadline) -> Result<Slot> {
        Err(self.refusal())
    }

    async fn run(&self, _permit: RunPermit) -> Result<RunOutcome> {
        Err(self.refusal())
    }

    async fn close(&self, _deadline: Deadline) {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn nothing_is_enforced_and_nothing_runs() {
        for required in [Vec::new(), Guarantee::DEFAULT_REQUIRED.to_vec()] {
            let sandbox = UnsupportedSandbox::new(required);
            let report = sandbox.report();
            assert!(!report.is_available());
            assert_eq!(report.guarantees.len(), Guarantee::ALL.len());
            assert!(!report.guarantees.values().any(Enforcement::is_enforced));
            let error = sandbox
                .reserve(Deadline::after(Duration::from_secs(1)))
                .await
                .unwrap_err();
            assert_eq!(error.reason(), Some(ReasonCode::SandboxUnavailable));
        }
    }
}
