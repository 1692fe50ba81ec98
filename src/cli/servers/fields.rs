//! What flags say about a server, for one that is new and for one that changes.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Map, Value};

use crate::cli::failure::{Failure, Outcome};
use crate::cli::input::{keyed, read_value};

/// The flags that `servers add` and `servers edit` share.
#[derive(Debug, Args)]
pub(super) struct Fields {
    /// The URL of a remote server
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    pub(super) url: Option<String>,
    /// The remote server speaks HTTP+SSE, the transport of MCP 2024-11-05
    #[arg(long, requires = "url")]
    pub(super) sse: bool,
    /// A variable of a stdio server's environment; may be repeated
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "url")]
    pub(super) env: Vec<String>,
    /// A header of every request to a remote server; may be repeated
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "command")]
    pub(super) header: Vec<String>,
    /// Sign in with this bearer token
    #[arg(
        long,
        value_name = "VALUE",
        conflicts_with = "username",
        conflicts_with = "command"
    )]
    pub(super) token: Option<String>,
    /// Sign in as this user, with --password
    #[arg(long, value_name = "USER", requires = "password", conflicts_with = "command")]
    pub(super) username: Option<String>,
    /// The password of --username
    #[arg(long, value_name = "VALUE", requires = "username")]
    pub(super) password: Option<String>,
    /// For people
    #[arg(long, value_name = "TEXT")]
    pub(super) description: Option<String>,
    /// Who sees it
    #[arg(long, value_name = "WHO", value_parser = ["user", "project", "public"])]
    pub(super) visibility: Option<String>,
    /// The longest call, in milliseconds
    #[arg(long, value_name = "N")]
    pub(super) timeout_ms: Option<u64>,
    /// Calls at once
    #[arg(long, value_name = "N")]
    pub(super) concurrency: Option<u32>,
    /// The largest result, in bytes
    #[arg(long, value_name = "N")]
    pub(super) result_bytes: Option<u64>,
    /// The command of a stdio server and its arguments, behind `--`; no shell reads them
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

impl Fields {
    /// The fields of the request, as far as flags were given. `before` says which variables, headers and bounds there
    /// are already: those that no flag names stay.
    pub(super) fn body(&self, before: &Before) -> Outcome<Map<String, Value>> {
        let mut body = Map::new();
        let mut set = |field: &str, value: Value| body.insert(field.to_owned(), value);
        match (&self.url, self.command.split_first()) {
            (Some(url), _) => {
                let kept = before.remote_transport.as_deref().unwrap_or("streamable-http");
                set("transport", if self.sse { "sse" } else { kept }.into());
                set("uri", url.as_str().into());
            }
            (None, Some((command, args))) => {
                set("transport", "stdio".into());
                set("command", command.as_str().into());
                set("args", args.into());
            }
            (None, None) => {}
        }
        for (field, flag, pairs, known, removed) in [
            ("env", "--env", &self.env, &before.env, &before.without_env),
            (
                "headers",
                "--header",
                &self.header,
                &before.headers,
                &before.without_headers,
            ),
        ] {
            if pairs.is_empty() && removed.is_empty() {
                continue;
            }
            let mut values = keyed(flag, pairs)?;
            for name in removed {
                if values.contains_key(name) || !known.contains_key(name) {
                    let shown = caliber::core::text::shown(name);
                    return Err(Failure::usage(format!(
                        "{shown} cannot be removed: it is not there"
                    )));
                }
            }
            for (name, value) in known.iter().filter(|(name, _)| !removed.contains(name)) {
                values
                    .entry(name.clone())
                    .or_insert_with(|| value.as_str().into());
            }
            set(field, Value::Object(values));
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
        let mut limits = Map::new();
        for (field, value) in [
            ("timeout_ms", self.timeout_ms),
            ("concurrency", self.concurrency.map(u64::from)),
            ("result_bytes", self.result_bytes),
        ] {
            limits.extend(value.map(|value| (field.to_owned(), value.into())));
        }
        if !limits.is_empty() {
            let kept = before
                .limits
                .iter()
                .filter(|(bound, _)| !limits.contains_key(*bound));
            let kept: Vec<_> = kept
                .map(|(bound, value)| (bound.clone(), value.clone()))
                .collect();
            limits.extend(kept);
            set("limits", Value::Object(limits));
        }
        Ok(body)
    }
}

/// What a server has already; nothing for one that is new.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// Its variables as they are shown: what is stored stands there as the sign that keeps it.
    pub(super) env: BTreeMap<String, String>,
    /// Its headers, likewise.
    pub(super) headers: BTreeMap<String, String>,
    /// Its bounds.
    pub(super) limits: Map<String, Value>,
    /// How it is spoken to, where that is a remote transport.
    pub(super) remote_transport: Option<String>,
    /// The variables that go.
    pub(super) without_env: Vec<String>,
    /// The headers that go.
    pub(super) without_headers: Vec<String>,
}
