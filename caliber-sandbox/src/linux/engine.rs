//! The engine: runs calls in children, and ends them in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caliber_core::clock::Deadline;
use caliber_core::id::ProjectId;
use caliber_core::json::JsonText;
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{
    ExecutionPreference, PinnedProgram, Program, Reflection, RunLimits, RunOutcome, RunRequest,
};
use caliber_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use super::bootstrap;
use super::interpreter::Interpreter;
use super::layers::Layers;
use super::supervisor::{Answer, Command, Job, Shared, Supervisor, reflection};
use crate::settings::SandboxSettings;

/// The largest result that is checked where it is waited for, in bytes: less than a millisecond. Larger ones are checked on
/// a thread that may block.
const CHECKED_HERE: usize = 64 << 10;

/// Runs pinned programs in children. Cheap to share behind an `Arc`; ends its children when it is dropped.
///
/// It takes requests without a permit: it is no port. The adapter of the port stands in front of it, and with it
/// admission, the reserved places, and the check of what is required.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    supervisor: Option<JoinHandle<()>>,
    /// Set when the supervisor's thread has ended.
    ended: tokio::sync::watch::Receiver<bool>,
    next_job: AtomicU64,
}

impl Engine {
    /// Looks at the interpreter, compiles the bootstrap with it, and starts the supervisor's thread. Blocks for about as
    /// long as an interpreter takes to start.
    ///
    /// # Errors
    ///
    /// `Invalid` for settings that cannot be; `Unavailable` when the thread cannot be started or the interpreter does
    /// not run.
    pub fn start(settings: SandboxSettings, layers: Layers) -> Result<Self> {
        let interpreter = Interpreter::examine(&settings.interpreter).map_err(|problem| {
            Error::new(ErrorKind::Unavailable, problem).with_reason(ReasonCode::SandboxUnavailable)
        })?;
        Self::start_with(settings, layers, interpreter)
    }

