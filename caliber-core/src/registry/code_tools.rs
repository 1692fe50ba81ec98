//! What is asked of the store about code tools, and what it answers.

use super::{Expect, Viewer};
use crate::approval::Approval;
use crate::code_tool::{CodeToolRecord, CodeToolStatus, FamilyName};
use crate::grant::Grant;
use crate::id::{ApprovalId, CodeToolId, ProjectId};
use crate::principal::Subject;
use crate::server::Visibility;

/// The question of one admission of a run to the store.
#[derive(Clone, Debug)]
pub struct RunAdmissionQuery {
    /// Which version.
    pub tool: CodeToolId,
    /// Who calls.
    pub subject: Subject,
    /// The project that the caller works in: its grants count.
    pub project: ProjectId,
    /// The approval that is presented.
    pub approval: Option<ApprovalId>,
}

/// Everything stored that one admission of a run is decided on.
#[derive(Clone, Debug)]
pub struct StoredRunFacts {
    /// The version.
    pub record: CodeToolRecord,
    /// The grants that can [open](crate::grant::Grant::opens_family) the family to the caller, given by its project
    /// or, for a public version, by the caller's.
    pub grants: Vec<Grant>,
    /// The approval that was presented.
    pub approval: Option<Approval>,
    /// The revisions of all of it, for the intent.
    pub expect: Expect,
}

/// Which versions a list shows.
#[derive(Clone, Debug, Default)]
pub struct CodeToolQuery {
    /// Who looks; `None` sees everything.
    pub viewer: Option<Viewer>,
    /// Of this family only.
    pub family: Option<FamilyName>,
    /// Of this project only.
    pub project: Option<ProjectId>,
    /// Whether they may be used.
    pub status: Option<CodeToolStatus>,
    /// Who sees them.
    pub visibility: Option<Visibility>,
    /// A text that the name or the description holds, ignoring case of ASCII letters.
    pub text: Option<String>,
}
