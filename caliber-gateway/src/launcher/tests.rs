//! Tests of starting and stopping children.
//!
//! The children are small shell scripts, given as an argument to the executable that is launched: here the shell is
//! the program under supervision, not the way it is started.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use caliber_core::secret::SecretText;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A test of this file that another test runs in a process of its own reads its part from this variable.
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

/// Children of this very process that have ended and were not waited for.
fn zombies() -> Vec<u32> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let children = threads.flat_map(|thread| {
        std::fs::read_to_string(thread.path().join("children"))
            .unwrap_or_default()
            .split_whitespace()
            .map(|pid| pid.parse::<u32>().unwrap())
            .collect::<Vec<_>>()
    });
    children
        .filter(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            status
                .rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('Z'))
        })
        .collect()
}

/// A word that no other process has among its arguments.
fn word() -> String {
    format!("word-{}", uuid::Uuid::new_v4().simple())
}

/// Leaves a process behind that has forked twice, has a session of its own, and ignores signals and closed streams.
/// `$1` stands among its arguments. Prints a line when it is up.
const STUBBORN: &str = r#"
    (setsid sh -c 'trap "" TERM HUP INT PIPE; echo up >&3; exec 3>&-; while :; do sleep 0.2; done' stubborn "$1" \
        3>&1 >/dev/null 2>&1 </dev/null &)
"#;

/// The same with an emptied environment.
const NAMELESS: &str = r#"
    (setsid env -i /bin/sh -c 'trap "" TERM HUP INT PIPE; echo up >&3; exec 3>&-; while :; do /bin/sleep 0.2; done' \
        stubborn "$1" 3>&1 >/dev/null 2>&1 </dev/null &)
"#;

#[tokio::test]
async fn a_child_has_exactly_the_environment_that_was_built_for_it() {
    let bench = bench(|_| ());
    // `cargo test` has given this process many variables; none may arrive, and no loader variable at all.
    assert!(std::env::vars().count() > 5);
    let env = [("TOKEN", "one\ntwo"), ("PATH", "/bin:/usr/bin")];
    let mut process = bench
        .launcher
        .launch(launch("/usr/bin/env", vec!["-0".into()], &env))
        .await
        .unwrap();
    let printed = read(&mut process.stdout).await;
    let found: BTreeMap<_, _> = printed
        .trim_end_matches('\0')
        .split('\0')
        .map(|entry| entry.split_once('=').unwrap())
        .collect();
    let keys: Vec<_> = found.keys().copied().collect();
    assert_eq!(keys, ["CALIBER_CHILD", "HOME", "PATH", "PWD", "TMPDIR", "TOKEN"]);
    assert_eq!(found["TOKEN"], "one\ntwo");
    assert_eq!(found["PATH"], "/bin:/usr/bin");
    for key in ["HOME", "TMPDIR", "PWD"] {
        assert!(Path::new(found[key]).starts_with(bench.directory.path()), "{key}");
    }
    process.handle.terminate().await;
}

#[tokio::test]
async fn a_launch_may_say_where_home_is() {
    let bench = bench(|_| ());
    let env = [("HOME", "/tmp"), ("TMPDIR", "/tmp")];
    let process = bench
        .launcher
        .launch(launch("/usr/bin/env", vec![], &env))
        .await
        .unwrap();
    let printed = read(process.stdout).await;
    assert!(
        printed.contains("HOME=/tmp\n") && printed.contains("TMPDIR=/tmp\n"),
        "{printed}"
    );
}

#[tokio::test]
async fn the_working_directory_is_private_and_goes_with_the_child() {
    let bench = bench(|_| ());
    let script = "pwd; umask; mkdir -p a/b; echo x > a/b/c; stat -c %a .; cat";
    let mut process = bench.shell(script, &[]).await;
    let directory = first_line(&mut process).await;
    assert_eq!(first_line(&mut process).await, "0077");
    assert_eq!(first_line(&mut process).await, "700");
    assert!(Path::new(&directory).starts_with(bench.directory.path()));
    let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let mut other = bench.shell("pwd; cat", &[]).await;
    assert_ne!(first_line(&mut other).await, directory, "each child has its own");
    process.handle.terminate().await;
    assert!(!Path::new(&directory).exists());
    assert_eq!(bench.private_directories(), 1);
    other.handle.terminate().await;
    assert_eq!(bench.private_directories(), 0);
    let base = bench.directory;
    drop(bench.launcher);
    within(
        Duration::from_secs(10),
        "the launcher's directory is removed",
        || std::fs::read_dir(base.path()).unwrap().count() == 0,
    );
}

