//! Tools and policies on the wire.

use caliber_core::inventory::ToolState;
use caliber_core::json::JsonText;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::body::{given, word};

/// How far a call reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// It changes nothing.
    Read,
    /// It changes data that the server owns.
    Write,
    /// It acts on the world outside.
    ExternalAction,
}

/// A policy of one tool. It is set whole.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "allowed": true, "side_effect_level": "read", "requires_approval": false }))]
pub(crate) struct PolicyInput {
    /// Whether it may be called at all.
    pub(crate) allowed: bool,
    /// How far a call reaches, in your judgement.
    #[serde(deserialize_with = "word")]
    pub(crate) side_effect_level: Level,
    /// Whether each call needs a person's consent.
    pub(crate) requires_approval: bool,
    /// Why an allowed `write` or `external_action` tool needs no approval.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, min_length = 1, max_length = 1_000)]
    pub(crate) approval_waiver: Option<String>,
    /// Calls a minute at most.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 100_000)]
    pub(crate) rate_limit_per_minute: Option<u32>,
    /// The longest call, in milliseconds.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 3_600_000)]
    pub(crate) timeout_ms: Option<u64>,
    /// The largest result, in bytes.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 67_108_864)]
    pub(crate) result_bytes: Option<u64>,
    /// Whether a call whose answer was lost may be sent again.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) replay_safe: Option<bool>,
    /// What you looked at: `descriptor_digest` of the tool. When the tool has changed since, nothing is decided.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, pattern = "^sha256:[0-9a-f]{64}$")]
    pub(crate) descriptor_digest: Option<String>,
}

/// A policy as it was set.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Policy {
    /// Whether it may be called at all.
    pub(crate) allowed: bool,
    /// How far a call reaches.
    pub(crate) side_effect_level: Level,
    /// Whether each call needs a person's consent.
    pub(crate) requires_approval: bool,
    /// Why it needs none, where it otherwise would.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) approval_waiver: Option<String>,
    /// Calls a minute at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) rate_limit_per_minute: Option<u32>,
    /// The longest call, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) timeout_ms: Option<u64>,
    /// The largest result, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) result_bytes: Option<u64>,
    /// Whether a call whose answer was lost may be sent again.
    pub(crate) replay_safe: bool,
}

/// What holds for calls now: the decision, or that there is none that counts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EffectivePolicy {
    /// Whether it may be called at all.
    pub(crate) allowed: bool,
    /// How far a call reaches; null while nobody has decided on the tool as it is.
    pub(crate) side_effect_level: Option<Level>,
    /// Whether each call needs a person's consent; null while nobody has decided on the tool as it is.
    pub(crate) requires_approval: Option<bool>,
    /// Calls a minute at most.
    pub(crate) rate_limit_per_minute: Option<u32>,
}

/// What an admin decided about a tool, and about what exactly.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Classification {
    /// The server.
    pub(crate) server_id: String,
    /// The tool.
    pub(crate) tool_name: String,
    /// Counts the decisions.
    pub(crate) revision: u64,
    /// What was decided.
    pub(crate) policy: Policy,
    /// The tool as the admin saw it.
    pub(crate) descriptor_digest: String,
    /// Where the server ran.
    pub(crate) fingerprint: String,
    /// Who decided.
    pub(crate) classified_by: String,
    /// When.
    pub(crate) classified_at: DateTime<Utc>,
    /// When a change was first seen; the decision counts no more from then on.
    pub(crate) drifted_at: Option<DateTime<Utc>>,
}

/// A tool of a server's inventory. What the server says about it is untrusted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tool {
    /// The name under which the server takes calls.
    pub(crate) name: String,
    /// The title.
    pub(crate) title: Option<String>,
    /// The description; empty when there is none.
    pub(crate) description: String,
    /// The schema of the arguments.
    #[schema(value_type = Object)]
    pub(crate) input_schema: JsonText,
    /// The schema of structured results.
    #[schema(value_type = Option<Object>)]
    pub(crate) output_schema: Option<JsonText>,
    /// Hints of the server about effects; nothing is decided on them.
    #[schema(value_type = serde_json::Value)]
    pub(crate) annotations: Option<JsonText>,
    /// The digest of everything that the server says about it.
    pub(crate) descriptor_digest: String,
    /// Whether a decision counts.
    #[schema(value_type = StateWord)]
    pub(crate) state: ToolState,
    /// Whether a decision counts, as a flag.
    pub(crate) classified: bool,
    /// What holds for calls now.
    pub(crate) policy: EffectivePolicy,
    /// What was decided last, whether it still counts or not.
    pub(crate) classification: Option<Classification>,
    /// Everything that the server says about it, as it was sent. Only where one tool is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, required = false, nullable = false)]
    pub(crate) descriptor: Option<JsonText>,
}

/// Whether a decision about a tool counts.
#[derive(ToSchema)]
#[schema(as = ToolState, rename_all = "snake_case")]
#[allow(dead_code, reason = "the schema of a word of the core")]
pub(crate) enum StateWord {
    /// Nobody has decided.
    Unclassified,
    /// Somebody decided on something that has changed since.
    Drifted,
    /// The decision holds.
    Classified,
}

/// A tool that the server advertised and that cannot be offered.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WithheldTool {
    /// Its name, escaped and bounded.
    pub(crate) name: String,
    /// Why.
    pub(crate) reason: String,
}

/// A page of a server's tools.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolList {
    /// The server.
    pub(crate) server_id: String,
    /// Where it runs now.
    pub(crate) fingerprint: String,
    /// When the inventory was made; null before the first discovery.
    pub(crate) discovered_at: Option<DateTime<Utc>>,
    /// The protocol revision that was spoken.
    pub(crate) protocol_version: Option<String>,
    /// What the server says about itself; untrusted.
    #[schema(value_type = serde_json::Value)]
    pub(crate) server_info: Option<JsonText>,
    /// What the server tells models; untrusted.
    pub(crate) instructions: Option<String>,
    /// How many tools there are on all pages.
    pub(crate) tool_count: u32,
    /// The tools of this page, by name.
    pub(crate) tools: Vec<Tool>,
    /// The tools that cannot be offered.
    pub(crate) withheld: Vec<WithheldTool>,
}

/// What a discovery found.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Discovery {
    /// The server.
    pub(crate) server_id: String,
    /// When.
    pub(crate) discovered_at: DateTime<Utc>,
    /// The protocol revision that was spoken.
    pub(crate) protocol_version: String,
    /// How many tools there are.
    pub(crate) tool_count: u32,
    /// The first tools, by name.
    pub(crate) tools: Vec<Tool>,
    /// The tools that cannot be offered.
    pub(crate) withheld: Vec<WithheldTool>,
    /// The tools that were there for the first time.
    pub(crate) added: Vec<String>,
    /// The tools that are there no more.
    pub(crate) removed: Vec<String>,
    /// The tools that changed after an admin decided about them.
    pub(crate) drifted: Vec<String>,
}

/// What changed of a tool since an admin decided about it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Difference {
    /// The server.
    pub(crate) server_id: String,
    /// The tool.
    pub(crate) tool_name: String,
    /// Whether the decision counts.
    #[schema(value_type = StateWord)]
    pub(crate) state: ToolState,
    /// The tool as the admin saw it; null without a decision.
    pub(crate) classified_digest: Option<String>,
    /// The tool now.
    pub(crate) current_digest: String,
    /// Whether the server runs elsewhere now.
    pub(crate) place_changed: bool,
    /// The difference by lines: `-` was seen, `+` is there now, a space is both. Untrusted text.
    pub(crate) lines: Vec<String>,
}
