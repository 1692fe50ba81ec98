//! The contract of [`AdmissionPolicy::decide`]: the order of its steps,
//! and what is never allowed.

use std::time::Duration;

use super::samples::{descriptor, now, server, subject, tool};
use crate::admission::{
    AdmissionPolicy, ArgumentsFact, CallerFact, Decision, InventoryFact, Outcome, QuotaFact, ServerToolFacts,
    SessionFact,
};
use crate::approval::{Approval, ApprovalState, RequestedTool};
use crate::digest::{ArgumentDigest, ContentHash, DescriptorDigest, Fingerprint};
use crate::grant::Grantee;
use crate::id::{CodeToolId, InvocationId, ServerId};
use crate::policy::{SideEffectLevel, ToolPolicy};
use crate::principal::{Scope, Scopes};
use crate::readiness::{Boundary, Readiness};
use crate::reason::{Reason, ReasonCode};
use crate::server::ServerStatus;

mod runs;

/// Runs every law.
///
/// # Panics
///
/// At the first that is violated.
pub fn run(policy: &dyn AdmissionPolicy) {
    the_first_failing_step_answers(policy);
    every_drift_is_refused(policy);
    only_the_granted_may(policy);
    only_the_very_approval_counts(policy);
    break_glass_is_for_admins(policy);
    contradictions_are_refused(policy);
    runs::the_first_failing_step_of_a_run_answers(policy);
    runs::what_stops_no_run(policy);
}

/// A call with effects that needs approval, has it, and is allowed.
fn allowed() -> ServerToolFacts {
    let record = server("weather");
    let echo = descriptor("echo", "one");
    let mut classification = super::samples::classification(&record, &echo);
    classification.policy = ToolPolicy {
        side_effect_level: SideEffectLevel::Write,
        requires_approval: true,
        rate_limit_per_minute: Some(60),
        ..ToolPolicy::allow_read()
    };
    let argument_digest = ArgumentDigest::of(b"{}");
    let approval = super::samples::approved(&Approval {
        tool: RequestedTool::Server {
            server: record.id.clone(),
            tool: tool("echo"),
            descriptor_digest: echo.digest(),
        },
        argument_digest,
        ..super::samples::approval(&record.id, "echo")
    });
    ServerToolFacts {
        now: now(),
        status: ServerStatus::Active,
        readiness: Readiness {
            boundary: Boundary::RemoteHttps,
            controls: Vec::new(),
            blockers: Vec::new(),
            warnings: vec![Reason::new(ReasonCode::NotIsolated, "a warning stops nothing")],
        },
        inventory: InventoryFact::Listed(echo.digest()),
        classification: Some(classification),
        fingerprint: record.definition.fingerprint(),
        session: SessionFact::Advertised(echo.digest()),
        caller: CallerFact {
            subject: subject("caller"),
            scopes: Scopes::NONE.with(Scope::Viewer),
            grants: vec![(Grantee::Subject(subject("caller")), Some(tool("echo")))],
            tool: tool("echo"),
            break_glass: None,
        },
        arguments: ArgumentsFact::Fit,
        quota: QuotaFact::NotAsked,
        approval: Some(approval),
        argument_digest,
    }
}

/// What is wrong, what it is answered with, in the order of the steps. Those with one number exclude each other.
type Fault = (u8, ReasonCode, fn(&mut ServerToolFacts));

