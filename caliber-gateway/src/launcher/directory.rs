//! The private directory that a child works in.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A fresh directory that only this user may enter; removed with everything in it when dropped.
#[derive(Debug)]
pub(super) struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    /// Makes `root`, if it is not there yet, and a directory for child `number` inside.
    pub(super) fn create(root: &Path, number: u64) -> io::Result<Self> {
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        let path = root.join(number.to_string());
        if !root.is_absolute() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path is not absolute",
            ));
        }
        match make(root) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_owner(root)?,
            outcome => outcome?,
        }
        make(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.0) {
            tracing::warn!(directory = %self.0.display(), %error, "the directory of a child could not be removed");
        }
    }
}

/// Refuses a directory that is not this user's alone. Something may have removed ours from a shared directory, and
/// somebody may have put one of his there.
fn check_owner(root: &Path) -> io::Result<()> {
    let metadata = root.symlink_metadata()?;
    let is_ours = metadata.is_dir()
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode() & 0o077 == 0;
    if is_ours {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is another user's or open to others",
        ))
    }
}

/// Removes `root` and everything in it, however deep and under whatever permissions its owner left it.
///
/// A hostile child can nest directories deeper than a stack or a path name allows. So there is no recursion: each
/// directory that is found is moved up into `root` and emptied there. Symbolic links are removed, not followed.
fn remove_tree(root: &Path) -> io::Result<()> {
    let prefix = uuid::Uuid::new_v4().simple();
    let mut moved = 0_u64;
    loop {
        std::fs::set_permissions(root, Permissions::from_mode(0o700))?;
        for entry in std::fs::read_dir(root)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                std::fs::remove_file(entry.path())?;
                continue;
            }
            let directory = entry.path();
            std::fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
            for inner in std::fs::read_dir(&directory)? {
                let inner = inner?;
                if inner.file_type()?.is_dir() {
                    // Moving a directory changes its `..`, which takes the permission to write into it.
                    std::fs::set_permissions(inner.path(), Permissions::from_mode(0o700))?;
                    moved += 1;
                    std::fs::rename(inner.path(), root.join(format!("{prefix}-{moved}")))?;
                } else {
                    std::fs::remove_file(inner.path())?;
                }
            }
            std::fs::remove_dir(&directory)?;
        }
        match std::fs::remove_dir(root) {
            // What was moved up while the list was read waits for the next round.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn only_the_owner_may_enter() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().join("root");
        let (one, two) = (
            PrivateDirectory::create(&root, 1).unwrap(),
            PrivateDirectory::create(&root, 2).unwrap(),
        );
        for path in [&root, one.path(), two.path()] {
            assert_eq!(mode(path), 0o700);
        }
        assert!(
            PrivateDirectory::create(&root, 1).is_err(),
            "never one that was there"
        );
        drop(one);
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 1);
    }

    #[test]
    fn a_tree_goes_whole_and_links_are_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let kept = base.path().join("kept");
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("file"), "stays").unwrap();
        let directory = PrivateDirectory::create(&base.path().join("root"), 1).unwrap();
        let path = directory.path().to_owned();
        for name in ["a", "b", "a/b", "a/b/a"] {
            std::fs::create_dir(path.join(name)).unwrap();
            std::fs::write(path.join(name).join("file"), "goes").unwrap();
        }
        symlink(&kept, path.join("link")).unwrap();
        symlink(&kept, path.join("a/link")).unwrap();
        std::fs::set_permissions(path.join("a/b"), Permissions::from_mode(0o0)).unwrap();
        drop(directory);
        assert!(!path.exists());
        assert_eq!(std::fs::read_to_string(kept.join("file")).unwrap(), "stays");
    }

    #[test]
    fn a_tree_deeper_than_a_path_name_goes_too() {
        let base = tempfile::tempdir().unwrap();
        let directory = PrivateDirectory::create(&base.path().join("root"), 1).unwrap();
        let path = directory.path().to_owned();
        // Built from the inside out, because the whole path is longer than the kernel takes at once.
        let name = "d".repeat(200);
        std::fs::create_dir(path.join("top")).unwrap();
        for _ in 0..300 {
            std::fs::create_dir(path.join("next")).unwrap();
            std::fs::rename(path.join("top"), path.join("next").join(&name)).unwrap();
            std::fs::rename(path.join("next"), path.join("top")).unwrap();
        }
        drop(directory);
        assert!(!path.exists());
    }
}
