//! The audit trail: who did what, written in the transaction that did it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::id::{AuditId, ProjectId};
use crate::invocation::{Invocation, InvokedTool, Settlement};
use crate::json::JsonText;
use crate::principal::{Identity, Principal, Subject, Surface};

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its identifier; later entries sort after earlier ones.
    pub id: AuditId,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: Subject,
    /// How we know who.
    pub identity: Identity,
    /// Where the act came in.
    pub surface: Surface,
    /// What was done.
    pub action: AuditAction,
    /// The kind of thing, such as `mcp_server`.
    pub entity_type: String,
    /// The identifier of the thing.
    pub entity_id: String,
    /// The project that it belongs to; `None` for the installation.
    pub project: Option<ProjectId>,
    /// What else is worth keeping: an object without secrets.
    pub details: JsonText,
}

macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// What was done.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum AuditAction {
            $($(#[$doc])* #[serde(rename = $word)] $name,)*
            /// What a newer version of caliber wrote into a shared store, and this one does not know.
            #[serde(rename = "unknown", other)]
            Unknown,
        }

        impl AuditAction {
            /// Every action that this version writes.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The stable word.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* Self::Unknown => "unknown" }
            }
        }
    };
}

actions! {
    /// A server was registered.
    CreateServer = "create_mcp_server",
    /// A server was changed.
    UpdateServer = "update_mcp_server",
    /// A server was removed; the details hold its definition, secrets masked.
    DeleteServer = "delete_mcp_server",
    /// A server was registered again from the entry of its removal.
    RestoreServer = "restore_mcp_server",
    /// A connection was tried.
    TestConnection = "test_mcp_connection",
    /// An admin discovered a server's tools.
    DiscoverTools = "discover_mcp_tools",
    /// A session saw another list than the inventory.
    RefreshInventory = "refresh_mcp_inventory",
    /// A tool was classified.
    ClassifyTool = "update_mcp_tool_policy",
    /// A classification was taken back.
    DeclassifyTool = "remove_mcp_tool_policy",
    /// A tool was called, or a call of it refused.
    InvokeTool = "invoke_mcp_tool",
    /// A call with effects was committed to.
    BeginInvocation = "begin_mcp_tool_call",
    /// A version of a code tool was registered.
    RegisterCodeTool = "register_code_tool",
    /// A version of a code tool was changed.
    UpdateCodeTool = "update_code_tool",
    /// A version of a code tool was archived.
    ArchiveCodeTool = "archive_code_tool",
    /// The source of a code tool was looked at.
    InspectCodeTool = "inspect_code_tool",
    /// A code tool was run, or a run of it refused.
    RunCodeTool = "run_code_tool",
    /// A run with effects was committed to.
    BeginRun = "begin_code_tool_run",
    /// Calls without a settlement were settled as unknown.
    SettleOrphans = "settle_orphaned_calls",
    /// A call asked for consent.
    RequestApproval = "request_approval",
    /// Somebody decided about a call.
    DecideApproval = "decide_approval",
    /// A grant was given.
    CreateGrant = "create_grant",
    /// A grant was taken back.
    DeleteGrant = "delete_grant",
    /// The scopes of a subject were set.
    SetMembership = "set_membership",
    /// A token was made.
    CreateToken = "create_token",
    /// A token was revoked.
    RevokeToken = "revoke_token",
    /// Old records were removed.
    Prune = "prune_records",
    /// Stored secrets were encrypted with another key.
    RotateSecretKey = "rotate_secret_key",
}

impl fmt::Display for AuditAction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl AuditEntry {
    /// An entry of `principal` about one thing, now.
    pub fn new(
        principal: &Principal,
        surface: Surface,
        at: Timestamp,
        action: AuditAction,
        entity: (&str, impl fmt::Display),
        project: Option<ProjectId>,
        details: JsonText,
    ) -> Self {
        Self {
            id: AuditId::new(),
            at,
            actor: principal.subject.clone(),
            identity: principal.identity.clone(),
            surface,
            action,
            entity_type: entity.0.to_owned(),
            entity_id: entity.1.to_string(),
            project,
            details,
        }
    }

    /// The entry of a call that ended.
    pub fn of_invocation(invocation: &Invocation, settlement: &Settlement) -> Self {
        let mut details = serde_json::json!({
            "invocation_id": invocation.id,
            "outcome": settlement.outcome,
            "reason_code": settlement.reason,
            "detail": settlement.detail,
            "argument_digest": invocation.argument_digest,
            "approval_id": invocation.approval,
            "break_glass": invocation.break_glass,
            "duration_us": settlement.duration_us,
        });
        let (action, called) = match &invocation.tool {
            InvokedTool::Server {
                server: _,
                server_name,
                tool,
                descriptor_digest,
                policy_revision,
            } => (
                AuditAction::InvokeTool,
                serde_json::json!({
                    "server_name": server_name,
                    "tool_name": tool,
                    "descriptor_digest": descriptor_digest,
                    "policy_revision": policy_revision,
                }),
            ),
            InvokedTool::Code {
                id: _,
                family,
                version,
                content_hash,
            } => (
                AuditAction::RunCodeTool,
                serde_json::json!({ "name": family, "version": version, "content_hash": content_hash }),
            ),
        };
        if let (Some(details), serde_json::Value::Object(called)) = (details.as_object_mut(), called) {
            details.extend(called);
        }
        let (entity_type, entity_id) = invocation.tool.entity();
        Self {
            id: AuditId::new(),
            at: settlement.ended_at,
            actor: invocation.subject.clone(),
            identity: invocation.identity.clone(),
            surface: invocation.surface,
            action,
            entity_type: entity_type.to_owned(),
            entity_id: entity_id.to_owned(),
            project: Some(invocation.project.clone()),
            details: JsonText::of(&details).unwrap_or_else(|_| JsonText::empty_object()),
        }
    }
}

/// The entries that a change writes: at least one.
#[derive(Clone, Debug)]
pub struct AuditEntries {
    first: AuditEntry,
    rest: Vec<AuditEntry>,
}

impl AuditEntries {
    /// One entry and more.
    pub fn new(first: AuditEntry, rest: Vec<AuditEntry>) -> Self {
        Self { first, rest }
    }

    /// The entries in their order.
    pub fn iter(&self) -> impl Iterator<Item = &AuditEntry> {
        std::iter::once(&self.first).chain(&self.rest)
    }
}

impl From<AuditEntry> for AuditEntries {
    fn from(entry: AuditEntry) -> Self {
        Self::new(entry, Vec::new())
    }
}

/// What entries are asked for; `None` does not restrict. Newest first.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    /// Of this kind of thing.
    pub entity_type: Option<String>,
    /// About this thing.
    pub entity_id: Option<String>,
    /// In these projects.
    pub projects: Option<Vec<ProjectId>>,
    /// Of this action.
    pub action: Option<AuditAction>,
    /// By this actor.
    pub actor: Option<Subject>,
    /// Committed after this entry, in the order of commits: for following the trail. Nothing is missed; an entry that
    /// was made earlier and committed later comes when it was committed.
    pub after: Option<AuditId>,
}

/// Receives a copy of every entry that this process writes: an export. It may drop; the trail in the store does
/// not. What the store writes by itself (the single calls that a sweep settles) is in the trail only.
pub trait AuditSink: Send + Sync + fmt::Debug {
    /// Takes one entry without blocking.
    fn export(&self, entry: &AuditEntry);
}
