//! Canaries in every place that takes a secret: they come back nowhere.

use serde_json::{Value, json};

use crate::support::{PREFIX, Request, Service};

struct Watch<'a> {
    service: &'a Service,
    canaries: Vec<&'static str>,
}

impl Watch<'_> {
    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let text = body.map(|body| body.to_string());
        let answer = self.service.call(method, path, text.as_deref()).await;
        let raw = String::from_utf8_lossy(&answer.raw).into_owned();
        for canary in &self.canaries {
            assert!(
                !raw.contains(canary),
                "{canary} came back from {method} {path}: {raw}"
            );
        }
        if answer.body.is_empty() {
            Value::Null
        } else {
            answer.json()
        }
    }
}

#[tokio::test]
async fn secrets_come_back_nowhere() {
    let service = Service::start().await;
    let watch = Watch {
        service: &service,
        canaries: vec![
            "canary-env",
            "canary-header",
            "canary-token",
            "canary-password",
            "canary-custom",
            "canary-userinfo",
            "canary-restored",
            "canary-new",
            "canary-wrong-type",
            "canary-wrong-place",
        ],
    };
    let remote =
        |name: &str| json!({ "name": name, "transport": "streamable-http", "uri": "https://x.example/mcp" });
    let with = |mut base: Value, extra: Value| {
        base.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        base
    };
    let definitions = [
        json!({ "name": "a", "command": "a", "env": { "KEY": "canary-env" } }),
        with(remote("b"), json!({ "headers": { "X-Key": "canary-header" } })),
        with(
            remote("c"),
            json!({ "auth_type": "token", "auth_config": { "token": "canary-token" } }),
        ),
        with(
            remote("d"),
            json!({ "auth_type": "basic", "auth_config": { "username": "u", "password": "canary-password" } }),
        ),
        with(
            remote("e"),
            json!({ "auth_type": "custom", "auth_config": { "headers": { "X": "canary-custom" } } }),
        ),
    ];
    for definition in &definitions {
        let created = watch.call("POST", "/mcp-servers", Some(definition.clone())).await;
        let id = created["data"]["server_id"]
            .as_str()
            .unwrap_or_else(|| panic!("{created}"))
            .to_owned();
        let path = format!("/mcp-servers/{id}");
        watch.call("POST", "/mcp-servers", Some(definition.clone())).await;
        watch
            .call("POST", "/mcp-servers/check", Some(definition.clone()))
            .await;
        for (method, suffix, body) in [
            ("GET", "", None),
            ("POST", "/test-connection", None),
            ("POST", "/discover-tools", None),
            ("GET", "/tools", None),
            ("POST", "/invoke-tool", Some(json!({ "tool_name": "x" }))),
            (
                "PATCH",
                "",
                Some(json!({ "uri": "https://elsewhere.example/mcp" })),
            ),
            ("PATCH", "", Some(json!({ "description": "changed" }))),
            ("GET", "/history", None),
        ] {
            watch.call(method, &format!("{path}{suffix}"), body).await;
        }
        watch.call("DELETE", &path, None).await;
        let history = watch.call("GET", &format!("{path}/history"), None).await;
        let audit_id = history["data"][0]["audit_id"].clone();
        let secrets = json!({ "nowhere": "canary-restored" });
        watch
            .call(
                "POST",
                "/mcp-servers/restore",
                Some(json!({ "audit_id": audit_id, "secrets": secrets })),
            )
            .await;
    }
    assert!(service.get("/audit").await.text().contains("delete_mcp_server"));

    let wrong = [
        with(
            remote("f"),
            json!({ "uri": "https://user:canary-userinfo@x.example/mcp" }),
        ),
        with(remote("f"), json!({ "headers": "canary-wrong-type" })),
        with(remote("f"), json!({ "headers": ["canary-wrong-type"] })),
        with(
            remote("f"),
            json!({ "headers": { "X": { "v": "canary-wrong-type" } } }),
        ),
        with(
            remote("f"),
            json!({ "headers": { "X": "canary-header\r\nY: z" } }),
        ),
        with(remote("f"), json!({ "auth_config": "canary-wrong-type" })),
        with(
            remote("f"),
            json!({ "auth_config": { "token": ["canary-wrong-type"] } }),
        ),
        with(
            remote("f"),
            json!({ "auth_config": { "token": "canary-wrong-place" } }),
        ),
        with(
            remote("f"),
            json!({ "auth_type": "oauth", "auth_config": { "token": "canary-token" } }),
        ),
        with(remote("f"), json!({ "env": { "KEY": "canary-wrong-place" } })),
        json!({ "name": "f", "command": "f", "env": { "K": "canary-env\u{0}" } }),
        json!({ "name": "f", "command": "f", "headers": { "K": "canary-wrong-place" } }),
    ];
    for body in wrong {
        for path in ["/mcp-servers", "/mcp-servers/check"] {
            let refused = watch.call("POST", path, Some(body.clone())).await;
            assert_eq!(refused["status"], 400, "{body}: {refused}");
        }
    }
    watch.call("GET", "/audit?limit=500", None).await;
    watch.call("GET", "/mcp-servers", None).await;
    let metrics = service.send(&Request::new("GET", "/metrics")).await;
    assert!(!metrics.text().contains("canary"));
}

#[tokio::test]
async fn a_token_text_comes_once() {
    let service = Service::start().await;
    let made = service
        .post("/tokens", json!({ "subject": "bot", "scopes": ["admin"] }))
        .await
        .expect(201)
        .data();
    let text = made["token"].as_str().unwrap();
    for path in ["/tokens", "/audit", "/mcp-servers", "/grants"] {
        let mut request = Request::new("GET", &format!("{PREFIX}{path}"));
        let answer = service.send(request.token(text)).await.expect(200);
        assert!(!answer.text().contains(text), "{path}");
    }
}
