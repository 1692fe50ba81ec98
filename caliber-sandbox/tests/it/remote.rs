//! A sandbox over HTTP: who may use it, what is bounded, and what a lost answer means.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::clock::Deadline;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{
    Enforcement, ExecutionPreference, Guarantee, PinnedProgram, Program, RunLimits, RunRequest, RunStatus,
    Sandbox, SandboxReport,
};
use caliber_core::secret::SecretText;
use caliber_core::{Error, ErrorKind};
use caliber_sandbox::remote::{RemoteSandbox, RemoteSettings, ServiceOptions, ServiceToken, serve};
use caliber_sandbox::{LocalSandbox, SandboxSettings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "canary-token-0123456789-0123456789";

fn token() -> ServiceToken {
    ServiceToken::new(TOKEN).unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// A service over a sandbox of this machine, that ends with the test.
struct Served {
    address: SocketAddr,
    sandbox: Arc<LocalSandbox>,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<caliber_core::Result<()>>,
    folder: tempfile::TempDir,
}

impl Served {
    async fn start(options: ServiceOptions, change: impl FnOnce(&mut SandboxSettings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = SandboxSettings {
            snapshot_folder: folder.path().join("snapshots"),
            control_group: Some("/".into()),
            ..SandboxSettings::default()
        };
        change(&mut settings);
        let sandbox = Arc::new(LocalSandbox::start(settings).await.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let task = tokio::spawn(serve(Arc::clone(&sandbox), listener, options, cancel.clone()));
        Self {
            address,
            sandbox,
            cancel,
            task,
            folder,
        }
    }

    async fn plain() -> Self {
        Self::start(ServiceOptions::new(token()), |_| {}).await
    }

    fn settings(&self) -> RemoteSettings {
        settings(self.address)
    }

    /// A program whose module is `code`, with its source on this machine.
    fn program(&self, code: &str) -> Program {
        let root = self.folder.path().canonicalize().unwrap().join("source");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("tool.py"), code).unwrap();
        Program::Python {
            module_path: "tool".to_owned(),
            callable_name: "run".to_owned(),
            source_roots: vec![root],
            package_roots: Vec::new(),
        }
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.task.await.unwrap().unwrap();
        self.sandbox.close(soon()).await;
    }
}

fn settings(address: SocketAddr) -> RemoteSettings {
    RemoteSettings::new(format!("http://{address}").parse().unwrap(), token())
}

fn request(program: PinnedProgram, deadline: Deadline) -> RunRequest {
    RunRequest {
        program: Arc::new(program),
        arguments: JsonText::parse(r#"{"a": 1}"#, JsonLimits::ARGUMENTS).unwrap(),
        secrets: vec![("KEY".to_owned(), SecretText::new("canary-secret"))],
        tenant: "prj-test".parse().unwrap(),
        preference: ExecutionPreference::Isolated,
        limits: RunLimits::default(),
        startup_grace: Duration::ZERO,
        deadline,
        result_bytes: 1 << 20,
    }
}

/// Sends raw bytes and reads all that comes until the other side closes, or `limit` passes.
async fn raw(address: SocketAddr, bytes: &[u8], limit: Duration) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(limit, stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str, authorization: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n{authorization}connection: close\r\n\r\n").into_bytes()
}

fn post(path: &str, kind: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn only_the_holder_of_the_token_gets_in() {
    let served = Served::plain().await;
    let address = served.address;
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    let is = |answer: String, status: &str| {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(!answer.contains("canary"), "{answer}");
    };
    is(raw(address, &get("/health", ""), LONG).await, "200");
    is(raw(address, &get("/v1/report", &bearer), LONG).await, "200");
    is(raw(address, &get("/v1/nothing", &bearer), LONG).await, "404");
    is(raw(address, &get("/v1/run", &bearer), LONG).await, "404");
    for wrong in ["", "authorization: Bearer x\r\n", "authorization: Basic x\r\n"] {
        let answer = raw(address, &get("/v1/report", wrong), LONG).await;
        assert!(
            answer.to_lowercase().contains("www-authenticate: bearer"),
            "{answer}"
        );
        is(answer, "401");
        is(raw(address, &get("/v1/nothing", wrong), LONG).await, "401");
    }
    let mut wrong = served.settings();
    wrong.token = ServiceToken::new("another-token-0123456789-0123456789").unwrap();
    let remote = RemoteSandbox::connect(wrong, soon()).await.unwrap();
    let error = remote.reserve(soon()).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SandboxUnavailable));
    assert!(error.message().contains("token"), "{error}");
    served.stop().await;
}

#[tokio::test]
async fn bodies_are_bounded_and_never_repeated() {
    let mut options = ServiceOptions::new(token());
    options.max_body_bytes = 1000;
    options.body_timeout = Duration::from_millis(300);
    options.head_timeout = Duration::from_millis(300);
    let served = Served::start(options, |_| {}).await;
    let address = served.address;
    let json = "application/json";
    let large = format!(r#"{{"program": "{}"}}"#, "x".repeat(1000));
    let answer = raw(address, &post("/v1/pin", json, &large), LONG).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    for (kind, body) in [
        (json, r#"{"secrets": "canary-body"}"#),
        (json, "canary-body"),
        ("text/plain", "{}"),
    ] {
        let answer = raw(address, &post("/v1/run", kind, body), LONG).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(!answer.contains("canary"), "{answer}");
    }
    // A head and a body that never end.
    let answer = raw(address, b"GET /health HTTP/1.1\r\nhost: x\r\n", LONG).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 408"),
        "{answer}"
    );
    let head = format!(
        "POST /v1/run HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: {json}\r\ncontent-length: 10\r\nconnection: close\r\n\r\n{{"
    );
    let answer = raw(address, head.as_bytes(), LONG).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    served.stop().await;
}

#[tokio::test]
async fn health_answers_when_every_connection_is_taken() {
    let mut options = ServiceOptions::new(token());
    options.max_connections = 2;
    options.drain_timeout = Duration::from_millis(100);
    let served = Served::start(options, |_| {}).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        // A request that is under way.
        stream.write_all(b"GET /v1/report HTTP/1.1\r\n").await.unwrap();
        held.push(stream);
    }
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    let end = Instant::now() + LONG;
    loop {
        // The service may not have seen the two yet.
        let answer = raw(served.address, &get("/v1/report", &bearer), LONG).await;
        if answer.starts_with("HTTP/1.1 503") {
            assert!(answer.contains("sandbox_busy"), "{answer}");
            break;
        }
        assert!(Instant::now() < end, "{answer}");
    }
    let answer = raw(served.address, &get("/health", ""), LONG).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(held);
    served.stop().await;
}

#[tokio::test]
async fn what_travels_in_the_clear_stays_on_this_machine() {
    for url in [
        "http://192.0.2.1:1",
        "http://sandbox.example:1",
        "ftp://127.0.0.1",
        "https://u:p@x",
        "https://x?a=b",
    ] {
        let settings = RemoteSettings::new(url.parse().unwrap(), token());
        let error = RemoteSandbox::connect(settings, soon()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert_eq!(error.fields()[0].field, "remote.url");
    }
    let mut options = ServiceOptions::new(token());
    let open: SocketAddr = "0.0.0.0:1".parse().unwrap();
    assert_eq!(
        options.check_address(open).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    options.check_address("127.0.0.1:1".parse().unwrap()).unwrap();
    options.behind_tls = true;
    options.check_address(open).unwrap();
}

#[tokio::test]
async fn the_report_is_the_service_s_and_the_requirements_are_ours() {
    let served = Served::start(ServiceOptions::new(token()), |settings| {
        settings.required = Vec::new();
    })
    .await;
    let remote = RemoteSandbox::connect(served.settings(), soon()).await.unwrap();
    let report = remote.report();
    assert_eq!(report.backend, "remote");
    assert_eq!(report.guarantees, served.sandbox.report().guarantees);
    assert_eq!(report.required, Guarantee::DEFAULT_REQUIRED);
    assert!(report.is_available(), "{report:?}");
    served.stop().await;

    // A service that cannot run anything has a reason, and it is told.
    let served = Served::start(ServiceOptions::new(token()), |settings| {
        settings.interpreter = "/no/python3".into();
    })
    .await;
    let mut ours = served.settings();
    ours.required = Vec::new();
    let remote = RemoteSandbox::connect(ours, soon()).await.unwrap();
    let error = remote.reserve(soon()).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SandboxUnavailable));
    assert!(error.message().contains("/no/python3"), "{error}");
    served.stop().await;
}

#[tokio::test]
async fn a_program_is_pinned_where_the_service_runs() {
    let served = Served::plain().await;
    let remote = RemoteSandbox::connect(served.settings(), soon()).await.unwrap();
    let program = served.program("def run(a):\n    return a\n");
    let pinned = remote.pin(&program, soon()).await.unwrap();
    assert_eq!(pinned, served.sandbox.pin(&program, soon()).await.unwrap());
    let Program::Python { source_roots, .. } = &program else {
        panic!("{program:?}")
    };
    std::fs::remove_file(source_roots[0].join("tool.py")).unwrap();
    let error = remote.pin(&program, soon()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.fields()[0].field, "module_path");
    served.stop().await;
}

#[tokio::test]
async fn it_speaks_tls_to_who_trusts_its_certificate() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let mut options = ServiceOptions::new(token());
    options.tls = Some(Arc::new(tls));
    let served = Served::start(options, |_| {}).await;
    let url = format!("https://localhost:{}", served.address.port());
    let mut settings = RemoteSettings::new(url.parse().unwrap(), token());
    let stranger = RemoteSandbox::connect(settings.clone(), soon()).await.unwrap();
    assert!(stranger.report().problem.is_some());
    settings.extra_roots = certified.cert.pem().into_bytes();
    let remote = RemoteSandbox::connect(settings, soon()).await.unwrap();
    assert_eq!(remote.report().problem, None);
    assert_eq!(remote.report().guarantees.len(), Guarantee::ALL.len());
    served.stop().await;
}

/// What a scripted service does with a run.
#[derive(Clone)]
enum Script {
    Close,
    Stall,
    BreakOff,
    Answer(&'static str, String),
}

/// A service that reports that all is well, and does with runs as it is told.
async fn scripted(script: Script) -> (SocketAddr, impl Future<Output = usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let runs = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let task = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let (path, secret_seen) = read_request(&mut stream).await;
            if path.ends_with("/report") {
                let report = serde_json::to_string(&all_is_well()).unwrap();
                answer(&mut stream, "200 OK", &report).await;
                continue;
            }
            assert!(secret_seen, "the secret travels with the run");
            seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            match script.clone() {
                Script::Close => {}
                Script::Stall => held.push(stream),
                Script::BreakOff => {
                    let head =
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{";
                    stream.write_all(head.as_bytes()).await.unwrap();
                }
                Script::Answer(status, body) => answer(&mut stream, status, &body).await,
            }
        }
    });
    let count = async move {
        task.abort();
        runs.load(std::sync::atomic::Ordering::SeqCst)
    };
    (address, count)
}

async fn read_request(stream: &mut TcpStream) -> (String, bool) {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.unwrap();
        bytes.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| {
                line.to_lowercase()
                    .strip_prefix("content-length: ")?
                    .parse::<usize>()
                    .ok()
            })
            .unwrap_or(0);
        if body.len() >= length {
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            return (path, body.contains("canary-secret"));
        }
    }
}

