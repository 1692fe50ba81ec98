//! The server inside somebody's program, without the command.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use caliber_servers::database::relational::{RelationalOptions, RelationalServer};
use caliber_servers::transport::{BearerToken, HttpOptions};
use caliber_servers::{Error, ErrorKind};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, Sample, exchange};

fn describe_run_query(address: SocketAddr) -> String {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).to_string();
    let headers = [
        ("Host", "localhost"),
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", "2025-11-25"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let answer = exchange(address, "POST", &body, &headers);
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer: Value = serde_json::from_str(&answer.body).unwrap();
    answer["result"]["tools"][2]["description"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_a_bound_listener_until_it_is_cancelled() {
    let sample = Sample::new();
    let descriptions = sample.folder.path().join("descriptions.json");
    std::fs::write(&descriptions, "{}").unwrap();
    let mut options = RelationalOptions::new(&sample.path);
    options.descriptions = Some(descriptions.clone());
    let server = RelationalServer::open(options).await.unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cancel = CancellationToken::new();
    let serving = tokio::spawn({
        let cancel = cancel.clone();
        async move { server.serve_http(listener, HttpOptions::default(), cancel).await }
    });

    let listed = move || tokio::task::spawn_blocking(move || describe_run_query(address));
    let before = listed().await.unwrap();
    std::fs::write(&descriptions, r#"{"run_query": "Reads the shop."}"#).unwrap();
    assert_eq!(listed().await.unwrap(), "Reads the shop.");
    assert_ne!(before, "Reads the shop.");

    cancel.cancel();
    tokio::time::timeout(PATIENCE, serving)
        .await
        .expect("it ends")
        .unwrap()
        .unwrap();
    assert!(
        std::net::TcpStream::connect(address).is_err(),
        "nobody listens any more"
    );
}

#[tokio::test]
async fn a_database_that_cannot_be_opened_is_an_error_of_its_kind() {
    let error = RelationalServer::open(RelationalOptions::new("/does/not/exist.db"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Database);
    let mut options = RelationalOptions::new(&Sample::new().path);
    options.limits.max_rows = 0;
    let error = RelationalServer::open(options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
}

#[test]
fn only_a_token_lets_other_machines_in() {
    let mut options = HttpOptions::default();
    for address in ["127.0.0.1:1", "[::1]:1", "127.8.8.8:1"] {
        options.check_address(address.parse().unwrap()).unwrap();
    }
    for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:127.0.0.1]:1"] {
        let error = options.check_address(address.parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{address}");
    }
    options.bearer_token = Some(BearerToken::new("canary-token-0123456789").unwrap());
    options.check_address("0.0.0.0:1".parse().unwrap()).unwrap();
    assert!(!format!("{options:?}").contains("canary"));
    options.max_connections = 0;
    assert!(options.check_address("127.0.0.1:1".parse().unwrap()).is_err());
}

/// Serves a sample in this process.
async fn serve(
    options: HttpOptions,
) -> (
    Sample,
    SocketAddr,
    CancellationToken,
    JoinHandle<Result<(), Error>>,
) {
    let sample = Sample::new();
    let mut relational = RelationalOptions::new(&sample.path);
    relational.limits.timeout = Duration::from_secs(60);
    let server = RelationalServer::open(relational).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cancel = CancellationToken::new();
    let serving = tokio::spawn({
        let cancel = cancel.clone();
        async move { server.serve_http(listener, options, cancel).await }
    });
    (sample, address, cancel, serving)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What the server says until it hangs up.
fn rest(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .expect("the server hangs up in time");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_and_bodies_are_given_up() {
    let mut options = HttpOptions::default();
    options.head_timeout = Duration::from_millis(200);
    options.body_timeout = Duration::from_millis(200);
    let (_sample, address, _cancel, _serving) = serve(options).await;
    tokio::task::spawn_blocking(move || {
        let mut head = connect(address);
        head.write_all(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n")
            .unwrap();
        let answer = rest(head);
        assert!(answer.is_empty() || answer.contains(" 408 "), "{answer:?}");

        let mut body = connect(address);
        body.write_all(
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
              Connection: close\r\nContent-Length: 100\r\n\r\n{",
        )
        .unwrap();
        let answer = rest(body);
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_wait_for_a_place() {
    let mut options = HttpOptions::default();
    options.max_connections = 1;
    let (_sample, address, _cancel, _serving) = serve(options).await;
    tokio::task::spawn_blocking(move || {
        let get = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut first = connect(address);
        first.write_all(get).unwrap();
        assert_ne!(first.read(&mut [0; 1024]).unwrap(), 0, "the first is served");
        let mut second = connect(address);
        second.write_all(get).unwrap();
        second.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        second.read(&mut [0; 1024]).expect_err("the second waits");
        drop(first);
        second.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_ne!(
            second.read(&mut [0; 1024]).unwrap(),
            0,
            "and is served when the first has left"
        );
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_waits_for_open_requests_no_longer_than_the_drain_time() {
    let mut options = HttpOptions::default();
    options.drain_timeout = Duration::from_millis(200);
    let (_sample, address, cancel, serving) = serve(options).await;
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "run_query", "arguments": {"sql": crate::limits::ENDLESS}},
    })
    .to_string();
    let mut stream = connect(address);
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    // Another request, so that the first one has been accepted.
    tokio::task::spawn_blocking(move || describe_run_query(address))
        .await
        .unwrap();
    let began = Instant::now();
    cancel.cancel();
    tokio::time::timeout(PATIENCE, serving)
        .await
        .expect("it ends")
        .unwrap()
        .unwrap();
    // The statement itself would run for a minute.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let answer = tokio::task::spawn_blocking(move || rest(stream)).await.unwrap();
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer:?}");
}
