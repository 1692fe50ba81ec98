//! Everything that is not reading is refused, and leaves nothing behind.

use crate::support::{Client, Sample};

fn names(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_kind_of_write_is_refused() {
    let sample = Sample::with(
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b); INSERT INTO t VALUES (1, 'x'), (2, 'y');
         CREATE TABLE u (a); CREATE VIEW v AS SELECT * FROM t; CREATE INDEX i ON t (b);
         CREATE TRIGGER tr INSTEAD OF INSERT ON v BEGIN DELETE FROM t; END;
         CREATE VIRTUAL TABLE f USING fts5 (body); INSERT INTO f VALUES ('word');
         CREATE VIRTUAL TABLE g USING fts4 (body); INSERT INTO g VALUES ('word');",
    );
    let before = sample.bytes();
    let outside = sample.folder.path().join("outside.db");
    let outside = outside.to_str().unwrap();
    let mut client = sample.stdio(&[]).legacy();
    let refused = [
        "INSERT INTO t VALUES (3, 'z')".to_owned(),
        "INSERT INTO t VALUES (3, 'z') RETURNING a".into(),
        "INSERT INTO v VALUES (3, 'z')".into(),
        "INSERT INTO f VALUES ('more')".into(),
        "INSERT INTO f (f) VALUES ('optimize')".into(),
        "REPLACE INTO t VALUES (1, 'z')".into(),
        "UPDATE t SET b = 'z'".into(),
        "DELETE FROM t".into(),
        "DELETE FROM t WHERE a = 1 RETURNING *".into(),
        "WITH x AS (SELECT 1) INSERT INTO t SELECT 3, 'z' FROM x".into(),
        "WITH x AS (SELECT 1) DELETE FROM t".into(),
        "WITH x AS (SELECT 1) UPDATE t SET b = 'z'".into(),
        "/* SELECT */ DELETE FROM t".into(),
        "EXPLAIN DELETE FROM t".into(),
        "DROP TABLE t".into(),
        "DROP VIEW v".into(),
        "DROP INDEX i".into(),
        "DROP TRIGGER tr".into(),
        "ALTER TABLE t RENAME TO w".into(),
        "ALTER TABLE t ADD COLUMN c".into(),
        "CREATE TABLE w (a)".into(),
        "CREATE TABLE w AS SELECT * FROM t".into(),
        "CREATE INDEX j ON t (a)".into(),
        "CREATE VIEW w AS SELECT 1".into(),
        "CREATE TRIGGER tt AFTER INSERT ON t BEGIN DELETE FROM t; END".into(),
        "CREATE TEMP TABLE w (a)".into(),
        "CREATE TEMP TABLE w AS SELECT * FROM t".into(),
        "CREATE TEMP VIEW w AS SELECT 1".into(),
        "CREATE TEMP TRIGGER tt AFTER INSERT ON t BEGIN SELECT 1; END".into(),
        "CREATE VIRTUAL TABLE w USING fts5 (a)".into(),
        "CREATE VIRTUAL TABLE temp.w USING dbstat".into(),
        format!("ATTACH '{outside}' AS o"),
        "ATTACH ':memory:' AS o".into(),
        "DETACH main".into(),
        format!("VACUUM INTO '{outside}'"),
        "VACUUM".into(),
        "ANALYZE".into(),
        "REINDEX".into(),
        "BEGIN".into(),
        "BEGIN IMMEDIATE".into(),
        "COMMIT".into(),
        "ROLLBACK".into(),
        "SAVEPOINT s".into(),
        "RELEASE s".into(),
        "PRAGMA writable_schema = ON".into(),
        "PRAGMA query_only = OFF".into(),
        "PRAGMA journal_mode = DELETE".into(),
        "PRAGMA user_version = 7".into(),
        "PRAGMA user_version".into(),
        "PRAGMA data_version".into(),
        "PRAGMA table_info(t)".into(),
        "PRAGMA temp_store_directory = '/'".into(),
        "PRAGMA wal_checkpoint(TRUNCATE)".into(),
        "PRAGMA optimize".into(),
        "SELECT * FROM pragma_user_version".into(),
        "SELECT * FROM pragma_table_info('t')".into(),
        "SELECT * FROM t, pragma_database_list".into(),
        "SELECT load_extension('x')".into(),
        "SELECT LOAD_EXTENSION('x', 'y')".into(),
        "SELECT fts3_tokenizer('simple')".into(),
        "SELECT optimize(g) FROM g".into(),
        "SELECT sqlite_log(1, 'x')".into(),
        "SELECT a FROM t WHERE load_extension('x')".into(),
    ];
    for sql in &refused {
        let error = client.query_error(sql);
        assert!(error.starts_with("not_read_only: "), "{sql}: {error}");
    }
    // SQLite does not have these functions at all.
    for sql in [
        "SELECT writefile('/x', 'y')",
        "SELECT readfile('/etc/passwd')",
        "SELECT edit('x')",
    ] {
        let error = client.query_error(sql);
        assert!(
            error.starts_with("invalid_sql: no such function"),
            "{sql}: {error}"
        );
    }
    assert_eq!(
        client.query("SELECT count(*) FROM t")["rows"],
        serde_json::json!([[2]])
    );
    assert!(sample.bytes() == before, "the database file changed");
    assert_eq!(names(sample.folder.path()), ["sample.db"], "no file was made");
}

