//! A run of a code tool, from end to end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::admitting::{
    DECISION_ATTEMPTS, busy_ledger, cancelled, check_break_glass, contradiction, grantee, keeps_changing,
};
use super::approvals::WantedApproval;
use super::code_tools::no_sandbox;
use super::ledger::OpenCall;
use super::recorder::UnderWay;
use super::{Caliber, Inner, sees, to_the_end};
use crate::admission::{CodeToolFacts, Outcome, QuotaFact, RunCallerFact, RunPermit, Slot};
use crate::approval::RequestedTool;
use crate::clock::{Deadline, Timestamp};
use crate::code_tool::CodeToolDefinition;
use crate::digest::{ArgumentDigest, ContentHash};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ApprovalId, CodeToolId, InvocationId};
use crate::invocation::{Invocation, InvocationOutcome, InvokedTool};
use crate::json::JsonText;
use crate::policy::{SideEffectLevel, ToolPolicy};
use crate::principal::{Principal, Surface};
use crate::reason::ReasonCode;
use crate::registry::{RunAdmissionQuery, StoredRunFacts};
use crate::sandbox::{RunOutcome, RunRequest, RunStatus};
use crate::schema::{Fit, Part};
use crate::secret::SecretText;

mod ending;

use ending::{Ending, ending};

/// What a sandbox may take beyond the deadline to answer for itself.
const SANDBOX_GRACE: Duration = Duration::from_millis(500);

/// A run that somebody wants to make.
#[derive(Clone, Debug)]
pub struct CodeToolCall {
    /// Which version.
    pub tool: CodeToolId,
    /// The arguments: an object.
    pub arguments: JsonText,
    /// Where the call came in.
    pub surface: Surface,
    /// The consent to spend, when the tool needs one.
    pub approval: Option<ApprovalId>,
    /// The reason of an admin who goes past approval; refused from everybody else.
    pub break_glass: Option<String>,
    /// A shorter time than the tool or the installation allow.
    pub timeout: Option<Duration>,
    /// What the caller pinned: a run of anything else is refused with `source_changed`.
    pub content_hash: Option<ContentHash>,
}

impl CodeToolCall {
    /// A plain run.
    pub fn new(tool: CodeToolId, arguments: JsonText, surface: Surface) -> Self {
        Self {
            tool,
            arguments,
            surface,
            approval: None,
            break_glass: None,
            timeout: None,
            content_hash: None,
        }
    }
}

/// A run that has ended, however it did: everything that the tool did is here and not an error.
#[derive(Clone, Debug)]
pub struct CodeToolRun {
    /// The run in the ledger.
    pub invocation: InvocationId,
    /// What the sandbox saw. A value that does not fit the output schema has become
    /// [`RunStatus::ResultInvalid`].
    pub run: RunOutcome,
    /// What the ledger says of it.
    pub outcome: InvocationOutcome,
    /// The code beside it, unless it went well or the tool raised.
    pub reason: Option<ReasonCode>,
    /// From the request to the end.
    pub duration: Duration,
}

impl Caliber {
    /// Runs a code tool once: admission, ledger, sandbox, in this order. Dropping the future ends the run with every
    /// process of it; it still ends in exactly one record. How the sandbox's word becomes that of the ledger:
    ///
    /// | the run | outcome | reason code |
    /// |---|---|---|
    /// | returned a value that fits the output schema | `ok` | |
    /// | raised | `tool_error` | |
    /// | ended without a result while it ran, or at a limit of the sandbox | `tool_error` | `tool_crashed` |
    /// | ended without a result before it ran | `upstream_error` | `sandbox_failed` |
    /// | returned what is no JSON, or does not fit the schema | `upstream_error` | `result_invalid` |
    /// | returned too much | `upstream_error` | `result_too_large` |
    /// | broke the protocol of the sandbox | `upstream_error` | `protocol_violation` |
    /// | did not end by its deadline, and was killed | `timeout` | `timeout` |
    ///
    /// # Errors
    ///
    /// Only for what did not run, or of which nobody knows. `NotFound` when the version is absent or hidden. `Denied`,
    /// `RateLimited` and `Unavailable` with the reason code of the step that refused. `ApprovalNeeded`, with the
    /// request for consent in the context `approval`. `Unavailable` with `secret_unresolved`, `sandbox_busy` or
    /// `sandbox_failed`; `Timeout` when the deadline passed in the queue; `OutcomeUnknown`. Every error of a run that
    /// was recorded carries the context `invocation`.
    pub async fn run_code_tool(&self, principal: &Principal, call: CodeToolCall) -> Result<CodeToolRun> {
        let cancel = CancellationToken::new();
        let guard = cancel.clone().drop_guard();
        let run = Run {
            inner: Arc::clone(&self.inner),
            _under_way: self.inner.under_way(),
            principal: principal.clone(),
            call,
            started: Instant::now(),
            started_at: self.inner.now(),
            cancel,
        };
        // An owned task: a caller that goes away cannot leave a run without its record.
        let outcome = to_the_end(run.run()).await;
        drop(guard.disarm());
        outcome
    }
}

