//! `caliber servers import`: the `mcpServers` that desktop clients keep in their settings.

mod entry;

use std::collections::BTreeSet;

use caliber::core::server::{Auth, SERVER_NAME_LENGTH, ServerDefinition, ServerLimits, Sharing};
use caliber::core::text::{escaped, shown};
use clap::Args;
use http::Method;
use serde::Serialize;
use serde_json::Value;

use crate::cli::backend::{Backend, value};
use crate::cli::failure::{Failure, Outcome};
use crate::cli::input::read_text;
use crate::cli::output::{Output, cell, long};
use crate::cli::view;

use entry::Entry;

/// The largest file, in bytes.
const FILE_BYTES: usize = 1 << 20;
/// The most servers of one file.
const SERVERS: usize = 1_000;

/// Register the servers of a desktop client's settings.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The settings file of the client, or - for standard input
    file: String,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Register the servers that are fine even when others have problems
    #[arg(long)]
    partial: bool,
}

/// What becomes of one entry of the file.
#[derive(Debug, Default, Serialize)]
struct Planned {
    /// The name in the file.
    entry: String,
    /// The name that it gets.
    name: String,
    /// What is wrong with it; empty when it can be registered.
    problems: Vec<String>,
    /// What is done otherwise than the file says.
    notes: Vec<String>,
    /// What stands against starting or reaching it, and what an operator should know.
    readiness: Vec<String>,
    /// Whether it is left out on purpose.
    skipped: bool,
    /// Whether it was registered.
    registered: bool,
    #[serde(skip)]
    body: Option<Value>,
}

pub(super) async fn run(backend: &Backend, output: Output, import: &Import) -> Outcome {
    let text = read_text("the file", &import.file, FILE_BYTES)?;
    let mut plan = plan(&text)?;
    let mut known = BTreeSet::new();
    for raw in backend.list("/mcp-servers", &[], None).await? {
        known.insert(value::<view::ServerSummary>(&raw)?.name);
    }
    for planned in plan.iter_mut().filter(|planned| known.contains(&planned.name)) {
        planned.skipped = true;
        planned
            .notes
            .push("it is registered already, and stays as it is".to_owned());
    }
    let wrong = plan.iter().filter(|planned| !planned.problems.is_empty()).count();
    if !import.dry_run && (wrong == 0 || import.partial) {
        for planned in plan
            .iter_mut()
            .filter(|planned| planned.problems.is_empty() && !planned.skipped)
        {
            match backend
                .send(Method::POST, "/mcp-servers", planned.body.as_ref())
                .await
            {
                Ok(raw) => {
                    planned.registered = true;
                    planned.readiness = super::reasons(&value(&raw)?);
                }
                Err(failure) => planned.problems.push(failure.message),
            }
        }
    }
    if output.json {
        output.document(&plan)?;
    } else {
        for planned in &plan {
            let state = match planned {
                Planned { registered: true, .. } => "registered",
                Planned { skipped: true, .. } => "left out",
                Planned { problems, .. } if !problems.is_empty() => "problem",
                _ if import.dry_run => "would be registered",
                _ => "not registered",
            };
            output.line(format_args!("{}: {state}", cell(&planned.name)))?;
            for problem in &planned.problems {
                output.line(format_args!("  problem: {}", long(problem)))?;
            }
            for note in &planned.notes {
                output.line(format_args!("  note: {}", long(note)))?;
            }
            for reason in &planned.readiness {
                output.line(format_args!("  {reason}"))?;
            }
        }
        if plan.is_empty() {
            output.line("the file names no servers")?;
        }
    }
    let wrong = plan.iter().filter(|planned| !planned.problems.is_empty()).count();
    match wrong {
        0 => Ok(()),
        wrong => {
            let failure = Failure::usage(format!("{wrong} of {} servers have problems", plan.len()));
            Err(if import.partial || import.dry_run {
                failure
            } else {
                failure.with_hint("nothing was registered; --partial registers the others")
            })
        }
    }
}

