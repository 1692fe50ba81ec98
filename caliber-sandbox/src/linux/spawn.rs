//! Making a child: everything is prepared by the caller, and between clone and exec the child makes raw system calls only.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus};

use super::child::{self, STATUS_BYTES};
pub use super::prepared::{Prepared, prepare};

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
    is_first_of_namespace: bool,
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

    /// Whether its end is the end of everything that it started: it is the first of a process namespace.
    pub fn is_first_of_namespace(&self) -> bool {
        self.is_first_of_namespace
    }

    /// Kills it; in a process namespace of its own that ends the whole tree, without one its process group. Does nothing
    /// when its end was collected.
    pub fn kill(&self) {
        if !self.is_first_of_namespace && !self.collected {
            let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        }
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// How it ended, when it has; frees its process id. `None` while it runs. Without a process namespace of its own, what is
    /// left of its process group is killed then.
    ///
    /// # Errors
    ///
    /// What the system answers; `ECHILD` when somebody else waited for it.
    pub fn collect(&mut self) -> Result<Option<WaitIdStatus>, Errno> {
        let of_it = || WaitId::PidFd(self.pidfd.as_fd());
        let now = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        if !self.is_first_of_namespace && !self.collected {
            // While it is not collected, its id, which is that of its group, belongs to nobody else.
            if rustix::process::waitid(of_it(), now | WaitIdOptions::NOWAIT)?.is_none() {
                return Ok(None);
            }
            let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        }
        let status = rustix::process::waitid(of_it(), now)?;
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
    prepared: Arc<Prepared>,
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

    /// Whether the child has ended already; frees its process id then.
    pub(crate) fn collect(&mut self) -> bool {
        self.child.collect().map_or(true, |status| status.is_some())
    }

    /// Waits until the program runs.
    ///
    /// # Errors
    ///
    /// The step that failed. The child is gone then.
    pub fn finish(self) -> Result<Child, SpawnFailure> {
        match read_status(&self.status) {
            Ok(None) => Ok(self.child),
            Ok(Some(report)) => Err(self.failure(report)),
            Err(errno) => Err(SpawnFailure {
                stage: Stage::Exec,
                errno,
                detail: None,
            }),
        }
    }

    fn failure(&self, report: [u8; STATUS_BYTES]) -> SpawnFailure {
        let [stage, _, entry_low, entry_high, code @ ..] = report;
        let stage = Stage::ALL
            .into_iter()
            .find(|known| *known as u8 == stage)
            .unwrap_or(Stage::Exec);
        let entry = u16::from_ne_bytes([entry_low, entry_high]);
        SpawnFailure {
            stage,
            errno: Errno::from_raw_os_error(i32::from_ne_bytes(code)),
            detail: self.prepared.detail(stage, usize::from(entry)),
        }
    }
}

/// What the child reports of its failure; `None` when its program runs.
fn read_status(status: &OwnedFd) -> Result<Option<[u8; STATUS_BYTES]>, Errno> {
    let mut report = [0; STATUS_BYTES];
    loop {
        match rustix::io::read(status, &mut report) {
            // The pipe closes on execution, and when the child is killed: then it ends without a word.
            Ok(0) => return Ok(None),
            // So few bytes come at once or not at all.
            Ok(_) => return Ok(Some(report)),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Makes the child and does not wait for its program to start. It must be called from a thread that lives as long as the
/// child may: the child is killed when that thread ends.
///
/// # Errors
///
/// [`Stage::Clone`].
pub fn start(prepared: &Arc<Prepared>, descriptors: Descriptors<'_>) -> Result<Starting, SpawnFailure> {
    let problem = |errno| SpawnFailure {
        stage: Stage::Clone,
        errno,
        detail: None,
    };
    let (status, status_of_child) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(problem)?;
    let cgroups: Vec<RawFd> = descriptors.cgroups.iter().map(AsRawFd::as_raw_fd).collect();
    let start = child::Start {
        stdin: descriptors.stdin.as_raw_fd(),
        stdout: descriptors.stdout.as_raw_fd(),
        stderr: descriptors.stderr.as_raw_fd(),
        channel: descriptors.channel.map(|channel| channel.as_raw_fd()),
        status: status_of_child.as_raw_fd(),
        cgroups: &cgroups,
    };
    // SAFETY: everything that the child uses is prepared and lives until this function returns in the caller.
    let (pid, pidfd) = unsafe { clone_child(prepared, start) }.map_err(problem)?;
    Ok(Starting {
        child: Child {
            pid,
            pidfd,
            is_first_of_namespace: prepared.namespaces.pid,
            collected: false,
        },
        status,
        prepared: Arc::clone(prepared),
    })
}

/// Makes the child and waits until its program runs: a few milliseconds. As [`start`].
///
/// # Errors
///
/// The step that failed; nothing is left of the child then.
pub fn spawn(prepared: &Arc<Prepared>, descriptors: Descriptors<'_>) -> Result<Child, SpawnFailure> {
    start(prepared, descriptors)?.finish()
}

/// The arguments of `clone3`, of the first version that had them all.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// # Safety
///
/// The child runs [`child::run`], which needs nothing but what it is given.
unsafe fn clone_child(prepared: &Prepared, start: child::Start<'_>) -> Result<(Pid, OwnedFd), Errno> {
    let namespaces = prepared.namespaces;
    // The control group namespace is made by the child, after it has joined its group.
    let flags = [
        (namespaces.user, libc::CLONE_NEWUSER),
        (namespaces.mount, libc::CLONE_NEWNS),
        (namespaces.pid, libc::CLONE_NEWPID),
        (namespaces.network, libc::CLONE_NEWNET),
        (namespaces.ipc, libc::CLONE_NEWIPC),
        (namespaces.uts, libc::CLONE_NEWUTS),
    ];
    let flags = flags
        .into_iter()
        .filter(|(wanted, _)| *wanted)
        .fold(libc::CLONE_PIDFD, |flags, (_, flag)| flags | flag);

    let mut pidfd: RawFd = -1;
    let arguments = CloneArguments {
        flags: flags as u32 as u64,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArguments::default()
    };
    // No handler of the host may run in the child. The mask is of this thread only.
    let all = u64::MAX;
    let mut before = 0_u64;
    // SAFETY: the structures live on this stack, the sizes are theirs. Without `CLONE_VM` the child has a copy of all
    // memory, this stack included, and goes on from here.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            &raw mut before,
            8_usize,
        );
        let mut pid = libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<CloneArguments>(),
        );
        if pid < 0 && *libc::__errno_location() == libc::ENOSYS {
            // Filters that cannot look behind a pointer answer so, to have the older call made.
            let flags = libc::c_long::from(flags | libc::SIGCHLD);
            pid = libc::syscall(libc::SYS_clone, flags, 0, &raw mut pidfd, 0, 0);
        }
        if pid == 0 {
            child::run(prepared, start);
        }
        let errno = *libc::__errno_location();
        let none = std::ptr::null_mut::<u64>();
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const before,
            none,
            8_usize,
        );
        if pid < 0 {
            return Err(Errno::from_raw_os_error(errno));
        }
        pid
    };
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(Errno::OVERFLOW)?;
    // SAFETY: the kernel has just made this descriptor for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok((pid, pidfd))
}
