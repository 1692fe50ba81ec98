//! Calls through admission, and the ledger.

use std::sync::Arc;
use std::time::Duration;

use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::memory::{CallEnd, ScriptedTool};
use caliber_core::principal::Scope;
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::support::{PATIENCE, PREFIX, Request, Service, read_policy, remote};

fn answering(name: &str, result: &'static str) -> ScriptedTool {
    let descriptor = json!({ "name": name, "inputSchema": { "type": "object" } }).to_string();
    ScriptedTool::new(&descriptor, move |_| async move {
        JsonText::parse(result, JsonLimits::RESULT)
    })
    .unwrap()
}

fn failing(name: &str, error: fn() -> Error) -> ScriptedTool {
    let descriptor = json!({ "name": name, "inputSchema": { "type": "object" } }).to_string();
    ScriptedTool::new(&descriptor, move |_| async move { Err(error()) }).unwrap()
}

/// A server with these tools, all of them classified as read.
async fn serving(service: &Service, tools: Vec<ScriptedTool>) -> String {
    let names: Vec<_> = tools
        .iter()
        .map(|tool| tool.descriptor().name().to_string())
        .collect();
    service.upstream("weather", tools);
    let id = service.register(remote("weather")).await;
    service
        .post(&format!("/mcp-servers/{id}/discover-tools"), json!({}))
        .await
        .expect(200);
    for name in names {
        service
            .patch(&format!("/mcp-servers/{id}/tools/{name}/policy"), read_policy())
            .await
            .expect(200);
    }
    id
}

