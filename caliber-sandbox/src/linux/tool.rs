//! What the children of code tools get.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use caliber_core::sandbox::{PinnedProgram, Program, RunRequest};
use rustix::io::Errno;

use super::bootstrap::{OPTIONS, STUB};
use super::confinement::{
    Confinement, Identity, LandlockRules, Namespaces, ProcessLimits, Root, RootEntry, SeccompProfile,
};
use super::interpreter::Interpreter;
use super::landlock::{self, Rights};
use super::layers::Layers;
use super::seccomp;
use super::spawn::{SpawnFailure, Stage};
use crate::settings::{Limits, SandboxSettings};
use crate::snapshot;

/// Where the source roots are inside, in order.
const SOURCES: &str = "/tool/source";
/// Where the package roots are inside, in order.
const PACKAGES: &str = "/tool/packages";
/// Where a native executable is inside.
const EXECUTABLE: &str = "/tool/executable";
/// Where the scratch folders are inside.
const SCRATCH: &str = "/scratch";

/// Devices that every tool has.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/urandom"];

/// What is asked of the limits of one run.
pub(crate) fn limits_of(request: &RunRequest, settings: &SandboxSettings) -> Limits {
    let wanted = request.limits;
    let ceiling = settings.ceiling;
    let default = settings.limits;
    Limits {
        memory_bytes: wanted
            .memory_bytes
            .unwrap_or(default.memory_bytes)
            .clamp(32 << 20, ceiling.memory_bytes.max(32 << 20)),
        processes: wanted
            .processes
            .unwrap_or(default.processes)
            .clamp(1, ceiling.processes.max(1)),
        scratch_bytes: wanted
            .scratch_bytes
            .unwrap_or(default.scratch_bytes)
            .min(ceiling.scratch_bytes),
        scratch_inodes: default.scratch_inodes,
        open_files: default.open_files,
        result_bytes: wanted
            .result_bytes
            .unwrap_or(default.result_bytes)
            .min(ceiling.result_bytes)
            .min(request.result_bytes as u64),
    }
}

/// What one kind of child differs in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// The user and group, where caliber runs as root.
    pub(crate) id: Option<u32>,
    /// How many scratch folders it has: one for each call that it may be running.
    pub(crate) scratch_folders: usize,
    /// Whether it forks calls.
    pub(crate) forks: bool,
    /// The longest that its processor may be busy, in seconds.
    pub(crate) cpu_seconds: Option<u64>,
}

/// The scratch folder number `index`.
pub(crate) fn scratch(index: usize) -> String {
    format!("{SCRATCH}/{index}")
}

/// The folders on the path of imports.
pub(crate) fn import_paths(
    program: &Program,
    layers: &Layers,
    settings: &SandboxSettings,
    pinned: &PinnedProgram,
) -> Vec<String> {
    let Program::Python {
        source_roots,
        package_roots,
        ..
    } = program
    else {
        return Vec::new();
    };
    if !layers.namespaces {
        let sources = (0..source_roots.len())
            .map(|index| snapshot::source_root(&settings.snapshot_folder, &pinned.source, index));
        let paths = sources.chain(package_roots.iter().cloned());
        return paths.map(|path| path.to_string_lossy().into_owned()).collect();
    }
    let sources = (0..source_roots.len()).map(|index| format!("{SOURCES}/{index}"));
    let packages = (0..package_roots.len()).map(|index| format!("{PACKAGES}/{index}"));
    sources.chain(packages).collect()
}

