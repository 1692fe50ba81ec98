//! Why a tool call failed, in words that the model behind the caller can act on.

use std::fmt;

use super::text::one_line;

/// The class of a failed tool call. The name is stable and stands at the start of the error text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The arguments do not fit the input schema, or the statement's parameters.
    InvalidArguments,
    /// SQLite does not understand the statement, or failed on its values.
    InvalidSql,
    /// The statement does something other than reading.
    NotReadOnly,
    /// There is not exactly one statement.
    NotOneStatement,
    /// There is no such table or view.
    UnknownTable,
    /// One row or one description is larger than a limit.
    TooLarge,
    /// The call took too long.
    Timeout,
    /// The caller gave up.
    Cancelled,
    /// Too many calls wait already.
    Busy,
    /// Another process holds a lock on the database.
    Locked,
    /// The database file is gone, unreadable or damaged.
    Unavailable,
    /// A mistake in this server.
    Internal,
}

impl Failure {
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::InvalidArguments => "invalid_arguments",
            Self::InvalidSql => "invalid_sql",
            Self::NotReadOnly => "not_read_only",
            Self::NotOneStatement => "not_one_statement",
            Self::UnknownTable => "unknown_table",
            Self::TooLarge => "too_large",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Busy => "busy",
            Self::Locked => "locked",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }
}

/// A failed tool call: the class, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolError {
    pub(super) failure: Failure,
    message: String,
}

pub(super) type ToolResult<T> = Result<T, ToolError>;

impl ToolError {
    pub(super) fn new(failure: Failure, message: impl Into<String>) -> Self {
        Self {
            failure,
            message: message.into(),
        }
    }

    /// The text without the code, for the operator.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn timeout() -> Self {
        Self::new(
            Failure::Timeout,
            "the call took too long and was stopped; read less, or filter on an indexed column",
        )
    }

    pub(super) fn cancelled() -> Self {
        Self::new(Failure::Cancelled, "the call was cancelled")
    }

    pub(super) fn busy() -> Self {
        Self::new(
            Failure::Busy,
            "too many calls are waiting for the database; try again later",
        )
    }

    pub(super) fn internal() -> Self {
        Self::new(Failure::Internal, "the server made a mistake; its log says more")
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.failure.code(), self.message)
    }
}

/// The caller's view of an error that SQLite reported. `refused` is what the authorizer refused, if that is the reason.
///
/// Paths never get through: errors about the file are put into our own words.
pub(super) fn from_sqlite(error: &rusqlite::Error, refused: Option<String>) -> ToolError {
    use rusqlite::ErrorCode;

    let (code, message) = match error {
        rusqlite::Error::SqliteFailure(failure, message) => {
            (failure.code, message.clone().unwrap_or_default())
        }
        rusqlite::Error::SqlInputError {
            error, msg, offset, ..
        } => {
            let place = if *offset >= 0 {
                format!(" (at byte {offset})")
            } else {
                String::new()
            };
            (error.code, format!("{msg}{place}"))
        }
        rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::Utf8Error(..) => {
            return ToolError::new(
                Failure::Unavailable,
                "the schema of the database holds a name that is not UTF-8",
            );
        }
        other => {
            tracing::error!(error = %other, "unexpected error of the database library");
            return ToolError::internal();
        }
    };
    if let Some(refused) = refused {
        return ToolError::new(
            Failure::NotReadOnly,
            format!(
                "this server only reads, and refused this: {refused}; write one SELECT that reads the main database"
            ),
        );
    }
    match code {
        ErrorCode::AuthorizationForStatementDenied | ErrorCode::ReadOnly => ToolError::new(
            Failure::NotReadOnly,
            "this server only reads; write one SELECT statement",
        ),
        ErrorCode::OperationInterrupted => ToolError::timeout(),
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => ToolError::new(
            Failure::Locked,
            "another process holds a lock on the database; try again later",
        ),
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => ToolError::new(
            Failure::Unavailable,
            "the database file is damaged or is not a database",
        ),
        ErrorCode::CannotOpen | ErrorCode::SystemIoFailure | ErrorCode::PermissionDenied => {
            ToolError::new(Failure::Unavailable, "the database file cannot be read")
        }
        ErrorCode::TooBig => ToolError::new(
            Failure::TooLarge,
            "a value is larger than this server handles; select less of it, for example with substr()",
        ),
        ErrorCode::OutOfMemory => ToolError::new(Failure::TooLarge, "the statement needs too much memory"),
        _ => ToolError::new(Failure::InvalidSql, one_line(&message)),
    }
}
