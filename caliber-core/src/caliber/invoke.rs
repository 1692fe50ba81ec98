//! A call, from end to end.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::admitting::{
    DECISION_ATTEMPTS, busy_ledger, cancelled, check_break_glass, contradiction, grantee, keeps_changing,
};
use super::approvals::WantedApproval;
use super::ledger::OpenCall;
use super::recorder::UnderWay;
use super::{Caliber, Inner, sees, to_the_end};
use crate::admission::{
    ArgumentsFact, CallerFact, InventoryFact, Outcome, Permit, QuotaFact, ServerToolFacts, Slot,
};
use crate::approval::RequestedTool;
use crate::clock::{Deadline, Timestamp};
use crate::descriptor::ToolName;
use crate::digest::ArgumentDigest;
use crate::error::{Error, ErrorKind, Result};
use crate::gateway::{Answer, CallerKey, Target};
use crate::grant::GrantedTools;
use crate::id::{ApprovalId, InvocationId, ServerId};
use crate::invocation::{Invocation, InvokedTool};
use crate::json::JsonText;
use crate::policy::{SideEffectLevel, ToolPolicy};
use crate::principal::{Principal, Surface};
use crate::reason::ReasonCode;
use crate::registry::{AdmissionQuery, StoredFacts};
use crate::schema::{Fit, Part};

/// What a gateway may take beyond the deadline to answer for itself.
const GATEWAY_GRACE: Duration = Duration::from_millis(500);

/// A call that somebody wants to make.
#[derive(Clone, Debug)]
pub struct InvokeRequest {
    /// Which server.
    pub server: ServerId,
    /// Which tool.
    pub tool: ToolName,
    /// The arguments: an object, sent as it is.
    pub arguments: JsonText,
    /// Where the call came in.
    pub surface: Surface,
    /// The consent to spend, when the tool needs one.
    pub approval: Option<ApprovalId>,
    /// The reason of an admin who goes past approval; refused from everybody else.
    pub break_glass: Option<String>,
    /// A shorter time than the policy, the server or the installation allow.
    pub timeout: Option<Duration>,
    /// The inbound session that the call belongs to, where there is one.
    pub inbound_session: Option<String>,
}

impl InvokeRequest {
    /// A plain call.
    pub fn new(server: ServerId, tool: ToolName, arguments: JsonText, surface: Surface) -> Self {
        Self {
            server,
            tool,
            arguments,
            surface,
            approval: None,
            break_glass: None,
            timeout: None,
            inbound_session: None,
        }
    }
}

/// A call that the tool has answered.
#[derive(Clone, Debug)]
pub struct InvokeOutcome {
    /// The call in the ledger.
    pub invocation: InvocationId,
    /// The answer, also when the tool says that it failed.
    pub answer: Answer,
    /// From the request to the answer.
    pub duration: Duration,
}

impl Caliber {
    /// Makes one call: admission, ledger, gateway, in this order. Dropping the future cancels the call, upstream
    /// included; it still ends in exactly one record.
    ///
    /// # Errors
    ///
    /// `NotFound` when the server is absent or hidden. `Denied` and `RateLimited` with the reason code of the
    /// step that refused. `ApprovalNeeded`, with the request for consent in the context `approval`. `Upstream`,
    /// `Timeout`, `TooLarge`, `Unavailable`, and `OutcomeUnknown` when the call was sent and its answer was lost.
    /// Every error of a call that was recorded carries the context `invocation`.
    pub async fn invoke(&self, principal: &Principal, request: InvokeRequest) -> Result<InvokeOutcome> {
        let cancel = CancellationToken::new();
        let guard = cancel.clone().drop_guard();
        let call = Call {
            inner: Arc::clone(&self.inner),
            _under_way: self.inner.under_way(),
            principal: principal.clone(),
            request,
            started: Instant::now(),
            started_at: self.inner.now(),
            cancel,
        };
        // An owned task: a caller that goes away cannot leave a call without its record.
        let outcome = to_the_end(call.run()).await;
        drop(guard.disarm());
        outcome
    }
}

