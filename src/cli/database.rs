//! `caliber db`: looking after the database.

use std::path::{Path, PathBuf};

use caliber::core::principal::Surface;
use clap::Subcommand;

use super::backend::{Backend, Needs};
use super::context::Context;
use super::failure::{Failure, Outcome};
use super::output::{Output, with_progress};

/// Look after the database.
#[derive(Debug, Subcommand)]
pub(crate) enum Database {
    /// Copy the database into a new file while everything goes on; to restore it, use the copy as the database
    Backup {
        /// The file to be made. It holds secrets encrypted; their keys stay in the key file (`caliber config show`
        /// names it), which is to be copied too, to another place: without it the secrets stay closed
        file: PathBuf,
    },
    /// Put every stored secret under the first key of the key file
    RotateKeys,
}

pub(crate) async fn run(context: &Context, command: Database) -> Outcome {
    Backend::with(context, Needs::DATABASE, async |backend| {
        act(backend, context.output(), command).await
    })
    .await
}

async fn act(backend: &Backend, output: Output, command: Database) -> Outcome {
    let Backend::Local(local) = backend else {
        return Err(Failure::usage(
            "a database is looked after on the machine that holds it; leave --server out",
        ));
    };
    match command {
        Database::Backup { file } => {
            let copy = async { Ok(local.installation().store.backup(&file).await?) };
            with_progress("copying the database", copy).await?;
            if output.json {
                output
                    .document(&serde_json::json!({ "file": file.to_string_lossy(), "bytes": size(&file) }))?;
            } else {
                let shown = caliber::core::text::shown(&file.to_string_lossy());
                output.line(format_args!("the copy {shown} has {} bytes", size(&file)))?;
                let keys = caliber::core::text::shown(&local.key_file().to_string_lossy());
                output.line(format_args!(
                    "its secrets need the key file {keys}: keep a copy of that too, apart from this one"
                ))?;
            }
        }
        Database::RotateKeys => {
            let who = (local.principal(), Surface::Command);
            let rotation = async { Ok(local.installation().store.rotate_secrets(who).await?) };
            let moved = with_progress("encrypting secrets", rotation).await?;
            if output.json {
                output.document(&serde_json::json!({ "secrets": moved }))?;
            } else {
                output.line(format_args!("secrets under another key until now: {moved}"))?;
            }
        }
    }
    Ok(())
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file)
        .map(|metadata| metadata.len())
        .unwrap_or_default()
}
