//! Consent to single calls.

use caliber_core::memory::ScriptedTool;
use caliber_core::principal::Scope;
use serde_json::json;

use crate::support::{Service, remote};

/// A server whose tool needs consent, and the token of somebody who may call it.
async fn guarded(service: &Service) -> (String, String) {
    service.upstream("mail", [ScriptedTool::echo("send").unwrap()]);
    let id = service.register(remote("mail")).await;
    service
        .post(&format!("/mcp-servers/{id}/discover-tools"), json!({}))
        .await
        .expect(200);
    let policy =
        json!({ "allowed": true, "side_effect_level": "external_action", "requires_approval": true });
    service
        .patch(&format!("/mcp-servers/{id}/tools/send/policy"), policy)
        .await
        .expect(200);
    service
        .post("/grants", json!({ "server_id": id, "scope": "operator" }))
        .await
        .expect(201);
    let caller = service.token("olga", Some("default"), &[Scope::Operator]).await;
    (id, caller)
}

#[tokio::test]
async fn a_call_waits_for_somebody_else_and_passes_once() {
    let service = Service::start().await;
    let (id, caller) = guarded(&service).await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    let body = r#"{"tool_name":"send","arguments":{"n":1.10}}"#;
    let asked = service
        .call_as(&caller, "POST", &path, Some(body))
        .await
        .expect(409);
    assert_eq!(asked.reason(), "approval_required");
    let approval = asked.json()["approval_id"].as_str().unwrap().to_owned();
    let with_approval =
        format!(r#"{{"tool_name":"send","arguments":{{"n":1.10}},"approval_id":"{approval}"}}"#);
    let early = service
        .call_as(&caller, "POST", &path, Some(&with_approval))
        .await
        .expect(409);
    assert_eq!(early.reason(), "approval_required");

    let shown = service.get(&format!("/approvals/{approval}")).await.expect(200);
    assert!(
        shown.text().contains(r#""arguments":{"n":1.10}"#),
        "{}",
        shown.text()
    );
    let shown = shown.data();
    assert_eq!(
        (&shown["state"], &shown["requested_by"]),
        (&json!("pending"), &json!("olga"))
    );
    assert_eq!(shown["decided_by"], json!(null));
    assert_eq!(
        service.get("/approvals?state=pending").await.expect(200).data(),
        json!([shown])
    );

    let approve = format!("/approvals/{approval}/approve");
    service.call_as(&caller, "POST", &approve, None).await.expect(403);
    let own = service.token("olga", Some("default"), &[Scope::Approver]).await;
    service.call_as(&own, "POST", &approve, None).await.expect(403);
    let approver = service.token("piet", Some("default"), &[Scope::Approver]).await;
    let decided = service
        .call_as(&approver, "POST", &approve, Some(r#"{"note":"fine"}"#))
        .await
        .expect(200)
        .data();
    assert_eq!(decided["state"], "approved");
    assert_eq!(
        (&decided["decided_by"], &decided["note"]),
        (&json!("piet"), &json!("fine"))
    );
    service
        .call_as(&approver, "POST", &format!("/approvals/{approval}/refuse"), None)
        .await
        .expect(409);

    let other = with_approval.replace("1.10", "2");
    let refused = service
        .call_as(&caller, "POST", &path, Some(&other))
        .await
        .expect(409);
    assert_eq!(refused.reason(), "approval_invalid");
    let called = service
        .call_as(&caller, "POST", &path, Some(&with_approval))
        .await
        .expect(200)
        .data();
    let spent = service.get(&format!("/approvals/{approval}")).await.data();
    assert_eq!(
        (&spent["state"], &spent["invocation_id"]),
        (&json!("spent"), &called["invocation_id"])
    );
    let again = service
        .call_as(&caller, "POST", &path, Some(&with_approval))
        .await
        .expect(409);
    assert_eq!(again.reason(), "approval_invalid");
    assert_eq!(service.parts.gateway.calls().len(), 1);
    assert_eq!(service.get("/approvals?state=pending").await.data(), json!([]));
}

#[tokio::test]
async fn a_refused_call_does_not_pass() {
    let service = Service::start().await;
    let (id, caller) = guarded(&service).await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    let asked = service
        .call_as(&caller, "POST", &path, Some(r#"{"tool_name":"send"}"#))
        .await
        .expect(409);
    let approval = asked.json()["approval_id"].as_str().unwrap().to_owned();
    let refused = service
        .post(&format!("/approvals/{approval}/refuse"), json!({}))
        .await
        .expect(200)
        .data();
    assert_eq!(refused["state"], "refused");
    let body = json!({ "tool_name": "send", "approval_id": approval }).to_string();
    service
        .call_as(&caller, "POST", &path, Some(&body))
        .await
        .expect(409);
    assert!(service.parts.gateway.calls().is_empty());
}

#[tokio::test]
async fn strangers_see_no_request() {
    let service = Service::start().await;
    let (id, caller) = guarded(&service).await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    let asked = service
        .call_as(&caller, "POST", &path, Some(r#"{"tool_name":"send"}"#))
        .await
        .expect(409);
    let approval = asked.json()["approval_id"].as_str().unwrap().to_owned();
    let stranger = service.token("vic", Some("default"), &[Scope::Operator]).await;
    let elsewhere = service.token("eve", Some("other"), &[Scope::Admin]).await;
    for token in [&stranger, &elsewhere] {
        let hidden = service
            .call_as(token, "GET", &format!("/approvals/{approval}"), None)
            .await
            .expect(404);
        let absent = "apr_00000000000000000000000000000000";
        let gone = service
            .call_as(token, "GET", &format!("/approvals/{absent}"), None)
            .await
            .expect(404);
        assert_eq!(hidden.text().replace(&approval, absent), gone.text());
        let none = service
            .call_as(token, "GET", "/approvals", None)
            .await
            .expect(200)
            .data();
        assert_eq!(none, json!([]));
        service
            .call_as(token, "POST", &format!("/approvals/{approval}/approve"), None)
            .await
            .expect(404);
    }
    service.get("/approvals/nonsense").await.expect(404);
    assert_eq!(
        service
            .get("/approvals?state=lost")
            .await
            .expect(400)
            .wrong_fields(),
        ["query.state"]
    );
}

#[tokio::test]
async fn an_admin_may_break_the_glass_and_it_is_written_down() {
    let service = Service::start().await;
    let (id, caller) = guarded(&service).await;
    let path = format!("/mcp-servers/{id}/invoke-tool");
    let body = json!({ "tool_name": "send", "break_glass": "the house is on fire" });
    service
        .call_as(&caller, "POST", &path, Some(&body.to_string()))
        .await
        .expect(403);
    let called = service.post(&path, body).await.expect(200).data();
    let call = called["invocation_id"].as_str().unwrap();
    let record = service.get(&format!("/invocations/{call}")).await.data();
    assert_eq!(record["break_glass"], "the house is on fire");
    let empty = service
        .post(&path, json!({ "tool_name": "send", "break_glass": " " }))
        .await
        .expect(400);
    assert_eq!(empty.wrong_fields(), ["body.break_glass"]);
}
