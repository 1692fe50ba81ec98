//! The official servers, as `tests/peers/README.md` describes them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use caliber::Config;
use caliber::core::server::{Endpoint, RemoteEndpoint, StdioEndpoint};
use caliber::policy::settings::{ArgumentRule, LaunchRule};
use tempfile::TempDir;

use super::machine::note_as_ours;
use super::upstream::Transport;

/// One of the two Python environments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Python {
    /// The first major version of the official SDK: the legacy protocol family only.
    Mcp1,
    /// The second: both families.
    Mcp2,
}

impl Python {
    fn folder(self) -> &'static str {
        match self {
            Self::Mcp1 => "python-mcp1",
            Self::Mcp2 => "python-mcp2",
        }
    }
}

/// An official server, ready to be registered.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Where caliber finds it.
    pub(crate) endpoint: Endpoint,
    /// The git repository of a git server.
    pub(crate) repository: Option<TempDir>,
    launch: Option<LaunchRule>,
    _served: Option<Served>,
}

impl Peer {
    /// What has to be allowed so that it can be started.
    pub(crate) fn launch_rules(&self) -> Vec<LaunchRule> {
        self.launch.iter().cloned().collect()
    }

    /// Lets an installation start it.
    pub(crate) fn allow(&self, config: &mut Config) {
        config.policy.launch.extend(self.launch.clone());
    }

    fn stdio(program: PathBuf, arguments: &[&str]) -> Self {
        let command = program.to_str().expect("the paths of tests are UTF-8").to_owned();
        let args: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let launch = LaunchRule {
            executable: command.clone(),
            arguments: ArgumentRule::Exact(args.clone()),
        };
        let endpoint = Endpoint::Stdio(StdioEndpoint {
            command,
            args,
            env: Default::default(),
        });
        Self {
            endpoint,
            repository: None,
            launch: Some(launch),
            _served: None,
        }
    }
}

/// The process of an official HTTP server.
#[derive(Debug)]
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `server-everything` over a transport; `None` when it is not installed and may be skipped.
pub(crate) fn everything(transport: Transport) -> Option<Peer> {
    let folder = installed("node")?;
    let script = folder.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let script = script.to_str().expect("the paths of tests are UTF-8");
    let (word, path) = match transport {
        Transport::Stdio => return Some(Peer::stdio(node(), &[script, "stdio"])),
        Transport::Http => ("streamableHttp", "/mcp"),
        Transport::Sse => ("sse", "/sse"),
    };
    let mut command = Command::new(node());
    command
        .arg("--import")
        .arg(folder.join("loopback.mjs"))
        .args([script, word])
        .env("PORT", "0");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut process = command.spawn().expect("node can be started");
    note_as_ours(process.id());
    let mut lines = BufReader::new(process.stderr.take().expect("its standard error is a pipe")).lines();
    let served = Served(process);
    let address = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    let address = address.expect("server-everything says where it listens");
    // It writes a line for every request, and would stop when nobody reads them.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    let remote = RemoteEndpoint {
        url: format!("http://{address}{path}"),
        headers: Default::default(),
    };
    let endpoint = match transport {
        Transport::Sse => Endpoint::Sse(remote),
        _ => Endpoint::StreamableHttp(remote),
    };
    Some(Peer {
        endpoint,
        repository: None,
        launch: None,
        _served: Some(served),
    })
}

/// `mcp-server-time`; `None` when it is not installed and may be skipped.
pub(crate) fn time(python: Python) -> Option<Peer> {
    let program = installed(python.folder())?.join("bin/python");
    Some(Peer::stdio(
        program,
        &["-m", "mcp_server_time", "--local-timezone", "UTC"],
    ))
}

/// `mcp-server-git` on a repository with one commit; `None` when it is not installed and may be skipped.
pub(crate) fn git(python: Python) -> Option<Peer> {
    let program = installed(python.folder())?.join("bin/python");
    let repository = tempfile::tempdir().expect("a folder for a repository");
    make_repository(repository.path());
    let path = repository.path().canonicalize().expect("the folder is there");
    let path = path.to_str().expect("the paths of tests are UTF-8");
    let peer = Peer::stdio(program, &["-m", "mcp_server_git", "--repository", path]);
    Some(Peer {
        repository: Some(repository),
        ..peer
    })
}

/// The folder of an installed peer. One that is missing fails a test where `CI` is `true`; elsewhere the test says
/// that it is skipped, and returns.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("CALIBER_TEST_PEERS").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/installed"));
    let folder = root.join(name);
    if folder.join(".stamp").is_file() {
        return Some(folder);
    }
    let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(
        !in_ci,
        "the peer {name} is not installed in {}; run tests/peers/install",
        root.display()
    );
    eprintln!("skipped: the peer {name} is not installed; run tests/peers/install");
    None
}

fn node() -> PathBuf {
    let output = Command::new("node")
        .args(["-p", "process.execPath"])
        .output()
        .expect("node can be started");
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

fn make_repository(folder: &Path) {
    let git = |arguments: &[&str]| {
        let who = [
            "-c",
            "user.name=Ada",
            "-c",
            "user.email=ada@example.org",
            "-c",
            "commit.gpgsign=false",
        ];
        let output = Command::new("git")
            .arg("-C")
            .arg(folder)
            .args(who)
            .args(arguments)
            .output();
        let output = output.expect("git can be started");
        assert!(
            output.status.success(),
            "git {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    git(&["init", "--quiet", "--initial-branch=main"]);
    std::fs::write(folder.join("note.txt"), "first\n").expect("a file in the repository");
    git(&["add", "note.txt"]);
    git(&["commit", "--quiet", "--message", "Add a note"]);
}
