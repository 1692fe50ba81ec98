//! What a statement may do, decided by SQLite's own compiler instead of by reading the text.
//!
//! SQLite asks the authorizer about every action while it compiles a statement: the caller's own, and those that a
//! virtual table compiles while the caller's statement runs. Only reading is allowed; every action that is not named
//! here is refused, so a new kind of statement in a later SQLite is refused too.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ErrorCode};

use super::text::shown;

/// Whose SQL is being compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// Fixed statements of this server.
    Server = 0,
    /// The caller's statement.
    Caller = 1,
    /// Statements that virtual tables compile while the caller's statement runs.
    Running = 2,
}

/// The state that a connection shares with its authorizer.
#[derive(Debug, Default)]
pub(super) struct Authorizer {
    phase: AtomicU8,
    refused: Mutex<Option<String>>,
}

impl Authorizer {
    /// Puts an authorizer in front of every statement that `connection` compiles from now on.
    pub(super) fn install(connection: &Connection) -> rusqlite::Result<Arc<Self>> {
        let authorizer = Arc::new(Self::default());
        let hook = Arc::clone(&authorizer);
        connection.authorizer(Some(move |context: AuthContext<'_>| hook.decide(&context)))?;
        Ok(authorizer)
    }

    /// Says whose SQL is compiled from now on.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        *self.refused() = None;
    }

    /// What was refused, in words for the caller, if that is why SQLite reported `error`.
    ///
    /// A refusal in the caller's statement always ends it, if not always with the error code made for that. One that
    /// a virtual table met at run time may have been overcome, so there the code decides.
    pub(super) fn refusal_behind(&self, error: &rusqlite::Error) -> Option<String> {
        let is_the_reason = self.phase.load(Ordering::Relaxed) == Phase::Caller as u8
            || error.sqlite_error_code() == Some(ErrorCode::AuthorizationForStatementDenied);
        self.refused().take().filter(|_| is_the_reason)
    }

    fn decide(&self, context: &AuthContext<'_>) -> Authorization {
        if is_allowed(&context.action, self.phase.load(Ordering::Relaxed)) {
            return Authorization::Allow;
        }
        self.refused().get_or_insert_with(|| describe(&context.action));
        Authorization::Deny
    }

    fn refused(&self) -> MutexGuard<'_, Option<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_allowed(action: &AuthAction<'_>, phase: u8) -> bool {
    match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => true,
        AuthAction::Function { function_name } => is_allowed_function(function_name),
        AuthAction::Pragma {
            pragma_name,
            pragma_value,
        } => {
            if phase == Phase::Server as u8 {
                SERVER_PRAGMAS.contains(pragma_name)
            } else {
                // FTS5 asks for it to notice that its index was changed by somebody else.
                phase == Phase::Running as u8 && *pragma_name == "data_version" && pragma_value.is_none()
            }
        }
        _ => false,
    }
}

/// The pragmas of this server's own statements.
const SERVER_PRAGMAS: [&str; 4] = ["data_version", "foreign_key_list", "table_list", "table_xinfo"];

fn is_allowed_function(name: &str) -> bool {
    FUNCTIONS
        .binary_search_by(|known| known.cmp(&name.to_ascii_lowercase().as_str()))
        .is_ok()
}

/// The functions that a statement may use: they compute from their arguments and the rows at hand. Sorted.
///
/// Not here, beside everything unknown: `load_extension` (runs code), `fts3_tokenizer` (takes addresses), `optimize`
/// of FTS3 (writes).
#[rustfmt::skip]
const FUNCTIONS: &[&str] = &[
    "->", "->>", "abs", "avg", "bm25", "changes", "char", "coalesce", "concat", "concat_ws", "count",
    "cume_dist", "current_date", "current_time", "current_timestamp", "date", "datetime", "dense_rank",
    "first_value", "format", "fts5_get_locale", "fts5_locale", "glob", "group_concat", "hex", "highlight",
    "if", "ifnull", "iif", "instr", "json", "json_array", "json_array_insert", "json_array_length",
    "json_error_position", "json_extract", "json_group_array", "json_group_object", "json_insert",
    "json_object", "json_patch", "json_pretty", "json_quote", "json_remove", "json_replace", "json_set",
    "json_type", "json_valid", "jsonb", "jsonb_array", "jsonb_array_insert", "jsonb_extract",
    "jsonb_group_array", "jsonb_group_object", "jsonb_insert", "jsonb_object", "jsonb_patch",
    "jsonb_remove", "jsonb_replace", "jsonb_set", "julianday", "lag", "last_insert_rowid", "last_value",
    "lead", "length", "like", "likelihood", "likely", "lower", "ltrim", "match", "matchinfo", "max", "min",
    "nth_value", "ntile", "nullif", "octet_length", "offsets", "percent_rank", "printf", "quote", "random",
    "randomblob", "rank", "replace", "round", "row_number", "rtreedepth", "rtreenode", "rtrim", "sign",
    "snippet", "soundex", "sqlite_version", "strftime", "string_agg", "substr", "substring", "subtype",
    "sum", "time", "timediff", "total", "total_changes", "trim", "typeof", "unhex", "unicode", "unistr",
    "unistr_quote", "unixepoch", "unlikely", "upper", "zeroblob",
];

