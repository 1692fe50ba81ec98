//! Consent to single calls.

use super::{Caliber, Inner};
use crate::approval::{Approval, ApprovalState};
use crate::audit::AuditAction;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ApprovalId, ProjectId};
use crate::page::{Page, PageRequest};
use crate::principal::{Principal, Scope, Surface};
use crate::registry::{Change, Entity, Expect, Revision};

/// The longest note of a decision, in bytes.
const NOTE_LENGTH: usize = 1_000;

impl Caliber {
    /// The requests for consent of the caller's project, newest first. Approvers see all, others their own.
    ///
    /// # Errors
    ///
    /// `Forbidden` without any scope.
    pub async fn approvals(
        &self,
        principal: &Principal,
        pending_only: bool,
        page: &PageRequest,
    ) -> Result<Page<Approval>> {
        principal.require(Scope::Viewer, &principal.project)?;
        let projects = [principal.project.clone()];
        let projects: Option<&[ProjectId]> = if principal.everywhere {
            None
        } else {
            Some(&projects)
        };
        let mut approvals = self
            .inner
            .registry
            .approvals(projects, pending_only, page)
            .await?;
        if !principal.scopes.allow(Scope::Approver) {
            approvals
                .items
                .retain(|approval| approval.requested_by == principal.subject);
        }
        Ok(approvals)
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
        let details = serde_json::json!({
            "consent": consent,
            "server_id": approval.server,
            "tool_name": approval.tool,
            "argument_digest": approval.argument_digest,
        });
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

impl Inner {
    async fn visible_approval(&self, principal: &Principal, id: &ApprovalId) -> Result<Approval> {
        let approval = self.registry.approval(id).await?.filter(|approval| {
            let scopes = principal.scopes_in(&approval.project);
            scopes.allow(Scope::Approver)
                || (!scopes.is_empty() && approval.requested_by == principal.subject)
        });
        approval.ok_or_else(|| Error::not_found("approval", id.as_str()))
    }

    /// Stores a request for consent.
    pub(super) async fn request_approval(
        &self,
        who: (&Principal, Surface),
        approval: Approval,
    ) -> Result<ApprovalId> {
        let id = approval.id.clone();
        let details = serde_json::json!({
            "server_id": approval.server,
            "tool_name": approval.tool,
            "descriptor_digest": approval.descriptor_digest,
            "argument_digest": approval.argument_digest,
            "expires_at": approval.expires_at,
        });
        let audit = self.entry(
            who,
            AuditAction::RequestApproval,
            ("approval", id.as_str()),
            Some(&approval.project),
            details,
        )?;
        self.commit(
            Change::CreateApproval {
                approval: Box::new(approval),
            },
            Expect::nothing(),
            audit,
        )
        .await?;
        Ok(id)
    }
}
