//! One person's consent to one call.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::code_tool::{FamilyName, ToolVersion};
use crate::descriptor::ToolName;
use crate::digest::{ArgumentDigest, ContentHash, DescriptorDigest};
use crate::id::{ApprovalId, CodeToolId, InvocationId, ProjectId, ServerId};
use crate::json::JsonText;
use crate::principal::Subject;

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
