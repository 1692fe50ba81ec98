//! The contract of [`ProcessLauncher`], in cases. They start `/bin/sh` and small programs beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Case, cases, run_all};
use crate::error::ErrorKind;
use crate::process::{Launch, LaunchedProcess, ProcessLauncher};
use crate::secret::SecretText;

/// Runs every case of [`cases`] on a launcher of its own.
///
/// # Panics
///
/// With the names of the clauses that are violated.
pub async fn run(make: impl AsyncFn() -> Arc<dyn ProcessLauncher>) {
    run_all(cases(), make).await;
}

/// Every clause, to be run one by one.
pub fn cases() -> Vec<Case<Arc<dyn ProcessLauncher>>> {
    cases![
        clauses::{
            streams_carry_everything_in_both_directions,
            the_environment_is_built_from_nothing,
            no_shell_reads_the_arguments,
            the_end_is_told,
            a_wait_that_is_dropped_loses_no_end,
            what_is_no_program_is_an_error_without_secrets,
            terminating_ends_the_whole_tree,
            dropping_the_handle_ends_the_whole_tree,
            a_process_that_has_ended_leaves_no_descendant,
            containment_is_told_measure_by_measure,
        }
    ]
}

/// How long an end may take: a stop is polite first.
const END: Duration = Duration::from_secs(30);

mod clauses {
    use super::*;

    fn command(executable: &str, args: &[&str], env: &[(&str, &str)]) -> Launch {
        Launch {
            executable: executable.into(),
            args: args.iter().map(|argument| (*argument).to_owned()).collect(),
            env: env
                .iter()
                .map(|(key, value)| ((*key).to_owned(), SecretText::new(*value)))
                .collect(),
        }
    }

    async fn shell(launcher: &dyn ProcessLauncher, script: &str) -> LaunchedProcess {
        let launch = command("/bin/sh", &["-c", script], &[("PATH", "/usr/bin:/bin")]);
        launcher.launch(launch).await.unwrap()
    }

    /// Reads to the end of the stream: it comes when every process that holds the other end has ended.
    async fn rest(stream: &mut (dyn tokio::io::AsyncRead + Send + Unpin)) -> String {
        let mut text = String::new();
        tokio::time::timeout(END, stream.read_to_string(&mut text))
            .await
            .expect("somebody still holds the stream")
            .unwrap();
        text
    }

    async fn line(process: &mut LaunchedProcess) -> String {
        let mut text = Vec::new();
        let reading = async {
            while text.last() != Some(&b'\n') {
                text.push(process.stdout.read_u8().await.unwrap());
            }
        };
        tokio::time::timeout(END, reading)
            .await
            .expect("the process says nothing");
        String::from_utf8(text).unwrap()
    }

    pub(super) async fn streams_carry_everything_in_both_directions(launcher: Arc<dyn ProcessLauncher>) {
        let mut process = shell(&*launcher, "cat; echo done >&2").await;
        let sent = "0123456789abcdef".repeat(64 << 10);
        let (mut stdin, mut stdout) = (process.stdin, process.stdout);
        let writing = async {
            stdin.write_all(sent.as_bytes()).await.unwrap();
            stdin.shutdown().await.unwrap();
            drop(stdin);
        };
        let ((), echoed) = tokio::join!(writing, rest(&mut *stdout));
        assert!(
            echoed == sent,
            "{} of {} bytes came back",
            echoed.len(),
            sent.len()
        );
        assert_eq!(rest(&mut *process.stderr).await, "done\n");
        process.handle.terminate().await;
    }

    pub(super) async fn the_environment_is_built_from_nothing(launcher: Arc<dyn ProcessLauncher>) {
        let given = [("TOKEN", "one\ntwo"), ("EMPTY", ""), ("PATH", "/usr/bin:/bin")];
        let mut process = launcher
            .launch(command("/usr/bin/env", &["-0"], &given))
            .await
            .unwrap();
        let printed = rest(&mut *process.stdout).await;
        let found: BTreeMap<_, _> = printed
            .split_terminator('\0')
            .filter_map(|entry| entry.split_once('='))
            .collect();
        for (key, value) in given {
            assert_eq!(found.get(key), Some(&value), "{key}");
        }
        // What a launcher adds of its own is about the place where the child lives, and nothing of ours.
        let ours: BTreeSet<_> = std::env::vars_os()
            .filter_map(|(key, _)| key.into_string().ok())
            .collect();
        let place = ["HOME", "TMPDIR", "PWD", "PATH"];
        for key in found.keys().filter(|key| !place.contains(key)) {
            let theirs = given.iter().any(|(name, _)| name == key) || key.starts_with("CALIBER_");
            assert!(theirs || !ours.contains(*key), "{key} was inherited");
        }
        process.handle.terminate().await;
    }

