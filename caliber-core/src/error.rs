//! The error of this crate and of every port.

use std::fmt;

use crate::reason::ReasonCode;
use crate::text::shown;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong, what it was about, and what caused it.
///
/// The text is one line in lower case, made for the person who can act on it. It never holds a secret.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    reason: Option<ReasonCode>,
    fields: Vec<FieldProblem>,
    context: Vec<(&'static str, String)>,
    source: Option<Source>,
}

/// The class of an [`Error`]; it decides the HTTP status, the exit code and whether a retry can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong; see [`Error::fields`].
    Invalid,
    /// Nobody could be identified.
    Unauthenticated,
    /// The caller is known and lacks the scope.
    Forbidden,
    /// There is no such thing, or the caller may not see it; the two look alike on purpose.
    NotFound,
    /// The state that the request was decided on has changed, or a name is taken.
    Conflict,
    /// Admission refused the call; the reason code says at which step.
    Denied,
    /// The call waits for an approval.
    ApprovalNeeded,
    /// A quota is spent; a later attempt may pass.
    RateLimited,
    /// A part that is needed is busy or away (store, breaker, slot).
    Unavailable,
    /// The upstream answered wrongly or could not be reached. Nothing of a call was sent, or it answered.
    Upstream,
    /// The deadline passed.
    Timeout,
    /// The caller gave up.
    Cancelled,
    /// A call was sent and its answer was lost: it may or may not have taken effect.
    OutcomeUnknown,
    /// A limit of size, count or depth was met.
    TooLarge,
    /// The adapter does not offer this.
    Unsupported,
    /// A defect in caliber or in an adapter.
    Internal,
}

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same request fails again.
    Never,
    /// The same request may pass later.
    Later,
    /// Read the current state first, then decide again.
    AfterReading,
}

/// One field of a request and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    /// The field as the sender wrote it, such as `endpoint.args[2]`.
    pub field: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl Error {
    /// An error of `kind` with a one-line text.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            reason: None,
            fields: Vec::new(),
            context: Vec::new(),
            source: None,
        }))
    }

    /// A request whose `field` is wrong.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::invalid_fields(vec![FieldProblem {
            field: field.into(),
            problem: problem.into(),
        }])
    }

    /// A request with several wrong fields.
    pub fn invalid_fields(fields: Vec<FieldProblem>) -> Self {
        let message = fields
            .iter()
            .map(|problem| format!("{}: {}", shown(&problem.field), problem.problem))
            .collect::<Vec<_>>()
            .join("; ");
        let mut error = Self::new(ErrorKind::Invalid, message);
        error.0.fields = fields;
        error
    }

    /// The answer for everything that is absent or hidden. `what` is a kind of thing, such as `server`.
    pub fn not_found(what: &'static str, name: &str) -> Self {
        Self::new(ErrorKind::NotFound, format!("there is no {what} {}", shown(name)))
    }

    /// A defect: a state that the code holds to be impossible.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Adds the stable code that programs act on.
    #[must_use]
    pub fn with_reason(mut self, reason: ReasonCode) -> Self {
        self.0.reason = Some(reason);
        self
    }

    /// Adds what the error was about, such as `("server", "weather")`.
    #[must_use]
    pub fn with_context(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.0.context.push((key, value.into()));
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The class.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The text without its causes.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The stable code, where there is one.
    pub fn reason(&self) -> Option<ReasonCode> {
        self.0.reason
    }

    /// The wrong fields of an [`ErrorKind::Invalid`].
    pub fn fields(&self) -> &[FieldProblem] {
        &self.0.fields
    }

    /// What the error was about.
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.0.context
    }

    /// Whether a retry can help.
    pub fn retry(&self) -> Retry {
        match self.0.kind {
            ErrorKind::RateLimited | ErrorKind::Unavailable | ErrorKind::Upstream | ErrorKind::Timeout => {
                Retry::Later
            }
            ErrorKind::Conflict => Retry::AfterReading,
            _ => Retry::Never,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("reason", &self.0.reason)
            .field("context", &self.0.context)
            .field("source", &self.0.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
