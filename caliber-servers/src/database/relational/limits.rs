//! What one call may cost.

use std::time::Duration;

use crate::Error;

/// Least bytes that [`Limits::max_memory`] takes: some page caches and some large values.
const MIN_MEMORY: usize = 16 * 1024 * 1024;

/// Limits of the relational server. [`Limits::default`] names the defaults; the bounds in parentheses are checked
/// when the server is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Rows in one result (1 to 100,000; default 1,000). More rows are cut and the result says so.
    pub max_rows: usize,
    /// Bytes of JSON that the rows of one result may take (1 KiB to 64 MiB; default 1 MiB). Rows beyond it are cut
    /// and the result says so; one row that alone is larger is an error. The answer on the wire is about twice as
    /// large, because the text content repeats the structured content.
    pub max_bytes: usize,
    /// Time for one call, the wait for a free reader included (1 ms to 10 min; default 10 s).
    pub timeout: Duration,
    /// Bytes of SQL text (1 to 1 MiB; default 64 KiB).
    pub max_sql_bytes: usize,
    /// Bound parameters of one statement (0 to 32,766, SQLite's own bound; default 256).
    pub max_parameters: usize,
    /// Bytes of any text, blob or row that SQLite handles while it works on a statement (64 KiB to 256 MiB; default
    /// 4 MiB). A single built-in function cannot be interrupted, so this also bounds how long an abandoned statement
    /// can hold its reader.
    pub max_value_bytes: usize,
    /// Calls that read the database at the same time (1 to 64; default 4).
    pub max_running: usize,
    /// Calls that wait for a reader (0 to 10,000; default 64). The next one is refused at once.
    pub max_waiting: usize,
    /// Bytes of memory that SQLite may use (16 MiB to 64 GiB; default none). The limit belongs to the whole process and
    /// all of its SQLite databases, it cannot be raised again, and every statement fails while it is reached; so a
    /// program of its own should set it, and the command does (64 MiB). It alone stops a statement whose common table
    /// expressions or views refer to each other so often that compiling it takes unbounded memory and time: SQLite
    /// does not look at the clock while it expands them.
    pub max_memory: Option<usize>,
    /// Time to wait for another process's lock on the database (0 to 1 min; default 1 s).
    pub lock_wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_rows: 1_000,
            max_bytes: 1024 * 1024,
            timeout: Duration::from_secs(10),
            max_sql_bytes: 64 * 1024,
            max_parameters: 256,
            max_value_bytes: 4 * 1024 * 1024,
            max_running: 4,
            max_waiting: 64,
            max_memory: None,
            lock_wait: Duration::from_secs(1),
        }
    }
}

impl Limits {
    /// Refuses values outside the documented bounds.
    pub(super) fn check(&self) -> Result<(), Error> {
        let millis = |duration: Duration| usize::try_from(duration.as_millis()).unwrap_or(usize::MAX);
        let bounds = [
            ("max_rows", self.max_rows, 1, 100_000),
            ("max_bytes", self.max_bytes, 1024, 64 * 1024 * 1024),
            ("timeout (in milliseconds)", millis(self.timeout), 1, 600_000),
            ("max_sql_bytes", self.max_sql_bytes, 1, 1024 * 1024),
            ("max_parameters", self.max_parameters, 0, 32_766),
            (
                "max_value_bytes",
                self.max_value_bytes,
                64 * 1024,
                256 * 1024 * 1024,
            ),
            ("max_running", self.max_running, 1, 64),
            ("max_waiting", self.max_waiting, 0, 10_000),
            (
                "max_memory",
                self.max_memory.unwrap_or(MIN_MEMORY),
                MIN_MEMORY,
                64 * 1024 * 1024 * 1024,
            ),
            ("lock_wait (in milliseconds)", millis(self.lock_wait), 0, 60_000),
        ];
        for (name, value, least, most) in bounds {
            if value < least || value > most {
                return Err(Error::configuration(format!(
                    "{name} is {value}; it must be between {least} and {most}"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_within_bounds() {
        Limits::default().check().unwrap();
    }

    #[test]
    fn every_limit_is_bounded() {
        let cases: [fn(&mut Limits); 10] = [
            |l| l.max_rows = 0,
            |l| l.max_bytes = 10,
            |l| l.timeout = Duration::ZERO,
            |l| l.max_sql_bytes = 0,
            |l| l.max_parameters = 40_000,
            |l| l.max_value_bytes = 1,
            |l| l.max_running = 0,
            |l| l.max_waiting = 10_001,
            |l| l.max_memory = Some(1024),
            |l| l.lock_wait = Duration::from_secs(61),
        ];
        for spoil in cases {
            let mut limits = Limits::default();
            spoil(&mut limits);
            assert_eq!(
                limits.check().unwrap_err().kind(),
                crate::ErrorKind::Configuration,
                "{limits:?}"
            );
        }
    }
}
