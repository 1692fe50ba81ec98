//! The life of a server and its tools, through the command alone.

use serde_json::Value;

use super::{add_arguments, allow, ends, failure, fake_stdio, register, with_server};
use crate::support::command::CommandRig;

#[tokio::test]
async fn from_registration_to_removal_and_back() {
    let rig = CommandRig::new(&[]);
    let script = fake_stdio();
    let added = rig
        .run(&add_arguments("one", &script, &["--instance", "first"]))
        .await
        .json();
    assert_eq!(added["name"], "one");
    assert_eq!(added["status"], "active");

    let listed = rig.run(&["servers", "list"]).await.json();
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    let shown = rig.run(&["servers", "show", "one"]).await.json();
    assert_eq!(shown["server_id"], added["server_id"]);
    let people = rig.run_for_people(&["servers", "show", "one"]).await.stdout;
    for told in ["process_group", "network_namespace"] {
        assert!(people.contains(told), "{told} is not in {people}");
    }
    let by_id = rig
        .run(&["servers", "show", added["server_id"].as_str().expect("an id")])
        .await
        .json();
    assert_eq!(by_id["name"], "one");

    let checked = rig.run(&["servers", "check", "one"]).await.json();
    assert_eq!(checked["success"], true);
    let early = rig.run(&["tools", "call", "one", "echo", r#"{"value":1}"#]).await;
    ends(&early, 4);
    assert_eq!(early.reason(), "inventory_absent");

    let found = rig.run(&["servers", "discover", "one"]).await.json();
    assert!(
        found["added"]
            .as_array()
            .is_some_and(|added| added.contains(&Value::from("echo")))
    );
    let closed = rig.run(&["tools", "call", "one", "echo", r#"{"value":1}"#]).await;
    ends(&closed, 4);
    assert_eq!(closed.reason(), "unclassified");
    assert!(
        failure(&closed, "invocation_id").starts_with("inv_"),
        "a refusal is in the ledger"
    );

    allow(&rig, "one", "echo").await;
    let called = rig
        .run(&["tools", "call", "one", "echo", r#"{"value":1}"#])
        .await
        .json();
    assert_eq!(called["is_error"], false);

    let removed = rig.run(&["servers", "remove", "one", "--yes"]).await.json();
    let entry = removed["audit"]["audit_id"]
        .as_str()
        .expect("the entry of the removal")
        .to_owned();
    ends(&rig.run(&["servers", "show", "one"]).await, 3);
    let restored = rig.run(&["servers", "restore", &entry]).await.json();
    assert_eq!(restored["name"], "one");
    assert_ne!(restored["server_id"], added["server_id"]);
    ends(
        &rig.run(&["servers", "restore", "aud_00000000000000000000000000000000"])
            .await,
        3,
    );

    let trail = rig.run(&["audit", "tail"]).await.json_lines();
    let actions: Vec<_> = trail
        .iter()
        .filter_map(|entry| entry["action"].as_str())
        .collect();
    for action in [
        "create_mcp_server",
        "discover_mcp_tools",
        "update_mcp_tool_policy",
        "delete_mcp_server",
        "restore_mcp_server",
    ] {
        assert!(actions.contains(&action), "{action} is not in {actions:?}");
    }
    for entry in &trail {
        assert_eq!(entry["surface"], "command", "{entry}");
        assert_eq!(entry["identity"], "local_administrator", "{entry}");
    }
}

#[tokio::test]
async fn a_changed_tool_is_closed_and_its_difference_shown() {
    let catalogs = tempfile::tempdir().expect("a folder");
    let catalog = catalogs.path().join("catalog.json");
    let write = |description: &str| {
        let tool = serde_json::json!([{
            "name": "echo", "description": description,
            "inputSchema": { "type": "object", "properties": { "value": {} } },
        }]);
        std::fs::write(&catalog, tool.to_string()).expect("the catalog can be written");
    };
    write("Says it again.");
    let rig = with_server("one", &["--catalog", &catalog.to_string_lossy()]).await;
    let unclassified = rig.run(&["tools", "diff", "one", "echo", "--exit-code"]).await;
    ends(&unclassified, 12);
    allow(&rig, "one", "echo").await;
    let same = rig.run(&["tools", "diff", "one", "echo", "--exit-code"]).await;
    assert_eq!(same.json()["state"], "classified");

    write("Says it again, and sends it elsewhere.");
    let found = rig.run(&["servers", "discover", "one"]).await.json();
    assert_eq!(found["drifted"], serde_json::json!(["echo"]));
    let closed = rig.run(&["tools", "call", "one", "echo", r#"{"value":1}"#]).await;
    ends(&closed, 4);
    assert_eq!(closed.reason(), "drifted");
    let difference = rig.run(&["tools", "diff", "one", "echo", "--exit-code"]).await;
    ends(&difference, 12);
    let people = rig.run_for_people(&["tools", "diff", "one", "echo"]).await;
    assert!(
        people.stdout.contains("-  \"description\": \"Says it again.\""),
        "{}",
        people.stdout
    );
    assert!(
        people
            .stdout
            .contains("+  \"description\": \"Says it again, and sends it elsewhere.\"")
    );

    allow(&rig, "one", "echo").await;
    ends(
        &rig.run(&["tools", "call", "one", "echo", r#"{"value":1}"#]).await,
        0,
    );
    ends(
        &rig.run(&["tools", "declassify", "one", "echo", "--yes"]).await,
        0,
    );
    let taken_back = rig.run(&["tools", "call", "one", "echo", r#"{"value":1}"#]).await;
    assert_eq!(taken_back.reason(), "unclassified");
}

#[tokio::test]
async fn a_decision_is_bound_to_what_was_seen_and_nobody_decides_by_accident() {
    let rig = with_server("one", &[]).await;
    let classify = ["tools", "classify", "one", "echo", "--level", "read", "--allow"];
    let unasked = rig.run(&classify).await;
    ends(&unasked, 2);
    let digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    let stale = rig
        .run(&[&classify[..], &["--yes", "--seen", digest]].concat())
        .await;
    ends(&stale, 9);
    assert_eq!(stale.reason(), "stale_revision");
    for wrong in [
        &["tools", "classify", "one", "echo", "--level", "read", "--yes"][..],
        &["tools", "classify", "one", "echo", "--allow", "--yes"],
        &[
            "tools", "classify", "one", "echo", "--level", "harmless", "--allow", "--yes",
        ],
        &[
            "tools", "classify", "one", "echo", "--level", "read", "--allow", "--deny", "--yes",
        ],
    ] {
        assert_eq!(rig.run(wrong).await.code, 2, "{wrong:?}");
    }
    ends(
        &rig.run(&[
            "tools", "classify", "one", "absent", "--level", "read", "--allow", "--yes",
        ])
        .await,
        3,
    );
    let state = rig.run(&["tools", "show", "one", "echo"]).await.json();
    assert_eq!(state["state"], "unclassified");

    let denied = rig
        .run(&[
            "tools", "classify", "one", "echo", "--level", "read", "--deny", "--yes",
        ])
        .await;
    ends(&denied, 0);
    let blocked = rig.run(&["tools", "call", "one", "echo", r#"{"value":1}"#]).await;
    ends(&blocked, 4);
    assert_eq!(blocked.reason(), "blocked");
}

#[tokio::test]
async fn names_conflict_and_servers_are_switched_off_and_on() {
    let rig = with_server("one", &[]).await;
    let script = fake_stdio();
    let again = rig.run(&add_arguments("one", &script, &[])).await;
    ends(&again, 9);
    assert_eq!(again.reason(), "name_taken");
    allow(&rig, "one", "echo").await;
    ends(&rig.run(&["servers", "disable", "one"]).await, 0);
    let off = rig.run(&["tools", "call", "one", "echo", r#"{"value":1}"#]).await;
    ends(&off, 4);
    assert_eq!(off.reason(), "server_disabled");
    ends(&rig.run(&["servers", "enable", "one"]).await, 0);
    ends(
        &rig.run(&["tools", "call", "one", "echo", r#"{"value":1}"#]).await,
        0,
    );
    register(&rig, "two", &[]).await;
    let found = rig.run(&["servers", "list", "--search", "tw"]).await.json();
    assert_eq!(found.as_array().map(Vec::len), Some(1));
}

/// The same server, started in namespaces: nothing about its tools changes, and what stands around it is told.
#[tokio::test]
async fn a_server_in_namespaces_answers_and_its_walls_are_told() {
    let rig = CommandRig::new(&[]);
    let script = fake_stdio();
    let folder = std::path::Path::new(&script).parent().expect("a folder");
    let readable = format!("launcher.readable={}", folder.display());
    let settings = [
        "--set",
        "launcher.namespaces=true",
        "--set",
        &readable,
        "--set",
        "gateway.python=/usr/bin/python3",
    ];
    let with = |arguments: &[&str]| -> Vec<String> {
        settings
            .iter()
            .chain(arguments)
            .map(|word| (*word).to_owned())
            .collect()
    };
    let run = async |arguments: &[&str]| {
        let arguments = with(arguments);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        rig.run(&words).await
    };
    ends(&run(&add_arguments("walled", &script, &[])).await, 0);
    let shown = run(&["servers", "show", "walled"]).await.json();
    let boundary = shown["execution"].to_string();
    if !boundary.contains("process_namespace") {
        let required = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!required, "no namespaces here: {boundary}");
        eprintln!("skipped: no namespaces can be made here");
        return;
    }
    ends(&run(&["servers", "discover", "walled"]).await, 0);
    ends(
        &run(&[
            "tools", "classify", "walled", "echo", "--level", "read", "--allow", "--yes",
        ])
        .await,
        0,
    );
    let called = run(&["tools", "call", "walled", "echo", r#"{"value":1}"#])
        .await
        .json();
    assert_eq!(called["is_error"], false);
}
