//! The servers of a desktop client's settings.

use super::ends;
use crate::support::command::CommandRig;

fn settings(rig: &CommandRig, document: &str) -> String {
    let path = rig.folder().join("client.json");
    std::fs::write(&path, document).expect("the file can be written");
    path.to_string_lossy().into_owned()
}

#[tokio::test]
async fn servers_of_a_client_are_registered() {
    let rig = CommandRig::new(&[]);
    let file = settings(
        &rig,
        r#"{"mcpServers": {
            "git_hub": {"command": "npx", "args": ["-y", "server-github"], "env": {"TOKEN": "canary-token"}},
            "docs": {"url": "https://docs.example.com/mcp", "headers": {"X-Key": "${KEY}"}},
            "off": {"command": "x", "disabled": true}
        }}"#,
    );
    let planned = rig.run(&["servers", "import", &file, "--dry-run"]).await;
    ends(&planned, 0);
    assert!(!planned.stdout.contains("canary"), "{}", planned.stdout);
    assert_eq!(rig.run(&["servers", "list"]).await.json(), serde_json::json!([]));

    ends(&rig.run(&["servers", "import", &file]).await, 0);
    let listed = rig.run(&["servers", "list"]).await.json();
    let names: Vec<_> = listed
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|server| server["name"].as_str())
        .collect();
    assert_eq!(names, ["docs", "git-hub"]);
    let shown = rig.run(&["servers", "show", "git-hub"]).await.json();
    assert_eq!(shown["args"], serde_json::json!(["-y", "server-github"]));
    assert_eq!(shown["env"]["TOKEN"], "__caliber_write_only__");
    let docs = rig.run(&["servers", "show", "docs"]).await.json();
    assert_eq!(docs["headers"]["X-Key"], "env://KEY");

    let ready = rig
        .run_for_people(&[
            "servers",
            "import",
            &settings(
                &rig,
                r#"{"mcpServers": {"sh": {"command": "/bin/sh", "args": ["-c", "x"]}}}"#,
            ),
        ])
        .await;
    assert_eq!(ready.code, 0, "{}", ready.stderr);
    assert!(
        ready.stdout.contains("not ready: ") && ready.stdout.contains("launch = ["),
        "{}",
        ready.stdout
    );
    let file = settings(
        &rig,
        r#"{"mcpServers": {"docs": {"url": "https://docs.example.com/mcp"}}}"#,
    );
    let again = rig.run_for_people(&["servers", "import", &file]).await;
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert!(again.stdout.contains("registered already"), "{}", again.stdout);
}

#[tokio::test]
async fn one_bad_entry_stops_everything_unless_told_otherwise() {
    let rig = CommandRig::new(&[]);
    let file = settings(
        &rig,
        r#"{"mcpServers": {"good": {"command": "x"}, "bad": {"command": "y", "cwd": "/"}, "worse": {}}}"#,
    );
    let stopped = rig.run(&["servers", "import", &file]).await;
    ends(&stopped, 2);
    let plan: serde_json::Value = serde_json::from_str(&stopped.stdout).expect("the plan is JSON");
    let problems = plan
        .as_array()
        .into_iter()
        .flatten()
        .filter(|entry| entry["problems"] != serde_json::json!([]));
    assert_eq!(problems.count(), 2, "{plan}");
    assert_eq!(rig.run(&["servers", "list"]).await.json(), serde_json::json!([]));
    ends(&rig.run(&["servers", "import", &file, "--partial"]).await, 2);
    assert_eq!(rig.run(&["servers", "list"]).await.json()[0]["name"], "good");

    let no_settings = settings(&rig, r#"{"token": "canary"}"#);
    let refused = rig.run(&["servers", "import", &no_settings]).await;
    ends(&refused, 2);
    assert!(!refused.stderr.contains("canary"), "{}", refused.stderr);
    ends(
        &rig.run(&["servers", "import", "/nonexistent/client.json"]).await,
        2,
    );
}
