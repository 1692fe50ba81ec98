//! One call: what is asked, in which order, and what a refusal says.

use std::time::Duration;

use caliber_core::admission::{
    AdmissionPolicy, ArgumentsFact, Decision, InventoryFact, Outcome, QuotaFact, ServerToolFacts, SessionFact,
};
use caliber_core::approval::{Approval, ApprovalState, RequestedTool};
use caliber_core::grant::Grantee;
use caliber_core::id::ServerId;
use caliber_core::policy::{SideEffectLevel, ToolPolicy};
use caliber_core::principal::{Scope, Scopes};
use caliber_core::reason::ReasonCode;
use caliber_core::server::ServerStatus;
use caliber_policy::Policy;

use crate::facts::{
    HOSTILE, NOW, allowed, approval, approved, arguments, blocked, consented, descriptor, fingerprint,
    is_presentable, ready, spent,
};

fn decide(facts: &ServerToolFacts) -> Decision {
    Policy::default().decide(facts.into())
}

fn code(facts: &ServerToolFacts) -> Option<ReasonCode> {
    decide(facts).reasons.first().map(|reason| reason.code)
}

/// Facts that are refused for a reason, and facts beside them that are not.
pub(crate) struct Example {
    pub(crate) code: ReasonCode,
    outcome: Outcome,
    with: ServerToolFacts,
    without: ServerToolFacts,
}

pub(crate) fn examples() -> Vec<Example> {
    let refused = |code, without: &ServerToolFacts, change: fn(&mut ServerToolFacts)| {
        let mut with = without.clone();
        change(&mut with);
        Example {
            code,
            outcome: Outcome::Deny,
            with,
            without: without.clone(),
        }
    };
    let of_allowed = |code, change| refused(code, &allowed(), change);
    let of_approved = |code, change| refused(code, &approved(), change);
    let mut examples = vec![
        of_allowed(ReasonCode::ServerDisabled, |facts| {
            facts.status = ServerStatus::Disabled;
        }),
        of_allowed(ReasonCode::ServerNotReady, |facts| {
            facts.readiness = blocked(&[(ReasonCode::PlainHttp, "no TLS")]);
        }),
        of_allowed(ReasonCode::InventoryAbsent, |facts| {
            facts.inventory = InventoryFact::Absent;
        }),
        of_allowed(ReasonCode::ToolUnknown, |facts| {
            facts.inventory = InventoryFact::Unlisted;
        }),
        of_allowed(ReasonCode::ToolUnknown, |facts| {
            facts.session = SessionFact::Unlisted;
        }),
        of_allowed(ReasonCode::ToolWithheld, |facts| {
            facts.inventory = InventoryFact::Withheld {
                reason: "its schema is too large".into(),
            };
        }),
        of_allowed(ReasonCode::Unclassified, |facts| {
            facts.classification = None;
        }),
        of_allowed(ReasonCode::Drifted, |facts| {
            facts.inventory = InventoryFact::Listed(descriptor("changed"));
        }),
        of_allowed(ReasonCode::Drifted, |facts| {
            facts.fingerprint = fingerprint("there");
        }),
        of_allowed(ReasonCode::Drifted, |facts| {
            facts.session = SessionFact::Advertised(descriptor("changed"));
        }),
        of_allowed(ReasonCode::Drifted, |facts| {
            facts.classification.as_mut().unwrap().drifted_at = Some(*NOW);
        }),
        of_allowed(ReasonCode::Blocked, |facts| {
            facts.classification.as_mut().unwrap().policy.allowed = false;
        }),
        of_allowed(ReasonCode::NotGranted, |facts| facts.caller.grants.clear()),
        of_allowed(ReasonCode::NotGranted, |facts| {
            facts.caller.break_glass = Some("in a hurry".into());
        }),
        of_allowed(ReasonCode::ArgumentsInvalid, |facts| {
            facts.arguments = ArgumentsFact::Unfit {
                problem: "`city` is missing".into(),
            };
        }),
        of_allowed(ReasonCode::ArgumentsUnchecked, |facts| {
            facts.arguments = ArgumentsFact::Unchecked {
                problem: "the schema is too deep".into(),
            };
        }),
        of_approved(ReasonCode::ApprovalInvalid, |facts| {
            facts.approval.as_mut().unwrap().state = spent();
        }),
        of_allowed(ReasonCode::RateLimited, |facts| {
            facts.quota = QuotaFact::Exhausted {
                retry_after: Duration::from_millis(1_500),
            };
        }),
        of_allowed(ReasonCode::QuotaUnavailable, |facts| {
            facts.quota = QuotaFact::Unavailable;
        }),
        of_allowed(ReasonCode::PolicyError, |facts| {
            facts.classification.as_mut().unwrap().tool = "forecast".parse().unwrap();
        }),
    ];
    examples.push(Example {
        outcome: Outcome::NeedsApproval,
        ..of_approved(ReasonCode::ApprovalRequired, |facts| facts.approval = None)
    });
    examples
}

