//! Registered servers: where they run, how we sign in, who owns them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::digest::Fingerprint;
use crate::id::{ProjectId, ServerId};
use crate::principal::Subject;
use crate::registry::Revision;
use crate::secret::{ConfigValue, SecretReference};

mod name;
mod validation;

pub use name::{RESERVED_SERVER_NAME, SERVER_NAME_LENGTH, ServerName};
pub use validation::{is_environment_key, is_settable_header};

/// The longest description, in bytes.
pub const DESCRIPTION_LENGTH: usize = 2048;
/// The longest icon reference, in bytes.
pub const ICON_LENGTH: usize = 64;
/// The longest URL, command or single argument, in bytes.
pub const ENDPOINT_TEXT_LENGTH: usize = 1024;
/// The most arguments, environment values or headers of one server.
pub const ENDPOINT_ENTRIES: usize = 64;

/// A server as an admin wrote it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerDefinition {
    /// Its name; it cannot be changed later.
    pub name: ServerName,
    /// For people; at most [`DESCRIPTION_LENGTH`] bytes.
    #[serde(default)]
    pub description: String,
    /// For people; at most [`ICON_LENGTH`] bytes.
    #[serde(default)]
    pub icon: String,
    /// Where it runs.
    pub endpoint: Endpoint,
    /// How we sign in.
    #[serde(default)]
    pub auth: Auth,
    /// Who may meet in one session.
    #[serde(default)]
    pub sharing: Sharing,
    /// Bounds of its calls, where they differ from the settings of the installation.
    #[serde(default)]
    pub limits: ServerLimits,
}

/// Where a server runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "transport", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Endpoint {
    /// A child process that speaks over its standard input and output.
    Stdio(StdioEndpoint),
    /// The streamable HTTP transport (MCP 2025-03-26 and later).
    StreamableHttp(RemoteEndpoint),
    /// The HTTP+SSE transport of MCP 2024-11-05, deprecated there.
    Sse(RemoteEndpoint),
}

/// A child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StdioEndpoint {
    /// The executable: an absolute path, a bare name, or `${PYTHON}` for the configured interpreter.
    pub command: String,
    /// Its arguments. No shell reads them.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its environment, on top of a fixed minimal one.
    #[serde(default)]
    pub env: BTreeMap<String, ConfigValue>,
}

/// An HTTP endpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoteEndpoint {
    /// An absolute `http` or `https` URL without credentials.
    pub url: String,
    /// Headers of every request.
    #[serde(default)]
    pub headers: BTreeMap<String, ConfigValue>,
}

/// How we sign in at a remote server. A stdio server takes its credentials from its environment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Auth {
    /// Not at all.
    #[default]
    None,
    /// `Authorization: Bearer …`.
    Token {
        /// The token.
        token: ConfigValue,
    },
    /// `Authorization: Basic …`.
    Basic {
        /// The user, not secret.
        username: String,
        /// The password.
        password: ConfigValue,
    },
    /// Headers of the server's own, set over the general ones.
    Custom {
        /// The headers.
        headers: BTreeMap<String, ConfigValue>,
    },
}

impl Auth {
    /// The word for the kind, as on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Token { .. } => "token",
            Self::Basic { .. } => "basic",
            Self::Custom { .. } => "custom",
        }
    }
}

/// Who may meet in one session of a server that keeps sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Each caller has its own: no caller sees another's state.
    #[default]
    PerCaller,
    /// All callers share one: the operator says that the server keeps no state of a caller.
    Shared,
}

/// Bounds of a server's calls. `None` means the setting of the installation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerLimits {
    /// The longest call, in milliseconds, 1 to 3,600,000.
    pub timeout_ms: Option<u64>,
    /// The most calls at once, 1 to 1,024.
    pub concurrency: Option<u32>,
    /// The largest result, in bytes, 1 to 64 MiB.
    pub result_bytes: Option<u64>,
}

impl ServerLimits {
    /// The longest call as a duration.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }
}

