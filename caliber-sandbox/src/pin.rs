//! Pinning: the source of a program is read once, copied into a private store and named by its digest. What runs later
//! is the copy.
//!
//! # The copy
//!
//! The store is a folder that lets nobody in but its owner. A copy is a folder in it, named by the 64 hexadecimal
//! digits of its digest, with a folder `root0`, `root1`, … for each source root, or with one file `executable`.
//! A copy appears under its name at once, by a rename, so that nobody ever sees half of one; processes may share a
//! store.
//!
//! # The digest of a source
//!
//! SHA-256 over the bytes `caliber source 1\0`, the number of roots, then for every file, sorted by root and path: the
//! number of its root, 1 if its owner may execute it and otherwise 0 (one byte), the length of its path and the path,
//! its length, and the SHA-256 of its content. Numbers of roots are four bytes, lengths eight, big-endian. Where the
//! roots lie is not part of it: the same source elsewhere has the same digest.
//!
//! Left out, of the digest and of the copy, are `__pycache__` and `*.pyc`, which an interpreter would trust in place of
//! the source, names that begin with a dot (the folders of version control and of virtual environments, files with
//! secrets), the store itself, what [`SnapshotStore::leaving_out`] names, and folders without files. A symbolic link or a special file is refused.
//!
//! The digest of an executable is over `caliber executable 1\0` and the SHA-256 of its content. The digest of an
//! environment is over `caliber environment 1\0`, the interpreter's name, and for each package root its path and a
//! digest over the names, kinds, sizes, times and link targets of everything in it.

use std::collections::HashMap;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use caliber_core::digest::{EnvironmentDigest, SourceDigest};
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{PinnedProgram, Program};
use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};
use lru::LruCache;
use rustix::fs::Mode;
use rustix::io::Errno;

mod copies;
mod digest;
mod executable;
mod listing;
mod module;
mod source;
mod stop;
mod tree;

pub use module::ModuleFile;
pub use stop::{Stop, StopGuard};

pub use crate::settings::PinLimits;
use crate::snapshot;
use copies::{Unfinished, close_folder, name_of, root_name, root_number};
use source::SourceReader;
use tree::{Bounds, storing};

/// The file of a copied executable.
const PROGRAM: &std::ffi::CStr = c"executable";

/// The copy of a program, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its folder.
    pub folder: PathBuf,
    /// The folders of the source roots, in their order; none for an executable.
    pub roots: Vec<PathBuf>,
    /// The file of the module, for a Python program.
    pub module: Option<ModuleFile>,
    /// The file of the executable, for a native program.
    pub executable: Option<PathBuf>,
}

/// Private copies of the sources of programs, by digest.
#[derive(Debug)]
pub struct SnapshotStore {
    path: PathBuf,
    limits: PinLimits,
    folder: OwnedFd,
    /// What no copy holds, links and `..` resolved; the store is the first.
    left_out: Vec<PathBuf>,
    /// Copies that this process has read whole and found right, with the identity of their folder.
    checked: Mutex<HashMap<SourceDigest, Identity>>,
    /// When each environment was last found to be the one that was registered.
    environments: Mutex<LruCache<EnvironmentDigest, Instant>>,
    counter: AtomicU64,
}

/// How long the packages and the interpreter of a program that were found unchanged are taken for unchanged. They are not
/// copied, so a change of theirs may run for that long; after it runs are refused.
pub const ENVIRONMENT_TRUSTED: Duration = Duration::from_secs(10);
/// The most environments that are remembered; what is forgotten is looked at again.
const ENVIRONMENTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1_023);

/// Which folder it is: device, inode and time of the last change.
type Identity = (u64, u64, i64, u64);

