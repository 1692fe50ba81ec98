//! Servers on the wire: one flat record.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Reason;
use crate::body::{given, given_object, given_word};
use crate::input::limit;

/// Where a server runs, by its transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// A child process that speaks over its standard input and output.
    #[default]
    Stdio,
    /// HTTP+SSE of MCP 2024-11-05.
    Sse,
    /// Streamable HTTP.
    StreamableHttp,
}

/// How caliber signs in at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AuthType {
    /// Not at all.
    None,
    /// A bearer token.
    Token,
    /// A user and a password.
    Basic,
    /// Headers of the server's own.
    Custom,
}

/// Who sees a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Visibility {
    /// Its owner and the admins.
    User,
    /// Everybody with a scope in its project.
    Project,
    /// Everybody with a scope anywhere.
    Public,
}

/// Who may meet in one session of a server that keeps sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sharing {
    /// Each caller has its own.
    PerCaller,
    /// All callers share one.
    Shared,
}

/// How a server stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// It takes calls.
    Active,
    /// It takes calls, and its last check or discovery failed.
    Error,
    /// An admin switched it off.
    Disabled,
}

/// What an admin can make of a server. `error` is found, not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StatusInput {
    /// It takes calls.
    Active,
    /// It takes none.
    Disabled,
}

/// Bounds of a server's calls, where they differ from the settings of the installation. They are set whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct LimitsInput {
    /// The longest call, in milliseconds.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 3_600_000)]
    pub(crate) timeout_ms: Option<u64>,
    /// The most calls at once.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 1_024)]
    pub(crate) concurrency: Option<u32>,
    /// The largest result, in bytes.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, minimum = 1, maximum = 67_108_864)]
    pub(crate) result_bytes: Option<u64>,
}

/// Credentials, by `auth_type`: `token` takes `token`; `basic` takes `username` and `password`; `custom` takes
/// `headers`; `none` takes nothing. Values that look like `env://NAME`, `${NAME}` or `file:///path` are
/// references; others are stored encrypted and never shown again.
#[derive(Clone, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct AuthConfigInput {
    /// The bearer token.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, write_only)]
    pub(crate) token: Option<String>,
    /// The user; not secret.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 256)]
    pub(crate) username: Option<String>,
    /// The password.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, write_only)]
    pub(crate) password: Option<String>,
    /// The headers.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) headers: Option<BTreeMap<String, String>>,
}

/// A server to be registered or checked.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "name": "weather", "transport": "streamable-http", "uri": "https://weather.example.com/mcp", "auth_type": "token", "auth_config": { "token": "env://WEATHER_TOKEN" } }))]
pub(crate) struct ServerInput {
    /// Its name, unique in the installation; it cannot be changed later. `code` is taken.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9-]{0,47}$")]
    pub(crate) name: String,
    /// Who sees it; `project` when it is not given. A check does not look at it.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) visibility: Option<Visibility>,
    /// For people.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 2_048)]
    pub(crate) description: Option<String>,
    /// For people.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 64)]
    pub(crate) icon: Option<String>,
    /// Where it runs; `stdio` when it is not given.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) transport: Option<Transport>,
    /// The URL of a remote server.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 1_024)]
    pub(crate) uri: Option<String>,
    /// The executable of a stdio server: an absolute path, a bare name, or `${PYTHON}`.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 1_024)]
    pub(crate) command: Option<String>,
    /// Its arguments. No shell reads them.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_items = 64)]
    pub(crate) args: Option<Vec<String>>,
    /// The environment of a stdio server. Values are credentials: shown only when they are references.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// Headers of every request to a remote server. Values are credentials.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) headers: Option<BTreeMap<String, String>>,
    /// How caliber signs in: `none`, `token`, `basic` or `custom`; `none` when it is not given.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, value_type = Option<AuthType>)]
    pub(crate) auth_type: Option<String>,
    /// The credentials.
    #[serde(default, deserialize_with = "given_object")]
    #[schema(nullable = false)]
    pub(crate) auth_config: Option<AuthConfigInput>,
    /// Who may meet in a session; `per_caller` when it is not given.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) sharing: Option<Sharing>,
    /// Bounds of its calls.
    #[serde(default, deserialize_with = "given_object")]
    #[schema(nullable = false)]
    pub(crate) limits: Option<LimitsInput>,
}

