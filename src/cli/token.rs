//! `caliber token`: API tokens.

use std::time::Duration;

use caliber::core::clock::{Clock as _, SystemClock};
use clap::{Args, Subcommand};
use http::Method;

use super::backend::{Backend, Needs, value};
use super::context::Context;
use super::failure::{Failure, Outcome};
use super::grants::SCOPES;
use super::output::{cell, time};
use super::view;

/// The longest life of a token that ends: a hundred years.
const LONGEST_LIFE: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);

/// Make and revoke API tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a token; its text is shown once
    Create(Create),
    /// List tokens, without their texts
    List,
    /// End a token at once
    Revoke {
        /// The token, by its identifier (tok_…), not by its text
        token: String,
    },
}

/// The token to be made.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Whom it will speak for
    #[arg(long, value_name = "SUBJECT")]
    subject: String,
    /// What it may do; may be repeated
    #[arg(long, value_name = "SCOPE", required = true, value_parser = SCOPES)]
    scope: Vec<String>,
    /// Let its scopes hold in every project; they hold in the project of --project when it is given, else everywhere
    #[arg(long, conflicts_with = "project")]
    everywhere: bool,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// How long it lives, such as 90days; for ever when nothing is said
    #[arg(long, value_name = "TIME")]
    expires_in: Option<String>,
    /// Print nothing but the token
    #[arg(long)]
    print: bool,
}

pub(crate) async fn run(context: &Context, command: Token) -> Outcome {
    let needs = match &command {
        Token::Create(_) => Needs::DATABASE.or_make(),
        Token::List | Token::Revoke { .. } => Needs::DATABASE,
    };
    Backend::with(context, needs, async |backend| {
        act(backend, context, command).await
    })
    .await
}

async fn act(backend: &Backend, context: &Context, command: Token) -> Outcome {
    let output = context.output();
    match command {
        Token::Create(create) => {
            let body = body(context, &create)?;
            let raw = backend.send(Method::POST, "/tokens", Some(&body)).await?;
            let token: view::Token = value(&raw)?;
            let text = token.token.as_deref().unwrap_or_default();
            if create.print {
                output.line(text)?;
            } else if output.json {
                output.document(&raw)?;
            } else {
                output.pairs(&[
                    ("token", text.to_owned()),
                    ("id", cell(&token.token_id)),
                    ("subject", cell(&token.subject)),
                    ("scopes", cell(&token.scopes.join(", "))),
                    (
                        "holds in",
                        cell(token.project_id.as_deref().unwrap_or("every project")),
                    ),
                    ("expires at", time(token.expires_at.as_deref())),
                ])?;
                output.line("the token is shown this once; keep it where secrets are kept")?;
            }
        }
        Token::List => {
            let items = backend.list("/tokens", &[], None).await?;
            if output.json {
                output.document(&items)?;
            } else {
                let rows = items.iter().map(|raw| {
                    let token: view::Token = value(raw)?;
                    let state = match (&token.revoked_at, &token.expires_at) {
                        (Some(at), _) => format!("revoked {}", time(Some(at))),
                        (None, Some(at)) => format!("until {}", time(Some(at))),
                        (None, None) => "valid".to_owned(),
                    };
                    Ok::<_, Failure>(vec![
                        cell(&token.token_id),
                        cell(&token.subject),
                        cell(&token.scopes.join(", ")),
                        cell(token.project_id.as_deref().unwrap_or("every project")),
                        state,
                        cell(&token.label),
                    ])
                });
                let rows = rows.collect::<Outcome<Vec<_>>>()?;
                output.table(
                    &["TOKEN", "SUBJECT", "SCOPES", "HOLDS IN", "STATE", "LABEL"],
                    rows,
                    "there are no tokens",
                )?;
            }
        }
        Token::Revoke { token } => {
            if token.starts_with(caliber::core::token::TOKEN_PREFIX) {
                let text = "this is the text of a token, and not its identifier; `caliber token list` shows identifiers";
                return Err(Failure::usage(text));
            }
            let path = format!("/tokens/{}", super::segment(&token));
            let raw = backend.send(Method::DELETE, &path, None::<&()>).await?;
            if output.json {
                output.document(&raw)?;
            } else {
                output.line("the token holds no more")?;
            }
        }
    }
    Ok(())
}

fn body(context: &Context, create: &Create) -> Outcome<serde_json::Value> {
    let mut body = serde_json::json!({ "subject": create.subject, "scopes": create.scope });
    let Some(fields) = body.as_object_mut() else {
        return Ok(body);
    };
    match &context.global.project {
        Some(project) => fields.insert("project_id".to_owned(), project.as_str().into()),
        // A local administrator makes tokens for everywhere unless a project is named. A server decides by the
        // token that asks, so there it has to be said.
        None if create.everywhere || context.global.server.is_none() => {
            fields.insert("everywhere".to_owned(), true.into())
        }
        None => None,
    };
    if let Some(label) = &create.label {
        fields.insert("label".to_owned(), label.as_str().into());
    }
    if let Some(life) = &create.expires_in {
        let shown = caliber::core::text::shown(life);
        let life = humantime::parse_duration(life)
            .ok()
            .filter(|life| *life <= LONGEST_LIFE);
        let life = life.ok_or_else(|| {
            Failure::usage(format!("--expires-in {shown} is no time such as 12h or 90days"))
        })?;
        let end = serde_json::to_value(SystemClock.now() + life);
        fields.insert("expires_at".to_owned(), end.unwrap_or_default());
    }
    Ok(body)
}
