//! Everything durable that is no job: one way to write, views to read.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::approval::Approval;
use crate::audit::{AuditEntries, AuditEntry, AuditQuery};
use crate::clock::Timestamp;
use crate::code_tool::{CodeToolRecord, CodeToolSummary};
use crate::descriptor::{Descriptor, ToolName};
use crate::digest::{DescriptorDigest, TokenHash};
use crate::error::Result;
use crate::grant::{Grant, Membership};
use crate::id::{
    ApprovalId, AuditId, CodeToolId, GrantId, InvocationId, ProjectId, SecretId, ServerId, TokenId,
};
use crate::inventory::{Inventory, ToolView, WithheldTool};
use crate::invocation::{InvocationIntent, InvocationRecord, Settlement};
use crate::json::JsonText;
use crate::page::{Page, PageRequest};
use crate::policy::Classification;
use crate::principal::Subject;
use crate::secret::SecretText;
use crate::server::{ServerName, ServerRecord, ServerStatus, ServerSummary};
use crate::token::TokenRecord;

mod code_tools;

pub use code_tools::{CodeToolQuery, RunAdmissionQuery, StoredRunFacts};

/// Stores everything durable that is no job.
///
/// Contract: a commit is one transaction with its audit entries, and is on disk when it returns; it checks
/// the expected revisions under a lock, so that two changes that are each fine cannot add up to a wrong state;
/// a read sees every commit that returned before it began, on every replica; dropping a future leaves no
/// transaction open (a commit that was handed over may still happen); lists are paged and never carry secrets.
/// A refused commit changes nothing and leaves no audit entry. Expected revisions are checked before anything
/// else, so that what was decided on a thing that has gone is stale. The suite in `conformance::registry`
/// says all of it in cases.
#[async_trait]
pub trait Registry: Send + Sync + fmt::Debug {
    /// Makes one change.
    ///
    /// # Errors
    ///
    /// `Conflict` with [`StaleRevision`](crate::reason::ReasonCode::StaleRevision) when an expected revision
    /// has moved on, with [`NameTaken`](crate::reason::ReasonCode::NameTaken) for a name that is taken, with
    /// with [`VersionTaken`](crate::reason::ReasonCode::VersionTaken) for a version that a family has, with
    /// [`InUse`](crate::reason::ReasonCode::InUse) when a deployment needs what is to be removed; `NotFound`
    /// for a change of what is absent; `Unavailable` when the store is away, locked, full or read-only.
    async fn commit(&self, commit: Commit) -> Result<Committed>;

    /// Everything stored that one admission is decided on, read at one moment; `None` when there is no such
    /// server.
    async fn admission(&self, query: &AdmissionQuery) -> Result<Option<StoredFacts>>;

    /// A server.
    async fn server(&self, id: &ServerId) -> Result<Option<ServerRecord>>;

    /// A server by its name.
    async fn server_by_name(&self, name: &ServerName) -> Result<Option<ServerRecord>>;

    /// Servers by name.
    async fn servers(&self, query: &ServerQuery, page: &PageRequest) -> Result<Page<ServerSummary>>;

    /// The last listing of a server, without its tools; `None` before the first.
    async fn inventory(&self, server: &ServerId) -> Result<Option<Inventory>>;

    /// The tools of a server by name, with their classifications.
    async fn tools(&self, server: &ServerId, page: &PageRequest) -> Result<Page<ToolView>>;

    /// One tool of a server.
    async fn tool(&self, server: &ServerId, tool: &ToolName) -> Result<Option<ToolView>>;

    /// The active deployments that need a server; removal is refused while there are any.
    async fn deployments_using(&self, server: &ServerId) -> Result<Vec<DeploymentReference>>;

    /// Everything stored that one admission of a run is decided on, read at one moment; `None` when there is no such
    /// version.
    async fn run_admission(&self, query: &RunAdmissionQuery) -> Result<Option<StoredRunFacts>>;

