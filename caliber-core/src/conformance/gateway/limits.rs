use std::time::{Duration, Instant};

use super::steps::*;
use super::{Bench, STEP};
use crate::conformance::samples::eventually;
use crate::error::{ErrorKind, Retry};
use crate::policy::ToolPolicy;
use crate::reason::ReasonCode;

/// How long a place is waited for that nobody gives back.
const SOON: Duration = Duration::from_millis(100);

pub(super) async fn only_so_many_places_are_reserved(bench: Bench) {
    let record = ready(&bench).await;
    let mut places = all_places(&bench, &record.id).await;
    let error = reserve(&bench, &record.id, bench.concurrency, SOON)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.reason(), Some(ReasonCode::ServerBusy), "{error}");
    assert_eq!(error.retry(), Retry::Later, "{error}");
    // Who waits gets the place that comes free.
    let waiting = reserve(&bench, &record.id, bench.concurrency, STEP);
    let freeing = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        places.pop();
    };
    let (place, ()) = tokio::join!(waiting, freeing);
    drop(place.unwrap());
    drop(places);
    places_are_free(&bench, &record.id).await;
}

pub(super) async fn a_changed_limit_holds_at_once(bench: Bench) {
    let record = ready(&bench).await;
    let (id, limit) = (&record.id, bench.concurrency);
    let mut places = all_places(&bench, id).await;
    let beyond = reserve(&bench, id, limit + 1, STEP).await.unwrap();
    // Lowered again: what was taken counts until it is given back.
    drop(places.pop());
    let error = reserve(&bench, id, limit, SOON).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::ServerBusy), "{error}");
    drop((places, beyond));
    let only = reserve(&bench, id, 1, STEP).await.unwrap();
    let error = reserve(&bench, id, 1, SOON).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::ServerBusy), "{error}");
    drop(only);
    places_are_free(&bench, id).await;
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
    let error = reserve(&bench, &record.id, bench.concurrency, SOON)
        .await
        .unwrap_err();
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
    assert!(error.may_have_been_sent(), "{error:?}");
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
    assert!(error.may_have_been_sent(), "{error:?}");
    call(&bench, "ada", &record.id, "text", &arguments(limit / 2))
        .await
        .unwrap();
}