    pub(super) async fn no_shell_reads_the_arguments(launcher: Arc<dyn ProcessLauncher>) {
        let words = ["$HOME", "a b", "`id`", "*", "", "\"'\\"];
        let mut args = vec!["%s|"];
        args.extend(words);
        let mut process = launcher
            .launch(command("/usr/bin/printf", &args, &[]))
            .await
            .unwrap();
        assert_eq!(
            rest(&mut *process.stdout).await,
            words.map(|word| format!("{word}|")).concat()
        );
        process.handle.terminate().await;
    }

    pub(super) async fn the_end_is_told(launcher: Arc<dyn ProcessLauncher>) {
        let mut process = shell(&*launcher, "exit 7").await;
        let end = tokio::time::timeout(END, process.handle.wait()).await.unwrap();
        assert!(end.contains('7'), "{end}");
    }

    pub(super) async fn a_wait_that_is_dropped_loses_no_end(launcher: Arc<dyn ProcessLauncher>) {
        let mut process = shell(&*launcher, "read line; exit 9").await;
        let early = tokio::time::timeout(Duration::from_millis(20), process.handle.wait()).await;
        assert!(early.is_err(), "it has not ended yet");
        process.stdin.write_all(b"\n").await.unwrap();
        let end = tokio::time::timeout(END, process.handle.wait()).await.unwrap();
        assert!(end.contains('9'), "{end}");
    }

    pub(super) async fn what_is_no_program_is_an_error_without_secrets(launcher: Arc<dyn ProcessLauncher>) {
        let env = [("TOKEN", "canary-of-the-environment")];
        for executable in ["/nonexistent/program", "/etc"] {
            let refused = launcher
                .launch(command(executable, &["canary-argument"], &env))
                .await;
            let error = refused.expect_err(executable);
            assert_eq!(error.kind(), ErrorKind::Upstream, "{error}");
            let told = format!("{error} {error:?}");
            assert!(!told.contains("canary"), "{told}");
        }
    }

    /// A tree that a signal to one process, or to one group, does not end.
    const TREE: &str = "trap '' TERM HUP INT; \
        (trap '' TERM HUP INT; while :; do sleep 1000; done) & \
        setsid sh -c 'trap \"\" TERM HUP INT; (while :; do sleep 1000; done) & while :; do sleep 1000; done' & \
        echo started; while :; do sleep 1000; done";

    pub(super) async fn terminating_ends_the_whole_tree(launcher: Arc<dyn ProcessLauncher>) {
        let mut process = shell(&*launcher, TREE).await;
        assert_eq!(line(&mut process).await, "started\n");
        tokio::time::timeout(END, process.handle.terminate())
            .await
            .unwrap();
        assert_eq!(rest(&mut *process.stdout).await, "");
    }

    pub(super) async fn dropping_the_handle_ends_the_whole_tree(launcher: Arc<dyn ProcessLauncher>) {
        let mut process = shell(&*launcher, TREE).await;
        assert_eq!(line(&mut process).await, "started\n");
        drop(process.handle);
        assert_eq!(rest(&mut *process.stdout).await, "");
    }

    pub(super) async fn a_process_that_has_ended_leaves_no_descendant(launcher: Arc<dyn ProcessLauncher>) {
        let script = "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1000; done' & echo started";
        let mut process = shell(&*launcher, script).await;
        assert_eq!(line(&mut process).await, "started\n");
        tokio::time::timeout(END, process.handle.wait()).await.unwrap();
        process.handle.terminate().await;
        assert_eq!(rest(&mut *process.stdout).await, "");
    }

    pub(super) async fn containment_is_told_measure_by_measure(launcher: Arc<dyn ProcessLauncher>) {
        let measures = launcher.containment();
        assert!(!measures.is_empty(), "nothing is told");
        let names: BTreeSet<_> = measures.iter().map(|measure| measure.measure.as_str()).collect();
        assert_eq!(names.len(), measures.len(), "a measure is told twice");
        for measure in &measures {
            assert!(!measure.measure.trim().is_empty());
            assert!(
                measure.enforced || !measure.note.trim().is_empty(),
                "{}: why not?",
                measure.measure
            );
        }
    }
}
