//! `caliber invocations`: the ledger of calls, each with how it ended.

use caliber::core::id::CodeToolId;
use clap::Subcommand;
use serde_json::value::RawValue;

use super::backend::{Backend, Needs, value};
use super::context::Context;
use super::failure::{Exit, Failure, Outcome};
use super::output::{cell, long, time};
use super::servers::{find, path};
use super::{segment, view};

/// Read the ledger of calls.
#[derive(Debug, Subcommand)]
pub(crate) enum Invocations {
    /// List the calls of a server's tools, or the runs of a code tool, newest first, each with how it ended
    List {
        /// The server, or the code tool: by its name, or by the identifier of a server or a version
        #[arg(value_name = "SERVER|TOOL")]
        server: String,
        /// Calls at most
        #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        lines: u32,
    },
    /// Show one call
    Show {
        /// The call (inv_…), as failures, results and the audit trail name it
        invocation: String,
    },
}

pub(crate) async fn run(context: &Context, command: Invocations) -> Outcome {
    Backend::with(context, Needs::DATABASE, async |backend| {
        act(backend, context, command).await
    })
    .await
}

async fn act(backend: &Backend, context: &Context, command: Invocations) -> Outcome {
    let output = context.output();
    match command {
        Invocations::List { server, lines } => {
            let items = calls(backend, &server, lines as usize).await?;
            if output.json {
                return output.document(&items);
            }
            let rows = items.iter().map(|raw| {
                let call: view::Invocation = value(raw)?;
                Ok::<_, Failure>(vec![
                    time(Some(&call.started_at)),
                    cell(&call.subject),
                    cell(&call.tool()),
                    cell(call.outcome.as_deref().unwrap_or("under way")),
                    cell(call.reason_code.as_deref().unwrap_or_default()),
                    milliseconds(call.duration_ms),
                    cell(&call.invocation_id),
                ])
            });
            let rows = rows.collect::<Outcome<Vec<_>>>()?;
            let headers = ["STARTED", "WHO", "TOOL", "OUTCOME", "REASON", "TOOK", "CALL"];
            output.table(&headers, rows, "nobody has called it")
        }
        Invocations::Show { invocation } => {
            let raw = backend
                .get(&format!("/invocations/{}", segment(&invocation)))
                .await?;
            if output.json {
                return output.document(&raw);
            }
            let call: view::Invocation = value(&raw)?;
            let maybe = |text: Option<String>| long(text.as_deref().unwrap_or_default());
            output.pairs(&[
                ("call", long(&call.invocation_id)),
                ("started", time(Some(&call.started_at))),
                ("who", long(&call.subject)),
                ("surface", long(&call.surface)),
                ("server", long(call.server_name.as_deref().unwrap_or_default())),
                ("tool", long(&call.tool())),
                ("content", maybe(call.content_hash)),
                ("descriptor", maybe(call.descriptor_digest)),
                ("level", maybe(call.side_effect_level)),
                ("arguments", long(&call.argument_digest)),
                ("approval", maybe(call.approval_id)),
                ("break glass", maybe(call.break_glass)),
                (
                    "outcome",
                    call.outcome
                        .map_or_else(|| "under way".to_owned(), |outcome| long(&outcome)),
                ),
                ("reason", maybe(call.reason_code)),
                ("detail", maybe(call.detail)),
                ("ended", time(call.ended_at.as_deref())),
                ("took", milliseconds(call.duration_ms)),
                (
                    "result",
                    call.result_bytes
                        .map_or_else(String::new, |bytes| format!("{bytes} bytes")),
                ),
            ])
        }
    }
}

/// The calls of what is named so: a version, a server, or else all versions of a code tool.
async fn calls(backend: &Backend, name: &str, lines: usize) -> Outcome<Vec<Box<RawValue>>> {
    if name.parse::<CodeToolId>().is_ok() {
        return runs(backend, name, lines).await;
    }
    let absent = match find(backend, name).await {
        Ok(server) => {
            return backend
                .list(&path(&server, "/invocations"), &[], Some(lines))
                .await;
        }
        Err(failure) if failure.exit == Exit::NotFound => failure,
        Err(failure) => return Err(failure),
    };
    let query = [("status", "all"), ("name", name)];
    let versions = backend.list("/tools", &query, None).await?;
    if versions.is_empty() {
        return Err(absent.with_hint(
            "it is no code tool either: `caliber servers list` and `caliber tools list` show what there is",
        ));
    }
    let mut all = Vec::new();
    for raw in &versions {
        let version: view::CodeTool = value(raw)?;
        for run in runs(backend, &version.tool_id, lines).await? {
            let started = value::<view::Invocation>(&run)?.started_at;
            all.push((started, run));
        }
    }
    // Times are RFC 3339 in UTC: their order is that of their text up to fractions.
    all.sort_by(|one, other| other.0.cmp(&one.0));
    Ok(all.into_iter().take(lines).map(|(_, run)| run).collect())
}

async fn runs(backend: &Backend, version: &str, lines: usize) -> Outcome<Vec<Box<RawValue>>> {
    let path = format!("/tools/{}/invocations", segment(version));
    backend.list(&path, &[], Some(lines)).await
}

fn milliseconds(duration: Option<f64>) -> String {
    duration.map_or_else(String::new, |duration| format!("{duration:.1} ms"))
}
