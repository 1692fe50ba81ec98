//! `caliber servers edit`: what the flags change of a server.

use clap::Args;
use serde_json::Value;

use super::fields::{Before, Fields};
use crate::cli::failure::{Failure, Outcome};
use crate::cli::view;

/// Change a server; what no flag names stays as it is.
///
/// A change of the place (URL, command, arguments, names of variables, kind of sign-in) closes its tools until they are
/// classified again. Values are given as to `servers add`; a stored secret does not follow a server to another origin.
#[derive(Debug, Args)]
pub(crate) struct Edit {
    /// The server, by its name or identifier
    pub(super) server: String,
    #[command(flatten)]
    fields: Fields,
    /// A variable that goes; may be repeated
    #[arg(long, value_name = "NAME")]
    remove_env: Vec<String>,
    /// A header that goes; may be repeated
    #[arg(long, value_name = "NAME")]
    remove_header: Vec<String>,
    /// Who may meet in a session
    #[arg(long, value_name = "WHO", value_parser = ["per_caller", "shared"])]
    sharing: Option<String>,
    /// Who owns it
    #[arg(long, value_name = "SUBJECT")]
    owner: Option<String>,
}

impl Edit {
    /// The request that changes it from what it is.
    pub(super) fn body(&self, server: view::Server) -> Outcome<Value> {
        let before = Before {
            env: server.env,
            headers: server.headers,
            limits: server.limits,
            remote_transport: Some(server.transport).filter(|transport| transport != "stdio"),
            without_env: self.remove_env.clone(),
            without_headers: self.remove_header.clone(),
        };
        let mut body = self.fields.body(&before)?;
        for (field, value) in [("sharing", &self.sharing), ("owner", &self.owner)] {
            if let Some(value) = value {
                body.insert(field.to_owned(), value.as_str().into());
            }
        }
        if body.is_empty() {
            return Err(Failure::usage("nothing is changed: give at least one flag")
                .with_hint("`caliber servers edit --help` lists them"));
        }
        Ok(Value::Object(body))
    }
}
