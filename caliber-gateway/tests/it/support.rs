//! A control plane over the gateway under test, and the rig's servers behind it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use caliber_core::admission::SessionFact;
use caliber_core::gateway::{CallerKey, Gateway, Target};
use caliber_core::id::ServerId;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::memory::{self, CountingQuota, MemoryRegistry, MemorySecrets, ReferencePolicy};
use caliber_core::policy::ToolPolicy;
use caliber_core::principal::{Principal, Surface};
use caliber_core::process::ProcessLauncher;
use caliber_core::registry::Registry;
use caliber_core::server::{Endpoint, RemoteEndpoint, ServerDefinition, StdioEndpoint, Visibility};
use caliber_core::{Caliber, Error, InvokeOutcome, InvokeRequest, ServerRegistration, Settings};
use caliber_gateway::{GatewaySettings, LauncherSettings, McpGateway, PlainLauncher};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// The longest that a test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// How a server of the rig is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Stdio,
    Http,
    Sse,
}

pub(crate) const EVERY_TRANSPORT: [Over; 3] = [Over::Stdio, Over::Http, Over::Sse];

/// One server of the rig, with its records.
pub(crate) struct Rig {
    over: Over,
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    process: Option<(Child, u16)>,
    controls: AtomicU32,
}

impl Rig {
    pub(crate) async fn new(over: Over, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("control"), "").unwrap();
        let mut all = vec![
            "--state-dir".to_owned(),
            path("state"),
            "--control".to_owned(),
            path("control"),
        ];
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        let process = match over {
            Over::Stdio => None,
            Over::Http | Over::Sse => Some(start_http(&all).await),
        };
        Self {
            over,
            folder,
            arguments: all,
            process,
            controls: AtomicU32::new(0),
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        match (&self.over, &self.process) {
            (Over::Http, Some((_, port))) => remote(&format!("http://127.0.0.1:{port}/mcp")),
            (Over::Sse, Some((_, port))) => Endpoint::Sse(RemoteEndpoint {
                url: format!("http://127.0.0.1:{port}/sse"),
                headers: BTreeMap::new(),
            }),
            _ => {
                let mut args = vec![program("fake_stdio.py").to_str().unwrap().to_owned()];
                args.extend(self.arguments.iter().cloned());
                Endpoint::Stdio(StdioEndpoint {
                    command: "python3".to_owned(),
                    args,
                    env: BTreeMap::new(),
                })
            }
        }
    }

    /// The lines of a record.
    pub(crate) fn records(&self, name: &str) -> Vec<String> {
        let path = self.folder.path().join("state").join(name);
        let bytes = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes)
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Waits until a record has `count` lines.
    pub(crate) async fn wait_for_records(&self, name: &str, count: usize) -> Vec<String> {
        eventually(&format!("{count} lines in the record {name}"), async || {
            self.records(name).len() >= count
        })
        .await;
        self.records(name)
    }

    /// Tells the server something, and waits until it obeys.
    pub(crate) async fn control(&self, query: &str) {
        let query = self.order(query);
        eventually("the server obeys", async || {
            self.records("control").iter().any(|line| line.contains(&query))
        })
        .await;
    }

