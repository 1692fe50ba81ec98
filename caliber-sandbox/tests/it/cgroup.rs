//! Control groups bound all processes of a run together.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use caliber_sandbox::linux::cgroup::{ControlGroups, Found, GroupLimits};
use rustix::process::Pid;

const LIMITS: GroupLimits = GroupLimits {
    memory_bytes: 64 << 20,
    processes: 8,
};

/// What can be done below the root of every hierarchy; `None` where groups cannot be made at all, which is no failure
/// but on the machine that checks every change.
fn found() -> Option<Found> {
    let found = ControlGroups::find(Some(Path::new("/")));
    if found.memory.is_ok() && found.processes.is_ok() {
        return Some(found);
    }
    assert!(
        std::env::var_os("CI").is_none_or(|value| value != "true"),
        "control groups are needed here: {found:?}"
    );
    None
}

/// A shell that waits for a line before it does `work`.
struct Waiting(Child);

impl Waiting {
    fn new(work: &str) -> Self {
        let child = Command::new("/bin/sh")
            .args(["-c", &format!("read line; {work}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn go(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every folder of ours in every hierarchy.
fn folders() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let own = format!("-{}-", std::process::id());
    mounts
        .lines()
        .filter(|line| line.starts_with("cgroup"))
        .filter_map(|line| std::fs::read_dir(line.split(' ').nth(1)?).ok())
        .flatten()
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with("caliber-run-") && name.to_string_lossy().contains(&own)
        })
        .map(|entry| entry.path())
        .collect()
}

#[test]
fn memory_of_all_processes_together_is_bounded() {
    let Some(found) = found() else { return };
    let limits = GroupLimits {
        processes: 64,
        ..LIMITS
    };
    let group = found.groups.unwrap().make(limits).unwrap();
    // Each of the three stays far below the bound; together they do not.
    let one = "x=$(head -c 30000000 /dev/zero | tr '\\0' a); sleep 20";
    let mut shell = Waiting::new(&format!("({one}) & ({one}) & ({one}) & wait"));
    group.add(shell.pid()).unwrap();
    assert!(!group.is_empty());
    shell.go();
    until("the bound was not met", || group.usage().memory_kills > 0);
    let peak = group.usage().peak_memory_bytes;
    assert!(peak.is_none_or(|peak| peak <= LIMITS.memory_bytes), "{peak:?}");
    end(&group, shell);
}

#[test]
fn the_number_of_processes_is_bounded() {
    let Some(found) = found() else { return };
    let group = found.groups.unwrap().make(LIMITS).unwrap();
    let mut shell = Waiting::new("i=0; while [ $i -lt 20 ]; do sleep 20 & i=$((i+1)); done; wait");
    group.add(shell.pid()).unwrap();
    shell.go();
    until("no process was refused", || group.usage().process_refusals > 0);
    end(&group, shell);
}

/// Ends what is in the group; by the kernel's own means where it has them, and otherwise one by one.
fn end(group: &caliber_sandbox::linux::cgroup::Group, shell: Waiting) {
    if !group.kill() {
        let pid = shell.pid();
        let _ = Command::new("/usr/bin/pkill")
            .args(["-KILL", "-P", &pid.as_raw_nonzero().to_string()])
            .status();
    }
    drop(shell);
    until("processes are left", || group.is_empty());
}

#[test]
fn a_tree_is_killed_and_its_group_is_gone() {
    let Some(found) = found() else { return };
    if found.kill.is_err() {
        return;
    }
    let groups = found.groups.unwrap();
    let group = groups.make(LIMITS).unwrap();
    let mut shell = Waiting::new("setsid sleep 20 & setsid sleep 20 & wait");
    group.add(shell.pid()).unwrap();
    shell.go();
    assert!(folders().len() >= group.joining().len());
    // Dropped with processes in it.
    drop(group);
    assert!(!shell.0.wait().unwrap().success());
    until("a group is left", || groups.left() == 0);
    assert_eq!(groups.left(), 0);
}

#[test]
fn hundreds_of_groups_leave_nothing() {
    let Some(found) = found() else { return };
    let groups = found.groups.unwrap();
    for _ in 0..300 {
        let group = groups.make(LIMITS).unwrap();
        let mut shell = Waiting::new(":");
        group.add(shell.pid()).unwrap();
        shell.go();
        shell.0.wait().unwrap();
    }
    until("a group is left", || groups.left() == 0);
}

#[test]
fn groups_of_processes_that_ended_are_removed_at_the_start() {
    let Some(found) = found() else { return };
    let groups = found.groups.unwrap();
    let group = groups.make(LIMITS).unwrap();
    let living = folders();
    let (path, name) = living
        .first()
        .map(|path| (path, path.file_name().unwrap().to_str().unwrap()))
        .unwrap();
    // The same process id, started at another time.
    let mut parts: Vec<_> = name.split('-').collect();
    parts[4] = "1";
    let dead = path.with_file_name(parts.join("-"));
    let foreign = path.with_file_name(format!("caliber-run-tools-{}-", std::process::id()));
    // Of another container: whether its process lives cannot be told.
    parts[2] = "1";
    let elsewhere = path.with_file_name(parts.join("-"));
    parts[5] = "4194304";
    let left_elsewhere = path.with_file_name(parts.join("-"));
    for made in [&dead, &foreign, &elsewhere, &left_elsewhere] {
        std::fs::create_dir(made).unwrap();
    }
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(3_600);
    let opened = std::fs::File::open(&left_elsewhere).unwrap();
    opened.set_modified(long_ago).unwrap();
    drop(opened);
    drop(ControlGroups::find(Some(Path::new("/"))));
    let is_kept = [path, &foreign, &elsewhere].map(|path| path.exists());
    for made in [&foreign, &elsewhere] {
        std::fs::remove_dir(made).unwrap();
    }
    assert!(!dead.exists() && !left_elsewhere.exists());
    assert_eq!(is_kept, [true; 3]);
    drop(group);
}

#[test]
fn what_cannot_be_had_says_why_and_what_to_do() {
    let found = ControlGroups::find(Some(Path::new("/no/such/group")));
    assert!(found.groups.is_none());
    for gap in [found.memory.unwrap_err(), found.processes.unwrap_err()] {
        assert!(gap.stage.starts_with("cgroup_"), "{gap:?}");
        assert!(!gap.remedy.is_empty());
    }
}
