//! Which family a server speaks, and what it is told about us.

use std::time::{Duration, Instant};

use caliber_core::clock::Deadline;
use caliber_core::gateway::{Gateway, Target};
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind};

use crate::support::{House, Over, Rig, definition, for_each, stdio, text};

async fn check(house: &House, rig: &Rig, time: Duration) -> Result<String, Error> {
    let target = Target {
        server: None,
        definition: definition("checked", rig.endpoint()).into(),
    };
    let report = house.gateway.check(&target, Deadline::after(time)).await?;
    Ok(report.protocol_version)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_revision_is_spoken() {
    let house = House::new();
    let soon = Duration::from_secs(10);
    for_each([Over::Stdio, Over::Http], async |over| {
        for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
            let rig = Rig::new(over, &["--versions", version]).await;
            assert_eq!(check(&house, &rig, soon).await.unwrap(), version, "{over:?}");
        }
        for era in ["modern", "dual"] {
            let rig = Rig::new(over, &["--era", era]).await;
            assert_eq!(
                check(&house, &rig, soon).await.unwrap(),
                "2026-07-28",
                "{over:?} {era}"
            );
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn initialize_names_a_revision_that_has_it_and_offers_nothing() {
    let house = House::new();
    for over in [Over::Stdio, Over::Http, Over::Sse] {
        let rig = Rig::new(over, &[]).await;
        check(&house, &rig, Duration::from_secs(10)).await.unwrap();
        let requests = rig.records("requests");
        let initialize = requests
            .iter()
            .find(|line| line.contains("\"initialize\""))
            .unwrap();
        let message: serde_json::Value = serde_json::from_str(initialize).unwrap();
        assert_eq!(message["params"]["protocolVersion"], "2025-11-25");
        assert_eq!(message["params"]["capabilities"], serde_json::json!({}));
        assert!(
            requests
                .iter()
                .any(|line| line.contains("notifications/initialized"))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_legacy_server_may_meet_the_modern_question_in_any_way() {
    let house = House::new();
    for (over, ways) in [
        (
            Over::Stdio,
            &[
                "method_not_found",
                "invalid_params",
                "invalid_request",
                "server_error",
                "odd_code",
                "exit",
            ][..],
        ),
        (
            Over::Http,
            &["method_not_found", "odd_code", "status_404", "plain_text_400"][..],
        ),
    ] {
        for way in ways {
            let rig = Rig::new(over, &["--legacy-discover", way]).await;
            let version = check(&house, &rig, Duration::from_secs(10)).await;
            assert_eq!(version.unwrap(), "2025-11-25", "{over:?} {way}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_silent_to_the_question_is_waited_for_once() {
    let house = House::new();
    for_each([Over::Stdio, Over::Http], async |over| {
        let rig = Rig::new(over, &["--legacy-discover", "silent"]).await;
        let began = Instant::now();
        check(&house, &rig, Duration::from_secs(20)).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        let began = Instant::now();
        check(&house, &rig, Duration::from_secs(20)).await.unwrap();
        assert!(
            began.elapsed() < Duration::from_millis(1_900),
            "{over:?}: {:?}",
            began.elapsed()
        );
        assert_eq!(rig.records("initializes").len(), 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_question_takes_a_share_of_the_time_only() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &["--legacy-discover", "silent"]).await;
    check(&house, &rig, Duration::from_secs(3)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_changes_its_family_is_asked_again() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &[]).await;
    let soon = Duration::from_secs(10);
    assert_eq!(check(&house, &rig, soon).await.unwrap(), "2025-11-25");
    rig.control("era=modern").await;
    assert_eq!(check(&house, &rig, soon).await.unwrap(), "2026-07-28");
    rig.control("era=legacy").await;
    assert_eq!(check(&house, &rig, soon).await.unwrap(), "2025-11-25");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_start_ends_at_the_deadline() {
    let house = House::new();
    for_each([Over::Stdio, Over::Http, Over::Sse], async |over| {
        let rig = Rig::new(over, &["--mode", "silent_start"]).await;
        let began = Instant::now();
        let error = check(&house, &rig, Duration::from_secs(2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{over:?}: {error}");
        assert!(began.elapsed() < Duration::from_secs(3), "{over:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_start_is_told_soon_with_the_end_of_standard_error() {
    let house = House::new();
    for mode in ["exit_at_start", "exit_before_initialize"] {
        let rig = Rig::new(
            Over::Stdio,
            &["--mode", mode, "--message", "the license has expired"],
        )
        .await;
        let began = Instant::now();
        let error = check(&house, &rig, Duration::from_secs(15)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Upstream, "{error}");
        assert_eq!(error.reason(), Some(ReasonCode::ConnectFailed), "{error}");
        assert!(error.message().contains("the license has expired"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
    for endpoint in [
        stdio("false", &[]),
        stdio("/nonexistent/server", &[]),
        stdio("no-such-server-anywhere", &[]),
    ] {
        let target = Target {
            server: None,
            definition: definition("bad", endpoint).into(),
        };
        let began = Instant::now();
        let deadline = Deadline::after(Duration::from_secs(15));
        let error = house.gateway.check(&target, deadline).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Upstream, "{error}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_introduction_is_an_error_and_no_hang() {
    let house = House::new();
    for_each([Over::Stdio, Over::Http], async |over| {
        for variant in [
            "version_unknown",
            "version_modern",
            "version_number",
            "version_null",
            "no_version",
            "capabilities_array",
            "result_string",
            "empty",
            "error",
        ] {
            let rig = Rig::new(over, &["--mode", "bad_initialize", "--variant", variant]).await;
            let error = check(&house, &rig, Duration::from_secs(8)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Upstream, "{over:?} {variant}: {error}");
        }
        let rig = Rig::new(
            over,
            &["--mode", "bad_initialize", "--variant", "huge_instructions"],
        )
        .await;
        let error = check(&house, &rig, Duration::from_secs(8)).await.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Upstream),
            "{over:?}: {error}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_mention_its_tools_is_asked_for_them() {
    let house = House::new();
    let rig = Rig::new(
        Over::Stdio,
        &["--mode", "bad_initialize", "--variant", "no_tools_capability"],
    )
    .await;
    let server = house.add("shy", &rig).await;
    let outcome = house.call(&server, "echo", r#"{"value":"x"}"#).await.unwrap();
    assert_eq!(text(&outcome), "x");
}
