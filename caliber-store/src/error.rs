//! The error of this crate, and what callers of the ports see of it.

use std::fmt;
use std::sync::Arc;

use caliber_core::reason::ReasonCode;
use diesel::result::DatabaseErrorKind;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// What went wrong with the store, what it was about, and what caused it.
///
/// The text is one line in lower case and never holds a secret.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    context: Vec<(&'static str, String)>,
    source: Option<Source>,
    refusal: Option<caliber_core::Error>,
}

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The contract of the registry refuses this: a conflict, an absent thing. Nothing is wrong with the store.
    Refused,
    /// There can be no database at the path: no directory, no file where none may be made, no text.
    Path,
    /// The file or its directory cannot be written.
    ReadOnly,
    /// Another process holds the database for too long.
    Locked,
    /// The disk, or the limit that was set for the file, is full.
    Full,
    /// The file is damaged.
    Corrupt,
    /// The file is no database, or the database of another program.
    NotADatabase,
    /// A newer version of caliber has changed the schema.
    NewerSchema,
    /// The operating system could not read or write.
    Io,
    /// Too many callers wait.
    Overloaded,
    /// The store was closed.
    Closed,
    /// There is no key ring, it cannot be read, or it lacks the key that a secret is stored under.
    Key,
    /// A stored secret does not open with its key: the row was changed.
    Secret,
    /// A row holds what this version cannot read.
    Row,
    /// A defect in this crate.
    Defect,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            context: Vec::new(),
            source: None,
            refusal: None,
        }))
    }

    pub(crate) fn with_context(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.0.context.push((key, value.into()));
        self
    }

    pub(crate) fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// The same error for another caller who is struck by it.
    pub(crate) fn again(&self) -> Self {
        Self(Box::new(Inner {
            kind: self.0.kind,
            message: self.0.message.clone(),
            context: self.0.context.clone(),
            source: self.0.source.clone(),
            refusal: None,
        }))
    }

    /// The class.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What the error was about, such as `("path", "/var/lib/caliber.db")`.
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.0.context
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

impl From<caliber_core::Error> for Error {
    /// A refusal that the contract of the registry asks for.
    fn from(refusal: caliber_core::Error) -> Self {
        let mut error = Self::new(ErrorKind::Refused, refusal.message());
        error.0.refusal = Some(refusal);
        error
    }
}

impl From<Error> for caliber_core::Error {
    fn from(error: Error) -> Self {
        use caliber_core::ErrorKind as Core;
        if let Some(refusal) = error.0.refusal {
            return refusal;
        }
        let (kind, reason) = match error.0.kind {
            ErrorKind::Row | ErrorKind::Defect | ErrorKind::Refused => (Core::Internal, None),
            ErrorKind::Key => (Core::Unavailable, Some(ReasonCode::SecretKeyMissing)),
            ErrorKind::Secret => (Core::Unavailable, Some(ReasonCode::SecretUnresolved)),
            _ => (Core::Unavailable, Some(ReasonCode::StoreUnavailable)),
        };
        let mut core = Self::new(kind, error.0.message.clone());
        if let Some(reason) = reason {
            core = core.with_reason(reason);
        }
        for (key, value) in &error.0.context {
            core = core.with_context(key, value.clone());
        }
        core.with_source(error)
    }
}

impl From<diesel::result::Error> for Error {
    fn from(error: diesel::result::Error) -> Self {
        let (kind, message) = match &error {
            diesel::result::Error::DatabaseError(DatabaseErrorKind::UniqueViolation, _) => {
                let taken = caliber_core::Error::new(
                    caliber_core::ErrorKind::Conflict,
                    "there is one with this identifier already",
                );
                return Self::from(taken.with_source(error));
            }
            diesel::result::Error::DatabaseError(_, information) => {
                crate::sqlite::classify(information.message())
            }
            _ => (ErrorKind::Defect, "a statement of the store is wrong"),
        };
        Self::new(kind, message).with_source(error)
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::new(ErrorKind::Defect, "a value could not be written as JSON").with_source(error)
    }
}
