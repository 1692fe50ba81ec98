//! Values that a person gives on the command line: written out, or read from a file or standard input.

use std::io::Read;

use caliber::core::text::shown;
use serde_json::{Map, Value};

use super::failure::{Failure, Outcome};

/// The largest secret that is read, in bytes.
const VALUE_BYTES: usize = caliber::core::secret::SECRET_LENGTH;

/// `NAME=VALUE` pairs; a value may be `@FILE`.
pub(crate) fn keyed(flag: &str, pairs: &[String]) -> Outcome<Map<String, Value>> {
    let mut values = Map::new();
    for pair in pairs {
        // The pair is not repeated: without its `=` it may be a secret alone.
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("{flag} takes NAME=VALUE, and one of them has no `=`")))?;
        let value = read_value(flag, value)?;
        if values.insert(name.to_owned(), value.into()).is_some() {
            return Err(Failure::usage(format!("{flag} names {} twice", shown(name))));
        }
    }
    Ok(values)
}

/// A value: `@FILE` and `@-` are read, and `@@` stands for a `@` at the beginning.
pub(crate) fn read_value(flag: &str, value: &str) -> Outcome<String> {
    match value.strip_prefix('@') {
        None => Ok(value.to_owned()),
        Some(literal) if literal.starts_with('@') => Ok(literal.to_owned()),
        Some(path) => Ok(read_text(flag, path, VALUE_BYTES)?.trim_end().to_owned()),
    }
}

/// The whole text of a file, or of standard input for `-`, up to `limit` bytes.
pub(crate) fn read_text(what: &str, path: &str, limit: usize) -> Outcome<String> {
    let failed = |problem: String| Failure::usage(format!("{what}: {} {problem}", shown(path)));
    let mut text = String::new();
    let bounded = limit as u64 + 1;
    let read = if path == "-" {
        std::io::stdin().lock().take(bounded).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(bounded).read_to_string(&mut text))
    };
    read.map_err(|error| failed(format!("cannot be read: {error}")))?;
    if text.len() > limit {
        return Err(failed(format!("is larger than {limit} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_out_or_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "canary\n").unwrap();
        let pairs = [
            format!("A=@{}", path.display()),
            "B=@@b=c".to_owned(),
            "C=env://X".to_owned(),
            "D=".to_owned(),
        ];
        let read = keyed("--env", &pairs).unwrap();
        assert_eq!(
            Value::Object(read),
            serde_json::json!({ "A": "canary", "B": "@b=c", "C": "env://X", "D": "" })
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused_without_being_repeated() {
        let secret = keyed("--env", &["canary".to_owned()]).unwrap_err();
        assert!(!secret.text().contains("canary"), "{}", secret.text());
        assert!(keyed("--env", &["A=1".to_owned(), "A=2".to_owned()]).is_err());
        assert!(read_value("--token", "@/nonexistent/file").is_err());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        std::fs::write(&path, "x".repeat(VALUE_BYTES + 1)).unwrap();
        assert!(read_value("--token", &format!("@{}", path.display())).is_err());
    }
}
