//! What calls of servers' tools and runs of code tools have in common on their way through admission.

use super::Inner;
use super::approvals::WantedApproval;
use crate::admission::{ArgumentsFact, Decision, Outcome, QuotaFact};
use crate::audit::AuditAction;
use crate::clock::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Grant, Grantee};
use crate::id::ProjectId;
use crate::invocation::{Invocation, InvocationIntent, InvokedTool};
use crate::json::{JsonLimits, JsonText};
use crate::principal::{Principal, Surface};
use crate::quota::QuotaOutcome;
use crate::reason::{Reason, ReasonCode};
use crate::registry::{Change, Expect};
use crate::schema::{Fit, Part, SchemaOwner};

/// How often facts are read again when they moved between the decision and the commit of the intent.
pub(super) const DECISION_ATTEMPTS: usize = 3;
/// The longest reason of an admin who goes past approval, in bytes.
const BREAK_GLASS_LENGTH: usize = 1_000;

impl Inner {
    /// Makes everything but a plain yes the error that the caller gets. A call that needs consent gets a request for
    /// it, unless it came with one.
    pub(super) async fn pass(
        &self,
        decision: Decision,
        quota: QuotaFact,
        who: (&Principal, Surface),
        wanted: Option<WantedApproval>,
    ) -> Result<()> {
        let Decision { outcome, reasons } = decision;
        let reason = reasons.into_iter().next();
        match (outcome, wanted) {
            (Outcome::Allow, _) => Ok(()),
            (Outcome::Deny, _) | (Outcome::NeedsApproval, None) => Err(denial(reason, quota)),
            (Outcome::NeedsApproval, Some(wanted)) => {
                let id = self.request_approval(who, wanted).await?;
                let text = reason.map_or_else(
                    || "the call needs a person's consent".to_owned(),
                    |reason| reason.text,
                );
                Err(Error::new(ErrorKind::ApprovalNeeded, text)
                    .with_reason(ReasonCode::ApprovalRequired)
                    .with_context("approval", id.as_str()))
            }
        }
    }

    /// Spends one call of a quota; `NotAsked` means that it was there.
    pub(super) async fn spend(&self, key: &str, limit: u32) -> QuotaFact {
        match self.quotas.spend(key, limit).await {
            Ok(QuotaOutcome::Spent) => QuotaFact::NotAsked,
            Ok(QuotaOutcome::Exhausted { retry_after }) => QuotaFact::Exhausted { retry_after },
            Err(error) => {
                tracing::warn!(%error, "a quota could not be asked; the call is refused");
                QuotaFact::Unavailable
            }
        }
    }

    /// Commits the intent of a call, and spends its approval in the same transaction.
    pub(super) async fn begin(
        &self,
        who: (&Principal, Surface),
        invocation: &Invocation,
        expect: &Expect,
        deadline: Deadline,
    ) -> Result<()> {
        let lease = deadline.remaining().saturating_add(self.settings.lease_margin);
        let intent = InvocationIntent {
            invocation: invocation.clone(),
            owner: self.instance.clone(),
            lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        };
        let (action, name) = match &invocation.tool {
            InvokedTool::Server { tool, .. } => (AuditAction::BeginInvocation, tool.to_string()),
            InvokedTool::Code { family, version, .. } => {
                (AuditAction::BeginRun, format!("{family} {version}"))
            }
        };
        let details = serde_json::json!({
            "invocation_id": invocation.id,
            "tool_name": name,
            "side_effect_level": invocation.side_effect_level,
            "approval_id": invocation.approval,
            "break_glass": invocation.break_glass,
        });
        let audit = self.entry(
            who,
            action,
            invocation.tool.entity(),
            Some(&invocation.project),
            details,
        )?;
        let change = Change::BeginInvocation {
            intent: Box::new(intent),
        };
        self.commit(change, expect.clone(), audit).await.map(drop)
    }

    /// Whether arguments fit a schema, within the bounds of the check. Without a schema every object fits.
    pub(super) async fn check_arguments(
        &self,
        owner: SchemaOwner,
        schema: Option<&JsonText>,
        arguments: &JsonText,
    ) -> ArgumentsFact {
        if !arguments.is_object() {
            return ArgumentsFact::Unfit {
                problem: "the arguments are no JSON object".to_owned(),
            };
        }
        if arguments.as_str().len() > JsonLimits::ARGUMENTS.bytes {
            let limit = JsonLimits::ARGUMENTS.bytes;
            return ArgumentsFact::Unchecked {
                problem: format!("the arguments are larger than {limit} bytes"),
            };
        }
        let Some(schema) = schema else {
            return ArgumentsFact::Fit;
        };
        match self.schemas.check(owner, Part::Input, schema, arguments).await {
            Fit::Fits => ArgumentsFact::Fit,
            Fit::Unfit(problem) => ArgumentsFact::Unfit { problem },
            Fit::Unchecked(problem) => ArgumentsFact::Unchecked { problem },
        }
    }
}

/// Whom a grant is for, as the policy can judge it: it knows the scopes in the tool's project. A grant of the
/// caller's own project to a scope is judged here, where the caller's scopes in that project are known.
pub(super) fn grantee(principal: &Principal, project: &ProjectId, grant: &Grant) -> Option<Grantee> {
    match grant.grantee {
        Grantee::Scope(scope) if grant.project != *project => principal
            .scopes_in(&grant.project)
            .allow(scope)
            .then(|| Grantee::Subject(principal.subject.clone())),
        _ => Some(grant.grantee.clone()),
    }
}

/// Refuses a reason to go past approval that is none.
pub(super) fn check_break_glass(reason: Option<&str>) -> Result<()> {
    if reason.is_some_and(|reason| reason.trim().is_empty() || reason.len() > BREAK_GLASS_LENGTH) {
        return Err(Error::invalid("break_glass", "give a reason of 1 to 1,000 bytes"));
    }
    Ok(())
}

pub(super) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the caller gave up").with_reason(ReasonCode::Cancelled)
}

pub(super) fn busy_ledger() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the ledger takes no more records just now; try again later",
    )
    .with_reason(ReasonCode::StoreUnavailable)
}

pub(super) fn contradiction(text: &str) -> Error {
    Error::new(ErrorKind::Denied, text).with_reason(ReasonCode::PolicyError)
}

pub(super) fn keeps_changing() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "what the call was decided on keeps changing; try again",
    )
    .with_reason(ReasonCode::StaleRevision)
}

fn denial(reason: Option<Reason>, quota: QuotaFact) -> Error {
    let reason =
        reason.unwrap_or_else(|| Reason::new(ReasonCode::PolicyError, "the policy refused without a reason"));
    let kind = match reason.code {
        ReasonCode::RateLimited => ErrorKind::RateLimited,
        ReasonCode::QuotaUnavailable | ReasonCode::SandboxUnavailable => ErrorKind::Unavailable,
        _ => ErrorKind::Denied,
    };
    let error = Error::new(kind, reason.text).with_reason(reason.code);
    match quota {
        QuotaFact::Exhausted { retry_after } => {
            error.with_context("retry_after_ms", retry_after.as_millis().to_string())
        }
        _ => error,
    }
}