fn describe(action: &AuthAction<'_>) -> String {
    let named = |what: &str, name: &str| format!("{what} {}", shown(name));
    match action {
        AuthAction::Insert { table_name } => named("write: insert into", table_name),
        AuthAction::Update { table_name, .. } => named("write: update of", table_name),
        AuthAction::Delete { table_name } => named("write: delete from", table_name),
        AuthAction::Pragma { pragma_name, .. } => named("pragma", pragma_name),
        AuthAction::Function { function_name } => named("function", function_name),
        AuthAction::Attach { .. } => "attach of another database".to_owned(),
        AuthAction::Detach { .. } => "detach of a database".to_owned(),
        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => "transaction control".to_owned(),
        AuthAction::Analyze { .. } | AuthAction::Reindex { .. } => "write: maintenance".to_owned(),
        _ => "write: change of the schema".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of the bundled SQLite that no statement may use. A new SQLite with a new function fails this test,
    /// so that somebody decides about it.
    const REFUSED_FUNCTIONS: [&str; 11] = [
        "fts3_tokenizer",
        "fts5",
        "fts5_insttoken",
        "fts5_source_id",
        "load_extension",
        "optimize",
        "rtreecheck",
        "sqlite_compileoption_get",
        "sqlite_compileoption_used",
        "sqlite_log",
        "sqlite_source_id",
    ];

    #[test]
    fn every_function_of_sqlite_is_decided_about() {
        let connection = Connection::open_in_memory().unwrap();
        let mut statement = connection
            .prepare("SELECT DISTINCT name FROM pragma_function_list ORDER BY 1")
            .unwrap();
        let names: Vec<String> = statement
            .query_map([], |row| row.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        for name in &names {
            let refused = REFUSED_FUNCTIONS.contains(&name.as_str());
            assert!(
                is_allowed_function(name) != refused,
                "{name} is neither allowed nor refused, or both"
            );
        }
        assert!(FUNCTIONS.is_sorted());
        for name in FUNCTIONS.iter().chain(&REFUSED_FUNCTIONS) {
            assert!(
                names.iter().any(|known| known == name),
                "SQLite does not have {name}"
            );
        }
    }

    #[test]
    fn the_authorizer_alone_keeps_a_writable_connection_from_writing() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
            .unwrap();
        let authorizer = Authorizer::install(&connection).unwrap();
        for phase in [Phase::Server, Phase::Caller, Phase::Running] {
            for sql in [
                "INSERT INTO t VALUES (2)",
                "DELETE FROM t",
                "UPDATE t SET a = 2",
                "DROP TABLE t",
                "CREATE TABLE u (a)",
                "CREATE TEMP TABLE u (a)",
                "ATTACH ':memory:' AS other",
                "VACUUM INTO '/nowhere'",
                "PRAGMA user_version = 1",
                "BEGIN",
                "SELECT load_extension('x')",
            ] {
                authorizer.enter(phase);
                let error = connection.execute_batch(sql).unwrap_err();
                if phase == Phase::Caller {
                    assert!(authorizer.refusal_behind(&error).is_some(), "{sql}: {error}");
                }
            }
            assert_eq!(
                connection.query_row("SELECT a FROM t", [], |row| row.get(0)),
                Ok(1)
            );
        }
    }
}
