//! Code tools through the command: registered, resolved, run in the sandbox, retired.

use std::path::Path;

use serde_json::Value;

use super::{ends, failure};
use crate::support::command::CommandRig;

/// Whether this machine can run code tools. Where it cannot, the command has to say so, and nothing runs.
async fn sandbox_works(rig: &CommandRig) -> bool {
    let said = rig.run(&["sandbox", "doctor"]).await;
    let report: Value = serde_json::from_str(&said.stdout).expect("the report is JSON");
    assert!(
        report["guarantees"]
            .as_object()
            .is_some_and(|all| all.len() == 11),
        "{report}"
    );
    match said.code {
        0 => true,
        13 => {
            assert!(!failure(&said, "detail").is_empty());
            assert!(
                std::env::var_os("CI").is_none(),
                "code tools cannot run here: {}",
                said.stderr
            );
            false
        }
        code => panic!("exit code {code}: {}", said.stderr),
    }
}

fn source(folder: &Path) -> String {
    let source = folder.join("source");
    std::fs::create_dir_all(&source).expect("a folder");
    let text = r#"
import os

def hello(name: str) -> dict:
    "Says hello."
    return {"text": "hello " + name}

def fail():
    raise ValueError("no such week")

def reach():
    import socket
    socket.create_connection(("127.0.0.1", 9), timeout=2)

def secret(TOKEN=None, **secrets):
    return {"names": sorted(os.environ)}

def sleep():
    import time
    time.sleep(60)
"#;
    std::fs::write(source.join("greetings.py"), text).expect("the source can be written");
    source.to_string_lossy().into_owned()
}

async fn register(rig: &CommandRig, name: &str, version: &str, callable: &str) -> Value {
    let folder = source(rig.folder());
    let callable = format!("greetings:{callable}");
    rig.run(&[
        "tools",
        "register",
        name,
        version,
        "--callable",
        &callable,
        "--source",
        &folder,
    ])
    .await
    .json()
}

