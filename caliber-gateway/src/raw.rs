//! JSON-RPC messages as text: the envelope is read, what it carries stays as it arrived.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// One message from an upstream.
#[derive(Debug)]
pub(crate) enum Incoming<'a> {
    /// The answer to a request of ours; no id when the upstream could not read it, or made one up.
    Answer {
        id: Option<u64>,
        outcome: Result<&'a str, RpcError>,
    },
    /// A request of the upstream, with its id as it wrote it.
    Request { id: &'a str, method: Cow<'a, str> },
    /// A notification.
    Notification { method: Cow<'a, str> },
}

/// The `error` of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: String,
    /// As JSON text, when there is any.
    pub(crate) data: Option<String>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ErrorObject<'a> {
    code: i64,
    #[serde(borrow)]
    message: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

/// Reads one message. Keys are exact, and a repeated one makes the message none.
///
/// # Errors
///
/// A short text about what is wrong, without anything of the message.
pub(crate) fn parse(text: &str) -> Result<Incoming<'_>, &'static str> {
    let envelope: Envelope<'_> = serde_json::from_str(text).map_err(|_| "this is no JSON-RPC message")?;
    if envelope.jsonrpc != "2.0" {
        return Err("the message is not of JSON-RPC 2.0");
    }
    match (envelope.method, envelope.id, envelope.result, envelope.error) {
        (Some(method), Some(id), None, None) if is_id(id.get()) => {
            Ok(Incoming::Request { id: id.get(), method })
        }
        (Some(method), None, None, None) => Ok(Incoming::Notification { method }),
        (None, id, Some(result), None) => Ok(Incoming::Answer {
            id: id.and_then(|id| own_id(id.get())),
            outcome: Ok(result.get()),
        }),
        (None, id, None, Some(error)) => {
            let error: ErrorObject<'_> =
                serde_json::from_str(error.get()).map_err(|_| "the error of the answer is malformed")?;
            Ok(Incoming::Answer {
                id: id.and_then(|id| own_id(id.get())),
                outcome: Err(RpcError {
                    code: error.code,
                    message: error.message.into_owned(),
                    data: error.data.map(|data| data.get().to_owned()),
                }),
            })
        }
        _ => Err("the message is neither request, notification nor answer"),
    }
}

/// The id of an answer that [`parse`] refuses, as far as it is one: whoever waits for it need not wait longer. A line
/// of a log that happens to be JSON is none.
pub(crate) fn broken_answer_id(text: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Loose<'a> {
        #[serde(default)]
        jsonrpc: Option<IgnoredAny>,
        #[serde(borrow, default)]
        id: Option<&'a RawValue>,
        #[serde(default)]
        method: Option<IgnoredAny>,
        #[serde(default)]
        result: Option<IgnoredAny>,
        #[serde(default)]
        error: Option<IgnoredAny>,
    }
    match serde_json::from_str::<Loose<'_>>(text) {
        Ok(loose) => {
            let of_rpc = loose.jsonrpc.is_some() || loose.result.is_some() || loose.error.is_some();
            let id = loose.id.filter(|_| of_rpc && loose.method.is_none())?;
            own_id(id.get())
        }
        // Cut off, or not JSON further on.
        Err(_) if text.contains("\"jsonrpc\"") && !text.contains("\"method\"") => {
            id_in_prefix(text.as_bytes())
        }
        Err(_) => None,
    }
}

/// The id of an answer, when it can be one of ours. A string that repeats our number is taken for the number:
/// some servers write every id as a string.
pub(crate) fn own_id(text: &str) -> Option<u64> {
    text.trim_matches('"').parse().ok()
}

/// Whether `text` can be the id of a request: a string or an integer.
fn is_id(text: &str) -> bool {
    text.starts_with('"') || text.parse::<i64>().is_ok()
}

/// A request. `params` is the text of an object.
pub(crate) fn request(id: u64, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// A notification. `params` is the text of an object.
pub(crate) fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

/// That we have lost interest in the answer to request `id`.
pub(crate) fn cancelled(id: u64) -> String {
    notification(
        "notifications/cancelled",
        &format!(r#"{{"requestId":{id},"reason":"the caller gave up"}}"#),
    )
}

/// The answer to a request of an upstream; we offer it nothing but a sign of life.
pub(crate) fn answer(id: &str, method: &str) -> String {
    if method == "ping" {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
    } else {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"this client offers no such method"}}}}"#
        )
    }
}