/// A change of a server: at least one field; a field that is not given stays. A value of `env`, `headers` or
/// `auth_config` that is sent back as it was shown (`__caliber_write_only__`) stays too.
#[derive(Clone, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "description": "Forecasts", "limits": { "timeout_ms": 5000 } }))]
pub(crate) struct ServerPatchInput {
    /// For people.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 2_048)]
    pub(crate) description: Option<String>,
    /// For people.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 64)]
    pub(crate) icon: Option<String>,
    /// Where it runs.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) transport: Option<Transport>,
    /// The URL of a remote server.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 1_024)]
    pub(crate) uri: Option<String>,
    /// The executable of a stdio server.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_length = 1_024)]
    pub(crate) command: Option<String>,
    /// Its arguments, whole.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, max_items = 64)]
    pub(crate) args: Option<Vec<String>>,
    /// Its environment, whole.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// The headers, whole.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) headers: Option<BTreeMap<String, String>>,
    /// How caliber signs in: `none`, `token`, `basic` or `custom`.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, value_type = Option<AuthType>)]
    pub(crate) auth_type: Option<String>,
    /// The credentials, whole.
    #[serde(default, deserialize_with = "given_object")]
    #[schema(nullable = false)]
    pub(crate) auth_config: Option<AuthConfigInput>,
    /// Who may meet in a session.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) sharing: Option<Sharing>,
    /// Bounds of its calls, whole.
    #[serde(default, deserialize_with = "given_object")]
    #[schema(nullable = false)]
    pub(crate) limits: Option<LimitsInput>,
    /// The owner.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false, min_length = 1, max_length = 256)]
    pub(crate) owner: Option<String>,
    /// Who sees it.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) visibility: Option<Visibility>,
    /// Whether it takes calls.
    #[serde(default, deserialize_with = "given_word")]
    #[schema(nullable = false)]
    pub(crate) status: Option<StatusInput>,
}

/// A removed server to be registered again.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({ "audit_id": "aud_00000000000000000000000000000000", "secrets": { "auth_config.token": "the token again" } }))]
pub(crate) struct RestoreInput {
    /// The audit entry of its removal (`delete_mcp_server`).
    #[schema(pattern = "^aud_[0-9a-f]{32}$")]
    pub(crate) audit_id: String,
    /// Each stored secret again, by the path of its field, such as `auth_config.token` or `env.API_KEY`.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub(crate) secrets: Option<BTreeMap<String, String>>,
}

/// Which servers.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
#[into_params(parameter_in = Query)]
pub(crate) struct ServerFilter {
    /// How they stand.
    #[param(nullable = false, inline)]
    pub(crate) status: Option<StatusFilter>,
    /// Their transport.
    #[param(nullable = false, inline)]
    pub(crate) transport: Option<Transport>,
    /// A text in the name, the description, or the URL or command.
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

/// How servers stand, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StatusFilter {
    /// They take calls, and their last check or discovery went well, if there was one.
    Active,
    /// They take calls, and their last check or discovery failed.
    Error,
    /// An admin switched them off.
    Disabled,
    /// All of them.
    All,
}

/// A registered server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Server {
    /// Its identifier.
    pub(crate) server_id: String,
    /// Counts the changes of the definition and the status; the entity tag.
    pub(crate) revision: u64,
    /// Its name.
    pub(crate) name: String,
    /// For people.
    pub(crate) description: String,
    /// For people.
    pub(crate) icon: String,
    /// Where it runs.
    pub(crate) transport: Transport,
    /// The URL of a remote server, or empty.
    pub(crate) uri: String,
    /// The executable of a stdio server, or empty.
    pub(crate) command: String,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Its environment. Stored secrets are shown as `__caliber_write_only__`, references as they are.
    pub(crate) env: BTreeMap<String, String>,
    /// The headers of a remote server, likewise.
    pub(crate) headers: BTreeMap<String, String>,
    /// How caliber signs in.
    pub(crate) auth_type: AuthType,
    /// The credentials, likewise.
    pub(crate) auth_config: AuthConfig,
    /// Who may meet in a session.
    pub(crate) sharing: Sharing,
    /// Bounds of its calls, where they differ from the settings of the installation.
    pub(crate) limits: Limits,
    /// Who registered it.
    pub(crate) owner: String,
    /// Who sees it.
    pub(crate) visibility: Visibility,
    /// The project that it belongs to.
    pub(crate) project_id: String,
    /// How it stands.
    pub(crate) status: Status,
    /// The last check or live discovery that went well.
    pub(crate) last_connected_at: Option<DateTime<Utc>>,
    /// Why the last check or discovery failed, if it did.
    pub(crate) connection_error: Option<String>,
    /// Whether it may be started or dialled, and how well it is isolated.
    pub(crate) execution: Execution,
    /// How its sessions do in the process that answers.
    pub(crate) health: Health,
    /// Tools in its inventory.
    pub(crate) tool_count: u32,
    /// When the inventory was made.
    pub(crate) discovered_at: Option<DateTime<Utc>>,
    /// When it was registered.
    pub(crate) created_at: DateTime<Utc>,
    /// When the record last changed.
    pub(crate) updated_at: DateTime<Utc>,
}

