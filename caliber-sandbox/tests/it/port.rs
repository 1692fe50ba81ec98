//! Both adapters under the control plane: what it admits runs, by a permit that only it makes.

use std::path::PathBuf;
use std::sync::Arc;

use caliber_core::clock::Deadline;
use caliber_core::conformance::sandbox::Bench;
use caliber_core::invocation::InvocationOutcome;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::memory::Parts;
use caliber_core::principal::{Principal, Surface};
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{Program, RunStatus, Sandbox};
use caliber_core::server::Visibility;
use caliber_core::{CodeToolCall, CodeToolRegistration};
use caliber_sandbox::{LocalSandbox, SandboxSettings, UnsupportedSandbox};

use crate::support::LONG;

fn json(text: &str) -> JsonText {
    JsonText::parse(text, JsonLimits::ARGUMENTS).unwrap()
}

fn registration(root: &PathBuf) -> CodeToolRegistration {
    let definition = serde_json::json!({
        "name": "adder",
        "version": "1.0.0",
        "program": {
            "runtime": "python",
            "module_path": "tool",
            "callable_name": "run",
            "source_roots": [root],
        },
        "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "side_effect_level": "read",
        "requires_approval": false,
    });
    CodeToolRegistration {
        definition: serde_json::from_str(&definition.to_string()).unwrap(),
        visibility: Visibility::Project,
    }
}

