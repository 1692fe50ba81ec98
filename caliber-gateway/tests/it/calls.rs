//! Calls over every transport and in both families.

use std::time::Duration;

use caliber_core::admission::SessionFact;
use caliber_core::reason::ReasonCode;
use caliber_core::{ErrorKind, Retry};

use crate::support::{EVERY_TRANSPORT, House, Over, Rig, eventually, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_server_is_discovered_and_called() {
    let house = House::new();
    for (over, era) in [
        (Over::Stdio, "legacy"),
        (Over::Http, "legacy"),
        (Over::Sse, "legacy"),
        (Over::Stdio, "modern"),
        (Over::Http, "modern"),
        (Over::Stdio, "dual"),
        (Over::Http, "dual"),
    ] {
        let rig = Rig::new(over, &["--era", era]).await;
        let name = format!("{over:?}-{era}").to_lowercase();
        let server = house.add(&name, &rig).await;
        let outcome = house.call(&server, "echo", r#"{"value":"ü"}"#).await.unwrap();
        assert_eq!(text(&outcome), "ü", "{name}");
        for count in ["1", "2", "3"] {
            let outcome = house.call(&server, "count", "{}").await.unwrap();
            assert_eq!(text(&outcome), count, "{name}");
        }
        // One for the discovery, one for the calls.
        let handshakes = match era {
            "legacy" => "initializes",
            _ => "discovers",
        };
        assert_eq!(rig.records(handshakes).len(), 2, "{name}");
        assert_eq!(rig.records("lists").len(), 2, "{name}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_pass_unchanged_in_both_directions() {
    let house = House::new();
    for over in EVERY_TRANSPORT {
        let rig = Rig::new(over, &[]).await;
        let server = house.add(&format!("{over:?}").to_lowercase(), &rig).await;
        for value in [
            "9007199254740993",
            "-0",
            "18446744073709551616",
            "0.1000000000000000000000000000000000000001",
            r#""天気 🌦 \u2028 \u0000 \ud83c\udf26""#,
            "\"\u{2028}\u{feff}\"",
            r#"{"$defs":{"b":1,"a":[1.10]}}"#,
        ] {
            let arguments = format!(r#"{{"value":{value}}}"#);
            let outcome = house.call(&server, "echo", &arguments).await.unwrap();
            let structured = outcome.answer.result.member("structuredContent").unwrap();
            assert_eq!(structured.member("value").unwrap().as_str(), value, "{over:?}");
            let sent = rig.records("requests");
            assert!(sent.last().unwrap().contains(&arguments), "{over:?}: {sent:?}");
        }
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_offered_only_where_nothing_was_sent() {
    let house = House::new();
    let time = Duration::from_millis(700);
    for (name, open, control, kind, reason, retry) in [
        // Before the call: no connection, a slow handshake, a list that fails.
        (
            "refused",
            false,
            "mode=unavailable&status=503",
            ErrorKind::Upstream,
            ReasonCode::ConnectFailed,
            Retry::Later,
        ),
        (
            "slow-start",
            false,
            "mode=slow_start&seconds=5",
            ErrorKind::Timeout,
            ReasonCode::Timeout,
            Retry::Later,
        ),
        (
            "broken-list",
            true,
            "mode=unavailable&status=503&when=list&do=list_changed",
            ErrorKind::Upstream,
            ReasonCode::ConnectFailed,
            Retry::Later,
        ),
        (
            "slow-list",
            true,
            "mode=slow_list&seconds=5&do=list_changed",
            ErrorKind::Timeout,
            ReasonCode::Timeout,
            Retry::Later,
        ),
        // The call itself: no answer, a lost one, and answers that are none.
        (
            "silent",
            true,
            "mode=silent_call",
            ErrorKind::Timeout,
            ReasonCode::Timeout,
            Retry::Never,
        ),
        (
            "dropped",
            true,
            "mode=execute_then&variant=drop",
            ErrorKind::OutcomeUnknown,
            ReasonCode::OutcomeUnknown,
            Retry::Never,
        ),
        (
            "html",
            true,
            "mode=bad_http&variant=html",
            ErrorKind::Upstream,
            ReasonCode::ProtocolViolation,
            Retry::Never,
        ),
        (
            "not-base64",
            true,
            "mode=odd_result&variant=bad_base64",
            ErrorKind::Upstream,
            ReasonCode::ProtocolViolation,
            Retry::Never,
        ),
    ] {
        let rig = Rig::new(Over::Http, &[]).await;
        let server = house.add(name, &rig).await;
        if open {
            house.call(&server, "count", "{}").await.unwrap();
            rig.wait_for_records("streams", 1).await;
        }
        let before = rig.records("executions").len();
        rig.control(control).await;
        if control.contains("list_changed") {
            eventually("the change arrives", async || {
                house.session(&server, "count").await == SessionFact::NotOpen
            })
            .await;
        }
        let outcome = house.call_within(&server, "count", "{}", time).await;
        let error = outcome.expect_err(name);
        assert_eq!(
            (error.kind(), error.reason(), error.retry()),
            (kind, Some(reason), retry),
            "{name}: {error:?}"
        );
        let sent = rig.records("executions").len() > before;
        assert_eq!(error.may_have_been_sent(), sent, "{name}: {error:?}");
    }
    house.close().await;
}