/// `text` as one line. A line break can stand between the tokens of a JSON text only, where a space means the same.
pub(crate) fn single_line(text: String) -> String {
    if text.bytes().any(|byte| byte == b'\n' || byte == b'\r') {
        text.replace(['\n', '\r'], " ")
    } else {
        text
    }
}

/// The id of an answer of which only the beginning was kept, if it stands there at the top level.
pub(crate) fn id_in_prefix(prefix: &[u8]) -> Option<u64> {
    let mut depth = 0_usize;
    let mut bytes = prefix.iter().enumerate();
    while let Some((position, byte)) = bytes.next() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let rest = prefix.get(position + 1..)?;
                if depth == 1
                    && let Some(value) = rest.strip_prefix(b"id\"")
                    && let Some(value) = value.trim_ascii_start().strip_prefix(b":")
                {
                    let value = value.trim_ascii_start();
                    let end = value
                        .iter()
                        .position(|byte| matches!(byte, b',' | b'}' | b' ' | b'\t'))?;
                    return own_id(std::str::from_utf8(value.get(..end)?).ok()?);
                }
                // To the end of the string.
                loop {
                    match bytes.next()?.1 {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart_and_stay_text() {
        let text = r#"{"jsonrpc":"2.0","id":7,"result":{"n":9007199254740993, "x":1e400}}"#;
        let Ok(Incoming::Answer {
            id: Some(7),
            outcome: Ok(result),
        }) = parse(text)
        else {
            panic!("{:?}", parse(text));
        };
        assert_eq!(result, r#"{"n":9007199254740993, "x":1e400}"#);
        let text = r#"{"jsonrpc":"2.0","id":"7","error":{"code":-1,"message":"m","data":[1]}}"#;
        let Ok(Incoming::Answer {
            id: Some(7),
            outcome: Err(error),
        }) = parse(text)
        else {
            panic!("{:?}", parse(text));
        };
        assert_eq!((error.code, error.data.as_deref()), (-1, Some("[1]")));
    }

    #[test]
    fn what_is_no_message_is_none() {
        for text in [
            "",
            "[]",
            "banner",
            r#"{"id":1,"result":{}}"#,
            r#"{"jsonrpc":2.0,"id":1,"result":{}}"#,
            r#"{"jsonrpc":"1.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            r#"[{"jsonrpc":"2.0","id":1,"result":{}}]"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ids_that_are_not_ours_are_none() {
        for id in [
            "null",
            "[1]",
            "{}",
            "1.5",
            "-1",
            "\"a\"",
            "99999999999999999999999",
        ] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
            let parsed = parse(&text);
            assert!(matches!(parsed, Ok(Incoming::Answer { id: None, .. })), "{id}");
        }
    }

    #[test]
    fn a_broken_answer_is_told_from_noise() {
        for (text, id) in [
            (r#"{"jsonrpc":"1.0","id":7,"result":{}}"#, Some(7)),
            (r#"{"id":"7","result":{}}"#, Some(7)),
            (r#"{"jsonrpc":"2.0","id":7}"#, Some(7)),
            (r#"{"jsonrpc":"2.0","id":7,"result":{"a":"#, Some(7)),
            (r#"{"jsonrpc":"2.0","id":7,"result":{},"result":{}}"#, Some(7)),
            (r#"{"jsonrpc":"2.0","id":7,"method":"x","result":{}}"#, None),
            (r#"{"jsonrpc":"2.0","id":7.5,"result":{}}"#, None),
            (r#"{"level":"info","id":7}"#, None),
            (r#"[{"jsonrpc":"2.0","id":7,"result":{}}]"#, None),
            ("banner", None),
        ] {
            assert_eq!(broken_answer_id(text), id, "{text}");
        }
    }

    #[test]
    fn an_argument_cannot_split_a_line() {
        let text = request(1, "tools/call", "{\n \"a\": \"\\n\"\r\n}");
        let line = single_line(text);
        assert!(!line.contains('\n') && !line.contains('\r'));
        assert!(line.ends_with(r#"{  "a": "\n"  }}"#), "{line}");
    }

    #[test]
    fn the_id_is_found_in_the_beginning_of_a_long_line() {
        let found = |text: &str| id_in_prefix(text.as_bytes());
        assert_eq!(
            found(r#"{"jsonrpc":"2.0","id":12,"result":{"content":"#),
            Some(12)
        );
        assert_eq!(found(r#"{"jsonrpc": "2.0", "id" : "12" , "result"#), Some(12));
        assert_eq!(found(r#"{"result":{"id":3,"text":"\"id\":4"#), None);
        assert_eq!(found("aaaa"), None);
    }
}
