//! Registering, reading, changing, checking, removing and restoring servers.

use caliber_core::memory::{ScriptedServer, ScriptedTool};
use caliber_core::principal::Scope;
use caliber_core::registry::DeploymentReference;
use caliber_core::secret::WRITE_ONLY;
use serde_json::json;

use crate::support::{PREFIX, Request, Service, remote};

#[tokio::test]
async fn a_server_is_registered_and_shown_flat() {
    let service = Service::start().await;
    let body = json!({
        "name": "weather",
        "description": "forecasts",
        "icon": "sun",
        "transport": "streamable-http",
        "uri": "https://weather.example.com/mcp",
        "headers": { "X-Tenant": "env://TENANT", "X-Key": "plain" },
        "auth_type": "token",
        "auth_config": { "token": "file:///run/secrets/weather" },
        "sharing": "shared",
        "visibility": "public",
        "limits": { "timeout_ms": 5000, "concurrency": 4 },
    });
    let created = service.post("/mcp-servers", body).await.expect(201);
    let server = created.data();
    let id = server["server_id"].as_str().unwrap();
    assert_eq!(
        created.header("location"),
        Some(format!("{PREFIX}/mcp-servers/{id}").as_str())
    );
    assert_eq!(created.header("etag"), Some("\"1\""));
    let mut expected = json!({
        "server_id": id,
        "revision": 1,
        "name": "weather",
        "description": "forecasts",
        "icon": "sun",
        "transport": "streamable-http",
        "uri": "https://weather.example.com/mcp",
        "command": "",
        "args": [],
        "env": {},
        "headers": { "X-Tenant": "env://TENANT", "X-Key": WRITE_ONLY },
        "auth_type": "token",
        "auth_config": { "token": "file:///run/secrets/weather" },
        "sharing": "shared",
        "limits": { "timeout_ms": 5000, "concurrency": 4 },
        "owner": "ada",
        "visibility": "public",
        "project_id": "default",
        "status": "active",
        "last_connected_at": null,
        "connection_error": null,
        "execution": {
            "ready": true,
            "transport_ready": true,
            "status_ready": true,
            "boundary": "remote_transport",
            "production_isolated": false,
            "controls": [],
            "enforced": [],
            "attested": [],
            "absent": ["remote_host_allowlist", "pinned_address", "tls"],
            "blockers": [],
            "warnings": [],
        },
        "health": { "sessions": 0, "calls": 0, "breaker_open": false, "stderr_tail": null, "dropped_messages": 0 },
        "tool_count": 0,
        "discovered_at": null,
    });
    for time in ["created_at", "updated_at"] {
        expected[time] = server[time].clone();
        assert!(server[time].as_str().unwrap().ends_with('Z'), "{server}");
    }
    assert_eq!(server, expected);
    let shown = service.get(&format!("/mcp-servers/{id}")).await.expect(200);
    assert_eq!(shown.data(), expected);
    assert_eq!(shown.header("etag"), Some("\"1\""));
    assert!(shown.header("x-request-id").is_some());
}

#[tokio::test]
async fn a_stdio_server_has_its_own_fields() {
    let service = Service::start().await;
    let body = json!({
        "name": "files",
        "command": "${PYTHON}",
        "args": ["-m", "files", ""],
        "env": { "ROOT": "/srv", "TOKEN": "${FILES_TOKEN}" },
    });
    let id = service.register(body).await;
    let server = service
        .get(&format!("/mcp-servers/{id}"))
        .await
        .expect(200)
        .data();
    assert_eq!(server["transport"], "stdio");
    assert_eq!(server["command"], "${PYTHON}");
    assert_eq!(server["args"], json!(["-m", "files", ""]));
    assert_eq!(
        server["env"],
        json!({ "ROOT": WRITE_ONLY, "TOKEN": "env://FILES_TOKEN" })
    );
    assert_eq!(server["auth_config"], json!({}));
    assert_eq!(service.parts.registry.secret_count(), 1);
}