    /// A version of a code tool.
    async fn code_tool(&self, id: &CodeToolId) -> Result<Option<CodeToolRecord>>;

    /// Versions of code tools: by family, then by project, then the newest version first.
    async fn code_tools(&self, query: &CodeToolQuery, page: &PageRequest) -> Result<Page<CodeToolSummary>>;

    /// The active deployments that need a version; archiving it is refused while there are any.
    async fn deployments_using_code_tool(&self, id: &CodeToolId) -> Result<Vec<DeploymentReference>>;

    /// The grants of a project, in the order in which they were given.
    async fn grants(&self, project: &ProjectId, page: &PageRequest) -> Result<Page<Grant>>;

    /// The scopes that a subject holds: those of `project` and those of every project.
    async fn memberships(&self, subject: &Subject) -> Result<Vec<Membership>>;

    /// The token with this digest, revoked and expired ones too.
    async fn token_by_hash(&self, hash: &TokenHash) -> Result<Option<TokenRecord>>;

    /// Tokens, newest first; of `projects` only, where they are given.
    async fn tokens(&self, projects: Option<&[ProjectId]>, page: &PageRequest) -> Result<Page<TokenRecord>>;

    /// An approval.
    async fn approval(&self, id: &ApprovalId) -> Result<Option<Approval>>;

    /// Approvals of projects, newest first; those that wait for a decision only, if asked for.
    async fn approvals(
        &self,
        projects: Option<&[ProjectId]>,
        pending_only: bool,
        page: &PageRequest,
    ) -> Result<Page<Approval>>;

    /// Audit entries by time, the newest first; those of one time in the order of their commits, the latest first.
    /// With [`AuditQuery::after`] in the order of commits, oldest first.
    async fn audit(&self, query: &AuditQuery, page: &PageRequest) -> Result<Page<AuditEntry>>;

    /// One audit entry.
    async fn audit_entry(&self, id: &AuditId) -> Result<Option<AuditEntry>>;

    /// One call of the ledger.
    async fn invocation(&self, id: &InvocationId) -> Result<Option<InvocationRecord>>;

    /// Calls, newest first.
    async fn invocations(&self, of: &InvocationsOf, page: &PageRequest) -> Result<Page<InvocationRecord>>;

    /// Whether the store answers; for readiness probes.
    async fn ping(&self) -> Result<()>;
}

/// Counts the changes of one thing; zero while the thing is absent. A thing that comes back counts on from where
/// it ended, so that no revision ever names two states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

/// A thing whose changes are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Entity {
    /// The definition and status of a server.
    Server(ServerId),
    /// Its inventory.
    Inventory(ServerId),
    /// The classification of one of its tools.
    Classification(ServerId, ToolName),
    /// The grants and memberships of a project.
    Access(ProjectId),
    /// One approval.
    Approval(ApprovalId),
    /// One version of a code tool.
    CodeTool(CodeToolId),
}

/// The text form, unique over all kinds: a key for stores.
impl fmt::Display for Entity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(id) => write!(formatter, "server/{id}"),
            Self::Inventory(id) => write!(formatter, "inventory/{id}"),
            Self::Classification(id, tool) => write!(formatter, "classification/{id}/{tool}"),
            Self::Access(project) => write!(formatter, "access/{project}"),
            Self::Approval(id) => write!(formatter, "approval/{id}"),
            Self::CodeTool(id) => write!(formatter, "code_tool/{id}"),
        }
    }
}

/// The revisions that a change was decided on. The store locks and rechecks them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expect(pub Vec<(Entity, Revision)>);

impl Expect {
    /// A change that depends on nothing.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// A change that was decided on one thing.
    pub fn revision(entity: Entity, revision: Revision) -> Self {
        Self(vec![(entity, revision)])
    }
}

