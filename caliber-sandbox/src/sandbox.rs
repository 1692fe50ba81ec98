//! The sandbox of this machine, as core's port.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use caliber_core::admission::{RunPermit, Slot};
use caliber_core::clock::Deadline;
use caliber_core::digest::{EnvironmentDigest, SourceDigest};
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{
    Captured, ExecutionMode, Phase, PhaseTimes, PinnedProgram, Program, Reflection, RunOutcome, RunRequest,
    RunStatus, Sandbox, SandboxReport, Usage,
};
use caliber_core::{Error, ErrorKind, Result};
use lru::LruCache;

use crate::linux::engine::Engine;
use crate::linux::probe::{self, Probe};
use crate::pin::{SnapshotStore, Stop};
use crate::places::Places;
use crate::report;
use crate::settings::SandboxSettings;

/// Runs code tools on this machine. Its children end with it.
#[derive(Debug)]
pub struct LocalSandbox {
    report: Arc<SandboxReport>,
    /// How the interpreter is named in the digest of an environment; empty where there is none.
    interpreter: String,
    places: Places,
    snapshots: Option<Arc<SnapshotStore>>,
    /// `None` where nothing may run.
    engine: Option<Engine>,
    /// What was seen of a callable, by all that it depends on.
    reflections: Mutex<LruCache<Seen, Reflection>>,
}

/// What a reflection depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seen {
    source: SourceDigest,
    environment: EnvironmentDigest,
    module_path: String,
    callable_name: String,
}

impl LocalSandbox {
    /// Finds out what this machine can enforce, by trying, and starts what runs tools. Where something that the settings
    /// require is missing, nothing is started: the sandbox only reports.
    ///
    /// # Errors
    ///
    /// `Invalid` for settings that cannot work. What the machine cannot do is in the report.
    pub async fn start(settings: SandboxSettings) -> Result<Self> {
        tokio::task::spawn_blocking(move || Self::start_blocking(settings))
            .await
            .map_err(|error| Error::internal("the start of the sandbox broke off").with_source(error))?
    }

    fn start_blocking(settings: SandboxSettings) -> Result<Self> {
        settings.check(rustix::process::geteuid().is_root())?;
        let snapshots = SnapshotStore::open(&settings.snapshot_folder, settings.pin);
        let Probe {
            mut report,
            layers,
            interpreter,
            forks,
            ..
        } = probe::probe(&settings, snapshots.as_ref().err());
        report::warn_of_unenforced(&report);
        let snapshots = match snapshots {
            Ok(store) => Some(Arc::new(store.leaving_out(&settings.left_out))),
            Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
            Err(_) => None,
        };
        let places = Places::new(settings.places, settings.queue);
        let kept = NonZeroUsize::new(settings.reflections).unwrap_or(NonZeroUsize::MIN);
        // The places are given out here. The engine may still be clearing up after a run that was answered, so as many as
        // hold a place may have to wait there a moment.
        let settings = SandboxSettings {
            queue: settings.queue.max(settings.places),
            // The report is about what was seen; calls that were not seen to hold it are not made.
            zygotes: if forks { settings.zygotes } else { 0 },
            ..settings
        };
        let mut engine = None;
        if let (Some(layers), Some(interpreter), true) = (layers, &interpreter, report.is_available()) {
            match Engine::start_with(settings, layers, interpreter.clone()) {
                Ok(started) => engine = Some(started),
                Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
                Err(error) => report.problem = Some(error.message().to_owned()),
            }
        }
        Ok(Self {
            report: Arc::new(report),
            interpreter: interpreter.map(|known| known.identity()).unwrap_or_default(),
            places,
            snapshots,
            engine,
            reflections: Mutex::new(LruCache::new(kept)),
        })
    }

    /// Runs one request without a permit: for what is no control plane, such as the service that runs tools for one
    /// elsewhere. It takes a place like every other run.
    ///
    /// # Errors
    ///
    /// As [`Sandbox::reserve`] and [`Sandbox::run`].
    pub async fn run_unadmitted(&self, request: RunRequest) -> Result<RunOutcome> {
        let _place = self.reserve(request.deadline).await?;
        self.run_request(request).await
    }

    /// Pins that nothing registered needs any more are removed: see [`SnapshotStore::retain`].
    ///
    /// # Errors
    ///
    /// `Unavailable` when the store cannot be read.
    pub async fn retain(&self, keep: impl Fn(&SourceDigest) -> bool + Send + 'static) -> Result<usize> {
        let snapshots = self.snapshots()?;
        blocking(move || snapshots.retain(keep)).await
    }

