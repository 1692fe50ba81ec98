//! Requests for consent.

use caliber_core::approval::{Approval, ApprovalState, RequestedTool};
use diesel::prelude::*;

use super::{instant, json, micros, number, parsed, unreadable};
use crate::error::Result;
use crate::schema::approvals;

/// A request for consent with its arguments.
#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = approvals, check_for_backend(diesel::sqlite::Sqlite), treat_none_as_default_value = false)]
pub(crate) struct ApprovalRow {
    pub(crate) id: String,
    pub(crate) revision: i64,
    project: String,
    server_id: Option<String>,
    tool: Option<String>,
    descriptor_digest: Option<String>,
    code_tool_id: Option<String>,
    family: Option<String>,
    version: Option<String>,
    content_hash: Option<String>,
    argument_digest: String,
    requested_by: String,
    requested_at: i64,
    expires_at: i64,
    state: String,
    decided_by: Option<String>,
    decided_at: Option<i64>,
    note: Option<String>,
    invocation_id: Option<String>,
    arguments: String,
}

/// What became of a request.
#[derive(Queryable, Selectable, AsChangeset)]
#[diesel(table_name = approvals, check_for_backend(diesel::sqlite::Sqlite), treat_none_as_null = true)]
pub(crate) struct StateColumns {
    pub(crate) state: String,
    pub(crate) decided_by: Option<String>,
    pub(crate) decided_at: Option<i64>,
    pub(crate) note: Option<String>,
    pub(crate) invocation_id: Option<String>,
}

impl StateColumns {
    pub(crate) const PENDING: &str = "pending";
    pub(crate) const APPROVED: &str = "approved";
    const REFUSED: &str = "refused";
    pub(crate) const SPENT: &str = "spent";

    pub(crate) fn of(state: &ApprovalState) -> Self {
        let (word, decided_by, decided_at, note, invocation) = match state {
            ApprovalState::Pending => (Self::PENDING, None, None, None, None),
            ApprovalState::Approved { by, at, note } => {
                (Self::APPROVED, Some(by), Some(at), note.clone(), None)
            }
            ApprovalState::Refused { by, at, note } => {
                (Self::REFUSED, Some(by), Some(at), note.clone(), None)
            }
            ApprovalState::Spent { by, invocation } => (Self::SPENT, Some(by), None, None, Some(invocation)),
        };
        Self {
            state: word.to_owned(),
            decided_by: decided_by.map(ToString::to_string),
            decided_at: decided_at.copied().map(micros),
            note,
            invocation_id: invocation.map(ToString::to_string),
        }
    }
}

impl ApprovalRow {
    pub(crate) fn of(approval: &Approval, revision: u64) -> Self {
        let StateColumns {
            state,
            decided_by,
            decided_at,
            note,
            invocation_id,
        } = StateColumns::of(&approval.state);
        let mut row = Self {
            id: approval.id.to_string(),
            revision: number(revision),
            project: approval.project.to_string(),
            server_id: None,
            tool: None,
            descriptor_digest: None,
            code_tool_id: None,
            family: None,
            version: None,
            content_hash: None,
            argument_digest: approval.argument_digest.to_string(),
            requested_by: approval.requested_by.to_string(),
            requested_at: micros(approval.requested_at),
            expires_at: micros(approval.expires_at),
            state,
            decided_by,
            decided_at,
            note,
            invocation_id,
            arguments: approval.arguments.as_str().to_owned(),
        };
        match &approval.tool {
            RequestedTool::Server {
                server,
                tool,
                descriptor_digest,
            } => {
                row.server_id = Some(server.to_string());
                row.tool = Some(tool.to_string());
                row.descriptor_digest = Some(descriptor_digest.to_string());
            }
            RequestedTool::Code {
                id,
                family,
                version,
                content_hash,
            } => {
                row.code_tool_id = Some(id.to_string());
                row.family = Some(family.to_string());
                row.version = Some(version.to_string());
                row.content_hash = Some(content_hash.to_string());
            }
        }
        row
    }

    fn tool(&self) -> Result<RequestedTool> {
        if let (Some(server), Some(tool), Some(digest)) =
            (&self.server_id, &self.tool, &self.descriptor_digest)
        {
            return Ok(RequestedTool::Server {
                server: parsed("approvals.server_id", server)?,
                tool: parsed("approvals.tool", tool)?,
                descriptor_digest: parsed("approvals.descriptor_digest", digest)?,
            });
        }
        let (Some(id), Some(family), Some(version), Some(hash)) = (
            &self.code_tool_id,
            &self.family,
            &self.version,
            &self.content_hash,
        ) else {
            return Err(unreadable(
                "approvals.tool",
                "it is neither a server's tool nor a code tool",
            ));
        };
        Ok(RequestedTool::Code {
            id: parsed("approvals.code_tool_id", id)?,
            family: parsed("approvals.family", family)?,
            version: parsed("approvals.version", version)?,
            content_hash: parsed("approvals.content_hash", hash)?,
        })
    }

    fn state(&self) -> Result<ApprovalState> {
        let by = || {
            let by = self.decided_by.as_deref();
            parsed("approvals.decided_by", by.unwrap_or_default())
        };
        let at = || instant("approvals.decided_at", self.decided_at.unwrap_or(i64::MIN));
        Ok(match self.state.as_str() {
            StateColumns::PENDING => ApprovalState::Pending,
            StateColumns::APPROVED => ApprovalState::Approved {
                by: by()?,
                at: at()?,
                note: self.note.clone(),
            },
            StateColumns::REFUSED => ApprovalState::Refused {
                by: by()?,
                at: at()?,
                note: self.note.clone(),
            },
            StateColumns::SPENT => ApprovalState::Spent {
                by: by()?,
                invocation: parsed(
                    "approvals.invocation_id",
                    self.invocation_id.as_deref().unwrap_or_default(),
                )?,
            },
            _ => return Err(unreadable("approvals.state", "it is no state of an approval")),
        })
    }

    pub(crate) fn approval(self) -> Result<Approval> {
        Ok(Approval {
            state: self.state()?,
            id: parsed("approvals.id", &self.id)?,
            project: parsed("approvals.project", &self.project)?,
            tool: self.tool()?,
            arguments: json("approvals.arguments", self.arguments)?,
            argument_digest: parsed("approvals.argument_digest", &self.argument_digest)?,
            requested_by: parsed("approvals.requested_by", &self.requested_by)?,
            requested_at: instant("approvals.requested_at", self.requested_at)?,
            expires_at: instant("approvals.expires_at", self.expires_at)?,
        })
    }
}
