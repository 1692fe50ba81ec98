//! What is no message, no value, or two things at once: keys, depth, numbers, envelopes, ids.

use caliber::ErrorKind;
use caliber::core::json::{JsonLimits, JsonText};
use caliber::core::principal::Scope;
use caliber::core::reason::ReasonCode;
use serde_json::json;

use super::stage::{SHORT, Stage, TIME, shown};
use crate::support::{SECOND, Transport, eventually, isolated, text};

/// J1, SH-09: what names a key twice is refused on its way back; a key that only looks alike is another key.
#[test]
fn a_result_says_one_thing() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in [Transport::Stdio, Transport::Http] {
            let attack = stage.admit_shared(transport, &[]).await;
            let mut executions = 1;
            for variant in [
                "structured",
                "result_key",
                "is_error",
                "escaped_key",
                "content_block",
                "meta",
            ] {
                attack
                    .turn(&format!("mode=duplicate_keys&variant={variant}"))
                    .await;
                for answer in stage.both(&attack, "echo", TIME).await {
                    let error = answer.expect_err(variant);
                    assert_eq!(
                        error.reason(),
                        Some(ReasonCode::ProtocolViolation),
                        "{variant}: {error:?}"
                    );
                }
                executions += 2;
            }
            for variant in ["envelope_id", "envelope_result"] {
                attack
                    .turn(&format!("mode=duplicate_keys&variant={variant}"))
                    .await;
                for answer in stage.both(&attack, "echo", SHORT).await {
                    let error = answer.expect_err(variant);
                    assert!(
                        matches!(error.kind(), ErrorKind::Upstream | ErrorKind::Timeout),
                        "{variant}: {error:?}"
                    );
                }
                executions += 2;
            }
            for (variant, kept) in [
                (
                    "structured_case",
                    r#""structuredContent":{"value":"exact","Value":"look-alike"}"#,
                ),
                (
                    "result_case",
                    r#""Content":[{"type":"text","text":"look-alike"}],"IsError":true"#,
                ),
                ("look_alike", r#""ſtructuredContent":{"value":1}"#),
                ("envelope_case", "canary-of-"),
            ] {
                attack
                    .turn(&format!("mode=duplicate_keys&variant={variant}"))
                    .await;
                for answer in stage.both(&attack, "echo", TIME).await {
                    let outcome = answer.unwrap_or_else(|error| panic!("{transport:?} {variant}: {error:?}"));
                    assert!(!outcome.answer.is_error, "{variant}: the exact key decides");
                    let result = outcome.answer.result.as_str();
                    assert!(result.contains(kept), "{variant}: {result}");
                }
                executions += 2;
            }
            attack.end(executions).await;
        }
        stage.end().await;
    });
}

/// J1, SH-09: a call that names its tool or an argument twice is refused before anything is sent, and what is sent is
/// what was judged, byte for byte.
#[test]
fn a_call_says_one_thing() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage.admit(Transport::Http, &[]).await;
        let rig = &stage.rig;
        let api = rig.serve().await;
        let caller = api.as_subject(&rig.admin, "caller", Scope::Viewer).await;
        let path = format!("/mcp-servers/{}/invoke-tool", attack.server.id);
        for body in [
            r#"{"tool_name":"echo","tool_name":"fail","arguments":{}}"#,
            r#"{"tool_name":"echo","Tool_Name":"fail","arguments":{}}"#,
            r#"{"tool_name":"echo","tool_n\u0061me":"fail","arguments":{}}"#,
            r#"{"tool_name":"echo","arguments":{"value":1,"value":2}}"#,
            r#"{"tool_name":"echo","arguments":{"value":1,"valu\u0065":2}}"#,
            r#"{"tool_name":"echo","arguments":{"value":[{"a":1,"a":2}]}}"#,
            r#"{"tool_name":"echo","arguments":{},"arguments":{"value":1}}"#,
        ] {
            let reply = caller.send_text("POST", &path, Some(body.to_owned())).await;
            assert!(
                matches!(reply.status, 400 | 422),
                "{body}: {} {}",
                reply.status,
                reply.text
            );
        }
        let twice = JsonText::parse(r#"{"value":1,"value":2}"#, JsonLimits::ARGUMENTS).unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::Invalid, "{twice:?}");
        assert_eq!(attack.upstream.records().count("executions"), 0);

        let arguments = r#"{ "value":"allowed","Value" : "forbidden","ſ":1, "N":1.0e2 }"#;
        let request = attack.server.raw_request("echo", arguments);
        attack.send(&rig.ada, request, TIME).await.unwrap();
        let requests = attack.upstream.records().text("requests");
        assert!(
            requests.contains(arguments),
            "what was judged is what was sent:\n{requests}"
        );
        drop((api, caller));
        attack.end(1).await;
        stage.end().await;
    });
}

