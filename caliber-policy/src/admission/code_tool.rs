//! May this code tool be run?

use caliber_core::admission::{CodeToolFacts, Decision, QuotaFact};
use caliber_core::approval::RequestedTool;
use caliber_core::code_tool::CodeToolStatus;
use caliber_core::reason::ReasonCode;

use super::{
    Call, Step, arguments_fit, consent_is_given, deny, is_admin_or, is_blank, line, names, quota_is_left,
    reason,
};

/// The steps in their order; facts that contradict each other answer before any of them.
pub(super) fn admit(facts: &CodeToolFacts) -> Step {
    let caller = &facts.caller;
    facts_agree(facts)?;
    version_is_not_archived(facts)?;
    sandbox_enforces(facts)?;
    nothing_stands_against_it(facts)?;
    content_is_the_same(facts)?;
    let granted = || {
        let mut grants = caller.grants.iter();
        grants.any(|grantee| names(grantee, &caller.subject, caller.scopes))
    };
    let breaks_glass = caller.break_glass.is_some();
    is_admin_or(
        granted,
        &caller.subject,
        caller.scopes,
        breaks_glass,
        facts.tool.as_str(),
    )?;
    arguments_fit(&facts.arguments)?;
    // Whoever comes here with a reason to go past approval is an admin.
    if facts.policy.requires_approval && !breaks_glass {
        let call = Call {
            now: facts.now,
            subject: &caller.subject,
            argument_digest: facts.argument_digest,
        };
        consent_is_given(facts.approval.as_ref(), &call, |tool| other_tool(tool, facts))?;
    }
    quota_is_left(facts.quota, facts.tool.as_str())
}

/// Nothing is decided on facts of which one must be wrong.
fn facts_agree(facts: &CodeToolFacts) -> Step {
    let contradiction = if !facts.policy.allowed || facts.policy.validate().is_err() {
        "the stored definition breaks its own rules"
    } else if facts.quota != QuotaFact::NotAsked && facts.policy.rate_limit_per_minute.is_none() {
        "a quota was asked for a tool without one"
    } else if is_blank(facts.caller.break_glass.as_deref()) {
        "approval is passed over without a reason"
    } else {
        return Ok(());
    };
    deny(
        ReasonCode::PolicyError,
        format!("nothing can be decided: {contradiction}; an admin has to look at the tool"),
    )
}

fn version_is_not_archived(facts: &CodeToolFacts) -> Step {
    match facts.status {
        CodeToolStatus::Active | CodeToolStatus::Deprecated => Ok(()),
        CodeToolStatus::Archived => deny(
            ReasonCode::ToolArchived,
            "the version is archived; use another one, or let an admin make it active again",
        ),
    }
}

/// Names every guarantee that is missing: whoever repairs the machine wants to do it once.
fn sandbox_enforces(facts: &CodeToolFacts) -> Step {
    let Some(report) = &facts.sandbox else {
        return deny(
            ReasonCode::SandboxUnavailable,
            "there is no sandbox here, so no code tool runs",
        );
    };
    if report.is_available() {
        return Ok(());
    }
    let missing: Vec<_> = report
        .missing()
        .into_iter()
        .map(|guarantee| guarantee.as_str())
        .collect();
    let what = match &report.problem {
        Some(problem) => problem.clone(),
        None => format!("what is required does not hold here: {}", missing.join(", ")),
    };
    deny(
        ReasonCode::SandboxUnavailable,
        format!("nothing runs, because {what}; `caliber sandbox doctor` says what to do"),
    )
}

/// The first of what stands against the tool answers, with all of it beside.
fn nothing_stands_against_it(facts: &CodeToolFacts) -> Step {
    let Some((first, rest)) = facts.blockers.split_first() else {
        return Ok(());
    };
    let mut decision = Decision::deny(reason(first.code, &first.text));
    let lines = rest.iter().map(|blocker| reason(blocker.code, &blocker.text));
    decision.reasons.extend(lines);
    Err(decision)
}

fn content_is_the_same(facts: &CodeToolFacts) -> Step {
    let what = if facts.computed_hash != facts.content_hash {
        "its record was changed outside of caliber; register the tool again under another version"
    } else if facts
        .expected_hash
        .is_some_and(|expected| expected != facts.content_hash)
    {
        "it is not what the caller pinned; resolve the tool again"
    } else {
        return Ok(());
    };
    deny(
        ReasonCode::SourceChanged,
        format!("the tool does not run: {}", line(what)),
    )
}

/// What makes the tool of an approval another one, if anything does.
fn other_tool(requested: &RequestedTool, facts: &CodeToolFacts) -> Option<&'static str> {
    match requested {
        RequestedTool::Server { .. } => Some("is one for a server's tool"),
        RequestedTool::Code { id, .. } if *id != facts.tool => Some("is one for another tool"),
        RequestedTool::Code { content_hash, .. } if *content_hash != facts.content_hash => {
            Some("is one for another content of the tool")
        }
        RequestedTool::Code { .. } => None,
    }
}
