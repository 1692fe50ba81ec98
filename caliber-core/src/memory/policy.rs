//! The admission order in its plainest form.

use crate::admission::{
    AdmissionFacts, AdmissionPolicy, ArgumentsFact, CodeToolFacts, Decision, InventoryFact, QuotaFact,
    ServerToolFacts, SessionFact,
};
use crate::approval::{Approval, ApprovalState, RequestedTool};
use crate::clock::Timestamp;
use crate::code_tool::{CodeToolDefinition, CodeToolStatus};
use crate::grant::Grantee;
use crate::inventory::{ToolState, classification_state};
use crate::principal::{Scope, Subject};
use crate::readiness::{Boundary, Readiness, ReadinessFacts};
use crate::reason::{Reason, ReasonCode};
use crate::server::{Endpoint, ServerStatus};

/// An [`AdmissionPolicy`] that asks in the order of the design and holds every endpoint ready: for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferencePolicy;

impl AdmissionPolicy for ReferencePolicy {
    fn decide(&self, facts: AdmissionFacts<'_>) -> Decision {
        let decision = match facts {
            AdmissionFacts::ServerTool(facts) => decide(facts),
            AdmissionFacts::CodeTool(facts) => decide_run(facts),
        };
        decision.unwrap_or_else(|refusal| refusal)
    }