/// Registers a tool, looks at it, runs it, and sees it fail.
async fn works_under_the_control_plane(sandbox: Arc<dyn Sandbox>, source: PathBuf) {
    std::fs::write(
        source.join("tool.py"),
        "def run(a):\n    'Adds.'\n    if a < 0: raise ValueError('negative')\n    return {'sum': a + 1}\n",
    )
    .unwrap();
    let caliber = Parts::new().builder().sandbox(Arc::clone(&sandbox)).build();
    let admin = Principal::local_administrator();
    let who = (&admin, Surface::Library);
    let record = caliber
        .register_code_tool(who, registration(&source))
        .await
        .unwrap();
    let seen = caliber.code_tool_source(who, &record.id).await.unwrap();
    assert_eq!(seen.doc, "Adds.", "{seen:?}");
    // The tool's own source is another one by now; what was registered runs.
    std::fs::write(source.join("tool.py"), "def run(a): return 'swapped'\n").unwrap();
    for (arguments, expected) in [
        (r#"{"a": 41}"#, InvocationOutcome::Ok),
        (r#"{"a": -1}"#, InvocationOutcome::ToolError),
    ] {
        let call = CodeToolCall::new(record.id.clone(), json(arguments), Surface::Library);
        let run = caliber.run_code_tool(&admin, call).await.unwrap();
        assert_eq!(run.outcome, expected, "{run:?}");
        match run.run.status {
            RunStatus::Ok { value } => assert_eq!(value.as_str(), r#"{"sum":42}"#),
            RunStatus::ToolError { error_type, message } => {
                assert_eq!(
                    (error_type.as_str(), message.as_str()),
                    ("ValueError", "negative")
                );
            }
            other => panic!("{other:?}"),
        }
    }
    let call = CodeToolCall::new(record.id, json(r#"{"a": "text"}"#), Surface::Library);
    let refused = caliber.run_code_tool(&admin, call).await.unwrap_err();
    assert_eq!(refused.reason(), Some(ReasonCode::ArgumentsInvalid));
    sandbox.close(Deadline::after(LONG)).await;
}

async fn local(folder: &tempfile::TempDir) -> (LocalSandbox, PathBuf) {
    let path = folder.path().canonicalize().unwrap();
    let source = path.join("source");
    std::fs::create_dir(&source).unwrap();
    let settings = SandboxSettings {
        snapshot_folder: path.join("snapshots"),
        control_group: Some("/".into()),
        ..SandboxSettings::default()
    };
    let sandbox = LocalSandbox::start(settings).await.unwrap();
    let report = sandbox.report();
    assert!(report.is_available(), "nothing runs here: {report:#?}");
    (sandbox, source)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sandbox_of_this_machine_works_under_the_control_plane() {
    let folder = tempfile::tempdir().unwrap();
    let (sandbox, source) = local(&folder).await;
    works_under_the_control_plane(Arc::new(sandbox), source).await;
}

/// A service in this process, and what reaches it.
#[cfg(feature = "remote")]
struct Elsewhere {
    sandbox: Arc<LocalSandbox>,
    service: tokio::task::JoinHandle<caliber_core::Result<()>>,
    cancel: tokio_util::sync::CancellationToken,
    _folder: tempfile::TempDir,
}

#[cfg(feature = "remote")]
impl Elsewhere {
    async fn start() -> (Self, Arc<dyn Sandbox>, PathBuf) {
        use caliber_sandbox::remote::{RemoteSandbox, RemoteSettings, ServiceOptions, ServiceToken, serve};

        let folder = tempfile::tempdir().unwrap();
        let (sandbox, source) = local(&folder).await;
        let token = ServiceToken::new("a-token-of-the-tests-0123456789-0123").unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let cancel = tokio_util::sync::CancellationToken::new();
        let options = ServiceOptions::new(token.clone());
        let sandbox = Arc::new(sandbox);
        let service = tokio::spawn(serve(Arc::clone(&sandbox), listener, options, cancel.clone()));
        let settings = RemoteSettings::new(url.parse().unwrap(), token);
        let remote = RemoteSandbox::connect(settings, Deadline::after(LONG))
            .await
            .unwrap();
        let elsewhere = Self {
            sandbox,
            service,
            cancel,
            _folder: folder,
        };
        (elsewhere, Arc::new(remote), source)
    }

    async fn end(self) {
        self.cancel.cancel();
        self.service.await.unwrap().unwrap();
        self.sandbox.close(Deadline::after(LONG)).await;
    }
}

#[cfg(feature = "remote")]
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_elsewhere_works_under_the_control_plane() {
    let (elsewhere, remote, source) = Elsewhere::start().await;
    works_under_the_control_plane(remote, source).await;
    elsewhere.end().await;
}

#[cfg(feature = "remote")]
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_elsewhere_keeps_the_contract_of_its_port() {
    let started = std::sync::Mutex::new(Vec::new());
    caliber_core::conformance::sandbox::run(async || {
        let (elsewhere, remote, source) = Elsewhere::start().await;
        started.lock().unwrap().push(elsewhere);
        bench(remote, &source)
    })
    .await;
    for elsewhere in started.into_inner().unwrap() {
        elsewhere.end().await;
    }
}

#[tokio::test]
async fn where_nothing_is_enforced_nothing_is_registered() {
    let sandbox = Arc::new(UnsupportedSandbox::new(Vec::new()));
    let caliber = Parts::new().builder().sandbox(sandbox).build();
    let admin = Principal::local_administrator();
    let folder = tempfile::tempdir().unwrap();
    let refused = caliber
        .register_code_tool(
            (&admin, Surface::Library),
            registration(&folder.path().to_owned()),
        )
        .await
        .unwrap_err();
    assert_eq!(refused.reason(), Some(ReasonCode::SandboxUnavailable));
}

/// What the suite of the port wants programs to do.
const SUITE: &str = r#"
import os, time
calls = 0
def echo(**arguments): return arguments
def fail(): raise ValueError("as the suite wants")
def sleep(milliseconds): time.sleep(milliseconds / 1000)
def silent(): os._exit(0)
def chatter(bytes): print("x" * bytes, end="")
def large(bytes): return "x" * bytes
def no_json(): return float("nan")
def count():
    global calls
    calls += 1
    known = calls
    for folder in {os.path.realpath(name) for name in (os.getcwd(), "/tmp", "/dev/shm", os.environ["TMPDIR"])}:
        path = os.path.join(folder, "calls")
        try:
            with open(path, "a+") as file:
                file.seek(0)
                known = max(known, len(file.read()) + 1)
                file.write("x")
        except OSError:
            pass
    return known
"#;

fn bench(sandbox: Arc<dyn Sandbox>, source: &std::path::Path) -> Bench {
    std::fs::write(source.join("suite.py"), SUITE).unwrap();
    let root = source.to_owned();
    Bench {
        caliber: Parts::new().builder().sandbox(sandbox).build(),
        admin: Principal::local_administrator(),
        places: SandboxSettings::default().places,
        program: Box::new(move |behaviour| Program::Python {
            module_path: "suite".to_owned(),
            callable_name: behaviour.as_str().to_owned(),
            source_roots: vec![root.clone()],
            package_roots: Vec::new(),
        }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sandbox_of_this_machine_keeps_the_contract_of_its_port() {
    let folders = std::sync::Mutex::new(Vec::new());
    caliber_core::conformance::sandbox::run(async || {
        let folder = tempfile::tempdir().unwrap();
        let (sandbox, source) = local(&folder).await;
        folders.lock().unwrap().push(folder);
        bench(Arc::new(sandbox), &source)
    })
    .await;
}
