//! The three tools over every transport and protocol family.

use serde_json::{Value, json};

use crate::support::{Client, Sample};

fn exercise(client: &mut dyn Client, modern: bool) {
    let listed = client.result("tools/list", json!({}));
    let tools = listed["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["describe_table", "list_tables", "run_query"]);
    for tool in tools {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
        assert!(tool["inputSchema"]["properties"].is_object(), "{tool}");
        assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
        assert_eq!(tool["annotations"]["readOnlyHint"], true);
        assert_eq!(tool["annotations"]["destructiveHint"], false);
        assert_eq!(tool["annotations"]["idempotentHint"], true);
        assert_eq!(tool["annotations"]["openWorldHint"], false);
        assert!(tool["description"].as_str().unwrap().len() > 20);
    }
    assert_eq!(tools[2]["inputSchema"]["required"], json!(["sql"]));
    if modern {
        assert_eq!(
            (&listed["ttlMs"], &listed["cacheScope"]),
            (&json!(0), &json!("private"))
        );
        assert_eq!(listed["resultType"], "complete");
    } else {
        assert!(listed.get("resultType").is_none() && listed.get("ttlMs").is_none());
    }

    assert_eq!(
        client.call_ok("list_tables", json!({})),
        json!({
            "tables": [
                {"name": "customer_names", "kind": "view"},
                {"name": "customers", "kind": "table"},
                {"name": "orders", "kind": "table"},
            ],
            "truncated": false,
        })
    );

    let orders = client.call_ok("describe_table", json!({"table": "ORDERS"}));
    assert_eq!(orders["table"], "orders");
    assert_eq!(orders["kind"], "table");
    assert_eq!(
        orders["columns"][0],
        json!({"name": "id", "type": "INTEGER", "nullable": true, "default": null, "primary_key": 1, "generated": false})
    );
    assert_eq!(
        orders["columns"][3],
        json!({"name": "doubled", "type": "REAL", "nullable": true, "default": null, "primary_key": null, "generated": true})
    );
    assert_eq!(
        orders["foreign_keys"],
        json!([{"id": 0, "column": "customer_id", "references_table": "customers", "references_column": "id"}])
    );
    let customers = client.call_ok("describe_table", json!({"table": "customers"}));
    assert_eq!(customers["columns"][1]["nullable"], false);
    assert_eq!(customers["columns"][2]["default"], "'Bern'");
    let view = client.call_ok("describe_table", json!({"table": "customer_names"}));
    assert_eq!(
        (&view["kind"], &view["columns"][0]["name"]),
        (&json!("view"), &json!("name"))
    );

    assert_eq!(
        client.call_ok(
            "run_query",
            json!({
                "sql": "SELECT name, sum(amount) FROM customers JOIN orders ON customer_id = customers.id \
                        WHERE city = ? GROUP BY name ORDER BY name;  -- done",
                "params": ["Bern"],
            })
        ),
        json!({
            "columns": ["name", "sum(amount)"],
            "rows": [["Ada", 10.5], ["Grace", 3.25]],
            "row_count": 2,
            "truncated": false,
            "truncated_by": null,
        })
    );

    // Errors that a model can act on are results; a call of nothing is a protocol error.
    let unknown_table = client.call_error("describe_table", json!({"table": "order\n"}));
    assert_eq!(
        unknown_table,
        r#"unknown_table: there is no table or view "order\n"; list_tables names them"#
    );
    for (tool, arguments) in [
        ("describe_table", json!({})),
        ("describe_table", json!({"table": 1})),
        ("describe_table", json!({"table": "orders", "more": 1})),
        ("list_tables", json!({"more": 1})),
        ("run_query", json!({"sql": "SELECT 1", "parameters": []})),
        ("run_query", json!({"sql": "SELECT ?", "params": [[1]]})),
        ("run_query", json!({"sql": "SELECT ?", "params": []})),
        ("run_query", json!({"sql": "SELECT 1", "params": [1]})),
        (
            "run_query",
            json!({"sql": "SELECT ?", "params": [9_223_372_036_854_775_808_u64]}),
        ),
    ] {
        let text = client.call_error(tool, arguments.clone());
        assert!(
            text.starts_with("invalid_arguments: "),
            "{tool} {arguments}: {text}"
        );
    }
    let unknown_tool = client.request("tools/call", json!({"name": "drop_table", "arguments": {}}));
    assert_eq!(unknown_tool["error"]["code"], -32602, "{unknown_tool}");
    let page = client.request("tools/list", json!({"cursor": "2"}));
    assert_eq!(page["error"]["code"], -32602, "{page}");
    let unknown_method = client.request("nothing/here", json!({}));
    assert_eq!(unknown_method["error"]["code"], -32601, "{unknown_method}");
}

#[test]
fn legacy_over_stdio() {
    exercise(&mut Sample::new().stdio(&[]).legacy(), false);
}

#[test]
fn modern_over_stdio() {
    exercise(&mut Sample::new().stdio(&[]).modern(), true);
}

#[test]
fn legacy_over_http() {
    exercise(&mut Sample::new().http(&[]).legacy(), false);
}

#[test]
fn modern_over_http() {
    exercise(&mut Sample::new().http(&[]).modern(), true);
}

#[test]
fn the_input_ends_and_the_process_with_it() {
    let sample = Sample::new();
    assert!(sample.stdio(&[]).legacy().close().success());
    assert!(sample.stdio(&[]).close().success());
}

#[test]
fn ordinary_sql_works() {
    let sample = Sample::with(
        "CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y');
         CREATE VIRTUAL TABLE notes USING fts5 (body);
         INSERT INTO notes VALUES ('the quick brown fox'), ('a lazy dog');",
    );
    let mut client = sample.stdio(&[]).legacy();
    for (sql, rows) in [
        ("VALUES (1), (2)", json!([[1], [2]])),
        (
            "WITH x AS (SELECT a FROM t) SELECT * FROM x ORDER BY a",
            json!([[1], [2]]),
        ),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n",
            json!([[1], [2], [3]]),
        ),
        (
            "SELECT a, row_number() OVER (ORDER BY a DESC) FROM t ORDER BY a",
            json!([[1, 2], [2, 1]]),
        ),
        ("SELECT json_extract('{\"k\": [1, 2]}', '$.k[1]')", json!([[2]])),
        ("SELECT value FROM json_each('[7, 8]')", json!([[7], [8]])),
        ("SELECT date('2026-01-31', '+1 day')", json!([["2026-02-01"]])),
        ("SELECT group_concat(b, '-') FROM t", json!([["x-y"]])),
        (
            "SELECT count(*) FROM sqlite_schema WHERE name = 't'",
            json!([[1]]),
        ),
        (
            "SELECT body FROM notes WHERE notes MATCH 'quick' ORDER BY rank",
            json!([["the quick brown fox"]]),
        ),
        (
            "SELECT highlight(notes, 0, '[', ']') FROM notes WHERE notes MATCH 'dog'",
            json!([["a lazy [dog]"]]),
        ),
        (
            "SELECT a AS same, b AS same FROM t WHERE a = 1",
            json!([[1, "x"]]),
        ),
    ] {
        assert_eq!(client.query(sql)["rows"], rows, "{sql}");
    }
    let plan = client.query("EXPLAIN QUERY PLAN SELECT * FROM t");
    assert!(plan["rows"][0].to_string().contains("SCAN"), "{plan}");
    let tables = client.call_ok("list_tables", json!({}));
    assert_eq!(
        tables["tables"],
        json!([{"name": "notes", "kind": "virtual"}, {"name": "t", "kind": "table"}]),
        "inner tables of virtual ones are not listed"
    );
    let error = client.query_error("SELECT absent FROM t");
    assert!(
        error.starts_with("invalid_sql: no such column: absent"),
        "{error}"
    );
    let error = client.query_error("SELECT \"mispelt\" FROM t");
    assert!(error.starts_with("invalid_sql: no such column"), "{error}");
    let error = client.query_error("SELEC 1");
    assert!(
        error.starts_with("invalid_sql: near \"SELEC\": syntax error"),
        "{error}"
    );
}

