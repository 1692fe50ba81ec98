//! Opening: the file, its settings, its schema.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection;
use diesel::migration::{Migration, MigrationSource, MigrationVersion};
use diesel::sql_types::{BigInt, Text};
use diesel::{Connection as _, QueryableByName, RunQueryDsl, SqliteConnection};
use diesel_async::sync_connection_wrapper::SyncConnectionWrapper;
use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};

use super::file::{DatabaseFile, problem};
use super::{Backend, Connection, InPlace};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::StoreSettings;

const MIGRATIONS: EmbeddedMigrations = embed_migrations!("migrations/sqlite");
/// What marks a database as caliber's: "calb".
const APPLICATION_ID: i64 = 0x6361_6c62;
/// How long to wait before a step is tried again that another process got in the way of.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A database that is ready, with every connection that it will have.
pub(crate) struct Opened {
    pub(crate) file: DatabaseFile,
    pub(crate) writer: Connection,
    pub(crate) readers: Vec<Connection>,
}

/// Opens the database and brings its schema up to date. Blocks.
pub(crate) fn open(settings: &StoreSettings) -> Result<Opened> {
    let file = DatabaseFile::find(&settings.path, settings.create)?;
    let about = |error: Error| error.with_context("path", caliber_core::text::shown(file.text()));
    let mut writer = connect(&file, settings.busy).map_err(about)?;
    prepare(&mut writer, &file, settings).map_err(about)?;
    let mut readers = Vec::new();
    for _ in 0..settings.readers.clamp(1, 64) {
        let mut reader = connect(&file, settings.busy).map_err(about)?;
        let cache = settings.cache_bytes / 4 / 1_024;
        reader
            .batch_execute(&format!(
                "PRAGMA cache_size = -{cache}; PRAGMA mmap_size = {}; PRAGMA query_only = ON;",
                settings.mmap_bytes
            ))
            .map_err(|error| about(error.into()))?;
        readers.push(wrapped(reader));
    }
    Ok(Opened {
        file,
        writer: wrapped(writer),
        readers,
    })
}

fn wrapped(connection: SqliteConnection) -> Connection {
    SyncConnectionWrapper::with_runtime(connection, InPlace)
}

/// One connection to a file that is there.
pub(super) fn connect(file: &DatabaseFile, busy: Duration) -> Result<SqliteConnection> {
    let mut connection = SqliteConnection::establish(file.text()).map_err(|error| {
        problem(
            ErrorKind::Path,
            file.path(),
            "cannot be opened; check the permissions of the file and of its directory",
        )
        .with_source(error)
    })?;
    connection.batch_execute(&format!(
        "PRAGMA busy_timeout = {}; PRAGMA foreign_keys = ON;",
        busy.as_millis()
    ))?;
    Ok(connection)
}

/// Makes the database durable, whole and current.
fn prepare(conn: &mut SqliteConnection, file: &DatabaseFile, settings: &StoreSettings) -> Result<()> {
    // Turning the log on needs the file for a moment, and SQLite does not wait for it.
    let until = Instant::now() + settings.busy;
    loop {
        match turn_log_on(conn) {
            Err(error) if error.kind() == ErrorKind::Locked && Instant::now() < until => {
                std::thread::sleep(RETRY_PAUSE);
            }
            outcome => break outcome?,
        }
    }
    conn.batch_execute(&format!(
        "PRAGMA synchronous = FULL; PRAGMA cache_size = -{}; PRAGMA mmap_size = {}; PRAGMA journal_size_limit = {};",
        settings.cache_bytes / 1_024,
        settings.mmap_bytes,
        settings.wal_bytes,
    ))?;
    if settings.check {
        check(conn, file)?;
    }
    if let Some(bytes) = settings.max_bytes {
        let page: PageSize = diesel::sql_query("PRAGMA page_size").get_result(conn)?;
        let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / page.page_size.max(1);
        conn.batch_execute(&format!("PRAGMA max_page_count = {}", pages.max(1)))?;
    }
    conn.immediate_transaction(|conn| migrate(conn, file))
}

#[derive(QueryableByName)]
struct PageSize {
    #[diesel(sql_type = BigInt)]
    page_size: i64,
}

#[derive(QueryableByName)]
struct JournalMode {
    #[diesel(sql_type = Text)]
    journal_mode: String,
}

