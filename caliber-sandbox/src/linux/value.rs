//! Whether what a tool returned is JSON that can be passed on unchanged.
//!
//! Readers of JSON do not agree on everything that can be written: numbers beyond 64 bits are rounded, of two equal keys
//! one disappears, half a surrogate pair is an error or another character. A value that two readers may read as two
//! values is refused.

use std::collections::HashSet;

use caliber_core::json::{JsonLimits, JsonText};

/// The deepest nesting of a result.
pub const DEPTH: usize = 64;

/// Checks the bytes of a result. The problem is one line, lower case, without anything of the value.
pub(crate) fn check(bytes: Vec<u8>) -> Result<JsonText, String> {
    let text = String::from_utf8(bytes).map_err(|_| "the result is no UTF-8 text".to_owned())?;
    scan(text.as_bytes())?;
    let limits = JsonLimits {
        bytes: text.len(),
        depth: DEPTH,
    };
    JsonText::parse(text, limits).map_err(|_| "the result is no JSON".to_owned())
}

fn scan(bytes: &[u8]) -> Result<(), String> {
    let mut scanner = Scanner {
        bytes,
        at: 0,
        open: Vec::new(),
    };
    while scanner.step()? {}
    Ok(())
}

/// Looks at tokens only: that they stand in an order that makes a value is the parser's to say.
struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    open: Vec<Container>,
}

enum Container {
    Array,
    Object {
        keys: HashSet<String>,
        expects_key: bool,
    },
}

impl Scanner<'_> {
    fn step(&mut self) -> Result<bool, String> {
        let Some(byte) = self.bytes.get(self.at).copied() else {
            return Ok(false);
        };
        match byte {
            b'[' => self.enter(Container::Array)?,
            b'{' => self.enter(Container::Object {
                keys: HashSet::new(),
                expects_key: true,
            })?,
            b']' | b'}' => {
                self.open.pop();
                self.at += 1;
            }
            b',' => {
                if let Some(Container::Object { expects_key, .. }) = self.open.last_mut() {
                    *expects_key = true;
                }
                self.at += 1;
            }
            b'"' => self.string()?,
            b'-' | b'0'..=b'9' => self.number()?,
            b'N' | b'I' => {
                return Err("the result holds a number that JSON does not have (NaN or infinity)".into());
            }
            _ => self.at += 1,
        }
        Ok(true)
    }

    fn enter(&mut self, container: Container) -> Result<(), String> {
        if self.open.len() == DEPTH {
            return Err(format!("the result is nested deeper than {DEPTH} levels (depth)"));
        }
        self.open.push(container);
        self.at += 1;
        Ok(())
    }

    /// The token from `self.at` on that `belongs` to it.
    fn token(&mut self, length: usize) -> &str {
        let token = self.bytes.get(self.at..self.at + length).unwrap_or_default();
        self.at += length;
        std::str::from_utf8(token).unwrap_or_default()
    }

    fn string(&mut self) -> Result<(), String> {
        let rest = self.bytes.get(self.at + 1..).unwrap_or_default();
        let mut escaped = false;
        let length = rest.iter().position(|byte| match byte {
            b'"' if !escaped => true,
            b'\\' => {
                escaped = !escaped;
                false
            }
            _ => {
                escaped = false;
                false
            }
        });
        let length = length.ok_or("the result is no JSON")? + 2;
        let token = self.token(length).to_owned();
        if token.contains("\\u") && serde_json::from_str::<String>(&token).is_err() {
            return Err("the result holds text that is no Unicode, half a surrogate pair (utf16)".into());
        }
        let Some(Container::Object { keys, expects_key }) = self.open.last_mut() else {
            return Ok(());
        };
        if !std::mem::take(expects_key) {
            return Ok(());
        }
        let key = if token.contains('\\') {
            serde_json::from_str::<String>(&token).map_err(|_| "the result is no JSON".to_owned())?
        } else {
            token
                .strip_prefix('"')
                .and_then(|token| token.strip_suffix('"'))
                .unwrap_or_default()
                .to_owned()
        };
        if keys.insert(key) {
            Ok(())
        } else {
            Err("the result holds an object that names a key twice (duplicate_key)".into())
        }
    }

    fn number(&mut self) -> Result<(), String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let belongs = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = rest.iter().take_while(|byte| belongs(byte)).count();
        let starts_infinity = rest.get(1) == Some(&b'I');
        let token = self.token(length);
        if starts_infinity {
            return Err("the result holds a number that JSON does not have (NaN or infinity)".into());
        }
        let is_float = token.contains(['.', 'e', 'E']);
        let fits = if is_float {
            token.parse::<f64>().is_ok_and(f64::is_finite)
        } else {
            token.parse::<i64>().is_ok() || token.parse::<u64>().is_ok()
        };
        if fits {
            Ok(())
        } else {
            Err("the result holds a number beyond 64 bits; return it as text".into())
        }
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
    fn the_scanner_ends_on_anything() {
        for bytes in [&b"\\"[..], b"\"\\", b"-", b"+", b"}}}]]", b",,,", b"\0"] {
            assert!(check(bytes.to_vec()).is_err());
        }
    }
}
