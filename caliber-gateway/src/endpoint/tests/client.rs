//! What the HTTP client does and does not do.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use super::*;

#[tokio::test]
async fn a_redirect_is_an_answer_and_not_followed() {
    let sentinel = Sentinel::start(EMPTY).await;
    for status in [
        "301 Moved",
        "302 Found",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
    ] {
        let answer = format!(
            "HTTP/1.1 {status}\r\nLocation: http://127.0.0.1:{}/stolen\r\nContent-Length: 0\r\n\r\n",
            sentinel.port
        );
        let redirecting = Sentinel::start(&answer).await;
        let target = remote(&format!("http://127.0.0.1:{}/mcp", redirecting.port));
        let endpoints = Endpoints::new(EndpointSettings::default());
        let (client, url) = endpoints.remote_client(&target, soon()).await.unwrap();
        let answer = client.post(url).send().await.unwrap();
        assert_eq!(answer.status().as_str(), &status[..3]);
        assert_eq!(redirecting.hits(), 1);
    }
    assert_eq!(sentinel.hits(), 0);
}

#[tokio::test]
async fn no_compression_is_asked_for_and_none_is_undone() {
    let body = "\u{1f}not gzip";
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let sentinel = Sentinel::start(&answer).await;
    let endpoints = Endpoints::new(EndpointSettings::default());
    let target = remote(&format!("http://localhost:{}/mcp", sentinel.port));
    let (client, url) = endpoints.remote_client(&target, soon()).await.unwrap();
    let answer = client.get(url).send().await.unwrap();
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    assert_eq!(answer.bytes().await.unwrap(), body.as_bytes());
    let request = sentinel.requests.lock().unwrap().concat().to_ascii_lowercase();
    assert!(
        !request.contains("accept-encoding") && !request.contains("referer"),
        "{request}"
    );
}

#[tokio::test]
async fn sessions_to_one_origin_share_connections_while_its_addresses_stay() {
    let sentinel = Sentinel::start(EMPTY).await;
    let settings = EndpointSettings {
        cache_time: Duration::ZERO,
        ..attested("sidecar.test", sentinel.port)
    };
    let names: &[(&str, &[&[&str]])] = &[(
        "sidecar.test",
        &[&["127.0.0.1"], &["127.0.0.1"], &["127.0.0.1", "127.0.0.2"]],
    )];
    let endpoints = with_names(settings, names);
    let connections = async |path: &str| {
        let target = remote(&format!("http://sidecar.test:{}/{path}", sentinel.port));
        let (client, url) = endpoints.remote_client(&target, soon()).await.unwrap();
        let answer = client.get(url).send().await.unwrap();
        answer.bytes().await.unwrap();
        sentinel.hits()
    };
    assert_eq!(connections("one").await, 1);
    assert_eq!(
        connections("two").await,
        1,
        "another look, the same addresses, the same connection"
    );
    assert_eq!(connections("one").await, 2, "other addresses, another client");
}

/// Run by the next test in a process of its own, whose environment names a proxy.
#[tokio::test]
async fn part_that_dials_beside_a_proxy() {
    let Ok(port) = std::env::var("CALIBER_TEST_DIAL") else {
        return;
    };
    let endpoints = Endpoints::new(EndpointSettings::default());
    let target = remote(&format!("http://localhost:{port}/mcp"));
    let (client, url) = endpoints.remote_client(&target, soon()).await.unwrap();
    assert_eq!(client.get(url).send().await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_in_the_environment_plays_no_part() {
    let (target, proxy) = (Sentinel::start(EMPTY).await, Sentinel::start(EMPTY).await);
    let module = module_path!().split_once("::").unwrap().1;
    let mut part = Command::new(std::env::current_exe().unwrap());
    part.args(["--exact", &format!("{module}::part_that_dials_beside_a_proxy")])
        .env("CALIBER_TEST_DIAL", target.port.to_string());
    for name in [
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "all_proxy",
        "ALL_PROXY",
    ] {
        part.env(name, format!("http://127.0.0.1:{}", proxy.port));
    }
    let outcome = tokio::task::spawn_blocking(move || part.output().unwrap())
        .await
        .unwrap();
    assert!(
        outcome.status.success(),
        "{}",
        String::from_utf8_lossy(&outcome.stdout)
    );
    assert_eq!((target.hits(), proxy.hits()), (1, 0));
}

/// A TLS server that answers each request with an empty page; its certificate is for `localhost`.
fn tls_server() -> (u16, String) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = certified.signing_key.serialize_der().try_into().unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut connection = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = stream;
            let mut tls = rustls::Stream::new(&mut connection, &mut stream);
            let mut request = Vec::new();
            let mut byte = [0];
            // A client that does not trust us ends the handshake, and then reading fails.
            while !request.ends_with(b"\r\n\r\n") && tls.read_exact(&mut byte).is_ok() {
                request.extend(byte);
            }
            let _ = tls.write_all(EMPTY.as_bytes()).and_then(|()| tls.flush());
            connection.send_close_notify();
            let _ = connection.write_tls(&mut stream);
        }
    });
    (port, certified.cert.pem())
}

#[tokio::test]
async fn tls_trusts_the_platform_and_the_extra_roots_and_checks_the_name() {
    let (port, root) = tls_server();
    let ask = async |host: &str, extra_roots: &str| {
        let settings = EndpointSettings {
            extra_roots: extra_roots.as_bytes().to_vec(),
            ..EndpointSettings::default()
        };
        let target = remote(&format!("https://{host}:{port}/mcp"));
        let (client, url) = Endpoints::new(settings).remote_client(&target, soon()).await?;
        client
            .get(url)
            .send()
            .await
            .map(|answer| answer.status().as_u16())
            .map_err(|error| {
                assert!(error.is_connect(), "{error:?}");
                Error::new(ErrorKind::Upstream, "handshake")
            })
    };
    assert_eq!(ask("localhost", &root).await.unwrap(), 200);
    assert!(
        ask("127.0.0.1", &root).await.is_err(),
        "another name than the certificate's"
    );
    assert!(
        ask("localhost", "").await.is_err(),
        "a certificate that nobody vouches for"
    );
    let error = ask(
        "localhost",
        "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
    )
    .await;
    assert!(error.unwrap_err().message().contains("PEM"));
}
