//! Tokens, grants and memberships on the wire.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::body::{given, given_word, words};

/// One right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    /// Sees what the project shows.
    Viewer,
    /// Works with it.
    Operator,
    /// Consents to calls that need it.
    Approver,
    /// Registers servers, classifies tools, grants. Implies the others.
    Admin,
}

/// A token to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "subject": "nightly-report", "scopes": ["operator"], "label": "nightly report" }))]
pub(crate) struct TokenInput {
    /// Whom it will speak for.
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) subject: String,
    /// What it may do; no more than its maker.
    #[serde(deserialize_with = "words")]
    #[schema(min_items = 1, max_items = 16)]
    pub(crate) scopes: Vec<Scope>,
    /// Where its scopes will hold; the project of this request when it is not given.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, pattern = "^[a-z0-9][a-z0-9-]{0,63}$")]
    pub(crate) project_id: Option<String>,
    /// Whether they hold in every project, in place of one.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) everywhere: Option<bool>,
    /// What it is for.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 256)]
    pub(crate) label: Option<String>,
    /// When it ends; never when it is not given.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, format = DateTime)]
    pub(crate) expires_at: Option<String>,
}

/// A token, without its text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Token {
    /// Its identifier; not the token itself.
    pub(crate) token_id: String,
    /// Whom it speaks for.
    pub(crate) subject: String,
    /// Where its scopes hold; null means everywhere.
    pub(crate) project_id: Option<String>,
    /// What it may do.
    pub(crate) scopes: Vec<Scope>,
    /// What it is for.
    pub(crate) label: String,
    /// Who made it.
    pub(crate) created_by: String,
    /// When.
    pub(crate) created_at: DateTime<Utc>,
    /// When it ends.
    pub(crate) expires_at: Option<DateTime<Utc>>,
    /// When it was revoked.
    pub(crate) revoked_at: Option<DateTime<Utc>>,
}

/// A token at the one moment when its text is known.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewToken {
    /// The text. It is shown now and never again.
    pub(crate) token: String,
    /// Its identifier; not the token itself.
    pub(crate) token_id: String,
    /// Whom it speaks for.
    pub(crate) subject: String,
    /// Where its scopes hold; null means everywhere.
    pub(crate) project_id: Option<String>,
    /// What it may do.
    pub(crate) scopes: Vec<Scope>,
    /// What it is for.
    pub(crate) label: String,
    /// Who made it.
    pub(crate) created_by: String,
    /// When.
    pub(crate) created_at: DateTime<Utc>,
    /// When it ends.
    pub(crate) expires_at: Option<DateTime<Utc>>,
}

/// A token.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct TokenPath {
    /// The token's identifier.
    #[param(pattern = "^tok_[0-9a-f]{32}$")]
    pub(crate) token_id: String,
}

/// A grant to be given, of the tools of a server or of a family of code tools: to a subject, or to everybody who holds a
/// scope.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "server_id": "srv_00000000000000000000000000000000", "tool_name": "forecast", "subject": "nightly-report" }))]
pub(crate) struct GrantInput {
    /// The server whose tools it opens.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, pattern = "^srv_[0-9a-f]{32}$")]
    pub(crate) server_id: Option<String>,
    /// Or the name of a code tool, all versions of it.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, pattern = "^[A-Za-z0-9_.-]{1,128}$")]
    pub(crate) family: Option<String>,
    /// Which tool of the server; all of them when it is not given.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, pattern = "^[A-Za-z0-9_.-]{1,128}$")]
    pub(crate) tool_name: Option<String>,
    /// One person or program.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, min_length = 1, max_length = 256)]
    pub(crate) subject: Option<String>,
    /// Everybody who holds this scope in the project.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) scope: Option<Scope>,
}

/// A project's record that somebody may invoke a server's tools.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Grant {
    /// Its identifier.
    pub(crate) grant_id: String,
    /// The project that grants.
    pub(crate) project_id: String,
    /// The server whose tools it opens; null when it opens a family of code tools.
    pub(crate) server_id: Option<String>,
    /// Which tool of the server; null means all of them.
    pub(crate) tool_name: Option<String>,
    /// The family of code tools that it opens; null when it opens tools of a server.
    pub(crate) family: Option<String>,
    /// The project of the family.
    pub(crate) family_project_id: Option<String>,
    /// Who may.
    pub(crate) subject: Option<String>,
    /// Or everybody who holds this scope.
    pub(crate) scope: Option<Scope>,
    /// Who granted.
    pub(crate) created_by: String,
    /// When.
    pub(crate) created_at: DateTime<Utc>,
}

/// A grant.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct GrantPath {
    /// The grant.
    #[param(pattern = "^gra_[0-9a-f]{32}$")]
    pub(crate) grant_id: String,
}

/// The scopes of a subject, whole. They count for whoever a trusted proxy names.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "subject": "ada@example.com", "scopes": ["approver"] }))]
pub(crate) struct MembershipInput {
    /// Whose.
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) subject: String,
    /// Which; none ends the membership.
    #[serde(deserialize_with = "words")]
    #[schema(max_items = 16)]
    pub(crate) scopes: Vec<Scope>,
    /// Where they hold; the project of this request when it is not given.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, pattern = "^[a-z0-9][a-z0-9-]{0,63}$")]
    pub(crate) project_id: Option<String>,
    /// Whether they hold in every project, in place of one.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) everywhere: Option<bool>,
}

/// The scopes of a subject.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Membership {
    /// Whose.
    pub(crate) subject: String,
    /// Where they hold; null means everywhere.
    pub(crate) project_id: Option<String>,
    /// Which.
    pub(crate) scopes: Vec<Scope>,
}