    async fn run_request(&self, request: RunRequest) -> Result<RunOutcome> {
        let engine = self.engine()?;
        match self.ensure(&request.program, request.deadline).await {
            Ok(()) => engine.run(request).await,
            Err(error) if error.kind() == ErrorKind::Timeout => Ok(self.late(&request)),
            Err(error) => Err(error),
        }
    }

    /// The outcome of a run whose time was over before it could begin.
    fn late(&self, request: &RunRequest) -> RunOutcome {
        let mode = match request.program.program {
            Program::Native { .. } => ExecutionMode::Native,
            _ => ExecutionMode::Cold,
        };
        RunOutcome {
            status: RunStatus::DeadlineExceeded { phase: Phase::Spawn },
            stdout: Captured::default(),
            stderr: Captured::default(),
            mode,
            unenforced: self.report.missing(),
            times: PhaseTimes::default(),
            usage: Usage::default(),
        }
    }

    /// Sees to it that there is a right copy of a program. Ends with its caller.
    async fn ensure(&self, program: &Arc<PinnedProgram>, deadline: Deadline) -> Result<()> {
        let snapshots = self.snapshots()?;
        // One look at a folder that was looked at before costs less than a thread that may wait.
        if snapshots.is_ready(program) && snapshots.is_environment_trusted(program) {
            return Ok(());
        }
        let interpreter = self.interpreter.clone();
        let program = Arc::clone(program);
        let stop = Stop::at(deadline);
        let _guard = stop.guard();
        blocking(move || {
            snapshots.ensure(&program, &stop)?;
            snapshots.check_environment(&program, &interpreter, &stop)
        })
        .await
    }

    fn engine(&self) -> Result<&Engine> {
        if let Some(refusal) = report::refusal(&self.report) {
            return Err(refusal);
        }
        self.engine.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the sandbox did not start")
                .with_reason(ReasonCode::SandboxUnavailable)
        })
    }

    fn snapshots(&self) -> Result<Arc<SnapshotStore>> {
        self.snapshots.clone().ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                "the folder of the snapshots cannot be used; the report of the sandbox says why",
            )
            .with_reason(ReasonCode::SandboxUnavailable)
        })
    }

    fn lock_reflections(&self) -> std::sync::MutexGuard<'_, LruCache<Seen, Reflection>> {
        self.reflections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn report(&self) -> Arc<SandboxReport> {
        Arc::clone(&self.report)
    }

    async fn pin(&self, program: &Program, deadline: Deadline) -> Result<PinnedProgram> {
        if matches!(program, Program::Python { .. }) && self.interpreter.is_empty() {
            let why = self.report.problem.as_deref().unwrap_or("none was found");
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("there is no interpreter for Python tools: {why}"),
            )
            .with_reason(ReasonCode::SandboxUnavailable));
        }
        let snapshots = self.snapshots()?;
        let program = program.clone();
        let interpreter = self.interpreter.clone();
        let stop = Stop::at(deadline);
        let _guard = stop.guard();
        blocking(move || snapshots.pin(&program, &interpreter, &stop)).await
    }

    async fn inspect(&self, program: &PinnedProgram, deadline: Deadline) -> Result<Reflection> {
        let engine = self.engine()?;
        let Program::Python {
            module_path,
            callable_name,
            ..
        } = &program.program
        else {
            return Ok(Reflection {
                callable: true,
                error: Some("only the source of Python tools is shown".to_owned()),
                ..Reflection::default()
            });
        };
        let seen = Seen {
            source: program.source,
            environment: program.environment,
            module_path: module_path.clone(),
            callable_name: callable_name.clone(),
        };
        if let Some(known) = self.lock_reflections().get(&seen) {
            return Ok(known.clone());
        }
        let program = Arc::new(program.clone());
        let _place = self.places.take(deadline).await?;
        self.ensure(&program, deadline).await?;
        let reflection = engine.inspect(&program, deadline).await?;
        // What failed may have failed for a reason that passes.
        if reflection.available {
            self.lock_reflections().put(seen, reflection.clone());
        }
        Ok(reflection)
    }

    async fn reserve(&self, deadline: Deadline) -> Result<Slot> {
        self.engine()?;
        self.places.take(deadline).await.map(Slot::new)
    }

    async fn run(&self, permit: RunPermit) -> Result<RunOutcome> {
        // The place is held until the run has been answered, and given back when the caller goes away.
        let (request, _slot) = permit.into_parts();
        self.run_request(request).await
    }

    async fn close(&self, deadline: Deadline) {
        self.places.close();
        if let Some(engine) = &self.engine {
            engine.close(deadline).await;
        }
    }
}

/// Runs what reads files on a thread that may wait.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::internal("a task of the sandbox broke off").with_source(error))?
}
