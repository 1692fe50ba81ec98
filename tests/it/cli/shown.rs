//! What people and programs are shown: tables without tricks, and JSON that is JSON.

use super::{ends, with_server};
use crate::support::command::CommandRig;

#[tokio::test]
async fn what_a_server_says_cannot_steer_a_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let catalog = folder.path().join("catalog.json");
    // A terminal escape, a text that runs the other way, an invisible letter, a tag.
    let hostile = "a\\u001b[2Jb\u{202e}c\u{200b}d\u{e0041}e";
    let tools = format!(
        r#"[{{"name":"echo","description":"{hostile}","inputSchema":{{"type":"object"}},"title":"{hostile}"}}]"#
    );
    std::fs::write(&catalog, tools).expect("the catalog can be written");
    let rig = with_server("one", &["--catalog", &catalog.to_string_lossy()]).await;
    let classify = [
        "tools", "classify", "one", "echo", "--level", "read", "--allow", "--yes",
    ];
    for arguments in [
        &["tools", "list", "one"][..],
        &["tools", "show", "one", "echo"],
        &classify,
        &["tools", "diff", "one", "echo"],
    ] {
        let said = rig.run_for_people(arguments).await;
        assert_eq!(said.code, 0, "{}", said.stderr);
        let tricks = said
            .stdout
            .chars()
            .filter(|character| *character != '\n' && caliber::core::text::is_suspicious(*character));
        assert_eq!(tricks.count(), 0, "{arguments:?}: {:?}", said.stdout);
    }
    let shown = rig.run_for_people(&["tools", "show", "one", "echo"]).await.stdout;
    assert!(
        shown.contains("\\u{202e}") && shown.contains("\\u{200b}"),
        "{shown}"
    );
    assert!(
        shown.contains("warning: it holds characters that hide or reorder text"),
        "{shown}"
    );
}

#[tokio::test]
async fn everything_has_a_table_and_a_document() {
    let rig = with_server("one", &[]).await;
    ends(
        &rig.run(&["grants", "add", "one", "--scope", "operator"]).await,
        0,
    );
    ends(
        &rig.run(&[
            "token",
            "create",
            "--subject",
            "ada",
            "--scope",
            "viewer",
            "--expires-in",
            "2days",
        ])
        .await,
        0,
    );
    for arguments in [
        &["servers", "list"][..],
        &["servers", "show", "one"],
        &["servers", "check", "one"],
        &["servers", "discover", "one"],
        &["tools", "list", "one"],
        &["tools", "show", "one", "echo"],
        &["tools", "diff", "one", "echo"],
        &["grants", "list"],
        &["approvals", "list"],
        &["invocations", "list", "one"],
        &["token", "list"],
        &["audit", "tail", "-n", "1"],
        &["config", "show"],
        &["config", "check"],
        &["openapi"],
    ] {
        let document = rig.run(arguments).await.json();
        assert!(
            document.is_array() || document.is_object(),
            "{arguments:?}: {document}"
        );
        let people = rig.run_for_people(arguments).await;
        assert_eq!(people.code, 0, "{arguments:?}: {}", people.stderr);
        assert!(!people.stdout.trim().is_empty(), "{arguments:?} says nothing");
    }
}

#[tokio::test]
async fn tokens_and_grants_come_and_go() {
    let rig = with_server("one", &[]).await;
    let printed = rig
        .run_for_people(&[
            "token",
            "create",
            "--subject",
            "ada",
            "--scope",
            "admin",
            "--print",
        ])
        .await;
    assert_eq!(printed.code, 0, "{}", printed.stderr);
    let text = printed.stdout.trim();
    assert!(
        text.starts_with("caliber_") && text.lines().count() == 1,
        "{text}"
    );
    let listed = rig.run(&["token", "list"]).await;
    assert!(!listed.stdout.contains(text), "the text of a token is shown once");
    let id = listed.json()[0]["token_id"].as_str().expect("an id").to_owned();
    let by_text = rig.run(&["token", "revoke", text]).await;
    ends(&by_text, 2);
    assert!(!by_text.stderr.contains(text), "{}", by_text.stderr);
    ends(&rig.run(&["token", "revoke", &id]).await, 0);
    ends(&rig.run(&["token", "revoke", &id]).await, 3);
    ends(
        &rig.run(&["token", "create", "--subject", "ada", "--scope", "king"])
            .await,
        2,
    );

    let grant = rig
        .run(&["grants", "add", "one", "--subject", "ada", "--tool", "echo"])
        .await
        .json();
    let id = grant["grant_id"].as_str().expect("an id").to_owned();
    ends(&rig.run(&["grants", "remove", &id]).await, 0);
    assert_eq!(rig.run(&["grants", "list"]).await.json(), serde_json::json!([]));
    ends(&rig.run(&["grants", "remove", &id]).await, 3);
}

#[tokio::test]
async fn wrong_arguments_are_usage() {
    let rig = CommandRig::new(&[]);
    for arguments in [
        &["servers", "add", "one"][..],
        &["servers", "add", "one", "--url", "http://a", "--", "x"],
        &["servers", "add", "a b", "--", "x"],
        &["grants", "add", "one"],
        &["nonsense"],
        &["--set", "nonsense", "servers", "list"],
        &["--set", "no.such=1", "servers", "list"],
        &["db", "backup", "x", "--server", "http://127.0.0.1:9"],
    ] {
        let said = rig.run_for_people(arguments).await;
        assert_eq!(said.code, 2, "{arguments:?}: {} {}", said.stdout, said.stderr);
    }
}
