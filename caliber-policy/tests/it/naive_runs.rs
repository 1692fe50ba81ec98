//! The second evaluator of runs: a table of everything that can stand in the way, in the order in which rows answer. It
//! shares no function with the first.

use caliber_core::admission::{ArgumentsFact, CodeToolFacts, Outcome, QuotaFact};
use caliber_core::approval::{ApprovalState, RequestedTool};
use caliber_core::code_tool::CodeToolStatus;
use caliber_core::grant::Grantee;
use caliber_core::policy::SideEffectLevel;
use caliber_core::principal::Scope;
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::Enforcement;

type Row = (ReasonCode, Outcome, fn(&CodeToolFacts) -> bool);

const BEFORE_BLOCKERS: &[Row] = &[
    (ReasonCode::PolicyError, Outcome::Deny, |facts| {
        let policy = &facts.policy;
        let effects = policy.side_effect_level != SideEffectLevel::Read;
        let bounds = [
            (policy.rate_limit_per_minute.map(u64::from), 100_000),
            (policy.timeout_ms, 3_600_000),
            (policy.result_bytes, 67_108_864),
        ];
        let waiver = policy.approval_waiver.as_deref();
        !policy.allowed
            || (effects && !policy.requires_approval && waiver.is_none())
            || (policy.requires_approval && waiver.is_some())
            || waiver.is_some_and(|reason| reason.len() > 1_000 || reason.chars().all(char::is_whitespace))
            || bounds
                .iter()
                .any(|(value, most)| value.is_some_and(|value| value == 0 || value > *most))
    }),
    (ReasonCode::PolicyError, Outcome::Deny, |facts| {
        facts.policy.rate_limit_per_minute.is_none() && facts.quota != QuotaFact::NotAsked
    }),
    (ReasonCode::PolicyError, Outcome::Deny, |facts| {
        let reason = facts.caller.break_glass.as_ref();
        reason.is_some_and(|reason| reason.chars().all(char::is_whitespace))
    }),
    (ReasonCode::ToolArchived, Outcome::Deny, |facts| {
        facts.status == CodeToolStatus::Archived
    }),
    (ReasonCode::SandboxUnavailable, Outcome::Deny, |facts| {
        let Some(report) = &facts.sandbox else {
            return true;
        };
        let all_hold = report.required.iter().all(|required| {
            matches!(
                report.guarantees.get(required),
                Some(Enforcement::Enforced { .. })
            )
        });
        report.problem.is_some() || !(all_hold || report.unenforced_allowed)
    }),
];

const AFTER_BLOCKERS: &[Row] = &[
    (ReasonCode::SourceChanged, Outcome::Deny, |facts| {
        let mut hashes = vec![facts.content_hash, facts.computed_hash];
        hashes.extend(facts.expected_hash);
        hashes.windows(2).any(|pair| pair[0] != pair[1])
    }),
    (ReasonCode::NotGranted, Outcome::Deny, |facts| {
        let caller = &facts.caller;
        let held: Vec<Scope> = caller.scopes.iter().collect();
        let mut grants = caller.grants.clone();
        grants.retain(|grantee| match grantee {
            Grantee::Subject(subject) => subject.as_str() == caller.subject.as_str(),
            Grantee::Scope(scope) => held.contains(scope),
        });
        !held.contains(&Scope::Admin) && (grants.is_empty() || caller.break_glass.is_some())
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
                let RequestedTool::Code { id, content_hash, .. } = &approval.tool else {
                    return true;
                };
                let alone = match &approval.state {
                    ApprovalState::Approved { by, .. } | ApprovalState::Spent { by, .. } => {
                        by.as_str() == approval.requested_by.as_str()
                    }
                    ApprovalState::Pending | ApprovalState::Refused { .. } => false,
                };
                let fits = id.as_str() == facts.tool.as_str()
                    && *content_hash == facts.content_hash
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
pub(crate) fn decide(facts: &CodeToolFacts) -> (Outcome, Option<ReasonCode>) {
    let answer = |rows: &[Row]| {
        let row = rows
            .iter()
            .find(|(_, _, stands_in_the_way)| stands_in_the_way(facts));
        row.map(|(code, outcome, _)| (*outcome, Some(*code)))
    };
    let blocked = facts
        .blockers
        .first()
        .map(|blocker| (Outcome::Deny, Some(blocker.code)));
    answer(BEFORE_BLOCKERS)
        .or(blocked)
        .or_else(|| answer(AFTER_BLOCKERS))
        .unwrap_or((Outcome::Allow, None))
}

fn needs_consent(facts: &CodeToolFacts) -> bool {
    facts.policy.requires_approval && facts.caller.break_glass.is_none()
}

fn state(facts: &CodeToolFacts) -> Option<&'static str> {
    facts.approval.as_ref().map(|approval| match approval.state {
        ApprovalState::Pending => "pending",
        ApprovalState::Approved { .. } => "approved",
        ApprovalState::Refused { .. } => "refused",
        ApprovalState::Spent { .. } => "spent",
    })
}
