//! What passes through arrives as it was sent, byte for byte.

use caliber::ErrorKind;
use caliber::core::descriptor::ToolName;
use caliber::core::invocation::InvocationOutcome;
use caliber::core::json::{JsonLimits, JsonText};
use caliber::core::reason::ReasonCode;
use serde_json::json;

use crate::support::{Direct, Rig, Transport, Upstream, assert_executions, assert_ledger, structured, text};

const CASES: [(Transport, &str); 5] = [
    (Transport::Stdio, "legacy"),
    (Transport::Http, "legacy"),
    (Transport::Sse, "legacy"),
    (Transport::Stdio, "modern"),
    (Transport::Http, "modern"),
];

/// Values as they are written in JSON: texts of all kinds, and numbers that no double holds exactly.
const VALUES: [&str; 13] = [
    r#""漢字 かな 한글""#,
    "\"🔥👩‍👩‍👧 é\"",
    "\"raw \u{2028}\u{2029} line separators\"",
    r#""\u2028 \u0000 \u001b[2J \ud83d\udd25 \/""#,
    "\"\u{202e}right to left \u{200b}zero width\"",
    r#""{\"jsonrpc\":\"2.0\",\"id\":1}\n{\"jsonrpc\":\"2.0\"}""#,
    "9007199254740993",
    "18446744073709551616",
    "-0",
    "0.1000000000000000055511151231257827021181583404541015625",
    "1.0",
    r#"{"b":1,"a":{"z":[],"y":{}},"":null}"#,
    r#"[1,  2 ,"spaced" , {"k" : true}]"#,
];

#[tokio::test(flavor = "multi_thread")]
async fn arguments_and_results_are_not_touched() {
    for (transport, era) in CASES {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &["--era", era]).await;
        let server = rig.admit("echo", upstream.endpoint()).await;
        for value in VALUES {
            let arguments =
                format!(r#"{{"value":{value},"unknown":{value},"meta":{{"example.org/kept":{value}}}}}"#);
            let outcome = server
                .send(&rig.ada, server.raw_request("echo", &arguments))
                .await;
            let outcome =
                outcome.unwrap_or_else(|error| panic!("{value} over {transport:?} {era}: {error:?}"));
            let seen = upstream.records().bytes("requests");
            let sent = seen
                .windows(arguments.len())
                .any(|window| window == arguments.as_bytes());
            assert!(
                sent,
                "the upstream did not get {arguments} over {transport:?} {era}"
            );
            let result = &outcome.answer.result;
            let echoed = result
                .member("structuredContent")
                .and_then(|content| content.member("value"));
            assert_eq!(echoed.expect("a value").as_str(), value, "{transport:?} {era}");
            let meta = result
                .member("_meta")
                .and_then(|meta| meta.member("example.org/kept"));
            assert_eq!(
                meta.expect("the result keeps its _meta").as_str(),
                value,
                "{transport:?} {era}"
            );
        }
        assert_executions(&upstream, VALUES.len());
    }
}

/// Half of a surrogate pair is no text: the call is refused before anything is sent, and the session goes on.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_surrogate_pair_in_an_argument_is_refused() {
    let rig = Rig::open().await;
    let upstream = Upstream::start(Transport::Http, &[]).await;
    let server = rig.admit("echo", upstream.endpoint()).await;
    server
        .call(&rig.ada, "echo", json!({ "value": "before" }))
        .await
        .unwrap();
    for arguments in [r#"{"value":"\ud800"}"#, r#"{"value":"\udc00\ud800"}"#] {
        let error = server
            .send(&rig.ada, server.raw_request("echo", arguments))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{arguments}: {error:?}");
    }
    let in_a_name = JsonText::parse(r#"{"\ud83d":1}"#, JsonLimits::ARGUMENTS).unwrap_err();
    assert_eq!(in_a_name.kind(), ErrorKind::Invalid, "{in_a_name:?}");
    let after = server
        .call(&rig.ada, "echo", json!({ "value": "after" }))
        .await
        .unwrap();
    assert_eq!(text(&after), "after");
    assert_executions(&upstream, 2);
}

