//! The life of one child: its thread here, and the handle of whoever had it started.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use caliber_core::process::{Launch, ProcessHandle};
use caliber_core::reason::ReasonCode;
use caliber_core::secret::SecretText;
use caliber_core::server::is_environment_key;
use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Access;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::time::Instant;

use super::input::Input;
use super::view::{self, View};
use super::{Answer, Shared, User};
use crate::linux::cgroup::{Group, GroupLimits};
use crate::linux::confinement::{Confinement, Identity, Namespaces, ProcessLimits, SeccompProfile};
use crate::linux::prepared::prepare;
use crate::linux::spawn::{Child, Descriptors, SpawnFailure, Stage, spawn};
use crate::settings::ServerProfile;

/// How long killing may take before whoever waits for it is let go: the kernel may hold a process, for instance in a
/// dead file system.
const KILL_TIME: Duration = Duration::from_secs(10);

/// A child that runs.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) life: Life,
}

/// Whoever holds this wants the child to live; dropping it kills the child and its descendants.
#[derive(Debug)]
pub(super) struct Life {
    pid: u32,
    /// Holds the process, so that a signal never reaches another one.
    process: OwnedFd,
    end: watch::Receiver<Option<String>>,
}

impl Life {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.process, signal);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Starts a child on a thread of its own, which waits for it and clears up after it.
pub(super) fn start(shared: Arc<Shared>, place: OwnedSemaphorePermit, launch: Launch) -> Result<Answer> {
    let (reply, started) = oneshot::channel();
    std::thread::Builder::new()
        .name("caliber-server".into())
        .spawn(move || keep(shared, place, launch, reply))
        .map_err(|error| {
            Error::new(ErrorKind::Unavailable, "no thread could be started for a child").with_source(error)
        })?;
    Ok(started)
}

/// The thread of a child. What the child has is given back when it and all that it started are gone.
fn keep(
    shared: Arc<Shared>,
    place: OwnedSemaphorePermit,
    launch: Launch,
    reply: oneshot::Sender<Result<Started>>,
) {
    let begun = begin(&shared, &launch);
    // Its secrets are with the child now.
    drop(launch);
    let Begun {
        mut child,
        user,
        group,
        stdin,
        stdout,
        stderr,
    } = match begun {
        Ok(begun) => begun,
        Err(error) => {
            drop(place);
            let _ = reply.send(Err(error));
            return;
        }
    };
    let (end, seen) = watch::channel(None);
    let started = child
        .pidfd()
        .try_clone_to_owned()
        .map(|process| Started {
            stdin,
            stdout,
            stderr,
            life: Life {
                pid: child.pid().as_raw_nonzero().get().unsigned_abs(),
                process,
                end: seen,
            },
        })
        .map_err(|error| {
            Error::new(ErrorKind::Unavailable, "there are no free descriptors").with_source(error)
        });
    // Where the answer finds nobody, the life in it is dropped and the child with it.
    if let Err(Ok(unwanted)) = reply.send(started) {
        drop(unwanted);
    }

    let status = wait(&mut child);
    drop(child);
    // Its folders were in memory and are gone with its last process.
    drop(group);
    drop(user);
    drop(place);
    drop(shared);
    end.send_replace(Some(status));
}

/// Blocks until the child has ended, and with it everything in its namespace.
fn wait(child: &mut Child) -> String {
    loop {
        let ended = match poll(&mut [PollFd::new(&child.pidfd(), PollFlags::IN)], None) {
            Ok(_) => child.collect(),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno),
        };
        return match ended {
            Ok(None) => continue,
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("exit status: {code}"),
                (None, Some(signal)) => format!("killed by signal {signal}"),
                (None, None) => "ended in an unknown way".into(),
            },
            // The program that embeds us reaps every child itself, or ignores their end.
            Err(_) => "ended; another part of this program took its exit status".into(),
        };
    }
}

/// A child with everything that it holds.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) child: Child,
    user: Option<User>,
    group: Option<Group>,
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