#[test]
fn each_reason_refuses_and_its_neighbour_passes() {
    for example in examples() {
        let decision = decide(&example.with);
        assert_eq!(decision.outcome, example.outcome, "{}", example.code);
        assert_eq!(decision.reasons[0].code, example.code, "{decision:?}");
        assert_eq!(
            decide(&example.without),
            Decision::allow(),
            "beside {}",
            example.code
        );
    }
}

type Repair = Box<dyn Fn(&mut ServerToolFacts)>;

#[test]
fn the_first_failing_step_answers() {
    // Everything is wrong, then one thing after the other is put right.
    let mut facts = approved();
    facts.status = ServerStatus::Disabled;
    facts.readiness = blocked(&[(ReasonCode::PlainHttp, "no TLS")]);
    facts.inventory = InventoryFact::Absent;
    facts.session = SessionFact::Unlisted;
    facts.fingerprint = fingerprint("there");
    facts.caller.grants.clear();
    facts.arguments = ArgumentsFact::Unfit {
        problem: "`city` is missing".into(),
    };
    facts.approval = None;
    facts.quota = QuotaFact::Unavailable;
    let mut classification = facts.classification.take().unwrap();
    classification.policy.allowed = false;

    let repairs: Vec<(ReasonCode, Repair)> = vec![
        // A quota that was asked without a classification is a contradiction, and stands before everything.
        (
            ReasonCode::PolicyError,
            Box::new(|facts| facts.quota = QuotaFact::NotAsked),
        ),
        (
            ReasonCode::ServerDisabled,
            Box::new(|facts| facts.status = ServerStatus::Active),
        ),
        (
            ReasonCode::ServerNotReady,
            Box::new(|facts| facts.readiness = ready()),
        ),
        (
            ReasonCode::InventoryAbsent,
            Box::new(|facts| facts.inventory = InventoryFact::Listed(descriptor("weather"))),
        ),
        (
            ReasonCode::ToolUnknown,
            Box::new(|facts| facts.session = SessionFact::NotOpen),
        ),
        (
            ReasonCode::Unclassified,
            Box::new(move |facts| facts.classification = Some(classification.clone())),
        ),
        (
            ReasonCode::Drifted,
            Box::new(|facts| facts.fingerprint = fingerprint("here")),
        ),
        (
            ReasonCode::Blocked,
            Box::new(|facts| facts.classification.as_mut().unwrap().policy.allowed = true),
        ),
        (
            ReasonCode::NotGranted,
            Box::new(|facts| facts.caller.grants = allowed().caller.grants),
        ),
        (
            ReasonCode::ArgumentsInvalid,
            Box::new(|facts| {
                facts.arguments = ArgumentsFact::Fit;
                facts.quota = QuotaFact::Unavailable;
            }),
        ),
        (
            ReasonCode::ApprovalRequired,
            Box::new(|facts| facts.approval = Some(approval())),
        ),
        (
            ReasonCode::QuotaUnavailable,
            Box::new(|facts| facts.quota = QuotaFact::NotAsked),
        ),
    ];
    for (expected, repair) in repairs {
        assert_eq!(code(&facts), Some(expected));
        repair(&mut facts);
    }
    assert_eq!(decide(&facts), Decision::allow());
}

#[test]
fn every_blocker_is_named() {
    let mut facts = allowed();
    facts.readiness = blocked(&[
        (ReasonCode::PlainHttp, "no TLS"),
        (ReasonCode::SecretNotAllowed, "no such secret"),
    ]);
    let decision = decide(&facts);
    let codes: Vec<_> = decision.reasons.iter().map(|reason| reason.code).collect();
    assert_eq!(
        codes,
        [
            ReasonCode::ServerNotReady,
            ReasonCode::PlainHttp,
            ReasonCode::SecretNotAllowed
        ]
    );
    for part in ["plain_http", "no TLS", "secret_not_allowed", "no such secret"] {
        assert!(decision.reasons[0].text.contains(part), "{decision:?}");
    }
}

