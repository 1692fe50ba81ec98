//! Files and folders by descriptors, without ever following a link.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// How often an opening is repeated that raced with a rename.
const RETRIES: usize = 16;

/// What reading a program may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) entries: usize,
    pub(super) bytes: u64,
    pub(super) depth: usize,
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
pub(super) fn open_beneath(folder: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
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
pub(super) fn regular(file: &OwnedFd) -> Result<Stat, Errno> {
    let status = rustix::fs::fstat(file)?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => Ok(status),
        _ => Err(Errno::INVAL),
    }
}

/// The names in a folder, sorted by their bytes.
pub(super) fn names(folder: BorrowedFd<'_>, most: usize) -> Result<Vec<CString>, Problem> {
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
pub(super) enum Problem {
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

pub(super) fn too_large(message: String) -> Error {
    Error::new(ErrorKind::TooLarge, message)
}

/// The copy cannot be written.
pub(super) fn storing(error: std::io::Error) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the copy of the source cannot be kept: {error}"),
    )
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
