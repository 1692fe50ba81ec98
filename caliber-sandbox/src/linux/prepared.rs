//! A confinement made ready: everything that needs memory is done here, before the child exists.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use seccompiler::BpfProgram;

use super::confinement::{Confinement, Identity, LandlockRules, Namespaces, ProcessLimits, Root, RootEntry};
use super::landlock::{self, Rights};
use super::seccomp;
use super::spawn::{SpawnFailure, Stage};

/// The most files and folders of the host that one child is shown.
pub(super) const BINDS: usize = 64;

/// The id that the caller has inside a user namespace: nobody's.
const INSIDE_ID: u32 = 65_534;

/// A confinement made ready, so that a child can be started without allocating. It can be used for any number of children.
#[derive(Debug)]
pub struct Prepared {
    pub(super) executable: CString,
    pub(super) args: Strings,
    pub(super) env: Strings,
    pub(super) directory: CString,
    pub(super) root: Option<RootPlan>,
    pub(super) namespaces: Namespaces,
    /// What is written to `uid_map` and `gid_map`, in a user namespace.
    pub(super) user_maps: Option<(CString, CString)>,
    pub(super) identity: Identity,
    /// Whether the bounding set can be emptied: as root, or in a user namespace.
    pub(super) drops_bounding_set: bool,
    pub(super) limits: Vec<(libc::c_int, u64)>,
    pub(super) landlock: Option<LandlockPlan>,
    pub(super) filter: Option<BpfProgram>,
    pub(super) init: bool,
    pub(super) session: bool,
    /// What a failing mount was about, by its number.
    details: Vec<String>,
}

impl Prepared {
    pub(super) fn detail(&self, stage: Stage, number: usize) -> Option<String> {
        let about_entries = matches!(
            stage,
            Stage::MountBind | Stage::MountDevice | Stage::MountTmpfs | Stage::MountProc | Stage::MountRoot
        );
        if about_entries {
            return self.details.get(number).cloned();
        }
        let rules = self.landlock.as_ref().filter(|_| stage == Stage::Landlock)?;
        let (path, _) = rules.rules.get(number)?;
        Some(path.to_string_lossy().into_owned())
    }
}

/// A null-terminated array of C strings.
#[derive(Debug)]
pub(super) struct Strings {
    _owned: Vec<CString>,
    pointers: Vec<*const c_char>,
}

// SAFETY: the pointers lead into the strings that are owned beside them, which are never changed.
unsafe impl Send for Strings {}
// SAFETY: as above.
unsafe impl Sync for Strings {}

impl Strings {
    fn new(owned: Vec<CString>) -> Self {
        let pointers = owned.iter().map(|text| text.as_ptr());
        let pointers = pointers.chain([std::ptr::null()]).collect();
        Self {
            _owned: owned,
            pointers,
        }
    }

    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// The private root: sources are opened first, while the host's tree is still there.
#[derive(Debug)]
pub(super) struct RootPlan {
    pub(super) sources: Vec<Source>,
    pub(super) steps: Vec<Step>,
}

/// A file or folder of the host. The child opens it again by its name without links, and compares.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: CString,
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) writable: bool,
    pub(super) is_device: bool,
    pub(super) entry: u16,
}

/// One step of building the root; targets are relative to it.
#[derive(Debug)]
pub(super) enum Step {
    Folder {
        target: CString,
        entry: u16,
    },
    File {
        target: CString,
        entry: u16,
    },
    Attach {
        source: usize,
        target: CString,
    },
    Tmpfs {
        target: CString,
        size: CString,
        inodes: CString,
        owner: CString,
        entry: u16,
    },
    Proc {
        target: CString,
        entry: u16,
    },
    Symlink {
        target: CString,
        content: CString,
        entry: u16,
    },
}

#[derive(Debug)]
pub(super) struct LandlockPlan {
    pub(super) rights: Rights,
    pub(super) rules: Vec<(CString, u64)>,
}

