//! Whose session a call belongs to, and what becomes of sessions that end.

use caliber::ErrorKind;
use caliber::core::invocation::InvocationOutcome;
use caliber::core::reason::ReasonCode;
use caliber::core::server::Sharing;
use serde_json::json;

use crate::support::rig::definition;
use crate::support::{
    RequestExt, Rig, SECOND, Server, Transport, Upstream, assert_executions, at_once, eventually, outcomes,
    signal, structured, text,
};

async fn count(server: &Server, caller: &caliber::core::principal::Principal) -> i64 {
    let outcome = server.call(caller, "count", json!({})).await.unwrap();
    structured(&outcome)["count"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_caller_has_a_sequence_of_its_own() {
    for transport in Transport::ALL {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &[]).await;
        let server = rig.admit("counter", upstream.endpoint()).await;
        let mut seen = Vec::new();
        for caller in [&rig.ada, &rig.ada, &rig.ben, &rig.ada] {
            seen.push(count(&server, caller).await);
        }
        assert_eq!(seen, [1, 2, 1, 3], "{transport:?}");
        assert_executions(&upstream, 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inbound_session_has_a_sequence_of_its_own() {
    let rig = Rig::open().await;
    let upstream = Upstream::start(Transport::Stdio, &[]).await;
    let server = rig.admit("counter", upstream.endpoint()).await;
    let mut seen = Vec::new();
    for session in ["one", "two", "one"] {
        let request = server.request("count", json!({})).in_session(session);
        let outcome = server.send(&rig.ada, request).await.unwrap();
        seen.push(structured(&outcome)["count"].as_i64().unwrap());
    }
    assert_eq!(seen, [1, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_share_a_session_only_where_the_operator_says_so() {
    let rig = Rig::open().await;
    let upstream = Upstream::start(Transport::Http, &[]).await;
    let mut shared = definition("counter", upstream.endpoint());
    shared.sharing = Sharing::Shared;
    let server = rig.admit_definition(shared).await;
    let mut seen = Vec::new();
    for caller in [&rig.ada, &rig.ben, &rig.ada] {
        seen.push(count(&server, caller).await);
    }
    assert_eq!(seen, [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_shakes_hands_once_and_not_per_call() {
    for transport in Transport::ALL {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &[]).await;
        let server = rig.admit("counter", upstream.endpoint()).await;
        let records = upstream.records();
        assert_eq!(
            records.count("initializes"),
            1,
            "one session for the discovery, {transport:?}"
        );
        for _ in 0..5 {
            server
                .call(&rig.ada, "echo", json!({ "value": 1 }))
                .await
                .unwrap();
        }
        assert_eq!(records.count("initializes"), 2, "one more for ada, {transport:?}");
        assert_eq!(
            records.count("lists"),
            2,
            "each session lists once, {transport:?}"
        );
        for _ in 0..5 {
            server
                .call(&rig.ben, "echo", json!({ "value": 1 }))
                .await
                .unwrap();
        }
        assert_eq!(records.count("initializes"), 3, "and one for ben, {transport:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_modern_server_is_asked_who_it_is_once_and_not_per_call() {
    for transport in [Transport::Stdio, Transport::Http] {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &["--era", "modern"]).await;
        let server = rig.admit("modern", upstream.endpoint()).await;
        for _ in 0..5 {
            server
                .call(&rig.ada, "echo", json!({ "value": 1 }))
                .await
                .unwrap();
        }
        let records = upstream.records();
        assert_eq!(records.count("initializes"), 0, "{transport:?}");
        assert!(
            records.count("discovers") <= 2,
            "{} probes over {transport:?}",
            records.count("discovers")
        );
        assert!(
            records.count("lists") <= 2,
            "{} lists over {transport:?}",
            records.count("lists")
        );
    }
}

/// The call that stumbles over a lost session tells the caller so and is never sent twice; the next one works.
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_forgets_its_sessions_is_usable_at_the_next_call() {
    for (transport, action) in [
        (Transport::Http, "do=forget_sessions"),
        (Transport::Http, "do=restart"),
        (Transport::Sse, "do=forget_sessions"),
        (Transport::Sse, "do=restart"),
    ] {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &[]).await;
        let server = rig.admit("counter", upstream.endpoint()).await;
        assert_eq!(count(&server, &rig.ada).await, 1);
        assert_eq!(count(&server, &rig.ada).await, 2);
        upstream.control(action).await;
        let first = server.call(&rig.ada, "count", json!({})).await;
        let error = first.expect_err("the caller's state is gone, which it has to be told");
        assert_eq!(
            error.reason(),
            Some(ReasonCode::SessionRestarted),
            "{transport:?} {action}: {error:?}"
        );
        assert_executions(&upstream, 2);
        assert_eq!(
            count(&server, &rig.ada).await,
            1,
            "a new session begins at one, {transport:?} {action}"
        );
        assert_executions(&upstream, 3);
        assert_eq!(outcomes(&server).await.len(), 4, "{transport:?} {action}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_was_killed_is_usable_at_the_next_call() {
    let rig = Rig::open().await;
    let upstream = Upstream::start(Transport::Stdio, &[]).await;
    let server = rig.admit("counter", upstream.endpoint()).await;
    assert_eq!(count(&server, &rig.ada).await, 1);
    let [child] = eventually("the discovery's child is gone", || {
        let processes: Result<[u32; 1], _> = upstream.processes().try_into();
        async move { processes.ok() }
    })
    .await;
    signal(child, "KILL");
    // A call that is sent before the end was noticed is lost instead.
    eventually("the end of the child is noticed", || async {
        let view = rig.caliber.server(&rig.admin, &server.id).await.unwrap();
        (view.health.sessions == 0).then_some(())
    })
    .await;
    let error = server
        .call(&rig.ada, "count", json!({}))
        .await
        .expect_err("the state is gone");
    assert_eq!(error.reason(), Some(ReasonCode::SessionRestarted), "{error:?}");
    assert_eq!(count(&server, &rig.ada).await, 1);
    assert_executions(&upstream, 2);
}

/// The call that is lost with its session tells of both; the next one works.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_session_is_told_once() {
    at_once(["exit", "kill", "close_stdout"], |variant| async move {
        let rig = Rig::open().await;
        // Every process answers one call and ends at the second.
        let settings = ["--mode", "exit_on_call", "--variant", variant, "--after", "1"];
        let upstream = Upstream::start(Transport::Stdio, &settings).await;
        let server = rig.admit("ending", upstream.endpoint()).await;
        for round in 0..15 {
            let answered = server.call(&rig.ada, "echo", json!({ "value": round })).await;
            answered.unwrap_or_else(|error| panic!("round {round} of {variant}: {error:?}"));
            let lost = server.call(&rig.ada, "echo", json!({ "value": round })).await;
            let error = lost.expect_err("the process ends");
            assert_eq!(
                error.kind(),
                ErrorKind::OutcomeUnknown,
                "round {round} of {variant}: {error:?}"
            );
        }
        assert_executions(&upstream, 30);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_way_at_a_restart_is_unknown_and_never_sent_again() {
    for transport in [Transport::Http, Transport::Sse] {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &[]).await;
        let server = rig.admit("counter", upstream.endpoint()).await;
        let call = tokio::spawn({
            let (server, ada) = (server.clone(), rig.ada.clone());
            async move { server.call(&ada, "sleep", json!({ "seconds": 30 })).await }
        });
        upstream.records().wait_for("executions", 1).await;
        upstream.control("do=restart").await;
        let error = call.await.unwrap().expect_err("the answer is lost");
        assert_eq!(
            error.kind(),
            ErrorKind::OutcomeUnknown,
            "{transport:?}: {error:?}"
        );
        let next = eventually("the upstream is usable again", || async {
            server
                .call(&rig.ada, "echo", json!({ "value": "again" }))
                .await
                .ok()
        })
        .await;
        assert_eq!(text(&next), "again");
        assert_eq!(upstream.records().executions_of("sleep"), 1, "{transport:?}");
        assert_eq!(
            outcomes(&server).await[0],
            InvocationOutcome::OutcomeUnknown,
            "{transport:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_down_fails_quickly_and_is_usable_when_it_is_back() {
    let rig = Rig::open().await;
    let (upstream, beside) = (
        Upstream::start(Transport::Http, &[]).await,
        Upstream::start(Transport::Http, &[]).await,
    );
    let server = rig.admit("down", upstream.endpoint()).await;
    let healthy = rig.admit("beside", beside.endpoint()).await;
    server
        .call(&rig.ada, "echo", json!({ "value": 1 }))
        .await
        .unwrap();
    upstream.control("do=down").await;
    for _ in 0..3 {
        let down =
            tokio::time::timeout(SECOND * 5, server.call(&rig.ada, "echo", json!({ "value": 1 }))).await;
        let error = down
            .expect("a refused connection is an answer")
            .expect_err("nobody is there");
        assert!(
            matches!(error.kind(), ErrorKind::Upstream | ErrorKind::Unavailable),
            "{error:?}"
        );
        assert_eq!(
            text(
                &healthy
                    .call(&rig.ada, "echo", json!({ "value": "ok" }))
                    .await
                    .unwrap()
            ),
            "ok"
        );
    }
    upstream.control("do=up").await;
    eventually("the upstream is usable again", || async {
        server.call(&rig.ada, "echo", json!({ "value": 1 })).await.ok()
    })
    .await;
    assert_eq!(
        upstream.records().executions_of("echo"),
        2,
        "one before and one after"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_upstreams_that_restarts_leaves_the_other_and_comes_back() {
    for transport in [Transport::Http, Transport::Sse] {
        let rig = Rig::open().await;
        let (one, two) = (
            Upstream::start(transport, &[]).await,
            Upstream::start(transport, &[]).await,
        );
        let (first, second) = (
            rig.admit("one", one.endpoint()).await,
            rig.admit("two", two.endpoint()).await,
        );
        assert_eq!(
            (count(&first, &rig.ada).await, count(&second, &rig.ada).await),
            (1, 1)
        );
        one.control("do=restart").await;
        assert_eq!(
            count(&second, &rig.ada).await,
            2,
            "the other keeps its state, {transport:?}"
        );
        let _ = first.call(&rig.ada, "count", json!({})).await;
        assert_eq!(count(&first, &rig.ada).await, 1, "{transport:?}");
        assert_eq!(count(&second, &rig.ada).await, 3, "{transport:?}");
    }
}
