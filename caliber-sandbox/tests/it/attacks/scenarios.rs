//! Attacks that are more than one call.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{Guarantee, PinnedProgram, RunLimits, RunStatus};
use serde_json::{Value, json};

use super::catalogue::{self, Scenario};
use super::cell::{Cell, Way};
use super::control;
use super::host;
use super::outer::{self, Identity};
use super::zygote_control;

/// Set in a supervisor that is killed.
pub(crate) const PART: &str = "CALIBER_TEST_SUPERVISOR";

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            row: 5,
            name: "stale bytecode beside the source",
            run: stale_bytecode,
        },
        Scenario {
            row: 6,
            name: "the source changes after it was registered",
            run: changed_source,
        },
        Scenario {
            row: 12,
            name: "one call leaves something for the next",
            run: left_for_the_next_call,
        },
        Scenario {
            row: 14,
            name: "two calls of one tool at once",
            run: siblings,
        },
        Scenario {
            row: 66,
            name: "a module forges what its process says",
            run: zygote_control::forged_messages,
        },
        Scenario {
            row: 66,
            name: "a module changes the signal at the end of the control plane",
            run: zygote_control::death_signal,
        },
        Scenario {
            row: 67,
            name: "the supervisor is killed during a call",
            run: killed_supervisor,
        },
    ]
}

const LIMIT: Duration = Duration::from_secs(20);

fn folder(cell: &Cell, name: &str) -> PathBuf {
    let folder = cell.host.folder().join(name);
    fs::create_dir(&folder).unwrap();
    folder
}

/// The value that a program returns; `None` when its source has changed, which is said before anything runs.
fn value(cell: &mut Cell, program: &Arc<PinnedProgram>) -> Option<Value> {
    let request = cell.request(program, &json!({"host": {}}), LIMIT, RunLimits::default());
    let run = cell.engine.run(request);
    match cell.runtime.block_on(run) {
        Ok(outcome) => match &outcome.status {
            RunStatus::Ok { value } => Some(serde_json::from_str(value.as_str()).unwrap()),
            _ => panic!("{}", super::cell::shown(&outcome)),
        },
        Err(error) if error.reason() == Some(ReasonCode::SourceChanged) => None,
        Err(error) => panic!("{error}"),
    }
}

fn stale_bytecode(cell: &mut Cell) {
    let source = folder(cell, "stale");
    let status = Command::new("/usr/bin/python3")
        .args(["-I", "-S"])
        .arg(outer::tools().join("poison.py"))
        .arg(&source)
        .status()
        .unwrap();
    assert!(status.success());
    for module in ["unchecked", "dated"] {
        if cell.identity == Identity::Nobody && module == "unchecked" {
            let plain = control::answer(&cell.host, &source, module, "answer");
            assert_eq!(plain["answer"], "poisoned", "a plain child runs the bytecode");
        }
        let program = cell.pin(&source, module, "answer");
        let answer = value(cell, &program).expect("the source is what was registered");
        assert_eq!(answer["answer"], "works", "{module}");
    }
}

const HONEST: &str = "def answer(host):\n    return {'answer': 'works'}\n";
const CHANGED: &str = "def answer(host):\n    return {'answer': 'changed'}\n";

fn changed_source(cell: &mut Cell) {
    for way in ["before the first call", "between calls", "another folder"] {
        let source = folder(cell, &way.replace(' ', "_"));
        fs::write(source.join("tool.py"), HONEST).unwrap();
        let program = cell.pin(&source, "tool", "answer");
        if way == "between calls" {
            assert_eq!(value(cell, &program).unwrap()["answer"], "works");
        }
        if way == "another folder" {
            let other = folder(cell, "other");
            fs::write(other.join("tool.py"), CHANGED).unwrap();
            fs::remove_dir_all(&source).unwrap();
            std::os::unix::fs::symlink(&other, &source).unwrap();
        } else {
            fs::write(source.join("tool.py"), CHANGED).unwrap();
        }
        if cell.identity == Identity::Nobody {
            let plain = control::answer(&cell.host, &source.canonicalize().unwrap(), "tool", "answer");
            assert_eq!(plain["answer"], "changed", "a plain child runs what is there now");
        }
        for _ in 0..3 {
            if let Some(answer) = value(cell, &program) {
                assert_eq!(answer["answer"], "works", "{way}");
            }
        }
    }
}

