//! What a server sees of the file tree.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::linux::confinement::{LandlockRules, Root, RootEntry};
use crate::settings::ServerProfile;

/// The working folder, inside.
pub(super) const HOME: &str = "/home/server";
/// The folder for temporary files, inside.
pub(super) const TEMPORARY: &str = "/tmp";

/// The system's programs and libraries, where they are there.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/timezone",
];

/// What finding hosts and checking certificates takes.
const NETWORK: &[&str] = &[
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];

const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];

/// As many symbolic links as the kernel follows in one path (`path_resolution(7)`).
const LINKS: usize = 40;

/// A file tree under way.
#[derive(Debug, Default)]
pub(super) struct View {
    entries: Vec<RootEntry>,
    rules: LandlockRules,
}

/// A path that is to be shown and cannot be.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) path: PathBuf,
    pub(super) error: io::Error,
}

impl View {
    /// What a server with this profile sees. `executable` is shown even where no folder of it is.
    pub(super) fn new(profile: &ServerProfile, executable: &Path) -> Result<Self, Missing> {
        let mut view = Self::default();
        view.rules.network = profile.network;
        let network = if profile.network { NETWORK } else { &[] };
        for path in SYSTEM.iter().chain(network) {
            match view.show(Path::new(path), false) {
                Err(missing) if missing.error.kind() != io::ErrorKind::NotFound => return Err(missing),
                _ => {}
            }
        }
        // Folders before what is in them, so that nothing is covered by a later mount.
        let readable = profile.readable.iter().map(|path| (path, false));
        let writable = profile.writable.iter().map(|path| (path, true));
        let mut paths: Vec<_> = readable.chain(writable).collect();
        paths.sort_by_key(|(path, _)| path.components().count());
        for (path, is_writable) in paths {
            view.show(path, is_writable)?;
        }
        view.show(executable, false)?;
        view.add_own(profile);
        Ok(view)
    }

    pub(super) fn into_parts(self) -> (Root, LandlockRules) {
        let root = Root {
            entries: self.entries,
        };
        (root, self.rules)
    }

    /// Shows `path` at its own place, with the symbolic links on the way to it.
    fn show(&mut self, path: &Path, writable: bool) -> Result<(), Missing> {
        let missing = |error: io::Error| Missing {
            path: path.to_owned(),
            error,
        };
        let mut place = normal(path);
        for _ in 0..LINKS {
            let Some((link, content)) = first_link(&place).map_err(missing)? else {
                return {
                    self.bind(place, writable);
                    Ok(())
                };
            };
            let rest = place.strip_prefix(&link).map(Path::to_owned).unwrap_or_default();
            let folder = link.parent().unwrap_or(Path::new("/"));
            let next = normal(&folder.join(&content).join(rest));
            let is_there = self
                .entries
                .iter()
                .any(|entry| matches!(entry, RootEntry::Symlink { target, .. } if *target == link));
            if !is_there && self.covering(&link).is_none() {
                self.entries.push(RootEntry::Symlink {
                    target: link,
                    content,
                });
            }
            place = next;
        }
        Err(missing(io::Error::from_raw_os_error(libc::ELOOP)))
    }

    /// Whether what is at `place` is shown already, and whether it may be changed there.
    fn covering(&self, place: &Path) -> Option<bool> {
        self.entries.iter().rev().find_map(|entry| match entry {
            RootEntry::Bind { target, writable, .. } if place.starts_with(target) => Some(*writable),
            _ => None,
        })
    }

    fn bind(&mut self, place: PathBuf, writable: bool) {
        if self.covering(&place) == Some(writable) {
            return;
        }
        let rules = if writable {
            &mut self.rules.write
        } else {
            &mut self.rules.read
        };
        rules.push(place.clone());
        self.entries.push(RootEntry::Bind {
            source: place.clone(),
            target: place,
            writable,
        });
    }

