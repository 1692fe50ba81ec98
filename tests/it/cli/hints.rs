//! What the command says to do next does what it says.

use super::{add_arguments, allow, ends, failure, fake_stdio, with_server};
use crate::support::command::{CommandRig, Said};

/// Runs a command that was printed, as a shell would read it.
async fn run_printed(rig: &CommandRig, printed: &str) -> Said {
    let words: Vec<_> = printed.split_whitespace().collect();
    assert_eq!(words.first(), Some(&"caliber"), "{printed}");
    assert!(!printed.contains(['\'', '"']), "{printed}");
    rig.run_for_people(&words[1..]).await
}

/// What stands behind `before` on the line that begins with it.
fn behind<'a>(text: &'a str, before: &str) -> &'a str {
    text.lines()
        .find_map(|line| line.trim_start().strip_prefix(before))
        .unwrap_or_else(|| panic!("no line begins with {before}: {text}"))
}

#[tokio::test]
async fn each_next_step_works_as_it_is_printed() {
    let rig = CommandRig::new(&[]);
    let script = fake_stdio();
    let other = rig.folder().join("other.db");
    let on_other = ["--database", other.to_str().expect("a path")];
    let added = rig
        .run_for_people(&[&on_other[..], &add_arguments("one", &script, &[])].concat())
        .await;
    assert_eq!(added.code, 0, "{}", added.stderr);
    let next = behind(&added.stdout, "next: ");
    assert!(next.contains(on_other[1]), "{next}");
    let discovered = run_printed(&rig, next).await;
    assert_eq!(discovered.code, 0, "{}", discovered.stderr);
    let classify = behind(&discovered.stdout, "next, for each tool: ");
    let classified = run_printed(&rig, &format!("{classify} --yes")).await;
    assert_eq!(classified.code, 0, "{} {}", classified.stdout, classified.stderr);
    assert!(
        classified.stdout.contains("classified: "),
        "{}",
        classified.stdout
    );

    let removed = rig
        .run_for_people(&[&on_other[..], &["servers", "remove", "one", "--yes"]].concat())
        .await;
    let restored = run_printed(&rig, behind(&removed.stdout, "to register it again: ")).await;
    assert_eq!(restored.code, 0, "{}", restored.stderr);
}

#[tokio::test]
async fn the_line_for_the_settings_opens_what_was_refused() {
    let rig = CommandRig::new(&[]);
    let script = fake_stdio();
    let settings = std::fs::read_to_string(rig.folder().join("caliber.toml")).expect("the settings");
    // Nothing may be launched.
    let closed: Vec<_> = settings
        .lines()
        .filter(|line| !line.starts_with("launch = "))
        .collect();
    std::fs::write(rig.folder().join("caliber.toml"), closed.join("\n"))
        .expect("the settings can be written");
    let added = rig
        .run_for_people(&add_arguments("one", &script, &["--delay", "0"]))
        .await;
    assert_eq!(added.code, 0, "{}", added.stderr);
    assert!(added.stdout.contains("not ready: "), "{}", added.stdout);
    assert!(
        !added.stdout.contains("next: "),
        "a server that is not ready has no next step: {}",
        added.stdout
    );

    for refused in [
        &["servers", "check", "one"][..],
        &["servers", "discover", "one"],
        &["tools", "call", "one", "echo", r#"{"value":1}"#],
    ] {
        let said = rig.run_for_people(refused).await;
        assert_eq!(said.code, 4, "{refused:?}: {}", said.stderr);
        assert!(said.stderr.contains("launch = ["), "{refused:?}: {}", said.stderr);
    }
    let said = rig.run_for_people(&["servers", "check", "one"]).await;
    let line = said
        .stderr
        .split_once("stands there: ")
        .map(|(_, line)| line.trim())
        .expect("the line stands at the end");
    let opened: Vec<_> = closed
        .iter()
        .flat_map(|existing| {
            let added = (*existing == "[policy]").then_some(line);
            std::iter::once(*existing).chain(added)
        })
        .collect();
    std::fs::write(rig.folder().join("caliber.toml"), opened.join("\n"))
        .expect("the settings can be written");
    // The fake knows no such option and ends, but it may be started now.
    let started = rig.run_for_people(&["servers", "check", "one"]).await;
    assert!([0, 6].contains(&started.code), "{}", started.stderr);
}

#[tokio::test]
async fn a_slip_in_the_path_makes_no_database() {
    let rig = CommandRig::new(&[]);
    let slip = rig.folder().join("typo.db");
    let slip = slip.to_str().expect("a path");
    for command in [
        &["servers", "list"][..],
        &["servers", "show", "one"],
        &["tools", "list", "one"],
        &["grants", "list"],
        &["approvals", "list"],
        &["invocations", "list", "one"],
        &["audit", "tail"],
        &["token", "list"],
        &["db", "backup", "copy.db"],
        &["db", "rotate-keys"],
    ] {
        let said = rig.run(&[&["--database", slip], command].concat()).await;
        ends(&said, 20);
        assert!(failure(&said, "detail").contains("typo.db"), "{}", said.stderr);
    }
    let left: Vec<_> = std::fs::read_dir(rig.folder())
        .expect("the folder can be read")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["caliber.toml"]);
    let made = rig
        .run(&[
            "--database",
            slip,
            "token",
            "create",
            "--subject",
            "ada",
            "--scope",
            "viewer",
        ])
        .await;
    ends(&made, 0);
    ends(&rig.run(&["--database", slip, "token", "list"]).await, 0);
}