/// Credentials as they are shown.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct AuthConfig {
    /// The bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) token: Option<String>,
    /// The user.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) username: Option<String>,
    /// The password.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) password: Option<String>,
    /// The headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) headers: Option<BTreeMap<String, String>>,
}

/// Bounds as they are shown: those that are set.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Limits {
    /// The longest call, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) timeout_ms: Option<u64>,
    /// The most calls at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) concurrency: Option<u32>,
    /// The largest result, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) result_bytes: Option<u64>,
}

/// Whether a server may be started or dialled, and how well it is isolated.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Execution {
    /// Whether calls can reach it: nothing stands against it, and it takes part.
    pub(crate) ready: bool,
    /// Whether nothing stands against starting or dialling it.
    pub(crate) transport_ready: bool,
    /// Whether it takes part.
    pub(crate) status_ready: bool,
    /// How it is isolated.
    pub(crate) boundary: &'static str,
    /// Whether a production deployment may rely on that.
    pub(crate) production_isolated: bool,
    /// What is in force by the settings and the definition.
    pub(crate) controls: Vec<&'static str>,
    /// Everything that is enforced: `controls`, and what is done to a child process on this machine.
    pub(crate) enforced: Vec<String>,
    /// What the operator attests and caliber cannot see.
    pub(crate) attested: Vec<String>,
    /// What such a boundary could have and this one has not, some with why behind `: `.
    pub(crate) absent: Vec<String>,
    /// What stands against it.
    pub(crate) blockers: Vec<Reason>,
    /// What an operator should know.
    pub(crate) warnings: Vec<Reason>,
}

/// How a server's sessions do in the process that answers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// Open sessions.
    pub(crate) sessions: u32,
    /// Calls under way.
    pub(crate) calls: u32,
    /// Whether no call is let through just now, because too many failed.
    pub(crate) breaker_open: bool,
    /// The end of what its process wrote to standard error; for admins.
    pub(crate) stderr_tail: Option<String>,
    /// Messages that were dropped because they were no messages.
    pub(crate) dropped_messages: u64,
}

/// A server in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ServerSummary {
    /// Its identifier.
    pub(crate) server_id: String,
    /// Counts the changes of the definition and the status.
    pub(crate) revision: u64,
    /// Its name.
    pub(crate) name: String,
    /// For people.
    pub(crate) description: String,
    /// For people.
    pub(crate) icon: String,
    /// Where it runs.
    pub(crate) transport: String,
    /// The URL of a remote server, or empty.
    pub(crate) uri: String,
    /// The executable of a stdio server, or empty.
    pub(crate) command: String,
    /// Who registered it.
    pub(crate) owner: String,
    /// Who sees it.
    pub(crate) visibility: Visibility,
    /// The project that it belongs to.
    pub(crate) project_id: String,
    /// How it stands.
    pub(crate) status: Status,
    /// The last check or live discovery that went well.
    pub(crate) last_connected_at: Option<DateTime<Utc>>,
    /// Why the last check or discovery failed, if it did.
    pub(crate) connection_error: Option<String>,
    /// Tools in its inventory.
    pub(crate) tool_count: u32,
    /// When it was registered.
    pub(crate) created_at: DateTime<Utc>,
    /// When the record last changed.
    pub(crate) updated_at: DateTime<Utc>,
}

/// What came of a check.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Check {
    /// The server; null for a definition that is not registered.
    pub(crate) server_id: Option<String>,
    /// Whether the server was reached and listed its tools.
    pub(crate) success: bool,
    /// Why not.
    pub(crate) error: Option<String>,
    /// Why not, for programs.
    pub(crate) reason_code: Option<String>,
    /// The names of its tools, as it wrote them.
    pub(crate) tools: Vec<String>,
    /// The protocol revision that was spoken.
    pub(crate) protocol_version: Option<String>,
    /// What the server says about itself; untrusted.
    #[schema(value_type = Option<Object>)]
    pub(crate) server_info: Option<caliber_core::json::JsonText>,
    /// How long it took, in milliseconds.
    pub(crate) duration_ms: Option<f64>,
}
