//! The file with the keys of stored secrets. It is never inside the database; the command makes it on first use.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use caliber::core::text::shown;
use caliber::store::KeyRing;

use super::failure::{Exit, Failure, Outcome};

/// The largest key file, in bytes: 64 keys with comments.
const FILE_BYTES: u64 = 64 << 10;

/// Reads the keys of `path`; makes the file with one new key, for its owner only, when there is none.
pub(crate) fn read_or_make(path: &Path) -> Outcome<KeyRing> {
    match read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => make(path)?,
        Err(error) => return Err(refused(path, &format!("cannot be read: {error}"))),
        Ok(text) => return KeyRing::parse(&text).map_err(Failure::from),
    }
    // Whoever made it first has won: what is read is what stands there.
    let text = read(path).map_err(|error| refused(path, &format!("cannot be read: {error}")))?;
    KeyRing::parse(&text).map_err(Failure::from)
}

fn read(path: &Path) -> std::io::Result<String> {
    let file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(std::io::Error::other(
            "others than its owner may use it; `chmod 600` it",
        ));
    }
    let mut text = String::new();
    file.take(FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES {
        return Err(std::io::Error::other(format!(
            "it is larger than {FILE_BYTES} bytes"
        )));
    }
    Ok(text)
}

/// A key that is half written would lock every secret away: the file appears whole or not at all.
fn make(path: &Path) -> Outcome {
    let failed = |error: std::io::Error| refused(path, &format!("cannot be made: {error}"));
    let line = KeyRing::generate_line()?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = Path::new(&name);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(new)
        .map_err(failed)?;
    let written = writeln!(
        file,
        "# The keys of stored secrets. Keep a copy apart from the database.\n{}",
        line.expose()
    )
    .and_then(|()| file.sync_all())
    // A link does not replace a file that another process has made in the meantime.
    .and_then(|()| std::fs::hard_link(new, path));
    let removed = std::fs::remove_file(new);
    match written {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        other => other.map_err(failed)?,
    }
    removed.map_err(failed)
}

fn refused(path: &Path, what: &str) -> Failure {
    Failure::new(
        Exit::Key,
        format!("the key file {} {what}", shown(&path.to_string_lossy())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once_and_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caliber.db.key");
        let made = read_or_make(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(read_or_make(&path).unwrap().current(), made.current());
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing is left over"
        );
    }

    #[test]
    fn a_file_that_is_there_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let first = read_or_make(&path).unwrap();
        make(&path).unwrap();
        assert_eq!(read_or_make(&path).unwrap().current(), first.current());
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_without_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        read_or_make(&path).unwrap();
        let key = std::fs::read_to_string(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let failure = read_or_make(&path).unwrap_err();
        assert_eq!(failure.exit, Exit::Key);
        assert!(
            failure.text().contains("chmod 600") && !failure.text().contains(key.lines().last().unwrap())
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "canary").unwrap();
        let failure = read_or_make(&path).unwrap_err();
        assert!(!failure.text().contains("canary"), "{}", failure.text());
    }
}
