//! The copies in the store: making, checking, removing.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use caliber_core::digest::SourceDigest;
use caliber_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, RenameFlags};
use rustix::io::Errno;

use super::source::SourceReader;
use super::stop::Stop;
use super::tree::storing;
use super::{Identity, PROGRAM, SnapshotStore, digest, tree};

/// How copies under way are named, before the process and a number.
const UNFINISHED: &str = ".unfinished-";
/// How old a copy under way is at least before it is taken for one whose writer died.
const UNFINISHED_AGE: Duration = Duration::from_secs(60);

impl SnapshotStore {
    /// Begins a copy under a name of its own, with a lock that says that its writer lives.
    pub(super) fn begin(&self) -> Result<Unfinished<'_>> {
        let failed = |errno: Errno| storing(errno.into());
        if self.names()?.len() >= self.limits.copies {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the store holds {} copies of sources, which is its limit; remove what is no longer registered, or raise the limit",
                    self.limits.copies
                ),
            ));
        }
        loop {
            let number = self.counter.fetch_add(1, Ordering::Relaxed);
            let process = rustix::process::getpid().as_raw_nonzero();
            let name = CString::new(format!("{UNFINISHED}{process}-{number}")).unwrap_or_default();
            match rustix::fs::mkdirat(&self.folder, &name, Mode::RWXU) {
                Ok(()) => {}
                // Of a process of another namespace that has the same number, or of one that died.
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(failed(errno)),
            }
            let folder = tree::open_own(self.folder.as_fd(), &name).map_err(failed)?;
            rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).map_err(failed)?;
            return Ok(Unfinished {
                store: self,
                name,
                folder,
                finished: false,
            });
        }
    }

    /// Gives a copy its name, or drops it when there is one already.
    pub(super) fn finish(
        &self,
        mut unfinished: Unfinished<'_>,
        source: SourceDigest,
        stop: &Stop,
    ) -> Result<()> {
        if self.is_checked(source) {
            return Ok(());
        }
        close_folder(&unfinished.folder)?;
        // Once more at most: what stands there and is wrong has been taken away then.
        for _ in 0..2 {
            let renamed = rustix::fs::renameat_with(
                &self.folder,
                &unfinished.name,
                &self.folder,
                digest::hex(source),
                RenameFlags::NOREPLACE,
            );
            match renamed {
                Ok(()) => {
                    unfinished.finished = true;
                    self.remember(source, &unfinished.folder);
                    return Ok(());
                }
                Err(Errno::EXIST | Errno::NOTEMPTY) => {
                    if self.check_copy(source, stop)? {
                        return Ok(());
                    }
                }
                Err(errno) => return Err(storing(errno.into())),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "the copy of the source is being changed by somebody else",
        ))
    }

    /// Reads a copy whole: whether it is there and right. What is there and wrong is taken away.
    pub(super) fn check_copy(&self, source: SourceDigest, stop: &Stop) -> Result<bool> {
        let Ok(folder) = tree::open_own(self.folder.as_fd(), &name_of(source)) else {
            return Ok(false);
        };
        if self.copy_digest(&folder, stop)? == Some(source) {
            self.remember(source, &folder);
            return Ok(true);
        }
        tracing::error!(source = %source, "a copy of a source is damaged and was removed");
        self.discard(source).map_err(|errno| storing(errno.into()))?;
        Ok(false)
    }

    /// The digest of what a copy holds now; `None` when it is nothing that can have one.
    fn copy_digest(&self, folder: &OwnedFd, stop: &Stop) -> Result<Option<SourceDigest>> {
        let unless_ended = |error: Error| match error.kind() {
            ErrorKind::Timeout | ErrorKind::Cancelled => Err(error),
            _ => Ok(None),
        };
        let mut reader = SourceReader::new(self.bounds(), stop, false);
        if let Ok(file) = tree::open_own_file(folder.as_fd(), PROGRAM) {
            return match reader.read_executable("copy", file, None) {
                Ok(digest) if count(folder) == Some(1) => Ok(Some(digest::executable(digest))),
                Ok(_) => Ok(None),
                Err(error) => unless_ended(error),
            };
        }
        let Some(roots) = count(folder) else {
            return Ok(None);
        };
        for index in 0..roots {
            let Ok(root) = tree::open_own(folder.as_fd(), &root_name(index)) else {
                return Ok(None);
            };
            if let Err(error) = reader.read_root("copy", root_number(index), root.as_fd(), None) {
                return unless_ended(error);
            }
        }
        Ok(Some(digest::source(roots, reader.files)))
    }

    pub(super) fn is_checked(&self, source: SourceDigest) -> bool {
        let known = self.lock_checked().get(&source).copied();
        known.is_some_and(|known| {
            rustix::fs::statat(&self.folder, name_of(source), AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|status| identity(&status) == known)
        })
    }

    fn remember(&self, source: SourceDigest, folder: &OwnedFd) {
        if let Ok(status) = rustix::fs::fstat(folder) {
            let mut checked = self.lock_checked();
            if checked.len() >= self.limits.copies {
                checked.clear();
            }
            checked.insert(source, identity(&status));
        }
    }

    fn lock_checked(&self) -> std::sync::MutexGuard<'_, HashMap<SourceDigest, Identity>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a copy away: first its name, then what is in it.
    pub(super) fn discard(&self, source: SourceDigest) -> Result<(), Errno> {
        self.lock_checked().remove(&source);
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let process = rustix::process::getpid().as_raw_nonzero();
        let name = CString::new(format!("{UNFINISHED}{process}-gone-{number}")).unwrap_or_default();
        match rustix::fs::renameat(&self.folder, name_of(source), &self.folder, &name) {
            Ok(()) => {}
            // Somebody else took it away.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        tree::remove(self.folder.as_fd(), &name, self.limits.depth + 2)
    }

    /// Removes what writers that died have left.
    pub(super) fn sweep(&self) {
        for name in self.names().unwrap_or_default() {
            if !name.to_bytes().starts_with(UNFINISHED.as_bytes()) {
                continue;
            }
            let Ok(folder) = tree::open_own(self.folder.as_fd(), &name) else {
                continue;
            };
            let is_old = rustix::fs::fstat(&folder).is_ok_and(|status| {
                let changed = Duration::from_secs(u64::try_from(status.st_mtime).unwrap_or_default());
                SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH + changed)
                    .is_ok_and(|age| age >= UNFINISHED_AGE)
            });
            let is_dead = || rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok();
            if is_old
                && is_dead()
                && let Err(error) = tree::remove(self.folder.as_fd(), &name, self.limits.depth + 2)
            {
                tracing::warn!(%error, "what an ended process left in the store of sources could not be removed");
            }
        }
    }

    pub(super) fn names(&self) -> Result<Vec<CString>> {
        let failed = |errno: Errno| storing(errno.into());
        // A duplicate shares its position: each reading needs a description of its own.
        let folder = tree::open_own(self.folder.as_fd(), c".").map_err(failed)?;
        let entries = Dir::read_from(&folder).map_err(failed)?;
        Ok(entries
            .filter_map(|entry| entry.ok().map(|entry| entry.file_name().to_owned()))
            .filter(|name| name.as_c_str() != c"." && name.as_c_str() != c"..")
            .collect())
    }
}

