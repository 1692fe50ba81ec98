//! Where groups can be made: the hierarchies that are mounted, and what each can do for us.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{Gap, GroupFailure, GroupLimits, GroupUsage, join, open_path, own_names, read, read_proc, write};

/// What a hierarchy can do for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Memory,
    Processes,
    Kill,
}

impl Control {
    /// The controller's name; ending a tree needs none.
    fn controller(self) -> Option<&'static str> {
        match self {
            Self::Memory => Some("memory"),
            Self::Processes => Some("pids"),
            Self::Kill => None,
        }
    }

    fn stage(self) -> &'static str {
        match self {
            Self::Memory => "cgroup_memory",
            Self::Processes => "cgroup_pids",
            Self::Kill => "cgroup_kill",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

impl Version {
    fn as_str(self) -> &'static str {
        match self {
            Self::One => "cgroup_v1",
            Self::Two => "cgroup_v2",
        }
    }
}

/// A mounted hierarchy, and the group of it that ours would lie in.
#[derive(Debug)]
pub(super) struct Place {
    version: Version,
    controllers: Vec<String>,
    /// The group to make ours in; for version 2 without a parent that was named, candidates in order.
    candidates: Vec<PathBuf>,
    /// Whether an operator named the parent, which is a consent to turn controllers on in it.
    is_named: bool,
}

/// A hierarchy in which groups are made.
#[derive(Debug)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    pub(super) folder: OwnedFd,
    path: PathBuf,
    memory: bool,
    processes: bool,
}

impl Hierarchy {
    /// Whether it bounds anything, and is not there for killing alone.
    pub(super) fn is_bounding(&self) -> bool {
        self.memory || self.processes
    }
}

/// What to do where the kernel or the container shows no hierarchy that could help.
pub(super) fn none(wanted: Control) -> Gap {
    Gap {
        stage: wanted.stage().to_owned(),
        errno: None,
        remedy: match wanted {
            Control::Memory | Control::Processes => {
                "no control group file system with this controller is mounted here; give the container or the service one that it may write to (Docker: --cgroupns=private and a writable /sys/fs/cgroup; systemd: Delegate=memory pids with DelegateSubgroup=)".to_owned()
            }
            Control::Kill => "ending a group at once needs version 2 of control groups and Linux 5.14; trees are ended by their process namespace as well".to_owned(),
        },
    }
}

/// The hierarchies that are mounted here.
pub(super) fn find(parent: Option<&Path>) -> Vec<Place> {
    let mounts = read_proc("/proc/self/mountinfo").unwrap_or_default();
    let own = read_proc("/proc/self/cgroup").unwrap_or_default();
    places(&mounts, &own, parent)
}

fn places(mounts: &str, own: &str, parent: Option<&Path>) -> Vec<Place> {
    mounts
        .lines()
        .filter_map(|line| {
            let mount = Mount::parse(line)?;
            let group = match parent {
                Some(parent) => parent.to_owned(),
                None => PathBuf::from(own_group(own, mount.version, &mount.controllers)?),
            };
            // A container may see a part of the hierarchy only.
            let inside = group
                .strip_prefix(&mount.root)
                .or_else(|_| group.strip_prefix("/"));
            let path = join(&mount.point, inside.ok()?);
            let mut candidates = vec![path.clone()];
            if mount.version == Version::Two
                && parent.is_none()
                && path != mount.point
                && let Some(above) = path.parent()
            {
                candidates.push(above.to_owned());
            }
            Some(Place {
                version: mount.version,
                controllers: mount.controllers,
                candidates,
                is_named: parent.is_some(),
            })
        })
        .collect()
}

/// A line of `/proc/self/mountinfo` that is a hierarchy of groups.
struct Mount {
    version: Version,
    root: PathBuf,
    point: PathBuf,
    controllers: Vec<String>,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let version = match right.next()? {
            "cgroup" => Version::One,
            "cgroup2" => Version::Two,
            _ => return None,
        };
        let controllers = match version {
            Version::One => right.nth(1)?.split(',').map(str::to_owned).collect(),
            Version::Two => Vec::new(),
        };
        Some(Self {
            version,
            root: PathBuf::from(root),
            point: PathBuf::from(point),
            controllers,
        })
    }
}

