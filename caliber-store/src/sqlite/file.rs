//! The file of the database: where it may be, and whether it is still the one that was opened.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use caliber_core::text::shown;

use crate::error::{Error, ErrorKind, Result};

/// A database file that was found or made.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseFile {
    path: PathBuf,
    text: String,
    identity: Option<Identity>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    node: u64,
}

impl DatabaseFile {
    /// Finds the file, or makes it, empty and readable by its owner only.
    pub(super) fn find(path: &Path, create: bool) -> Result<Self> {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                return Err(problem(ErrorKind::Path, path, "is a directory; name a file"));
            }
            Ok(found) if found.permissions().readonly() => {
                return Err(problem(
                    ErrorKind::ReadOnly,
                    path,
                    "is marked as read-only; make it writable for this process",
                ));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(path, create)?,
            Err(error) => {
                return Err(problem(ErrorKind::Path, path, "cannot be reached").with_source(error));
            }
        }
        let reached = fs::canonicalize(path)
            .map_err(|error| problem(ErrorKind::Path, path, "cannot be reached").with_source(error))?;
        let Some(text) = reached.to_str().map(ToOwned::to_owned) else {
            return Err(problem(
                ErrorKind::Path,
                path,
                "is no UTF-8 text, which SQLite needs; choose another path",
            ));
        };
        Ok(Self {
            identity: identity(&reached),
            path: reached,
            text,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path as SQLite takes it: absolute, so that nothing in it is read as anything but a path.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Refuses when the file at the path is not the one that was opened: what is written then is lost.
    pub(crate) fn check(&self) -> Result<()> {
        if identity(&self.path) == self.identity {
            return Ok(());
        }
        Err(problem(
            ErrorKind::Io,
            &self.path,
            "was removed or replaced while it was open; start again",
        ))
    }

    /// The size of the write-ahead log in bytes.
    pub(super) fn log_bytes(&self) -> u64 {
        fs::metadata(format!("{}-wal", self.text)).map_or(0, |found| found.len())
    }
}

fn make(path: &Path, create: bool) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent
        && !parent.is_dir()
    {
        return Err(problem(ErrorKind::Path, parent, "is no directory; make it first"));
    }
    if !create {
        return Err(problem(ErrorKind::Path, path, "does not exist; check the path"));
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    match options.open(path) {
        Ok(_) => Ok(()),
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => {
            let (kind, what) = match error.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => (
                    ErrorKind::ReadOnly,
                    "cannot be made here; make its directory writable for this process",
                ),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    (ErrorKind::Full, "cannot be made: its disk is full")
                }
                _ => (ErrorKind::Path, "cannot be made"),
            };
            Err(problem(kind, path, what).with_source(error))
        }
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(path).ok()?;
    Some(Identity {
        device: found.dev(),
        node: found.ino(),
    })
}

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<Identity> {
    path.is_file().then_some(Identity { device: 0, node: 0 })
}

/// An error about a path, which is foreign text.
pub(super) fn problem(kind: ErrorKind, path: &Path, what: &str) -> Error {
    let path = path.to_string_lossy();
    Error::new(kind, format!("{} {what}", shown(&path))).with_context("path", shown(&path))
}
