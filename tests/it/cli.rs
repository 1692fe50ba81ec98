//! The `caliber` command, as a person or a script runs it.

mod calls;
mod code_tools;
mod database;
mod edit;
mod hints;
mod import;
mod life;
mod serve;
mod shown;

use serde_json::Value;

use crate::support::command::{CommandRig, Said};

/// The arguments of `servers add` for a fake server of `tests/rig` with these settings.
fn add_arguments<'a>(name: &'a str, script: &'a str, settings: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["servers", "add", name, "--", "${PYTHON}", script];
    arguments.extend(settings);
    arguments
}

/// The fake stdio server of `tests/rig`.
fn fake_stdio() -> String {
    format!("{}/tests/rig/fake_stdio.py", env!("CARGO_MANIFEST_DIR"))
}

/// Registers and discovers a healthy fake server.
async fn with_server(name: &str, settings: &[&str]) -> CommandRig {
    let rig = CommandRig::new(&[]);
    register(&rig, name, settings).await;
    rig
}

async fn register(rig: &CommandRig, name: &str, settings: &[&str]) {
    let script = fake_stdio();
    ends(&rig.run(&add_arguments(name, &script, settings)).await, 0);
    ends(&rig.run(&["servers", "discover", name]).await, 0);
}

/// Classifies a tool as an allowed reading one.
async fn allow(rig: &CommandRig, server: &str, tool: &str) {
    let said = rig
        .run(&[
            "tools", "classify", server, tool, "--level", "read", "--allow", "--yes",
        ])
        .await;
    ends(&said, 0);
}

/// Fails unless a run ended with `code`, and told its failure as one line of JSON.
fn ends(said: &Said, code: i32) {
    assert_eq!(
        said.code, code,
        "stdout: {}\nstderr: {}",
        said.stdout, said.stderr
    );
    if code != 0 && said.stderr.starts_with('{') {
        let document: Value = serde_json::from_str(said.stderr.trim()).expect("the failure is one document");
        assert_eq!(document["error"]["exit_code"], code);
        assert!(
            document["error"]["detail"]
                .as_str()
                .is_some_and(|detail| !detail.is_empty())
        );
    }
}

/// A member of the failure of a run with `--json`.
fn failure(said: &Said, member: &str) -> String {
    let document: Value = serde_json::from_str(said.stderr.trim()).expect("the failure is one document");
    document["error"][member].as_str().unwrap_or_default().to_owned()
}