fn left_for_the_next_call(cell: &mut Cell) {
    if cell.identity == Identity::Nobody {
        let found = control::answer(&cell.host, &outer::tools(), "files", "leave_and_find");
        let won = catalogue::won(&found);
        for way in [
            "temporary_folder",
            "shared_memory",
            "working_folder",
            "module",
            "interpreter",
            "environment",
        ] {
            assert!(won.contains(&way), "within one process it is found: {found}");
        }
    }
    let (leave, find) = (cell.program("files", "leave"), cell.program("files", "find_left"));
    for _ in 0..6 {
        for program in [&leave, &find] {
            let answer = value(cell, program).expect("the source is what was registered");
            catalogue::judge_answer(&answer.to_string()).unwrap();
        }
    }
}

/// What one call holds is out of reach for another one of the same tool. The one that holds sees signals and changes.
fn siblings(cell: &mut Cell) {
    if !cell.layers.namespaces {
        // Nobody has a folder to write to, and the report says that processes see each other.
        return;
    }
    let program = cell.program("processes", "sibling");
    let request = |cell: &Cell, role: &str| {
        let facts = json!({"role": role, "secret": outer::secret(), "seconds": 2});
        cell.request(&program, &json!({ "host": facts }), LIMIT, RunLimits::default())
    };
    cell.warm_up(&program).unwrap();
    let (holding, looking) = (request(cell, "hold"), request(cell, "look"));
    let (engine, runtime) = (&cell.engine, &cell.runtime);
    let (held, looked) = runtime.block_on(async {
        let second = async {
            // The first one holds for two seconds; somewhere in them is enough.
            tokio::time::sleep(Duration::from_millis(700)).await;
            engine.run(looking).await
        };
        tokio::join!(engine.run(holding), second)
    });
    for outcome in [held, looked] {
        let outcome = outcome.unwrap();
        let RunStatus::Ok { value } = &outcome.status else {
            panic!("{}", super::cell::shown(&outcome));
        };
        catalogue::judge_answer(value.as_str()).unwrap();
    }
}

/// A supervisor in a process of its own: makes the call that it is killed in.
pub(crate) fn supervise(way: Way) {
    let identity = match rustix::process::geteuid().is_root() {
        true => Identity::Root,
        false => Identity::Nobody,
    };
    let mut cell = Cell::named(identity, way, "killed");
    let program = cell.program("resources", "ignore_signals");
    let request = cell.request(
        &program,
        &json!({"host": {}}),
        Duration::from_secs(300),
        RunLimits::default(),
    );
    let _ = cell.run(request);
}

fn killed_supervisor(cell: &mut Cell) {
    let before = host::processes(|pid| !host::is_zombie(pid));
    let mut supervisor = Command::new(std::env::current_exe().unwrap())
        .args([
            "attacks::part_supervisor",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PART, format!("{:?}", cell.way))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the call", || !host::survivors().is_empty());
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    // What the engine of the cell makes meanwhile is below this process; orphans are not.
    let left = || {
        host::processes(|pid| {
            !before.contains(&pid) && !host::is_zombie(pid) && !host::is_below(pid, std::process::id())
        })
    };
    let end = Instant::now() + Duration::from_secs(20);
    while !left().is_empty() && cell.is_enforced(Guarantee::TreeKill) {
        let told: Vec<String> = left().into_iter().map(host::described).collect();
        assert!(Instant::now() < end, "20 seconds later there is {told:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    super::cell::end(&left());
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < end, "not within 30 seconds: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