#[test]
fn the_refusal_says_what_was_refused() {
    let mut client = Sample::new().stdio(&[]).legacy();
    assert_eq!(
        client.query_error("DELETE FROM orders"),
        "not_read_only: this server only reads, and refused this: write: delete from \"orders\"; \
         write one SELECT that reads the main database"
    );
    let error = client.query_error("SELECT load_extension('x')");
    assert!(error.contains("function \"load_extension\""), "{error}");
    let error = client.query_error("PRAGMA user_version");
    assert!(error.contains("pragma \"user_version\""), "{error}");
}

#[test]
fn exactly_one_statement() {
    let sample = Sample::new();
    let before = sample.bytes();
    let mut client = sample.stdio(&[]).legacy();
    for sql in [
        "",
        " \n ",
        ";",
        ";;;",
        "-- nothing",
        "/* nothing */",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE orders",
        "SELECT 1; DELETE FROM orders; SELECT 2",
        "SELECT 1; COMMIT",
        "SELECT 1; nonsense",
        "SELECT 1; /* x */ ; SELECT 2",
    ] {
        let error = client.query_error(sql);
        assert!(error.starts_with("not_one_statement: "), "{sql:?}: {error}");
    }
    let many = "SELECT 1;".repeat(7_000);
    assert!(client.query_error(&many).starts_with("not_one_statement: "));
    for sql in [
        "SELECT 1;",
        "SELECT 1 ; ; ",
        "; SELECT 1",
        "SELECT 1; -- more",
        "SELECT ';' --;\n",
    ] {
        assert_eq!(client.query(sql)["row_count"], 1, "{sql:?}");
    }
    let error = client.query_error("SELECT 1\0; DELETE FROM orders");
    assert!(
        error.starts_with("invalid_sql: the SQL text holds a NUL character"),
        "{error}"
    );
    assert!(sample.bytes() == before);
}

#[test]
fn a_view_and_a_trigger_of_the_database_cannot_smuggle_writes_in() {
    let sample = Sample::with(
        "CREATE TABLE t (a); INSERT INTO t VALUES (1);
         CREATE VIEW sneaky AS SELECT load_extension('x') FROM t;
         CREATE VIEW pragmas AS SELECT * FROM pragma_database_list;",
    );
    let mut client = sample.stdio(&[]).legacy();
    for sql in ["SELECT * FROM sneaky", "SELECT * FROM pragmas"] {
        let error = client.query_error(sql);
        assert!(
            error.starts_with("not_read_only: ") || error.starts_with("invalid_sql: unsafe use"),
            "{sql}: {error}"
        );
    }
    assert_eq!(client.query("SELECT a FROM t")["row_count"], 1);
}
