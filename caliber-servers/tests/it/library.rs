//! The server inside somebody's program, without the command.

use std::net::SocketAddr;

use caliber_servers::ErrorKind;
use caliber_servers::database::relational::{RelationalOptions, RelationalServer};
use caliber_servers::transport::{BearerToken, HttpOptions};
use serde_json::{Value, json};
use tokio::net::TcpListener;
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
