//! What holds for servers, found out by starting a program as a server is started and looking at it from outside.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::process::{ContainmentMeasure, Launch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::child::{self, Begun};
use super::{LauncherSettings, ServerProfile, Shared};
use crate::linux::landlock;

/// The program of the trial: it tells that it cannot see a file, and then waits for its input to end.
const PROGRAM: &str = "/bin/cat";
/// How long the trial may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Files and folders of every host that a server must not see unless its profile shows them.
const CANARIES: [&str; 5] = ["/etc/passwd", "/etc/group", "/etc/hostname", "/root", "/boot"];

/// What was seen of the program of the trial.
struct Seen {
    /// The lines of its `/proc/…/status`.
    status: BTreeMap<String, String>,
    /// The namespaces that are not ours.
    own_namespaces: Vec<&'static str>,
    /// Its network interfaces.
    interfaces: Vec<String>,
    /// Whether it could see the file of the host.
    sees_host: bool,
    /// How many processes its user may have.
    processes: Option<u64>,
}

/// Every measure, in force or not, and what it leaves open.
pub(super) fn try_out(shared: &Arc<Shared>) -> Vec<ContainmentMeasure> {
    let trying = shared.clone();
    // The child is tied to the thread that starts it.
    let seen = std::thread::Builder::new()
        .name("caliber-trial".into())
        .spawn(move || look(&trying))
        .map_err(|error| format!("no thread could be started: {error}"))
        .and_then(|thread| thread.join().unwrap_or_else(|_| Err("the trial failed".into())));
    report(shared, &seen)
}

fn look(shared: &Arc<Shared>) -> Result<Seen, String> {
    let canary =
        canary(&shared.settings.profile).ok_or("the profile of servers shows everything there is")?;
    let launch = Launch {
        executable: PROGRAM.into(),
        args: vec!["--".into(), canary.into(), "-".into()],
        env: BTreeMap::new(),
    };
    let begun = child::begin(shared, &launch).map_err(|error| {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            text = format!("{text}: {inner}");
            source = inner.source();
        }
        text
    })?;
    let sees_host = !says_that_it_sees_nothing(&begun.stderr, canary)?;
    let process = program_of(&begun).ok_or("the program of the trial was not found")?;
    let folder = Path::new("/proc").join(process.to_string());
    let read = |name: &str| {
        fs::read_to_string(folder.join(name))
            .map_err(|error| format!("the trial cannot be looked at: {name}: {error}"))
    };
    let status = read("status")?
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect();
    let interfaces = read("net/dev")?
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_owned())
        .collect();
    let mut own_namespaces = Vec::new();
    for name in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let of = |process: &Path| fs::read_link(process.join("ns").join(name));
        let theirs =
            of(&folder).map_err(|error| format!("the trial cannot be looked at: {name}: {error}"))?;
        if of(Path::new("/proc/self")).ok() != Some(theirs) {
            own_namespaces.push(name);
        }
    }
    // In proc(5): name, soft limit, hard limit, unit.
    let processes = read("limits")?
        .lines()
        .find_map(|line| line.strip_prefix("Max processes"))
        .and_then(|line| line.split_whitespace().next()?.parse().ok());
    Ok(Seen {
        status,
        own_namespaces,
        interfaces,
        sees_host,
        processes,
    })
}

/// Something that is there and that the profile does not show.
fn canary(profile: &ServerProfile) -> Option<&'static str> {
    let shown = || profile.readable.iter().chain(&profile.writable);
    CANARIES.into_iter().find(|canary| {
        let path = Path::new(canary);
        path.exists() && !shown().any(|shown| path.starts_with(shown) || shown.starts_with(path))
    })
}