/// One run on its way.
struct Run {
    inner: Arc<Inner>,
    _under_way: UnderWay,
    principal: Principal,
    call: CodeToolCall,
    started: Instant,
    started_at: Timestamp,
    cancel: CancellationToken,
}

/// A run that was allowed, with everything that the rest of the way needs.
struct Admitted {
    facts: StoredRunFacts,
    secrets: Vec<(String, SecretText)>,
    deadline: Deadline,
}

impl Run {
    async fn run(self) -> Result<CodeToolRun> {
        let inner = &self.inner;
        check_break_glass(self.call.break_glass.as_deref())?;
        let argument_digest = ArgumentDigest::of(self.call.arguments.canonical()?.as_bytes());
        let room_until = self.deadline(None);
        tokio::select! {
            room = inner.room_for_record() => room?,
            () = self.cancel.cancelled() => return Err(cancelled()),
            () = tokio::time::sleep_until(room_until.instant()) => return Err(busy_ledger()),
        }
        // Read before a place is reserved: a tool that the caller may not see takes no place, nor time.
        let mut facts = self.facts().await?;
        let mut open = OpenCall::new(inner, self.invocation(&facts, argument_digest), self.started);
        let deadline = self.deadline(facts.record.definition.policy().timeout());
        let slot = match self.reserve(deadline).await {
            Ok(slot) => slot,
            Err(error) => return Err(open.refused(error)),
        };
        if slot.is_some() {
            // What was revoked meanwhile binds this run.
            match self.facts().await {
                Ok(current) => facts = current,
                Err(error) => return Err(open.refused(error)),
            }
        }
        match (self.admit(facts, &mut open, argument_digest).await, slot) {
            (Ok(admitted), Some(slot)) => self.make(admitted, open, slot).await,
            (Ok(_), None) => Err(open.refused(contradiction("the policy allowed a run without a sandbox"))),
            (Err(error), _) => Err(open.refused(error)),
        }
    }

    /// Takes a place in the sandbox. Without a sandbox that may run something there is none, and admission says why.
    async fn reserve(&self, until: Deadline) -> Result<Option<Slot>> {
        let Some(sandbox) = &self.inner.sandbox else {
            return Ok(None);
        };
        if !sandbox.report().is_available() {
            return Ok(None);
        }
        tokio::select! {
            slot = sandbox.reserve(until) => slot.map(Some),
            () = self.cancel.cancelled() => Err(cancelled()),
        }
    }

    /// The facts of the store, if the caller may see the version.
    async fn facts(&self) -> Result<StoredRunFacts> {
        let query = RunAdmissionQuery {
            tool: self.call.tool.clone(),
            subject: self.principal.subject.clone(),
            project: self.principal.project.clone(),
            approval: self.call.approval.clone(),
        };
        let facts = self.inner.registry.run_admission(&query).await?;
        let facts = facts.filter(|facts| {
            let record = &facts.record;
            sees(
                &self.principal,
                (&record.owner, &record.project, record.visibility),
            )
        });
        facts.ok_or_else(|| Error::not_found("code tool", self.call.tool.as_str()))
    }

    fn invocation(&self, facts: &StoredRunFacts, argument_digest: ArgumentDigest) -> Invocation {
        let record = &facts.record;
        Invocation {
            id: InvocationId::new(),
            started_at: self.started_at,
            subject: self.principal.subject.clone(),
            identity: self.principal.identity.clone(),
            surface: self.call.surface,
            project: record.project.clone(),
            tool: InvokedTool::Code {
                id: record.id.clone(),
                family: record.definition.family.clone(),
                version: record.definition.version.clone(),
                content_hash: record.content_hash,
            },
            side_effect_level: Some(record.definition.side_effect_level),
            argument_digest,
            approval: None,
            break_glass: self.call.break_glass.clone(),
        }
    }

