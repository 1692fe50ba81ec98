//! What travels between a service and its clients.

use std::sync::Arc;
use std::time::Duration;

use caliber_core::clock::Deadline;
use caliber_core::id::ProjectId;
use caliber_core::json::JsonText;
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{
    Captured, ExecutionMode, ExecutionPreference, Exit, Guarantee, Phase, PhaseTimes, PinnedProgram, Program,
    Resource, RunLimits, RunOutcome, RunRequest, RunStatus, Usage,
};
use caliber_core::secret::SecretText;
use caliber_core::text::escaped;
use caliber_core::{Error, ErrorKind, FieldProblem};
use serde::{Deserialize, Serialize};

/// The longest text of an error that is taken over, in characters.
const ERROR_TEXT: usize = 2000;
/// The most fields of an error that are taken over.
const ERROR_FIELDS: usize = 64;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PinWire {
    pub(super) program: Program,
    pub(super) left_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InspectWire {
    pub(super) program: PinnedProgram,
    pub(super) left_ms: u64,
}

/// A [`RunRequest`]. Its secrets are in it: it is never logged, and only sent where nobody listens.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunWire {
    program: PinnedProgram,
    arguments: JsonText,
    secrets: Vec<(String, String)>,
    tenant: ProjectId,
    preference: ExecutionPreference,
    limits: RunLimits,
    startup_grace_ms: u64,
    left_ms: u64,
    result_bytes: usize,
}

impl RunWire {
    pub(super) fn of(request: &RunRequest, left: Duration) -> Self {
        Self {
            program: PinnedProgram::clone(&request.program),
            arguments: request.arguments.clone(),
            secrets: request
                .secrets
                .iter()
                .map(|(name, value)| (name.clone(), value.expose().to_owned()))
                .collect(),
            tenant: request.tenant.clone(),
            preference: request.preference,
            limits: request.limits,
            startup_grace_ms: milliseconds(request.startup_grace),
            left_ms: milliseconds(left),
            result_bytes: request.result_bytes,
        }
    }

    pub(super) fn into_request(self) -> RunRequest {
        RunRequest {
            program: Arc::new(self.program),
            arguments: self.arguments,
            secrets: self
                .secrets
                .into_iter()
                .map(|(name, value)| (name, SecretText::new(value)))
                .collect(),
            tenant: self.tenant,
            preference: self.preference,
            limits: self.limits,
            startup_grace: Duration::from_millis(self.startup_grace_ms),
            deadline: Deadline::after(Duration::from_millis(self.left_ms)),
            result_bytes: self.result_bytes,
        }
    }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A [`RunOutcome`]. Its status is tagged from outside, because a value that is kept as text can only be read so.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutcomeWire {
    status: StatusWire,
    stdout: Captured,
    stderr: Captured,
    mode: ExecutionMode,
    unenforced: Vec<Guarantee>,
    times: PhaseTimes,
    usage: Usage,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum StatusWire {
    Ok { value: JsonText },
    ToolError { error_type: String, message: String },
    NoResult { phase: Phase, exit: Exit },
    DeadlineExceeded { phase: Phase },
    ResultInvalid { problem: String },
    ResultTooLarge { limit: u64 },
    ProtocolViolation { problem: String },
    ResourceLimit { resource: Resource },
}

impl From<RunOutcome> for OutcomeWire {
    fn from(outcome: RunOutcome) -> Self {
        Self {
            status: match outcome.status {
                RunStatus::Ok { value } => StatusWire::Ok { value },
                RunStatus::ToolError { error_type, message } => StatusWire::ToolError { error_type, message },
                RunStatus::NoResult { phase, exit } => StatusWire::NoResult { phase, exit },
                RunStatus::DeadlineExceeded { phase } => StatusWire::DeadlineExceeded { phase },
                RunStatus::ResultInvalid { problem } => StatusWire::ResultInvalid { problem },
                RunStatus::ResultTooLarge { limit } => StatusWire::ResultTooLarge { limit },
                RunStatus::ProtocolViolation { problem } => StatusWire::ProtocolViolation { problem },
                RunStatus::ResourceLimit { resource } => StatusWire::ResourceLimit { resource },
            },
            stdout: outcome.stdout,
            stderr: outcome.stderr,
            mode: outcome.mode,
            unenforced: outcome.unenforced,
            times: outcome.times,
            usage: outcome.usage,
        }
    }
}

impl From<OutcomeWire> for RunOutcome {
    fn from(outcome: OutcomeWire) -> Self {
        Self {
            status: match outcome.status {
                StatusWire::Ok { value } => RunStatus::Ok { value },
                StatusWire::ToolError { error_type, message } => RunStatus::ToolError { error_type, message },
                StatusWire::NoResult { phase, exit } => RunStatus::NoResult { phase, exit },
                StatusWire::DeadlineExceeded { phase } => RunStatus::DeadlineExceeded { phase },
                StatusWire::ResultInvalid { problem } => RunStatus::ResultInvalid { problem },
                StatusWire::ResultTooLarge { limit } => RunStatus::ResultTooLarge { limit },
                StatusWire::ProtocolViolation { problem } => RunStatus::ProtocolViolation { problem },
                StatusWire::ResourceLimit { resource } => RunStatus::ResourceLimit { resource },
            },
            stdout: outcome.stdout,
            stderr: outcome.stderr,
            mode: outcome.mode,
            unenforced: outcome.unenforced,
            times: outcome.times,
            usage: outcome.usage,
        }
    }
}

/// An error of the service.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ErrorWire {
    /// Says that the service itself speaks, and not something in between.
    sandbox_error: Kind,
    reason: Option<ReasonCode>,
    message: String,
    #[serde(default)]
    fields: Vec<(String, String)>,
}

macro_rules! kinds {
    ($($name:ident = $status:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Kind { $($name,)* }

        impl Kind {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name),*];

            fn of(kind: ErrorKind) -> Self {
                match kind {
                    $(ErrorKind::$name => Self::$name,)*
                    _ => Self::Internal,
                }
            }

            fn kind(self) -> ErrorKind {
                match self { $(Self::$name => ErrorKind::$name,)* }
            }

            fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }
        }
    };
}

