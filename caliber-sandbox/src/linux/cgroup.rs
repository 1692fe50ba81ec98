//! Control groups: bounds for all processes of a run together, in both versions that kernels have.
//!
//! A run's group is new and is used once: version 2's `cgroup.kill` leaves a group in which a child that is made into
//! it is dead on arrival (seen on Linux 6.18). On a machine with both versions mounted ("hybrid") a group is several
//! folders, one for each hierarchy that is of use.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

mod place;

use place::{Hierarchy, Version};

/// How all groups of ours are named, before what tells whose they are.
const PREFIX: &str = "caliber-run-";
/// The most that is read of a file of a group, in bytes.
const READ: u64 = 64 << 10;

/// How old an empty group of a process elsewhere is at least before it is taken for one that was left.
const LEFT_AGE: Duration = Duration::from_secs(600);
/// How long the last groups are waited for at the end.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Numbers groups of this process, over all sandboxes in it.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// The places where this process can make groups.
#[derive(Debug)]
pub struct ControlGroups {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hierarchies: Vec<Hierarchy>,
    /// The beginning of every name of this process's groups.
    owner: String,
    /// Groups that could not be removed yet.
    left: Mutex<BTreeSet<CString>>,
}

/// Something that control groups do not do here, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The step that failed, such as `cgroup_memory`.
    pub stage: String,
    /// The system's answer; `None` where nothing could be asked.
    pub errno: Option<Errno>,
    /// What an operator can do about it.
    pub remedy: String,
}

/// What the control groups of this machine do for us, found out by making one.
#[derive(Debug)]
pub struct Found {
    /// Where groups can be made; `None` where no hierarchy is of use.
    pub groups: Option<ControlGroups>,
    /// The means that bounds the memory of a tree, such as `cgroup_v2:memory`.
    pub memory: Result<String, Gap>,
    /// The means that bounds the number of processes of a tree.
    pub processes: Result<String, Gap>,
    /// The means that ends a tree.
    pub kill: Result<String, Gap>,
}

/// The bounds of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Memory, in bytes: of the processes, and of what they write into folders in memory. Swap is not used where the
    /// kernel can forbid it.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
}

/// What the processes of a group used, as far as the kernel tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsage {
    /// Processor time, in microseconds.
    pub cpu_us: Option<u64>,
    /// The most memory at once, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// How many processes were killed because the memory was spent.
    pub memory_kills: u64,
    /// How often a process could not be made because there were too many.
    pub process_refusals: u64,
}

/// A step of making a group that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a control group could not be set up at {file}: {errno}")]
pub struct GroupFailure {
    /// The file or folder.
    pub file: &'static str,
    /// The system's answer.
    pub errno: Errno,
}

impl ControlGroups {
    /// Looks for places where groups can be made and tries each by making one.
    ///
    /// `parent` is the path of the group to make them in, as `/proc/self/cgroup` shows paths, for every hierarchy.
    /// Without it they are made in the group of this process: always in version 1; in version 2, where a group with
    /// processes may have no bounded groups in it, where a service manager delegated the group or the one above it.
    pub fn find(parent: Option<&Path>) -> Found {
        let places = place::find(parent);
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        let mut means = |wanted: place::Control| {
            let mut gap = None;
            for place in &places {
                match place.offers(wanted) {
                    None => {}
                    Some(Err(problem)) => gap = gap.or(Some(problem)),
                    Some(Ok(())) => match place.open(wanted) {
                        Ok(hierarchy) => {
                            let by = hierarchy.means(wanted);
                            match hierarchies.iter_mut().find(|known| known.is(&hierarchy)) {
                                Some(known) => known.merge(hierarchy),
                                None => hierarchies.push(hierarchy),
                            }
                            return Ok(by);
                        }
                        Err(problem) => gap = gap.or(Some(problem)),
                    },
                }
            }
            Err(gap.unwrap_or_else(|| place::none(wanted)))
        };
        let memory = means(place::Control::Memory);
        let processes = means(place::Control::Processes);
        let kill = means(place::Control::Kill);
        if hierarchies.is_empty() {
            return Found {
                groups: None,
                memory,
                processes,
                kill,
            };
        }
        let groups = Self {
            shared: Arc::new(Shared {
                hierarchies,
                owner: place::owner(),
                left: Mutex::default(),
            }),
        };
        groups.sweep();
        groups.tried(memory, processes, kill)
    }

