//! Who may call what: grants of a project, and memberships that hold scopes.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::code_tool::FamilyName;
use crate::descriptor::ToolName;
use crate::id::{GrantId, ProjectId, ServerId};
use crate::principal::{Scope, Scopes, Subject};

/// A project's record that somebody may invoke a server's tools, or those of a family.
///
/// A grant opens nothing by itself: the tool must also be classified and allowed, or registered and not archived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its identifier.
    pub id: GrantId,
    /// The project that grants: the one of the server or family, or, for a public one, any.
    pub project: ProjectId,
    /// Who may.
    pub grantee: Grantee,
    /// Which tools.
    pub tools: GrantedTools,
    /// Who granted.
    pub created_by: Subject,
    /// When.
    pub created_at: Timestamp,
}

/// The tools that a grant opens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GrantedTools {
    /// Tools of a server.
    Server {
        /// Which server.
        server: ServerId,
        /// Which tool; all of them, when none is named.
        tool: Option<ToolName>,
    },
    /// Every version of a family of code tools.
    Family {
        /// The project that the family belongs to.
        project: ProjectId,
        /// Its name there.
        family: FamilyName,
    },
}

impl Grant {
    /// Whether the grant can open a tool of a server to `subject`. Whether a scope is held is for the policy to say.
    pub fn opens_tool(&self, subject: &Subject, server: &ServerId, tool: &ToolName) -> bool {
        let named = matches!(&self.tools, GrantedTools::Server { server: granted, tool: only }
            if granted == server && only.as_ref().is_none_or(|only| only == tool));
        named && self.may_be_for(subject)
    }

    /// Whether the grant can open the code tools of a family to `subject`; likewise.
    pub fn opens_family(&self, subject: &Subject, project: &ProjectId, family: &FamilyName) -> bool {
        let named = matches!(&self.tools, GrantedTools::Family { project: place, family: granted }
            if place == project && granted == family);
        named && self.may_be_for(subject)
    }

    fn may_be_for(&self, subject: &Subject) -> bool {
        match &self.grantee {
            Grantee::Subject(granted) => granted == subject,
            Grantee::Scope(_) => true,
        }
    }

    /// The server whose tools it opens, if it is about one.
    pub fn server(&self) -> Option<&ServerId> {
        match &self.tools {
            GrantedTools::Server { server, .. } => Some(server),
            GrantedTools::Family { .. } => None,
        }
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
