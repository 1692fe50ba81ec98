//! Lines of a child process: noise, limits, floods, ends.

use std::time::{Duration, Instant};

use caliber_core::gateway::Gateway;
use caliber_core::reason::ReasonCode;
use caliber_core::{ErrorKind, Settings};
use caliber_gateway::GatewaySettings;

use crate::support::{House, Over, Rig, eventually, text};

#[tokio::test(flavor = "multi_thread")]
async fn noise_between_messages_is_dropped_and_counted() {
    let house = House::new();
    let rig = Rig::new(Over::Stdio, &["--mode", "stdout_noise"]).await;
    let server = house.add("noisy", &rig).await;
    for _ in 0..3 {
        let outcome = house.call(&server, "echo", r#"{"value":"x"}"#).await.unwrap();
        assert_eq!(text(&outcome), "x");
    }
    assert!(house.gateway.health(&server).dropped_messages > 0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_may_end_with_carriage_returns() {
    let house = House::new();
    let rig = Rig::new(Over::Stdio, &["--mode", "crlf"]).await;
    let server = house.add("crlf", &rig).await;
    house.call(&server, "echo", r#"{"value":1}"#).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_break_in_an_answer_forges_nothing() {
    let house = House::new();
    for variant in ["pretty", "forged"] {
        let rig = Rig::new(
            Over::Stdio,
            &[
                "--mode",
                "newline_in_answer",
                "--variant",
                variant,
                "--times",
                "1",
            ],
        )
        .await;
        let server = house.add(variant, &rig).await;
        let time = Duration::from_millis(700);
        let outcome = house.call_within(&server, "echo", r#"{"value":1}"#, time).await;
        let error = outcome.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Upstream),
            "{variant}: {error:?}"
        );
        let outcome = house.call(&server, "echo", r#"{"value":"next"}"#).await.unwrap();
        assert_eq!(text(&outcome), "next", "{variant}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_argument_cannot_become_a_message() {
    let house = House::new();
    let rig = Rig::new(Over::Stdio, &[]).await;
    let server = house.add("framed", &rig).await;
    house.call(&server, "echo", r#"{"value":0}"#).await.unwrap();
    let before = rig.records("requests").len();
    let forged = "{\n\"value\"\r\n:\n\"\\n{\\\"jsonrpc\\\":\\\"2.0\\\",\\\"id\\\":1,\\\"method\\\":\\\"tools/call\\\"}\"\n}";
    let outcome = house.call(&server, "echo", forged).await.unwrap();
    assert!(text(&outcome).starts_with("\n{\"jsonrpc\""));
    assert_eq!(rig.records("requests").len(), before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_standard_error_stops_nothing() {
    let house = House::new();
    for variant in ["lines", "no_newline", "binary", "escapes"] {
        let rig = Rig::new(
            Over::Stdio,
            &["--mode", "stderr_flood", "--variant", variant, "--when", "every"],
        )
        .await;
        let server = house.add(&variant.replace('_', "-"), &rig).await;
        for _ in 0..3 {
            house.call(&server, "echo", r#"{"value":1}"#).await.unwrap();
        }
        let tail = house.gateway.health(&server).stderr_tail.unwrap();
        assert!(
            tail.len() <= 4 * (64 << 10) && !tail.contains('\u{1b}'),
            "{variant}"
        );
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_line_arrives_and_a_longer_one_names_the_limit() {
    const LIMIT: usize = 1 << 20;
    let settings = GatewaySettings {
        message_bytes: LIMIT,
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    let rig = Rig::new(Over::Stdio, &[]).await;
    let server = house.add("lines", &rig).await;
    house.call(&server, "echo", r#"{"value":1}"#).await.unwrap();
    rig.control(&format!("mode=line_of&bytes={LIMIT}")).await;
    house.call(&server, "echo", r#"{"value":1}"#).await.unwrap();
    rig.control(&format!("mode=line_of&bytes={}", LIMIT + 1)).await;
    let error = house.call(&server, "echo", r#"{"value":1}"#).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::ResultTooLarge), "{error}");
    assert!(error.message().contains(&LIMIT.to_string()), "{error}");
    rig.control("mode=healthy").await;
    house.call(&server, "echo", r#"{"value":1}"#).await.unwrap();
    // The session has survived it.
    assert_eq!(rig.records("initializes").len(), 2);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_without_end_is_cut() {
    const LIMIT: usize = 1 << 20;
    let settings = GatewaySettings {
        message_bytes: LIMIT,
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    for variant in ["json", "letters", "spaces"] {
        let rig = Rig::new(Over::Stdio, &["--mode", "unbounded_line", "--variant", variant]).await;
        let server = house.add(variant, &rig).await;
        let error = house.call(&server, "echo", r#"{"value":1}"#).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{variant}: {error}");
        eventually("its process ends", async || {
            rig.records("pids").iter().all(|line| {
                let pid = line.split('\t').next().unwrap();
                !std::path::Path::new("/proc").join(pid).exists()
            })
        })
        .await;
        // Another process takes its place.
        let error = house.call(&server, "echo", r#"{"value":1}"#).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{variant}: {error}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_amid_a_call_is_told_at_once_and_the_call_is_not_repeated() {
    let house = House::new();
    for variant in ["exit", "kill", "half_line", "close_stdout"] {
        let rig = Rig::new(Over::Stdio, &["--mode", "exit_on_call", "--variant", variant]).await;
        let server = house.add(&variant.replace('_', "-"), &rig).await;
        let began = Instant::now();
        let error = house.call(&server, "echo", r#"{"value":1}"#).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{variant}: {error}");
        // Opening the session is part of it.
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{variant}: {:?}",
            began.elapsed()
        );
        assert_eq!(rig.records("executions").len(), 1, "{variant}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_descendant_that_holds_the_output_open_holds_no_call_up() {
    let house = House::new();
    for variant in ["setsid", "same_group"] {
        let arguments = [
            "--mode",
            "grandchild",
            "--variant",
            variant,
            "--mode",
            "exit_on_call",
        ];
        let rig = Rig::new(Over::Stdio, &arguments).await;
        let server = house.add(&variant.replace('_', "-"), &rig).await;
        let error = house.call(&server, "echo", r#"{"value":1}"#).await.unwrap_err();
        // Not the deadline of 45 s.
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{variant}: {error}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_do_not_come_back_through_standard_error() {
    let house = House::new();
    let rig = Rig::new(
        Over::Stdio,
        &["--mode", "exit_at_start", "--message", "bad key canary-4711"],
    )
    .await;
    let mut definition = crate::support::definition("leaky", rig.endpoint());
    if let caliber_core::server::Endpoint::Stdio(stdio) = &mut definition.endpoint {
        let value = caliber_core::secret::ConfigValue::from_input("canary-4711");
        stdio.env.insert("API_KEY".to_owned(), value);
    }
    let target = caliber_core::gateway::Target {
        server: None,
        definition: definition.into(),
    };
    let deadline = caliber_core::clock::Deadline::after(Duration::from_secs(10));
    let error = house.gateway.check(&target, deadline).await.unwrap_err();
    assert!(error.message().contains("bad key"), "{error}");
    assert!(!format!("{error} {error:?}").contains("4711"), "{error}");
}
