//! Grants, memberships and tokens.

use caliber_core::grant::{Grant, GrantedTools, Grantee, Membership};
use caliber_core::principal::{Scope, Scopes};
use caliber_core::token::TokenRecord;
use diesel::prelude::*;

use super::{instant, micros, optional_instant, optional_parsed, parsed, unreadable};
use crate::error::Result;
use crate::schema::{grants, memberships, tokens};

/// The kind of a grant to one subject.
pub(crate) const SUBJECT: &str = "subject";
/// The kind of a grant to everybody with a scope.
pub(crate) const SCOPE: &str = "scope";

/// A grant.
#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = grants, check_for_backend(diesel::sqlite::Sqlite), treat_none_as_default_value = false)]
pub(crate) struct GrantRow {
    pub(crate) id: String,
    project: String,
    server_id: Option<String>,
    grantee_kind: String,
    grantee: String,
    tool: Option<String>,
    family: Option<String>,
    family_project: Option<String>,
    created_by: String,
    created_at: i64,
}

/// The two columns that say who receives a grant.
fn grantee_columns(grantee: &Grantee) -> (&'static str, &str) {
    match grantee {
        Grantee::Subject(subject) => (SUBJECT, subject.as_str()),
        Grantee::Scope(scope) => (SCOPE, scope.as_str()),
    }
}

impl GrantRow {
    pub(crate) fn of(grant: &Grant) -> Self {
        let (kind, grantee) = grantee_columns(&grant.grantee);
        let (tool, family, family_project) = match &grant.tools {
            GrantedTools::Server { tool, .. } => (tool.as_ref().map(ToString::to_string), None, None),
            GrantedTools::Family { project, family } => {
                (None, Some(family.to_string()), Some(project.to_string()))
            }
        };
        Self {
            id: grant.id.to_string(),
            project: grant.project.to_string(),
            server_id: grant.server().map(ToString::to_string),
            grantee_kind: kind.to_owned(),
            grantee: grantee.to_owned(),
            tool,
            family,
            family_project,
            created_by: grant.created_by.to_string(),
            created_at: micros(grant.created_at),
        }
    }

    pub(crate) fn grant(self) -> Result<Grant> {
        let grantee = match self.grantee_kind.as_str() {
            SUBJECT => Grantee::Subject(parsed("grants.grantee", &self.grantee)?),
            SCOPE => Grantee::Scope(parsed("grants.grantee", &self.grantee)?),
            _ => {
                return Err(unreadable(
                    "grants.grantee_kind",
                    "it is neither subject nor scope",
                ));
            }
        };
        let tools = match (&self.server_id, &self.family, &self.family_project) {
            (Some(server), None, None) => GrantedTools::Server {
                server: parsed("grants.server_id", server)?,
                tool: optional_parsed("grants.tool", self.tool.as_deref())?,
            },
            (None, Some(family), Some(project)) => GrantedTools::Family {
                project: parsed("grants.family_project", project)?,
                family: parsed("grants.family", family)?,
            },
            _ => {
                return Err(unreadable(
                    "grants.server_id",
                    "it is neither for a server nor for a family",
                ));
            }
        };
        Ok(Grant {
            id: parsed("grants.id", &self.id)?,
            project: parsed("grants.project", &self.project)?,
            grantee,
            tools,
            created_by: parsed("grants.created_by", &self.created_by)?,
            created_at: instant("grants.created_at", self.created_at)?,
        })
    }
}

/// The scopes of a subject in a project, or everywhere.
#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = memberships, check_for_backend(diesel::sqlite::Sqlite))]
pub(crate) struct MembershipRow {
    subject: String,
    project: String,
    scopes: String,
}

impl MembershipRow {
    pub(crate) fn of(membership: &Membership) -> Self {
        let project = membership.project.as_ref();
        Self {
            subject: membership.subject.to_string(),
            project: project.map(ToString::to_string).unwrap_or_default(),
            scopes: scopes_column(membership.scopes),
        }
    }

    pub(crate) fn membership(self) -> Result<Membership> {
        let project = Some(self.project.as_str()).filter(|project| !project.is_empty());
        Ok(Membership {
            project: optional_parsed("memberships.project", project)?,
            subject: parsed("memberships.subject", &self.subject)?,
            scopes: scopes("memberships.scopes", &self.scopes)?,
        })
    }
}

/// A token; never its text.
#[derive(Queryable, Selectable, Insertable)]
#[diesel(table_name = tokens, check_for_backend(diesel::sqlite::Sqlite), treat_none_as_default_value = false)]
pub(crate) struct TokenRow {
    pub(crate) id: String,
    hash: String,
    subject: String,
    project: Option<String>,
    scopes: String,
    label: String,
    created_by: String,
    created_at: i64,
    expires_at: Option<i64>,
    revoked_at: Option<i64>,
}

impl TokenRow {
    pub(crate) fn of(token: &TokenRecord, hash: String) -> Self {
        Self {
            id: token.id.to_string(),
            hash,
            subject: token.subject.to_string(),
            project: token.project.as_ref().map(ToString::to_string),
            scopes: scopes_column(token.scopes),
            label: token.label.clone(),
            created_by: token.created_by.to_string(),
            created_at: micros(token.created_at),
            expires_at: token.expires_at.map(micros),
            revoked_at: token.revoked_at.map(micros),
        }
    }

    pub(crate) fn token(self) -> Result<TokenRecord> {
        Ok(TokenRecord {
            id: parsed("tokens.id", &self.id)?,
            subject: parsed("tokens.subject", &self.subject)?,
            project: optional_parsed("tokens.project", self.project.as_deref())?,
            scopes: scopes("tokens.scopes", &self.scopes)?,
            label: self.label,
            created_by: parsed("tokens.created_by", &self.created_by)?,
            created_at: instant("tokens.created_at", self.created_at)?,
            expires_at: optional_instant("tokens.expires_at", self.expires_at)?,
            revoked_at: optional_instant("tokens.revoked_at", self.revoked_at)?,
        })
    }
}

/// A set of scopes: its words with commas between them.
fn scopes_column(scopes: Scopes) -> String {
    let words: Vec<_> = scopes.iter().map(Scope::as_str).collect();
    words.join(",")
}

fn scopes(column: &'static str, text: &str) -> Result<Scopes> {
    text.split(',')
        .filter(|word| !word.is_empty())
        .map(|word| parsed::<Scope>(column, word))
        .collect()
}
