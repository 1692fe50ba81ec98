//! Every field of every body, in every wrong way: a 400 that names it, and nothing is half-written.

use serde_json::{Value, json};

use crate::support::{PREFIX, Request, Service, remote};

/// A body that is accepted, its required fields, and values that each field must not take.
struct Body {
    method: &'static str,
    path: String,
    valid: Value,
    required: &'static [&'static str],
    wrong: Vec<(&'static str, Value)>,
}

fn wrong_types(value: &Value) -> Vec<Value> {
    let all = [
        json!(null),
        json!(true),
        json!(7),
        json!(-7),
        json!(1.5),
        json!("text"),
        json!([7]),
        json!({ "k": 7 }),
    ];
    let whole = |value: &Value| value.is_u64();
    all.into_iter()
        .filter(|other| match value {
            Value::Null => false,
            Value::Bool(_) => !other.is_boolean(),
            Value::Number(_) => !whole(other),
            Value::String(_) => !other.is_string(),
            Value::Array(_) => !other.is_array() || *other == json!([7]),
            Value::Object(_) => !other.is_object(),
        })
        .collect()
}

async fn bodies(service: &Service) -> Vec<Body> {
    let id = service.echo_server("subject").await;
    let server = format!("/mcp-servers/{id}");
    let long = |length: usize| json!("x".repeat(length));
    let definition = || {
        vec![
            ("name", json!("")),
            ("name", json!("a_b")),
            ("name", json!("code")),
            ("name", json!("a\u{202e}b")),
            ("name", long(49)),
            ("description", long(2_049)),
            ("icon", long(65)),
            ("transport", json!("smoke")),
            ("uri", long(1_025)),
            ("uri", json!("ftp://x.example")),
            ("uri", json!("https://u:p@x.example")),
            ("uri", json!("https://x.example/#f")),
            ("uri", json!("https://x.example/\u{0}")),
            ("headers", json!({ "X": 7 })),
            ("headers", json!({ "Host": "x" })),
            ("headers", json!({ "A B": "x" })),
            ("auth_type", json!("oauth")),
            ("auth_type", json!("magic")),
            ("auth_config", json!({ "headers": {} })),
            ("auth_config", json!({ "token": "x", "more": "y" })),
            ("sharing", json!("sometimes")),
            ("visibility", json!("secret")),
            ("limits", json!({ "timeout_ms": 0 })),
            ("limits", json!({ "concurrency": 1_025 })),
            ("limits", json!({ "result_bytes": 67_108_865 })),
            ("limits", json!({ "timeout_ms": null })),
            ("limits", json!({ "more": 1 })),
            ("limits", json!([1])),
        ]
    };
    let remote_definition = |name: &str| {
        json!({
            "name": name, "description": "d", "icon": "i", "transport": "streamable-http",
            "uri": "https://x.example/mcp", "headers": { "X": "1" }, "auth_type": "token",
            "auth_config": { "token": "t" }, "sharing": "shared", "visibility": "user", "limits": { "timeout_ms": 5 },
        })
    };
    let stdio = |name: &str| json!({ "name": name, "command": "c", "args": ["a"], "env": { "K": "v" } });
    let of_stdio = || {
        vec![
            ("command", json!("")),
            ("command", long(1_025)),
            ("command", json!("a\u{0}")),
            ("args", json!(vec!["a"; 65])),
            ("args", json!(["x".repeat(1_025)])),
            ("args", json!(["a", null])),
            ("args", json!(["\u{0}"])),
            ("env", json!({ "1A": "x" })),
            ("env", json!({ " LD_PRELOAD": "x" })),
            ("env", json!({ "A": null })),
            ("env", json!({ "A": 7 })),
            ("env", json!({ "A": "x".repeat(65_537) })),
        ]
    };
    let mut patch = remote_definition("x");
    patch.as_object_mut().unwrap().remove("name");
    patch["owner"] = json!("olga");
    patch["status"] = json!("active");
    let mut of_patch = definition();
    of_patch.retain(|(field, _)| *field != "name");
    of_patch.extend([
        ("owner", json!("")),
        ("owner", long(257)),
        ("owner", json!(" a")),
        ("status", json!("error")),
        ("name", json!("renamed")),
    ]);
    vec![
        Body {
            method: "POST",
            path: "/mcp-servers".to_owned(),
            valid: remote_definition("fresh"),
            required: &["name"],
            wrong: definition(),
        },
        Body {
            method: "POST",
            path: "/mcp-servers".to_owned(),
            valid: stdio("local"),
            required: &["name", "command"],
            wrong: of_stdio(),
        },
        Body {
            method: "POST",
            path: "/mcp-servers/check".to_owned(),
            valid: remote_definition("fresh"),
            required: &["name"],
            wrong: definition(),
        },
        Body {
            method: "PATCH",
            path: server.clone(),
            valid: patch,
            required: &[],
            wrong: of_patch,
        },
        Body {
            method: "PATCH",
            path: format!("{server}/tools/echo/policy"),
            valid: json!({
                "allowed": true, "side_effect_level": "write", "requires_approval": false, "approval_waiver": "w",
                "rate_limit_per_minute": 5, "timeout_ms": 5, "result_bytes": 5, "replay_safe": true,
            }),
            required: &["allowed", "side_effect_level", "requires_approval"],
            wrong: vec![
                ("side_effect_level", json!("READ")),
                ("side_effect_level", json!("")),
                ("approval_waiver", json!(" ")),
                ("approval_waiver", long(1_001)),
                ("rate_limit_per_minute", json!(0)),
                ("rate_limit_per_minute", json!(100_001)),
                ("timeout_ms", json!(0)),
                ("timeout_ms", json!(3_600_001)),
                ("result_bytes", json!(0)),
                ("result_bytes", json!(67_108_865)),
                ("descriptor_digest", json!("sha256:1")),
                ("descriptor_digest", json!(null)),
            ],
        },
        Body {
            method: "POST",
            path: format!("{server}/invoke-tool"),
            valid: json!({ "tool_name": "absent", "arguments": {}, "timeout_ms": 5 }),
            required: &["tool_name"],
            wrong: vec![
                ("tool_name", json!("")),
                ("tool_name", long(129)),
                ("tool_name", json!("a b")),
                ("tool_name", json!("ｅcho")),
                ("arguments", json!("{}")),
                ("arguments", json!(null)),
                ("approval_id", json!("nonsense")),
                ("approval_id", json!(null)),
                ("break_glass", json!("")),
                ("break_glass", long(1_001)),
                ("timeout_ms", json!(0)),
                ("timeout_ms", json!(3_600_001)),
            ],
        },
        Body {
            method: "POST",
            path: "/mcp-servers/restore".to_owned(),
            valid: json!({ "audit_id": "aud_00000000000000000000000000000000", "secrets": { "a": "b" } }),
            required: &["audit_id"],
            wrong: vec![("secrets", json!({ "a": 7 })), ("secrets", json!(null))],
        },
        Body {
            method: "POST",
            path: "/tokens".to_owned(),
            valid: json!({
                "subject": "bot", "scopes": ["viewer"], "project_id": "alpha", "everywhere": false, "label": "l",
                "expires_at": "2999-01-01T00:00:00Z",
            }),
            required: &["subject", "scopes"],
            wrong: vec![
                ("subject", json!("")),
                ("subject", json!("a\nb")),
                ("subject", long(257)),
                ("scopes", json!([])),
                ("scopes", json!(["root"])),
                ("scopes", json!([null])),
                ("scopes", json!([{ "viewer": null }])),
                ("scopes", json!(vec!["viewer"; 17])),
                ("project_id", json!("")),
                ("project_id", json!("Alpha")),
                ("project_id", long(65)),
                ("label", long(257)),
                ("expires_at", json!("tomorrow")),
                ("expires_at", json!("2001-01-01T00:00:00Z")),
                ("expires_at", json!("2999-01-01")),
            ],
        },
        Body {
            method: "POST",
            path: "/grants".to_owned(),
            valid: json!({ "server_id": id, "tool_name": "echo", "subject": "vic" }),
            required: &["server_id", "subject"],
            wrong: vec![
                ("tool_name", json!("")),
                ("tool_name", json!("a b")),
                ("subject", json!("")),
                ("subject", json!("a\u{200b}")),
                ("scope", json!("root")),
                ("scope", json!(null)),
            ],
        },
        Body {
            method: "PUT",
            path: "/memberships".to_owned(),
            valid: json!({ "subject": "mia", "scopes": ["viewer"], "project_id": "alpha" }),
            required: &["subject", "scopes"],
            wrong: vec![
                ("subject", json!("")),
                ("scopes", json!(["root"])),
                ("scopes", json!(vec!["viewer"; 17])),
                ("project_id", json!("-")),
                ("everywhere", json!(true)),
            ],
        },
        Body {
            method: "POST",
            path: "/approvals/apr_00000000000000000000000000000000/approve".to_owned(),
            valid: json!({ "note": "n" }),
            required: &[],
            wrong: vec![],
        },
        Body {
            method: "POST",
            path: format!("{server}/test-connection"),
            valid: json!({}),
            required: &[],
            wrong: vec![],
        },
        Body {
            method: "POST",
            path: format!("{server}/discover-tools"),
            valid: json!({}),
            required: &[],
            wrong: vec![],
        },
    ]
}