#[tokio::test]
async fn a_child_leads_a_session_and_a_group_of_its_own() {
    for tool_path in ["/usr/local/bin:/usr/bin:/bin", "/nowhere"] {
        let bench = bench(|settings| settings.tool_path = tool_path.into());
        // Fields 1, 5 and 6 of stat: process, group, session.
        let script = "read -r line < /proc/self/stat; set -- $line; echo $1 $5 $6; cat";
        let mut process = bench.shell(script, &[]).await;
        let line = first_line(&mut process).await;
        let ids: Vec<u32> = line.split(' ').map(|id| id.parse().unwrap()).collect();
        assert_eq!(ids[0], process.handle.id());
        assert_eq!(ids[1], process.handle.id(), "its own group");
        let has_session = ids[2] == process.handle.id();
        let note = bench.measure("process_group").note;
        assert_eq!(
            has_session,
            !note.starts_with("without"),
            "the note is true: {note}"
        );
        process.handle.terminate().await;
    }
}

#[tokio::test]
async fn streams_carry_everything_and_the_end_is_told() {
    let bench = bench(|_| ());
    let script = "cat; i=0; while [ $i -lt 5000 ]; do echo 'this goes to standard error' >&2; i=$((i+1)); done; exit 7";
    let mut process = bench.shell(script, &[]).await;
    let (mut stdin, mut stdout, mut stderr) = (process.stdin, process.stdout, process.stderr);
    let sent = "天気 \u{2028} line\n".repeat(20_000);
    let writing = async {
        stdin.write_all(sent.as_bytes()).await.unwrap();
        stdin.shutdown().await.unwrap();
    };
    let ((), received, complaints) = tokio::join!(writing, read(&mut stdout), read(&mut stderr));
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    assert_eq!(complaints, "this goes to standard error\n".repeat(5_000));
    assert_eq!(process.handle.wait().await, "exit status: 7");
    assert_eq!(
        process.handle.wait().await,
        "exit status: 7",
        "told as often as asked"
    );
}

#[tokio::test]
async fn a_child_that_is_killed_says_so() {
    let bench = bench(|_| ());
    let mut process = bench.shell("kill -9 $$", &[]).await;
    assert_eq!(process.handle.wait().await, "killed by signal 9");
}

#[tokio::test]
async fn a_child_that_heeds_the_end_of_its_input_is_not_signalled() {
    let bench = bench(|settings| settings.input_grace = Duration::from_secs(60));
    let mut process = bench
        .shell("trap 'echo signalled' TERM; echo up; cat; echo bye", &[])
        .await;
    assert_eq!(first_line(&mut process).await, "up");
    // The writer is still held here: to stop is enough.
    process.handle.terminate().await;
    assert_eq!(read(process.stdout).await, "bye\n");
    assert_eq!(process.handle.wait().await, "exit status: 0");
}

#[tokio::test]
async fn a_child_that_ignores_its_input_gets_sigterm_and_then_sigkill() {
    let bench = bench(|_| ());
    let script = "trap 'echo signalled' TERM; echo up; while :; do sleep 0.05; done";
    let mut process = bench.shell(script, &[]).await;
    assert_eq!(first_line(&mut process).await, "up");
    process.handle.terminate().await;
    assert_eq!(read(process.stdout).await, "signalled\n");
    assert_eq!(process.handle.wait().await, "killed by signal 9");
}

#[tokio::test]
async fn a_writer_that_waits_for_room_is_woken_when_the_child_is_stopped() {
    let bench = bench(|_| ());
    let mut process = bench.shell("echo up; exec sleep 1000", &[]).await;
    assert_eq!(first_line(&mut process).await, "up");
    let mut stdin = process.stdin;
    let writing = tokio::spawn(async move { stdin.write_all(&vec![0; 1 << 20]).await });
    process.handle.terminate().await;
    let outcome = tokio::time::timeout(Duration::from_secs(10), writing)
        .await
        .unwrap();
    assert_eq!(
        outcome.unwrap().unwrap_err().kind(),
        std::io::ErrorKind::BrokenPipe
    );
}

