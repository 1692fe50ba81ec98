//! A launcher for stdio servers that gives each one namespaces, a private root, Landlock, a system call filter and no
//! rights.
//!
//! A server is the second process of a process namespace of its own. The first one is a small process of ours: when it
//! ends, the kernel ends every process in the namespace, however it hides. It ends with the server, when it is told to,
//! and when the thread that started it ends, with which the control plane's own end is covered, `SIGKILL` included.
//!
//! Each server has a thread of its own here, which starts it and waits for it: the signal at the end of the control
//! plane is tied to that thread, and nothing depends on a runtime that may be shutting down.

mod child;
mod input;
mod measures;
mod view;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use caliber_core::process::{ContainmentMeasure, Launch, LaunchedProcess, ProcessLauncher};
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind, Result};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use self::child::Handle;
use self::input::{Input, InputWriter};
use super::cgroup::{ControlGroups, Found};
pub use crate::settings::{LauncherSettings, ServerLimits, ServerMatch, ServerProfile};

/// Starts stdio servers in isolation that the kernel enforces.
///
/// A server sees the system's programs and libraries read-only, what its [`ServerProfile`] names, an empty folder to
/// work in and an empty `/tmp`, both in memory, and nothing else. It has no network unless its profile says so. It gets
/// exactly the environment of its [`Launch`], and `HOME`, `TMPDIR` and `PWD` where that does not set them; no
/// descriptor but its three pipes; no right of its own. What of this cannot be done makes a launch fail: nothing is
/// left out silently.
#[derive(Debug)]
pub struct NamespaceLauncher {
    shared: Arc<Shared>,
}

/// What the launcher and the threads of its children share.
#[derive(Debug)]
struct Shared {
    settings: LauncherSettings,
    places: Arc<Semaphore>,
    /// Which of the user ids are taken, by their distance from the first.
    users: Mutex<Vec<bool>>,
    groups: OnceLock<Found>,
    tried: OnceLock<Vec<ContainmentMeasure>>,
}

impl NamespaceLauncher {
    /// Starts nothing yet.
    ///
    /// # Errors
    ///
    /// `Invalid` for settings that cannot be.
    pub fn new(settings: LauncherSettings) -> Result<Self> {
        settings.check()?;
        Ok(Self {
            shared: Arc::new(Shared {
                places: Arc::new(Semaphore::new(settings.children.min(Semaphore::MAX_PERMITS))),
                // One more, for the trial.
                users: Mutex::new(vec![false; settings.children + 1]),
                groups: OnceLock::new(),
                tried: OnceLock::new(),
                settings,
            }),
        })
    }
}

impl Shared {
    /// What control groups do here. Found out once, which blocks for some milliseconds.
    fn groups(&self) -> &Found {
        self.groups
            .get_or_init(|| ControlGroups::find(self.settings.control_group.as_deref()))
    }

    fn place(&self) -> Result<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().map_err(|_| {
            let text = format!(
                "{} child processes run already, which is the limit; stop some or raise it",
                self.settings.children
            );
            Error::new(ErrorKind::Unavailable, text).with_reason(ReasonCode::ServerBusy)
        })
    }
}

/// A user id that one child has, for as long as this is held.
#[derive(Debug)]
struct User {
    shared: Arc<Shared>,
    index: usize,
    id: u32,
}

impl User {
    /// A free one; there are as many as places.
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let mut users = shared.users.lock().unwrap_or_else(PoisonError::into_inner);
        let index = users.iter().position(|taken| !taken)?;
        *users.get_mut(index)? = true;
        drop(users);
        let id = shared
            .settings
            .first_uid
            .checked_add(u32::try_from(index).ok()?)?;
        Some(Self {
            shared: shared.clone(),
            index,
            id,
        })
    }
}

impl User {
    fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut users = self.shared.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = users.get_mut(self.index) {
            *taken = false;
        }
    }
}

#[async_trait]
impl ProcessLauncher for NamespaceLauncher {
    /// Cancel-safe: a child that nobody waits for any more is ended.
    ///
    /// # Errors
    ///
    /// As the port says; `Unavailable` with `SandboxUnavailable` when a layer cannot be applied here.
    async fn launch(&self, launch: Launch) -> Result<LaunchedProcess> {
        let place = self.shared.place()?;
        let started = child::start(self.shared.clone(), place, launch)?
            .await
            .map_err(|_| Error::internal("the thread of a child ended without an answer"))??;
        let streams = (
            pipe::Sender::from_owned_fd(started.stdin),
            pipe::Receiver::from_owned_fd(started.stdout),
            pipe::Receiver::from_owned_fd(started.stderr),
        );
        let (Ok(stdin), Ok(stdout), Ok(stderr)) = streams else {
            return Err(Error::internal(
                "the pipes of a child could not be given to the runtime",
            ));
        };
        let input = Arc::new(Input::new(stdin));
        let settings = &self.shared.settings;
        Ok(LaunchedProcess {
            stdin: Box::new(InputWriter::new(input.clone())),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
            handle: Box::new(Handle::new(
                started.life,
                input,
                settings.input_grace,
                settings.term_grace,
            )),
        })
    }

    /// What holds, found out by starting a small program as a server is started and looking at it from outside. The
    /// first call blocks for some ten milliseconds.
    fn containment(&self) -> Vec<ContainmentMeasure> {
        self.shared
            .tried
            .get_or_init(|| measures::try_out(&self.shared))
            .clone()
    }
}

type Answer = oneshot::Receiver<Result<child::Started>>;
