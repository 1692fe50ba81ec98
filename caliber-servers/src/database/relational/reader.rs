//! One read-only connection.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use super::authorizer::{Authorizer, Phase};
use super::limits::Limits;
use super::outcome::{Failure, ToolError, ToolResult, from_sqlite};

/// Virtual machine steps between two looks at the clock and at the cancellation: well under a millisecond.
const STEPS_BETWEEN_CHECKS: i32 = 1_000;

/// When one call has to stop.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) deadline: Instant,
    cancelled: AtomicBool,
}

impl Stop {
    pub(super) fn at(deadline: Instant) -> Self {
        Self {
            deadline,
            cancelled: AtomicBool::new(false),
        }
    }

    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// The reason to stop now, if there is one.
    pub(super) fn reached(&self) -> Option<ToolError> {
        if self.cancelled.load(Ordering::Relaxed) {
            Some(ToolError::cancelled())
        } else if Instant::now() >= self.deadline {
            Some(ToolError::timeout())
        } else {
            None
        }
    }
}

/// A connection that can only read, with the limits and the stop of the call that uses it.
#[derive(Debug)]
pub(super) struct Reader {
    connection: Connection,
    authorizer: Arc<Authorizer>,
    limits: Limits,
    stop: Arc<Stop>,
}

impl Reader {
    /// Opens the file at `path`, which must be absolute and without symbolic links, for reading only.
    pub(super) fn open(path: &Path, limits: &Limits, stop: Arc<Stop>) -> rusqlite::Result<Self> {
        // An absolute path cannot be taken for a `file:` address or for `:memory:`.
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE
            | OpenFlags::SQLITE_OPEN_NOFOLLOW
            | OpenFlags::SQLITE_OPEN_EXRESCODE;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(limits.lock_wait)?;
        for (config, value) in [
            (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
            (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
            (DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_ATTACH_CREATE, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_ATTACH_WRITE, false),
            // A misspelt column in double quotes is an error, not a text.
            (DbConfig::SQLITE_DBCONFIG_DQS_DML, false),
        ] {
            connection.set_db_config(config, value)?;
        }
        set_sqlite_limits(&connection, limits)?;
        connection
            .execute_batch("PRAGMA query_only = ON; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;")?;
        if let Some(bytes) = limits.max_memory {
            connection.execute_batch(&format!("PRAGMA hard_heap_limit = {bytes};"))?;
        }
        let authorizer = Authorizer::install(&connection)?;
        let reader = Self {
            connection,
            authorizer,
            limits: *limits,
            stop,
        };
        reader.arm()?;
        Ok(reader)
    }

    /// Prepares for the next call.
    pub(super) fn start(&mut self, stop: Arc<Stop>) -> rusqlite::Result<()> {
        self.stop = stop;
        self.arm()
    }

    fn arm(&self) -> rusqlite::Result<()> {
        let remaining = self.stop.deadline.saturating_duration_since(Instant::now());
        self.connection
            .busy_timeout(self.limits.lock_wait.min(remaining.max(Duration::from_millis(1))))?;
        let stop = Arc::clone(&self.stop);
        self.connection
            .progress_handler(STEPS_BETWEEN_CHECKS, Some(move || stop.reached().is_some()))
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Says whose SQL is compiled from now on.
    pub(super) fn enter(&self, phase: Phase) {
        self.authorizer.enter(phase);
    }

    /// The caller's view of an error that this connection reported.
    pub(super) fn explain(&self, error: &rusqlite::Error) -> ToolError {
        let explained = from_sqlite(error, self.authorizer.refusal_behind(error));
        match explained.failure {
            Failure::Timeout => self.stop.reached().unwrap_or(explained),
            Failure::Unavailable | Failure::Locked => {
                tracing::warn!(%error, "the database cannot be read");
                explained
            }
            _ => explained,
        }
    }

    /// Reads the schema once, which shows that the file is a database.
    pub(super) fn check(&self) -> ToolResult<()> {
        self.enter(Phase::Server);
        self.connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
            .map_err(|error| self.explain(&error))
    }
}

fn set_sqlite_limits(connection: &Connection, limits: &Limits) -> rusqlite::Result<()> {
    let clamped = |value: usize| i32::try_from(value).unwrap_or(i32::MAX);
    for (limit, value) in [
        (Limit::SQLITE_LIMIT_LENGTH, clamped(limits.max_value_bytes)),
        (
            Limit::SQLITE_LIMIT_VARIABLE_NUMBER,
            clamped(limits.max_parameters),
        ),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 200),
        (Limit::SQLITE_LIMIT_PARSER_DEPTH, 500),
        (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100),
        (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        connection.set_limit(limit, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rusqlite::hooks::{AuthContext, Authorization};

    use super::*;

    #[test]
    fn the_connection_alone_cannot_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("sample.db");
        Connection::open(&path)
            .unwrap()
            .execute_batch("CREATE TABLE t (a)")
            .unwrap();
        let stop = Arc::new(Stop::at(Instant::now() + Duration::from_secs(60)));
        let reader = Reader::open(&path, &Limits::default(), stop).unwrap();
        reader
            .connection
            .authorizer(None::<fn(AuthContext<'_>) -> Authorization>)
            .unwrap();
        for sql in [
            "INSERT INTO t VALUES (1)",
            "DROP TABLE t",
            "CREATE TABLE u (a)",
            "PRAGMA user_version = 1",
        ] {
            let error = reader.connection.execute_batch(sql).unwrap_err();
            assert_eq!(
                error.sqlite_error_code(),
                Some(rusqlite::ErrorCode::ReadOnly),
                "{sql}"
            );
        }
        // Not even after the pragma is taken back.
        reader
            .connection
            .execute_batch("PRAGMA query_only = OFF")
            .unwrap();
        assert!(
            reader
                .connection
                .execute_batch("INSERT INTO t VALUES (1)")
                .is_err()
        );
        assert!(
            reader
                .connection
                .execute_batch("ATTACH '/nowhere' AS other")
                .is_err()
        );
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("sample.db");
        Connection::open(&path)
            .unwrap()
            .execute_batch("CREATE TABLE t (a)")
            .unwrap();
        let link = path.with_file_name("link.db");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let stop = Arc::new(Stop::at(Instant::now() + Duration::from_secs(60)));
        assert!(Reader::open(&link, &Limits::default(), stop).is_err());
    }
}
