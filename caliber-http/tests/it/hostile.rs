//! Clients that are slow, large, compressed, broken, or too many.

use std::time::Duration;

use caliber_core::memory::ScriptedTool;
use caliber_http::HttpSettings;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{PATIENCE, PREFIX, Request, Service, read_answer, read_policy, remote};

fn create(service: &Service) -> Request {
    let mut request = Request::new("POST", &format!("{PREFIX}/mcp-servers"));
    request.token(&service.admin);
    request
}

#[tokio::test]
async fn heads_that_drip_are_cut_off_and_nobody_waits_for_them() {
    let settings = HttpSettings {
        header_timeout: Duration::from_secs(1),
        ..HttpSettings::default()
    };
    let service = Service::with(settings).await;
    let mut dripping = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(service.address).await.unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: loc")
            .await
            .unwrap();
        dripping.push(stream);
    }
    service.get("/mcp-servers").await.expect(200);
    for stream in &mut dripping {
        // One more byte changes nothing: the time runs from the beginning.
        let _ = stream.write_all(b"a").await;
    }
    for mut stream in dripping {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a dripping connection stays open");
        assert!(
            !rest.starts_with(b"HTTP/1.1 2"),
            "{:?}",
            String::from_utf8_lossy(&rest)
        );
    }
}

#[tokio::test]
async fn a_body_that_drips_is_cut_off() {
    let settings = HttpSettings {
        body_timeout: Duration::from_millis(300),
        ..HttpSettings::default()
    };
    let service = Service::with(settings).await;
    let mut request = create(&service);
    request
        .header("Content-Type", "application/json")
        .header("Content-Length", "100");
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(&request.bytes()).await.unwrap();
    stream.write_all(b"{\"name\"").await.unwrap();
    let refused = tokio::time::timeout(PATIENCE, read_answer(&mut stream))
        .await
        .unwrap()
        .expect(408);
    assert_eq!(refused.reason(), "body_timeout");
}

#[tokio::test]
async fn a_body_that_breaks_off_does_nothing() {
    let service = Service::start().await;
    let mut request = create(&service);
    request
        .header("Content-Type", "application/json")
        .header("Content-Length", "100");
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(&request.bytes()).await.unwrap();
    stream.write_all(b"{\"name\":\"weather\"}").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest))
        .await
        .unwrap();
    assert_eq!(service.get("/mcp-servers").await.expect(200).data(), json!([]));
}

#[tokio::test]
async fn large_bodies_are_refused_before_they_are_read() {
    let settings = HttpSettings {
        body_bytes: 1_000,
        ..HttpSettings::default()
    };
    let service = Service::with(settings).await;
    let mut request = create(&service);
    request
        .header("Content-Type", "application/json")
        .header("Content-Length", "1001");
    assert_eq!(service.send(&request).await.expect(413).reason(), "too_large");
    let padded = format!(
        "{}{}",
        remote("weather"),
        " ".repeat(1_000 - remote("weather").to_string().len())
    );
    assert_eq!(padded.len(), 1_000);
    service.send(create(&service).json(&padded)).await.expect(201);

    let mut chunked = create(&service);
    chunked
        .header("Content-Type", "application/json")
        .header("Transfer-Encoding", "chunked");
    let mut bytes = chunked.bytes();
    for _ in 0..11 {
        bytes.extend_from_slice(b"64\r\n");
        bytes.extend_from_slice(&[b' '; 100]);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(service.send_raw(&bytes).await.expect(413).reason(), "too_large");
}

#[tokio::test]
async fn compressed_bodies_are_not_read() {
    let service = Service::start().await;
    // `{}` as gzip.
    let gzip = [
        31, 139, 8, 0, 0, 0, 0, 0, 0, 3, 171, 174, 5, 0, 67, 191, 166, 163, 2, 0, 0, 0,
    ];
    for encoding in [
        "gzip",
        "br",
        "zstd",
        "deflate",
        "gzip, gzip",
        "identity, gzip",
        "GZIP",
        "x",
        "",
    ] {
        let mut request = create(&service);
        request
            .header("Content-Type", "application/json")
            .header("Content-Encoding", encoding)
            .body(&gzip);
        let refused = service.send(&request).await.expect(415);
        assert_eq!(refused.reason(), "content_encoding_refused", "{encoding}");
    }
    let mut request = create(&service);
    request
        .header("Content-Encoding", "Identity")
        .json(&remote("weather").to_string());
    service.send(&request).await.expect(201);
}

#[tokio::test]
async fn bodies_that_are_no_json_by_their_type_are_not_read() {
    let service = Service::start().await;
    for content_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json+x",
        "",
        "application",
    ] {
        let mut request = create(&service);
        request
            .header("Content-Type", content_type)
            .body(remote("weather").to_string().as_bytes());
        assert_eq!(
            service.send(&request).await.expect(415).reason(),
            "content_type_refused",
            "{content_type}"
        );
    }
    let mut request = create(&service);
    request.body(b"{}");
    service.send(&request).await.expect(415);
    let mut request = create(&service);
    request
        .header("Content-Type", "Application/JSON; charset=utf-8")
        .body(remote("weather").to_string().as_bytes());
    service.send(&request).await.expect(201);
}

