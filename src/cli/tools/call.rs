//! `caliber tools call`: one call, through admission like every other.

use caliber::core::json::{JsonLimits, JsonText};
use caliber::core::text::escaped;
use clap::Args;
use http::Method;
use serde::{Deserialize, Serialize};

use crate::cli::backend::{Backend, value};
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::cli::input::read_text;
use crate::cli::output::{Output, with_progress};
use crate::cli::servers::{explained, find, path};
use crate::cli::view;

/// Call a tool.
#[derive(Debug, Args)]
pub(crate) struct Call {
    /// The server, by its name or identifier
    server: String,
    /// The tool
    tool: String,
    /// Its arguments, a JSON object; @FILE or @- to read them. They are sent byte for byte
    #[arg(value_name = "JSON", default_value = "{}")]
    arguments: String,
    /// The consent to spend, when the tool needs one
    #[arg(long, value_name = "APPROVAL")]
    approval: Option<String>,
    /// Go past approval, as an admin, for this reason; it is written into the audit trail
    #[arg(long, value_name = "REASON")]
    break_glass: Option<String>,
    /// A shorter time than the policy allows, such as 5s
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
}

/// The request. The arguments stay the text that was given: numbers are not rounded on the way.
#[derive(Serialize)]
struct Request<'a> {
    tool_name: &'a str,
    arguments: &'a JsonText,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    break_glass: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
}

pub(super) async fn run(backend: &Backend, output: Output, call: &Call) -> Outcome {
    let text = match call.arguments.strip_prefix('@') {
        Some(path) => read_text("the arguments", path, JsonLimits::ARGUMENTS.bytes)?,
        None => call.arguments.clone(),
    };
    let arguments = JsonText::parse(text.trim(), JsonLimits::ARGUMENTS)
        .map_err(|error| Failure::usage(format!("the arguments: {}", error.message())))?;
    let timeout_ms = call.timeout.as_deref().map(milliseconds).transpose()?;
    let request = Request {
        tool_name: &call.tool,
        arguments: &arguments,
        approval_id: call.approval.as_deref(),
        break_glass: call.break_glass.as_deref(),
        timeout_ms,
    };
    let server = find(backend, &call.server).await?;
    let what = format!("calling {} of {}", call.tool, server.name);
    let path = path(&server, "/invoke-tool");
    let sent = with_progress(&what, backend.send(Method::POST, &path, Some(&request))).await;
    let raw = explained(backend, &server, sent).await?;
    let invoked: view::Invoked = value(&raw)?;
    if output.json {
        output.document(&raw)?;
    } else {
        print(output, &invoked)?;
    }
    if invoked.is_error {
        let mut failure = Failure::new(Exit::ToolError, "the tool says that it failed");
        failure.invocation = Some(invoked.invocation_id.into());
        return Err(failure);
    }
    Ok(())
}

pub(super) fn milliseconds(text: &str) -> Outcome<u64> {
    let shown = caliber::core::text::shown(text);
    let time = humantime::parse_duration(text)
        .ok()
        .and_then(|time| u64::try_from(time.as_millis()).ok());
    time.ok_or_else(|| Failure::usage(format!("--timeout {shown} is no time such as 5s or 200ms")))
}

/// One block of a result's content, as far as it can be shown.
#[derive(Deserialize)]
struct Block {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    text: Option<String>,
}

/// Text of a tool, line by line.
pub(super) fn visible(output: Output, text: &str) -> Outcome {
    text.lines()
        .try_for_each(|line| output.line(escaped(line, usize::MAX)))
}

/// Prints a result: its structured content where there is one, its text otherwise. Line ends stay, and everything
/// else that could steer a terminal is made visible.
fn print(output: Output, invoked: &view::Invoked) -> Outcome {
    match invoked.result.member("structuredContent") {
        Some(structured) => visible(output, structured.as_str())?,
        None => {
            let blocks: Vec<Block> = match invoked.result.member("content") {
                Some(content) => content.read().unwrap_or_default(),
                None => Vec::new(),
            };
            for block in &blocks {
                match &block.text {
                    Some(text) => visible(output, text)?,
                    None => output.line(format_args!("[{}; --json shows it]", escaped(&block.r#type, 60)))?,
                }
            }
        }
    }
    output.note(&format!(
        "{:.0} ms, {}",
        invoked.duration_ms,
        escaped(&invoked.invocation_id, 60)
    ));
    Ok(())
}
