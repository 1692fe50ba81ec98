//! The error of this crate: why a server could not be built or served.
//!
//! What goes wrong inside one tool call is not an [`Error`]; the caller gets it as a tool result.

use std::fmt;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a server could not be built or served: a kind, a text for the operator, and what caused it.
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
}

/// The class of an [`Error`]; the command turns it into its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is wrong; another attempt with the same settings fails in the same way.
    Configuration,
    /// The database file cannot be used: missing, no regular file, unreadable, locked, corrupt or no database.
    Database,
    /// A transport failed.
    Transport,
    /// A mistake in this crate.
    Internal,
}

impl ErrorKind {
    /// Whether the same attempt may succeed later.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Database | Self::Transport)
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Configuration, message)
    }

    pub(crate) fn because(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The class of this error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("source", &self.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn std::error::Error + 'static))
    }
}