/// The confinement of a Python child.
pub(crate) fn python(
    pinned: &PinnedProgram,
    interpreter: &Interpreter,
    settings: &SandboxSettings,
    layers: &Layers,
    limits: &Limits,
    kind: Kind,
) -> Result<Confinement, SpawnFailure> {
    let Program::Python {
        source_roots,
        package_roots,
        ..
    } = &pinned.program
    else {
        return Err(invalid());
    };
    let mut shown: Vec<(PathBuf, PathBuf)> = Vec::new();
    for index in 0..source_roots.len() {
        let copy = snapshot::source_root(&settings.snapshot_folder, &pinned.source, index);
        shown.push((copy, PathBuf::from(format!("{SOURCES}/{index}"))));
    }
    for (index, folder) in package_roots.iter().enumerate() {
        shown.push((folder.clone(), PathBuf::from(format!("{PACKAGES}/{index}"))));
    }
    let mut args = vec![c_path(&interpreter.executable)?];
    for argument in OPTIONS.into_iter().chain(["-c", STUB]) {
        args.push(c_text(argument)?);
    }
    assemble(
        interpreter,
        layers,
        limits,
        kind,
        shown,
        &interpreter.executable,
        args,
        &[],
    )
}

/// The confinement of a native child.
pub(crate) fn native(
    pinned: &PinnedProgram,
    interpreter: &Interpreter,
    settings: &SandboxSettings,
    layers: &Layers,
    limits: &Limits,
    kind: Kind,
    variables: &[(String, String)],
) -> Result<Confinement, SpawnFailure> {
    let Program::Native { args, .. } = &pinned.program else {
        return Err(invalid());
    };
    let copy = snapshot::executable(&settings.snapshot_folder, &pinned.source);
    let executable = if layers.namespaces {
        PathBuf::from(EXECUTABLE)
    } else {
        copy.clone()
    };
    let mut all = vec![c_path(&executable)?];
    for argument in args {
        all.push(c_text(argument)?);
    }
    let shown = vec![(copy, PathBuf::from(EXECUTABLE))];
    assemble(
        interpreter,
        layers,
        limits,
        kind,
        shown,
        &executable,
        all,
        variables,
    )
}

#[expect(
    clippy::too_many_arguments,
    reason = "the one place where the parts of a confinement meet"
)]
fn assemble(
    interpreter: &Interpreter,
    layers: &Layers,
    limits: &Limits,
    kind: Kind,
    shown: Vec<(PathBuf, PathBuf)>,
    executable: &Path,
    args: Vec<CString>,
    variables: &[(String, String)],
) -> Result<Confinement, SpawnFailure> {
    // Without mounts there is no folder that is bounded and gone after the run: such a tool writes nowhere.
    let first = if layers.namespaces {
        scratch(0)
    } else {
        "/".to_owned()
    };
    let mut environment = vec![
        "PATH=/usr/bin:/bin".to_owned(),
        "LANG=C.UTF-8".to_owned(),
        format!("HOME={first}"),
        format!("TMPDIR={first}"),
        // Libraries that start threads at import could not be forked, and a tool has few processes to spend.
        "OMP_NUM_THREADS=1".to_owned(),
        "OPENBLAS_NUM_THREADS=1".to_owned(),
        "MKL_NUM_THREADS=1".to_owned(),
    ];
    environment.extend(variables.iter().map(|(name, value)| format!("{name}={value}")));
    let env = environment
        .iter()
        .map(|text| c_text(text))
        .collect::<Result<_, _>>()?;

    let mut read = interpreter.readable();
    let mut write: Vec<PathBuf> = DEVICES.iter().map(PathBuf::from).collect();
    let root = layers.namespaces.then(|| {
        let mut entries = interpreter.root_entries();
        entries.extend(shown.iter().map(|(source, target)| RootEntry::Bind {
            source: source.clone(),
            target: target.clone(),
            writable: false,
        }));
        entries.extend(DEVICES.iter().map(|path| RootEntry::Device {
            path: PathBuf::from(path),
        }));
        if layers.proc {
            entries.push(RootEntry::Proc {
                target: PathBuf::from("/proc"),
            });
        }
        entries.extend((0..kind.scratch_folders).map(|index| RootEntry::Tmpfs {
            target: PathBuf::from(scratch(index)),
            bytes: limits.scratch_bytes,
            inodes: limits.scratch_inodes,
        }));
        Root { entries }
    });
    if layers.namespaces {
        read.extend(shown.into_iter().map(|(_, target)| target));
        if layers.proc {
            read.push(PathBuf::from("/proc"));
        }
        write.extend((0..kind.scratch_folders).map(|index| PathBuf::from(scratch(index))));
    } else {
        read.extend(shown.into_iter().map(|(source, _)| source));
    }

    let calls = kind.scratch_folders as u64;
    Ok(Confinement {
        executable: c_path(executable)?,
        args,
        env,
        directory: c_text(&first)?,
        root,
        namespaces: if layers.namespaces {
            Namespaces::all(kind.id.is_none())
        } else {
            Namespaces::NONE
        },
        identity: kind.id.map_or(Identity::Caller, |id| Identity::Other { id }),
        limits: ProcessLimits {
            address_space: Some(limits.memory_bytes),
            processes: Some(if kind.forks {
                (u64::from(limits.processes) + 1) * calls + 8
            } else {
                u64::from(limits.processes)
            }),
            file_size: Some(limits.scratch_bytes),
            open_files: Some(u64::from(limits.open_files) + if kind.forks { 8 * calls } else { 0 }),
            cpu_seconds: kind.cpu_seconds,
            keep_other: false,
        },
        landlock: layers.landlock.map(|_| LandlockRules {
            read,
            write,
            network: false,
        }),
        seccomp: layers.seccomp.then_some(if kind.forks {
            SeccompProfile::Zygote
        } else {
            SeccompProfile::Tool
        }),
        init: false,
        session: true,
    })
}

