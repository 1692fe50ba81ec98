//! HTTP upstreams: where they would like us to connect, how they answer without end, what they pack and inject,
//! how they lose sessions.

use std::time::{Duration, Instant};

use caliber::ErrorKind;
use caliber::core::reason::ReasonCode;
use caliber::core::secret::ConfigValue;
use caliber::core::server::{Endpoint, RemoteEndpoint};
use caliber::{InvokeOutcome, Result, ServerRegistration};
use serde_json::json;

use super::stage::{SHORT, Stage, TIME, shown};
use crate::support::rig::definition;
use crate::support::{RequestExt, SECOND, Transport, Upstream, isolated, structured, text};

/// What an answer that cannot be read may become; never a success.
fn assert_failed(answer: Result<InvokeOutcome>, what: &str) {
    match answer {
        Ok(outcome) => panic!(
            "{what} was taken for an answer: {}",
            outcome.answer.result.as_str()
        ),
        Err(error) => assert!(
            matches!(
                error.kind(),
                ErrorKind::Upstream | ErrorKind::OutcomeUnknown | ErrorKind::TooLarge | ErrorKind::Timeout
            ),
            "{what}: {error:?}"
        ),
    }
}

/// T3, SH-19: no redirect, no endpoint of another origin and no link in a challenge or a result is followed.
#[test]
fn no_link_of_an_upstream_is_followed() {
    isolated(|| async {
        let stage = Stage::set_with(|config| config.settings.discovery_timeout = 2 * SECOND).await;
        let attack = stage.admit_shared(Transport::Http, &[]).await;
        for variant in [
            "sentinel",
            "same_origin",
            "loop",
            "file",
            "no_location",
            "many_hops",
        ] {
            for status in [301, 302, 303, 307, 308] {
                attack
                    .turn(&format!(
                        "mode=redirect&when=call&variant={variant}&status={status}"
                    ))
                    .await;
                let error = stage
                    .call(&attack, "echo", json!({ "value": 1 }))
                    .await
                    .unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Upstream, "{variant} {status}: {error:?}");
            }
        }
        attack.turn("mode=odd_result&variant=http_link").await;
        for answer in stage.both(&attack, "echo", TIME).await {
            assert!(
                shown(&answer).contains("resource_link"),
                "the link itself arrives"
            );
        }
        let records = attack.upstream.records();
        assert_eq!(records.text("sentinel"), "", "a link was followed");
        attack.end(3).await;

        for settings in [
            ["--mode", "redirect", "--status", "307"],
            ["--mode", "redirect", "--variant", "same_origin"],
            ["--mode", "auth_challenge", "--variant", "resource_metadata"],
            ["--mode", "auth_challenge", "--variant", "malformed"],
            ["--mode", "auth_challenge", "--variant", "huge"],
        ] {
            let attack = stage.register(Transport::Http, &settings).await;
            let error = attack.server.discover().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Upstream, "{settings:?}: {error:?}");
            assert!(!error.message().contains("169.254"), "{error}");
            assert_eq!(attack.upstream.records().text("sentinel"), "", "{settings:?}");
            attack.note_error(&error);
            attack.end(0).await;
        }

        for variant in [
            "absolute",
            "scheme_relative",
            "userinfo",
            "file",
            "empty",
            "newline",
            "huge",
        ] {
            let attack = stage
                .register(
                    Transport::Sse,
                    &["--mode", "foreign_endpoint", "--variant", variant],
                )
                .await;
            let started = Instant::now();
            let found = attack.server.discover().await;
            assert!(
                started.elapsed() < 4 * SECOND,
                "{variant}: {:?}",
                started.elapsed()
            );
            match found {
                // An event ends at its line; what was to be injected is a field that nobody knows.
                Ok(_) => assert_eq!(variant, "newline"),
                Err(error) => {
                    assert!(
                        matches!(
                            error.kind(),
                            ErrorKind::Upstream | ErrorKind::Timeout | ErrorKind::TooLarge
                        ),
                        "{variant}: {error:?}"
                    );
                    attack.note_error(&error);
                }
            }
            let records = attack.upstream.records();
            assert_eq!(records.text("sentinel"), "", "{variant}");
            assert!(
                !records.text("http_log").to_lowercase().contains("\nx-evil"),
                "{variant}"
            );
            attack.end(0).await;
        }
        stage.end().await;
    });
}

