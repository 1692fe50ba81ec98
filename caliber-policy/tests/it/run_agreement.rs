//! Two evaluators of runs that were written apart give the same answers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use caliber_core::admission::{AdmissionPolicy, ArgumentsFact, CodeToolFacts, Outcome, QuotaFact};
use caliber_core::approval::{Approval, ApprovalState};
use caliber_core::code_tool::CodeToolStatus;
use caliber_core::digest::{ArgumentDigest, ContentHash};
use caliber_core::grant::Grantee;
use caliber_core::id::CodeToolId;
use caliber_core::policy::SideEffectLevel;
use caliber_core::principal::{Scope, Scopes};
use caliber_core::reason::{Reason, ReasonCode};
use caliber_core::sandbox::{Guarantee, SandboxReport};
use caliber_policy::Policy;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::agreement::Draw;
use crate::facts::{NOW, approval, arguments, consented, is_presentable, spent};
use crate::naive_runs;
use crate::run_facts::{TOOL, allowed_run, content, report, requested, run_approval};

const CASES: u32 = 100_000;

/// Made once: making them costs more than judging them.
static ALLOWED: LazyLock<CodeToolFacts> = LazyLock::new(allowed_run);
static APPROVAL: LazyLock<Approval> = LazyLock::new(run_approval);
static FOR_A_SERVER: LazyLock<Approval> = LazyLock::new(approval);
static SAME: LazyLock<ContentHash> = LazyLock::new(|| content("weather"));
static CHANGED: LazyLock<ContentHash> = LazyLock::new(|| content("changed"));
static EMPTY: LazyLock<ArgumentDigest> = LazyLock::new(|| arguments("{}"));
static OTHER: LazyLock<ArgumentDigest> = LazyLock::new(|| arguments("other"));
static OTHER_TOOL: LazyLock<CodeToolId> = LazyLock::new(CodeToolId::new);
static WHOLE: LazyLock<Arc<SandboxReport>> = LazyLock::new(|| Arc::new(report(&[])));
static SANDBOXES: LazyLock<Vec<Option<Arc<SandboxReport>>>> = LazyLock::new(|| {
    let without = |missing: &[Guarantee], allowed: bool, problem: Option<&str>| {
        Some(Arc::new(SandboxReport {
            unenforced_allowed: allowed,
            problem: problem.map(str::to_owned),
            ..report(missing)
        }))
    };
    vec![
        Some(Arc::clone(&WHOLE)),
        None,
        without(&[Guarantee::Net, Guarantee::FsRead], false, None),
        without(&[Guarantee::Net], true, None),
        without(&[Guarantee::TreeMemory], false, None),
        without(&[], true, Some("the interpreter\ndoes not start")),
    ]
});

#[test]
fn the_policy_and_a_naive_one_never_differ_about_runs() {
    let policy = Policy::default();
    let seen: RefCell<BTreeMap<(String, Option<ReasonCode>), u32>> = RefCell::default();
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&any::<[u128; 4]>(), |draws| {
        let facts = facts(Draw::new(draws));
        let decision = policy.decide((&facts).into());
        let first = decision.reasons.first().map(|reason| reason.code);
        prop_assert_eq!(
            (decision.outcome, first),
            naive_runs::decide(&facts),
            "{:#?}",
            facts
        );
        for reason in &decision.reasons {
            prop_assert!(is_presentable(&reason.text), "{:?}", reason);
        }
        *seen
            .borrow_mut()
            .entry((format!("{:?}", decision.outcome), first))
            .or_default() += 1;
        Ok(())
    });
    outcome.unwrap();
    // The cases are worth something only if they reach every answer.
    let seen = seen.into_inner();
    assert!(
        seen[&(format!("{:?}", Outcome::Allow), None)] > CASES / 50,
        "{seen:#?}"
    );
    for code in crate::coverage::run_codes() {
        let times: u32 = seen
            .iter()
            .filter(|((_, first), _)| *first == Some(code))
            .map(|(_, times)| times)
            .sum();
        assert!(times > CASES / 1_000, "{code}: {seen:#?}");
    }
}

