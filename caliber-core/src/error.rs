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
    sent: bool,
}

/// The class of an [`Error`]; it decides the HTTP status and the exit code.
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
    /// The same request fails again, or would be a second call where the first may have taken effect.
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
            sent: false,
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

    /// Says that the call had been sent, or may have been, when it failed.
    #[must_use]
    pub fn after_sending(mut self) -> Self {
        self.0.sent = true;
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

    /// Whether the error is about a call that may have been sent, so that it may have taken effect.
    pub fn may_have_been_sent(&self) -> bool {
        self.0.sent || self.0.kind == ErrorKind::OutcomeUnknown
    }

    /// Whether a retry can help. It never says so of a call that [may have been sent](Self::may_have_been_sent).
    pub fn retry(&self) -> Retry {
        match self.0.kind {
            _ if self.may_have_been_sent() => Retry::Never,
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
            .field("sent", &self.0.sent)
            .field("source", &self.0.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_helps_where_nothing_was_sent_and_never_afterwards() {
        use ErrorKind::*;
        for (kind, unsent) in [
            (Invalid, Retry::Never),
            (Unauthenticated, Retry::Never),
            (Forbidden, Retry::Never),
            (NotFound, Retry::Never),
            (Conflict, Retry::AfterReading),
            (Denied, Retry::Never),
            (ApprovalNeeded, Retry::Never),
            (RateLimited, Retry::Later),
            (Unavailable, Retry::Later),
            (Upstream, Retry::Later),
            (Timeout, Retry::Later),
            (Cancelled, Retry::Never),
            (OutcomeUnknown, Retry::Never),
            (TooLarge, Retry::Never),
            (Unsupported, Retry::Never),
            (Internal, Retry::Never),
        ] {
            let error = Error::new(kind, "it failed");
            assert_eq!(error.may_have_been_sent(), kind == OutcomeUnknown, "{kind:?}");
            assert_eq!(error.retry(), unsent, "{kind:?}");
            let error = error.after_sending();
            assert!(error.may_have_been_sent(), "{kind:?}");
            assert_eq!(error.retry(), Retry::Never, "{kind:?}");
        }
    }
}
