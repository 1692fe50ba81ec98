//! `caliber serve`: the HTTP API and the background work, until a signal.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use caliber::Caliber;
use caliber::core::page::PageRequest;
use caliber::core::principal::Principal;
use caliber::core::text::shown;
use caliber::http::{Authentication, HttpSettings};
use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::backend::open_installation;
use super::context::Context;
use super::failure::{Exit, Failure, Outcome};
use super::log;
use super::settings::Settings;

/// What sessions and records have at least, when requests took the whole grace period.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Run the HTTP API and the background work, until SIGTERM or SIGINT.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes a free one. The same as --set http.listen=ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// A file that is written with the address once connections are accepted, and removed at the end
    #[arg(long, value_name = "FILE")]
    listening_file: Option<PathBuf>,
}

pub(crate) async fn run(context: &Context, serve: &Serve) -> Outcome {
    if context.global.server.is_some() {
        return Err(Failure::usage(
            "a server is served from its database; leave --server out",
        ));
    }
    let listen: Vec<_> = serve
        .listen
        .iter()
        .map(|address| ("flag --listen", "http.listen", address.to_string()))
        .collect();
    let settings = context.settings(&listen)?;
    refuse_unsafe(&settings)?;
    log::install(&settings);
    let signals = Signals::new()?;
    let (http, address, grace) = (settings.http.clone(), settings.listen, settings.http.grace);
    let installation = open_installation(settings, true).await?;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::new(Exit::Failure, format!("cannot listen on {address}: {error}"))
            .with_hint("choose another address with --listen; port 0 takes a free one")
    })?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::io("the listener has no address", &error))?;

    let (stop_requests, stop_work) = (CancellationToken::new(), CancellationToken::new());
    let api = tokio::spawn(caliber::http::serve(
        listener,
        installation.caliber.clone(),
        http.clone(),
        stop_requests.clone(),
    ));
    let caliber = installation.caliber.clone();
    let stop = stop_work.clone();
    let mut work = tokio::spawn(async move { caliber.run(stop, grace).await });
    let mut api = api;
    let file = serve
        .listening_file
        .as_deref()
        .map(|path| ListeningFile::write(path, address))
        .transpose()?;
    ready(context, address, http.prefix.as_str())?;
    suggest_token(context, &installation.caliber, &http).await?;

    let early = tokio::select! {
        () = signals.wait() => None,
        ended = &mut api => Some(ended.map_err(|error| defect(&error)).and_then(|ended| ended.map_err(|error| refused(&error)))),
        ended = &mut work => Some(ended.map_err(|error| defect(&error)).and_then(|ended| ended.map_err(Failure::from))),
    };
    drop(file);
    tracing::info!(grace = ?grace, "ending");
    let ending = Instant::now();
    stop_requests.cancel();
    let mut outcome = early.unwrap_or(Ok(()));
    if !api.is_finished() {
        let ended = api.await;
        outcome = outcome.and(
            ended
                .map_err(|error| defect(&error))
                .and_then(|ended| ended.map_err(|error| refused(&error))),
        );
    }
    // Requests have ended, so nothing can begin any more. What is left of the grace period is for the sessions.
    stop_work.cancel();
    if !work.is_finished() {
        let left = grace.saturating_sub(ending.elapsed()).max(LAST_WORDS);
        outcome = outcome.and(match tokio::time::timeout(left, work).await {
            Ok(ended) => ended
                .map_err(|error| defect(&error))
                .and_then(|ended| ended.map_err(Failure::from)),
            Err(_) => Err(Failure::new(
                Exit::Failure,
                "sessions and records did not end within the grace period",
            )),
        });
    }
    installation.store.close().await;
    tracing::info!(took = ?ending.elapsed(), "ended");
    outcome
}

/// Whoever listens beyond this machine must ask who comes.
fn refuse_unsafe(settings: &Settings) -> Outcome {
    let open = settings.http.authentication == Authentication::OpenOnLoopback;
    if open && !settings.listen.ip().to_canonical().is_loopback() {
        let text = format!("refusing to serve {} without authentication", settings.listen);
        return Err(Failure::usage(text).with_hint("listen on loopback, or take http.open_on_loopback back"));
    }
    Ok(())
}

fn ready(context: &Context, address: SocketAddr, prefix: &str) -> Outcome {
    let url = format!("http://{address}{prefix}");
    let output = context.output();
    if output.json {
        return output.document(&serde_json::json!({ "listening": address.to_string(), "url": url }));
    }
    output.line(format_args!("caliber is ready at {url}"))
}

/// Without a token nobody can do anything, and the first user should know how to make one.
async fn suggest_token(context: &Context, caliber: &Caliber, http: &HttpSettings) -> Outcome {
    let page = PageRequest::first(1);
    let tokens = caliber.tokens(&Principal::local_administrator(), &page).await?;
    let other_ways = http.authentication == Authentication::OpenOnLoopback || http.trusted_identity.is_some();
    if tokens.items.is_empty() && !other_ways {
        context.output().note(&format!(
            "nobody has a token yet: {}",
            context.command("token create --subject NAME --scope admin")
        ));
    }
    Ok(())
}

fn defect(error: &tokio::task::JoinError) -> Failure {
    Failure::new(Exit::Failure, format!("a part of the server has failed: {error}"))
}

fn refused(error: &caliber::http::Error) -> Failure {
    match error {
        caliber::http::Error::Listener(_) => Failure::new(Exit::Failure, error.to_string()),
        _ => Failure::usage(error.to_string()),
    }
}

/// SIGTERM and SIGINT. The first asks for an orderly end; the second ends at once.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> Outcome<Self> {
        let receive = |kind| signal(kind).map_err(|error| Failure::io("signals cannot be received", &error));
        Ok(Self {
            terminate: receive(SignalKind::terminate())?,
            interrupt: receive(SignalKind::interrupt())?,
        })
    }

    /// Waits for the first; a task waits for the second.
    pub(super) async fn wait(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(i32::from(Exit::Interrupted as u8));
        });
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The file that tells where the server listens. It is there while connections are accepted, and never half written.
pub(super) struct ListeningFile(PathBuf);

impl ListeningFile {
    pub(super) fn write(path: &Path, address: SocketAddr) -> Outcome<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        std::fs::write(&new, address.to_string())
            .and_then(|()| std::fs::rename(&new, path))
            .map_err(|error| {
                let shown = shown(&path.to_string_lossy());
                Failure::io(&format!("the listening file {shown} cannot be written"), &error)
            })?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for ListeningFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!(%error, "the listening file could not be removed");
        }
    }
}
