//! `caliber tools`: the tools of servers, and code tools.
//!
//! A tool of a server is named by its server and its name; a code tool by a reference to one of its versions. Each verb
//! is about one of the two kinds; `list` is about both: with a server it lists that server's tools, without one the
//! code tools.

mod call;
mod classify;
mod code;

use caliber::core::inventory::ToolState;
use clap::Subcommand;
use http::Method;
use serde_json::value::RawValue;

use super::backend::{Backend, Needs, value};
use super::confirm::confirm;
use super::context::Context;
use super::failure::{Exit, Failure, Outcome};
use super::output::{Output, cell, long, time};
use super::servers::{find, path};
use super::settings::{SandboxBackend, Settings};
use super::{segment, view};

/// Look at the tools of servers, decide about them, call them; register and run code tools.
#[derive(Debug, Subcommand)]
pub(crate) enum Tools {
    /// List the tools of a server with what was decided about each; without a server, the code tools
    List {
        /// The server, by its name or identifier
        server: Option<String>,
        /// Of the code tools, those that stand so
        #[arg(long, value_name = "STATUS", default_value = "active", conflicts_with = "server", value_parser = ["active", "deprecated", "archived", "all"])]
        status: String,
        /// Of the code tools, those with this text in their name or description
        #[arg(long, value_name = "TEXT", conflicts_with = "server")]
        search: Option<String>,
    },
    /// Show everything that a server says about one of its tools, escaped
    Show {
        /// The server, by its name or identifier
        server: String,
        /// The tool
        tool: String,
    },
    /// Decide whether and how a tool of a server may be called, after looking at it
    Classify(classify::Classify),
    /// Take a decision back: nobody can call that tool of a server any more
    Declassify {
        /// The server, by its name or identifier
        server: String,
        /// The tool
        tool: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Show what changed of a tool of a server since it was classified
    Diff {
        /// The server, by its name or identifier
        server: String,
        /// The tool
        tool: String,
        /// Exit with 12 when there is a difference
        #[arg(long)]
        exit_code: bool,
    },
    /// Call a tool of a server
    Call(call::Call),
    /// Register a version of a code tool: a Python callable, or an executable
    Register(Box<code::Register>),
    /// List the versions of a code tool, the newest first
    Versions {
        /// Its name, or the identifier of a version
        name: String,
    },
    /// Show which version of a code tool a reference stands for
    Resolve(code::Version),
    /// Show the signature, documentation and source of a code tool, as the sandbox sees them
    Source(code::Version),
    /// Run a code tool once, in the sandbox
    Run(code::Run),
    /// Deprecate a version of a code tool: whoever uses it is warned
    Deprecate(code::Deprecate),
    /// Use a version of a code tool again that was deprecated or archived
    Activate(code::Activate),
    /// Archive a version of a code tool: it neither resolves nor runs any more
    Archive(code::Archive),
}

pub(crate) async fn run(context: &Context, command: Tools) -> Outcome {
    let needs = match &command {
        Tools::Register(_) => Needs::DATABASE.with_sandbox().or_make(),
        Tools::Source(_) | Tools::Run(_) => Needs::DATABASE.with_sandbox(),
        _ => Needs::DATABASE,
    };
    if let Tools::Register(register) = &command
        && register.is_persistent()
        && context.global.server.is_none()
    {
        refuse_persistent(&context.settings(&[])?)?;
    }
    Backend::with(context, needs, async |backend| {
        act(backend, context, command).await
    })
    .await
}

/// A tool that no run of would be let through is not registered. At a service, that service decides.
fn refuse_persistent(settings: &Settings) -> Outcome {
    if settings.sandbox.backend != SandboxBackend::Local || settings.sandbox.local.allow_persistent {
        return Ok(());
    }
    let text = "--preference persistent is not allowed: nothing keeps the calls of such a tool apart";
    Err(Failure::usage(text).with_hint("the setting sandbox.allow_persistent allows it"))
}

async fn act(backend: &Backend, context: &Context, command: Tools) -> Outcome {
    let output = context.output();
    match command {
        Tools::List {
            server: Some(server), ..
        } => list(backend, output, &server).await,
        Tools::List {
            server: None,
            status,
            search,
        } => code::list(backend, output, &status, search.as_deref()).await,
        Tools::Show { server, tool } => {
            let raw = read_tool(backend, &server, &tool).await?;
            if output.json {
                output.document(&raw)
            } else {
                show(output, &value(&raw)?)
            }
        }
        Tools::Classify(classify) => classify::run(backend, output, &classify).await,
        Tools::Declassify { server, tool, yes } => declassify(backend, output, &server, &tool, yes).await,
        Tools::Diff {
            server,
            tool,
            exit_code,
        } => diff(backend, output, &server, &tool, exit_code).await,
        Tools::Call(call) => call::run(backend, output, &call).await,
        Tools::Register(register) => code::register(backend, context, &register).await,
        Tools::Versions { name } => code::versions(backend, output, &name).await,
        Tools::Resolve(version) => code::resolve(backend, output, &version).await,
        Tools::Source(version) => code::source(backend, output, &version).await,
        Tools::Run(run) => code::run(backend, output, &run).await,
        Tools::Deprecate(deprecate) => code::deprecate(backend, output, &deprecate).await,
        Tools::Activate(activate) => code::activate(backend, output, &activate).await,
        Tools::Archive(archive) => code::archive(backend, output, &archive).await,
    }
}

/// The path of a tool, and of what stands under it.
pub(crate) fn tool_path(server: &view::ServerSummary, tool: &str, rest: &str) -> String {
    path(server, &format!("/tools/{}{rest}", segment(tool)))
}

async fn read_tool(backend: &Backend, server: &str, tool: &str) -> Outcome<Box<RawValue>> {
    let server = find(backend, server).await?;
    backend.get(&tool_path(&server, tool, "")).await
}

async fn list(backend: &Backend, output: Output, server: &str) -> Outcome {
    let server = find(backend, server).await?;
    let list = backend.tools(&path(&server, "/tools")).await?;
    if output.json {
        return output.document(&list.tools);
    }
    if list.discovered_at.is_none() {
        return output.line(format_args!(
            "{} was never discovered; `caliber servers discover` does it",
            cell(&server.name)
        ));
    }
    let rows = list.tools.iter().map(|raw| {
        let tool: view::Tool = value(raw)?;
        Ok::<_, Failure>(vec![
            cell(&tool.name),
            state(tool.state).to_owned(),
            tool.classification
                .as_ref()
                .map(|bound| policy(&bound.policy))
                .unwrap_or_default(),
            caliber::core::text::escaped(tool.description.trim(), 70),
        ])
    });
    let rows = rows.collect::<Outcome<Vec<_>>>()?;
    output.table(
        &["TOOL", "STATE", "POLICY", "WHAT ITS SERVER SAYS"],
        rows,
        "the server offers no tools",
    )?;
    for tool in &list.withheld {
        output.line(format_args!(
            "withheld: {}: {}",
            cell(&tool.name),
            long(&tool.reason)
        ))?;
    }
    Ok(())
}

/// Everything about a tool. What the server says is printed line by line, with every character that could hide or
/// reorder text made visible.
fn show(output: Output, tool: &view::Tool) -> Outcome {
    let classification = tool.classification.as_ref();
    output.pairs(&[
        ("tool", long(&tool.name)),
        ("state", state(tool.state).to_owned()),
        ("digest", long(&tool.descriptor_digest)),
        (
            "policy",
            classification
                .map(|bound| policy(&bound.policy))
                .unwrap_or_default(),
        ),
        (
            "decided by",
            long(
                classification
                    .map(|bound| bound.classified_by.as_str())
                    .unwrap_or_default(),
            ),
        ),
        (
            "decided at",
            time(classification.map(|bound| bound.classified_at.as_str())),
        ),
    ])?;
    let Some(descriptor) = &tool.descriptor else {
        return Ok(());
    };
    output.line("what its server says (untrusted):")?;
    let lines = descriptor.canonical_lines()?;
    for line in lines.lines() {
        output.line(format_args!(
            "  {}",
            caliber::core::text::escaped(line, usize::MAX)
        ))?;
    }
    if hides(&lines) {
        output.line(
            "warning: it holds characters that hide or reorder text; they stand above as \\u{…} or \\u….",
        )?;
    }
    Ok(())
}

/// Whether a text of many lines holds a character that could hide or reorder it. In JSON, controls stand escaped.
fn hides(lines: &str) -> bool {
    lines.lines().any(caliber::core::text::has_suspicious)
        || lines.contains("\\u00")
        || lines.contains("\\b")
        || lines.contains("\\f")
}

/// The word for a state.
fn state(state: ToolState) -> &'static str {
    match state {
        ToolState::Unclassified => "unclassified",
        ToolState::Drifted => "drifted",
        ToolState::Classified => "classified",
    }
}