/// Waits for the line that tells that the file of the host is not there.
fn says_that_it_sees_nothing(stderr: &OwnedFd, canary: &str) -> Result<bool, String> {
    let text = |error: std::io::Error| format!("the program of the trial cannot be read: {error}");
    let until = Instant::now() + LIMIT;
    let mut reader = BufReader::new(File::from(stderr.try_clone().map_err(text)?).take(4096));
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).map_err(|_| "the time of the trial".to_owned())?;
    let ready = poll(&mut [PollFd::new(stderr, PollFlags::IN)], Some(&timeout)).unwrap_or(0);
    if ready == 0 {
        return Ok(false);
    }
    let mut line = String::new();
    reader.read_line(&mut line).map_err(text)?;
    // Without a language in its environment it speaks that of the C library.
    Ok(line.contains(canary) && (line.contains("No such file") || line.contains("Permission denied")))
}

/// The second process of the namespace: the child of the one that we started.
fn program_of(begun: &Begun) -> Option<u32> {
    let first = begun.child.pid().as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children"));
    match children {
        Ok(children) => children.split_whitespace().next()?.parse().ok(),
        // A kernel without that file.
        Err(_) => fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let process: u32 = entry.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(PathBuf::from(format!("/proc/{process}/status"))).ok()?;
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
            (parent.trim() == first.to_string()).then_some(process)
        }),
    }
}

fn report(shared: &Shared, seen: &Result<Seen, String>) -> Vec<ContainmentMeasure> {
    let settings = &shared.settings;
    let check = |holds: fn(&Seen) -> bool, otherwise: &str| match seen {
        Ok(seen) if holds(seen) => Ok(()),
        Ok(_) => Err(otherwise.to_owned()),
        Err(why) => Err(why.clone()),
    };
    let has = |name: &'static str| match seen {
        Ok(seen) if seen.own_namespaces.contains(&name) => Ok(()),
        Ok(_) => Err("the trial shared it with the host".to_owned()),
        Err(why) => Err(why.clone()),
    };
    let is = |key: &str, wanted: &str| match seen {
        Ok(seen) if seen.status.get(key).is_some_and(|value| value == wanted) => Ok(()),
        Ok(seen) => Err(format!("the trial had {key} {:?}", seen.status.get(key))),
        Err(why) => Err(why.clone()),
    };
    let landlock = landlock::version();
    let memory = shared.groups().memory.as_ref();
    let processes = shared.groups().processes.as_ref();
    let limits = settings.profile.limits;
    vec![
        measure(
            "process_namespace",
            has("pid"),
            "it sees its own processes only, and the kernel ends them all at its end, at a stop, and when this process \
             ends, killed or not",
        ),
        measure(
            "private_file_tree",
            has("mnt").and_then(|()| check(|seen| !seen.sees_host, "the trial saw a file of the host")),
            &format!(
                "programs and libraries of the system, and {} folders of its profile, {} of them open to changes",
                settings.profile.readable.len() + settings.profile.writable.len(),
                settings.profile.writable.len()
            ),
        ),
        measure(
            "private_directory",
            has("mnt"),
            &format!(
                "fresh, in memory, at most {} bytes, gone at its end; `/tmp` and `/dev/shm` likewise",
                limits.scratch_bytes
            ),
        ),
        measure(
            "network_namespace",
            network(settings, seen),
            &network_note(settings),
        ),
        measure(
            "ipc_namespace",
            has("ipc"),
            "no shared memory or queues of other processes",
        ),
        measure(
            "landlock",
            match (seen, landlock) {
                (Ok(_), Some(_)) => Ok(()),
                (Err(why), _) => Err(why.clone()),
                (Ok(_), None) => Err("the kernel has none".to_owned()),
            },
            &format!(
                "a second lock on the same files and on connections, version {}",
                landlock.unwrap_or(0)
            ),
        ),
        measure(
            "system_call_filter",
            is("Seccomp", "2"),
            "a list of what servers need; the rest of the kernel is out of reach, what is on the list is not",
        ),
        measure(
            "no_new_privileges",
            is("NoNewPrivs", "1"),
            "set-user-ID programs give nothing",
        ),
        measure(
            "no_capabilities",
            is("CapEff", NO_CAPABILITIES).and_then(|()| is("CapPrm", NO_CAPABILITIES)),
            "it has no right of root's",
        ),
        measure(
            "own_user",
            own_user(settings, seen),
            "it owns nothing of the host and can signal nobody else's processes",
        ),
        measure(
            "environment",
            seen.as_ref().map(|_| ()).map_err(String::clone),
            "built from nothing for each child",
        ),
        measure(
            "no_inherited_descriptors",
            seen.as_ref().map(|_| ()).map_err(String::clone),
            "all but its three pipes are closed",
        ),
        measure(
            "child_limit",
            Ok(()),
            &format!("{} children at once", settings.children),
        ),
        measure(
            "process_limit",
            seen.as_ref()
                .map_err(String::clone)
                .and_then(|seen| match seen.processes {
                    Some(most) if most <= limits.processes => Ok(()),
                    most => Err(format!("the trial had the limit {most:?}")),
                }),
            &match processes {
                Ok(by) => format!("{} processes and threads, by {by}", limits.processes),
                Err(_) => format!(
                    "{} processes and threads, by a limit of its user",
                    limits.processes
                ),
            },
        ),
        measure(
            "memory_limit",
            memory
                .map(|_| ())
                .map_err(|gap| format!("step {}: {}", gap.stage, gap.remedy)),
            &match memory {
                Ok(by) => format!(
                    "{} bytes for all processes of a server together, by {by}",
                    limits.memory_bytes
                ),
                Err(_) => "the memory of a server".to_owned(),
            },
        ),
    ]
}

