//! `caliber config`: what is set, where it comes from, and what is wrong with it.

mod surroundings;

use clap::Subcommand;

use super::context::Context;
use super::failure::{Failure, Outcome, in_lines};
use super::output::cell;
use super::settings::KEYS;

/// Explain the settings.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Config {
    /// Say everything that is wrong with the settings, and what of the machine keeps them from being used
    Check,
    /// Show every setting with its value and where it comes from
    Show,
}

pub(crate) fn run(context: &Context, command: &Config) -> Outcome {
    let mut loaded = context.load(&[])?;
    let output = context.output();
    match command {
        Config::Check => {
            surroundings::check(&mut loaded);
            if output.json {
                output.document(
                    &serde_json::json!({ "problems": loaded.problems, "warnings": loaded.warnings }),
                )?;
            } else {
                for problem in &loaded.problems {
                    output.line(format_args!("problem: {}", in_lines(&problem.to_string())))?;
                }
                for warning in &loaded.warnings {
                    output.line(format_args!("warning: {}", in_lines(&warning.to_string())))?;
                }
            }
            match loaded.problems.len() {
                0 if output.json => Ok(()),
                0 => output.line("the settings can be used"),
                1 => Err(Failure::usage("1 setting cannot be used")),
                count => Err(Failure::usage(format!("{count} settings cannot be used"))),
            }
        }
        Config::Show => {
            let mut settings = loaded.settings;
            let rows: Vec<_> = KEYS
                .iter()
                .map(|key| {
                    let value = (key.place)(&mut settings).show();
                    let source = loaded.sources.get(key.path).map_or("default", String::as_str);
                    (key, value, source.to_owned())
                })
                .collect();
            if output.json {
                let values: Vec<_> = rows
                    .iter()
                    .map(|(key, value, source)| {
                        serde_json::json!({
                            "key": key.path,
                            "value": value,
                            "source": source,
                            "variable": key.variable(),
                            "about": key.about,
                        })
                    })
                    .collect();
                return output.document(&values);
            }
            let rows = rows.into_iter().map(|(key, value, source)| {
                let value = match value {
                    serde_json::Value::String(text) => text,
                    other => other.to_string(),
                };
                vec![key.path.to_owned(), cell(&value), cell(&source)]
            });
            output.table(
                &["KEY", "VALUE", "SOURCE"],
                rows.collect(),
                "there are no settings",
            )
        }
    }
}
