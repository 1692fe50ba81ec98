//! Code tools on the wire: one flat record for each version.

use std::collections::BTreeMap;

use caliber_core::json::JsonText;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::Reason;
use super::servers::Visibility;
use super::tools::Level;
use crate::body::{given, given_object, given_word};
use crate::input::limit;

/// What runs a code tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Runtime {
    /// A callable of a Python module.
    #[default]
    Python,
    /// An executable file.
    Native,
}

/// How a native executable is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protocol {
    /// The frames of the sandbox on descriptor 3.
    Framed,
    /// One JSON value on standard input, one on standard output.
    Json,
}

/// Which way of running a tool asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Preference {
    /// The fastest one that keeps calls apart.
    Isolated,
    /// A new interpreter for each call.
    Cold,
    /// One process for many calls: nothing keeps them apart, and every outcome says so.
    Persistent,
}

/// Whether a version may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CodeToolStatus {
    /// It is used.
    Active,
    /// It still runs, and resolves where no active version fits.
    Deprecated,
    /// It neither resolves nor runs.
    Archived,
}

/// Which versions a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CodeToolStatusFilter {
    /// Those that are used.
    Active,
    /// Those that are deprecated.
    Deprecated,
    /// Those that are archived.
    Archived,
    /// All.
    All,
}

/// Bounds of a run; what is not given has the setting of the installation.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
pub(crate) struct RunLimitsInput {
    /// The longest run, in milliseconds.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 3_600_000)]
    pub(crate) timeout_ms: Option<u64>,
    /// The memory of one process, in bytes.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, minimum = 33_554_432, maximum = 17_179_869_184_u64)]
    pub(crate) memory_bytes: Option<u64>,
    /// The most processes and threads.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 4_096)]
    pub(crate) processes: Option<u32>,
    /// The size of the scratch folder, in bytes.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, maximum = 17_179_869_184_u64)]
    pub(crate) scratch_bytes: Option<u64>,
    /// The largest result, in bytes.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 67_108_864)]
    pub(crate) result_bytes: Option<u64>,
}

/// A version of a code tool to be registered.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({
    "name": "weekly-report", "version": "1.0.0", "module_path": "reports.weekly", "callable_name": "build",
    "source_roots": ["/srv/tools/reports"], "side_effect_level": "read"
}))]
pub(crate) struct CodeToolInput {
    /// The name that all versions share.
    #[schema(pattern = "^[A-Za-z0-9_.-]{1,128}$")]
    pub(crate) name: String,
    /// Which version it is (SemVer).
    #[schema(min_length = 1, max_length = 64)]
    pub(crate) version: String,
    /// For people and models.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 2_048)]
    pub(crate) description: Option<String>,
    /// What runs it; `python` when it is not given.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) runtime: Option<Runtime>,
    /// The dotted path of a Python tool's module.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 512)]
    pub(crate) module_path: Option<String>,
    /// The name of the callable in it.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 128)]
    pub(crate) callable_name: Option<String>,
    /// The folders with its source, absolute paths; copied when it is registered.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_items = 64)]
    pub(crate) source_roots: Option<Vec<String>>,
    /// Folders with installed packages, absolute paths; shown to the tool read-only.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_items = 64)]
    pub(crate) package_roots: Option<Vec<String>>,
    /// The executable of a native tool, an absolute path; copied when it is registered.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 1_024)]
    pub(crate) executable: Option<String>,
    /// Its arguments.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_items = 64)]
    pub(crate) args: Option<Vec<String>>,
    /// How it is spoken to; `json` when it is not given.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) protocol: Option<Protocol>,
    /// The schema of the arguments; without one, every object fits.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, value_type = Option<Object>)]
    pub(crate) input_schema: Option<Box<RawValue>>,
    /// The schema of the value; without one, every value fits.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, value_type = Option<Object>)]
    pub(crate) output_schema: Option<Box<RawValue>>,
    /// How far a run reaches, in your judgement; `read` when it is not given.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) side_effect_level: Option<Level>,
    /// Whether each run needs a person's consent.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) requires_approval: Option<bool>,
    /// Why a `write` or `external_action` tool needs no approval.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, min_length = 1, max_length = 1_000)]
    pub(crate) approval_waiver: Option<String>,
    /// Whether a preview of a workflow may run it.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) allow_in_preview: Option<bool>,
    /// The secrets that a run gets, by the name that the tool knows each under: references, or values, which are stored
    /// encrypted and never shown.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) secret_refs: Option<BTreeMap<String, String>>,
    /// Bounds of a run.
    #[serde(default, deserialize_with = "given_object")]
    #[schema(nullable = false)]
    pub(crate) limits: Option<RunLimitsInput>,
    /// Which way of running it asks for.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) preference: Option<Preference>,
    /// Runs a minute at most.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 100_000)]
    pub(crate) rate_limit_per_minute: Option<u32>,
    /// Who sees it; `project` when it is not given.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) visibility: Option<Visibility>,
}

