//! The life of one child: its thread here, and the handle of whoever had it started.

use std::fmt;
use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use caliber_core::process::{Launch, ProcessHandle};
use caliber_core::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::time::Instant;

use super::cgroup::ChildGroup;
use super::directory::PrivateDirectory;
use super::input::Input;
use super::program::{self, Gate};
use super::{Shared, descendants};

/// How long killing may take. A process is beyond it only while the kernel holds it, for instance in a dead file
/// system; then it is reported and left alone.
const KILL_TIME: Duration = Duration::from_secs(5);

/// How often the thread looks whether what a child left behind has ended.
const PAUSE: Duration = Duration::from_millis(20);

/// A child that runs.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
    pub(super) life: Life,
}

/// Whoever holds this wants the child to live; dropping it kills the child and its descendants.
#[derive(Debug)]
pub(super) struct Life {
    process: Arc<Process>,
    phase: watch::Receiver<Phase>,
}

#[derive(Clone, Debug)]
enum Phase {
    Running,
    /// The child itself has ended, in this way.
    Ended(String),
    /// No descendant is left, and nothing of its directory.
    Gone(String),
}

#[derive(Debug)]
struct Process {
    pid: Pid,
    /// Whether `pid` is still the child's: it is until the child has been reaped.
    is_ours: Mutex<bool>,
    /// Nobody waits for a polite end.
    hurried: AtomicBool,
    group: Option<ChildGroup>,
}

impl Process {
    /// Signals the child and its group.
    fn signal(&self, signal: Signal) {
        let is_ours = self.lock();
        // In its first moments the child is in the group of this process; then only it is there to be signalled.
        if *is_ours && kill_process_group(self.pid, signal).is_err() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Kills all that can be reached without looking for it. Does not block.
    fn kill(&self) {
        self.hurried.store(true, Ordering::Relaxed);
        self.signal(Signal::KILL);
        if let Some(group) = &self.group {
            group.kill();
        }
    }

    fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_ours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the child has ended. It stays a zombie, so that its number is not given to another process.
    fn wait(&self) -> String {
        loop {
            match waitid(
                WaitId::Pid(self.pid),
                WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
            ) {
                Ok(Some(status)) => {
                    return match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => format!("exit status: {code}"),
                        (None, Some(signal)) => format!("killed by signal {signal}"),
                        (None, None) => "ended in an unknown way".into(),
                    };
                }
                Ok(None) | Err(Errno::INTR) => {}
                Err(_) => {
                    // The program that embeds us reaps every child itself, or ignores their end.
                    *self.lock() = false;
                    return "ended; another part of this program took its exit status".into();
                }
            }
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// The thread of a child: starts it, waits for it, clears up after it. `place` is given back when all is gone.
pub(super) fn keep(
    shared: Arc<Shared>,
    place: OwnedSemaphorePermit,
    launch: Launch,
    reply: oneshot::Sender<Result<Started>>,
) {
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    let marker = shared.marker(number);
    let begun = begin(&shared, &launch, number, &marker);
    // Its secrets are with the child now.
    drop(launch);
    let (mut child, directory, group) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            drop(place);
            let _ = reply.send(Err(error));
            return;
        }
    };
    let process = Arc::new(Process {
        pid: Pid::from_child(&child),
        is_ours: Mutex::new(true),
        hurried: AtomicBool::new(false),
        group,
    });
    let (phase, seen) = watch::channel(Phase::Running);
    let life = Life {
        process: process.clone(),
        phase: seen,
    };
    let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // Where the answer finds nobody, the life in it is dropped and the child with it.
    let _ = match streams {
        (Some(stdin), Some(stdout), Some(stderr)) => reply.send(Ok(Started {
            stdin,
            stdout,
            stderr,
            life,
        })),
        _ => reply.send(Err(Error::internal("a child was started without its pipes"))),
    };

    let status = process.wait();
    phase.send_replace(Phase::Ended(status.clone()));
    clear_up(&process, &marker, shared.settings.term_grace);
    {
        let mut is_ours = process.lock();
        // Already a zombie, so this does not block; it fails where another part of the program was faster.
        if *is_ours {
            let _ = child.wait();
        }
        *is_ours = false;
    }
    if let Some(group) = &process.group {
        group.remove();
    }
    drop(directory);
    drop(place);
    drop(shared);
    phase.send_replace(Phase::Gone(status));
}

type Begun = (std::process::Child, PrivateDirectory, Option<ChildGroup>);

fn begin(shared: &Shared, launch: &Launch, number: u64, marker: &str) -> Result<Begun> {
    let probe = shared.probe();
    program::confine_thread(shared.settings.new_privileges);
    shared.ensure_guard();
    let directory = PrivateDirectory::create(&shared.root(), number).map_err(|error| {
        let text = "no private directory could be made for a child; check the launcher's directory";
        Error::new(ErrorKind::Unavailable, text).with_source(error)
    })?;
    let group = probe.cgroup.as_ref().ok().and_then(|group| {
        let made = group.child(number);
        made.inspect_err(|error| tracing::warn!(%error, "no control group could be made for a child"))
            .ok()
    });
    let gate = match (&group, &probe.gate) {
        (Some(_), Ok(flock)) => Gate::new(flock, directory.path()).ok(),
        _ => None,
    };
    let child = program::start(launch, directory.path(), marker, probe, gate.as_ref())?;
    if let Some(group) = &group
        && let Err(error) = group.add(Pid::from_child(&child))
    {
        // It may have ended already; otherwise the marker and its process group still hold it.
        tracing::debug!(%error, "a child could not be moved into its control group");
    }
    drop(gate);
    Ok((child, directory, group))
}

/// Ends what a child that has ended left behind: politely, unless nobody waits for that, and then surely.
fn clear_up(process: &Process, marker: &str, grace: Duration) {
    let anything_left = || match &process.group {
        Some(group) if group.is_populated() => true,
        _ => descendants::marked(marker).is_ok_and(|found| !found.is_empty()),
    };
    if !process.is_hurried() && anything_left() {
        process.signal(Signal::TERM);
        let started = std::time::Instant::now();
        while !process.is_hurried() && started.elapsed() < grace && anything_left() {
            std::thread::sleep(PAUSE);
        }
    }
    process.kill();
    let group_is_empty = process
        .group
        .as_ref()
        .is_none_or(|group| group.wait_until_empty(KILL_TIME));
    if !descendants::kill_marked(marker, KILL_TIME) || !group_is_empty {
        tracing::warn!(
            pid = process.pid.as_raw_nonzero().get(),
            "descendants of a child could not be ended or could not be looked for"
        );
    }
}

/// What the gateway holds of a child.
pub(super) struct Handle {
    life: Life,
    input: Arc<Input>,
    input_grace: Duration,
    term_grace: Duration,
}

impl Handle {
    pub(super) fn new(life: Life, input: Arc<Input>, input_grace: Duration, term_grace: Duration) -> Self {
        Self {
            life,
            input,
            input_grace,
            term_grace,
        }
    }

