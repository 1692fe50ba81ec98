//! What this machine enforces, found out by building the sandbox and trying to get out of it.
//!
//! No setting of the kernel is believed: on some systems making a namespace succeeds and leaves it without rights, and
//! Landlock shows nowhere. The sandbox is built as for a tool; the layer at which that fails is left out, and its failure
//! is remembered. In what can be built a program of ours reaches for things laid out on the machine. What it could not
//! reach is enforced; the settings of the kernel are read only to say what an operator can do about the rest.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use caliber_core::Error;
use caliber_core::sandbox::{Guarantee, SandboxReport};
use rustix::io::Errno;

use super::cgroup::{ControlGroups, Found, GroupLimits};
use super::confinement::Confinement;
use super::interpreter::Interpreter;
use super::landlock;
use super::layers::Layers;
use super::spawn::{self, SpawnFailure, Stage};
use super::tool;
use crate::settings::{Limits, SandboxSettings};

mod canary;
mod findings;
mod forked;
mod host;
mod remedy;

use canary::{Answer, Canary, Problem};
use findings::Findings;
use host::Host;

const CANARY: &str = include_str!("probe/canary.py");
/// How long one canary may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a process that wants to stay does so where nothing ends it, in seconds.
const STAYS: u64 = 4;
/// How many processes the canary's sandbox allows, and how many it tries.
const PROCESSES: u64 = 24;
const PROCESSES_TRIED: u64 = 40;
/// The least memory that the canary is given, in bytes: what a tool has may be too little for an interpreter.
const MEMORY: u64 = 256 << 20;

/// What a probe found.
#[derive(Debug)]
pub struct Probe {
    /// For operators, and for deciding whether anything runs.
    pub report: SandboxReport,
    /// For building children; `None` where none can be built.
    pub layers: Option<Layers>,
    /// The interpreter, where there is one.
    pub interpreter: Option<Interpreter>,
    /// Whether calls may be forked from a process with the module imported: whether such a call was seen to hold what a
    /// process of its own holds. What was not seen is not used.
    pub forks: bool,
    /// Where control groups can be made.
    pub groups: Option<ControlGroups>,
}

/// Finds out what this machine enforces. Takes some hundred milliseconds, and blocks; the thread that calls it must not
/// end before it returns. `snapshots` is why the private copies of sources cannot be kept, if they cannot.
pub fn probe(settings: &SandboxSettings, snapshots: Option<&Error>) -> Probe {
    let (mut findings, interpreter) = look(settings);
    findings.snapshots = snapshots.map(|error| error.message().to_owned());
    let title = interpreter.as_ref().map(Interpreter::title);
    let report = findings.report(settings, title);
    let unenforced = match report.is_available() {
        true => report.missing(),
        false => Vec::new(),
    };
    let layers = findings
        .problem
        .is_none()
        .then(|| findings.plan.layers(findings.groups.is_some(), unenforced));
    Probe {
        report,
        layers,
        interpreter,
        forks: findings.forks,
        groups: findings.groups.take(),
    }
}

fn look(settings: &SandboxSettings) -> (Findings, Option<Interpreter>) {
    let mut findings = Findings::default();
    let interpreter = match Interpreter::examine(&settings.interpreter) {
        Ok(interpreter) => interpreter,
        Err(problem) => {
            findings.problem = Some(problem);
            return (findings, None);
        }
    };
    let Found {
        groups,
        memory,
        processes,
        kill,
    } = ControlGroups::find(settings.control_group.as_deref());
    findings.groups = groups;
    findings.memory = Some(memory);
    findings.processes = Some(processes);
    findings.kill = Some(kill);
    match Host::lay_out() {
        Ok(host) => {
            let trial = Trial {
                settings,
                interpreter: &interpreter,
                host: &host,
            };
            if let Err(problem) = trial.conduct(&mut findings) {
                findings.problem = Some(problem);
            }
        }
        Err(error) => {
            findings.problem = Some(format!("the probe of the sandbox could not be laid out: {error}"));
        }
    }
    (findings, Some(interpreter))
}

/// Which layers a child is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) namespaces: bool,
    pub(crate) proc: bool,
    pub(crate) landlock: Option<u32>,
    pub(crate) seccomp: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            namespaces: true,
            proc: true,
            landlock: landlock::version(),
            seccomp: true,
        }
    }
}

