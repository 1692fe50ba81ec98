//! May this call be made?

use caliber_core::admission::{
    AdmissionFacts, ArgumentsFact, CallerFact, Decision, InventoryFact, QuotaFact, ServerToolFacts,
    SessionFact,
};
use caliber_core::approval::{Approval, ApprovalState, RequestedTool};
use caliber_core::clock::Timestamp;
use caliber_core::digest::{ArgumentDigest, DescriptorDigest};
use caliber_core::grant::Grantee;
use caliber_core::inventory::{ToolState, classification_state};
use caliber_core::policy::Classification;
use caliber_core::principal::{Scope, Scopes, Subject};
use caliber_core::reason::{Reason, ReasonCode};
use caliber_core::server::ServerStatus;
use caliber_core::text::{escaped, shown};

mod code_tool;

/// The longest text of a reason, in characters.
pub const REASON_LENGTH: usize = 1_000;

/// Decides on one call. The steps stand in the order of the design, and the first that fails answers; facts that
/// contradict each other answer before any of them.
///
/// It allocates only for a refusal. An allowed call costs well under the 5 µs that the benchmarks hold it to.
pub fn decide(facts: AdmissionFacts<'_>) -> Decision {
    let passed = match facts {
        AdmissionFacts::ServerTool(facts) => admit(facts),
        AdmissionFacts::CodeTool(facts) => code_tool::admit(facts),
    };
    match passed {
        Ok(()) => Decision::allow(),
        Err(refusal) => refusal,
    }
}

/// What a passed step hands on, or the refusal.
type Step<T = ()> = Result<T, Decision>;

fn admit(facts: &ServerToolFacts) -> Step {
    facts_agree(facts)?;
    server_is_active(facts)?;
    server_is_ready(facts)?;
    let listed = tool_is_known(facts)?;
    let classification = classification_holds(facts, listed)?;
    tool_is_allowed(facts, classification)?;
    caller_may(&facts.caller)?;
    arguments_fit(&facts.arguments)?;
    // Whoever comes here with a reason to go past approval is an admin.
    if classification.policy.requires_approval && facts.caller.break_glass.is_none() {
        let call = Call {
            now: facts.now,
            subject: &facts.caller.subject,
            argument_digest: facts.argument_digest,
        };
        let other_tool = |tool: &RequestedTool| other_tool(tool, classification, listed);
        consent_is_given(facts.approval.as_ref(), &call, other_tool)?;
    }
    quota_is_left(facts.quota, facts.caller.tool.as_str())
}

