//! Calls and their records on the wire.

use caliber_core::json::JsonText;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::IdentityKind;
use super::tools::Level;
use crate::body::given;

/// A call of a tool.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "tool_name": "forecast", "arguments": { "city": "Utrecht" } }))]
pub(crate) struct InvokeInput {
    /// The tool.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,128}$")]
    pub(crate) tool_name: String,
    /// Its arguments, passed on byte for byte; an empty object when they are not given.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, value_type = Option<Object>)]
    pub(crate) arguments: Option<Box<RawValue>>,
    /// The consent to spend, when the tool needs one.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, pattern = "^apr_[0-9a-f]{32}$")]
    pub(crate) approval_id: Option<String>,
    /// Why an admin goes past approval. It is written into the audit trail.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, min_length = 1, max_length = 1_000)]
    pub(crate) break_glass: Option<String>,
    /// A shorter time than the policy, the server or the installation allow, in milliseconds.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 3_600_000)]
    pub(crate) timeout_ms: Option<u64>,
}

/// A call that the tool has answered.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Invoked {
    /// The server.
    pub(crate) server_id: String,
    /// The tool.
    pub(crate) tool_name: String,
    /// Whether the tool says that it succeeded.
    pub(crate) success: bool,
    /// Whether the tool says that it failed.
    pub(crate) is_error: bool,
    /// The `result` of the MCP call, byte for byte.
    #[schema(value_type = Object)]
    pub(crate) result: JsonText,
    /// From the request to the answer, in milliseconds.
    pub(crate) duration_ms: f64,
    /// The call in the ledger.
    pub(crate) invocation_id: String,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The tool answered.
    Ok,
    /// The tool answered that it failed.
    ToolError,
    /// The upstream failed, and nothing can have taken effect, or it said so.
    UpstreamError,
    /// Admission refused.
    Denied,
    /// The deadline passed.
    Timeout,
    /// The caller gave up.
    Cancelled,
    /// The call was sent and its answer was lost.
    #[serde(rename = "outcome_unknown")]
    Unknown,
}

/// A call in the ledger.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InvocationRecord {
    /// The call.
    pub(crate) invocation_id: String,
    /// When it was asked for.
    pub(crate) started_at: DateTime<Utc>,
    /// Who called.
    pub(crate) subject: String,
    /// How that is known.
    pub(crate) identity: IdentityKind,
    /// The token, when it was one.
    pub(crate) token_id: Option<String>,
    /// Where it came in.
    pub(crate) surface: &'static str,
    /// The project of the tool.
    pub(crate) project_id: String,
    /// The server; null for a code tool.
    pub(crate) server_id: Option<String>,
    /// Its name at the time.
    pub(crate) server_name: Option<String>,
    /// The tool of the server.
    pub(crate) tool_name: Option<String>,
    /// The tool as it was admitted or refused.
    pub(crate) descriptor_digest: Option<String>,
    /// The revision of the decision that counted.
    pub(crate) policy_revision: Option<u64>,
    /// The version of a code tool; null for a tool of a server.
    pub(crate) code_tool_id: Option<String>,
    /// Its family.
    pub(crate) family: Option<String>,
    /// Its number.
    pub(crate) version: Option<String>,
    /// What it did, as it was admitted or refused.
    pub(crate) content_hash: Option<String>,
    /// How far the call reaches.
    pub(crate) side_effect_level: Option<Level>,
    /// The digest of its arguments; they are not kept.
    pub(crate) argument_digest: String,
    /// The consent that it spent.
    pub(crate) approval_id: Option<String>,
    /// Why an admin went past approval.
    pub(crate) break_glass: Option<String>,
    /// How it ended; null while it is under way.
    pub(crate) outcome: Option<Outcome>,
    /// Why it was refused or failed, for programs.
    pub(crate) reason_code: Option<&'static str>,
    /// The same for people.
    pub(crate) detail: Option<String>,
    /// When it ended.
    pub(crate) ended_at: Option<DateTime<Utc>>,
    /// How long it took, in milliseconds.
    pub(crate) duration_ms: Option<f64>,
    /// The size of the result, in bytes.
    pub(crate) result_bytes: Option<u64>,
}

/// A call.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct InvocationPath {
    /// The call.
    #[param(pattern = "^inv_[0-9a-f]{32}$")]
    pub(crate) invocation_id: String,
}
