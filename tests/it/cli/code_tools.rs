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

/// Registers what lies in the working directory, which is that of the database too.
async fn register_here(
    rig: &CommandRig,
    name: &str,
    callable: &str,
    more: &[&str],
) -> crate::support::command::Said {
    let callable = format!("here:{callable}");
    let words = ["tools", "register", name, "1.0.0", "--callable", &callable];
    rig.run(&[&words, more].concat()).await
}

#[tokio::test]
async fn the_working_directory_is_a_source_without_what_is_calibers() {
    let rig = CommandRig::new(&[]);
    if !sandbox_works(&rig).await {
        return;
    }
    assert!(
        !rig.folder().join("caliber.db.snapshots").exists(),
        "a look leaves a folder behind"
    );
    let text = "import os, pathlib\n\n\
                def names():\n    return sorted(os.listdir(pathlib.Path(__file__).parent))\n\n\
                def nothing():\n    return None\n\n\
                def wrong():\n    return 1j\n\n\
                def large():\n    return 'x' * 100\n\n\
                def late():\n    import time\n    time.sleep(60)\n\n\
                def secret():\n    import caliber_secrets\n    return len(caliber_secrets.get('TOKEN'))\n";
    std::fs::write(rig.folder().join("here.py"), text).expect("the source can be written");
    ends(&register_here(&rig, "names", "names", &[]).await, 0);
    let ran = rig.run(&["tools", "run", "names"]).await.json();
    assert_eq!(ran["output"], serde_json::json!(["caliber.toml", "here.py"]));

    // A database that is named with `..` is the same one.
    std::fs::create_dir(rig.folder().join("inner")).expect("a folder");
    let above = rig.folder().join("inner/../other.db");
    let above = above.to_string_lossy().into_owned();
    let inner = rig.folder().join("inner");
    std::fs::write(inner.join("here.py"), text).expect("the source can be written");
    let inner = inner.to_string_lossy().into_owned();
    let said = register_here(
        &rig,
        "names",
        "names",
        &["--source", &inner, "--database", &above],
    )
    .await;
    ends(&said, 0);

    ends(&register_here(&rig, "nothing", "nothing", &[]).await, 0);
    let said = rig.run_for_people(&["tools", "run", "nothing"]).await;
    assert_eq!(said.stdout, "null\n", "{}", said.stderr);

    // What a tool does wrong is its own failure, and a bound is told with what moves it.
    ends(&register_here(&rig, "wrong", "wrong", &[]).await, 0);
    ends(&rig.run(&["tools", "run", "wrong"]).await, 11);
    ends(
        &register_here(&rig, "large", "large", &["--result-bytes", "50"]).await,
        0,
    );
    let said = rig.run_for_people(&["tools", "run", "large"]).await;
    assert_eq!(said.code, 11, "{}", said.stderr);
    assert!(said.stderr.contains("--result-bytes"), "{}", said.stderr);
    ends(
        &register_here(&rig, "late", "late", &["--timeout-ms", "500"]).await,
        0,
    );
    let said = rig.run_for_people(&["tools", "run", "late"]).await;
    assert_eq!(said.code, 7, "{}", said.stderr);
    assert!(said.stderr.contains("--timeout-ms"), "{}", said.stderr);

    let token = rig.folder().join("secret.txt");
    std::fs::write(&token, "canary-of-a-secret").expect("the secret can be written");
    let token = format!("TOKEN=@{}", token.display());
    ends(
        &register_here(&rig, "secret", "secret", &["--secret", &token]).await,
        0,
    );
    let ran = rig.run(&["tools", "run", "secret"]).await.json();
    assert_eq!(ran["output"], 18);

    // Runs are found by the name of their tool.
    let runs = rig.run(&["invocations", "list", "secret"]).await.json();
    assert_eq!(runs.as_array().map(Vec::len), Some(1), "{runs}");
    let said = rig.run_for_people(&["invocations", "list", "absent"]).await;
    assert_eq!(said.code, 3);
    assert!(said.stderr.contains("tools list"), "{}", said.stderr);
}

#[tokio::test]
async fn retiring_names_its_version_and_can_be_undone() {
    let rig = CommandRig::new(&[]);
    if !sandbox_works(&rig).await {
        return;
    }
    for version in ["1.0.0", "1.1.0"] {
        register(&rig, "greet", version, "hello").await;
    }
    for verb in ["deprecate", "archive", "activate"] {
        let said = rig.run_for_people(&["tools", verb, "greet"]).await;
        assert_eq!(said.code, 2, "{}", said.stderr);
        assert!(said.stderr.contains("tools versions greet"), "{}", said.stderr);
    }
    let one = ["greet", "--constraint", "=1.1.0"];
    ends(
        &rig.run(&[&["tools", "archive", "--yes"], &one[..]].concat())
            .await,
        0,
    );
    let again = rig.run(&[&["tools", "activate"], &one[..]].concat()).await.json();
    assert_eq!(again["status"], "active");
    let resolved = rig.run(&["tools", "resolve", "greet"]).await.json();
    assert_eq!(resolved["tool"]["version"], "1.1.0");
    ends(&rig.run(&[&["tools", "activate"], &one[..]].concat()).await, 3);
}

