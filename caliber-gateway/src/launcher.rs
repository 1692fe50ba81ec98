//! A launcher for stdio servers that needs no privileges: process groups, a private directory, and several nets that
//! catch descendants. It shares the host's files and network with its children, and says so.
//!
//! Each child has a thread of its own here. The thread starts the child, waits for it, ends what it left behind and
//! removes its directory. So nothing depends on a runtime that may be shutting down, no handler for `SIGCHLD` is
//! installed, and the parent-death signal, which the kernel ties to the thread that started the child, fires when
//! this process ends and not before.
//!
//! Descendants are found by a variable in their environment, `CALIBER_CHILD`, which the kernel shows in `/proc`; and, where
//! this process may make a control group, by that. A guard process does the same when this process was killed.

mod cgroup;
mod child;
mod descendants;
mod directory;
mod guard;
mod input;
mod probe;
mod program;

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use caliber_core::process::{ContainmentMeasure, Launch, LaunchedProcess, ProcessLauncher};
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind, Result};
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, oneshot};

use self::child::Handle;
use self::guard::Guard;
use self::input::{Input, InputWriter};
use self::probe::Probe;

/// The variable in the environment of every child and its descendants by which they are found again. It holds no
/// secret.
const MARKER: &str = "CALIBER_CHILD";

/// How children are started and stopped.
#[derive(Clone, Debug)]
pub struct LauncherSettings {
    /// The most children at once; beyond that a start is refused. Default 64.
    pub children: usize,
    /// Where the private directories are made, an absolute path. Default `/tmp`.
    pub directory: PathBuf,
    /// How long a child may take to end by itself once its input was closed. Default 1 s.
    pub input_grace: Duration,
    /// How long a child, and then what it left behind, may take to end after `SIGTERM`. Default 2 s.
    pub term_grace: Duration,
    /// Where the programs that this launcher uses (`setpriv`, `setsid`, `flock`, `sh`, `grep`) are looked for. Default
    /// `/usr/local/bin:/usr/bin:/bin`.
    pub tool_path: String,
    /// Whether children may gain privileges by set-user-ID programs such as `sudo`, which also takes them out of
    /// reach. Default no.
    pub new_privileges: bool,
    /// Whether a control group is made for each child, where this process may make one. Default yes.
    pub cgroup: bool,
    /// Whether children get a parent-death signal, where `setpriv` of util-linux is at hand. Default yes.
    pub parent_death_signal: bool,
    /// Whether a guard process, a small shell script, ends the children when this process was killed. Default yes.
    pub guard: bool,
}

impl Default for LauncherSettings {
    fn default() -> Self {
        Self {
            children: 64,
            directory: "/tmp".into(),
            input_grace: Duration::from_secs(1),
            term_grace: Duration::from_secs(2),
            tool_path: "/usr/local/bin:/usr/bin:/bin".into(),
            new_privileges: false,
            cgroup: true,
            parent_death_signal: true,
            guard: true,
        }
    }
}

/// Starts stdio servers as plain child processes.
///
/// A child gets exactly the environment of its [`Launch`] and four variables more: `CALIBER_CHILD` always, and `HOME`,
/// `TMPDIR` and `PWD` with its private directory where the launch does not set them. It gets no descriptor but its
/// three pipes and those that this process holds open without close-on-exec;
/// [`containment`](ProcessLauncher::containment) tells whether there are such.
///
/// Not for programs that the kernel hands to an interpreter by their magic number (`binfmt_misc`): an executable is
/// an ELF file for this machine or a script with a `#!` line, so that no shell ever guesses.
#[derive(Debug)]
pub struct PlainLauncher {
    shared: Arc<Shared>,
}

/// What the launcher and the threads of its children share. Gone with the last of them.
#[derive(Debug)]
struct Shared {
    settings: LauncherSettings,
    /// Random; in the markers and in the names of directories.
    instance: String,
    places: Arc<Semaphore>,
    /// The number of the next child.
    next: AtomicU64,
    probe: OnceLock<Probe>,
    guard: Mutex<guard::State>,
}

impl PlainLauncher {
    /// Starts nothing yet.
    pub fn new(settings: LauncherSettings) -> Self {
        let places = Semaphore::new(settings.children.min(Semaphore::MAX_PERMITS));
        Self {
            shared: Arc::new(Shared {
                instance: uuid::Uuid::new_v4().simple().to_string(),
                places: Arc::new(places),
                next: AtomicU64::new(1),
                probe: OnceLock::new(),
                guard: Mutex::new(guard::State::default()),
                settings,
            }),
        }
    }
}

impl Shared {
    /// What this machine offers. Found out once, which takes some milliseconds and blocks.
    fn probe(&self) -> &Probe {
        self.probe
            .get_or_init(|| Probe::new(&self.settings, &self.instance))
    }

    /// The directory that holds the private directories.
    fn root(&self) -> PathBuf {
        self.settings.directory.join(format!("caliber-{}", self.instance))
    }

    /// The marker of child `number`, as it stands in the environment.
    fn marker(&self, number: u64) -> String {
        format!("{}.{number}", self.instance)
    }

    /// Sees to it that the guard runs.
    fn ensure_guard(&self) {
        let mut guard = self
            .guard
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.settings.guard && !guard.is_running() {
            *guard = match Guard::start(self) {
                Ok(started) => guard::State::Running(started),
                Err(problem) => guard::State::Failed(problem),
            };
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The directories inside are gone; the guard, which ends when its pipe is dropped, would find none either.
        let _ = std::fs::remove_dir(self.root());
    }
}

#[async_trait]
impl ProcessLauncher for PlainLauncher {
    /// Cancel-safe: a child that nobody waits for any more is ended.
    async fn launch(&self, launch: Launch) -> Result<LaunchedProcess> {
        let shared = self.shared.clone();
        let place = shared.places.clone().try_acquire_owned().map_err(|_| {
            let text = format!(
                "{} child processes run already, which is the limit; stop some or raise it",
                shared.settings.children
            );
            Error::new(ErrorKind::Unavailable, text).with_reason(ReasonCode::ServerBusy)
        })?;
        let (input_grace, term_grace) = (shared.settings.input_grace, shared.settings.term_grace);
        let (reply, started) = oneshot::channel();
        std::thread::Builder::new()
            .name("caliber-child".into())
            .spawn(move || child::keep(shared, place, launch, reply))
            .map_err(|error| {
                Error::new(ErrorKind::Unavailable, "no thread could be started for a child")
                    .with_source(error)
            })?;
        let started = started
            .await
            .map_err(|_| Error::internal("the thread of a child ended without an answer"))??;
        let streams = (
            pipe::Sender::from_owned_fd(started.stdin.into()),
            pipe::Receiver::from_owned_fd(started.stdout.into()),
            pipe::Receiver::from_owned_fd(started.stderr.into()),
        );
        let (Ok(stdin), Ok(stdout), Ok(stderr)) = streams else {
            return Err(Error::internal(
                "the pipes of a child could not be given to the runtime",
            ));
        };
        let input = Arc::new(Input::new(stdin));
        Ok(LaunchedProcess {
            stdin: Box::new(InputWriter(input.clone())),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
            handle: Box::new(Handle::new(started.life, input, input_grace, term_grace)),
        })
    }

    /// What is in force now. The first call may take some milliseconds, because it tries things out.
    fn containment(&self) -> Vec<ContainmentMeasure> {
        let guard = self
            .shared
            .guard
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        self.shared.probe().containment(&self.shared.settings, &guard)
    }
}

#[cfg(test)]
mod tests;
