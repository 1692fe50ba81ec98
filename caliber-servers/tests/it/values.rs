//! Values arrive exactly as the database holds them.

use serde_json::json;

use crate::support::{Client, Sample};

#[test]
fn integers_keep_all_64_bits() {
    let mut client = Sample::new().stdio(&[]).legacy();
    // 2^53 + 1 is the first that a double cannot hold.
    let result = client.query("SELECT 9007199254740993, 9223372036854775807, -9223372036854775808");
    assert_eq!(
        result["rows"].to_string(),
        "[[9007199254740993,9223372036854775807,-9223372036854775808]]"
    );
    let result = client.call_ok(
        "run_query",
        json!({"sql": "SELECT ?1, typeof(?1), ?2, typeof(?2)", "params": [9_007_199_254_740_993_i64, i64::MIN]}),
    );
    assert_eq!(
        result["rows"].to_string(),
        r#"[[9007199254740993,"integer",-9223372036854775808,"integer"]]"#
    );
}

#[test]
fn reals_stay_reals() {
    let mut client = Sample::new().stdio(&[]).legacy();
    let result = client.call_ok(
        "run_query",
        json!({"sql": "SELECT 1.0, 0.1, 1e300, ?1, typeof(?1), 9e999, -9e999", "params": [2.5]}),
    );
    assert_eq!(
        result["rows"].to_string(),
        r#"[[1.0,0.1,1e+300,2.5,"real",{"type":"real","value":"Infinity"},{"type":"real","value":"-Infinity"}]]"#
    );
}

#[test]
fn text_and_blobs_arrive_unchanged() {
    let text = "日本語 🦀 e\u{301} a\u{0}b \u{2028} \" \\ \u{1}";
    let sample = Sample::with("CREATE TABLE t (a TEXT, b BLOB, c TEXT)");
    rusqlite::Connection::open(&sample.path)
        .unwrap()
        .execute(
            "INSERT INTO t VALUES (?1, ?2, CAST(x'ff41' AS TEXT))",
            rusqlite::params![text, b"\x00\x01\xff"],
        )
        .unwrap();
    let expected = json!([[text, {"type": "blob", "base64": "AAH/"}, {"type": "text", "base64": "/0E="}]]);

    let mut stdio = sample.stdio(&[]).legacy();
    assert_eq!(stdio.query("SELECT a, b, c FROM t")["rows"], expected);
    let mut http = sample.http(&[]).modern();
    assert_eq!(http.query("SELECT a, b, c FROM t")["rows"], expected);

    let found = stdio.call_ok(
        "run_query",
        json!({"sql": "SELECT length(CAST(?1 AS BLOB)), ?1 FROM t WHERE a = ?1", "params": [text]}),
    );
    assert_eq!(found["rows"], json!([[text.len(), text]]), "also as a parameter");
}

#[test]
fn odd_names_are_only_names() {
    let sample =
        Sample::with(r#"CREATE TABLE "a""; DROP TABLE x; --" ("列 🦀" INTEGER); CREATE TABLE "%_'" (a)"#);
    let mut client = sample.stdio(&[]).legacy();
    let odd = "a\"; DROP TABLE x; --";
    let described = client.call_ok("describe_table", json!({"table": odd}));
    assert_eq!(described["columns"][0]["name"], "列 🦀");
    assert_eq!(
        client.call_ok("describe_table", json!({"table": "%_'"}))["table"],
        "%_'"
    );
    assert!(
        client
            .call_error("describe_table", json!({"table": "%"}))
            .starts_with("unknown_table")
    );
    assert!(
        client
            .call_error("describe_table", json!({"table": "a\u{0}"}))
            .starts_with("unknown_table")
    );
}
