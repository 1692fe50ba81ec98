//! One run of a code tool: what is asked, in which order, and what a refusal says.

use std::sync::Arc;
use std::time::Duration;

use caliber_core::admission::{AdmissionPolicy, ArgumentsFact, CodeToolFacts, Decision, Outcome, QuotaFact};
use caliber_core::approval::ApprovalState;
use caliber_core::code_tool::CodeToolStatus;
use caliber_core::id::CodeToolId;
use caliber_core::principal::{Scope, Scopes};
use caliber_core::reason::{Reason, ReasonCode};
use caliber_core::sandbox::{Guarantee, SandboxReport};
use caliber_policy::settings::{CodeToolRules, SecretRules};
use caliber_policy::{Policy, PolicySettings};

use crate::facts::{HOSTILE, approval, arguments, consented, is_presentable, spent};
use crate::run_facts::{
    TOOL, allowed_run, approved_run, content, definition, report, requested, run_approval,
};

fn decide(facts: &CodeToolFacts) -> Decision {
    Policy::default().decide(facts.into())
}

fn code(facts: &CodeToolFacts) -> Option<ReasonCode> {
    decide(facts).reasons.first().map(|reason| reason.code)
}

/// What refuses a run, with the facts that it changes.
type Fault = (ReasonCode, fn(&mut CodeToolFacts));

/// What can be wrong with [`approved_run`], in the order in which it answers.
pub(crate) fn faults() -> Vec<Fault> {
    vec![
        (ReasonCode::PolicyError, |facts| {
            facts.policy.requires_approval = false
        }),
        (ReasonCode::ToolArchived, |facts| {
            facts.status = CodeToolStatus::Archived
        }),
        (ReasonCode::SandboxUnavailable, |facts| {
            facts.sandbox = Some(Arc::new(report(&[Guarantee::Net])));
        }),
        (ReasonCode::ModuleNotAllowed, |facts| {
            facts.blockers = vec![Reason::new(ReasonCode::ModuleNotAllowed, "not on the list")];
        }),
        (ReasonCode::SourceChanged, |facts| {
            facts.computed_hash = content("changed")
        }),
        (ReasonCode::NotGranted, |facts| facts.caller.grants.clear()),
        (ReasonCode::ArgumentsInvalid, |facts| {
            facts.arguments = ArgumentsFact::Unfit {
                problem: "`city` is missing".into(),
            };
        }),
        (ReasonCode::ArgumentsUnchecked, |facts| {
            facts.arguments = ArgumentsFact::Unchecked {
                problem: "the schema is too deep".into(),
            };
        }),
        (ReasonCode::ApprovalRequired, |facts| facts.approval = None),
        (ReasonCode::ApprovalInvalid, |facts| {
            facts.approval.as_mut().unwrap().state = spent();
        }),
        (ReasonCode::RateLimited, |facts| {
            facts.quota = QuotaFact::Exhausted {
                retry_after: Duration::from_millis(1_500),
            };
        }),
        (ReasonCode::QuotaUnavailable, |facts| {
            facts.quota = QuotaFact::Unavailable
        }),
    ]
}

#[test]
fn each_reason_refuses_and_its_neighbour_passes() {
    assert_eq!(decide(&allowed_run()), Decision::allow());
    assert_eq!(decide(&approved_run()), Decision::allow());
    for (expected, break_it) in faults() {
        let mut facts = approved_run();
        break_it(&mut facts);
        let decision = decide(&facts);
        let outcome = match expected {
            ReasonCode::ApprovalRequired => Outcome::NeedsApproval,
            _ => Outcome::Deny,
        };
        assert_eq!(
            (decision.outcome, decision.reasons[0].code),
            (outcome, expected),
            "{decision:?}"
        );
    }
}

