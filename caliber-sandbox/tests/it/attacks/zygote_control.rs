//! A module that takes over the process with the imports, and with it the socket on which that process tells the
//! supervisor of the calls that it forks.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::clock::Deadline;
use caliber_core::sandbox::{PinnedProgram, RunLimits, RunStatus};
use caliber_sandbox::linux::engine::Engine;
use serde_json::json;

use super::cell::{Cell, Way, shown};

const HONEST: &str = "def answer(host):\n    return {'answer': 'works'}\n";
const HOSTILE: &str = include_str!("tools/zygote_control.py");
/// What it says in the place of the code that forks calls.
const KINDS: [&str; 13] = [
    "ready_twice",
    "forked_unasked",
    "no_process",
    "no_descriptor",
    "foreign_process",
    "forked_twice",
    "another_process",
    "done_without_forked",
    "done_twice",
    "free_while_it_runs",
    "errors",
    "silence",
    "hidden_thread",
];
const LIMIT: Duration = Duration::from_secs(20);
/// Long enough for an honest call to have its turn after hostile ones have had theirs.
const HOSTILE_LIMIT: Duration = Duration::from_secs(1);

/// Whatever it says: every call has one outcome, no place is lost to others, and the engine ends.
pub(crate) fn forged_messages(cell: &mut Cell) {
    if !matches!(cell.way, Way::Zygote | Way::Spare) {
        return;
    }
    let honest = program(cell, "honest", HONEST);
    for kind in KINDS {
        let hostile = hostile(cell, kind);
        let engine = engine(cell);
        let places = engine.settings().places;
        // One more than there are places.
        std::thread::scope(|scope| {
            for _ in 0..=places {
                let request = cell.request(
                    &hostile,
                    &json!({"host": {}}),
                    HOSTILE_LIMIT,
                    RunLimits::default(),
                );
                let engine = &engine;
                scope.spawn(move || {
                    if let Err(error) = engine.run_blocking(request) {
                        panic!("{kind}: no outcome: {error}");
                    }
                });
            }
        });
        let request = cell.request(&honest, &json!({"host": {}}), LIMIT, RunLimits::default());
        let outcome = engine.run_blocking(request).unwrap();
        let RunStatus::Ok { value } = &outcome.status else {
            panic!("{kind}: the next call of another tool: {}", shown(&outcome));
        };
        assert_eq!(value.as_str().replace(' ', ""), r#"{"answer":"works"}"#, "{kind}");
        let started = Instant::now();
        cell.runtime.block_on(engine.close(Deadline::after(LIMIT)));
        assert!(started.elapsed() < LIMIT, "{kind}: the engine did not end");
    }
}

/// The process with the imports ends with the control plane, whatever its module does at import.
pub(crate) fn death_signal(cell: &mut Cell) {
    if !matches!(cell.way, Way::Zygote | Way::Spare) {
        return;
    }
    let program = hostile(cell, "death_signal");
    let request = cell.request(&program, &json!({"host": {}}), LIMIT, RunLimits::default());
    let outcome = cell.run(request).unwrap();
    let RunStatus::Ok { value } = &outcome.status else {
        panic!("{}", shown(&outcome));
    };
    assert_eq!(value.as_str().replace(' ', ""), r#"{"death_signal":[true,9]}"#);
}

/// An engine of its own, with ids of its own, whose end can be waited for.
fn engine(cell: &Cell) -> Engine {
    let mut settings = cell.engine.settings().clone();
    settings.first_uid += 2 * settings.uid_count;
    Engine::start(settings, cell.layers.clone()).unwrap()
}

fn hostile(cell: &Cell, kind: &str) -> Arc<PinnedProgram> {
    program(cell, kind, &format!("KIND = {kind:?}\n{HOSTILE}"))
}

fn program(cell: &Cell, name: &str, source: &str) -> Arc<PinnedProgram> {
    let folder = cell.host.folder().join(format!("zygote_control_{name}"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tool.py"), source).unwrap();
    cell.pin(&folder, "tool", "answer")
}