#[tokio::test]
async fn lists_are_paged_and_filtered() {
    let service = Service::start().await;
    for name in ["one", "two", "three"] {
        service.register(remote(name)).await;
    }
    let local = service
        .register(json!({ "name": "local", "command": "local" }))
        .await;
    service
        .patch(&format!("/mcp-servers/{local}"), json!({ "status": "disabled" }))
        .await
        .expect(200);
    let failing = service.register(remote("failing")).await;
    service
        .post(&format!("/mcp-servers/{failing}/test-connection"), json!({}))
        .await
        .expect(200);

    let names = async |query: &str| -> Vec<String> {
        let listed = service.get(&format!("/mcp-servers{query}")).await.expect(200);
        let items = listed.data().as_array().unwrap().clone();
        items
            .iter()
            .map(|item| item["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("").await, ["failing", "local", "one", "three", "two"]);
    assert_eq!(names("?status=all").await.len(), 5);
    assert_eq!(names("?status=active").await, ["one", "three", "two"]);
    assert_eq!(names("?status=error").await, ["failing"]);
    assert_eq!(names("?status=disabled").await, ["local"]);
    assert_eq!(names("?transport=stdio").await, ["local"]);
    assert_eq!(names("?search=TWO").await, ["two"]);
    let local = &service.get("/mcp-servers?status=disabled").await.data()[0];
    assert_eq!(
        (&local["command"], &local["uri"], &local["status"]),
        (&json!("local"), &json!(""), &json!("disabled"))
    );
    assert!(local.get("args").is_none() && local.get("env").is_none());

    let mut seen = Vec::new();
    let mut query = "?limit=2".to_owned();
    loop {
        let page = service
            .get(&format!("/mcp-servers{query}"))
            .await
            .expect(200)
            .json();
        seen.extend(
            page["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["name"].as_str().unwrap().to_owned()),
        );
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        query = format!("?limit=2&cursor={}", urlencode(cursor));
    }
    assert_eq!(seen, ["failing", "local", "one", "three", "two"]);

    for (query, field) in [
        ("limit=0", "query.limit"),
        ("limit=501", "query.limit"),
        ("limit=%2B1", "query.limit"),
        ("limit=", "query.limit"),
        ("limit=x", "query.limit"),
        ("limit=1&limit=2", "query.limit"),
        ("status=broken", "query.status"),
        ("transport=smoke", "query.transport"),
        ("offset=1", "query.offset"),
    ] {
        let refused = service.get(&format!("/mcp-servers?{query}")).await.expect(400);
        assert_eq!(refused.wrong_fields(), [field], "{query}: {}", refused.text());
    }
}

fn urlencode(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

#[tokio::test]
async fn a_change_keeps_what_it_does_not_name() {
    let service = Service::start().await;
    let id = service
        .register(json!({
            "name": "weather",
            "transport": "streamable-http",
            "uri": "https://weather.example.com/mcp",
            "headers": { "X-Key": "secret-key", "X-Env": "env://ENV" },
            "auth_type": "basic",
            "auth_config": { "username": "ada", "password": "secret-password" },
        }))
        .await;
    let path = format!("/mcp-servers/{id}");
    assert_eq!(service.parts.registry.secret_count(), 2);

    let changed = service
        .patch(
            &path,
            json!({ "description": "new", "uri": "https://weather.example.com/v2" }),
        )
        .await;
    let changed = changed.expect(200);
    assert_eq!(changed.header("etag"), Some("\"2\""));
    let server = changed.data();
    assert_eq!(server["description"], "new");
    assert_eq!(server["uri"], "https://weather.example.com/v2");
    assert_eq!(
        server["headers"],
        json!({ "X-Key": WRITE_ONLY, "X-Env": "env://ENV" })
    );
    assert_eq!(
        server["auth_config"],
        json!({ "username": "ada", "password": WRITE_ONLY })
    );
    assert_eq!(service.parts.registry.secret_count(), 2);

    // Sent back as it was shown, it stays; left out of a whole field, it goes.
    let body = json!({ "headers": { "X-Key": WRITE_ONLY }, "auth_config": { "username": "eve", "password": WRITE_ONLY } });
    let server = service.patch(&path, body).await.expect(200).data();
    assert_eq!(server["headers"], json!({ "X-Key": WRITE_ONLY }));
    assert_eq!(server["auth_config"]["username"], "eve");
    assert_eq!(service.parts.registry.secret_count(), 2);

    let server = service
        .patch(&path, json!({ "headers": {}, "auth_type": "none" }))
        .await
        .expect(200)
        .data();
    assert_eq!(
        (&server["headers"], &server["auth_type"]),
        (&json!({}), &json!("none"))
    );
    assert_eq!(service.parts.registry.secret_count(), 0);

    // Nothing changes: no new revision.
    let same = service
        .patch(&path, json!({ "description": "new" }))
        .await
        .expect(200);
    assert_eq!(same.header("etag"), Some("\"4\""));
}

#[tokio::test]
async fn a_secret_does_not_follow_a_server_to_another_origin() {
    let service = Service::start().await;
    for header in ["secret-key", "env://KEY"] {
        let name = format!("weather-{}", header.len());
        let id = service
            .register(json!({
                "name": name,
                "transport": "streamable-http",
                "uri": "https://weather.example.com/mcp",
                "headers": { "X-Key": header },
            }))
            .await;
        let path = format!("/mcp-servers/{id}");
        let moved = service
            .patch(&path, json!({ "uri": "https://evil.example.com/mcp" }))
            .await
            .expect(409);
        assert_eq!(moved.reason(), "secret_origin_changed", "{header}");
        let body = json!({ "uri": "https://other.example.com/mcp", "headers": { "X-Key": header } });
        service.patch(&path, body).await.expect(200);
    }
}

#[tokio::test]
async fn a_server_can_change_its_kind() {
    let service = Service::start().await;
    let id = service.register(remote("weather")).await;
    let path = format!("/mcp-servers/{id}");
    let refused = service
        .patch(&path, json!({ "transport": "stdio" }))
        .await
        .expect(400);
    assert_eq!(refused.wrong_fields(), ["body.command"]);
    let server = service
        .patch(&path, json!({ "transport": "stdio", "command": "weather" }))
        .await
        .expect(200)
        .data();
    assert_eq!(
        (&server["command"], &server["uri"]),
        (&json!("weather"), &json!(""))
    );
    let refused = service
        .patch(&path, json!({ "uri": "https://weather.example.com" }))
        .await
        .expect(400);
    assert_eq!(refused.wrong_fields(), ["body.uri"]);
    service
        .patch(
            &path,
            json!({ "transport": "sse", "uri": "https://weather.example.com" }),
        )
        .await
        .expect(200);
}

#[tokio::test]
async fn changes_can_be_made_conditional() {
    let service = Service::start().await;
    let id = service.register(remote("weather")).await;
    let target = format!("{PREFIX}/mcp-servers/{id}");
    let conditional = async |method: &str, tag: &str, body: Option<&str>| {
        let mut request = Request::new(method, &target);
        request.token(&service.admin).header("If-Match", tag);
        if let Some(body) = body {
            request.json(body);
        }
        service.send(&request).await
    };
    let body = Some(r#"{"description":"x"}"#);
    let stale = conditional("PATCH", "\"7\"", body).await.expect(412);
    assert_eq!(stale.reason(), "stale_revision");
    conditional("PATCH", "W/\"1\"", body).await.expect(412);
    let malformed = conditional("PATCH", "1", body).await.expect(400);
    assert_eq!(malformed.wrong_fields(), ["header.if-match"]);
    assert_eq!(
        conditional("PATCH", "\"1\"", body)
            .await
            .expect(200)
            .header("etag"),
        Some("\"2\"")
    );
    conditional("PATCH", "\"1\"", body).await.expect(412);
    conditional("PATCH", "\"1\", \"2\"", Some(r#"{"description":"y"}"#))
        .await
        .expect(200);
    conditional("PATCH", "*", Some(r#"{"description":"z"}"#))
        .await
        .expect(200);
    conditional("DELETE", "\"1\"", None).await.expect(412);
    conditional("DELETE", "\"4\"", None).await.expect(204);
    conditional("DELETE", "\"4\"", None).await.expect(404);
}

#[tokio::test]
async fn a_name_is_taken_once() {
    let service = Service::start().await;
    service.register(remote("weather")).await;
    assert_eq!(
        service
            .post("/mcp-servers", remote("weather"))
            .await
            .expect(409)
            .reason(),
        "name_taken"
    );
}

#[tokio::test]
async fn a_needed_server_stays_and_a_removed_one_can_be_restored() {
    let service = Service::start().await;
    let id = service
        .register(json!({
            "name": "weather",
            "transport": "sse",
            "uri": "https://weather.example.com/sse",
            "auth_type": "token",
            "auth_config": { "token": "secret-token" },
        }))
        .await;
    let path = format!("/mcp-servers/{id}");
    let server_id = id.parse().unwrap();
    service.parts.registry.add_deployment(
        &server_id,
        DeploymentReference {
            workflow: "triage".into(),
            alias: "prod".into(),
            rollback_only: false,
        },
    );
    let refused = service.delete(&path).await.expect(409);
    assert_eq!(refused.reason(), "in_use");
    assert!(refused.json()["detail"].as_str().unwrap().contains("prod@triage"));
    service.parts.registry.clear_deployments(&server_id);
    service.delete(&path).await.expect(204);
    service.get(&path).await.expect(404);
    service.delete(&path).await.expect(404);

    let history = service.get(&format!("{path}/history")).await.expect(200).data();
    let removal = &history[0];
    assert_eq!(removal["action"], "delete_mcp_server");
    assert_eq!(removal["actor"], "ada");
    assert_eq!(removal["surface"], "http");
    assert_eq!(removal["identity"], "token");
    assert!(removal["token_id"].as_str().unwrap().starts_with("tok_"));
    let audit_id = removal["audit_id"].clone();

    let missing = service
        .post("/mcp-servers/restore", json!({ "audit_id": audit_id }))
        .await
        .expect(400);
    assert_eq!(missing.wrong_fields(), ["body.auth_config.token"]);
    let body = json!({ "audit_id": audit_id, "secrets": { "env.NO": "x", "auth_config.token": "again" } });
    let unknown = service.post("/mcp-servers/restore", body).await.expect(400);
    assert_eq!(unknown.wrong_fields(), ["body.secrets.env.NO"]);
    let body = json!({ "audit_id": audit_id, "secrets": { "auth_config.token": "again" } });
    let restored = service
        .post("/mcp-servers/restore", body.clone())
        .await
        .expect(201)
        .data();
    assert_eq!(restored["name"], "weather");
    assert_eq!(restored["transport"], "sse");
    assert_ne!(restored["server_id"], json!(id));
    assert_eq!(
        service
            .post("/mcp-servers/restore", body)
            .await
            .expect(409)
            .reason(),
        "name_taken"
    );
    for absent in ["aud_00000000000000000000000000000000", "nonsense"] {
        service
            .post("/mcp-servers/restore", json!({ "audit_id": absent }))
            .await
            .expect(404);
    }
}

#[tokio::test]
async fn a_check_says_how_it_went_and_is_never_an_error() {
    let service = Service::start().await;
    service.upstream("weather", [ScriptedTool::echo("echo").unwrap()]);
    let id = service.register(remote("weather")).await;
    let path = format!("/mcp-servers/{id}/test-connection");
    let good = service.post(&path, json!({})).await.expect(200).data();
    assert_eq!(good["success"], true);
    assert_eq!(good["tools"], json!(["echo"]));
    assert_eq!(good["server_id"], json!(id));
    assert_eq!(good["error"], json!(null));
    assert_eq!(good["protocol_version"], "2025-11-25");

    let name = "weather".parse().unwrap();
    service
        .parts
        .gateway
        .serve(&name, ScriptedServer::default().failing("nobody is at home"));
    let bad = service.call("POST", &path, None).await.expect(200).data();
    assert_eq!(bad["success"], false);
    assert_eq!(bad["reason_code"], "connect_failed");
    assert_eq!(bad["error"], "nobody is at home");
    assert_eq!(bad["tools"], json!([]));
    let server = service.get(&format!("/mcp-servers/{id}")).await.data();
    assert_eq!(server["status"], "error");
    assert_eq!(server["connection_error"], "nobody is at home");
    assert!(server["last_connected_at"].is_string());
    // A failed check does not switch the server off.
    assert_eq!(server["execution"]["status_ready"], true);

    let refused = service.post(&path, json!({ "now": true })).await.expect(400);
    assert_eq!(refused.wrong_fields(), ["body.now"]);
}

#[tokio::test]
async fn a_definition_can_be_checked_without_being_registered() {
    let service = Service::start().await;
    service.upstream("trial", [ScriptedTool::echo("echo").unwrap()]);
    let good = service
        .post("/mcp-servers/check", remote("trial"))
        .await
        .expect(200)
        .data();
    assert_eq!(
        (&good["success"], &good["server_id"]),
        (&json!(true), &json!(null))
    );
    let bad = service
        .post("/mcp-servers/check", remote("nowhere"))
        .await
        .expect(200)
        .data();
    assert_eq!(bad["success"], false);
    assert!(bad["reason_code"].is_string());
    let body = json!({ "name": "trial", "transport": "sse", "uri": "https://x.example", "headers": { "A": WRITE_ONLY } });
    let refused = service.post("/mcp-servers/check", body).await.expect(400);
    assert_eq!(refused.wrong_fields(), ["body.headers.A"]);
    assert_eq!(service.get("/mcp-servers").await.data(), json!([]));
    let viewer = service.token("vic", Some("default"), &[Scope::Operator]).await;
    let body = remote("trial").to_string();
    service
        .call_as(&viewer, "POST", "/mcp-servers/check", Some(&body))
        .await
        .expect(403);
}

#[tokio::test]
async fn a_disabled_server_says_so() {
    let service = Service::start().await;
    let id = service.echo_server("weather").await;
    let path = format!("/mcp-servers/{id}");
    let server = service
        .patch(&path, json!({ "status": "disabled" }))
        .await
        .expect(200)
        .data();
    assert_eq!(server["status"], "disabled");
    assert_eq!(server["execution"]["ready"], false);
    assert_eq!(server["execution"]["transport_ready"], true);
    let refused = service
        .patch(&path, json!({ "status": "error" }))
        .await
        .expect(400);
    assert_eq!(refused.wrong_fields(), ["body.status"]);
    let server = service
        .patch(&path, json!({ "status": "active" }))
        .await
        .expect(200)
        .data();
    assert_eq!(server["status"], "active");
}