#[tokio::test]
async fn one_source_has_only_so_many_requests_under_way() {
    let settings = HttpSettings {
        max_requests_per_source: 2,
        ..HttpSettings::default()
    };
    let service = Service::with(settings).await;
    service.upstream(
        "slow",
        [ScriptedTool::echo("slow")
            .unwrap()
            .delayed(Duration::from_secs(600))],
    );
    let id = service.register(remote("slow")).await;
    service
        .post(&format!("/mcp-servers/{id}/discover-tools"), json!({}))
        .await
        .expect(200);
    service
        .patch(&format!("/mcp-servers/{id}/tools/slow/policy"), read_policy())
        .await
        .expect(200);
    let mut request = Request::new("POST", &format!("{PREFIX}/mcp-servers/{id}/invoke-tool"));
    request.token(&service.admin).json(r#"{"tool_name":"slow"}"#);
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(service.address).await.unwrap();
        stream.write_all(&request.bytes()).await.unwrap();
        streams.push(stream);
    }
    let under_way = async {
        while service.parts.gateway.calls().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, under_way)
        .await
        .expect("both calls begin");
    assert_eq!(
        service.get("/mcp-servers").await.expect(429).reason(),
        "too_many_requests"
    );
    drop(streams);
    let free_again = async {
        while service.get("/mcp-servers").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, free_again)
        .await
        .expect("the places come back");
}

#[tokio::test]
async fn further_connections_wait_for_a_place() {
    let settings = HttpSettings {
        max_connections: 1,
        header_timeout: Duration::from_millis(500),
        ..HttpSettings::default()
    };
    let service = Service::with(settings).await;
    let _idle = TcpStream::connect(service.address).await.unwrap();
    // It is answered once the idle connection has run out of time.
    service.get("/mcp-servers").await.expect(200);
}

#[tokio::test]
async fn a_request_is_given_up_at_its_time() {
    let settings = HttpSettings {
        request_timeout: Duration::from_nanos(1),
        ..HttpSettings::default()
    };
    let service = Service::with(settings).await;
    service.upstream("slow", [ScriptedTool::echo("echo").unwrap()]);
    let mut waiting = create(&service);
    waiting
        .header("Content-Type", "application/json")
        .header("Content-Length", "10");
    let late = service.send(&waiting).await.expect(504);
    assert_eq!(late.reason(), "timeout");
}

#[tokio::test]
async fn nonsense_on_the_wire_harms_nobody() {
    let service = Service::start().await;
    for bytes in [
        &b"\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\nConnection: close\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(service.address).await.unwrap();
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest))
            .await
            .expect("it ends");
        assert!(
            !rest.starts_with(b"HTTP/1.1 2"),
            "{:?}",
            String::from_utf8_lossy(&rest)
        );
    }
    let mut large = Request::new("GET", "/healthz");
    large.header("X-Large", &"x".repeat(100_000));
    assert_eq!(service.send(&large).await.status, 431);
    let mut many = Request::new("GET", "/healthz");
    for index in 0..200 {
        many.header(&format!("X-{index}"), "x");
    }
    assert_eq!(service.send(&many).await.status, 431);
    service.send(&Request::new("GET", "/healthz")).await.expect(200);
}