/// One call on its way.
struct Call {
    inner: Arc<Inner>,
    _under_way: UnderWay,
    principal: Principal,
    request: InvokeRequest,
    started: Instant,
    started_at: Timestamp,
    cancel: CancellationToken,
}

/// A call that was allowed, with everything that the rest of the way needs.
struct Admitted {
    facts: StoredFacts,
    policy: ToolPolicy,
    target: Target,
    deadline: Deadline,
}

impl Call {
    async fn run(self) -> Result<InvokeOutcome> {
        let inner = &self.inner;
        check_break_glass(self.request.break_glass.as_deref())?;
        let argument_digest = ArgumentDigest::of(self.request.arguments.canonical()?.as_bytes());
        let reserve_until = self.deadline(None, None);
        tokio::select! {
            room = inner.room_for_record() => room?,
            () = self.cancel.cancelled() => return Err(cancelled()),
            () = tokio::time::sleep_until(reserve_until.instant()) => return Err(busy_ledger()),
        }
        // Read before a place is reserved: a server that the caller may not see takes no place, nor time.
        let mut facts = self.facts().await?;
        let mut open = OpenCall::new(inner, self.invocation(&facts, argument_digest), self.started);
        let concurrency = facts.server.definition.limits.concurrency;
        let (slot, waited) = self.reserve(concurrency, reserve_until).await;
        if waited {
            // What was revoked meanwhile binds this call.
            match self.facts().await {
                Ok(current) => facts = current,
                Err(error) => return Err(open.refused(error)),
            }
        }
        let slot = match slot {
            Ok(slot) => slot,
            Err(error) => return Err(open.refused(error)),
        };
        match self.admit(facts, &mut open, argument_digest).await {
            Ok(admitted) => self.make(admitted, open, slot).await,
            Err(error) => Err(open.refused(error)),
        }
    }

    /// Takes a place at the server; tells also whether that took time.
    async fn reserve(&self, concurrency: Option<u32>, until: Deadline) -> (Result<Slot>, bool) {
        let gateway = &self.inner.gateway;
        let mut reserving = pin!(gateway.reserve(&self.request.server, concurrency, until));
        match poll_fn(|context| Poll::Ready(reserving.as_mut().poll(context))).await {
            Poll::Ready(slot) => (slot, false),
            Poll::Pending => tokio::select! {
                slot = reserving => (slot, true),
                () = self.cancel.cancelled() => (Err(cancelled()), true),
            },
        }
    }

    /// The facts of the store, if the caller may see the server.
    async fn facts(&self) -> Result<StoredFacts> {
        let query = AdmissionQuery {
            server: self.request.server.clone(),
            tool: self.request.tool.clone(),
            subject: self.principal.subject.clone(),
            project: self.principal.project.clone(),
            approval: self.request.approval.clone(),
        };
        let facts = self.inner.registry.admission(&query).await?;
        let facts = facts.filter(|facts| {
            let server = &facts.server;
            sees(
                &self.principal,
                (&server.owner, &server.project, server.visibility),
            )
        });
        facts.ok_or_else(|| Error::not_found("server", self.request.server.as_str()))
    }

    fn invocation(&self, facts: &StoredFacts, argument_digest: ArgumentDigest) -> Invocation {
        Invocation {
            id: InvocationId::new(),
            started_at: self.started_at,
            subject: self.principal.subject.clone(),
            identity: self.principal.identity.clone(),
            surface: self.request.surface,
            project: facts.server.project.clone(),
            tool: InvokedTool::Server {
                server: facts.server.id.clone(),
                server_name: facts.server.definition.name.clone(),
                tool: self.request.tool.clone(),
                descriptor_digest: facts.tool.as_ref().map(|tool| tool.digest),
                policy_revision: facts.classification.as_ref().map(|bound| bound.revision),
            },
            side_effect_level: facts
                .classification
                .as_ref()
                .map(|bound| bound.policy.side_effect_level),
            argument_digest,
            approval: None,
            break_glass: self.request.break_glass.clone(),
        }
    }

