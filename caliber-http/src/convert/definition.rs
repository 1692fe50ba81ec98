//! What admins write about servers: flat on the wire; an endpoint, a sign-in and bounds in the core.

use std::collections::BTreeMap;

use caliber_core::reason::ReasonCode;
use caliber_core::secret::ConfigValue;
use caliber_core::server::{
    self as core, Auth, Endpoint, RemoteEndpoint, ServerDefinition, ServerLimits, ServerStatus, StdioEndpoint,
};
use caliber_core::{Error, FieldProblem, Result, ServerPatch, ServerRegistration};

use super::servers::transport;
use crate::wire::servers::{
    AuthConfigInput, LimitsInput, ServerInput, ServerPatchInput, Sharing, StatusInput, Transport, Visibility,
};

type Values = BTreeMap<String, ConfigValue>;

/// The wrong fields so far, and a code when one of them has its own.
#[derive(Default)]
struct Problems {
    fields: Vec<FieldProblem>,
    reason: Option<ReasonCode>,
}

impl Problems {
    fn add(&mut self, field: &str, problem: impl Into<String>) {
        self.fields.push(FieldProblem {
            field: field.to_owned(),
            problem: problem.into(),
        });
    }

    /// The value, unless it is an error; then its fields are kept, each with the first thing that is wrong.
    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        for problem in error.fields() {
            if self.fields.iter().all(|known| known.field != problem.field) {
                self.fields.push(problem.clone());
            }
        }
        None
    }

    fn finish<T>(self, value: Option<T>) -> Result<T> {
        match value {
            Some(value) if self.fields.is_empty() => Ok(value),
            _ => {
                let error = Error::invalid_fields(self.fields);
                Err(match self.reason {
                    Some(reason) => error.with_reason(reason),
                    None => error,
                })
            }
        }
    }
}

/// What an admin wrote about a server that is not registered yet.
pub(crate) fn definition(input: ServerInput) -> Result<ServerRegistration> {
    let mut problems = Problems::default();
    let name = problems.keep(input.name.parse());
    let place = Place {
        transport: input.transport.unwrap_or_default(),
        uri: input.uri.unwrap_or_default(),
        command: input.command.unwrap_or_default(),
        args: input.args.unwrap_or_default(),
        env: values(input.env.unwrap_or_default()),
        headers: values(input.headers.unwrap_or_default()),
    };
    let endpoint = place.endpoint(&mut problems);
    let auth_type = input.auth_type.as_deref().unwrap_or("none");
    let auth = auth(auth_type, input.auth_config.unwrap_or_default(), &mut problems);
    let registration = name.map(|name| ServerRegistration {
        definition: ServerDefinition {
            name,
            description: input.description.unwrap_or_default(),
            icon: input.icon.unwrap_or_default(),
            endpoint,
            auth,
            sharing: input.sharing.map_or_else(core::Sharing::default, Into::into),
            limits: input.limits.map_or_else(ServerLimits::default, Into::into),
        },
        visibility: input
            .visibility
            .map_or_else(core::Visibility::default, Into::into),
    });
    if let Some(registration) = &registration {
        problems.keep(registration.definition.validate());
        for (field, value) in registration.definition.config_values() {
            if matches!(value, ConfigValue::Unchanged) {
                problems.add(&field, "nothing is stored at this place yet; give the value");
            }
        }
    }
    problems.finish(registration)
}

/// A change of `before`. What is not given of the endpoint or the sign-in stays, values by the place where they
/// are stored: that a secret does not follow a server to another origin is for the core to see.
pub(crate) fn patch(input: ServerPatchInput, before: &ServerDefinition) -> Result<ServerPatch> {
    let mut problems = Problems::default();
    let patch = ServerPatch {
        endpoint: new_endpoint(&input, &before.endpoint, &mut problems),
        auth: new_auth(
            input.auth_type.as_deref(),
            input.auth_config,
            &before.auth,
            &mut problems,
        ),
        description: input.description,
        icon: input.icon,
        sharing: input.sharing.map(Into::into),
        limits: input.limits.map(Into::into),
        owner: input.owner.and_then(|owner| {
            let parsed = owner.parse().map_err(|error| renamed(&error, "owner"));
            problems.keep(parsed)
        }),
        visibility: input.visibility.map(Into::into),
        status: input.status.map(|status| match status {
            StatusInput::Active => ServerStatus::Active,
            StatusInput::Disabled => ServerStatus::Disabled,
        }),
        expect: None,
    };
    problems.finish(Some(patch))
}

/// The same problem under the name that the field has here.
fn renamed(error: &Error, field: &str) -> Error {
    let problem = error
        .fields()
        .first()
        .map_or(error.message(), |field| &field.problem);
    Error::invalid(field, problem)
}

/// An endpoint with all fields side by side.
struct Place {
    transport: Transport,
    uri: String,
    command: String,
    args: Vec<String>,
    env: Values,
    headers: Values,
}

impl Place {
    /// The fields of `endpoint`, every value as "what is stored there".
    fn of(endpoint: &Endpoint) -> Self {
        let unchanged = |values: &Values| {
            values
                .keys()
                .map(|key| (key.clone(), ConfigValue::Unchanged))
                .collect()
        };
        let mut place = Self {
            transport: transport(endpoint),
            uri: String::new(),
            command: String::new(),
            args: Vec::new(),
            env: Values::new(),
            headers: Values::new(),
        };
        match endpoint {
            Endpoint::Stdio(stdio) => {
                place.command.clone_from(&stdio.command);
                place.args.clone_from(&stdio.args);
                place.env = unchanged(&stdio.env);
            }
            Endpoint::StreamableHttp(remote) | Endpoint::Sse(remote) => {
                place.uri.clone_from(&remote.url);
                place.headers = unchanged(&remote.headers);
            }
            _ => {}
        }
        place
    }