    /// Makes a group and looks whether its bounds are in force.
    fn tried(
        self,
        memory: Result<String, Gap>,
        processes: Result<String, Gap>,
        kill: Result<String, Gap>,
    ) -> Found {
        let limits = GroupLimits {
            memory_bytes: 64 << 20,
            processes: 8,
        };
        match self.make(limits).and_then(|group| group.has(limits)) {
            Ok(()) => Found {
                groups: Some(self),
                memory,
                processes,
                kill,
            },
            Err(failure) => {
                let gap = Gap {
                    stage: "cgroup_make".to_owned(),
                    errno: Some(failure.errno),
                    remedy: format!(
                        "a group was made but {} could not be used; name a group that this process may manage in the setting control_group",
                        failure.file
                    ),
                };
                Found {
                    groups: None,
                    memory: Err(gap.clone()),
                    processes: Err(gap.clone()),
                    kill: Err(gap),
                }
            }
        }
    }

    /// Without the hierarchies that are there for killing alone: the end of a process namespace kills as well, and joining
    /// a group takes longer than all other steps of a call.
    #[must_use]
    pub fn for_namespaces(mut self) -> Option<Self> {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.hierarchies.retain(Hierarchy::is_bounding);
        }
        (!self.shared.hierarchies.is_empty()).then_some(self)
    }

    /// Makes a group of its own for one run.
    ///
    /// # Errors
    ///
    /// The file or folder that refused; nothing is left then.
    pub fn make(&self, limits: GroupLimits) -> Result<Group, GroupFailure> {
        self.shared.retry_left();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("{}{number}", self.shared.owner)).unwrap_or_default();
        let mut group = Group {
            shared: Arc::clone(&self.shared),
            name,
            folders: Vec::new(),
            joining: Vec::new(),
        };
        // From here on, dropping the group removes what is made of it.
        for hierarchy in &self.shared.hierarchies {
            let failed = |file| move |errno| GroupFailure { file, errno };
            rustix::fs::mkdirat(&hierarchy.folder, &group.name, Mode::from_raw_mode(0o755))
                .map_err(failed("the group"))?;
            let folder = open_folder(hierarchy.folder.as_fd(), &group.name).map_err(failed("the group"))?;
            hierarchy.bound(folder.as_fd(), limits)?;
            let joining = rustix::fs::openat(
                &folder,
                c"cgroup.procs",
                OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .map_err(failed("cgroup.procs"))?;
            group.folders.push(folder);
            group.joining.push(joining);
        }
        Ok(group)
    }

    /// Removes the groups of processes of ours that have ended. Whether a process of another container lives cannot be
    /// told from here; but its groups are empty for a moment only, when they are new.
    fn sweep(&self) {
        for hierarchy in &self.shared.hierarchies {
            for name in hierarchy.names() {
                let Some(owner) = place::owner_of(&name) else {
                    continue;
                };
                let Ok(name) = CString::new(name) else {
                    continue;
                };
                let Ok(folder) = open_folder(hierarchy.folder.as_fd(), &name) else {
                    continue;
                };
                match owner {
                    place::Owner::Ended if hierarchy.version == Version::Two => {
                        // Its processes ended with the process that made them, or are about to.
                        let _ = write(folder.as_fd(), "cgroup.kill", "1");
                    }
                    place::Owner::Ended => {}
                    place::Owner::Elsewhere if is_old(&folder) => {}
                    place::Owner::Elsewhere | place::Owner::Lives => continue,
                }
                // A group with processes in it cannot be removed.
                let _ = rustix::fs::unlinkat(&hierarchy.folder, &name, AtFlags::REMOVEDIR);
            }
        }
    }

    /// How many groups of this process there are that could not be removed yet.
    pub fn left(&self) -> usize {
        self.shared.retry_left();
        self.shared
            .left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }
}

impl Shared {
    /// Removes one group in every hierarchy; `false` while processes are in it.
    fn remove(&self, name: &CString) -> bool {
        let mut removed = true;
        for hierarchy in &self.hierarchies {
            match rustix::fs::unlinkat(&hierarchy.folder, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(_) => removed = false,
            }
        }
        removed
    }