/// A change of a version; what is not given stays. What decides its behaviour never changes: register another version.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
#[schema(example = json!({ "status": "deprecated" }))]
pub(crate) struct CodeToolPatchInput {
    /// For people and models.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, max_length = 2_048)]
    pub(crate) description: Option<String>,
    /// Who answers for it.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, min_length = 1, max_length = 256)]
    pub(crate) owner: Option<String>,
    /// Whether it may be used.
    #[serde(deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) status: Option<CodeToolStatus>,
    /// What should be used in its place; empty takes it away.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, pattern = "^(ctl_[0-9a-f]{32})?$")]
    pub(crate) successor_tool_id: Option<String>,
    /// Who sees it.
    #[serde(deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) visibility: Option<Visibility>,
}

/// A run that somebody wants to make.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
#[schema(example = json!({ "input": { "week": 12 } }))]
pub(crate) struct RunInput {
    /// The arguments; an empty object when they are not given.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, value_type = Option<Object>)]
    pub(crate) input: Option<Box<RawValue>>,
    /// The consent to spend, when the tool needs one.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, pattern = "^apr_[0-9a-f]{32}$")]
    pub(crate) approval_id: Option<String>,
    /// Why an admin goes past approval. It is written into the audit trail.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, min_length = 1, max_length = 1_000)]
    pub(crate) break_glass: Option<String>,
    /// A shorter time than the tool or the installation allow, in milliseconds.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 3_600_000)]
    pub(crate) timeout_ms: Option<u64>,
    /// What you looked at: `content_hash` of the version. A run of anything else is refused.
    #[serde(deserialize_with = "given")]
    #[schema(nullable = false, pattern = "^sha256:[0-9a-f]{64}$")]
    pub(crate) content_hash: Option<String>,
}

/// A version in a list: no program, no schemas, no secrets.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CodeToolSummary {
    /// Its identifier.
    pub(crate) tool_id: String,
    /// Counts the changes.
    pub(crate) revision: u64,
    /// The name that all versions share.
    pub(crate) name: String,
    /// Which version it is.
    pub(crate) version: String,
    /// How a manifest names it: `tool.NAME.vMAJOR`.
    pub(crate) registry_ref: String,
    /// For people and models.
    pub(crate) description: String,
    /// What runs it.
    pub(crate) runtime: String,
    /// How far a run reaches.
    pub(crate) side_effect_level: Level,
    /// Whether each run needs a person's consent.
    pub(crate) requires_approval: bool,
    /// Whether a preview may run it.
    pub(crate) allow_in_preview: bool,
    /// Names the behaviour.
    pub(crate) content_hash: String,
    /// Whether it may be used.
    pub(crate) status: CodeToolStatus,
    /// When it was deprecated, while it is not active.
    pub(crate) deprecated_at: Option<DateTime<Utc>>,
    /// What should be used in its place.
    pub(crate) successor_tool_id: Option<String>,
    /// Who answers for it.
    pub(crate) owner: String,
    /// The project that it belongs to.
    pub(crate) project_id: String,
    /// Who sees it.
    pub(crate) visibility: Visibility,
    /// When it was registered.
    pub(crate) created_at: DateTime<Utc>,
    /// When the record last changed.
    pub(crate) updated_at: DateTime<Utc>,
}

