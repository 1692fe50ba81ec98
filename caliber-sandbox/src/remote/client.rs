//! The port over a service.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use caliber_core::admission::{RunPermit, Slot};
use caliber_core::clock::Deadline;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{
    Enforcement, Guarantee, PinnedProgram, Program, Reflection, RunOutcome, RunRequest, RunStatus, Sandbox,
    SandboxReport,
};
use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use super::dial::client;
use super::settings::RemoteSettings;
use super::wire::{ErrorWire, InspectWire, OutcomeWire, PinWire, RunWire, milliseconds};
use crate::places::Places;
use crate::report;

/// The most that is kept back of the time of an operation, for the way of its answer.
const WAY: Duration = Duration::from_millis(500);
/// How much longer than the deadline of a run its answer is waited for; less than core waits for a sandbox.
const ANSWER_GRACE: Duration = Duration::from_millis(400);
/// How long after a failure a service is asked again because somebody looks at its report.
const RETRY: Duration = Duration::from_secs(2);
/// How long such an asking may take.
const REFRESH: Duration = Duration::from_secs(10);

/// Runs code tools by a service elsewhere. The program's folders and files lie on the machine of the service.
///
/// A call that was sent is never sent again; when its answer is lost, its outcome is unknown. Dropping the future of a
/// run closes its connection, and the service kills the run.
#[derive(Debug)]
pub struct RemoteSandbox {
    service: Arc<Service>,
    places: Places,
}

/// The service, as this side knows it.
#[derive(Debug)]
struct Service {
    settings: RemoteSettings,
    client: reqwest::Client,
    known: RwLock<Known>,
    /// Whether somebody asks for its report because an old one was read.
    asking: AtomicBool,
}

#[derive(Clone, Debug)]
struct Known {
    report: Arc<SandboxReport>,
    /// When it was asked for.
    at: Instant,
    /// Whether it was answered.
    answered: bool,
}

impl Known {
    fn is_current(&self, age: Duration) -> bool {
        self.answered && self.at.elapsed() < age
    }
}

impl RemoteSandbox {
    /// Sets the adapter up and asks the service for its report. A service that cannot be reached now is asked again
    /// when a place is reserved; until then the report says so.
    ///
    /// # Errors
    ///
    /// `Invalid` for settings that cannot work.
    pub async fn connect(settings: RemoteSettings, deadline: Deadline) -> Result<Self> {
        settings.check()?;
        let client = client(&settings).await?;
        let known = Known {
            report: Arc::new(unreached(&settings, "it was not asked yet")),
            at: Instant::now(),
            answered: false,
        };
        let sandbox = Self {
            places: Places::new(settings.places, settings.queue),
            service: Arc::new(Service {
                client,
                known: RwLock::new(known),
                asking: AtomicBool::new(false),
                settings,
            }),
        };
        if let Err(error) = sandbox.service.refresh(deadline).await {
            tracing::warn!(%error, "the sandbox service could not be asked for its report");
        }
        Ok(sandbox)
    }

    /// Runs one request without a permit: for tests, and for programs that are no control plane.
    ///
    /// # Errors
    ///
    /// As [`Sandbox::reserve`] and [`Sandbox::run`].
    pub async fn run_unadmitted(&self, request: RunRequest) -> Result<RunOutcome> {
        let _place = self.reserve(request.deadline).await?;
        self.service.run(&request).await
    }

    /// Asks the service for its report, however old the last one is.
    ///
    /// # Errors
    ///
    /// `Unavailable` when it cannot be reached or answers something else; `Timeout`.
    pub async fn refresh(&self, deadline: Deadline) -> Result<Arc<SandboxReport>> {
        self.service.refresh(deadline).await
    }
}

impl Service {
    async fn refresh(&self, deadline: Deadline) -> Result<Arc<SandboxReport>> {
        let asked = self.ask::<(), SandboxReport>("report", None, deadline, 0).await;
        let answer = match asked {
            Ok(theirs) => Ok(Arc::new(self.as_required_here(theirs))),
            Err(error) => Err((Arc::new(unreached(&self.settings, error.message())), error)),
        };
        let (Ok(report) | Err((report, _))) = &answer;
        let before = self.known();
        if !before.answered || before.report.missing() != report.missing() {
            report::warn_of_unenforced(report);
        }
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Known {
            report: Arc::clone(report),
            at: Instant::now(),
            answered: answer.is_ok(),
        };
        answer.map_err(|(_, error)| error)
    }