/// J1: a descriptor that names a key twice is withheld; a key that only looks alike decides nothing.
#[test]
fn a_descriptor_says_one_thing() {
    isolated(|| async {
        let stage = Stage::set().await;
        for (variant, offered) in [
            ("name", false),
            ("input_schema", false),
            ("name_case", true),
            ("look_alike", true),
        ] {
            let settings = ["--mode", "duplicate_descriptor_keys", "--variant", variant];
            let attack = stage.admit(Transport::Http, &settings).await;
            let names = attack.server.tool_names().await;
            assert_eq!(
                names.contains(&"harmless".to_owned()),
                offered,
                "{variant}: {names:?}"
            );
            assert!(!names.contains(&"harmful".to_owned()), "{variant}: {names:?}");
            assert_eq!(attack.withheld().await.len(), usize::from(!offered), "{variant}");
            for answer in stage.both(&attack, "echo", TIME).await {
                answer.unwrap();
            }
            attack.end(2).await;
        }
        stage.end().await;
    });
}

/// J2: nesting is refused at a stated depth, wherever it stands and however deep it is, and nothing overflows.
#[test]
fn deep_results_are_refused() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in [Transport::Stdio, Transport::Http] {
            let attack = stage.admit_shared(transport, &[]).await;
            let mut executions = 1;
            for variant in [
                "structured",
                "structured_objects",
                "meta",
                "result_top",
                "content_block",
            ] {
                for depth in [50, 127, 128, 129, 10_000, 1_000_000] {
                    attack
                        .turn(&format!("mode=deep&variant={variant}&depth={depth}"))
                        .await;
                    let answer = stage.call(&attack, "echo", json!({ "value": 1 })).await;
                    executions += 1;
                    if depth == 50 {
                        answer.unwrap_or_else(|error| panic!("{transport:?} {variant} {depth}: {error:?}"));
                        continue;
                    }
                    let error = answer.expect_err("deeper than 64 levels");
                    let names_limit = error.message().contains("64");
                    assert!(
                        error.kind() == ErrorKind::TooLarge && names_limit
                            || error.kind() == ErrorKind::Upstream,
                        "{transport:?} {variant} {depth}: {error:?}"
                    );
                }
            }
            for variant in ["envelope", "error_data", "bare", "unclosed"] {
                attack
                    .turn(&format!("mode=deep&variant={variant}&depth=1000000"))
                    .await;
                for answer in stage.both(&attack, "echo", SHORT).await {
                    match answer {
                        // What an envelope holds beside the result is passed over, and not passed on.
                        Ok(outcome) => assert!(
                            variant == "envelope" && text(&outcome) == "deep",
                            "{transport:?} {variant} was taken: {:?}",
                            outcome.answer
                        ),
                        Err(error) => assert!(
                            matches!(
                                error.kind(),
                                ErrorKind::TooLarge | ErrorKind::Upstream | ErrorKind::Timeout
                            ),
                            "{transport:?} {variant}: {error:?}"
                        ),
                    }
                }
                executions += 2;
            }
            attack.turn("mode=healthy").await;
            stage.call(&attack, "echo", json!({ "value": 1 })).await.unwrap();
            attack.end(executions + 1).await;
        }
        stage.end().await;
    });
}

