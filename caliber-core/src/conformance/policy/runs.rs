//! The laws of decisions about runs of code tools.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::{AdmissionPolicy, ArgumentsFact, CodeToolFacts, Outcome, QuotaFact, RunCallerFact};
use crate::approval::{Approval, RequestedTool};
use crate::code_tool::CodeToolStatus;
use crate::conformance::samples::{approval, approved, code_tool, now, subject, tool};
use crate::digest::{ArgumentDigest, ContentHash, DescriptorDigest};
use crate::grant::Grantee;
use crate::id::{CodeToolId, ServerId};
use crate::policy::{SideEffectLevel, ToolPolicy};
use crate::principal::{Scope, Scopes};
use crate::reason::{Reason, ReasonCode};
use crate::sandbox::{Enforcement, Guarantee, SandboxReport};

/// A run with effects that needs approval, has it, and is allowed.
fn allowed() -> CodeToolFacts {
    let record = code_tool("weather", "1");
    let argument_digest = ArgumentDigest::of(b"{}");
    let consent = approved(&Approval {
        tool: RequestedTool::Code {
            id: record.id.clone(),
            family: record.definition.family.clone(),
            version: record.definition.version.clone(),
            content_hash: record.content_hash,
        },
        argument_digest,
        ..approval(&ServerId::new(), "echo")
    });
    CodeToolFacts {
        now: now(),
        tool: record.id.clone(),
        status: CodeToolStatus::Active,
        policy: ToolPolicy {
            side_effect_level: SideEffectLevel::Write,
            requires_approval: true,
            rate_limit_per_minute: Some(60),
            ..ToolPolicy::allow_read()
        },
        sandbox: Some(Arc::new(report())),
        blockers: Vec::new(),
        content_hash: record.content_hash,
        computed_hash: record.content_hash,
        expected_hash: None,
        caller: RunCallerFact {
            subject: subject("caller"),
            scopes: Scopes::NONE.with(Scope::Viewer),
            grants: vec![Grantee::Subject(subject("caller"))],
            break_glass: None,
        },
        arguments: ArgumentsFact::Fit,
        quota: QuotaFact::NotAsked,
        approval: Some(consent),
        argument_digest,
    }
}

fn report() -> SandboxReport {
    let holds = || Enforcement::Enforced { by: Vec::new() };
    let guarantees: BTreeMap<_, _> = Guarantee::ALL
        .into_iter()
        .map(|guarantee| (guarantee, holds()))
        .collect();
    SandboxReport {
        backend: "case".to_owned(),
        guarantees,
        required: Guarantee::DEFAULT_REQUIRED.to_vec(),
        interpreter: None,
        problem: None,
        unenforced_allowed: false,
    }
}

/// What is wrong and what it is answered with, in the order of the steps. Those with one number exclude each other.
type Fault = (u8, ReasonCode, Alteration);

type Alteration = fn(&mut CodeToolFacts);

fn faults() -> Vec<Fault> {
    vec![
        (0, ReasonCode::ToolArchived, |facts| {
            facts.status = CodeToolStatus::Archived
        }),
        (1, ReasonCode::SandboxUnavailable, |facts| facts.sandbox = None),
        (1, ReasonCode::SandboxUnavailable, |facts| {
            let mut report = report();
            report.guarantees.remove(&Guarantee::Net);
            facts.sandbox = Some(Arc::new(report));
        }),
        (2, ReasonCode::ModuleNotAllowed, |facts| {
            facts.blockers = vec![Reason::new(ReasonCode::ModuleNotAllowed, "not on the list")];
        }),
        (3, ReasonCode::SourceChanged, |facts| {
            facts.computed_hash = ContentHash::of(b"other")
        }),
        (3, ReasonCode::SourceChanged, |facts| {
            facts.expected_hash = Some(ContentHash::of(b"other"))
        }),
        (4, ReasonCode::NotGranted, |facts| facts.caller.grants.clear()),
        (4, ReasonCode::NotGranted, |facts| {
            facts.caller.grants = vec![
                Grantee::Subject(subject("somebody")),
                Grantee::Scope(Scope::Operator),
            ];
        }),
        (4, ReasonCode::NotGranted, |facts| {
            facts.caller.break_glass = Some("the pager".to_owned());
        }),
        (5, ReasonCode::ArgumentsInvalid, |facts| {
            facts.arguments = ArgumentsFact::Unfit {
                problem: "it does not fit".to_owned(),
            };
        }),
        (5, ReasonCode::ArgumentsUnchecked, |facts| {
            facts.arguments = ArgumentsFact::Unchecked {
                problem: "too large".to_owned(),
            };
        }),
        (6, ReasonCode::ApprovalRequired, |facts| facts.approval = None),
        (6, ReasonCode::ApprovalInvalid, |facts| {
            facts.argument_digest = ArgumentDigest::of(b"other")
        }),
        (6, ReasonCode::ApprovalInvalid, |facts| {
            with_tool(facts, |tool| {
                if let RequestedTool::Code { id, .. } = tool {
                    *id = CodeToolId::new();
                }
            });
        }),
        (6, ReasonCode::ApprovalInvalid, |facts| {
            with_tool(facts, |tool| {
                if let RequestedTool::Code { content_hash, .. } = tool {
                    *content_hash = ContentHash::of(b"other");
                }
            });
        }),
        (6, ReasonCode::ApprovalInvalid, |facts| {
            with_tool(facts, |requested| {
                *requested = RequestedTool::Server {
                    server: ServerId::new(),
                    tool: tool("weather"),
                    descriptor_digest: DescriptorDigest::of(b"seen"),
                };
            });
        }),
        (7, ReasonCode::RateLimited, |facts| {
            facts.quota = QuotaFact::Exhausted {
                retry_after: Duration::from_secs(1),
            };
        }),
        (7, ReasonCode::QuotaUnavailable, |facts| {
            facts.quota = QuotaFact::Unavailable
        }),
    ]
}

