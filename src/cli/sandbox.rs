//! `caliber sandbox`: what isolates code tools here, and the service that runs them for control planes elsewhere.

use std::net::SocketAddr;
use std::path::PathBuf;

use caliber::SandboxChoice;
use caliber::core::sandbox::{Enforcement, SandboxReport};
use caliber::sandbox::LocalSandbox;
use caliber::sandbox::remote::{ServiceOptions, serve};
use clap::{Args, Subcommand};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::context::Context;
use super::failure::{Exit, Failure, Outcome};
use super::log;
use super::output::{Output, long, with_progress};
use super::serve::{ListeningFile, Signals};
use super::settings::{SandboxBackend, named, service_token};

/// Find out what isolates code tools here, and run them for control planes elsewhere.
#[derive(Debug, Subcommand)]
pub(crate) enum Sandbox {
    /// Try what this machine enforces, and say what to do about each gap; exit code 13 when no tool may run
    Doctor,
    /// Run code tools for control planes that may not make namespaces where they run
    Serve(Serve),
}

/// Run code tools for control planes elsewhere, until SIGTERM or SIGINT.
///
/// Everything that a tool names (source folders, packages, executables) lies on this machine. It has the settings of
/// the sandbox; the database and everything else stays with the control plane.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes a free one. Others than loopback need TLS in front, and --behind-tls
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8641")]
    listen: SocketAddr,
    /// A file with the token that control planes send, 32 to 4096 visible characters
    #[arg(long, value_name = "FILE")]
    service_token_file: PathBuf,
    /// Something in front speaks TLS on a network of its own
    #[arg(long)]
    behind_tls: bool,
    /// A file that is written with the address once connections are accepted, and removed at the end
    #[arg(long, value_name = "FILE")]
    listening_file: Option<PathBuf>,
}

pub(crate) async fn run(context: &Context, command: Sandbox) -> Outcome {
    if context.global.server.is_some() {
        let text = "it is about this machine; leave --server out (GET /sandbox tells of that of a server)";
        return Err(Failure::usage(text));
    }
    match command {
        Sandbox::Doctor => doctor(context).await,
        Sandbox::Serve(serve) => run_service(context, &serve).await,
    }
}

async fn doctor(context: &Context) -> Outcome {
    let settings = context.settings(&[])?;
    let choice = settings.sandbox_choice()?;
    // A look leaves nothing behind: a folder for copies that was not there is taken away again.
    let made = match &choice {
        SandboxChoice::Local(local) if !local.snapshot_folder.exists() => Some(local.snapshot_folder.clone()),
        _ => None,
    };
    if matches!(choice, SandboxChoice::Off) {
        let failure = Failure::new(
            Exit::Unavailable,
            "the setting sandbox.backend is off: no code tool runs",
        );
        return Err(failure.with_hint("set sandbox.backend to local or remote"));
    }
    let starting = async { choice.start().await.map_err(named) };
    let Some(sandbox) = with_progress("trying what this machine enforces", starting).await? else {
        return Err(Failure::new(Exit::Unavailable, "there is no sandbox"));
    };
    let report = sandbox.report();
    sandbox
        .close(caliber::core::clock::Deadline::after(
            std::time::Duration::from_secs(5),
        ))
        .await;
    drop(sandbox);
    if let Some(folder) = made {
        // One that something has been put into meanwhile stays.
        let _ = std::fs::remove_dir(folder);
    }
    let service = settings
        .sandbox
        .remote
        .url
        .as_deref()
        .filter(|_| report.backend == "remote");
    let output = context.output();
    if output.json {
        output.document(&*report)?;
    } else {
        print(output, &report, service)?;
    }
    if report.is_available() {
        return Ok(());
    }
    let missing: Vec<_> = report
        .missing()
        .iter()
        .map(|guarantee| guarantee.as_str())
        .collect();
    Err(Failure::new(
        Exit::SandboxUnavailable,
        match &report.problem {
            Some(problem) => format!("no code tool may run here: {problem}"),
            None => format!("no code tool may run here: {} must hold", missing.join(", ")),
        },
    )
    .with_hint(
        remedy(&report, service)
            .unwrap_or_else(|| "docs/sandbox.md explains each guarantee and what takes it away".to_owned()),
    ))
}

/// What to do where one thing is in the way of everything.
fn remedy(report: &SandboxReport, service: Option<&str>) -> Option<String> {
    let problem = report.problem.as_deref()?;
    Some(match service {
        Some(url) if problem.contains("token") => format!(
            "the service at {} has another token: the file of sandbox.remote.token_file and that of \
             --service-token-file there have to hold the same",
            long(&host_and_port(url))
        ),
        Some(url) => format!(
            "start `caliber sandbox serve` for {}, and see that it can be reached from here: sandbox.remote.url",
            long(&host_and_port(url))
        ),
        None if report.interpreter.is_none() => {
            "name a real interpreter, such as /usr/bin/python3, in the setting sandbox.interpreter".to_owned()
        }
        None => return None,
    })
}

