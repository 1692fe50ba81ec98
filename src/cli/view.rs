//! What the API says, as far as a table shows it. `--json` prints the whole answer instead.

use std::collections::BTreeMap;

use caliber::core::inventory::ToolState;
use caliber::core::json::JsonText;
use caliber::core::policy::SideEffectLevel;
use serde::Deserialize;

/// A server in a list.
#[derive(Debug, Deserialize)]
pub(crate) struct ServerSummary {
    pub(crate) server_id: String,
    pub(crate) name: String,
    pub(crate) transport: String,
    #[serde(default)]
    pub(crate) uri: String,
    #[serde(default)]
    pub(crate) command: String,
    pub(crate) status: String,
    pub(crate) tool_count: u64,
    pub(crate) last_connected_at: Option<String>,
}

/// A server.
#[derive(Debug, Deserialize)]
pub(crate) struct Server {
    pub(crate) server_id: String,
    pub(crate) revision: u64,
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) transport: String,
    pub(crate) uri: String,
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) auth_type: String,
    pub(crate) sharing: String,
    pub(crate) limits: serde_json::Map<String, serde_json::Value>,
    pub(crate) owner: String,
    pub(crate) visibility: String,
    pub(crate) project_id: String,
    pub(crate) status: String,
    pub(crate) last_connected_at: Option<String>,
    pub(crate) connection_error: Option<String>,
    pub(crate) execution: Execution,
    pub(crate) health: Health,
    pub(crate) tool_count: u64,
    pub(crate) discovered_at: Option<String>,
}

/// Whether a server may be started or dialled.
#[derive(Debug, Deserialize)]
pub(crate) struct Execution {
    pub(crate) ready: bool,
    pub(crate) boundary: String,
    pub(crate) production_isolated: bool,
    pub(crate) enforced: Vec<String>,
    pub(crate) attested: Vec<String>,
    pub(crate) absent: Vec<String>,
    pub(crate) blockers: Vec<Reason>,
    pub(crate) warnings: Vec<Reason>,
}

/// A code with a text.
#[derive(Debug, Deserialize)]
pub(crate) struct Reason {
    pub(crate) code: String,
    pub(crate) text: String,
}

/// How the sessions of a server do.
#[derive(Debug, Deserialize)]
pub(crate) struct Health {
    pub(crate) sessions: u64,
    pub(crate) calls: u64,
    pub(crate) breaker_open: bool,
    pub(crate) stderr_tail: Option<String>,
}

/// What came of a check.
#[derive(Debug, Deserialize)]
pub(crate) struct Check {
    pub(crate) success: bool,
    pub(crate) error: Option<String>,
    pub(crate) reason_code: Option<String>,
    pub(crate) tools: Vec<String>,
    pub(crate) protocol_version: Option<String>,
    pub(crate) duration_ms: Option<f64>,
}

/// What a discovery found.
#[derive(Debug, Deserialize)]
pub(crate) struct Discovery {
    pub(crate) tool_count: u64,
    pub(crate) protocol_version: String,
    pub(crate) withheld: Vec<Withheld>,
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
    pub(crate) drifted: Vec<String>,
}

/// A tool that cannot be offered.
#[derive(Debug, Deserialize)]
pub(crate) struct Withheld {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// A page of tools, with what the server says about itself.
#[derive(Debug, Deserialize)]
pub(crate) struct ToolList {
    pub(crate) discovered_at: Option<String>,
    pub(crate) tools: Vec<Box<serde_json::value::RawValue>>,
    pub(crate) withheld: Vec<Withheld>,
}

/// A tool.
#[derive(Debug, Deserialize)]
pub(crate) struct Tool {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) description: String,
    pub(crate) descriptor_digest: String,
    pub(crate) state: ToolState,
    pub(crate) classification: Option<Classification>,
    pub(crate) descriptor: Option<JsonText>,
}

/// What was decided about a tool.
#[derive(Debug, Deserialize)]
pub(crate) struct Classification {
    pub(crate) policy: Policy,
    pub(crate) classified_by: String,
    pub(crate) classified_at: String,
}

/// A policy.
#[derive(Debug, Deserialize)]
pub(crate) struct Policy {
    pub(crate) allowed: bool,
    pub(crate) side_effect_level: SideEffectLevel,
    pub(crate) requires_approval: bool,
    #[serde(default)]
    pub(crate) approval_waiver: Option<String>,
    #[serde(default)]
    pub(crate) rate_limit_per_minute: Option<u32>,
}

/// What changed of a tool.
#[derive(Debug, Deserialize)]
pub(crate) struct Difference {
    pub(crate) state: ToolState,
    pub(crate) classified_digest: Option<String>,
    pub(crate) current_digest: String,
    pub(crate) place_changed: bool,
    pub(crate) lines: Vec<String>,
}

/// The answer of a tool.
#[derive(Debug, Deserialize)]
pub(crate) struct Invoked {
    pub(crate) is_error: bool,
    pub(crate) result: JsonText,
    pub(crate) duration_ms: f64,
    pub(crate) invocation_id: String,
}

