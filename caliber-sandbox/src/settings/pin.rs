//! The bounds of pinning.

use caliber_core::{Error, FieldProblem, Result};

/// Bounds of the sources that are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinLimits {
    /// Files and folders of one source; default 20,000.
    pub source_entries: usize,
    /// Bytes of one source, or of one executable; default 512 MiB.
    pub source_bytes: u64,
    /// Nesting of folders, in sources and packages; default 32, at most 128.
    pub depth: usize,
    /// Source roots of one program, and package roots likewise; default 16.
    pub roots: usize,
    /// Files and folders of all package roots of one program; default 500,000.
    pub package_entries: usize,
    /// Copies in the store; default 10,000. None is ever removed by itself; `SnapshotStore::retain` does.
    pub copies: usize,
}

impl Default for PinLimits {
    fn default() -> Self {
        Self {
            source_entries: 20_000,
            source_bytes: 512 << 20,
            depth: 32,
            roots: 16,
            package_entries: 500_000,
            copies: 10_000,
        }
    }
}

impl PinLimits {
    /// The deepest nesting that may be configured: one descriptor is open for each level.
    pub const DEPTH_CEILING: usize = 128;

    /// Refuses settings that cannot work.
    ///
    /// # Errors
    ///
    /// `Invalid` with every wrong field.
    pub fn check(&self) -> Result<()> {
        let problem = |field: &str, problem: String| FieldProblem {
            field: format!("pin.{field}"),
            problem,
        };
        let mut problems = Vec::new();
        if self.depth == 0 || self.depth > Self::DEPTH_CEILING {
            let text = format!("must be from 1 to {}", Self::DEPTH_CEILING);
            problems.push(problem("depth", text));
        }
        for (field, value) in [
            ("source_entries", self.source_entries as u64),
            ("source_bytes", self.source_bytes),
            ("roots", self.roots as u64),
            ("package_entries", self.package_entries as u64),
            ("copies", self.copies as u64),
        ] {
            if value == 0 {
                problems.push(problem(field, "must be above zero".to_owned()));
            }
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Error::invalid_fields(problems)),
        }
    }
}
