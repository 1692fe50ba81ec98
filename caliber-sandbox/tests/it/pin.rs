//! Sources are read once, and what runs is the copy.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{NativeProtocol, PinnedProgram, Program};
use caliber_core::{ErrorKind, Result};
use caliber_sandbox::pin::{PinLimits, SnapshotStore, Stop};
use proptest::prelude::*;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("source")).unwrap();
        Self { folder }
    }

    fn source(&self) -> PathBuf {
        // The folder for temporary files may lie behind a link.
        self.folder.path().canonicalize().unwrap().join("source")
    }

    fn write(&self, path: &str, content: &str) -> PathBuf {
        let path = self.source().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn store_path(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn store(&self) -> SnapshotStore {
        SnapshotStore::open(&self.store_path(), PinLimits::default()).unwrap()
    }

    fn program(&self) -> Program {
        python("tool", &[self.source()])
    }

    fn pin(&self) -> Result<PinnedProgram> {
        self.store().pin(&self.program(), "python 3", &soon())
    }

    /// Everything in the store, by name.
    fn kept(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.folder.path().join("store"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn python(module: &str, roots: &[PathBuf]) -> Program {
    Program::Python {
        module_path: module.to_owned(),
        callable_name: "run".to_owned(),
        source_roots: roots.to_vec(),
        package_roots: Vec::new(),
    }
}

fn soon() -> Stop {
    Stop::at(Deadline::after(Duration::from_secs(30)))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn what_runs_is_the_copy_whatever_becomes_of_the_source() {
    let place = Place::new();
    let file = place.write("tool.py", "first");
    place.write("package/data.txt", "data");
    let store = place.store();
    let pinned = store.pin(&place.program(), "python 3", &soon()).unwrap();
    fs::write(&file, "second").unwrap();
    fs::remove_dir_all(place.source().join("package")).unwrap();

    let copy = store.locate(&pinned, &soon()).unwrap();
    let module = copy.module.unwrap();
    assert_eq!(module.path, Path::new("tool.py"));
    let root = &copy.roots[module.root];
    assert_eq!(fs::read_to_string(root.join(module.path)).unwrap(), "first");
    assert_eq!(fs::read_to_string(root.join("package/data.txt")).unwrap(), "data");
    assert_eq!(mode(&root.join("tool.py")), 0o444);
    assert_eq!(mode(root), 0o555);
    assert_eq!(mode(&root.join("package")), 0o555);
    assert_eq!(mode(&copy.folder), 0o555);
    assert_eq!(mode(&place.folder.path().join("store")), 0o700);
    assert_eq!(place.kept().len(), 1);
}

#[test]
fn a_copy_is_found_again_by_another_process_and_used_by_several() {
    let place = Place::new();
    place.write("tool.py", "code");
    let pinned = place.pin().unwrap();
    fs::remove_dir_all(place.source()).unwrap();
    // A store that has read nothing yet.
    let copy = place.store().locate(&pinned, &soon()).unwrap();
    assert_eq!(fs::read_to_string(copy.roots[0].join("tool.py")).unwrap(), "code");
}

#[test]
fn a_copy_that_is_gone_is_made_anew_only_from_the_same_source() {
    let place = Place::new();
    let file = place.write("tool.py", "code");
    let store = place.store();
    let pinned = store.pin(&place.program(), "python 3", &soon()).unwrap();
    assert_eq!(store.retain(|_| false).unwrap(), 1);
    assert!(place.kept().is_empty());

    let copy = store.locate(&pinned, &soon()).unwrap();
    assert_eq!(fs::read_to_string(copy.roots[0].join("tool.py")).unwrap(), "code");

    store.retain(|_| false).unwrap();
    fs::write(&file, "other").unwrap();
    let error = store.locate(&pinned, &soon()).unwrap_err();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Unavailable, Some(ReasonCode::SourceChanged))
    );
    fs::remove_dir_all(place.source()).unwrap();
    let error = store.locate(&pinned, &soon()).unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SourceChanged));
    assert!(place.kept().is_empty(), "{:?}", place.kept());
}

#[test]
fn a_damaged_copy_is_never_used() {
    for damage in ["content", "added", "pycache", "removed", "mode", "link"] {
        let place = Place::new();
        let source = place.write("tool.py", "code");
        let pinned = place.pin().unwrap();
        let root = place.store().locate(&pinned, &soon()).unwrap().roots.remove(0);
        let file = root.join("tool.py");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(&root, 0o755);
        set(&file, 0o644);
        match damage {
            "content" => fs::write(&file, "evil").unwrap(),
            "added" => fs::write(root.join("json.py"), "evil").unwrap(),
            "pycache" => {
                fs::create_dir(root.join("__pycache__")).unwrap();
                fs::write(root.join("__pycache__/tool.cpython-311.pyc"), "evil").unwrap();
            }
            "removed" => fs::remove_file(&file).unwrap(),
            "mode" => set(&file, 0o755),
            _ => {
                fs::remove_file(&file).unwrap();
                symlink("/etc/passwd", &file).unwrap();
            }
        }
        // The source is still the same, so the copy is made anew.
        let copy = place.store().locate(&pinned, &soon()).unwrap();
        assert_eq!(fs::read_to_string(copy.roots[0].join("tool.py")).unwrap(), "code");
        assert_eq!(fs::read_dir(&copy.roots[0]).unwrap().count(), 1, "{damage}");
        // When it is another one by now, nothing runs.
        set(&copy.roots[0].join("tool.py"), 0o644);
        fs::write(copy.roots[0].join("tool.py"), "evil").unwrap();
        fs::write(&source, "changed").unwrap();
        let error = place.store().locate(&pinned, &soon()).unwrap_err();
        assert_eq!(error.reason(), Some(ReasonCode::SourceChanged), "{damage}");
    }
}

#[test]
fn caches_hidden_names_and_empty_folders_are_left_out() {
    let place = Place::new();
    place.write("tool.py", "code");
    let before = place.pin().unwrap();
    place.write("__pycache__/tool.cpython-311.pyc", "poison");
    place.write("other.pyc", "poison");
    place.write(".env", "SECRET=1");
    place.write(".git/config", "[core]");
    fs::create_dir_all(place.source().join("empty/inside")).unwrap();
    symlink("/etc", place.source().join(".link")).unwrap();
    let after = place.pin().unwrap();
    assert_eq!(before.source, after.source);
    let copy = place.store().locate(&after, &soon()).unwrap();
    let names: Vec<_> = fs::read_dir(&copy.roots[0])
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["tool.py"]);
}