/// Nothing is decided on facts of which one must be wrong.
fn facts_agree(facts: &ServerToolFacts) -> Step {
    let bound = facts.classification.as_ref();
    let contradiction = if bound.is_some_and(|bound| bound.tool != facts.caller.tool) {
        "the classification is one of another tool"
    } else if bound.is_some_and(|bound| bound.policy.validate().is_err()) {
        "the stored policy breaks its own rules"
    } else if facts.quota != QuotaFact::NotAsked
        && bound.is_none_or(|bound| bound.policy.rate_limit_per_minute.is_none())
    {
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

fn is_blank(reason: Option<&str>) -> bool {
    reason.is_some_and(|reason| reason.trim().is_empty())
}

fn server_is_active(facts: &ServerToolFacts) -> Step {
    match facts.status {
        ServerStatus::Active => Ok(()),
        ServerStatus::Disabled => deny(
            ReasonCode::ServerDisabled,
            "the server is switched off; an admin can switch it on again",
        ),
    }
}

/// Names every blocker: whoever repairs the server wants to do it once.
fn server_is_ready(facts: &ServerToolFacts) -> Step {
    let blockers = &facts.readiness.blockers;
    if blockers.is_empty() {
        return Ok(());
    }
    let each: Vec<_> = blockers
        .iter()
        .map(|blocker| format!("{}: {}", blocker.code, blocker.text))
        .collect();
    let mut decision = Decision::deny(reason(
        ReasonCode::ServerNotReady,
        format!("the server is not ready: {}", each.join("; ")),
    ));
    let lines = blockers.iter().map(|blocker| reason(blocker.code, &blocker.text));
    decision.reasons.extend(lines);
    Err(decision)
}

/// Gives the descriptor that the last discovery saw.
fn tool_is_known(facts: &ServerToolFacts) -> Step<DescriptorDigest> {
    let tool = &facts.caller.tool;
    match (&facts.inventory, facts.session) {
        (InventoryFact::Absent, _) => deny(
            ReasonCode::InventoryAbsent,
            "the server was never discovered; discover it first",
        ),
        (InventoryFact::Unlisted, _) => deny(
            ReasonCode::ToolUnknown,
            format!(
                "the server has no tool {}; look at the list of its tools",
                name(tool.as_str())
            ),
        ),
        (InventoryFact::Withheld { reason }, _) => deny(
            ReasonCode::ToolWithheld,
            format!("{} cannot be offered: {}", name(tool.as_str()), line(reason)),
        ),
        (InventoryFact::Listed(_), SessionFact::Unlisted) => deny(
            ReasonCode::ToolUnknown,
            format!(
                "the server no longer offers {}; discover it again",
                name(tool.as_str())
            ),
        ),
        (InventoryFact::Listed(listed), SessionFact::NotOpen | SessionFact::Advertised(_)) => Ok(*listed),
    }
}

/// Gives the classification, if it is one of exactly what the server is now: by the last discovery, by what the
/// open session saw, and by where it runs.
fn classification_holds(facts: &ServerToolFacts, listed: DescriptorDigest) -> Step<&Classification> {
    let classification = facts.classification.as_ref();
    let Some(bound) = classification else {
        return deny(
            ReasonCode::Unclassified,
            format!(
                "no admin has classified {}; an admin has to look at it and set a policy",
                name(facts.caller.tool.as_str())
            ),
        );
    };
    let session_agrees = match facts.session {
        SessionFact::Advertised(seen) => seen == bound.descriptor_digest,
        SessionFact::NotOpen | SessionFact::Unlisted => true,
    };
    let state = classification_state(classification, listed, facts.fingerprint);
    if state == ToolState::Classified && session_agrees {
        return Ok(bound);
    }
    let what = if bound.fingerprint != facts.fingerprint {
        "the server runs somewhere else now"
    } else if bound.descriptor_digest != listed || !session_agrees {
        "the server describes it in another way now"
    } else {
        "a change was seen"
    };
    deny(
        ReasonCode::Drifted,
        format!(
            "{} is no longer what was classified: {what}; an admin has to look at the difference and \
             classify it again",
            name(facts.caller.tool.as_str())
        ),
    )
}

fn tool_is_allowed(facts: &ServerToolFacts, classification: &Classification) -> Step {
    if classification.policy.allowed {
        return Ok(());
    }
    deny(
        ReasonCode::Blocked,
        format!(
            "the policy does not allow {}; an admin can change that",
            name(facts.caller.tool.as_str())
        ),
    )
}

/// An admin of the server's project may call everything there; everybody else needs a grant. Going past approval
/// is for admins, whatever the tool asks for.
fn caller_may(caller: &CallerFact) -> Step {
    let granted = || {
        caller.grants.iter().any(|(grantee, tool)| {
            names(grantee, &caller.subject, caller.scopes)
                && tool.as_ref().is_none_or(|tool| *tool == caller.tool)
        })
    };
    is_admin_or(
        granted,
        &caller.subject,
        caller.scopes,
        caller.break_glass.is_some(),
        caller.tool.as_str(),
    )
}

/// Whether a grant is for this caller.
fn names(grantee: &Grantee, caller: &Subject, scopes: Scopes) -> bool {
    match grantee {
        Grantee::Subject(subject) => subject == caller,
        Grantee::Scope(scope) => scopes.allow(*scope),
    }
}

fn is_admin_or(
    granted: impl Fn() -> bool,
    subject: &Subject,
    scopes: Scopes,
    breaks_glass: bool,
    tool: &str,
) -> Step {
    if scopes.allow(Scope::Admin) {
        return Ok(());
    }
    let subject = name(subject.as_str());
    if breaks_glass {
        return deny(
            ReasonCode::NotGranted,
            format!("only an admin of the tool's project may go past approval, and {subject} is none"),
        );
    }
    if granted() {
        return Ok(());
    }
    deny(
        ReasonCode::NotGranted,
        format!(
            "{subject} has no grant for {}; an admin of the project can give one",
            name(tool)
        ),
    )
}

fn arguments_fit(arguments: &ArgumentsFact) -> Step {
    match arguments {
        ArgumentsFact::Fit => Ok(()),
        ArgumentsFact::Unfit { problem } => deny(
            ReasonCode::ArgumentsInvalid,
            format!(
                "the arguments do not fit the tool's input schema: {}",
                line(problem)
            ),
        ),
        ArgumentsFact::Unchecked { problem } => deny(
            ReasonCode::ArgumentsUnchecked,
            format!(
                "the arguments could not be checked, so they are not sent: {}",
                line(problem)
            ),
        ),
    }
}

/// What an approval has to be about, besides the tool.
struct Call<'a> {
    now: Timestamp,
    subject: &'a Subject,
    argument_digest: ArgumentDigest,
}

/// Whether somebody else consented to exactly this call. `other_tool` says what makes the tool of the approval another
/// one, if anything does.
fn consent_is_given(
    approval: Option<&Approval>,
    call: &Call<'_>,
    other_tool: impl Fn(&RequestedTool) -> Option<&'static str>,
) -> Step {
    let Some(approval) = approval else {
        return wait("the call needs a person's consent first; an approver has to decide on the request");
    };
    if let Some(problem) = other_tool(&approval.tool).or_else(|| misfit(call, approval)) {
        return deny(
            ReasonCode::ApprovalInvalid,
            format!("the approval {problem}; make the call without it to ask for a new one"),
        );
    }
    match &approval.state {
        ApprovalState::Pending => wait("nobody has decided on the request for consent yet; ask an approver"),
        ApprovalState::Approved { .. } => Ok(()),
        ApprovalState::Refused { by, .. } => deny(
            ReasonCode::ApprovalInvalid,
            format!("{} refused consent to this call", name(by.as_str())),
        ),
        ApprovalState::Spent { .. } => deny(
            ReasonCode::ApprovalInvalid,
            "the approval was spent by another call; make the call without it to ask for a new one",
        ),
    }
}

/// What makes the tool of an approval another one than a server's classified tool, if anything does.
fn other_tool(
    requested: &RequestedTool,
    classification: &Classification,
    listed: DescriptorDigest,
) -> Option<&'static str> {
    match requested {
        RequestedTool::Code { .. } => Some("is one for a code tool"),
        RequestedTool::Server { server, .. } if *server != classification.server => {
            Some("is one for another server")
        }
        RequestedTool::Server { tool, .. } if *tool != classification.tool => Some("is one for another tool"),
        RequestedTool::Server {
            descriptor_digest, ..
        } if *descriptor_digest != listed => Some("is one for the tool as it was before it changed"),
        RequestedTool::Server { .. } => None,
    }
}

