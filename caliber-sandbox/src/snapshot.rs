//! Where the private copy of a pinned program lies: one folder per source digest, written once.

use std::path::{Path, PathBuf};

use caliber_core::digest::SourceDigest;

/// The folder of the copy: the digest in hexadecimal, without its prefix.
pub fn folder(snapshot_folder: &Path, source: &SourceDigest) -> PathBuf {
    let text = source.to_string();
    snapshot_folder.join(text.strip_prefix("sha256:").unwrap_or(&text))
}

/// The copy of the source root number `index` of a Python program, in the order of its declaration.
pub fn source_root(snapshot_folder: &Path, source: &SourceDigest, index: usize) -> PathBuf {
    folder(snapshot_folder, source).join(format!("root{index}"))
}

/// The copy of the executable of a native program.
pub fn executable(snapshot_folder: &Path, source: &SourceDigest) -> PathBuf {
    folder(snapshot_folder, source).join("executable")
}
