//! Servers as they are shown: one flat record, secrets masked.

use std::collections::BTreeMap;

use caliber_core::ServerView;
use caliber_core::gateway::{CheckReport, ServerHealth};
use caliber_core::id::ServerId;
use caliber_core::readiness::{BoundaryReport, Readiness};
use caliber_core::registry::ServerQuery;
use caliber_core::secret::{ConfigValue, WRITE_ONLY};
use caliber_core::server::{self as core, Auth, Endpoint, ServerRecord, ServerStatus};

use super::{milliseconds, reason};
use crate::problem::Problem;
use crate::wire::servers::{
    AuthConfig, AuthType, Check, Execution, Health, Limits, Server, ServerFilter, ServerSummary, Sharing,
    Status, StatusFilter, Transport, Visibility,
};

/// Which servers a list shows.
pub(crate) fn server_query(filter: &ServerFilter) -> ServerQuery {
    let (status, failing) = match filter.status {
        None | Some(StatusFilter::All) => (None, None),
        Some(StatusFilter::Active) => (Some(ServerStatus::Active), Some(false)),
        Some(StatusFilter::Error) => (Some(ServerStatus::Active), Some(true)),
        Some(StatusFilter::Disabled) => (Some(ServerStatus::Disabled), None),
    };
    ServerQuery {
        viewer: None,
        status,
        failing,
        transport: filter.transport.map(|transport| match transport {
            Transport::Stdio => "stdio".to_owned(),
            Transport::Sse => "sse".to_owned(),
            Transport::StreamableHttp => "streamable-http".to_owned(),
        }),
        text: filter.search.clone().filter(|text| !text.is_empty()),
    }
}

/// A server with everything an operator looks at, secrets masked.
pub(crate) fn server(view: ServerView) -> Server {
    let ServerView {
        record,
        readiness,
        boundary,
        inventory,
        health,
    } = view;
    let status = status(record.status, record.connection_error.as_deref());
    let execution = execution(readiness, boundary, record.status);
    let ServerRecord { definition, .. } = record;
    let definition = definition.masked();
    let transport = transport(&definition.endpoint);
    let auth_type = auth_type(&definition.auth);
    let (uri, command, args, env, headers) = match definition.endpoint {
        Endpoint::Stdio(stdio) => (
            String::new(),
            stdio.command,
            stdio.args,
            shown_values(stdio.env),
            BTreeMap::new(),
        ),
        Endpoint::StreamableHttp(remote) | Endpoint::Sse(remote) => (
            remote.url,
            String::new(),
            Vec::new(),
            BTreeMap::new(),
            shown_values(remote.headers),
        ),
        _ => <_>::default(),
    };
    Server {
        server_id: record.id.to_string(),
        revision: record.revision.0,
        name: definition.name.to_string(),
        description: definition.description,
        icon: definition.icon,
        transport,
        uri,
        command,
        args,
        env,
        headers,
        auth_type,
        auth_config: auth_config(definition.auth),
        sharing: match definition.sharing {
            core::Sharing::PerCaller => Sharing::PerCaller,
            core::Sharing::Shared => Sharing::Shared,
        },
        limits: Limits {
            timeout_ms: definition.limits.timeout_ms,
            concurrency: definition.limits.concurrency,
            result_bytes: definition.limits.result_bytes,
        },
        owner: record.owner.to_string(),
        visibility: record.visibility.into(),
        project_id: record.project.to_string(),
        status,
        last_connected_at: record.last_connected_at,
        connection_error: record.connection_error,
        execution,
        health: server_health(health),
        tool_count: inventory.as_ref().map_or(0, |inventory| inventory.tool_count),
        discovered_at: inventory.map(|inventory| inventory.discovered_at),
        created_at: record.created_at,
        updated_at: record.updated_at,
    }
}

/// A server in a list.
pub(crate) fn summary(summary: core::ServerSummary) -> ServerSummary {
    let status = status(summary.status, summary.connection_error.as_deref());
    let (uri, command) = if summary.transport == "stdio" {
        (String::new(), summary.location)
    } else {
        (summary.location, String::new())
    };
    ServerSummary {
        server_id: summary.id.to_string(),
        revision: summary.revision.0,
        name: summary.name.to_string(),
        description: summary.description,
        icon: summary.icon,
        transport: summary.transport,
        uri,
        command,
        owner: summary.owner.to_string(),
        visibility: summary.visibility.into(),
        project_id: summary.project.to_string(),
        status,
        last_connected_at: summary.last_connected_at,
        connection_error: summary.connection_error,
        tool_count: summary.tool_count,
        created_at: summary.created_at,
        updated_at: summary.updated_at,
    }
}