impl Endpoint {
    /// The word for the transport, as on the wire.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Stdio(_) => "stdio",
            Self::StreamableHttp(_) => "streamable-http",
            Self::Sse(_) => "sse",
        }
    }

    /// The remote part, if it is remote.
    pub fn remote(&self) -> Option<&RemoteEndpoint> {
        match self {
            Self::Stdio(_) => None,
            Self::StreamableHttp(remote) | Self::Sse(remote) => Some(remote),
        }
    }

    /// What a secret is bound to: scheme, host and port, or the executable and its arguments. A secret that
    /// was given for one origin is not sent to another.
    pub fn origin(&self) -> String {
        match self {
            Self::Stdio(stdio) => {
                let mut origin = format!("stdio:{:?}", stdio.command);
                for argument in &stdio.args {
                    origin.push_str(&format!(" {argument:?}"));
                }
                origin
            }
            Self::StreamableHttp(remote) | Self::Sse(remote) => url::Url::parse(&remote.url)
                .map(|url| url.origin().ascii_serialization())
                .unwrap_or_else(|_| remote.url.clone()),
        }
    }
}

impl ServerDefinition {
    /// Where it runs, as a digest: transport, URL or executable, arguments, environment keys, authentication type.
    pub fn fingerprint(&self) -> Fingerprint {
        let place = match &self.endpoint {
            Endpoint::Stdio(stdio) => serde_json::json!({
                "command": stdio.command,
                "args": stdio.args,
                "env": stdio.env.keys().collect::<Vec<_>>(),
            }),
            Endpoint::StreamableHttp(remote) | Endpoint::Sse(remote) => serde_json::json!({
                "url": url::Url::parse(&remote.url).map_or_else(|_| remote.url.clone(), String::from),
            }),
        };
        let whole = serde_json::json!({
            "transport": self.endpoint.transport(),
            "place": place,
            "auth": self.auth.kind(),
        });
        // `serde_json` sorts the keys of `json!` objects, so equal places give equal text.
        Fingerprint::of(whole.to_string().as_bytes())
    }

    /// The same definition with [`ConfigValue::Unchanged`] in place of every stored secret: what surfaces show
    /// and what the audit trail keeps.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut masked = self.clone();
        for (_, value) in masked.config_values_mut() {
            if !matches!(
                value,
                ConfigValue::Reference(SecretReference::Environment(_) | SecretReference::File(_))
            ) {
                *value = ConfigValue::Unchanged;
            }
        }
        masked
    }

    /// Every value that may be secret, with the path of its field.
    pub fn config_values(&self) -> Vec<(String, &ConfigValue)> {
        let mut values: Vec<(String, &ConfigValue)> = Vec::new();
        match &self.endpoint {
            Endpoint::Stdio(stdio) => {
                values.extend(stdio.env.iter().map(|(key, value)| (format!("env.{key}"), value)))
            }
            Endpoint::StreamableHttp(remote) | Endpoint::Sse(remote) => {
                values.extend(
                    remote
                        .headers
                        .iter()
                        .map(|(key, value)| (format!("headers.{key}"), value)),
                );
            }
        }
        match &self.auth {
            Auth::None => {}
            Auth::Token { token } => values.push(("auth_config.token".into(), token)),
            Auth::Basic { password, .. } => values.push(("auth_config.password".into(), password)),
            Auth::Custom { headers } => {
                values.extend(
                    headers
                        .iter()
                        .map(|(key, value)| (format!("auth_config.headers.{key}"), value)),
                );
            }
        }
        values
    }

    /// Every value that may be secret, to be replaced.
    pub fn config_values_mut(&mut self) -> Vec<(String, &mut ConfigValue)> {
        let mut values: Vec<(String, &mut ConfigValue)> = Vec::new();
        match &mut self.endpoint {
            Endpoint::Stdio(stdio) => {
                values.extend(
                    stdio
                        .env
                        .iter_mut()
                        .map(|(key, value)| (format!("env.{key}"), value)),
                );
            }
            Endpoint::StreamableHttp(remote) | Endpoint::Sse(remote) => {
                values.extend(
                    remote
                        .headers
                        .iter_mut()
                        .map(|(key, value)| (format!("headers.{key}"), value)),
                );
            }
        }
        match &mut self.auth {
            Auth::None => {}
            Auth::Token { token } => values.push(("auth_config.token".into(), token)),
            Auth::Basic { password, .. } => values.push(("auth_config.password".into(), password)),
            Auth::Custom { headers } => {
                values.extend(
                    headers
                        .iter_mut()
                        .map(|(key, value)| (format!("auth_config.headers.{key}"), value)),
                );
            }
        }
        values
    }
}