#[test]
fn named_and_numbered_placeholders_take_params_in_order() {
    let mut client = Sample::new().stdio(&[]).legacy();
    for sql in ["SELECT ?, ?, ?", "SELECT ?1, ?2, ?3", "SELECT :a, @b, $c"] {
        let result = client.call_ok("run_query", json!({"sql": sql, "params": [1, true, null]}));
        assert_eq!(result["rows"], json!([[1, 1, null]]), "{sql}");
    }
}

#[test]
fn another_process_may_write_meanwhile() {
    for mode in ["delete", "wal"] {
        let sample = Sample::with(&format!("PRAGMA journal_mode = {mode}; CREATE TABLE t (a);"));
        let mut client = sample.stdio(&[]).legacy();
        assert_eq!(client.query("SELECT count(*) FROM t")["rows"], json!([[0]]));
        let writer = rusqlite::Connection::open(&sample.path).unwrap();
        writer
            .execute_batch("INSERT INTO t VALUES (1); CREATE TABLE later (x);")
            .unwrap();
        assert_eq!(
            client.query("SELECT count(*) FROM t")["rows"],
            json!([[1]]),
            "{mode}"
        );
        assert_eq!(
            client.query("SELECT count(*) FROM later")["rows"],
            json!([[0]]),
            "{mode}"
        );
        writer.execute_batch("BEGIN; INSERT INTO t VALUES (2);").unwrap();
        assert_eq!(
            client.query("SELECT count(*) FROM t")["rows"],
            json!([[1]]),
            "{mode}: not committed yet"
        );
        writer.execute_batch("COMMIT").unwrap();
        assert_eq!(
            client.query("SELECT count(*) FROM t")["rows"],
            json!([[2]]),
            "{mode}"
        );
    }
}

#[test]
fn calls_run_side_by_side() {
    // Two readers: a slow statement does not hold up a fast one.
    let mut client = Sample::new()
        .stdio(&["--max-running", "2", "--timeout-ms", "5000"])
        .legacy();
    let slow = client.begin(
        "tools/call",
        json!({"name": "run_query", "arguments": {"sql": crate::limits::ENDLESS}}),
    );
    let fast = client.begin("tools/call", json!({"name": "list_tables", "arguments": {}}));
    let first = client.next_message();
    assert_eq!(first["id"], fast, "{first}");
    let second = client.next_message();
    assert_eq!(second["id"], slow);
    assert!(
        matches!(&second["result"]["content"][0]["text"], Value::String(text) if text.starts_with("timeout: "))
    );
}
