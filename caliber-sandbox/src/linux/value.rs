//! Whether what a tool returned is JSON that can be passed on unchanged.
//!
//! Readers of JSON do not agree on everything that can be written: numbers beyond 64 bits are rounded, of two equal keys
//! one disappears, half a surrogate pair is an error or another character. A value that two readers may read as two
//! values is refused.

use caliber_core::json::{JsonLimits, JsonText};
use serde::de::IgnoredAny;

/// The deepest nesting of a result.
pub const DEPTH: usize = 64;

/// The most values and keys of a result, all levels together. What reads a result makes something of each, so a bound on
/// bytes alone would be none on memory: every two bytes of `[[],[],[]]` are a value.
pub const NODES: usize = 1_000_000;

/// Checks the bytes of a result. The problem is one line, lower case, without anything of the value.
///
/// Takes as long as the result is large: milliseconds for each megabyte.
pub(crate) fn check(bytes: Vec<u8>) -> Result<JsonText, String> {
    let text = String::from_utf8(bytes).map_err(|_| "the result is no UTF-8 text".to_owned())?;
    scan(text.as_bytes())?;
    let limits = JsonLimits {
        bytes: text.len(),
        depth: DEPTH,
    };
    // Copied, because what is wrong is asked of the text once more; the copy is what is kept.
    JsonText::parse(text.as_str(), limits).map_err(|_| {
        if serde_json::from_str::<IgnoredAny>(&text).is_ok() {
            "the result holds an object that names a key twice (duplicate_key)".to_owned()
        } else {
            "the result is no JSON".to_owned()
        }
    })
}

/// What [`JsonText`] lets pass. Looks at tokens only: that they stand in an order that makes a value is the parser's to say.
fn scan(bytes: &[u8]) -> Result<(), String> {
    let (mut at, mut depth, mut nodes) = (0, 0_usize, 0);
    while let Some(byte) = bytes.get(at).copied() {
        let rest = bytes.get(at..).unwrap_or_default();
        let length = match byte {
            b'[' | b'{' => {
                depth += 1;
                1
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                1
            }
            b'"' => string(rest)?,
            b'-' | b'0'..=b'9' => number(rest)?,
            b'N' | b'I' => return Err(NO_NUMBER.into()),
            _ => 1,
        };
        if depth > DEPTH {
            return Err(format!("the result is nested deeper than {DEPTH} levels (depth)"));
        }
        // `t`, `f` and `n` begin the words of JSON.
        nodes += usize::from(matches!(
            byte,
            b'[' | b'{' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'
        ));
        if nodes > NODES {
            return Err(format!(
                "the result has more than {NODES} values and keys (nodes)"
            ));
        }
        at += length;
    }
    Ok(())
}

const NO_NUMBER: &str = "the result holds a number that JSON does not have (NaN or infinity)";

/// The first `length` bytes as text.
fn token(bytes: &[u8], length: usize) -> &str {
    std::str::from_utf8(bytes.get(..length).unwrap_or_default()).unwrap_or_default()
}

/// How long the string is that `rest` begins with.
fn string(rest: &[u8]) -> Result<usize, String> {
    let mut is_escaped = false;
    let ends = |byte: &u8| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    };
    let inner = rest
        .iter()
        .skip(1)
        .position(ends)
        .ok_or("the result is no JSON")?;
    let length = inner + 2;
    let token = token(rest, length);
    if token.contains("\\u") && serde_json::from_str::<String>(token).is_err() {
        return Err("the result holds text that is no Unicode, half a surrogate pair (utf16)".into());
    }
    Ok(length)
}

/// How long the number is that `rest` begins with.
fn number(rest: &[u8]) -> Result<usize, String> {
    if rest.get(1) == Some(&b'I') {
        return Err(NO_NUMBER.into());
    }
    let belongs = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let length = rest.iter().take_while(belongs).count();
    let token = token(rest, length);
    let fits = if token.contains(['.', 'e', 'E']) {
        token.parse::<f64>().is_ok_and(f64::is_finite)
    } else {
        token.parse::<i64>().is_ok() || token.parse::<u64>().is_ok()
    };
    if fits {
        Ok(length)
    } else {
        Err("the result holds a number beyond 64 bits; return it as text".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        check(text.as_bytes().to_vec()).unwrap_err()
    }

    #[test]
    fn ordinary_values_pass_byte_for_byte() {
        for text in [
            "null",
            "-9223372036854775808",
            "18446744073709551615",
            "1e-400",
            "-0.0",
            r#"{"a": [1, 2.5, "\ud83d\ude00", "\\u", "x\"y"], "b": {"a": 1}}"#,
            r#"{"a,b":"{","c":["}"]}"#,
            "\"ü\"",
        ] {
            assert_eq!(check(text.as_bytes().to_vec()).unwrap().as_str(), text);
        }
        let deepest = format!("{}{}", "[".repeat(DEPTH), "]".repeat(DEPTH));
        assert!(check(deepest.into_bytes()).is_ok());
    }

    #[test]
    fn what_two_readers_may_read_differently_is_refused() {
        for (text, word) in [
            ("NaN", "NaN"),
            ("[Infinity]", "infinity"),
            ("-Infinity", "infinity"),
            ("18446744073709551616", "64 bits"),
            ("-9223372036854775809", "64 bits"),
            ("1e400", "64 bits"),
            (r#"{"1": 1, "1": 2}"#, "duplicate_key"),
            (r#"{"a": 1, "\u0061": 2}"#, "duplicate_key"),
            (r#""\ud800""#, "utf16"),
            (r#"{"\udc00": 1}"#, "utf16"),
            ("", "no JSON"),
            ("[1,]", "no JSON"),
            ("1 2", "no JSON"),
            ("\"open", "no JSON"),
            ("{\"a\"}", "no JSON"),
        ] {
            assert!(problem(text).contains(word), "{text}: {}", problem(text));
        }
        assert!(check(vec![b'"', 0xff, b'"']).unwrap_err().contains("UTF-8"));
        assert!(problem(&"[".repeat(DEPTH + 1)).contains("depth"));
        assert!(problem(&"[".repeat(1_000_000)).contains("depth"));
    }

    #[test]
    fn values_and_keys_are_counted() {
        for (item, of_item) in [("[],", 1), ("1,", 1), ("true,", 1), (r#"{"a":null},"#, 3)] {
            let fits = NODES / of_item - 1;
            let text = |count: usize| format!("[{}0]", item.repeat(count));
            let most = text(fits - 1);
            assert!(check(most.into_bytes()).is_ok(), "{item}");
            assert!(problem(&text(fits + 1)).contains("nodes"), "{item}");
        }
    }

    #[test]
    fn the_scanner_ends_on_anything() {
        for bytes in [&b"\\"[..], b"\"\\", b"-", b"+", b"}}}]]", b",,,", b"\0"] {
            assert!(check(bytes.to_vec()).is_err());
        }
    }
}