/// T3, SH-19: an address is judged as what it means and not by how it is written, also where its host is listed.
#[test]
fn no_spelling_of_an_address_gets_past_the_list() {
    isolated(|| async {
        let listed = [
            "localhost",
            "0.0.0.0",
            "[::ffff:127.0.0.1]",
            "[64:ff9b::7f00:1]",
            "169.254.169.254",
            "10.0.0.1",
        ];
        let stage = Stage::set_with(|config| {
            config.policy.remote_hosts = listed.iter().map(|host| host.parse().unwrap()).collect();
            config.policy.allow_plain_http = true;
        })
        .await;
        let upstream = Upstream::start(Transport::Http, &[]).await;
        let port = upstream.url("").rsplit(':').next().unwrap().to_owned();
        let not_listed = [ReasonCode::HostNotAllowed, ReasonCode::UrlInvalid];
        let blocked = [ReasonCode::AddressBlocked, ReasonCode::UrlInvalid];
        for (number, (host, reasons)) in [
            ("127.0.0.1", not_listed),
            ("2130706433", not_listed),
            ("0x7f.1", not_listed),
            ("0x7f000001", not_listed),
            ("017700000001", not_listed),
            ("127.1", not_listed),
            ("[::1]", not_listed),
            ("[::]", not_listed),
            ("localhost.evil.example", not_listed),
            ("0.0.0.0", blocked),
            ("[::ffff:127.0.0.1]", blocked),
            ("[::ffff:7f00:1]", blocked),
            ("[64:ff9b::7f00:1]", blocked),
            ("169.254.169.254", blocked),
            ("10.0.0.1", blocked),
        ]
        .into_iter()
        .enumerate()
        {
            let endpoint = Endpoint::StreamableHttp(RemoteEndpoint {
                url: format!("http://{host}:{port}/mcp"),
                headers: Default::default(),
            });
            let server = stage.rig.register(&format!("address-{number}"), endpoint).await;
            let error = server.discover().await.expect_err(host);
            assert_eq!(error.kind(), ErrorKind::Denied, "{host}: {error:?}");
            assert!(
                error.reason().is_some_and(|reason| reasons.contains(&reason)),
                "{host}: {error:?}"
            );
        }
        assert_eq!(upstream.records().text("http_log"), "", "somebody knocked");
        drop(upstream);
        stage.end().await;
    });
}

/// T4: a stream that never ends, or an event that never ends, ends at the deadline or at the limit.
#[test]
fn streams_without_end_are_ended() {
    isolated(|| async {
        for transport in [Transport::Http, Transport::Sse] {
            let stage = Stage::set().await;
            let settings = ["--mode", "endless_comments", "--interval", "0.1"];
            let attack = stage.admit(transport, &settings).await;
            stage.both_fail(&attack, "echo", SHORT, ErrorKind::Timeout).await;
            attack.end(2).await;

            for variant in ["data_line", "data_lines", "field_name", "comment"] {
                let settings = [
                    "--mode",
                    "endless_event",
                    "--variant",
                    variant,
                    "--bytes",
                    "100000000",
                ];
                let attack = stage.admit(transport, &settings).await;
                let error = stage
                    .call(&attack, "echo", json!({ "value": 1 }))
                    .await
                    .unwrap_err();
                assert_eq!(
                    error.reason(),
                    Some(ReasonCode::ResultTooLarge),
                    "{transport:?} {variant}: {error:?}"
                );
                attack.end(1).await;
            }

            let attack = stage.admit(transport, &["--mode", "never_closes"]).await;
            for [ada, ben] in [
                stage.both(&attack, "echo", TIME).await,
                stage.both(&attack, "echo", TIME).await,
            ] {
                assert_eq!(text(&ada.unwrap()), "canary-of-ada", "{transport:?}");
                assert_eq!(text(&ben.unwrap()), "canary-of-ben", "{transport:?}");
            }
            attack.end(4).await;
            stage.end().await;
        }
    });
}

