//! Calls that are answered late, never, twice over, or with more than anybody asked for.

use std::time::{Duration, Instant};

use caliber::ErrorKind;
use caliber::core::reason::ReasonCode;
use serde_json::json;

use super::stage::{SHORT, Stage, TIME, shown};
use crate::support::{SECOND, Transport, eventually, isolated, text};

/// C1: whoever ran out of time has one answer, and what comes later is nobody's.
#[test]
fn a_late_answer_is_discarded() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in Transport::ALL {
            let attack = stage.admit_shared(transport, &[]).await;
            attack.turn("mode=late_answer&seconds=1.3&times=2").await;
            stage.both_fail(&attack, "echo", SHORT, ErrorKind::Timeout).await;
            // The late answers arrive while these are under way.
            let sleep = attack.send(
                &stage.rig.ada,
                attack.server.request("sleep", json!({ "seconds": 0.5 })),
                TIME,
            );
            let echo = stage.both(&attack, "echo", TIME);
            let (sleep, [ada, ben]) = tokio::join!(sleep, echo);
            assert!(text(&sleep.unwrap()).starts_with("slept"), "{transport:?}");
            assert_eq!(
                (text(&ada.unwrap()), text(&ben.unwrap())),
                ("canary-of-ada".into(), "canary-of-ben".into())
            );
            attack.end(6).await;
        }
        stage.end().await;
    });
}

/// C1, O3: a call that is never answered ends at its deadline.
#[test]
fn silence_ends_at_the_deadline() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in Transport::ALL {
            let attack = stage.admit(transport, &["--mode", "silent_call"]).await;
            stage.both_fail(&attack, "echo", SHORT, ErrorKind::Timeout).await;
            // The upstream is told with its own id.
            attack.upstream.records().wait_for("cancels", 2).await;
            let live = attack
                .upstream
                .records()
                .lines("cancels")
                .iter()
                .all(|line| line[2] == "live");
            assert!(
                live,
                "{transport:?}: {}",
                attack.upstream.records().text("cancels")
            );
            attack.end(2).await;
        }
        stage.end().await;
    });
}

/// C2: a hundred calls that are given up at an upstream that does not care take no place and leave nothing waiting.
#[test]
fn an_upstream_that_ignores_cancellation_keeps_no_place() {
    isolated(|| async {
        let stage = Stage::set_with(|config| config.gateway.concurrency = 4).await;
        for transport in [Transport::Stdio, Transport::Http] {
            let attack = stage.admit_shared(transport, &["--times", "100"]).await;
            attack
                .turn("mode=ignore_cancel&times=100&seconds=3&variant=answer")
                .await;
            let records = attack.upstream.records();
            for round in 0..25 {
                let calls: Vec<_> = (0..4)
                    .map(|_| {
                        let (server, ada) = (attack.server.clone(), stage.rig.ada.clone());
                        tokio::spawn(async move { server.call(&ada, "echo", json!({ "value": 1 })).await })
                    })
                    .collect();
                records.wait_for("executions", 1 + 4 * (round + 1)).await;
                for call in calls {
                    call.abort();
                    assert!(call.await.unwrap_err().is_cancelled());
                    attack.note_cancelled();
                }
            }
            // Every place is free at once; no call waits for what was given up.
            let started = Instant::now();
            eventually("a call is answered again", || async {
                let answer = stage.call(&attack, "echo", json!({ "value": "next" })).await;
                answer.ok().filter(|outcome| text(outcome) == "next")
            })
            .await;
            assert!(
                started.elapsed() < 3 * SECOND,
                "{transport:?}: {:?}",
                started.elapsed()
            );
            let view = stage
                .rig
                .caliber
                .server(&stage.rig.admin, &attack.server.id)
                .await
                .unwrap();
            assert_eq!(view.health.calls, 0, "{transport:?}");
            let executions = records.count("executions");
            attack.end(executions).await;
        }
        stage.end().await;
    });
}