pub(super) fn begin(shared: &Arc<Shared>, launch: &Launch) -> Result<Begun> {
    let profile = shared.settings.profile_of(launch);
    check_executable(&launch.executable)?;
    let is_root = rustix::process::geteuid().is_root();
    let user = match profile.user {
        None if is_root => {
            Some(User::take(shared).ok_or_else(|| Error::internal("there are fewer user ids than places"))?)
        }
        _ => None,
    };
    let identity = match profile.user.or(user.as_ref().map(User::id)) {
        Some(id) if is_root => Identity::Other { id },
        _ => Identity::Caller,
    };
    let confinement = confinement(launch, profile, identity, !is_root)?;
    let prepared = prepare(&confinement).map_err(|failure| failed(&launch.executable, failure))?;
    // The environment, secrets and all, is in what was prepared; this copy is not needed any more.
    drop(confinement);
    let group = match &shared.groups().groups {
        Some(groups) => Some(
            groups
                .make(GroupLimits {
                    memory_bytes: profile.limits.memory_bytes,
                    processes: profile.limits.processes,
                })
                .map_err(|failure| {
                    let text = "no control group could be made for a child; see the report of the launcher";
                    Error::new(ErrorKind::Unavailable, text)
                        .with_reason(ReasonCode::SandboxFailed)
                        .with_source(failure)
                })?,
        ),
        None => None,
    };
    let pipes = (pipe()?, pipe()?, pipe()?);
    let ((stdin_of_child, stdin), (stdout, stdout_of_child), (stderr, stderr_of_child)) = pipes;
    let child = spawn(
        &Arc::new(prepared),
        Descriptors {
            stdin: stdin_of_child.as_fd(),
            stdout: stdout_of_child.as_fd(),
            stderr: stderr_of_child.as_fd(),
            channel: None,
            cgroups: group.as_ref().map(Group::joining).unwrap_or_default(),
        },
    )
    .map_err(|failure| failed(&launch.executable, failure))?;
    Ok(Begun {
        child,
        user,
        group,
        stdin,
        stdout,
        stderr,
    })
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "no pipe could be made for a child").with_source(error)
    })
}

/// Everything that a server gets.
fn confinement(
    launch: &Launch,
    profile: &ServerProfile,
    identity: Identity,
    user_namespace: bool,
) -> Result<Confinement> {
    let (root, rules) = View::new(profile, &launch.executable)
        .map_err(|missing| {
            let text = format!(
                "{} cannot be shown to a server: {}; correct the launcher's settings",
                shown(&missing.path.to_string_lossy()),
                missing.error
            );
            Error::new(ErrorKind::Unavailable, text).with_reason(ReasonCode::SandboxFailed)
        })?
        .into_parts();
    let executable = word(launch.executable.as_os_str().as_bytes(), "executable")?;
    let mut args = vec![executable.clone()];
    for argument in &launch.args {
        args.push(word(argument.as_bytes(), "args")?);
    }
    let limits = profile.limits;
    Ok(Confinement {
        executable,
        args,
        env: environment(&launch.env)?,
        directory: word(view::HOME.as_bytes(), "directory")?,
        root: Some(root),
        namespaces: Namespaces {
            network: !profile.network,
            ..Namespaces::all(user_namespace)
        },
        identity,
        limits: ProcessLimits {
            address_space: limits.address_space_bytes,
            processes: Some(limits.processes),
            file_size: Some(limits.file_bytes),
            open_files: Some(limits.open_files),
            cpu_seconds: None,
            keep_other: false,
        },
        landlock: Some(rules),
        seccomp: Some(SeccompProfile::Server {
            network: profile.network,
        }),
        init: true,
        session: true,
    })
}