/// One change with what it was decided on and who answers for it.
#[derive(Debug)]
pub struct Commit {
    /// What changes.
    pub change: Change,
    /// What must still be so.
    pub expect: Expect,
    /// What the trail will say.
    pub audit: AuditEntries,
}

/// What changes. Implementors refuse what they do not know as `Unsupported`.
#[derive(Debug)]
#[non_exhaustive]
pub enum Change {
    /// A new server, its revision 1. Moves [`Entity::Server`].
    RegisterServer {
        /// The record; its definition holds references only.
        record: Box<ServerRecord>,
        /// The literal secrets behind `secret://` references, to be encrypted.
        secrets: Vec<NewSecret>,
    },
    /// A server with another definition, status, owner or visibility; the store sets the next revision, and
    /// keeps project, creation and how connections went as they are.
    /// A changed fingerprint drifts every classification of the server. Stored secrets that the new
    /// definition no longer refers to are removed. Moves [`Entity::Server`].
    UpdateServer {
        /// The record.
        record: Box<ServerRecord>,
        /// New literal secrets.
        secrets: Vec<NewSecret>,
    },
    /// The end of a server, with its inventory, classifications, grants and secrets. Refused with `InUse`
    /// while a deployment needs it. Moves [`Entity::Server`], [`Entity::Inventory`].
    RemoveServer {
        /// Which.
        id: ServerId,
    },
    /// A new version of a code tool, its revision 1. `Conflict` with
    /// [`VersionTaken`](crate::reason::ReasonCode::VersionTaken) when the family has a version of the same precedence
    /// in the project, with [`NameTaken`](crate::reason::ReasonCode::NameTaken) when it is public and another project
    /// has a public version of a family of this name; `TooLarge` beyond
    /// [`FAMILY_VERSIONS`](crate::code_tool::FAMILY_VERSIONS). Moves [`Entity::CodeTool`].
    RegisterCodeTool {
        /// The record; its definition holds references only.
        record: Box<CodeToolRecord>,
        /// The literal secrets behind `secret://` references, to be encrypted.
        secrets: Vec<NewSecret>,
    },
    /// A version with another description, status, successor, owner or visibility; the store sets the next revision
    /// and keeps everything else as it is, whatever the record says. Refused with `InUse` when it archives a version
    /// that a deployment needs; with `NameTaken` as above when it becomes public. Moves [`Entity::CodeTool`].
    UpdateCodeTool {
        /// The record.
        record: Box<CodeToolRecord>,
    },
    /// Somebody looks at the source of a version: nothing but the entry. Moves nothing.
    RecordInspection {
        /// Which version.
        tool: CodeToolId,
    },
    /// How a connection went. Moves nothing.
    RecordConnection {
        /// Which server.
        server: ServerId,
        /// When.
        at: Timestamp,
        /// Why it failed, if it did.
        error: Option<String>,
    },
    /// A whole listing: replaces the inventory, records a good connection where it was asked for, and drifts every
    /// classification whose tool is listed with another digest. It never classifies.
    /// Moves [`Entity::Inventory`].
    RecordDiscovery {
        /// Which server.
        server: ServerId,
        /// The listing, its schemas checked.
        listing: Box<NewInventory>,
    },
    /// A classification, whole. Moves [`Entity::Classification`].
    Classify {
        /// What was decided.
        classification: Box<Classification>,
    },
    /// The end of a classification. Moves [`Entity::Classification`].
    Declassify {
        /// Which server.
        server: ServerId,
        /// Which tool.
        tool: ToolName,
    },
    /// A grant. Moves [`Entity::Access`].
    CreateGrant {
        /// The grant.
        grant: Grant,
    },
    /// The end of a grant. Moves [`Entity::Access`].
    DeleteGrant {
        /// The project that granted.
        project: ProjectId,
        /// Which.
        id: GrantId,
    },
    /// The scopes of a subject; an empty set ends them. Moves [`Entity::Access`] of the project, if it names one.
    SetMembership {
        /// The membership.
        membership: Membership,
    },
    /// A token.
    CreateToken {
        /// What is stored.
        record: TokenRecord,
        /// What it is found by.
        hash: TokenHash,
    },
    /// The end of a token. `NotFound` when there is none in `project` that is not revoked yet.
    RevokeToken {
        /// Which.
        id: TokenId,
        /// Where it must hold; any, when none is named.
        project: Option<ProjectId>,
        /// When.
        at: Timestamp,
    },
    /// A request for consent. `Conflict` with [`ApprovalRequired`](crate::reason::ReasonCode::ApprovalRequired) when
    /// the same caller waits for consent to the same already, with the identifier of that request in the context
    /// `approval`; `RateLimited` when as many requests of the caller as `limit` says wait in the project. Moves
    /// [`Entity::Approval`].
    CreateApproval {
        /// The request.
        approval: Box<Approval>,
        /// The most requests of one caller that may wait in one project.
        limit: usize,
    },
    /// A decision about a request that waits for one. `Conflict` otherwise. Moves [`Entity::Approval`].
    DecideApproval {
        /// The approval in its new state.
        approval: Box<Approval>,
    },
    /// A call with effects, before a byte is sent; spends its approval, if it has one (`Conflict` with
    /// [`ApprovalInvalid`](crate::reason::ReasonCode::ApprovalInvalid) when that is not approved, expired in store
    /// time, or spent; `NotFound` when there is none). Moves [`Entity::Approval`], if it spends one.
    BeginInvocation {
        /// The call with its lease.
        intent: Box<InvocationIntent>,
    },
    /// The end of a call that was begun. `Conflict` when it is settled already: the first settlement stands.
    SettleInvocation {
        /// Which.
        id: InvocationId,
        /// How it ended.
        settlement: Box<Settlement>,
    },
    /// Calls that began and ended without an intent: reads and refusals. A call that is in the ledger already is
    /// left as it is, and so is an audit entry that is there: whoever does not know whether a commit happened
    /// makes it again.
    RecordInvocations {
        /// The calls, each with its settlement.
        records: Vec<InvocationRecord>,
    },
    /// Settles every call whose lease has run out in store time as unknown. The audit entry is kept only when
    /// there was one, with the entry of each call beside it.
    SettleOrphans {
        /// The most to settle at once.
        limit: u32,
    },
    /// Removes old records, by their kind. The audit entry is kept only when something was removed.
    Prune(Retention),
}