    /// As [`start`](Self::start), with an interpreter that was looked at before.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_with(settings: SandboxSettings, layers: Layers, interpreter: Interpreter) -> Result<Self> {
        settings.check(rustix::process::geteuid().is_root())?;
        let unavailable = |error: std::io::Error| {
            Error::new(
                ErrorKind::Unavailable,
                format!("the sandbox could not be started: {error}"),
            )
            .with_reason(ReasonCode::SandboxUnavailable)
        };
        let code = bootstrap::compile(&interpreter.executable)?;
        let shared =
            Shared::new(settings, layers, interpreter, code).map_err(|errno| unavailable(errno.into()))?;
        let shared = Arc::new(shared);
        let supervisor = Supervisor::new(Arc::clone(&shared)).map_err(|errno| unavailable(errno.into()))?;
        let (has_ended, ended) = tokio::sync::watch::channel(false);
        let end = EndOfSupervisor {
            shared: Arc::clone(&shared),
            has_ended,
        };
        let supervisor = std::thread::Builder::new()
            .name("sandbox-supervisor".into())
            .spawn(move || {
                let _end = end;
                supervisor.serve();
            })
            .map_err(unavailable)?;
        Ok(Self {
            shared,
            supervisor: Some(supervisor),
            ended,
            next_job: AtomicU64::new(1),
        })
    }

    /// The settings it was started with.
    pub fn settings(&self) -> &SandboxSettings {
        &self.shared.settings
    }

    /// The layers it was started with.
    pub fn layers(&self) -> &Layers {
        &self.shared.layers
    }

    /// The interpreter that Python tools run on.
    pub fn interpreter(&self) -> &Interpreter {
        &self.shared.interpreter
    }

    /// Runs one call, exactly once. Dropping the future kills the run. More runs than
    /// [`places`](SandboxSettings::places) wait here in the order in which they came, until their deadline. Runs within
    /// Tokio: a large result is checked on one of its threads for what blocks.
    ///
    /// # Errors
    ///
    /// `Unavailable` with `SandboxFailed` when the child could not be set up, with `SourceChanged` when the pinned copy
    /// is gone, with `SandboxBusy` when too many wait, with `SandboxUnavailable` after [`close`](Self::close) and for a
    /// way of running that the settings do not allow. All that the tool does is an outcome.
    pub async fn run(&self, request: RunRequest) -> Result<RunOutcome> {
        self.submit(request, false).await
    }

    /// As [`run`](Self::run), for a thread that may block.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_blocking(&self, request: RunRequest) -> Result<RunOutcome> {
        let (sender, receiver) = sync_channel(1);
        self.send(request, false, move |answer| {
            let _ = sender.send(answer);
        })?;
        // The supervisor answers every job; the pause is for one that ended without.
        loop {
            match receiver.recv_timeout(Duration::from_secs(1)) {
                Ok(answer) => return answer.map(Answer::into_outcome),
                Err(RecvTimeoutError::Timeout) if !*self.ended.borrow() => {}
                Err(_) => {
                    let answer = receiver.try_recv().unwrap_or_else(|_| Err(has_ended()));
                    return answer.map(Answer::into_outcome);
                }
            }
        }
    }

    /// Looks at a Python callable in a child: signature, documentation, source.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a native program; `Timeout` when the deadline passes; else as [`run`](Self::run).
    pub async fn inspect(&self, program: &PinnedProgram, deadline: Deadline) -> Result<Reflection> {
        if !matches!(program.program, Program::Python { .. }) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a native program has no signature that could be looked at",
            ));
        }
        let request = RunRequest {
            program: Arc::new(program.clone()),
            arguments: JsonText::empty_object(),
            secrets: Vec::new(),
            tenant: ProjectId::default(),
            preference: ExecutionPreference::Cold,
            limits: RunLimits::default(),
            startup_grace: Duration::ZERO,
            deadline,
            result_bytes: usize::MAX,
        };
        reflection(self.submit(request, true).await?)
    }

    /// Ends every child; returns when the last one is gone, or at the deadline.
    pub async fn close(&self, deadline: Deadline) {
        let _ = self.shared.send(Command::Close);
        let mut ended = self.ended.clone();
        let _ = tokio::time::timeout_at(deadline.instant(), ended.wait_for(|ended| *ended)).await;
    }

    /// Ends every child and itself, and waits for that.
    pub(crate) fn end(mut self) {
        let _ = self.shared.send(Command::Close);
        if let Some(supervisor) = self.supervisor.take() {
            let _ = supervisor.join();
        }
    }

    async fn submit(&self, request: RunRequest, look: bool) -> Result<RunOutcome> {
        let (sender, receiver) = oneshot::channel();
        let id = self.send(request, look, move |answer| {
            let _ = sender.send(answer);
        })?;
        let mut guard = CancelOnDrop {
            shared: &self.shared,
            id: Some(id),
        };
        let answer = receiver.await.unwrap_or_else(|_| Err(has_ended()));
        guard.id = None;
        let answer = answer?;
        if answer.unchecked_bytes() <= CHECKED_HERE {
            return Ok(answer.into_outcome());
        }
        tokio::task::spawn_blocking(|| answer.into_outcome())
            .await
            .map_err(|error| Error::internal("the check of a result broke off").with_source(error))
    }

    fn send(
        &self,
        mut request: RunRequest,
        look: bool,
        reply: impl FnOnce(Result<Answer>) + Send + 'static,
    ) -> Result<u64> {
        let id = self.next_job.fetch_add(1, Ordering::Relaxed);
        // Whoever asks, a service's clients included: what the settings allow at most.
        let settings = &self.shared.settings;
        request.startup_grace = request.startup_grace.min(settings.startup_grace);
        let most = Instant::now() + settings.timeout;
        let job = Job {
            id,
            deadline: request.deadline.instant().into_std().min(most),
            since: None,
            request,
            look,
            reply: Box::new(reply),
        };
        self.shared
            .send(Command::Run(Box::new(job)))
            .map(|()| id)
            .map_err(|_| has_ended())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.shared.send(Command::Close);
        // It kills everything at once and ends by itself; nobody waits for it here.
        drop(self.supervisor.take());
    }
}

/// However the supervisor's thread ends, nobody waits for it for ever.
struct EndOfSupervisor {
    shared: Arc<Shared>,
    has_ended: tokio::sync::watch::Sender<bool>,
}

impl Drop for EndOfSupervisor {
    fn drop(&mut self) {
        self.shared.end();
        self.has_ended.send_replace(true);
    }
}

struct CancelOnDrop<'a> {
    shared: &'a Shared,
    id: Option<u64>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let _ = self.shared.send(Command::Cancel(id));
        }
    }
}

fn has_ended() -> Error {
    Error::new(ErrorKind::Unavailable, "the sandbox was closed").with_reason(ReasonCode::SandboxUnavailable)
}