impl SnapshotStore {
    /// Opens the store, making its folder where it is missing, and removes what writers that died have left.
    ///
    /// # Errors
    ///
    /// `Invalid` for limits that cannot work and for a folder that is another user's or open to others; `Unavailable` when it cannot
    /// be made or opened.
    pub fn open(path: &Path, limits: PinLimits) -> Result<Self> {
        limits.check()?;
        if !path.is_absolute() {
            return Err(Error::invalid("snapshot_folder", "must be an absolute path"));
        }
        let shown_path = shown(&path.to_string_lossy());
        let unusable = |error: std::io::Error| {
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the folder {shown_path} for the copies of sources cannot be used: {error}; name another one in the setting snapshot_folder (sandbox.snapshots)"
                ),
            )
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(unusable)?;
        let folder = File::open(path).map(OwnedFd::from).map_err(unusable)?;
        let status = rustix::fs::fstat(&folder).map_err(|errno| unusable(errno.into()))?;
        if status.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Error::invalid(
                "snapshot_folder",
                format!("{shown_path} belongs to another user; name a folder of this process's own"),
            ));
        }
        // One that was there is not changed: it may be for something else.
        if Mode::from_raw_mode(status.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
            return Err(Error::invalid(
                "snapshot_folder",
                format!(
                    "{shown_path} is open to others; make its mode 0700, or name a folder that is not there yet"
                ),
            ));
        }
        let store = Self {
            path: path.to_owned(),
            limits,
            folder,
            left_out: vec![path.canonicalize().map_err(unusable)?],
            checked: Mutex::default(),
            environments: Mutex::new(LruCache::new(ENVIRONMENTS)),
            counter: AtomicU64::new(0),
        };
        store.sweep();
        Ok(store)
    }

    /// Leaves these files and folders out of every copy, where a source root holds them: the host's own, such as a
    /// database and its keys. They do not have to be there yet.
    pub fn leaving_out(mut self, paths: &[PathBuf]) -> Self {
        self.left_out.extend(paths.iter().map(|path| resolved(path)));
        self
    }

    /// Reads the source of `program`, keeps a copy of it, and names both it and what it runs on.
    ///
    /// `interpreter` names the interpreter with its version; it is not looked at for a native program. Blocks.
    ///
    /// # Errors
    ///
    /// `Invalid` for a program that cannot be one; `TooLarge` beyond the bounds; `Timeout` and `Cancelled` by `stop`;
    /// `Unavailable` when the copy cannot be kept.
    pub fn pin(&self, program: &Program, interpreter: &str, stop: &Stop) -> Result<PinnedProgram> {
        self.check_program(program)?;
        let environment = self.environment(program, interpreter, stop)?;
        let unfinished = self.begin()?;
        let source = self.read(program, Some(&unfinished), stop)?;
        self.finish(unfinished, source, stop)?;
        if let Program::Python { module_path, .. } = program {
            // A name for a folder that is not there runs nothing: the module has to be in what was copied.
            self.module(source, program)?.ok_or_else(|| {
                Error::invalid(
                    "module_path",
                    format!("{} is in none of the source roots", shown(module_path)),
                )
            })?;
        }
        Ok(PinnedProgram {
            program: program.clone(),
            source,
            environment,
        })
    }

    /// Sees to it that there is a right copy of a pinned program. It is read whole the first time; where it is gone or
    /// damaged, it is made anew from the source, if that is still the same. Blocks.
    ///
    /// # Errors
    ///
    /// `Unavailable` with [`SourceChanged`](ReasonCode::SourceChanged) when there is no copy and the source is another
    /// one now; else as [`SnapshotStore::pin`].
    pub fn ensure(&self, pinned: &PinnedProgram, stop: &Stop) -> Result<()> {
        self.check_program(&pinned.program)?;
        if !self.is_checked(pinned.source) && !self.check_copy(pinned.source, stop)? {
            self.restore(pinned, stop)?;
        }
        Ok(())
    }

    /// Whether [`ensure`](Self::ensure) would find the copy there and checked: one look at a folder.
    pub fn is_ready(&self, pinned: &PinnedProgram) -> bool {
        self.is_checked(pinned.source)
    }

    /// Whether [`check_environment`](Self::check_environment) looked a moment ago.
    pub fn is_environment_trusted(&self, pinned: &PinnedProgram) -> bool {
        let mut known = self.environments.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(&pinned.environment)
            .is_some_and(|seen| seen.elapsed() < ENVIRONMENT_TRUSTED)
    }

    /// Sees to it that a program would run on the packages and the interpreter that it was registered with. Blocks.
    ///
    /// # Errors
    ///
    /// `Unavailable` with [`SourceChanged`](ReasonCode::SourceChanged) when it would not; else as [`SnapshotStore::pin`].
    pub fn check_environment(&self, pinned: &PinnedProgram, interpreter: &str, stop: &Stop) -> Result<()> {
        if self.is_environment_trusted(pinned) {
            return Ok(());
        }
        if self.environment(&pinned.program, interpreter, stop)? != pinned.environment {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the packages or the interpreter are no longer those that the tool was registered with; register \
                 another version",
            )
            .with_reason(ReasonCode::SourceChanged));
        }
        let mut known = self.environments.lock().unwrap_or_else(PoisonError::into_inner);
        known.put(pinned.environment, Instant::now());
        Ok(())
    }

    /// The copy of a pinned program, after [`ensure`](Self::ensure). Blocks.
    ///
    /// # Errors
    ///
    /// As [`ensure`](Self::ensure).
    pub fn locate(&self, pinned: &PinnedProgram, stop: &Stop) -> Result<Snapshot> {
        self.ensure(pinned, stop)?;
        let folder = snapshot::folder(&self.path, &pinned.source);
        Ok(match &pinned.program {
            Program::Python { source_roots, .. } => Snapshot {
                roots: (0..source_roots.len())
                    .map(|root| snapshot::source_root(&self.path, &pinned.source, root))
                    .collect(),
                module: Some(self.module(pinned.source, &pinned.program)?.ok_or_else(|| {
                    Error::invalid("module_path", "the module is in none of the source roots")
                })?),
                executable: None,
                folder,
            },
            _ => Snapshot {
                roots: Vec::new(),
                module: None,
                executable: Some(snapshot::executable(&self.path, &pinned.source)),
                folder,
            },
        })
    }

    /// Removes every copy that `keep` does not name, for an operator who knows what is registered. A copy that something
    /// runs from must be named.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the folder cannot be read. What cannot be removed stays.
    pub fn retain(&self, keep: impl Fn(&SourceDigest) -> bool) -> Result<usize> {
        let mut removed = 0;
        for name in self.names()? {
            let Some(digest) = name.to_str().ok().and_then(digest::of_hex) else {
                continue;
            };
            if !keep(&digest) && self.discard(digest).is_ok() {
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn check_program(&self, program: &Program) -> Result<()> {
        let most = self.limits.roots;
        match program {
            Program::Python {
                module_path,
                source_roots,
                package_roots,
                ..
            } => {
                module::parts(module_path)?;
                if source_roots.is_empty() {
                    return Err(Error::invalid(
                        "source_roots",
                        "name the folder that holds the source",
                    ));
                }
                for (field, roots) in [("source_roots", source_roots), ("package_roots", package_roots)] {
                    if roots.len() > most {
                        let text = format!("there are {}; the limit is {most}", roots.len());
                        return Err(Error::invalid(field, text));
                    }
                }
                for (index, root) in source_roots.iter().enumerate() {
                    let root = resolved(root);
                    if self.left_out.iter().any(|own| root.starts_with(own)) {
                        return Err(Error::invalid(
                            format!("source_roots[{index}]"),
                            "the folder lies in the store of the copies; name the folder with the source",
                        ));
                    }
                }
                Ok(())
            }
            Program::Native { .. } => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                "this sandbox does not know the kind of program",
            )),
        }
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            entries: self.limits.source_entries,
            bytes: self.limits.source_bytes,
            depth: self.limits.depth,
        }
    }

    /// Reads the source where it lies, into a copy under way where there is one.
    fn read(&self, program: &Program, into: Option<&Unfinished<'_>>, stop: &Stop) -> Result<SourceDigest> {
        let mut reader = SourceReader::new(self.bounds(), stop, true);
        match program {
            Program::Python { source_roots, .. } => {
                for (index, root) in source_roots.iter().enumerate() {
                    let field = format!("source_roots[{index}]");
                    let from = tree::open_folder(root, &field)?;
                    let copy = into
                        .map(|into| tree::make_folder(into.folder.as_fd(), &root_name(index)))
                        .transpose()?;
                    let copy_at = copy.as_ref().map(AsFd::as_fd);
                    reader.left_out = self.left_out_of(root);
                    reader.read_root(&field, root_number(index), from.as_fd(), copy_at)?;
                    if let Some(copy) = copy {
                        close_folder(&copy)?;
                    }
                }
                Ok(digest::source(source_roots.len(), reader.files))
            }
            Program::Native { executable, .. } => {
                let (file, status) = tree::open_file(executable, "executable")?;
                if !Mode::from_raw_mode(status.st_mode).intersects(Mode::XUSR | Mode::XGRP | Mode::XOTH) {
                    let text = format!("{} is not executable", shown(&executable.to_string_lossy()));
                    return Err(Error::invalid("executable", text));
                }
                executable::check(&file, executable)?;
                let copy = into
                    .map(|into| tree::make_file(into.folder.as_fd(), PROGRAM))
                    .transpose()?;
                let digest = reader.read_executable("executable", File::from(file), copy.as_ref())?;
                Ok(digest::executable(digest))
            }
            _ => Err(Error::internal("the kind of program was checked before")),
        }
    }

    /// What is left out of a root, as paths in it.
    fn left_out_of(&self, root: &Path) -> Vec<Vec<u8>> {
        let root = resolved(root);
        let inside = self
            .left_out
            .iter()
            .filter_map(|path| path.strip_prefix(&root).ok());
        inside.map(|path| path.as_os_str().as_bytes().to_vec()).collect()
    }

    fn environment(&self, program: &Program, interpreter: &str, stop: &Stop) -> Result<EnvironmentDigest> {
        let Program::Python { package_roots, .. } = program else {
            return Ok(digest::environment("", []));
        };
        let bounds = Bounds {
            entries: self.limits.package_entries,
            ..self.bounds()
        };
        let mut listings = Vec::new();
        for (index, root) in package_roots.iter().enumerate() {
            let field = format!("package_roots[{index}]");
            let folder = tree::open_folder(root, &field)?;
            let listing = listing::digest(&field, folder.as_fd(), bounds, stop)?;
            listings.push((root.as_path(), listing));
        }
        Ok(digest::environment(interpreter, listings))
    }

    /// Makes a copy that is gone anew.
    fn restore(&self, pinned: &PinnedProgram, stop: &Stop) -> Result<()> {
        let changed = |why: &str| {
            Error::new(
                ErrorKind::Unavailable,
                format!("the copy of the source is gone, and {why}; register the tool again"),
            )
            .with_reason(ReasonCode::SourceChanged)
        };
        let unfinished = self.begin()?;
        let source = match self.read(&pinned.program, Some(&unfinished), stop) {
            Ok(source) => source,
            Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::TooLarge) => {
                return Err(changed("the source cannot be read as it was").with_source(error));
            }
            Err(error) => return Err(error),
        };
        if source != pinned.source {
            return Err(changed("the source is another one now"));
        }
        self.finish(unfinished, source, stop)
    }

    fn module(&self, source: SourceDigest, program: &Program) -> Result<Option<ModuleFile>> {
        let Program::Python {
            module_path,
            source_roots,
            ..
        } = program
        else {
            return Ok(None);
        };
        let gone = |errno: Errno| storing(errno.into());
        let folder = tree::open_own(self.folder.as_fd(), &name_of(source)).map_err(gone)?;
        let roots = (0..source_roots.len())
            .map(|index| tree::open_own(folder.as_fd(), &root_name(index)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(gone)?;
        module::find(&roots, module_path)
    }
}

/// A path without links and `..`, also of a file that is not there while its folder is; else as it was given.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(whole) = path.canonicalize() {
        return whole;
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return path.to_owned();
    };
    folder
        .canonicalize()
        .map_or_else(|_| path.to_owned(), |folder| folder.join(name))
}