#[tokio::test]
async fn consent_is_named_with_what_to_do_about_it() {
    let rig = with_server("one", &[]).await;
    let classify = [
        "tools", "classify", "one", "echo", "--level", "write", "--allow", "--yes",
    ];
    ends(&rig.run(&classify).await, 0);
    let waiting = rig
        .run_for_people(&["tools", "call", "one", "echo", r#"{"value":1}"#])
        .await;
    assert_eq!(waiting.code, 5, "{}", waiting.stderr);
    let pending = rig.run(&["approvals", "list"]).await.json();
    let approval = pending[0]["approval_id"].as_str().expect("an id");
    for named in [
        format!("approvals approve {approval}"),
        format!("--approval {approval}"),
        "--break-glass".to_owned(),
        "--waive-approval".to_owned(),
    ] {
        assert!(waiting.stderr.contains(&named), "{named}: {}", waiting.stderr);
    }
}

#[tokio::test]
async fn complaints_name_flags_and_alternatives() {
    let rig = with_server("one", &[]).await;
    for (arguments, named) in [
        (
            &[
                "servers",
                "add",
                "x",
                "--url",
                "http://127.0.0.1:9/",
                "--timeout-ms",
                "0",
            ][..],
            "--timeout-ms",
        ),
        (&["servers", "add", "x"], "COMMAND"),
        (&["servers", "add", "a b", "--", "x"], "NAME"),
        (
            &["servers", "add", "x", "--visibility", "nobody", "--", "x"],
            "project",
        ),
        (&["servers", "list", "--status", "nonsense"], "disabled"),
        (&["grants", "add", "one"], "--scope"),
        (&["grants", "add", "one", "--scope", "king"], "approver"),
        (
            &["token", "create", "--subject", "ada", "--scope", "king"],
            "approver",
        ),
        (&["servers", "list", "--token-file", "t"], "--server"),
    ] {
        let said = rig.run_for_people(arguments).await;
        assert_eq!(said.code, 2, "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains(named), "{arguments:?}: {}", said.stderr);
        assert!(!said.stderr.contains("body."), "{arguments:?}: {}", said.stderr);
    }
    let odd = rig
        .run_for_people(&["grants", "add", "one", "--subject", "ada", "--tool", "ecko"])
        .await;
    assert_eq!(odd.code, 0, "{}", odd.stderr);
    assert!(odd.stderr.contains("`ecko`"), "{}", odd.stderr);
    let known = rig
        .run_for_people(&["grants", "add", "one", "--subject", "ada", "--tool", "echo"])
        .await;
    assert!(!known.stderr.contains("warning"), "{}", known.stderr);
}

#[tokio::test]
async fn last_words_of_a_process_stand_in_lines() {
    let rig = CommandRig::new(&[]);
    std::fs::write(rig.folder().join("broken.toml"), "a = = b").expect("the file can be written");
    let broken = rig.folder().join("broken.toml");
    let said = rig
        .run_for_people(&["--config", broken.to_str().expect("a path"), "servers", "list"])
        .await;
    assert_eq!(said.code, 2);
    assert!(said.stderr.contains("\n    | 1 | a = = b\n"), "{}", said.stderr);
    assert!(
        said.stderr.starts_with("caliber: the settings file ("),
        "{}",
        said.stderr
    );
}

#[tokio::test]
async fn lists_say_what_is_not_ready_and_calls_are_listed() {
    let rig = with_server("one", &[]).await;
    ends(
        &rig.run(&["servers", "add", "sh", "--", "/bin/sh", "-c", "true"])
            .await,
        0,
    );
    let listed = rig.run_for_people(&["servers", "list"]).await.stdout;
    let row = |name: &str| {
        let row = listed.lines().find(|line| line.starts_with(name));
        let words: Vec<_> = row.expect("a row").split_whitespace().collect();
        words[2].to_owned()
    };
    assert_eq!(
        (row("one").as_str(), row("sh").as_str()),
        ("yes", "no"),
        "{listed}"
    );

    allow(&rig, "one", "echo").await;
    let called = rig
        .run(&["tools", "call", "one", "echo", r#"{"value":1}"#])
        .await
        .json();
    let id = called["invocation_id"].as_str().expect("an id");
    ends(&rig.run(&["tools", "call", "one", "fail"]).await, 4);
    let calls = rig.run(&["invocations", "list", "one"]).await.json();
    let outcomes: Vec<_> = calls
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| call["outcome"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(outcomes, ["denied", "ok"]);
    assert_eq!(
        rig.run(&["invocations", "show", id]).await.json()["tool_name"],
        "echo"
    );
    let people = rig.run_for_people(&["invocations", "show", id]).await;
    assert!(people.stdout.contains("outcome      ok"), "{}", people.stdout);
    let table = rig
        .run_for_people(&["invocations", "list", "one", "-n", "1"])
        .await;
    assert_eq!(table.stdout.lines().count(), 2, "{}", table.stdout);
    ends(
        &rig.run(&["invocations", "show", "inv_00000000000000000000000000000000"])
            .await,
        3,
    );
}
