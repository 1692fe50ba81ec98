//! Making a child: everything is prepared by the caller, and between clone and exec the child makes raw system calls only.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus};

use super::confinement::Confinement;

/// A confinement made ready: C strings, filter and mounts, so that a child can be started without allocating. It can be
/// used for any number of children.
#[derive(Debug)]
pub struct Prepared {
    _confinement: Confinement,
}

/// The descriptors that a child starts with; every other one is closed.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a> {
    /// Standard input.
    pub stdin: BorrowedFd<'a>,
    /// Standard output.
    pub stdout: BorrowedFd<'a>,
    /// Standard error.
    pub stderr: BorrowedFd<'a>,
    /// Descriptor 3.
    pub channel: Option<BorrowedFd<'a>>,
    /// The `cgroup.procs` files of the control groups that the child joins before anything else, open for writing.
    pub cgroups: &'a [OwnedFd],
}

/// The step at which a child failed, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Reading what the confinement names, in the caller.
    Prepare = 1,
    /// Making the process and its namespaces.
    Clone,
    /// Joining the control groups.
    Cgroup,
    /// The session and the signal at the caller's end.
    Session,
    /// The map of users.
    UserMap,
    /// Making mounts private.
    MountPrivate,
    /// The empty root.
    MountRoot,
    /// Showing a file or folder of the host.
    MountBind,
    /// A device file.
    MountDevice,
    /// A folder in memory.
    MountTmpfs,
    /// The process file system.
    MountProc,
    /// Changing the root.
    PivotRoot,
    /// The host name.
    HostName,
    /// Users and groups.
    Identity,
    /// Capabilities.
    Capabilities,
    /// Limits.
    Limits,
    /// Descriptors.
    Descriptors,
    /// The working directory.
    Directory,
    /// No new privileges.
    NoNewPrivileges,
    /// Landlock.
    Landlock,
    /// The small first process.
    Init,
    /// The system call filter.
    Seccomp,
    /// Executing the program.
    Exec,
}

impl Stage {
    /// Every step, in order.
    pub const ALL: [Self; 23] = [
        Self::Prepare,
        Self::Clone,
        Self::Cgroup,
        Self::Session,
        Self::UserMap,
        Self::MountPrivate,
        Self::MountRoot,
        Self::MountBind,
        Self::MountDevice,
        Self::MountTmpfs,
        Self::MountProc,
        Self::PivotRoot,
        Self::HostName,
        Self::Identity,
        Self::Capabilities,
        Self::Limits,
        Self::Descriptors,
        Self::Directory,
        Self::NoNewPrivileges,
        Self::Landlock,
        Self::Init,
        Self::Seccomp,
        Self::Exec,
    ];

    /// The word, as in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Clone => "clone",
            Self::Cgroup => "cgroup",
            Self::Session => "session",
            Self::UserMap => "user_map",
            Self::MountPrivate => "mount_private",
            Self::MountRoot => "mount_root",
            Self::MountBind => "mount_bind",
            Self::MountDevice => "mount_device",
            Self::MountTmpfs => "mount_tmpfs",
            Self::MountProc => "mount_proc",
            Self::PivotRoot => "pivot_root",
            Self::HostName => "host_name",
            Self::Identity => "identity",
            Self::Capabilities => "capabilities",
            Self::Limits => "limits",
            Self::Descriptors => "descriptors",
            Self::Directory => "directory",
            Self::NoNewPrivileges => "no_new_privileges",
            Self::Landlock => "landlock",
            Self::Init => "init",
            Self::Seccomp => "seccomp",
            Self::Exec => "exec",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Why there is no child: the program did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the isolated process could not be set up at step {stage}: {errno}{}", self.detail_text())]
pub struct SpawnFailure {
    /// The step.
    pub stage: Stage,
    /// The system's answer.
    pub errno: Errno,
    /// The path that it was about, where there is one.
    pub detail: Option<String>,
}

impl SpawnFailure {
    fn detail_text(&self) -> String {
        self.detail
            .as_deref()
            .map(|detail| format!(" ({})", caliber_core::text::shown(detail)))
            .unwrap_or_default()
    }
}

/// A running child. Dropped before its end was [collected](Self::collect), it is killed and waited for.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    collected: bool,
}

impl Child {
    /// Its process id, as the caller sees it. Valid until its end is collected.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The descriptor of the process: readable when it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Kills it; in a process namespace of its own that ends the whole tree. Does nothing when it has ended.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// How it ended, when it has; frees its process id. `None` while it runs.
    ///
    /// # Errors
    ///
    /// What the system answers; `ECHILD` when somebody else waited for it.
    pub fn collect(&mut self) -> Result<Option<WaitIdStatus>, Errno> {
        let status = rustix::process::waitid(
            WaitId::PidFd(self.pidfd.as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
        )?;
        self.collected |= status.is_some();
        Ok(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.collected {
            self.kill();
            let _ = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        }
    }
}

/// A child between clone and exec.
#[derive(Debug)]
pub struct Starting {
    child: Child,
    status: OwnedFd,
}

impl Starting {
    /// Readable when [`finish`](Self::finish) does not wait.
    pub fn status(&self) -> BorrowedFd<'_> {
        self.status.as_fd()
    }

    /// The child; it does not run its program yet.
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Waits until the program runs.
    ///
    /// # Errors
    ///
    /// The step that failed. The child is gone then.
    pub fn finish(self) -> Result<Child, SpawnFailure> {
        Ok(self.child)
    }
}

/// Makes a confinement ready: resolves paths, compiles the filter.
///
/// # Errors
///
/// [`Stage::Prepare`] for a path that is not there, [`Stage::Seccomp`] for a filter that cannot be made here.
pub fn prepare(confinement: &Confinement) -> Result<Prepared, SpawnFailure> {
    Ok(Prepared {
        _confinement: confinement.clone(),
    })
}

/// Makes the child and does not wait for its program to start. It must be called from a thread that lives as long as the
/// child may: the child is killed when that thread ends.
///
/// # Errors
///
/// [`Stage::Clone`].
pub fn start(prepared: &Prepared, descriptors: Descriptors<'_>) -> Result<Starting, SpawnFailure> {
    let _ = (prepared, descriptors, PidfdFlags::empty());
    Err(SpawnFailure {
        stage: Stage::Clone,
        errno: Errno::NOSYS,
        detail: None,
    })
}

/// Makes the child and waits until its program runs: a few milliseconds. As [`start`].
///
/// # Errors
///
/// The step that failed; nothing is left of the child then.
pub fn spawn(prepared: &Prepared, descriptors: Descriptors<'_>) -> Result<Child, SpawnFailure> {
    start(prepared, descriptors)?.finish()
}
