//! Discovery, inventory, classification, drift.

use caliber_core::memory::{ScriptedServer, ScriptedTool};
use caliber_core::principal::Scope;
use serde_json::json;

use crate::support::{Service, read_policy, remote, tool};

const ANNOTATED: &str = r#"{"name":"forecast","title":"Forecast","description":"says","annotations":{"readOnlyHint":true},
    "inputSchema":{"type":"object","properties":{"n":{"const":1.10}}},"outputSchema":{"type":"object"},"_meta":{"x":1e400}}"#;

fn annotated() -> ScriptedTool {
    ScriptedTool::new(ANNOTATED, |_| async {
        Ok(caliber_core::json::JsonText::empty_object())
    })
    .unwrap()
}

#[tokio::test]
async fn discovered_tools_are_listed_and_closed() {
    let service = Service::start().await;
    let id = service.register(remote("weather")).await;
    let before = service
        .get(&format!("/mcp-servers/{id}/tools"))
        .await
        .expect(200)
        .data();
    assert_eq!(
        (&before["tools"], &before["discovered_at"]),
        (&json!([]), &json!(null))
    );
    let name = "weather".parse().unwrap();
    let upstream =
        ScriptedServer::new([ScriptedTool::echo("echo").unwrap(), annotated()]).withholding("bad", "broken");
    service.parts.gateway.serve(&name, upstream);
    let found = service
        .call("POST", &format!("/mcp-servers/{id}/discover-tools"), None)
        .await
        .expect(200)
        .data();
    assert_eq!(found["server_id"], json!(id));
    assert_eq!(found["tool_count"], 2);
    assert_eq!(found["added"], json!(["echo", "forecast"]));
    assert_eq!((&found["removed"], &found["drifted"]), (&json!([]), &json!([])));
    assert_eq!(found["withheld"], json!([{ "name": "bad", "reason": "broken" }]));
    assert_eq!(found["tools"].as_array().unwrap().len(), 2);

    let listed = service
        .get(&format!("/mcp-servers/{id}/tools?limit=1"))
        .await
        .expect(200)
        .json();
    assert_eq!(listed["data"]["tool_count"], 2);
    assert_eq!(listed["data"]["tools"][0]["name"], "echo");
    let cursor = listed["next_cursor"].as_str().unwrap();
    let rest = service
        .get(&format!("/mcp-servers/{id}/tools?cursor={cursor}"))
        .await
        .expect(200)
        .json();
    assert_eq!(rest["next_cursor"], json!(null));
    let forecast = &rest["data"]["tools"][0];
    assert_eq!(forecast["name"], "forecast");
    assert_eq!(forecast["title"], "Forecast");
    assert_eq!(forecast["description"], "says");
    assert_eq!(forecast["annotations"], json!({ "readOnlyHint": true }));
    assert_eq!(forecast["state"], "unclassified");
    assert_eq!(forecast["classified"], false);
    let closed = json!({
        "allowed": false, "side_effect_level": null, "requires_approval": null, "rate_limit_per_minute": null
    });
    assert_eq!(forecast["policy"], closed);
    assert_eq!(forecast["classification"], json!(null));
    assert!(forecast.get("descriptor").is_none());

    // What the server said is passed on digit by digit.
    let whole = service
        .get(&format!("/mcp-servers/{id}/tools/forecast"))
        .await
        .expect(200);
    assert!(
        whole.text().contains(r#""_meta":{"x":1e400}"#),
        "{}",
        whole.text()
    );
    assert!(whole.text().contains(r#"{"const":1.10}"#));
    service
        .get(&format!("/mcp-servers/{id}/tools/absent"))
        .await
        .expect(404);
    service
        .get(&format!("/mcp-servers/{id}/tools/a%20b"))
        .await
        .expect(404);
    service
        .get(&format!("/mcp-servers/{id}/tools/%FF"))
        .await
        .expect(404);
}

#[tokio::test]
async fn a_tool_is_classified_whole_and_for_what_was_seen() {
    let service = Service::start().await;
    let id = service.echo_server("weather").await;
    let path = format!("/mcp-servers/{id}/tools/echo/policy");
    for missing in ["allowed", "side_effect_level", "requires_approval"] {
        let mut policy = read_policy();
        policy.as_object_mut().unwrap().remove(missing);
        let refused = service.patch(&path, policy).await.expect(400);
        assert_eq!(refused.wrong_fields(), [format!("body.{missing}")]);
    }
    let mut policy = json!({ "allowed": true, "side_effect_level": "write", "requires_approval": false });
    let refused = service.patch(&path, policy.clone()).await.expect(400);
    assert_eq!(refused.wrong_fields(), ["body.requires_approval"]);
    policy["approval_waiver"] = json!("a scratch database");
    policy["rate_limit_per_minute"] = json!(60);
    policy["descriptor_digest"] = json!(format!("sha256:{}", "0".repeat(64)));
    let refused = service.patch(&path, policy.clone()).await.expect(409);
    assert_eq!(refused.reason(), "stale_revision");
    let seen =
        service.get(&format!("/mcp-servers/{id}/tools/echo")).await.data()["descriptor_digest"].clone();
    policy["descriptor_digest"] = seen.clone();
    let decided = service.patch(&path, policy).await.expect(200).data();
    assert_eq!(decided["tool_name"], "echo");
    assert_eq!(decided["revision"], 2);
    assert_eq!(decided["descriptor_digest"], seen);
    assert_eq!(decided["classified_by"], "ada");
    assert_eq!(
        decided["policy"],
        json!({
            "allowed": true, "side_effect_level": "write", "requires_approval": false,
            "approval_waiver": "a scratch database", "rate_limit_per_minute": 60, "replay_safe": false,
        })
    );
    let shown = service.get(&format!("/mcp-servers/{id}/tools/echo")).await.data();
    assert_eq!(shown["policy"]["rate_limit_per_minute"], 60);
    assert_eq!(shown["classification"]["revision"], 2);

    service
        .patch(&format!("/mcp-servers/{id}/tools/absent/policy"), read_policy())
        .await
        .expect(404);
    service.delete(&path).await.expect(204);
    service.delete(&path).await.expect(404);
    assert_eq!(
        service.get(&format!("/mcp-servers/{id}/tools/echo")).await.data()["state"],
        "unclassified"
    );
}

#[tokio::test]
async fn a_change_of_the_tool_shows_as_a_difference() {
    let service = Service::start().await;
    let id = service.echo_server("weather").await;
    let diff = format!("/mcp-servers/{id}/tools/echo/diff");
    let before = service.get(&diff).await.expect(200).data();
    assert_eq!(before["state"], "classified");
    assert_eq!(before["classified_digest"], before["current_digest"]);
    service.upstream(
        "weather",
        [ScriptedTool::echo("echo")
            .unwrap()
            .described("sends everything away")
            .unwrap()],
    );
    let found = service
        .post(&format!("/mcp-servers/{id}/discover-tools"), json!({}))
        .await
        .expect(200)
        .data();
    assert_eq!(found["drifted"], json!(["echo"]));
    let after = service.get(&diff).await.expect(200).data();
    assert_eq!(after["state"], "drifted");
    assert_ne!(after["classified_digest"], after["current_digest"]);
    assert_eq!(after["place_changed"], false);
    let lines = after["lines"].as_array().unwrap();
    assert!(
        lines
            .iter()
            .any(|line| line == "+  \"description\": \"sends everything away\","),
        "{lines:?}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line == "-  \"description\": \"Answers with its arguments.\","),
        "{lines:?}"
    );
    let shown = service.get(&format!("/mcp-servers/{id}/tools/echo")).await.data();
    assert_eq!(
        (&shown["classified"], &shown["policy"]["allowed"]),
        (&json!(false), &json!(false))
    );
    assert!(shown["classification"]["drifted_at"].is_string());

    service
        .patch(
            &format!("/mcp-servers/{id}"),
            json!({ "uri": "http://127.0.0.1:9/elsewhere" }),
        )
        .await
        .expect(200);
    assert_eq!(service.get(&diff).await.data()["place_changed"], true);
    service
        .get(&format!("/mcp-servers/{id}/tools/absent/diff"))
        .await
        .expect(404);
}

#[tokio::test]
async fn a_discovery_that_fails_is_a_bad_gateway() {
    let service = Service::start().await;
    let id = service.register(remote("weather")).await;
    let name = "weather".parse().unwrap();
    service
        .parts
        .gateway
        .serve(&name, ScriptedServer::default().failing("nobody is at home"));
    let failed = service
        .post(&format!("/mcp-servers/{id}/discover-tools"), json!({}))
        .await
        .expect(502);
    assert_eq!(failed.reason(), "connect_failed");
    assert_eq!(failed.json()["detail"], "nobody is at home");
}

#[tokio::test]
async fn only_admins_discover_and_classify() {
    let service = Service::start().await;
    let id = service.echo_server("weather").await;
    let operator = service
        .token("olga", Some("default"), &[Scope::Operator, Scope::Approver])
        .await;
    let policy = read_policy().to_string();
    let server = format!("/mcp-servers/{id}");
    for (method, path, body) in [
        ("POST", format!("{server}/discover-tools"), None),
        ("POST", format!("{server}/test-connection"), None),
        (
            "PATCH",
            format!("{server}/tools/echo/policy"),
            Some(policy.as_str()),
        ),
        ("DELETE", format!("{server}/tools/echo/policy"), None),
        ("PATCH", server.clone(), Some(r#"{"description":"x"}"#)),
        ("DELETE", server.clone(), None),
    ] {
        let refused = service.call_as(&operator, method, &path, body).await.expect(403);
        assert_eq!(refused.reason(), "forbidden", "{method} {path}");
        assert!(refused.json()["detail"].as_str().unwrap().contains("admin"));
    }
    service
        .call_as(&operator, "GET", &format!("{server}/tools"), None)
        .await
        .expect(200);
    service
        .call_as(
            &operator,
            "GET",
            &format!("{server}/tools/{}/diff", tool("echo")),
            None,
        )
        .await
        .expect(200);
}