    /// Asks for a new report in a task of its own, when the last one is old and nobody asks yet: who looks at a report
    /// does not wait, and sees the new one next time.
    fn refresh_aside(self: &Arc<Self>) {
        let known = self.known();
        let pause = match known.answered {
            true => self.settings.report_age,
            false => RETRY.min(self.settings.report_age),
        };
        if known.at.elapsed() < pause || self.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.asking.store(false, Ordering::Release);
            return;
        };
        let service = Arc::clone(self);
        runtime.spawn(async move {
            // What is wrong stands in the report.
            let _ = service.refresh(Deadline::after(REFRESH)).await;
            service.asking.store(false, Ordering::Release);
        });
    }

    /// What the service enforces, measured by what is required here.
    fn as_required_here(&self, theirs: SandboxReport) -> SandboxReport {
        // What the service will not run, it will not run for us.
        let refuses = !theirs.is_available() && theirs.problem.is_none();
        let missing_there: Vec<_> = theirs.missing().iter().map(|missing| missing.as_str()).collect();
        SandboxReport {
            backend: "remote".to_owned(),
            problem: match refuses {
                true => Some(format!(
                    "the sandbox service requires what does not hold there ({})",
                    missing_there.join(", ")
                )),
                false => theirs.problem,
            },
            guarantees: theirs.guarantees,
            required: self.settings.required.clone(),
            interpreter: theirs.interpreter,
            unenforced_allowed: self.settings.allow_unenforced,
        }
    }

    /// A report that is not too old.
    async fn current_report(&self, deadline: Deadline) -> Result<Arc<SandboxReport>> {
        let known = self.known();
        match known.is_current(self.settings.report_age) {
            true => Ok(known.report),
            false => self.refresh(deadline).await,
        }
    }

    fn known(&self) -> Known {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn available(&self, deadline: Deadline) -> Result<Arc<SandboxReport>> {
        let report = self.current_report(deadline).await?;
        match report::refusal(&report) {
            Some(refusal) => Err(refusal),
            None => Ok(report),
        }
    }

    async fn run(&self, request: &RunRequest) -> Result<RunOutcome> {
        let report = self.available(request.deadline).await?;
        let left = travelling(request.deadline);
        let wire = RunWire::of(request, left);
        let outcome: OutcomeWire = self
            .ask("run", Some(&wire), request.deadline, request.result_bytes)
            .await?;
        let mut outcome = RunOutcome::from(outcome);
        for missing in report.missing() {
            if !outcome.unenforced.contains(&missing) {
                outcome.unenforced.push(missing);
            }
        }
        if let RunStatus::Ok { value } = &outcome.status {
            // The service checked it; what it is trusted with is running tools.
            let limits = JsonLimits {
                bytes: request.result_bytes,
                depth: JsonLimits::RESULT.depth,
            };
            if let Err(problem) = JsonText::parse(value.as_str(), limits) {
                outcome.status = match problem.kind() {
                    ErrorKind::TooLarge if value.as_str().len() > request.result_bytes => {
                        RunStatus::ResultTooLarge {
                            limit: request.result_bytes as u64,
                        }
                    }
                    _ => RunStatus::ResultInvalid {
                        problem: problem.message().to_owned(),
                    },
                };
            }
        }
        Ok(outcome)
    }

    /// Sends one request and reads its answer. For a run, what fails after the request may have been read is an unknown
    /// outcome.
    async fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        route: &str,
        question: Option<&Q>,
        deadline: Deadline,
        result_bytes: usize,
    ) -> Result<A> {
        let is_run = route == "run";
        let limit = self.settings.answer_bytes.saturating_add(result_bytes);
        let url = self.address(route)?;
        let request = match question {
            None => self.client.get(url),
            Some(question) => {
                let body = serde_json::to_vec(question)
                    .map_err(|error| Error::internal("a request cannot be written").with_source(error))?;
                self.client
                    .post(url)
                    .header(CONTENT_TYPE, "application/json")
                    .body(body)
            }
        };
        let request = request.header(AUTHORIZATION, self.settings.token.header()?);
        let exchange = async {
            let response = request.send().await.map_err(|error| {
                if error.is_connect() {
                    return unreachable_service("it cannot be connected to").with_source(error);
                }
                lost(is_run, "the connection ended before the answer").with_source(error)
            })?;
            let status = response.status();
            let body = read(response, limit, is_run).await?;
            if status.is_success() {
                return serde_json::from_slice(&body).map_err(|_| {
                    lost(
                        is_run,
                        "it answered something that is no answer of a sandbox service",
                    )
                });
            }
            match serde_json::from_slice::<ErrorWire>(&body) {
                Ok(error) => Err(refused(error.into_error())),
                Err(_) => Err(lost(
                    is_run,
                    &format!("something answered in its place with status {status}"),
                )),
            }
        };
        // The service ends a run at its deadline, and its word about that is on its way then.
        let until = deadline.instant() + if is_run { ANSWER_GRACE } else { Duration::ZERO };
        match tokio::time::timeout_at(until, exchange).await {
            Ok(answered) => answered,
            // Whether it was sent cannot be told from here.
            Err(_) if is_run => Err(lost(true, "it did not answer by the deadline")),
            Err(_) => Err(Error::new(
                ErrorKind::Timeout,
                "the sandbox service did not answer by the deadline",
            )
            .with_reason(ReasonCode::Timeout)),
        }
    }

    fn address(&self, route: &str) -> Result<Url> {
        let mut url = self.settings.url.clone();
        url.path_segments_mut()
            .map_err(|()| Error::internal("an address that was checked has no path"))?
            .pop_if_empty()
            .extend(["v1", route]);
        Ok(url)
    }
}

