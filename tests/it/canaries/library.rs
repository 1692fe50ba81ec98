//! Through the library and the API.

use caliber::core::audit::AuditQuery;
use caliber::core::grant::Grantee;
use caliber::core::page::PageRequest;
use caliber::core::principal::Scope;
use caliber::core::registry::ServerQuery;
use caliber::core::secret::ConfigValue;
use caliber::core::server::{Endpoint, ServerDefinition};
use serde_json::{Value, json};

use super::mirror::Mirror;
use super::planted::{
    ARGUMENT, CUSTOM, ENCODED_PASSWORD, ENV, FILE, HEADER, Planted, TOKEN, VARIABLE, mirrored_server,
    refused_servers,
};
use super::sightings::Sightings;
use crate::support::oracles::holds;
use crate::support::rig::definition;
use crate::support::{Api, RequestExt, Rig, SECOND, Server, Transport, Upstream, isolated, logs, structured};

#[test]
fn no_secret_shows_in_the_library_the_api_the_log_or_the_database() {
    isolated(|| async {
        let log = logs::capture();
        let planted = Planted::new();
        let rig = Rig::open_with(|config| {
            planted.allow(config);
        })
        .await;
        let api = rig.serve().await;
        let mut seen = Sightings::default();

        let (stdio, http, mirror) = (
            Upstream::start(Transport::Stdio, &[]).await,
            Upstream::start(Transport::Http, &[]).await,
            Mirror::start().await,
        );
        let mut bodies = vec![
            planted.stdio_server(&arguments_of(&stdio)),
            planted.complaining_server(),
        ];
        bodies.extend(planted.remote_servers(&http.url("/mcp")));
        bodies.extend(
            mirror
                .urls()
                .iter()
                .enumerate()
                .map(|(number, url)| mirrored_server(number, url)),
        );
        for body in &bodies {
            let server = register(&api, &rig, &mut seen, body).await;
            let name = body["name"].as_str().unwrap();
            seen.reply(
                &format!("checking the definition of {name}"),
                &api.post("/mcp-servers/check", body.clone()).await,
            );
            drive(&api, &rig, &mut seen, &server, name).await;
        }
        for body in refused_servers() {
            let reply = api.post("/mcp-servers", body.clone()).await;
            assert!((400..500).contains(&reply.status), "{body}: {}", reply.text);
            seen.reply("a refused server", &reply);
            seen.reply("a refused check", &api.post("/mcp-servers/check", body).await);
        }
        change(&api, &mut seen, &http).await;
        assert_planted(&rig, &stdio, &http).await;
        read_everything(&api, &rig, &mut seen).await;
        debug_everything(&rig, &planted, &mut seen).await;
        rig.store.rotate_secrets(rig.administrator()).await.unwrap();
        let backup = tempfile::tempdir().unwrap();
        rig.store.backup(&backup.path().join("backup.db")).await.unwrap();
        seen.files(rig.folder());
        seen.files(backup.path());

        let mut canaries = planted.canaries();
        let token = api.token().to_owned();
        canaries.push(&token);
        drop(api);
        let folder = rig.close().await;
        seen.files(folder.path());
        let logged = log.text();
        assert!(logged.lines().count() > 100, "the log was captured");
        seen.text("the log", logged);
        assert!(
            seen.has("with-environment") && seen.has("cannot sign in with"),
            "the search looks at what was said"
        );
        seen.assert_free_of(&canaries);
    });
}

fn arguments_of(upstream: &Upstream) -> Vec<String> {
    match upstream.endpoint() {
        Endpoint::Stdio(stdio) => stdio.args,
        endpoint => panic!("{} has no arguments", endpoint.transport()),
    }
}

async fn register(api: &Api, rig: &Rig, seen: &mut Sightings, body: &Value) -> Server {
    let reply = api.post("/mcp-servers", body.clone()).await;
    let id = reply.data()["server_id"].as_str().unwrap().to_owned();
    seen.reply("registering", &reply);
    Server::of(rig, id.parse().unwrap())
}

