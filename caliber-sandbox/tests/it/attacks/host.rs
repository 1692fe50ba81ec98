//! What attacks are aimed at, and whether one of them got there.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::outer;

const CONTENT: &str = "the database of the host\n";

/// A thing of the host that an attack got to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Touch {
    Database,
    Private,
    Tcp,
    Udp,
    AbstractSocket,
    PathSocket,
    VictimSignalled,
    VictimEnded,
    VictimLimits,
    VictimNice,
}

/// Files, listeners and a process of the host.
pub(crate) struct Host {
    folder: PathBuf,
    tcp: TcpListener,
    udp: UdpSocket,
    abstract_name: String,
    abstract_socket: UnixListener,
    path_socket: UnixListener,
    victim: Child,
    nice: String,
    limits: String,
    /// Open without close-on-exec, as a careless host would have it.
    _inheritable: File,
}

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        let folder = outer::folder().join(name);
        fs::create_dir(&folder).unwrap();
        fs::create_dir(folder.join("work")).unwrap();
        fs::set_permissions(folder.join("work"), Permissions::from_mode(0o777)).unwrap();
        fs::write(folder.join("database"), CONTENT).unwrap();
        fs::create_dir(folder.join("shown")).unwrap();
        fs::create_dir(folder.join("shown_evil")).unwrap();
        fs::write(folder.join("shown/file"), "shown").unwrap();
        fs::write(folder.join("shown_evil/secret"), CONTENT).unwrap();
        symlink(folder.join("database"), folder.join("shown/link")).unwrap();
        symlink("..", folder.join("shown/up")).unwrap();
        fs::write(folder.join("private"), CONTENT).unwrap();
        fs::set_permissions(folder.join("private"), Permissions::from_mode(0o600)).unwrap();
        let inheritable = File::open(folder.join("database")).unwrap();
        rustix::io::fcntl_setfd(&inheritable, rustix::io::FdFlags::empty()).unwrap();

        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        tcp.set_nonblocking(true).unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_nonblocking(true).unwrap();
        let abstract_name = format!("caliber-{name}");
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let abstract_socket = UnixListener::bind_addr(&address).unwrap();
        abstract_socket.set_nonblocking(true).unwrap();
        let path_socket = UnixListener::bind(folder.join("socket")).unwrap();
        fs::set_permissions(folder.join("socket"), Permissions::from_mode(0o777)).unwrap();
        path_socket.set_nonblocking(true).unwrap();

        let victim = start_victim(&folder);
        let (nice, limits) = (nice_of(victim.id()), limits_of(victim.id()));
        Self {
            folder,
            tcp,
            udp,
            abstract_name,
            abstract_socket,
            path_socket,
            victim,
            nice,
            limits,
            _inheritable: inheritable,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A folder that a server may be shown.
    pub(crate) fn shown(&self) -> PathBuf {
        self.folder.join("shown")
    }

    /// A folder that everybody may write to.
    pub(crate) fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    pub(crate) fn victim(&self) -> u32 {
        self.victim.id()
    }

    /// What an attack is told about the host: everything that an attacker could know.
    pub(crate) fn facts(&self) -> Value {
        json!({
            "database": self.folder.join("database"),
            "private": self.folder.join("private"),
            "folder": self.work(),
            "shown": self.folder.join("shown"),
            "tcp": self.tcp.local_addr().unwrap().port(),
            "udp": self.udp.local_addr().unwrap().port(),
            "abstract": self.abstract_name,
            "socket": self.folder.join("socket"),
            "victim": self.victim.id(),
            "victim_group": self.victim.id(),
            "first_pid": outer::FIRST_PID,
            "secret": outer::secret(),
            "set_user_id": outer::set_user_id(),
        })
    }

    /// What was got to since the last look. Puts back what can be put back.
    pub(crate) fn touched(&mut self) -> BTreeSet<Touch> {
        let mut touched = BTreeSet::new();
        for (name, touch) in [("database", Touch::Database), ("private", Touch::Private)] {
            let path = self.folder.join(name);
            let mode = path.metadata().unwrap().permissions().mode() & 0o777;
            let expected = if touch == Touch::Private { 0o600 } else { 0o644 };
            if fs::read_to_string(&path).unwrap() != CONTENT || mode != expected {
                touched.insert(touch);
                fs::write(&path, CONTENT).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(expected)).unwrap();
            }
        }
        let waits = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
        while self.tcp.accept().map_err(|error| assert!(waits(&error))).is_ok() {
            touched.insert(Touch::Tcp);
        }
        let mut datagram = [0; 64];
        while self
            .udp
            .recv(&mut datagram)
            .map_err(|error| assert!(waits(&error)))
            .is_ok()
        {
            touched.insert(Touch::Udp);
        }
        for (listener, touch) in [
            (&self.abstract_socket, Touch::AbstractSocket),
            (&self.path_socket, Touch::PathSocket),
        ] {
            while listener.accept().map_err(|error| assert!(waits(&error))).is_ok() {
                touched.insert(touch);
            }
        }
        let signals = self.folder.join("signals");
        if signals.metadata().unwrap().len() > 0 {
            touched.insert(Touch::VictimSignalled);
            fs::write(&signals, "").unwrap();
        }
        if self.victim.try_wait().unwrap().is_some() {
            touched.insert(Touch::VictimEnded);
            fs::remove_file(&signals).unwrap();
            self.victim = start_victim(&self.folder);
        } else {
            if nice_of(self.victim.id()) != self.nice {
                touched.insert(Touch::VictimNice);
            }
            if limits_of(self.victim.id()) != self.limits {
                touched.insert(Touch::VictimLimits);
            }
        }
        self.nice = nice_of(self.victim.id());
        self.limits = limits_of(self.victim.id());
        touched
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}

fn start_victim(folder: &Path) -> Child {
    let mut victim = Command::new("/usr/bin/python3")
        .args(["-I", "-S"])
        .arg(outer::tools().join("victim.py"))
        .arg(folder)
        .arg(outer::secret())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(victim.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    victim
}

/// The scheduling policy, priority and nice value.
fn nice_of(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // In proc(5) counted from 3: nice is 19, policy is 41.
    format!("{} {}", fields[16], fields[38])
}

fn limits_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/limits")).unwrap()
}

/// The processes that attacks named so: in all namespaces below ours, and no zombies.
pub(crate) fn survivors() -> Vec<u32> {
    processes(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "caliber-attack")
            && !is_zombie(pid)
    })
}

/// Every process here, zombies left out.
pub(crate) fn processes(wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid| wanted(*pid))
        .collect()
}

pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Whether `ancestor` made it, or what made it.
pub(crate) fn is_below(pid: u32, ancestor: u32) -> bool {
    let mut above = parent_of(pid);
    while let Some(parent) = above.filter(|parent| *parent > 1) {
        if parent == ancestor {
            return true;
        }
        above = parent_of(parent);
    }
    false
}

/// What a process is, for the one who reads that a test failed.
pub(crate) fn described(pid: u32) -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let status = read("status");
    let of = |key: &str| {
        status
            .lines()
            .find(|line| line.starts_with(key))
            .unwrap_or_default()
            .replace('\t', " ")
    };
    format!(
        "{pid} {} {} {} {} [{}]",
        of("Name"),
        of("State"),
        of("PPid"),
        of("Uid"),
        read("cmdline")
            .replace('\0', " ")
            .chars()
            .take(120)
            .collect::<String>()
    )
}

pub(crate) fn is_zombie(pid: u32) -> bool {
    let mut stat = String::new();
    match File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read_to_string(&mut stat)) {
        Ok(_) => stat
            .rsplit_once(')')
            .is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}
