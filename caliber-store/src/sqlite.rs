//! SQLite: one writer that commits in groups, a few connections for reading, and what only this backend does.
//!
//! SQLite works in the calling thread, so the queries run here without ever waiting: [`run`] drives them to their
//! end in place. A read is one hop to a thread that may block, whatever the number of its statements.

use std::error::Error as StdError;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use diesel::SqliteConnection;
use diesel::sql_types::BigInt;
use diesel_async::RunQueryDsl;
use diesel_async::sync_connection_wrapper::{SpawnBlocking, SyncConnectionWrapper};

use crate::error::{Error, ErrorKind, Result};

mod backup;
mod file;
mod open;
#[path = "queries/portable.rs"]
pub(crate) mod queries;
mod readers;
mod writer;

pub(crate) use backup::backup;
pub(crate) use file::DatabaseFile;
pub(crate) use open::{Opened, open};
pub(crate) use readers::Readers;
pub(crate) use writer::Writer;

/// A connection as the queries see it.
pub(crate) type Connection = SyncConnectionWrapper<SqliteConnection, InPlace>;
/// The dialect of the queries.
pub(crate) type Backend = diesel::sqlite::Sqlite;

/// Runs what would block right here: whoever holds a [`Connection`] is on a thread that may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InPlace;

impl SpawnBlocking for InPlace {
    fn spawn_blocking<'a, R>(
        &mut self,
        task: impl FnOnce() -> R + Send + 'static,
    ) -> Pin<Box<dyn Future<Output = Result<R, Box<dyn StdError + Send + Sync>>> + Send + 'a>>
    where
        R: Send + 'static,
    {
        Box::pin(std::future::ready(Ok(task())))
    }

    fn get_runtime() -> Self {
        Self
    }
}

/// Drives queries to their end. With [`InPlace`] each of their steps is ready at once.
pub(crate) fn run<T>(queries: impl Future<Output = Result<T>>) -> Result<T> {
    match pin!(queries).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(Error::new(ErrorKind::Defect, "a statement did not run in place")),
    }
}

/// The time of the database in microseconds, to the millisecond that SQLite's clock gives.
async fn now(conn: &mut Connection) -> Result<i64> {
    let milliseconds =
        diesel::dsl::sql::<BigInt>("CAST(ROUND(unixepoch('now', 'subsec') * 1000) AS INTEGER)");
    let now: i64 = diesel::select(milliseconds).get_result(conn).await?;
    Ok(now.saturating_mul(1_000))
}

/// What a text of SQLite stands for. diesel passes on the text and not the code; these texts are SQLite's own table
/// of them (`sqlite3ErrStr`), in the version that is compiled in.
pub(crate) fn classify(message: &str) -> (ErrorKind, &'static str) {
    const TABLE: [(&str, ErrorKind, &str); 10] = [
        (
            "database is locked",
            ErrorKind::Locked,
            "another process holds the database; try again, or end that process",
        ),
        (
            "database table is locked",
            ErrorKind::Locked,
            "another process holds the database; try again, or end that process",
        ),
        (
            "database or disk is full",
            ErrorKind::Full,
            "the database is full; free space on its disk, or raise the limit that is set for it",
        ),
        (
            "attempt to write a readonly database",
            ErrorKind::ReadOnly,
            "the database cannot be written; check the permissions of the file and of its directory",
        ),
        (
            "unable to open database file",
            ErrorKind::Path,
            "the database cannot be opened; check the permissions of the file and of its directory",
        ),
        (
            "disk I/O error",
            ErrorKind::Io,
            "the disk of the database does not read or write; check the disk",
        ),
        (
            "file is not a database",
            ErrorKind::NotADatabase,
            "the file is no database of caliber; check the path",
        ),
        (
            "database disk image is malformed",
            ErrorKind::Corrupt,
            "the database is damaged; restore a backup",
        ),
        (
            "malformed database schema",
            ErrorKind::Corrupt,
            "the database is damaged; restore a backup",
        ),
        (
            "out of memory",
            ErrorKind::Io,
            "the store has no memory left; try again later",
        ),
    ];
    let found = TABLE.iter().find(|(text, ..)| message.contains(text));
    found.map_or(
        (ErrorKind::Defect, "a statement of the store is wrong"),
        |(_, kind, told)| (*kind, told),
    )
}
