//! What a probe lays out on the machine for its canary to reach for, and whether something did.

use std::fs;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use caliber_core::digest::{EnvironmentDigest, SourceDigest};
use caliber_core::sandbox::{PinnedProgram, Program};
use serde::Serialize;

use crate::snapshot;

/// Folders that every user of a machine can reach, the first that can be written to is taken. A canary in a folder that
/// nobody else can reach would prove nothing.
const PUBLIC_FOLDERS: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Numbers the probes of this process.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// What lies and listens on the machine during a probe; removed when it is dropped.
#[derive(Debug)]
pub(super) struct Host {
    folder: PathBuf,
    name: String,
    tcp: TcpListener,
    udp: UdpSocket,
    abstract_socket: UnixListener,
    path_socket: UnixListener,
}

/// What a canary is told.
#[derive(Debug, Serialize)]
pub(super) struct Question {
    folder: PathBuf,
    marker: String,
    source: PathBuf,
    scratch: Vec<PathBuf>,
    tcp: u16,
    udp: u16,
    #[serde(rename = "abstract")]
    abstract_name: String,
    host: u32,
    processes: u64,
    stays: u64,
}

impl Host {
    pub(super) fn lay_out() -> io::Result<Self> {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("caliber-probe-{}-{number}", std::process::id());
        let folder = PUBLIC_FOLDERS
            .iter()
            .map(|public| Path::new(public).join(&name))
            .find(|folder| fs::create_dir(folder).is_ok())
            .ok_or_else(|| io::Error::other("there is no folder for temporary files"))?;
        Self::fill(&folder, name).inspect_err(|_| remove(&folder))
    }

    fn fill(folder: &Path, name: String) -> io::Result<Self> {
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        for (file, mode) in [("canary", 0o644), ("writable", 0o666)] {
            let path = folder.join(file);
            fs::write(&path, "canary")?;
            set(&path, mode)?;
        }
        let source = snapshot::source_root(folder, &source_digest(), 0);
        fs::create_dir_all(&source)?;
        fs::write(source.join("tool.py"), super::forked::TOOL)?;
        let path_socket = UnixListener::bind(folder.join("socket"))?;
        set(&folder.join("socket"), 0o666)?;
        // Everybody may do everything: what is refused is refused by the sandbox.
        set(&source, 0o777)?;
        set(folder, 0o777)?;
        let address = SocketAddr::from_abstract_name(&name)?;
        let host = Self {
            folder: folder.to_owned(),
            name,
            tcp: TcpListener::bind(("127.0.0.1", 0))?,
            udp: UdpSocket::bind(("127.0.0.1", 0))?,
            abstract_socket: UnixListener::bind_addr(&address)?,
            path_socket,
        };
        host.tcp.set_nonblocking(true)?;
        host.udp.set_nonblocking(true)?;
        host.abstract_socket.set_nonblocking(true)?;
        host.path_socket.set_nonblocking(true)?;
        Ok(host)
    }

    /// The folder whose files everybody may read and write.
    pub(super) fn source(&self) -> PathBuf {
        snapshot::source_root(&self.folder, &source_digest(), 0)
    }

    /// The folder with everything.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A program whose snapshot lies in the folder.
    pub(super) fn program(&self) -> PinnedProgram {
        PinnedProgram {
            program: Program::Python {
                module_path: "tool".to_owned(),
                callable_name: "run".to_owned(),
                source_roots: vec![self.source()],
                package_roots: Vec::new(),
            },
            source: source_digest(),
            environment: EnvironmentDigest::of(b"probe"),
        }
    }

    /// `source` and `scratch` as the canary sees them.
    pub(super) fn question(
        &self,
        source: PathBuf,
        scratch: Vec<PathBuf>,
        processes: u64,
        stays: u64,
    ) -> io::Result<Question> {
        Ok(Question {
            folder: self.folder.clone(),
            marker: self.name.clone(),
            source,
            scratch,
            tcp: self.tcp.local_addr()?.port(),
            udp: self.udp.local_addr()?.port(),
            abstract_name: self.name.clone(),
            host: std::process::id(),
            processes,
            stays,
        })
    }

    /// What was reached since the last look, whatever the canary says.
    pub(super) fn reached(&self) -> Vec<&'static str> {
        let mut reached = Vec::new();
        if self.tcp.accept().is_ok() {
            reached.push("tcp");
        }
        if self.udp.recv_from(&mut [0; 16]).is_ok() {
            reached.push("udp");
        }
        if self.abstract_socket.accept().is_ok() {
            reached.push("unix_abstract");
        }
        if self.path_socket.accept().is_ok() {
            reached.push("unix_path");
        }
        if self.source().join("written").exists() {
            reached.push("write_source");
        }
        if self.folder.join(format!("written-{}", self.name)).exists() {
            reached.push("write_folder");
        }
        reached
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

fn source_digest() -> SourceDigest {
    SourceDigest::of(b"probe")
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(%error, "what a probe laid out could not be removed");
    }
}
