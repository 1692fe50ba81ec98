//! Reading folders by descriptors, within bounds, without ever following a link.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

/// How much is read of a file at once, in bytes.
const CHUNK: usize = 64 << 10;
/// How often an opening is repeated that raced with a rename.
const RETRIES: usize = 16;

/// When reading has to end, whatever is left of it.
#[derive(Clone, Debug)]
pub struct Stop {
    deadline: Deadline,
    given_up: Arc<AtomicBool>,
}

impl Stop {
    /// Ends at `deadline`.
    pub fn at(deadline: Deadline) -> Self {
        Self {
            deadline,
            given_up: Arc::default(),
        }
    }

    /// Ends also when the returned guard is dropped: for a caller that may go away.
    pub fn guard(&self) -> StopGuard {
        StopGuard(Arc::clone(&self.given_up))
    }

    fn check(&self) -> Result<()> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "the caller gave up"));
        }
        if self.deadline.remaining().is_zero() {
            return Err(
                Error::new(ErrorKind::Timeout, "the source was not read by the deadline")
                    .with_reason(ReasonCode::Timeout),
            );
        }
        Ok(())
    }
}

/// Ends a reading when it is dropped.
#[derive(Debug)]
pub struct StopGuard(Arc<AtomicBool>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What reading a program may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) entries: usize,
    pub(super) bytes: u64,
    pub(super) depth: usize,
}

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

/// Opens a folder that a person named: absolute, and without a symbolic link anywhere on the way.
pub(super) fn open_folder(path: &Path, field: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open_named(path, flags).map_err(|errno| named_error(path, field, "folder", errno))
}

/// Opens a regular file that a person named, likewise.
pub(super) fn open_file(path: &Path, field: &str) -> Result<(OwnedFd, Stat)> {
    let error = |errno| named_error(path, field, "file", errno);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Opening a device can do something: look before.
    let status = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(error)?;
    let kind = FileType::from_raw_mode(status.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Symlink) {
        return Err(Error::invalid(
            field,
            format!("{} is no regular file", shown(&path.to_string_lossy())),
        ));
    }
    let file = open_named(path, flags).map_err(error)?;
    let status = regular(&file).map_err(error)?;
    Ok((file, status))
}

fn open_named(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    if !path.is_absolute() {
        return Err(Errno::INVAL);
    }
    retried(|| {
        rustix::fs::openat2(
            rustix::fs::CWD,
            path,
            flags,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        )
    })
}

fn named_error(path: &Path, field: &str, what: &str, errno: Errno) -> Error {
    let shown = shown(&path.to_string_lossy());
    let problem = match errno {
        Errno::INVAL => format!("{shown} is no absolute path of a regular {what}"),
        Errno::LOOP => format!("{shown} leads over a symbolic link; give the path that it stands for"),
        Errno::NOENT => format!("there is no {what} {shown}"),
        Errno::NOTDIR => format!("{shown} is no {what}"),
        Errno::ACCESS | Errno::PERM => format!("{shown} may not be read by this process"),
        other => format!("{shown} cannot be opened: {other}"),
    };
    Error::invalid(field, problem)
}

/// `openat2` answers `EAGAIN` when a rename came between.
fn retried(mut open: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    let mut left = RETRIES;
    loop {
        match open() {
            Err(Errno::AGAIN | Errno::INTR) if left > 0 => left -= 1,
            other => return other,
        }
    }
}

/// Opens `name`, one component, in `folder`.
fn open_beneath(folder: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    retried(|| {
        rustix::fs::openat2(
            folder,
            name,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        )
    })
}

/// The status of what was opened, when it is a regular file.
fn regular(file: &OwnedFd) -> Result<Stat, Errno> {
    let status = rustix::fs::fstat(file)?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => Ok(status),
        _ => Err(Errno::INVAL),
    }
}

/// The names in a folder, sorted by their bytes.
fn names(folder: BorrowedFd<'_>, most: usize) -> Result<Vec<CString>, Problem> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if names.len() == most {
            return Err(Problem::TooMany);
        }
        names.push(name.to_owned());
    }
    names.sort();
    Ok(names)
}

/// Why an entry cannot be read.
enum Problem {
    System(Errno),
    TooMany,
    Other(Error),
}

impl From<Errno> for Problem {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Reads the files of a source and, where told to, copies them.
pub(super) struct SourceReader<'a> {
    pub(super) bounds: Bounds,
    pub(super) stop: &'a Stop,
    /// Whether what is no source (`__pycache__`, `*.pyc`, names that begin with a dot) is left out. A copy is read
    /// whole: it holds nothing that may be left out.
    pub(super) leaves_out: bool,
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

/// The modes of a copy: everybody may read it, because a tool runs as a user of its own; the folder that all copies
/// lie in lets nobody in but its owner.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o555);
const FILE_MODE: Mode = Mode::from_raw_mode(0o444);
const EXECUTABLE_MODE: Mode = Mode::from_raw_mode(0o555);

fn too_large(message: String) -> Error {
    Error::new(ErrorKind::TooLarge, message)
}

/// The copy cannot be written.
pub(super) fn storing(error: std::io::Error) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the copy of the source cannot be kept: {error}"),
    )
}