/// What makes an approval one for another call, if anything does.
fn misfit(call: &Call<'_>, approval: &Approval) -> Option<&'static str> {
    let decided_alone = matches!(&approval.state, ApprovalState::Approved { by, .. }
        | ApprovalState::Spent { by, .. } if *by == approval.requested_by);
    if approval.argument_digest != call.argument_digest {
        Some("is one for other arguments")
    } else if approval.requested_by != *call.subject {
        Some("was asked for by somebody else")
    } else if decided_alone {
        Some("was decided by whoever asked for it")
    } else if approval.expires_at <= call.now {
        Some("has expired")
    } else {
        None
    }
}

fn quota_is_left(quota: QuotaFact, tool: &str) -> Step {
    match quota {
        QuotaFact::NotAsked => Ok(()),
        QuotaFact::Exhausted { retry_after } => deny(
            ReasonCode::RateLimited,
            format!(
                "the calls per minute of {} are spent; the next may pass in {:.3} s",
                name(tool),
                retry_after.as_secs_f64()
            ),
        ),
        QuotaFact::Unavailable => deny(
            ReasonCode::QuotaUnavailable,
            format!(
                "it cannot be told whether {} has calls left, so this one is refused; try again later",
                name(tool)
            ),
        ),
    }
}

fn deny<T>(code: ReasonCode, text: impl AsRef<str>) -> Step<T> {
    Err(Decision::deny(reason(code, text)))
}

fn wait<T>(text: &str) -> Step<T> {
    Err(Decision::needs_approval(reason(
        ReasonCode::ApprovalRequired,
        text,
    )))
}

fn reason(code: ReasonCode, text: impl AsRef<str>) -> Reason {
    Reason::new(code, line(text.as_ref()))
}

/// A name as people see it.
fn name(name: &str) -> String {
    shown(name)
}

/// Foreign text as one bounded line.
fn line(text: &str) -> String {
    escaped(text, REASON_LENGTH)
}
