//! Core's suite of the gateway port, over stdio and streamable HTTP.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use caliber_core::ServerRegistration;
use caliber_core::conformance::gateway::{self, Bench, Upstream};
use caliber_core::server::{Endpoint, ServerDefinition, ServerLimits, Visibility};

use crate::support::{House, definition, remote, stdio};

const CONCURRENCY: u32 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_over_stdio() {
    gateway::run(async || bench(false)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds_over_streamable_http() {
    gateway::run(async || bench(true)).await;
}

fn bench(http: bool) -> Bench {
    let upstream = Server::new(http);
    let dead_end = if http {
        // Port 1 on loopback: nothing listens there.
        remote("http://127.0.0.1:1/mcp")
    } else {
        stdio("false", &[])
    };
    let house = House::new();
    Bench {
        caliber: house.caliber,
        gateway: house.gateway,
        registration: registration("bench", upstream.endpoint()),
        concurrency: CONCURRENCY,
        dead_end: registration("dead-end", dead_end),
        upstream: Arc::new(upstream),
    }
}

fn registration(name: &str, endpoint: Endpoint) -> ServerRegistration {
    ServerRegistration {
        definition: ServerDefinition {
            limits: ServerLimits {
                concurrency: Some(CONCURRENCY),
                ..ServerLimits::default()
            },
            ..definition(name, endpoint)
        },
        visibility: Visibility::Project,
    }
}

struct Server {
    folder: tempfile::TempDir,
    process: Option<(Child, u16)>,
}

impl Server {
    fn new(http: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("description"), "Says it again.").unwrap();
        let process = http.then(|| {
            let mut child = Command::new("python3")
                .arg(program())
                .args(["http", folder.path().to_str().unwrap()])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut port = String::new();
            BufReader::new(child.stdout.take().unwrap())
                .read_line(&mut port)
                .unwrap();
            (child, port.trim().parse().unwrap())
        });
        Self { folder, process }
    }

    fn endpoint(&self) -> Endpoint {
        match &self.process {
            Some((_, port)) => remote(&format!("http://127.0.0.1:{port}/mcp")),
            None => {
                let program = program();
                let folder = self.folder.path().to_str().unwrap();
                stdio("python3", &[program.to_str().unwrap(), "stdio", folder])
            }
        }
    }

    fn lines(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        text.lines().count().try_into().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.process {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/conformance_server.py")
}

#[async_trait]
impl Upstream for Server {
    async fn describe_echo(&self, description: &str) {
        std::fs::write(self.folder.path().join("description"), description).unwrap();
    }

    async fn arrived(&self) -> u64 {
        self.lines("arrived")
    }

    async fn cancelled(&self) -> u64 {
        self.lines("cancelled")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plain_launcher_passes_the_suite_of_its_port() {
    let directory = tempfile::tempdir().unwrap();
    caliber_core::conformance::process::run(async || {
        let settings = caliber_gateway::LauncherSettings {
            directory: directory.path().to_owned(),
            input_grace: Duration::from_millis(200),
            term_grace: Duration::from_millis(200),
            ..Default::default()
        };
        Arc::new(caliber_gateway::PlainLauncher::new(settings))
            as Arc<dyn caliber_core::process::ProcessLauncher>
    })
    .await;
}
