//! The processes and sessions that calls cause, and that none is left.

use std::time::Duration;

use caliber::core::server::ServerStatus;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{
    Rig, SECOND, Server, Transport, Upstream, descendants, ends_within, eventually, eventually_within,
    isolated, text,
};

/// How long what a server leaves behind may be there.
const TEN_SECONDS: Duration = Duration::from_secs(10);

async fn disable(server: &Server) {
    let patch = caliber::core::ServerPatch {
        status: Some(ServerStatus::Disabled),
        ..Default::default()
    };
    server
        .caliber
        .update_server(server.who(), &server.id, patch)
        .await
        .unwrap();
}

/// Everything below this process but the guard of the launcher, ended or not.
fn children() -> Vec<String> {
    let all = descendants(std::process::id());
    all.into_iter()
        .map(|process| process.arguments.join(" "))
        .filter(|text| !text.contains("caliber-guard"))
        .collect()
}

#[test]
fn fifty_calls_at_once_take_one_child_per_caller() {
    isolated(|| async {
        let rig = Rig::open().await;
        let upstream = Upstream::start(Transport::Stdio, &[]).await;
        let server = rig.admit("slow", upstream.endpoint()).await;
        let mut calls = JoinSet::new();
        for number in 0..50 {
            let (server, caller) = (server.clone(), rig.caller(&format!("caller-{}", number % 2)));
            calls.spawn(async move { server.call(&caller, "sleep", json!({ "seconds": 0.5 })).await });
        }
        for outcome in calls.join_all().await {
            outcome.unwrap();
        }
        eventually_within(TEN_SECONDS, "the child of the discovery is gone", || {
            let two = (upstream.processes().len() == 2).then_some(());
            async move { two }
        })
        .await;
        assert_eq!(upstream.records().starts(), 3, "the discovery, and two callers");
        server.remove().await;
        eventually_within(TEN_SECONDS, "no child is left, ended or not", || {
            let none = children().is_empty().then_some(());
            async move { none }
        })
        .await;
    });
}

#[test]
fn twenty_sessions_that_were_opened_and_closed_leave_no_child() {
    isolated(|| async {
        let rig = Rig::open().await;
        let upstream = Upstream::start(Transport::Stdio, &[]).await;
        let server = rig.admit("counter", upstream.endpoint()).await;
        for round in 0..2 {
            let mut calls = JoinSet::new();
            for number in 0..10 {
                let (server, caller) = (server.clone(), rig.caller(&format!("caller-{round}-{number}")));
                calls.spawn(async move { server.call(&caller, "count", json!({})).await });
            }
            for outcome in calls.join_all().await {
                assert_eq!(text(&outcome.unwrap()), "1");
            }
        }
        assert_eq!(upstream.records().starts(), 21);
        disable(&server).await;
        eventually_within(TEN_SECONDS, "no child is left, ended or not", || {
            let none = children().is_empty().then_some(());
            async move { none }
        })
        .await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_has_no_more_sessions_than_it_may() {
    let rig = Rig::open_with(|config| config.gateway.sessions_per_server = 3).await;
    let upstream = Upstream::start(Transport::Stdio, &[]).await;
    let server = rig.admit("counter", upstream.endpoint()).await;
    for number in 0..6 {
        let caller = rig.caller(&format!("caller-{number}"));
        server.call(&caller, "count", json!({})).await.unwrap();
    }
    eventually_within(TEN_SECONDS, "three children are left", || {
        let three = (upstream.processes().len() == 3).then_some(());
        async move { three }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_close_the_sessions_that_they_open() {
    for transport in [Transport::Http, Transport::Sse, Transport::Stdio] {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &[]).await;
        let server = rig.register("checked", upstream.endpoint()).await;
        for _ in 0..10 {
            let checked = rig.caliber.check(server.who(), &server.id).await.unwrap();
            checked.report.unwrap();
        }
        let records = upstream.records();
        if transport == Transport::Stdio {
            assert_eq!(records.starts(), 10);
            upstream.is_gone_within(TEN_SECONDS).await;
            continue;
        }
        eventually(&format!("each session is closed over {transport:?}"), || {
            let lines = records.lines("sessions");
            let opened = lines.iter().filter(|line| line[0] == "open").count();
            let closed = lines.iter().filter(|line| line[0] != "open").count();
            async move { (opened == 10 && closed == 10).then_some(()) }
        })
        .await;
    }
}

/// The answer does not wait for a child that will not go, and the child goes all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_ignores_the_end_of_its_input_and_sigterm_holds_nobody_up() {
    let rig = Rig::open().await;
    let upstream = Upstream::start(Transport::Stdio, &["--mode", "stubborn"]).await;
    let server = ends_within(SECOND * 4, rig.admit("stubborn", upstream.endpoint())).await;
    let outcome = server
        .call(&rig.ada, "echo", json!({ "value": "here" }))
        .await
        .unwrap();
    assert_eq!(text(&outcome), "here");
    ends_within(SECOND * 4, server.remove()).await;
    upstream.is_gone_within(TEN_SECONDS).await;
}

#[test]
fn ending_an_installation_ends_every_child() {
    isolated(|| async {
        let rig = Rig::open().await;
        let upstream = Upstream::start(Transport::Stdio, &[]).await;
        let server = rig.admit("counter", upstream.endpoint()).await;
        for number in 0..5 {
            server
                .call(&rig.caller(&format!("caller-{number}")), "count", json!({}))
                .await
                .unwrap();
        }
        drop(server);
        rig.close().await;
        eventually_within(TEN_SECONDS, "no child is left, ended or not", || {
            let none = children().is_empty().then_some(());
            async move { none }
        })
        .await;
    });
}
