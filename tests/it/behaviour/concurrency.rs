//! Many calls at once.

use std::time::{Duration, Instant};

use caliber::core::invocation::InvocationOutcome;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{
    Rig, Transport, Upstream, assert_executions, assert_no_cross_talk, at_once, outcomes, structured, text,
};

/// The promise is about a second; on a machine that is busy with other things it is still far from twenty.
const TWENTY_SECONDS_AT_ONCE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn twenty_calls_of_a_second_take_about_a_second() {
    let cases = [
        (Transport::Stdio, "legacy"),
        (Transport::Http, "legacy"),
        (Transport::Sse, "legacy"),
        (Transport::Stdio, "modern"),
        (Transport::Http, "modern"),
    ];
    at_once(cases, |(transport, era)| async move {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &["--era", era]).await;
        let server = rig.admit("slow", upstream.endpoint()).await;
        server
            .call(&rig.ada, "echo", json!({ "value": 1 }))
            .await
            .unwrap();
        let started = Instant::now();
        let mut calls = JoinSet::new();
        for _ in 0..20 {
            let (server, ada) = (server.clone(), rig.ada.clone());
            calls.spawn(async move { server.call(&ada, "sleep", json!({ "seconds": 1 })).await });
        }
        for outcome in calls.join_all().await {
            assert_eq!(structured(&outcome.unwrap())["seconds"], 1);
        }
        let took = started.elapsed();
        assert!(took < TWENTY_SECONDS_AT_ONCE, "{took:?} over {transport:?} {era}");
        assert_eq!(upstream.records().executions_of("sleep"), 20);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_calls_in_one_session_get_their_own_answers() {
    for transport in Transport::ALL {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &[]).await;
        let server = rig.admit("echo", upstream.endpoint()).await;
        let mut calls = JoinSet::new();
        for number in 0..100 {
            let (server, ada) = (server.clone(), rig.ada.clone());
            calls.spawn(async move {
                let value = format!("value {number}");
                (server.call(&ada, "echo", json!({ "value": value })).await, value)
            });
        }
        for (outcome, value) in calls.join_all().await {
            assert_eq!(text(&outcome.unwrap()), value, "{transport:?}");
        }
        assert_executions(&upstream, 100);
        assert_eq!(
            upstream.records().count("initializes"),
            2,
            "one for the discovery and one for ada, {transport:?}"
        );
        assert_eq!(
            outcomes(&server).await,
            [InvocationOutcome::Ok; 100],
            "{transport:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_at_once_never_receive_each_others_answers() {
    for transport in Transport::ALL {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &[]).await;
        let server = rig.admit("echo", upstream.endpoint()).await;
        let canaries = [(&rig.ada, "belongs-to-ada"), (&rig.ben, "belongs-to-ben")];
        let mut calls = JoinSet::new();
        for number in 0..100 {
            let (caller, canary) = canaries[number % 2];
            let (server, caller) = (server.clone(), caller.clone());
            calls.spawn(async move {
                let value = format!("{canary} {number}");
                (
                    number,
                    text(
                        &server
                            .call(&caller, "echo", json!({ "value": value }))
                            .await
                            .unwrap(),
                    ),
                )
            });
        }
        let answers = calls.join_all().await;
        let received = answers.iter().map(|(number, answer)| {
            let (caller, canary) = canaries[number % 2];
            (caller, canary, answer.as_str())
        });
        assert_no_cross_talk(&received.collect::<Vec<_>>());
    }
}