/// A number beyond every double cannot be held against a schema: it is refused, and never sent as another number.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_beyond_every_double_is_refused_or_passed_on_and_never_changed() {
    let rig = Rig::open().await;
    let upstream = Upstream::start(Transport::Stdio, &[]).await;
    let server = rig.admit("echo", upstream.endpoint()).await;
    let sent = server
        .send(&rig.ada, server.raw_request("echo", r#"{"value":1e400}"#))
        .await;
    match sent {
        Ok(outcome) => {
            let content = outcome.answer.result.member("structuredContent").unwrap();
            assert_eq!(content.member("value").unwrap().as_str(), "1e400");
        }
        Err(error) => {
            assert_eq!(error.reason(), Some(ReasonCode::ArgumentsUnchecked), "{error:?}");
            assert_executions(&upstream, 0);
        }
    }
}

/// In a result it costs at most that call.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_surrogate_pair_in_a_result_costs_one_call_at_most() {
    for transport in Transport::ALL {
        let rig = Rig::open().await;
        let settings = [
            "--mode",
            "bad_answer",
            "--variant",
            "lone_surrogate",
            "--times",
            "1",
        ];
        let upstream = Upstream::start(transport, &settings).await;
        let server = rig.admit("echo", upstream.endpoint()).await;
        if let Err(error) = server.call(&rig.ada, "echo", json!({ "value": 1 })).await {
            assert_eq!(error.kind(), ErrorKind::Upstream, "{transport:?}: {error:?}");
        }
        let after = server
            .call(&rig.ada, "echo", json!({ "value": "after" }))
            .await
            .unwrap();
        assert_eq!(text(&after), "after", "{transport:?}");
        assert_executions(&upstream, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_and_types_of_a_result_are_kept() {
    for variant in [
        "unknown_fields",
        "unknown_type",
        "all_types",
        "texts",
        "empty_content",
    ] {
        let upstream =
            Upstream::start(Transport::Http, &["--mode", "odd_result", "--variant", variant]).await;
        let rig = Rig::open().await;
        let server = rig.admit("odd", upstream.endpoint()).await;
        let said = Direct::open(&upstream).await.call("echo", r#"{"value":1}"#).await;
        let outcome = server
            .call(&rig.ada, "echo", json!({ "value": 1 }))
            .await
            .unwrap();
        assert_eq!(outcome.answer.result.as_str(), said, "{variant}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_are_kept_as_the_server_wrote_them() {
    let upstream = Upstream::start(Transport::Http, &[]).await;
    let rig = Rig::open().await;
    let server = rig.admit("described", upstream.endpoint()).await;
    let mut said = Direct::open(&upstream).await.tools().await;
    let mut kept: Vec<_> = server
        .tools()
        .await
        .iter()
        .map(|tool| tool.descriptor.text().as_str().to_owned())
        .collect();
    assert!(
        said.iter().any(|tool| tool.contains("$defs")
            && tool.contains("_meta")
            && tool.contains("9007199254740993"))
    );
    said.sort();
    kept.sort();
    assert_eq!(kept, said);
    let name: ToolName = "structured".parse().unwrap();
    let tool = rig
        .caliber
        .tool(&rig.admin, &server.id, &name)
        .await
        .unwrap()
        .view;
    let schema = tool.descriptor.input_schema().member("$defs");
    assert_eq!(
        schema.unwrap().as_str(),
        r#"{"label":{"type":"string","maxLength":1000}}"#
    );
}

/// A tool that says why it failed need not do so in the shape that it promised for success.
#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_failure_is_kept_whatever_the_output_schema_says() {
    for variant in ["error_other_shape", "error_without"] {
        let rig = Rig::open().await;
        let upstream = Upstream::start(Transport::Stdio, &["--mode", "output", "--variant", variant]).await;
        let server = rig.admit("failing", upstream.endpoint()).await;
        let outcome = server.call(&rig.ada, "structured", json!({})).await.unwrap();
        assert!(outcome.answer.is_error, "{variant}");
        assert_eq!(text(&outcome), "the real error text", "{variant}");
        assert_ledger(&server, &[InvocationOutcome::ToolError]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn structured_content_that_keeps_its_promise_arrives() {
    for (transport, era) in CASES {
        let rig = Rig::open().await;
        let upstream = Upstream::start(transport, &["--era", era]).await;
        let server = rig.admit("structured", upstream.endpoint()).await;
        let arguments = r#"{"count":9007199254740993,"label":"三"}"#;
        let outcome = server
            .send(&rig.ada, server.raw_request("structured", arguments))
            .await
            .unwrap();
        let content = outcome.answer.result.member("structuredContent").unwrap();
        assert_eq!(content.as_str(), arguments, "{transport:?} {era}");
        assert_eq!(structured(&outcome)["label"], "三");
    }
}
