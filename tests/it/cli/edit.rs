//! Changing a server by flags.

use super::ends;
use crate::support::command::CommandRig;

#[tokio::test]
async fn only_what_is_named_changes() {
    let rig = CommandRig::new(&[]);
    let add = [
        "servers",
        "add",
        "one",
        "--env",
        "RIG_A=secret-of-a",
        "--env",
        "RIG_B=env://CANARY_B",
        "--timeout-ms",
        "5000",
        "--description",
        "the first",
        "--",
        "/bin/x",
        "y",
    ];
    ends(&rig.run(&add).await, 0);
    let edited = rig
        .run(&[
            "servers",
            "edit",
            "one",
            "--description",
            "the second",
            "--concurrency",
            "3",
            "--env",
            "RIG_C=new",
            "--remove-env",
            "RIG_B",
            "--visibility",
            "public",
        ])
        .await
        .json();
    assert_eq!(edited["description"], "the second");
    assert_eq!(
        edited["limits"],
        serde_json::json!({ "timeout_ms": 5000, "concurrency": 3 })
    );
    assert_eq!(
        edited["env"],
        serde_json::json!({ "RIG_A": "__caliber_write_only__", "RIG_C": "__caliber_write_only__" })
    );
    assert_eq!(edited["command"], "/bin/x");
    assert_eq!(edited["visibility"], "public");
    // What was stored for one command is not given to another.
    let kept = rig.run(&["servers", "edit", "one", "--", "/bin/z", "w"]).await;
    ends(&kept, 9);
    assert_eq!(kept.reason(), "secret_origin_changed");
    let moved = rig
        .run(&[
            "servers",
            "edit",
            "one",
            "--remove-env",
            "RIG_A",
            "--env",
            "RIG_C=again",
            "--",
            "/bin/z",
            "w",
        ])
        .await
        .json();
    assert_eq!(moved["args"], serde_json::json!(["w"]));
    let shown = rig.run(&["audit", "tail", "--action", "update_mcp_server"]).await;
    assert_eq!(shown.json_lines().len(), 2);
}

#[tokio::test]
async fn a_remote_server_keeps_its_transport() {
    let rig = CommandRig::new(&[]);
    let add = [
        "servers",
        "add",
        "one",
        "--url",
        "http://127.0.0.1:9/sse",
        "--sse",
    ];
    ends(&rig.run(&add).await, 0);
    let moved = rig
        .run(&["servers", "edit", "one", "--url", "http://127.0.0.1:9/other"])
        .await
        .json();
    assert_eq!(moved["transport"], "sse");
    assert_eq!(moved["uri"], "http://127.0.0.1:9/other");
}

#[tokio::test]
async fn nonsense_changes_nothing() {
    let rig = CommandRig::new(&[]);
    ends(&rig.run(&["servers", "add", "one", "--", "/bin/x"]).await, 0);
    for arguments in [
        &["servers", "edit", "one"][..],
        &["servers", "edit", "one", "--remove-env", "ABSENT"],
        &["servers", "edit", "one", "--timeout-ms", "0"],
        &[
            "servers",
            "edit",
            "one",
            "--url",
            "http://127.0.0.1:9/",
            "--",
            "x",
        ],
    ] {
        ends(&rig.run(arguments).await, 2);
    }
    ends(
        &rig.run(&["servers", "edit", "absent", "--owner", "ada"]).await,
        3,
    );
    assert_eq!(rig.run(&["servers", "show", "one"]).await.json()["revision"], 1);
}
