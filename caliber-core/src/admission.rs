//! The check before every call: facts in, decision out, and the permit that a call consumes.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::approval::Approval;
use crate::clock::{Deadline, Timestamp};
use crate::code_tool::{CodeToolDefinition, CodeToolStatus};
use crate::descriptor::ToolName;
use crate::digest::{ArgumentDigest, ContentHash, DescriptorDigest, Fingerprint};
use crate::gateway::{CallerKey, Target};
use crate::grant::Grantee;
use crate::id::{CodeToolId, InvocationId, ServerId};
use crate::json::JsonText;
use crate::policy::{Classification, ToolPolicy};
use crate::principal::{Scopes, Subject};
use crate::readiness::{Readiness, ReadinessFacts};
use crate::reason::Reason;
use crate::sandbox::{RunRequest, SandboxReport};
use crate::server::ServerStatus;

/// Decides who may call what. Pure and synchronous: every fact comes in, nothing is read or written.
///
/// Implementations fail closed: what they cannot judge is a denial with
/// [`ReasonCode::PolicyError`](crate::reason::ReasonCode::PolicyError).
pub trait AdmissionPolicy: Send + Sync + fmt::Debug {
    /// Whether this call may be made. The first failing step answers.
    fn decide(&self, facts: AdmissionFacts<'_>) -> Decision;

    /// Whether this server may be started or dialled, and how well it is isolated.
    fn readiness(&self, facts: &ReadinessFacts) -> Readiness;

    /// What stands against a code tool, whoever calls it: a module or an executable that is not allowed, a secret
    /// that may not be referred to. Asked when it is registered and again at each run; empty means that it may be
    /// used.
    fn blockers(&self, definition: &CodeToolDefinition) -> Vec<Reason>;
}

/// Everything a decision is made on, read at one moment; of a call of a server's tool or of a run of a code tool.
#[derive(Clone, Copy, Debug)]
pub enum AdmissionFacts<'a> {
    /// A call of a server's tool.
    ServerTool(&'a ServerToolFacts),
    /// A run of a code tool.
    CodeTool(&'a CodeToolFacts),
}

impl<'a> From<&'a ServerToolFacts> for AdmissionFacts<'a> {
    fn from(facts: &'a ServerToolFacts) -> Self {
        Self::ServerTool(facts)
    }
}

impl<'a> From<&'a CodeToolFacts> for AdmissionFacts<'a> {
    fn from(facts: &'a CodeToolFacts) -> Self {
        Self::CodeTool(facts)
    }
}

/// What is known of a call of a server's tool.
#[derive(Clone, Debug)]
pub struct ServerToolFacts {
    /// The moment of the decision.
    pub now: Timestamp,
    /// Whether the server takes part.
    pub status: ServerStatus,
    /// Whether it may be started or dialled.
    pub readiness: Readiness,
    /// What the last discovery saw of the tool.
    pub inventory: InventoryFact,
    /// What an admin decided about the tool, if anything.
    pub classification: Option<Classification>,
    /// Where the server runs now.
    pub fingerprint: Fingerprint,
    /// What the open session advertised last about the tool.
    pub session: SessionFact,
    /// Who calls.
    pub caller: CallerFact,
    /// Whether the arguments fit the input schema.
    pub arguments: ArgumentsFact,
    /// The tool's calls per minute.
    pub quota: QuotaFact,
    /// The approval that was presented, if any.
    pub approval: Option<Approval>,
    /// The digest of the arguments.
    pub argument_digest: ArgumentDigest,
}

/// What is known of a run of a code tool. The order of the question is: status → sandbox → blockers → content →
/// grants → arguments → approval → quota.
#[derive(Clone, Debug)]
pub struct CodeToolFacts {
    /// The moment of the decision.
    pub now: Timestamp,
    /// Which version.
    pub tool: CodeToolId,
    /// Whether it may be used.
    pub status: CodeToolStatus,
    /// What its definition says about approval and bounds.
    pub policy: ToolPolicy,
    /// What the sandbox enforces; `None` when there is no sandbox.
    pub sandbox: Option<Arc<SandboxReport>>,
    /// What [`AdmissionPolicy::blockers`] says about it.
    pub blockers: Vec<Reason>,
    /// What it does, as it was registered.
    pub content_hash: ContentHash,
    /// What its record comes to now.
    pub computed_hash: ContentHash,
    /// What the caller pinned, if anything: a run of something else is refused.
    pub expected_hash: Option<ContentHash>,
    /// Who calls.
    pub caller: RunCallerFact,
    /// Whether the arguments fit the input schema.
    pub arguments: ArgumentsFact,
    /// The tool's runs per minute.
    pub quota: QuotaFact,
    /// The approval that was presented, if any.
    pub approval: Option<Approval>,
    /// The digest of the arguments.
    pub argument_digest: ArgumentDigest,
}

