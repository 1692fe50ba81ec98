//! One process that runs a call, or waits for one.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use caliber_core::sandbox::{
    Captured, ExecutionMode, Guarantee, Phase, PhaseTimes, Reflection, RunOutcome, RunRequest, RunStatus,
    Usage,
};
use caliber_core::{Error, Result};

use super::super::cgroup::Group;
use super::super::layers::Layers;
use super::super::protocol::{FrameReader, Nonce};
use super::super::spawn::{Child, Starting};
use super::answer::{Answer, End};
use super::wire::{Outbound, Stream};
use super::zygote::Key;
use crate::settings::Limits;

/// What is done when a job has its answer.
pub(crate) type Reply = Box<dyn FnOnce(Result<Answer>) + Send>;

/// One call that somebody waits for.
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) request: RunRequest,
    /// Whether the callable is only looked at.
    pub(crate) look: bool,
    pub(crate) deadline: Instant,
    /// Since when it has its place and is being started; set once, also when another process is begun with.
    pub(crate) since: Option<Instant>,
    pub(crate) reply: Reply,
}

impl Job {
    /// When it has waited long enough for a process that takes its call: start-up has a clock of its own.
    pub(super) fn start_expires(&self) -> Instant {
        let grace = self.request.startup_grace;
        self.deadline.checked_add(grace).unwrap_or(self.deadline)
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Job")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Which process a run has.
#[derive(Debug)]
pub(super) enum Owner {
    /// A child of ours between clone and exec.
    Starting(Starting),
    /// A child of ours.
    Child(Child),
    /// A child of a process with the module imported; `None` until that has told its descriptor.
    Forked { zygote: u64, pidfd: Option<OwnedFd> },
}

/// What a process is spoken to with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speech {
    /// The bootstrap: hello, ready, then the call.
    Bootstrap,
    /// The bootstrap, looking only: hello, then the answer.
    Look,
    /// A forked call: hello, then the call.
    Call,
    /// A native program with frames: the call, at once.
    Frames,
    /// A native program with JSON on standard input and output.
    Json,
}

/// How far a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// It is being made.
    Made,
    /// Its restrictions are in place.
    Greeted,
    /// It waits for its call.
    Ready,
    /// It has its call.
    Called,
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) key: Key,
    pub(super) job: Option<Job>,
    pub(super) owner: Owner,
    pub(super) speech: Speech,
    pub(super) mode: ExecutionMode,
    /// Whether it serves further calls.
    pub(super) many: bool,
    pub(super) progress: Progress,
    pub(super) nonce: Nonce,
    pub(super) channel: Option<OwnedFd>,
    pub(super) frames: FrameReader,
    pub(super) outbound: Outbound,
    pub(super) stdout: Stream,
    pub(super) stderr: Stream,
    /// The result of a native program that writes JSON.
    pub(super) value: Vec<u8>,
    /// The one frame that ends a call, when it came.
    pub(super) end: Option<End>,
    /// When a run that has its end is not waited for any longer.
    pub(super) settle_at: Option<Instant>,
    pub(super) group: Option<Group>,
    pub(super) id: Option<u32>,
    pub(super) limits: Limits,
    /// Since when its job is being started; without one, since when it is idle.
    pub(super) since: Instant,
    pub(super) ready: Option<Instant>,
    pub(super) called: Option<Instant>,
    pub(super) cpu_seconds: u64,
}

impl Run {
    /// What it is doing, as its outcome says it.
    pub(super) fn phase(&self) -> Phase {
        match (self.progress, self.speech) {
            (Progress::Made, _) => Phase::Spawn,
            (Progress::Greeted, Speech::Bootstrap | Speech::Look) => Phase::Import,
            (Progress::Ready, Speech::Bootstrap) => Phase::Import,
            (Progress::Greeted | Progress::Ready, _) => Phase::Spawn,
            (Progress::Called, _) => Phase::Run,
        }
    }

    /// Whether it is a process of its own that is kept for a call to come.
    pub(super) fn is_kept(&self) -> bool {
        self.job.is_none() && !matches!(self.owner, Owner::Forked { .. })
    }