    /// Waits until nothing is left of the child, and returns whether that was in time.
    async fn is_gone_by(&mut self, until: Instant) -> bool {
        let gone = self.life.phase.wait_for(|phase| matches!(phase, Phase::Gone(_)));
        // When its thread is gone, so is the child.
        tokio::time::timeout_at(until, gone).await.is_ok()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Handle")
            .field("pid", &self.id())
            .field("phase", &*self.life.phase.borrow())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl ProcessHandle for Handle {
    fn id(&self) -> u32 {
        self.life.process.pid.as_raw_nonzero().get().unsigned_abs()
    }

    async fn wait(&mut self) -> String {
        let ended = self.life.phase.wait_for(|phase| !matches!(phase, Phase::Running));
        match ended.await.as_deref() {
            Ok(Phase::Ended(status) | Phase::Gone(status)) => status.clone(),
            _ => "ended; nobody saw how".into(),
        }
    }

    /// Closes its input, waits, sends `SIGTERM` to its group, waits, kills. Returns after the two graces of the
    /// settings at the latest, and some seconds more if the kernel holds a process that was killed.
    async fn terminate(&mut self) {
        let closed = self.input.close();
        if self.is_gone_by(closed + self.input_grace).await {
            return;
        }
        self.life.process.signal(Signal::TERM);
        if self.is_gone_by(Instant::now() + self.term_grace).await {
            return;
        }
        self.life.process.kill();
        self.is_gone_by(Instant::now() + 2 * KILL_TIME).await;
    }
}