    /// Tells the server something; returns the words it will have obeyed.
    pub(crate) fn order(&self, query: &str) -> String {
        let number = self.controls.fetch_add(1, Ordering::Relaxed);
        let query = format!("{query}&nonce={number}");
        let (new, control) = (self.folder.path().join("new"), self.folder.path().join("control"));
        std::fs::write(&new, &query).unwrap();
        std::fs::rename(new, control).unwrap();
        query
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/rig")
        .join(name)
}

/// Starts a server; it ends when what is returned is dropped.
async fn start_http(arguments: &[String]) -> (Child, u16) {
    let mut child = Command::new("python3")
        .arg(program("fake_http.py"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next_line().await.unwrap().unwrap();
    let port = first.strip_prefix("PORT ").unwrap().parse().unwrap();
    // The other line, and whatever comes, must not block it.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, port)
}

pub(crate) fn remote(url: &str) -> Endpoint {
    Endpoint::StreamableHttp(RemoteEndpoint {
        url: url.to_owned(),
        headers: BTreeMap::new(),
    })
}

pub(crate) fn stdio(command: &str, args: &[&str]) -> Endpoint {
    Endpoint::Stdio(StdioEndpoint {
        command: command.to_owned(),
        args: args.iter().map(|&argument| argument.to_owned()).collect(),
        env: BTreeMap::new(),
    })
}

pub(crate) fn definition(name: &str, endpoint: Endpoint) -> ServerDefinition {
    ServerDefinition {
        endpoint,
        ..memory::definition(name).unwrap()
    }
}

/// A control plane over a gateway of its own.
pub(crate) struct House {
    pub(crate) caliber: Caliber,
    pub(crate) gateway: Arc<McpGateway>,
}

impl House {
    pub(crate) fn new() -> Self {
        Self::with(GatewaySettings::default(), Settings::default())
    }

    pub(crate) fn with(gateway: GatewaySettings, settings: Settings) -> Self {
        Self::with_launcher(gateway, settings, LauncherSettings::default())
    }

    pub(crate) fn with_launcher(
        gateway: GatewaySettings,
        settings: Settings,
        launcher: LauncherSettings,
    ) -> Self {
        Self::over(gateway, settings, Arc::new(PlainLauncher::new(launcher)))
    }

    pub(crate) fn over(
        gateway: GatewaySettings,
        settings: Settings,
        launcher: Arc<dyn ProcessLauncher>,
    ) -> Self {
        let secrets = Arc::new(MemorySecrets::default());
        let gateway = Arc::new(McpGateway::new(gateway, secrets, launcher).unwrap());
        let caliber = Caliber::builder(
            Arc::new(MemoryRegistry::new()) as Arc<dyn Registry>,
            gateway.clone() as Arc<dyn Gateway>,
            Arc::new(ReferencePolicy),
            Arc::new(CountingQuota::new()),
        )
        .settings(settings)
        .build();
        Self { caliber, gateway }
    }

    pub(crate) async fn register(&self, definition: ServerDefinition) -> ServerId {
        let admin = admin();
        let registration = ServerRegistration {
            definition,
            visibility: Visibility::Project,
        };
        let who = (&admin, Surface::Library);
        self.caliber.register_server(who, registration).await.unwrap().id
    }

    /// Registers a server, discovers it and allows all its tools.
    pub(crate) async fn add(&self, name: &str, rig: &Rig) -> ServerId {
        self.add_definition(definition(name, rig.endpoint())).await
    }

    pub(crate) async fn add_definition(&self, definition: ServerDefinition) -> ServerId {
        let name = definition.name.clone();
        let server = self.register(definition).await;
        let discovered = self.discover(&server).await;
        discovered.unwrap_or_else(|error| panic!("discovering {name}: {error:?}"));
        self.allow_all(&server, &ToolPolicy::allow_read()).await;
        server
    }

    pub(crate) async fn discover(&self, server: &ServerId) -> Result<caliber_core::DiscoveryOutcome, Error> {
        self.caliber.discover((&admin(), Surface::Library), server).await
    }

    pub(crate) async fn allow_all(&self, server: &ServerId, policy: &ToolPolicy) {
        let admin = admin();
        let who = (&admin, Surface::Library);
        let page = caliber_core::page::PageRequest::first(200);
        let listing = self.caliber.tools(&admin, server, &page).await.unwrap();
        for tool in listing.tools.items {
            self.caliber
                .classify(who, server, tool.name(), policy.clone(), None)
                .await
                .unwrap();
        }
    }

    pub(crate) async fn call(&self, server: &ServerId, tool: &str, arguments: &str) -> Outcome {
        self.call_as("ada", server, tool, arguments).await
    }

    pub(crate) async fn call_as(&self, who: &str, server: &ServerId, tool: &str, arguments: &str) -> Outcome {
        let caller = caller(who);
        let invoked = self.caliber.invoke(&caller, request(server, tool, arguments));
        tokio::time::timeout(3 * PATIENCE, invoked)
            .await
            .expect("the call ends")
    }

    pub(crate) async fn call_within(
        &self,
        server: &ServerId,
        tool: &str,
        arguments: &str,
        timeout: Duration,
    ) -> Outcome {
        let mut request = request(server, tool, arguments);
        request.timeout = Some(timeout);
        let began = Instant::now();
        let outcome = self.caliber.invoke(&caller("ada"), request).await;
        let grace = Duration::from_secs(1);
        assert!(
            began.elapsed() <= timeout + grace,
            "the call outlived its deadline"
        );
        outcome
    }

    /// What `ada`'s session says about a tool.
    pub(crate) async fn session(&self, server: &ServerId, tool: &str) -> SessionFact {
        let record = self.caliber.server(&admin(), server).await.unwrap().record;
        let target = Target {
            server: Some(record.id),
            definition: record.definition.into(),
        };
        let caller = CallerKey {
            subject: "ada".parse().unwrap(),
            inbound_session: None,
        };
        self.gateway.session(&target, &caller, &tool.parse().unwrap())
    }

    pub(crate) async fn close(&self) {
        let deadline = caliber_core::clock::Deadline::after(PATIENCE);
        self.gateway.close(deadline).await;
    }
}

pub(crate) type Outcome = Result<InvokeOutcome, Error>;

pub(crate) fn request(server: &ServerId, tool: &str, arguments: &str) -> InvokeRequest {
    let arguments = JsonText::parse(arguments, JsonLimits::ARGUMENTS).unwrap();
    InvokeRequest::new(server.clone(), tool.parse().unwrap(), arguments, Surface::Library)
}

pub(crate) fn admin() -> Principal {
    Principal::local_administrator()
}

pub(crate) fn caller(name: &str) -> Principal {
    Principal {
        subject: name.parse().unwrap(),
        ..admin()
    }
}

/// Calls at once.
pub(crate) async fn calls(
    house: &House,
    server: &ServerId,
    tool: &str,
    arguments: &str,
    number: usize,
    who: impl Fn(usize) -> String,
) -> Vec<Outcome> {
    let running: Vec<_> = (0..number)
        .map(|index| {
            let caliber = house.caliber.clone();
            let request = request(server, tool, arguments);
            let caller = caller(&who(index));
            tokio::spawn(async move { caliber.invoke(&caller, request).await })
        })
        .collect();
    let mut outcomes = Vec::new();
    for call in running {
        outcomes.push(call.await.unwrap());
    }
    outcomes
}

/// The text of the first block of a result.
pub(crate) fn text(outcome: &InvokeOutcome) -> String {
    let result: serde_json::Value = outcome.answer.result.read().unwrap();
    result["content"][0]["text"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Runs the same for several things at once: most of the time is waiting.
pub(crate) async fn for_each<T>(things: impl IntoIterator<Item = T>, run: impl AsyncFn(T)) {
    let running = things.into_iter().map(|thing| run(thing));
    futures::future::join_all(running).await;
}

/// Waits for a condition.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < PATIENCE, "still waiting: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