/// Who calls a code tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCallerFact {
    /// The caller.
    pub subject: Subject,
    /// The scopes held in the tool's project.
    pub scopes: Scopes,
    /// Whom the grants that name the family are for; already filtered by project.
    pub grants: Vec<Grantee>,
    /// The reason of an admin who goes past approval in the playground.
    pub break_glass: Option<String>,
}

/// What the last discovery saw of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InventoryFact {
    /// There was no discovery.
    Absent,
    /// The tool was not in the list.
    Unlisted,
    /// The tool was in the list and cannot be offered.
    Withheld {
        /// Why.
        reason: String,
    },
    /// The tool as it was seen.
    Listed(DescriptorDigest),
}

/// What an open session advertised last about a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionFact {
    /// No session is open, or it lists its tools again first. What it advertises then is compared before it sends.
    NotOpen,
    /// The tool as the session sees it.
    Advertised(DescriptorDigest),
    /// The session does not see the tool.
    Unlisted,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerFact {
    /// The caller.
    pub subject: Subject,
    /// The scopes held in the server's project.
    pub scopes: Scopes,
    /// The grants that name this server, with the tool each is limited to; already filtered by project.
    pub grants: Vec<(Grantee, Option<ToolName>)>,
    /// The tool that is called.
    pub tool: ToolName,
    /// The reason of an admin who goes past approval in the playground.
    pub break_glass: Option<String>,
}

/// Whether arguments fit the input schema; judged outside, within bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgumentsFact {
    /// They fit.
    Fit,
    /// They do not.
    Unfit {
        /// What does not fit, one line, bounded, no values.
        problem: String,
    },
    /// The schema or the arguments went over the bounds of the check.
    Unchecked {
        /// Which bound.
        problem: String,
    },
}

/// The state of the tool's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaFact {
    /// It has not been asked; it is spent after an `Allow`, and the decision is made again if that fails.
    NotAsked,
    /// It is spent.
    Exhausted {
        /// When the next call may pass.
        retry_after: Duration,
    },
    /// It could not be asked.
    Unavailable,
}

/// The outcome of admission with the reasons for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What follows.
    pub outcome: Outcome,
    /// Why, the deciding one first; empty for a plain `Allow`.
    pub reasons: Vec<Reason>,
}

/// What follows from a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The call may be made.
    Allow,
    /// The call waits for a person.
    NeedsApproval,
    /// The call is refused.
    Deny,
}

impl Decision {
    /// A plain yes.
    pub fn allow() -> Self {
        Self {
            outcome: Outcome::Allow,
            reasons: Vec::new(),
        }
    }

    /// A refusal for `reason`.
    pub fn deny(reason: Reason) -> Self {
        Self {
            outcome: Outcome::Deny,
            reasons: vec![reason],
        }
    }

    /// A call that waits for a person.
    pub fn needs_approval(reason: Reason) -> Self {
        Self {
            outcome: Outcome::NeedsApproval,
            reasons: vec![reason],
        }
    }
}

/// A reserved place at a server: as long as it lives, one of the server's concurrent calls is taken.
pub struct Slot(Box<dyn Any + Send>);

impl Slot {
    /// Wraps what the gateway wants to be dropped (or taken back) with the place.
    pub fn new(place: impl Any + Send) -> Self {
        Self(Box::new(place))
    }

    /// Takes back what [`Slot::new`] was given; `None` when it was of another type.
    pub fn into_inner<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|place| *place)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Slot")
    }
}