#[tokio::test]
async fn refusals_name_flags_and_what_to_do() {
    let rig = CommandRig::new(&[]);
    if !sandbox_works(&rig).await {
        return;
    }
    let script = rig.folder().join("script");
    std::fs::write(&script, "#!/bin/sh\necho 1\n").expect("the script can be written");
    std::process::Command::new("chmod")
        .args(["755", &script.to_string_lossy()])
        .status()
        .expect("chmod runs");
    let script = script.to_string_lossy().into_owned();
    let folder = source(rig.folder());
    for (arguments, told) in [
        (vec!["--executable", script.as_str()], "is a script"),
        (
            vec!["--callable", "absent:hello", "--source", &folder],
            "--callable:",
        ),
        (
            vec!["--callable", "greetings:hello", "--source", "/nonexistent"],
            "--source:",
        ),
        (
            vec![
                "--callable",
                "greetings:hello",
                "--source",
                &folder,
                "--preference",
                "persistent",
            ],
            "sandbox.allow_persistent",
        ),
    ] {
        let words = ["tools", "register", "greet", "1.0.0"];
        let said = rig.run_for_people(&[&words[..], &arguments].concat()).await;
        assert_eq!(said.code, 2, "{}", said.stderr);
        assert!(said.stderr.contains(told), "{told}: {}", said.stderr);
    }
    let said = rig.run_for_people(&["tools", "run", "absent"]).await;
    assert_eq!(said.code, 3);
    assert!(said.stderr.contains("`caliber tools list`"), "{}", said.stderr);

    // The text of a script as an argument of its interpreter runs.
    let sh = std::fs::canonicalize("/bin/sh").expect("there is a shell");
    let sh = sh.to_string_lossy().into_owned();
    let shell = [
        "tools",
        "register",
        "shell",
        "1.0.0",
        "--executable",
        &sh,
        "--arg",
        "-c",
        "--arg",
        "read -r all; printf '{\"got\": %s}' \"$all\"",
    ];
    ends(&rig.run(&shell).await, 0);
    let ran = rig.run(&["tools", "run", "shell", r#"{"a":1}"#]).await.json();
    assert_eq!(ran["output"]["got"]["a"], 1, "{ran}");
}

#[tokio::test]
async fn a_service_that_is_away_is_told_with_its_address_and_one_remedy() {
    let rig = CommandRig::new(&[]);
    let token = rig.folder().join("service.token");
    std::fs::write(&token, "a".repeat(64)).expect("the token can be written");
    let file = format!("sandbox.remote.token_file={}", token.display());
    let remote = [
        "--set",
        "sandbox.backend=remote",
        "--set",
        "sandbox.remote.url=http://127.0.0.1:9",
        "--set",
        &file,
    ];
    let said = rig
        .run_for_people(&[&["sandbox", "doctor"], &remote[..]].concat())
        .await;
    assert_eq!(said.code, 13, "{}", said.stderr);
    assert!(
        said.stderr.contains("127.0.0.1:9") && said.stderr.contains("sandbox serve"),
        "{}",
        said.stderr
    );
    assert!(
        said.stderr.contains("0600"),
        "the mode of the token file: {}",
        said.stderr
    );

    // Settings are named as they are written.
    for (setting, told) in [
        ("sandbox.places=0", "sandbox.places"),
        ("sandbox.pin.depth=1000", "sandbox.pin.depth"),
    ] {
        let said = rig.run_for_people(&["sandbox", "doctor", "--set", setting]).await;
        assert_eq!(said.code, 2, "{}", said.stderr);
        assert!(said.stderr.contains(told), "{}", said.stderr);
    }

    for (lacking, told) in [
        (&["--set", "sandbox.backend=remote"][..], "sandbox.remote.url"),
        (&remote[..4], "sandbox.remote.token_file"),
        (
            &["--set", "sandbox.interpreter=/nonexistent/python"],
            "sandbox.interpreter",
        ),
        (
            &[
                "--set",
                "launcher.namespaces=true",
                "--set",
                "launcher.readable=/nonexistent",
            ],
            "launcher.readable",
        ),
    ] {
        let said = rig
            .run_for_people(&[&["config", "check"], lacking].concat())
            .await;
        assert!(
            format!("{}{}", said.stdout, said.stderr).contains(told),
            "{told}: {} {}",
            said.stdout,
            said.stderr
        );
    }
}