/// C3, T4: progress keeps no call alive, and odd progress disturbs none.
#[test]
fn progress_extends_nothing() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in Transport::ALL {
            let attack = stage.admit_shared(transport, &["--answer", "sse"]).await;
            attack
                .turn("mode=progress_storm&variant=forever&answer=sse")
                .await;
            stage.both_fail(&attack, "echo", SHORT, ErrorKind::Timeout).await;
            let variants = [
                "wrong_token",
                "decreasing",
                "same",
                "bad_types",
                "after_answer",
                "flood",
            ];
            for variant in variants {
                attack
                    .turn(&format!("mode=progress_storm&variant={variant}&answer=sse"))
                    .await;
                for (answer, own) in stage
                    .both(&attack, "echo", TIME)
                    .await
                    .into_iter()
                    .zip(["ada", "ben"])
                {
                    let outcome = answer.unwrap_or_else(|error| panic!("{transport:?} {variant}: {error:?}"));
                    assert_eq!(
                        text(&outcome),
                        format!("canary-of-{own}"),
                        "{transport:?} {variant}"
                    );
                }
            }
            attack.end(3 + 2 * variants.len()).await;
        }
        stage.end().await;
    });
}

/// C4, SH-21: a call whose answer is lost was sent once, is told to be unknown, and is never sent again.
#[test]
fn a_lost_answer_is_never_fetched_by_calling_again() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in Transport::ALL {
            for variant in [
                "drop",
                "reset",
                "status",
                "forget_session",
                "half_answer",
                "empty_stream",
                "empty_body",
                "exit",
            ] {
                if (transport == Transport::Stdio && !matches!(variant, "half_answer" | "exit"))
                    || (transport != Transport::Stdio && variant == "exit")
                {
                    // Over stdio every other variant is an exit; a fake HTTP server does not come back.
                    continue;
                }
                let attack = stage
                    .admit(transport, &["--mode", "execute_then", "--variant", variant])
                    .await;
                for tool in ["echo", "count"] {
                    let answer = stage.call(&attack, tool, json!({ "value": 1 })).await;
                    let error = answer.expect_err(variant);
                    let unknown = error.kind() == ErrorKind::OutcomeUnknown;
                    // An empty body of status 200 is an answer, if a broken one.
                    let broken = variant == "empty_body" && error.kind() == ErrorKind::Upstream;
                    assert!(unknown || broken, "{transport:?} {variant}: {error:?}");
                    assert!(
                        error.context().iter().any(|(key, _)| *key == "invocation"),
                        "names its record: {error:?}"
                    );
                }
                let after = attack.upstream.records().count("executions");
                tokio::time::sleep(Duration::from_millis(300)).await;
                assert_eq!(
                    attack.upstream.records().count("executions"),
                    after,
                    "{transport:?} {variant}"
                );
                attack.end(2).await;
            }
        }
        stage.end().await;
    });
}