async fn answer(stream: &mut TcpStream, status: &str, body: &str) {
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
}

fn all_is_well() -> SandboxReport {
    SandboxReport {
        backend: "linux".to_owned(),
        guarantees: Guarantee::ALL
            .into_iter()
            .map(|guarantee| {
                let by = vec!["test".to_owned()];
                (guarantee, Enforcement::Enforced { by })
            })
            .collect(),
        required: Vec::new(),
        interpreter: Some("python".to_owned()),
        problem: None,
        unenforced_allowed: false,
    }
}

fn some_program() -> PinnedProgram {
    PinnedProgram {
        program: Program::Python {
            module_path: "tool".to_owned(),
            callable_name: "run".to_owned(),
            source_roots: vec!["/source".into()],
            package_roots: Vec::new(),
        },
        source: caliber_core::digest::SourceDigest::of(b"source"),
        environment: caliber_core::digest::EnvironmentDigest::of(b"environment"),
    }
}

/// How a run by a scripted service ends, and how often it was sent.
async fn run_scripted(script: Script, time: Duration) -> (Result<RunStatus, Error>, usize) {
    let (address, count) = scripted(script).await;
    let mut settings = settings(address);
    settings.answer_bytes = 10_000;
    let remote = RemoteSandbox::connect(settings, soon()).await.unwrap();
    let outcome = remote
        .run_unadmitted(request(some_program(), Deadline::after(time)))
        .await;
    (outcome.map(|outcome| outcome.status), count.await)
}