fn facts(mut draw: Draw) -> CodeToolFacts {
    let mut facts = ALLOWED.clone();
    facts.status = draw.mostly(&[
        CodeToolStatus::Active,
        CodeToolStatus::Deprecated,
        CodeToolStatus::Archived,
    ]);
    facts.sandbox = draw.mostly(&SANDBOXES);
    let blocker = |code, text: &str| Reason::new(code, text);
    facts.blockers = draw.mostly(&[
        Vec::new(),
        vec![blocker(ReasonCode::ModuleNotAllowed, "not\u{202e} allowed")],
        vec![blocker(ReasonCode::SecretNotAllowed, "A")],
        vec![
            blocker(ReasonCode::ModuleNotAllowed, "no"),
            blocker(ReasonCode::SecretNotAllowed, "B\nC"),
        ],
    ]);
    facts.content_hash = draw.mostly(&[*SAME, *CHANGED]);
    facts.computed_hash = draw.mostly(&[*SAME, *CHANGED]);
    facts.expected_hash = draw.any(&[
        None,
        None,
        Some(*SAME),
        Some(*SAME),
        Some(*SAME),
        Some(*SAME),
        Some(*CHANGED),
    ]);
    facts.arguments = draw.mostly(&[
        ArgumentsFact::Fit,
        ArgumentsFact::Unfit {
            problem: "`city` is missing".into(),
        },
        ArgumentsFact::Unchecked {
            problem: "the schema is too large".into(),
        },
    ]);
    facts.argument_digest = draw.mostly(&[*EMPTY, *OTHER]);
    facts.quota = draw.mostly(&[
        QuotaFact::NotAsked,
        QuotaFact::Exhausted {
            retry_after: Duration::from_millis(1_500),
        },
        QuotaFact::Unavailable,
    ]);
    caller(&mut draw, &mut facts);
    policy(&mut draw, &mut facts);
    approve(&mut draw, &mut facts);
    facts
}

fn caller(draw: &mut Draw, facts: &mut CodeToolFacts) {
    let caller = &mut facts.caller;
    caller.subject = draw.mostly(&["ada", "grace", "a\u{301}da"]).parse().unwrap();
    caller.scopes = draw.any(&[
        Scopes::NONE.with(Scope::Operator),
        Scopes::NONE,
        Scopes::NONE.with(Scope::Viewer),
        Scopes::NONE.with(Scope::Approver),
        Scopes::NONE.with(Scope::Admin),
    ]);
    let count = draw.any(&[2, 0, 1, 3]);
    caller.grants = (0..count)
        .map(|_| {
            draw.any(&[
                Grantee::Subject("ada".parse().unwrap()),
                Grantee::Subject("linus".parse().unwrap()),
                Grantee::Scope(Scope::Viewer),
                Grantee::Scope(Scope::Operator),
                Grantee::Scope(Scope::Approver),
                Grantee::Scope(Scope::Admin),
            ])
        })
        .collect();
    let reason = draw.mostly(&[None, Some("the pager rang"), Some(" \t"), Some("a\nb")]);
    caller.break_glass = reason.map(str::to_owned);
}

fn policy(draw: &mut Draw, facts: &mut CodeToolFacts) {
    let policy = &mut facts.policy;
    policy.allowed = draw.mostly(&[true, false]);
    policy.side_effect_level = draw.any(&[
        SideEffectLevel::Read,
        SideEffectLevel::Write,
        SideEffectLevel::ExternalAction,
    ]);
    policy.requires_approval = draw.any(&[false, true]) || policy.side_effect_level > SideEffectLevel::Read;
    if draw.mostly(&[false, true]) {
        policy.requires_approval = !policy.requires_approval;
    }
    let waiver = draw.mostly(&[None, Some("a scratch database"), Some(" ")]);
    policy.approval_waiver = waiver.map(str::to_owned);
    policy.rate_limit_per_minute = draw.any(&[Some(60), None, Some(1), Some(100_000), Some(60), Some(60)]);
    if draw.mostly(&[false, true]) {
        policy.rate_limit_per_minute = draw.any(&[Some(0), Some(100_001)]);
    }
    policy.timeout_ms = draw.mostly(&[None, Some(1), Some(3_600_000), Some(0), Some(3_600_001)]);
}

fn approve(draw: &mut Draw, facts: &mut CodeToolFacts) {
    if draw.any(&[false, false, true]) {
        return;
    }
    if draw.mostly(&[false, true]) {
        facts.approval = Some(FOR_A_SERVER.clone());
        return;
    }
    let mut approval = APPROVAL.clone();
    let id = draw.mostly(&[TOOL.clone(), OTHER_TOOL.clone()]);
    approval.tool = requested(&id, draw.mostly(&[*SAME, *CHANGED]));
    approval.argument_digest = draw.mostly(&[*EMPTY, *OTHER]);
    approval.requested_by = draw.mostly(&["ada", "grace"]).parse().unwrap();
    approval.expires_at = draw.mostly(&[
        approval.expires_at,
        *NOW,
        *NOW - Duration::from_secs(1),
        *NOW + Duration::from_micros(1),
    ]);
    approval.state = draw.mostly(&[
        consented("grace"),
        consented("ada"),
        ApprovalState::Pending,
        ApprovalState::Refused {
            by: "grace".parse().unwrap(),
            at: *NOW,
            note: None,
        },
        spent(),
    ]);
    facts.approval = Some(approval);
}
