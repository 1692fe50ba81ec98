//! A caller that gives up, and a deadline that passes: the upstream hears of it.

use std::time::Duration;

use caliber::ErrorKind;
use caliber::core::invocation::InvocationOutcome;
use caliber::core::policy::{SideEffectLevel, ToolPolicy};
use serde_json::json;

use crate::support::{
    RequestExt, Rig, Server, Transport, Upstream, assert_ledger, at_once, ends_within, eventually, outcomes,
    policy_for, text,
};

const CASES: [(Transport, &str); 5] = [
    (Transport::Stdio, "legacy"),
    (Transport::Http, "legacy"),
    (Transport::Sse, "legacy"),
    (Transport::Stdio, "modern"),
    (Transport::Http, "modern"),
];

/// The identifier that the upstream knows a call by, and the one in the cancellation that reached it.
async fn cancelled_and_executed(upstream: &Upstream) -> (String, String) {
    let records = upstream.records();
    let cancel = eventually("a cancellation of a live call reaches the upstream", || {
        let lines = records.lines("cancels");
        async move { lines.into_iter().find(|line| line[2] == "live") }
    })
    .await;
    let executed = records.lines("executions");
    let sleep = executed
        .iter()
        .find(|line| line[0] == "sleep")
        .expect("the call was executed");
    (cancel[0].clone(), sleep[1].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn giving_up_reaches_the_upstream_with_its_own_identifier() {
    at_once(CASES, |(transport, era)| async move {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &["--era", era]).await;
        let server = rig.admit("slow", upstream.endpoint()).await;
        // Some calls before, so that identifiers of the two sides cannot be equal by chance.
        for _ in 0..3 {
            server
                .call(&rig.ada, "echo", json!({ "value": 1 }))
                .await
                .unwrap();
        }
        let call = tokio::spawn({
            let (server, ada) = (server.clone(), rig.ada.clone());
            async move { server.call(&ada, "sleep", json!({ "seconds": 60 })).await }
        });
        upstream.records().wait_for("executions", 4).await;
        call.abort();
        let (cancelled, executed) = cancelled_and_executed(&upstream).await;
        assert_eq!(cancelled, executed, "{transport:?} {era}");
        let next = server
            .call(&rig.ada, "echo", json!({ "value": "next" }))
            .await
            .unwrap();
        assert_eq!(text(&next), "next", "the session goes on, {transport:?} {era}");
        let mut expected = vec![InvocationOutcome::Ok; 5];
        expected[3] = InvocationOutcome::Cancelled;
        assert_ledger(&server, &expected).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_passes_cancels_at_the_upstream() {
    let limit = Duration::from_millis(700);
    at_once(CASES, move |(transport, era)| async move {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &["--era", era]).await;
        let server = rig.admit("slow", upstream.endpoint()).await;
        server
            .call(&rig.ada, "echo", json!({ "value": 1 }))
            .await
            .unwrap();
        let request = server.request("sleep", json!({ "seconds": 60 })).within(limit);
        let error = ends_within(limit, server.send(&rig.ada, request))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{transport:?} {era}: {error:?}");
        let (cancelled, executed) = cancelled_and_executed(&upstream).await;
        assert_eq!(cancelled, executed, "{transport:?} {era}");
        let next = server
            .call(&rig.ada, "echo", json!({ "value": "next" }))
            .await
            .unwrap();
        assert_eq!(text(&next), "next", "the session goes on, {transport:?} {era}");
        let (ok, timeout) = (InvocationOutcome::Ok, InvocationOutcome::Timeout);
        assert_ledger(&server, &[ok, timeout, ok]).await;
    })
    .await;
}

/// Whoever gives up and ends the installation at once finds the records of the calls there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_given_up_right_before_the_end_have_their_records() {
    for level in [SideEffectLevel::Read, SideEffectLevel::Write] {
        let rig = Rig::open().await;
        let upstream = Upstream::start(Transport::Http, &[]).await;
        let server = rig.admit("slow", upstream.endpoint()).await;
        let policy = ToolPolicy {
            side_effect_level: level,
            ..policy_for("add")
        };
        let policy = if level == SideEffectLevel::Read {
            ToolPolicy::allow_read()
        } else {
            policy
        };
        server.classify("sleep", policy).await.unwrap();
        let mut calls = Vec::new();
        for _ in 0..10 {
            let (server, ada) = (server.clone(), rig.ada.clone());
            calls.push(tokio::spawn(async move {
                server.call(&ada, "sleep", json!({ "seconds": 60 })).await
            }));
        }
        upstream.records().wait_for("executions", 10).await;
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        let id = server.id.clone();
        drop(server);
        let rig = rig.reopen().await;
        let server = Server::of(&rig, id);
        assert_eq!(
            outcomes(&server).await,
            [InvocationOutcome::Cancelled; 10],
            "{level:?}"
        );
    }
}