    /// When its call ends at the latest.
    ///
    /// Start-up has a clock of its own: as long as it takes, but no longer than the grace, the end moves.
    pub(super) fn expires(&self) -> Option<Instant> {
        let job = self.job.as_ref()?;
        let grace = job.request.startup_grace;
        let spent = match self.called {
            Some(called) => called.saturating_duration_since(self.since).min(grace),
            None => grace,
        };
        let end = job.deadline.checked_add(spent).unwrap_or(job.deadline);
        let timeout = job.request.limits.timeout_ms.map(Duration::from_millis);
        let run_end = self
            .called
            .zip(timeout)
            .and_then(|(called, timeout)| called.checked_add(timeout));
        Some(run_end.map_or(end, |run_end| run_end.min(end)))
    }

    /// The earliest instant at which something is to be done for it.
    pub(super) fn wakes(&self) -> Option<Instant> {
        self.expires().into_iter().chain(self.settle_at).min()
    }

    /// Ends all of its processes. For a forked call that has not been told yet, closing the channel is enough: it ends
    /// itself before it runs anything.
    pub(super) fn kill(&self) {
        let kills_all = match &self.owner {
            Owner::Starting(starting) => {
                starting.child().kill();
                starting.child().is_first_of_namespace()
            }
            Owner::Child(child) => {
                child.kill();
                child.is_first_of_namespace()
            }
            Owner::Forked { pidfd, .. } => {
                if let Some(pidfd) = pidfd {
                    let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
                }
                true
            }
        };
        if let Some(group) = self.group.as_ref().filter(|_| !kills_all) {
            group.kill();
        }
    }

    /// The answer to the call, made once.
    pub(super) fn answer(&mut self, end: End, layers: &Layers, usage: Usage) -> Answer {
        let mut unenforced = layers.unenforced.clone();
        let isolation = Guarantee::CallIsolation;
        // Whatever is required: it was asked for, and the outcome says what it cost.
        if self.mode == ExecutionMode::Persistent && !unenforced.contains(&isolation) {
            unenforced.push(isolation);
        }
        let now = Instant::now();
        let called = self.called.unwrap_or(now);
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Answer {
            end,
            stdout: self.stdout.capture.finish(),
            stderr: self.stderr.capture.finish(),
            mode: self.mode,
            unenforced,
            times: PhaseTimes {
                start_us: micros(called.saturating_duration_since(self.since)),
                run_us: micros(now.saturating_duration_since(called)),
            },
            usage,
        }
    }
}

/// The answer to a call that no process was made for.
pub(super) fn without_process(status: RunStatus, mode: ExecutionMode, unenforced: &[Guarantee]) -> Answer {
    Answer {
        end: status.into(),
        stdout: Captured::default(),
        stderr: Captured::default(),
        mode,
        unenforced: unenforced.to_vec(),
        times: PhaseTimes::default(),
        usage: Usage::default(),
    }
}

/// What the outcome of a look says of the callable.
pub(crate) fn reflection(outcome: RunOutcome) -> Result<Reflection> {
    let failed = |error: String| Reflection {
        error: Some(error),
        ..Reflection::default()
    };
    Ok(match outcome.status {
        RunStatus::Ok { value } => value
            .read()
            .unwrap_or_else(|_| failed("the look at the callable gave no description".into())),
        RunStatus::ToolError { error_type, message } => failed(format!("{error_type}: {message}")),
        RunStatus::NoResult { .. } => failed("the process ended while the module was imported".into()),
        RunStatus::DeadlineExceeded { .. } => {
            return Err(Error::new(
                caliber_core::ErrorKind::Timeout,
                "the callable could not be looked at in time; its module may take long to import",
            ));
        }
        RunStatus::ResultInvalid { problem } | RunStatus::ProtocolViolation { problem } => failed(problem),
        RunStatus::ResultTooLarge { limit } => {
            failed(format!("the description is larger than {limit} bytes"))
        }
        RunStatus::ResourceLimit { .. } => failed("a limit was met while the module was imported".into()),
    })
}
