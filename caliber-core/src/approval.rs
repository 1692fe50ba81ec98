//! One person's consent to one call.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::code_tool::{FamilyName, ToolVersion};
use crate::descriptor::ToolName;
use crate::digest::{ArgumentDigest, ContentHash, DescriptorDigest};
use crate::error::{Error, ErrorKind};
use crate::id::{ApprovalId, CodeToolId, InvocationId, ProjectId, ServerId};
use crate::json::JsonText;
use crate::principal::Subject;
use crate::reason::ReasonCode;

/// A request for consent, and what became of it. It is bound to the tool as it was seen and to the exact arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Its identifier.
    pub id: ApprovalId,
    /// The project of the tool.
    pub project: ProjectId,
    /// The tool, as it was when consent was asked for.
    pub tool: RequestedTool,
    /// What will be asked of it.
    pub arguments: JsonText,
    /// The digest of the same.
    pub argument_digest: ArgumentDigest,
    /// Who wants to call; nobody else can use the approval.
    pub requested_by: Subject,
    /// When the request was made.
    pub requested_at: Timestamp,
    /// When request and consent end.
    pub expires_at: Timestamp,
    /// What became of it.
    pub state: ApprovalState,
}

/// The tool that consent is asked for, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RequestedTool {
    /// A tool of a server.
    Server {
        /// The server.
        server: ServerId,
        /// The tool.
        tool: ToolName,
        /// The tool as it was seen.
        descriptor_digest: DescriptorDigest,
    },
    /// One version of a code tool.
    Code {
        /// The version.
        id: CodeToolId,
        /// Its family, for people.
        family: FamilyName,
        /// Its number, for people.
        version: ToolVersion,
        /// What it does.
        content_hash: ContentHash,
    },
}

impl Approval {
    /// Whether the same caller asks for consent to the same call of the same thing in `other`.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        self.project == other.project
            && self.requested_by == other.requested_by
            && self.tool == other.tool
            && self.argument_digest == other.argument_digest
    }

    /// Whether it waits for a decision.
    pub fn is_waiting(&self, now: Timestamp) -> bool {
        self.state == ApprovalState::Pending && self.expires_at > now
    }

    /// The refusal of a request for what waits as `id` already.
    pub fn waits_already(id: &ApprovalId) -> Error {
        Error::new(
            ErrorKind::Conflict,
            "consent to the same call was asked for already",
        )
        .with_reason(ReasonCode::ApprovalRequired)
        .with_context("approval", id.as_str())
    }

    /// The refusal of a request of a caller of whom `limit` others wait.
    pub fn too_many_wait(limit: usize) -> Error {
        Error::new(
            ErrorKind::RateLimited,
            format!(
                "too many requests for consent wait already (at most {limit} of one caller); try again later"
            ),
        )
        .with_reason(ReasonCode::ApprovalRequired)
    }
}

/// What became of a request for consent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ApprovalState {
    /// Nobody has decided.
    Pending,
    /// Somebody consented.
    Approved {
        /// Who: never the caller.
        by: Subject,
        /// When.
        at: Timestamp,
        /// Why, if a reason was given.
        note: Option<String>,
    },
    /// Somebody refused.
    Refused {
        /// Who.
        by: Subject,
        /// When.
        at: Timestamp,
        /// Why, if a reason was given.
        note: Option<String>,
    },
    /// A call has spent it.
    Spent {
        /// Who consented.
        by: Subject,
        /// Which call.
        invocation: InvocationId,
    },
}
