//! Lists of tools: too long, without end, changing, storming, and tools that are not what was looked at.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use caliber::ErrorKind;
use caliber::core::ServerPatch;
use caliber::core::grant::Grantee;
use caliber::core::inventory::ToolState;
use caliber::core::principal::Scope;
use caliber::core::reason::ReasonCode;
use caliber::core::secret::ConfigValue;
use caliber::core::server::{Auth, Endpoint};
use serde_json::json;

use super::stage::{Attack, Stage, TIME};
use crate::support::{Rig, SECOND, Server, Transport, Upstream, eventually, isolated, policy_for, text};

/// The discovery of a list that is no list: an error of this kind, and the operator reads it at the server.
async fn refused(stage: &Stage, attack: &Attack, expected: ErrorKind) {
    let error = attack
        .server
        .discover()
        .await
        .expect_err("the list cannot be taken");
    assert_eq!(error.kind(), expected, "{error:?}");
    attack.note_error(&error);
    let view = stage
        .rig
        .caliber
        .server(&stage.rig.admin, &attack.server.id)
        .await
        .unwrap();
    assert!(view.record.connection_error.is_some(), "the operator sees it");
}

/// L1: a list beyond the limits is an error and no short list; a tool beyond its own is withheld alone.
#[test]
fn long_lists_are_refused_as_a_whole() {
    isolated(|| async {
        let stage = Stage::set().await;
        for settings in [
            vec!["--mode", "many_tools", "--count", "10000"],
            vec!["--mode", "many_tools", "--count", "10000", "--pages", "10"],
            vec!["--mode", "big_description", "--bytes", "50000000"],
            vec![
                "--mode",
                "big_description",
                "--bytes",
                "50000000",
                "--variant",
                "name",
            ],
        ] {
            let attack = stage.register(Transport::Http, &settings).await;
            refused(&stage, &attack, ErrorKind::TooLarge).await;
            assert!(
                attack.server.tools().await.is_empty(),
                "{settings:?}: half a list is no list"
            );
            attack.end(0).await;
        }
        for variant in ["description", "title", "schema", "name", "annotations", "meta"] {
            let settings = [
                "--mode",
                "big_description",
                "--bytes",
                "2000000",
                "--variant",
                variant,
            ];
            let attack = stage.admit(Transport::Stdio, &settings).await;
            assert_eq!(attack.server.tool_names().await, ["echo"], "{variant}");
            let withheld = attack.withheld().await;
            assert!(
                withheld.len() == 1 && withheld[0].0.len() < 1_000,
                "{variant}: {}",
                withheld.len()
            );
            for answer in stage.both(&attack, "echo", TIME).await {
                answer.unwrap();
            }
            attack.end(2).await;
        }
        let attack = stage
            .admit(
                Transport::Http,
                &["--mode", "many_tools", "--count", "1000", "--pages", "10"],
            )
            .await;
        assert_eq!(
            attack.server.tools().await.len(),
            1_000,
            "what is within the limits is listed whole"
        );
        attack.end(0).await;
        stage.end().await;
    });
}

/// L2, SH-11: cursors that lead nowhere end in an error after a bounded number of requests, without duplicates.
#[test]
fn cursors_without_end_are_an_error() {
    isolated(|| async {
        let stage = Stage::set_with(|config| config.gateway.list_pages = 16).await;
        for transport in [Transport::Stdio, Transport::Http] {
            for (variant, expected) in [
                ("same", ErrorKind::TooLarge),
                ("same_new_tools", ErrorKind::TooLarge),
                ("new", ErrorKind::TooLarge),
                ("empty_pages", ErrorKind::TooLarge),
                ("alternate", ErrorKind::TooLarge),
                ("huge", ErrorKind::TooLarge),
                ("number", ErrorKind::Upstream),
                ("object", ErrorKind::Upstream),
                ("error_on_second", ErrorKind::Upstream),
            ] {
                let attack = stage
                    .register(transport, &["--mode", "cursor", "--variant", variant])
                    .await;
                let error = attack.server.discover().await.expect_err(variant);
                assert_eq!(error.kind(), expected, "{transport:?} {variant}: {error:?}");
                let pages = attack.upstream.records().count("lists");
                assert!(pages <= 16, "{pages} requests, {transport:?} {variant}");
                assert!(
                    attack.server.tools().await.is_empty(),
                    "{transport:?} {variant}: half a list is no list"
                );
                attack.end(0).await;
            }
            for (variant, count) in [
                ("empty_once", 8),
                ("null", 4),
                ("odd_text", 8),
                ("empty_forever", 4),
            ] {
                let attack = stage
                    .admit(transport, &["--mode", "cursor", "--variant", variant])
                    .await;
                let names = attack.server.tool_names().await;
                assert_eq!(
                    names.iter().collect::<BTreeSet<_>>().len(),
                    names.len(),
                    "{transport:?} {variant}"
                );
                assert_eq!(names.len(), count, "{transport:?} {variant}: {names:?}");
                for answer in stage.both(&attack, "echo", TIME).await {
                    answer.unwrap();
                }
                attack.end(2).await;
            }
        }
        stage.end().await;
    });
}

