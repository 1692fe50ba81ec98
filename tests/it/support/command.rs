//! The `caliber` command, run as a person would.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use caliber::policy::settings::{ArgumentRule, LaunchRule};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command as Process};

use super::machine::{note_as_ours, signal};
use super::upstream::{rig_program, rig_python};

/// The longest run of a command. A longer one has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// What a run of the command said.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    /// Its exit code; -1 when a signal ended it.
    pub(crate) code: i32,
    /// What it printed.
    pub(crate) stdout: String,
    /// What it complained.
    pub(crate) stderr: String,
}

impl Said {
    /// What it printed, as JSON; fails for a run that did not end well.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }

    /// What it printed, as one JSON document a line; fails for a run that did not end well.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        assert_eq!(self.code, 0, "{}", self.stderr);
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stdout.lines().map(parse).collect()
    }

    /// The reason code of a failure; empty where there is none.
    pub(crate) fn reason(&self) -> String {
        let document: Value = serde_json::from_str(self.stderr.trim()).unwrap_or_default();
        document
            .pointer("/error/reason_code")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    }
}

/// The command on a database and with settings of its own.
#[derive(Debug)]
pub(crate) struct CommandRig {
    folder: TempDir,
    environment: Vec<(String, String)>,
}

impl CommandRig {
    /// A command that may start the programs of `tests/rig` and what `launch` says.
    pub(crate) fn new(launch: &[LaunchRule]) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the database");
        let script = rig_program("fake_stdio.py").to_string_lossy().into_owned();
        let own = LaunchRule {
            executable: "${PYTHON}".into(),
            arguments: ArgumentRule::Script(script),
        };
        let rules: Vec<_> = std::iter::once(&own).chain(launch).map(inline_table).collect();
        let settings = format!(
            "database = {}\n\n[policy]\nlaunch = [{}]\nenvironment = [\"RIG_*\"]\n\n[policy.secrets]\nenvironment = \
             [\"CANARY_*\"]\n\n[gateway]\npython = {}\n",
            quoted(&folder.path().join("caliber.db").to_string_lossy()),
            rules.join(", "),
            quoted(&rig_python().to_string_lossy()),
        );
        std::fs::write(folder.path().join("caliber.toml"), settings).expect("the settings can be written");
        Self {
            folder,
            environment: Vec::new(),
        }
    }

    /// Sets a variable of its environment, which is otherwise empty.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Runs it, with `--json`, until it ends.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Said {
        self.finish(self.start(arguments, true)).await
    }

    /// Runs it as a person would, without `--json`.
    pub(crate) async fn run_for_people(&self, arguments: &[&str]) -> Said {
        self.finish(self.start(arguments, false)).await
    }

    /// Starts it, interrupts it once `ready`, and waits until it ends.
    pub(crate) async fn interrupt(&self, arguments: &[&str], ready: impl Future<Output = ()>) -> Said {
        let process = self.start(arguments, true);
        let id = process.id().expect("it runs");
        ready.await;
        signal(id, "INT");
        self.finish(process).await
    }

    /// Its folder: the database, the key file, the settings.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn start(&self, arguments: &[&str], json: bool) -> Child {
        let mut command = Process::new(binary());
        if !arguments.contains(&"--config") {
            command.args(["--config", &self.folder().join("caliber.toml").to_string_lossy()]);
        }
        command
            .args(json.then_some("--json"))
            .args(arguments)
            .current_dir(self.folder());
        command
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let child = command.spawn().expect("the command can be started");
        note_as_ours(child.id().expect("it runs"));
        child
    }

    async fn finish(&self, process: Child) -> Said {
        let output = tokio::time::timeout(LIMIT, process.wait_with_output()).await;
        let output = output
            .expect("the command ends in time")
            .expect("the command can be waited for");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the command writes UTF-8");
        Said {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// The command as cargo has built it for these tests.
fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_caliber"))
}

/// A launch rule as the settings file has it.
fn inline_table(rule: &LaunchRule) -> String {
    let list = |words: &[String]| {
        format!(
            "[{}]",
            words
                .iter()
                .map(|word| quoted(word))
                .collect::<Vec<_>>()
                .join(", ")
        )
    };
    let arguments = match &rule.arguments {
        ArgumentRule::Exact(words) => format!("exact = {}", list(words)),
        ArgumentRule::Prefix(words) => format!("prefix = {}", list(words)),
        ArgumentRule::Module(module) => format!("module = {}", quoted(module)),
        ArgumentRule::Script(script) => format!("script = {}", quoted(script)),
    };
    format!(
        "{{ executable = {}, arguments = {{ {arguments} }} }}",
        quoted(&rule.executable)
    )
}

/// A basic string of TOML; JSON's escapes are among TOML's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
