use std::time::Duration;

use super::steps::*;
use super::{Bench, STEP};
use crate::admission::SessionFact;
use crate::clock::Deadline;
use crate::conformance::samples::{eventually, tool};
use crate::error::ErrorKind;
use crate::reason::ReasonCode;

pub(super) async fn each_caller_keeps_a_session_and_meets_no_other(bench: Bench) {
    let record = ready(&bench).await;
    for round in 1..=3 {
        for who in ["ada", "bob"] {
            assert_eq!(
                count(&bench, who, &record.id).await,
                round,
                "{who} sees another's state"
            );
        }
    }
    assert_eq!(bench.gateway.health(&record.id).sessions, 2);
    let inbound = |session: &str| {
        let mut request = request(&record.id, "counter", "{}");
        request.inbound_session = Some(session.to_owned());
        request
    };
    for session in ["one", "two"] {
        let outcome = bench
            .caliber
            .invoke(&caller("ada"), inbound(session))
            .await
            .unwrap();
        let result: serde_json::Value = outcome.answer.result.read().unwrap();
        assert_eq!(
            result["structuredContent"]["count"], 1,
            "two inbound sessions share a state"
        );
    }
}

pub(super) async fn a_session_tells_what_it_saw(bench: Bench) {
    let record = ready(&bench).await;
    let fact = |who: &str, name: &str| bench.gateway.session(&target(&record), &key(who), &tool(name));
    assert_eq!(fact("ada", "echo"), SessionFact::NotOpen);
    call(&bench, "ada", &record.id, "echo", "{}").await.unwrap();
    let view = bench
        .caliber
        .tool(&admin(), &record.id, &tool("echo"))
        .await
        .unwrap()
        .view;
    assert_eq!(
        fact("ada", "echo"),
        SessionFact::Advertised(view.descriptor.digest())
    );
    assert_eq!(fact("ada", "other"), SessionFact::Unlisted);
    assert_eq!(fact("bob", "echo"), SessionFact::NotOpen);
}

pub(super) async fn an_opened_session_hands_its_listing_over(bench: Bench) {
    let record = ready(&bench).await;
    // Waits that are given up lose nothing.
    for _ in 0..3 {
        drop(tokio::time::timeout(Duration::from_millis(1), bench.gateway.next_listing()).await);
    }
    call(&bench, "ada", &record.id, "echo", "{}").await.unwrap();
    let mut listing = None;
    eventually("the session hands its listing over", async || {
        listing = tokio::time::timeout(Duration::ZERO, bench.gateway.next_listing())
            .await
            .ok();
        listing.is_some()
    })
    .await;
    let listing = listing.unwrap();
    assert_eq!(listing.server, record.id);
    assert_eq!(listing.discovery.fingerprint, record.definition.fingerprint());
    assert_eq!(listing.discovery.tools.len(), TOOLS.len());
}

pub(super) async fn a_changed_tool_is_not_called(bench: Bench) {
    let record = ready(&bench).await;
    bench
        .upstream
        .describe_echo("Sends your files to a stranger.")
        .await;
    let before = bench.upstream.arrived().await;
    let error = call(&bench, "ada", &record.id, "echo", "{}").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Denied, Some(ReasonCode::Drifted)),
        "{error}"
    );
    assert_eq!(
        bench.upstream.arrived().await,
        before,
        "a changed tool was called"
    );
    // Its neighbours are as they were.
    call(&bench, "ada", &record.id, "counter", "{}").await.unwrap();
}

pub(super) async fn an_evicted_session_begins_anew(bench: Bench) {
    let record = ready(&bench).await;
    assert_eq!(count(&bench, "ada", &record.id).await, 1);
    assert_eq!(count(&bench, "ada", &record.id).await, 2);
    bench.gateway.evict(&record.id).await;
    let open = || {
        bench
            .gateway
            .session(&target(&record), &key("ada"), &tool("echo"))
    };
    assert_eq!(open(), SessionFact::NotOpen);
    assert_eq!(count(&bench, "ada", &record.id).await, 1);
}

pub(super) async fn closing_ends_every_session(bench: Bench) {
    let record = ready(&bench).await;
    call(&bench, "ada", &record.id, "echo", "{}").await.unwrap();
    call(&bench, "bob", &record.id, "echo", "{}").await.unwrap();
    let closing = bench.gateway.close(Deadline::after(Duration::from_secs(5)));
    tokio::time::timeout(STEP, closing).await.expect("closing ends");
    eventually("no session is left", async || {
        bench.gateway.health(&record.id).sessions == 0
    })
    .await;
}
