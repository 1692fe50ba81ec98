//! `caliber audit`: the audit trail.

use std::collections::HashSet;
use std::time::Duration;

use caliber::core::json::JsonText;
use caliber::core::text::escaped;
use clap::{Args, Subcommand};
use serde_json::{Map, Value};
use tokio::signal::unix::{SignalKind, signal};

use super::backend::{Backend, Needs, value};
use super::context::Context;
use super::failure::{Failure, Outcome};
use super::output::{Output, cell, time};
use super::servers::find;
use super::view;

/// How often a followed trail is asked for news.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// Read the audit trail.
#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Print the newest entries, oldest first
    Tail(Tail),
}

/// Which entries.
#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// Entries at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    lines: u32,
    /// Go on with new entries until interrupted
    #[arg(short, long)]
    follow: bool,
    /// About this server, by its name or identifier
    #[arg(long, value_name = "SERVER")]
    about: Option<String>,
    /// By this actor
    #[arg(long, value_name = "SUBJECT")]
    actor: Option<String>,
    /// Of this action, such as invoke_mcp_tool
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
}

pub(crate) async fn run(context: &Context, Audit::Tail(tail): Audit) -> Outcome {
    Backend::with(context, Needs::DATABASE, async |backend| {
        print_trail(backend, context.output(), &tail).await
    })
    .await
}

async fn print_trail(backend: &Backend, output: Output, tail: &Tail) -> Outcome {
    let server = match &tail.about {
        Some(name) => Some(find(backend, name).await?.server_id),
        None => None,
    };
    let mut query = Vec::new();
    for (name, value) in [
        ("entity_id", &server),
        ("actor", &tail.actor),
        ("action", &tail.action),
    ] {
        if let Some(value) = value {
            query.push((name, value.as_str()));
        }
    }
    let mut items = backend.list("/audit", &query, Some(tail.lines as usize)).await?;
    items.reverse();
    let mut last = None;
    let mut printed = HashSet::new();
    for raw in &items {
        let entry = print(output, raw)?;
        printed.insert(entry.clone());
        last = Some(entry);
    }
    if !tail.follow {
        return Ok(());
    }
    // One receiver for the whole time: an interrupt during a read is seen after it.
    let failed = |error| Failure::io("signals cannot be received", &error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    loop {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
        }
        let mut query = query.clone();
        // Without an entry to go on from, everything is new.
        if let Some(last) = &last {
            query.push(("after", last));
        }
        let mut items = backend.list("/audit", &query, None).await?;
        if last.is_none() {
            items.reverse();
        }
        for raw in &items {
            let entry: view::AuditEntry = value(raw)?;
            // The list goes by time, what follows by commits: some of that may stand in the list already.
            if !printed.remove(&entry.audit_id) {
                print(output, raw)?;
            }
            last = Some(entry.audit_id);
        }
    }
}

/// Prints one entry, and gives its identifier.
fn print(output: Output, raw: &serde_json::value::RawValue) -> Outcome<String> {
    let entry: view::AuditEntry = value(raw)?;
    if output.json {
        output.document(&raw)?;
        return Ok(entry.audit_id);
    }
    let about = format!("{} {}", entry.entity_type, entry.entity_id);
    output.line(format_args!(
        "{}  {}  {}  {}  {}  {}",
        time(Some(&entry.at)),
        cell(&entry.actor),
        cell(&entry.surface),
        cell(&entry.action),
        cell(&about),
        summary(&entry.details),
    ))?;
    Ok(entry.audit_id)
}

/// The details as words with values: what is empty and what is a digest or an identifier is left to `--json`.
fn summary(details: &JsonText) -> String {
    let members: Map<String, Value> = details.read().unwrap_or_default();
    let words = members.iter().filter_map(|(key, value)| {
        if key.ends_with("digest") || key.ends_with("_id") || key == "fingerprint" || key == "snapshot" {
            return None;
        }
        let text = match value {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            Value::Array(items) if items.is_empty() => return None,
            other => other.to_string(),
        };
        Some(format!("{key}={}", escaped(&text, 120)))
    });
    escaped(&words.collect::<Vec<_>>().join(" "), 400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_told_in_a_few_words() {
        let details = serde_json::json!({
            "tool_name": "echo\u{1b}[2J", "outcome": "ok", "reason_code": null, "added": [], "argument_digest": "sha256:1",
            "approval_id": "apr_1", "duration_us": 5,
        });
        let told = summary(&JsonText::of(&details).unwrap());
        assert_eq!(told, "duration_us=5 outcome=ok tool_name=echo\\u{1b}[2J");
    }
}