/// C5: requests that nobody offered to serve are refused quickly, with the upstream's own id, and reach no caller.
#[test]
fn requests_of_an_upstream_are_refused() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in Transport::ALL {
            let attack = stage.admit_shared(transport, &["--answer", "sse"]).await;
            let records = attack.upstream.records();
            attack.turn("mode=server_requests&variant=all&answer=sse").await;
            let outcome = stage
                .call(&attack, "echo", json!({ "value": "own" }))
                .await
                .unwrap();
            assert_eq!(text(&outcome), "own", "{transport:?}");
            records.wait_for("client_responses", 7).await;
            let replies = records.text("client_responses");
            let refused = replies.lines().filter(|line| line.contains("-32601")).count();
            assert_eq!(refused, 6, "everything but the ping, {transport:?}:\n{replies}");
            assert!(!replies.contains("back at you"), "{replies}");

            for variant in ["live_id", "null_id", "odd_notifications", "flood"] {
                attack
                    .turn(&format!(
                        "mode=server_requests&variant={variant}&answer=sse&count=5000"
                    ))
                    .await;
                for (answer, own) in stage
                    .both(&attack, "echo", TIME)
                    .await
                    .into_iter()
                    .zip(["ada", "ben"])
                {
                    let shown = shown(&answer);
                    let outcome = answer.unwrap_or_else(|error| panic!("{transport:?} {variant}: {error:?}"));
                    assert_eq!(
                        text(&outcome),
                        format!("canary-of-{own}"),
                        "{transport:?} {variant}: {shown}"
                    );
                }
            }
            let view = stage
                .rig
                .caliber
                .server(&stage.rig.admin, &attack.server.id)
                .await
                .unwrap();
            assert!(
                view.health.dropped_messages > 0,
                "the operator sees that there were some"
            );
            let initialize = records.text("requests");
            assert!(
                initialize.contains(r#""capabilities":{}"#),
                "nothing is offered:\n{}",
                &initialize[..400]
            );
            attack.end(10).await;
        }
        stage.end().await;
    });
}

/// C7: a result is bounded in bytes, whatever it is made of.
#[test]
fn large_results_are_cut() {
    isolated(|| async {
        for transport in Transport::ALL {
            let stage = Stage::set().await;
            for settings in [
                [
                    "--mode",
                    "odd_result",
                    "--variant",
                    "big_text",
                    "--bytes",
                    "100000000",
                ],
                [
                    "--mode",
                    "odd_result",
                    "--variant",
                    "many_items",
                    "--count",
                    "1000000",
                ],
                [
                    "--mode",
                    "odd_result",
                    "--variant",
                    "many_keys",
                    "--count",
                    "2000000",
                ],
            ] {
                let attack = stage.admit(transport, &settings).await;
                let error = stage
                    .call(&attack, "echo", json!({ "value": 1 }))
                    .await
                    .unwrap_err();
                assert_eq!(
                    error.reason(),
                    Some(ReasonCode::ResultTooLarge),
                    "{transport:?} {settings:?}: {error:?}"
                );
                assert!(error.message().contains("16"), "names the limit: {error}");
                attack.end(1).await;
            }
            stage.end().await;
        }
    });
}

/// C7: odd results pass as they are, links are not fetched, and what is no Base64 is told.
#[test]
fn odd_results_are_judged_and_not_followed() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage.admit_shared(Transport::Http, &[]).await;
        for (variant, kept) in [
            ("file_link", r#""uri":"file:///etc/passwd""#),
            ("http_link", r#""type":"resource_link""#),
            ("script_link", "javascript:alert(1)"),
            (
                "unknown_type",
                r#"{"type":"example_hologram","layers":[1,2,{"deep":9007199254740993}]}"#,
            ),
            ("unknown_fields", r#""unknownInBlock":{"x":1e400}"#),
            ("empty_content", r#""content":[]"#),
            ("all_types", r#""data":"iVBORw0KGgo=""#),
        ] {
            attack.turn(&format!("mode=odd_result&variant={variant}")).await;
            for answer in stage.both(&attack, "count", TIME).await {
                let outcome = answer.unwrap_or_else(|error| panic!("{variant}: {error:?}"));
                let result = outcome.answer.result.as_str();
                assert!(result.contains(kept), "{variant}: {result}");
            }
        }
        for variant in ["bad_base64", "bad_padding", "bad_blob"] {
            attack.turn(&format!("mode=odd_result&variant={variant}")).await;
            for answer in stage.both(&attack, "count", TIME).await {
                let error = answer.expect_err("that is no Base64");
                assert_eq!(error.kind(), ErrorKind::Upstream, "{variant}: {error:?}");
            }
        }
        assert_eq!(
            attack.upstream.records().text("sentinel"),
            "",
            "a link was followed"
        );
        attack.end(1 + 2 * 10).await;
        stage.end().await;
    });
}