/// A grant.
#[derive(Debug, Deserialize)]
pub(crate) struct Grant {
    pub(crate) grant_id: String,
    pub(crate) project_id: String,
    pub(crate) server_id: Option<String>,
    pub(crate) tool_name: Option<String>,
    #[serde(default)]
    pub(crate) family: Option<String>,
    pub(crate) subject: Option<String>,
    pub(crate) scope: Option<String>,
    pub(crate) created_by: String,
}

/// A request for consent.
#[derive(Debug, Deserialize)]
pub(crate) struct Approval {
    pub(crate) approval_id: String,
    pub(crate) state: String,
    pub(crate) server_id: Option<String>,
    pub(crate) tool_name: Option<String>,
    #[serde(default)]
    pub(crate) family: Option<String>,
    #[serde(default)]
    pub(crate) version: Option<String>,
    pub(crate) arguments: JsonText,
    pub(crate) requested_by: String,
    pub(crate) requested_at: String,
    pub(crate) expires_at: String,
    pub(crate) decided_by: Option<String>,
}

impl Approval {
    /// What is to be called, in words: the tool of a server, or the version of a code tool.
    pub(crate) fn tool(&self) -> String {
        let words = [&self.tool_name, &self.family, &self.version];
        let words: Vec<_> = words.into_iter().flatten().map(String::as_str).collect();
        words.join(" ")
    }
}

/// An entry of the audit trail.
#[derive(Debug, Deserialize)]
pub(crate) struct AuditEntry {
    pub(crate) audit_id: String,
    pub(crate) at: String,
    pub(crate) actor: String,
    pub(crate) surface: String,
    pub(crate) action: String,
    pub(crate) entity_type: String,
    pub(crate) entity_id: String,
    pub(crate) details: JsonText,
}

/// A token, with its text where it was just made.
#[derive(Deserialize)]
pub(crate) struct Token {
    pub(crate) token_id: String,
    #[serde(default)]
    pub(crate) token: Option<String>,
    pub(crate) subject: String,
    pub(crate) project_id: Option<String>,
    pub(crate) scopes: Vec<String>,
    pub(crate) label: String,
    pub(crate) expires_at: Option<String>,
    #[serde(default)]
    pub(crate) revoked_at: Option<String>,
}

/// A call in the ledger.
#[derive(Debug, Deserialize)]
pub(crate) struct Invocation {
    pub(crate) invocation_id: String,
    pub(crate) started_at: String,
    pub(crate) subject: String,
    pub(crate) surface: String,
    pub(crate) server_name: Option<String>,
    pub(crate) tool_name: Option<String>,
    pub(crate) family: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) content_hash: Option<String>,
    pub(crate) descriptor_digest: Option<String>,
    pub(crate) side_effect_level: Option<String>,
    pub(crate) argument_digest: String,
    pub(crate) approval_id: Option<String>,
    pub(crate) break_glass: Option<String>,
    pub(crate) outcome: Option<String>,
    pub(crate) reason_code: Option<String>,
    pub(crate) detail: Option<String>,
    pub(crate) ended_at: Option<String>,
    pub(crate) duration_ms: Option<f64>,
    pub(crate) result_bytes: Option<u64>,
}

impl Invocation {
    /// What was called, in words: the tool of a server, or the version of a code tool.
    pub(crate) fn tool(&self) -> String {
        let words = [&self.tool_name, &self.family, &self.version];
        let words: Vec<_> = words.into_iter().flatten().map(String::as_str).collect();
        words.join(" ")
    }
}

/// A version of a code tool, as far as it is shown in tables.
#[derive(Debug, Deserialize)]
pub(crate) struct CodeTool {
    pub(crate) tool_id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) description: String,
    pub(crate) runtime: String,
    pub(crate) side_effect_level: String,
    pub(crate) requires_approval: bool,
    pub(crate) content_hash: String,
    pub(crate) status: String,
    pub(crate) project_id: String,
    pub(crate) created_at: String,
}

/// What a reference stands for.
#[derive(Debug, Deserialize)]
pub(crate) struct ResolvedCodeTool {
    pub(crate) tool: CodeTool,
    pub(crate) warning: Option<Reason>,
}

/// What a look at a code tool showed.
#[derive(Debug, Deserialize)]
pub(crate) struct CodeToolSource {
    pub(crate) signature: String,
    pub(crate) doc: String,
    pub(crate) source: String,
    pub(crate) truncated: bool,
    pub(crate) error: Option<String>,
}

/// How a run ended.
#[derive(Debug, Deserialize)]
pub(crate) struct CodeToolRun {
    pub(crate) success: bool,
    pub(crate) output: Option<JsonText>,
    pub(crate) error: Option<String>,
    pub(crate) error_type: Option<String>,
    pub(crate) status: String,
    pub(crate) reason_code: Option<String>,
    pub(crate) isolation: String,
    pub(crate) unenforced: Vec<String>,
    pub(crate) stdout: Captured,
    pub(crate) stderr: Captured,
    pub(crate) duration_ms: f64,
    pub(crate) invocation_id: String,
}

/// Captured output of a run.
#[derive(Debug, Deserialize)]
pub(crate) struct Captured {
    pub(crate) text: String,
    pub(crate) total_bytes: u64,
    pub(crate) truncated: bool,
}
