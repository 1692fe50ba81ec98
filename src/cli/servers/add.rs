//! `caliber servers add`: what the flags say about a server.

use clap::Args;
use serde_json::{Map, Value};

use crate::cli::failure::{Failure, Outcome};
use crate::cli::input::{keyed, read_value};

/// A server to be registered: with --url, or with its command behind `--`.
///
/// Values of --env, --header, --token and --password may be references (`env://NAME`, `file:///path`), which are
/// looked up where the server is started, or `@FILE` (`@-` for standard input), whose content is stored encrypted.
/// What is written out on the command line can be seen by other users of the machine.
#[derive(Debug, Args)]
pub(crate) struct Add {
    /// Its name: 1 to 48 of A-Z, a-z, 0-9 and -
    name: String,
    /// The URL of a remote server
    #[arg(
        long,
        value_name = "URL",
        conflicts_with = "command",
        required_unless_present = "command"
    )]
    url: Option<String>,
    /// The remote server speaks HTTP+SSE, the transport of MCP 2024-11-05
    #[arg(long, requires = "url")]
    sse: bool,
    /// A variable of a stdio server's environment; may be repeated
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "url")]
    env: Vec<String>,
    /// A header of every request to a remote server; may be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "url")]
    header: Vec<String>,
    /// Sign in with this bearer token
    #[arg(long, value_name = "VALUE", requires = "url", conflicts_with = "username")]
    token: Option<String>,
    /// Sign in as this user, with --password
    #[arg(long, value_name = "USER", requires_all = ["url", "password"])]
    username: Option<String>,
    /// The password of --username
    #[arg(long, value_name = "VALUE", requires = "username")]
    password: Option<String>,
    /// For people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Who sees it: user, project or public
    #[arg(long, value_name = "WHO")]
    visibility: Option<String>,
    /// All callers share one session: the server keeps no state of a caller
    #[arg(long)]
    shared: bool,
    /// The longest call, in milliseconds
    #[arg(long, value_name = "N")]
    timeout_ms: Option<u64>,
    /// Calls at once
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// The largest result, in bytes
    #[arg(long, value_name = "N")]
    result_bytes: Option<u64>,
    /// The command of a stdio server and its arguments; no shell reads them
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Add {
    /// The request that registers it.
    pub(super) fn body(&self) -> Outcome<Value> {
        let mut body = Map::from_iter([("name".to_owned(), Value::from(self.name.as_str()))]);
        let mut set = |field: &str, value: Value| body.insert(field.to_owned(), value);
        match (&self.url, self.command.split_first()) {
            (Some(url), _) => {
                set(
                    "transport",
                    if self.sse { "sse" } else { "streamable-http" }.into(),
                );
                set("uri", url.as_str().into());
                if !self.header.is_empty() {
                    set("headers", Value::Object(keyed("--header", &self.header)?));
                }
            }
            (None, Some((command, args))) => {
                set("transport", "stdio".into());
                set("command", command.as_str().into());
                set("args", args.into());
                if !self.env.is_empty() {
                    set("env", Value::Object(keyed("--env", &self.env)?));
                }
            }
            (None, None) => return Err(Failure::usage("name a --url, or a command behind `--`")),
        }
        if let Some(token) = &self.token {
            set("auth_type", "token".into());
            set(
                "auth_config",
                serde_json::json!({ "token": read_value("--token", token)? }),
            );
        }
        if let (Some(username), Some(password)) = (&self.username, &self.password) {
            set("auth_type", "basic".into());
            let password = read_value("--password", password)?;
            set(
                "auth_config",
                serde_json::json!({ "username": username, "password": password }),
            );
        }
        for (field, value) in [
            ("description", &self.description),
            ("visibility", &self.visibility),
        ] {
            if let Some(value) = value {
                set(field, value.as_str().into());
            }
        }
        if self.shared {
            set("sharing", "shared".into());
        }
        let mut limits = Map::new();
        for (field, value) in [
            ("timeout_ms", self.timeout_ms),
            ("concurrency", self.concurrency.map(u64::from)),
            ("result_bytes", self.result_bytes),
        ] {
            limits.extend(value.map(|value| (field.to_owned(), value.into())));
        }
        if !limits.is_empty() {
            set("limits", Value::Object(limits));
        }
        Ok(Value::Object(body))
    }
}