/// The path of this process's group in a hierarchy.
fn own_group<'a>(own: &'a str, version: Version, controllers: &[String]) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (names, path) = rest.split_once(':')?;
        let is_it = match version {
            Version::Two => names.is_empty(),
            Version::One => {
                !names.is_empty()
                    && names
                        .split(',')
                        .all(|name| controllers.iter().any(|controller| controller == name))
            }
        };
        is_it.then_some(path)
    })
}

impl Place {
    /// Whether the hierarchy has what is wanted at all: `None` when another one must be asked.
    pub(super) fn offers(&self, wanted: Control) -> Option<Result<(), Gap>> {
        match (self.version, wanted.controller()) {
            (Version::One, Some(controller)) => self
                .controllers
                .iter()
                .any(|name| name == controller)
                .then_some(Ok(())),
            (Version::One, None) => None,
            (Version::Two, None) => Some(Ok(())),
            (Version::Two, Some(controller)) => {
                let root = self.candidates.iter().find_map(|path| open_path(path).ok())?;
                let controllers = read(root.as_fd(), "cgroup.controllers").ok()?;
                has_word(&controllers, controller).then_some(Ok(()))
            }
        }
    }

    /// Opens the group in which ours are made.
    pub(super) fn open(&self, wanted: Control) -> Result<Hierarchy, Gap> {
        let mut first = None;
        for (index, path) in self.candidates.iter().enumerate() {
            match self.open_candidate(path, wanted, index > 0) {
                Ok(hierarchy) => return Ok(hierarchy),
                // What the nearest one answers is what an operator can act on.
                Err(errno) => first = first.or(Some(errno)),
            }
        }
        Err(self.gap(wanted, first.unwrap_or(Errno::NOENT)))
    }

    fn open_candidate(&self, path: &Path, wanted: Control, is_above: bool) -> Result<Hierarchy, Errno> {
        let folder = open_path(path)?;
        if is_above && !is_delegated(path, &folder) {
            return Err(Errno::PERM);
        }
        if !is_above && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_err() {
            return Err(Errno::ACCESS);
        }
        if let (Version::Two, Some(controller)) = (self.version, wanted.controller()) {
            let on = read(folder.as_fd(), "cgroup.subtree_control")?;
            if !has_word(&on, controller) {
                if !self.is_named && !is_delegated(path, &folder) {
                    return Err(Errno::PERM);
                }
                write(
                    folder.as_fd(),
                    "cgroup.subtree_control",
                    &format!("+{controller}"),
                )?;
            }
        }
        Ok(Hierarchy {
            version: self.version,
            folder,
            path: path.to_owned(),
            memory: wanted == Control::Memory,
            processes: wanted == Control::Processes,
        })
    }

    fn gap(&self, wanted: Control, errno: Errno) -> Gap {
        let remedy = match (self.version, errno) {
            (_, Errno::ROFS) => {
                "the control group file system is mounted read-only; give the container a writable /sys/fs/cgroup"
            }
            (Version::One, _) => {
                "this process may not make groups in its own; run it as root, or let an administrator make a group that belongs to its user and name it in the setting control_group"
            }
            (Version::Two, _) => {
                "version 2 bounds only groups without processes in the group above; under systemd set Delegate=memory pids and DelegateSubgroup=main in the unit, elsewhere make a group for caliber and name it in the setting control_group"
            }
        };
        Gap {
            stage: wanted.stage().to_owned(),
            errno: Some(errno),
            remedy: remedy.to_owned(),
        }
    }
}

/// Whether a service manager gave the group to whoever runs in it: it says so in an attribute, or made it the user's own.
fn is_delegated(path: &Path, folder: &OwnedFd) -> bool {
    let mut value = [0_u8; 8];
    let is_marked = ["user.delegate", "trusted.delegate"].iter().any(|name| {
        rustix::fs::getxattr(path, *name, &mut value).is_ok_and(|length| value.get(..length) == Some(b"1"))
    });
    let user = rustix::process::geteuid();
    is_marked
        || !user.is_root() && rustix::fs::fstat(folder).is_ok_and(|status| status.st_uid == user.as_raw())
}

