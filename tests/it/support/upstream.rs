//! The fake servers of `tests/rig`: started, watched through their records, changed while they run.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use caliber::core::server::{Endpoint, RemoteEndpoint, StdioEndpoint};
use tempfile::TempDir;

use super::http::Client;
use super::machine::{note_as_ours, processes_with};
use super::waiting::{eventually, eventually_within};

/// How a fake server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// As a child process of caliber's.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// The old HTTP+SSE.
    Sse,
}

impl Transport {
    /// All three.
    pub(crate) const ALL: [Self; 3] = [Self::Stdio, Self::Http, Self::Sse];
}

/// One fake server. Dropping it ends its process, where the test has one, and removes its records.
#[derive(Debug)]
pub(crate) struct Upstream {
    transport: Transport,
    folder: TempDir,
    arguments: Vec<String>,
    marker: String,
    server: Option<Served>,
}

/// The process of a fake HTTP server.
#[derive(Debug)]
struct Served {
    process: Child,
    port: u16,
    control_port: u16,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Upstream {
    /// A fake server with settings as `tests/rig/README.md` has them, such as `["--mode", "drip"]`. Over HTTP it
    /// runs from now on; over stdio caliber starts it, once per session.
    pub(crate) async fn start(transport: Transport, settings: &[&str]) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let marker = format!("rig-{}-{number}", std::process::id());
        let folder = tempfile::tempdir().expect("a folder for records");
        std::fs::create_dir(folder.path().join("state")).expect("a folder for records");
        let mut upstream = Self {
            transport,
            folder,
            arguments: Vec::new(),
            marker,
            server: None,
        };
        upstream
            .arguments
            .extend(["--state-dir".to_owned(), text(&upstream.state())]);
        upstream
            .arguments
            .extend(["--marker".to_owned(), upstream.marker.clone()]);
        upstream
            .arguments
            .extend(settings.iter().map(|&setting| setting.to_owned()));
        match transport {
            Transport::Stdio => {
                std::fs::write(upstream.control_file(), "").expect("a control file");
                upstream
                    .arguments
                    .extend(["--control".to_owned(), text(&upstream.control_file())]);
            }
            Transport::Http | Transport::Sse => upstream.server = Some(serve(&upstream.arguments)),
        }
        upstream
    }

    /// Where caliber finds it.
    pub(crate) fn endpoint(&self) -> Endpoint {
        let remote = |path| RemoteEndpoint {
            url: self.url(path),
            headers: Default::default(),
        };
        match self.transport {
            Transport::Stdio => {
                let mut args = vec![text(&rig_program("fake_stdio.py"))];
                args.extend(self.arguments.iter().cloned());
                Endpoint::Stdio(StdioEndpoint {
                    command: "${PYTHON}".into(),
                    args,
                    env: Default::default(),
                })
            }
            Transport::Http => Endpoint::StreamableHttp(remote("/mcp")),
            Transport::Sse => Endpoint::Sse(remote("/sse")),
        }
    }

