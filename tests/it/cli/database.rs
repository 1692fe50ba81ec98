//! What the command says of a database that it cannot use, and how it looks after one that it can.

use std::path::Path;

use super::{allow, ends, with_server};
use crate::support::command::CommandRig;

/// A command whose database is filled.
async fn filled() -> CommandRig {
    with_server("one", &[]).await
}

fn path(rig: &CommandRig) -> std::path::PathBuf {
    rig.folder().join("caliber.db")
}

fn connect(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).expect("the database can be opened")
}

/// Every command that needs the database refuses it in the same way, in one line and with something to do.
async fn refused(rig: &CommandRig, code: i32, settings: &[&str]) {
    for command in [&["servers", "list"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let said = rig.run_for_people(&[command, settings].concat()).await;
        assert_eq!(said.code, code, "{command:?}: {} {}", said.stdout, said.stderr);
        let complaint: Vec<_> = said
            .stderr
            .lines()
            .filter(|line| line.starts_with("caliber: "))
            .collect();
        assert_eq!(complaint.len(), 1, "{}", said.stderr);
        assert!(said.stdout.is_empty(), "{}", said.stdout);
    }
}

#[tokio::test]
async fn each_kind_of_unusable_database_has_its_exit_code() {
    let rig = CommandRig::new(&[]);
    refused(&rig, 20, &["--database", "/nonexistent/folder/caliber.db"]).await;
    refused(&rig, 20, &["--database", &rig.folder().to_string_lossy()]).await;
    assert!(!path(&rig).exists(), "a refusal made a database");

    let text = rig.folder().join("notes.txt");
    std::fs::write(
        &text,
        "no database at all, and longer than the head of one: ".repeat(20),
    )
    .expect("a file");
    refused(&rig, 26, &["--database", &text.to_string_lossy()]).await;
    let full = rig
        .run(&[
            "--set",
            "store.max_bytes=16384",
            "token",
            "create",
            "--subject",
            "ada",
            "--scope",
            "viewer",
        ])
        .await;
    ends(&full, 23);
}

#[tokio::test]
async fn a_read_only_database_is_refused() {
    let rig = filled().await;
    let mut permissions = std::fs::metadata(path(&rig))
        .expect("the database is there")
        .permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(path(&rig), permissions).expect("permissions can be set");
    refused(&rig, 21, &[]).await;
}

#[tokio::test]
async fn a_locked_database_is_refused() {
    let rig = filled().await;
    let other = connect(&path(&rig));
    other
        .execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; CREATE TABLE t (a); COMMIT;")
        .expect("the database can be locked");
    refused(&rig, 22, &["--set", "store.busy=200ms"]).await;
    drop(other);
    ends(&rig.run(&["servers", "list"]).await, 0);
}

#[tokio::test]
async fn a_damaged_database_is_refused_and_left_as_it_is() {
    let rig = filled().await;
    let mut bytes = std::fs::read(path(&rig)).expect("the database can be read");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4_096].fill(0xa5);
    std::fs::write(path(&rig), &bytes).expect("the database can be written");
    refused(&rig, 24, &[]).await;
    assert_eq!(
        std::fs::read(path(&rig)).expect("the database can be read"),
        bytes
    );
}

#[tokio::test]
async fn a_newer_database_is_refused() {
    let rig = filled().await;
    connect(&path(&rig))
        .execute_batch("INSERT INTO __diesel_schema_migrations (version) VALUES ('29991231000000')")
        .expect("the schema can be changed");
    refused(&rig, 25, &[]).await;
}

#[tokio::test]
async fn a_key_file_that_cannot_be_used_is_refused_without_its_content() {
    use std::os::unix::fs::PermissionsExt as _;
    let rig = filled().await;
    let key = rig.folder().join("caliber.db.key");
    let mode = std::fs::metadata(&key)
        .expect("the key file was made")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(&key, "canary").expect("the key file can be written");
    let said = rig.run(&["servers", "list"]).await;
    ends(&said, 27);
    assert!(!said.stderr.contains("canary"), "{}", said.stderr);
}

#[tokio::test]
async fn a_backup_can_be_used_as_the_database() {
    let rig = filled().await;
    allow(&rig, "one", "echo").await;
    let copy = rig.folder().join("copy.db");
    let copied = rig.run(&["db", "backup", &copy.to_string_lossy()]).await.json();
    assert!(
        copied["bytes"].as_u64().is_some_and(|bytes| bytes > 4_096),
        "{copied}"
    );
    let again = rig.run(&["db", "backup", &copy.to_string_lossy()]).await;
    ends(&again, 20);
    ends(&rig.run(&["servers", "remove", "one", "--yes"]).await, 0);

    let key = format!("key_file={}", rig.folder().join("caliber.db.key").display());
    let copy = copy.to_string_lossy();
    let on_copy = ["--database", &*copy, "--set", &key];
    let listed = rig
        .run(&[&on_copy[..], &["servers", "list"]].concat())
        .await
        .json();
    assert_eq!(listed[0]["name"], "one");
    ends(
        &rig.run(&[&on_copy[..], &["tools", "call", "one", "echo", r#"{"value":1}"#]].concat())
            .await,
        0,
    );
}

#[tokio::test]
async fn keys_are_rotated() {
    let rig = CommandRig::new(&[]);
    let add = [
        "servers",
        "add",
        "one",
        "--url",
        "http://127.0.0.1:9/mcp",
        "--token",
        "a-secret",
    ];
    ends(&rig.run(&add).await, 0);
    let key = rig.folder().join("caliber.db.key");
    let old = std::fs::read_to_string(&key).expect("the key file was made");
    let new = "5".repeat(64);
    std::fs::write(&key, format!("{new}\n{old}")).expect("the key file can be written");
    assert_eq!(rig.run(&["db", "rotate-keys"]).await.json()["secrets"], 1);
    std::fs::write(&key, &new).expect("the key file can be written");
    assert_eq!(rig.run(&["db", "rotate-keys"]).await.json()["secrets"], 0);
    let trail = rig
        .run(&["audit", "tail", "--action", "rotate_secret_key"])
        .await
        .json_lines();
    assert_eq!(trail.len(), 1);
    assert_eq!(trail[0]["surface"], "command");
}

#[tokio::test]
async fn a_backup_without_its_keys_is_told_as_such() {
    let rig = CommandRig::new(&[]);
    let add = [
        "servers",
        "add",
        "one",
        "--url",
        "http://127.0.0.1:9/mcp",
        "--token",
        "a-secret",
    ];
    ends(&rig.run(&add).await, 0);
    let copy = rig.folder().join("copy.db");
    let made = rig
        .run_for_people(&["db", "backup", &copy.to_string_lossy()])
        .await;
    assert!(made.stdout.contains("caliber.db.key"), "{}", made.stdout);

    // The key file of the copy is made anew: it lacks the key of the secret.
    let copy = copy.to_string_lossy();
    for command in [&["servers", "check", "one"][..], &["servers", "discover", "one"]] {
        let said = rig.run(&[&["--database", &*copy], command].concat()).await;
        assert_eq!(said.code, 27, "{command:?}: {} {}", said.stdout, said.stderr);
        assert_eq!(said.reason(), "secret_key_missing");
        assert!(said.stderr.contains("copy.db.key"), "{}", said.stderr);
    }
}
