//! One cell of the matrix: an identity and a way of running, and the whole list in it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::clock::Deadline;
use caliber_core::id::ProjectId;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::sandbox::{
    Enforcement, ExecutionMode, ExecutionPreference, Guarantee, PinnedProgram, Program, RunLimits,
    RunOutcome, RunRequest, RunStatus, SandboxReport,
};
use caliber_sandbox::linux::engine::Engine;
use caliber_sandbox::linux::layers::Layers;
use caliber_sandbox::linux::probe::probe;
use caliber_sandbox::pin::{PinLimits, SnapshotStore, Stop};
use caliber_sandbox::{Limits, SandboxSettings};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::catalogue::{Attack, Needs};
use super::host::{self, Host, Touch};
use super::outer::{self, Identity};

/// How much later than its deadline an answer may come on a loaded machine.
const SLACK: Duration = Duration::from_secs(5);
/// How long a busy machine may take to start an attack.
const START: Duration = Duration::from_secs(20);
/// How much more memory than before the supervisor may use at its peak.
const MEMORY_KIB: u64 = 96 << 10;
/// The environment that tools are documented to have.
const ENVIRONMENT: &[&str] = &[
    "HOME",
    "LANG",
    "LC_CTYPE",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PATH",
    "TMPDIR",
];

/// How calls are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Cold,
    Zygote,
    Spare,
    /// As `Cold`, without Landlock: the others hold alone.
    WithoutLandlock,
    /// Without namespaces and control groups, as where the host refuses them.
    WithoutNamespaces,
}

/// One cell with its engine and its host.
pub(crate) struct Cell {
    pub(crate) identity: Identity,
    pub(crate) way: Way,
    pub(crate) host: Host,
    pub(crate) engine: Engine,
    pub(crate) layers: Layers,
    report: SandboxReport,
    pub(crate) runtime: Runtime,
    pub(crate) store: SnapshotStore,
    programs: HashMap<String, Arc<PinnedProgram>>,
}

impl Cell {
    pub(crate) fn new(identity: Identity, way: Way) -> Self {
        Self::named(identity, way, "cell")
    }

    /// A cell whose things have names of their own, beside another one.
    pub(crate) fn named(identity: Identity, way: Way, name: &str) -> Self {
        let host = Host::new(name);
        let mut settings = settings(way, &outer::folder().join(format!("snapshots-{name}")));
        if name != "cell" {
            // The kernel counts the processes of a user over all sandboxes.
            settings.first_uid += settings.uid_count;
        }
        let store = SnapshotStore::open(&settings.snapshot_folder, PinLimits::default()).unwrap();
        let found = probe(&settings, None);
        let mut layers = found.layers.unwrap();
        // What a cell is about is there, and what is missing is told.
        let is_whole = way != Way::WithoutNamespaces;
        assert_eq!(layers.namespaces, is_whole, "{:#?}", found.report);
        assert_eq!(found.report.missing().is_empty(), is_whole, "{:#?}", found.report);
        let is_root = matches!(identity, Identity::Root | Identity::RootInDocker);
        assert_eq!(layers.cgroups, is_root, "{:#?}", found.report);
        if way == Way::WithoutLandlock {
            layers.landlock = None;
        }
        let engine = Engine::start(settings, layers.clone()).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        Self {
            identity,
            way,
            host,
            engine,
            layers,
            report: found.report,
            runtime,
            store,
            programs: HashMap::new(),
        }
    }

    /// A callable of the attacks, pinned.
    pub(crate) fn program(&mut self, module: &str, callable: &str) -> Arc<PinnedProgram> {
        let name = format!("{module}.{callable}");
        if let Some(program) = self.programs.get(&name) {
            return program.clone();
        }
        let pinned = self.pin(&outer::tools(), module, callable);
        self.programs.insert(name, pinned.clone());
        pinned
    }

    pub(crate) fn pin(&self, root: &Path, module: &str, callable: &str) -> Arc<PinnedProgram> {
        let program = Program::Python {
            module_path: module.into(),
            callable_name: callable.into(),
            source_roots: vec![root.into()],
            package_roots: vec![outer::set_user_id().parent().unwrap().into()],
        };
        let stop = Stop::at(Deadline::after(Duration::from_secs(30)));
        Arc::new(
            self.store
                .pin(&program, "the interpreter of the test", &stop)
                .unwrap(),
        )
    }