    /// Decides, spends the quota, resolves the secrets, and commits the intent where there may be an effect.
    async fn admit(
        &self,
        mut facts: StoredRunFacts,
        open: &mut OpenCall,
        argument_digest: ArgumentDigest,
    ) -> Result<Admitted> {
        let inner = &self.inner;
        let mut quota_spent = false;
        for _ in 0..DECISION_ATTEMPTS {
            open.invocation = Invocation {
                id: open.invocation.id.clone(),
                ..self.invocation(&facts, argument_digest)
            };
            let policy = facts.record.definition.policy();
            let mut question = self.question(&facts, policy.clone(), argument_digest).await?;
            self.decide(&question, &facts).await?;
            if let Some(limit) = policy.rate_limit_per_minute
                && !quota_spent
            {
                question.quota = inner.spend(facts.record.id.as_str(), limit).await;
                if question.quota == QuotaFact::NotAsked {
                    quota_spent = true;
                } else {
                    self.decide(&question, &facts).await?;
                    return Err(contradiction("the policy allowed a run beyond its rate"));
                }
            }
            let deadline = self.deadline(policy.timeout());
            let secrets = self.secrets(&facts.record.definition, deadline).await?;
            let spends_approval = policy.requires_approval && self.call.break_glass.is_none();
            open.invocation.approval = if spends_approval {
                self.call.approval.clone()
            } else {
                None
            };
            if policy.side_effect_level > SideEffectLevel::Read || spends_approval {
                // The lease covers the start as well, which has its own clock.
                let until = Deadline::after(deadline.remaining() + inner.settings.startup_grace);
                let who = (&self.principal, self.call.surface);
                match inner.begin(who, &open.invocation, &facts.expect, until).await {
                    Ok(()) => open.begun = true,
                    // Something moved between the decision and the commit: decide again on what is there now.
                    Err(error) if error.reason() == Some(ReasonCode::StaleRevision) => {
                        facts = self.facts().await?;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            return Ok(Admitted {
                facts,
                secrets,
                deadline,
            });
        }
        Err(keeps_changing())
    }

    /// Gathers what the policy decides on.
    async fn question(
        &self,
        facts: &StoredRunFacts,
        policy: ToolPolicy,
        argument_digest: ArgumentDigest,
    ) -> Result<CodeToolFacts> {
        let inner = &self.inner;
        let record = &facts.record;
        let (owner, schema) = (
            record.content_hash.into(),
            record.definition.input_schema.as_ref(),
        );
        Ok(CodeToolFacts {
            now: inner.now(),
            tool: record.id.clone(),
            status: record.status,
            policy,
            sandbox: inner.sandbox.as_ref().map(|sandbox| sandbox.report()),
            blockers: inner.policy.blockers(&record.definition),
            content_hash: record.content_hash,
            computed_hash: record.computed_hash()?,
            expected_hash: self.call.content_hash,
            caller: RunCallerFact {
                subject: self.principal.subject.clone(),
                scopes: self.principal.scopes_in(&record.project),
                grants: facts
                    .grants
                    .iter()
                    .filter_map(|grant| grantee(&self.principal, &record.project, grant))
                    .collect(),
                break_glass: self.call.break_glass.clone(),
            },
            arguments: inner.check_arguments(owner, schema, &self.call.arguments).await,
            quota: QuotaFact::NotAsked,
            approval: facts.approval.clone(),
            argument_digest,
        })
    }

    /// Asks the policy; everything but a plain yes becomes the error that the caller gets.
    async fn decide(&self, question: &CodeToolFacts, facts: &StoredRunFacts) -> Result<()> {
        let decision = self.inner.policy.decide(question.into());
        let record = &facts.record;
        let asks = decision.outcome == Outcome::NeedsApproval && self.call.approval.is_none();
        let wanted = asks.then(|| WantedApproval {
            project: record.project.clone(),
            tool: RequestedTool::Code {
                id: record.id.clone(),
                family: record.definition.family.clone(),
                version: record.definition.version.clone(),
                content_hash: record.content_hash,
            },
            arguments: self.call.arguments.clone(),
            argument_digest: question.argument_digest,
        });
        let who = (&self.principal, self.call.surface);
        self.inner.pass(decision, question.quota, who, wanted).await
    }

    /// The secrets of the tool, resolved for this run only. The text names them as the tool does, never where they
    /// are kept.
    async fn secrets(
        &self,
        definition: &CodeToolDefinition,
        deadline: Deadline,
    ) -> Result<Vec<(String, SecretText)>> {
        let unresolved = |name: &str| {
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the secret {name} of the tool cannot be resolved; an admin has to look at its reference"
                ),
            )
            .with_reason(ReasonCode::SecretUnresolved)
        };
        let mut secrets = Vec::with_capacity(definition.secret_refs.len());
        for (name, value) in &definition.secret_refs {
            let (Some(source), Some(reference)) = (&self.inner.secrets, value.reference()) else {
                return Err(unresolved(name));
            };
            let resolving = tokio::time::timeout_at(deadline.instant(), source.resolve(reference));
            let secret = tokio::select! {
                secret = resolving => secret,
                () = self.cancel.cancelled() => return Err(cancelled()),
            };
            match secret {
                Ok(Ok(secret)) => secrets.push((name.clone(), secret)),
                Ok(Err(error)) => return Err(unresolved(name).with_source(error)),
                Err(_) => return Err(unresolved(name)),
            }
        }
        Ok(secrets)
    }

    /// Makes the run that was admitted, and settles it.
    async fn make(self, admitted: Admitted, open: OpenCall, slot: Slot) -> Result<CodeToolRun> {
        let inner = &self.inner;
        let Some(sandbox) = &inner.sandbox else {
            return Err(open.refused(no_sandbox()));
        };
        let Admitted {
            facts,
            secrets,
            deadline,
        } = admitted;
        let definition = &facts.record.definition;
        let result_bytes = definition
            .limits
            .result_bytes
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or(inner.settings.result_bytes);
        let grace = inner.settings.startup_grace;
        let permit = RunPermit {
            invocation: open.invocation.id.clone(),
            tool: facts.record.id.clone(),
            request: RunRequest {
                program: Arc::new(facts.record.pinned.clone()),
                arguments: self.call.arguments.clone(),
                secrets,
                tenant: self.principal.project.clone(),
                preference: definition.preference,
                limits: definition.limits,
                startup_grace: grace,
                deadline,
                result_bytes,
            },
            slot,
        };
        let ended = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(cancelled()),
            ended = sandbox.run(permit) => ended,
            () = tokio::time::sleep_until(deadline.instant() + grace + SANDBOX_GRACE) => Err(
                Error::new(ErrorKind::Timeout, "the run did not end by its deadline").with_reason(ReasonCode::Timeout)
            ),
        };
        match ended {
            Ok(run) => {
                let run = self.check_value(&facts, run).await;
                let Ending {
                    outcome,
                    reason,
                    detail,
                } = ending(&run.status);
                let bytes = match &run.status {
                    RunStatus::Ok { value } => u64::try_from(value.as_str().len()).ok(),
                    _ => None,
                };
                let (invocation, duration) = open.ended(outcome, reason, detail, bytes);
                Ok(CodeToolRun {
                    invocation,
                    run,
                    outcome,
                    reason,
                    duration,
                })
            }
            Err(error) => Err(open.failed(error)),
        }
    }

    /// A value that does not fit the output schema is none.
    async fn check_value(&self, facts: &StoredRunFacts, mut run: RunOutcome) -> RunOutcome {
        let record = &facts.record;
        let (RunStatus::Ok { value }, Some(schema)) = (&run.status, &record.definition.output_schema) else {
            return run;
        };
        let owner = record.content_hash;
        let problem = match self.inner.schemas.check(owner, Part::Output, schema, value).await {
            Fit::Fits => return run,
            Fit::Unfit(problem) => format!("the value does not fit the output schema: {problem}"),
            Fit::Unchecked(problem) => format!("the value could not be checked: {problem}"),
        };
        run.status = RunStatus::ResultInvalid { problem };
        run
    }

    /// The one absolute deadline, counted from the request: what the tool says, or the setting of the installation
    /// where it does not speak. The caller can only shorten it.
    fn deadline(&self, tool: Option<Duration>) -> Deadline {
        let allowed = tool.unwrap_or(self.inner.settings.call_timeout);
        let length = self.call.timeout.map_or(allowed, |wanted| wanted.min(allowed));
        Deadline::after(length.saturating_sub(self.started.elapsed()))
    }
}