fn turn_log_on(conn: &mut SqliteConnection) -> Result<()> {
    let mode: JournalMode = diesel::sql_query("PRAGMA journal_mode = WAL").get_result(conn)?;
    if mode.journal_mode == "wal" {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Path,
        "the file system does not take a write-ahead log; put the database on a local disk",
    ))
}

#[derive(QueryableByName)]
struct QuickCheck {
    #[diesel(sql_type = Text)]
    quick_check: String,
}

/// Refuses a file with broken pages, before anything is read from it or written to it.
pub(super) fn check(conn: &mut SqliteConnection, file: &DatabaseFile) -> Result<()> {
    let found: QuickCheck = diesel::sql_query("PRAGMA quick_check(1)").get_result(conn)?;
    if found.quick_check == "ok" {
        return Ok(());
    }
    let detail = caliber_core::text::shown(&found.quick_check);
    Err(
        problem(ErrorKind::Corrupt, file.path(), "is damaged; restore a backup")
            .with_context("found", detail),
    )
}

#[derive(QueryableByName)]
struct Mark {
    #[diesel(sql_type = BigInt)]
    application_id: i64,
}

#[derive(QueryableByName)]
struct Count {
    #[diesel(sql_type = BigInt)]
    count: i64,
}

/// Brings the schema up to date. The caller's transaction is the lock: of two processes that start at once, the
/// second finds the work done.
fn migrate(conn: &mut SqliteConnection, file: &DatabaseFile) -> Result<()> {
    let mark: Mark = diesel::sql_query("PRAGMA application_id").get_result(conn)?;
    if mark.application_id != APPLICATION_ID {
        let tables: Count =
            diesel::sql_query("SELECT COUNT(*) AS count FROM sqlite_master").get_result(conn)?;
        if mark.application_id != 0 || tables.count > 0 {
            return Err(problem(
                ErrorKind::NotADatabase,
                file.path(),
                "is the database of another program; check the path",
            ));
        }
        conn.batch_execute(&format!("PRAGMA application_id = {APPLICATION_ID}"))?;
    }
    let known: Vec<Box<dyn Migration<Backend>>> = MIGRATIONS.migrations().map_err(migration_failed)?;
    let known: HashSet<String> = known
        .iter()
        .map(|migration| migration.name().version().to_string())
        .collect();
    let applied: Vec<MigrationVersion<'_>> = conn.applied_migrations().map_err(migration_failed)?;
    if let Some(newer) = applied
        .iter()
        .map(ToString::to_string)
        .find(|version| !known.contains(version))
    {
        return Err(problem(
            ErrorKind::NewerSchema,
            file.path(),
            "has the schema of a newer version of caliber; start that version",
        )
        .with_context("schema", newer));
    }
    conn.run_pending_migrations(MIGRATIONS)
        .map_err(migration_failed)?;
    Ok(())
}

/// What stopped a migration: the database, or the migration itself. diesel tells them apart in the text only.
fn migration_failed(error: Box<dyn std::error::Error + Send + Sync>) -> Error {
    let text = error.to_string();
    match super::classify(&text) {
        (ErrorKind::Defect, _) => {
            let text = caliber_core::text::shown(&text);
            Error::new(
                ErrorKind::Defect,
                format!("the schema could not be brought up to date: {text}"),
            )
        }
        (kind, told) => Error::new(kind, told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::run;

    #[derive(QueryableByName)]
    struct Number {
        #[diesel(sql_type = BigInt)]
        number: i64,
    }

    fn pragma(connection: &mut Connection, name: &str) -> i64 {
        let query = diesel::sql_query(format!("SELECT {name} AS number FROM pragma_{name}"));
        let number = async { Ok(diesel_async::RunQueryDsl::get_result::<Number>(query, connection).await?) };
        run(number).unwrap().number
    }

    #[test]
    fn the_writer_syncs_every_commit_and_readers_cannot_write() {
        let folder = tempfile::tempdir().unwrap();
        let settings = StoreSettings {
            path: folder.path().join("caliber.db"),
            ..StoreSettings::default()
        };
        let mut opened = open(&settings).unwrap();
        assert_eq!(opened.readers.len(), settings.readers);
        // 2 is FULL.
        assert_eq!(pragma(&mut opened.writer, "synchronous"), 2);
        assert_eq!(pragma(&mut opened.writer, "foreign_keys"), 1);
        assert_eq!(pragma(&mut opened.writer, "query_only"), 0);
        for reader in &mut opened.readers {
            assert_eq!(pragma(reader, "query_only"), 1);
        }
    }
}