fn has_word(text: &str, word: &str) -> bool {
    text.split_whitespace().any(|found| found == word)
}

impl Hierarchy {
    pub(super) fn is(&self, other: &Self) -> bool {
        self.path == other.path
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.memory |= other.memory;
        self.processes |= other.processes;
    }

    pub(super) fn means(&self, wanted: Control) -> String {
        let what = wanted.controller().unwrap_or("kill");
        format!("{}:{what}", self.version.as_str())
    }

    pub(super) fn names(&self) -> Vec<String> {
        super::open_folder(self.folder.as_fd(), c".")
            .map(|folder| own_names(folder.as_fd()))
            .unwrap_or_default()
    }

    /// Sets the bounds of a group.
    pub(super) fn bound(&self, group: BorrowedFd<'_>, limits: GroupLimits) -> Result<(), GroupFailure> {
        let set = |file: &'static str, text: &str| {
            write(group, file, text).map_err(|errno| GroupFailure { file, errno })
        };
        let set_if_there = |file, text: &str| match set(file, text) {
            Err(failure) if failure.errno == Errno::NOENT || failure.errno == Errno::ACCESS => Ok(()),
            other => other,
        };
        let memory = limits.memory_bytes.to_string();
        if self.memory {
            match self.version {
                Version::One => {
                    set("memory.limit_in_bytes", &memory)?;
                    set_if_there("memory.memsw.limit_in_bytes", &memory)?;
                }
                Version::Two => {
                    set("memory.max", &memory)?;
                    set_if_there("memory.swap.max", "0")?;
                    // A tree that lost a process is of no use to its caller.
                    set_if_there("memory.oom.group", "1")?;
                }
            }
        }
        if self.processes {
            set("pids.max", &limits.processes.to_string())?;
        }
        Ok(())
    }

    /// Whether the bounds are there. The kernel rounds memory to pages.
    pub(super) fn has(&self, group: BorrowedFd<'_>, limits: GroupLimits) -> Result<(), GroupFailure> {
        let is = |file: &'static str, wanted: u64| match number(group, file) {
            Some(found) if found.abs_diff(wanted) < 64 << 10 => Ok(()),
            _ => Err(GroupFailure {
                file,
                errno: Errno::INVAL,
            }),
        };
        if self.memory {
            let file = match self.version {
                Version::One => "memory.limit_in_bytes",
                Version::Two => "memory.max",
            };
            is(file, limits.memory_bytes)?;
        }
        if self.processes && number(group, "pids.max") != Some(limits.processes) {
            return Err(GroupFailure {
                file: "pids.max",
                errno: Errno::INVAL,
            });
        }
        Ok(())
    }

    pub(super) fn usage(&self, group: BorrowedFd<'_>, usage: &mut GroupUsage) {
        let (peak, kills) = match self.version {
            Version::One => ("memory.max_usage_in_bytes", ("memory.oom_control", "oom_kill")),
            Version::Two => ("memory.peak", ("memory.events", "oom_kill")),
        };
        if self.memory {
            usage.peak_memory_bytes = number(group, peak);
            usage.memory_kills += field(group, kills.0, kills.1).unwrap_or_default();
        }
        if self.processes {
            usage.process_refusals += field(group, "pids.events", "max").unwrap_or_default();
        }
        if self.version == Version::Two {
            usage.cpu_us = field(group, "cpu.stat", "usage_usec");
        }
    }
}

fn number(group: BorrowedFd<'_>, file: &str) -> Option<u64> {
    read(group, file).ok()?.trim().parse().ok()
}

/// The value of `key` in a file of lines `key value`.
fn field(group: BorrowedFd<'_>, file: &str, key: &str) -> Option<u64> {
    read(group, file).ok()?.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

/// The beginning of the names of this process's groups: it tells whether the process still lives.
pub(super) fn owner() -> String {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let started = started("self").unwrap_or_default();
    format!("{}{}-{process}-{started}-", super::PREFIX, namespace())
}

/// Which process namespace this is: process ids of another one say nothing here.
fn namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |status| status.st_ino)
}

