//! Probes, metrics, unknown routes, the end of the server.

use std::time::Duration;

use caliber_core::memory::{Outage, ScriptedTool};
use caliber_http::HttpSettings;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::{PATIENCE, PREFIX, Request, Service, read_answer, read_policy, remote};

#[tokio::test]
async fn probes_tell_life_from_readiness() {
    let service = Service::start().await;
    for path in ["/healthz", "/readyz"] {
        let sign = service.send(&Request::new("GET", path)).await.expect(200);
        assert_eq!(sign.json(), json!({ "status": "ok" }));
    }
    service.parts.registry.set_outage(Some(Outage::Everything));
    service.send(&Request::new("GET", "/healthz")).await.expect(200);
    assert_eq!(
        service
            .send(&Request::new("GET", "/readyz"))
            .await
            .expect(503)
            .reason(),
        "store_unavailable"
    );
    service.parts.registry.set_outage(None);
    service.send(&Request::new("GET", "/readyz")).await.expect(200);
}

#[tokio::test]
async fn a_store_that_takes_nothing_is_said_and_nothing_is_half_done() {
    let service = Service::start().await;
    service.parts.registry.set_outage(Some(Outage::Commits));
    let refused = service.post("/mcp-servers", remote("weather")).await.expect(503);
    assert_eq!(refused.reason(), "store_unavailable");
    service.parts.registry.set_outage(None);
    assert_eq!(service.get("/mcp-servers").await.expect(200).data(), json!([]));
}

