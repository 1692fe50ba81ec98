//! The audit trail on the wire.

use caliber_core::json::JsonText;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::IdentityKind;
use crate::input::limit;

/// One entry of the audit trail.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditEntry {
    /// Its identifier; later entries sort after earlier ones.
    pub(crate) audit_id: String,
    /// When.
    pub(crate) at: DateTime<Utc>,
    /// Who.
    pub(crate) actor: String,
    /// How that is known.
    pub(crate) identity: IdentityKind,
    /// The token, when it was one.
    pub(crate) token_id: Option<String>,
    /// Where the act came in.
    pub(crate) surface: &'static str,
    /// What was done, such as `create_mcp_server`.
    pub(crate) action: &'static str,
    /// The kind of thing, such as `mcp_server`.
    pub(crate) entity_type: String,
    /// The identifier of the thing.
    pub(crate) entity_id: String,
    /// The project that it belongs to; null for the installation.
    pub(crate) project_id: Option<String>,
    /// What else was kept.
    #[schema(value_type = Object)]
    pub(crate) details: JsonText,
}

/// Which entries.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditFilter {
    /// Of this kind of thing, such as `mcp_server`.
    #[param(nullable = false)]
    pub(crate) entity_type: Option<String>,
    /// About this thing.
    #[param(nullable = false)]
    pub(crate) entity_id: Option<String>,
    /// Of this action, such as `delete_mcp_server`.
    #[param(nullable = false)]
    pub(crate) action: Option<String>,
    /// By this actor.
    #[param(nullable = false)]
    pub(crate) actor: Option<String>,
    /// Later than this entry, oldest first: to follow the trail.
    #[param(nullable = false, pattern = "^aud_[0-9a-f]{32}$")]
    pub(crate) after: Option<String>,
    /// Items at most; 50 when it is not given.
    #[serde(deserialize_with = "limit")]
    #[param(minimum = 1, maximum = 500, nullable = false)]
    pub(crate) limit: Option<u32>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(nullable = false)]
    pub(crate) cursor: Option<String>,
}
