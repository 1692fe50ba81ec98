//! What one child gets: plain data, the same for every kind of child.

use std::ffi::CString;
use std::path::PathBuf;

/// Everything that is decided about one child before it is made.
///
/// Each layer that is switched on is applied in full or the child is not started: there is no falling back.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// The executable, as an absolute path inside the child's root.
    pub executable: CString,
    /// The arguments, the name of the program first.
    pub args: Vec<CString>,
    /// The whole environment, as `NAME=value`.
    pub env: Vec<CString>,
    /// The working directory inside the child's root; it must be there.
    pub directory: CString,
    /// What the child's file tree is made of; `None` leaves it the host's.
    pub root: Option<Root>,
    /// The namespaces of its own.
    pub namespaces: Namespaces,
    /// Who it is.
    pub identity: Identity,
    /// The limits of each of its processes.
    pub limits: ProcessLimits,
    /// The Landlock domain; `None` applies none.
    pub landlock: Option<LandlockRules>,
    /// The system call filter; `None` applies none.
    pub seccomp: Option<SeccompProfile>,
    /// Whether the first process of the namespace is a small one of ours that reaps, passes signals on and ends as the
    /// program ends. Without it the program is that first process: signals that it does not handle do not reach it.
    pub init: bool,
    /// Whether it gets a session of its own. Always, unless the caller needs its terminal.
    pub session: bool,
}

/// A private file tree: an empty, read-only folder in memory with these things in it, in order.
#[derive(Clone, Debug, Default)]
pub struct Root {
    /// What is in it. Parents are made as needed.
    pub entries: Vec<RootEntry>,
}

/// One thing in a private file tree. Targets are absolute paths inside of it.
#[derive(Clone, Debug)]
pub enum RootEntry {
    /// A file or folder of the host with all that is mounted below it, without set-uid and devices.
    Bind {
        /// On the host: absolute. It is resolved when the child is prepared, and it must still be the same file, with no
        /// symbolic link on the way, when the child is started.
        source: PathBuf,
        /// Inside.
        target: PathBuf,
        /// Whether the child may write to it.
        writable: bool,
    },
    /// A device file of the host, such as `/dev/null`.
    Device {
        /// On the host, and inside.
        path: PathBuf,
    },
    /// An empty folder in memory that the child may write to.
    Tmpfs {
        /// Inside.
        target: PathBuf,
        /// Its size, in bytes.
        bytes: u64,
        /// Files and folders in it.
        inodes: u64,
    },
    /// The process file system of the child's own process namespace, other processes hidden.
    Proc {
        /// Inside.
        target: PathBuf,
    },
    /// An empty folder.
    Folder {
        /// Inside.
        target: PathBuf,
    },
    /// A symbolic link.
    Symlink {
        /// Where the link is.
        target: PathBuf,
        /// What it says.
        content: PathBuf,
    },
}

/// Which namespaces are the child's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces {
    /// Users: how an unprivileged host makes the others.
    pub user: bool,
    /// Mounts.
    pub mount: bool,
    /// Processes: when the first one ends, the kernel ends all.
    pub pid: bool,
    /// Network: nothing but a loopback interface that is down.
    pub network: bool,
    /// System V objects and message queues.
    pub ipc: bool,
    /// Host name.
    pub uts: bool,
    /// Control group paths.
    pub cgroup: bool,
}

impl Namespaces {
    /// All of them; `user` where the caller is not root.
    pub fn all(user: bool) -> Self {
        Self {
            user,
            mount: true,
            pid: true,
            network: true,
            ipc: true,
            uts: true,
            cgroup: true,
        }
    }

    /// None of them.
    pub const NONE: Self = Self {
        user: false,
        mount: false,
        pid: false,
        network: false,
        ipc: false,
        uts: false,
        cgroup: false,
    };
}

/// Who the child is. Capabilities are gone in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The user of the caller; in a user namespace under the id 65534. Supplementary groups stay where the caller may not
    /// drop them.
    Caller,
    /// This user and group, no other groups. Needs root.
    Other {
        /// The user and group.
        id: u32,
    },
}

/// Limits that the kernel keeps per process (the number of processes: per user and user namespace). `None` leaves the
/// caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Address space, in bytes.
    pub address_space: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// The largest file, in bytes.
    pub file_size: Option<u64>,
    /// Open descriptors.
    pub open_files: Option<u64>,
    /// Processor time, in seconds.
    pub cpu_seconds: Option<u64>,
    /// Whether core dumps, locked memory and message queues are left as they are; otherwise all three are zero.
    pub keep_other: bool,
}

/// A Landlock domain. It handles every right that the kernel's version knows: what is not granted here is refused.
#[derive(Clone, Debug, Default)]
pub struct LandlockRules {
    /// Files and folders that may be read and executed, as paths inside the child's root.
    pub read: Vec<PathBuf>,
    /// Files and folders that may be read and written, not executed.
    pub write: Vec<PathBuf>,
    /// Whether the child may use the network (TCP; newer kernels: UDP). Refused otherwise.
    pub network: bool,
}

/// Which system calls are let through. Every profile is a list of what is allowed; all else fails with `ENOSYS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SeccompProfile {
    /// What a code tool needs: no sockets but pairs, no namespaces, no tracing, nothing of other processes.
    Tool,
    /// As `Tool`, and making processes in namespaces of users and processes of their own, and adding layers.
    Zygote,
    /// What a server on standard input and output needs.
    Server {
        /// Whether it may make network sockets.
        network: bool,
    },
}
