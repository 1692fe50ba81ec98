//! Lists of tools: pages, broken tools, changes while sessions are open.

use std::time::{Duration, Instant};

use caliber::ErrorKind;
use caliber::core::reason::ReasonCode;
use serde_json::{Value, json};

use crate::support::{Rig, Transport, Upstream, at_once, eventually, text};

/// How long a server that refuses the stream of changes is watched. Trying again at once would show in a moment.
const WATCHED: Duration = Duration::from_secs(2);

fn tool(name: &str) -> Value {
    json!({ "name": name, "description": format!("answers as {name}"), "inputSchema": { "type": "object" } })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_of_a_list_is_read_once() {
    for transport in Transport::ALL {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &["--pages", "3"]).await;
        let server = rig.register("paged", upstream.endpoint()).await;
        server.discover().await.unwrap();
        let pages: Vec<_> = upstream
            .records()
            .lines("lists")
            .into_iter()
            .map(|line| line[0].clone())
            .collect();
        assert_eq!(pages, ["-", "\"page-2\"", "\"page-3\""], "{transport:?}");
        let mut names = server.tool_names().await;
        names.sort();
        let all = [
            "big",
            "count",
            "echo",
            "environment",
            "fail",
            "progress",
            "raw_headers",
            "sleep",
            "structured",
        ];
        assert_eq!(names, all, "{transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_that_comes_back_ends_in_an_error_and_leaves_the_inventory() {
    let rig = Rig::open().await;
    let upstream = Upstream::start(Transport::Http, &[]).await;
    let server = rig.admit("cursor", upstream.endpoint()).await;
    upstream.control("mode=cursor&variant=same").await;
    let error = server.discover().await.expect_err("half a list is no list");
    assert_eq!(error.reason(), Some(ReasonCode::ListTooLarge), "{error:?}");
    assert_eq!(
        server.tool_names().await.len(),
        9,
        "the list that was read before stands"
    );
    let asked = upstream.records().count("lists");
    assert!(asked < 10, "it was asked for {asked} pages");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_cursor_is_a_cursor() {
    let rig = Rig::open().await;
    let upstream = Upstream::start(Transport::Http, &["--mode", "cursor", "--variant", "empty_once"]).await;
    let server = rig.register("cursor", upstream.endpoint()).await;
    server.discover().await.unwrap();
    let pages: Vec<_> = upstream
        .records()
        .lines("lists")
        .into_iter()
        .map(|line| line[0].clone())
        .collect();
    assert_eq!(pages, ["-", "\"\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_broken_tool_does_not_take_the_list_down() {
    for variant in ["input_ref", "output_ref", "no_schema", "name_number", "tool_null"] {
        let rig = Rig::open().await;
        let settings = ["--mode", "one_broken", "--variant", variant, "--count", "10"];
        let upstream = Upstream::start(Transport::Stdio, &settings).await;
        let server = rig.admit("broken", upstream.endpoint()).await;
        let names = server.tool_names().await;
        assert_eq!(names.len(), 9, "{variant}: {names:?}");
        assert!(
            names.iter().all(|name| name.starts_with("sound_")),
            "{variant}: {names:?}"
        );
        let page = caliber::core::page::PageRequest::default();
        let listing = rig.caliber.tools(&rig.admin, &server.id, &page).await.unwrap();
        let withheld = listing.inventory.unwrap().withheld;
        assert_eq!(withheld.len(), 1, "{variant}: {withheld:?}");
        assert!(
            !withheld[0].reason.is_empty(),
            "{variant}: the operator is told why"
        );
        server
            .call(&rig.ada, &names[0], json!({ "value": 1 }))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_list_is_acted_on_while_the_session_is_open() {
    for (transport, era) in [
        (Transport::Stdio, "legacy"),
        (Transport::Http, "legacy"),
        (Transport::Sse, "legacy"),
        (Transport::Stdio, "modern"),
        (Transport::Http, "modern"),
    ] {
        let rig = Rig::open_with(|config| config.gateway.list_interval = Duration::from_millis(100)).await;
        let folder = tempfile::tempdir().unwrap();
        let catalog = folder.path().join("catalog.json");
        let write = |tools: Value| {
            let next = folder.path().join("next.json");
            std::fs::write(&next, tools.to_string()).unwrap();
            std::fs::rename(&next, &catalog).unwrap();
        };
        write(json!([tool("stays"), tool("goes")]));
        let settings = [
            "--era",
            era,
            "--catalog",
            catalog.to_str().unwrap(),
            "--list-changed-on-catalog-change",
        ];
        let upstream = Upstream::start(transport, &settings).await;
        let server = rig.admit("changing", upstream.endpoint()).await;
        server
            .call(&rig.ada, "goes", json!({ "value": 1 }))
            .await
            .unwrap();
        // The stream of changes is there before the change.
        match (transport, era) {
            (Transport::Http, "legacy") => upstream.records().wait_for("streams", 1).await,
            (_, "modern") => {
                eventually("the changes are listened to", || async {
                    upstream
                        .records()
                        .text("requests")
                        .contains("subscriptions/listen")
                        .then_some(())
                })
                .await;
            }
            _ => {}
        }
        write(json!([tool("stays"), tool("comes")]));
        eventually(
            &format!("the inventory follows over {transport:?} {era}"),
            || async {
                let mut names = server.tool_names().await;
                names.sort();
                (names == ["comes", "stays"]).then_some(())
            },
        )
        .await;
        let error = server
            .call(&rig.ada, "comes", json!({ "value": 1 }))
            .await
            .unwrap_err();
        assert_eq!(
            error.reason(),
            Some(ReasonCode::Unclassified),
            "a new tool is inventory, no authorization: {error:?}"
        );
        let error = server
            .call(&rig.ada, "goes", json!({ "value": 1 }))
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Denied, Some(ReasonCode::ToolUnknown)),
            "{error:?}"
        );
        server
            .call(&rig.ada, "stays", json!({ "value": 1 }))
            .await
            .unwrap();
        assert_eq!(upstream.records().executions_of("goes"), 1, "{transport:?} {era}");
        assert_eq!(
            upstream.records().executions_of("comes"),
            0,
            "{transport:?} {era}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_the_stream_of_changes_is_left_in_peace() {
    at_once(["get_405", "sessionless"], |mode| async move {
        let rig = Rig::open().await;
        let (upstream, healthy) = (
            Upstream::start(Transport::Http, &["--mode", mode]).await,
            Upstream::start(Transport::Http, &[]).await,
        );
        let server = rig.admit("refusing", upstream.endpoint()).await;
        let beside = rig.admit("beside", healthy.endpoint()).await;
        let (names, beside_names) = (server.tool_names().await, beside.tool_names().await);
        let end = Instant::now() + WATCHED;
        while Instant::now() < end {
            let outcome = server
                .call(&rig.ada, "echo", json!({ "value": "here" }))
                .await
                .unwrap();
            assert_eq!(text(&outcome), "here", "{mode}");
            beside
                .call(&rig.ada, "echo", json!({ "value": 1 }))
                .await
                .unwrap();
            assert_eq!(server.tool_names().await, names, "the tools blink, {mode}");
            assert_eq!(
                beside.tool_names().await,
                beside_names,
                "the tools of the other server blink, {mode}"
            );
        }
        let records = upstream.records();
        let gets = records
            .lines("refused_gets")
            .iter()
            .filter(|line| line[0] == "GET")
            .count();
        assert!(gets <= 2, "{gets} tries in {WATCHED:?}, {mode}");
        assert_eq!(
            records.count("lists"),
            2,
            "one for the discovery and one for ada's session, {mode}"
        );
    })
    .await;
}
