//! How children end, and that nothing is left of them.

use super::*;

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
        let mut host = part("stop::part_of_a_host", &format!("host {cgroup} {word}"))
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
