//! Results: odd, broken, hostile, large; and what upstreams send beside them.

use std::time::{Duration, Instant};

use caliber_core::gateway::Gateway;
use caliber_core::reason::ReasonCode;
use caliber_core::{ErrorKind, Settings};
use caliber_gateway::GatewaySettings;

use crate::support::{EVERY_TRANSPORT, House, Over, Rig, for_each, text};

const ECHO: &str = r#"{"value":"x"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn broken_answers_are_errors_of_this_call_only() {
    let house = House::new();
    for_each(EVERY_TRANSPORT, async |over| {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("broken-{over:?}"), &rig).await;
        house.call(&server, "echo", ECHO).await.unwrap();
        for variant in [
            "no_jsonrpc",
            "jsonrpc_1_0",
            "jsonrpc_number",
            "id_object",
            "id_array",
            "id_float",
            "id_true",
            "result_string",
            "result_null",
            "result_array",
            "result_number",
            "result_empty",
            "content_missing",
            "content_null",
            "content_string",
            "content_object",
            "content_item_string",
            "content_item_null",
            "content_item_no_type",
            "is_error_string",
            "error_string",
            "error_null",
            "error_code_string",
            "error_code_float",
            "error_no_code",
            "error_no_message",
            "error_message_object",
            "error_and_result",
            "neither",
            "answer_with_method",
            "array_batch",
            "empty_batch",
            "bare_string",
            "truncated",
            "two_values",
            "not_json",
            "raw_control",
            "invalid_utf8",
        ] {
            rig.control(&format!("mode=bad_answer&variant={variant}")).await;
            let before = rig.records("executions").len();
            let time = Duration::from_millis(600);
            let outcome = house.call_within(&server, "echo", ECHO, time).await;
            let error = outcome
                .err()
                .unwrap_or_else(|| panic!("{over:?} {variant} was taken for an answer"));
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Upstream | ErrorKind::Timeout | ErrorKind::OutcomeUnknown
                ),
                "{over:?} {variant}: {error:?}"
            );
            assert_eq!(rig.records("executions").len(), before + 1, "{over:?} {variant}");
            rig.control("mode=healthy").await;
            let outcome = house.call(&server, "echo", ECHO).await;
            let outcome = outcome.unwrap_or_else(|error| panic!("{over:?} after {variant}: {error:?}"));
            assert_eq!(text(&outcome), "x");
        }
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_stands_twice_is_refused() {
    let house = House::new();
    for_each([Over::Stdio, Over::Http], async |over| {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("twice-{over:?}"), &rig).await;
        house.call(&server, "echo", ECHO).await.unwrap();
        for variant in [
            "structured",
            "result_key",
            "is_error",
            "escaped_key",
            "content_block",
            "meta",
            "envelope_id",
            "envelope_result",
        ] {
            rig.control(&format!("mode=duplicate_keys&variant={variant}"))
                .await;
            let time = Duration::from_millis(600);
            let outcome = house.call_within(&server, "echo", ECHO, time).await;
            let error = outcome.err().unwrap_or_else(|| panic!("{variant} was taken"));
            assert!(
                matches!(error.kind(), ErrorKind::Upstream | ErrorKind::Timeout),
                "{over:?} {variant}: {error:?}"
            );
        }
        for variant in ["structured_case", "result_case", "look_alike"] {
            rig.control(&format!("mode=duplicate_keys&variant={variant}"))
                .await;
            let outcome = house.call(&server, "echo", ECHO).await;
            let outcome = outcome.unwrap_or_else(|error| panic!("{over:?} {variant}: {error:?}"));
            assert!(!outcome.answer.is_error, "{over:?} {variant}");
        }
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_nesting_is_refused_at_a_stated_depth() {
    let house = House::new();
    for_each([Over::Stdio, Over::Http], async |over| {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("deep-{over:?}"), &rig).await;
        house.call(&server, "echo", ECHO).await.unwrap();
        for variant in ["structured", "structured_objects", "meta", "content_block"] {
            for depth in [50, 127, 128, 10_000, 1_000_000] {
                rig.control(&format!("mode=deep&variant={variant}&depth={depth}"))
                    .await;
                let outcome = house
                    .call_within(&server, "echo", ECHO, Duration::from_secs(5))
                    .await;
                match (depth, outcome) {
                    (50, Ok(_)) => {}
                    (50, Err(error)) => panic!("{variant}: {error}"),
                    (_, Ok(_)) => panic!("{over:?} {variant} {depth} was taken"),
                    (_, Err(error)) => assert!(
                        matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Upstream),
                        "{over:?} {variant} {depth}: {error}"
                    ),
                }
            }
        }
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_results_pass_as_they_are() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &[]).await;
    let server = house.add("odd", &rig).await;
    for variant in [
        "file_link",
        "http_link",
        "script_link",
        "unknown_type",
        "unknown_fields",
        "empty_content",
        "all_types",
        "texts",
    ] {
        rig.control(&format!("mode=odd_result&variant={variant}")).await;
        let outcome = house.call(&server, "echo", ECHO).await;
        let outcome = outcome.unwrap_or_else(|error| panic!("{variant}: {error}"));
        assert!(outcome.answer.result.member("content").is_some(), "{variant}");
    }
    rig.control("mode=odd_result&variant=unknown_type").await;
    let outcome = house.call(&server, "echo", ECHO).await.unwrap();
    let result: serde_json::Value = outcome.answer.result.read().unwrap();
    let kind = result["content"][0]["type"].as_str().unwrap().to_owned();
    assert!(
        !["text", "image", "audio", "resource", "resource_link"].contains(&kind.as_str()),
        "{result}"
    );
    rig.control("mode=numbers&variant=all").await;
    let outcome = house.call(&server, "echo", ECHO).await.unwrap();
    for number in ["1e400", "9007199254740993", "18446744073709551616"] {
        assert!(outcome.answer.result.as_str().contains(number), "{number}");
    }
    assert!(rig.records("sentinel").is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_results_arrive_or_name_the_limit() {
    let core = Settings {
        result_bytes: 10 << 20,
        ..Settings::default()
    };
    let house = House::with(GatewaySettings::default(), core);
    for_each(EVERY_TRANSPORT, async |over| {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("large-{over:?}"), &rig).await;
        for megabytes in [1, 3, 9] {
            let arguments = format!(r#"{{"bytes":{}}}"#, megabytes << 20);
            let outcome = house.call(&server, "big", &arguments).await.unwrap();
            assert_eq!(text(&outcome).len(), megabytes << 20, "{over:?}");
        }
        let arguments = format!(r#"{{"bytes":{}}}"#, 11 << 20);
        let error = house.call(&server, "big", &arguments).await.unwrap_err();
        assert_eq!(
            error.reason(),
            Some(ReasonCode::ResultTooLarge),
            "{over:?}: {error}"
        );
        assert!(
            error.message().contains(&(10 << 20).to_string())
                || error.message().contains(&((10 << 20) + (64 << 10)).to_string()),
            "{over:?}: {error}"
        );
        house.call(&server, "echo", ECHO).await.unwrap();
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_under_odd_ids_reach_nobody_else() {
    let house = House::new();
    for_each(EVERY_TRANSPORT, async |over| {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("ids-{over:?}"), &rig).await;
        house.call(&server, "echo", ECHO).await.unwrap();
        for (variant, answered) in [
            ("wrong_first", true),
            ("unknown", true),
            ("twice", true),
            ("string", true),
            ("only_wrong", false),
            ("float", false),
            ("null", false),
        ] {
            rig.control(&format!("mode=answer_ids&variant={variant}&answer=sse"))
                .await;
            let time = Duration::from_millis(700);
            let outcome = house.call_within(&server, "echo", ECHO, time).await;
            if answered {
                outcome.unwrap_or_else(|error| panic!("{over:?} {variant}: {error:?}"));
            } else {
                let error = outcome.err().unwrap_or_else(|| panic!("{variant} was taken"));
                assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::Timeout | ErrorKind::Upstream | ErrorKind::OutcomeUnknown
                    ),
                    "{over:?} {variant}: {error:?}"
                );
            }
            rig.control("mode=healthy").await;
            let outcome = house
                .call(&server, "echo", &format!(r#"{{"value":"{variant}"}}"#))
                .await;
            let outcome = outcome.unwrap_or_else(|error| panic!("{over:?} after {variant}: {error:?}"));
            assert_eq!(text(&outcome), variant, "{over:?}");
        }
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_is_nobodys() {
    let house = House::new();
    for_each(EVERY_TRANSPORT, async |over| {
        let rig = Rig::new(over, &["--mode", "late_answer", "--seconds", "0.5"]).await;
        let server = house.add(&format!("late-{over:?}"), &rig).await;
        let time = Duration::from_millis(300);
        let error = house
            .call_within(&server, "echo", r#"{"value":"first"}"#, time)
            .await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Timeout, "{over:?}");
        for _ in 0..5 {
            let outcome = house
                .call(&server, "echo", r#"{"value":"second"}"#)
                .await
                .unwrap();
            assert_eq!(text(&outcome), "second", "{over:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_keeps_nothing_alive() {
    let house = House::new();
    for_each(EVERY_TRANSPORT, async |over| {
        for variant in [
            "forever",
            "flood",
            "wrong_token",
            "decreasing",
            "bad_types",
            "after_answer",
        ] {
            let rig = Rig::new(
                over,
                &[
                    "--mode",
                    "progress_storm",
                    "--variant",
                    variant,
                    "--count",
                    "3000",
                ],
            )
            .await;
            let name = format!("{over:?}-{}", variant.replace('_', "-"));
            let server = house.add(&name, &rig).await;
            let time = Duration::from_secs(if variant == "forever" { 1 } else { 10 });
            let outcome = house.call_within(&server, "echo", ECHO, time).await;
            if variant == "forever" {
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Timeout, "{name}");
            } else {
                outcome.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            }
        }
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_the_upstream_are_refused_quickly() {
    let house = House::new();
    for_each(EVERY_TRANSPORT, async |over| {
        for variant in [
            "all",
            "sampling",
            "elicitation_url",
            "roots",
            "unknown",
            "live_id",
        ] {
            let rig = Rig::new(over, &["--mode", "server_requests", "--variant", variant]).await;
            let name = format!("{over:?}-{}", variant.replace('_', "-"));
            let server = house.add(&name, &rig).await;
            let began = Instant::now();
            let outcome = house.call(&server, "echo", ECHO).await;
            outcome.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert!(began.elapsed() < Duration::from_secs(3), "{name}");
            let replies = rig.wait_for_records("client_responses", 1).await;
            assert!(
                replies.iter().any(|reply| reply.contains("-32601")),
                "{name}: {replies:?}"
            );
            assert!(house.gateway.health(&server).dropped_messages > 0, "{name}");
        }
        let rig = Rig::new(
            over,
            &[
                "--mode",
                "server_requests",
                "--variant",
                "flood",
                "--count",
                "3000",
            ],
        )
        .await;
        let server = house.add(&format!("{over:?}-flood"), &rig).await;
        house.call(&server, "echo", ECHO).await.unwrap();
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_modern_answer_is_told_as_what_it_is() {
    let house = House::new();
    for over in [Over::Stdio, Over::Http] {
        let rig = Rig::new(
            over,
            &["--era", "modern", "--mode", "input_required", "--variant", "once"],
        )
        .await;
        let server = house.add(&format!("input-{over:?}"), &rig).await;
        let error = house.call(&server, "echo", ECHO).await.unwrap_err();
        assert_eq!(error.reason(), Some(ReasonCode::UpstreamError), "{error}");
        assert!(error.message().contains("input"), "{error}");
        let rig = Rig::new(
            over,
            &[
                "--era",
                "modern",
                "--mode",
                "input_required",
                "--variant",
                "unknown_result_type",
            ],
        )
        .await;
        let server = house.add(&format!("unknown-{over:?}"), &rig).await;
        let error = house.call(&server, "echo", ECHO).await.unwrap_err();
        assert_eq!(error.reason(), Some(ReasonCode::ProtocolViolation), "{error}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_that_a_tool_tells_are_answers_and_errors_are_errors() {
    let house = House::new();
    for over in EVERY_TRANSPORT {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("fails-{over:?}"), &rig).await;
        let outcome = house.call(&server, "fail", r#"{"text":"no"}"#).await.unwrap();
        assert!(outcome.answer.is_error);
        assert_eq!(text(&outcome), "no");
    }
    house.close().await;
}