    pub(crate) fn facts(&self) -> Value {
        let mut facts = self.host.facts();
        facts["folder"] = json!(".");
        facts["environment"] = json!(ENVIRONMENT);
        facts["result_type"] = json!(3);
        facts
    }

    pub(crate) fn request(
        &self,
        program: &Arc<PinnedProgram>,
        arguments: &Value,
        timeout: Duration,
        limits: RunLimits,
    ) -> RunRequest {
        RunRequest {
            program: program.clone(),
            arguments: JsonText::parse(arguments.to_string(), JsonLimits::ARGUMENTS).unwrap(),
            secrets: Vec::new(),
            tenant: ProjectId::default(),
            preference: match self.way {
                Way::Cold | Way::WithoutLandlock | Way::WithoutNamespaces => ExecutionPreference::Cold,
                Way::Zygote | Way::Spare => ExecutionPreference::Isolated,
            },
            limits,
            startup_grace: Duration::ZERO,
            deadline: Deadline::after(timeout),
            result_bytes: 16 << 20,
        }
    }

    /// Runs one call; what is no outcome by its deadline fails the test at once.
    pub(crate) fn run(&mut self, request: RunRequest) -> Result<RunOutcome, String> {
        let limit = request.deadline.instant() + request.startup_grace + SLACK;
        let run = self.engine.run(request);
        let answer = self
            .runtime
            .block_on(async { tokio::time::timeout_at(limit, run).await });
        match answer {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(error)) => Err(format!("no outcome: {error}")),
            Err(_) => Err("not answered by its deadline".into()),
        }
    }

    /// Calls so that a process of the kind that the cell is about serves the next one.
    pub(crate) fn warm_up(&mut self, program: &Arc<PinnedProgram>) -> Result<(), String> {
        let wanted = match self.way {
            Way::Cold | Way::WithoutLandlock | Way::WithoutNamespaces => return Ok(()),
            Way::Zygote => ExecutionMode::Zygote,
            Way::Spare => ExecutionMode::Spare,
        };
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let request = self.request(
                program,
                &json!({"host": {"warm": true}}),
                Duration::from_secs(20),
                RunLimits::default(),
            );
            let outcome = self.run(request)?;
            if outcome.mode == wanted {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("no call runs as {wanted:?}: {}", shown(&outcome)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// One attack of the list, with everything that must be true after it.
    pub(crate) fn attack(&mut self, attack: &Attack) -> Vec<String> {
        let program = self.program(attack.module, attack.callable);
        if !attack.module.starts_with("import_")
            && let Err(problem) = self.warm_up(&program)
        {
            return vec![problem];
        }
        let mut facts = self.facts();
        for (key, value) in attack.more.as_object().cloned().unwrap_or_default() {
            facts[key] = value;
        }
        let before = reset_peak();
        let started = Instant::now();
        let mut request = self.request(&program, &json!({ "host": facts }), attack.timeout, attack.limits);
        if !attack.module.starts_with("import_") {
            // Its time is that of the attack, however long a busy machine takes to start it.
            request.startup_grace = START;
        }
        let mut problems = Vec::new();
        match self.run(request) {
            Ok(outcome) => {
                if let Err(problem) = attack.judge(&outcome) {
                    if self.holds(attack) {
                        problems.push(format!("{problem} [{}]", shown(&outcome)));
                    } else if attack
                        .guarantee()
                        .is_some_and(|guarantee| self.is_enforced(guarantee))
                    {
                        problems.push(format!(
                            "{problem}, and the report says that it cannot [{}]",
                            shown(&outcome)
                        ));
                    }
                }
                if let Err(problem) = self.check_mode(attack, &outcome) {
                    problems.push(problem);
                }
                if matches!(outcome.status, RunStatus::Ok { .. })
                    && started.elapsed() > attack.timeout / 2 + SLACK
                {
                    problems.push("it was answered only when its time was up".into());
                }
            }
            Err(problem) => problems.push(problem),
        }
        let peak = peak_kib().saturating_sub(before);
        if peak > MEMORY_KIB {
            problems.push(format!("the supervisor used {peak} KiB more"));
        }
        problems.extend(self.after(attack.may_touch(&self.layers)));
        problems
    }

    /// What must be true after every call: nothing runs, nothing of the host was touched but `may_touch`, the next call
    /// works.
    pub(crate) fn after(&mut self, may_touch: &[Touch]) -> Vec<String> {
        let mut problems = Vec::new();
        let until = Instant::now() + Duration::from_secs(5);
        while !host::survivors().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = host::survivors();
        if !left.is_empty() {
            if self.is_enforced(Guarantee::TreeKill) {
                let told: Vec<String> = left.iter().copied().map(host::described).collect();
                problems.push(format!("{} processes are left: {}", left.len(), told.join("; ")));
            }
            end(&left);
        }
        let touched = self.host.touched();
        if touched.iter().any(|touch| !may_touch.contains(touch)) {
            problems.push(format!("it got to {touched:?}"));
        }
        let program = self.program("files", "answer");
        let request = self.request(
            &program,
            &json!({"host": {}}),
            Duration::from_secs(20),
            RunLimits::default(),
        );
        match self.run(request) {
            Ok(outcome) => match &outcome.status {
                RunStatus::Ok { value } if value.as_str().replace(' ', "") == r#"{"answer":"works"}"# => {}
                _ => problems.push(format!("the next call: {}", shown(&outcome))),
            },
            Err(problem) => problems.push(format!("the next call: {problem}")),
        }
        problems
    }

    /// Whether the layers of this cell hold it.
    fn holds(&self, attack: &Attack) -> bool {
        match attack.needs {
            Needs::Nothing => true,
            Needs::Namespaces => self.layers.namespaces,
            Needs::ControlGroup => self.layers.cgroups,
        }
    }

    pub(crate) fn is_enforced(&self, guarantee: Guarantee) -> bool {
        self.report
            .guarantees
            .get(&guarantee)
            .is_some_and(Enforcement::is_enforced)
    }

    /// The way of running is the one that the cell is about, or a slower one that keeps calls apart as well.
    fn check_mode(&self, attack: &Attack, outcome: &RunOutcome) -> Result<(), String> {
        let is_forked = matches!(outcome.mode, ExecutionMode::Zygote | ExecutionMode::Spare);
        let is_import = attack.module.starts_with("import_");
        let fits = match self.way {
            _ if is_import => outcome.mode != ExecutionMode::Persistent,
            Way::Cold | Way::WithoutLandlock | Way::WithoutNamespaces => outcome.mode == ExecutionMode::Cold,
            Way::Zygote => outcome.mode == ExecutionMode::Zygote,
            Way::Spare => is_forked,
        };
        if fits {
            Ok(())
        } else {
            Err(format!("it ran as {:?}", outcome.mode))
        }
    }

    /// Ends the engine; nothing of it may be left.
    pub(crate) fn close(self) -> Vec<String> {
        let known: Vec<u32> = [std::process::id(), self.host.victim()].into();
        self.runtime
            .block_on(self.engine.close(Deadline::after(Duration::from_secs(20))));
        drop(self.engine);
        let children = || {
            host::processes(|pid| {
                !known.contains(&pid)
                    && host::parent_of(pid) == Some(std::process::id())
                    && !host::is_zombie(pid)
            })
        };
        let until = Instant::now() + Duration::from_secs(5);
        while !children().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        match children() {
            left if left.is_empty() => Vec::new(),
            left => vec![format!("after the end of the engine {left:?} run")],
        }
    }
}

fn settings(way: Way, snapshots: &Path) -> SandboxSettings {
    SandboxSettings {
        interpreter: PathBuf::from("/usr/bin/python3"),
        snapshot_folder: snapshots.into(),
        zygotes: if matches!(way, Way::Zygote | Way::Spare) {
            4
        } else {
            0
        },
        spares: if way == Way::Spare { 2 } else { 0 },
        allow_unenforced: way == Way::WithoutNamespaces,
        // Without a namespace of users the kernel counts all processes of the user, those of the test included.
        limits: Limits {
            processes: if way == Way::WithoutNamespaces {
                200
            } else {
                Limits::default().processes
            },
            ..Limits::default()
        },
        startup_grace: Duration::ZERO,
        ..SandboxSettings::default()
    }
}

pub(crate) fn shown(outcome: &RunOutcome) -> String {
    let text = format!(
        "{:?} {:?} stdout {:?} stderr {:?}",
        outcome.mode, outcome.status, outcome.stdout.text, outcome.stderr.text
    );
    text.chars().take(1500).collect()
}

pub(crate) fn end(processes: &[u32]) {
    for pid in processes {
        if let Some(pid) = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Starts a new measurement of the peak, and tells what is in use.
fn reset_peak() -> u64 {
    // In proc(5): 5 resets the peak resident set.
    let _ = fs::write("/proc/self/clear_refs", "5");
    peak_kib()
}

fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
