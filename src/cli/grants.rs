//! `caliber grants`: who may call what.

use caliber::core::text::shown;
use clap::{ArgGroup, Subcommand};
use http::Method;

use super::backend::{Backend, Needs, value};
use super::context::Context;
use super::failure::{Exit, Failure, Outcome};
use super::output::{Output, cell};
use super::servers::find;
use super::tools::tool_path;
use super::view;

/// The scopes that somebody may hold.
pub(crate) const SCOPES: [&str; 4] = ["viewer", "operator", "approver", "admin"];

/// Say who may call what.
#[derive(Debug, Subcommand)]
pub(crate) enum Grants {
    /// Let somebody call a server's tools, which must also be classified and allowed, or run a code tool
    #[command(group(ArgGroup::new("grantee").required(true).args(["subject", "scope"])))]
    #[command(group(ArgGroup::new("granted").required(true).args(["server", "family"])))]
    Add {
        /// The server, by its name or identifier
        server: Option<String>,
        /// A code tool in place of a server, by its name: every version of it
        #[arg(long = "code-tool", value_name = "NAME")]
        family: Option<String>,
        /// One tool of the server; all of them when none is named
        #[arg(long, value_name = "TOOL", requires = "server")]
        tool: Option<String>,
        /// One person or program
        #[arg(long, value_name = "SUBJECT")]
        subject: Option<String>,
        /// Everybody who holds this scope in the project
        #[arg(long, value_name = "SCOPE", value_parser = SCOPES)]
        scope: Option<String>,
    },
    /// List the grants of the project
    List,
    /// Take a grant back
    Remove {
        /// The grant, by its identifier
        grant: String,
    },
}

pub(crate) async fn run(context: &Context, command: Grants) -> Outcome {
    Backend::with(context, Needs::DATABASE, async |backend| {
        act(backend, context, command).await
    })
    .await
}

async fn act(backend: &Backend, context: &Context, command: Grants) -> Outcome {
    let output = context.output();
    match command {
        Grants::Add {
            server,
            family,
            tool,
            subject,
            scope,
        } => {
            let mut body = serde_json::json!({});
            let mut server_id = None;
            if let Some(server) = &server {
                let server = find(backend, server).await?;
                if let Some(tool) = &tool {
                    warn_of_absent(backend, output, &server, tool).await?;
                }
                server_id = Some(server.server_id);
            }
            for (field, value) in [
                ("server_id", server_id),
                ("family", family),
                ("tool_name", tool),
                ("subject", subject),
                ("scope", scope),
            ] {
                if let (Some(value), Some(body)) = (value, body.as_object_mut()) {
                    body.insert(field.to_owned(), value.into());
                }
            }
            let raw = backend.send(Method::POST, "/grants", Some(&body)).await?;
            if output.json {
                output.document(&raw)?;
            } else {
                let grant: view::Grant = value(&raw)?;
                output.line(format_args!("granted: {}", grant.grant_id))?;
            }
        }
        Grants::List => {
            let items = backend.list("/grants", &[], None).await?;
            if output.json {
                output.document(&items)?;
            } else {
                let names = names(backend).await?;
                let rows = items.iter().map(|raw| {
                    let grant: view::Grant = value(raw)?;
                    let who = grant
                        .subject
                        .or_else(|| grant.scope.map(|scope| format!("everybody with {scope}")));
                    let server = match &grant.server_id {
                        Some(id) => names.get(id).unwrap_or(id).clone(),
                        None => "code".to_owned(),
                    };
                    let tool = grant.tool_name.or(grant.family);
                    Ok::<_, Failure>(vec![
                        cell(&grant.grant_id),
                        cell(&who.unwrap_or_default()),
                        cell(&server),
                        cell(tool.as_deref().unwrap_or("all")),
                        cell(&grant.project_id),
                        cell(&grant.created_by),
                    ])
                });
                let rows = rows.collect::<Outcome<Vec<_>>>()?;
                output.table(
                    &["GRANT", "WHO", "SERVER", "TOOL", "PROJECT", "GIVEN BY"],
                    rows,
                    "there are no grants",
                )?;
            }
        }
        Grants::Remove { grant } => {
            let path = format!("/grants/{}", super::segment(&grant));
            let raw = backend.send(Method::DELETE, &path, None::<&()>).await?;
            if output.json {
                output.document(&raw)?;
            } else {
                output.line("the grant is gone")?;
            }
        }
    }
    Ok(())
}

/// A grant may come before its tool; more often its name is a slip.
async fn warn_of_absent(
    backend: &Backend,
    output: Output,
    server: &view::ServerSummary,
    tool: &str,
) -> Outcome {
    match backend.get(&tool_path(server, tool, "")).await {
        Err(failure) if failure.exit == Exit::NotFound => {
            let (tool, name) = (shown(tool), cell(&server.name));
            output.note(&format!(
                "warning: {tool} is not among the tools that {name} offered at its last discovery; the grant holds once it is"
            ));
            Ok(())
        }
        other => other.map(|_| ()),
    }
}

/// The names of the servers by their identifiers.
pub(crate) async fn names(backend: &Backend) -> Outcome<std::collections::BTreeMap<String, String>> {
    let servers = backend.list("/mcp-servers", &[], None).await?;
    let pairs = servers.iter().map(|raw| {
        let server: view::ServerSummary = value(raw)?;
        Ok((server.server_id, server.name))
    });
    pairs.collect()
}
