//! Streamable HTTP and HTTP+SSE: spellings, limits, sessions, refusals.

use std::time::{Duration, Instant};

use caliber_core::clock::Deadline;
use caliber_core::gateway::{Gateway, Target};
use caliber_core::reason::ReasonCode;
use caliber_core::secret::ConfigValue;
use caliber_core::server::Auth;
use caliber_core::{Error, ErrorKind, Settings};
use caliber_gateway::GatewaySettings;

use crate::support::{House, Over, Rig, definition, eventually, for_each, text};

const ECHO: &str = r#"{"value":"x"}"#;

async fn check(house: &House, rig: &Rig, auth: Auth) -> Result<(), Error> {
    let mut definition = definition("checked", rig.endpoint());
    definition.auth = auth;
    let target = Target {
        server: None,
        definition: definition.into(),
    };
    let deadline = Deadline::after(Duration::from_secs(5));
    house.gateway.check(&target, deadline).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn event_streams_are_read_in_every_spelling() {
    let house = House::new();
    for_each([Over::Http, Over::Sse], async |over| {
        for variant in [
            "crlf",
            "cr",
            "no_space",
            "multiple_data",
            "comments",
            "ids",
            "unknown_events",
            "byte_order_mark",
            "split",
            "plain",
        ] {
            let rig = Rig::new(over, &["--mode", "sse_style", "--variant", variant]).await;
            let name = format!("{over:?}-{}", variant.replace('_', "-"));
            let server = house.add(&name, &rig).await;
            let outcome = house.call(&server, "echo", ECHO).await.unwrap();
            assert_eq!(text(&outcome), "x", "{name}");
        }
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_no_http_or_no_message_is_an_error_of_this_call_only() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &[]).await;
    let server = house.add("bad-http", &rig).await;
    for variant in [
        "html",
        "stream_type_json_body",
        "json_type_stream_body",
        "status_202",
        "status_204",
        "status_500_json",
        "status_101",
        "status_line_garbage",
        "tls_alert",
        "empty_body",
        "empty_stream",
        "length_too_long",
        "length_too_short",
        "length_text",
        "two_lengths",
        "chunk_size_garbage",
        "chunk_size_huge",
        "many_headers",
        "huge_header",
        "header_garbage",
    ] {
        rig.control(&format!("mode=bad_http&variant={variant}")).await;
        let before = rig.records("executions").len();
        let time = Duration::from_secs(3);
        let outcome = house.call_within(&server, "echo", ECHO, time).await;
        let error = outcome
            .err()
            .unwrap_or_else(|| panic!("{variant} was taken for an answer"));
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Upstream | ErrorKind::OutcomeUnknown | ErrorKind::TooLarge | ErrorKind::Timeout
            ),
            "{variant}: {error:?}"
        );
        let executed = rig.records("executions").len() - before;
        assert!(executed <= 1, "{variant}: the call was repeated");
        rig.control("mode=healthy").await;
        eventually("the server is usable again", async || {
            house.call(&server, "echo", ECHO).await.is_ok()
        })
        .await;
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_is_cut_at_a_limit_or_the_deadline() {
    let settings = GatewaySettings {
        message_bytes: 1 << 20,
        stream_bytes: 2 << 20,
        ..GatewaySettings::default()
    };
    let core = Settings {
        result_bytes: 1 << 20,
        ..Settings::default()
    };
    let house = House::with(settings, core);
    let time = Duration::from_secs(3);
    let cases = [
        ("mode=endless_comments&interval=0.05", &[ErrorKind::Timeout][..]),
        (
            "mode=endless_comments&interval=0.0001&bytes=60000",
            &[ErrorKind::TooLarge],
        ),
        ("mode=endless_event&variant=data_line", &[ErrorKind::TooLarge]),
        ("mode=endless_event&variant=data_lines", &[ErrorKind::TooLarge]),
        ("mode=endless_event&variant=field_name", &[ErrorKind::TooLarge]),
        ("mode=endless_event&variant=comment", &[ErrorKind::TooLarge]),
        ("mode=drip&interval=0.1&variant=body", &[ErrorKind::Timeout]),
        ("mode=drip&interval=0.1&variant=headers", &[ErrorKind::Timeout]),
        ("mode=drip&interval=0.1&variant=stream", &[ErrorKind::Timeout]),
        ("mode=drip&variant=nothing", &[ErrorKind::Timeout]),
        ("mode=unbounded_body&variant=json", &[ErrorKind::TooLarge]),
        (
            "mode=unbounded_body&variant=content_length",
            &[ErrorKind::TooLarge],
        ),
        (
            "mode=unbounded_body&variant=error_text&status=500",
            &[ErrorKind::OutcomeUnknown],
        ),
        (
            "mode=unbounded_body&variant=headers",
            &[ErrorKind::OutcomeUnknown],
        ),
        ("mode=silent_call", &[ErrorKind::Timeout]),
    ];
    for_each(cases.into_iter().enumerate(), async |(number, (query, kinds))| {
        let rig = Rig::new(Over::Http, &[]).await;
        let server = house.add(&format!("endless-{number}"), &rig).await;
        house.call(&server, "echo", ECHO).await.unwrap();
        rig.control(query).await;
        let outcome = house.call_within(&server, "echo", ECHO, time).await;
        let error = outcome.err().unwrap_or_else(|| panic!("{query} was answered"));
        assert!(kinds.contains(&error.kind()), "{query}: {error:?}");
        rig.control("mode=healthy").await;
        eventually("the server is usable again", async || {
            house.call(&server, "echo", ECHO).await.is_ok()
        })
        .await;
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_on_a_stream_that_stays_open_is_taken() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &["--mode", "never_closes"]).await;
    let server = house.add("open", &rig).await;
    for _ in 0..3 {
        let began = Instant::now();
        let outcome = house.call(&server, "echo", ECHO).await.unwrap();
        assert_eq!(text(&outcome), "x");
        assert!(began.elapsed() < Duration::from_secs(2));
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_answers_are_refused_unread() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &[]).await;
    let server = house.add("compressed", &rig).await;
    for variant in [
        "gzip",
        "gzip_nested",
        "deflate",
        "br",
        "zstd",
        "label_only",
        "unknown_label",
        "many_labels",
    ] {
        rig.control(&format!("mode=compressed&variant={variant}&bytes=1000000"))
            .await;
        let error = house.call(&server, "echo", ECHO).await.unwrap_err();
        assert_eq!(
            error.reason(),
            Some(ReasonCode::ProtocolViolation),
            "{variant}: {error}"
        );
    }
    let heads = rig.records("http_log").join("\n").to_lowercase();
    assert!(heads.contains("accept-encoding: identity"));
    assert!(!heads.contains("gzip"));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_not_followed() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &[]).await;
    let server = house.add("redirected", &rig).await;
    for variant in [
        "sentinel",
        "same_origin",
        "loop",
        "file",
        "no_location",
        "many_hops",
    ] {
        for status in ["301", "302", "307", "308"] {
            rig.control(&format!(
                "mode=redirect&variant={variant}&status={status}&when=call"
            ))
            .await;
            let error = house.call(&server, "echo", ECHO).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Upstream, "{variant}: {error}");
            assert!(!error.message().contains("127.0.0.1"), "{error}");
        }
    }
    assert!(rig.records("sentinel").is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demand_for_credentials_says_what_to_do_and_fetches_nothing() {
    let house = House::new();
    let token = || Auth::Token {
        token: ConfigValue::from_input("canary-token-1"),
    };
    for (variant, auth, reason) in [
        ("resource_metadata", Auth::None, ReasonCode::OauthUnsupported),
        ("resource_metadata", token(), ReasonCode::UpstreamUnauthorized),
        ("no_header", Auth::None, ReasonCode::UpstreamUnauthorized),
        ("basic", Auth::None, ReasonCode::UpstreamUnauthorized),
        ("malformed", token(), ReasonCode::UpstreamUnauthorized),
        ("huge", token(), ReasonCode::UpstreamUnauthorized),
    ] {
        let rig = Rig::new(Over::Http, &["--mode", "auth_challenge", "--variant", variant]).await;
        let error = check(&house, &rig, auth).await.unwrap_err();
        assert_eq!(error.reason(), Some(reason), "{variant}: {error}");
        assert_eq!(error.kind(), ErrorKind::Upstream, "{error}");
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        assert!(rig.records("sentinel").is_empty());
    }
    for over in [Over::Http, Over::Sse] {
        let rig = Rig::new(
            over,
            &["--require-header", "Authorization: Bearer canary-token-1"],
        )
        .await;
        check(&house, &rig, token()).await.unwrap();
        let error = check(&house, &rig, Auth::None).await.unwrap_err();
        assert!(
            matches!(
                error.reason(),
                Some(ReasonCode::UpstreamUnauthorized | ReasonCode::OauthUnsupported)
            ),
            "{error:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_session_fails_one_call_and_no_more() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &["--mode", "forget_session_after", "--calls", "2"]).await;
    let server = house.add("forgetful", &rig).await;
    let mut ends = Vec::new();
    for _ in 0..6 {
        let outcome = house.call(&server, "echo", ECHO).await;
        ends.push(outcome.map(|_| ()).map_err(|error| error.reason().unwrap()));
    }
    let lost = Err(ReasonCode::SessionRestarted);
    assert_eq!(ends, [Ok(()), Ok(()), lost, Ok(()), Ok(()), lost]);
    assert_eq!(rig.records("executions").len(), 4);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_restarts_is_usable_at_the_next_call() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &[]).await;
    let server = house.add("restarted", &rig).await;
    house.call(&server, "echo", ECHO).await.unwrap();
    rig.control("do=down").await;
    for _ in 0..20 {
        let began = Instant::now();
        let error = house.call(&server, "echo", ECHO).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(2));
        assert!(
            matches!(error.kind(), ErrorKind::Upstream | ErrorKind::OutcomeUnknown),
            "{error}"
        );
    }
    rig.control("do=up").await;
    house.call(&server, "echo", ECHO).await.unwrap();
    rig.control("do=restart").await;
    let lost = house.call(&server, "echo", ECHO).await;
    if let Err(error) = lost {
        assert_eq!(error.reason(), Some(ReasonCode::SessionRestarted), "{error}");
    }
    house.call(&server, "echo", ECHO).await.unwrap();
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_without_sessions_or_streams_is_not_pestered() {
    let house = House::new();
    for_each(
        ["sessionless", "get_405", "no_session_header", "delete_405"],
        async |mode| {
            let rig = Rig::new(Over::Http, &["--mode", mode]).await;
            let server = house.add(&mode.replace('_', "-"), &rig).await;
            for _ in 0..5 {
                house.call(&server, "echo", ECHO).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            // At most one try for each session: the discovery's and the caller's.
            let tries = rig.records("refused_gets");
            let gets = tries.iter().filter(|line| line.starts_with("GET")).count();
            assert!(gets <= 2, "{mode}: {tries:?}");
        },
    )
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_changes_that_misbehaves_is_left_alone() {
    let house = House::new();
    for_each(
        [
            "ends_at_once",
            "status_500",
            "json",
            "endless_comments",
            "retry_zero",
            "not_messages",
        ],
        async |variant| {
            let rig = Rig::new(Over::Http, &["--mode", "get_stream", "--variant", variant]).await;
            let server = house.add(&variant.replace('_', "-"), &rig).await;
            house.call(&server, "echo", ECHO).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            house.call(&server, "echo", ECHO).await.unwrap();
            let streams = rig.records("streams");
            let opened = streams.iter().filter(|line| !line.starts_with("close")).count();
            assert!(opened <= 3, "{variant}: {streams:?}");
        },
    )
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_ended_at_the_upstream() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &[]).await;
    let server = house.add("polite", &rig).await;
    for who in ["ada", "bob"] {
        house.call_as(who, &server, "count", "{}").await.unwrap();
    }
    house.close().await;
    let sessions = rig.records("sessions");
    let count = |what: &str| sessions.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!((count("open"), count("delete")), (3, 3), "{sessions:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_session_id_is_refused() {
    let house = House::new();
    for_each(["space", "non_ascii", "long", "empty", "tab"], async |variant| {
        let rig = Rig::new(Over::Http, &["--mode", "bad_session_id", "--variant", variant]).await;
        let outcome = check(&house, &rig, Auth::None).await;
        if let Err(error) = &outcome {
            assert_eq!(error.kind(), ErrorKind::Upstream, "{variant}: {error}");
        }
        let allowed = matches!(variant, "empty" | "tab" | "space");
        assert!(outcome.is_err() || allowed, "{variant} was taken");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_transport_sends_messages_to_its_own_origin_only() {
    let house = House::new();
    for_each(
        ["absolute", "scheme_relative", "userinfo", "file", "huge"],
        async |variant| {
            let rig = Rig::new(Over::Sse, &["--mode", "foreign_endpoint", "--variant", variant]).await;
            let began = Instant::now();
            let error = check(&house, &rig, Auth::None).await.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Upstream | ErrorKind::TooLarge),
                "{variant}: {error}"
            );
            assert!(began.elapsed() < Duration::from_secs(2), "{variant}");
            assert!(rig.records("sentinel").is_empty(), "{variant}");
        },
    )
    .await;
    let rig = Rig::new(
        Over::Sse,
        &["--mode", "foreign_endpoint", "--variant", "own_absolute"],
    )
    .await;
    check(&house, &rig, Auth::None).await.unwrap();
    let rig = Rig::new(Over::Sse, &["--mode", "foreign_endpoint", "--variant", "empty"]).await;
    let error = check(&house, &rig, Auth::None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_transport_survives_the_end_of_its_stream() {
    let house = House::new();
    let rig = Rig::new(Over::Sse, &[]).await;
    let server = house.add("old", &rig).await;
    house.call(&server, "echo", ECHO).await.unwrap();
    rig.control("do=drop_streams").await;
    eventually("it is usable again", async || {
        house.call(&server, "echo", ECHO).await.is_ok()
    })
    .await;
    // One for the discovery, one for each session.
    assert!(rig.records("initializes").len() <= 3);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrored_arguments_travel_as_headers_and_bad_wishes_withhold_the_tool() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &["--era", "modern", "--mode", "header_tools"]).await;
    let server = house.add("mirrored", &rig).await;
    let page = caliber_core::page::PageRequest::first(100);
    let listing = house
        .caliber
        .tools(&crate::support::admin(), &server, &page)
        .await
        .unwrap();
    let names: Vec<_> = listing
        .tools
        .items
        .iter()
        .map(|tool| tool.name().to_string())
        .collect();
    for name in ["echo", "good", "good_integer", "good_boolean", "good_nested"] {
        assert!(names.contains(&name.to_owned()), "{name}: {names:?}");
    }
    assert!(!names.iter().any(|name| name.starts_with("bad_")), "{names:?}");
    let schema = listing
        .tools
        .items
        .iter()
        .find(|tool| tool.name().as_str() == "good")
        .unwrap()
        .descriptor
        .input_schema()
        .clone();
    let schema: serde_json::Value = schema.read().unwrap();
    let argument = schema["properties"]
        .as_object()
        .unwrap()
        .iter()
        .find(|(_, property)| property.get("x-mcp-header").is_some())
        .map(|(name, property)| {
            let header = property["x-mcp-header"].as_str().unwrap().to_lowercase();
            (name.clone(), header)
        });
    let (argument, header) = argument.unwrap();
    let arguments = serde_json::json!({ argument: "a\r\nX-Evil: 1" }).to_string();
    house.call(&server, "good", &arguments).await.unwrap();
    let heads = rig.records("http_log").join("\n").to_lowercase();
    assert!(
        heads.contains(&format!("mcp-param-{header}: =?base64?yq0kwc1fdmlsoiax?=")),
        "{header}"
    );
    assert!(!heads.contains("\nx-evil"));
    assert!(heads.contains("mcp-method: tools/call") && heads.contains("mcp-name: good"));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_executed_is_never_sent_again() {
    let house = House::new();
    for_each(
        [
            (
                Over::Http,
                &[
                    "drop",
                    "reset",
                    "status",
                    "forget_session",
                    "half_answer",
                    "empty_stream",
                    "empty_body",
                ][..],
            ),
            (Over::Stdio, &["exit"]),
            (Over::Sse, &["drop", "reset"]),
        ],
        async |(over, variants)| {
            for variant in variants {
                let rig = Rig::new(over, &["--mode", "execute_then", "--variant", variant]).await;
                let name = format!("{over:?}-{}", variant.replace('_', "-"));
                let server = house.add(&name, &rig).await;
                let outcome = house
                    .call_within(&server, "echo", ECHO, Duration::from_secs(3))
                    .await;
                let error = outcome.unwrap_err();
                assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::OutcomeUnknown | ErrorKind::Timeout | ErrorKind::Upstream
                    ),
                    "{name}: {error:?}"
                );
                if matches!(*variant, "drop" | "reset" | "forget_session") && over == Over::Http {
                    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{name}: {error:?}");
                }
                assert_eq!(rig.records("executions").len(), 1, "{name}");
            }
        },
    )
    .await;
    house.close().await;
}
