//! The operator's own tool descriptions.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use super::text::{one_line, shown};
use super::tools::TOOL_NAMES;
use crate::Error;

/// Bytes of a descriptions file.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// Characters of one description.
const MAX_DESCRIPTION_CHARS: usize = 4_096;

/// Reads a descriptions file: a JSON object from tool names to texts.
///
/// A file that cannot be used is an error every time, never a silent return to the built-in texts: a description that
/// an admin has seen must not change because a file broke.
pub(super) fn load(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| Error::configuration("the descriptions file cannot be read").because(error))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::configuration(format!(
            "the descriptions file is larger than {MAX_FILE_BYTES} bytes"
        )));
    }
    parse(&text)
}

fn parse(text: &str) -> Result<BTreeMap<String, String>, Error> {
    let descriptions: BTreeMap<String, String> = serde_json::from_str(text).map_err(|error| {
        Error::configuration(format!(
            "the descriptions file is not a JSON object from tool names to texts: {}",
            one_line(&error.to_string())
        ))
    })?;
    for (name, description) in &descriptions {
        if !TOOL_NAMES.contains(&name.as_str()) {
            return Err(Error::configuration(format!(
                "the descriptions file names the tool {}; the tools are {}",
                shown(name),
                TOOL_NAMES.join(", ")
            )));
        }
        let chars = description.chars().count();
        if chars == 0 || chars > MAX_DESCRIPTION_CHARS {
            return Err(Error::configuration(format!(
                "the description of {name} has {chars} characters; it must have 1 to {MAX_DESCRIPTION_CHARS}"
            )));
        }
    }
    Ok(descriptions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_tools_with_bounded_texts() {
        assert_eq!(parse(r#"{"run_query": "Ask."}"#).unwrap()["run_query"], "Ask.");
        assert!(parse("{}").unwrap().is_empty());
        for (text, problem) in [
            (r#"{"run_qery": "Ask."}"#, "run_qery"),
            (r#"{"run_query": ""}"#, "0 characters"),
            (r#"{"run_query": 1}"#, "not a JSON object"),
            ("[]", "not a JSON object"),
            ("", "not a JSON object"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
        let long = format!(r#"{{"run_query": "{}"}}"#, "x".repeat(MAX_DESCRIPTION_CHARS + 1));
        assert!(parse(&long).unwrap_err().to_string().contains("4097 characters"));
    }
}