/// What is old enough to be removed, by kind; `None` keeps all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Settled calls that ended before this.
    pub invocations_before: Option<Timestamp>,
    /// Audit entries made before this.
    pub audit_before: Option<Timestamp>,
    /// Approvals that expired before this.
    pub approvals_before: Option<Timestamp>,
    /// Tokens that expired or were revoked before this.
    pub tokens_before: Option<Timestamp>,
}

/// A literal secret on its way into the store.
#[derive(Debug)]
pub struct NewSecret {
    /// The identifier that the definition refers to.
    pub id: SecretId,
    /// What it belongs to.
    pub owner: SecretOwner,
    /// The value.
    pub value: SecretText,
}

/// What a stored secret belongs to, and goes with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SecretOwner {
    /// A server.
    Server(ServerId),
    /// A version of a code tool.
    CodeTool(CodeToolId),
}

impl SecretOwner {
    /// The identifier; those of servers and of code tools never meet.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Server(id) => id.as_str(),
            Self::CodeTool(id) => id.as_str(),
        }
    }
}

impl fmt::Display for SecretOwner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A listing, ready to be stored.
#[derive(Clone, Debug)]
pub struct NewInventory {
    /// When it was made.
    pub discovered_at: Timestamp,
    /// Whether an admin asked for it. What a session listed by itself is no news about the connection, and no live
    /// discovery in the sense of preflight.
    pub asked_for: bool,
    /// The protocol revision that was spoken.
    pub protocol_version: String,
    /// What the server says about itself.
    pub server_info: Option<JsonText>,
    /// What the server tells models.
    pub instructions: Option<String>,
    /// The tools.
    pub tools: Vec<Descriptor>,
    /// The tools that cannot be offered.
    pub withheld: Vec<WithheldTool>,
}