/// Everything that can be done with a server, well or badly.
async fn drive(api: &Api, rig: &Rig, seen: &mut Sightings, server: &Server, name: &str) {
    let path = format!("/mcp-servers/{}", server.id);
    seen.reply(
        &format!("checking {name}"),
        &api.post(&format!("{path}/test-connection"), Value::Null).await,
    );
    seen.reply(
        &format!("discovering {name}"),
        &api.post(&format!("{path}/discover-tools"), Value::Null).await,
    );
    seen.outcome(
        &format!("the check of {name}"),
        &rig.caliber.check(server.who(), &server.id).await,
    );
    seen.outcome(&format!("the discovery of {name}"), &server.discover().await);
    server.classify_all().await;
    server.open_to(Grantee::Scope(Scope::Viewer)).await;
    let calls = [
        ("echo", json!({ "value": ARGUMENT })),
        ("echo", json!({ "unknown": ARGUMENT })),
        ("structured", json!({ "count": ARGUMENT })),
        ("sleep", json!({ "seconds": ARGUMENT })),
        ("environment", json!({ "values": true, "unknown": ARGUMENT })),
        ("raw_headers", json!({ "unknown": ARGUMENT })),
        ("no-such-tool", json!({ "value": ARGUMENT })),
    ];
    for (tool, arguments) in calls {
        let called = server.call(&rig.ada, tool, arguments.clone()).await;
        seen.outcome(&format!("calling {tool} of {name}"), &called);
        let body = json!({ "tool_name": tool, "arguments": arguments });
        let reply = api.post(&format!("{path}/invoke-tool"), body).await;
        // What a tool answers belongs to its caller, who sent the argument.
        if reply.status != 200 {
            seen.reply(&format!("calling {tool} of {name} through the API"), &reply);
        }
    }
    let slow = server
        .request("sleep", json!({ "seconds": 30, "unknown": ARGUMENT }))
        .within(SECOND / 5);
    seen.outcome(
        &format!("a call of {name} that times out"),
        &server.send(&rig.ada, slow).await,
    );
}

/// Secrets that are given again, do not follow a server, or come back from the dead.
async fn change(api: &Api, seen: &mut Sightings, http: &Upstream) {
    let servers = api.get("/mcp-servers?limit=100").await.data();
    let find = |name: &str| {
        let server = servers
            .as_array()
            .unwrap()
            .iter()
            .find(|server| server["name"] == name)
            .unwrap();
        format!("/mcp-servers/{}", server["server_id"].as_str().unwrap())
    };
    let token = find("with-token");
    let again = json!({ "auth_type": "token", "auth_config": { "token": format!("{TOKEN}-2") } });
    let changed = api.send("PATCH", &token, Some(again)).await;
    assert_eq!(changed.status, 200, "{}", changed.text);
    seen.reply("giving a token again", &changed);
    let moved = api
        .send("PATCH", &token, Some(json!({ "uri": "http://localhost:9/mcp" })))
        .await;
    assert_eq!(moved.reason(), "secret_origin_changed", "{}", moved.text);
    seen.reply("moving a server with its secrets", &moved);

    let password = find("with-password");
    let removed = api.send("DELETE", &password, None).await;
    assert_eq!(removed.status, 204, "{}", removed.text);
    let history = api.get(&format!("{password}/history")).await;
    seen.reply("the history of a removed server", &history);
    let entry = history.data().as_array().unwrap()[0]["audit_id"].clone();
    let missing = api
        .post("/mcp-servers/restore", json!({ "audit_id": entry }))
        .await;
    assert_eq!(missing.status, 400, "{}", missing.text);
    seen.reply("restoring without the secret", &missing);
    let secrets = json!({ "auth_config.password": super::planted::PASSWORD, "nowhere": TOKEN });
    seen.reply(
        "restoring with a secret too many",
        &api.post(
            "/mcp-servers/restore",
            json!({ "audit_id": entry, "secrets": secrets }),
        )
        .await,
    );
    let secrets = json!({ "auth_config.password": super::planted::PASSWORD });
    let restored = api
        .post(
            "/mcp-servers/restore",
            json!({ "audit_id": entry, "secrets": secrets }),
        )
        .await;
    assert!((200..300).contains(&restored.status), "{}", restored.text);
    seen.reply("restoring", &restored);
    let path = format!(
        "/mcp-servers/{}/test-connection",
        restored.data()["server_id"].as_str().unwrap()
    );
    assert_eq!(
        api.post(&path, Value::Null).await.data()["success"],
        true,
        "the restored secret is the right one"
    );
    assert!(holds(
        &http.records().bytes("http_log"),
        ENCODED_PASSWORD.as_bytes()
    ));
}

/// The secrets did reach the servers: what nobody uses cannot leak.
async fn assert_planted(rig: &Rig, stdio: &Upstream, http: &Upstream) {
    let heads = http.records().bytes("http_log");
    for canary in [HEADER, TOKEN, ENCODED_PASSWORD, CUSTOM, VARIABLE, FILE] {
        assert!(
            holds(&heads, canary.as_bytes()),
            "{canary} never reached the HTTP server"
        );
    }
    let arguments = stdio.records().text("requests");
    assert!(
        arguments.contains(ARGUMENT),
        "the argument never reached the stdio server"
    );
    let record = rig
        .caliber
        .server_named(&rig.admin, "with-environment")
        .await
        .unwrap();
    let server = Server::of(rig, record.id);
    let outcome = server
        .call(&rig.ada, "environment", json!({ "values": true }))
        .await
        .unwrap();
    let values = &structured(&outcome)["values"];
    assert_eq!(values["RIG_SECRET"], ENV);
    assert_eq!(values["RIG_VARIABLE"], VARIABLE);
    assert_eq!(values["RIG_FILE"], FILE);
}