#[test]
fn grants_reach_whom_they_name() {
    let subject = |name: &str| Grantee::Subject(name.parse().unwrap());
    let scopes = |scope| Scopes::NONE.with(scope);
    for (held, grantee, tool, granted) in [
        (Scopes::NONE, subject("ada"), None, true),
        (Scopes::NONE, subject("ada"), Some("weather"), true),
        (Scopes::NONE, subject("ada"), Some("forecast"), false),
        (Scopes::NONE, subject("Ada"), None, false),
        (Scopes::NONE, subject("grace"), None, false),
        (
            scopes(Scope::Operator),
            Grantee::Scope(Scope::Operator),
            None,
            true,
        ),
        (
            scopes(Scope::Operator),
            Grantee::Scope(Scope::Viewer),
            Some("weather"),
            true,
        ),
        (
            scopes(Scope::Viewer),
            Grantee::Scope(Scope::Operator),
            None,
            false,
        ),
        (
            scopes(Scope::Operator),
            Grantee::Scope(Scope::Approver),
            None,
            false,
        ),
        (
            scopes(Scope::Operator),
            Grantee::Scope(Scope::Viewer),
            Some("forecast"),
            false,
        ),
        (Scopes::NONE, Grantee::Scope(Scope::Viewer), None, false),
        (scopes(Scope::Admin), subject("grace"), Some("forecast"), true),
    ] {
        let mut facts = allowed();
        facts.caller.scopes = held;
        facts.caller.grants = vec![(grantee.clone(), tool.map(|tool| tool.parse().unwrap()))];
        let expected = (!granted).then_some(ReasonCode::NotGranted);
        assert_eq!(code(&facts), expected, "{held:?} {grantee:?} {tool:?}");
    }
}

#[test]
fn an_approval_is_for_exactly_one_call() {
    let misfits: [fn(&mut Approval); 12] = [
        |approval| {
            if let RequestedTool::Server { server, .. } = &mut approval.tool {
                *server = ServerId::new();
            }
        },
        |approval| {
            if let RequestedTool::Server { tool, .. } = &mut approval.tool {
                *tool = "forecast".parse().unwrap();
            }
        },
        |approval| {
            if let RequestedTool::Server {
                descriptor_digest, ..
            } = &mut approval.tool
            {
                *descriptor_digest = descriptor("changed");
            }
        },
        |approval| approval.argument_digest = arguments("other"),
        |approval| approval.requested_by = "grace".parse().unwrap(),
        |approval| approval.expires_at = *NOW,
        |approval| approval.expires_at = *NOW - Duration::from_micros(1),
        |approval| approval.state = consented("ada"),
        |approval| approval.state = spent(),
        |approval| {
            approval.state = ApprovalState::Refused {
                by: "grace".parse().unwrap(),
                at: *NOW,
                note: None,
            };
        },
        |approval| {
            approval.state = ApprovalState::Pending;
            approval.expires_at = *NOW;
        },
        |approval| {
            approval.state = ApprovalState::Pending;
            approval.argument_digest = arguments("other");
        },
    ];
    for (index, misfit) in misfits.into_iter().enumerate() {
        let mut facts = approved();
        misfit(facts.approval.as_mut().unwrap());
        let decision = decide(&facts);
        assert_eq!(decision.outcome, Outcome::Deny, "{index}");
        assert_eq!(
            decision.reasons[0].code,
            ReasonCode::ApprovalInvalid,
            "{index}: {decision:?}"
        );
    }
    let mut last_moment = approved();
    last_moment.approval.as_mut().unwrap().expires_at = *NOW + Duration::from_micros(1);
    assert_eq!(decide(&last_moment), Decision::allow());
}

#[test]
fn a_request_that_nobody_decided_on_goes_on_waiting() {
    let mut facts = approved();
    facts.approval.as_mut().unwrap().state = ApprovalState::Pending;
    let decision = decide(&facts);
    assert_eq!(decision.outcome, Outcome::NeedsApproval);
    assert_eq!(decision.reasons[0].code, ReasonCode::ApprovalRequired);
}

#[test]
fn an_approval_does_not_stand_in_for_anything_else() {
    let mut facts = approved();
    facts.caller.grants.clear();
    assert_eq!(code(&facts), Some(ReasonCode::NotGranted));
    // Where none is needed, one that does not fit changes nothing.
    let mut facts = allowed();
    facts.approval = Some(Approval {
        state: spent(),
        ..approval()
    });
    assert_eq!(decide(&facts), Decision::allow());
}

