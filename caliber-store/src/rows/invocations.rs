//! The ledger of calls.

use caliber_core::invocation::{Invocation, InvocationRecord, InvokedTool, Settlement};
use caliber_core::reason::ReasonCode;
use caliber_core::registry::Revision;
use diesel::prelude::*;

use super::{
    instant, micros, number, object, optional_parsed, optional_word, parsed, unreadable, unsigned, word,
};
use crate::error::Result;
use crate::schema::invocations;

/// A call, begun or ended.
#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = invocations, check_for_backend(diesel::sqlite::Sqlite), treat_none_as_default_value = false)]
pub(crate) struct InvocationRow {
    pub(crate) id: String,
    started_at: i64,
    subject: String,
    identity: String,
    surface: String,
    project: String,
    server_id: Option<String>,
    server_name: Option<String>,
    tool: Option<String>,
    descriptor_digest: Option<String>,
    policy_revision: Option<i64>,
    code_tool_id: Option<String>,
    family: Option<String>,
    version: Option<String>,
    content_hash: Option<String>,
    side_effect_level: Option<String>,
    argument_digest: String,
    approval_id: Option<String>,
    break_glass: Option<String>,
    lease_owner: Option<String>,
    lease_until: Option<i64>,
    outcome: Option<String>,
    reason: Option<String>,
    detail: Option<String>,
    ended_at: Option<i64>,
    duration: Option<i64>,
    result_bytes: Option<i64>,
}

/// How a call ended. The end of the lease goes with it.
#[derive(Default, AsChangeset)]
#[diesel(table_name = invocations, treat_none_as_null = true)]
pub(crate) struct SettlementColumns {
    lease_until: Option<i64>,
    outcome: Option<String>,
    reason: Option<String>,
    detail: Option<String>,
    ended_at: Option<i64>,
    duration: Option<i64>,
    result_bytes: Option<i64>,
}

impl SettlementColumns {
    pub(crate) fn of(settlement: &Settlement) -> Self {
        Self {
            lease_until: None,
            outcome: Some(settlement.outcome.as_str().to_owned()),
            reason: settlement.reason.map(|reason| reason.as_str().to_owned()),
            detail: settlement.detail.clone(),
            ended_at: Some(micros(settlement.ended_at)),
            duration: Some(number(settlement.duration_us)),
            result_bytes: settlement.result_bytes.map(number),
        }
    }
}

impl InvocationRow {
    /// A call that was begun, with its owner and the end of its lease.
    pub(crate) fn begun(invocation: &Invocation, owner: String, until: i64) -> Result<Self> {
        Self::of(invocation, Some((owner, until)), SettlementColumns::default())
    }

    /// A call that has ended.
    pub(crate) fn ended(invocation: &Invocation, settlement: &Settlement) -> Result<Self> {
        Self::of(invocation, None, SettlementColumns::of(settlement))
    }

    fn of(invocation: &Invocation, lease: Option<(String, i64)>, end: SettlementColumns) -> Result<Self> {
        let (lease_owner, lease_until) = lease.unzip();
        let mut row = Self {
            id: invocation.id.to_string(),
            started_at: micros(invocation.started_at),
            subject: invocation.subject.to_string(),
            identity: serde_json::to_string(&invocation.identity)?,
            surface: invocation.surface.as_str().to_owned(),
            project: invocation.project.to_string(),
            server_id: None,
            server_name: None,
            tool: None,
            descriptor_digest: None,
            policy_revision: None,
            code_tool_id: None,
            family: None,
            version: None,
            content_hash: None,
            side_effect_level: invocation
                .side_effect_level
                .map(|level| level.as_str().to_owned()),
            argument_digest: invocation.argument_digest.to_string(),
            approval_id: invocation.approval.as_ref().map(ToString::to_string),
            break_glass: invocation.break_glass.clone(),
            lease_owner,
            lease_until,
            outcome: end.outcome,
            reason: end.reason,
            detail: end.detail,
            ended_at: end.ended_at,
            duration: end.duration,
            result_bytes: end.result_bytes,
        };
        match &invocation.tool {
            InvokedTool::Server {
                server,
                server_name,
                tool,
                descriptor_digest,
                policy_revision,
            } => {
                row.server_id = Some(server.to_string());
                row.server_name = Some(server_name.to_string());
                row.tool = Some(tool.to_string());
                row.descriptor_digest = descriptor_digest.map(|digest| digest.to_string());
                row.policy_revision = policy_revision.map(|revision| number(revision.0));
            }
            InvokedTool::Code {
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
        Ok(row)
    }

    fn tool(&self) -> Result<InvokedTool> {
        if let (Some(server), Some(name), Some(tool)) = (&self.server_id, &self.server_name, &self.tool) {
            return Ok(InvokedTool::Server {
                server: parsed("invocations.server_id", server)?,
                server_name: parsed("invocations.server_name", name)?,
                tool: parsed("invocations.tool", tool)?,
                descriptor_digest: optional_parsed(
                    "invocations.descriptor_digest",
                    self.descriptor_digest.as_deref(),
                )?,
                policy_revision: self
                    .policy_revision
                    .map(|revision| unsigned("invocations.policy_revision", revision).map(Revision))
                    .transpose()?,
            });
        }
        let (Some(id), Some(family), Some(version), Some(hash)) = (
            &self.code_tool_id,
            &self.family,
            &self.version,
            &self.content_hash,
        ) else {
            return Err(unreadable(
                "invocations.tool",
                "it is neither a server's tool nor a code tool",
            ));
        };
        Ok(InvokedTool::Code {
            id: parsed("invocations.code_tool_id", id)?,
            family: parsed("invocations.family", family)?,
            version: parsed("invocations.version", version)?,
            content_hash: parsed("invocations.content_hash", hash)?,
        })
    }

    fn settlement(&self) -> Result<Option<Settlement>> {
        let (Some(outcome), Some(ended_at)) = (&self.outcome, self.ended_at) else {
            return Ok(None);
        };
        Ok(Some(Settlement {
            outcome: word("invocations.outcome", outcome)?,
            reason: optional_word::<ReasonCode>("invocations.reason", self.reason.as_deref())?,
            detail: self.detail.clone(),
            ended_at: instant("invocations.ended_at", ended_at)?,
            duration_us: unsigned("invocations.duration", self.duration.unwrap_or(0))?,
            result_bytes: self
                .result_bytes
                .map(|bytes| unsigned("invocations.result_bytes", bytes))
                .transpose()?,
        }))
    }

    pub(crate) fn record(self) -> Result<InvocationRecord> {
        Ok(InvocationRecord {
            settlement: self.settlement()?,
            invocation: Invocation {
                id: parsed("invocations.id", &self.id)?,
                started_at: instant("invocations.started_at", self.started_at)?,
                subject: parsed("invocations.subject", &self.subject)?,
                identity: object("invocations.identity", &self.identity)?,
                surface: word("invocations.surface", &self.surface)?,
                project: parsed("invocations.project", &self.project)?,
                tool: self.tool()?,
                side_effect_level: optional_parsed(
                    "invocations.side_effect_level",
                    self.side_effect_level.as_deref(),
                )?,
                argument_digest: parsed("invocations.argument_digest", &self.argument_digest)?,
                approval: optional_parsed("invocations.approval_id", self.approval_id.as_deref())?,
                break_glass: self.break_glass,
            },
        })
    }
}
