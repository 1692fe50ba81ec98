//! Two evaluators that were written apart give the same answers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use caliber_core::admission::{
    AdmissionPolicy, ArgumentsFact, InventoryFact, Outcome, QuotaFact, ServerToolFacts, SessionFact,
};
use caliber_core::approval::{Approval, ApprovalState, RequestedTool};
use caliber_core::digest::{ArgumentDigest, DescriptorDigest, Fingerprint};
use caliber_core::grant::Grantee;
use caliber_core::id::ServerId;
use caliber_core::policy::SideEffectLevel;
use caliber_core::principal::{Scope, Scopes};
use caliber_core::reason::ReasonCode;
use caliber_core::server::ServerStatus;
use caliber_policy::Policy;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::facts::{
    NOW, SERVER, allowed, approval, arguments, blocked, consented, descriptor, fingerprint, is_presentable,
    spent,
};
use crate::naive;

const CASES: u32 = 100_000;

/// Made once: making them costs more than judging them.
static ALLOWED: LazyLock<ServerToolFacts> = LazyLock::new(allowed);
static APPROVAL: LazyLock<Approval> = LazyLock::new(approval);
static WEATHER: LazyLock<DescriptorDigest> = LazyLock::new(|| descriptor("weather"));
static CHANGED: LazyLock<DescriptorDigest> = LazyLock::new(|| descriptor("changed"));
static HERE: LazyLock<Fingerprint> = LazyLock::new(|| fingerprint("here"));
static THERE: LazyLock<Fingerprint> = LazyLock::new(|| fingerprint("there"));
static EMPTY: LazyLock<ArgumentDigest> = LazyLock::new(|| arguments("{}"));
static OTHER: LazyLock<ArgumentDigest> = LazyLock::new(|| arguments("other"));
static OTHER_SERVER: LazyLock<ServerId> = LazyLock::new(ServerId::new);

#[test]
fn the_policy_and_a_naive_one_never_differ() {
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
        prop_assert_eq!((decision.outcome, first), naive::decide(&facts), "{:#?}", facts);
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
    for code in crate::coverage::admission_codes() {
        let times: u32 = seen
            .iter()
            .filter(|((_, first), _)| *first == Some(code))
            .map(|(_, times)| times)
            .sum();
        assert!(times > CASES / 1_000, "{code}: {seen:#?}");
    }
}

/// Choices out of random bits; zero is always the choice that lets a call pass, so that failures shrink to what
/// matters.
pub(crate) struct Draw {
    draws: [u128; 4],
    next: usize,
}

impl Draw {
    pub(crate) fn new(draws: [u128; 4]) -> Self {
        Self { draws, next: 0 }
    }

    /// Six bits as a number below 64.
    fn six(&mut self) -> u32 {
        let (word, place) = (self.next / 21, self.next % 21);
        self.next += 1;
        (self.draws[word] >> (place * 6)) as u32 & 63
    }

    /// One of `choices`, the first nine times out of ten.
    pub(crate) fn mostly<T: Clone>(&mut self, choices: &[T]) -> T {
        let six = self.six() as usize;
        let index = if six < 58 {
            0
        } else {
            1 + six % (choices.len() - 1)
        };
        choices[index].clone()
    }

    /// One of `choices`, all alike.
    pub(crate) fn any<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.six() as usize % choices.len()].clone()
    }
}

fn facts(mut draw: Draw) -> ServerToolFacts {
    let mut facts = ALLOWED.clone();
    facts.status = draw.mostly(&[ServerStatus::Active, ServerStatus::Disabled]);
    if draw.mostly(&[false, true]) {
        facts.readiness = blocked(&[
            (ReasonCode::PlainHttp, "plain\nhttp"),
            (ReasonCode::HostNotAllowed, "elsewhere"),
        ]);
    }
    facts.inventory = draw.mostly(&[
        InventoryFact::Listed(*WEATHER),
        InventoryFact::Listed(*CHANGED),
        InventoryFact::Absent,
        InventoryFact::Unlisted,
        InventoryFact::Withheld {
            reason: "its schema\u{202e} is broken".into(),
        },
    ]);
    facts.session = draw.mostly(&[
        SessionFact::NotOpen,
        SessionFact::Advertised(*WEATHER),
        SessionFact::Advertised(*CHANGED),
        SessionFact::Unlisted,
    ]);
    facts.fingerprint = draw.mostly(&[*HERE, *THERE]);
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
    classify(&mut draw, &mut facts);
    approve(&mut draw, &mut facts);
    facts
}

fn caller(draw: &mut Draw, facts: &mut ServerToolFacts) {
    let caller = &mut facts.caller;
    caller.subject = draw.mostly(&["ada", "grace", "a\u{301}da"]).parse().unwrap();
    caller.tool = draw.mostly(&["weather", "forecast"]).parse().unwrap();
    caller.scopes = draw.any(&[
        Scopes::NONE.with(Scope::Operator),
        Scopes::NONE,
        Scopes::NONE.with(Scope::Viewer),
        Scopes::NONE.with(Scope::Approver),
        Scopes::NONE.with(Scope::Admin),
    ]);
    let count = draw.any(&[2, 0, 1, 3, 4]);
    caller.grants = (0..count)
        .map(|_| {
            let grantee = draw.any(&[
                Grantee::Subject("ada".parse().unwrap()),
                Grantee::Subject("linus".parse().unwrap()),
                Grantee::Scope(Scope::Viewer),
                Grantee::Scope(Scope::Operator),
                Grantee::Scope(Scope::Approver),
                Grantee::Scope(Scope::Admin),
            ]);
            let tool = draw.any(&[None, Some("weather"), Some("forecast")]);
            (grantee, tool.map(|tool| tool.parse().unwrap()))
        })
        .collect();
    let reason = draw.mostly(&[None, Some("the pager rang"), Some(" \t"), Some("a\nb")]);
    caller.break_glass = reason.map(str::to_owned);
}

fn classify(draw: &mut Draw, facts: &mut ServerToolFacts) {
    if draw.mostly(&[false, true]) {
        facts.classification = None;
        return;
    }
    let Some(bound) = &mut facts.classification else {
        return;
    };
    bound.tool = draw.mostly(&["weather", "forecast"]).parse().unwrap();
    bound.descriptor_digest = draw.mostly(&[*WEATHER, *CHANGED]);
    bound.fingerprint = draw.mostly(&[*HERE, *THERE]);
    bound.drifted_at = draw.mostly(&[None, Some(*NOW)]);
    let policy = &mut bound.policy;
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
    policy.result_bytes = draw.mostly(&[None, Some(1), Some(64 << 20), Some(0), Some((64 << 20) + 1)]);
}

fn approve(draw: &mut Draw, facts: &mut ServerToolFacts) {
    if draw.any(&[false, false, true]) {
        return;
    }
    let mut approval = APPROVAL.clone();
    let server = if draw.mostly(&[false, true]) {
        OTHER_SERVER.clone()
    } else {
        SERVER.clone()
    };
    approval.tool = RequestedTool::Server {
        server,
        tool: draw.mostly(&["weather", "forecast"]).parse().unwrap(),
        descriptor_digest: draw.mostly(&[*WEATHER, *CHANGED]),
    };
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