/// J2: arguments, lists and descriptors are no exception.
#[test]
fn deep_calls_and_lists_are_refused() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage.admit(Transport::Http, &[]).await;
        let api = stage.rig.serve().await;
        let path = format!("/mcp-servers/{}/invoke-tool", attack.server.id);
        for depth in [60, 64, 127, 128, 10_000, 1_000_000] {
            let arguments = format!(r#"{{"value":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
            let parsed = JsonText::parse(arguments.as_str(), JsonLimits::ARGUMENTS);
            if depth < 64 {
                let request = attack.server.raw_request("echo", &arguments);
                let outcome = attack.send(&stage.rig.ada, request, TIME).await.unwrap();
                assert!(outcome.answer.result.as_str().len() > 2 * depth);
                continue;
            }
            let error = parsed.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Invalid),
                "{depth}: {error:?}"
            );
            let body = format!(r#"{{"tool_name":"echo","arguments":{arguments}}}"#);
            let reply = api.send_text("POST", &path, Some(body)).await;
            assert!(
                (400..500).contains(&reply.status),
                "{depth}: {} {}",
                reply.status,
                reply.text
            );
        }
        drop(api);
        attack.end(1).await;

        for depth in ["128", "1000000"] {
            let attack = stage
                .register(
                    Transport::Stdio,
                    &["--mode", "deep", "--when", "list", "--depth", depth],
                )
                .await;
            match attack.server.discover().await {
                // What a page holds beside its tools is passed over, and not passed on.
                Ok(found) => assert_eq!(found.inventory.tool_count, 0),
                Err(error) => {
                    assert!(
                        matches!(error.kind(), ErrorKind::Upstream | ErrorKind::TooLarge),
                        "{error:?}"
                    );
                    attack.note_error(&error);
                }
            }
            attack.end(0).await;
        }
        let attack = stage
            .admit(Transport::Stdio, &["--mode", "one_broken", "--variant", "deep"])
            .await;
        assert_eq!(
            attack.server.tool_names().await.len(),
            9,
            "one descriptor is too deep"
        );
        assert_eq!(attack.withheld().await.len(), 1);
        attack.end(0).await;
        stage.end().await;
    });
}

/// J3, SH-10: numbers that no double holds pass both ways as they are written, or are refused; they are never rounded.
#[test]
fn numbers_are_never_rounded() {
    isolated(|| async {
        let stage = Stage::set().await;
        let numbers = [
            "9007199254740993",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551616",
            "-0",
            "-0.0",
            "0.1000000000000000000000000000000000000001",
            "1E+2",
            "1.0",
            "123456789012345678901234567890",
            "1e400",
        ];
        for transport in Transport::ALL {
            let attack = stage.admit_shared(transport, &[]).await;
            let mut executions = 1;
            for number in numbers {
                let arguments = format!(r#"{{"value":{{"id":{number}}}}}"#);
                let request = attack.server.raw_request("echo", &arguments);
                match attack.send(&stage.rig.ada, request, TIME).await {
                    Ok(outcome) => {
                        let result = outcome.answer.result.as_str();
                        let back = format!(r#""structuredContent":{{"value":{{"id":{number}}}}}"#);
                        assert!(result.contains(&back), "{transport:?} {number}: {result}");
                        let requests = attack.upstream.records().text("requests");
                        assert!(
                            requests.contains(&arguments),
                            "{transport:?} {number} went out otherwise"
                        );
                        executions += 1;
                    }
                    // 1e400 is no value that a schema can be asked about.
                    Err(error) => assert!(
                        number == "1e400" && error.kind() == ErrorKind::Denied,
                        "{transport:?} {number}: {error:?}"
                    ),
                }
            }
            for variant in ["all", "meta"] {
                attack.turn(&format!("mode=numbers&variant={variant}")).await;
                for answer in stage.both(&attack, "count", TIME).await {
                    let outcome = answer.unwrap_or_else(|error| panic!("{transport:?} {variant}: {error:?}"));
                    let result = outcome.answer.result.as_str();
                    let values = format!(
                        "[{},18446744073709551615,18446744073709551616,1e400,-1e400,-0,-0.0,0.10000",
                        "9007199254740993,9223372036854775807,-9223372036854775808"
                    );
                    assert!(result.contains(&values), "{transport:?} {variant}: {result}");
                }
                executions += 2;
            }
            attack
                .turn("mode=numbers&variant=long_integer&bytes=1000000")
                .await;
            match stage.call(&attack, "big", json!({ "bytes": 1 })).await {
                Ok(outcome) => assert!(outcome.answer.result.as_str().contains(&"7".repeat(999_999))),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Upstream, "{error:?}"),
            }
            attack.turn("mode=numbers&variant=not_numbers").await;
            for answer in stage.both(&attack, "big", SHORT).await {
                let error = answer.expect_err("that is no JSON");
                assert!(
                    matches!(error.kind(), ErrorKind::Upstream | ErrorKind::Timeout),
                    "{error:?}"
                );
            }
            attack.end(executions + 3).await;
        }
        stage.end().await;
    });
}

/// Answers whose id can be read, and which are answers in nothing else.
const ADDRESSED: [&str; 12] = [
    "jsonrpc_1_0",
    "jsonrpc_number",
    "error_string",
    "error_empty",
    "error_code_string",
    "error_code_float",
    "error_code_huge",
    "error_no_code",
    "error_no_message",
    "error_message_object",
    "error_and_result",
    "neither",
];
/// Results that are none, in a right envelope.
const NO_RESULT: [&str; 13] = [
    "result_string",
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
    "lone_surrogate",
];
/// What cannot be told to be an answer to anything.
const NO_ANSWER: [&str; 17] = [
    "answer_with_method",
    "no_jsonrpc",
    "no_id",
    "id_null",
    "id_object",
    "id_array",
    "id_float",
    "id_true",
    "array_batch",
    "empty_batch",
    "empty_object",
    "bare_string",
    "bare_null",
    "truncated",
    "not_json",
    "single_quotes",
    "invalid_utf8",
];

/// J4: a malformed answer is an error of its call at once, wherever it can be told whose it is; the session goes on.
#[test]
fn malformed_answers_are_errors_of_their_call() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in Transport::ALL {
            let attack = stage.admit_shared(transport, &[]).await;
            let mut executions = 1;
            for variant in ADDRESSED.iter().chain(&NO_RESULT) {
                attack.turn(&format!("mode=bad_answer&variant={variant}")).await;
                for answer in stage.both(&attack, "echo", TIME).await {
                    match answer {
                        // Half a pair of surrogates is JSON; it may pass as it is.
                        Ok(outcome) => assert!(
                            *variant == "lone_surrogate"
                                && outcome.answer.result.as_str().contains(r"\ud800"),
                            "{transport:?} {variant} was taken: {}",
                            outcome.answer.result.as_str()
                        ),
                        Err(error) => {
                            assert_eq!(
                                error.kind(),
                                ErrorKind::Upstream,
                                "{transport:?} {variant}: {error:?}"
                            );
                        }
                    }
                }
                executions += 2;
            }
            attack.turn("mode=healthy").await;
            let initializes = attack.upstream.records().count("initializes");
            for answer in stage.both(&attack, "echo", TIME).await {
                assert!(text(&answer.unwrap()).starts_with("canary-of-"));
            }
            assert_eq!(
                attack.upstream.records().count("initializes"),
                initializes,
                "the session goes on"
            );
            attack.end(executions + 2).await;
        }
        stage.end().await;
    });
}