#[tokio::test]
async fn each_wrong_field_is_named_and_nothing_happens() {
    let service = Service::start().await;
    let bodies = bodies(&service).await;
    let before = service
        .get("/audit?limit=500")
        .await
        .expect(200)
        .text()
        .to_owned();
    let mut tried = 0;
    for body in &bodies {
        let mut cases: Vec<(String, Value)> = Vec::new();
        let fields = body.valid.as_object().unwrap();
        for (field, value) in fields {
            for wrong in wrong_types(value) {
                let mut changed = body.valid.clone();
                changed[field] = wrong;
                cases.push((field.clone(), changed));
            }
        }
        for field in body.required {
            let mut changed = body.valid.clone();
            changed.as_object_mut().unwrap().remove(*field);
            cases.push(((*field).to_owned(), changed));
        }
        for (field, wrong) in &body.wrong {
            let mut changed = body.valid.clone();
            changed[*field] = wrong.clone();
            cases.push(((*field).to_owned(), changed));
        }
        let mut changed = body.valid.clone();
        changed["no_such_field"] = json!(1);
        cases.push(("no_such_field".to_owned(), changed));
        for (field, wrong) in cases {
            let refused = service
                .call(body.method, &body.path, Some(&wrong.to_string()))
                .await;
            let place = format!("{} {} {field}: {}", body.method, body.path, clipped(&wrong));
            assert_eq!(refused.status, 400, "{place}: {}", refused.text());
            let refused = refused.expect(400);
            let named = refused.wrong_fields();
            let path = format!("body.{field}");
            assert!(
                named.iter().any(|name| name.starts_with(&path)),
                "{place}: {}",
                refused.text()
            );
            tried += 1;
        }
    }
    assert!(tried > 500, "{tried}");
    assert_eq!(service.get("/audit?limit=500").await.text(), before);
}

