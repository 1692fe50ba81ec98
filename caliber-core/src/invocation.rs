//! The ledger of calls: each call ends in exactly one terminal record.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::code_tool::{FamilyName, ToolVersion};
use crate::descriptor::ToolName;
use crate::digest::{ArgumentDigest, ContentHash, DescriptorDigest};
use crate::error::Error;
use crate::id::{ApprovalId, CodeToolId, InstanceId, InvocationId, ProjectId, ServerId};
use crate::policy::SideEffectLevel;
use crate::principal::{Identity, Subject, Surface};
use crate::reason::ReasonCode;
use crate::registry::Revision;
use crate::server::ServerName;

/// The longest detail text of a record, in bytes.
pub const DETAIL_LENGTH: usize = 1024;

/// Who called what, under which decision: the part of a record that is known before anything is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invocation {
    /// Its identifier.
    pub id: InvocationId,
    /// When the call was asked for.
    pub started_at: Timestamp,
    /// Who called.
    pub subject: Subject,
    /// How we know who called.
    pub identity: Identity,
    /// Where the call came in.
    pub surface: Surface,
    /// The project of the tool.
    pub project: ProjectId,
    /// What was called.
    pub tool: InvokedTool,
    /// How far the call reaches, as classified or registered.
    pub side_effect_level: Option<SideEffectLevel>,
    /// What was asked; the arguments themselves are not kept.
    pub argument_digest: ArgumentDigest,
    /// The approval that the call spends.
    pub approval: Option<ApprovalId>,
    /// The reason of an admin who went past approval.
    pub break_glass: Option<String>,
}

/// What was called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum InvokedTool {
    /// A tool of a server.
    Server {
        /// The server.
        server: ServerId,
        /// Its name at the time.
        server_name: ServerName,
        /// The tool, as the caller wrote it, if it can be a tool at all.
        tool: ToolName,
        /// The tool as it was admitted or refused; `None` when it is not in the inventory.
        descriptor_digest: Option<DescriptorDigest>,
        /// The revision of the classification that decided.
        policy_revision: Option<Revision>,
    },
    /// One version of a code tool.
    Code {
        /// The version.
        id: CodeToolId,
        /// Its family.
        family: FamilyName,
        /// Its number.
        version: ToolVersion,
        /// What it did, as it was admitted or refused.
        content_hash: ContentHash,
    },
}

impl InvokedTool {
    /// The kind and the identifier of what was called, for the trail: the server or the version.
    pub fn entity(&self) -> (&'static str, &str) {
        match self {
            Self::Server { server, .. } => ("mcp_server", server.as_str()),
            Self::Code { id, .. } => ("code_tool", id.as_str()),
        }
    }
}

/// A call that has been committed to before a byte is sent. Its lease lies in the time of the store; when it
/// runs out without a settlement, a sweep settles the call as [`InvocationOutcome::OutcomeUnknown`].
#[derive(Clone, Debug)]
pub struct InvocationIntent {
    /// The call.
    pub invocation: Invocation,
    /// The instance that makes it.
    pub owner: InstanceId,
    /// How long the instance has, in milliseconds from the commit.
    pub lease_ms: u64,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// The class.
    pub outcome: InvocationOutcome,
    /// The code of a refusal or failure.
    pub reason: Option<ReasonCode>,
    /// One line for people, at most [`DETAIL_LENGTH`] bytes, no secret, no argument, no result.
    pub detail: Option<String>,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// The size of the result, in bytes.
    pub result_bytes: Option<u64>,
}

/// The terminal outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InvocationOutcome {
    /// The tool answered.
    Ok,
    /// The tool answered that it failed.
    ToolError,
    /// The upstream failed or broke the protocol, and nothing can have taken effect, or it said so.
    UpstreamError,
    /// Admission refused.
    Denied,
    /// The deadline passed.
    Timeout,
    /// The caller gave up.
    Cancelled,
    /// The call was sent and its answer was lost.
    OutcomeUnknown,
}

impl InvocationOutcome {
    /// How the call that `error` tells of stands in the ledger; `None` when it is not there.
    pub fn of(error: &Error) -> Option<Self> {
        let (_, word) = error.context().iter().find(|(key, _)| *key == "outcome")?;
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == word)
    }

    /// All outcomes.
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::ToolError,
        Self::UpstreamError,
        Self::Denied,
        Self::Timeout,
        Self::Cancelled,
        Self::OutcomeUnknown,
    ];

    /// The word, as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ToolError => "tool_error",
            Self::UpstreamError => "upstream_error",
            Self::Denied => "denied",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::OutcomeUnknown => "outcome_unknown",
        }
    }
}

/// A call in the ledger. Without a settlement it is under way, or its instance has died and the sweep is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvocationRecord {
    /// The call.
    pub invocation: Invocation,
    /// How it ended.
    pub settlement: Option<Settlement>,
}
