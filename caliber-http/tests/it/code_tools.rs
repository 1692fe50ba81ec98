//! Code tools over HTTP: the registry, runs, and what the sandbox enforces.

use caliber_core::principal::Scope;
use caliber_core::sandbox::{Enforcement, Guarantee, RunStatus};
use serde_json::{Value, json};

use crate::support::{PREFIX, Request, Service};

fn registration(name: &str, version: &str) -> Value {
    json!({
        "name": name, "version": version, "module_path": "reports.weekly", "callable_name": "build",
        "source_roots": ["/srv/tools"], "side_effect_level": "read", "visibility": "project",
    })
}

async fn register(service: &Service, name: &str, version: &str) -> String {
    let created = service
        .post("/tools", registration(name, version))
        .await
        .expect(201);
    let id = created.data()["tool_id"].as_str().unwrap().to_owned();
    assert_eq!(
        created.header("location"),
        Some(format!("{PREFIX}/tools/{id}").as_str())
    );
    assert_eq!(created.header("etag"), Some("\"1\""));
    id
}

#[tokio::test]
async fn a_version_is_registered_shown_changed_and_archived() {
    let service = Service::start().await;
    let id = register(&service, "weekly", "1.0").await;
    let shown = service.get(&format!("/tools/{id}")).await.expect(200);
    let tool = shown.data();
    for (field, value) in [
        ("name", json!("weekly")),
        ("version", json!("1.0.0")),
        ("registry_ref", json!("tool.weekly.v1")),
        ("runtime", json!("python")),
        ("module_path", json!("reports.weekly")),
        ("callable_name", json!("build")),
        ("source_roots", json!(["/srv/tools"])),
        ("status", json!("active")),
        ("lifecycle", json!("draft")),
        ("owner", json!("ada")),
        ("project_id", json!("default")),
    ] {
        assert_eq!(tool[field], value, "{field}: {tool}");
    }

    let path = format!("/tools/{id}");
    let changed = service
        .patch(&path, json!({ "status": "deprecated", "description": "old" }))
        .await
        .expect(200);
    assert_eq!(changed.header("etag"), Some("\"2\""));
    assert!(changed.data()["deprecated_at"].is_string());
    for (body, field) in [
        (json!({}), "body"),
        (json!({ "side_effect_level": "write" }), "side_effect_level"),
        (json!({ "status": "retired" }), "status"),
        (json!({ "successor_tool_id": "TL-1" }), "successor_tool_id"),
        (json!({ "description": null }), "description"),
    ] {
        let refused = service.patch(&path, body).await.expect(400);
        assert!(refused.text().contains(field), "{}", refused.text());
    }
    let mut stale = Request::new("PATCH", &format!("{PREFIX}{path}"));
    stale
        .token(&service.admin)
        .header("If-Match", "\"1\"")
        .json(r#"{"description": "x"}"#);
    let stale = service.send(&stale).await.expect(412);
    assert_eq!(stale.json()["reason_code"], "stale_revision");

    let archived = service
        .post(&format!("{path}/archive"), json!({}))
        .await
        .expect(200);
    assert_eq!(archived.data()["status"], "archived");
    service
        .post(&format!("{path}/archive"), json!({}))
        .await
        .expect(200);
    assert_eq!(service.get("/tools").await.expect(200).data(), json!([]));
    let all = service.get("/tools?status=all").await.expect(200);
    assert_eq!(all.data().as_array().unwrap().len(), 1);
    assert!(
        all.data()[0].get("module_path").is_none(),
        "a list shows no program"
    );
    let usage = service.get(&format!("{path}/usage")).await.expect(200);
    assert_eq!(usage.data()["usage"], json!([]));
}

#[tokio::test]
async fn versions_are_listed_and_resolved_by_constraint() {
    let service = Service::start().await;
    let mut ids = Vec::new();
    for version in ["1.0.0", "1.2.0", "2.0.0-rc.1", "1.10.0"] {
        ids.push(register(&service, "weekly", version).await);
    }
    let again = service
        .post("/tools", registration("weekly", "1.2"))
        .await
        .expect(409);
    assert_eq!(again.json()["reason_code"], "version_taken");
    let first = service
        .get(&format!("/tools/{}/versions?limit=3", ids[0]))
        .await
        .expect(200);
    let versions = |answer: &Value| -> Vec<String> {
        let versions = answer.as_array().unwrap().iter();
        versions
            .map(|tool| tool["version"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(versions(&first.data()), ["2.0.0-rc.1", "1.10.0", "1.2.0"]);
    let cursor = first.json()["next_cursor"].as_str().unwrap().to_owned();
    let rest = service
        .get(&format!("/tools/{}/versions?cursor={cursor}", ids[0]))
        .await
        .expect(200);
    assert_eq!(versions(&rest.data()), ["1.0.0"]);

    for (query, version) in [
        ("reference=weekly", "1.10.0"),
        ("reference=tool.weekly.v1&constraint=%5E1.2", "1.10.0"),
        ("reference=weekly&constraint=%3C1.10", "1.2.0"),
        ("reference=weekly&constraint=%3D%3D1.0.0", "1.0.0"),
    ] {
        let resolved = service.get(&format!("/tools/resolve?{query}")).await.expect(200);
        assert_eq!(resolved.data()["tool"]["version"], version, "{query}");
        assert_eq!(resolved.data()["warning"], Value::Null);
    }
    let deprecate = json!({ "status": "deprecated" });
    service
        .patch(&format!("/tools/{}", ids[0]), deprecate)
        .await
        .expect(200);
    let warned = service
        .get("/tools/resolve?reference=weekly&constraint=%3D%3D1.0.0")
        .await
        .expect(200);
    assert!(warned.data()["warning"]["text"].is_string(), "{}", warned.text());
    let nothing = service
        .get("/tools/resolve?reference=weekly&constraint=%3E9")
        .await
        .expect(404);
    assert_eq!(nothing.json()["reason_code"], "tool_unresolved");
    for query in [
        "",
        "reference=",
        "reference=a%20b",
        "reference=weekly&constraint=%3E%3E1",
    ] {
        service.get(&format!("/tools/resolve?{query}")).await.expect(400);
    }
}

#[tokio::test]
async fn runs_are_answers_whatever_the_tool_does() {
    let service = Service::start().await;
    let id = register(&service, "weekly", "1.0.0").await;
    let path = format!("/tools/{id}/test-run");
    let body = r#"{"input": {"n": 12345678901234567890.10}}"#;
    let ran = service.call("POST", &path, Some(body)).await.expect(200);
    assert!(ran.text().contains("12345678901234567890.10"), "{}", ran.text());
    let run = ran.data();
    assert_eq!(
        (&run["success"], &run["mocked"], &run["status"]),
        (&json!(true), &json!(false), &json!("ok"))
    );
    assert_eq!(run["isolation"], "cold");

    service.parts.sandbox.script("build", async |_| {
        Ok(RunStatus::ToolError {
            error_type: "ValueError".to_owned(),
            message: "no such week".to_owned(),
        })
    });
    let raised = service.call("POST", &path, None).await.expect(200).data();
    assert_eq!(raised["success"], false);
    assert_eq!(raised["error"], "no such week");
    assert_eq!(raised["error_type"], "ValueError");
    assert_eq!(raised["output"], Value::Null);

    for (body, field) in [
        (json!({ "input": [] }), "input"),
        (json!({ "input": null }), "input"),
        (json!({ "inputs": {} }), "inputs"),
        (json!({ "timeout_ms": 0 }), "timeout_ms"),
        (json!({ "content_hash": "x" }), "content_hash"),
        (json!({ "approval_id": "x" }), "approval_id"),
    ] {
        let refused = service.post(&path, body).await.expect(400);
        assert!(
            refused.json()["errors"][0]["loc"].to_string().contains(field),
            "{}",
            refused.text()
        );
    }
    let calls = service
        .get(&format!("/tools/{id}/invocations"))
        .await
        .expect(200)
        .data();
    assert_eq!(calls.as_array().unwrap().len(), 2);
    assert_eq!(calls[0]["family"], "weekly");
    assert_eq!(calls[0]["outcome"], "tool_error");

    service.parts.sandbox.set_report(|report| {
        let gap = Enforcement::NotEnforced {
            stage: "clone".to_owned(),
            errno: "EPERM".to_owned(),
            remedy: "allow user namespaces".to_owned(),
        };
        report.guarantees.insert(Guarantee::Net, gap);
    });
    let refused = service.call("POST", &path, None).await.expect(503);
    assert_eq!(refused.json()["reason_code"], "sandbox_unavailable");
    let report = service.get("/sandbox").await.expect(200).data();
    assert_eq!(report["available"], false);
    assert_eq!(report["missing"], json!(["net"]));
    let net = report["guarantees"]
        .as_array()
        .unwrap()
        .iter()
        .find(|guarantee| guarantee["guarantee"] == "net")
        .unwrap()
        .clone();
    assert_eq!(net["state"], "not_enforced");
    assert_eq!(net["remedy"], "allow user namespaces");
}

#[tokio::test]
async fn a_wrong_registration_names_its_fields_and_registers_nothing() {
    let service = Service::start().await;
    let with = |field: &str, value: Value| {
        let mut body = registration("weekly", "1.0.0");
        body[field] = value;
        body
    };
    for (body, field) in [
        (with("version", json!("banana")), "version"),
        (with("name", json!("tool.x")), "name"),
        (with("module_path", json!("a b")), "module_path"),
        (with("callable_name", json!("1x")), "callable_name"),
        (with("source_roots", json!(["relative"])), "source_roots"),
        (with("executable", json!("/bin/true")), "executable"),
        (with("input_schema", json!({ "type": "strange" })), "input_schema"),
        (with("side_effect_level", json!("write")), "requires_approval"),
        (with("limits", json!({ "timeout_ms": 0 })), "timeout_ms"),
        (with("secret_refs", json!({ "A B": "env://A" })), "secret_refs"),
        (with("runtime", json!("native")), "module_path"),
        (with("project_id", json!("x")), "project_id"),
    ] {
        let refused = service.post("/tools", body).await.expect(400);
        let errors = refused.json()["errors"].to_string();
        assert!(
            errors.contains(field) && !errors.contains("program"),
            "{field}: {errors}"
        );
    }
    assert_eq!(
        service.get("/tools?status=all").await.expect(200).data(),
        json!([])
    );
}

#[tokio::test]
async fn secrets_are_write_only_and_hidden_tools_are_absent() {
    let service = Service::start().await;
    let mut body = registration("weekly", "1.0.0");
    body["secret_refs"] = json!({ "TOKEN": "env://TOKEN" });
    let created = service.post("/tools", body).await.expect(201);
    assert_eq!(created.data()["secret_refs"], json!({ "TOKEN": "env://TOKEN" }));
    let id = created.data()["tool_id"].as_str().unwrap().to_owned();
    let other = service.token("bob", Some("elsewhere"), &[Scope::Admin]).await;
    let absent = "ctl_00000000000000000000000000000000";
    for rest in ["", "/source", "/usage", "/versions", "/invocations"] {
        let hidden = service
            .call_as(&other, "GET", &format!("/tools/{id}{rest}"), None)
            .await;
        let missing = service
            .call_as(&other, "GET", &format!("/tools/{absent}{rest}"), None)
            .await;
        assert_eq!((hidden.status, missing.status), (404, 404), "{rest}");
        assert_eq!(
            hidden.text().replace(&id, absent),
            missing.text(),
            "a hidden tool answers like an absent one"
        );
    }
    let viewer = service.token("vera", Some("default"), &[Scope::Viewer]).await;
    let mine = service
        .call_as(&viewer, "GET", &format!("/tools/{id}"), None)
        .await;
    assert_eq!(mine.status, 200);
    for (method, path, body) in [
        (
            "POST",
            "/tools".to_owned(),
            Some(registration("x", "1.0.0").to_string()),
        ),
        (
            "PATCH",
            format!("/tools/{id}"),
            Some(r#"{"description":"x"}"#.to_owned()),
        ),
        ("POST", format!("/tools/{id}/archive"), None),
        ("POST", format!("/tools/{id}/test-run"), None),
    ] {
        let refused = service.call_as(&viewer, method, &path, body.as_deref()).await;
        assert_eq!(refused.status, 403, "{method} {path}: {}", refused.text());
    }
    let granted = service
        .post("/grants", json!({ "family": "weekly", "subject": "vera" }))
        .await
        .expect(201);
    assert_eq!(granted.data()["family"], "weekly");
    for body in [
        json!({ "subject": "vera" }),
        json!({ "family": "weekly", "server_id": "srv_00000000000000000000000000000000", "subject": "vera" }),
        json!({ "family": "weekly", "tool_name": "x", "subject": "vera" }),
    ] {
        service.post("/grants", body).await.expect(400);
    }
    let source = service
        .get(&format!("/tools/{id}/source"))
        .await
        .expect(200)
        .data();
    assert_eq!(source["available"], true);
    assert_eq!(source["callable_name"], "build");
}

#[tokio::test]
async fn a_native_tool_speaks_json_unless_it_says_otherwise() {
    let service = Service::start().await;
    let body = json!({
        "name": "double", "version": "1.0.0", "runtime": "native", "executable": "/srv/tools/double",
        "side_effect_level": "read"
    });
    let created = service.post("/tools", body).await.expect(201);
    assert_eq!(created.data()["protocol"], "json");
}