fn with_tool(facts: &mut CodeToolFacts, change: impl FnOnce(&mut RequestedTool)) {
    if let Some(approval) = &mut facts.approval {
        change(&mut approval.tool);
    }
}

/// One fault, or two: the answer is that of the first step that fails, and never yes.
pub(super) fn the_first_failing_step_of_a_run_answers(policy: &dyn AdmissionPolicy) {
    let decision = policy.decide((&allowed()).into());
    assert_eq!(
        decision.outcome,
        Outcome::Allow,
        "a faultless run is refused: {decision:?}"
    );
    let faults = faults();
    for (index, (step, code, apply)) in faults.iter().enumerate() {
        for (later, _, also) in faults.iter().skip(index) {
            let mut facts = allowed();
            apply(&mut facts);
            // A reason to go past approval takes the step of approval away, and another fault of the same step its like.
            if later != step {
                also(&mut facts);
            }
            let decision = policy.decide((&facts).into());
            let expected = match code {
                ReasonCode::ApprovalRequired => Outcome::NeedsApproval,
                _ => Outcome::Deny,
            };
            let first = decision.reasons.first().map(|reason| reason.code);
            assert_eq!((decision.outcome, first), (expected, Some(*code)), "{decision:?}");
            assert!(
                decision
                    .reasons
                    .iter()
                    .all(|reason| !reason.text.trim().is_empty())
            );
        }
    }
}

/// What stops nothing, and who needs no grant and no approval.
pub(super) fn what_stops_no_run(policy: &dyn AdmissionPolicy) {
    let passes: [(&str, Alteration); 6] = [
        ("a deprecated version", |facts| {
            facts.status = CodeToolStatus::Deprecated
        }),
        ("a guarantee that is missing and not required", |facts| {
            let mut report = report();
            report.guarantees.remove(&Guarantee::TreeMemory);
            facts.sandbox = Some(Arc::new(report));
        }),
        ("what the operator allows to be missing", |facts| {
            let mut report = report();
            report.guarantees.remove(&Guarantee::Net);
            report.unenforced_allowed = true;
            facts.sandbox = Some(Arc::new(report));
        }),
        ("the pinned content", |facts| {
            facts.expected_hash = Some(facts.content_hash)
        }),
        ("a grant to a scope that is held", |facts| {
            facts.caller.grants = vec![Grantee::Scope(Scope::Viewer)];
        }),
        ("an admin who goes past approval", |facts| {
            facts.caller.grants.clear();
            facts.caller.scopes = Scopes::NONE.with(Scope::Admin);
            facts.caller.break_glass = Some("the pager".to_owned());
            facts.approval = None;
        }),
    ];
    for (what, change) in passes {
        let mut facts = allowed();
        change(&mut facts);
        let decision = policy.decide((&facts).into());
        assert_eq!(decision.outcome, Outcome::Allow, "{what}: {decision:?}");
    }
    let mut facts = allowed();
    facts.caller.scopes = Scopes::NONE.with(Scope::Admin);
    facts.caller.break_glass = Some(" ".to_owned());
    assert_eq!(
        policy.decide((&facts).into()).outcome,
        Outcome::Deny,
        "a blank reason is none"
    );
}
