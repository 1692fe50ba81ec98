//! `caliber servers add`: what the flags say about a new server.

use clap::{ArgGroup, Args};
use serde_json::Value;

use super::fields::{Before, Fields};
use crate::cli::failure::Outcome;

/// A server to be registered: with --url, or with its command behind `--`.
///
/// Values of --env, --header, --token and --password may be references: `env://NAME` is a variable of the machine that
/// starts the server (the setting policy.secrets.environment says which may be named), `file:///path` a file there
/// (policy.secrets.files). They are looked up each time. Or `@FILE` (`@-` for standard input), whose content is stored
/// encrypted. What is written out on the command line is stored encrypted too, but other users of the machine can see
/// it in the list of processes.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("place").required(true).args(["url", "command"])))]
pub(crate) struct Add {
    /// Its name: 1 to 48 of A-Z, a-z, 0-9 and -; no other server of the installation may have it
    name: String,
    #[command(flatten)]
    fields: Fields,
    /// All callers share one session: the server keeps no state of a caller
    #[arg(long)]
    shared: bool,
}

impl Add {
    /// The request that registers it.
    pub(super) fn body(&self) -> Outcome<Value> {
        let mut body = self.fields.body(&Before::default())?;
        body.insert("name".to_owned(), self.name.as_str().into());
        if self.shared {
            body.insert("sharing".to_owned(), "shared".into());
        }
        Ok(Value::Object(body))
    }
}