#[tokio::test]
async fn arguments_and_results_pass_byte_for_byte() {
    let service = Service::start().await;
    let id = service.echo_server("weather").await;
    let arguments = r#"{ "big": 9007199254740993, "bigger":18446744073709551616, "e": 1e300, "z": -0, "f": 1.10,
        "long": 0.1000000000000000000000000000000000000001, "text": "\u00e9 é 天気 \u2028 \ud83d\ude00 \u0000", "": null }"#;
    let body = format!(r#"{{"tool_name":"echo","arguments":{arguments}}}"#);
    let answered = service
        .call("POST", &format!("/mcp-servers/{id}/invoke-tool"), Some(&body))
        .await
        .expect(200);
    let expected = format!(r#""result":{{"content":[],"structuredContent":{arguments}}}"#);
    assert!(answered.text().contains(&expected), "{}", answered.text());
    let reached = service.parts.gateway.calls();
    assert_eq!(reached.len(), 1);
    assert_eq!(reached[0].call.arguments.as_str(), arguments);
    assert!(answered.text().contains(r#""success":true,"is_error":false"#));
}

#[tokio::test]
async fn a_call_is_answered_and_recorded() {
    let service = Service::start().await;
    let id = service.echo_server("weather").await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    let called = service
        .post(&path, json!({ "tool_name": "echo" }))
        .await
        .expect(200)
        .data();
    assert_eq!(called["server_id"], json!(id));
    assert_eq!(called["tool_name"], "echo");
    assert_eq!(called["success"], true);
    assert_eq!(
        called["result"],
        json!({ "content": [], "structuredContent": {} })
    );
    assert!(called["duration_ms"].as_f64().unwrap() >= 0.0);
    let call = called["invocation_id"].as_str().unwrap();

    let record = service
        .get(&format!("/invocations/{call}"))
        .await
        .expect(200)
        .data();
    assert_eq!(record["invocation_id"], json!(call));
    assert_eq!(record["subject"], "ada");
    assert_eq!(record["surface"], "playground");
    assert_eq!(record["outcome"], "ok");
    assert_eq!(record["side_effect_level"], "read");
    assert_eq!(record["server_name"], "weather");
    assert_eq!(record["policy_revision"], 1);
    let listed = service
        .get(&format!("/mcp-servers/{id}/invocations"))
        .await
        .expect(200)
        .data();
    assert_eq!(listed, json!([record]));
    service
        .get("/invocations/inv_00000000000000000000000000000000")
        .await
        .expect(404);
    service.get("/invocations/nonsense").await.expect(404);

    let other = service.token("olga", Some("other"), &[Scope::Admin]).await;
    service
        .call_as(&other, "GET", &format!("/invocations/{call}"), None)
        .await
        .expect(404);
}

#[tokio::test]
async fn a_tool_that_fails_is_an_answer() {
    let service = Service::start().await;
    let result = r#"{"content":[{"type":"text","text":"no such city"}],"isError":true}"#;
    let id = serving(&service, vec![answering("fail", result)]).await;
    let called = service
        .post(
            &format!("/mcp-servers/{id}/invoke-tool"),
            json!({ "tool_name": "fail" }),
        )
        .await;
    let called = called.expect(200).data();
    assert_eq!(
        (&called["success"], &called["is_error"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(called["result"]["content"][0]["text"], "no such city");
}

#[tokio::test]
async fn admission_refuses_with_its_reason() {
    let service = Service::start().await;
    service.upstream("weather", [ScriptedTool::echo("echo").unwrap()]);
    let id = service.register(remote("weather")).await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    let refused = async |status: u16, body: serde_json::Value| {
        let refused = service.post(&path, body).await.expect(status);
        assert!(
            refused.json()["invocation_id"]
                .as_str()
                .unwrap()
                .starts_with("inv_")
        );
        refused.reason()
    };
    let echo = json!({ "tool_name": "echo" });
    assert_eq!(refused(409, echo.clone()).await, "inventory_absent");
    service
        .post(&format!("/mcp-servers/{id}/discover-tools"), json!({}))
        .await
        .expect(200);
    assert_eq!(
        refused(409, json!({ "tool_name": "absent" })).await,
        "tool_unknown"
    );
    assert_eq!(refused(409, echo.clone()).await, "unclassified");
    let policy = format!("/mcp-servers/{id}/tools/echo/policy");
    let blocked = json!({ "allowed": false, "side_effect_level": "read", "requires_approval": false });
    service.patch(&policy, blocked).await.expect(200);
    assert_eq!(refused(403, echo.clone()).await, "blocked");
    let mut limited = read_policy();
    limited["rate_limit_per_minute"] = json!(1);
    service.patch(&policy, limited).await.expect(200);
    service.post(&path, echo.clone()).await.expect(200);
    let limited = service.post(&path, echo.clone()).await.expect(429);
    assert_eq!(limited.reason(), "rate_limited");
    let wait: u64 = limited.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    service
        .patch(&format!("/mcp-servers/{id}"), json!({ "status": "disabled" }))
        .await
        .expect(200);
    assert_eq!(refused(409, echo.clone()).await, "server_disabled");
    service
        .patch(&format!("/mcp-servers/{id}"), json!({ "status": "active" }))
        .await
        .expect(200);
    service
        .patch(
            &format!("/mcp-servers/{id}"),
            json!({ "uri": "http://127.0.0.1:9/moved" }),
        )
        .await
        .expect(200);
    assert_eq!(refused(409, echo).await, "drifted");
    assert_eq!(service.parts.gateway.calls().len(), 1);
}

#[tokio::test]
async fn a_caller_needs_a_grant() {
    let service = Service::start().await;
    let id = service.echo_server("weather").await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    let viewer = service.token("vic", Some("default"), &[Scope::Viewer]).await;
    let body = Some(r#"{"tool_name":"echo"}"#);
    assert_eq!(
        service
            .call_as(&viewer, "POST", &path, body)
            .await
            .expect(403)
            .reason(),
        "not_granted"
    );
    service
        .post(
            "/grants",
            json!({ "server_id": id, "subject": "vic", "tool_name": "echo" }),
        )
        .await
        .expect(201);
    let called = service
        .call_as(&viewer, "POST", &path, body)
        .await
        .expect(200)
        .data();
    // Its caller sees the call; the list of all calls is for operators.
    let call = called["invocation_id"].as_str().unwrap();
    service
        .call_as(&viewer, "GET", &format!("/invocations/{call}"), None)
        .await
        .expect(200);
    service
        .call_as(&viewer, "GET", &format!("/mcp-servers/{id}/invocations"), None)
        .await
        .expect(403);
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_named() {
    let service = Service::start().await;
    let descriptor = r#"{"name":"add","inputSchema":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}"#;
    let add = ScriptedTool::new(descriptor, |_| async { Ok(JsonText::empty_object()) }).unwrap();
    let id = serving(&service, vec![add]).await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    let refused = service
        .post(&path, json!({ "tool_name": "add", "arguments": { "n": "x" } }))
        .await
        .expect(400);
    assert_eq!(refused.reason(), "arguments_invalid");
    assert_eq!(refused.wrong_fields(), ["body.arguments"]);
    let half = r#"{"tool_name":"add","arguments":{"n":1,"t":"\ud800"}}"#;
    let refused = service.call("POST", &path, Some(half)).await.expect(400);
    assert_eq!(refused.wrong_fields(), ["body.arguments"]);
}

#[tokio::test]
async fn a_faulty_upstream_is_told_apart() {
    let service = Service::start().await;
    let tools = vec![
        failing("broken", || {
            Error::new(ErrorKind::Upstream, "it broke").with_reason(ReasonCode::ProtocolViolation)
        }),
        failing("slow", || {
            Error::new(ErrorKind::Timeout, "it is slow").with_reason(ReasonCode::Timeout)
        }),
        failing("lost", || {
            Error::new(ErrorKind::OutcomeUnknown, "who knows").with_reason(ReasonCode::OutcomeUnknown)
        }),
        failing("large", || {
            Error::new(ErrorKind::TooLarge, "too much").with_reason(ReasonCode::ResultTooLarge)
        }),
        failing("busy", || {
            Error::new(ErrorKind::Unavailable, "busy").with_reason(ReasonCode::ServerBusy)
        }),
        failing("down", || {
            Error::new(ErrorKind::Unavailable, "down").with_reason(ReasonCode::BreakerOpen)
        }),
        failing("defect", || Error::internal("canary-of-the-inside")),
    ];
    let id = serving(&service, tools).await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    for (tool, status, reason) in [
        ("broken", 502, "protocol_violation"),
        ("slow", 504, "timeout"),
        ("lost", 502, "outcome_unknown"),
        ("large", 502, "result_too_large"),
        ("busy", 429, "server_busy"),
        ("down", 503, "breaker_open"),
        ("defect", 500, "internal"),
    ] {
        let failed = service
            .post(&path, json!({ "tool_name": tool }))
            .await
            .expect(status);
        assert_eq!(failed.reason(), reason);
        assert!(!failed.text().contains("canary"), "{}", failed.text());
    }
    // As they stand in the ledger.
    let metrics = service.send(&Request::new("GET", "/metrics")).await;
    for line in [
        r#"caliber_invocations_total{outcome="upstream_error"} 4"#,
        r#"caliber_invocations_total{outcome="timeout"} 1"#,
        r#"caliber_invocations_total{outcome="outcome_unknown"} 2"#,
    ] {
        assert!(metrics.text().contains(line), "{line}: {}", metrics.text());
    }
}

#[tokio::test]
async fn a_defect_stays_in_its_request() {
    let service = Service::start().await;
    let descriptor = json!({ "name": "defect", "inputSchema": { "type": "object" } }).to_string();
    let defect = ScriptedTool::new(&descriptor, |_| async { panic!("canary-of-the-inside") }).unwrap();
    let id = serving(&service, vec![defect]).await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    let failed = service
        .post(&path, json!({ "tool_name": "defect" }))
        .await
        .expect(500);
    assert_eq!(failed.reason(), "internal");
    assert!(failed.header("x-request-id").is_some());
    assert!(!failed.text().contains("canary"), "{}", failed.text());
    service.get("/mcp-servers").await.expect(200);
}

#[tokio::test]
async fn a_call_ends_at_the_time_that_was_asked_for() {
    let service = Service::start().await;
    let slow = ScriptedTool::echo("slow")
        .unwrap()
        .delayed(Duration::from_secs(60));
    let id = serving(&service, vec![slow]).await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    let late = service
        .post(&path, json!({ "tool_name": "slow", "timeout_ms": 100 }))
        .await
        .expect(504);
    assert_eq!(late.reason(), "timeout");
}

#[tokio::test]
async fn a_caller_that_goes_away_cancels_its_call() {
    let service = Service::start().await;
    let begun = Arc::new(Notify::new());
    let seen = Arc::clone(&begun);
    let descriptor = json!({ "name": "slow", "inputSchema": { "type": "object" } }).to_string();
    let slow = ScriptedTool::new(&descriptor, move |_| {
        seen.notify_one();
        std::future::pending()
    });
    let id = serving(&service, vec![slow.unwrap()]).await;
    let mut request = Request::new("POST", &format!("{PREFIX}/mcp-servers/{id}/invoke-tool"));
    request.token(&service.admin).json(r#"{"tool_name":"slow"}"#);
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(&request.bytes()).await.unwrap();
    tokio::time::timeout(PATIENCE, begun.notified())
        .await
        .expect("the call begins");
    drop(stream);
    let cancelled = async {
        while service.parts.gateway.calls()[0].end != Some(CallEnd::Cancelled) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, cancelled)
        .await
        .expect("the upstream hears of it");
    let recorded = async {
        loop {
            let listed = service
                .get(&format!("/mcp-servers/{id}/invocations"))
                .await
                .data();
            if listed[0]["outcome"] == "cancelled" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, recorded)
        .await
        .expect("the ledger says so");
}
