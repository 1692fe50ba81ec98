//! Consent to single calls.

use super::{Caliber, Inner};
use crate::approval::{Approval, ApprovalState, RequestedTool};
use crate::audit::AuditAction;
use crate::digest::ArgumentDigest;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ApprovalId, ProjectId};
use crate::json::JsonText;
use crate::page::{PAGE_LIMIT, Page, PageRequest};
use crate::principal::{Principal, Scope, Surface};
use crate::registry::{Change, Entity, Expect, Revision};

/// The most reads of the store for one page of requests.
const LIST_READS: usize = 20;
/// The longest note of a decision, in bytes.
const NOTE_LENGTH: usize = 1_000;

impl Caliber {
    /// The requests for consent of the caller's project, newest first. Approvers see all, others their own.
    ///
    /// # Errors
    ///
    /// `Forbidden` without any scope; `Invalid` for a foreign cursor.
    pub async fn approvals(
        &self,
        principal: &Principal,
        pending_only: bool,
        page: &PageRequest,
    ) -> Result<Page<Approval>> {
        principal.require(Scope::Viewer, &principal.project)?;
        let own = [principal.project.clone()];
        let projects: Option<&[ProjectId]> = if principal.everywhere { None } else { Some(&own) };
        let sees_all = principal.scopes.allow(Scope::Approver);
        let mut shown = Page {
            items: Vec::new(),
            next: page.cursor.clone(),
        };
        // What is not shown takes no place in the page; after some looking a short page has to do.
        for _ in 0..LIST_READS {
            let rest = page.bounded_limit() - shown.items.len();
            let request = PageRequest {
                limit: u32::try_from(rest).unwrap_or(PAGE_LIMIT),
                cursor: shown.next.take(),
            };
            let read = self
                .inner
                .registry
                .approvals(projects, pending_only, &request)
                .await?;
            shown.next = read.next;
            let visible = |approval: &Approval| sees_all || approval.requested_by == principal.subject;
            shown.items.extend(read.items.into_iter().filter(visible));
            if shown.next.is_none() || shown.items.len() >= page.bounded_limit() {
                break;
            }
        }
        Ok(shown)
    }

    /// One request for consent.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is absent, or the caller neither asked for it nor may decide it.
    pub async fn approval(&self, principal: &Principal, id: &ApprovalId) -> Result<Approval> {
        self.inner.visible_approval(principal, id).await
    }

    /// Consents to a call, or refuses it. Nobody decides about their own call.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Forbidden` without `approver` or for one's own call, `Conflict` when it is decided or
    /// expired already.
    pub async fn decide_approval(
        &self,
        who: (&Principal, Surface),
        id: &ApprovalId,
        consent: bool,
        note: Option<String>,
    ) -> Result<Approval> {
        let inner = &self.inner;
        let mut approval = inner.visible_approval(who.0, id).await?;
        who.0.require(Scope::Approver, &approval.project)?;
        if approval.requested_by == who.0.subject {
            return Err(Error::new(
                ErrorKind::Forbidden,
                "somebody else than the caller has to decide about a call",
            ));
        }
        if note.as_ref().is_some_and(|note| note.len() > NOTE_LENGTH) {
            return Err(Error::invalid(
                "note",
                format!("it is longer than {NOTE_LENGTH} bytes"),
            ));
        }
        let now = inner.now();
        if approval.state != ApprovalState::Pending || approval.expires_at <= now {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the request is decided or expired; nothing was changed",
            ));
        }
        let by = who.0.subject.clone();
        approval.state = if consent {
            ApprovalState::Approved { by, at: now, note }
        } else {
            ApprovalState::Refused { by, at: now, note }
        };
        let details = details(
            &approval.tool,
            serde_json::json!({ "consent": consent, "argument_digest": approval.argument_digest }),
        );
        let audit = inner.entry(
            who,
            AuditAction::DecideApproval,
            ("approval", id.as_str()),
            Some(&approval.project),
            details,
        )?;
        let change = Change::DecideApproval {
            approval: Box::new(approval.clone()),
        };
        // A request moves once by being made and once by being decided.
        let expect = Expect::revision(Entity::Approval(id.clone()), Revision(1));
        inner.commit(change, expect, audit).await?;
        Ok(approval)
    }
}

/// A call that needs consent.
pub(super) struct WantedApproval {
    pub(super) project: ProjectId,
    pub(super) tool: RequestedTool,
    pub(super) arguments: JsonText,
    pub(super) argument_digest: ArgumentDigest,
}

/// What the trail says of a request: which tool, and `rest`.
fn details(tool: &RequestedTool, mut rest: serde_json::Value) -> serde_json::Value {
    let tool = match tool {
        RequestedTool::Server {
            server,
            tool,
            descriptor_digest,
        } => serde_json::json!({
            "server_id": server,
            "tool_name": tool,
            "descriptor_digest": descriptor_digest,
        }),
        RequestedTool::Code {
            id,
            family,
            version,
            content_hash,
        } => serde_json::json!({
            "code_tool_id": id,
            "name": family,
            "version": version,
            "content_hash": content_hash,
        }),
    };
    if let (Some(rest), serde_json::Value::Object(tool)) = (rest.as_object_mut(), tool) {
        rest.extend(tool);
    }
    rest
}

impl Inner {
    /// Whoever asked for an approval sees it, and whoever may decide it.
    async fn visible_approval(&self, principal: &Principal, id: &ApprovalId) -> Result<Approval> {
        let approval = self.registry.approval(id).await?.filter(|approval| {
            let asked = approval.requested_by == principal.subject && !principal.scopes.is_empty();
            asked || principal.scopes_in(&approval.project).allow(Scope::Approver)
        });
        approval.ok_or_else(|| Error::not_found("approval", id.as_str()))
    }

    /// The request for consent to a call: the one that waits already, or a new one.
    pub(super) async fn request_approval(
        &self,
        who: (&Principal, Surface),
        wanted: WantedApproval,
    ) -> Result<ApprovalId> {
        let now = self.now();
        let lifetime =
            chrono::Duration::from_std(self.settings.approval_lifetime).unwrap_or(chrono::Duration::hours(1));
        let approval = Approval {
            id: ApprovalId::new(),
            project: wanted.project,
            tool: wanted.tool,
            arguments: wanted.arguments,
            argument_digest: wanted.argument_digest,
            requested_by: who.0.subject.clone(),
            requested_at: now,
            expires_at: now.checked_add_signed(lifetime).unwrap_or(now),
            state: ApprovalState::Pending,
        };
        let id = approval.id.clone();
        let details = details(
            &approval.tool,
            serde_json::json!({
                "argument_digest": approval.argument_digest,
                "expires_at": approval.expires_at,
            }),
        );
        let audit = self.entry(
            who,
            AuditAction::RequestApproval,
            ("approval", id.as_str()),
            Some(&approval.project),
            details,
        )?;
        let change = Change::CreateApproval {
            approval: Box::new(approval),
            limit: self.settings.waiting_approvals,
        };
        match self.commit(change, Expect::nothing(), audit).await {
            Ok(_) => Ok(id),
            // The one that waits is as good.
            Err(error) if error.kind() == ErrorKind::Conflict => error
                .context()
                .iter()
                .find(|(key, _)| *key == "approval")
                .map(|(_, waiting)| waiting.parse())
                .unwrap_or(Err(error)),
            Err(error) => Err(error),
        }
    }
}
