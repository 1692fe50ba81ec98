//! The supervisor: one thread that makes every child, listens to all of them, and ends them in time.
//!
//! Children are killed when the thread that made them ends, so one thread makes them all. It never blocks but in the wait
//! for events, and it knows nothing of async runtimes: a job comes with what is to be done with its answer.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{ExecutionMode, Exit, Phase, RunStatus};
use caliber_core::{Error, ErrorKind};
use rustix::io::Errno;

use super::cgroup::{ControlGroups, Group};
use super::interpreter::Interpreter;
use super::layers::Layers;
use super::spawn::{Child, SpawnFailure, Stage};
use crate::settings::SandboxSettings;
pub(crate) use answer::Answer;
use poller::{Part, Poller, Token};
pub(crate) use run::{Job, reflection};
use run::{Owner, Run};
use zygote::{Key, Zygote};

mod answer;
mod begin;
mod calls;
mod channel;
mod ends;
mod kept;
mod poller;
mod run;
mod wire;
mod zygote;

/// What the supervisor is told.
pub(crate) enum Command {
    Run(Box<Job>),
    /// Nobody waits for the job any longer.
    Cancel(u64),
    /// To end everything, and then itself.
    Close,
}

/// What the supervisor and its callers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: SandboxSettings,
    pub(crate) layers: Layers,
    pub(crate) interpreter: Interpreter,
    /// The compiled bootstrap.
    pub(crate) code: Arc<[u8]>,
    commands: Mutex<Commands>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Commands {
    pending: VecDeque<Command>,
    /// Set when the supervisor has ended or is about to: nothing is taken in any more.
    closed: bool,
}

impl std::fmt::Debug for Commands {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Commands")
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(
        settings: SandboxSettings,
        layers: Layers,
        interpreter: Interpreter,
        code: Arc<[u8]>,
    ) -> Result<Self, Errno> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        Ok(Self {
            settings,
            layers,
            interpreter,
            code,
            commands: Mutex::default(),
            wake: rustix::event::eventfd(0, flags)?,
        })
    }

    /// Hands a command over; gives it back when nothing is taken in any more.
    pub(crate) fn send(&self, command: Command) -> Result<(), Command> {
        {
            let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
            if commands.closed {
                return Err(command);
            }
            commands.closed = matches!(command, Command::Close);
            commands.pending.push_back(command);
        }
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Takes nothing in any more, and answers what nobody took.
    pub(crate) fn end(&self) {
        let pending = {
            let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
            commands.closed = true;
            std::mem::take(&mut commands.pending)
        };
        for command in pending {
            if let Command::Run(job) = command {
                (job.reply)(Err(closed()));
            }
        }
    }

    fn take(&self) -> VecDeque<Command> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut commands.pending)
    }
}

/// A process whose call has been answered and which is about to end.
#[derive(Debug)]
struct Leaving {
    owner: Owner,
    _group: Option<Group>,
    id: Option<u32>,
    holds_place: bool,
}

/// Ids that no running process has.
#[derive(Debug)]
struct Ids {
    first: u32,
    used: std::collections::BTreeSet<u32>,
    count: u32,
    next: u32,
}

impl Ids {
    fn take(&mut self) -> Option<u32> {
        // In turn, so that what an id left behind is not met by the next process.
        for _ in 0..self.count {
            let number = self.next % self.count.max(1);
            self.next = self.next.wrapping_add(1);
            if self.used.insert(number) {
                return self.first.checked_add(number);
            }
        }
        None
    }

    /// Whether a call may not find what it needs: one for a process with its module, and one for a process of its own where
    /// that cannot be forked.
    fn are_short(&self) -> bool {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        count.saturating_sub(self.used.len()) < count.min(2)
    }

    fn give_back(&mut self, id: Option<u32>) {
        if let Some(number) = id.and_then(|id| id.checked_sub(self.first)) {
            self.used.remove(&number);
        }
    }
}

/// What is known of the calls of a key.
#[derive(Debug)]
struct Habit {
    calls: u64,
    last: Instant,
    /// Why its processes are not forked, where they are not.
    not_forked: Option<NotForked>,
}

