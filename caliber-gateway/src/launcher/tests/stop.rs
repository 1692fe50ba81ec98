//! How children end, and that nothing is left of them.

use super::*;

/// Leaves a process behind that has forked twice, has a session of its own, and ignores signals and closed streams.
/// `$1` stands among its arguments. Prints a line when it is up.
const STUBBORN: &str = r#"
    (setsid sh -c 'trap "" TERM HUP INT PIPE; echo up >&3; exec 3>&-; while :; do sleep 0.2; done' stubborn "$1" \
        3>&1 >/dev/null 2>&1 </dev/null &)
"#;

/// Goes on whatever happens to its input.
const DEAF: &str = "while :; do sleep 0.2; done";

/// The same as [`STUBBORN`] with an emptied environment.
const NAMELESS: &str = r#"
    (setsid env -i /bin/sh -c 'trap "" TERM HUP INT PIPE; echo up >&3; exec 3>&-; while :; do /bin/sleep 0.2; done' \
        stubborn "$1" 3>&1 >/dev/null 2>&1 </dev/null &)
"#;

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
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
    let mut process = bench.shell(&format!("{STUBBORN}\n{DEAF}"), &[&word]).await;
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
    let mut process = runtime.block_on(bench.shell(&format!("{STUBBORN}\n{DEAF}"), &[&word]));
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
    // The test itself cleans up where the measure is said not to be in force.
    left.iter().copied().for_each(kill);
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
    let words: Vec<_> = part.split(' ').collect();
    let ["host", cgroup, guard, word] = words.as_slice() else {
        return;
    };
    let launcher = PlainLauncher::new(LauncherSettings {
        directory: std::env::var("CALIBER_TEST_DIRECTORY").unwrap().into(),
        cgroup: *cgroup == "true",
        guard: *guard == "true",
        ..LauncherSettings::default()
    });
    // Without the guard only the child itself is reached.
    let stubborn = if *guard == "true" { STUBBORN } else { "echo up" };
    let script = format!("trap '' TERM HUP PIPE\n{stubborn}\n{DEAF}");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut process = runtime
        .block_on(launcher.launch(shell(&script, &[word])))
        .unwrap();
    runtime.block_on(first_line(&mut process));
    println!("\nhost is up");
    std::thread::sleep(Duration::from_secs(600));
}

/// Starts such a program, kills it when its child is up, and tells the name of the launcher's directory.
fn kill_a_host(cgroup: bool, guard: bool, word: &str, base: &Path) -> String {
    let mut host = part("stop::part_of_a_host", &format!("host {cgroup} {guard} {word}"))
        .env("CALIBER_TEST_DIRECTORY", base)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(host.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "host is up"));
    assert!(!processes_with(word).is_empty());
    let directory = std::fs::read_dir(base).unwrap().next().unwrap().unwrap();
    host.kill().unwrap();
    host.wait().unwrap();
    directory.file_name().into_string().unwrap()
}

#[test]
fn nothing_survives_a_host_that_is_killed() {
    for cgroup in [true, false] {
        let word = word();
        let base = tempfile::tempdir().unwrap();
        let name = kill_a_host(cgroup, true, &word, base.path());
        within(Duration::from_secs(10), "no descendant is left", || {
            processes_with(&word).is_empty()
        });
        within(Duration::from_secs(10), "no directory is left", || {
            std::fs::read_dir(base.path()).unwrap().count() == 0
        });
        let group = cgroup::own_group().map(|own| own.join(name));
        within(Duration::from_secs(10), "no control group is left", || {
            group.as_ref().is_none_or(|group| !group.exists())
        });
    }
}

#[test]
fn a_child_dies_with_a_host_that_is_killed_even_without_the_guard() {
    let word = word();
    let base = tempfile::tempdir().unwrap();
    kill_a_host(false, false, &word, base.path());
    let until = Instant::now() + Duration::from_secs(3);
    // What is left of its own children, `sleep` here, does not have the word.
    while !processes_with(&word).is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = processes_with(&word);
    left.iter().copied().for_each(kill);
    let enforced = bench(|_| ()).measure("parent_death_signal").enforced;
    assert_eq!(left.is_empty(), enforced, "containment says the truth");
}