/// The proof that one call was admitted. Only [`Caliber`](crate::Caliber) makes one; a gateway consumes it.
///
/// ```compile_fail,E0451
/// # use caliber_core::admission::{Permit, Slot};
/// // Its fields are private: whoever has all the parts still cannot make one.
/// fn forge(admitted: &Permit, slot: Slot) -> Permit {
///     Permit {
///         invocation: admitted.invocation().clone(),
///         server: admitted.server().clone(),
///         target: admitted.target().clone(),
///         tool: admitted.tool().clone(),
///         arguments: admitted.arguments().clone(),
///         descriptor_digest: admitted.descriptor_digest(),
///         caller: admitted.caller().clone(),
///         deadline: admitted.deadline(),
///         result_bytes: admitted.result_bytes(),
///         replay_safe: admitted.is_replay_safe(),
///         slot,
///     }
/// }
/// ```
///
/// ```compile_fail,E0599
/// // And it cannot be copied.
/// fn twice(permit: caliber_core::admission::Permit) -> (caliber_core::admission::Permit, caliber_core::admission::Permit) {
///     (permit.clone(), permit)
/// }
/// ```
#[derive(Debug)]
pub struct Permit {
    pub(crate) invocation: InvocationId,
    pub(crate) server: ServerId,
    pub(crate) target: Target,
    pub(crate) tool: ToolName,
    pub(crate) arguments: JsonText,
    pub(crate) descriptor_digest: DescriptorDigest,
    pub(crate) caller: CallerKey,
    pub(crate) deadline: Deadline,
    pub(crate) result_bytes: usize,
    pub(crate) replay_safe: bool,
    pub(crate) slot: Slot,
}

impl Permit {
    /// The call in the ledger.
    pub fn invocation(&self) -> &InvocationId {
        &self.invocation
    }

    /// The server.
    pub fn server(&self) -> &ServerId {
        &self.server
    }

    /// Where it runs, as it was when the call was admitted.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The tool.
    pub fn tool(&self) -> &ToolName {
        &self.tool
    }

    /// The arguments, to be sent as they are.
    pub fn arguments(&self) -> &JsonText {
        &self.arguments
    }

    /// The descriptor that was admitted. A session that advertises another one must not send the call.
    pub fn descriptor_digest(&self) -> DescriptorDigest {
        self.descriptor_digest
    }

    /// Whose session the call belongs to.
    pub fn caller(&self) -> &CallerKey {
        &self.caller
    }

    /// The end of everything that is done for the call.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The largest result, in bytes.
    pub fn result_bytes(&self) -> usize {
        self.result_bytes
    }

    /// Whether the operator allows the call to be sent again when its answer was lost.
    pub fn is_replay_safe(&self) -> bool {
        self.replay_safe
    }

    /// Ends the permit and hands the place over, so that it is held for as long as the call runs.
    pub fn into_slot(self) -> Slot {
        self.slot
    }
}

/// The proof that one run of a code tool was admitted. Only [`Caliber`](crate::Caliber) makes one; a sandbox
/// consumes it.
///
/// ```compile_fail,E0451
/// # use caliber_core::admission::{RunPermit, Slot};
/// fn forge(admitted: &RunPermit, slot: Slot) -> RunPermit {
///     RunPermit {
///         invocation: admitted.invocation().clone(),
///         tool: admitted.tool().clone(),
///         request: admitted.request().clone(),
///         slot,
///     }
/// }
/// ```
#[derive(Debug)]
pub struct RunPermit {
    pub(crate) invocation: InvocationId,
    pub(crate) tool: CodeToolId,
    pub(crate) request: RunRequest,
    pub(crate) slot: Slot,
}

impl RunPermit {
    /// The call in the ledger.
    pub fn invocation(&self) -> &InvocationId {
        &self.invocation
    }

    /// The registered version.
    pub fn tool(&self) -> &CodeToolId {
        &self.tool
    }

    /// What was admitted.
    pub fn request(&self) -> &RunRequest {
        &self.request
    }

    /// Ends the permit: what was admitted, and the place that is to be held for as long as it runs.
    pub fn into_parts(self) -> (RunRequest, Slot) {
        (self.request, self.slot)
    }
}

/// A definition shared by facts, permits and sessions.
pub type SharedDefinition = Arc<crate::server::ServerDefinition>;