    fn endpoint(self, problems: &mut Problems) -> Endpoint {
        let mut unused = |field: &str, empty: bool, kind: &str| {
            if !empty {
                problems.add(field, format!("a {kind} server has none; leave it out"));
            }
        };
        match self.transport {
            Transport::Stdio => {
                unused("uri", self.uri.is_empty(), "stdio");
                unused("headers", self.headers.is_empty(), "stdio");
                Endpoint::Stdio(StdioEndpoint {
                    command: self.command,
                    args: self.args,
                    env: self.env,
                })
            }
            Transport::StreamableHttp | Transport::Sse => {
                unused("command", self.command.is_empty(), "remote");
                unused("args", self.args.is_empty(), "remote");
                unused("env", self.env.is_empty(), "remote");
                let remote = RemoteEndpoint {
                    url: self.uri,
                    headers: self.headers,
                };
                match self.transport {
                    Transport::Sse => Endpoint::Sse(remote),
                    _ => Endpoint::StreamableHttp(remote),
                }
            }
        }
    }
}

fn new_endpoint(input: &ServerPatchInput, before: &Endpoint, problems: &mut Problems) -> Option<Endpoint> {
    let given = input.transport.is_some()
        || input.uri.is_some()
        || input.command.is_some()
        || input.args.is_some()
        || input.env.is_some()
        || input.headers.is_some();
    if !given {
        return None;
    }
    let mut place = Place::of(before);
    if let Some(after) = input.transport {
        // Between a process and a URL nothing can stay.
        if (after == Transport::Stdio) != (place.transport == Transport::Stdio) {
            place.uri.clear();
            place.command.clear();
            place.args.clear();
            place.env.clear();
            place.headers.clear();
        }
        place.transport = after;
    }
    let replace = |place: &mut String, value: &Option<String>| {
        if let Some(value) = value {
            place.clone_from(value);
        }
    };
    replace(&mut place.uri, &input.uri);
    replace(&mut place.command, &input.command);
    if let Some(args) = &input.args {
        place.args.clone_from(args);
    }
    if let Some(env) = &input.env {
        place.env = values(env.clone());
    }
    if let Some(headers) = &input.headers {
        place.headers = values(headers.clone());
    }
    Some(place.endpoint(problems))
}

fn new_auth(
    auth_type: Option<&str>,
    config: Option<AuthConfigInput>,
    before: &Auth,
    problems: &mut Problems,
) -> Option<Auth> {
    match (auth_type, config) {
        (None, None) => None,
        (Some(same), None) if same == before.kind() => None,
        (auth_type, config) => {
            let auth_type = auth_type.unwrap_or(before.kind());
            Some(auth(auth_type, config.unwrap_or_default(), problems))
        }
    }
}

fn auth(auth_type: &str, config: AuthConfigInput, problems: &mut Problems) -> Auth {
    let given = [
        ("token", config.token.is_some()),
        ("username", config.username.is_some()),
        ("password", config.password.is_some()),
        ("headers", config.headers.is_some()),
    ];
    let wanted: &[&str] = match auth_type {
        "none" => &[],
        "token" => &["token"],
        "basic" => &["username", "password"],
        "custom" => &["headers"],
        "oauth" => {
            problems.reason = Some(ReasonCode::OauthUnsupported);
            problems.add(
                "auth_type",
                "caliber does no OAuth; terminate it in a proxy that you run, and give that proxy's address here",
            );
            return Auth::None;
        }
        _ => {
            problems.add("auth_type", "use none, token, basic or custom");
            return Auth::None;
        }
    };
    for (field, given) in given {
        let path = format!("auth_config.{field}");
        match (wanted.contains(&field), given) {
            (true, false) => problems.add(&path, format!("it is required for auth_type {auth_type}")),
            (false, true) => problems.add(&path, format!("auth_type {auth_type} has none; leave it out")),
            _ => {}
        }
    }
    let value = |text: Option<String>| ConfigValue::from_input(&text.unwrap_or_default());
    match auth_type {
        "token" => Auth::Token {
            token: value(config.token),
        },
        "basic" => Auth::Basic {
            username: config.username.unwrap_or_default(),
            password: value(config.password),
        },
        "custom" => Auth::Custom {
            headers: values(config.headers.unwrap_or_default()),
        },
        _ => Auth::None,
    }
}

fn values(texts: BTreeMap<String, String>) -> Values {
    texts
        .into_iter()
        .map(|(key, text)| (key, ConfigValue::from_input(&text)))
        .collect()
}

impl From<LimitsInput> for ServerLimits {
    fn from(input: LimitsInput) -> Self {
        Self {
            timeout_ms: input.timeout_ms,
            concurrency: input.concurrency,
            result_bytes: input.result_bytes,
        }
    }
}

impl From<Sharing> for core::Sharing {
    fn from(sharing: Sharing) -> Self {
        match sharing {
            Sharing::PerCaller => Self::PerCaller,
            Sharing::Shared => Self::Shared,
        }
    }
}

impl From<Visibility> for core::Visibility {
    fn from(visibility: Visibility) -> Self {
        match visibility {
            Visibility::User => Self::User,
            Visibility::Project => Self::Project,
            Visibility::Public => Self::Public,
        }
    }
}