#[test]
fn the_first_failing_step_answers() {
    let faults = faults();
    for set in 1..1_u32 << faults.len() {
        let chosen: Vec<_> = faults
            .iter()
            .enumerate()
            .filter(|(index, _)| set & (1 << index) != 0)
            .map(|(_, fault)| fault)
            .collect();
        // Two faults of the same fact exclude each other.
        let codes: Vec<_> = chosen.iter().map(|(code, _)| *code).collect();
        let both = |one, two| codes.contains(&one) && codes.contains(&two);
        if both(ReasonCode::ArgumentsInvalid, ReasonCode::ArgumentsUnchecked)
            || both(ReasonCode::ApprovalRequired, ReasonCode::ApprovalInvalid)
            || both(ReasonCode::RateLimited, ReasonCode::QuotaUnavailable)
        {
            continue;
        }
        let mut facts = approved_run();
        chosen.iter().for_each(|(_, break_it)| break_it(&mut facts));
        assert_eq!(code(&facts), Some(codes[0]), "{codes:?}");
    }
}

#[test]
fn a_deprecated_version_still_runs() {
    let mut facts = allowed_run();
    facts.status = CodeToolStatus::Deprecated;
    assert_eq!(decide(&facts), Decision::allow());
}

#[test]
fn every_missing_guarantee_is_named() {
    let with = |sandbox| {
        let mut facts = allowed_run();
        facts.sandbox = sandbox;
        decide(&facts)
    };
    let missing = with(Some(Arc::new(report(&[Guarantee::Net, Guarantee::TreeKill]))));
    let text = &missing.reasons[0].text;
    assert!(
        text.contains("net, tree_kill") && text.contains("doctor"),
        "{text}"
    );
    assert_eq!(with(None).reasons[0].code, ReasonCode::SandboxUnavailable);
    // What is not required does not count, and what the operator allows runs.
    assert_eq!(
        with(Some(Arc::new(report(&[Guarantee::TreeMemory])))),
        Decision::allow()
    );
    let allowed = SandboxReport {
        unenforced_allowed: true,
        ..report(&[Guarantee::Net])
    };
    assert_eq!(with(Some(Arc::new(allowed))), Decision::allow());
    for text in HOSTILE {
        let broken = SandboxReport {
            problem: Some(text.to_owned()),
            ..report(&[])
        };
        let decision = with(Some(Arc::new(broken)));
        assert_eq!(decision.reasons[0].code, ReasonCode::SandboxUnavailable);
        assert!(is_presentable(&decision.reasons[0].text), "{decision:?}");
    }
}

#[test]
fn everything_that_stands_against_a_tool_is_listed() {
    let mut facts = allowed_run();
    facts.blockers = vec![
        Reason::new(ReasonCode::SecretNotAllowed, "one"),
        Reason::new(ReasonCode::ModuleNotAllowed, "two"),
    ];
    let codes: Vec<_> = decide(&facts).reasons.iter().map(|reason| reason.code).collect();
    assert_eq!(
        codes,
        [ReasonCode::SecretNotAllowed, ReasonCode::ModuleNotAllowed]
    );
}

#[test]
fn a_run_is_of_what_was_registered_and_pinned() {
    let mut facts = allowed_run();
    facts.expected_hash = Some(content("weather"));
    assert_eq!(decide(&facts), Decision::allow());
    facts.expected_hash = Some(content("changed"));
    assert_eq!(code(&facts), Some(ReasonCode::SourceChanged));
}

#[test]
fn an_approval_is_for_exactly_one_run() {
    type Misfit = fn(&mut caliber_core::approval::Approval);
    let misfits: [Misfit; 8] = [
        |approval| approval.tool = requested(&CodeToolId::new(), content("weather")),
        |approval| approval.tool = requested(&TOOL, content("changed")),
        |approval| approval.tool = crate::facts::approval().tool,
        |approval| approval.argument_digest = arguments("other"),
        |approval| approval.requested_by = "grace".parse().unwrap(),
        |approval| approval.expires_at = *crate::facts::NOW,
        |approval| approval.state = consented("ada"),
        |approval| approval.state = spent(),
    ];
    for (index, misfit) in misfits.into_iter().enumerate() {
        let mut facts = approved_run();
        misfit(facts.approval.as_mut().unwrap());
        let decision = decide(&facts);
        assert_eq!(
            (decision.outcome, decision.reasons[0].code),
            (Outcome::Deny, ReasonCode::ApprovalInvalid),
            "{index}"
        );
    }
    let mut waits = approved_run();
    waits.approval.as_mut().unwrap().state = ApprovalState::Pending;
    assert_eq!(decide(&waits).outcome, Outcome::NeedsApproval);
    // The family and the number are for people: what decides is the version and its content.
    let mut renamed = run_approval();
    if let caliber_core::approval::RequestedTool::Code { family, .. } = &mut renamed.tool {
        *family = "forecast".parse().unwrap();
    }
    let mut facts = approved_run();
    facts.approval = Some(renamed);
    assert_eq!(decide(&facts), Decision::allow());
    // And the approval of a run opens no call of a server's tool.
    let mut call = crate::facts::approved();
    call.approval = Some(run_approval());
    let decision = Policy::default().decide((&call).into());
    assert_eq!(decision.reasons[0].code, ReasonCode::ApprovalInvalid);
    assert_ne!(run_approval().tool, approval().tool);
}