/// Every read of the API, as the administrator and as somebody who may only look.
async fn read_everything(api: &Api, rig: &Rig, seen: &mut Sightings) {
    let viewer = api.as_subject(&rig.admin, "looking", Scope::Viewer).await;
    let servers = api.get("/mcp-servers?limit=100").await.data();
    let mut paths: Vec<String> = [
        "/mcp-servers?limit=100",
        "/audit?limit=500",
        "/approvals",
        "/tokens",
        "/grants",
        "/healthz",
        "/readyz",
        "/metrics",
    ]
    .map(str::to_owned)
    .into();
    for server in servers.as_array().unwrap() {
        let server = format!("/mcp-servers/{}", server["server_id"].as_str().unwrap());
        paths.extend(
            [
                "",
                "/tools",
                "/tools/echo",
                "/tools/echo/diff",
                "/history?limit=500",
                "/invocations?limit=500",
            ]
            .map(|rest| format!("{server}{rest}")),
        );
    }
    for path in paths {
        let reply = api.get(&path).await;
        assert_ne!(reply.status, 500, "{path}: {}", reply.text);
        seen.reply(&format!("GET {path}"), &reply);
        seen.reply(&format!("GET {path} as a viewer"), &viewer.get(&path).await);
    }
}

/// `Debug` of everything that a program which links caliber can hold.
async fn debug_everything(rig: &Rig, planted: &Planted, seen: &mut Sightings) {
    let mut config = Rig::config(&rig.folder().join("caliber.db"));
    planted.allow(&mut config);
    seen.debug("Config", &config);
    seen.debug("KeyRing", &config.store.key_ring);
    seen.debug("Caliber", &rig.caliber);
    seen.debug("Store", &rig.store);
    seen.debug("blocking::Caliber", &rig.caliber.blocking().unwrap());
    seen.debug("ConfigValue", &ConfigValue::from_input(TOKEN));
    let literal = literal_definition();
    seen.debug("ServerDefinition", &literal);
    let readiness = rig.caliber.readiness(&rig.admin, literal.clone()).await;
    seen.outcome("the readiness of a definition", &readiness);
    seen.outcome(
        "the check of a definition",
        &rig.caliber.check_definition(&rig.admin, literal.clone()).await,
    );
    seen.outcome(
        "the discovery of a definition",
        &rig.caliber.discover_definition(&rig.admin, literal).await,
    );

    let servers = rig
        .caliber
        .servers(&rig.admin, ServerQuery::default(), &PageRequest::first(100))
        .await
        .unwrap();
    seen.debug("Page<ServerSummary>", &servers);
    for summary in &servers.items {
        let server = Server::of(rig, summary.id.clone());
        seen.outcome("ServerView", &rig.caliber.server(&rig.admin, &server.id).await);
        seen.outcome(
            "ToolListing",
            &rig.caliber
                .tools(&rig.admin, &server.id, &PageRequest::first(100))
                .await,
        );
        seen.debug("the ledger", &server.ledger().await);
        let request = server.request("echo", json!({ "value": ARGUMENT }));
        seen.debug("InvokeRequest", &request);
    }
    let entries = rig
        .caliber
        .audit(&rig.admin, AuditQuery::default(), &PageRequest::first(500))
        .await
        .unwrap();
    for entry in &entries.items {
        seen.text("an audit entry", entry.details.as_str());
    }
    seen.debug("Page<AuditEntry>", &entries);
    seen.outcome(
        "tokens",
        &rig.caliber.tokens(&rig.admin, &PageRequest::first(100)).await,
    );
}

/// A definition with a secret that was not stored.
fn literal_definition() -> ServerDefinition {
    let mirror = Endpoint::StreamableHttp(caliber::core::server::RemoteEndpoint {
        // Nobody listens there.
        url: "http://127.0.0.1:1/mcp".into(),
        headers: [("X-Extra".to_owned(), ConfigValue::from_input(HEADER))].into(),
    });
    let mut definition = definition("literal", mirror);
    definition.auth = caliber::core::server::Auth::Token {
        token: ConfigValue::from_input(TOKEN),
    };
    definition
}