kinds! {
    Invalid = 400,
    Unauthenticated = 401,
    Forbidden = 403,
    NotFound = 404,
    Conflict = 409,
    Denied = 403,
    RateLimited = 429,
    Unavailable = 503,
    Upstream = 502,
    Timeout = 504,
    Cancelled = 503,
    OutcomeUnknown = 502,
    TooLarge = 413,
    Unsupported = 501,
    Internal = 500,
}

impl ErrorWire {
    pub(super) fn of(error: &Error) -> Self {
        Self {
            sandbox_error: Kind::of(error.kind()),
            reason: error.reason(),
            message: error.message().to_owned(),
            fields: error
                .fields()
                .iter()
                .map(|problem| (problem.field.clone(), problem.problem.clone()))
                .collect(),
        }
    }

    pub(super) fn status(&self) -> u16 {
        self.sandbox_error.status()
    }

    /// The error, its text bounded and escaped: the service is trusted to run tools, not to write our logs.
    pub(super) fn into_error(self) -> Error {
        let error = match self.sandbox_error.kind() {
            ErrorKind::Invalid if !self.fields.is_empty() => Error::invalid_fields(
                self.fields
                    .into_iter()
                    .take(ERROR_FIELDS)
                    .map(|(field, problem)| FieldProblem {
                        field: escaped(&field, ERROR_TEXT),
                        problem: escaped(&problem, ERROR_TEXT),
                    })
                    .collect(),
            ),
            kind => Error::new(kind, escaped(&self.message, ERROR_TEXT)),
        };
        match self.reason {
            Some(reason) => error.with_reason(reason),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use caliber_core::json::JsonLimits;

    use super::*;

    #[test]
    fn an_outcome_arrives_as_it_was() {
        let value =
            JsonText::parse(r#"{"b": 1.50, "a": [18446744073709551615]}"#, JsonLimits::RESULT).unwrap();
        let captured = Captured {
            text: "out\u{fffd}".to_owned(),
            total_bytes: 7,
            truncated: true,
        };
        for status in [
            RunStatus::Ok { value: value.clone() },
            RunStatus::ToolError {
                error_type: "ValueError".to_owned(),
                message: "no\n".to_owned(),
            },
            RunStatus::NoResult {
                phase: Phase::Import,
                exit: Exit::Signal(9),
            },
            RunStatus::DeadlineExceeded { phase: Phase::Run },
            RunStatus::ResultInvalid {
                problem: "nan".to_owned(),
            },
            RunStatus::ResultTooLarge { limit: 7 },
            RunStatus::ProtocolViolation {
                problem: "nonce".to_owned(),
            },
            RunStatus::ResourceLimit {
                resource: Resource::Memory,
            },
        ] {
            let outcome = RunOutcome {
                status,
                stdout: captured.clone(),
                stderr: Captured::default(),
                mode: ExecutionMode::Spare,
                unenforced: vec![Guarantee::TreeMemory],
                times: PhaseTimes {
                    start_us: 1,
                    run_us: 2,
                },
                usage: Usage {
                    cpu_us: Some(3),
                    peak_memory_bytes: None,
                },
            };
            let text = serde_json::to_string(&OutcomeWire::from(outcome.clone())).unwrap();
            let read: OutcomeWire = serde_json::from_str(&text).unwrap();
            let read = RunOutcome::from(read);
            assert_eq!(read, outcome);
            if let RunStatus::Ok { value: read } = read.status {
                assert_eq!(read.as_str(), value.as_str());
            }
        }
    }

    #[test]
    fn an_error_arrives_as_it_was_in_one_line() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind.kind()), *kind);
            assert!((400..600).contains(&kind.status()));
        }
        let error = Error::new(ErrorKind::Unavailable, "gone\nlost").with_reason(ReasonCode::SourceChanged);
        let text = serde_json::to_string(&ErrorWire::of(&error)).unwrap();
        let read = serde_json::from_str::<ErrorWire>(&text).unwrap().into_error();
        assert_eq!(read.kind(), ErrorKind::Unavailable);
        assert_eq!(read.reason(), Some(ReasonCode::SourceChanged));
        assert_eq!(read.message(), "gone\\nlost");
        let error = Error::invalid("source_roots[0]", "is no folder");
        let text = serde_json::to_string(&ErrorWire::of(&error)).unwrap();
        let read = serde_json::from_str::<ErrorWire>(&text).unwrap().into_error();
        assert_eq!(read.fields(), error.fields());
        assert_eq!(read.message(), error.message());
    }
}