/// When a process started, in ticks after the start of the machine; `None` when there is none.
fn started(process: &str) -> Option<u64> {
    let text = read_proc(&format!("/proc/{process}/stat"))?;
    // The second field is a name that may hold anything.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// The process that made a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// It runs, here.
    Lives,
    /// It has ended.
    Ended,
    /// It is one of another process namespace.
    Elsewhere,
}

/// Whose group it is, by its name; `None` when it is none of caliber's.
pub(super) fn owner_of(name: &str) -> Option<Owner> {
    let rest = name.strip_prefix(super::PREFIX)?;
    let parts: Vec<_> = rest.split('-').map(str::parse::<u64>).collect();
    let [Ok(its_namespace), Ok(process), Ok(its_start), Ok(_)] = parts.as_slice() else {
        return None;
    };
    Some(if *its_namespace != namespace() {
        Owner::Elsewhere
    } else if started(&process.to_string()) == Some(*its_start) {
        Owner::Lives
    } else {
        Owner::Ended
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(mounts: &str, own: &str, parent: Option<&str>) -> Vec<Vec<PathBuf>> {
        places(mounts, own, parent.map(Path::new))
            .into_iter()
            .map(|place| place.candidates)
            .collect()
    }

    fn paths(paths: &[&str]) -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn finds_the_group_of_this_process_in_every_hierarchy() {
        let mounts = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let own = "4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/service/main\n";
        assert_eq!(
            candidates(mounts, own, None),
            [
                paths(&["/sys/fs/cgroup/memory/a/b"]),
                paths(&["/sys/fs/cgroup/cpu,cpuacct/c"]),
                paths(&[
                    "/sys/fs/cgroup/unified/service/main",
                    "/sys/fs/cgroup/unified/service"
                ]),
            ]
        );
        assert_eq!(
            candidates(mounts, own, Some("/caliber")),
            [
                paths(&["/sys/fs/cgroup/memory/caliber"]),
                paths(&["/sys/fs/cgroup/cpu,cpuacct/caliber"]),
                paths(&["/sys/fs/cgroup/unified/caliber"]),
            ]
        );
    }

    #[test]
    fn a_container_that_sees_a_part_finds_its_part() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate";
        let own = "4:memory:/docker/abc\n0::/\n";
        assert_eq!(
            candidates(mounts, own, None),
            [paths(&["/sys/fs/cgroup/memory"]), paths(&["/sys/fs/cgroup"])]
        );
    }

    #[test]
    fn broken_lines_are_no_places() {
        for line in [
            "",
            " - ",
            "1 2 3",
            "1 2 3 / /x - cgroup",
            "1 2 3 / /x rw - ext4 /dev/x rw",
        ] {
            assert!(places(line, "0::/", None).is_empty(), "{line:?}");
        }
        let mount = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        for own in ["", "0", "0:", "1:memory:/x"] {
            assert!(places(mount, own, None).is_empty(), "{own:?}");
        }
    }

    #[test]
    fn a_name_tells_whether_its_process_lives() {
        assert_eq!(owner_of(&format!("{}7", owner())), Some(Owner::Lives));
        let namespace = namespace();
        let process = std::process::id();
        let named = |name: String| owner_of(&format!("caliber-run-{name}"));
        assert_eq!(named(format!("{namespace}-{process}-1-0")), Some(Owner::Ended));
        assert_eq!(named(format!("{namespace}-4194304999-1-0")), Some(Owner::Ended));
        assert_eq!(
            named(format!("{}-{process}-1-0", namespace + 1)),
            Some(Owner::Elsewhere)
        );
        for other in [
            format!("{namespace}-{process}-1"),
            format!("{namespace}-{process}-1-0-0"),
            "tools".to_owned(),
        ] {
            assert_eq!(named(other.clone()), None, "{other}");
        }
        assert_eq!(owner_of("system.slice"), None);
    }
}