    /// The folders in memory, the devices and the process file system.
    fn add_own(&mut self, profile: &ServerProfile) {
        for device in DEVICES {
            self.entries.push(RootEntry::Device { path: device.into() });
            self.rules.write.push(device.into());
        }
        for (target, content) in [
            ("/dev/fd", "/proc/self/fd"),
            ("/dev/stdin", "/proc/self/fd/0"),
            ("/dev/stdout", "/proc/self/fd/1"),
            ("/dev/stderr", "/proc/self/fd/2"),
        ] {
            self.entries.push(RootEntry::Symlink {
                target: target.into(),
                content: content.into(),
            });
        }
        for target in [HOME, TEMPORARY, "/dev/shm"] {
            // A folder of the host that is shown below one of these must not be hidden by it.
            let at = self.entries.iter().position(|entry| {
                matches!(entry, RootEntry::Bind { target: shown, .. } | RootEntry::Symlink { target: shown, .. }
                    if shown.starts_with(target))
            });
            let entry = RootEntry::Tmpfs {
                target: target.into(),
                bytes: profile.limits.scratch_bytes,
                inodes: profile.limits.scratch_inodes,
            };
            self.entries.insert(at.unwrap_or(self.entries.len()), entry);
            self.rules.write.push(target.into());
        }
        self.entries.push(RootEntry::Proc {
            target: "/proc".into(),
        });
        self.rules.read.push("/proc".into());
    }
}

/// The first symbolic link on the way to `path`, and what it says; an error when something is not there.
fn first_link(path: &Path) -> io::Result<Option<(PathBuf, PathBuf)>> {
    let mut place = PathBuf::new();
    for component in path.components() {
        place.push(component);
        if place.symlink_metadata()?.is_symlink() {
            let content = std::fs::read_link(&place)?;
            return Ok(Some((place, content)));
        }
    }
    Ok(None)
}

/// `path` without `.` and `..`. What stands before a `..` was looked at already and is no symbolic link.
fn normal(path: &Path) -> PathBuf {
    let mut words: Vec<OsString> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(word) => words.push(word.to_owned()),
            Component::ParentDir => {
                words.pop();
            }
            _ => {}
        }
    }
    let mut normal = PathBuf::from("/");
    normal.extend(words);
    normal
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Paths that are shown with whether they may be changed, and symbolic links with what they say.
    type Shown = (Vec<(PathBuf, bool)>, Vec<(PathBuf, PathBuf)>);

    fn of(profile: &ServerProfile, executable: &Path) -> Shown {
        let (root, _) = View::new(profile, executable).unwrap().into_parts();
        let mut binds = Vec::new();
        let mut links = Vec::new();
        for entry in root.entries {
            match entry {
                RootEntry::Bind {
                    source,
                    target,
                    writable,
                } => {
                    assert_eq!(source, target);
                    binds.push((source, writable));
                }
                RootEntry::Symlink { target, content } => links.push((target, content)),
                _ => {}
            }
        }
        (binds, links)
    }

    #[test]
    fn links_on_the_way_are_kept_and_what_they_lead_to_is_shown() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("real/inner")).unwrap();
        symlink("real", base.join("link")).unwrap();
        symlink("../real/inner", base.join("real/again")).unwrap();
        let profile = ServerProfile {
            readable: vec![base.join("link/again")],
            ..ServerProfile::default()
        };
        let (binds, links) = of(&profile, Path::new("/usr/bin/env"));
        assert!(links.contains(&(base.join("link"), "real".into())));
        assert!(links.contains(&(base.join("real/again"), "../real/inner".into())));
        assert!(binds.contains(&(base.join("real/inner"), false)));
        assert!(
            !binds.iter().any(|(path, _)| *path == base.join("real")),
            "no more than that"
        );
        assert!(binds.contains(&("/usr".into(), false)));
        assert!(
            !binds
                .iter()
                .any(|(path, _)| path.starts_with("/root") || path.starts_with("/etc/shadow"))
        );
    }

    #[test]
    fn what_may_be_changed_lies_over_what_may_be_read() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("a/b/c")).unwrap();
        let profile = ServerProfile {
            writable: vec![base.join("a/b")],
            readable: vec![base.join("a/b/c"), base.join("a")],
            ..ServerProfile::default()
        };
        let (binds, _) = of(&profile, Path::new("/usr/bin/env"));
        let mine: Vec<_> = binds
            .into_iter()
            .filter(|(path, _)| path.starts_with(&base))
            .collect();
        let expected = [("a", false), ("a/b", true), ("a/b/c", false)];
        assert_eq!(mine, expected.map(|(path, writable)| (base.join(path), writable)));
    }

    #[test]
    fn an_executable_is_shown_alone_and_what_is_missing_is_told() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        std::fs::write(base.join("program"), "").unwrap();
        let (binds, _) = of(&ServerProfile::default(), &base.join("program"));
        assert!(binds.contains(&(base.join("program"), false)));
        symlink("circle", base.join("circle")).unwrap();
        for name in ["absent", "circle"] {
            let missing = View::new(&ServerProfile::default(), &base.join(name)).unwrap_err();
            assert_eq!(missing.path, base.join(name));
        }
    }
}