#[tokio::test]
async fn the_whole_group_is_stopped() {
    let bench = bench(|settings| settings.cgroup = false);
    let word = word();
    let mut process = bench
        .shell(r#"sh -c 'sleep 1000; :' inner "$1" & echo up; cat"#, &[&word])
        .await;
    assert_eq!(first_line(&mut process).await, "up");
    within(Duration::from_secs(10), "the inner process runs", || {
        processes_with(&word).len() == 2
    });
    process.handle.terminate().await;
    assert!(processes_with(&word).is_empty());
}

#[tokio::test]
async fn nothing_survives_a_stop() {
    for cgroup in [true, false] {
        let bench = bench(|settings| settings.cgroup = cgroup);
        let word = word();
        let mut process = bench.shell(&format!("{STUBBORN}\ncat"), &[&word]).await;
        assert_eq!(first_line(&mut process).await, "up");
        assert!(processes_with(&word).len() >= 2);
        let stopping = tokio::time::timeout(Duration::from_secs(10), process.handle.terminate());
        stopping.await.expect("stopped within ten seconds");
        assert!(processes_with(&word).is_empty(), "cgroup: {cgroup}");
    }
}

#[tokio::test]
async fn nothing_survives_a_child_that_ends_by_itself() {
    let bench = bench(|settings| settings.cgroup = false);
    let word = word();
    let mut process = bench.shell(&format!("{STUBBORN}\ncat"), &[&word]).await;
    assert_eq!(first_line(&mut process).await, "up");
    process.stdin.shutdown().await.unwrap();
    assert_eq!(process.handle.wait().await, "exit status: 0");
    within(Duration::from_secs(10), "its descendant is gone", || {
        processes_with(&word).is_empty()
    });
    within(Duration::from_secs(10), "its directory is gone", || {
        bench.private_directories() == 0
    });
}

#[tokio::test]
async fn nothing_survives_a_handle_that_is_dropped() {
    let bench = bench(|_| ());
    let word = word();
    let mut process = bench.shell(&format!("{STUBBORN}\ncat"), &[&word]).await;
    assert_eq!(first_line(&mut process).await, "up");
    drop(process);
    within(Duration::from_secs(10), "nothing is left", || {
        processes_with(&word).is_empty() && bench.private_directories() == 0
    });
}

#[test]
fn nothing_survives_a_runtime_that_is_dropped() {
    let bench = bench(|_| ());
    let word = word();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut process = runtime.block_on(bench.shell(&format!("{STUBBORN}\ncat"), &[&word]));
    assert_eq!(runtime.block_on(first_line(&mut process)), "up");
    runtime.spawn(async move {
        let _process = process;
        std::future::pending::<()>().await;
    });
    drop(runtime);
    within(Duration::from_secs(10), "nothing is left", || {
        processes_with(&word).is_empty() && bench.private_directories() == 0
    });
}

#[tokio::test]
async fn a_control_group_holds_even_what_has_no_marker() {
    let bench = bench(|_| ());
    let word = word();
    let mut process = bench.shell(&format!("{NAMELESS}\ncat"), &[&word]).await;
    assert_eq!(first_line(&mut process).await, "up");
    process.handle.terminate().await;
    let left = processes_with(&word);
    for pid in &left {
        // The test itself cleans up where the measure is said not to be in force.
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    assert_eq!(
        left.is_empty(),
        bench.measure("cgroup").enforced,
        "containment says the truth"
    );
}

#[tokio::test]
async fn fifty_children_leave_no_zombie_and_no_directory() {
    let bench = bench(|_| ());
    for round in 0..50 {
        let mut process = bench.shell("exit $1", &[&(round % 3).to_string()]).await;
        assert_eq!(process.handle.wait().await, format!("exit status: {}", round % 3));
        process.handle.terminate().await;
    }
    assert_eq!(bench.private_directories(), 0);
    // Other tests have children too, whose threads are about to wait for them.
    within(Duration::from_secs(10), "no zombie", || zombies().is_empty());
}

#[tokio::test]
async fn the_number_of_children_is_bounded() {
    let bench = bench(|settings| settings.children = 2);
    let mut one = bench.shell("cat", &[]).await;
    let _two = bench.shell("cat", &[]).await;
    let error = bench.launcher.launch(shell("cat", &[])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("limit"), "{error}");
    one.handle.terminate().await;
    let _three = bench.shell("cat", &[]).await;
    // A failed start gives its place back.
    let bench = self::bench(|settings| settings.children = 1);
    for _ in 0..3 {
        let error = bench
            .launcher
            .launch(launch("/nowhere", vec![], &[]))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Upstream);
    }
}

#[tokio::test]
async fn what_is_no_program_is_an_error_at_once() {
    let bench = bench(|_| ());
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8], mode: u32| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let trace = folder.path().join("trace");
    let touch = format!("touch {}\n", trace.display());
    let mut foreign = std::fs::read("/bin/sh").unwrap();
    foreign[18] ^= 0xff;
    let started = Instant::now();
    for path in [
        "/nowhere/at/all".to_owned(),
        "/tmp".to_owned(),
        "sh".to_owned(),
        file("plain", touch.as_bytes(), 0o644),
        // A shell would run this one; nobody asked for a shell.
        file("no-interpreter", touch.as_bytes(), 0o755),
        file("empty", b"", 0o755),
        file("foreign", &foreign, 0o755),
    ] {
        let error = bench
            .launcher
            .launch(launch(&path, vec![], &[]))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Upstream, "{path}");
        assert_eq!(error.reason(), Some(ReasonCode::ConnectFailed), "{path}");
        assert!(error.message().contains(&path), "{error}");
    }
    let script = file("script", format!("#!/bin/sh\n{touch}").as_bytes(), 0o755);
    assert!(!trace.exists());
    assert!(started.elapsed() < Duration::from_secs(2));
    let mut process = bench
        .launcher
        .launch(launch(&script, vec![], &[("PATH", "/usr/bin:/bin")]))
        .await
        .unwrap();
    assert_eq!(process.handle.wait().await, "exit status: 0");
    assert!(trace.exists(), "a script that names its interpreter runs");
}