fn faults() -> Vec<Fault> {
    vec![
        (0, ReasonCode::ServerDisabled, |facts| {
            facts.status = ServerStatus::Disabled
        }),
        (1, ReasonCode::ServerNotReady, |facts| {
            facts.readiness.blockers = vec![Reason::new(ReasonCode::HostNotAllowed, "not on the list")];
        }),
        (2, ReasonCode::InventoryAbsent, |facts| {
            facts.inventory = InventoryFact::Absent
        }),
        (2, ReasonCode::ToolUnknown, |facts| {
            facts.inventory = InventoryFact::Unlisted
        }),
        (2, ReasonCode::ToolWithheld, |facts| {
            facts.inventory = InventoryFact::Withheld {
                reason: "too large".to_owned(),
            };
        }),
        (2, ReasonCode::ToolUnknown, |facts| {
            facts.session = SessionFact::Unlisted
        }),
        (3, ReasonCode::Unclassified, |facts| facts.classification = None),
        (3, ReasonCode::Drifted, |facts| {
            facts.fingerprint = Fingerprint::of(b"elsewhere")
        }),
        (4, ReasonCode::Blocked, |facts| {
            if let Some(bound) = &mut facts.classification {
                bound.policy.allowed = false;
            }
        }),
        (5, ReasonCode::NotGranted, |facts| facts.caller.grants.clear()),
        (6, ReasonCode::ArgumentsInvalid, |facts| {
            facts.arguments = ArgumentsFact::Unfit {
                problem: "it does not fit".to_owned(),
            };
        }),
        (6, ReasonCode::ArgumentsUnchecked, |facts| {
            facts.arguments = ArgumentsFact::Unchecked {
                problem: "too large".to_owned(),
            };
        }),
        (7, ReasonCode::ApprovalRequired, |facts| facts.approval = None),
        (7, ReasonCode::ApprovalInvalid, |facts| {
            if let Some(approval) = &mut facts.approval {
                approval.expires_at = facts.now;
            }
        }),
        (8, ReasonCode::RateLimited, |facts| {
            facts.quota = QuotaFact::Exhausted {
                retry_after: Duration::from_secs(1),
            };
        }),
        (8, ReasonCode::QuotaUnavailable, |facts| {
            facts.quota = QuotaFact::Unavailable
        }),
    ]
}

fn reason(decision: &Decision) -> Option<ReasonCode> {
    decision.reasons.first().map(|reason| reason.code)
}

/// Every set of faults: the answer is that of the first step that fails, and never yes.
fn the_first_failing_step_answers(policy: &dyn AdmissionPolicy) {
    let decision = policy.decide((&allowed()).into());
    assert_eq!(
        decision.outcome,
        Outcome::Allow,
        "a faultless call is refused: {decision:?}"
    );
    let faults = faults();
    for set in 1..1_u32 << faults.len() {
        let chosen: Vec<_> = faults
            .iter()
            .enumerate()
            .filter(|(index, _)| set & (1 << index) != 0)
            .collect();
        if chosen.windows(2).any(|pair| pair[0].1.0 == pair[1].1.0) {
            continue;
        }
        // A call that nobody classified has no rate, so a quota that was asked would contradict it.
        let codes: Vec<_> = chosen.iter().map(|(_, fault)| fault.1).collect();
        if codes.contains(&ReasonCode::Unclassified)
            && (codes.contains(&ReasonCode::RateLimited) || codes.contains(&ReasonCode::QuotaUnavailable))
        {
            continue;
        }
        let mut facts = allowed();
        for (_, (_, _, apply)) in &chosen {
            apply(&mut facts);
        }
        let decision = policy.decide((&facts).into());
        assert_eq!(reason(&decision), Some(codes[0]), "of {codes:?}: {decision:?}");
        let expected = match codes[0] {
            ReasonCode::ApprovalRequired => Outcome::NeedsApproval,
            _ => Outcome::Deny,
        };
        assert_eq!(decision.outcome, expected, "of {codes:?}");
        assert!(
            decision
                .reasons
                .iter()
                .all(|reason| !reason.text.trim().is_empty())
        );
    }
}

fn refused_as(
    policy: &dyn AdmissionPolicy,
    code: ReasonCode,
    what: &str,
    alter: impl Fn(&mut ServerToolFacts),
) {
    let mut facts = allowed();
    alter(&mut facts);
    let decision = policy.decide((&facts).into());
    assert_ne!(decision.outcome, Outcome::Allow, "{what} is allowed");
    assert_eq!(reason(&decision), Some(code), "{what}: {decision:?}");
}