    /// Decides, spends the quota, and commits the intent where there may be an effect.
    async fn admit(
        &self,
        mut facts: StoredFacts,
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
            let target = inner.target(&facts.server);
            let mut question = self.question(&facts, &target, argument_digest).await;
            self.decide(&question, &facts).await?;
            let Some(policy) = facts.classification.as_ref().map(|bound| bound.policy.clone()) else {
                return Err(contradiction(
                    "the policy allowed a call without a classification",
                ));
            };
            if let Some(limit) = policy.rate_limit_per_minute
                && !quota_spent
            {
                let key = format!("{}/{}", self.request.server, self.request.tool);
                question.quota = inner.spend(&key, limit).await;
                if question.quota == QuotaFact::NotAsked {
                    quota_spent = true;
                } else {
                    self.decide(&question, &facts).await?;
                    return Err(contradiction("the policy allowed a call beyond its rate"));
                }
            }
            let deadline = self.deadline(policy.timeout(), facts.server.definition.limits.timeout());
            let spends_approval = policy.requires_approval && self.request.break_glass.is_none();
            open.invocation.approval = if spends_approval {
                self.request.approval.clone()
            } else {
                None
            };
            if policy.side_effect_level > SideEffectLevel::Read || spends_approval {
                let who = (&self.principal, self.request.surface);
                match inner.begin(who, &open.invocation, &facts.expect, deadline).await {
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
                policy,
                target,
                deadline,
            });
        }
        Err(keeps_changing())
    }

    /// Gathers what the policy decides on.
    async fn question(
        &self,
        facts: &StoredFacts,
        target: &Target,
        argument_digest: ArgumentDigest,
    ) -> ServerToolFacts {
        let inner = &self.inner;
        let project = &facts.server.project;
        let inventory = match (&facts.tool, &facts.withheld) {
            _ if !facts.discovered => InventoryFact::Absent,
            (Some(tool), _) => InventoryFact::Listed(tool.digest),
            (None, Some(reason)) => InventoryFact::Withheld {
                reason: reason.clone(),
            },
            (None, None) => InventoryFact::Unlisted,
        };
        let session = inner.gateway.session(target, &self.caller(), &self.request.tool);
        ServerToolFacts {
            now: inner.now(),
            status: facts.server.status,
            readiness: inner.readiness(target).await,
            inventory,
            classification: facts.classification.clone(),
            fingerprint: target.definition.fingerprint(),
            session,
            caller: CallerFact {
                subject: self.principal.subject.clone(),
                scopes: self.principal.scopes_in(project),
                grants: facts
                    .grants
                    .iter()
                    .filter_map(|grant| match &grant.tools {
                        GrantedTools::Server { tool, .. } => {
                            Some((grantee(&self.principal, project, grant)?, tool.clone()))
                        }
                        GrantedTools::Family { .. } => None,
                    })
                    .collect(),
                tool: self.request.tool.clone(),
                break_glass: self.request.break_glass.clone(),
            },
            arguments: self.check_arguments(facts).await,
            quota: QuotaFact::NotAsked,
            approval: facts.approval.clone(),
            argument_digest,
        }
    }

    async fn check_arguments(&self, facts: &StoredFacts) -> ArgumentsFact {
        let Some(tool) = &facts.tool else {
            // Admission ends at an earlier step; nothing is judged here.
            return ArgumentsFact::Unchecked {
                problem: "the tool is not in the inventory".to_owned(),
            };
        };
        let (owner, schema) = (tool.digest.into(), Some(&tool.input_schema));
        self.inner
            .check_arguments(owner, schema, &self.request.arguments)
            .await
    }

    /// Asks the policy; everything but a plain yes becomes the error that the caller gets.
    async fn decide(&self, question: &ServerToolFacts, facts: &StoredFacts) -> Result<()> {
        let decision = self.inner.policy.decide(question.into());
        let wanted = match (&question.inventory, &self.request.approval) {
            (InventoryFact::Listed(digest), None) if decision.outcome == Outcome::NeedsApproval => {
                Some(WantedApproval {
                    project: facts.server.project.clone(),
                    tool: RequestedTool::Server {
                        server: self.request.server.clone(),
                        tool: self.request.tool.clone(),
                        descriptor_digest: *digest,
                    },
                    arguments: self.request.arguments.clone(),
                    argument_digest: question.argument_digest,
                })
            }
            _ => None,
        };
        let who = (&self.principal, self.request.surface);
        self.inner.pass(decision, question.quota, who, wanted).await
    }

    /// Makes the call that was admitted, and settles it.
    async fn make(self, admitted: Admitted, open: OpenCall, slot: Slot) -> Result<InvokeOutcome> {
        let Admitted {
            facts,
            policy,
            target,
            deadline,
        } = admitted;
        let Some(tool) = &facts.tool else {
            return open.settled(Err(contradiction("an admitted tool is not in the inventory")));
        };
        let limits = &target.definition.limits;
        let result_bytes = [policy.result_bytes, limits.result_bytes]
            .into_iter()
            .flatten()
            .min()
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or(self.inner.settings.result_bytes);
        let permit = Permit {
            invocation: open.invocation.id.clone(),
            server: facts.server.id.clone(),
            target: target.clone(),
            tool: self.request.tool.clone(),
            arguments: self.request.arguments.clone(),
            descriptor_digest: tool.digest,
            caller: self.caller(),
            deadline,
            result_bytes,
            replay_safe: policy.replay_safe,
            slot,
        };
        let answer = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(cancelled().after_sending()),
            answer = self.inner.gateway.call(permit) => answer,
            () = tokio::time::sleep_until(deadline.instant() + GATEWAY_GRACE) => Err(
                Error::new(ErrorKind::Timeout, "the call did not end by its deadline")
                    .with_reason(ReasonCode::Timeout)
                    .after_sending()
            ),
        };
        let answer = match answer {
            Ok(answer) => self.check_result(&facts, answer).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &answer
            && matches!(
                error.reason(),
                Some(ReasonCode::Drifted | ReasonCode::ToolUnknown)
            )
            && let Err(error) = self.inner.apply_waiting_listings().await
        {
            tracing::warn!(%error, "a changed listing could not be stored");
        }
        open.settled(answer)
    }

    /// A result that promises structure must have it. What a tool says about its own failure is passed on as it is.
    async fn check_result(&self, facts: &StoredFacts, answer: Answer) -> Result<Answer> {
        let Some(tool) = &facts.tool else {
            return Ok(answer);
        };
        let Some(schema) = &tool.output_schema else {
            return Ok(answer);
        };
        if answer.is_error {
            return Ok(answer);
        }
        let problem = match answer.result.member("structuredContent") {
            None => "the tool promises structured content and sent none".to_owned(),
            Some(structured) => match self
                .inner
                .schemas
                .check(tool.digest, Part::Output, schema, &structured)
                .await
            {
                Fit::Fits => return Ok(answer),
                Fit::Unfit(problem) => format!("the result does not fit the tool's output schema: {problem}"),
                Fit::Unchecked(problem) => format!("the result could not be checked: {problem}"),
            },
        };
        Err(Error::new(ErrorKind::Upstream, problem)
            .with_reason(ReasonCode::ResultInvalid)
            .after_sending())
    }

    /// The one absolute deadline, counted from the request: the shortest of what policy and server say, or the
    /// setting of the installation where neither speaks. The caller can only shorten it.
    fn deadline(&self, policy: Option<Duration>, server: Option<Duration>) -> Deadline {
        let allowed = [policy, server].into_iter().flatten().min();
        let allowed = allowed.unwrap_or(self.inner.settings.call_timeout);
        let length = self.request.timeout.map_or(allowed, |wanted| wanted.min(allowed));
        Deadline::after(length.saturating_sub(self.started.elapsed()))
    }

    fn caller(&self) -> CallerKey {
        CallerKey {
            subject: self.principal.subject.clone(),
            inbound_session: self.request.inbound_session.clone(),
        }
    }
}
