//! `caliber servers`: registering, looking at, checking, discovering and removing MCP servers.

mod add;
mod edit;
mod fields;
mod import;
mod launch;

use clap::Subcommand;
use http::{Method, StatusCode};
use serde_json::value::RawValue;

use super::backend::{Backend, Needs, exit_of, value};
use super::confirm::confirm;
use super::context::{Context, for_shell};
use super::failure::{Exit, Failure, Outcome, hint};
use super::input::keyed;
use super::output::{Output, cell, long, time, with_progress};
use super::{segment, view};

pub(crate) use launch::explained;

/// How many servers of a list are asked whether they are ready.
const READINESS_ROWS: usize = 50;

/// Register, look at, check, discover and remove MCP servers.
#[derive(Debug, Subcommand)]
pub(crate) enum Servers {
    /// Register a server; its tools stay closed until they are discovered and classified
    Add(Box<add::Add>),
    /// Register the servers of a desktop client's settings (`mcpServers`)
    Import(import::Import),
    /// Change a server
    Edit(Box<edit::Edit>),
    /// List the servers
    List {
        /// Those that stand so
        #[arg(long, value_name = "STATUS", default_value = "all", value_parser = ["active", "error", "disabled", "all"])]
        status: String,
        /// Those with this text in their name, description, URL or command
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
    },
    /// Show one server: where it runs, whether it may, how it does
    Show {
        /// The server, by its name or identifier
        server: String,
    },
    /// Open a connection once, list the tools and close it
    Check {
        /// The server, by its name or identifier
        server: String,
    },
    /// List the tools and make them the inventory; nothing becomes callable by it
    Discover {
        /// The server, by its name or identifier
        server: String,
    },
    /// Let a server take calls again
    Enable {
        /// The server, by its name or identifier
        server: String,
    },
    /// Let a server take no calls
    Disable {
        /// The server, by its name or identifier
        server: String,
    },
    /// Remove a server with its inventory, classifications, grants and secrets
    Remove {
        /// The server, by its name or identifier
        server: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Register a removed server again, from the audit entry of its removal
    Restore {
        /// The audit entry (aud_…) of its removal; `caliber audit tail --action delete_mcp_server` shows them
        entry: String,
        /// A stored secret again, by its place, such as auth_config.token=@FILE; may be repeated
        #[arg(long, value_name = "PLACE=VALUE")]
        secret: Vec<String>,
    },
}

pub(crate) async fn run(context: &Context, command: Servers) -> Outcome {
    let needs = match &command {
        Servers::Add(_) | Servers::Import(_) => Needs::DATABASE.or_make(),
        _ => Needs::DATABASE,
    };
    Backend::with(context, needs, async |backend| {
        act(backend, context, command).await
    })
    .await
}

async fn act(backend: &Backend, context: &Context, command: Servers) -> Outcome {
    let output = context.output();
    match command {
        Servers::Add(add) => {
            let body = add.body()?;
            let raw = backend.send(Method::POST, "/mcp-servers", Some(&body)).await?;
            show_registered(context, &raw)
        }
        Servers::Edit(edit) => {
            let server = find(backend, &edit.server).await?;
            let path = path(&server, "");
            let body = edit.body(value(&backend.get(&path).await?)?)?;
            let raw = backend.send(Method::PATCH, &path, Some(&body)).await?;
            show_changed(output, &raw)
        }
        Servers::Import(import) => import::run(backend, output, &import).await,
        Servers::List { status, search } => list(backend, output, &status, search.as_deref()).await,
        Servers::Show { server } => {
            let server = find(backend, &server).await?;
            let raw = backend.get(&path(&server, "")).await?;
            show(output, &raw)
        }
        Servers::Check { server } => check(backend, output, &server).await,
        Servers::Discover { server } => discover(backend, context, &server).await,
        Servers::Enable { server } => set_status(backend, output, &server, "active").await,
        Servers::Disable { server } => set_status(backend, output, &server, "disabled").await,
        Servers::Remove { server, yes } => remove(backend, context, &server, yes).await,
        Servers::Restore { entry, secret } => {
            let secrets = keyed("--secret", &secret)?;
            let body = serde_json::json!({ "audit_id": entry, "secrets": secrets });
            let raw = backend
                .send(Method::POST, "/mcp-servers/restore", Some(&body))
                .await?;
            show_registered(context, &raw)
        }
    }
}

/// The server with this identifier or, otherwise, this name.
pub(crate) async fn find(backend: &Backend, text: &str) -> Outcome<view::ServerSummary> {
    if text.parse::<caliber::core::id::ServerId>().is_ok() {
        return value(&backend.get(&format!("/mcp-servers/{}", segment(text))).await?);
    }
    for raw in backend.list("/mcp-servers", &[("search", text)], None).await? {
        let server: view::ServerSummary = value(&raw)?;
        if server.name == text {
            return Ok(server);
        }
    }
    let failure = Failure::new(
        Exit::NotFound,
        format!("there is no server {}", caliber::core::text::shown(text)),
    );
    Err(failure
        .with_reason("not_found")
        .with_hint("`caliber servers list` shows the servers that you may see"))
}

/// The path of a server, and of what stands under it.
pub(crate) fn path(server: &view::ServerSummary, rest: &str) -> String {
    format!("/mcp-servers/{}{rest}", segment(&server.server_id))
}

fn show_registered(context: &Context, raw: &RawValue) -> Outcome {
    let output = context.output();
    if output.json {
        return output.document(&raw);
    }
    let server: view::Server = value(raw)?;
    output.line(format_args!(
        "registered: {} ({})",
        cell(&server.name),
        cell(&server.server_id)
    ))?;
    show_reasons(output, &server)?;
    if !server.execution.ready {
        return Ok(());
    }
    let next = context.command(&format!("servers discover {}", cell(&server.name)));
    output.line(format_args!("next: {next}"))
}

fn show_changed(output: Output, raw: &RawValue) -> Outcome {
    if output.json {
        return output.document(&raw);
    }
    let server: view::Server = value(raw)?;
    output.line(format_args!(
        "changed: {} (revision {})",
        cell(&server.name),
        server.revision
    ))?;
    show_reasons(output, &server)
}

/// What stands against a server, what would allow it, and what an operator should know.
fn show_reasons(output: Output, server: &view::Server) -> Outcome {
    reasons(server).iter().try_for_each(|line| output.line(line))
}

/// The same, one line each, for people.
fn reasons(server: &view::Server) -> Vec<String> {
    let mut lines = Vec::new();
    for blocker in &server.execution.blockers {
        lines.push(format!(
            "not ready: {} ({})",
            long(&blocker.text),
            cell(&blocker.code)
        ));
        lines.extend(launch::line(&blocker.code, server).map(|line| format!("  {line}")));
    }
    for warning in &server.execution.warnings {
        lines.push(format!(
            "warning: {} ({})",
            long(&warning.text),
            cell(&warning.code)
        ));
    }
    lines
}

async fn list(backend: &Backend, output: Output, status: &str, search: Option<&str>) -> Outcome {
    let mut query = vec![("status", status)];
    query.extend(search.map(|text| ("search", text)));
    let items = backend.list("/mcp-servers", &query, None).await?;
    if output.json {
        return output.document(&items);
    }
    let servers: Vec<view::ServerSummary> = items.iter().map(|raw| value(raw)).collect::<Outcome<_>>()?;
    let ready = readiness(backend, &servers).await?;
    let rows = servers.iter().enumerate().map(|(position, server)| {
        let place = if server.uri.is_empty() {
            &server.command
        } else {
            &server.uri
        };
        vec![
            cell(&server.name),
            cell(&server.status),
            ready
                .get(position)
                .map_or("?", |ready| if *ready { "yes" } else { "no" })
                .to_owned(),
            cell(&server.transport),
            server.tool_count.to_string(),
            time(server.last_connected_at.as_deref()),
            cell(place),
            cell(&server.server_id),
        ]
    });
    let headers = [
        "NAME",
        "STATUS",
        "READY",
        "TRANSPORT",
        "TOOLS",
        "CONNECTED",
        "WHERE",
        "ID",
    ];
    output.table(
        &headers,
        rows.collect(),
        "there are no servers; `caliber servers add` registers one",
    )
}

/// Whether each of the first servers may be started or dialled, asked for all at once: a host that does not resolve
/// takes its time.
async fn readiness(backend: &Backend, servers: &[view::ServerSummary]) -> Outcome<Vec<bool>> {
    let asked = servers.iter().take(READINESS_ROWS).map(async |server| {
        let raw = backend.get(&path(server, "")).await?;
        Ok::<_, Failure>(value::<view::Server>(&raw)?.execution.ready)
    });
    futures::future::try_join_all(asked).await
}

fn show(output: Output, raw: &RawValue) -> Outcome {
    if output.json {
        return output.document(&raw);
    }
    let server: view::Server = value(raw)?;
    let secrets = |values: &std::collections::BTreeMap<String, String>| {
        let pairs: Vec<_> = values
            .iter()
            .map(|(key, value)| format!("{key}={}", masked(value)))
            .collect();
        long(&pairs.join(" "))
    };
    let args: Vec<_> = server
        .args
        .iter()
        .map(|argument| format!("{argument:?}"))
        .collect();
    let execution = &server.execution;
    output.pairs(&[
        ("name", long(&server.name)),
        ("id", long(&server.server_id)),
        ("revision", server.revision.to_string()),
        ("description", long(&server.description)),
        ("status", long(&server.status)),
        ("transport", long(&server.transport)),
        ("url", long(&server.uri)),
        ("command", long(&server.command)),
        ("arguments", long(&args.join(" "))),
        ("environment", secrets(&server.env)),
        ("headers", secrets(&server.headers)),
        ("signs in by", long(&server.auth_type)),
        ("sessions", long(&server.sharing)),
        ("owner", long(&server.owner)),
        ("visible to", long(&server.visibility)),
        ("project", long(&server.project_id)),
        ("ready", if execution.ready { "yes" } else { "no" }.to_owned()),
        ("boundary", long(&execution.boundary)),
        (
            "production",
            if execution.production_isolated {
                "isolated"
            } else {
                "not isolated"
            }
            .to_owned(),
        ),
        ("enforced", long(&execution.enforced.join(", "))),
        ("attested", long(&execution.attested.join("; "))),
        ("not there", long(&execution.absent.join(", "))),
        ("connected", time(server.last_connected_at.as_deref())),
        (
            "last error",
            long(server.connection_error.as_deref().unwrap_or_default()),
        ),
        ("tools", server.tool_count.to_string()),
        ("discovered", time(server.discovered_at.as_deref())),
        (
            "open now",
            format!(
                "{} sessions, {} calls",
                server.health.sessions, server.health.calls
            ),
        ),
        (
            "breaker",
            if server.health.breaker_open { "open" } else { "" }.to_owned(),
        ),
        (
            "its log",
            long(server.health.stderr_tail.as_deref().unwrap_or_default()),
        ),
    ])?;
    show_reasons(output, &server)
}

/// A value that may be secret: the API never shows one, and a reference is none.
fn masked(value: &str) -> &str {
    if value == caliber::core::secret::WRITE_ONLY {
        "(stored)"
    } else {
        value
    }
}

async fn check(backend: &Backend, output: Output, server: &str) -> Outcome {
    let server = find(backend, server).await?;
    let path = path(&server, "/test-connection");
    let what = format!("checking {}", server.name);
    let raw = with_progress(&what, backend.send(Method::POST, &path, None::<&()>)).await?;
    let checked: view::Check = value(&raw)?;
    if !checked.success && output.json {
        output.document(&raw)?;
    }
    let check = launch::explained(backend, &server, outcome(checked)).await?;
    if output.json {
        return output.document(&raw);
    }
    output.line(format_args!(
        "{} answers with protocol {} in {:.0} ms and offers {} tools",
        cell(&server.name),
        cell(check.protocol_version.as_deref().unwrap_or("unknown")),
        check.duration_ms.unwrap_or_default(),
        check.tools.len(),
    ))?;
    check
        .tools
        .iter()
        .try_for_each(|tool| output.line(format_args!("  {}", cell(tool))))
}

/// A check that did not reach the server is a failure here.
fn outcome(check: view::Check) -> Outcome<view::Check> {
    if check.success {
        return Ok(check);
    }
    let reason = check
        .reason_code
        .as_deref()
        .and_then(|code| serde_json::from_value(code.into()).ok());
    let exit = exit_of(StatusCode::BAD_GATEWAY, reason);
    let mut failure = Failure::new(exit, check.error.unwrap_or_else(|| "the check failed".to_owned()));
    failure.reason_code = check.reason_code.map(Into::into);
    failure.hint = hint(exit, reason, None);
    Err(failure)
}

async fn discover(backend: &Backend, context: &Context, server: &str) -> Outcome {
    let output = context.output();
    let server = find(backend, server).await?;
    let path = path(&server, "/discover-tools");
    let what = format!("discovering {}", server.name);
    let sent = with_progress(&what, backend.send(Method::POST, &path, None::<&()>)).await;
    let raw = launch::explained(backend, &server, sent).await?;
    if output.json {
        return output.document(&raw);
    }
    let found: view::Discovery = value(&raw)?;
    let (name, protocol) = (cell(&server.name), cell(&found.protocol_version));
    output.line(format_args!(
        "{name} offers {} tools (protocol {protocol})",
        found.tool_count
    ))?;
    for (what, tools) in [
        ("new", &found.added),
        ("gone", &found.removed),
        ("changed since it was classified", &found.drifted),
    ] {
        for tool in tools {
            output.line(format_args!("  {what}: {}", cell(tool)))?;
        }
    }
    for tool in &found.withheld {
        output.line(format_args!(
            "  withheld: {}: {}",
            cell(&tool.name),
            long(&tool.reason)
        ))?;
    }
    let Some(tool) = found.added.first() else {
        return Ok(());
    };
    let next = context.command(&format!(
        "tools classify {name} {} --level read --allow",
        for_shell(tool)
    ));
    output.line(format_args!(
        "next, for each tool: {next}\n  it shows the tool and asks; --level write or external_action, or --deny, where \
         that is what the tool is"
    ))
}

async fn set_status(backend: &Backend, output: Output, server: &str, status: &str) -> Outcome {
    let server = find(backend, server).await?;
    let body = serde_json::json!({ "status": status });
    let raw = backend
        .send(Method::PATCH, &path(&server, ""), Some(&body))
        .await?;
    if output.json {
        return output.document(&raw);
    }
    output.line(format_args!("{} is {status}", cell(&server.name)))
}

async fn remove(backend: &Backend, context: &Context, server: &str, yes: bool) -> Outcome {
    let output = context.output();
    let server = find(backend, server).await?;
    let name = cell(&server.name);
    confirm(
        yes,
        &format!("remove {name} with its inventory, classifications, grants and secrets?"),
    )?;
    backend
        .send(Method::DELETE, &path(&server, ""), None::<&()>)
        .await?;
    let query = [
        ("entity_id", server.server_id.as_str()),
        ("action", "delete_mcp_server"),
    ];
    let entries = backend.list("/audit", &query, Some(1)).await?;
    if output.json {
        return output
            .document(&serde_json::json!({ "server_id": server.server_id, "audit": entries.first() }));
    }
    output.line(format_args!("{name} is gone"))?;
    let Some(entry) = entries.first() else {
        return Ok(());
    };
    let entry: view::AuditEntry = value(entry)?;
    let again = context.command(&format!("servers restore {}", cell(&entry.audit_id)));
    output.line(format_args!("to register it again: {again}"))
}
