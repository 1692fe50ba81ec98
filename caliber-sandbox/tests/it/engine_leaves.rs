//! What many calls leave behind: nothing. In a process of its own, where nothing else is counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::clock::Deadline;
use caliber_core::sandbox::{ExecutionPreference, RunStatus};

use crate::support::{LONG, Rig, is_alone, request, value};

#[derive(Debug, PartialEq, Eq)]
struct Left {
    descriptors: usize,
    children: usize,
    mounts: usize,
    groups: usize,
    temporary: usize,
    threads: usize,
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

fn look() -> Left {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let children = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .map(|text| text.split_whitespace().count())
        .sum();
    Left {
        descriptors: entries("/proc/self/fd"),
        children,
        mounts: std::fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .count(),
        groups: groups_below("/sys/fs/cgroup".as_ref(), 0),
        temporary: entries(std::env::temp_dir().to_str().unwrap()),
        threads: entries("/proc/self/task"),
    }
}

/// Control groups of runs of this process.
fn groups_below(folder: &std::path::Path, depth: u32) -> usize {
    let own = format!("-{}-", std::process::id());
    let Ok(found) = std::fs::read_dir(folder) else {
        return 0;
    };
    let folders = found
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_own = name.starts_with("caliber-run-") && name.contains(&own);
            usize::from(is_own)
                + if depth < 4 {
                    groups_below(&entry.path(), depth + 1)
                } else {
                    0
                }
        })
        .sum()
}

/// Waits until everything is as it was before.
fn assert_nothing_left(before: &Left) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let now = look();
        if now == *before {
            return;
        }
        assert!(Instant::now() < end, "before: {before:?}, now: {now:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn thousands_in_a_row_and_many_at_once_leave_nothing() {
    if !is_alone("engine_leaves::thousands_in_a_row_and_many_at_once_leave_nothing") {
        return;
    }
    let calls: usize = std::env::var("CALIBER_SANDBOX_TEST_CALLS").map_or(1500, |text| text.parse().unwrap());
    let before = {
        // What a first start makes once and for all is there before it is counted.
        drop(Rig::new());
        std::thread::sleep(Duration::from_millis(200));
        look()
    };
    {
        let rig = Rig::with(|settings| settings.places = 64);
        let quick = rig.python("def run(n): return n");
        for number in 0..calls {
            let outcome = rig.run(request(&quick, &format!(r#"{{"n":{number}}}"#)));
            assert_eq!(value(&outcome), number.to_string());
        }
        if rustix::process::geteuid().is_root() {
            assert!(look().groups > 0, "the groups of runs are not counted");
        }
        assert!(look().children > 0, "children are not counted");
        let (slow, failing, forking) = (
            rig.python("import time\ndef run(n):\n    time.sleep(0.3)\n    return n"),
            rig.python("import os\ndef run(n): os._exit(n)"),
            rig.python("import os, time\ndef run(n):\n    for _ in range(5):\n        if os.fork() == 0: time.sleep(60)\n    time.sleep(60)"),
        );
        for preference in [ExecutionPreference::Isolated, ExecutionPreference::Cold] {
            let threads: Vec<_> = (0..64)
                .map(|number| {
                    let engine = Arc::clone(&rig.engine);
                    let program = [&slow, &failing, &forking, &slow][number % 4];
                    let mut request = request(program, &format!(r#"{{"n":{number}}}"#));
                    request.preference = preference;
                    request.startup_grace = LONG;
                    if number % 4 == 2 {
                        request.deadline = Deadline::after(Duration::from_secs(4));
                    }
                    std::thread::spawn(move || engine.run_blocking(request).unwrap().status)
                })
                .collect();
            for (number, thread) in threads.into_iter().enumerate() {
                let status = thread.join().unwrap();
                let expected = match number % 4 {
                    1 => matches!(status, RunStatus::NoResult { .. }),
                    2 => matches!(status, RunStatus::DeadlineExceeded { .. }),
                    _ => matches!(&status, RunStatus::Ok { value } if value.as_str() == number.to_string()),
                };
                assert!(expected, "{number}: {status:?}");
            }
        }
    }
    assert_nothing_left(&before);
}

/// The direct children of this process.
fn children() -> Vec<rustix::process::Pid> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    let all: String = texts.collect();
    all.split_whitespace()
        .filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?))
        .collect()
}

#[test]
fn a_killed_zygote_is_replaced_and_costs_no_call_that_was_not_begun() {
    if !is_alone("engine_leaves::a_killed_zygote_is_replaced_and_costs_no_call_that_was_not_begun") {
        return;
    }
    let rig = Rig::new();
    let program = rig.python("import time\ndef run(seconds):\n    time.sleep(seconds)\n    return seconds");
    for _ in 0..20 {
        assert_eq!(value(&rig.run(request(&program, r#"{"seconds":0}"#))), "0");
        let zygotes = children();
        assert_eq!(zygotes.len(), 1, "{zygotes:?}");
        rustix::process::kill_process(zygotes[0], rustix::process::Signal::KILL).unwrap();
        // A call that comes before the end is noticed may have been told to a process that was about to end.
        let status = rig.run(request(&program, r#"{"seconds":0}"#)).status;
        assert!(
            matches!(status, RunStatus::Ok { .. } | RunStatus::NoResult { .. }),
            "{status:?}"
        );
        let end = Instant::now() + LONG;
        while children().contains(&zygotes[0]) {
            assert!(Instant::now() < end, "the end of a zygote was not noticed");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(value(&rig.run(request(&program, r#"{"seconds":0}"#))), "0");
    }

    // A call that was begun is not begun again: nobody knows what it did.
    let engine = Arc::clone(&rig.engine);
    let long = request(&program, r#"{"seconds":600}"#);
    let running = std::thread::spawn(move || engine.run_blocking(long).unwrap().status);
    let end = Instant::now() + LONG;
    while !running.is_finished() {
        assert!(Instant::now() < end, "the call outlived its zygote");
        // Only when it sleeps is it certain that it was begun.
        std::thread::sleep(Duration::from_millis(300));
        for child in children() {
            let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
        }
    }
    assert!(matches!(running.join().unwrap(), RunStatus::NoResult { .. }));
}
