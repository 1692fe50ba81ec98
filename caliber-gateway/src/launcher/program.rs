//! Starting a program: what it may be, what it inherits, and what it is wrapped in.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use caliber_core::process::Launch;
use caliber_core::reason::ReasonCode;
use caliber_core::server::is_environment_key;
use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};
use rustix::fs::{Access, FlockOperation, Mode, access};
use rustix::process::umask;
use rustix::thread::{UnshareFlags, set_no_new_privs};

use super::MARKER;
use super::probe::Probe;

/// What the calling thread passes on to the children that it starts, or why it cannot.
#[derive(Debug)]
pub(super) struct ThreadMeasures {
    /// Files that a child makes are its user's alone.
    pub(super) umask: std::result::Result<(), String>,
    /// No child gains privileges.
    pub(super) no_new_privileges: std::result::Result<(), String>,
}

/// Prepares the calling thread for starting children. Nothing of it reaches the other threads of this process.
pub(super) fn confine_thread(new_privileges: bool) -> ThreadMeasures {
    // A mask of its own takes a directory state of its own. Many container runtimes refuse that call.
    #[expect(
        deprecated,
        reason = "only the unsharing of descriptors is unsound, and that is not asked for"
    )]
    let unshared = rustix::thread::unshare(UnshareFlags::FS);
    ThreadMeasures {
        umask: unshared
            .map(|()| {
                umask(Mode::RWXG | Mode::RWXO);
            })
            .map_err(|error| format!("this process may not give a thread a mask of its own: {error}")),
        no_new_privileges: if new_privileges {
            Err("the settings allow new privileges".into())
        } else {
            set_no_new_privs(true).map_err(|error| format!("the kernel refused: {error}"))
        },
    }
}

/// The executable `name` on `tool_path`.
///
/// The error is a text for people.
pub(super) fn find_tool(name: &str, tool_path: &str) -> std::result::Result<PathBuf, String> {
    std::env::split_paths(tool_path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok())
        .ok_or_else(|| format!("there is no `{name}` on {}", shown(tool_path)))
}

/// Holds a child back between its start and its first instruction, so that it can be put where it belongs. Dropping
/// this lets it go.
///
/// It is a lock on the child's directory, which the child waits for in `flock` of util-linux.
#[derive(Debug)]
pub(super) struct Gate {
    flock: PathBuf,
    _lock: File,
}

impl Gate {
    pub(super) fn new(flock: &Path, directory: &Path) -> std::io::Result<Self> {
        let lock = File::open(directory)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self {
            flock: flock.to_owned(),
            _lock: lock,
        })
    }
}

/// Starts `launch` in `directory`, in a session and process group of its own, with pipes for its three streams.
pub(super) fn start(
    launch: &Launch,
    directory: &Path,
    marker: &str,
    probe: &Probe,
    gate: Option<&Gate>,
) -> Result<Child> {
    check_executable(&launch.executable)?;
    let mut words: Vec<OsString> = Vec::with_capacity(launch.args.len() + 8);
    if let Ok(setpriv) = &probe.setpriv {
        words.extend([setpriv.into(), "--pdeathsig".into(), "KILL".into()]);
    }
    if let Ok(setsid) = &probe.setsid {
        words.push(setsid.into());
    }
    if let Some(gate) = gate {
        // The program keeps the descriptor of its own directory that is locked here.
        words.extend([(&gate.flock).into(), "--no-fork".into(), directory.into()]);
    }
    words.push(launch.executable.clone().into());
    words.extend(launch.args.iter().map(OsString::from));
    let mut words = words.into_iter();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    if probe.setsid.is_err() {
        // A leader of a group could not become the leader of a session any more.
        command.process_group(0);
    }
    command.env_clear();
    for key in ["HOME", "TMPDIR", "PWD"] {
        command.env(key, directory);
    }
    for (key, value) in &launch.env {
        if !is_environment_key(key) {
            return Err(Error::invalid(
                "env",
                format!("{} cannot name a variable", shown(key)),
            ));
        }
        command.env(key, value.expose());
    }
    command.env(MARKER, marker);
    command
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
        .spawn()
        .map_err(|error| cannot_start(&launch.executable, &error.to_string()))
}

/// Refuses what the kernel would refuse. The C library would hand an unknown format to a shell, and a wrapper would
/// report a missing file only later.
fn check_executable(path: &Path) -> Result<()> {
    if !path.is_absolute() {
        return Err(cannot_start(path, "it is no absolute path"));
    }
    let mut header = Vec::new();
    let read = File::open(path)
        .and_then(|file| Ok((file.metadata()?, file)))
        .and_then(|(metadata, file)| {
            file.take(HEADER_BYTES).read_to_end(&mut header)?;
            Ok(metadata)
        });
    match read {
        // An executable may be unreadable for us; then the kernel is the only judge.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => header = b"#!".to_vec(),
        Err(error) => return Err(cannot_start(path, &error.to_string())),
        Ok(metadata) if !metadata.is_file() => return Err(cannot_start(path, "it is no file")),
        Ok(_) => {}
    }
    if access(path, Access::EXEC_OK).is_err() {
        return Err(cannot_start(path, "it may not be executed"));
    }
    if header.starts_with(b"#!") || is_native_elf(&header) {
        Ok(())
    } else {
        Err(cannot_start(
            path,
            "it is neither an ELF file for this machine nor a script with a `#!` line",
        ))
    }
}

/// The part of an ELF file that says for which kind of machine it is.
const HEADER_BYTES: u64 = 20;

/// Whether an ELF header is for the same kind of machine as this program: class, byte order, architecture (ELF
/// specification, `e_ident` and `e_machine`).
fn is_native_elf(header: &[u8]) -> bool {
    let kind = |header: &[u8]| {
        let magic = header.get(..4)?;
        (magic == b"\x7fELF").then_some(())?;
        Some((header.get(4..6)?.to_vec(), header.get(18..20)?.to_vec()))
    };
    let mut own = Vec::new();
    let read = File::open("/proc/self/exe").and_then(|file| file.take(HEADER_BYTES).read_to_end(&mut own));
    match (kind(header), read) {
        (None, _) => false,
        (Some(_), Err(_)) => true,
        (theirs, Ok(_)) => theirs == kind(&own),
    }
}

fn cannot_start(path: &Path, why: &str) -> Error {
    let text = format!(
        "the executable {} cannot be started: {why}",
        shown(&path.to_string_lossy())
    );
    Error::new(ErrorKind::Upstream, text).with_reason(ReasonCode::ConnectFailed)
}
