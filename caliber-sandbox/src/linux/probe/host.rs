//! What a probe lays out on the machine for its canary to reach for, and whether something did.

use std::fs;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

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
        let source = folder.join("source");
        fs::create_dir(&source)?;
        fs::write(source.join("tool.py"), "")?;
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
        self.folder.join("source")
    }

    /// A scratch folder on the machine, for a child without a private root.
    pub(super) fn scratch(&self, number: usize, owner: Option<u32>) -> io::Result<PathBuf> {
        let path = self.folder.join(format!("scratch-{number}"));
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
        std::os::unix::fs::chown(&path, owner, owner)?;
        Ok(path)
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

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(%error, "what a probe laid out could not be removed");
    }
}