impl Habit {
    /// Whether it still tells of the next call. What was seen long ago may have been an accident.
    fn is_recent(&self, now: Instant, idle: Duration) -> bool {
        now.saturating_duration_since(self.last) <= idle
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotForked {
    /// The module starts threads or opens files.
    Module,
    /// The kernel makes no namespaces for calls.
    Kernel,
}

/// Keys whose habits are remembered.
const HABITS: usize = 4096;

pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    poller: Poller,
    groups: Option<ControlGroups>,
    null: OwnedFd,
    /// Where messages of zygotes are received.
    message: Vec<u8>,
    queue: VecDeque<Job>,
    runs: HashMap<u64, Run>,
    zygotes: HashMap<u64, Zygote>,
    by_key: HashMap<Key, u64>,
    /// Processes that wait for their call.
    standby: HashMap<Key, VecDeque<u64>>,
    habits: HashMap<Key, Habit>,
    /// What oneshots of a key are made of; only of keys whose processes are not forked.
    programs: HashMap<Key, (Arc<caliber_core::sandbox::PinnedProgram>, crate::settings::Limits)>,
    leaving: HashMap<u64, Leaving>,
    ids: Ids,
    /// Jobs that hold a place.
    active: usize,
    last_id: u64,
    closing: bool,
}

impl Supervisor {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self, Errno> {
        let poller = Poller::new(&shared.wake)?;
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        let groups = if shared.layers.cgroups {
            ControlGroups::find(shared.settings.control_group.as_deref()).groups
        } else {
            None
        };
        let groups = if shared.layers.namespaces {
            groups.and_then(ControlGroups::for_namespaces)
        } else {
            groups
        };
        let ids = Ids {
            first: shared.settings.first_uid,
            used: std::collections::BTreeSet::new(),
            count: shared.settings.uid_count,
            // Anywhere: engines of other processes may share the range, and the kernel counts processes by id.
            next: super::protocol::new_nonce()
                .iter()
                .fold(0, |number, byte| number << 3 ^ u32::from(*byte)),
        };
        Ok(Self {
            shared,
            poller,
            groups,
            null,
            message: vec![0; MESSAGE],
            queue: VecDeque::new(),
            runs: HashMap::new(),
            zygotes: HashMap::new(),
            by_key: HashMap::new(),
            standby: HashMap::new(),
            habits: HashMap::new(),
            programs: HashMap::new(),
            leaving: HashMap::new(),
            ids,
            active: 0,
            last_id: 0,
            closing: false,
        })
    }

    /// Serves until it is closed and every child has ended.
    pub(crate) fn serve(mut self) {
        loop {
            for command in self.shared.take() {
                match command {
                    Command::Run(job) => self.queue_job(*job),
                    Command::Cancel(job) => self.cancel(job),
                    Command::Close => self.close(),
                }
            }
            self.expire();
            self.begin_queued();
            if self.closing && self.runs.is_empty() && self.zygotes.is_empty() && self.leaving.is_empty() {
                return;
            }
            let until = self.next_instant();
            for token in self.poller.wait(until) {
                self.handle(token);
            }
        }
    }

    fn handle(&mut self, token: Token) {
        let Token { id, part } = token;
        if self.runs.contains_key(&id) {
            match part {
                Part::Status => self.run_started(id),
                Part::Channel => self.run_channel(id),
                Part::Stdout | Part::Stderr => self.run_output(id, part),
                Part::Process => self.run_process_ended(id),
            }
        } else if self.zygotes.contains_key(&id) {
            match part {
                Part::Status => self.zygote_started(id),
                Part::Channel => self.zygote_control(id),
                Part::Stdout | Part::Stderr => self.zygote_output(id, part),
                Part::Process => self.zygote_ended(id),
            }
        } else if part == Part::Process {
            self.left(id);
        }
    }

    fn new_id(&mut self) -> u64 {
        // From one on: zero and one are the supervisor's own tokens, and part of every id is its part.
        self.last_id += 1;
        self.last_id
    }

