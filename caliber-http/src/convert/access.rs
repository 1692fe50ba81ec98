//! Tokens, grants, memberships and what they name.

use caliber_core::grant::{self as core, GrantedTools, Grantee};
use caliber_core::id::ProjectId;
use caliber_core::principal::{self, Principal, Scopes, Subject};
use caliber_core::token::{self, TokenRecord};

use crate::problem::Problem;
use crate::wire::access::{Grant, GrantInput, Membership, NewToken, Scope, Token};

impl From<Scope> for principal::Scope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Viewer => Self::Viewer,
            Scope::Operator => Self::Operator,
            Scope::Approver => Self::Approver,
            Scope::Admin => Self::Admin,
        }
    }
}

impl From<principal::Scope> for Scope {
    fn from(scope: principal::Scope) -> Self {
        match scope {
            principal::Scope::Viewer => Self::Viewer,
            principal::Scope::Operator => Self::Operator,
            principal::Scope::Approver => Self::Approver,
            principal::Scope::Admin => Self::Admin,
        }
    }
}

pub(crate) fn scopes(scopes: &[Scope]) -> Result<Scopes, Problem> {
    // There are four; a longer list says something twice.
    if scopes.len() > 16 {
        return Err(Problem::invalid_field(
            "body",
            "scopes",
            "it has more than 16 entries",
        ));
    }
    Ok(scopes.iter().copied().map(principal::Scope::from).collect())
}

fn shown_scopes(scopes: Scopes) -> Vec<Scope> {
    scopes.iter().map(Into::into).collect()
}

pub(crate) fn subject(text: &str) -> Result<Subject, Problem> {
    text.parse().map_err(|_| {
        Problem::invalid_field(
            "body",
            "subject",
            "use 1 to 256 visible characters, no space around them",
        )
    })
}

/// Where something will hold: in the project that is named, or everywhere, or in the caller's project.
pub(crate) fn project_reach(
    principal: &Principal,
    project: Option<&str>,
    everywhere: Option<bool>,
) -> Result<Option<ProjectId>, Problem> {
    match (project, everywhere.unwrap_or_default()) {
        (Some(_), true) => Err(Problem::invalid_field(
            "body",
            "everywhere",
            "a project is named too; choose one of the two",
        )),
        (None, true) => Ok(None),
        (None, false) => Ok(Some(principal.project.clone())),
        (Some(project), false) => project.parse().map(Some).map_err(|_| {
            Problem::invalid_field(
                "body",
                "project_id",
                "use 1 to 64 of a-z, 0-9 and -, not beginning with -",
            )
        }),
    }
}

pub(crate) fn token(record: TokenRecord) -> Token {
    Token {
        token_id: record.id.to_string(),
        subject: record.subject.to_string(),
        project_id: record.project.map(|project| project.to_string()),
        scopes: shown_scopes(record.scopes),
        label: record.label,
        created_by: record.created_by.to_string(),
        created_at: record.created_at,
        expires_at: record.expires_at,
        revoked_at: record.revoked_at,
    }
}

/// The one answer that holds the text of a token.
pub(crate) fn new_token(made: &token::NewToken) -> NewToken {
    let record = token(made.record.clone());
    NewToken {
        token: made.text.expose().to_owned(),
        token_id: record.token_id,
        subject: record.subject,
        project_id: record.project_id,
        scopes: record.scopes,
        label: record.label,
        created_by: record.created_by,
        created_at: record.created_at,
        expires_at: record.expires_at,
    }
}

/// Who receives a grant.
pub(crate) fn grantee(input: &GrantInput) -> Result<Grantee, Problem> {
    match (&input.subject, input.scope) {
        (Some(text), None) => subject(text).map(Grantee::Subject),
        (None, Some(scope)) => Ok(Grantee::Scope(scope.into())),
        (Some(_), Some(_)) => Err(Problem::invalid_field(
            "body",
            "scope",
            "a subject is named too; choose one of the two",
        )),
        (None, None) => Err(Problem::invalid_field(
            "body",
            "subject",
            "name a subject or a scope",
        )),
    }
}

pub(crate) fn grant(grant: core::Grant) -> Grant {
    let (subject, scope) = match grant.grantee {
        Grantee::Subject(subject) => (Some(subject.to_string()), None),
        Grantee::Scope(scope) => (None, Some(scope.into())),
    };
    let (server, tool, family) = match grant.tools {
        GrantedTools::Server { server, tool } => (Some(server), tool, None),
        GrantedTools::Family { project, family } => (None, None, Some((family, project))),
    };
    let (family, family_project) = family.unzip();
    Grant {
        grant_id: grant.id.to_string(),
        project_id: grant.project.to_string(),
        server_id: server.map(|server| server.to_string()),
        tool_name: tool.map(|tool| tool.to_string()),
        family: family.map(|family| family.to_string()),
        family_project_id: family_project.map(|project| project.to_string()),
        subject,
        scope,
        created_by: grant.created_by.to_string(),
        created_at: grant.created_at,
    }
}

pub(crate) fn membership(membership: &core::Membership) -> Membership {
    Membership {
        subject: membership.subject.to_string(),
        project_id: membership.project.as_ref().map(ToString::to_string),
        scopes: shown_scopes(membership.scopes),
    }
}