impl Plan {
    fn layers(self, cgroups: bool, unenforced: Vec<Guarantee>) -> Layers {
        Layers {
            namespaces: self.namespaces,
            proc: self.proc,
            landlock: self.landlock,
            seccomp: self.seccomp,
            cgroups,
            unenforced,
        }
    }

    /// Takes the layer of a failed step out; `false` when the step belongs to none.
    fn without(&mut self, stage: Stage) -> bool {
        match stage {
            Stage::Clone
            | Stage::UserMap
            | Stage::MountPrivate
            | Stage::MountRoot
            | Stage::MountBind
            | Stage::MountDevice
            | Stage::MountTmpfs
            | Stage::PivotRoot
            | Stage::HostName => std::mem::take(&mut self.namespaces),
            Stage::MountProc => std::mem::take(&mut self.proc),
            Stage::Landlock => self.landlock.take().is_some(),
            Stage::Seccomp => std::mem::take(&mut self.seccomp),
            _ => false,
        }
    }
}

/// A step of the building that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) stage: Stage,
    pub(crate) errno: Errno,
}

/// The canaries, one after the other.
struct Trial<'a> {
    settings: &'a SandboxSettings,
    interpreter: &'a Interpreter,
    host: &'a Host,
}

impl Trial<'_> {
    /// Builds what can be built and runs the canaries in it.
    fn conduct(&self, findings: &mut Findings) -> Result<(), String> {
        if findings.plan.landlock.is_none() {
            findings.failed.push(Failed {
                stage: Stage::Landlock,
                errno: landlock_errno(),
            });
        }
        let first = loop {
            match self.run(findings.plan, findings.groups.as_ref(), STAYS) {
                Ok(answer) => break answer,
                Err(Problem::Spawn(failure)) => {
                    let failed = Failed {
                        stage: failure.stage,
                        errno: failure.errno,
                    };
                    if failure.stage == Stage::Cgroup && findings.groups.take().is_some() {
                        findings.lose_groups(failure.errno);
                    } else if !findings.plan.without(failure.stage) {
                        return Err(failure.to_string());
                    }
                    findings.failed.push(failed);
                }
                Err(Problem::Other(problem)) => return Err(problem),
            }
        };
        findings.add(first, self.host.reached());
        // What the call before has left shows in the second.
        let second = self.run(findings.plan, findings.groups.as_ref(), STAYS);
        findings.add(second.map_err(Problem::text)?, self.host.reached());
        // Behind a private root Landlock changes nothing that could be seen; alone it has to hold.
        if findings.plan.namespaces && findings.plan.landlock.is_some() {
            let alone = Plan {
                namespaces: false,
                proc: false,
                ..findings.plan
            };
            let holds = match self.run(alone, None, 0) {
                Ok(answer) => {
                    self.host.reached();
                    ["read_file", "write_folder", "write_file"].iter().all(|name| {
                        answer
                            .tries
                            .get(*name)
                            .is_some_and(|word| word.starts_with("held:"))
                    })
                }
                Err(_) => false,
            };
            if !holds {
                findings.plan.landlock = None;
                findings.failed.push(Failed {
                    stage: Stage::Landlock,
                    errno: Errno::OPNOTSUPP,
                });
            }
        }
        if findings.plan.namespaces {
            let layers = findings.plan.layers(findings.groups.is_some(), Vec::new());
            match forked::try_calls(self, &layers) {
                Ok(()) => findings.forks = true,
                Err(problem) => {
                    let problem = caliber_core::text::escaped(&problem, 500);
                    tracing::warn!(
                        problem,
                        "calls are not forked here: one did not hold what it has to"
                    );
                }
            }
        }
        Ok(())
    }

    fn run(&self, plan: Plan, groups: Option<&ControlGroups>, stays: u64) -> Result<Answer, Problem> {
        let layers = plan.layers(groups.is_some(), Vec::new());
        let (confinement, source, scratch) = self.confinement(&layers).map_err(Problem::Spawn)?;
        let question = self
            .host
            .question(source, scratch, PROCESSES_TRIED, stays)
            .map_err(Problem::io)?;
        let question = serde_json::to_vec(&question).map_err(|error| Problem::Other(error.to_string()))?;
        let prepared = Arc::new(spawn::prepare(&confinement).map_err(Problem::Spawn)?);
        let group = groups
            .map(|groups| {
                groups.make(GroupLimits {
                    memory_bytes: MEMORY,
                    processes: PROCESSES,
                })
            })
            .transpose()
            .map_err(|failure| {
                Problem::Spawn(SpawnFailure {
                    stage: Stage::Cgroup,
                    errno: failure.errno,
                    detail: Some(failure.file.to_owned()),
                })
            })?;
        let canary = Canary::start(&prepared, group)?;
        canary.ask(&question, confinement.namespaces)
    }

    /// What a tool gets, with the canary as the tool; and where it finds its source and its scratch folders.
    fn confinement(&self, layers: &Layers) -> Result<(Confinement, PathBuf, Vec<PathBuf>), SpawnFailure> {
        let pinned = self.host.program();
        let settings = SandboxSettings {
            snapshot_folder: self.host.folder().to_owned(),
            ..self.settings.clone()
        };
        let limits = Limits {
            memory_bytes: settings.limits.memory_bytes.max(MEMORY),
            processes: u32::try_from(PROCESSES).unwrap_or(u32::MAX),
            ..settings.limits
        };
        let kind = tool::Kind {
            // As the engine does it: without a private root the copies are for the user of this process only.
            // Any one of the range: the kernel counts processes by id, and other sandboxes may use the range as well.
            id: (layers.namespaces && rustix::process::geteuid().is_root()).then(|| any_id(&settings)),
            scratch_folders: 1,
            forks: false,
            cpu_seconds: Some(PATIENCE.as_secs()),
        };
        let mut confinement = tool::python(&pinned, self.interpreter, &settings, layers, &limits, kind)?;
        // In place of what starts a tool.
        if let Some(last) = confinement.args.last_mut() {
            *last = CString::new(CANARY).unwrap_or_default();
        }
        let source = tool::import_paths(&pinned.program, layers, &settings, &pinned);
        let source = source.into_iter().next().unwrap_or_default();
        let scratch = layers.namespaces.then(|| PathBuf::from(tool::scratch(0)));
        Ok((confinement, PathBuf::from(source), scratch.into_iter().collect()))
    }
}