    /// The URL of a path of a fake HTTP server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.served().port)
    }

    /// What it recorded.
    pub(crate) fn records(&self) -> Records {
        Records { folder: self.state() }
    }

    /// Sends a control query, such as `mode=drip&interval=0.1&do=forget_sessions`, and waits until it is obeyed.
    /// Over stdio every process of the server obeys; it has to run.
    pub(crate) async fn control(&self, query: &str) {
        if let Some(server) = &self.server {
            let url = format!("http://127.0.0.1:{}/control?{query}", server.control_port);
            let reply = Client::new().get(&url).await;
            assert_eq!(
                reply.status, 200,
                "the fake server refuses {query}: {}",
                reply.text
            );
            return;
        }
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        // Each content is new, so that the same query is obeyed again.
        let query = format!("{query}&nonce={}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let whole = self.folder.path().join("next-control");
        std::fs::write(&whole, &query).expect("the control file can be written");
        std::fs::rename(&whole, self.control_file()).expect("the control file can be replaced");
        let records = self.records();
        eventually("a fake server obeys its control file", || {
            let obeyed = records.text("control").contains(&query).then_some(());
            async move { obeyed }
        })
        .await;
    }

    /// The running processes of the server and their descendants that carry its marker: over stdio caliber's
    /// children, over HTTP the one that the test started.
    pub(crate) fn processes(&self) -> Vec<u32> {
        processes_with(&self.marker)
            .into_iter()
            .map(|process| process.id)
            .collect()
    }

    /// Waits until no process of a stdio server is left; fails after `limit`.
    pub(crate) async fn is_gone_within(&self, limit: Duration) {
        eventually_within(limit, "no process of the server is left", || {
            let gone = self.processes().is_empty().then_some(());
            async move { gone }
        })
        .await;
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn control_file(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    fn served(&self) -> &Served {
        self.server.as_ref().expect("only a fake HTTP server has URLs")
    }
}

/// The records of a fake server; the files are described in `tests/rig/README.md`.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    folder: PathBuf,
}

impl Records {
    /// The whole file; empty when nothing of the kind was recorded yet.
    pub(crate) fn bytes(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.folder.join(file)).unwrap_or_default()
    }

    /// [`bytes`](Self::bytes) as text.
    pub(crate) fn text(&self, file: &str) -> String {
        String::from_utf8_lossy(&self.bytes(file)).into_owned()
    }

    /// The lines with their columns.
    pub(crate) fn lines(&self, file: &str) -> Vec<Vec<String>> {
        let columns = |line: &str| line.split('\t').map(str::to_owned).collect();
        self.text(file).lines().map(columns).collect()
    }

    /// How many lines there are.
    pub(crate) fn count(&self, file: &str) -> usize {
        self.bytes(file).split_inclusive(|byte| *byte == b'\n').count()
    }

    /// How often a tool ran, whatever became of its answers.
    pub(crate) fn executions_of(&self, tool: &str) -> usize {
        self.lines("executions")
            .iter()
            .filter(|line| line.first().is_some_and(|name| name == tool))
            .count()
    }

    /// How many processes the server had so far.
    pub(crate) fn starts(&self) -> usize {
        let pids = self.lines("pids");
        pids.iter()
            .filter(|line| line.get(1).is_some_and(|what| what == "server"))
            .count()
    }

    /// Waits for the `count`-th line of a file.
    pub(crate) async fn wait_for(&self, file: &str, count: usize) {
        eventually(
            &format!("the fake server records {count} lines of {file}"),
            || {
                let there = (self.count(file) >= count).then_some(());
                async move { there }
            },
        )
        .await;
    }
}

/// A program of `tests/rig`, by its real path.
pub(super) fn rig_program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rig").join(name);
    path.canonicalize().expect("the rig is there")
}

/// The Python that runs the rig: the first `python3` on the path that is 3.11 or newer, by its own name.
pub(super) fn rig_python() -> PathBuf {
    static FOUND: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let ask = || {
        let program = "import sys; assert sys.version_info >= (3, 11), 'too old'; print(sys.executable)";
        let output = Command::new("python3")
            .args(["-c", program])
            .output()
            .expect("python3 can be started");
        assert!(
            output.status.success(),
            "python3 must be 3.11 or newer: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
    };
    FOUND.get_or_init(ask).clone()
}

fn serve(arguments: &[String]) -> Served {
    let mut command = Command::new(rig_python());
    command.arg(rig_program("fake_http.py")).args(arguments);
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a fake HTTP server can be started");
    note_as_ours(process.id());
    let stdout = process.stdout.take().expect("its output is a pipe");
    let mut lines = BufReader::new(stdout).lines();
    let mut number = |word: &str| {
        let line = lines.next().and_then(Result::ok).unwrap_or_default();
        let number = line.strip_prefix(word).and_then(|rest| rest.trim().parse().ok());
        number.unwrap_or_else(|| panic!("the fake HTTP server says {line:?} and not its {word}"))
    };
    Served {
        port: number("PORT"),
        control_port: number("CONTROL"),
        process,
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("the paths of tests are UTF-8").to_owned()
}
