//! Tokens, grants, memberships, the audit trail, and what is hidden.

use caliber_core::principal::Scope;
use serde_json::json;

use crate::support::{PREFIX, Request, Service, remote};

#[tokio::test]
async fn a_token_is_made_used_and_revoked() {
    let service = Service::start().await;
    let body = json!({
        "subject": "bot", "scopes": ["operator"], "project_id": "alpha", "label": "nightly",
        "expires_at": "2999-01-31T12:00:00+02:00",
    });
    let made = service.post("/tokens", body).await.expect(201).data();
    let text = made["token"].as_str().unwrap();
    assert!(text.starts_with("caliber_"));
    assert_eq!(made["scopes"], json!(["viewer", "operator"]));
    assert_eq!(
        (&made["project_id"], &made["expires_at"]),
        (&json!("alpha"), &json!("2999-01-31T10:00:00Z"))
    );
    service
        .call_as(text, "GET", "/mcp-servers", None)
        .await
        .expect(200);
    let listed = service.get("/tokens").await.expect(200);
    assert!(!listed.text().contains(text));
    let listed = listed.data();
    assert_eq!(listed[0]["token_id"], made["token_id"]);
    assert_eq!(listed[0]["label"], "nightly");
    assert!(listed[0].get("token").is_none());

    let path = format!("/tokens/{}", made["token_id"].as_str().unwrap());
    service.delete(&path).await.expect(204);
    service.delete(&path).await.expect(404);
    service.delete("/tokens/nonsense").await.expect(404);
    assert_eq!(
        service
            .call_as(text, "GET", "/mcp-servers", None)
            .await
            .expect(401)
            .reason(),
        "unauthenticated"
    );

    // Where nothing is said, a token holds in the project of the request, and everywhere only by name.
    let here = service
        .post("/tokens", json!({ "subject": "bot", "scopes": ["viewer"] }))
        .await
        .expect(201)
        .data();
    assert_eq!(here["project_id"], "default");
    let body = json!({ "subject": "bot", "scopes": ["viewer"], "everywhere": true });
    assert_eq!(
        service.post("/tokens", body).await.expect(201).data()["project_id"],
        json!(null)
    );
}

#[tokio::test]
async fn a_token_makes_no_stronger_token() {
    let service = Service::start().await;
    let admin = service.token("amy", Some("alpha"), &[Scope::Admin]).await;
    let make = async |token: &str, body: serde_json::Value| {
        service
            .call_as(token, "POST", "/tokens", Some(&body.to_string()))
            .await
    };
    let everywhere = json!({ "subject": "bot", "scopes": ["viewer"], "everywhere": true });
    make(&admin, everywhere).await.expect(403);
    let elsewhere = json!({ "subject": "bot", "scopes": ["viewer"], "project_id": "beta" });
    make(&admin, elsewhere).await.expect(403);
    make(&admin, json!({ "subject": "bot", "scopes": ["admin"] }))
        .await
        .expect(201);
    let operator = service
        .token("olga", Some("alpha"), &[Scope::Operator, Scope::Approver])
        .await;
    make(&operator, json!({ "subject": "bot", "scopes": ["viewer"] }))
        .await
        .expect(403);
    service
        .call_as(&operator, "GET", "/tokens", None)
        .await
        .expect(403);
    // An admin of one project neither sees nor revokes the tokens of another.
    let other = service
        .post(
            "/tokens",
            json!({ "subject": "b", "scopes": ["viewer"], "project_id": "beta" }),
        )
        .await
        .data();
    let path = format!("/tokens/{}", other["token_id"].as_str().unwrap());
    service.call_as(&admin, "DELETE", &path, None).await.expect(404);
    let seen = service.call_as(&admin, "GET", "/tokens", None).await.expect(200);
    assert!(!seen.text().contains("beta"), "{}", seen.text());
}

#[tokio::test]
async fn grants_are_given_listed_and_taken_back() {
    let service = Service::start().await;
    let id = service.register(remote("weather")).await;
    let given = service
        .post("/grants", json!({ "server_id": id, "scope": "viewer" }))
        .await
        .expect(201)
        .data();
    assert_eq!(
        (&given["scope"], &given["subject"], &given["tool_name"]),
        (&json!("viewer"), &json!(null), &json!(null))
    );
    assert_eq!(service.get("/grants").await.expect(200).data(), json!([given]));
    let path = format!("/grants/{}", given["grant_id"].as_str().unwrap());
    service.delete(&path).await.expect(204);
    service.delete(&path).await.expect(404);
    service.delete("/grants/nonsense").await.expect(404);
    for absent in ["srv_00000000000000000000000000000000", "nonsense"] {
        service
            .post("/grants", json!({ "server_id": absent, "subject": "vic" }))
            .await
            .expect(404);
    }
    let both = service
        .post(
            "/grants",
            json!({ "server_id": id, "subject": "vic", "scope": "viewer" }),
        )
        .await
        .expect(400);
    assert_eq!(both.wrong_fields(), ["body.scope"]);
    let neither = service
        .post("/grants", json!({ "server_id": id }))
        .await
        .expect(400);
    assert_eq!(neither.wrong_fields(), ["body.subject"]);
    let viewer = service.token("vic", Some("default"), &[Scope::Viewer]).await;
    let body = json!({ "server_id": id, "subject": "vic" }).to_string();
    service
        .call_as(&viewer, "POST", "/grants", Some(&body))
        .await
        .expect(403);
    service.call_as(&viewer, "GET", "/grants", None).await.expect(200);
}

