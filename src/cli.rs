//! The arguments of the command, and what each subcommand does with them: one file per subcommand.
//!
//! A command works on a server (`--server`) or, without one, on the local database as the local administrator. Both
//! ways it makes the same requests to the same API, so that every command is written once; see [`backend`].

mod approvals;
mod audit;
mod backend;
mod config;
mod confirm;
mod context;
mod database;
mod failure;
mod fields;
mod grants;
mod input;
mod invocations;
mod key_file;
mod log;
mod openapi;
mod output;
mod sandbox;
mod serve;
mod servers;
mod settings;
mod token;
mod tools;
mod view;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use context::Context;
use failure::{Exit, Failure, Outcome, exit_help};

/// An embeddable control plane for the tools that agents and workflows call.
#[derive(Debug, Parser)]
#[command(name = "caliber", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Global {
    /// The settings file; `caliber.toml` in the working directory, if there is one, when none is named
    #[arg(long, global = true, value_name = "FILE", env = "CALIBER_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// One setting, as in the file: `http.grace=5s`; may be repeated, and wins over file and environment
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// The database; the same as --set database=FILE
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) database: Option<PathBuf>,
    /// Work on this server instead of the local database, such as https://caliber.example.com
    // The subcommands have arguments of the same name.
    #[arg(
        id = "server_url",
        long = "server",
        global = true,
        value_name = "URL",
        env = "CALIBER_SERVER"
    )]
    #[arg(conflicts_with = "database")]
    pub(crate) server: Option<String>,
    /// A file with the token for the server; the variable CALIBER_TOKEN may hold the token instead
    #[arg(long, global = true, value_name = "FILE", env = "CALIBER_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Send the token also over plain HTTP to a host that is not this machine
    #[arg(long, global = true)]
    pub(crate) plain_http: bool,
    /// The project to work in
    #[arg(long, global = true, value_name = "PROJECT", env = "CALIBER_PROJECT")]
    pub(crate) project: Option<String>,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the HTTP API and the background work
    Serve(serve::Serve),
    /// Register, look at, check, discover and remove MCP servers
    #[command(subcommand)]
    Servers(servers::Servers),
    /// Look at the tools of servers, decide about them, call them; register and run code tools
    #[command(subcommand)]
    Tools(tools::Tools),
    /// Find out what isolates code tools here, and run them for control planes elsewhere
    #[command(subcommand)]
    Sandbox(sandbox::Sandbox),
    /// Say who may call what
    #[command(subcommand)]
    Grants(grants::Grants),
    /// Consent to calls that need it
    #[command(subcommand)]
    Approvals(approvals::Approvals),
    /// Read the ledger of calls
    #[command(subcommand)]
    Invocations(invocations::Invocations),
    /// Read the audit trail
    #[command(subcommand)]
    Audit(audit::Audit),
    /// Make and revoke API tokens
    #[command(subcommand)]
    Token(token::Token),
    /// Print the OpenAPI document of the HTTP API
    Openapi,
    /// Explain the settings
    #[command(subcommand)]
    Config(config::Config),
    /// Look after the database
    #[command(subcommand)]
    Db(database::Database),
}

