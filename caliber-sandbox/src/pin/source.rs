//! Reading the files of a source, and copying them.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use sha2::{Digest as _, Sha256};

use super::stop::Stop;
use super::tree::{
    Bounds, Problem, make_file, make_folder, names, open_beneath, regular, storing, too_large,
};

/// How much is read of a file at once, in bytes.
const CHUNK: usize = 64 << 10;

/// The modes of a copy: everybody may read it, because a tool runs as a user of its own; the folder that all copies
/// lie in lets nobody in but its owner.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o555);
const FILE_MODE: Mode = Mode::from_raw_mode(0o444);
const EXECUTABLE_MODE: Mode = Mode::from_raw_mode(0o555);

/// One file of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceFile {
    /// Which root it lies in.
    pub(super) root: u32,
    /// Its path in the root.
    pub(super) path: Vec<u8>,
    pub(super) executable: bool,
    pub(super) bytes: u64,
    pub(super) digest: [u8; 32],
}

/// Reads the files of a source and, where told to, copies them.
pub(super) struct SourceReader<'a> {
    pub(super) bounds: Bounds,
    pub(super) stop: &'a Stop,
    /// Whether what is no source (`__pycache__`, `*.pyc`, names that begin with a dot) is left out. A copy is read
    /// whole: it holds nothing that may be left out.
    pub(super) leaves_out: bool,
    /// Paths in the root that are left out too.
    pub(super) left_out: Vec<Vec<u8>>,
    pub(super) files: Vec<SourceFile>,
    entries: usize,
    bytes: u64,
}

impl<'a> SourceReader<'a> {
    pub(super) fn new(bounds: Bounds, stop: &'a Stop, leaves_out: bool) -> Self {
        Self {
            bounds,
            stop,
            leaves_out,
            left_out: Vec::new(),
            files: Vec::new(),
            entries: 0,
            bytes: 0,
        }
    }

    /// Reads everything in `from`; with `into`, an empty folder, copies it there.
    ///
    /// # Errors
    ///
    /// `Invalid` for `field` with what is wrong in the folder; `TooLarge` beyond the bounds; `Timeout`, `Cancelled`.
    pub(super) fn read_root(
        &mut self,
        field: &str,
        root: u32,
        from: BorrowedFd<'_>,
        into: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let mut path = Vec::new();
        self.read_folder(root, from, into, &mut path, 0)
            .map_err(|problem| self.error(field, &path, problem))
    }

