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
    let listed = match &facts.inventory {
        InventoryFact::Absent => {
            return Err(deny(
                ReasonCode::InventoryAbsent,
                "the server was never discovered; discover it",
            ));
        }
        InventoryFact::Unlisted => {
            return Err(deny(
                ReasonCode::ToolUnknown,
                "the server offers no such tool; discover it again",
            ));
        }
        InventoryFact::Withheld { reason } => {
            return Err(deny(
                ReasonCode::ToolWithheld,
                &format!("the tool cannot be offered: {reason}"),
            ));
        }
        InventoryFact::Listed(digest) => *digest,
    };
    let Some(bound) = &facts.classification else {
        return Err(deny(ReasonCode::Unclassified, "no admin has classified the tool"));
    };
    if bound.tool != facts.caller.tool {
        return Err(deny(
            ReasonCode::PolicyError,
            "the classification is of another tool",
        ));
    }
    let advertised = match facts.session {
        SessionFact::NotOpen => Some(listed),
        SessionFact::Advertised(digest) => Some(digest),
        SessionFact::Unlisted => None,
    };
    let holds = classification_state(Some(bound), listed, facts.fingerprint) == ToolState::Classified;
    if !holds || advertised != Some(bound.descriptor_digest) {
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
    if let Some(reason) = &facts.caller.break_glass {
        if !facts.caller.scopes.allow(Scope::Admin) || reason.trim().is_empty() {
            return Err(deny(
                ReasonCode::ApprovalInvalid,
                "only an admin with a reason goes past approval",
            ));
        }
    } else if bound.policy.requires_approval {
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

/// Admins may call what is allowed; others need a grant for the tool.
fn may(facts: &AdmissionFacts) -> bool {
    let caller = &facts.caller;
    let granted = caller.grants.iter().any(|(grantee, tool)| {
        let to_caller = match grantee {
            Grantee::Subject(subject) => *subject == caller.subject,
            Grantee::Scope(scope) => caller.scopes.allow(*scope),
        };
        to_caller && tool.as_ref().is_none_or(|tool| *tool == caller.tool)
    });
    granted || caller.scopes.allow(Scope::Admin)
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
    let ApprovalState::Approved { by, .. } = &approval.state else {
        return refused("the approval is not given, refused or spent");
    };
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
    if *by == facts.caller.subject {
        return refused("somebody else than the caller has to consent");
    }
    if approval.expires_at <= facts.now {
        return refused("the approval has expired; ask again");
    }
    Ok(())
}