#[tokio::test]
async fn a_lost_answer_is_an_unknown_outcome_and_nothing_is_sent_twice() {
    let proxy = || "<html>bad gateway</html>".to_owned();
    for (script, time) in [
        (Script::Close, LONG),
        (Script::BreakOff, LONG),
        (Script::Stall, Duration::from_millis(300)),
        (Script::Answer("502 Bad Gateway", proxy()), LONG),
        (Script::Answer("200 OK", proxy()), LONG),
        (
            Script::Answer("200 OK", format!("\"{}\"", "x".repeat(2 << 20))),
            LONG,
        ),
    ] {
        let (outcome, sent) = run_scripted(script, time).await;
        let error = outcome.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::OutcomeUnknown, Some(ReasonCode::OutcomeUnknown)),
            "{error}"
        );
        assert!(!error.message().contains("canary"), "{error}");
        assert_eq!(sent, 1);
    }
}

#[tokio::test]
async fn what_the_service_says_is_an_answer() {
    let busy = r#"{"sandbox_error":"unavailable","reason":"sandbox_busy","message":"later"}"#;
    let (outcome, _) = run_scripted(Script::Answer("503 Service Unavailable", busy.to_owned()), LONG).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SandboxBusy));
    assert_eq!(error.kind(), ErrorKind::Unavailable);

    let outcome_with = |status: &str| {
        format!(
            r#"{{"status":{status},"stdout":{{"text":"","total_bytes":0,"truncated":false}},"stderr":{{"text":"","total_bytes":0,"truncated":false}},"mode":"cold","unenforced":[],"times":{{"start_us":1,"run_us":2}},"usage":{{"cpu_us":null,"peak_memory_bytes":null}}}}"#
        )
    };
    let answered = |status: &str| Script::Answer("200 OK", outcome_with(status));
    let (outcome, _) = run_scripted(answered(r#"{"ok":{"value":{"x": 1.50}}}"#), LONG).await;
    match outcome.unwrap() {
        RunStatus::Ok { value } => assert_eq!(value.as_str(), r#"{"x": 1.50}"#),
        other => panic!("{other:?}"),
    }
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let (outcome, _) = run_scripted(answered(&format!(r#"{{"ok":{{"value":{deep}}}}}"#)), LONG).await;
    assert!(matches!(outcome.unwrap(), RunStatus::ResultInvalid { .. }));
    let large = format!(r#"{{"ok":{{"value":"{}"}}}}"#, "x".repeat((1 << 20) + 10));
    let (outcome, _) = run_scripted(answered(&large), LONG).await;
    assert!(matches!(outcome.unwrap(), RunStatus::ResultTooLarge { limit } if limit == 1 << 20));
}

#[tokio::test]
async fn a_service_that_is_away_is_found_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let remote = RemoteSandbox::connect(settings(address), soon()).await.unwrap();
    assert!(!remote.report().is_available());
    assert!(!remote.report().guarantees.values().any(Enforcement::is_enforced));
    let error = remote.reserve(soon()).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SandboxUnavailable));
    let error = remote
        .run_unadmitted(request(some_program(), soon()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);

    // Who only looks at the report has it asked for again, a moment later.
    let listener = TcpListener::bind(address).await.unwrap();
    let back = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
        answer(
            &mut stream,
            "200 OK",
            &serde_json::to_string(&all_is_well()).unwrap(),
        )
        .await;
    });
    let end = Instant::now() + LONG;
    while !remote.report().is_available() {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    back.await.unwrap();
    let slot = remote.reserve(soon()).await.unwrap();
    drop(slot);
    remote.close(soon()).await;
    assert!(remote.reserve(soon()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_runs_elsewhere_as_it_would_here() {
    let served = Served::plain().await;
    let remote = RemoteSandbox::connect(served.settings(), soon()).await.unwrap();
    let program = served.program(
        "import sys\ndef run(a):\n    'Adds.'\n    print('out')\n    print('err', file=sys.stderr)\n    return {'sum': a + 1}\n",
    );
    let pinned = remote.pin(&program, soon()).await.unwrap();
    let seen = remote.inspect(&pinned, soon()).await.unwrap();
    assert_eq!(seen.doc, "Adds.");
    let outcome = remote.run_unadmitted(request(pinned, soon())).await.unwrap();
    match &outcome.status {
        RunStatus::Ok { value } => assert_eq!(value.as_str(), r#"{"sum":2}"#),
        other => panic!("{other:?}"),
    }
    assert_eq!(outcome.stdout.text, "out\n");
    assert_eq!(outcome.stderr.text, "err\n");
    assert_eq!(outcome.unenforced, []);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_with_its_deadline_and_with_its_caller() {
    let served = Served::start(ServiceOptions::new(token()), |settings| settings.places = 1).await;
    let remote = RemoteSandbox::connect(served.settings(), soon()).await.unwrap();
    let program = served.program("import time\ndef run(a): time.sleep(600)\n");
    let slow = remote.pin(&program, soon()).await.unwrap();
    // The service's word that the time is over arrives before it is.
    let late = request(slow.clone(), Deadline::after(Duration::from_secs(3)));
    let outcome = remote.run_unadmitted(late).await.unwrap();
    assert!(
        matches!(outcome.status, RunStatus::DeadlineExceeded { .. }),
        "{outcome:?}"
    );
    // A caller that goes away leaves the one place of the service to the next.
    let gone = remote.run_unadmitted(request(slow, soon()));
    assert!(
        tokio::time::timeout(Duration::from_millis(500), gone)
            .await
            .is_err()
    );
    let quick = served.program("def run(a): return a\n");
    let quick = remote.pin(&quick, soon()).await.unwrap();
    let outcome = remote.run_unadmitted(request(quick, soon())).await.unwrap();
    assert!(matches!(outcome.status, RunStatus::Ok { .. }), "{outcome:?}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_answers_while_every_place_is_taken() {
    let served = Served::start(ServiceOptions::new(token()), |settings| {
        settings.places = 1;
        settings.queue = 1;
    })
    .await;
    let mut ours = served.settings();
    ours.places = 64;
    let remote = Arc::new(RemoteSandbox::connect(ours, soon()).await.unwrap());
    let program = served.program("def run(a):\n    while True: pass\n");
    let pinned = remote.pin(&program, soon()).await.unwrap();
    let mut runs = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (remote, pinned) = (Arc::clone(&remote), pinned.clone());
        runs.spawn(async move {
            let deadline = Deadline::after(Duration::from_secs(4));
            remote.run_unadmitted(request(pinned, deadline)).await
        });
    }
    // As long as the runs last, and they last until their deadline.
    let mut answers = 0;
    while !runs.is_empty() {
        let health = raw(served.address, &get("/health", ""), LONG).await;
        assert!(health.starts_with("HTTP/1.1 200"), "{health}");
        answers += 1;
        while let Some(ended) = runs.try_join_next() {
            match ended.unwrap() {
                Ok(outcome) => assert!(
                    matches!(outcome.status, RunStatus::DeadlineExceeded { .. }),
                    "{outcome:?}"
                ),
                // The others were told that there is no place.
                Err(error) => assert_eq!(error.reason(), Some(ReasonCode::SandboxBusy), "{error}"),
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(answers > 10, "{answers}");
    served.stop().await;
}