#[test]
fn links_and_special_files_are_refused_with_their_names() {
    let place = Place::new();
    place.write("tool.py", "code");
    symlink("/etc/passwd", place.source().join("link.py")).unwrap();
    let error = place.pin().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.fields()[0].field, "source_roots[0]");
    assert!(
        error.message().contains("`link.py` is a symbolic link"),
        "{error}"
    );
    fs::remove_file(place.source().join("link.py")).unwrap();

    fs::create_dir(place.source().join("inner")).unwrap();
    let pipe = place.source().join("inner/pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let error = place.pin().unwrap_err();
    assert!(error.message().contains("`inner/pipe`"), "{error}");
    fs::remove_file(pipe).unwrap();

    let _socket = std::os::unix::net::UnixListener::bind(place.source().join("socket")).unwrap();
    let error = place.pin().unwrap_err();
    assert!(error.message().contains("`socket`"), "{error}");
    assert!(place.kept().is_empty(), "{:?}", place.kept());
}

#[test]
fn a_root_is_a_folder_that_is_reached_without_links() {
    let place = Place::new();
    place.write("tool.py", "code");
    let link = place.folder.path().canonicalize().unwrap().join("link");
    symlink(place.source(), &link).unwrap();
    fs::create_dir(place.source().join("inner")).unwrap();
    let file = place.source().join("tool.py");
    for root in [
        link.clone(),
        link.join("inner"),
        file,
        place.source().join("missing"),
        PathBuf::from("source"),
        place.source().join("../store"),
    ] {
        let program = python("tool", std::slice::from_ref(&root));
        let error = place.store().pin(&program, "python 3", &soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{root:?}: {error}");
        assert!(!error.message().contains('\n'));
    }
    let none = python("tool", &[]);
    assert!(place.store().pin(&none, "python 3", &soon()).is_err());
    // The store itself is no source, however it is written.
    let up = place.source().join("../store");
    fs::create_dir_all(place.source()).unwrap();
    for root in [place.store_path(), up] {
        let error = place
            .store()
            .pin(&python("tool", &[root]), "", &soon())
            .unwrap_err();
        assert!(error.message().contains("store of the copies"), "{error}");
    }
}

#[test]
fn a_source_around_the_store_and_the_database_is_copied_without_them() {
    let place = Place::new();
    place.write("tool.py", "code");
    place.write("app.db.py", "code too");
    place.write("app.db", "rows");
    let path = place.source().join("folder/../app.db.snapshots");
    place.write("folder/kept", "kept");
    // One of them is not there yet.
    let own = [place.source().join("app.db"), place.source().join("app.db-wal")];
    let open = || {
        SnapshotStore::open(&path, PinLimits::default())
            .unwrap()
            .leaving_out(&own)
    };
    let store = open();
    let first = store.pin(&place.program(), "python 3", &soon()).unwrap();
    place.write("app.db", "more rows");
    place.write("app.db-wal", "rows to come");
    let again = open().pin(&place.program(), "python 3", &soon()).unwrap();
    assert_eq!(first, again, "what is left out is not in the digest");
    let root = &store.locate(&first, &soon()).unwrap().roots[0];
    let mut names: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["app.db.py", "folder", "tool.py"]);
}