/// What the kernel answers to a question for its version of Landlock.
fn landlock_errno() -> Errno {
    if Path::new("/sys/kernel/security/lsm").exists() {
        Errno::OPNOTSUPP
    } else {
        Errno::NOSYS
    }
}

fn any_id(settings: &SandboxSettings) -> u32 {
    let number = super::protocol::new_nonce()
        .iter()
        .fold(0_u32, |number, byte| number.rotate_left(5) ^ u32::from(*byte));
    settings
        .first_uid
        .saturating_add(number % settings.uid_count.max(1))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// Without a sandbox, as a user that owns nothing, the canary gets through: otherwise it would prove nothing.
    #[test]
    fn what_the_canary_tries_is_possible_without_a_sandbox() {
        let host = Host::lay_out().unwrap();
        let scratch = host.source();
        let question = host.question(host.source(), vec![scratch.clone()], 4, 0).unwrap();
        let mut command = match is_root() {
            true => {
                let mut command = Command::new("/usr/bin/setpriv");
                command.args([
                    "--reuid=65534",
                    "--regid=65534",
                    "--clear-groups",
                    "/usr/bin/python3",
                ]);
                command
            }
            false => Command::new("/usr/bin/python3"),
        };
        let mut child = command
            .args(["-I", "-S", "-B", "-c", CANARY])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&serde_json::to_vec(&question).unwrap()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let answer: Answer = serde_json::from_slice(&output.stdout).unwrap();
        for name in [
            "read_file",
            "list_folder",
            "file_metadata",
            "write_folder",
            "write_file",
            "write_source",
            "scratch",
            "tcp",
            "udp",
            "unix_abstract",
            "unix_path",
            "see_processes",
            "sense_process",
            "unshare",
            "process_vm",
            "kcmp",
            "sysv_shm",
            "message_queue",
        ] {
            assert_eq!(answer.tries[name], "open", "{name}: {:?}", answer.tries);
        }
        assert_eq!((answer.forked, answer.daemon), (4, true));
        assert_eq!(
            host.reached(),
            [
                "tcp",
                "udp",
                "unix_abstract",
                "unix_path",
                "write_source",
                "write_folder"
            ]
        );
        // The second call finds what the first one left.
        assert!(
            scratch
                .join(format!("caliber-probe-{}-0", std::process::id()))
                .exists()
        );
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }
}