fn allowed_with(policy: &dyn AdmissionPolicy, what: &str, alter: impl Fn(&mut ServerToolFacts)) {
    let mut facts = allowed();
    alter(&mut facts);
    let decision = policy.decide((&facts).into());
    assert_eq!(
        decision.outcome,
        Outcome::Allow,
        "{what} is refused: {decision:?}"
    );
}

fn every_drift_is_refused(policy: &dyn AdmissionPolicy) {
    let other = DescriptorDigest::of(b"other");
    let drifted = ReasonCode::Drifted;
    refused_as(policy, drifted, "another listed descriptor", |facts| {
        facts.inventory = InventoryFact::Listed(other);
    });
    refused_as(policy, drifted, "another descriptor in the session", |facts| {
        facts.session = SessionFact::Advertised(other);
    });
    refused_as(policy, drifted, "a change in list and session", |facts| {
        facts.inventory = InventoryFact::Listed(other);
        facts.session = SessionFact::Advertised(other);
    });
    refused_as(policy, drifted, "another place", |facts| {
        facts.fingerprint = Fingerprint::of(b"other")
    });
    refused_as(policy, drifted, "a change that was taken back", |facts| {
        let now = facts.now;
        if let Some(bound) = &mut facts.classification {
            bound.drifted_at = Some(now);
        }
    });
    allowed_with(policy, "a call without a session", |facts| {
        facts.session = SessionFact::NotOpen
    });
}

fn only_the_granted_may(policy: &dyn AdmissionPolicy) {
    let caller = || Grantee::Subject(subject("caller"));
    let with = |grants: Vec<(Grantee, Option<&'static str>)>, scopes: Scopes| {
        move |facts: &mut ServerToolFacts| {
            facts.caller.scopes = scopes;
            let grants = grants
                .iter()
                .map(|(grantee, name)| (grantee.clone(), name.map(tool)));
            facts.caller.grants = grants.collect();
        }
    };
    let viewer = Scopes::NONE.with(Scope::Viewer);
    let not_granted = ReasonCode::NotGranted;
    for (grants, scopes) in [
        (vec![], Scopes::NONE),
        (vec![], Scopes::NONE.with(Scope::Operator).with(Scope::Approver)),
        (vec![(caller(), Some("other"))], viewer),
        (vec![(Grantee::Subject(subject("somebody")), None)], viewer),
        (vec![(Grantee::Scope(Scope::Operator), None)], viewer),
        (vec![(Grantee::Scope(Scope::Viewer), None)], Scopes::NONE),
        (vec![(Grantee::Scope(Scope::Viewer), Some("other"))], viewer),
    ] {
        let what = format!("{grants:?} with {scopes:?}");
        refused_as(policy, not_granted, &what, with(grants, scopes));
    }
    for (grants, scopes) in [
        (vec![(caller(), None)], Scopes::NONE),
        (
            vec![(caller(), Some("other")), (caller(), Some("echo"))],
            Scopes::NONE,
        ),
        (
            vec![(Grantee::Scope(Scope::Viewer), None)],
            Scopes::NONE.with(Scope::Operator),
        ),
        (
            vec![(Grantee::Scope(Scope::Operator), Some("echo"))],
            Scopes::NONE.with(Scope::Operator),
        ),
        (vec![], Scopes::NONE.with(Scope::Admin)),
    ] {
        let what = format!("{grants:?} with {scopes:?}");
        allowed_with(policy, &what, with(grants, scopes));
    }
}

/// What makes an approval one for another call.
type Alteration = Box<dyn Fn(&mut Approval)>;