#[async_trait]
impl Sandbox for RemoteSandbox {
    fn report(&self) -> Arc<SandboxReport> {
        self.service.refresh_aside();
        self.service.known().report
    }

    async fn pin(&self, program: &Program, deadline: Deadline) -> Result<PinnedProgram> {
        let question = PinWire {
            program: program.clone(),
            left_ms: milliseconds(travelling(deadline)),
        };
        let pinned: PinnedProgram = self.service.ask("pin", Some(&question), deadline, 0).await?;
        if pinned.program != *program {
            return Err(Error::new(
                ErrorKind::Upstream,
                "the sandbox service pinned another program than it was asked to",
            ));
        }
        Ok(pinned)
    }

    async fn inspect(&self, program: &PinnedProgram, deadline: Deadline) -> Result<Reflection> {
        self.service.available(deadline).await?;
        let question = InspectWire {
            program: program.clone(),
            left_ms: milliseconds(travelling(deadline)),
        };
        self.service.ask("inspect", Some(&question), deadline, 0).await
    }

    async fn reserve(&self, deadline: Deadline) -> Result<Slot> {
        self.service.available(deadline).await?;
        self.places.take(deadline).await.map(Slot::new)
    }

    async fn run(&self, permit: RunPermit) -> Result<RunOutcome> {
        // The place is held until the run has been answered, and given back when the caller goes away.
        let (request, _slot) = permit.into_parts();
        self.service.run(&request).await
    }

    async fn close(&self, _deadline: Deadline) {
        // The runs are the service's; who waits for one closes its connection, and the service ends it.
        self.places.close();
    }
}

/// What is left, less what the answer needs for its way: so that the service's word that the time is over arrives in
/// time.
fn travelling(deadline: Deadline) -> Duration {
    let left = deadline.remaining();
    left.saturating_sub(WAY.min(left / 10))
}

/// Reads a body up to `limit`.
async fn read(mut response: reqwest::Response, limit: usize, is_run: bool) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(body),
            Ok(Some(chunk)) if body.len() + chunk.len() <= limit => body.extend_from_slice(&chunk),
            Ok(Some(_)) => {
                return Err(lost(is_run, &format!("its answer is larger than {limit} bytes")));
            }
            Err(error) => return Err(lost(is_run, "its answer broke off").with_source(error)),
        }
    }
}

/// An exchange that ended without an answer after it was sent.
fn lost(is_run: bool, why: &str) -> Error {
    match is_run {
        true => Error::new(
            ErrorKind::OutcomeUnknown,
            format!("the run was sent to the sandbox service, and what became of it is unknown: {why}"),
        )
        .with_reason(ReasonCode::OutcomeUnknown),
        false => unreachable_service(why),
    }
}

fn unreachable_service(why: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the sandbox service does not answer as one: {why}"),
    )
    .with_reason(ReasonCode::SandboxUnavailable)
}

/// The service's refusal of us is our operator's problem, not our caller's.
fn refused(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unauthenticated | ErrorKind::Forbidden => Error::new(
            ErrorKind::Unavailable,
            "the sandbox service refuses our token; give both sides the same one",
        )
        .with_reason(ReasonCode::SandboxUnavailable),
        _ => error,
    }
}

/// The report of a service that did not answer.
fn unreached(settings: &RemoteSettings, why: &str) -> SandboxReport {
    let host = settings.url.host_str().unwrap_or_default();
    let guarantees = Guarantee::ALL
        .into_iter()
        .map(|guarantee| {
            let enforcement = Enforcement::NotEnforced {
                stage: "connect".to_owned(),
                errno: String::new(),
                remedy: format!(
                    "start the sandbox service at {} and see that it can be reached from here",
                    shown(host)
                ),
            };
            (guarantee, enforcement)
        })
        .collect();
    SandboxReport {
        backend: "remote".to_owned(),
        guarantees,
        required: settings.required.clone(),
        interpreter: None,
        problem: Some(format!(
            "the sandbox service at {} has given no report: {why}",
            shown(host)
        )),
        unenforced_allowed: settings.allow_unenforced,
    }
}
