//! A sandbox that runs nothing: what a callable does is a function of a test.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use crate::admission::{RunPermit, Slot};
use crate::clock::Deadline;
use crate::digest::{EnvironmentDigest, SourceDigest};
use crate::error::{Error, ErrorKind, Result};
use crate::reason::ReasonCode;
use crate::sandbox::{
    Captured, Enforcement, ExecutionMode, Guarantee, PhaseTimes, PinnedProgram, Program, Reflection,
    RunOutcome, RunRequest, RunStatus, Sandbox, SandboxReport, Usage,
};

type Running = Pin<Box<dyn Future<Output = Result<RunStatus>> + Send>>;
type Script = Arc<dyn Fn(RunRequest) -> Running + Send + Sync>;

/// A [`Sandbox`] whose programs are scripts of a test, by the name of the callable or the path of the executable. It
/// isolates nothing and says so only when it is told to: for tests of everything that stands on the port.
///
/// A program without a script answers with its arguments.
#[derive(Clone)]
pub struct ScriptedSandbox {
    places: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
}

struct State {
    report: Arc<SandboxReport>,
    scripts: HashMap<String, Script>,
    source: String,
    broken: Option<String>,
    inspections: usize,
    runs: Vec<RunRequest>,
}

impl ScriptedSandbox {
    /// A sandbox where every guarantee holds, with sixteen places.
    pub fn new() -> Self {
        let holds = || Enforcement::Enforced {
            by: vec!["script".to_owned()],
        };
        let report = SandboxReport {
            backend: "scripted".to_owned(),
            guarantees: Guarantee::ALL
                .into_iter()
                .map(|guarantee| (guarantee, holds()))
                .collect(),
            required: Guarantee::DEFAULT_REQUIRED.to_vec(),
            interpreter: None,
            problem: None,
            unenforced_allowed: false,
        };
        Self {
            places: Arc::new(Semaphore::new(16)),
            state: Arc::new(Mutex::new(State {
                report: Arc::new(report),
                scripts: HashMap::new(),
                source: "first".to_owned(),
                broken: None,
                inspections: 0,
                runs: Vec::new(),
            })),
        }
    }

    /// What the callable, or the executable, of this name does from now on.
    pub fn script<F, Fut>(&self, name: &str, script: F)
    where
        F: Fn(RunRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<RunStatus>> + Send + 'static,
    {
        let script: Script = Arc::new(move |request| Box::pin(script(request)));
        self.state().scripts.insert(name.to_owned(), script);
    }

    /// What the machine enforces from now on.
    pub fn set_report(&self, change: impl FnOnce(&mut SandboxReport)) {
        let mut state = self.state();
        let mut report = (*state.report).clone();
        change(&mut report);
        state.report = Arc::new(report);
    }

    /// What the source of every program is from now on; what was pinned keeps its own.
    pub fn set_source(&self, source: &str) {
        self.state().source = source.to_owned();
    }

    /// Why no program can be imported from now on; `None`: every one can.
    pub fn set_broken(&self, error: Option<&str>) {
        self.state().broken = error.map(str::to_owned);
    }

    /// The places that are free.
    pub fn free_places(&self) -> usize {
        self.places.available_permits()
    }

    /// Every run so far, as it was asked for.
    pub fn runs(&self) -> Vec<RunRequest> {
        self.state().runs.clone()
    }

    /// How often somebody looked at a program.
    pub fn inspections(&self) -> usize {
        self.state().inspections
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unavailable(&self) -> Result<()> {
        if self.state().report.is_available() {
            return Ok(());
        }
        Err(
            Error::new(ErrorKind::Unavailable, "what is required does not hold here")
                .with_reason(ReasonCode::SandboxUnavailable),
        )
    }
}

impl Default for ScriptedSandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ScriptedSandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ScriptedSandbox")
    }
}

fn name(program: &Program) -> String {
    match program {
        Program::Python { callable_name, .. } => callable_name.clone(),
        Program::Native { executable, .. } => executable.to_string_lossy().into_owned(),
    }
}

#[async_trait]
impl Sandbox for ScriptedSandbox {
    fn report(&self) -> Arc<SandboxReport> {
        Arc::clone(&self.state().report)
    }

    async fn pin(&self, program: &Program, _: Deadline) -> Result<PinnedProgram> {
        let source = SourceDigest::of(self.state().source.as_bytes());
        Ok(PinnedProgram {
            program: program.clone(),
            source,
            environment: EnvironmentDigest::of(b"scripted"),
        })
    }

    async fn inspect(&self, program: &PinnedProgram, _: Deadline) -> Result<Reflection> {
        self.unavailable()?;
        let mut state = self.state();
        state.inspections += 1;
        if let Some(error) = &state.broken {
            return Ok(Reflection {
                error: Some(error.clone()),
                ..Reflection::default()
            });
        }
        Ok(Reflection {
            callable: true,
            available: true,
            signature: format!("{}(**arguments)", name(&program.program)),
            source: state.source.clone(),
            ..Reflection::default()
        })
    }

    async fn reserve(&self, deadline: Deadline) -> Result<Slot> {
        self.unavailable()?;
        let waiting = Arc::clone(&self.places).acquire_owned();
        match tokio::time::timeout_at(deadline.instant(), waiting).await {
            Ok(Ok(place)) => Ok(Slot::new(place)),
            _ => Err(
                Error::new(ErrorKind::Unavailable, "every place is taken; try again later")
                    .with_reason(ReasonCode::SandboxBusy),
            ),
        }
    }

    async fn run(&self, permit: RunPermit) -> Result<RunOutcome> {
        self.unavailable()?;
        let (request, _slot) = permit.into_parts();
        let script = {
            let mut state = self.state();
            state.runs.push(request.clone());
            state.scripts.get(&name(&request.program.program)).cloned()
        };
        let status = match script {
            Some(script) => script(request).await?,
            None => RunStatus::Ok {
                value: request.arguments,
            },
        };
        Ok(RunOutcome {
            status,
            stdout: Captured::default(),
            stderr: Captured::default(),
            mode: ExecutionMode::Cold,
            unenforced: Vec::new(),
            times: PhaseTimes::default(),
            usage: Usage::default(),
        })
    }

    async fn close(&self, _: Deadline) {
        self.places.close();
    }
}
