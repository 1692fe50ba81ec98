//! What would have to stand in the settings for a server to be started or reached, as it would stand there.

use caliber::core::text::escaped;
use serde_json::Value;

use super::path;
use crate::cli::backend::{Backend, value};
use crate::cli::failure::{Failure, Outcome};
use crate::cli::view;

/// The longest line that is suggested, in characters.
const LINE_LENGTH: usize = 2_000;

/// The outcome, with what would allow the server where the settings do not.
pub(crate) async fn explained<T>(
    backend: &Backend,
    server: &view::ServerSummary,
    outcome: Outcome<T>,
) -> Outcome<T> {
    let failure = match outcome {
        Err(failure) if failure.reason_code.as_deref().is_some_and(is_about_settings) => failure,
        other => return other.map_err(|failure| backend.with_key_hint(failure)),
    };
    // The refusal stands whatever comes of this.
    let known = backend.get(&path(server, "")).await.and_then(|raw| value(&raw));
    Err(match known {
        Ok(server) => with_line(failure, &server),
        Err(_) => failure,
    })
}

fn with_line(failure: Failure, server: &view::Server) -> Failure {
    let mut blockers = server.execution.blockers.iter();
    match blockers.find_map(|blocker| line(&blocker.code, server)) {
        Some(line) => failure.with_hint(line),
        None => failure,
    }
}

fn is_about_settings(reason: &str) -> bool {
    matches!(
        reason,
        "command_not_allowed" | "arguments_not_allowed" | "host_not_allowed" | "server_not_ready"
    )
}

/// What allows `server` when `reason` is why it is not ready.
pub(super) fn line(reason: &str, server: &view::Server) -> Option<String> {
    let (setting, line) = match reason {
        "command_not_allowed" | "arguments_not_allowed" => {
            ("policy.launch", launch_line(&server.command, &server.args))
        }
        "host_not_allowed" => {
            let url = url::Url::parse(&server.uri).ok()?;
            let host = url.host_str()?;
            (
                "policy.remote_hosts",
                format!("remote_hosts = [{}]", quoted(host)),
            )
        }
        _ => return None,
    };
    Some(format!(
        "the setting {setting} can allow it: in the settings file (caliber.toml), under [policy], beside what stands \
         there: {}",
        escaped(&line, LINE_LENGTH)
    ))
}

/// The rule for exactly this command, in the short form where that can say it.
fn launch_line(command: &str, args: &[String]) -> String {
    let short = std::iter::once(command).chain(args.iter().map(String::as_str));
    let short: Vec<_> = short.collect();
    let is_word = |word: &&str| {
        !word.is_empty()
            && **word != *"*"
            && !word.contains(|c: char| c.is_whitespace() || "\"'\\".contains(c))
    };
    if short.iter().all(is_word) {
        return format!("launch = [{}]", quoted(&short.join(" ")));
    }
    let args: Vec<_> = args.iter().map(|argument| quoted(argument)).collect();
    format!(
        "launch = [{{ executable = {}, arguments = {{ exact = [{}] }} }}]",
        quoted(command),
        args.join(", ")
    )
}

/// A basic string of TOML; JSON's escapes are among TOML's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use caliber::policy::settings::{ArgumentRule, LaunchRule};
    use figment::providers::{Format as _, Toml};

    use super::*;

    #[test]
    fn the_line_allows_exactly_this_command() {
        for (command, args) in [
            ("/bin/echo", vec!["hello"]),
            ("/bin/echo", vec![]),
            ("/bin/sh", vec!["-c", "echo \"a b\" \\ 'c'"]),
            ("${PYTHON}", vec!["/opt/server.py", "--x"]),
            ("/bin/echo", vec!["*"]),
            ("/bin/echo", vec![""]),
        ] {
            let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
            let line = launch_line(command, &args);
            let rules: Vec<LaunchRule> = figment::Figment::from(Toml::string(&line))
                .extract_inner("launch")
                .unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(rules.len(), 1);
            assert_eq!(rules[0].executable, command);
            assert_eq!(rules[0].arguments, ArgumentRule::Exact(args), "{line}");
        }
    }
}
