//! How the sandbox's word about a run becomes that of the ledger.

use crate::invocation::InvocationOutcome;
use crate::reason::ReasonCode;
use crate::sandbox::{Exit, Phase, Resource, RunStatus};

/// What the ledger says of a run.
pub(super) struct Ending {
    pub(super) outcome: InvocationOutcome,
    pub(super) reason: Option<ReasonCode>,
    /// No value, no argument, and nothing that the tool wrote but the type of what it raised.
    pub(super) detail: Option<String>,
}

/// The table of [`Caliber::run_code_tool`](crate::Caliber::run_code_tool).
pub(super) fn ending(status: &RunStatus) -> Ending {
    use InvocationOutcome::{Ok, Timeout, ToolError, UpstreamError};
    let (outcome, reason, detail) = match status {
        RunStatus::Ok { .. } => (Ok, None, None),
        RunStatus::ToolError { error_type, .. } => (ToolError, None, Some(format!("it raised {error_type}"))),
        RunStatus::NoResult {
            phase: Phase::Run,
            exit,
        } => (
            ToolError,
            Some(ReasonCode::ToolCrashed),
            Some(format!("it ended without a result, {}", exited(*exit))),
        ),
        RunStatus::NoResult { phase, exit } => (
            UpstreamError,
            Some(ReasonCode::SandboxFailed),
            Some(format!("it ended {}, {}", during(*phase), exited(*exit))),
        ),
        RunStatus::ResourceLimit { resource } => (
            ToolError,
            Some(ReasonCode::ToolCrashed),
            Some(format!("it met its limit of {}", limited(*resource))),
        ),
        RunStatus::DeadlineExceeded { phase } => (
            Timeout,
            Some(ReasonCode::Timeout),
            Some(format!("the deadline passed {}", during(*phase))),
        ),
        RunStatus::ResultInvalid { problem } => (
            UpstreamError,
            Some(ReasonCode::ResultInvalid),
            Some(problem.clone()),
        ),
        RunStatus::ResultTooLarge { limit } => (
            UpstreamError,
            Some(ReasonCode::ResultTooLarge),
            Some(format!("the value is larger than {limit} bytes")),
        ),
        RunStatus::ProtocolViolation { problem } => (
            UpstreamError,
            Some(ReasonCode::ProtocolViolation),
            Some(problem.clone()),
        ),
    };
    Ending {
        outcome,
        reason,
        detail,
    }
}

fn during(phase: Phase) -> &'static str {
    match phase {
        Phase::Queue => "in the queue",
        Phase::Spawn => "while its process was made",
        Phase::Import => "during the import",
        Phase::Run => "during the run",
    }
}

fn exited(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("with exit code {code}"),
        Exit::Signal(signal) => format!("by signal {signal}"),
        Exit::Unknown => "nobody can tell how".to_owned(),
    }
}

fn limited(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "memory",
        Resource::Cpu => "processor time",
    }
}