/// A copy under way; removed when it is dropped unfinished.
#[derive(Debug)]
pub(super) struct Unfinished<'a> {
    store: &'a SnapshotStore,
    name: CString,
    pub(super) folder: OwnedFd,
    finished: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.finished {
            let depth = self.store.limits.depth + 2;
            if let Err(error) = tree::remove(self.store.folder.as_fd(), &self.name, depth) {
                tracing::warn!(%error, "an unfinished copy of a source could not be removed");
            }
        }
    }
}

fn identity(status: &rustix::fs::Stat) -> Identity {
    (
        status.st_dev,
        status.st_ino,
        status.st_mtime,
        status.st_mtime_nsec,
    )
}

/// How many entries a folder has.
fn count(folder: &OwnedFd) -> Option<usize> {
    let folder = tree::open_own(folder.as_fd(), c".").ok()?;
    let entries = Dir::read_from(&folder).ok()?;
    Some(entries.count().saturating_sub(2))
}

pub(super) fn close_folder(folder: &OwnedFd) -> Result<()> {
    let mode = Mode::from_raw_mode(0o555);
    rustix::fs::fchmod(folder, mode).map_err(|errno| storing(errno.into()))
}

pub(super) fn root_name(index: usize) -> CString {
    CString::new(format!("root{index}")).unwrap_or_default()
}

pub(super) fn root_number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

pub(super) fn name_of(source: SourceDigest) -> CString {
    CString::new(digest::hex(source)).unwrap_or_default()
}
