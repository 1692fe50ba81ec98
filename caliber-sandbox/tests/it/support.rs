//! A tool in a folder, pinned, and an engine with all layers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use caliber_core::clock::Deadline;
use caliber_core::id::ProjectId;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::sandbox::{
    ExecutionPreference, NativeProtocol, PinnedProgram, Program, RunLimits, RunOutcome, RunRequest, RunStatus,
};
use caliber_core::secret::SecretText;
use caliber_sandbox::linux::engine::Engine;
use caliber_sandbox::linux::landlock;
use caliber_sandbox::linux::layers::Layers;
use caliber_sandbox::pin::{PinLimits, SnapshotStore, Stop};
use caliber_sandbox::settings::SandboxSettings;

/// Long enough for a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Rig {
    pub(crate) engine: Arc<Engine>,
    folder: tempfile::TempDir,
    store: SnapshotStore,
}

pub(crate) fn all_layers() -> Layers {
    Layers {
        namespaces: true,
        proc: true,
        landlock: landlock::version(),
        seccomp: true,
        cgroups: rustix::process::geteuid().is_root(),
        unenforced: Vec::new(),
    }
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut SandboxSettings)) -> Self {
        Self::with_layers(all_layers(), change)
    }

    pub(crate) fn with_layers(layers: Layers, change: impl FnOnce(&mut SandboxSettings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let snapshots = folder.path().canonicalize().unwrap().join("snapshots");
        let mut settings = SandboxSettings {
            snapshot_folder: snapshots.clone(),
            // Not in the group of whoever runs the tests.
            control_group: Some("/".into()),
            ..SandboxSettings::default()
        };
        change(&mut settings);
        let store = SnapshotStore::open(&snapshots, PinLimits::default()).unwrap();
        let engine = Arc::new(Engine::start(settings, layers).unwrap());
        Self {
            engine,
            folder,
            store,
        }
    }

    fn pin(&self, program: &Program) -> Arc<PinnedProgram> {
        let stop = Stop::at(Deadline::after(LONG));
        Arc::new(
            self.store
                .pin(program, "the interpreter of the tests", &stop)
                .unwrap(),
        )
    }

    /// A module `tool` with this text, and its callable `run`.
    pub(crate) fn python(&self, source: &str) -> Arc<PinnedProgram> {
        self.python_named("tool", "run", source)
    }

    /// A module of this name with this text, and this callable of it.
    pub(crate) fn python_named(&self, module: &str, callable: &str, source: &str) -> Arc<PinnedProgram> {
        let root = tempfile::Builder::new()
            .tempdir_in(self.folder.path())
            .unwrap()
            .keep();
        std::fs::write(root.join(format!("{module}.py")), source).unwrap();
        self.pin(&Program::Python {
            module_path: module.into(),
            callable_name: callable.into(),
            source_roots: vec![root.canonicalize().unwrap()],
            package_roots: Vec::new(),
        })
    }

    pub(crate) fn native(
        &self,
        executable: &str,
        args: &[&str],
        protocol: NativeProtocol,
    ) -> Arc<PinnedProgram> {
        self.pin(&Program::Native {
            executable: PathBuf::from(executable).canonicalize().unwrap(),
            args: args.iter().map(|&argument| argument.to_owned()).collect(),
            protocol,
        })
    }

    pub(crate) fn run(&self, request: RunRequest) -> RunOutcome {
        self.engine.run_blocking(request).unwrap()
    }

    /// What a callable of this module does with these arguments, in a new interpreter.
    pub(crate) fn cold(&self, source: &str, arguments: &str) -> RunOutcome {
        let mut request = request(&self.python(source), arguments);
        request.preference = ExecutionPreference::Cold;
        self.run(request)
    }
}

impl Drop for Rig {
    /// Copies of sources are read-only, and only root removes them all the same.
    fn drop(&mut self) {
        fn open(folder: &Path) {
            use std::os::unix::fs::PermissionsExt;
            let _ = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700));
            for entry in std::fs::read_dir(folder)
                .into_iter()
                .flatten()
                .filter_map(Result::ok)
            {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    open(&entry.path());
                }
            }
        }
        open(self.folder.path());
    }
}

pub(crate) fn request(program: &Arc<PinnedProgram>, arguments: &str) -> RunRequest {
    RunRequest {
        program: Arc::clone(program),
        arguments: JsonText::parse(arguments, JsonLimits::ARGUMENTS).unwrap(),
        secrets: Vec::new(),
        tenant: ProjectId::default(),
        preference: ExecutionPreference::Isolated,
        limits: RunLimits::default(),
        startup_grace: Duration::ZERO,
        deadline: Deadline::after(LONG),
        result_bytes: 16 << 20,
    }
}

pub(crate) fn secret(name: &str, value: &str) -> (String, SecretText) {
    (name.to_owned(), SecretText::new(value))
}

/// The value of a call that worked.
pub(crate) fn value(outcome: &RunOutcome) -> &str {
    match &outcome.status {
        RunStatus::Ok { value } => value.as_str(),
        other => panic!("{other:?}\n{}", outcome.stderr.text),
    }
}

/// Where the process that was started for one test reads that it is the one.
const ALONE: &str = "CALIBER_SANDBOX_TEST_ALONE";

/// Whether this process was started for the one test; starts it otherwise, and waits.
pub(crate) fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let temporary = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .env("TMPDIR", temporary.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "{text}");
    false
}
