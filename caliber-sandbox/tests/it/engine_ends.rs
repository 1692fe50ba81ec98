//! How calls end: by a result, by the end of their process, or by their deadline.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use caliber_core::clock::Deadline;
use caliber_core::sandbox::{ExecutionMode, Exit, Guarantee, RunStatus};
use caliber_sandbox::linux::layers::Layers;

use crate::support::{LONG, Rig, all_layers, request};

/// Writes its own result a moment before its deadline, and holds the channel open.
const LATE: &str = "\
import os, sys, time
def run(at):
    frame = sys._getframe()
    while 'nonce' not in frame.f_locals:
        frame = frame.f_back
    nonce, payload = frame.f_locals['nonce'], b'\"in time\"'
    time.sleep(max(0, at - time.time()))
    os.write(3, (17 + len(payload)).to_bytes(4, 'little') + b'\\3' + nonce + payload)
    time.sleep(600)
";

#[test]
fn a_result_that_came_in_time_is_the_outcome() {
    let rig = Rig::new();
    let program = rig.python(LATE);
    // The result is written in the last moments; a busy machine may be too late now and then.
    let last = (0..8).map(|_| {
        let time = Duration::from_secs(2);
        let end = SystemTime::now() + time;
        let at = end.duration_since(SystemTime::UNIX_EPOCH).unwrap() - Duration::from_millis(120);
        let mut request = request(&program, &format!(r#"{{"at":{}}}"#, at.as_secs_f64()));
        request.deadline = Deadline::after(time);
        rig.run(request).status
    });
    let mut seen = Vec::new();
    for status in last {
        if matches!(&status, RunStatus::Ok { value } if value.as_str() == r#""in time""#) {
            return;
        }
        seen.push(status);
    }
    panic!("{seen:?}");
}

#[test]
fn without_namespaces_what_a_call_started_ends_with_it() {
    let layers = Layers {
        namespaces: false,
        proc: false,
        // What would end it as well.
        cgroups: false,
        unenforced: vec![Guarantee::TreeKill],
        ..all_layers()
    };
    let rig = Rig::with_layers(layers, |_| {});
    let program = rig.python(
        "import os, time\ndef run(code):\n    child = os.fork()\n    if child == 0: time.sleep(600)\n    \
         print(child, flush=True)\n    os._exit(code)",
    );
    for code in [0, 7] {
        let mut request = request(&program, &format!(r#"{{"code":{code}}}"#));
        // Without a namespace of users the kernel counts all processes of the user, those of other tests too.
        request.limits.processes = Some(4096);
        let outcome = rig.run(request);
        assert!(
            matches!(outcome.status, RunStatus::NoResult { exit, .. } if exit == Exit::Code(code)),
            "{outcome:?}"
        );
        let child: u32 = outcome.stdout.text.trim().parse().unwrap();
        let until = Instant::now() + LONG / 6;
        let status = Path::new("/proc").join(child.to_string()).join("stat");
        let runs = || std::fs::read_to_string(&status).is_ok_and(|stat| !stat.contains(") Z "));
        while runs() {
            assert!(Instant::now() < until, "process {child} runs on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn how_a_call_ended_is_told_before_its_folder_is_emptied() {
    let rig = Rig::with(|settings| {
        settings.spares = 0;
        settings.limits.scratch_inodes = 1 << 17;
    });
    let program = rig.python(
        "import os\ndef run(code):\n    for number in range(60000):\n        os.mkdir(str(number))\n    os._exit(code)",
    );
    let mut request = request(&program, r#"{"code":7}"#);
    request.limits.memory_bytes = Some(1 << 30);
    let outcome = rig.run(request);
    assert!(
        matches!(
            outcome.status,
            RunStatus::NoResult {
                exit: Exit::Code(7),
                ..
            }
        ),
        "{outcome:?}"
    );
    assert_eq!(outcome.mode, ExecutionMode::Zygote);
}

/// Is no module to fork from, which is known when it has been imported.
const SLOW: &str = "\
import threading, time
time.sleep(2)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
def run(seconds):
    time.sleep(seconds)
    return seconds
";

#[test]
fn the_time_of_a_start_that_is_begun_again_is_not_forgotten() {
    let rig = Rig::new();
    let program = rig.python(SLOW);
    let mut request = request(&program, r#"{"seconds":2}"#);
    // Two imports, none of which may spend the time of the call.
    request.startup_grace = LONG;
    request.deadline = Deadline::after(Duration::from_secs(3));
    let outcome = rig.run(request);
    assert!(
        matches!(&outcome.status, RunStatus::Ok { value } if value.as_str() == "2"),
        "{outcome:?}"
    );
    assert_eq!(outcome.mode, ExecutionMode::Cold);
    assert!(outcome.times.start_us >= 4_000_000, "{outcome:?}");
}

/// Set where nothing else runs in the process.
const ALONE: &str = "CALIBER_TEST_ALONE";

#[test]
fn the_supervisor_rests_while_a_call_takes_longer_than_processes_are_idle() {
    const NAME: &str = "engine_ends::the_supervisor_rests_while_a_call_takes_longer_than_processes_are_idle";
    if std::env::var_os(ALONE).is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_ok = output.status.success() && text.contains("test result: ok. 1 passed");
        assert!(is_ok, "{text}\n{errors}");
        return;
    }
    let rig = Rig::with(|settings| {
        settings.zygote_idle = Duration::from_millis(200);
        settings.spares = 0;
    });
    let program = rig.python("import time\ndef run(seconds): time.sleep(seconds)");
    let before = processor_time();
    let outcome = rig.run(request(&program, r#"{"seconds":3}"#));
    let used = processor_time() - before;
    assert_eq!(outcome.mode, ExecutionMode::Zygote);
    assert!(matches!(outcome.status, RunStatus::Ok { .. }), "{outcome:?}");
    assert!(used < Duration::from_secs(1), "{used:?} for waiting");
}

/// What this process has used so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}