    fn queue_job(&mut self, job: Job) {
        if self.closing {
            (job.reply)(Err(closed()));
        } else if self.queue.len() >= self.shared.settings.queue + self.free_places() {
            let error = Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{} runs wait for a place already; try again later",
                    self.queue.len()
                ),
            );
            (job.reply)(Err(error.with_reason(ReasonCode::SandboxBusy)));
        } else {
            self.queue.push_back(job);
        }
    }

    fn free_places(&self) -> usize {
        self.shared.settings.places.max(1).saturating_sub(self.active)
    }

    fn begin_queued(&mut self) {
        while self.free_places() > 0 && !self.queue.is_empty() && !self.waits_for_id() {
            let Some(job) = self.queue.pop_front() else {
                return;
            };
            self.active += 1;
            self.begin(job);
        }
    }

    fn cancel(&mut self, job: u64) {
        if let Some(at) = self.queue.iter().position(|queued| queued.id == job) {
            self.queue.remove(at);
            return;
        }
        for zygote in self.zygotes.values_mut() {
            if let Some(at) = zygote.waiting.iter().position(|waiting| waiting.id == job) {
                zygote.waiting.remove(at);
                self.active = self.active.saturating_sub(1);
                return;
            }
        }
        let run = self
            .runs
            .iter()
            .find(|(_, run)| run.job.as_ref().is_some_and(|held| held.id == job))
            .map(|(id, _)| *id);
        if let Some(run) = run {
            self.finish(run, Err(closed()));
        }
    }

    fn next_instant(&self) -> Option<Instant> {
        let queued = self.queue.iter().map(|job| job.deadline);
        let runs = self.runs.values().filter_map(Run::wakes);
        let settings = &self.shared.settings;
        let zygotes = self.zygotes.iter().flat_map(|(id, zygote)| {
            let waiting = zygote.waiting.iter().map(Job::start_expires);
            let own = match zygote.state {
                // What is in use does not end for being idle, however long a call takes.
                zygote::State::Ready if self.is_in_use(*id, zygote) => None,
                zygote::State::Ready => Some(zygote.last_used + settings.zygote_idle),
                _ => Some(zygote.import_until),
            };
            waiting.chain(own)
        });
        let standby = self
            .runs
            .values()
            .filter(|run| run.job.is_none())
            .map(|run| run.since + settings.zygote_idle);
        queued.chain(runs).chain(zygotes).chain(standby).min()
    }

    /// Ends what has had its time.
    fn expire(&mut self) {
        let now = Instant::now();
        let unenforced = self.shared.layers.unenforced.clone();
        let expired = |status, mode| run::without_process(status, mode, &unenforced);
        while let Some(at) = self.queue.iter().position(|job| job.deadline <= now) {
            if let Some(job) = self.queue.remove(at) {
                let status = RunStatus::DeadlineExceeded { phase: Phase::Queue };
                (job.reply)(Ok(expired(status, ExecutionMode::Cold)));
            }
        }
        for zygote in self.zygotes.values_mut() {
            let phase = if zygote.state == zygote::State::Made {
                Phase::Spawn
            } else {
                Phase::Import
            };
            while let Some(at) = zygote.waiting.iter().position(|job| job.start_expires() <= now) {
                if let Some(job) = zygote.waiting.remove(at) {
                    self.active = self.active.saturating_sub(1);
                    let status = RunStatus::DeadlineExceeded { phase };
                    (job.reply)(Ok(expired(status, ExecutionMode::Zygote)));
                }
            }
        }
        let overdue: Vec<u64> = self
            .runs
            .iter()
            .filter(|(_, run)| run.wakes().is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in overdue {
            self.run_is_overdue(id);
        }
        self.expire_idle(now);
    }

    fn close(&mut self) {
        self.closing = true;
        for job in std::mem::take(&mut self.queue) {
            (job.reply)(Err(closed()));
        }
        let runs: Vec<u64> = self.runs.keys().copied().collect();
        for id in runs {
            self.finish(id, Err(closed()));
        }
        let zygotes: Vec<u64> = self.zygotes.keys().copied().collect();
        for id in zygotes {
            self.end_zygote(id, &|| Err(closed()));
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the sandbox was closed").with_reason(ReasonCode::SandboxUnavailable)
}

/// The error of a child that could not be set up.
fn failed(failure: &SpawnFailure) -> Error {
    Error::new(ErrorKind::Unavailable, failure.to_string()).with_reason(ReasonCode::SandboxFailed)
}

fn system_failed(errno: Errno) -> Error {
    failed(&SpawnFailure {
        stage: Stage::Prepare,
        errno,
        detail: None,
    })
}

/// How a child of ours ended.
fn exit_of(child: &mut Child) -> Exit {
    match child.collect() {
        Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => Exit::Unknown,
        },
        Ok(None) | Err(_) => Exit::Unknown,
    }
}

/// The longest message of a zygote, in bytes.
const MESSAGE: usize = 64 << 10;

/// How long a process that has given its answer may hold its channel open.
const SETTLE: Duration = Duration::from_millis(250);
