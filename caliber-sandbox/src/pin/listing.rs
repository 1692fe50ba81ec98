//! The digest of folders that are shown and not copied.

use std::os::fd::{AsFd, BorrowedFd};

use caliber_core::{Error, Result};
use rustix::fs::{AtFlags, FileType, OFlags};
use sha2::{Digest as _, Sha256};

use super::stop::Stop;
use super::tree::{Bounds, Problem, names, open_beneath, too_large};

/// The digest over the names, kinds, sizes and times of everything in a folder, which is not copied: installed
/// packages are too many to read at each registration.
pub(super) fn digest(field: &str, folder: BorrowedFd<'_>, bounds: Bounds, stop: &Stop) -> Result<[u8; 32]> {
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