/// J4: what answers nothing is dropped; the caller is told at the deadline at the latest, and the next call works.
#[test]
fn what_answers_nothing_is_dropped() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in [Transport::Stdio, Transport::Http] {
            let attack = stage.admit_shared(transport, &[]).await;
            let mut executions = 1;
            for variant in NO_ANSWER {
                attack.turn(&format!("mode=bad_answer&variant={variant}")).await;
                for answer in stage.both(&attack, "echo", SHORT / 2).await {
                    let error = answer
                        .err()
                        .unwrap_or_else(|| panic!("{transport:?} {variant} was taken"));
                    assert!(
                        matches!(
                            error.kind(),
                            ErrorKind::Upstream | ErrorKind::Timeout | ErrorKind::OutcomeUnknown
                        ),
                        "{transport:?} {variant}: {error:?}"
                    );
                }
                attack.turn("mode=healthy").await;
                let outcome = stage.call(&attack, "echo", json!({ "value": variant })).await;
                let outcome =
                    outcome.unwrap_or_else(|error| panic!("{transport:?} after {variant}: {error:?}"));
                assert_eq!(text(&outcome), variant, "{transport:?}");
                executions += 3;
            }
            attack.end(executions).await;
        }
        stage.end().await;
    });
}

/// J4: a handshake or a list that is none is an error of the discovery, in bounded time.
#[test]
fn malformed_handshakes_and_lists_are_errors() {
    isolated(|| async {
        let stage = Stage::set_with(|config| config.settings.discovery_timeout = 2 * SECOND).await;
        for transport in [Transport::Stdio, Transport::Http] {
            for variant in [
                "version_unknown",
                "version_number",
                "version_null",
                "no_version",
                "capabilities_array",
                "result_string",
                "empty",
                "huge_instructions",
                "error",
            ] {
                let attack = stage
                    .register(transport, &["--mode", "bad_initialize", "--variant", variant])
                    .await;
                let error = attack.server.discover().await.expect_err(variant);
                assert!(
                    matches!(error.kind(), ErrorKind::Upstream | ErrorKind::TooLarge),
                    "{transport:?} {variant}: {error:?}"
                );
                attack.end(0).await;
            }
            for variant in [
                "result_string",
                "result_array",
                "error_string",
                "truncated",
                "not_json",
            ] {
                let settings = ["--mode", "bad_answer", "--variant", variant, "--when", "list"];
                let attack = stage.register(transport, &settings).await;
                let error = attack.server.discover().await.expect_err(variant);
                assert!(
                    matches!(error.kind(), ErrorKind::Upstream | ErrorKind::Timeout),
                    "{transport:?} {variant}: {error:?}"
                );
                attack.note_error(&error);
                attack.end(0).await;
            }
        }
        stage.end().await;
    });
}

