//! Who may call what: grants of a project, and memberships that hold scopes.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::descriptor::ToolName;
use crate::id::{GrantId, ProjectId, ServerId};
use crate::principal::{Scope, Scopes, Subject};

/// A project's record that somebody may invoke a server's tools.
///
/// A grant opens nothing by itself: the tool must also be classified and allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its identifier.
    pub id: GrantId,
    /// The project that grants: the one of the server, or, for a public server, any.
    pub project: ProjectId,
    /// Who may.
    pub grantee: Grantee,
    /// Whose tools.
    pub server: ServerId,
    /// Which tool; all of them, when none is named.
    pub tool: Option<ToolName>,
    /// Who granted.
    pub created_by: Subject,
    /// When.
    pub created_at: Timestamp,
}

impl Grant {
    /// Whether the grant can open `tool` to `subject`. Whether a scope is held is for the policy to say.
    pub fn concerns(&self, subject: &Subject, tool: &ToolName) -> bool {
        let grantee = match &self.grantee {
            Grantee::Subject(granted) => granted == subject,
            Grantee::Scope(_) => true,
        };
        grantee && self.tool.as_ref().is_none_or(|granted| granted == tool)
    }
}

/// Who receives a grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grantee {
    /// One person or program.
    Subject(Subject),
    /// Everybody who holds a scope in the project.
    Scope(Scope),
}

/// The scopes of a subject in a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The project; every project, when none is named.
    pub project: Option<ProjectId>,
    /// Whose.
    pub subject: Subject,
    /// Which. An empty set ends the membership.
    pub scopes: Scopes,
}
