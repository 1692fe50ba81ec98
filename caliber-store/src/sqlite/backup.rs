//! A backup while the store works: a copy of one moment, checked before it gets its name.
//!
//! `VACUUM INTO` writes it: the copy is one read transaction, which no write disturbs (the backup interface of
//! SQLite begins again whenever somebody else writes), and it comes out without free pages.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use diesel::RunQueryDsl;
use diesel::sql_types::Text;

use super::file::{DatabaseFile, problem};
use super::open::{check, connect};
use crate::error::{Error, ErrorKind, Result};

/// Copies the database into a new file at `target`. Blocks.
pub(crate) fn backup(file: &DatabaseFile, target: &Path, busy: Duration) -> Result<()> {
    if fs::symlink_metadata(target).is_ok() {
        return Err(problem(
            ErrorKind::Path,
            target,
            "exists already; a backup never replaces a file",
        ));
    }
    let partial = Partial::create(target)?;
    let Some(text) = partial.path.to_str() else {
        return Err(problem(
            ErrorKind::Path,
            target,
            "is no UTF-8 text, which SQLite needs",
        ));
    };
    let mut source = connect(file, busy)?;
    diesel::sql_query("VACUUM INTO ?")
        .bind::<Text, _>(text)
        .execute(&mut source)
        .map_err(|error| about(target, error.into()))?;
    let copy = DatabaseFile::find(&partial.path, false)?;
    check(&mut connect(&copy, busy)?, &copy)?;
    partial.keep(target)
}

fn about(target: &Path, error: Error) -> Error {
    error.with_context("target", caliber_core::text::shown(&target.to_string_lossy()))
}

/// A backup that is not whole yet. It goes away with its owner.
struct Partial {
    path: PathBuf,
    kept: bool,
}

impl Partial {
    /// An empty file beside the target, readable by its owner only.
    fn create(target: &Path) -> Result<Self> {
        let mut name = target
            .file_name()
            .map(ToOwned::to_owned)
            .ok_or_else(|| problem(ErrorKind::Path, target, "names no file"))?;
        name.push(format!(".{}.partial", uuid::Uuid::new_v4().simple()));
        let path = std::path::absolute(target.with_file_name(name))
            .map_err(|error| problem(ErrorKind::Path, target, "names no file").with_source(error))?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            options.mode(0o600);
        }
        options.open(&path).map_err(|error| {
            problem(
                ErrorKind::Path,
                target,
                "cannot be made; check that its directory exists and can be written",
            )
            .with_source(error)
        })?;
        Ok(Self { path, kept: false })
    }

    /// Brings it to the disk and gives it its name.
    fn keep(mut self, target: &Path) -> Result<()> {
        let failed = |error: std::io::Error| {
            problem(ErrorKind::Io, target, "could not be brought to the disk").with_source(error)
        };
        File::open(&self.path)
            .and_then(|file| file.sync_all())
            .map_err(failed)?;
        // A link instead of a renaming: it does not replace what has come to the name meanwhile.
        fs::hard_link(&self.path, target).map_err(failed)?;
        fs::remove_file(&self.path).map_err(failed)?;
        self.kept = true;
        let directory = target
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        #[cfg(unix)]
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed)?;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.kept {
            // Nothing more can be done about it; the name says what it is.
            let _ = fs::remove_file(&self.path);
        }
    }
}