#[tokio::test]
async fn memberships_are_set_whole() {
    let service = Service::start().await;
    let set = service
        .put(
            "/memberships",
            json!({ "subject": "mia", "scopes": ["approver"] }),
        )
        .await
        .expect(200)
        .data();
    assert_eq!(
        set,
        json!({ "subject": "mia", "project_id": "default", "scopes": ["viewer", "approver"] })
    );
    let set = service
        .put(
            "/memberships",
            json!({ "subject": "mia", "scopes": [], "everywhere": true }),
        )
        .await
        .expect(200);
    assert_eq!(
        set.data(),
        json!({ "subject": "mia", "project_id": null, "scopes": [] })
    );
    let both = json!({ "subject": "mia", "scopes": [], "everywhere": true, "project_id": "alpha" });
    assert_eq!(
        service.put("/memberships", both).await.expect(400).wrong_fields(),
        ["body.everywhere"]
    );
    let operator = service.token("olga", Some("default"), &[Scope::Operator]).await;
    let body = r#"{"subject":"olga","scopes":["admin"]}"#;
    service
        .call_as(&operator, "PUT", "/memberships", Some(body))
        .await
        .expect(403);
}

#[tokio::test]
async fn the_audit_trail_is_paged_filtered_and_followed() {
    let service = Service::start().await;
    let id = service.register(remote("weather")).await;
    service
        .patch(&format!("/mcp-servers/{id}"), json!({ "description": "new" }))
        .await
        .expect(200);
    let actions = async |query: &str| -> Vec<String> {
        let listed = service.get(&format!("/audit{query}")).await.expect(200).data();
        listed
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["action"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        actions("").await,
        ["update_mcp_server", "create_mcp_server", "create_token"]
    );
    assert_eq!(actions("?action=create_mcp_server").await, ["create_mcp_server"]);
    assert_eq!(
        actions(&format!("?entity_type=mcp_server&entity_id={id}"))
            .await
            .len(),
        2
    );
    assert_eq!(actions("?actor=ada").await.len(), 2);
    assert_eq!(actions("?actor=nobody").await.len(), 0);
    let first = service.get("/audit?limit=1").await.json();
    assert!(first["next_cursor"].is_string());

    let last = service.get("/audit").await.data()[0]["audit_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(actions(&format!("?after={last}")).await.len(), 0);
    service.delete(&format!("/mcp-servers/{id}")).await.expect(204);
    service.register(remote("other")).await;
    assert_eq!(
        actions(&format!("?after={last}")).await,
        ["delete_mcp_server", "create_mcp_server"]
    );

    for (query, field) in [
        ("action=nothing", "query.action"),
        ("after=1", "query.after"),
        ("actor=%20", "query.actor"),
    ] {
        assert_eq!(
            service
                .get(&format!("/audit?{query}"))
                .await
                .expect(400)
                .wrong_fields(),
            [field]
        );
    }
    let viewer = service.token("vic", Some("default"), &[Scope::Viewer]).await;
    let other = service.get("/mcp-servers").await.data()[0]["server_id"]
        .as_str()
        .unwrap()
        .to_owned();
    service
        .call_as(&viewer, "GET", &format!("/mcp-servers/{other}/history"), None)
        .await
        .expect(403);
    service.call_as(&viewer, "GET", "/audit", None).await.expect(403);
    let operator = service.token("olga", Some("elsewhere"), &[Scope::Operator]).await;
    let foreign = service
        .call_as(&operator, "GET", "/audit", None)
        .await
        .expect(200);
    assert!(!foreign.text().contains("weather"), "{}", foreign.text());
}

#[tokio::test]
async fn a_hidden_thing_answers_exactly_like_an_absent_one() {
    let service = Service::start().await;
    let id = service.echo_server("weather").await;
    let absent = "srv_00000000000000000000000000000000";
    let stranger = service.token("eve", Some("other"), &[Scope::Admin]).await;
    let policy = crate::support::read_policy().to_string();
    for (method, path, body) in [
        ("GET", "", None),
        ("PATCH", "", Some(r#"{"description":"x"}"#)),
        ("DELETE", "", None),
        ("GET", "/history", None),
        ("POST", "/test-connection", None),
        ("POST", "/discover-tools", None),
        ("GET", "/tools", None),
        ("GET", "/tools/echo", None),
        ("GET", "/tools/echo/diff", None),
        ("PATCH", "/tools/echo/policy", Some(policy.as_str())),
        ("DELETE", "/tools/echo/policy", None),
        ("POST", "/invoke-tool", Some(r#"{"tool_name":"echo"}"#)),
        ("GET", "/invocations", None),
    ] {
        let hidden = service
            .call_as(&stranger, method, &format!("/mcp-servers/{id}{path}"), body)
            .await
            .expect(404);
        let gone = service
            .call_as(&stranger, method, &format!("/mcp-servers/{absent}{path}"), body)
            .await
            .expect(404);
        assert_eq!(hidden.text().replace(&id, absent), gone.text(), "{method} {path}");
        let names = |answer: &crate::support::Answer| {
            let mut names: Vec<_> = answer.headers.iter().map(|(name, _)| name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&hidden), names(&gone), "{method} {path}");
    }
    let grant = json!({ "server_id": id, "subject": "eve" }).to_string();
    service
        .call_as(&stranger, "POST", "/grants", Some(&grant))
        .await
        .expect(404);
    let listed = service
        .call_as(&stranger, "GET", "/mcp-servers", None)
        .await
        .expect(200)
        .data();
    assert_eq!(listed, json!([]));
    // A project token cannot ask for another project.
    let mut request = Request::new("GET", &format!("{PREFIX}/mcp-servers/{id}"));
    request.token(&stranger).header("X-CALIBER-Project", "default");
    assert_eq!(service.send(&request).await.expect(403).reason(), "forbidden");
}