/// L3: what changes between two pages gives one coherent list or none; two tools of one name are a conflict.
#[test]
fn changing_pages_are_one_list_or_none() {
    isolated(|| async {
        let stage = Stage::set().await;
        for (variant, tools, withheld) in [
            (
                "rename",
                vec!["echo", "last", "search", "search_renamed", "stable"],
                0,
            ),
            ("reorder", vec!["echo", "last", "search", "stable"], 0),
            ("duplicate", vec!["echo", "last", "search", "stable"], 0),
            ("conflict", vec!["echo", "last", "stable"], 1),
            ("across_lists", vec!["echo"], 1),
        ] {
            let attack = stage
                .admit(
                    Transport::Http,
                    &["--mode", "changing_pages", "--variant", variant],
                )
                .await;
            let mut names = attack.server.tool_names().await;
            names.sort();
            assert_eq!(names, tools, "{variant}");
            let told = attack.withheld().await;
            assert_eq!(told.len(), withheld, "{variant}: {told:?}");
            assert!(
                told.iter().all(|(name, _)| name == "search"),
                "{variant}: {told:?}"
            );
            for answer in stage.both(&attack, "echo", TIME).await {
                answer.unwrap();
            }
            attack.end(2).await;
        }
        let attack = stage
            .register(
                Transport::Http,
                &["--mode", "changing_pages", "--variant", "shrink"],
            )
            .await;
        refused(&stage, &attack, ErrorKind::Upstream).await;
        attack.end(0).await;
        stage.end().await;
    });
}

