//! `caliber tools classify`: a decision about what was looked at, and about nothing else.

use caliber::core::policy::SideEffectLevel;
use clap::{ArgGroup, Args};
use http::Method;
use serde_json::{Map, Value};

use super::{show, tool_path};
use crate::cli::backend::{Backend, value};
use crate::cli::confirm::confirm;
use crate::cli::failure::Outcome;
use crate::cli::output::{Output, cell};
use crate::cli::servers::find;
use crate::cli::view;

/// Decide whether and how a tool may be called.
///
/// The tool is shown first, everything that its server says about it, and the decision holds for exactly that: when
/// it changes, the tool is closed until somebody decides again.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("verdict").required(true).args(["allow", "deny"])))]
pub(crate) struct Classify {
    /// The server, by its name or identifier
    server: String,
    /// The tool
    tool: String,
    /// How far a call reaches: read, write or external_action
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    level: SideEffectLevel,
    /// It may be called
    #[arg(long)]
    allow: bool,
    /// It may not be called
    #[arg(long)]
    deny: bool,
    /// Each call needs a person's consent; so do write and external_action tools anyway
    #[arg(long, conflicts_with = "waive_approval")]
    approval: bool,
    /// Why a write or external_action tool needs no consent
    #[arg(long, value_name = "REASON")]
    waive_approval: Option<String>,
    /// Calls a minute at most
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// The longest call, in milliseconds
    #[arg(long, value_name = "N")]
    timeout_ms: Option<u64>,
    /// The largest result, in bytes
    #[arg(long, value_name = "N")]
    result_bytes: Option<u64>,
    /// A call whose answer was lost may be sent again
    #[arg(long)]
    replay_safe: bool,
    /// The digest of what was looked at before; nothing is decided when the tool has changed since
    #[arg(long, value_name = "DIGEST")]
    seen: Option<String>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

fn level(text: &str) -> Result<SideEffectLevel, String> {
    text.parse()
        .map_err(|_| "use read, write or external_action".to_owned())
}

pub(super) async fn run(backend: &Backend, output: Output, classify: &Classify) -> Outcome {
    let server = find(backend, &classify.server).await?;
    let tool: view::Tool = value(&backend.get(&tool_path(&server, &classify.tool, "")).await?)?;
    if !output.json {
        show(output, &tool)?;
    }
    let digest = classify.seen.as_deref().unwrap_or(&tool.descriptor_digest);
    let body = body(classify, digest);
    confirm(classify.yes, &question(classify))?;
    let path = tool_path(&server, &classify.tool, "/policy");
    let raw = backend.send(Method::PATCH, &path, Some(&body)).await?;
    if output.json {
        return output.document(&raw);
    }
    let decided: view::Classification = value(&raw)?;
    output.line(format_args!(
        "classified: {} as {}",
        cell(&tool.name),
        super::policy(&decided.policy)
    ))
}

fn body(classify: &Classify, digest: &str) -> Value {
    let effects = classify.level > SideEffectLevel::Read;
    let needs_approval =
        classify.approval || (effects && classify.allow && classify.waive_approval.is_none());
    let mut body = Map::from_iter([
        ("allowed".to_owned(), classify.allow.into()),
        ("side_effect_level".to_owned(), classify.level.as_str().into()),
        ("requires_approval".to_owned(), needs_approval.into()),
        ("descriptor_digest".to_owned(), digest.into()),
    ]);
    if let Some(reason) = &classify.waive_approval {
        body.insert("approval_waiver".to_owned(), reason.as_str().into());
    }
    for (field, value) in [
        ("rate_limit_per_minute", classify.rate.map(u64::from)),
        ("timeout_ms", classify.timeout_ms),
        ("result_bytes", classify.result_bytes),
    ] {
        body.extend(value.map(|value| (field.to_owned(), value.into())));
    }
    if classify.replay_safe {
        body.insert("replay_safe".to_owned(), true.into());
    }
    Value::Object(body)
}

fn question(classify: &Classify) -> String {
    let verdict = if classify.allow { "allow" } else { "deny" };
    format!(
        "{verdict} {} as {}?",
        cell(&classify.tool),
        classify.level.as_str()
    )
}