/// What the launch says, and where the child lives.
fn environment(given: &BTreeMap<String, SecretText>) -> Result<Vec<CString>> {
    let own = [
        ("HOME", view::HOME),
        ("PWD", view::HOME),
        ("TMPDIR", view::TEMPORARY),
    ];
    let mut entries = Vec::with_capacity(given.len() + own.len());
    for (key, value) in own {
        if !given.contains_key(key) {
            entries.push(word(format!("{key}={value}").as_bytes(), "env")?);
        }
    }
    for (key, value) in given {
        if !is_environment_key(key) {
            return Err(Error::invalid(
                "env",
                format!("{} cannot name a variable", shown(key)),
            ));
        }
        let mut entry = Vec::with_capacity(key.len() + 1 + value.expose().len());
        entry.extend_from_slice(key.as_bytes());
        entry.push(b'=');
        entry.extend_from_slice(value.expose().as_bytes());
        entries.push(word(&entry, "env")?);
    }
    Ok(entries)
}

/// `bytes` as the kernel takes them. The error does not show them: they may be secret.
fn word(bytes: &[u8], field: &str) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::invalid(field, "holds a zero byte, which no program can be given"))
}

/// Refuses what is no program before anything is made for it.
fn check_executable(path: &Path) -> Result<()> {
    if !path.is_absolute() {
        return Err(cannot_start(path, "its path is not absolute"));
    }
    let metadata = path
        .metadata()
        .map_err(|error| cannot_start(path, &error.to_string()))?;
    if !metadata.is_file() {
        return Err(cannot_start(path, "it is not a file"));
    }
    rustix::fs::access(path, Access::EXEC_OK).map_err(|error| cannot_start(path, &error.to_string()))
}

fn cannot_start(path: &Path, why: &str) -> Error {
    let text = format!("{} cannot be started: {why}", shown(&path.to_string_lossy()));
    Error::new(ErrorKind::Upstream, text)
}

/// A program that does not start is the server's fault; a layer that cannot be applied is the host's.
fn failed(executable: &Path, failure: SpawnFailure) -> Error {
    if failure.stage == Stage::Exec {
        let why = match failure.errno {
            Errno::NOENT => {
                "its interpreter or loader is not visible to it; name its folder as readable".to_owned()
            }
            Errno::ACCESS => "it may not be executed where it is; name its folder as readable".to_owned(),
            errno => errno.to_string(),
        };
        return cannot_start(executable, &why).with_source(failure);
    }
    let text = format!("servers cannot be isolated here: {failure}");
    Error::new(ErrorKind::Unavailable, text)
        .with_reason(ReasonCode::SandboxUnavailable)
        .with_source(failure)
}

/// What the gateway holds of a child.
pub(super) struct Handle {
    life: Life,
    input: Arc<Input>,
    input_grace: Duration,
    term_grace: Duration,
}

impl Handle {
    pub(super) fn new(life: Life, input: Arc<Input>, input_grace: Duration, term_grace: Duration) -> Self {
        Self {
            life,
            input,
            input_grace,
            term_grace,
        }
    }

    /// Waits until nothing is left of the child, and returns whether that was in time.
    async fn is_gone_by(&mut self, until: Instant) -> bool {
        // When its thread is gone, so is the child.
        tokio::time::timeout_at(until, self.life.end.wait_for(Option::is_some))
            .await
            .is_ok()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Handle")
            .field("pid", &self.life.pid)
            .field("end", &*self.life.end.borrow())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl ProcessHandle for Handle {
    /// That of the first process of the child's namespace.
    fn id(&self) -> u32 {
        self.life.pid()
    }

    /// A program that was ended by a signal has the exit status 128 and the signal's number, as shells say it.
    async fn wait(&mut self) -> String {
        match self.life.end.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(status)) => status.clone(),
            _ => "ended; nobody saw how".into(),
        }
    }

    /// Closes its input, waits, sends `SIGTERM` to the server, waits, kills. Returns after the two graces of the
    /// settings at the latest, and some seconds more if the kernel holds a process that was killed.
    async fn terminate(&mut self) {
        let closed = self.input.close();
        if self.is_gone_by(closed + self.input_grace).await {
            return;
        }
        self.life.signal(Signal::TERM);
        if self.is_gone_by(Instant::now() + self.term_grace).await {
            return;
        }
        self.life.signal(Signal::KILL);
        self.is_gone_by(Instant::now() + KILL_TIME).await;
    }
}
