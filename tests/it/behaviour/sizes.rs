//! Large results, arguments and lists: they arrive, or the error names the limit.

use caliber::ErrorKind;
use caliber::InvokeRequest;
use caliber::core::json::{JsonLimits, JsonText};
use caliber::core::policy::ToolPolicy;
use caliber::core::principal::Surface;
use caliber::core::reason::ReasonCode;
use serde_json::json;

use crate::support::{Rig, Transport, Upstream, assert_executions, text};

const MEBIBYTE: usize = 1 << 20;

/// Whether an error names this limit of a result, or that of the whole message, which has 64 KiB more.
fn names(error: &caliber::Error, limit: usize) -> bool {
    [limit, limit + (64 << 10)]
        .iter()
        .any(|limit| error.message().contains(&limit.to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_one_three_and_nine_megabytes_arrive() {
    for (transport, answer) in [
        (Transport::Stdio, "json"),
        (Transport::Http, "json"),
        (Transport::Http, "sse"),
        (Transport::Sse, "json"),
    ] {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &["--answer", answer]).await;
        let server = rig.admit("big", upstream.endpoint()).await;
        for megabytes in [1, 3, 9] {
            let bytes = megabytes * MEBIBYTE;
            let outcome = server.call(&rig.ada, "big", json!({ "bytes": bytes })).await;
            let outcome = outcome
                .unwrap_or_else(|error| panic!("{bytes} bytes over {transport:?} {answer}: {error:?}"));
            assert_eq!(text(&outcome).len(), bytes, "{transport:?} {answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_beyond_the_limit_names_the_limit_and_the_session_goes_on() {
    for transport in Transport::ALL {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &[]).await;
        let server = rig.admit("big", upstream.endpoint()).await;
        let error = server
            .call(&rig.ada, "big", json!({ "bytes": 17 * MEBIBYTE }))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{transport:?}: {error:?}");
        assert_eq!(error.reason(), Some(ReasonCode::ResultTooLarge), "{transport:?}");
        assert!(names(&error, 16 * MEBIBYTE), "{transport:?}: {error}");

        let smaller = ToolPolicy {
            result_bytes: Some(2_000_000),
            ..ToolPolicy::allow_read()
        };
        server.classify("big", smaller).await.unwrap();
        let error = server
            .call(&rig.ada, "big", json!({ "bytes": 3 * MEBIBYTE }))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{transport:?}: {error:?}");
        assert!(names(&error, 2_000_000), "{transport:?}: {error}");
        let below = server
            .call(&rig.ada, "big", json!({ "bytes": 1_900_000 }))
            .await
            .unwrap();
        assert_eq!(text(&below).len(), 1_900_000, "{transport:?}");
        assert_executions(&upstream, 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_argument_of_three_megabytes_arrives_and_one_beyond_the_limit_is_refused() {
    let long = "x".repeat(3 * MEBIBYTE);
    for transport in Transport::ALL {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &[]).await;
        let server = rig.admit("echo", upstream.endpoint()).await;
        let outcome = server.call(&rig.ada, "echo", json!({ "value": long })).await;
        let outcome = outcome.unwrap_or_else(|error| panic!("{transport:?}: {error:?}"));
        assert!(
            text(&outcome) == long,
            "{} bytes came back over {transport:?}",
            text(&outcome).len()
        );

        let beyond = json!({ "value": "x".repeat(JsonLimits::ARGUMENTS.bytes) }).to_string();
        let beyond = JsonText::parse(
            beyond,
            JsonLimits {
                bytes: 8 * MEBIBYTE,
                depth: 8,
            },
        )
        .unwrap();
        let request = InvokeRequest::new(
            server.id.clone(),
            "echo".parse().unwrap(),
            beyond,
            Surface::Library,
        );
        let error = server.send(&rig.ada, request).await.unwrap_err();
        assert!(
            error.message().contains(&JsonLimits::ARGUMENTS.bytes.to_string()),
            "{transport:?}: {error:?}"
        );
        assert_executions(&upstream, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_list_of_half_a_megabyte_is_discovered() {
    for transport in Transport::ALL {
        let rig = Rig::open().await;
        let settings = ["--mode", "many_tools", "--count", "1000", "--bytes", "400"];
        let upstream = Upstream::start(transport, &settings).await;
        let server = rig.register("many", upstream.endpoint()).await;
        let found = server
            .discover()
            .await
            .unwrap_or_else(|error| panic!("{transport:?}: {error:?}"));
        assert_eq!(found.inventory.tool_count, 1000, "{transport:?}");
        let tools = server.tools().await;
        let bytes: usize = tools
            .iter()
            .map(|tool| tool.descriptor.text().as_str().len())
            .sum();
        assert!(
            tools.len() == 1000 && bytes > 500_000,
            "{} tools of {bytes} bytes over {transport:?}",
            tools.len()
        );
    }
}