#[tokio::test]
async fn a_missing_interpreter_ends_at_once_and_is_complained_about() {
    let bench = bench(|_| ());
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/nowhere/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let started = Instant::now();
    match bench
        .launcher
        .launch(launch(script.to_str().unwrap(), vec![], &[]))
        .await
    {
        // Without a wrapper the start itself fails.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Upstream),
        Ok(mut process) => {
            let status = process.handle.wait().await;
            assert!(
                status.starts_with("exit status: ") && status != "exit status: 0",
                "{status}"
            );
            let complaint = read(process.stderr).await;
            assert!(complaint.contains("No such file"), "{complaint}");
        }
    }
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn secrets_show_in_no_error_and_no_debug_text() {
    const CANARY: &str = "canary-93b1";
    let bench = bench(|_| ());
    let env = [("TOKEN", CANARY), ("BAD", "canary-93b1\0x")];
    let wrong = launch("/bin/sh", vec!["-c".into(), CANARY.into()], &env);
    assert!(!format!("{wrong:?}").contains(CANARY));
    let error = bench.launcher.launch(wrong).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
    for key in ["A=B", "", "1A", "A B"] {
        let error = bench
            .launcher
            .launch(launch("/usr/bin/env", vec![], &[(key, CANARY)]))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{key}");
        assert!(!format!("{error} {error:?}").contains(CANARY));
    }
    let process = bench
        .launcher
        .launch(launch("/usr/bin/env", vec![], &[("TOKEN", CANARY)]))
        .await
        .unwrap();
    let shown = format!(
        "{process:?} {:?} {:?}",
        bench.launcher,
        bench.launcher.containment()
    );
    assert!(!shown.contains(CANARY));
}

#[tokio::test]
async fn a_child_gains_no_privileges() {
    let script = "grep NoNewPrivs /proc/self/status";
    let strict = bench(|_| ());
    let process = strict.shell(script, &[]).await;
    assert_eq!(read(process.stdout).await, "NoNewPrivs:\t1\n");
    let bench = bench(|settings| settings.new_privileges = true);
    let process = bench.shell(script, &[]).await;
    // This process itself may live without new privileges; then its children do too.
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find(|line| line.starts_with("NoNewPrivs")).unwrap();
    assert_eq!(read(process.stdout).await.trim_end(), own);
    assert!(!bench.measure("no_new_privileges").enforced);
}

#[tokio::test]
async fn this_process_keeps_its_mask_and_its_privileges() {
    let before = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let bench = bench(|_| ());
    let process = bench.shell("umask", &[]).await;
    assert_eq!(read(process.stdout).await, "0077\n");
    let after = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let of = |text: &str| -> Vec<String> {
        let wanted = |line: &&str| line.starts_with("Umask") || line.starts_with("NoNewPrivs");
        text.lines().filter(wanted).map(str::to_owned).collect()
    };
    assert_eq!(of(&before), of(&after));
    assert_eq!(of(&before).len(), 2);
}

#[tokio::test]
async fn containment_names_every_measure_and_what_is_switched_off() {
    let all = bench(|_| ());
    let off = bench(|settings| {
        settings.cgroup = false;
        settings.guard = false;
        settings.parent_death_signal = false;
    });
    let names = |bench: &Bench| -> BTreeSet<String> {
        bench
            .launcher
            .containment()
            .into_iter()
            .map(|found| found.measure)
            .collect()
    };
    assert_eq!(names(&all), names(&off));
    for name in ["cgroup", "guard", "parent_death_signal"] {
        let measure = off.measure(name);
        assert!(!measure.enforced, "{name}");
        assert!(measure.note.contains("switch"), "{measure:?}");
    }
    let poor = bench(|settings| settings.tool_path = "/nowhere".into());
    for name in ["guard", "parent_death_signal"] {
        assert!(!poor.measure(name).enforced, "{name}");
    }
    assert!(!all.measure("isolation").enforced, "never claimed here");
}

/// Prints the state of the process's descriptors as containment tells it. Only in a process of its own: descriptors
/// without close-on-exec would reach the children of other tests.
#[test]
fn part_with_a_leaking_descriptor() {
    if std::env::var(PART).as_deref() != Ok("leak") {
        return;
    }
    let before = bench(|_| ()).measure("no_inherited_descriptors");
    let file = std::fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    let after = bench(|_| ()).measure("no_inherited_descriptors");
    println!("\nleaks {} {}", before.enforced, after.enforced);
}

#[test]
fn a_descriptor_that_would_be_inherited_is_told() {
    let mut part = part("part_with_a_leaking_descriptor", "leak").spawn().unwrap();
    let lines = BufReader::new(part.stdout.take().unwrap())
        .lines()
        .map_while(std::io::Result::ok);
    let line = lines
        .filter_map(|line| line.strip_prefix("leaks ").map(str::to_owned))
        .next();
    part.wait().unwrap();
    let line = line.expect("the part speaks");
    // What this process inherited itself counts before already.
    assert!(line == "true false" || line == "false false", "{line}");
}

/// A program that has started a child and then does nothing any more.
#[test]
fn part_of_a_host() {
    let Ok(part) = std::env::var(PART) else { return };
    let Some((cgroup, word)) = part.strip_prefix("host ").and_then(|rest| rest.split_once(' ')) else {
        return;
    };
    let base = std::env::var("CALIBER_TEST_DIRECTORY").unwrap();
    let launcher = PlainLauncher::new(LauncherSettings {
        directory: base.into(),
        cgroup: cgroup == "true",
        ..LauncherSettings::default()
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let script = format!("{STUBBORN}\nread -r line");
    let mut process = runtime
        .block_on(launcher.launch(shell(&script, &[word])))
        .unwrap();
    runtime.block_on(first_line(&mut process));
    println!("\nhost is up");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn nothing_survives_a_host_that_is_killed() {
    for cgroup in [true, false] {
        let word = word();
        let base = tempfile::tempdir().unwrap();
        let mut host = part("part_of_a_host", &format!("host {cgroup} {word}"))
            .env("CALIBER_TEST_DIRECTORY", base.path())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(host.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "host is up"));
        assert!(processes_with(&word).len() >= 2);
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 1);
        host.kill().unwrap();
        host.wait().unwrap();
        within(Duration::from_secs(10), "no descendant is left", || {
            processes_with(&word).is_empty()
        });
        within(Duration::from_secs(10), "no directory is left", || {
            std::fs::read_dir(base.path()).unwrap().count() == 0
        });
    }
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
