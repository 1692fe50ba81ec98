//! How an exchange with an upstream fails, before it becomes core's error.

use caliber_core::text::escaped;
use caliber_core::{Error, ErrorKind, reason::ReasonCode};

/// The longest text that is taken over from an upstream, in characters.
const UPSTREAM_TEXT: usize = 300;

/// A failed exchange. Cheap to clone, because several callers may wait for one opening.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) reason: ReasonCode,
    /// One line, without secrets.
    pub(crate) message: String,
    /// What became of the request.
    pub(crate) fate: Fate,
    /// Whether the session cannot go on.
    pub(crate) ends_session: bool,
}

/// What became of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing of it was sent.
    NotSent,
    /// It was sent, and its answer is lost: the upstream may have acted.
    Lost,
    /// The upstream answered.
    Answered,
}

impl Failure {
    fn new(kind: ErrorKind, reason: ReasonCode, message: impl Into<String>, fate: Fate) -> Self {
        Self {
            kind,
            reason,
            message: message.into(),
            fate,
            ends_session: fate != Fate::Answered,
        }
    }

    /// The upstream could not be reached or started.
    pub(crate) fn connect(message: impl Into<String>) -> Self {
        Self::new(
            ErrorKind::Upstream,
            ReasonCode::ConnectFailed,
            message,
            Fate::NotSent,
        )
    }

    /// The connection ended after the request was sent.
    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self::new(
            ErrorKind::OutcomeUnknown,
            ReasonCode::OutcomeUnknown,
            message,
            Fate::Lost,
        )
    }

    /// The upstream answered something that is no answer.
    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(
            ErrorKind::Upstream,
            ReasonCode::ProtocolViolation,
            message,
            Fate::Answered,
        )
    }

    /// The upstream answered with an error.
    pub(crate) fn upstream(message: impl Into<String>) -> Self {
        Self::new(
            ErrorKind::Upstream,
            ReasonCode::UpstreamError,
            message,
            Fate::Answered,
        )
    }

    /// An answer went over a limit.
    pub(crate) fn too_large(reason: ReasonCode, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::TooLarge, reason, message, Fate::Answered)
    }

    /// The upstream refused our credentials.
    pub(crate) fn unauthorized(reason: ReasonCode, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Upstream, reason, message, Fate::Answered)
    }

    /// The upstream does not know our session any more. Whether it worked on the request before it forgot cannot
    /// be told from its answer, so the outcome counts as unknown.
    pub(crate) fn session_forgotten() -> Self {
        let mut failure = Self::new(
            ErrorKind::OutcomeUnknown,
            ReasonCode::SessionRestarted,
            "the upstream has forgotten the session; a new one is used from the next call on",
            Fate::Lost,
        );
        failure.ends_session = true;
        failure
    }

    /// The state that the caller had in a session is gone; nothing was sent.
    pub(crate) fn session_restarted(why: &str) -> Self {
        Self::new(
            ErrorKind::Upstream,
            ReasonCode::SessionRestarted,
            format!(
                "the session that held the caller's state is gone ({why}); a new one is used from the next call on"
            ),
            Fate::NotSent,
        )
    }

    /// An argument that the tool wants in a header does not fit there; nothing was sent.
    pub(crate) fn unmirrored(problem: &str) -> Self {
        Self::denied(ReasonCode::ArgumentsInvalid, problem)
    }

    /// The session sees another tool than was admitted; nothing was sent.
    pub(crate) fn denied(reason: ReasonCode, message: impl Into<String>) -> Self {
        let mut failure = Self::new(ErrorKind::Denied, reason, message, Fate::NotSent);
        failure.ends_session = false;
        failure
    }

    /// Something of ours is exhausted; nothing was sent.
    pub(crate) fn busy(reason: ReasonCode, message: impl Into<String>) -> Self {
        let mut failure = Self::new(ErrorKind::Unavailable, reason, message, Fate::NotSent);
        failure.ends_session = false;
        failure
    }

    /// The deadline passed; nothing was sent.
    pub(crate) fn timeout(what: &str) -> Self {
        Self::new(
            ErrorKind::Timeout,
            ReasonCode::Timeout,
            format!("{what} did not end by the deadline"),
            Fate::NotSent,
        )
    }

    /// An error of core's, such as a launcher's or a secret source's, before anything was sent.
    pub(crate) fn of(error: &Error, reason: ReasonCode) -> Self {
        Self::new(
            error.kind(),
            error.reason().unwrap_or(reason),
            error.message(),
            Fate::NotSent,
        )
    }

    /// The same failure of a session that must not be used again.
    #[must_use]
    pub(crate) fn ending_session(mut self) -> Self {
        self.ends_session = true;
        self
    }

    /// The same failure for a request of which nothing was sent.
    #[must_use]
    pub(crate) fn not_sent(mut self) -> Self {
        if self.fate == Fate::Lost {
            self.fate = Fate::NotSent;
            self.kind = ErrorKind::Upstream;
            if self.reason == ReasonCode::OutcomeUnknown {
                self.reason = ReasonCode::ConnectFailed;
            }
        }
        self
    }

    /// The same failure of something that goes before a call: of the call itself nothing was sent.
    #[must_use]
    pub(crate) fn before_call(self) -> Self {
        let mut failure = self.not_sent();
        failure.fate = Fate::NotSent;
        failure
    }

    /// The same failure after a call was sent, or may have been.
    #[must_use]
    pub(crate) fn sent(mut self) -> Self {
        if self.fate == Fate::NotSent {
            self.fate = Fate::Lost;
        }
        self
    }

    /// Whether another attempt to connect may fare better: a measure of the upstream's health, not of the request.
    pub(crate) fn is_connection_failure(&self) -> bool {
        matches!(
            self.reason,
            ReasonCode::ConnectFailed | ReasonCode::OutcomeUnknown
        ) || self.kind == ErrorKind::Timeout
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = Error::new(failure.kind, failure.message).with_reason(failure.reason);
        match failure.fate {
            Fate::NotSent => error,
            Fate::Lost | Fate::Answered => error.after_sending(),
        }
    }
}

/// The end of a text of an upstream that is escaped already, bounded.
pub(crate) fn upstream_text_end(escaped: &str) -> String {
    let skipped = escaped.chars().count().saturating_sub(2 * UPSTREAM_TEXT);
    let end: String = escaped.chars().skip(skipped).collect();
    format!("`{end}`")
}

/// Text of an upstream for an error of ours: one line, escaped, bounded.
pub(crate) fn upstream_text(text: &str) -> String {
    format!("`{}`", escaped(text.trim(), UPSTREAM_TEXT))
}