/// J5: an answer under a foreign id reaches nobody, and a second answer to one call is dropped.
#[test]
fn answers_under_odd_ids_reach_nobody_else() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in Transport::ALL {
            let attack = stage.admit(transport, &[]).await;
            for answer in stage.both(&attack, "echo", TIME).await {
                answer.unwrap();
            }
            let turn = async |query: &str| match transport {
                Transport::Stdio => attack.turn_all(query, 2).await,
                _ => attack.turn(query).await,
            };
            let mut executions = 2;
            for variant in [
                "wrong_first",
                "unknown",
                "twice",
                "string",
                "reversed",
                "only_wrong",
                "float",
                "null",
            ] {
                turn(&format!(
                    "mode=answer_ids&variant={variant}&answer=sse&seconds=0.3"
                ))
                .await;
                let answered = !matches!(variant, "only_wrong" | "float" | "null");
                for (answer, own) in stage
                    .both(&attack, "echo", SHORT)
                    .await
                    .into_iter()
                    .zip(["ada", "ben"])
                {
                    let shown = shown(&answer);
                    match answer {
                        Ok(outcome) if answered => {
                            assert_eq!(
                                text(&outcome),
                                format!("canary-of-{own}"),
                                "{transport:?} {variant}"
                            );
                        }
                        answer => assert!(!answered && answer.is_err(), "{transport:?} {variant}: {shown}"),
                    }
                }
                turn("mode=healthy").await;
                for (answer, own) in stage
                    .both(&attack, "echo", TIME)
                    .await
                    .into_iter()
                    .zip(["ada", "ben"])
                {
                    let outcome =
                        answer.unwrap_or_else(|error| panic!("{transport:?} after {variant}: {error:?}"));
                    assert_eq!(
                        text(&outcome),
                        format!("canary-of-{own}"),
                        "{transport:?} after {variant}"
                    );
                }
                executions += 4;
            }
            attack.end(executions).await;
        }
        stage.end().await;
    });
}

/// J5: a thousand rounds of two callers in one session, and each has its own answer each time.
#[test]
fn a_thousand_rounds_of_two_callers_never_cross() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage.admit_shared(Transport::Stdio, &[]).await;
        const ROUNDS: usize = 1_000;
        for _ in 0..ROUNDS / 20 {
            let rounds = (0..20).map(|_| stage.both(&attack, "echo", TIME));
            for [ada, ben] in futures_of(rounds).await {
                assert_eq!(
                    (text(&ada.unwrap()), text(&ben.unwrap())),
                    ("canary-of-ada".into(), "canary-of-ben".into())
                );
            }
        }
        eventually("everything was sent", || {
            let sent = attack.upstream.records().count("executions") == 1 + 2 * ROUNDS;
            async move { sent.then_some(()) }
        })
        .await;
        attack.end(1 + 2 * ROUNDS).await;
        stage.end().await;
    });
}

/// All of them at once.
async fn futures_of<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in pending.iter_mut().filter(|(_, output)| output.is_none()) {
            if let std::task::Poll::Ready(ready) = future.as_mut().poll(context) {
                *output = Some(ready);
            }
        }
        match pending.iter().all(|(_, output)| output.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    pending.into_iter().filter_map(|(_, output)| output).collect()
}