#[test]
fn what_the_kernel_does_not_run_by_itself_is_told_for_what_it_is() {
    let place = Place::new();
    for (content, told) in [
        ("#!/bin/sh\necho 1\n", "script"),
        ("", "empty"),
        ("MZ\u{0}\u{0}", "Windows"),
        ("echo 1\n", "no program"),
    ] {
        let path = place.write("program", content);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program::Native {
            executable: path,
            args: Vec::new(),
            protocol: NativeProtocol::Json,
        };
        let error = place.store().pin(&program, "", &soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(told), "{error}");
    }
}

#[test]
fn the_module_lies_in_a_root() {
    let place = Place::new();
    place.write("package/__init__.py", "");
    place.write("package/tool.py", "code");
    let store = place.store();
    let pin = |module: &str| store.pin(&python(module, &[place.source()]), "python 3", &soon());
    let pinned = pin("package.tool").unwrap();
    let module = store.locate(&pinned, &soon()).unwrap().module.unwrap();
    assert_eq!(module.path, Path::new("package/tool.py"));
    for module in ["os", "json", "package.missing", "tool"] {
        let error = pin(module).unwrap_err();
        assert_eq!(error.fields()[0].field, "module_path", "{error}");
    }
    for module in ["", "../package", "package/tool", "package..tool"] {
        assert_eq!(pin(module).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn every_bound_is_kept() {
    let refused = |change: fn(&mut PinLimits), within: fn(&mut PinLimits)| {
        let place = Place::new();
        place.write("tool.py", "0123456789");
        place.write("a/b/c.txt", "0123456789");
        let with = |change: fn(&mut PinLimits)| {
            let mut limits = PinLimits::default();
            change(&mut limits);
            let store = SnapshotStore::open(&place.store_path(), limits).unwrap();
            store.pin(&place.program(), "python 3", &soon())
        };
        let error = with(change).unwrap_err();
        assert!(place.kept().is_empty(), "{:?}", place.kept());
        with(within).unwrap();
        error
    };
    let entries = refused(
        |limits| limits.source_entries = 3,
        |limits| limits.source_entries = 4,
    );
    let bytes = refused(
        |limits| limits.source_bytes = 19,
        |limits| limits.source_bytes = 20,
    );
    let depth = refused(|limits| limits.depth = 1, |limits| limits.depth = 2);
    for error in [entries, bytes, depth] {
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        assert!(error.message().contains("source_roots[0]"), "{error}");
    }

    let place = Place::new();
    place.write("tool.py", "code");
    let limits = PinLimits {
        roots: 1,
        copies: 1,
        ..PinLimits::default()
    };
    let store = SnapshotStore::open(&place.store_path(), limits).unwrap();
    let two = python("tool", &[place.source(), place.source()]);
    assert_eq!(
        store.pin(&two, "", &soon()).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    store.pin(&place.program(), "", &soon()).unwrap();
    let full = store.pin(&place.program(), "", &soon()).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Unavailable);
    assert!(full.message().contains("limit"), "{full}");
}

#[test]
fn limits_that_cannot_work_are_refused_together() {
    let limits = PinLimits {
        depth: PinLimits::DEPTH_CEILING + 1,
        copies: 0,
        ..PinLimits::default()
    };
    let error = limits.check().unwrap_err();
    let fields: Vec<_> = error
        .fields()
        .iter()
        .map(|problem| problem.field.as_str())
        .collect();
    assert_eq!(fields, ["pin.depth", "pin.copies"]);
    let place = Place::new();
    assert!(SnapshotStore::open(&place.store_path(), limits).is_err());
    assert!(SnapshotStore::open(Path::new("relative"), PinLimits::default()).is_err());
    // A folder that is for something else is left as it is.
    let open = place.source();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let error = SnapshotStore::open(&open, PinLimits::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(mode(&open), 0o755);
    // Under a file there can be no folder, whoever asks.
    let file = place.write("file", "");
    let error = SnapshotStore::open(&file.join("store"), PinLimits::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("snapshot_folder"), "{error}");
}

#[test]
fn an_executable_is_copied_and_runs_as_it_was() {
    let place = Place::new();
    let path = place.write("program", "\u{7f}ELF first");
    let program = Program::Native {
        executable: path.clone(),
        args: Vec::new(),
        protocol: NativeProtocol::Json,
    };
    let store = place.store();
    let error = store.pin(&program, "", &soon()).unwrap_err();
    assert!(error.message().contains("not executable"), "{error}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let pinned = store.pin(&program, "", &soon()).unwrap();
    fs::write(&path, "\u{7f}ELF second").unwrap();
    let executable = store.locate(&pinned, &soon()).unwrap().executable.unwrap();
    assert!(fs::read_to_string(&executable).unwrap().contains("first"));
    assert_eq!(mode(&executable), 0o555);

    store.retain(|_| false).unwrap();
    let error = store.locate(&pinned, &soon()).unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SourceChanged));

    for wrong in ["/dev/null", "/etc", "/missing"] {
        let program = Program::Native {
            executable: PathBuf::from(wrong),
            args: Vec::new(),
            protocol: NativeProtocol::Json,
        };
        assert_eq!(
            store.pin(&program, "", &soon()).unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }
}

#[test]
fn packages_are_named_by_what_is_installed() {
    let place = Place::new();
    place.write("tool.py", "code");
    let packages = place.folder.path().canonicalize().unwrap().join("packages");
    fs::create_dir_all(packages.join("lib")).unwrap();
    fs::write(packages.join("lib/one.py"), "one").unwrap();
    symlink("lib", packages.join("lib64")).unwrap();
    let store = place.store();
    let environment = |interpreter: &str| {
        let program = Program::Python {
            module_path: "tool".to_owned(),
            callable_name: "run".to_owned(),
            source_roots: vec![place.source()],
            package_roots: vec![packages.clone()],
        };
        store.pin(&program, interpreter, &soon()).unwrap().environment
    };
    let first = environment("python 3.11.2");
    assert_eq!(first, environment("python 3.11.2"));
    assert_ne!(first, environment("python 3.12.0"));
    fs::write(packages.join("lib/one.py"), "longer").unwrap();
    let second = environment("python 3.11.2");
    assert_ne!(first, second);
    fs::remove_file(packages.join("lib64")).unwrap();
    symlink("elsewhere", packages.join("lib64")).unwrap();
    assert_ne!(second, environment("python 3.11.2"));
}

#[test]
fn writers_at_once_make_one_copy() {
    let place = Place::new();
    place.write("tool.py", "code");
    for number in 0..50 {
        place.write(&format!("data/{number}.txt"), &"x".repeat(10_000));
    }
    let stores = [place.store(), place.store()];
    let digests: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let store = &stores[number % 2];
                let program = place.program();
                scope.spawn(move || {
                    let pinned = store.pin(&program, "python 3", &soon()).unwrap();
                    store.locate(&pinned, &soon()).unwrap();
                    pinned.source
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(digests.iter().all(|digest| *digest == digests[0]));
    assert_eq!(place.kept().len(), 1, "{:?}", place.kept());
}

#[test]
fn reading_ends_by_the_deadline_and_with_its_caller() {
    let place = Place::new();
    place.write("tool.py", "code");
    let late = Stop::at(Deadline::after(Duration::ZERO));
    let error = place.store().pin(&place.program(), "", &late).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let stop = soon();
    drop(stop.guard());
    let error = place.store().pin(&place.program(), "", &stop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(place.kept().is_empty());
}

#[test]
fn what_a_dead_writer_left_is_removed_and_what_a_living_one_writes_stays() {
    let place = Place::new();
    drop(place.store());
    let store = place.folder.path().join("store");
    let old = std::time::SystemTime::now() - Duration::from_secs(3_600);
    for name in [".unfinished-1-0", ".unfinished-1-1", ".unfinished-1-2"] {
        fs::create_dir(store.join(name)).unwrap();
        fs::write(store.join(name).join("file"), "half").unwrap();
        if name != ".unfinished-1-2" {
            fs::File::open(store.join(name))
                .unwrap()
                .set_modified(old)
                .unwrap();
        }
    }
    let living = fs::File::open(store.join(".unfinished-1-1")).unwrap();
    living.lock().unwrap();
    drop(place.store());
    assert_eq!(place.kept(), [".unfinished-1-1", ".unfinished-1-2"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The digest tells apart what differs in a name, a content or a place, and nothing else.
    #[test]
    fn a_digest_is_one_of_names_and_contents(
        one in proptest::collection::btree_map("[a-c]{1,2}", "[xy]{0,2}", 0..4),
        other in proptest::collection::btree_map("[a-c]{1,2}", "[xy]{0,2}", 0..4),
    ) {
        let digest = |files: &std::collections::BTreeMap<String, String>| {
            let place = Place::new();
            place.write("tool.py", "code");
            for (name, content) in files {
                place.write(&format!("data/{name}"), content);
            }
            place.pin().unwrap().source
        };
        prop_assert_eq!(digest(&one) == digest(&other), one == other);
    }
}
