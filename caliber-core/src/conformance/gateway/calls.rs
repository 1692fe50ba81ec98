use std::time::{Duration, Instant};

use super::steps::*;
use super::{Bench, STEP};
use crate::clock::Deadline;
use crate::error::{ErrorKind, Retry};
use crate::gateway::Target;
use crate::reason::ReasonCode;

pub(super) async fn a_check_and_a_discovery_list_the_tools(bench: Bench) {
    let definition: std::sync::Arc<_> = bench.registration.definition.clone().into();
    let target = Target {
        server: None,
        definition,
    };
    let report = bench.gateway.check(&target, Deadline::after(STEP)).await.unwrap();
    let mut names = report.tools;
    names.sort();
    assert_eq!(names, TOOLS);
    assert!(!report.protocol_version.is_empty());
    let discovery = bench
        .gateway
        .discover(&target, Deadline::after(STEP))
        .await
        .unwrap();
    let mut names: Vec<_> = discovery
        .tools
        .iter()
        .map(|tool| tool.name().to_string())
        .collect();
    names.sort();
    assert_eq!(names, TOOLS);
    assert!(discovery.withheld.is_empty());
    assert_eq!(discovery.fingerprint, target.definition.fingerprint());
    // The session of a discovery is its own, and ends with it.
    let record = ready(&bench).await;
    assert_eq!(bench.gateway.health(&record.id).sessions, 0);
    assert_eq!(bench.upstream.arrived().await, 0, "a discovery has called a tool");
}

pub(super) async fn what_nothing_answers_at_is_an_upstream_error(bench: Bench) {
    let target = Target {
        server: None,
        definition: bench.dead_end.definition.clone().into(),
    };
    let began = Instant::now();
    let error = bench
        .gateway
        .check(&target, Deadline::after(STEP))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Upstream, "{error}");
    assert_eq!(error.reason(), Some(ReasonCode::ConnectFailed), "{error}");
    assert_eq!(error.retry(), Retry::Later, "{error:?}");
    assert!(began.elapsed() < STEP, "it has waited for its deadline");
    let error = bench
        .gateway
        .discover(&target, Deadline::after(STEP))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Upstream, "{error}");
}

pub(super) async fn arguments_and_results_pass_unchanged(bench: Bench) {
    let record = ready(&bench).await;
    for arguments in [
        "{}",
        r#"{"b":1,"a":2}"#,
        r#"{"n":1.10,"big":123456789012345678901234567890,"tiny":1e-400,"minus":-0.0,"plus":1E+2}"#,
        r#"{"text":"天気 🌦 \u2028 \u0000 é \/ \ud83c\udf26","empty":"","null":null,"deep":[[[[{"$defs":{}}]]]]}"#,
        "{ \"spaced\" : [ 1 , 2 ] }",
        "{\"line\":\"\u{2028}\u{2029}\u{feff}\"}",
    ] {
        let outcome = call(&bench, "ada", &record.id, "echo", arguments).await.unwrap();
        let structured = outcome.answer.result.member("structuredContent");
        let structured = structured.expect("the result arrives with its members");
        assert_eq!(structured.as_str(), arguments);
        assert!(!outcome.answer.is_error);
    }
}

pub(super) async fn a_failure_that_a_tool_tells_is_an_answer(bench: Bench) {
    let record = ready(&bench).await;
    let outcome = call(&bench, "ada", &record.id, "fail", "{}").await.unwrap();
    assert!(outcome.answer.is_error);
    assert_eq!(
        outcome
            .answer
            .result
            .member("isError")
            .map(|flag| flag.as_str() == "true"),
        Some(true)
    );
}

pub(super) async fn calls_of_one_caller_run_side_by_side(bench: Bench) {
    let record = ready(&bench).await;
    call(&bench, "ada", &record.id, "echo", "{}").await.unwrap();
    let began = Instant::now();
    let running: Vec<_> = (0..bench.concurrency)
        .map(|_| {
            let (caliber, request) = (
                bench.caliber.clone(),
                request(&record.id, "sleep", r#"{"ms":1000}"#),
            );
            tokio::spawn(async move { caliber.invoke(&caller("ada"), request).await })
        })
        .collect();
    for call in running {
        call.await.unwrap().unwrap();
    }
    // One after the other they would take at least two seconds.
    assert!(
        began.elapsed() < Duration::from_millis(1_900),
        "the calls have waited for one another"
    );
}