/// T4: a body or a head without end is cut at the limit.
#[test]
fn bodies_without_end_are_cut() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage.admit_shared(Transport::Http, &[]).await;
        for variant in ["json", "error_text", "content_length", "headers"] {
            attack
                .turn(&format!("mode=unbounded_body&variant={variant}&bytes=100000000"))
                .await;
            let answer = stage.call(&attack, "echo", json!({ "value": 1 })).await;
            if matches!(variant, "json" | "content_length") {
                let error = answer.unwrap_err();
                assert_eq!(
                    error.reason(),
                    Some(ReasonCode::ResultTooLarge),
                    "{variant}: {error:?}"
                );
            } else {
                assert_failed(answer, variant);
            }
        }
        attack.turn("mode=drip&interval=0.1&variant=body").await;
        stage.both_fail(&attack, "echo", SHORT, ErrorKind::Timeout).await;
        attack.turn("mode=healthy").await;
        stage.call(&attack, "echo", json!({ "value": 1 })).await.unwrap();
        attack.end(8).await;
        stage.end().await;
    });
}

/// T4: a stream of changes that misbehaves costs neither calls nor a storm of connections.
#[test]
fn a_broken_stream_of_changes_is_left_alone() {
    isolated(|| async {
        let stage = Stage::set().await;
        for variant in [
            "ends_at_once",
            "status_500",
            "json",
            "endless_comments",
            "endless_event",
            "retry_zero",
            "not_messages",
        ] {
            let settings = [
                "--mode",
                "get_stream",
                "--variant",
                variant,
                "--bytes",
                "100000000",
            ];
            let attack = stage.admit(Transport::Http, &settings).await;
            let end = Instant::now() + SECOND;
            let mut calls = 0;
            while Instant::now() < end {
                for answer in stage.both(&attack, "echo", TIME).await {
                    assert!(text(&answer.unwrap()).starts_with("canary-of-"), "{variant}");
                }
                calls += 2;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let opened = attack
                .upstream
                .records()
                .lines("streams")
                .iter()
                .filter(|line| line[0] == "open")
                .count();
            // Three sessions, each of which may try again a few times.
            assert!(opened <= 12, "{opened} streams in a second, {variant}");
            attack.end(calls).await;
        }
        stage.end().await;
    });
}

/// T4: answers that break HTTP are errors of their call, and the next call works.
#[test]
fn broken_http_is_an_error_of_one_call() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage.admit_shared(Transport::Http, &[]).await;
        let unreadable = [
            "html",
            "stream_type_json_body",
            "json_type_stream_body",
            "status_202",
            "status_204",
            "status_500_json",
            "status_999",
            "status_101",
            "status_line_garbage",
            "http_0_9",
            "tls_alert",
            "empty_body",
            "empty_stream",
            "length_too_long",
            "length_negative",
            "length_text",
            "two_lengths",
            "chunk_size_garbage",
            "chunk_size_huge",
            "many_headers",
            "huge_header",
            "header_garbage",
        ];
        let readable = [
            "odd_content_type",
            "two_content_types",
            "no_content_type",
            "status_206",
            "status_299",
            "http_1_0",
            "length_too_short",
            "length_and_chunked",
            "chunk_extension_huge",
            "bare_newlines",
            "many_continues",
            "set_cookie",
            "two_answers",
        ];
        let mut healthy = 1;
        for variant in unreadable.iter().chain(&readable) {
            attack.turn(&format!("mode=bad_http&variant={variant}")).await;
            for (answer, own) in stage
                .both(&attack, "echo", SHORT)
                .await
                .into_iter()
                .zip(["ada", "ben"])
            {
                match answer {
                    Ok(outcome) if readable.contains(variant) => {
                        assert_eq!(text(&outcome), format!("canary-of-{own}"), "{variant}");
                    }
                    answer => assert_failed(answer, variant),
                }
            }
            attack.turn("mode=healthy").await;
            let outcome = stage.call(&attack, "echo", json!({ "value": variant })).await;
            let outcome = outcome.unwrap_or_else(|error| panic!("after {variant}: {error:?}"));
            assert_eq!(text(&outcome), *variant);
            healthy += 1;
        }
        let heads = attack.upstream.records().text("http_log").to_lowercase();
        assert!(!heads.contains("\ncookie:"), "a cookie of the upstream came back");
        // A connection that the upstream spoilt may be found broken before a call is sent: no more than all ran.
        let executions = attack.upstream.records().count("executions");
        assert!(executions >= healthy, "{executions} executions");
        attack.end(executions).await;
        stage.end().await;
    });
}