#[test]
fn only_an_admin_breaks_the_glass_and_only_past_approval() {
    let mut facts = approved();
    facts.approval = None;
    facts.caller.break_glass = Some("the pager rang".into());
    for scope in [Scope::Viewer, Scope::Operator, Scope::Approver] {
        facts.caller.scopes = Scopes::NONE.with(scope);
        let decision = decide(&facts);
        assert_eq!(decision.outcome, Outcome::Deny, "{scope}");
        assert_eq!(decision.reasons[0].code, ReasonCode::NotGranted, "{scope}");
    }
    facts.caller.scopes = Scopes::NONE.with(Scope::Admin);
    assert_eq!(decide(&facts), Decision::allow());
    facts.caller.break_glass = None;
    assert_eq!(
        decide(&facts).outcome,
        Outcome::NeedsApproval,
        "admins need approval too"
    );

    facts.caller.break_glass = Some("the pager rang".into());
    facts.arguments = ArgumentsFact::Unchecked {
        problem: "too large".into(),
    };
    assert_eq!(code(&facts), Some(ReasonCode::ArgumentsUnchecked));
    facts.classification.as_mut().unwrap().policy.allowed = false;
    assert_eq!(code(&facts), Some(ReasonCode::Blocked));
}

#[test]
fn contradictions_decide_nothing() {
    let contradictions: [fn(&mut ServerToolFacts); 8] = [
        |facts| facts.classification.as_mut().unwrap().tool = "forecast".parse().unwrap(),
        |facts| {
            let policy = &mut facts.classification.as_mut().unwrap().policy;
            policy.side_effect_level = SideEffectLevel::ExternalAction;
        },
        |facts| {
            let policy = &mut facts.classification.as_mut().unwrap().policy;
            policy.requires_approval = true;
            policy.approval_waiver = Some("and waived".into());
        },
        |facts| {
            facts.classification.as_mut().unwrap().policy = ToolPolicy::allow_read();
            facts.quota = QuotaFact::Unavailable;
        },
        |facts| {
            facts.classification = None;
            facts.quota = QuotaFact::Unavailable;
        },
        |facts| {
            let policy = &mut facts.classification.as_mut().unwrap().policy;
            policy.rate_limit_per_minute = Some(0);
        },
        |facts| facts.caller.break_glass = Some(String::new()),
        |facts| facts.caller.break_glass = Some(" \u{a0}\t".into()),
    ];
    for (index, contradiction) in contradictions.into_iter().enumerate() {
        let mut facts = allowed();
        facts.caller.scopes = Scopes::NONE.with(Scope::Admin);
        contradiction(&mut facts);
        let decision = decide(&facts);
        assert_eq!(decision.outcome, Outcome::Deny, "{index}");
        assert_eq!(
            decision.reasons[0].code,
            ReasonCode::PolicyError,
            "{index}: {decision:?}"
        );
    }
}

#[test]
fn a_waiver_by_reason_is_enough() {
    let mut facts = allowed();
    let policy = &mut facts.classification.as_mut().unwrap().policy;
    policy.side_effect_level = SideEffectLevel::Write;
    policy.approval_waiver = Some("a scratch database".into());
    assert_eq!(decide(&facts), Decision::allow());
}

#[test]
fn texts_are_one_bounded_line_whatever_they_repeat() {
    let long = "x".repeat(100_000);
    for text in HOSTILE.into_iter().chain([long.as_str()]) {
        let mut withheld = allowed();
        withheld.inventory = InventoryFact::Withheld { reason: text.into() };
        let mut unfit = allowed();
        unfit.arguments = ArgumentsFact::Unfit { problem: text.into() };
        let mut unchecked = allowed();
        unchecked.arguments = ArgumentsFact::Unchecked { problem: text.into() };
        let mut unready = allowed();
        unready.readiness = blocked(&[(ReasonCode::PlainHttp, text)]);
        for facts in [withheld, unfit, unchecked, unready] {
            let decision = decide(&facts);
            assert!(
                is_presentable(&decision.reasons[0].text),
                "{:?}",
                decision.reasons[0]
            );
        }
    }
}

#[test]
fn a_refusal_says_what_to_do() {
    for (facts, parts) in [
        (
            examples()
                .into_iter()
                .find(|example| example.code == ReasonCode::RateLimited),
            ["`weather`", "1.500 s"],
        ),
        (
            examples()
                .into_iter()
                .find(|example| example.code == ReasonCode::NotGranted),
            ["`ada`", "admin"],
        ),
        (
            examples()
                .into_iter()
                .find(|example| example.code == ReasonCode::Drifted),
            ["describes it in another way", "classify it again"],
        ),
    ] {
        let text = decide(&facts.unwrap().with).reasons[0].text.clone();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}