/// A policy in a few words.
fn policy(policy: &view::Policy) -> String {
    let mut words = vec![policy.side_effect_level.as_str().to_owned()];
    words.push(if policy.allowed { "allowed" } else { "denied" }.to_owned());
    if policy.requires_approval {
        words.push("needs approval".to_owned());
    }
    if let Some(reason) = &policy.approval_waiver {
        words.push(format!("approval waived: {}", cell(reason)));
    }
    if let Some(rate) = policy.rate_limit_per_minute {
        words.push(format!("{rate} a minute"));
    }
    words.join(", ")
}

async fn declassify(backend: &Backend, output: Output, server: &str, tool: &str, yes: bool) -> Outcome {
    let server = find(backend, server).await?;
    confirm(
        yes,
        &format!("close {} of {} for everybody?", cell(tool), cell(&server.name)),
    )?;
    let path = tool_path(&server, tool, "/policy");
    let raw = backend.send(Method::DELETE, &path, None::<&()>).await?;
    if output.json {
        return output.document(&raw);
    }
    output.line(format_args!("{} is unclassified", cell(tool)))
}

async fn diff(backend: &Backend, output: Output, server: &str, tool: &str, exit_code: bool) -> Outcome {
    let server = find(backend, server).await?;
    let raw = backend.get(&tool_path(&server, tool, "/diff")).await?;
    let difference: view::Difference = value(&raw)?;
    if output.json {
        output.document(&raw)?;
    } else {
        print_difference(output, tool, &difference)?;
    }
    if exit_code && difference.state != ToolState::Classified {
        let failure = Failure::new(
            Exit::Different,
            format!("{} is {}", cell(tool), state(difference.state)),
        );
        return Err(failure);
    }
    Ok(())
}

fn print_difference(output: Output, tool: &str, difference: &view::Difference) -> Outcome {
    output.line(format_args!("{} is {}", cell(tool), state(difference.state)))?;
    if difference.place_changed {
        output.line("the server runs elsewhere now")?;
    }
    match &difference.classified_digest {
        None => return output.line("nobody has classified it; `caliber tools show` shows all of it"),
        Some(digest) if *digest == difference.current_digest => {
            return output.line("what its server says is what was classified");
        }
        Some(digest) => {
            output.line(format_args!("--- classified {}", cell(digest)))?;
            output.line(format_args!(
                "+++ now        {}",
                cell(&difference.current_digest)
            ))?;
        }
    }
    for line in &difference.lines {
        output.line(caliber::core::text::escaped(line, usize::MAX))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_noticed() {
        for plain in ["{\n  \"a\": \"b\"\n}", "天気", "a\\nb", "a\\\\n"] {
            assert!(!hides(plain), "{plain:?}");
        }
        for hidden in ["\"a\u{202e}\"", "\"a\u{200b}\"", "\"\\u001b[2J\"", "\u{e0041}"] {
            assert!(hides(hidden), "{hidden:?}");
        }
    }
}