/// Runs the command and gives its exit code.
pub(crate) fn main() -> ExitCode {
    let arguments = match parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let Arguments { global, command } = arguments;
    let output = output::Output { json: global.json };
    let context = Context::new(global, std::env::vars_os());
    match run(&context, command) {
        Ok(()) => ExitCode::from(Exit::Ok as u8),
        Err(failure) => {
            output::complain(&if output.json {
                serde_json::to_string(&failure.document()).unwrap_or_else(|_| failure.text())
            } else {
                failure.text()
            });
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// The parser with the list of exit codes behind the help of every command.
fn parser() -> clap::Command {
    fn with_exit_codes(command: clap::Command) -> clap::Command {
        command.after_help(exit_help()).mut_subcommands(with_exit_codes)
    }
    with_exit_codes(Arguments::command())
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let mut parser = parser();
    let matches = parser.try_get_matches_from_mut(arguments)?;
    let arguments = Arguments::from_arg_matches(&matches)?;
    // As variables they may stand there for other commands; written out, they were meant to do something.
    for (id, flag) in [("token_file", "--token-file"), ("plain_http", "--plain-http")] {
        let given = matches.value_source(id) == Some(ValueSource::CommandLine);
        if given && arguments.global.server.is_none() {
            let text = format!("{flag} is for a server: name it with --server URL, or leave {flag} out");
            return Err(parser.error(ErrorKind::MissingRequiredArgument, text));
        }
    }
    Ok(arguments)
}

/// A piece of a path that a person gave: whatever it holds, it stays one piece.
pub(crate) fn segment(text: &str) -> String {
    // The set of a form is larger than that of a path, apart from the space.
    url::form_urlencoded::byte_serialize(text.as_bytes())
        .collect::<String>()
        .replace('+', "%20")
}

fn run(context: &Context, command: Command) -> Outcome {
    match &command {
        Command::Openapi => return openapi::run(context),
        Command::Config(command) => return config::run(context, command),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("the runtime cannot be started", &error))?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Serve(command) => serve::run(context, &command).await,
            Command::Servers(command) => servers::run(context, command).await,
            Command::Tools(command) => tools::run(context, command).await,
            Command::Sandbox(command) => sandbox::run(context, command).await,
            Command::Grants(command) => grants::run(context, command).await,
            Command::Approvals(command) => approvals::run(context, command).await,
            Command::Invocations(command) => invocations::run(context, command).await,
            Command::Audit(command) => audit::run(context, command).await,
            Command::Token(command) => token::run(context, command).await,
            Command::Db(command) => database::run(context, command).await,
            Command::Openapi | Command::Config(_) => Ok(()),
        }
    });
    // A read of standard input cannot be cancelled, so it is not waited for.
    runtime.shutdown_background();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent_and_documented() {
        let mut command = parser();
        command.clone().debug_assert();
        let help = command.render_long_help().to_string();
        for (exit, meaning) in Exit::ALL {
            assert!(help.contains(meaning), "{exit:?} is not in the help");
        }
        fn every(command: &clap::Command, check: &mut impl FnMut(&clap::Command)) {
            check(command);
            command
                .get_subcommands()
                .for_each(|command| every(command, check));
        }
        every(&command, &mut |command| {
            assert!(
                command.get_about().is_some(),
                "{} has no text",
                command.get_name()
            );
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{} {} has no text",
                    command.get_name(),
                    argument.get_id()
                );
            }
        });
    }

    #[test]
    fn a_piece_of_a_path_stays_one() {
        assert_eq!(segment("srv_1"), "srv_1");
        assert_eq!(segment("a/../b c?d#e%"), "a%2F..%2Fb%20c%3Fd%23e%25");
    }

    #[test]
    fn what_is_for_a_server_needs_one() {
        let parsed = |words: &str| parse(words.split(' ').map(OsString::from));
        for words in [
            "caliber --token-file t servers list",
            "caliber servers list --token-file t",
            "caliber servers list --plain-http",
        ] {
            let error = parsed(words).unwrap_err();
            assert_eq!(error.exit_code(), Exit::Usage as i32);
            assert!(error.to_string().contains("--server"), "{error}");
        }
        assert!(parsed("caliber servers list --token-file t --plain-http --server http://a").is_ok());
    }

    #[test]
    fn a_server_and_a_database_exclude_each_other() {
        let words = [
            "caliber",
            "servers",
            "list",
            "--server",
            "http://a",
            "--database",
            "b",
        ];
        let error = parse(words.into_iter().map(OsString::from)).unwrap_err();
        assert_eq!(error.exit_code(), Exit::Usage as i32);
    }
}