fn clipped(value: &Value) -> String {
    value.to_string().chars().take(300).collect()
}

#[tokio::test]
async fn bodies_that_are_no_objects_are_named() {
    let service = Service::start().await;
    let deep = format!("{{\"name\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    let bodies = bodies(&service).await;
    for body in &bodies {
        let optional = body.valid == json!({}) || body.path.ends_with("/approve");
        for text in [
            "null",
            "[]",
            "1",
            "\"x\"",
            "true",
            "{",
            "{}x",
            "\u{feff}{}",
            "{\"a\":}",
            "nul",
            &deep,
        ] {
            let refused = service.call(body.method, &body.path, Some(text)).await;
            assert_eq!(
                refused.status,
                400,
                "{} {} {text}: {}",
                body.method,
                body.path,
                refused.text()
            );
            assert!(refused.expect(400).wrong_fields()[0].starts_with("body"));
        }
        if !optional {
            let refused = service.call(body.method, &body.path, Some("")).await.expect(400);
            assert_eq!(refused.wrong_fields(), ["body"]);
        }
        let mut request = Request::new(body.method, &format!("{PREFIX}{}", body.path));
        request
            .token(&service.admin)
            .header("Content-Type", "application/json")
            .body(b"{\"a\":\"\xff\"}");
        service.send(&request).await.expect(400);
    }
    // A whole number of levels deep, hostile in size.
    let bomb = format!("{{\"x\":{}", "[".repeat(1_000_000));
    service
        .call("POST", "/mcp-servers", Some(&bomb))
        .await
        .expect(400);
}

#[tokio::test]
async fn a_key_that_stands_there_twice_is_named() {
    let service = Service::start().await;
    let id = service.echo_server("weather").await;
    for (path, text, field) in [
        (
            "/mcp-servers".to_owned(),
            r#"{"name":"a","name":"b"}"#,
            "body.name",
        ),
        (
            "/mcp-servers".to_owned(),
            r#"{"name":"a","env":{"K":"1","\u004b":"2"}}"#,
            "body.env.K",
        ),
        (
            format!("/mcp-servers/{id}/invoke-tool"),
            r#"{"tool_name":"echo","arguments":{"a":[{"b":1,"b":2}]}}"#,
            "body.arguments.a.0.b",
        ),
    ] {
        let refused = service.call("POST", &path, Some(text)).await.expect(400);
        assert_eq!(refused.wrong_fields(), [field]);
        assert_eq!(refused.json()["errors"][0]["type"], "duplicate");
    }
    assert!(service.parts.gateway.calls().is_empty());
}

#[tokio::test]
async fn several_wrong_fields_are_named_at_once() {
    let service = Service::start().await;
    let body = json!({
        "name": "a_b", "transport": "sse", "uri": "nowhere", "command": "c", "auth_type": "basic",
        "auth_config": { "username": "a:b" }, "limits": { "timeout_ms": 0 },
    });
    let refused = service.post("/mcp-servers", body).await.expect(400);
    let mut named = refused.wrong_fields();
    named.sort();
    // What depends on a name that is no name is not looked at.
    assert_eq!(named, ["body.auth_config.password", "body.command", "body.name"]);
    let body = json!({
        "name": "ab", "transport": "sse", "uri": "nowhere", "command": "c", "auth_type": "basic",
        "auth_config": { "username": "a:b" }, "limits": { "timeout_ms": 0 },
    });
    let mut named = service
        .post("/mcp-servers", body)
        .await
        .expect(400)
        .wrong_fields();
    named.sort();
    assert_eq!(
        named,
        [
            "body.auth_config.password",
            "body.auth_config.username",
            "body.command",
            "body.limits.timeout_ms",
            "body.uri",
        ]
    );
}

#[tokio::test]
async fn oauth_is_refused_with_advice() {
    let service = Service::start().await;
    let mut body = remote("weather");
    body["auth_type"] = json!("oauth");
    let refused = service.post("/mcp-servers", body).await.expect(400);
    assert_eq!(refused.reason(), "oauth_unsupported");
    assert!(refused.json()["detail"].as_str().unwrap().contains("proxy"));
}

#[tokio::test]
async fn a_change_of_nothing_is_refused() {
    let service = Service::start().await;
    let id = service.register(remote("weather")).await;
    let refused = service
        .patch(&format!("/mcp-servers/{id}"), json!({}))
        .await
        .expect(400);
    assert_eq!(refused.wrong_fields(), ["body"]);
}
