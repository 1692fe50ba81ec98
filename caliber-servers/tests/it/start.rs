//! What keeps the server from starting, and what happens when the database goes away later.

use std::path::Path;
use std::process::Stdio;

use rusqlite::Connection;
use serde_json::json;

use crate::support::{Client, Sample, command, terminate};

/// Exit code and error text of a command that must not start.
fn refused(database: &Path, arguments: &[&str]) -> (i32, String) {
    let output = command(database, arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.stdout.is_empty(), "{output:?}");
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_database_that_cannot_be_used_is_refused_with_exit_code_3() {
    let sample = Sample::new();
    let folder = sample.folder.path();
    std::fs::write(
        folder.join("text.db"),
        "certainly not a database, but long enough to be looked at".repeat(50),
    )
    .unwrap();
    std::fs::write(folder.join("empty.db"), "").unwrap();
    let mut damaged = sample.bytes();
    damaged[100..200].fill(0xff);
    std::fs::write(folder.join("damaged.db"), damaged).unwrap();
    for (name, problem) in [
        ("missing.db", "cannot be found"),
        (".", "is not a regular file"),
        ("text.db", "is not a database"),
        ("damaged.db", "damaged"),
        ("empty.db", "is empty"),
        ("file:sample.db?mode=rwc", "cannot be found"),
        (":memory:", "cannot be found"),
        ("", "is not a regular file"),
    ] {
        let (code, text) = refused(&folder.join(name), &[]);
        assert!(code == 3 && text.contains(problem), "{name}: {code} {text}");
        assert!(!folder.join("missing.db").exists(), "nothing is created");
    }
    for name in ["file::memory:", ":memory:", "file:///etc/passwd?mode=ro"] {
        let (code, text) = refused(Path::new(name), &[]);
        assert!(
            code == 3 && text.contains("cannot be found"),
            "{name}: {code} {text}"
        );
    }
    let fifo = folder.join("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(
        refused(&fifo, &[]).0,
        3,
        "a pipe is not opened, which would block"
    );
}

#[test]
fn wrong_settings_are_refused_with_exit_code_2() {
    let sample = Sample::new();
    let weak = sample.folder.path().join("weak");
    std::fs::write(&weak, "secret\n").unwrap();
    let weak = weak.to_str().unwrap();
    for (arguments, problem) in [
        (&["--max-rows", "0"][..], "max_rows is 0"),
        (&["--max-bytes", "1"], "max_bytes is 1"),
        (&["--timeout-ms", "0"], "timeout (in milliseconds) is 0"),
        (
            &["--descriptions", "/does/not/exist"],
            "descriptions file cannot be read",
        ),
        (
            &["--transport", "http", "--listen", "0.0.0.0:0"],
            "set a bearer token",
        ),
        (
            &["--transport", "http", "--listen", "[::]:0"],
            "set a bearer token",
        ),
        (
            &["--transport", "http", "--bearer-token-file", "/does/not/exist"],
            "bearer token file cannot be read",
        ),
        (
            &["--transport", "http", "--bearer-token-file", weak],
            "16 to 4096",
        ),
        (&["--transport", "carrier-pigeon"], "invalid value"),
        (&["--write"], "unexpected argument"),
    ] {
        let (code, text) = refused(&sample.path, arguments);
        assert!(
            code == 2 && text.contains(problem),
            "{arguments:?}: {code} {text}"
        );
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn a_locked_database_is_told_at_start_and_at_a_call() {
    let sample = Sample::new();
    let mut client = sample.stdio(&[]).legacy();
    let locker = Connection::open(&sample.path).unwrap();
    locker
        .execute_batch("BEGIN EXCLUSIVE; INSERT INTO customers (name) VALUES ('x')")
        .unwrap();
    let error = client.query_error("SELECT * FROM customers");
    assert!(
        error.starts_with("locked: another process holds a lock"),
        "{error}"
    );
    let (code, text) = refused(&sample.path, &[]);
    assert!(code == 3 && text.contains("holds a lock"), "{code} {text}");
    locker.execute_batch("ROLLBACK").unwrap();
    assert_eq!(
        client.query("SELECT count(*) FROM customers")["rows"],
        json!([[3]])
    );
}

#[test]
fn a_database_that_goes_away_is_told_and_a_new_one_is_read() {
    let sample = Sample::new();
    let mut client = sample.stdio(&[]).legacy();
    assert_eq!(
        client.query("SELECT count(*) FROM customers")["rows"],
        json!([[3]])
    );
    let moved = sample.folder.path().join("moved.db");
    std::fs::rename(&sample.path, &moved).unwrap();
    for _ in 0..6 {
        let error = client.query_error("SELECT 1");
        assert_eq!(error, "unavailable: the database file is gone");
    }
    std::os::unix::fs::symlink(&moved, &sample.path).unwrap();
    let error = client.query_error("SELECT 1");
    assert!(
        error.starts_with("unavailable: the database path does not lead to a regular file"),
        "{error}"
    );
    std::fs::remove_file(&sample.path).unwrap();
    Connection::open(&sample.path)
        .unwrap()
        .execute_batch("CREATE TABLE new (a)")
        .unwrap();
    assert_eq!(client.query("SELECT count(*) FROM new")["rows"], json!([[0]]));
    assert!(
        client
            .query_error("SELECT * FROM customers")
            .starts_with("invalid_sql: no such table")
    );
}

#[test]
fn a_database_that_is_damaged_later_is_told_and_others_can_be_read_after_it() {
    let sample = Sample::with("CREATE TABLE t (a)");
    let writer = Connection::open(&sample.path).unwrap();
    writer
        .execute_batch("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 5000) INSERT INTO t SELECT 'row ' || i FROM n")
        .unwrap();
    drop(writer);
    let mut client = sample.stdio(&["--max-rows", "100000"]).legacy();
    let healthy = sample.bytes();
    let mut damaged = healthy.clone();
    damaged[8192..].fill(0xa5);
    // In place, as a failing disk would do it; the header stays as it was, so no cached page is thrown away.
    std::fs::write(&sample.path, &damaged).unwrap();
    let error = client.query_error("SELECT count(*), max(a) FROM t");
    assert!(
        error.starts_with("unavailable: the database file is damaged"),
        "{error}"
    );
    std::fs::write(&sample.path, &healthy).unwrap();
    assert_eq!(client.query("SELECT count(*) FROM t")["rows"], json!([[5000]]));
}

#[test]
fn a_symbolic_link_is_resolved_once() {
    let sample = Sample::new();
    let link = sample.folder.path().join("link.db");
    std::os::unix::fs::symlink(&sample.path, &link).unwrap();
    let other = Sample::with("CREATE TABLE other (a)");
    let linked = Sample {
        folder: sample.folder.clone(),
        path: link.clone(),
    };
    let mut client = linked.stdio(&[]).legacy();
    assert_eq!(
        client.query("SELECT count(*) FROM customers")["rows"],
        json!([[3]])
    );
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&other.path, &link).unwrap();
    assert_eq!(
        client.query("SELECT count(*) FROM customers")["rows"],
        json!([[3]]),
        "still the first file"
    );
}

#[test]
fn a_signal_ends_both_transports() {
    let sample = Sample::new();
    let mut http = sample.http(&[]).legacy();
    terminate(http.pid());
    assert!(http.wait().success());
    let stdio = sample.stdio(&[]).legacy();
    terminate(stdio.pid());
    assert!(stdio.close().success());
}
