//! Rows, bytes, time, size and concurrency are bounded, and the answer says which bound was met.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Client, Sample, StdioServer};

/// A statement that never ends by itself and returns nothing.
pub(crate) const ENDLESS: &str =
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 0";

fn numbers(count: usize) -> String {
    format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n"
    )
}

#[test]
fn rows_beyond_the_cap_are_cut_and_told() {
    let mut client = Sample::new().stdio(&["--max-rows", "10"]).legacy();
    let exact = client.query(&numbers(10));
    assert_eq!(
        (&exact["row_count"], &exact["truncated"]),
        (&json!(10), &json!(false))
    );
    assert_eq!(exact["truncated_by"], Value::Null);
    let cut = client.query(&numbers(11));
    assert_eq!((&cut["row_count"], &cut["truncated"]), (&json!(10), &json!(true)));
    assert_eq!(cut["truncated_by"], "max_rows");
    assert_eq!(cut["rows"].as_array().unwrap().len(), 10);
    assert_eq!(
        client.query(&numbers(1_000_000))["truncated"],
        true,
        "the rest is not even computed"
    );
}

#[test]
fn the_list_of_tables_is_capped_too() {
    let sample = Sample::with(
        &(0..12)
            .map(|n| format!("CREATE TABLE t{n:02} (a);"))
            .collect::<String>(),
    );
    let list = sample
        .stdio(&["--max-rows", "10"])
        .legacy()
        .call_ok("list_tables", json!({}));
    assert_eq!(
        (list["tables"].as_array().unwrap().len(), &list["truncated"]),
        (10, &json!(true))
    );
}

#[test]
fn bytes_beyond_the_cap_are_cut_and_told() {
    let mut client = Sample::new().stdio(&["--max-bytes", "10000"]).legacy();
    for sql in [
        "SELECT hex(zeroblob(100)) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 500) SELECT i FROM n)",
        // Each NUL takes six bytes of JSON.
        "SELECT CAST(zeroblob(100) AS TEXT) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 500) SELECT i FROM n)",
        "SELECT zeroblob(100) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 500) SELECT i FROM n)",
    ] {
        let cut = client.query(sql);
        assert_eq!(
            (&cut["truncated"], &cut["truncated_by"]),
            (&json!(true), &json!("max_bytes")),
            "{sql}"
        );
        let rows = cut["rows"].to_string().len();
        assert!((8_000..=10_000).contains(&rows), "{rows} bytes of rows");
        assert_eq!(cut["row_count"], cut["rows"].as_array().unwrap().len());
    }
    for sql in [
        "SELECT hex(zeroblob(6000))",
        "SELECT zeroblob(60000)",
        "SELECT CAST(zeroblob(2000) AS TEXT)",
    ] {
        let error = client.query_error(sql);
        assert!(
            error.starts_with("too_large: one row takes more than the limit of 10000 bytes"),
            "{sql}: {error}"
        );
    }
    let names = format!("SELECT 1 AS \"{}\"", "x".repeat(12_000));
    assert!(
        client.query_error(&names).starts_with("too_large: "),
        "column names count"
    );
}

#[test]
fn an_endless_statement_is_stopped_in_time_and_the_reader_lives_on() {
    let mut client = Sample::new()
        .stdio(&["--timeout-ms", "300", "--max-running", "1"])
        .legacy();
    let bombs = [
        ENDLESS.to_owned(),
        // All at once: grows without returning a row.
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n".into(),
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n) SELECT i FROM n ORDER BY i DESC".into(),
        format!("SELECT count(*) FROM ({0}), ({0}), ({0})", numbers(100_000)),
    ];
    for sql in bombs {
        let began = Instant::now();
        let error = client.query_error(&sql);
        assert!(error.starts_with("timeout: "), "{sql}: {error}");
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{sql} took {:?}",
            began.elapsed()
        );
        assert_eq!(client.query("SELECT 1")["rows"], json!([[1]]));
    }
}

#[test]
fn a_function_that_cannot_be_interrupted_does_not_hold_up_the_answer() {
    let mut client = Sample::new()
        .stdio(&["--timeout-ms", "300", "--max-running", "2"])
        .legacy();
    let began = Instant::now();
    // Compares each of 100,000 characters with each of 100,000.
    let error = client.query_error(
        "SELECT length(trim(hex(zeroblob(50000)), replace(hex(zeroblob(50000)), '0', 'x') || '0'))",
    );
    assert!(error.starts_with("timeout: "), "{error}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(
        client.query("SELECT 1")["rows"],
        json!([[1]]),
        "by the other reader"
    );
}

fn slow(client: &mut StdioServer) -> u64 {
    client.begin(
        "tools/call",
        json!({"name": "run_query", "arguments": {"sql": ENDLESS}}),
    )
}

#[test]
fn a_cancelled_call_frees_its_reader() {
    for modern in [false, true] {
        let server = Sample::new().stdio(&["--timeout-ms", "60000", "--max-running", "1"]);
        let mut client = if modern { server.modern() } else { server.legacy() };
        let id = slow(&mut client);
        client.send(
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}),
        );
        // The only reader is free again long before the minute is over.
        assert_eq!(client.query("SELECT 1")["rows"], json!([[1]]));
    }
}