/// Reads the file. Only a file that is none at all is an error as a whole; everything else is told entry by entry.
fn plan(text: &str) -> Outcome<Vec<Planned>> {
    let wrong = |what: String| Failure::usage(format!("the file is no client's settings: {what}"));
    // The cause is not told: it may repeat what stands in the file, and secrets do.
    let document: Value = serde_json::from_str(text).map_err(|error| {
        wrong(format!(
            "it is not JSON (line {}, column {})",
            error.line(),
            error.column()
        ))
    })?;
    let Some(servers) = document.get("mcpServers") else {
        return Err(wrong("it has no member `mcpServers`".to_owned()));
    };
    let Some(servers) = servers.as_object() else {
        return Err(wrong("`mcpServers` is no object".to_owned()));
    };
    if servers.len() > SERVERS {
        return Err(wrong(format!(
            "it names {} servers; the limit is {SERVERS}",
            servers.len()
        )));
    }
    let mut names = BTreeSet::new();
    let plan = servers.iter().map(|(entry, server)| {
        let mut planned = planned(entry, server);
        if !planned.skipped && !names.insert(planned.name.clone()) {
            planned.problems.push(format!(
                "another entry becomes {} too; rename one",
                shown(&planned.name)
            ));
        }
        planned
    });
    Ok(plan.collect())
}

fn planned(entry: &str, server: &Value) -> Planned {
    let mut planned = Planned {
        entry: escaped(entry, 200),
        name: server_name(entry),
        ..Planned::default()
    };
    if planned.name != entry {
        planned.notes.push(format!(
            "{} is no server name here; it becomes {}",
            shown(entry),
            shown(&planned.name)
        ));
    }
    let Some(server) = server.as_object() else {
        planned.problems.push("it is no object".to_owned());
        return planned;
    };
    if server.get("disabled") == Some(&Value::Bool(true)) {
        planned.skipped = true;
        planned.notes.push("it is disabled in the file".to_owned());
        return planned;
    }
    let mut reader = Entry::new(server);
    let endpoint = reader.endpoint();
    reader.unknown();
    planned.problems.append(&mut reader.problems);
    planned.notes.append(&mut reader.notes);
    let Some((endpoint, body)) = endpoint else {
        return planned;
    };
    match planned.name.parse() {
        Err(error) => {
            let error: caliber::Error = error;
            planned.problems.push(error.message().to_owned());
        }
        Ok(name) => {
            let definition = ServerDefinition {
                name,
                description: String::new(),
                icon: String::new(),
                endpoint,
                auth: Auth::None,
                sharing: Sharing::default(),
                limits: ServerLimits::default(),
            };
            if let Err(error) = definition.validate() {
                let problems = error
                    .fields()
                    .iter()
                    .map(|field| format!("{}: {}", field.field, field.problem));
                planned.problems.extend(problems);
            }
        }
    }
    let mut body = body;
    body.insert("name".to_owned(), planned.name.as_str().into());
    planned.body = Some(Value::Object(body));
    planned
}