/// The mask of no capability, as `/proc` shows it.
const NO_CAPABILITIES: &str = "0000000000000000";

fn network(settings: &LauncherSettings, seen: &Result<Seen, String>) -> Result<(), String> {
    let seen = seen.as_ref().map_err(String::clone)?;
    let shared = settings
        .profiles
        .iter()
        .filter(|(_, profile)| profile.network)
        .count();
    if settings.profile.network {
        return Err("the settings give servers the host's network".into());
    }
    if !seen.own_namespaces.contains(&"net") || seen.interfaces.iter().any(|name| name != "lo") {
        return Err(format!(
            "the trial saw the interfaces {}",
            seen.interfaces.join(", ")
        ));
    }
    match shared {
        0 => Ok(()),
        some => Err(format!(
            "{some} profiles give their servers the host's network; it holds for all others"
        )),
    }
}

fn network_note(settings: &LauncherSettings) -> String {
    if settings.profile.network {
        "a network of its own with nothing in it; a server's profile can ask for it".into()
    } else {
        "a network of its own with nothing in it".into()
    }
}

fn own_user(settings: &LauncherSettings, seen: &Result<Seen, String>) -> Result<(), String> {
    let seen = seen.as_ref().map_err(String::clone)?;
    let ours = rustix::process::geteuid();
    let theirs = seen
        .status
        .get("Uid")
        .and_then(|ids| ids.split_whitespace().next());
    let fixed = settings
        .profiles
        .iter()
        .filter(|(_, profile)| profile.user.is_some())
        .count();
    if settings.profile.user.is_some() {
        return Err("the settings name the user of servers".into());
    }
    if theirs == Some(ours.as_raw().to_string().as_str()) {
        return Err("servers run as the user of this process; only root can give them another one".into());
    }
    match fixed {
        0 => Ok(()),
        some => Err(format!(
            "{some} profiles name the user of their servers; it holds for all others"
        )),
    }
}

/// `note` says what it does and what it leaves open; why it is not in force comes before that.
fn measure(name: &str, outcome: Result<(), String>, note: &str) -> ContainmentMeasure {
    ContainmentMeasure {
        measure: name.to_owned(),
        enforced: outcome.is_ok(),
        note: match outcome {
            Err(why) => format!("{why} (otherwise: {note})"),
            Ok(()) => note.to_owned(),
        },
    }
}