    fn readiness(&self, facts: &ReadinessFacts) -> Readiness {
        let boundary = match &facts.definition.endpoint {
            Endpoint::Stdio(_) => Boundary::LocalContainment,
            _ => Boundary::RemoteTransport,
        };
        Readiness {
            boundary,
            controls: Vec::new(),
            blockers: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn blockers(&self, _: &CodeToolDefinition) -> Vec<Reason> {
        Vec::new()
    }
}

fn deny(code: ReasonCode, text: &str) -> Decision {
    Decision::deny(Reason::new(code, text))
}

/// The steps, one after the other; the first that fails answers.
fn decide(facts: &ServerToolFacts) -> Result<Decision, Decision> {
    let of_another_tool = facts
        .classification
        .as_ref()
        .is_some_and(|bound| bound.tool != facts.caller.tool);
    let without_reason = facts
        .caller
        .break_glass
        .as_ref()
        .is_some_and(|reason| reason.trim().is_empty());
    if of_another_tool || without_reason {
        return Err(deny(ReasonCode::PolicyError, "the facts contradict each other"));
    }
    if facts.status != ServerStatus::Active {
        return Err(deny(
            ReasonCode::ServerDisabled,
            "the server is disabled; an admin can enable it",
        ));
    }
    if !facts.readiness.is_ready() {
        let mut decision = deny(
            ReasonCode::ServerNotReady,
            "the server may not be started or dialled",
        );
        decision.reasons.extend(facts.readiness.blockers.iter().cloned());
        return Err(decision);
    }
    let listed = match (&facts.inventory, facts.session) {
        (InventoryFact::Absent, _) => {
            return Err(deny(
                ReasonCode::InventoryAbsent,
                "the server was never discovered; discover it",
            ));
        }
        (InventoryFact::Withheld { reason }, _) => {
            return Err(deny(
                ReasonCode::ToolWithheld,
                &format!("the tool cannot be offered: {reason}"),
            ));
        }
        (InventoryFact::Unlisted, _) | (InventoryFact::Listed(_), SessionFact::Unlisted) => {
            return Err(deny(
                ReasonCode::ToolUnknown,
                "the server offers no such tool; discover it again",
            ));
        }
        (InventoryFact::Listed(digest), SessionFact::NotOpen | SessionFact::Advertised(_)) => *digest,
    };
    let Some(bound) = &facts.classification else {
        return Err(deny(ReasonCode::Unclassified, "no admin has classified the tool"));
    };
    let in_session = match facts.session {
        SessionFact::Advertised(digest) => digest == bound.descriptor_digest,
        SessionFact::NotOpen | SessionFact::Unlisted => true,
    };
    if classification_state(Some(bound), listed, facts.fingerprint) != ToolState::Classified || !in_session {
        return Err(deny(
            ReasonCode::Drifted,
            "the tool has changed since it was classified; look at the difference and classify it again",
        ));
    }
    if !bound.policy.allowed {
        return Err(deny(ReasonCode::Blocked, "the policy does not allow the tool"));
    }
    if !may(facts) {
        return Err(deny(
            ReasonCode::NotGranted,
            "no grant lets this caller call the tool",
        ));
    }
    fit(&facts.arguments)?;
    if bound.policy.requires_approval && facts.caller.break_glass.is_none() {
        let wanted = RequestedTool::Server {
            server: bound.server.clone(),
            tool: facts.caller.tool.clone(),
            descriptor_digest: listed,
        };
        let same_call = |approval: &Approval| {
            approval.tool == wanted && approval.argument_digest == facts.argument_digest
        };
        consent(
            facts.approval.as_ref(),
            same_call,
            &facts.caller.subject,
            facts.now,
        )?;
    }
    quota(facts.quota)
}

/// The same for a run.
fn decide_run(facts: &CodeToolFacts) -> Result<Decision, Decision> {
    let caller = &facts.caller;
    let without_reason = caller
        .break_glass
        .as_ref()
        .is_some_and(|reason| reason.trim().is_empty());
    if without_reason {
        return Err(deny(ReasonCode::PolicyError, "the facts contradict each other"));
    }
    if facts.status == CodeToolStatus::Archived {
        return Err(deny(
            ReasonCode::ToolArchived,
            "the version is archived; use another one",
        ));
    }
    if !facts.sandbox.as_ref().is_some_and(|report| report.is_available()) {
        return Err(deny(
            ReasonCode::SandboxUnavailable,
            "there is no sandbox that enforces what is required",
        ));
    }
    if let Some(first) = facts.blockers.first() {
        let mut decision = deny(first.code, &first.text);
        decision.reasons.extend(facts.blockers.iter().skip(1).cloned());
        return Err(decision);
    }
    if facts.computed_hash != facts.content_hash
        || facts
            .expected_hash
            .is_some_and(|expected| expected != facts.content_hash)
    {
        return Err(deny(
            ReasonCode::SourceChanged,
            "the tool is not the one that was registered, or was pinned",
        ));
    }
    let granted = caller.grants.iter().any(|grantee| match grantee {
        Grantee::Subject(subject) => *subject == caller.subject,
        Grantee::Scope(scope) => caller.scopes.allow(*scope),
    });
    if !caller.scopes.allow(Scope::Admin) && (!granted || caller.break_glass.is_some()) {
        return Err(deny(
            ReasonCode::NotGranted,
            "no grant lets this caller run the tool",
        ));
    }
    fit(&facts.arguments)?;
    if facts.policy.requires_approval && caller.break_glass.is_none() {
        let same_call = |approval: &Approval| {
            matches!(&approval.tool, RequestedTool::Code { id, content_hash, .. }
                if *id == facts.tool && *content_hash == facts.content_hash)
                && approval.argument_digest == facts.argument_digest
        };
        consent(facts.approval.as_ref(), same_call, &caller.subject, facts.now)?;
    }
    quota(facts.quota)
}

fn fit(arguments: &ArgumentsFact) -> Result<(), Decision> {
    match arguments {
        ArgumentsFact::Fit => Ok(()),
        ArgumentsFact::Unfit { problem } => Err(deny(ReasonCode::ArgumentsInvalid, problem)),
        ArgumentsFact::Unchecked { problem } => Err(deny(ReasonCode::ArgumentsUnchecked, problem)),
    }
}

fn quota(quota: QuotaFact) -> Result<Decision, Decision> {
    match quota {
        QuotaFact::NotAsked => Ok(Decision::allow()),
        QuotaFact::Exhausted { .. } => Err(deny(
            ReasonCode::RateLimited,
            "the tool's calls of this minute are spent; try again later",
        )),
        QuotaFact::Unavailable => Err(deny(
            ReasonCode::QuotaUnavailable,
            "the quota could not be asked; try again later",
        )),
    }
}

/// Admins may call what is allowed, also past approval; others need a grant for the tool, and approval.
fn may(facts: &ServerToolFacts) -> bool {
    let caller = &facts.caller;
    let granted = caller.grants.iter().any(|(grantee, tool)| {
        let to_caller = match grantee {
            Grantee::Subject(subject) => *subject == caller.subject,
            Grantee::Scope(scope) => caller.scopes.allow(*scope),
        };
        to_caller && tool.as_ref().is_none_or(|tool| *tool == caller.tool)
    });
    caller.scopes.allow(Scope::Admin) || (granted && caller.break_glass.is_none())
}

/// Whether somebody else consented to exactly this call.
fn consent(
    approval: Option<&Approval>,
    is_same_call: impl Fn(&Approval) -> bool,
    caller: &Subject,
    now: Timestamp,
) -> Result<(), Decision> {
    let Some(approval) = approval else {
        return Err(Decision::needs_approval(Reason::new(
            ReasonCode::ApprovalRequired,
            "the call needs a person's consent",
        )));
    };
    let refused = |text: &str| Err(Decision::deny(Reason::new(ReasonCode::ApprovalInvalid, text)));
    if !is_same_call(approval) || approval.requested_by != *caller {
        return refused("the approval belongs to another call");
    }
    if approval.expires_at <= now {
        return refused("the approval has expired; ask again");
    }
    match &approval.state {
        ApprovalState::Pending => Err(Decision::needs_approval(Reason::new(
            ReasonCode::ApprovalRequired,
            "nobody has decided about the call yet",
        ))),
        ApprovalState::Approved { by, .. } if *by == approval.requested_by => {
            refused("somebody else than the caller has to consent")
        }
        ApprovalState::Approved { .. } => Ok(()),
        ApprovalState::Refused { .. } | ApprovalState::Spent { .. } => {
            refused("the approval is refused or spent")
        }
    }
}