/// Who sees a server. Seeing is not calling: that takes a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Its owner and the admins.
    User,
    /// Everybody with a scope in its project.
    #[default]
    Project,
    /// Everybody with a scope anywhere.
    Public,
}

/// Whether a server takes part. How its last connection went is told apart from it: a failed check does not
/// switch a server off, and a good one does not switch it on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerStatus {
    /// It takes calls.
    #[default]
    Active,
    /// An admin switched it off.
    Disabled,
}

/// A server as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Its identifier.
    pub id: ServerId,
    /// Counts the changes of the definition and the status.
    pub revision: Revision,
    /// What the admin wrote; literal secrets have become references.
    pub definition: ServerDefinition,
    /// Who registered it.
    pub owner: Subject,
    /// The project that it belongs to.
    pub project: ProjectId,
    /// Who sees it.
    pub visibility: Visibility,
    /// Whether it takes part.
    pub status: ServerStatus,
    /// The last check or live discovery that went well.
    pub last_connected_at: Option<Timestamp>,
    /// Why the last check or discovery failed, if it did; one line, no secret.
    pub connection_error: Option<String>,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When the record last changed.
    pub updated_at: Timestamp,
}

/// A server in a list: no arguments, no environment, no headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSummary {
    /// Its identifier.
    pub id: ServerId,
    /// Counts the changes of the definition and the status.
    pub revision: Revision,
    /// Its name.
    pub name: ServerName,
    /// For people.
    pub description: String,
    /// For people.
    pub icon: String,
    /// The transport, as on the wire.
    pub transport: String,
    /// The URL, or the command without its arguments.
    pub location: String,
    /// Who registered it.
    pub owner: Subject,
    /// The project that it belongs to.
    pub project: ProjectId,
    /// Who sees it.
    pub visibility: Visibility,
    /// Whether it takes part.
    pub status: ServerStatus,
    /// The last check or live discovery that went well.
    pub last_connected_at: Option<Timestamp>,
    /// Why the last check or discovery failed, if it did.
    pub connection_error: Option<String>,
    /// Tools in its inventory.
    pub tool_count: u32,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When the record last changed.
    pub updated_at: Timestamp,
}

impl ServerRecord {
    /// The view for lists; `tool_count` comes from the inventory.
    pub fn summary(&self, tool_count: u32) -> ServerSummary {
        let definition = &self.definition;
        ServerSummary {
            id: self.id.clone(),
            revision: self.revision,
            name: definition.name.clone(),
            description: definition.description.clone(),
            icon: definition.icon.clone(),
            transport: definition.endpoint.transport().to_owned(),
            location: match &definition.endpoint {
                Endpoint::Stdio(stdio) => stdio.command.clone(),
                Endpoint::StreamableHttp(remote) | Endpoint::Sse(remote) => remote.url.clone(),
            },
            owner: self.owner.clone(),
            project: self.project.clone(),
            visibility: self.visibility,
            status: self.status,
            last_connected_at: self.last_connected_at,
            connection_error: self.connection_error.clone(),
            tool_count,
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(url: &str) -> ServerDefinition {
        ServerDefinition {
            name: "weather".parse().unwrap(),
            description: String::new(),
            icon: String::new(),
            endpoint: Endpoint::StreamableHttp(RemoteEndpoint {
                url: url.into(),
                headers: BTreeMap::new(),
            }),
            auth: Auth::None,
            sharing: Sharing::PerCaller,
            limits: ServerLimits::default(),
        }
    }

    #[test]
    fn the_fingerprint_follows_the_place_and_not_the_prose() {
        let one = remote("https://example.com/mcp");
        let mut prose = one.clone();
        prose.description = "other".into();
        assert_eq!(one.fingerprint(), prose.fingerprint());
        assert_ne!(
            one.fingerprint(),
            remote("https://example.com/mcp2").fingerprint()
        );
        let mut auth = one.clone();
        auth.auth = Auth::Token {
            token: ConfigValue::from_input("env://TOKEN"),
        };
        assert_ne!(one.fingerprint(), auth.fingerprint());
    }
}
