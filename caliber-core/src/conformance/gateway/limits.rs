use std::time::{Duration, Instant};

use super::steps::*;
use super::{Bench, STEP};
use crate::clock::Deadline;
use crate::conformance::samples::eventually;
use crate::error::ErrorKind;
use crate::policy::ToolPolicy;
use crate::reason::ReasonCode;

pub(super) async fn only_so_many_places_are_reserved(bench: Bench) {
    let record = ready(&bench).await;
    // A gateway learns the limit with the definition, at the first call.
    call(&bench, "ada", &record.id, "echo", "{}").await.unwrap();
    let mut places = Vec::new();
    for _ in 0..bench.concurrency {
        places.push(
            bench
                .gateway
                .reserve(&record.id, Deadline::after(STEP))
                .await
                .unwrap(),
        );
    }
    let soon = || Deadline::after(Duration::from_millis(100));
    let error = bench.gateway.reserve(&record.id, soon()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.reason(), Some(ReasonCode::ServerBusy), "{error}");
    // Who waits gets the place that comes free.
    let waiting = bench.gateway.reserve(&record.id, Deadline::after(STEP));
    let freeing = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        places.pop();
    };
    let (place, ()) = tokio::join!(waiting, freeing);
    drop(place.unwrap());
    drop(places);
    places_are_free(&bench, &record.id).await;
}

pub(super) async fn a_running_call_holds_its_place(bench: Bench) {
    let record = ready(&bench).await;
    call(&bench, "ada", &record.id, "echo", "{}").await.unwrap();
    let before = bench.upstream.arrived().await;
    let running: Vec<_> = (0..bench.concurrency)
        .map(|_| {
            let slow = request(&record.id, "sleep", r#"{"ms":60000}"#);
            let caliber = bench.caliber.clone();
            tokio::spawn(async move { caliber.invoke(&caller("ada"), slow).await })
        })
        .collect();
    let all = before + u64::from(bench.concurrency);
    eventually("the calls arrive", async || bench.upstream.arrived().await == all).await;
    let soon = Deadline::after(Duration::from_millis(100));
    let error = bench.gateway.reserve(&record.id, soon).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::ServerBusy), "{error}");
    running.iter().for_each(tokio::task::JoinHandle::abort);
    places_are_free(&bench, &record.id).await;
}

pub(super) async fn a_deadline_ends_a_call_and_frees_its_place(bench: Bench) {
    let record = ready(&bench).await;
    call(&bench, "ada", &record.id, "echo", "{}").await.unwrap();
    let mut request = request(&record.id, "sleep", r#"{"ms":60000}"#);
    request.timeout = Some(Duration::from_millis(300));
    let began = Instant::now();
    let error = bench.caliber.invoke(&caller("ada"), request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(error.reason(), Some(ReasonCode::Timeout), "{error}");
    let took = began.elapsed();
    assert!(
        took >= Duration::from_millis(300) && took < Duration::from_secs(3),
        "it took {took:?}"
    );
    places_are_free(&bench, &record.id).await;
    eventually("the upstream hears of it", async || {
        bench.upstream.cancelled().await >= 1
    })
    .await;
    // The session goes on, or another one does.
    call(&bench, "ada", &record.id, "echo", "{}").await.unwrap();
}

pub(super) async fn a_dropped_call_is_cancelled_upstream_and_frees_its_place(bench: Bench) {
    let record = ready(&bench).await;
    call(&bench, "ada", &record.id, "echo", "{}").await.unwrap();
    let before = bench.upstream.arrived().await;
    let slow = request(&record.id, "sleep", r#"{"ms":60000}"#);
    let caliber = bench.caliber.clone();
    let running = tokio::spawn(async move { caliber.invoke(&caller("ada"), slow).await });
    eventually("the call arrives", async || {
        bench.upstream.arrived().await > before
    })
    .await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    eventually("the upstream is told", async || {
        bench.upstream.cancelled().await == 1
    })
    .await;
    places_are_free(&bench, &record.id).await;
    call(&bench, "ada", &record.id, "echo", "{}").await.unwrap();
}

pub(super) async fn a_result_beyond_its_limit_is_refused(bench: Bench) {
    let record = ready(&bench).await;
    let limit = 4_096;
    let policy = ToolPolicy {
        result_bytes: Some(limit),
        ..ToolPolicy::allow_read()
    };
    allow(&bench, &record.id, "text", policy).await;
    let arguments = |bytes: u64| format!(r#"{{"bytes":{bytes}}}"#);
    call(&bench, "ada", &record.id, "text", &arguments(limit / 2))
        .await
        .unwrap();
    let error = call(&bench, "ada", &record.id, "text", &arguments(limit))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert_eq!(error.reason(), Some(ReasonCode::ResultTooLarge), "{error}");
    call(&bench, "ada", &record.id, "text", &arguments(limit / 2))
        .await
        .unwrap();
}