    fn retry_left(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|name| !self.remove(name));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Who was killed just now needs a moment to be gone.
        let end = Instant::now() + LAST_WAIT;
        self.retry_left();
        while Instant::now() < end
            && !self
                .left
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_empty()
        {
            std::thread::sleep(Duration::from_millis(2));
            self.retry_left();
        }
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if !left.is_empty() {
            tracing::warn!(
                groups = left.len(),
                "control groups could not be removed; the next start removes them"
            );
        }
    }
}

/// The group of one run. Dropping it kills what is in it, where the kernel can, and removes it, at the latest with the
/// next group that is made.
#[derive(Debug)]
pub struct Group {
    shared: Arc<Shared>,
    name: CString,
    folders: Vec<OwnedFd>,
    joining: Vec<OwnedFd>,
}

impl Group {
    /// The `cgroup.procs` files, open for writing: who writes `0` joins.
    pub fn joining(&self) -> &[OwnedFd] {
        &self.joining
    }

    /// Puts a process that exists already into the group; what it starts from then on is in it too.
    ///
    /// # Errors
    ///
    /// What the kernel answers; `ESRCH` when it has ended.
    pub fn add(&self, process: Pid) -> Result<(), Errno> {
        let text = process.as_raw_nonzero().to_string();
        for joining in &self.joining {
            rustix::io::write(joining, text.as_bytes())?;
        }
        Ok(())
    }

    /// Kills everything in the group at once, where the kernel can; whether it can.
    pub fn kill(&self) -> bool {
        self.each()
            .filter(|(hierarchy, _)| hierarchy.version == Version::Two)
            .any(|(_, folder)| write(folder, "cgroup.kill", "1").is_ok())
    }

    /// Whether no process is in it.
    pub fn is_empty(&self) -> bool {
        self.each()
            .all(|(_, folder)| read(folder, "cgroup.procs").is_ok_and(|text| text.is_empty()))
    }

    /// What was used so far.
    pub fn usage(&self) -> GroupUsage {
        let mut usage = GroupUsage::default();
        for (hierarchy, folder) in self.each() {
            hierarchy.usage(folder, &mut usage);
        }
        usage
    }

    fn each(&self) -> impl Iterator<Item = (&Hierarchy, BorrowedFd<'_>)> {
        self.shared
            .hierarchies
            .iter()
            .zip(self.folders.iter().map(AsFd::as_fd))
    }

    /// Whether the bounds that were set are there.
    fn has(&self, limits: GroupLimits) -> Result<(), GroupFailure> {
        self.each()
            .try_for_each(|(hierarchy, folder)| hierarchy.has(folder, limits))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let has_ended = self.shared.remove(&self.name);
        if !has_ended {
            self.kill();
            let mut left = self.shared.left.lock().unwrap_or_else(PoisonError::into_inner);
            left.insert(self.name.clone());
        }
    }
}

fn is_old(folder: &OwnedFd) -> bool {
    rustix::fs::fstat(folder).is_ok_and(|status| {
        let made = Duration::from_secs(u64::try_from(status.st_mtime).unwrap_or_default());
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH + made)
            .is_ok_and(|age| age >= LEFT_AGE)
    })
}

fn open_folder(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn read(folder: BorrowedFd<'_>, file: &str) -> Result<String, Errno> {
    let opened = rustix::fs::openat(folder, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    File::from(opened)
        .take(READ)
        .read_to_string(&mut text)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(text)
}

fn write(folder: BorrowedFd<'_>, file: &str, text: &str) -> Result<(), Errno> {
    let opened = rustix::fs::openat(folder, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    // In one piece: each write is one command.
    File::from(opened)
        .write_all(text.as_bytes())
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The names in a folder that are groups of ours.
fn own_names(folder: BorrowedFd<'_>) -> Vec<String> {
    let Ok(entries) = Dir::read_from(folder) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| String::from_utf8(entry.ok()?.file_name().to_bytes().to_vec()).ok())
        .filter(|name| name.starts_with(PREFIX))
        .collect()
}

/// Reads a file of `/proc` whole.
fn read_proc(path: &str) -> Option<String> {
    let mut text = String::new();
    File::open(path)
        .ok()?
        .take(1 << 20)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

/// A path of a hierarchy on this machine.
fn join(mount: &Path, path: &Path) -> PathBuf {
    mount.join(path.strip_prefix("/").unwrap_or(path))
}
