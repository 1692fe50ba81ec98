//! A second evaluator of admission, written as differently as can be: a table of everything that can stand in the
//! way, each row complete in itself, in the order in which rows answer. It shares no function with the first.

use caliber_core::admission::{
    ArgumentsFact, InventoryFact, Outcome, QuotaFact, ServerToolFacts, SessionFact,
};
use caliber_core::approval::{ApprovalState, RequestedTool};
use caliber_core::grant::Grantee;
use caliber_core::policy::SideEffectLevel;
use caliber_core::principal::Scope;
use caliber_core::reason::ReasonCode;
use caliber_core::server::ServerStatus;

type Row = (ReasonCode, Outcome, fn(&ServerToolFacts) -> bool);

const TABLE: &[Row] = &[
    (ReasonCode::PolicyError, Outcome::Deny, |facts| {
        let Some(bound) = &facts.classification else {
            return facts.quota != QuotaFact::NotAsked;
        };
        bound.tool.as_str() != facts.caller.tool.as_str()
    }),
    (ReasonCode::PolicyError, Outcome::Deny, |facts| {
        let Some(bound) = &facts.classification else {
            return false;
        };
        let policy = &bound.policy;
        let waived = policy.approval_waiver.is_some();
        let unguarded =
            policy.side_effect_level != SideEffectLevel::Read && !policy.requires_approval && !waived;
        let bounds = [
            (policy.rate_limit_per_minute.map(u64::from), 100_000),
            (policy.timeout_ms, 3_600_000),
            (policy.result_bytes, 67_108_864),
        ];
        (policy.allowed && unguarded)
            || (policy.requires_approval && waived)
            || policy
                .approval_waiver
                .iter()
                .any(|reason| reason.len() > 1_000 || reason.chars().all(char::is_whitespace))
            || bounds
                .iter()
                .any(|(value, most)| value.is_some_and(|value| value == 0 || value > *most))
    }),
    (ReasonCode::PolicyError, Outcome::Deny, |facts| {
        let limited = facts
            .classification
            .as_ref()
            .and_then(|bound| bound.policy.rate_limit_per_minute);
        limited.is_none() && facts.quota != QuotaFact::NotAsked
    }),
    (ReasonCode::PolicyError, Outcome::Deny, |facts| {
        let reason = facts.caller.break_glass.as_ref();
        reason.is_some_and(|reason| reason.chars().all(char::is_whitespace))
    }),
    (ReasonCode::ServerDisabled, Outcome::Deny, |facts| {
        facts.status == ServerStatus::Disabled
    }),
    (ReasonCode::ServerNotReady, Outcome::Deny, |facts| {
        !facts.readiness.blockers.is_empty()
    }),
    (ReasonCode::InventoryAbsent, Outcome::Deny, |facts| {
        facts.inventory == InventoryFact::Absent
    }),
    (ReasonCode::ToolUnknown, Outcome::Deny, |facts| {
        facts.inventory == InventoryFact::Unlisted
    }),
    (ReasonCode::ToolWithheld, Outcome::Deny, |facts| {
        matches!(facts.inventory, InventoryFact::Withheld { .. })
    }),
    (ReasonCode::ToolUnknown, Outcome::Deny, |facts| {
        facts.session == SessionFact::Unlisted
    }),
    (ReasonCode::Unclassified, Outcome::Deny, |facts| {
        facts.classification.is_none()
    }),
    (ReasonCode::Drifted, Outcome::Deny, |facts| {
        let Some(bound) = &facts.classification else {
            return true;
        };
        let now = match facts.session {
            SessionFact::Advertised(seen) => vec![InventoryFact::Listed(seen), facts.inventory.clone()],
            _ => vec![facts.inventory.clone()],
        };
        let then = InventoryFact::Listed(bound.descriptor_digest);
        bound.drifted_at.is_some()
            || bound.fingerprint != facts.fingerprint
            || now.iter().any(|seen| *seen != then)
    }),
    (ReasonCode::Blocked, Outcome::Deny, |facts| {
        !facts
            .classification
            .as_ref()
            .is_some_and(|bound| bound.policy.allowed)
    }),
    (ReasonCode::NotGranted, Outcome::Deny, |facts| {
        let caller = &facts.caller;
        let held: Vec<Scope> = caller.scopes.iter().collect();
        let mut grants = caller.grants.clone();
        grants.retain(|(grantee, _)| match grantee {
            Grantee::Subject(subject) => subject.as_str() == caller.subject.as_str(),
            Grantee::Scope(scope) => held.contains(scope),
        });
        grants.retain(|(_, tool)| match tool {
            Some(tool) => tool.as_str() == caller.tool.as_str(),
            None => true,
        });
        let is_admin = held.contains(&Scope::Admin);
        !is_admin && (grants.is_empty() || caller.break_glass.is_some())
    }),
    (ReasonCode::ArgumentsInvalid, Outcome::Deny, |facts| {
        matches!(facts.arguments, ArgumentsFact::Unfit { .. })
    }),
    (ReasonCode::ArgumentsUnchecked, Outcome::Deny, |facts| {
        matches!(facts.arguments, ArgumentsFact::Unchecked { .. })
    }),
    (ReasonCode::ApprovalRequired, Outcome::NeedsApproval, |facts| {
        needs_consent(facts) && facts.approval.is_none()
    }),
    (ReasonCode::ApprovalInvalid, Outcome::Deny, |facts| {
        needs_consent(facts)
            && facts.approval.as_ref().is_some_and(|approval| {
                let classified = facts.classification.as_ref();
                let alone = match &approval.state {
                    ApprovalState::Approved { by, .. } | ApprovalState::Spent { by, .. } => {
                        by.as_str() == approval.requested_by.as_str()
                    }
                    ApprovalState::Pending | ApprovalState::Refused { .. } => false,
                };
                let RequestedTool::Server {
                    server,
                    tool,
                    descriptor_digest,
                } = &approval.tool
                else {
                    return true;
                };
                let fits = classified.is_some_and(|bound| bound.server == *server)
                    && tool.as_str() == facts.caller.tool.as_str()
                    && facts.inventory == InventoryFact::Listed(*descriptor_digest)
                    && approval.argument_digest == facts.argument_digest
                    && approval.requested_by.as_str() == facts.caller.subject.as_str()
                    && facts.now < approval.expires_at
                    && !alone;
                !fits
            })
    }),
    (ReasonCode::ApprovalRequired, Outcome::NeedsApproval, |facts| {
        needs_consent(facts) && state(facts) == Some("pending")
    }),
    (ReasonCode::ApprovalInvalid, Outcome::Deny, |facts| {
        needs_consent(facts) && state(facts) != Some("approved")
    }),
    (ReasonCode::RateLimited, Outcome::Deny, |facts| {
        matches!(facts.quota, QuotaFact::Exhausted { .. })
    }),
    (ReasonCode::QuotaUnavailable, Outcome::Deny, |facts| {
        facts.quota == QuotaFact::Unavailable
    }),
];

/// What follows, and the code of the deciding reason.
pub(crate) fn decide(facts: &ServerToolFacts) -> (Outcome, Option<ReasonCode>) {
    for (code, outcome, stands_in_the_way) in TABLE {
        if stands_in_the_way(facts) {
            return (*outcome, Some(*code));
        }
    }
    (Outcome::Allow, None)
}

fn needs_consent(facts: &ServerToolFacts) -> bool {
    let asked = facts
        .classification
        .as_ref()
        .is_some_and(|bound| bound.policy.requires_approval);
    asked && facts.caller.break_glass.is_none()
}

fn state(facts: &ServerToolFacts) -> Option<&'static str> {
    facts.approval.as_ref().map(|approval| match approval.state {
        ApprovalState::Pending => "pending",
        ApprovalState::Approved { .. } => "approved",
        ApprovalState::Refused { .. } => "refused",
        ApprovalState::Spent { .. } => "spent",
    })
}