/// A version with everything an operator looks at, secrets masked.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CodeTool {
    /// What a list shows of it.
    #[serde(flatten)]
    pub(crate) summary: CodeToolSummary,
    /// The module of a Python tool.
    pub(crate) module_path: Option<String>,
    /// The callable in it.
    pub(crate) callable_name: Option<String>,
    /// The folders that its source was copied from.
    pub(crate) source_roots: Vec<String>,
    /// Folders with installed packages.
    pub(crate) package_roots: Vec<String>,
    /// The executable of a native tool.
    pub(crate) executable: Option<String>,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// How it is spoken to.
    pub(crate) protocol: Option<Protocol>,
    /// The schema of the arguments.
    #[schema(value_type = Option<Object>)]
    pub(crate) input_schema: Option<JsonText>,
    /// The schema of the value.
    #[schema(value_type = Option<Object>)]
    pub(crate) output_schema: Option<JsonText>,
    /// Why it needs no approval, where it otherwise would.
    pub(crate) approval_waiver: Option<String>,
    /// The secrets that a run gets: references as they are, stored ones masked.
    pub(crate) secret_refs: BTreeMap<String, String>,
    /// Bounds of a run; null has the setting of the installation.
    pub(crate) limits: RunLimits,
    /// Which way of running it asks for.
    pub(crate) preference: Preference,
    /// Runs a minute at most.
    pub(crate) rate_limit_per_minute: Option<u32>,
    /// The digest of the source that runs.
    pub(crate) source_digest: String,
    /// The digest of what it runs on.
    pub(crate) environment_digest: String,
    /// How far it has come: `draft`, `has_fixtures`, `tested`, `hardened` or `published`. Only what was executed here
    /// on the content as it is counts.
    pub(crate) lifecycle: &'static str,
}

/// Bounds as they are shown.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunLimits {
    /// The longest run, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
    /// The memory of one process, in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// The most processes and threads.
    pub(crate) processes: Option<u32>,
    /// The size of the scratch folder, in bytes.
    pub(crate) scratch_bytes: Option<u64>,
    /// The largest result, in bytes.
    pub(crate) result_bytes: Option<u64>,
}

/// The version that a reference stands for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResolvedCodeTool {
    /// The version.
    pub(crate) tool: CodeToolSummary,
    /// What whoever uses it should know: that it is deprecated, and what to use instead.
    pub(crate) warning: Option<Reason>,
}

/// What a look at a version showed. Untrusted text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CodeToolSource {
    /// The version.
    pub(crate) tool_id: String,
    /// The module of a Python tool.
    pub(crate) module_path: Option<String>,
    /// The callable in it.
    pub(crate) callable_name: Option<String>,
    /// Whether the source could be read.
    pub(crate) available: bool,
    /// The callable with its signature.
    pub(crate) signature: String,
    /// Its documentation.
    pub(crate) doc: String,
    /// Its source.
    pub(crate) source: String,
    /// Whether the source was cut at the limit.
    pub(crate) truncated: bool,
    /// Why something is missing.
    pub(crate) error: Option<String>,
}

/// Where a version is used.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CodeToolUsage {
    /// The version.
    pub(crate) tool_id: String,
    /// The name that all versions share.
    pub(crate) name: String,
    /// The active deployments that need it. Workflows do not record theirs yet, so there are none.
    pub(crate) usage: Vec<Deployment>,
}

/// A deployment that needs a version.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deployment {
    /// The workflow.
    pub(crate) workflow: String,
    /// The alias that points at it.
    pub(crate) alias: String,
    /// Whether only the rollback stack needs it.
    pub(crate) rollback_only: bool,
}