fn host_and_port(url: &str) -> String {
    let parsed = url::Url::parse(url).ok();
    parsed
        .and_then(|url| Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?)))
        .unwrap_or_else(|| url.to_owned())
}

fn print(output: Output, report: &SandboxReport, service: Option<&str>) -> Outcome {
    output.pairs(&[
        ("sandbox", long(&report.backend)),
        ("service", long(&service.map(host_and_port).unwrap_or_default())),
        (
            "code tools",
            match (report.is_available(), report.missing().is_empty()) {
                (true, true) => "run".to_owned(),
                (true, false) => "run although guarantees are missing (sandbox.allow_unenforced)".to_owned(),
                (false, _) => "do not run".to_owned(),
            },
        ),
        (
            "interpreter",
            long(report.interpreter.as_deref().unwrap_or("none")),
        ),
        ("problem", long(report.problem.as_deref().unwrap_or_default())),
    ])?;
    let mut rows = Vec::new();
    let mut remedies = Vec::new();
    for (guarantee, enforcement) in &report.guarantees {
        let required = report.required.contains(guarantee);
        let (state, details) = match enforcement {
            Enforcement::Enforced { by } => ("enforced", by.join(", ")),
            Enforcement::Partial { by, gaps } => {
                ("partial", format!("{}; open: {}", by.join(", "), gaps.join(", ")))
            }
            Enforcement::NotEnforced { stage, errno, remedy } => {
                remedies.push(format!("{}: {}", guarantee.as_str(), long(remedy)));
                ("not enforced", format!("{stage} {errno}"))
            }
        };
        rows.push(vec![
            guarantee.as_str().to_owned(),
            if required { "required" } else { "" }.to_owned(),
            state.to_owned(),
            long(details.trim()),
        ]);
    }
    output.table(&["GUARANTEE", "", "STATE", "BY"], rows, "it promises nothing")?;
    // One thing that is in the way of everything has one remedy, which stands in the hint.
    if remedy(report, service).is_some() {
        remedies.clear();
    }
    if !remedies.is_empty() {
        output.line("what to do:")?;
        for remedy in remedies {
            output.line(format_args!("  {remedy}"))?;
        }
    }
    Ok(())
}

async fn run_service(context: &Context, arguments: &Serve) -> Outcome {
    let settings = context.settings(&[])?;
    if settings.sandbox.backend != SandboxBackend::Local {
        let text = "a service runs tools on its own machine: set sandbox.backend to local";
        return Err(Failure::usage(text));
    }
    let mut options = ServiceOptions::new(service_token(&arguments.service_token_file)?);
    options.behind_tls = arguments.behind_tls;
    options.check_address(arguments.listen).map_err(|error| {
        Failure::from(error).with_hint("--behind-tls says that something in front speaks TLS")
    })?;
    log::install(&settings);
    let signals = Signals::new()?;
    let sandbox = std::sync::Arc::new(
        LocalSandbox::start(settings.local_sandbox()?)
            .await
            .map_err(named)?,
    );
    use caliber::core::sandbox::Sandbox as _;
    let report = sandbox.report();
    if !report.is_available() {
        let missing: Vec<_> = report
            .missing()
            .iter()
            .map(|guarantee| guarantee.as_str())
            .collect();
        context.output().note(&format!(
            "no code tool may run here: {}; `caliber sandbox doctor` says what to do",
            report.problem.clone().unwrap_or_else(|| missing.join(", "))
        ));
    }
    let address = arguments.listen;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Failure::new(Exit::Failure, format!("cannot listen on {address}: {error}")))?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::io("the listener has no address", &error))?;
    let cancel = CancellationToken::new();
    let mut service = tokio::spawn(serve(sandbox.clone(), listener, options, cancel.clone()));
    let file = arguments
        .listening_file
        .as_deref()
        .map(|path| ListeningFile::write(path, address))
        .transpose()?;
    let output = context.output();
    if output.json {
        output.document(&serde_json::json!({ "listening": address.to_string() }))?;
    } else {
        output.line(format_args!("the sandbox is ready at http://{address}"))?;
    }
    let defect = |error: tokio::task::JoinError| {
        Failure::new(
            Exit::Failure,
            format!("a part of the service has failed: {error}"),
        )
    };
    let early = tokio::select! {
        () = signals.wait() => None,
        ended = &mut service => Some(ended),
    };
    drop(file);
    cancel.cancel();
    let ended = match early {
        Some(ended) => ended,
        None => service.await,
    };
    sandbox
        .close(caliber::core::clock::Deadline::after(
            std::time::Duration::from_secs(5),
        ))
        .await;
    ended.map_err(defect)?.map_err(Failure::from)
}
