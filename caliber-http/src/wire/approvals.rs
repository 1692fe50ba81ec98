//! Requests for consent on the wire.

use caliber_core::json::JsonText;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::body::given;
use crate::input::limit;

/// A decision about a call.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "note": "as discussed" }))]
pub(crate) struct DecisionInput {
    /// Why.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 1_000)]
    pub(crate) note: Option<String>,
}

/// What became of a request for consent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ApprovalState {
    /// Nobody has decided.
    Pending,
    /// Somebody consented.
    Approved,
    /// Somebody refused.
    Refused,
    /// A call has spent it.
    Spent,
}

/// A request for consent to one call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Approval {
    /// Its identifier.
    pub(crate) approval_id: String,
    /// What became of it.
    pub(crate) state: ApprovalState,
    /// The project of the tool.
    pub(crate) project_id: String,
    /// The server; null for a code tool.
    pub(crate) server_id: Option<String>,
    /// The tool of the server.
    pub(crate) tool_name: Option<String>,
    /// The tool as it was seen.
    pub(crate) descriptor_digest: Option<String>,
    /// The version of a code tool; null for a tool of a server.
    pub(crate) code_tool_id: Option<String>,
    /// Its family.
    pub(crate) family: Option<String>,
    /// Its number.
    pub(crate) version: Option<String>,
    /// What it does.
    pub(crate) content_hash: Option<String>,
    /// What will be asked of it, as it was sent.
    #[schema(value_type = Object)]
    pub(crate) arguments: JsonText,
    /// The digest of the same.
    pub(crate) argument_digest: String,
    /// Who wants to call.
    pub(crate) requested_by: String,
    /// When the request was made.
    pub(crate) requested_at: DateTime<Utc>,
    /// When request and consent end.
    pub(crate) expires_at: DateTime<Utc>,
    /// Who decided.
    pub(crate) decided_by: Option<String>,
    /// When.
    pub(crate) decided_at: Option<DateTime<Utc>>,
    /// Why.
    pub(crate) note: Option<String>,
    /// The call that spent it.
    pub(crate) invocation_id: Option<String>,
}

/// Which requests.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
#[into_params(parameter_in = Query)]
pub(crate) struct ApprovalFilter {
    /// Those that wait for a decision, or all; `all` when it is not given.
    #[param(nullable = false, inline)]
    pub(crate) state: Option<ApprovalStateFilter>,
    /// Items at most; 50 when it is not given.
    #[serde(deserialize_with = "limit")]
    #[param(minimum = 1, maximum = 500, nullable = false)]
    pub(crate) limit: Option<u32>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// Which requests for consent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ApprovalStateFilter {
    /// Those that wait for a decision.
    Pending,
    /// All.
    All,
}

/// A request for consent.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct ApprovalPath {
    /// The request for consent.
    #[param(pattern = "^apr_[0-9a-f]{32}$")]
    pub(crate) approval_id: String,
}