/// Makes a confinement ready: resolves paths, compiles the filter.
///
/// # Errors
///
/// [`Stage::Prepare`] for what cannot be (a path that is not there, a relative target, more than 64 paths),
/// [`Stage::Landlock`] where the kernel has none, [`Stage::Seccomp`] for a filter that cannot be made here.
pub fn prepare(confinement: &Confinement) -> Result<Prepared, SpawnFailure> {
    let root = confinement.root.as_ref();
    let is_root = rustix::process::geteuid().is_root();
    let owner = match confinement.identity {
        Identity::Other { id } => id,
        Identity::Caller if confinement.namespaces.user => INSIDE_ID,
        Identity::Caller => rustix::process::geteuid().as_raw(),
    };
    let user_maps = confinement.namespaces.user.then(|| {
        let user = format!("{INSIDE_ID} {} 1", rustix::process::geteuid().as_raw());
        let group = format!("{INSIDE_ID} {} 1", rustix::process::getegid().as_raw());
        (text(&user), text(&group))
    });
    let user_maps = match user_maps {
        Some((user, group)) => Some((user?, group?)),
        None => None,
    };
    Ok(Prepared {
        executable: confinement.executable.clone(),
        args: Strings::new(confinement.args.clone()),
        env: Strings::new(confinement.env.clone()),
        directory: confinement.directory.clone(),
        root: root.map(|root| plan_root(root, owner)).transpose()?,
        namespaces: confinement.namespaces,
        user_maps,
        identity: confinement.identity,
        drops_bounding_set: is_root || confinement.namespaces.user,
        limits: plan_limits(&confinement.limits),
        landlock: confinement.landlock.as_ref().map(plan_landlock).transpose()?,
        filter: confinement
            .seccomp
            .map(|profile| seccomp::compile(profile).map_err(|errno| failure(Stage::Seccomp, errno, None)))
            .transpose()?,
        init: confinement.init,
        session: confinement.session,
        details: root.map(describe).unwrap_or_default(),
    })
}

fn failure(stage: Stage, errno: Errno, detail: Option<&Path>) -> SpawnFailure {
    SpawnFailure {
        stage,
        errno,
        detail: detail.map(|path| path.to_string_lossy().into_owned()),
    }
}

fn text(text: &str) -> Result<CString, SpawnFailure> {
    CString::new(text).map_err(|_| failure(Stage::Prepare, Errno::INVAL, None))
}

fn path_text(path: &Path) -> Result<CString, SpawnFailure> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| failure(Stage::Prepare, Errno::INVAL, Some(path)))
}

fn describe(root: &Root) -> Vec<String> {
    let name = |entry: &RootEntry| match entry {
        RootEntry::Bind { source, .. } => source.to_string_lossy().into_owned(),
        RootEntry::Device { path } => path.to_string_lossy().into_owned(),
        RootEntry::Tmpfs { target, .. }
        | RootEntry::Proc { target }
        | RootEntry::Folder { target }
        | RootEntry::Symlink { target, .. } => target.to_string_lossy().into_owned(),
    };
    root.entries.iter().map(name).collect()
}

fn plan_root(root: &Root, owner: u32) -> Result<RootPlan, SpawnFailure> {
    let mut plan = RootPlan {
        sources: Vec::new(),
        steps: Vec::new(),
    };
    let mut folders = BTreeSet::new();
    for (number, entry) in root.entries.iter().enumerate() {
        let entry_number = u16::try_from(number).map_err(|_| failure(Stage::Prepare, Errno::TOOBIG, None))?;
        match entry {
            RootEntry::Bind {
                source,
                target,
                writable,
            } => {
                let (opened, is_folder) = open_source(source, *writable, false, entry_number)?;
                let target = plan_target(&mut plan, &mut folders, target, is_folder, entry_number)?;
                plan.steps.push(Step::Attach {
                    source: plan.sources.len(),
                    target,
                });
                plan.sources.push(opened);
            }
            RootEntry::Device { path } => {
                let (opened, is_folder) = open_source(path, true, true, entry_number)?;
                let target = plan_target(&mut plan, &mut folders, path, is_folder, entry_number)?;
                plan.steps.push(Step::Attach {
                    source: plan.sources.len(),
                    target,
                });
                plan.sources.push(opened);
            }
            RootEntry::Tmpfs {
                target,
                bytes,
                inodes,
            } => {
                let target = plan_target(&mut plan, &mut folders, target, true, entry_number)?;
                plan.steps.push(Step::Tmpfs {
                    target,
                    size: text(&bytes.to_string())?,
                    inodes: text(&inodes.to_string())?,
                    owner: text(&owner.to_string())?,
                    entry: entry_number,
                });
            }
            RootEntry::Proc { target } => {
                let target = plan_target(&mut plan, &mut folders, target, true, entry_number)?;
                plan.steps.push(Step::Proc {
                    target,
                    entry: entry_number,
                });
            }
            RootEntry::Folder { target } => {
                plan_target(&mut plan, &mut folders, target, true, entry_number)?;
            }
            RootEntry::Symlink { target, content } => {
                let parent = target.parent().unwrap_or(Path::new("/"));
                plan_target(&mut plan, &mut folders, parent, true, entry_number)?;
                plan.steps.push(Step::Symlink {
                    target: path_text(relative(target)?)?,
                    content: path_text(content)?,
                    entry: entry_number,
                });
            }
        }
    }
    if plan.sources.len() > BINDS {
        return Err(failure(Stage::Prepare, Errno::TOOBIG, None));
    }
    Ok(plan)
}

