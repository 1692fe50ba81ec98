//! The port over this machine: places, pinned sources, what is required, and the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caliber_core::ErrorKind;
use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{
    ExecutionMode, ExecutionPreference, Guarantee, NativeProtocol, Phase, PinnedProgram, Program, RunRequest,
    RunStatus, Sandbox,
};
use caliber_sandbox::{LocalSandbox, SandboxSettings};

use crate::support::{LONG, request, value};

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    async fn sandbox(&self, change: impl FnOnce(&mut SandboxSettings)) -> LocalSandbox {
        let mut settings = SandboxSettings {
            snapshot_folder: self.path().join("snapshots"),
            control_group: Some("/".into()),
            ..SandboxSettings::default()
        };
        change(&mut settings);
        LocalSandbox::start(settings).await.unwrap()
    }

    fn write(&self, code: &str) -> PathBuf {
        let root = self.path().join("source");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("tool.py"), code).unwrap();
        root
    }

    fn program(&self, code: &str) -> Program {
        Program::Python {
            module_path: "tool".to_owned(),
            callable_name: "run".to_owned(),
            source_roots: vec![self.write(code)],
            package_roots: Vec::new(),
        }
    }
}

fn soon() -> Deadline {
    Deadline::after(LONG)
}

fn call(program: &PinnedProgram) -> RunRequest {
    let mut request = request(&Arc::new(program.clone()), r#"{"a":1}"#);
    request.preference = ExecutionPreference::Cold;
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registered_bytes_run_whatever_becomes_of_the_source() {
    let place = Place::new();
    let sandbox = place.sandbox(|_| {}).await;
    let program = place.program("def run(a): return 'first'\n");
    let pinned = sandbox.pin(&program, soon()).await.unwrap();
    place.write("def run(a): return 'second'\n");
    let outcome = sandbox.run_unadmitted(call(&pinned)).await.unwrap();
    assert_eq!(value(&outcome), r#""first""#);
    assert_eq!(outcome.mode, ExecutionMode::Cold);
    assert_eq!(outcome.unenforced, []);

    // The copy is gone, and the source is another one.
    sandbox.retain(|_| false).await.unwrap();
    let error = sandbox.run_unadmitted(call(&pinned)).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SourceChanged));
    // And the same one again.
    place.write("def run(a): return 'first'\n");
    let outcome = sandbox.run_unadmitted(call(&pinned)).await.unwrap();
    assert_eq!(value(&outcome), r#""first""#);
    sandbox.close(soon()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callable_is_looked_at_once() {
    let place = Place::new();
    let sandbox = place.sandbox(|_| {}).await;
    let program = place.program("def run(a: int) -> int:\n    'Doubles.'\n    return 2 * a\n");
    let pinned = sandbox.pin(&program, soon()).await.unwrap();
    let seen = sandbox.inspect(&pinned, soon()).await.unwrap();
    assert!(seen.available, "{seen:?}");
    assert!(seen.signature.contains("a: int"), "{seen:?}");
    assert_eq!(seen.doc, "Doubles.");
    assert!(seen.source.contains("return 2 * a"));

    let missing = PinnedProgram {
        program: Program::Python {
            module_path: "tool".to_owned(),
            callable_name: "missing".to_owned(),
            source_roots: vec![place.path().join("source")],
            package_roots: Vec::new(),
        },
        ..pinned.clone()
    };
    let unseen = sandbox.inspect(&missing, soon()).await.unwrap();
    assert!(!unseen.available && unseen.error.is_some(), "{unseen:?}");

    // No child can look any more, and none is needed for what was seen.
    sandbox.retain(|_| false).await.unwrap();
    place.write("changed = True\n");
    assert_eq!(sandbox.inspect(&pinned, soon()).await.unwrap(), seen);
    let error = sandbox.inspect(&missing, soon()).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SourceChanged));
    sandbox.close(soon()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn places_and_waiting_are_bounded() {
    let place = Place::new();
    let sandbox = place
        .sandbox(|settings| {
            settings.places = 1;
            settings.queue = 0;
        })
        .await;
    let program = place.program("def run(a): return a\n");
    let pinned = sandbox.pin(&program, soon()).await.unwrap();
    let slot = sandbox.reserve(soon()).await.unwrap();
    for refused in [
        sandbox.reserve(soon()).await.unwrap_err(),
        sandbox.run_unadmitted(call(&pinned)).await.unwrap_err(),
        sandbox.inspect(&pinned, soon()).await.unwrap_err(),
    ] {
        assert_eq!(refused.reason(), Some(ReasonCode::SandboxBusy));
    }
    drop(slot);
    assert_eq!(value(&sandbox.run_unadmitted(call(&pinned)).await.unwrap()), "1");
    sandbox.close(soon()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_without_what_is_required() {
    let place = Place::new();
    let bounded_memory = |settings: &mut SandboxSettings| {
        settings.control_group = Some("/no/such/group".into());
        settings.required.push(Guarantee::TreeMemory);
    };
    let sandbox = place.sandbox(bounded_memory).await;
    assert_eq!(sandbox.report().missing(), [Guarantee::TreeMemory]);
    let program = place.program("def run(a): return a\n");
    // Reading the source runs nothing.
    let pinned = sandbox.pin(&program, soon()).await.unwrap();
    for refused in [
        sandbox.reserve(soon()).await.unwrap_err(),
        sandbox.run_unadmitted(call(&pinned)).await.unwrap_err(),
        sandbox.inspect(&pinned, soon()).await.unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert_eq!(refused.reason(), Some(ReasonCode::SandboxUnavailable));
        assert!(refused.message().contains("tree_memory"), "{refused}");
    }
    sandbox.close(soon()).await;

    // The operator may choose otherwise, and every outcome says so.
    let sandbox = place
        .sandbox(|settings| {
            bounded_memory(settings);
            settings.allow_unenforced = true;
        })
        .await;
    let outcome = sandbox.run_unadmitted(call(&pinned)).await.unwrap();
    assert_eq!(value(&outcome), "1");
    assert_eq!(outcome.unenforced, [Guarantee::TreeMemory]);
    let mut late = call(&pinned);
    late.deadline = Deadline::after(Duration::ZERO);
    // Either nothing was free in time, or the run ended before it began.
    match sandbox.run_unadmitted(late).await {
        Ok(outcome) => assert_eq!(outcome.unenforced, [Guarantee::TreeMemory]),
        Err(error) => assert_eq!(error.reason(), Some(ReasonCode::SandboxBusy)),
    }
    sandbox.close(soon()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_time_is_over_ends_as_one() {
    let place = Place::new();
    let sandbox = place.sandbox(|_| {}).await;
    let pinned = sandbox
        .pin(&place.program("def run(a): return a\n"), soon())
        .await
        .unwrap();
    // A store that has not read the copy yet, and no time to do it.
    let other = place.sandbox(|_| {}).await;
    let mut late = call(&pinned);
    late.deadline = Deadline::after(Duration::ZERO);
    let outcome = other.run_unadmitted(late).await.unwrap();
    assert!(
        matches!(
            outcome.status,
            RunStatus::DeadlineExceeded {
                phase: Phase::Spawn | Phase::Queue
            }
        ),
        "{outcome:?}"
    );
    sandbox.close(soon()).await;
    other.close(soon()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executable_runs_as_it_was_pinned() {
    let place = Place::new();
    let sandbox = place.sandbox(|_| {}).await;
    let path = place.path().join("program");
    std::fs::copy("/bin/cat", &path).unwrap();
    let program = Program::Native {
        executable: path.clone(),
        args: Vec::new(),
        protocol: NativeProtocol::Json,
    };
    let pinned = sandbox.pin(&program, soon()).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let outcome = sandbox.run_unadmitted(call(&pinned)).await.unwrap();
    assert_eq!(value(&outcome), r#"{"a":1}"#);
    assert_eq!(outcome.mode, ExecutionMode::Native);
    let unseen = sandbox.inspect(&pinned, soon()).await.unwrap();
    assert!(!unseen.available && unseen.error.is_some());
    sandbox.close(soon()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_gives_its_place_back() {
    let place = Place::new();
    let sandbox = place.sandbox(|settings| settings.places = 1).await;
    let slow = place.program("import time\ndef run(a): time.sleep(600)\n");
    let slow = sandbox.pin(&slow, soon()).await.unwrap();
    let quick = sandbox
        .pin(&place.program("def run(a): return a\n"), soon())
        .await
        .unwrap();
    let gone = tokio::time::timeout(Duration::from_millis(500), sandbox.run_unadmitted(call(&slow)));
    assert!(gone.await.is_err());
    let begun = Instant::now();
    assert_eq!(value(&sandbox.run_unadmitted(call(&quick)).await.unwrap()), "1");
    assert!(begun.elapsed() < LONG / 2);
    sandbox.close(soon()).await;
    let error = sandbox.run_unadmitted(call(&quick)).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SandboxUnavailable));
}

/// Packages are not copied: they are looked at again, and a run on others is refused.
#[tokio::test(flavor = "multi_thread")]
async fn changed_packages_are_another_environment() {
    use caliber_sandbox::pin::{ENVIRONMENT_TRUSTED, PinLimits, SnapshotStore, Stop};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let (source, packages) = (path.join("source"), path.join("packages"));
    for folder in [&source, &packages] {
        std::fs::create_dir(folder).unwrap();
    }
    std::fs::write(
        source.join("tool.py"),
        "import helper\ndef run(): return helper.VALUE\n",
    )
    .unwrap();
    std::fs::write(packages.join("helper.py"), "VALUE = 1\n").unwrap();
    let store = SnapshotStore::open(&path.join("snapshots"), PinLimits::default()).unwrap();
    let program = Program::Python {
        module_path: "tool".to_owned(),
        callable_name: "run".to_owned(),
        source_roots: vec![source],
        package_roots: vec![packages.clone()],
    };
    let stop = Stop::at(Deadline::after(LONG));
    let pinned = store.pin(&program, "python", &stop).unwrap();
    store.check_environment(&pinned, "python", &stop).unwrap();
    assert!(store.is_environment_trusted(&pinned) && ENVIRONMENT_TRUSTED <= Duration::from_secs(10));
    // Another process, or the same one a little later, sees the change.
    let later = SnapshotStore::open(&path.join("snapshots"), PinLimits::default()).unwrap();
    let upgraded = later
        .check_environment(&pinned, "python of another version", &stop)
        .unwrap_err();
    assert_eq!(upgraded.reason(), Some(ReasonCode::SourceChanged));
    std::fs::write(packages.join("helper.py"), "VALUE = 'other'\n").unwrap();
    let refused = later.check_environment(&pinned, "python", &stop).unwrap_err();
    assert_eq!(refused.reason(), Some(ReasonCode::SourceChanged));
}