/// L4: ten thousand notifications cause a few listings, and calls go on beside them.
#[test]
fn a_storm_of_changes_causes_few_listings() {
    isolated(|| async {
        let stage = Stage::set().await;
        for (transport, era) in [
            (Transport::Stdio, "legacy"),
            (Transport::Http, "legacy"),
            (Transport::Sse, "legacy"),
            (Transport::Stdio, "modern"),
            (Transport::Http, "modern"),
        ] {
            let settings = ["--era", era, "--mode", "list_changed_storm", "--count", "10000"];
            let attack = stage.admit(transport, &settings).await;
            let started = Instant::now();
            let mut calls = 0;
            while started.elapsed() < 2 * SECOND {
                for (answer, own) in stage
                    .both(&attack, "echo", TIME)
                    .await
                    .into_iter()
                    .zip(["ada", "ben"])
                {
                    let outcome = answer.unwrap_or_else(|error| panic!("{transport:?} {era}: {error:?}"));
                    assert_eq!(text(&outcome), format!("canary-of-{own}"), "{transport:?} {era}");
                }
                calls += 2;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            // For each of three sessions: its own, a burst of three, and one each two seconds.
            let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
            let lists = attack.upstream.records().count("lists");
            assert!(
                lists <= 3 * (1 + 3 + 1 + seconds / 2),
                "{lists} listings, {transport:?} {era}"
            );
            attack.end(calls).await;
        }
        stage.end().await;
    });
}

/// L4: a server that tells of a change at each listing is not asked in a circle.
#[test]
fn a_listing_that_causes_a_change_is_no_loop() {
    isolated(|| async {
        let stage = Stage::set().await;
        for (transport, era) in [
            (Transport::Stdio, "legacy"),
            (Transport::Http, "legacy"),
            (Transport::Http, "modern"),
        ] {
            let attack = stage
                .admit(transport, &["--era", era, "--mode", "list_changed_on_list"])
                .await;
            let started = Instant::now();
            let mut calls = 0;
            while started.elapsed() < 3 * SECOND {
                for answer in stage.both(&attack, "echo", TIME).await {
                    answer.unwrap_or_else(|error| panic!("{transport:?} {era}: {error:?}"));
                }
                calls += 2;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
            let lists = attack.upstream.records().count("lists");
            assert!(
                lists <= 3 * (1 + 3 + 1 + seconds / 2),
                "{lists} listings, {transport:?} {era}"
            );
            attack.end(calls).await;
        }
        stage.end().await;
    });
}

/// L5, SH-13: whatever changes in a descriptor, the tool is closed at the next session until it was looked at again;
/// a change that means nothing closes nothing.
#[test]
fn a_changed_descriptor_closes_the_tool() {
    isolated(|| async {
        let stage = Stage::set().await;
        for variant in [
            "description",
            "title",
            "input_schema",
            "property_description",
            "enum",
            "default",
            "output_schema",
            "output_schema_removed",
            "annotations",
            "icons",
            "meta",
            "unknown_field",
            "number_spelling",
        ] {
            let attack = stage
                .admit(Transport::Http, &["--mode", "rug_pull", "--variant", variant])
                .await;
            let call = async || stage.call(&attack, "target", json!({ "value": "a" })).await;
            let error = call().await.expect_err(variant);
            assert_eq!(error.reason(), Some(ReasonCode::Drifted), "{variant}: {error:?}");
            // The difference is what an admin is shown.
            let (admin, target) = (&stage.rig.admin, "target".parse().unwrap());
            let drift = eventually("the inventory has followed", || async {
                let drift = stage
                    .rig
                    .caliber
                    .drift(admin, &attack.server.id, &target)
                    .await
                    .unwrap();
                (drift.state == ToolState::Drifted && !drift.lines.is_empty()).then_some(drift)
            })
            .await;
            assert!(
                drift.lines.iter().any(|line| line.starts_with(['+', '-'])),
                "{variant}: {:?}",
                drift.lines
            );
            let error = call().await.expect_err(variant);
            assert_eq!(error.reason(), Some(ReasonCode::Drifted), "{variant}: {error:?}");
            assert_eq!(attack.upstream.records().executions_of("target"), 0, "{variant}");

            attack
                .server
                .classify("target", policy_for("target"))
                .await
                .unwrap();
            match call().await {
                Ok(_) => {}
                // The admin agreed to what the tool does not keep to.
                Err(error) => assert_eq!(
                    (variant, error.reason()),
                    ("output_schema", Some(ReasonCode::ResultInvalid)),
                    "looked at again: {error:?}"
                ),
            }
            attack.end(1).await;
        }
        for variant in ["reserialized", "reordered_list"] {
            let attack = stage
                .admit(Transport::Http, &["--mode", "rug_pull", "--variant", variant])
                .await;
            stage
                .call(&attack, "target", json!({ "value": "a" }))
                .await
                .unwrap();
            assert!(
                attack.upstream.records().count("lists") >= 2,
                "it was listed again"
            );
            attack.end(1).await;
        }
        let attack = stage
            .admit(
                Transport::Http,
                &["--mode", "rug_pull", "--variant", "name_removed"],
            )
            .await;
        let error = stage
            .call(&attack, "target", json!({ "value": "a" }))
            .await
            .unwrap_err();
        assert_eq!(error.reason(), Some(ReasonCode::ToolUnknown), "{error:?}");
        attack.end(0).await;
        stage.end().await;
    });
}

/// What is changed about an endpoint; the text is the URL of another server.
type Change = fn(&mut Endpoint, &str);

/// L5: what an admin looked at is bound to the place too: command, arguments, environment keys, URL, kind of
/// credential. A restart and an equal definition change nothing.
#[test]
fn a_changed_place_closes_the_tools() {
    isolated(|| async {
        let stage = Stage::set().await;
        let other = Upstream::start(Transport::Http, &[]).await;
        let move_to = async |attack: &Attack, patch: ServerPatch| {
            let server = &attack.server;
            server
                .caliber
                .update_server(server.who(), &server.id, patch)
                .await
                .map(drop)
        };
        let changes: [(&str, Transport, Change); 4] = [
            ("arguments", Transport::Stdio, |endpoint, _| {
                if let Endpoint::Stdio(stdio) = endpoint {
                    stdio.args.extend(["--marker".to_owned(), "moved".to_owned()]);
                }
            }),
            ("environment", Transport::Stdio, |endpoint, _| {
                if let Endpoint::Stdio(stdio) = endpoint {
                    stdio
                        .env
                        .insert("RIG_MORE".into(), ConfigValue::from_input("more"));
                }
            }),
            ("url", Transport::Http, |endpoint, other| {
                if let Endpoint::StreamableHttp(remote) = endpoint {
                    remote.url = other.to_owned();
                }
            }),
            ("query", Transport::Http, |endpoint, _| {
                if let Endpoint::StreamableHttp(remote) = endpoint {
                    remote.url.push_str("?tenant=other");
                }
            }),
        ];
        for (what, transport, change) in changes {
            let attack = stage.admit(transport, &[]).await;
            stage.call(&attack, "echo", json!({ "value": 1 })).await.unwrap();
            let mut endpoint = attack.upstream.endpoint();
            if let Endpoint::Stdio(stdio) = &mut endpoint {
                stdio
                    .env
                    .insert("RIG_CREDENTIAL".into(), ConfigValue::from_input("given-again"));
            }
            let auth = match transport {
                Transport::Stdio => None,
                _ => Some(Auth::Token {
                    token: ConfigValue::from_input("given-again"),
                }),
            };
            // The same place, written again: nothing is closed.
            let patch = ServerPatch {
                endpoint: Some(endpoint.clone()),
                auth: auth.clone(),
                ..ServerPatch::default()
            };
            move_to(&attack, patch).await.unwrap();
            stage.call(&attack, "echo", json!({ "value": 1 })).await.unwrap();
            change(&mut endpoint, &other.url("/mcp"));
            let patch = ServerPatch {
                endpoint: Some(endpoint),
                auth,
                ..ServerPatch::default()
            };
            move_to(&attack, patch).await.unwrap();
            for answer in stage.both(&attack, "echo", TIME).await {
                let error = answer.expect_err(what);
                assert_eq!(error.reason(), Some(ReasonCode::Drifted), "{what}: {error:?}");
            }
            attack.end(2).await;
        }
        let attack = stage.admit(Transport::Http, &[]).await;
        let patch = ServerPatch {
            auth: Some(Auth::None),
            ..ServerPatch::default()
        };
        move_to(&attack, patch).await.unwrap();
        let error = stage
            .call(&attack, "echo", json!({ "value": 1 }))
            .await
            .unwrap_err();
        assert_eq!(error.reason(), Some(ReasonCode::Drifted), "{error:?}");
        attack.end(0).await;
        assert_eq!(other.records().count("executions"), 0);
        drop(other);
        stage.end().await;
    });
}

/// A server that says it is another, with the tool `search`, which answers `NAME:search`.
async fn twin(rig: &Rig, instance: &str, claims: &str) -> (Upstream, Server) {
    let settings = [
        "--tools",
        "search",
        "--instance",
        instance,
        "--server-name",
        claims,
    ];
    let upstream = Upstream::start(Transport::Http, &settings).await;
    let server = rig
        .register(&format!("twin-{instance}"), upstream.endpoint())
        .await;
    server.discover().await.unwrap();
    server.open_to(Grantee::Scope(Scope::Viewer)).await;
    (upstream, server)
}

/// L7, SH-12: two servers with a tool of one name are two tools, in whatever order they come and however often they
/// come back; an admin's word about one is none about the other, and the removal of one leaves the other.
#[test]
fn equal_names_never_meet() {
    isolated(|| async {
        let stage = Stage::set().await;
        let (rig, ada) = (&stage.rig, &stage.rig.ada);
        let search = async |server: &Server| server.call(ada, "search", json!({ "value": 1 })).await;
        let (first_upstream, first) = twin(rig, "a", "b").await;
        let (second_upstream, second) = twin(rig, "b", "a").await;
        first.classify("search", policy_for("search")).await.unwrap();
        for round in 0..100 {
            // Both orders, and from time to time both come back with new sessions.
            if round % 10 == 9 {
                for upstream in [&first_upstream, &second_upstream] {
                    upstream.control("do=restart").await;
                }
                let error = search(&first).await.unwrap_err();
                assert_eq!(error.reason(), Some(ReasonCode::SessionRestarted), "{error:?}");
            }
            let of_second = async || {
                let error = search(&second).await.unwrap_err();
                assert_eq!(
                    error.reason(),
                    Some(ReasonCode::Unclassified),
                    "round {round}: {error:?}"
                );
            };
            if round % 2 == 0 {
                of_second().await;
            }
            assert_eq!(text(&search(&first).await.unwrap()), "a:search", "round {round}");
            if round % 2 == 1 {
                of_second().await;
            }
        }
        assert_eq!(
            second_upstream.records().count("executions"),
            0,
            "the word about one reached the other"
        );
        second.classify("search", policy_for("search")).await.unwrap();
        assert_eq!(text(&search(&second).await.unwrap()), "b:search");
        second.remove().await;
        assert_eq!(
            text(&search(&first).await.unwrap()),
            "a:search",
            "the other stays"
        );
        first.remove().await;
        drop((first_upstream, second_upstream));
        stage.end().await;
    });
}

/// L8: names are of the plain letters or withheld; what an operator reads of them, and of texts, is escaped.
#[test]
fn odd_names_are_withheld_and_escaped() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage.admit(Transport::Http, &["--mode", "odd_names"]).await;
        let mut names = attack.server.tool_names().await;
        names.sort();
        let long = "s".repeat(128);
        let mut plain = [
            ".",
            "SEARCH",
            "__proto__",
            "echo",
            "rig__search",
            "search",
            long.as_str(),
        ];
        plain.sort();
        assert_eq!(names, plain);
        let withheld = attack.withheld().await;
        // Of 24 names five are plain; the two long ones look the same once they are cut.
        assert_eq!(withheld.len(), 18, "{withheld:?}");
        for (name, reason) in &withheld {
            let told = format!("{name} {reason}");
            assert!(told.chars().all(|character| !is_hidden(character)), "{told:?}");
            assert!(
                name.chars().count() <= 1_000,
                "{} characters",
                name.chars().count()
            );
        }
        for answer in stage.both(&attack, "search", TIME).await {
            answer.unwrap();
        }
        // Every look-alike is another tool, which is not there.
        let api = stage.rig.serve().await;
        for name in [
            "se\u{430}rch",
            "sea\u{200b}rch",
            "search\u{e0041}",
            "Search ",
            "ｓｅａｒｃｈ",
        ] {
            let body = json!({ "tool_name": name, "arguments": { "value": 1 } });
            let reply = api
                .post(&format!("/mcp-servers/{}/invoke-tool", attack.server.id), body)
                .await;
            assert!(
                (400..500).contains(&reply.status),
                "{name:?}: {} {}",
                reply.status,
                reply.text
            );
        }
        drop(api);
        attack.end(2).await;

        for variant in ["description", "title", "property", "annotation"] {
            let attack = stage
                .admit(Transport::Http, &["--mode", "odd_texts", "--variant", variant])
                .await;
            let tools = attack.server.tools().await;
            assert!(tools.len() >= 23, "{variant}: {} tools", tools.len());
            let escape = tools
                .iter()
                .find(|tool| tool.name().as_str() == "text_bidi")
                .unwrap();
            let kept = escape.descriptor.text().as_str();
            assert!(
                kept.contains('\u{202e}') || kept.contains("\\u202e"),
                "callers get it unchanged: {kept}"
            );
            attack.end(0).await;
        }
        stage.end().await;
    });
}

/// Controls, marks of direction, tags and what has no width.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            u32::from(character),
            0x200B..=0x200F | 0x2028..=0x202E | 0x2060..=0x206F | 0xFEFF | 0xE0000..=0xE007F
        )
}
