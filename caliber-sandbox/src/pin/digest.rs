//! The digests of sources and environments; the module above says what goes in.

use std::path::Path;

use caliber_core::digest::{EnvironmentDigest, SourceDigest};

use super::source::SourceFile;

pub(super) fn hex(source: SourceDigest) -> String {
    source.to_string().trim_start_matches("sha256:").to_owned()
}

pub(super) fn of_hex(name: &str) -> Option<SourceDigest> {
    format!("sha256:{name}").parse().ok()
}

pub(super) fn source(roots: usize, mut files: Vec<SourceFile>) -> SourceDigest {
    files.sort();
    let mut bytes = b"caliber source 1\0".to_vec();
    bytes.extend_from_slice(&(u32::try_from(roots).unwrap_or(u32::MAX)).to_be_bytes());
    for file in files {
        bytes.extend_from_slice(&file.root.to_be_bytes());
        bytes.push(u8::from(file.executable));
        push_text(&mut bytes, &file.path);
        bytes.extend_from_slice(&file.bytes.to_be_bytes());
        bytes.extend_from_slice(&file.digest);
    }
    SourceDigest::of(&bytes)
}

pub(super) fn executable(content: [u8; 32]) -> SourceDigest {
    let mut bytes = b"caliber executable 1\0".to_vec();
    bytes.extend_from_slice(&content);
    SourceDigest::of(&bytes)
}

fn push_text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend_from_slice(&(text.len() as u64).to_be_bytes());
    bytes.extend_from_slice(text);
}

/// `packages` are the roots with the digests of their listings.
pub(super) fn environment<'a>(
    interpreter: &str,
    packages: impl IntoIterator<Item = (&'a Path, [u8; 32])>,
) -> EnvironmentDigest {
    let mut bytes = b"caliber environment 1\0".to_vec();
    push_text(&mut bytes, interpreter.as_bytes());
    for (root, listing) in packages {
        push_text(&mut bytes, root.as_os_str().as_encoded_bytes());
        bytes.extend_from_slice(&listing);
    }
    EnvironmentDigest::of(&bytes)
}