/// The nearest name that a server can have.
fn server_name(entry: &str) -> String {
    let name: String = entry
        .chars()
        .map(|character| {
            if character.is_ascii_alphanumeric() {
                character
            } else {
                '-'
            }
        })
        .take(SERVER_NAME_LENGTH)
        .collect();
    name.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned_of(server: Value) -> Planned {
        let text = serde_json::json!({ "mcpServers": { "one": server } }).to_string();
        plan(&text).unwrap().remove(0)
    }

    #[test]
    fn both_kinds_of_entries_become_requests() {
        let text = r#"{"mcpServers": {
            "git_hub": {"command": "npx", "args": ["-y", "server-github"], "env": {"TOKEN": "${GITHUB_TOKEN}", "N": 1}},
            "docs": {"url": "https://docs.example.com/mcp", "headers": {"X-Key": "${env:KEY}"}, "type": "http"},
            "old": {"url": "https://old.example.com/sse", "type": "sse", "autoApprove": ["*"]}
        }, "theme": "dark"}"#;
        let plan = plan(text).unwrap();
        assert!(plan.iter().all(|planned| planned.problems.is_empty()), "{plan:?}");
        let body = |entry: &str| {
            plan.iter()
                .find(|planned| planned.entry == entry)
                .unwrap()
                .body
                .clone()
                .unwrap()
        };
        assert_eq!(
            body("git_hub"),
            serde_json::json!({
                "name": "git-hub", "transport": "stdio", "command": "npx", "args": ["-y", "server-github"],
                "env": { "TOKEN": "${GITHUB_TOKEN}", "N": "1" },
            })
        );
        assert_eq!(body("docs")["headers"]["X-Key"], "env://KEY");
        assert_eq!(body("docs")["transport"], "streamable-http");
        assert_eq!(body("old")["transport"], "sse");
    }

    #[test]
    fn every_problem_of_an_entry_is_named() {
        for (server, problem) in [
            (serde_json::json!(1), "no object"),
            (serde_json::json!({}), "neither a command nor a url"),
            (
                serde_json::json!({"command": "a", "url": "https://b"}),
                "keep one of them",
            ),
            (serde_json::json!({"command": 1}), "command: it is no text"),
            (
                serde_json::json!({"command": "a", "args": ["b", 2]}),
                "args[1]: it is no text",
            ),
            (
                serde_json::json!({"command": "a", "args": "b"}),
                "args: it is no list",
            ),
            (
                serde_json::json!({"command": "a", "env": {"A": {"x": "canary"}}}),
                "env.A: it is no text",
            ),
            (
                serde_json::json!({"command": "a", "env": {"A": "${input:canary}"}}),
                "env.A: the client asks",
            ),
            (
                serde_json::json!({"command": "a", "env": {"A B": "canary"}}),
                "env",
            ),
            (serde_json::json!({"command": "a", "cwd": "/"}), "cwd:"),
            (serde_json::json!({"url": "ftp://a"}), "uri:"),
            (
                serde_json::json!({"url": "https://u:canary@a"}),
                "holds credentials",
            ),
            (
                serde_json::json!({"url": "https://a", "type": "ws"}),
                "type: `ws`",
            ),
        ] {
            let planned = planned_of(server.clone());
            let told = planned.problems.join("; ");
            assert!(told.contains(problem), "{server}: {told}");
            assert!(!told.contains("canary"), "{told}");
        }
        let both = planned_of(serde_json::json!({"command": 1, "args": 2, "env": 3, "cwd": "/"}));
        assert!(both.problems.len() >= 2, "{both:?}");
    }

    #[test]
    fn names_meet_and_disabled_entries_are_left_out() {
        let text =
            r#"{"mcpServers": {"a_b": {"command": "x"}, "a-b": {"command": "y"}, "c": {"disabled": true}}}"#;
        let plan = plan(text).unwrap();
        assert_eq!(
            plan.iter().filter(|planned| !planned.problems.is_empty()).count(),
            1
        );
        assert!(plan.iter().any(|planned| planned.skipped && planned.entry == "c"));
        for name in ["___", "code", ""] {
            let text = serde_json::json!({ "mcpServers": { name: { "command": "x" } } }).to_string();
            let plan = super::plan(&text).unwrap();
            assert!(!plan[0].problems.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_none_is_refused_without_its_content() {
        for text in [
            "canary",
            "{\"mcpServers\": canary}",
            "{}",
            "{\"mcpServers\": []}",
            "{\"token\": \"canary\"}",
        ] {
            let failure = plan(text).unwrap_err();
            assert!(!failure.text().contains("canary"), "{}", failure.text());
        }
    }
}