#[tokio::test]
async fn metrics_count_by_route_and_name_nobody() {
    let service = Service::start().await;
    let id = service.echo_server("weather").await;
    service
        .post(
            &format!("/mcp-servers/{id}/invoke-tool"),
            json!({ "tool_name": "echo" }),
        )
        .await
        .expect(200);
    service
        .get("/mcp-servers/srv_00000000000000000000000000000000")
        .await
        .expect(404);
    service
        .send(&Request::new("GET", "/some/where"))
        .await
        .expect(404);
    service.send(&Request::new("BREW", "/healthz")).await.expect(405);
    let metrics = service.send(&Request::new("GET", "/metrics")).await.expect(200);
    let content_type = metrics.header("content-type").unwrap();
    assert!(
        content_type.starts_with("application/openmetrics-text"),
        "{content_type}"
    );
    let text = metrics.text();
    for line in [
        format!(
            r#"caliber_http_requests_total{{method="POST",route="{PREFIX}/mcp-servers",status="201"}} 1"#
        ),
        format!(
            r#"caliber_http_requests_total{{method="GET",route="{PREFIX}/mcp-servers/{{server_id}}",status="404"}} 1"#
        ),
        r#"caliber_http_requests_total{method="GET",route="unmatched",status="404"} 1"#.to_owned(),
        r#"caliber_http_requests_total{method="other",route="/healthz",status="405"} 1"#.to_owned(),
        r#"caliber_invocations_total{outcome="ok"} 1"#.to_owned(),
        "caliber_http_requests_under_way 1".to_owned(),
        "caliber_http_connections 1".to_owned(),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert!(text.contains("caliber_http_request_duration_seconds_bucket"));
    assert!(text.trim_end().ends_with("# EOF"));
    for name in ["ada", "weather", "/some/where", id.as_str()] {
        assert!(!text.contains(name), "{name}");
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_problems_too() {
    let service = Service::start().await;
    for target in [
        "/",
        "/nothing",
        PREFIX,
        &format!("{PREFIX}/"),
        &format!("{PREFIX}/mcp-servers/"),
        "/openapi.json/",
    ] {
        assert_eq!(
            service
                .send(&Request::new("GET", target))
                .await
                .expect(404)
                .reason(),
            "not_found",
            "{target}"
        );
    }
    for (method, target, allowed) in [
        ("DELETE", format!("{PREFIX}/mcp-servers"), "GET,HEAD,POST"),
        ("GET", format!("{PREFIX}/mcp-servers/restore"), "POST"),
        ("TRACE", "/healthz".to_owned(), "GET,HEAD"),
        ("POST", "/openapi.json".to_owned(), "GET,HEAD"),
        ("OPTIONS", format!("{PREFIX}/memberships"), "PUT"),
    ] {
        let refused = service.send(&Request::new(method, &target)).await.expect(405);
        assert_eq!(refused.reason(), "method_not_allowed");
        assert_eq!(refused.header("allow"), Some(allowed), "{method} {target}");
    }
    let head = service
        .send(Request::new("HEAD", &format!("{PREFIX}/mcp-servers")).token(&service.admin))
        .await;
    assert_eq!((head.status, head.body.len()), (200, 0));
}

/// A server with a tool that takes its time, and a request that calls it.
async fn slow_call(service: &Service, time: Duration) -> Vec<u8> {
    service.upstream("slow", [ScriptedTool::echo("slow").unwrap().delayed(time)]);
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
    request
        .token(&service.admin)
        .json(r#"{"tool_name":"slow"}"#)
        .bytes()
}

async fn begin(service: &Service, request: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let begun = async {
        while service.parts.gateway.calls().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, begun)
        .await
        .expect("the call begins");
    stream
}

#[tokio::test]
async fn requests_under_way_may_end_before_the_server_does() {
    let mut service = Service::start().await;
    let request = slow_call(&service, Duration::from_millis(500)).await;
    let mut stream = begin(&service, &request).await;
    let mut idle = TcpStream::connect(service.address).await.unwrap();
    service.cancel.cancel();
    let answered = tokio::time::timeout(PATIENCE, read_answer(&mut stream))
        .await
        .unwrap();
    answered.expect(200);
    let running = service.running.take().unwrap();
    tokio::time::timeout(PATIENCE, running)
        .await
        .expect("it ends")
        .unwrap()
        .unwrap();
    // The idle connection was closed, and nobody listens any more.
    let mut rest = Vec::new();
    let closed = tokio::io::AsyncReadExt::read_to_end(&mut idle, &mut rest);
    assert!(!matches!(tokio::time::timeout(PATIENCE, closed).await.unwrap(), Ok(length) if length > 0));
    assert!(TcpStream::connect(service.address).await.is_err());
}

#[tokio::test]
async fn what_outlasts_the_grace_is_dropped() {
    let settings = HttpSettings {
        grace: Duration::from_millis(200),
        ..HttpSettings::default()
    };
    let mut service = Service::with(settings).await;
    let request = slow_call(&service, Duration::from_secs(600)).await;
    let _stream = begin(&service, &request).await;
    service.cancel.cancel();
    let running = service.running.take().unwrap();
    tokio::time::timeout(PATIENCE, running)
        .await
        .expect("it ends")
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused_at_the_start() {
    let service = Service::start().await;
    for (name, settings) in [
        (
            "body_bytes",
            HttpSettings {
                body_bytes: 0,
                ..HttpSettings::default()
            },
        ),
        (
            "json_depth",
            HttpSettings {
                json_depth: 128,
                ..HttpSettings::default()
            },
        ),
        (
            "header_bytes",
            HttpSettings {
                header_bytes: 100,
                ..HttpSettings::default()
            },
        ),
        (
            "max_connections",
            HttpSettings {
                max_connections: 0,
                ..HttpSettings::default()
            },
        ),
        (
            "request_timeout",
            HttpSettings {
                request_timeout: Duration::ZERO,
                ..HttpSettings::default()
            },
        ),
        (
            "allowed_hosts",
            HttpSettings {
                allowed_hosts: Vec::new(),
                ..HttpSettings::default()
            },
        ),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refused =
            caliber_http::serve(listener, service.caliber.clone(), settings, Default::default()).await;
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(name), "{text}");
    }
}

#[tokio::test]
async fn the_router_works_without_addresses() {
    use tower::ServiceExt;
    let service = Service::start().await;
    let router = caliber_http::router(service.caliber.clone(), HttpSettings::default());
    let ask = |token: Option<&str>| {
        let mut request = http::Request::get(format!("{PREFIX}/mcp-servers")).header("host", "localhost");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        router
            .clone()
            .oneshot(request.body(axum::body::Body::empty()).unwrap())
    };
    assert_eq!(ask(Some(&service.admin)).await.unwrap().status(), 200);
    assert_eq!(ask(None).await.unwrap().status(), 401);
    let open = HttpSettings {
        authentication: caliber_http::Authentication::OpenOnLoopback,
        ..HttpSettings::default()
    };
    let router = caliber_http::router(service.caliber.clone(), open);
    let request = http::Request::get(format!("{PREFIX}/mcp-servers")).header("host", "localhost");
    let answer = router
        .oneshot(request.body(axum::body::Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(answer.status(), 401);
}