/// What a process that forks calls needs to know for the layers that each call adds.
///
/// `confinement` is that of the process: a call reads what it reads, but for the scratch folders of other calls.
pub(crate) fn call_layers(
    layers: &Layers,
    limits: &Limits,
    confinement: &Confinement,
    folders: usize,
) -> Result<serde_json::Value, SpawnFailure> {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let filter = if layers.seccomp {
        let program = seccomp::compile_call_layer().map_err(|errno| SpawnFailure {
            stage: Stage::Seccomp,
            errno,
            detail: None,
        })?;
        let mut bytes = Vec::with_capacity(program.len() * 8);
        for instruction in &program {
            bytes.extend(instruction.code.to_ne_bytes());
            bytes.extend([instruction.jt, instruction.jf]);
            bytes.extend(instruction.k.to_ne_bytes());
        }
        hex(&bytes)
    } else {
        String::new()
    };
    let landlock = layers.landlock.and_then(|_| landlock::version()).map(|version| {
        let rights = Rights::of(version, false);
        let ruleset = rights.ruleset;
        let mut bytes = Vec::new();
        for word in [ruleset.filesystem, ruleset.network, ruleset.scoped] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.truncate(rights.ruleset_size);
        serde_json::json!({
            "ruleset": hex(&bytes),
            "read": rights.read,
            "write": rights.write,
            "file": rights.file,
            "paths": confinement.landlock.as_ref().map(|rules| &rules.read),
            "files": DEVICES,
        })
    });
    let folders: Vec<_> = (0..folders).map(scratch).collect();
    Ok(serde_json::json!({
        "filter": filter,
        "landlock": landlock,
        "slots": folders,
        "processes": limits.processes,
        "open_files": limits.open_files,
        "clone_flags": seccomp::CALL_NAMESPACES | (libc::CLONE_PIDFD | libc::SIGCHLD) as u64,
        "calls": {
            "clone": libc::SYS_clone,
            "capset": libc::SYS_capset,
            "seccomp": libc::SYS_seccomp,
            "landlock_create_ruleset": libc::SYS_landlock_create_ruleset,
            "landlock_add_rule": libc::SYS_landlock_add_rule,
            "landlock_restrict_self": libc::SYS_landlock_restrict_self,
        },
    }))
}

fn invalid() -> SpawnFailure {
    SpawnFailure {
        stage: Stage::Prepare,
        errno: Errno::INVAL,
        detail: None,
    }
}

fn c_text(text: &str) -> Result<CString, SpawnFailure> {
    CString::new(text).map_err(|_| invalid())
}

fn c_path(path: &Path) -> Result<CString, SpawnFailure> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| invalid())
}
