//! What is kept about acts and calls: audit entries, the ledger, requests for consent.

use caliber_core::approval as core;
use caliber_core::audit;
use caliber_core::invocation::{self, InvocationOutcome, InvokedTool};

use super::identity;
use crate::wire::approvals::{Approval, ApprovalState};
use crate::wire::calls::{InvocationRecord, Outcome};
use crate::wire::history::AuditEntry;

/// Microseconds as milliseconds.
pub(crate) fn milliseconds(microseconds: u64) -> f64 {
    // Exact up to 285 years.
    #[allow(
        clippy::cast_precision_loss,
        reason = "durations are far below 2^53 microseconds"
    )]
    let value = microseconds as f64;
    value / 1_000.0
}

pub(crate) fn audit_entry(entry: audit::AuditEntry) -> AuditEntry {
    let (kind, token_id) = identity(&entry.identity);
    AuditEntry {
        audit_id: entry.id.to_string(),
        at: entry.at,
        actor: entry.actor.to_string(),
        identity: kind,
        token_id,
        surface: entry.surface.as_str(),
        action: entry.action.as_str(),
        entity_type: entry.entity_type,
        entity_id: entry.entity_id,
        project_id: entry.project.map(|project| project.to_string()),
        details: entry.details,
    }
}

pub(crate) fn invocation_record(record: invocation::InvocationRecord) -> InvocationRecord {
    let invocation::InvocationRecord {
        invocation: call,
        settlement,
    } = record;
    let (kind, token_id) = identity(&call.identity);
    let settled = settlement.as_ref();
    let without_tool = InvocationRecord {
        invocation_id: call.id.to_string(),
        started_at: call.started_at,
        subject: call.subject.to_string(),
        identity: kind,
        token_id,
        surface: call.surface.as_str(),
        project_id: call.project.to_string(),
        server_id: None,
        server_name: None,
        tool_name: None,
        descriptor_digest: None,
        policy_revision: None,
        code_tool_id: None,
        family: None,
        version: None,
        content_hash: None,
        side_effect_level: call.side_effect_level.map(Into::into),
        argument_digest: call.argument_digest.to_string(),
        approval_id: call.approval.map(|approval| approval.to_string()),
        break_glass: call.break_glass,
        outcome: settled.map(|settled| outcome(settled.outcome)),
        reason_code: settled
            .and_then(|settled| settled.reason)
            .map(|reason| reason.as_str()),
        detail: settled.and_then(|settled| settled.detail.clone()),
        ended_at: settled.map(|settled| settled.ended_at),
        duration_ms: settled.map(|settled| milliseconds(settled.duration_us)),
        result_bytes: settled.and_then(|settled| settled.result_bytes),
    };
    match call.tool {
        InvokedTool::Server {
            server,
            server_name,
            tool,
            descriptor_digest,
            policy_revision,
        } => InvocationRecord {
            server_id: Some(server.to_string()),
            server_name: Some(server_name.to_string()),
            tool_name: Some(tool.to_string()),
            descriptor_digest: descriptor_digest.map(|digest| digest.to_string()),
            policy_revision: policy_revision.map(|revision| revision.0),
            ..without_tool
        },
        InvokedTool::Code {
            id,
            family,
            version,
            content_hash,
        } => InvocationRecord {
            code_tool_id: Some(id.to_string()),
            family: Some(family.to_string()),
            version: Some(version.to_string()),
            content_hash: Some(content_hash.to_string()),
            ..without_tool
        },
    }
}

fn outcome(outcome: InvocationOutcome) -> Outcome {
    match outcome {
        InvocationOutcome::Ok => Outcome::Ok,
        InvocationOutcome::ToolError => Outcome::ToolError,
        InvocationOutcome::UpstreamError => Outcome::UpstreamError,
        InvocationOutcome::Denied => Outcome::Denied,
        InvocationOutcome::Timeout => Outcome::Timeout,
        InvocationOutcome::Cancelled => Outcome::Cancelled,
        InvocationOutcome::OutcomeUnknown => Outcome::Unknown,
    }
}

pub(crate) fn approval(approval: core::Approval) -> Approval {
    use core::ApprovalState as State;
    let (state, by, at, note, invocation) = match approval.state {
        State::Pending => (ApprovalState::Pending, None, None, None, None),
        State::Approved { by, at, note } => (ApprovalState::Approved, Some(by), Some(at), note, None),
        State::Refused { by, at, note } => (ApprovalState::Refused, Some(by), Some(at), note, None),
        State::Spent { by, invocation } => (ApprovalState::Spent, Some(by), None, None, Some(invocation)),
    };
    let without_tool = Approval {
        approval_id: approval.id.to_string(),
        state,
        project_id: approval.project.to_string(),
        server_id: None,
        tool_name: None,
        descriptor_digest: None,
        code_tool_id: None,
        family: None,
        version: None,
        content_hash: None,
        arguments: approval.arguments,
        argument_digest: approval.argument_digest.to_string(),
        requested_by: approval.requested_by.to_string(),
        requested_at: approval.requested_at,
        expires_at: approval.expires_at,
        decided_by: by.map(|by| by.to_string()),
        decided_at: at,
        note,
        invocation_id: invocation.map(|invocation| invocation.to_string()),
    };
    match approval.tool {
        core::RequestedTool::Server {
            server,
            tool,
            descriptor_digest,
        } => Approval {
            server_id: Some(server.to_string()),
            tool_name: Some(tool.to_string()),
            descriptor_digest: Some(descriptor_digest.to_string()),
            ..without_tool
        },
        core::RequestedTool::Code {
            id,
            family,
            version,
            content_hash,
        } => Approval {
            code_tool_id: Some(id.to_string()),
            family: Some(family.to_string()),
            version: Some(version.to_string()),
            content_hash: Some(content_hash.to_string()),
            ..without_tool
        },
    }
}