    fn read_folder(
        &mut self,
        root: u32,
        from: BorrowedFd<'_>,
        into: Option<BorrowedFd<'_>>,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), Problem> {
        if depth > self.bounds.depth {
            return Err(Problem::Other(too_large(format!(
                "is nested deeper than {} folders",
                self.bounds.depth
            ))));
        }
        let left = self.bounds.entries.saturating_sub(self.entries);
        let found = names(from, left)?;
        self.entries += found.len();
        for name in found {
            self.stop.check()?;
            if self.leaves_out && is_left_out(name.to_bytes()) {
                continue;
            }
            let before = path.len();
            if before > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.to_bytes());
            if self.left_out.iter().any(|left_out| left_out == path) {
                path.truncate(before);
                continue;
            }
            // On an error the path stays as it is: it names what is wrong.
            self.read_entry(root, from, &name, into, path, depth)?;
            path.truncate(before);
        }
        Ok(())
    }

    fn read_entry(
        &mut self,
        root: u32,
        from: BorrowedFd<'_>,
        name: &CStr,
        into: Option<BorrowedFd<'_>>,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), Problem> {
        let status = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Directory => {
                let folder = open_beneath(from, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
                let Some(into) = into else {
                    return self.read_folder(root, folder.as_fd(), None, path, depth + 1);
                };
                let copy = make_folder(into, name)?;
                let before = self.files.len();
                self.read_folder(root, folder.as_fd(), Some(copy.as_fd()), path, depth + 1)?;
                if self.files.len() == before {
                    // The digest does not tell of a folder without files, so the copy must not have it either.
                    rustix::fs::unlinkat(into, name, AtFlags::REMOVEDIR)?;
                } else {
                    rustix::fs::fchmod(&copy, FOLDER_MODE)?;
                }
                Ok(())
            }
            FileType::RegularFile => {
                let file = open_beneath(from, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
                // What was opened decides, not what was there before.
                let status = regular(&file)?;
                let executable = Mode::from_raw_mode(status.st_mode).contains(Mode::XUSR);
                let copy = into.map(|into| make_file(into, name)).transpose()?;
                let read = self.read_file(File::from(file), copy.as_ref(), executable)?;
                self.files.push(SourceFile {
                    root,
                    path: path.clone(),
                    executable,
                    bytes: read.0,
                    digest: read.1,
                });
                Ok(())
            }
            FileType::Symlink => Err(Problem::Other(Error::invalid(
                "",
                "is a symbolic link; a source holds regular files and folders only",
            ))),
            _ => Err(Problem::Other(Error::invalid(
                "",
                "is neither a regular file nor a folder",
            ))),
        }
    }

    /// Reads an executable; with `copy`, an empty file, copies it there.
    ///
    /// # Errors
    ///
    /// As [`SourceReader::read_root`].
    pub(super) fn read_executable(
        &mut self,
        field: &str,
        file: File,
        copy: Option<&File>,
    ) -> Result<[u8; 32]> {
        self.read_file(file, copy, true)
            .map(|(_, digest)| digest)
            .map_err(|error| self.error(field, b"", Problem::Other(error)))
    }

    /// Reads one file: its length and its digest.
    fn read_file(
        &mut self,
        mut file: File,
        copy: Option<&File>,
        executable: bool,
    ) -> Result<(u64, [u8; 32])> {
        let mut hasher = Sha256::new();
        let mut chunk = vec![0; CHUNK];
        let mut bytes = 0;
        loop {
            self.stop.check()?;
            let read = match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::invalid("", format!("cannot be read: {error}"))),
            };
            let part = chunk.get(..read).unwrap_or_default();
            bytes += read as u64;
            self.bytes += read as u64;
            if self.bytes > self.bounds.bytes {
                return Err(too_large(format!(
                    "brings the source over the limit of {} bytes",
                    self.bounds.bytes
                )));
            }
            hasher.update(part);
            if let Some(mut copy) = copy {
                copy.write_all(part).map_err(storing)?;
            }
        }
        if let Some(copy) = copy {
            let mode = if executable { EXECUTABLE_MODE } else { FILE_MODE };
            rustix::fs::fchmod(copy, mode).map_err(|errno| storing(errno.into()))?;
        }
        Ok((bytes, hasher.finalize().into()))
    }

    /// The problem with what `path` names, for the person who gave `field`.
    fn error(&self, field: &str, path: &[u8], problem: Problem) -> Error {
        let path = String::from_utf8_lossy(path);
        let shown = if path.is_empty() {
            "it".to_owned()
        } else {
            shown(&path)
        };
        let about = |text: &str| format!("{shown} {text}");
        match problem {
            Problem::System(errno) => Error::invalid(field, about(&format!("cannot be read: {errno}"))),
            Problem::TooMany => Error::new(
                ErrorKind::TooLarge,
                format!(
                    "{field}: there are more than {} files and folders; name a smaller folder, or raise the limit",
                    self.bounds.entries
                ),
            ),
            Problem::Other(error) => match error.kind() {
                ErrorKind::Invalid => {
                    let text = error
                        .fields()
                        .first()
                        .map_or_else(String::new, |problem| problem.problem.clone());
                    Error::invalid(field, about(&text))
                }
                ErrorKind::TooLarge => Error::new(
                    ErrorKind::TooLarge,
                    format!("{field}: {}", about(error.message())),
                ),
                _ => error,
            },
        }
    }
}

/// What is no source: caches that an interpreter would trust instead of it, and what tools and people hide.
fn is_left_out(name: &[u8]) -> bool {
    name.starts_with(b".") || name == b"__pycache__" || name.ends_with(b".pyc")
}