/// What a commit did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// The new revision of the thing that moved; zero when nothing moved.
    pub revision: Revision,
    /// How many records a sweep or a prune touched.
    pub affected: u64,
}

/// One admission's question to the store.
#[derive(Clone, Debug)]
pub struct AdmissionQuery {
    /// Which server.
    pub server: ServerId,
    /// Which tool.
    pub tool: ToolName,
    /// Who calls, in which project.
    pub subject: Subject,
    /// The project that the caller works in: its grants count.
    pub project: ProjectId,
    /// The approval that is presented.
    pub approval: Option<ApprovalId>,
}

/// Everything stored that one admission is decided on.
#[derive(Clone, Debug)]
pub struct StoredFacts {
    /// The server.
    pub server: ServerRecord,
    /// Whether there was a discovery.
    pub discovered: bool,
    /// The tool, if it is listed and offered.
    pub tool: Option<ToolFacts>,
    /// Why the tool is withheld, if it is.
    pub withheld: Option<String>,
    /// What an admin decided.
    pub classification: Option<Classification>,
    /// The grants that can [open](crate::grant::Grant::opens_tool) the tool to the caller, given by
    /// the server's project or, for a public server, by the caller's: a call reads no more than these, however many
    /// others there are.
    pub grants: Vec<Grant>,
    /// The approval that was presented.
    pub approval: Option<Approval>,
    /// The revisions of all of it, for the intent.
    pub expect: Expect,
}

/// Whose calls a list shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvocationsOf {
    /// All.
    Everything,
    /// Those of a server.
    Server(ServerId),
    /// Those of a version of a code tool.
    CodeTool(CodeToolId),
}

/// What admission needs of a descriptor: stored apart, so that a call reads no more than this.
#[derive(Clone, Debug)]
pub struct ToolFacts {
    /// The digest of the descriptor.
    pub digest: DescriptorDigest,
    /// The schema of the arguments.
    pub input_schema: JsonText,
    /// The schema of structured results, if any.
    pub output_schema: Option<JsonText>,
}

/// Which servers a list shows.
#[derive(Clone, Debug, Default)]
pub struct ServerQuery {
    /// Who looks; `None` sees everything.
    pub viewer: Option<Viewer>,
    /// Whether they take part.
    pub status: Option<ServerStatus>,
    /// Whether their last connection failed.
    pub failing: Option<bool>,
    /// The transport, as on the wire.
    pub transport: Option<String>,
    /// A text that the name, the description or the location holds, ignoring case of ASCII letters.
    pub text: Option<String>,
}

/// Who looks at a list.
#[derive(Clone, Debug)]
pub struct Viewer {
    /// Sees their own.
    pub subject: Subject,
    /// Sees what this project shows, besides what is public.
    pub project: ProjectId,
    /// Sees also what others in the project keep to themselves.
    pub admin: bool,
}

impl Viewer {
    /// The one rule of visibility.
    pub fn sees(&self, owner: &Subject, project: &ProjectId, visibility: crate::server::Visibility) -> bool {
        use crate::server::Visibility;
        match visibility {
            Visibility::Public => true,
            Visibility::Project => *project == self.project,
            Visibility::User => *owner == self.subject || (self.admin && *project == self.project),
        }
    }
}

/// An active deployment, or its rollback stack, that needs a server or a version of a code tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentReference {
    /// The workflow.
    pub workflow: String,
    /// The alias.
    pub alias: String,
    /// Whether only the rollback stack needs it.
    pub rollback_only: bool,
}