/// What is no source: caches that an interpreter would trust instead of it, and what tools and people hide.
fn is_left_out(name: &[u8]) -> bool {
    name.starts_with(b".") || name == b"__pycache__" || name.ends_with(b".pyc")
}

/// Makes an empty folder.
pub(super) fn make_folder(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    let made = rustix::fs::mkdirat(parent, name, Mode::RWXU)
        .and_then(|()| open_beneath(parent, name, OFlags::RDONLY | OFlags::DIRECTORY));
    made.map_err(|errno| storing(errno.into()))
}

/// Makes a file that was not there.
pub(super) fn make_file(parent: BorrowedFd<'_>, name: &CStr) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|errno| storing(errno.into()))
}

/// Opens a folder of ours.
pub(super) fn open_own(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    open_beneath(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens a file of ours.
pub(super) fn open_own_file(parent: BorrowedFd<'_>, name: &CStr) -> Result<File, Errno> {
    let file = open_beneath(parent, name, OFlags::RDONLY | OFlags::NONBLOCK)?;
    regular(&file)?;
    Ok(File::from(file))
}

/// The digest over the names, kinds, sizes and times of everything in a folder, which is not copied: installed
/// packages are too many to read at each registration.
pub(super) fn listing_digest(
    field: &str,
    folder: BorrowedFd<'_>,
    bounds: Bounds,
    stop: &Stop,
) -> Result<[u8; 32]> {
    let mut listing = Listing {
        hasher: Sha256::new(),
        left: bounds.entries,
        bounds,
        stop,
    };
    listing.add(folder, 0).map_err(|problem| match problem {
        Problem::System(errno) => Error::invalid(field, format!("the folder cannot be read whole: {errno}")),
        Problem::TooMany => too_large(format!(
            "{field}: there are more than {} files and folders",
            bounds.entries
        )),
        Problem::Other(error) => error,
    })?;
    Ok(listing.hasher.finalize().into())
}

struct Listing<'a> {
    hasher: Sha256,
    left: usize,
    bounds: Bounds,
    stop: &'a Stop,
}

impl Listing<'_> {
    fn add(&mut self, folder: BorrowedFd<'_>, depth: usize) -> Result<(), Problem> {
        if depth > self.bounds.depth {
            return Err(Problem::Other(too_large(format!(
                "the packages are nested deeper than {} folders",
                self.bounds.depth
            ))));
        }
        let found = names(folder, self.left)?;
        self.left -= found.len();
        self.hasher.update((found.len() as u64).to_be_bytes());
        for name in found {
            self.stop.check()?;
            let status = rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            self.text(name.to_bytes());
            self.hasher.update(status.st_mode.to_be_bytes());
            match FileType::from_raw_mode(status.st_mode) {
                FileType::Directory => {
                    let inner = open_beneath(folder, &name, OFlags::RDONLY | OFlags::DIRECTORY)?;
                    self.add(inner.as_fd(), depth + 1)?;
                }
                // A virtual environment has links; they are named, and never followed.
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(folder, &name, Vec::new())?;
                    self.text(target.to_bytes());
                }
                _ => {
                    self.hasher.update(status.st_size.to_be_bytes());
                    self.hasher.update(status.st_mtime.to_be_bytes());
                    self.hasher.update(status.st_mtime_nsec.to_be_bytes());
                }
            }
        }
        Ok(())
    }

    fn text(&mut self, bytes: &[u8]) {
        self.hasher.update((bytes.len() as u64).to_be_bytes());
        self.hasher.update(bytes);
    }
}

/// Removes a folder of ours with everything in it, at most `depth` deep. What is left is tried again another time.
pub(super) fn remove(parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), Errno> {
    let folder = match open_own(parent, name) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok(()),
        Err(_) => return rustix::fs::unlinkat(parent, name, AtFlags::empty()),
    };
    // A finished copy lets nothing be taken out of it.
    rustix::fs::fchmod(&folder, Mode::RWXU)?;
    let entries: Vec<CString> = Dir::read_from(&folder)?
        .filter_map(|entry| entry.ok().map(|entry| entry.file_name().to_owned()))
        .filter(|name| name.as_c_str() != c"." && name.as_c_str() != c"..")
        .collect();
    for entry in entries {
        let status = rustix::fs::statat(&folder, &entry, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
            if depth == 0 {
                return Err(Errno::NOTEMPTY);
            }
            remove(folder.as_fd(), &entry, depth - 1)?;
        } else {
            rustix::fs::unlinkat(&folder, &entry, AtFlags::empty())?;
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}
