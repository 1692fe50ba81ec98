//! Tests of starting and stopping children.
//!
//! The children are small shell scripts, given as an argument to the executable that is launched: here the shell is
//! the program under supervision, not the way it is started.

mod contain;
mod start;
mod stop;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use caliber_core::secret::SecretText;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A test that another test runs in a process of its own reads its part from this variable.
const PART: &str = "CALIBER_TEST_PART";

/// A launcher in a directory of its own, removed at the end.
struct Bench {
    launcher: PlainLauncher,
    directory: tempfile::TempDir,
}

fn bench(adjust: impl FnOnce(&mut LauncherSettings)) -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = LauncherSettings {
        directory: directory.path().to_owned(),
        input_grace: Duration::from_millis(300),
        term_grace: Duration::from_millis(300),
        ..LauncherSettings::default()
    };
    adjust(&mut settings);
    Bench {
        launcher: PlainLauncher::new(settings),
        directory,
    }
}

impl Bench {
    async fn shell(&self, script: &str, args: &[&str]) -> LaunchedProcess {
        self.launcher.launch(shell(script, args)).await.unwrap()
    }

    fn measure(&self, name: &str) -> ContainmentMeasure {
        let measures = self.launcher.containment();
        measures.into_iter().find(|found| found.measure == name).unwrap()
    }

    /// How many private directories there are just now.
    fn private_directories(&self) -> usize {
        let roots = std::fs::read_dir(self.directory.path()).unwrap();
        roots
            .map(|root| std::fs::read_dir(root.unwrap().path()).unwrap().count())
            .sum()
    }
}

/// A field of `/proc/thread-self/status`.
fn own_status(field: &str) -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}

/// The file mask of a child, as `umask` prints it: a strict one where this machine lets a thread have its own.
fn mask_of_children(bench: &Bench) -> String {
    if bench.measure("umask").enforced {
        "0077".to_owned()
    } else {
        own_status("Umask")
    }
}

fn shell(script: &str, args: &[&str]) -> Launch {
    let mut words = vec!["-c".to_owned(), script.to_owned(), "child".to_owned()];
    words.extend(args.iter().map(|arg| (*arg).to_owned()));
    launch("/bin/sh", words, &[("PATH", "/usr/local/bin:/usr/bin:/bin")])
}

fn launch(executable: &str, args: Vec<String>, env: &[(&str, &str)]) -> Launch {
    Launch {
        executable: executable.into(),
        args,
        env: env
            .iter()
            .map(|(key, value)| ((*key).to_owned(), SecretText::new(*value)))
            .collect(),
    }
}

async fn read(mut stream: impl tokio::io::AsyncRead + Unpin) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Reads until the child has written a whole line, which says that it is up.
async fn first_line(process: &mut LaunchedProcess) -> String {
    let mut line = Vec::new();
    let read = async {
        while !line.ends_with(b"\n") {
            line.push(process.stdout.read_u8().await.unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(10), read).await.unwrap();
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

/// Waits until `condition` holds; fails after `limit`.
fn within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < until, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Running processes, zombies left out, with `word` among their arguments.
fn processes_with(word: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments
            .split(|byte| *byte == 0)
            .any(|argument| argument == word.as_bytes())
    })
    .collect()
}

/// A word that no other process has among its arguments.
fn word() -> String {
    format!("word-{}", uuid::Uuid::new_v4().simple())
}

/// A run of this test program for the test `name` alone, which plays `role`.
fn part(name: &str, role: &str) -> Command {
    let module = module_path!().split_once("::").unwrap().1;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("{module}::{name}"), "--nocapture"])
        .env(PART, role)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}