#[tokio::test]
async fn from_registration_to_the_archive() {
    let rig = CommandRig::new(&[]);
    if !sandbox_works(&rig).await {
        return;
    }
    for version in ["1.0.0", "1.4.0", "2.0.0-rc.1"] {
        let made = register(&rig, "greet", version, "hello").await;
        assert_eq!(made["version"], version);
    }
    let again = rig
        .run(&[
            "tools",
            "register",
            "greet",
            "1.4",
            "--callable",
            "greetings:hello",
            "--source",
            &source(rig.folder()),
        ])
        .await;
    ends(&again, 9);
    let resolved = rig
        .run(&["tools", "resolve", "greet", "--constraint", "^1.0"])
        .await
        .json();
    assert_eq!(resolved["tool"]["version"], "1.4.0");
    let versions = rig.run(&["tools", "versions", "greet"]).await.json();
    assert_eq!(versions.as_array().map(Vec::len), Some(3));
    ends(&rig.run(&["tools", "versions", "absent"]).await, 3);
    ends(
        &rig.run(&["tools", "resolve", "greet", "--constraint", ">9"])
            .await,
        3,
    );

    let ran = rig
        .run(&["tools", "run", "greet", r#"{"name":"Ada"}"#])
        .await
        .json();
    assert_eq!(ran["output"], serde_json::json!({ "text": "hello Ada" }));
    assert_eq!(ran["unenforced"], serde_json::json!([]));
    let people = rig
        .run_for_people(&["tools", "run", "tool.greet.v1", r#"{"name":"Ada"}"#])
        .await;
    assert_eq!(people.stdout, "{\"text\":\"hello Ada\"}\n", "{}", people.stderr);
    let seen = rig.run(&["tools", "source", "greet"]).await.json();
    assert!(
        seen["source"]
            .as_str()
            .is_some_and(|source| source.contains("Says hello")),
        "{seen}"
    );

    // What runs is what was registered.
    let folder = source(rig.folder());
    std::fs::write(
        Path::new(&folder).join("greetings.py"),
        "def hello(name):\n    return 'other'\n",
    )
    .expect("the source can be changed");
    let ran = rig
        .run(&["tools", "run", "greet", r#"{"name":"Ada"}"#])
        .await
        .json();
    assert_eq!(ran["output"]["text"], "hello Ada");

    let old = ["tools", "deprecate", "greet", "--constraint", "=1.4.0"];
    assert_eq!(rig.run(&old).await.json()["status"], "deprecated");
    let resolved = rig.run(&["tools", "resolve", "greet"]).await.json();
    assert_eq!(
        resolved["tool"]["version"], "1.0.0",
        "an active version is preferred"
    );
    let archive = ["tools", "archive", "greet", "--constraint", "=1.0.0"];
    ends(&rig.run(&archive).await, 2);
    ends(&rig.run(&[&archive[..], &["--yes"]].concat()).await, 0);
    let warned = rig.run_for_people(&["tools", "resolve", "greet"]).await;
    assert!(
        warned.stdout.contains("1.4.0") && warned.stderr.contains("deprecated"),
        "{} {}",
        warned.stdout,
        warned.stderr
    );
    let listed = rig.run_for_people(&["tools", "list", "--status", "all"]).await;
    assert_eq!(listed.stdout.lines().count(), 4, "{}", listed.stdout);
}

#[tokio::test]
async fn each_way_to_fail_has_its_exit_code() {
    let rig = CommandRig::new(&[]);
    if !sandbox_works(&rig).await {
        return;
    }
    for (name, callable) in [("fail", "fail"), ("reach", "reach"), ("sleep", "sleep")] {
        register(&rig, name, "1.0.0", callable).await;
    }
    let raised = rig.run(&["tools", "run", "fail"]).await;
    assert_eq!(raised.code, 11, "{}", raised.stderr);
    assert!(
        raised.stderr.contains("ValueError: no such week"),
        "{}",
        raised.stderr
    );
    let outside = rig.run(&["tools", "run", "reach"]).await;
    assert_eq!(outside.code, 11, "a tool reached the network: {}", outside.stdout);
    let late = rig.run(&["tools", "run", "sleep", "--timeout", "1s"]).await;
    assert_eq!(late.code, 7, "{}", late.stderr);
    ends(&rig.run(&["tools", "run", "absent"]).await, 3);
    ends(&rig.run(&["tools", "run", "fail", "[1]"]).await, 2);
    let closed = rig
        .run(&[
            "tools",
            "run",
            "fail",
            "--set",
            "policy.code_tools.modules=other.*",
        ])
        .await;
    ends(&closed, 4);
    assert_eq!(closed.reason(), "module_not_allowed");
    let off = rig
        .run(&["tools", "run", "fail", "--set", "sandbox.backend=off"])
        .await;
    ends(&off, 13);
    ends(
        &rig.run(&["sandbox", "doctor", "--set", "sandbox.backend=off"])
            .await,
        10,
    );
    for wrong in [
        &["tools", "register", "x", "1.0.0"][..],
        &["tools", "register", "x", "1.0.0", "--callable", "no-colon"],
        &["tools", "register", "x", "banana", "--callable", "a:b"],
        &[
            "tools",
            "register",
            "x",
            "1.0.0",
            "--callable",
            "a:b",
            "--level",
            "harmless",
        ],
        &["tools", "run", "fail", "--constraint", ">>1"],
        &["sandbox", "doctor", "--server", "http://127.0.0.1:9"],
    ] {
        let said = rig.run_for_people(wrong).await;
        assert_eq!(said.code, 2, "{wrong:?}: {} {}", said.stdout, said.stderr);
        assert!(!said.stderr.contains("body."), "{}", said.stderr);
    }
}

#[tokio::test]
async fn effects_need_consent_like_those_of_servers() {
    let rig = CommandRig::new(&[]);
    if !sandbox_works(&rig).await {
        return;
    }
    let folder = source(rig.folder());
    let register = [
        "tools",
        "register",
        "greet",
        "1.0.0",
        "--callable",
        "greetings:hello",
        "--source",
        &folder,
        "--level",
        "write",
    ];
    assert_eq!(rig.run(&register).await.json()["requires_approval"], true);
    let run = ["tools", "run", "greet", r#"{"name":"Ada"}"#];
    let waiting = rig.run(&run).await;
    ends(&waiting, 5);
    assert!(failure(&waiting, "approval_id").starts_with("apr_"));
    ends(
        &rig.run(&[&run[..], &["--break-glass", "a test"]].concat()).await,
        0,
    );
    let granted = rig
        .run(&["grants", "add", "--code-tool", "greet", "--subject", "ada"])
        .await
        .json();
    assert_eq!(granted["family"], "greet");
    assert!(
        rig.run_for_people(&["grants", "list"])
            .await
            .stdout
            .contains("greet")
    );
    assert!(
        rig.run_for_people(&["approvals", "list"])
            .await
            .stdout
            .contains("greet")
    );
}

#[tokio::test]
async fn tools_run_at_a_service_elsewhere() {
    let rig = CommandRig::new(&[]);
    if !sandbox_works(&rig).await {
        return;
    }
    let token = rig.folder().join("service.token");
    std::fs::write(&token, "a".repeat(64)).expect("the token can be written");
    let token = token.to_string_lossy().into_owned();
    let listening = rig.folder().join("listening");
    let address = listening.to_string_lossy().into_owned();
    let serve = [
        "sandbox",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--service-token-file",
        &token,
        "--listening-file",
        &address,
    ];
    let said = rig
        .interrupt(&serve, async {
            let address = crate::support::eventually("the service listens", async || {
                std::fs::read_to_string(&listening).ok()
            })
            .await;
            let url = format!("sandbox.remote.url=http://{address}");
            let token = format!("sandbox.remote.token_file={token}");
            let remote = ["--set", "sandbox.backend=remote", "--set", &url, "--set", &token];
            let doctor = rig
                .run(&[&["sandbox", "doctor"], &remote[..]].concat())
                .await
                .json();
            assert_eq!(doctor["backend"], "remote");
            let folder = source(rig.folder());
            let register = [
                "tools",
                "register",
                "greet",
                "1.0.0",
                "--callable",
                "greetings:hello",
                "--source",
                &folder,
            ];
            ends(&rig.run(&[&register, &remote[..]].concat()).await, 0);
            let run = ["tools", "run", "greet", r#"{"name":"Ada"}"#];
            let ran = rig.run(&[&run, &remote[..]].concat()).await.json();
            assert_eq!(ran["output"]["text"], "hello Ada");
        })
        .await;
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(!listening.exists(), "the file goes with the service");
}
