//! What this machine offers for containing children, found out by trying, and told to operators.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use caliber_core::process::ContainmentMeasure;
use caliber_core::text::shown;

use super::cgroup::Group;
use super::guard;
use super::program::{ThreadMeasures, confine_thread, find_tool};
use super::{LauncherSettings, MARKER};

/// Each means that may be missing, or why it is: a text for people.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) thread: ThreadMeasures,
    pub(super) setpriv: Result<PathBuf, String>,
    pub(super) setsid: Result<PathBuf, String>,
    pub(super) cgroup: Result<Group, String>,
    /// The program that a child waits in until it is in its control group.
    pub(super) gate: Result<PathBuf, String>,
    pub(super) guard_shell: Result<PathBuf, String>,
    pub(super) processes: Result<(), String>,
}

impl Probe {
    /// Tries everything out. Blocks for some milliseconds.
    pub(super) fn new(settings: &LauncherSettings, instance: &str) -> Self {
        let new_privileges = settings.new_privileges;
        let thread = std::thread::spawn(move || confine_thread(new_privileges))
            .join()
            .unwrap_or_else(|_| ThreadMeasures {
                umask: Err("the trial failed".into()),
                no_new_privileges: Err("the trial failed".into()),
            });
        let tool = |name| find_tool(name, &settings.tool_path);
        let when = |wanted: bool| match wanted {
            true => Ok(()),
            false => Err("the settings switch it off".to_owned()),
        };
        Self {
            thread,
            setpriv: when(settings.parent_death_signal)
                .and_then(|()| tool("setpriv"))
                .and_then(|setpriv| {
                    // Older ones, and those of some small distributions, lack the option.
                    let trial = [setpriv.as_os_str(), "--version".as_ref()];
                    works(&setpriv, &["--pdeathsig", "KILL"], trial)
                }),
            setsid: tool("setsid"),
            cgroup: when(settings.cgroup).and_then(|()| Group::create(instance)),
            gate: when(settings.cgroup)
                .and_then(|()| tool("flock"))
                .and_then(|flock| {
                    let trial = [flock.as_os_str(), "--version".as_ref()];
                    works(&flock, &["--no-fork", "--shared", "--nonblock", "/"], trial)
                }),
            guard_shell: when(settings.guard)
                .and_then(|()| tool("grep"))
                .and_then(|_| tool("sh")),
            processes: std::fs::read("/proc/self/environ")
                .map(|_| ())
                .map_err(|error| format!("the list of processes cannot be read: {error}")),
        }
    }

    /// Every measure, in force or not, and what it leaves open.
    pub(super) fn containment(
        &self,
        settings: &LauncherSettings,
        guard: &guard::State,
    ) -> Vec<ContainmentMeasure> {
        let guard = match guard {
            guard::State::Idle => self.guard_shell.as_ref().map(|_| ()).map_err(String::clone),
            guard::State::Running(guard) if guard.has_ended() => {
                Err("the guard process has ended; the next start brings a new one".into())
            }
            guard::State::Running(_) => Ok(()),
            guard::State::Failed(problem) => Err(problem.clone()),
        };
        let session = match &self.setsid {
            Ok(_) => "in a session of its own, away from any terminal",
            Err(_) => "without `setsid` it stays in the session of this process and can reach its terminal",
        };
        let group = match &self.gate {
            Ok(_) => {
                "holds every descendant from the child's first instruction on; one that runs as root can leave it"
            }
            Err(_) => {
                "holds descendants, but without `flock --no-fork` not those of a child's very first moments; one \
                 that runs as root can leave it"
            }
        };
        let limit = format!("{} children at once", settings.children);
        let sweep = format!(
            "descendants are found by `{MARKER}` in their environment and killed at the end; one that starts a \
             program with an emptied environment, or hides its memory, is found only by its group"
        );
        vec![
            measure("environment", Ok(()), "built from nothing for each child"),
            measure(
                "private_directory",
                Ok(()),
                "fresh, mode 0700, removed at the end; its size is not bounded",
            ),
            measure("process_group", Ok(()), session),
            measure("child_limit", Ok(()), &limit),
            measure(
                "no_inherited_descriptors",
                no_leaking_descriptors(),
                "as of now; a descriptor that another thread opens without close-on-exec during a start is inherited",
            ),
            measure(
                "umask",
                state(&self.thread.umask),
                "files of the child are its user's alone",
            ),
            measure(
                "no_new_privileges",
                state(&self.thread.no_new_privileges),
                "set-user-ID programs give nothing",
            ),
            measure(
                "parent_death_signal",
                state(&self.setpriv),
                "the child dies with this process; its own children are left to the guard",
            ),
            measure("descendant_sweep", state(&self.processes), &sweep),
            measure("cgroup", state(&self.cgroup), group),
            measure(
                "guard",
                guard,
                "ends children and descendants when this process was killed; starts with the first child, and \
                 can be killed by a child, which runs as the same user",
            ),
            measure(
                "isolation",
                Err(String::new()),
                "children read and write what this user may, see other processes and reach the network, and their \
                 memory and processor time are not bounded; only a sandbox launcher isolates",
            ),
        ]
    }
}

/// Whether `tool` with `options` runs `program`; if so, the tool.
fn works(tool: &Path, options: &[&str], program: [&OsStr; 2]) -> Result<PathBuf, String> {
    let trial = Command::new(tool)
        .args(options)
        .args(program)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match trial {
        Ok(status) if status.success() => Ok(tool.to_owned()),
        _ => Err(format!(
            "{} here does not work with {}",
            shown(&tool.to_string_lossy()),
            options.join(" ")
        )),
    }
}

fn state<T>(outcome: &Result<T, String>) -> Result<(), String> {
    outcome.as_ref().map(|_| ()).map_err(String::clone)
}

/// `note` says what it does and what it leaves open; why it is not in force comes before that.
fn measure(name: &str, outcome: Result<(), String>, note: &str) -> ContainmentMeasure {
    ContainmentMeasure {
        measure: name.to_owned(),
        enforced: outcome.is_ok(),
        note: match outcome {
            Err(why) if !why.is_empty() => format!("{why} (otherwise: {note})"),
            _ => note.to_owned(),
        },
    }
}

/// Whether this process holds no descriptor, beyond the three standard ones, that a child would inherit. The kernel
/// shows the flags of each in octal in `/proc/self/fdinfo` (`proc(5)`).
fn no_leaking_descriptors() -> Result<(), String> {
    const CLOSE_ON_EXEC: u32 = 0o2_000_000;
    let descriptors = std::fs::read_dir("/proc/self/fdinfo")
        .map_err(|error| format!("the descriptors of this process cannot be listed: {error}"))?;
    let mut leaking: Vec<u32> = descriptors
        .flatten()
        .filter_map(|entry| {
            let number: u32 = entry.file_name().to_str()?.parse().ok()?;
            let text = std::fs::read_to_string(entry.path()).ok()?;
            let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
            let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
            (number > 2 && flags & CLOSE_ON_EXEC == 0).then_some(number)
        })
        .collect();
    if leaking.is_empty() {
        return Ok(());
    }
    leaking.sort_unstable();
    let count = leaking.len();
    let numbers = leaking
        .iter()
        .take(8)
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    Err(format!(
        "{count} descriptors of this process are open without close-on-exec and are inherited ({numbers})"
    ))
}
