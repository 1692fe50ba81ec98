//! Control groups (version 2): the kernel's own list of all descendants of a child, and one write that kills them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// How many groups below one of ours are removed; a child that may make groups could make many.
const NESTED_GROUPS: usize = 4_096;

/// How long an emptying group rests between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// The group that holds the groups of one launcher's children. Removed when dropped.
#[derive(Debug)]
pub(super) struct Group(PathBuf);

impl Group {
    /// Makes a group beside this process, in its own group.
    ///
    /// The error is a text for people: why there is none.
    pub(super) fn create(instance: &str) -> Result<Self, String> {
        let own = own_group().ok_or("this process is in no control group of version 2")?;
        let path = own.join(format!("caliber-{instance}"));
        std::fs::create_dir(&path).map_err(|error| format!("no control group can be made here: {error}"))?;
        let group = Self(path);
        if group.0.join("cgroup.kill").exists() {
            Ok(group)
        } else {
            Err("this kernel cannot kill a control group (it is older than 5.14)".into())
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The group of child `number`.
    pub(super) fn child(&self, number: u64) -> io::Result<ChildGroup> {
        let path = self.0.join(number.to_string());
        std::fs::create_dir(&path)?;
        Ok(ChildGroup(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        remove_groups(&self.0);
    }
}

/// The group of one child and its descendants. Removed when dropped.
#[derive(Debug)]
pub(super) struct ChildGroup(PathBuf);

impl ChildGroup {
    /// Moves a process into the group; what it starts from then on is born there.
    pub(super) fn add(&self, pid: Pid) -> io::Result<()> {
        std::fs::write(self.0.join("cgroup.procs"), pid.as_raw_nonzero().to_string())
    }

    /// Kills everything in the group at once, so that nothing can fork away.
    pub(super) fn kill(&self) {
        // The one way to fail is that the group is gone.
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// Whether a process, other than a zombie, is in the group or below.
    pub(super) fn is_populated(&self) -> bool {
        std::fs::read_to_string(self.0.join("cgroup.events"))
            .is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
    }

    /// Waits until everything in the group has ended, at most `limit`. Returns whether it has.
    pub(super) fn wait_until_empty(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while self.is_populated() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// Removes the group and those that were made below it.
    pub(super) fn remove(&self) {
        remove_groups(&self.0);
    }
}

impl Drop for ChildGroup {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes a group and those below it, the deepest first. A group with processes stays.
fn remove_groups(path: &Path) {
    let mut groups = vec![path.to_owned()];
    let mut next = 0;
    while let Some(group) = groups.get(next).cloned() {
        next += 1;
        let inner = std::fs::read_dir(&group).into_iter().flatten().flatten();
        let inner = inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let room = NESTED_GROUPS.saturating_sub(groups.len());
        groups.extend(inner.map(|entry| entry.path()).take(room));
    }
    for group in groups.iter().rev() {
        let _ = std::fs::remove_dir(group);
    }
}

/// The directory of the group that this process is in.
pub(super) fn own_group() -> Option<PathBuf> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    group_directory(&groups, &mounts)
}

/// Reads `/proc/self/cgroup` and `/proc/self/mountinfo` (both described in `proc(5)` and `cgroups(7)`).
fn group_directory(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        if after.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = before.split(' ').skip(3);
        let (root, mount_point) = (fields.next()?, fields.next()?);
        // Only the part of the tree below `root` can be seen here. Escaped names are left alone.
        let below = Path::new(group).strip_prefix(root).ok()?;
        (!mount_point.contains('\\')).then(|| Path::new(mount_point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_below_its_mount() {
        let mounts = "22 1 0:20 / /proc rw - proc proc rw\n\
                      30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        for (group, directory) in [
            ("0::/", Some("/sys/fs/cgroup")),
            (
                "1:name=x:/y\n0::/system.slice/one.service",
                Some("/sys/fs/cgroup/system.slice/one.service"),
            ),
            ("4:memory:/only/version/one", None),
        ] {
            assert_eq!(
                group_directory(group, mounts),
                directory.map(PathBuf::from),
                "{group}"
            );
        }
        let part = "30 1 0:26 /pod/one /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            group_directory("0::/pod/one/two", part),
            Some("/sys/fs/cgroup/two".into())
        );
        assert_eq!(group_directory("0::/pod/other", part), None, "out of sight");
    }
}
