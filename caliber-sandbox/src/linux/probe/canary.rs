//! A canary: started, asked, and looked at.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use serde::Deserialize;

use super::PATIENCE;
use crate::linux::cgroup::Group;
use crate::linux::confinement::Namespaces;
use crate::linux::spawn::{self, Child, Descriptors, SpawnFailure};

/// How long a process that wants to stay is waited for.
const STAYS_SHORT: Duration = Duration::from_millis(1500);
/// The most that a canary may say, in bytes.
const ANSWER: usize = 64 << 10;

/// What a canary said and what was seen of it.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Answer {
    pub(crate) tries: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) status: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) forked: u64,
    /// Whether it could leave a process behind.
    #[serde(default)]
    pub(crate) daemon: bool,
    /// Whether a process of it was there after its end.
    #[serde(skip)]
    pub(crate) stayed: bool,
    /// Namespaces that are the machine's, though they should not be.
    #[serde(skip)]
    pub(crate) shared: Vec<&'static str>,
}

/// Why there is no answer.
pub(super) enum Problem {
    Spawn(SpawnFailure),
    Other(String),
}

impl Problem {
    pub(super) fn io(error: std::io::Error) -> Self {
        Self::Other(format!("the probe of the sandbox could not be laid out: {error}"))
    }

    fn system(errno: Errno) -> Self {
        Self::Other(format!("the probe of the sandbox could not be watched: {errno}"))
    }

    pub(super) fn text(self) -> String {
        match self {
            Self::Spawn(failure) => failure.to_string(),
            Self::Other(problem) => problem,
        }
    }
}

/// A canary that runs.
pub(super) struct Canary {
    child: Child,
    group: Option<Group>,
    question: OwnedFd,
    answer: OwnedFd,
    complaint: OwnedFd,
}

impl Canary {
    pub(super) fn start(prepared: &Arc<spawn::Prepared>, group: Option<Group>) -> Result<Self, Problem> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(Problem::system);
        let (stdin, question) = pipe()?;
        let (answer, stdout) = pipe()?;
        let (complaint, stderr) = pipe()?;
        let descriptors = Descriptors {
            stdin: stdin.as_fd(),
            stdout: stdout.as_fd(),
            stderr: stderr.as_fd(),
            channel: None,
            cgroups: group.as_ref().map_or(&[], Group::joining),
        };
        let child = spawn::spawn(prepared, descriptors).map_err(Problem::Spawn)?;
        Ok(Self {
            child,
            group,
            question,
            answer,
            complaint,
        })
    }

    /// Asks, waits for the answer and for the end, and looks whether something stays.
    pub(super) fn ask(mut self, question: &[u8], namespaces: Namespaces) -> Result<Answer, Problem> {
        // It waits for the question, so that it can be looked at.
        let pid = self.child.pid().as_raw_nonzero().get();
        let shared = shared_namespaces(pid, namespaces);
        let status = outside_status(pid);
        let end = Instant::now() + PATIENCE;
        let asked = File::from(self.question).write_all(question);
        let text = read_until(&self.answer, end, true)?;
        let exit = loop {
            wait_for(&self.child.pidfd(), end)?;
            match self.child.collect().map_err(Problem::system)? {
                Some(exit) => break Some(exit),
                None if Instant::now() < end => {}
                None => {
                    self.child.kill();
                    break None;
                }
            }
        };
        if let Some(group) = &self.group {
            group.kill();
        }
        let answer: Option<Answer> = serde_json::from_slice(&text).ok();
        let Some(mut answer) = answer else {
            let complaint = read_until(&self.complaint, Instant::now(), false).unwrap_or_default();
            let complaint = String::from_utf8_lossy(&complaint);
            let last = complaint.lines().last().unwrap_or("it said nothing");
            let how = match (exit, asked) {
                (None, _) => "did not end in time".to_owned(),
                (Some(exit), _) => format!("ended with {exit:?}"),
            };
            return Err(Problem::Other(format!(
                "the interpreter does not work inside of the sandbox: it {how}: {}",
                caliber_core::text::shown(last)
            )));
        };
        // Who stays holds the other end.
        let stayed_until = Instant::now() + STAYS_SHORT;
        read_until(&self.answer, stayed_until, false)?;
        answer.stayed = Instant::now() >= stayed_until;
        answer.shared = shared;
        // What the kernel says to us counts for more than what it said in there.
        answer.status.extend(status);
        Ok(answer)
    }
}

/// Reads until the other end is closed (or, with `line`, until a line is whole), or until `end`.
fn read_until(from: &OwnedFd, end: Instant, line: bool) -> Result<Vec<u8>, Problem> {
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    while text.len() < ANSWER && wait_for(&from.as_fd(), end)? {
        match rustix::io::read(from, &mut chunk) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Problem::system(errno)),
        }
        if line && text.last() == Some(&b'\n') {
            break;
        }
    }
    Ok(text)
}

/// Waits until `descriptor` is readable or closed; `false` at the end of the time.
fn wait_for(descriptor: &impl AsFd, end: Instant) -> Result<bool, Problem> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Problem::system(errno)),
        }
    }
}

/// The kernel's account of a living child, seen from outside.
fn outside_status(pid: i32) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let fields = [
        ("Seccomp", "seccomp", 10),
        ("NoNewPrivs", "no_new_privileges", 10),
        ("CapEff", "capabilities", 16),
    ];
    let value = |field: &str, radix| {
        let line = text.lines().find(|line| line.starts_with(&format!("{field}:")))?;
        u64::from_str_radix(line.split_once(':')?.1.trim(), radix).ok()
    };
    fields
        .into_iter()
        .filter_map(|(field, name, radix)| Some((name.to_owned(), value(field, radix)?)))
        .collect()
}

/// The namespaces of a living child that are the machine's although they should be its own, seen from outside.
fn shared_namespaces(pid: i32, wanted: Namespaces) -> Vec<&'static str> {
    let names = [
        ("user", wanted.user),
        ("mnt", wanted.mount),
        ("pid", wanted.pid),
        ("net", wanted.network),
        ("ipc", wanted.ipc),
        ("uts", wanted.uts),
        ("cgroup", wanted.cgroup),
    ];
    names
        .into_iter()
        .filter(|(_, wanted)| *wanted)
        .map(|(name, _)| name)
        .filter(|name| {
            let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/{name}")).ok();
            // What may not be looked at is another user's, and then its namespaces are too.
            matches!((of("self"), of(&pid.to_string())), (Some(ours), Some(its)) if ours == its)
        })
        .collect()
}