fn status(status: ServerStatus, connection_error: Option<&str>) -> Status {
    match (status, connection_error) {
        (ServerStatus::Disabled, _) => Status::Disabled,
        (ServerStatus::Active, Some(_)) => Status::Error,
        (ServerStatus::Active, None) => Status::Active,
    }
}

fn execution(readiness: Readiness, boundary: BoundaryReport, status: ServerStatus) -> Execution {
    let transport_ready = readiness.is_ready();
    let status_ready = status == ServerStatus::Active;
    Execution {
        ready: transport_ready && status_ready,
        transport_ready,
        status_ready,
        boundary: boundary.boundary.as_str(),
        production_isolated: boundary.production_isolated,
        controls: readiness
            .controls
            .iter()
            .map(|control| control.as_str())
            .collect(),
        enforced: boundary.enforced,
        attested: boundary.attested,
        absent: boundary.absent,
        blockers: readiness.blockers.into_iter().map(reason).collect(),
        warnings: readiness.warnings.into_iter().map(reason).collect(),
    }
}

fn server_health(health: ServerHealth) -> Health {
    Health {
        sessions: health.sessions,
        calls: health.calls,
        breaker_open: health.breaker_open,
        stderr_tail: health.stderr_tail,
        dropped_messages: health.dropped_messages,
    }
}

pub(super) fn transport(endpoint: &Endpoint) -> Transport {
    match endpoint {
        Endpoint::Sse(_) => Transport::Sse,
        Endpoint::StreamableHttp(_) => Transport::StreamableHttp,
        _ => Transport::Stdio,
    }
}

fn auth_type(auth: &Auth) -> AuthType {
    match auth {
        Auth::Token { .. } => AuthType::Token,
        Auth::Basic { .. } => AuthType::Basic,
        Auth::Custom { .. } => AuthType::Custom,
        _ => AuthType::None,
    }
}

fn auth_config(auth: Auth) -> AuthConfig {
    match auth {
        Auth::Token { token } => AuthConfig {
            token: Some(shown_value(&token)),
            ..AuthConfig::default()
        },
        Auth::Basic { username, password } => AuthConfig {
            username: Some(username),
            password: Some(shown_value(&password)),
            ..AuthConfig::default()
        },
        Auth::Custom { headers } => AuthConfig {
            headers: Some(shown_values(headers)),
            ..AuthConfig::default()
        },
        _ => AuthConfig::default(),
    }
}

/// A reference as it is; everything else as the sign that stands for it.
fn shown_value(value: &ConfigValue) -> String {
    value
        .reference()
        .map_or_else(|| WRITE_ONLY.to_owned(), ToString::to_string)
}

fn shown_values(values: BTreeMap<String, ConfigValue>) -> BTreeMap<String, String> {
    values
        .into_iter()
        .map(|(key, value)| (key, shown_value(&value)))
        .collect()
}

/// A check that reached the server.
pub(crate) fn good_check(server: Option<&ServerId>, report: CheckReport) -> Check {
    Check {
        server_id: server.map(ToString::to_string),
        success: true,
        error: None,
        reason_code: None,
        tools: report.tools,
        protocol_version: Some(report.protocol_version),
        server_info: report.server_info,
        duration_ms: Some(milliseconds(report.duration_us)),
    }
}

/// A check that did not, for a reason that an operator has to see.
pub(crate) fn failed_check(server: Option<&ServerId>, problem: &Problem) -> Check {
    Check {
        server_id: server.map(ToString::to_string),
        success: false,
        error: Some(problem.detail().to_owned()),
        reason_code: Some(problem.reason().to_owned()),
        tools: Vec::new(),
        protocol_version: None,
        server_info: None,
        duration_ms: None,
    }
}

impl From<core::Visibility> for Visibility {
    fn from(visibility: core::Visibility) -> Self {
        match visibility {
            core::Visibility::User => Self::User,
            core::Visibility::Project => Self::Project,
            core::Visibility::Public => Self::Public,
        }
    }
}