#[test]
fn more_calls_than_may_wait_are_refused_at_once() {
    let mut client = Sample::new()
        .stdio(&["--timeout-ms", "1000", "--max-running", "1", "--max-waiting", "1"])
        .legacy();
    let ids: Vec<_> = (0..4).map(|_| slow(&mut client)).collect();
    let mut answers: Vec<(u64, String)> = ids
        .iter()
        .map(|_| {
            let message = client.next_message();
            let text = message["result"]["content"][0]["text"]
                .as_str()
                .unwrap()
                .to_owned();
            (message["id"].as_u64().unwrap(), text)
        })
        .collect();
    answers.sort();
    let of = |kind: &str| answers.iter().filter(|(_, text)| text.starts_with(kind)).count();
    assert_eq!((of("timeout: "), of("busy: ")), (2, 2), "{answers:?}");
}

#[test]
fn sizes_of_statements_and_values_are_bounded() {
    let mut client = Sample::new().stdio(&["--max-value-bytes", "100000"]).legacy();
    let long = format!("SELECT '{}'", "x".repeat(70_000));
    assert!(
        client
            .query_error(&long)
            .starts_with("too_large: the SQL text has 70009 bytes")
    );
    for sql in [
        "SELECT length(hex(zeroblob(60000)))",
        "SELECT length(printf('%200000d', 1))",
        "SELECT length(randomblob(100001))",
    ] {
        let error = client.query_error(sql);
        assert!(
            error.starts_with("too_large: a value is larger"),
            "{sql}: {error}"
        );
    }
    for (sql, problem) in [
        ("SELECT ?300", "invalid_sql: variable number must be between"),
        ("SELECT 1 LIKE ?", "invalid_sql: LIKE or GLOB pattern too complex"),
    ] {
        let params = if sql.contains("LIKE") {
            json!(["%".repeat(2_000)])
        } else {
            json!([])
        };
        let error = client.call_error("run_query", json!({"sql": sql, "params": params}));
        assert!(error.starts_with(problem), "{sql}: {error}");
    }
}

#[test]
fn deep_statements_neither_crash_nor_hang_the_server() {
    let mut client = Sample::new().stdio(&[]).legacy();
    let pid = client.pid();
    let mut chain = String::from("WITH a0 AS(SELECT 1)");
    let mut number = 1;
    while chain.len() < 65_000 {
        chain += &format!(",a{number} AS(SELECT*FROM a{})", number - 1);
        number += 1;
    }
    chain += &format!("SELECT*FROM a{}", number - 1);
    for sql in [
        format!("{}SELECT 1{}", "SELECT*FROM(".repeat(4_500), ")".repeat(4_500)),
        format!("SELECT {}1{}", "(".repeat(30_000), ")".repeat(30_000)),
        format!("SELECT 1{}", "+1".repeat(30_000)),
        format!("SELECT {}1", "NOT ".repeat(15_000)),
        format!("SELECT 1{}", " UNION SELECT 1".repeat(4_000)),
        format!("SELECT {}1{}", "abs(".repeat(10_000), ")".repeat(10_000)),
        format!("SELECT 1 FROM (SELECT 1){}", ",(SELECT 1)".repeat(5_000)),
        format!("SELECT CASE {} END", "WHEN 1 THEN 1 ".repeat(4_000)),
        chain,
    ] {
        assert!(sql.len() <= 65_536, "{} bytes", sql.len());
        client.call("run_query", json!({"sql": sql}));
    }
    assert_eq!(client.query("SELECT 1")["rows"], json!([[1]]));
    assert_eq!(client.pid(), pid);
}

#[test]
fn a_line_beyond_the_limit_is_dropped_and_the_session_goes_on() {
    let mut client = Sample::new().stdio(&["--max-request-bytes", "20000"]).legacy();
    let id = client.begin(
        "tools/call",
        json!({"name": "run_query", "arguments": {"sql": "x".repeat(30_000)}}),
    );
    let next = client.begin("tools/call", json!({"name": "list_tables", "arguments": {}}));
    let message = client.next_message();
    assert_eq!(message["id"], next, "{id} is never answered");
}

#[test]
fn references_that_multiply_while_compiling_are_stopped_by_the_memory_limit() {
    let mut client = Sample::new()
        .stdio(&[
            "--max-running",
            "1",
            "--max-memory-bytes",
            "33554432",
            "--timeout-ms",
            "15000",
        ])
        .legacy();
    // Each refers to the one before twice: 2^60 references, in 2 KB of text.
    let mut bomb = String::from("WITH a0 AS(SELECT 1 x)");
    for number in 1..60 {
        bomb += &format!(",a{number} AS(SELECT l.x FROM a{0} l,a{0} r)", number - 1);
    }
    bomb += "SELECT count(*) FROM a59";
    for _ in 0..3 {
        assert_eq!(
            client.query_error(&bomb),
            "too_large: the statement needs too much memory"
        );
        assert_eq!(client.query("SELECT 1")["rows"], json!([[1]]));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", client.pid())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 200_000, "{peak} kB at the peak");
}