/// T6: nothing packed is asked for, and nothing packed is unpacked.
#[test]
fn packed_answers_are_refused() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage.admit_shared(Transport::Http, &[]).await;
        let variants = [
            "gzip",
            "gzip_members",
            "gzip_nested",
            "deflate",
            "br",
            "zstd",
            "label_only",
            "truncated",
            "corrupt",
            "unknown_label",
            "many_labels",
        ];
        for variant in variants {
            attack
                .turn(&format!("mode=compressed&variant={variant}&bytes=100000000"))
                .await;
            for answer in stage.both(&attack, "echo", TIME).await {
                let error = answer.expect_err(variant);
                assert_eq!(
                    error.reason(),
                    Some(ReasonCode::ProtocolViolation),
                    "{variant}: {error:?}"
                );
            }
        }
        let heads = attack.upstream.records().text("http_log").to_lowercase();
        let asked: Vec<_> = heads
            .lines()
            .filter(|line| line.starts_with("accept-encoding:"))
            .collect();
        assert!(
            !asked.is_empty()
                && asked
                    .iter()
                    .all(|line| line.trim() == "accept-encoding: identity"),
            "{asked:?}"
        );
        attack.end(1 + 2 * variants.len()).await;
        stage.end().await;
    });
}

/// T7: headers of a definition cannot split a request or take over what HTTP, MCP or the credentials own.
#[test]
fn a_definition_cannot_inject_headers() {
    isolated(|| async {
        let stage = Stage::set().await;
        let (rig, upstream) = (&stage.rig, Upstream::start(Transport::Http, &[]).await);
        let register = async |name: &str, value: &str| {
            let mut endpoint = upstream.endpoint();
            if let Endpoint::StreamableHttp(remote) = &mut endpoint {
                remote
                    .headers
                    .insert(name.to_owned(), ConfigValue::from_input(value));
            }
            let registration = ServerRegistration {
                definition: definition("headers", endpoint),
                visibility: Default::default(),
            };
            rig.caliber
                .register_server(rig.administrator(), registration)
                .await
        };
        for value in ["a\r\nX-Evil: 1", "a\nX-Evil: 1", "a\rb", "a\0b", " a", "a ", ""] {
            let error = register("X-Plain", value).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{value:?}: {error:?}");
            assert!(
                error
                    .fields()
                    .iter()
                    .any(|field| field.field.starts_with("headers")),
                "{error:?}"
            );
        }
        for name in [
            "Host",
            "Content-Length",
            "Transfer-Encoding",
            "Connection",
            "Mcp-Session-Id",
            "mcp-protocol-version",
            "a b",
            "X-Evil:",
            "X\r\nY",
            "",
        ] {
            let error = register(name, "plain").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}: {error:?}");
        }
        register("X-Plain", "plain").await.unwrap();
        stage.end().await;
    });
}

/// T7: arguments that a tool wants in headers are encoded, stand under `Mcp-Param-` only, and override nothing.
#[test]
fn a_tool_cannot_inject_headers() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage
            .admit(Transport::Http, &["--era", "modern", "--mode", "header_tools"])
            .await;
        let mut withheld: Vec<_> = attack
            .withheld()
            .await
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        withheld.sort();
        let bad = [
            "bad_array_item",
            "bad_colon",
            "bad_duplicate",
            "bad_empty",
            "bad_newline",
            "bad_not_text",
            "bad_number_type",
            "bad_object_type",
            "bad_root",
            "bad_space",
            "bad_unicode",
        ];
        assert_eq!(withheld, bad);
        let tools = [
            ("good", "region"),
            ("authorization", "value"),
            ("transfer_encoding", "value"),
            ("host", "value"),
        ];
        for (tool, argument) in tools {
            let arguments = json!({ argument: "x\r\nX-Evil: 1\r\n\r\nGET / HTTP/1.1" });
            let outcome = stage
                .call(&attack, tool, arguments)
                .await
                .unwrap_or_else(|error| panic!("{tool}: {error:?}"));
            let head = structured(&outcome)["head"]
                .as_str()
                .unwrap_or_default()
                .to_lowercase();
            let lines = |start: &str| head.lines().filter(|line| line.starts_with(start)).count();
            assert_eq!(lines("x-evil"), 0, "{head}");
            assert_eq!((lines("authorization:"), lines("host:")), (1, 1), "{head}");
            assert!(
                lines("transfer-encoding:") == 0 && head.contains("bearer canary-"),
                "{head}"
            );
            assert_eq!(lines("mcp-param-"), 1, "{head}");
            assert!(head.contains("=?base64?"), "{head}");
        }
        attack.end(tools.len()).await;
        stage.end().await;
    });
}

