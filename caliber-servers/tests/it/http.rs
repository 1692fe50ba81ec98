//! The HTTP endpoint: who may call, what is answered to bad requests, and what is bounded.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::limits::ENDLESS;
use crate::support::{Client, PATIENCE, Sample, initialize_params, modern_meta};

const TOKEN: &str = "canary-token-0123456789";

fn initialize() -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize_params()}).to_string()
}

#[test]
fn foreign_hosts_and_origins_are_refused() {
    let server = Sample::new().http(&[
        "--allow-host",
        "db.example",
        "--allow-origin",
        "https://app.example:443",
    ]);
    let port = server.address.port();
    let status = |headers: &[(&str, &str)]| server.post(&initialize(), headers).status;
    for host in [
        format!("localhost:{port}"),
        "127.0.0.1".into(),
        "[::1]".into(),
        "db.example:8101".into(),
    ] {
        assert_eq!(status(&[("Host", &host)]), 200, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "0.0.0.0",
    ] {
        assert_eq!(status(&[("Host", host)]), 403, "{host}");
    }
    assert_eq!(status(&[("Origin", "https://app.example")]), 200);
    for origin in [
        "https://evil.example",
        "null",
        "http://localhost",
        "http://127.0.0.1:8000",
        "https://app.example:444",
        "nonsense",
    ] {
        assert_eq!(status(&[("Origin", origin)]), 403, "{origin}");
    }
    assert_eq!(status(&[("Host", "localhost"), ("Host", "evil.example")]), 400);
    assert_eq!(
        status(&[
            ("Origin", "https://app.example"),
            ("Origin", "https://evil.example")
        ]),
        400
    );
}

#[test]
fn no_origin_is_allowed_unless_named() {
    let server = Sample::new().http(&[]);
    for origin in ["http://localhost", "null", "https://app.example"] {
        assert_eq!(
            server.post(&initialize(), &[("Origin", origin)]).status,
            403,
            "{origin}"
        );
    }
}

#[test]
fn the_bearer_token_is_needed_on_every_request_and_never_shown() {
    let sample = Sample::new();
    let file = sample.folder.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let mut server = sample.http(&["--bearer-token-file", file.to_str().unwrap()]);
    for headers in [
        &[][..],
        &[("Authorization", "Bearer wrong-token-0123456789")],
        &[("Authorization", "Bearer canary-token-012345678")],
        &[("Authorization", TOKEN)],
        &[
            ("Authorization", "Bearer canary-token-0123456789"),
            ("Authorization", "Bearer x"),
        ],
    ] {
        let answer = server.post(&initialize(), headers);
        assert_eq!(answer.status, 401, "{headers:?}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{answer:?}");
        assert!(!answer.body.contains(TOKEN) && !answer.head.contains(TOKEN));
    }
    server.headers = vec![("Authorization".into(), format!("Bearer {TOKEN}"))];
    let mut server = server.legacy();
    assert_eq!(server.query("SELECT 1")["rows"], json!([[1]]));
}

#[test]
fn bodies_that_are_no_requests_get_json_rpc_errors() {
    let server = Sample::new().http(&["--max-request-bytes", "50000"]);
    let deep = format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000));
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("nonsense", -32700),
        (deep.as_str(), -32700),
        ("[]", -32600),
        ("1", -32600),
        ("{}", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600),
    ] {
        let answer = server.post(body, &[]);
        assert_eq!(answer.status, 400, "{body:.40}: {answer:?}");
        let error: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(error["error"]["code"], code, "{body:.40}");
    }
    assert_eq!(
        server
            .post(&initialize(), &[("Content-Type", "text/plain")])
            .status,
        415
    );
    assert_eq!(server.post(&initialize(), &[("Accept", "text/html")]).status, 406);
    let large = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "x".repeat(60_000)}});
    assert_eq!(server.post(&large.to_string(), &[]).status, 413);
    let host = vec![("Host".to_owned(), server.address.to_string())];
    for method in ["GET", "DELETE", "PUT"] {
        assert_eq!(server.exchange(method, "", &host).status, 405, "{method}");
    }
    assert_eq!(
        server.post(&initialize(), &[]).status,
        200,
        "and the server goes on"
    );
}

#[test]
fn the_modern_headers_must_agree_with_the_body() {
    let server = Sample::new().http(&[]);
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "list_tables", "arguments": {}, "_meta": modern_meta()},
    })
    .to_string();
    let version = ("MCP-Protocol-Version", "2026-07-28");
    let method = ("Mcp-Method", "tools/call");
    let code = |headers: &[(&str, &str)]| {
        let answer = server.post(&body, headers);
        let message: Value = serde_json::from_str(&answer.body).unwrap();
        (answer.status, message["error"]["code"].clone())
    };
    assert_eq!(
        code(&[version, method, ("Mcp-Name", "list_tables")]),
        (200, Value::Null)
    );
    assert_eq!(
        code(&[version, method, ("Mcp-Name", "run_query")]),
        (400, json!(-32020))
    );
    assert_eq!(
        code(&[version, ("Mcp-Method", "tools/list"), ("Mcp-Name", "list_tables")]),
        (400, json!(-32020))
    );
    assert_eq!(
        code(&[
            ("MCP-Protocol-Version", "2025-11-25"),
            method,
            ("Mcp-Name", "list_tables")
        ]),
        (400, json!(-32020))
    );
    let unknown = body.replace("2026-07-28", "2099-01-01");
    let answer = server.post(
        &unknown,
        &[
            ("MCP-Protocol-Version", "2099-01-01"),
            method,
            ("Mcp-Name", "list_tables"),
        ],
    );
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.body.contains("-32022"), "{answer:?}");
}

#[test]
fn no_session_is_made() {
    let server = Sample::new().http(&[]);
    let answer = server.post(&initialize(), &[]);
    assert!(!answer.head.contains("mcp-session-id"), "{answer:?}");
    assert!(
        answer.head.contains("content-type: application/json"),
        "{answer:?}"
    );
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let accepted = server.post(notification, &[("MCP-Protocol-Version", "2025-11-25")]);
    assert_eq!((accepted.status, accepted.body.as_str()), (202, ""));
}

#[test]
fn a_client_that_hangs_up_stops_its_statement() {
    let arguments = [
        "--timeout-ms",
        "60000",
        "--max-running",
        "1",
        "--max-waiting",
        "0",
    ];
    let mut server = Sample::new().http(&arguments).legacy();
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "run_query", "arguments": {"sql": ENDLESS}},
    })
    .to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    );
    let address = server.address;
    let deadline = Instant::now() + PATIENCE;
    let mut is_busy = || {
        assert!(Instant::now() < deadline);
        let answer = server.call("list_tables", json!({}));
        answer["content"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("busy: ")
    };
    // The call that asks whether the only place is taken may itself take it; then the statement is refused, and sent
    // again.
    let stream = 'taken: loop {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        while stream.peek(&mut [0]).is_err() {
            if is_busy() && stream.peek(&mut [0]).is_err() {
                break 'taken stream;
            }
        }
    };
    drop(stream);
    // Long before the minute of the statement is over.
    while is_busy() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn half_open_connections_do_not_keep_others_out() {
    let mut server = Sample::new().http(&[]).legacy();
    let idle: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = server.connect();
            stream
                .write_all(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                .unwrap();
            stream
        })
        .collect();
    let began = Instant::now();
    assert_eq!(server.query("SELECT 1")["rows"], json!([[1]]));
    assert!(began.elapsed() < Duration::from_secs(1));
    drop(idle);
}
