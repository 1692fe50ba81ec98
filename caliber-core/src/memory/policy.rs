//! The admission order in its plainest form.

use crate::admission::{
    AdmissionFacts, AdmissionPolicy, ArgumentsFact, Decision, InventoryFact, QuotaFact, SessionFact,
};
use crate::approval::ApprovalState;
use crate::grant::Grantee;
use crate::inventory::{ToolState, classification_state};
use crate::principal::Scope;
use crate::readiness::{Boundary, Readiness, ReadinessFacts};
use crate::reason::{Reason, ReasonCode};
use crate::server::{Endpoint, ServerStatus};

/// An [`AdmissionPolicy`] that asks in the order of the design and holds every endpoint ready: for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferencePolicy;

impl AdmissionPolicy for ReferencePolicy {
    fn decide(&self, facts: &AdmissionFacts) -> Decision {
        decide(facts).unwrap_or_else(|decision| decision)
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
}

/// The steps, one after the other; the first that fails answers.
fn decide(facts: &AdmissionFacts) -> Result<Decision, Decision> {
    let deny = |code, text: &str| Decision::deny(Reason::new(code, text));
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
    match &facts.arguments {
        ArgumentsFact::Fit => {}
        ArgumentsFact::Unfit { problem } => return Err(deny(ReasonCode::ArgumentsInvalid, problem)),
        ArgumentsFact::Unchecked { problem } => return Err(deny(ReasonCode::ArgumentsUnchecked, problem)),
    }
    if bound.policy.requires_approval && facts.caller.break_glass.is_none() {
        consent(facts)?;
    }
    match facts.quota {
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
fn may(facts: &AdmissionFacts) -> bool {
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
fn consent(facts: &AdmissionFacts) -> Result<(), Decision> {
    let Some(approval) = &facts.approval else {
        return Err(Decision::needs_approval(Reason::new(
            ReasonCode::ApprovalRequired,
            "the call needs a person's consent",
        )));
    };
    let refused = |text: &str| Err(Decision::deny(Reason::new(ReasonCode::ApprovalInvalid, text)));
    let same_call = facts.inventory == InventoryFact::Listed(approval.descriptor_digest)
        && approval.argument_digest == facts.argument_digest
        && approval.tool == facts.caller.tool
        && facts
            .classification
            .as_ref()
            .is_some_and(|bound| bound.server == approval.server)
        && approval.requested_by == facts.caller.subject;
    if !same_call {
        return refused("the approval belongs to another call");
    }
    if approval.expires_at <= facts.now {
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
