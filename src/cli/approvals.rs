//! `caliber approvals`: consent to calls that need it.

use clap::Subcommand;
use http::Method;

use super::backend::{Backend, Needs, value};
use super::context::Context;
use super::failure::{Failure, Outcome};
use super::grants::names;
use super::output::{cell, long, time};
use super::view;

/// Consent to calls that need it.
#[derive(Debug, Subcommand)]
pub(crate) enum Approvals {
    /// List the requests for consent that wait for a decision
    List {
        /// Those that are decided or spent too
        #[arg(long)]
        all: bool,
    },
    /// Show one request, with the arguments of the call
    Show {
        /// The request, by its identifier
        approval: String,
    },
    /// Consent to a call, once, for exactly these arguments; nobody decides about their own call
    Approve {
        /// The request, by its identifier
        approval: String,
        /// Why
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
    /// Refuse a call
    Refuse {
        /// The request, by its identifier
        approval: String,
        /// Why
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
}

pub(crate) async fn run(context: &Context, command: Approvals) -> Outcome {
    Backend::with(context, Needs::DATABASE, async |backend| {
        act(backend, context, command).await
    })
    .await
}

async fn act(backend: &Backend, context: &Context, command: Approvals) -> Outcome {
    let output = context.output();
    match command {
        Approvals::List { all } => {
            let state = if all { "all" } else { "pending" };
            let items = backend.list("/approvals", &[("state", state)], None).await?;
            if output.json {
                output.document(&items)?;
            } else {
                let names = names(backend).await?;
                let rows = items.iter().map(|raw| {
                    let approval: view::Approval = value(raw)?;
                    let server = match &approval.server_id {
                        Some(id) => names.get(id).unwrap_or(id).clone(),
                        None => "code".to_owned(),
                    };
                    Ok::<_, Failure>(vec![
                        cell(&approval.approval_id),
                        cell(&approval.state),
                        cell(&approval.requested_by),
                        cell(&format!("{server} {}", approval.tool())),
                        cell(approval.arguments.as_str()),
                        time(Some(&approval.expires_at)),
                    ])
                });
                let rows = rows.collect::<Outcome<Vec<_>>>()?;
                let headers = ["APPROVAL", "STATE", "WHO", "TOOL", "ARGUMENTS", "EXPIRES"];
                output.table(&headers, rows, "no request waits for a decision")?;
            }
        }
        Approvals::Show { approval } => {
            let path = format!("/approvals/{}", super::segment(&approval));
            let raw = backend.get(&path).await?;
            if output.json {
                output.document(&raw)?;
            } else {
                let approval: view::Approval = value(&raw)?;
                output.pairs(&[
                    ("approval", long(&approval.approval_id)),
                    ("state", long(&approval.state)),
                    ("server", long(approval.server_id.as_deref().unwrap_or("code"))),
                    ("tool", long(&approval.tool())),
                    ("arguments", long(approval.arguments.as_str())),
                    ("requested by", long(&approval.requested_by)),
                    ("requested at", time(Some(&approval.requested_at))),
                    ("expires at", time(Some(&approval.expires_at))),
                    (
                        "decided by",
                        long(approval.decided_by.as_deref().unwrap_or_default()),
                    ),
                ])?;
            }
        }
        Approvals::Approve { approval, note } => decide(backend, context, &approval, "approve", note).await?,
        Approvals::Refuse { approval, note } => decide(backend, context, &approval, "refuse", note).await?,
    }
    Ok(())
}

async fn decide(
    backend: &Backend,
    context: &Context,
    approval: &str,
    verb: &str,
    note: Option<String>,
) -> Outcome {
    let path = format!("/approvals/{}/{verb}", super::segment(approval));
    let body = match note {
        Some(note) => serde_json::json!({ "note": note }),
        None => serde_json::json!({}),
    };
    let raw = backend.send(Method::POST, &path, Some(&body)).await?;
    let output = context.output();
    if output.json {
        return output.document(&raw);
    }
    let approval: view::Approval = value(&raw)?;
    let tool = cell(&approval.tool());
    output.line(format_args!(
        "{}: {tool} for {}",
        cell(&approval.state),
        cell(&approval.requested_by)
    ))
}
