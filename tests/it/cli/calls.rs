//! Calls: what arrives, and what the exit code says of what did not.

use serde_json::Value;

use super::{add_arguments, allow, ends, failure, fake_stdio, with_server};
use crate::support::command::CommandRig;

#[tokio::test]
async fn numbers_and_text_arrive_unchanged() {
    let rig = with_server("one", &[]).await;
    allow(&rig, "one", "echo").await;
    let value = r#"{"n":12345678901234567890.10,"s":"天気 \u2028 😀 \u0000"}"#;
    let said = rig
        .run(&["tools", "call", "one", "echo", &format!(r#"{{"value":{value}}}"#)])
        .await;
    ends(&said, 0);
    assert!(said.stdout.contains("12345678901234567890.10"), "{}", said.stdout);
    let called = said.json();
    let text = called["result"]["content"][0]["text"].as_str().expect("a text");
    assert!(
        text.contains("12345678901234567890.10") && text.contains("天気"),
        "{text}"
    );

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("arguments.json");
    std::fs::write(&file, r#"{"value": "from a file"}"#).expect("the file can be written");
    let said = rig
        .run(&["tools", "call", "one", "echo", &format!("@{}", file.display())])
        .await;
    assert!(said.stdout.contains("from a file"), "{}", said.stdout);
}

#[tokio::test]
async fn each_way_to_fail_has_its_exit_code() {
    let rig = with_server("one", &[]).await;
    for tool in ["echo", "fail", "sleep"] {
        allow(&rig, "one", tool).await;
    }
    let call = |tool: &'static str, arguments: &'static str| ["tools", "call", "one", tool, arguments];
    ends(&rig.run(&call("echo", "{")).await, 2);
    ends(&rig.run(&call("echo", "[1]")).await, 2);
    let unfit = rig.run(&call("echo", "{}")).await;
    ends(&unfit, 2);
    assert_eq!(unfit.reason(), "arguments_invalid");
    ends(&rig.run(&["tools", "call", "absent", "echo"]).await, 3);
    let unknown = rig.run(&call("absent", "{}")).await;
    ends(&unknown, 4);
    assert_eq!(unknown.reason(), "tool_unknown");
    let failed = rig.run(&call("fail", "{}")).await;
    assert_eq!(failed.code, 11, "{}", failed.stderr);
    let answer: Value = serde_json::from_str(failed.stdout.trim()).expect("the answer is printed");
    assert_eq!(answer["is_error"], true);

    let late = rig
        .run(&[
            "tools",
            "call",
            "one",
            "sleep",
            r#"{"seconds":30}"#,
            "--timeout",
            "300ms",
        ])
        .await;
    assert!([7, 8].contains(&late.code), "{} {}", late.code, late.stderr);
    ends(
        &rig.run(&["tools", "call", "one", "sleep", "{}", "--timeout", "soon"])
            .await,
        2,
    );
}

#[tokio::test]
async fn a_server_that_cannot_be_started_or_reached_is_told_as_such() {
    let rig = CommandRig::new(&[]);
    let not_allowed = rig
        .run(&["servers", "add", "sh", "--", "/bin/sh", "-c", "true"])
        .await
        .json();
    assert_eq!(not_allowed["execution"]["ready"], false);
    let refused = rig.run(&["servers", "check", "sh"]).await;
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    assert!(refused.stderr.contains("policy.launch"), "{}", refused.stderr);

    // Nobody listens on the discard port of loopback.
    ends(
        &rig.run(&["servers", "add", "away", "--url", "http://127.0.0.1:9/mcp"])
            .await,
        0,
    );
    let away = rig.run(&["servers", "check", "away"]).await;
    assert_eq!(away.code, 6, "{}", away.stderr);
    let elsewhere = rig
        .run(&["servers", "add", "far", "--url", "https://mcp.example.com/mcp"])
        .await
        .json();
    assert_eq!(elsewhere["execution"]["ready"], false);
    let far = rig.run(&["servers", "discover", "far"]).await;
    ends(&far, 4);
    assert_eq!(far.reason(), "host_not_allowed");
}

#[tokio::test]
async fn consent_is_asked_for_and_nobody_gives_it_to_themselves() {
    let rig = with_server("one", &[]).await;
    let classify = [
        "tools", "classify", "one", "echo", "--level", "write", "--allow", "--yes",
    ];
    let decided = rig.run(&classify).await.json();
    assert_eq!(decided["policy"]["requires_approval"], true);

    let call = ["tools", "call", "one", "echo", r#"{"value":1}"#];
    let waiting = rig.run(&call).await;
    ends(&waiting, 5);
    let approval = failure(&waiting, "approval_id");
    assert!(approval.starts_with("apr_"), "{}", waiting.stderr);
    let pending = rig.run(&["approvals", "list"]).await.json();
    assert_eq!(pending[0]["approval_id"], approval.as_str());
    assert_eq!(pending[0]["arguments"], serde_json::json!({ "value": 1 }));

    let own = rig.run(&["approvals", "approve", &approval]).await;
    ends(&own, 4);
    ends(
        &rig.run(&[&call[..], &["--approval", &approval]].concat()).await,
        5,
    );
    ends(
        &rig.run(&[&call[..], &["--break-glass", "the approver is ill"]].concat())
            .await,
        0,
    );
    ends(
        &rig.run(&["approvals", "refuse", "apr_00000000000000000000000000000000"])
            .await,
        3,
    );

    let waived = rig
        .run(&[
            "tools",
            "classify",
            "one",
            "echo",
            "--level",
            "write",
            "--allow",
            "--waive-approval",
            "a scratch server",
            "--yes",
        ])
        .await
        .json();
    assert_eq!(waived["policy"]["approval_waiver"], "a scratch server");
    ends(&rig.run(&call).await, 0);
}

#[tokio::test]
async fn canaries_are_never_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    std::fs::write(&file, "canary-of-a-file\n").expect("the file can be written");
    let mut rig = CommandRig::new(&[]);
    rig.set("CANARY_VARIABLE", "canary-of-a-variable");
    rig.set("CALIBER_TOKEN", "canary-of-a-token");
    let script = fake_stdio();
    let from_file = format!("RIG_FILE=@{}", file.display());
    let add = [
        "servers",
        "add",
        "one",
        "--env",
        &from_file,
        "--env",
        "RIG_LITERAL=canary-of-a-flag",
        "--env",
        "RIG_VARIABLE=env://CANARY_VARIABLE",
        "--",
        "${PYTHON}",
        &script,
    ];
    let url = "http://user:canary-of-a-url@127.0.0.1:9/mcp";
    let runs: [&[&str]; 11] = [
        &add,
        &add,
        &["servers", "show", "one"],
        &["servers", "discover", "one"],
        &["servers", "add", "two", "--url", url],
        &[
            "servers",
            "add",
            "three",
            "--url",
            "http://127.0.0.1:9/mcp",
            "--token",
            "canary of a header\r\n",
        ],
        &["servers", "add", "four", "--env", "canary-of-a-pair", "--", "x"],
        &["audit", "tail", "-n", "100"],
        &["servers", "list"],
        &["config", "show"],
        &["servers", "remove", "one", "--yes"],
    ];
    for arguments in runs {
        for said in [rig.run(arguments).await, rig.run_for_people(arguments).await] {
            let told = format!("{}{}", said.stdout, said.stderr);
            assert!(!told.contains("canary"), "{arguments:?}: {told}");
        }
    }
    let kept = rig.run(&["audit", "tail", "-n", "100"]).await;
    assert!(
        kept.stdout.contains("delete_mcp_server") && !kept.stdout.contains("canary"),
        "{}",
        kept.stdout
    );
    for entry in std::fs::read_dir(rig.folder()).expect("the folder can be read") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("the file can be read");
        assert!(
            !crate::support::oracles::holds(&bytes, b"canary-of"),
            "{} holds a secret",
            path.display()
        );
    }
    ends(&rig.run(&add_arguments("five", &script, &[])).await, 0);
}
