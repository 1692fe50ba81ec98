//! `caliber invocations`: the ledger of calls, each with how it ended.

use clap::Subcommand;

use super::backend::{Backend, Needs, value};
use super::context::Context;
use super::failure::{Failure, Outcome};
use super::output::{cell, long, time};
use super::servers::{find, path};
use super::{segment, view};

/// Read the ledger of calls.
#[derive(Debug, Subcommand)]
pub(crate) enum Invocations {
    /// List the calls of a server's tools, or the runs of a code tool, newest first, each with how it ended
    List {
        /// The server, by its name or identifier, or the version of a code tool, by its identifier
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
            let path = match server.parse::<caliber::core::id::CodeToolId>() {
                Ok(_) => format!("/tools/{}/invocations", segment(&server)),
                Err(_) => path(&find(backend, &server).await?, "/invocations"),
            };
            let items = backend.list(&path, &[], Some(lines as usize)).await?;
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

fn milliseconds(duration: Option<f64>) -> String {
    duration.map_or_else(String::new, |duration| format!("{duration:.1} ms"))
}