/// `target` without its leading slash, when it is an absolute path with plain names only.
fn relative(target: &Path) -> Result<&Path, SpawnFailure> {
    let inside = target
        .strip_prefix("/")
        .map_err(|_| failure(Stage::Prepare, Errno::INVAL, Some(target)))?;
    let is_plain = inside
        .components()
        .all(|component| matches!(component, Component::Normal(_)));
    if is_plain {
        Ok(inside)
    } else {
        Err(failure(Stage::Prepare, Errno::INVAL, Some(target)))
    }
}

/// Plans the folders above `target`, and `target` itself.
fn plan_target(
    plan: &mut RootPlan,
    folders: &mut BTreeSet<CString>,
    target: &Path,
    is_folder: bool,
    entry: u16,
) -> Result<CString, SpawnFailure> {
    let inside = relative(target)?;
    let above = inside.ancestors().skip(usize::from(!is_folder));
    let mut missing: Vec<_> = above.filter(|folder| !folder.as_os_str().is_empty()).collect();
    missing.reverse();
    for folder in missing {
        let folder = path_text(folder)?;
        if folders.insert(folder.clone()) {
            plan.steps.push(Step::Folder {
                target: folder,
                entry,
            });
        }
    }
    let target = path_text(inside)?;
    if !is_folder {
        plan.steps.push(Step::File {
            target: target.clone(),
            entry,
        });
    }
    Ok(target)
}

fn open_source(
    path: &Path,
    writable: bool,
    is_device: bool,
    entry: u16,
) -> Result<(Source, bool), SpawnFailure> {
    let problem = |errno| failure(Stage::Prepare, errno, Some(path));
    if !path.is_absolute() {
        return Err(problem(Errno::INVAL));
    }
    let opened = rustix::fs::openat2(
        rustix::fs::CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_MAGICLINKS,
    )
    .map_err(problem)?;
    let facts = rustix::fs::fstat(&opened).map_err(problem)?;
    let real = std::fs::canonicalize(path)
        .map_err(|error| problem(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    let kind = rustix::fs::FileType::from_raw_mode(facts.st_mode);
    let source = Source {
        path: path_text(&real)?,
        device: facts.st_dev,
        inode: facts.st_ino,
        writable,
        is_device,
        entry,
    };
    Ok((source, kind == rustix::fs::FileType::Directory))
}

fn plan_limits(limits: &ProcessLimits) -> Vec<(libc::c_int, u64)> {
    let mut wanted = vec![
        (libc::RLIMIT_AS as libc::c_int, limits.address_space),
        (libc::RLIMIT_NPROC as libc::c_int, limits.processes),
        (libc::RLIMIT_FSIZE as libc::c_int, limits.file_size),
        (libc::RLIMIT_NOFILE as libc::c_int, limits.open_files),
        (libc::RLIMIT_CPU as libc::c_int, limits.cpu_seconds),
    ];
    if !limits.keep_other {
        for resource in [libc::RLIMIT_CORE, libc::RLIMIT_MEMLOCK, libc::RLIMIT_MSGQUEUE] {
            wanted.push((resource as libc::c_int, Some(0)));
        }
    }
    let set = wanted
        .into_iter()
        .filter_map(|(resource, value)| Some((resource, value?)));
    set.map(|(resource, value)| (resource, value.min(hard_limit(resource))))
        .collect()
}

/// The limit that this process cannot raise, and its children neither.
fn hard_limit(resource: libc::c_int) -> u64 {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: u64::MAX,
    };
    // SAFETY: `limit` is a valid place for the answer, and the call changes nothing when the new limit is null.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            std::ptr::null::<libc::rlimit64>(),
            &raw mut limit,
        )
    };
    if answer == 0 { limit.rlim_max } else { u64::MAX }
}

fn plan_landlock(rules: &LandlockRules) -> Result<LandlockPlan, SpawnFailure> {
    let version = landlock::version().ok_or_else(|| failure(Stage::Landlock, Errno::OPNOTSUPP, None))?;
    let rights = Rights::of(version, rules.network);
    let read = rules.read.iter().map(|path| (path, rights.read));
    let write = rules
        .write
        .iter()
        .map(|path| (path, rights.write | (rights.read & !1)));
    let rules = read
        .chain(write)
        .map(|(path, allowed)| Ok((path_text(path)?, allowed)))
        .collect::<Result<_, SpawnFailure>>()?;
    Ok(LandlockPlan { rights, rules })
}