/// SH-05: an upstream that forgets a session is usable at the next call, and the call that found out is not repeated.
#[test]
fn a_forgotten_session_is_replaced() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage
            .admit(
                Transport::Http,
                &["--mode", "forget_session_after", "--calls", "2"],
            )
            .await;
        for _ in 0..3 {
            for number in 1..=2 {
                let outcome = stage.call(&attack, "count", json!({})).await.unwrap();
                assert_eq!(text(&outcome), number.to_string());
            }
            let error = stage.call(&attack, "count", json!({})).await.unwrap_err();
            assert_eq!(error.reason(), Some(ReasonCode::SessionRestarted), "{error:?}");
        }
        attack.end(6).await;
        stage.end().await;
    });
}

/// SH-06: an upstream without sessions or without a stream of changes is not asked over and over.
#[test]
fn an_upstream_without_sessions_is_not_hammered() {
    isolated(|| async {
        let stage = Stage::set().await;
        for mode in ["sessionless", "get_405", "no_session_header", "delete_405"] {
            let attack = stage.admit(Transport::Http, &["--mode", mode]).await;
            assert_eq!(attack.server.tool_names().await.len(), 9, "{mode}");
            let end = Instant::now() + 2 * SECOND;
            let mut calls = 0;
            while Instant::now() < end {
                stage.call(&attack, "echo", json!({ "value": 1 })).await.unwrap();
                calls += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let records = attack.upstream.records();
            assert!(
                records.count("initializes") <= 2,
                "{mode}: the discovery and a session of Ada's"
            );
            let gets = records
                .lines("refused_gets")
                .iter()
                .filter(|line| line[0] == "GET")
                .count();
            assert!(gets <= 2, "{gets} tries in two seconds, {mode}");
            attack.end(calls).await;
        }
        stage.end().await;
    });
}

/// SH-07: a lost session of one upstream is told by its own code, passes, and touches no other upstream.
#[test]
fn a_lost_session_concerns_one_upstream() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in [Transport::Http, Transport::Sse] {
            let (lost, other) = (
                stage.admit(transport, &[]).await,
                stage.admit(transport, &[]).await,
            );
            for attack in [&lost, &other] {
                assert_eq!(text(&stage.call(attack, "count", json!({})).await.unwrap()), "1");
            }
            lost.turn("do=forget_sessions").await;
            let error = stage.call(&lost, "count", json!({})).await.unwrap_err();
            assert_eq!(
                error.reason(),
                Some(ReasonCode::SessionRestarted),
                "{transport:?}: {error:?}"
            );
            assert_eq!(
                text(&stage.call(&other, "count", json!({})).await.unwrap()),
                "2",
                "{transport:?}"
            );
            assert_eq!(
                text(&stage.call(&lost, "count", json!({})).await.unwrap()),
                "1",
                "{transport:?}"
            );
            lost.end(2).await;
            other.end(2).await;
        }
        stage.end().await;
    });
}

/// SH-08: a caller who names the inbound session of another does not get into the other's upstream session.
#[test]
fn a_session_belongs_to_its_caller() {
    isolated(|| async {
        let stage = Stage::set().await;
        for transport in Transport::ALL {
            let attack = stage.admit(transport, &[]).await;
            let mut seen = Vec::new();
            for caller in [&stage.rig.ada, &stage.rig.ben, &stage.rig.ada] {
                let request = attack
                    .server
                    .request("count", json!({}))
                    .in_session("session-of-ada");
                seen.push(text(&attack.send(caller, request, TIME).await.unwrap()));
            }
            assert_eq!(seen, ["1", "1", "2"], "{transport:?}");
            attack.end(3).await;
        }
        stage.end().await;
    });
}