#[test]
fn only_an_admin_breaks_the_glass() {
    let mut facts = approved_run();
    facts.approval = None;
    facts.caller.break_glass = Some("the pager rang".into());
    for scope in [Scope::Viewer, Scope::Operator, Scope::Approver] {
        facts.caller.scopes = Scopes::NONE.with(scope);
        assert_eq!(code(&facts), Some(ReasonCode::NotGranted), "{scope}");
    }
    facts.caller.scopes = Scopes::NONE.with(Scope::Admin);
    assert_eq!(decide(&facts), Decision::allow());
    facts.status = CodeToolStatus::Archived;
    assert_eq!(code(&facts), Some(ReasonCode::ToolArchived));
}

#[test]
fn the_lists_of_the_operator_say_what_a_tool_may_be() {
    let python = |module: &str| serde_json::json!({"runtime": "python", "module_path": module, "callable_name": "run"});
    let native =
        |path: &str| serde_json::json!({"runtime": "native", "executable": path, "protocol": "json"});
    let policy = Policy::new(PolicySettings {
        code_tools: CodeToolRules {
            modules: vec!["reports".parse().unwrap(), "tools.*".parse().unwrap()],
            executables: vec!["/usr/bin/tool".to_owned()],
        },
        secrets: SecretRules {
            environment: vec!["TOOL_*".parse().unwrap()],
            files: Vec::new(),
        },
        ..PolicySettings::default()
    });
    let none = || serde_json::json!({});
    let codes = |program, secrets| -> Vec<_> {
        let found = policy.blockers(&definition(program, secrets));
        assert!(
            found.iter().all(|blocker| is_presentable(&blocker.text)),
            "{found:?}"
        );
        found.iter().map(|blocker| blocker.code).collect()
    };
    for allowed in [python("reports"), python("tools.a.b"), native("/usr/bin/tool")] {
        assert_eq!(codes(allowed, none()), [], "it is on the list");
    }
    for refused in [
        python("reports.weekly"),
        python("tools"),
        python("toolsevil.a"),
        native("/usr/bin/other"),
    ] {
        assert_eq!(codes(refused, none()), [ReasonCode::ModuleNotAllowed]);
    }
    assert_eq!(
        codes(python("reports"), serde_json::json!({"A": "env://TOOL_A"})),
        []
    );
    assert_eq!(
        codes(
            python("os"),
            serde_json::json!({"A": "env://HOME", "B": "file:///etc/shadow"})
        ),
        [ReasonCode::ModuleNotAllowed, ReasonCode::SecretNotAllowed]
    );
    let told = policy.blockers(&definition(
        python("reports"),
        serde_json::json!({"A": "env://HOME"}),
    ));
    assert!(
        told[0].text.contains("`A`") && !told[0].text.contains("HOME"),
        "{told:?}"
    );
    // Nothing is allowed by an empty list, and everything by what stands there unless it is changed.
    assert!(
        Policy::default()
            .blockers(&definition(python("os"), none()))
            .is_empty()
    );
    let closed = Policy::new(PolicySettings {
        code_tools: CodeToolRules {
            modules: Vec::new(),
            executables: Vec::new(),
        },
        ..PolicySettings::default()
    });
    assert_eq!(closed.blockers(&definition(python("os"), none())).len(), 1);
    assert_eq!(closed.blockers(&definition(native("/bin/true"), none())).len(), 1);
}
