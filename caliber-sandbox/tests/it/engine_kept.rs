//! Processes that are kept for calls to come: how many there are, over all tools and kinds.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::sandbox::{ExecutionPreference, PinnedProgram, RunStatus};

use crate::support::{LONG, Rig, request};

/// An open descriptor is in the way of forking; what is kept is a process for one call.
const NOT_FORKED: &str = "held = open('/dev/null')\ndef run(): return 1\n";
/// Ids that no other test uses.
const IDS: Range<u32> = 1_900_000_000..1_900_000_064;

/// The processes with an id in `ids`.
fn processes(ids: &Range<u32>) -> usize {
    let of = |entry: std::fs::DirEntry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        line.split_whitespace().next()?.parse::<u32>().ok()
    };
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries.filter_map(of).filter(|id| ids.contains(id)).count()
}

fn tools(rig: &Rig, count: usize) -> Vec<Arc<PinnedProgram>> {
    let source = |number| format!("{NOT_FORKED}# {number}");
    (0..count).map(|number| rig.python(&source(number))).collect()
}

fn call(rig: &Rig, program: &Arc<PinnedProgram>, preference: ExecutionPreference) {
    let mut request = request(program, "{}");
    request.preference = preference;
    let outcome = rig.run(request);
    assert!(matches!(outcome.status, RunStatus::Ok { .. }), "{outcome:?}");
}

#[test]
fn what_is_kept_is_counted_over_all_tools_and_kinds() {
    if !rustix::process::geteuid().is_root() {
        // Processes of one engine cannot be told from those of others.
        return;
    }
    let rig = Rig::with(|settings| {
        settings.zygotes = 2;
        settings.places = 1;
        settings.allow_persistent = true;
        settings.first_uid = IDS.start;
        settings.uid_count = IDS.len().try_into().unwrap();
    });
    for program in tools(&rig, 5) {
        for preference in [ExecutionPreference::Isolated, ExecutionPreference::Persistent] {
            for _ in 0..3 {
                call(&rig, &program, preference);
            }
        }
    }
    let end = Instant::now() + LONG / 4;
    let mut most = processes(&IDS);
    while most > 2 {
        assert!(Instant::now() < end, "{most} processes are kept");
        std::thread::sleep(Duration::from_millis(10));
        most = processes(&IDS);
    }
}

#[test]
fn a_call_finds_an_id_however_many_processes_are_kept() {
    let rig = Rig::with(|settings| {
        settings.places = 1;
        settings.zygotes = 2;
        settings.spares = 0;
        settings.first_uid = IDS.end;
        // The fewest that the settings may have.
        settings.uid_count = 4;
    });
    for _ in 0..2 {
        for program in tools(&rig, 6) {
            for _ in 0..3 {
                call(&rig, &program, ExecutionPreference::Isolated);
            }
        }
    }
}

/// Takes a second to import, and cannot be forked from.
const SLOW: &str = "import time\ntime.sleep(1)\nheld = open('/dev/null')\ndef run(): return 1\n";

#[test]
fn what_is_known_of_a_tool_is_forgotten_when_it_is_not_called_for_long() {
    let rig = Rig::with(|settings| {
        settings.zygote_idle = Duration::from_secs(4);
        settings.spares = 0;
    });
    let program = rig.python(SLOW);
    let imports = || {
        let mut request = request(&program, "{}");
        request.startup_grace = LONG;
        let outcome = rig.run(request);
        assert!(matches!(outcome.status, RunStatus::Ok { .. }), "{outcome:?}");
        // Of a process to fork from, where that is tried, and of the one that the call runs in.
        outcome.times.start_us / 1_000_000
    };
    assert!(imports() >= 2);
    assert!(imports() >= 1);
    std::thread::sleep(Duration::from_secs(5));
    assert!(imports() >= 2);
}