/// A run that has ended, however it did: what the tool did wrong is here, and no error of the request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CodeToolRun {
    /// The version.
    pub(crate) tool_id: String,
    /// Whether it returned a value that fits the output schema.
    pub(crate) success: bool,
    /// The value; null without one.
    #[schema(value_type = serde_json::Value)]
    pub(crate) output: Option<JsonText>,
    /// Never: a run here is executed.
    pub(crate) mocked: bool,
    /// What went wrong, for people.
    pub(crate) error: Option<String>,
    /// The type of what the tool raised.
    pub(crate) error_type: Option<String>,
    /// How it ended: `ok`, `tool_error`, `no_result`, `deadline_exceeded`, `result_invalid`, `result_too_large`,
    /// `protocol_violation` or `resource_limit`.
    pub(crate) status: &'static str,
    /// What went wrong, for programs, unless it went well or the tool raised.
    pub(crate) reason_code: Option<&'static str>,
    /// How the process was made: `cold`, `zygote`, `spare`, `oneshot`, `persistent` or `native`.
    pub(crate) isolation: &'static str,
    /// The required guarantees that did not hold; empty unless the operator allows that.
    pub(crate) unenforced: Vec<&'static str>,
    /// What the tool wrote to standard output; untrusted.
    pub(crate) stdout: Captured,
    /// What the tool wrote to standard error; untrusted.
    pub(crate) stderr: Captured,
    /// From the request to the end, in milliseconds.
    pub(crate) duration_ms: f64,
    /// From the call to its answer, in milliseconds.
    pub(crate) run_ms: f64,
    /// The run in the ledger.
    pub(crate) invocation_id: String,
}

/// Captured output: the beginning and the end, where it was too long.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Captured {
    /// The text.
    pub(crate) text: String,
    /// How many bytes were written.
    pub(crate) total_bytes: u64,
    /// Whether the middle was left out.
    pub(crate) truncated: bool,
}

/// What the sandbox enforces.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Sandbox {
    /// Whether code tools may run.
    pub(crate) available: bool,
    /// The kind of sandbox: `linux`, `remote` or `none`.
    pub(crate) backend: String,
    /// The interpreter of Python tools, with its version.
    pub(crate) interpreter: Option<String>,
    /// Why no tool runs although nothing required is missing.
    pub(crate) problem: Option<String>,
    /// Whether the operator lets tools run although required guarantees are missing.
    pub(crate) unenforced_allowed: bool,
    /// What is required and does not hold whole.
    pub(crate) missing: Vec<&'static str>,
    /// Every promise with its state.
    pub(crate) guarantees: Vec<Guarantee>,
}

/// One promise of the sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Guarantee {
    /// Which, such as `net`.
    pub(crate) guarantee: &'static str,
    /// Whether nothing runs without it.
    pub(crate) required: bool,
    /// `enforced`, `partial` or `not_enforced`.
    pub(crate) state: &'static str,
    /// The means, such as `mount_namespace`.
    pub(crate) by: Vec<String>,
    /// What is left open.
    pub(crate) gaps: Vec<String>,
    /// The step that failed.
    pub(crate) stage: Option<String>,
    /// The system's error, where there was one.
    pub(crate) errno: Option<String>,
    /// What an operator can do about it.
    pub(crate) remedy: Option<String>,
}

/// Which versions a list shows, and which page.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
#[into_params(parameter_in = Query)]
pub(crate) struct CodeToolFilter {
    /// Whether they may be used; those that are used when it is not given.
    #[param(nullable = false, inline)]
    pub(crate) status: Option<CodeToolStatusFilter>,
    /// Who sees them.
    #[param(nullable = false, inline)]
    pub(crate) visibility: Option<Visibility>,
    /// Of this name.
    #[param(nullable = false)]
    pub(crate) name: Option<String>,
    /// With this text in the name or description.
    #[param(nullable = false)]
    pub(crate) search: Option<String>,
    /// Items at most; 50 when it is not given.
    #[serde(deserialize_with = "limit")]
    #[param(minimum = 1, maximum = 500, nullable = false)]
    pub(crate) limit: Option<u32>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// What is to be resolved.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[into_params(parameter_in = Query)]
pub(crate) struct ResolveQuery {
    /// `tool.NAME.vMAJOR`, or the name.
    #[param(min_length = 1)]
    pub(crate) reference: String,
    /// Which versions fit, such as `^1.2`, `>=1,<2` or `~=1.4`; every one when it is empty or `latest`.
    #[serde(default)]
    #[param(nullable = false, max_length = 256)]
    pub(crate) constraint: Option<String>,
}

/// A version of a code tool.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct CodeToolPath {
    /// The version.
    #[param(pattern = "^ctl_[0-9a-f]{32}$")]
    pub(crate) tool_id: String,
}