fn only_the_very_approval_counts(policy: &dyn AdmissionPolicy) {
    let state = |state: ApprovalState| move |approval: &mut Approval| approval.state = state.clone();
    let alterations: Vec<(&str, Alteration)> = vec![
        (
            "another server",
            Box::new(|approval| {
                if let RequestedTool::Server { server, .. } = &mut approval.tool {
                    *server = ServerId::new();
                }
            }),
        ),
        (
            "another tool",
            Box::new(|approval| {
                if let RequestedTool::Server { tool: name, .. } = &mut approval.tool {
                    *name = tool("other");
                }
            }),
        ),
        (
            "a code tool",
            Box::new(|approval| {
                approval.tool = RequestedTool::Code {
                    id: CodeToolId::new(),
                    family: "echo".parse().unwrap(),
                    version: "1".parse().unwrap(),
                    content_hash: ContentHash::of(b"content"),
                };
            }),
        ),
        (
            "another descriptor",
            Box::new(|approval| {
                if let RequestedTool::Server {
                    descriptor_digest, ..
                } = &mut approval.tool
                {
                    *descriptor_digest = DescriptorDigest::of(b"other");
                }
            }),
        ),
        (
            "other arguments",
            Box::new(|approval| approval.argument_digest = ArgumentDigest::of(b"{\"a\":1}")),
        ),
        (
            "another caller",
            Box::new(|approval| approval.requested_by = subject("somebody")),
        ),
        (
            "an expired one",
            Box::new(|approval| approval.expires_at -= Duration::from_secs(7_200)),
        ),
        (
            "one's own consent",
            Box::new(state(ApprovalState::Approved {
                by: subject("caller"),
                at: now(),
                note: None,
            })),
        ),
        (
            "a refusal",
            Box::new(state(ApprovalState::Refused {
                by: subject("approver"),
                at: now(),
                note: None,
            })),
        ),
        (
            "a spent one",
            Box::new(state(ApprovalState::Spent {
                by: subject("approver"),
                invocation: InvocationId::new(),
            })),
        ),
    ];
    for (what, alter) in alterations {
        refused_as(policy, ReasonCode::ApprovalInvalid, what, |facts| {
            if let Some(approval) = &mut facts.approval {
                alter(approval);
            }
        });
    }
    refused_as(
        policy,
        ReasonCode::ApprovalRequired,
        "a request that waits",
        |facts| {
            if let Some(approval) = &mut facts.approval {
                approval.state = ApprovalState::Pending;
            }
        },
    );
    allowed_with(policy, "a tool that needs no approval", |facts| {
        facts.approval = None;
        if let Some(bound) = &mut facts.classification {
            bound.policy.requires_approval = false;
            bound.policy.approval_waiver = Some("a scratch database".to_owned());
        }
    });
}

fn break_glass_is_for_admins(policy: &dyn AdmissionPolicy) {
    let glass = |scope: Scope, reason: &'static str| {
        move |facts: &mut ServerToolFacts| {
            facts.approval = None;
            facts.caller.scopes = Scopes::NONE.with(scope);
            facts.caller.break_glass = Some(reason.to_owned());
        }
    };
    allowed_with(policy, "an admin with a reason", glass(Scope::Admin, "the pager"));
    for (scope, reason) in [
        (Scope::Viewer, "the pager"),
        (Scope::Operator, "the pager"),
        (Scope::Approver, "the pager"),
        (Scope::Admin, ""),
        (Scope::Admin, " \t"),
    ] {
        let mut facts = allowed();
        glass(scope, reason)(&mut facts);
        let decision = policy.decide((&facts).into());
        assert_eq!(
            decision.outcome,
            Outcome::Deny,
            "{scope} breaks the glass for {reason:?}"
        );
    }
    // It goes past approval, and past nothing else.
    for (_, code, apply) in faults() {
        if matches!(
            code,
            ReasonCode::NotGranted | ReasonCode::ApprovalRequired | ReasonCode::ApprovalInvalid
        ) {
            continue;
        }
        refused_as(policy, code, "breaking the glass", |facts| {
            glass(Scope::Admin, "the pager")(facts);
            apply(facts);
        });
    }
}

fn contradictions_are_refused(policy: &dyn AdmissionPolicy) {
    refused_as(
        policy,
        ReasonCode::PolicyError,
        "the classification of another tool",
        |facts| {
            if let Some(bound) = &mut facts.classification {
                bound.tool = tool("other");
            }
        },
    );
    // Whatever else the facts hold, a decision is made, and the same one again.
    for (_, _, apply) in faults() {
        let mut facts = allowed();
        apply(&mut facts);
        assert_eq!(policy.decide((&facts).into()), policy.decide((&facts).into()));
    }
}
