//! JSON that is passed on unchanged: checked once, then kept as the text that arrived.
//!
//! Typed models drop unknown fields and round numbers, so arguments, results and descriptors stay text here.
//! Checking means: valid JSON, within limits, and no object that names a key twice (two readers of such an
//! object may see two different things).

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::error::{Error, ErrorKind};
use crate::text::shown;

/// Bounds of one JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JsonLimits {
    /// Length in bytes.
    pub bytes: usize,
    /// Nesting of arrays and objects; at most [`JsonLimits::DEPTH_CEILING`].
    pub depth: usize,
}

impl JsonLimits {
    /// The deepest nesting that may be configured: what `serde_json` itself reads.
    pub const DEPTH_CEILING: usize = 127;

    /// Arguments of one call: 4 MiB, 64 levels.
    pub const ARGUMENTS: Self = Self {
        bytes: 4 << 20,
        depth: 64,
    };

    /// The result of one call: 16 MiB, 64 levels.
    pub const RESULT: Self = Self {
        bytes: 16 << 20,
        depth: 64,
    };

    /// Everything a server says about one tool: 256 KiB, 64 levels.
    pub const DESCRIPTOR: Self = Self {
        bytes: 256 << 10,
        depth: 64,
    };
}

/// One checked JSON text, cheap to clone.
#[derive(Clone)]
pub struct JsonText(Arc<RawValue>);

impl JsonText {
    /// Checks `text`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooLarge`] for a limit, [`ErrorKind::Invalid`] for what is no JSON or repeats a key.
    pub fn parse(text: impl Into<String>, limits: JsonLimits) -> Result<Self, Error> {
        let text = text.into();
        if text.len() > limits.bytes {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "the JSON text has {} bytes; the limit is {}",
                    text.len(),
                    limits.bytes
                ),
            ));
        }
        let raw = RawValue::from_string(text)
            .map_err(|error| Error::new(ErrorKind::Invalid, format!("this is not JSON: {error}")))?;
        check_structure(raw.get(), limits.depth.min(JsonLimits::DEPTH_CEILING))?;
        Ok(Self(raw.into()))
    }

    /// The text of a value of our own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Internal`] when `value` cannot be written as JSON.
    pub fn of(value: &impl Serialize) -> Result<Self, Error> {
        serde_json::value::to_raw_value(value)
            .map(|raw| Self(raw.into()))
            .map_err(|error| Error::internal("a value could not be written as JSON").with_source(error))
    }

    /// The empty object.
    pub fn empty_object() -> Self {
        Self::of(&serde_json::Map::new()).unwrap_or_else(|_| Self(RawValue::NULL.to_owned().into()))
    }

    /// The text, byte for byte as it arrived.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Whether the text is an object.
    pub fn is_object(&self) -> bool {
        self.as_str().starts_with('{')
    }

    /// The text as a typed value, for reading; pass the text itself on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when it has another shape.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_str(self.as_str())
            .map_err(|error| Error::new(ErrorKind::Invalid, format!("unexpected JSON: {error}")))
    }

    /// The member `key` of an object, as text.
    pub fn member(&self, key: &str) -> Option<JsonText> {
        let Parts::Object(members) = parts(self.as_str()).ok()? else {
            return None;
        };
        members
            .into_iter()
            .find(|(name, _)| name == key)
            .map(|(_, raw)| Self(raw.to_owned().into()))
    }

    /// The same value with sorted keys, no white space and one spelling of strings: what digests are made of.
    /// Numbers keep their digits, so values that a float would merge stay apart.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when a string holds half of a surrogate pair.
    pub fn canonical(&self) -> Result<String, Error> {
        let mut out = String::with_capacity(self.as_str().len());
        write_canonical(
            self.as_str(),
            &mut Canonical {
                out: &mut out,
                indent: None,
            },
        )?;
        Ok(out)
    }

    /// The canonical form with line breaks and indentation, for people to compare.
    ///
    /// # Errors
    ///
    /// As for [`canonical`](Self::canonical).
    pub fn canonical_lines(&self) -> Result<String, Error> {
        let mut out = String::with_capacity(2 * self.as_str().len());
        write_canonical(
            self.as_str(),
            &mut Canonical {
                out: &mut out,
                indent: Some(0),
            },
        )?;
        Ok(out)
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for JsonText {}

impl fmt::Debug for JsonText {
    /// The length only: arguments and results may hold what must not reach a log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "JsonText({} bytes)", self.as_str().len())
    }
}

impl Serialize for JsonText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    /// Checks the structure at the deepest limit; bound the bytes before.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        check_structure(raw.get(), JsonLimits::DEPTH_CEILING).map_err(serde::de::Error::custom)?;
        Ok(Self(raw.into()))
    }
}

/// Walks valid JSON once, without recursion, and refuses too deep nesting and repeated keys.
fn check_structure(text: &str, depth_limit: usize) -> Result<(), Error> {
    let bytes = text.as_bytes();
    // One entry for each open array (`None`) or object (its keys so far).
    let mut open: Vec<Option<HashSet<Cow<'_, str>>>> = Vec::new();
    let mut key_expected = false;
    let mut position = 0;
    while let Some(&byte) = bytes.get(position) {
        match byte {
            b'{' | b'[' => {
                if open.len() == depth_limit {
                    return Err(Error::new(
                        ErrorKind::TooLarge,
                        format!("the JSON text nests deeper than {depth_limit} levels"),
                    ));
                }
                open.push((byte == b'{').then(HashSet::new));
                key_expected = byte == b'{';
            }
            b'}' | b']' => {
                open.pop();
                key_expected = false;
            }
            b',' => key_expected = matches!(open.last(), Some(Some(_))),
            b'"' => {
                let end = string_end(bytes, position);
                if key_expected && let Some(Some(keys)) = open.last_mut() {
                    let key = read_key(text.get(position..=end).unwrap_or_default())?;
                    if let Some(repeated) = keys.replace(key) {
                        return Err(Error::new(
                            ErrorKind::Invalid,
                            format!("an object names the key {} twice", shown(&repeated)),
                        ));
                    }
                    key_expected = false;
                }
                position = end;
            }
            _ => {}
        }
        position += 1;
    }
    Ok(())
}

/// The position of the closing quote of the string that opens at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut position = start + 1;
    while let Some(&byte) = bytes.get(position) {
        match byte {
            b'\\' => position += 2,
            b'"' => return position,
            _ => position += 1,
        }
    }
    bytes.len().saturating_sub(1)
}

fn read_key(quoted: &str) -> Result<Cow<'_, str>, Error> {
    let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    if inner.contains('\\') {
        read_string(quoted).map(Cow::Owned)
    } else {
        Ok(Cow::Borrowed(inner))
    }
}

fn read_string(quoted: &str) -> Result<String, Error> {
    serde_json::from_str(quoted).map_err(|error| {
        Error::new(
            ErrorKind::Invalid,
            format!("a JSON string cannot be read: {error}"),
        )
    })
}

/// Where the canonical form goes; with an indentation it is broken into lines.
struct Canonical<'a> {
    out: &'a mut String,
    indent: Option<usize>,
}

impl Canonical<'_> {
    fn open(&mut self, bracket: char) {
        self.out.push(bracket);
        self.indent = self.indent.map(|indent| indent + 2);
    }

    fn next(&mut self, index: usize) {
        if index > 0 {
            self.out.push(',');
        }
        self.line();
    }

    fn close(&mut self, bracket: char, empty: bool) {
        self.indent = self.indent.map(|indent| indent.saturating_sub(2));
        if !empty {
            self.line();
        }
        self.out.push(bracket);
    }

    fn line(&mut self) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent));
        }
    }
}

fn write_canonical(text: &str, canonical: &mut Canonical<'_>) -> Result<(), Error> {
    match parts(text)? {
        Parts::Object(mut members) => {
            members.sort_by(|(left, _), (right, _)| left.cmp(right));
            canonical.open('{');
            for (index, (key, value)) in members.iter().enumerate() {
                canonical.next(index);
                write_string(key, canonical.out)?;
                canonical
                    .out
                    .push_str(if canonical.indent.is_some() { ": " } else { ":" });
                write_canonical(value.get(), canonical)?;
            }
            canonical.close('}', members.is_empty());
        }
        Parts::Array(items) => {
            canonical.open('[');
            for (index, item) in items.iter().enumerate() {
                canonical.next(index);
                write_canonical(item.get(), canonical)?;
            }
            canonical.close(']', items.is_empty());
        }
        Parts::Text(string) => write_string(&string, canonical.out)?,
        Parts::Other(token) => canonical.out.push_str(token),
    }
    Ok(())
}

fn write_string(string: &str, out: &mut String) -> Result<(), Error> {
    let quoted = serde_json::to_string(string)
        .map_err(|error| Error::internal("a string could not be written as JSON").with_source(error))?;
    out.push_str(&quoted);
    Ok(())
}

/// One level of a JSON text.
enum Parts<'a> {
    Object(Vec<(String, &'a RawValue)>),
    Array(Vec<&'a RawValue>),
    Text(String),
    Other(&'a str),
}

fn parts(text: &str) -> Result<Parts<'_>, Error> {
    let text = text.trim();
    let unexpected =
        |error: serde_json::Error| Error::new(ErrorKind::Invalid, format!("unexpected JSON: {error}"));
    Ok(match text.as_bytes().first() {
        Some(b'{') => Parts::Object(serde_json::from_str::<Members<'_>>(text).map_err(unexpected)?.0),
        Some(b'[') => Parts::Array(serde_json::from_str::<Items<'_>>(text).map_err(unexpected)?.0),
        Some(b'"') => Parts::Text(read_string(text)?),
        _ => Parts::Other(text),
    })
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

struct Items<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Items<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Items<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an array")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = sequence.next_element()? {
                    items.push(item);
                }
                Ok(Items(items))
            }
        }
        deserializer.deserialize_seq(Collect)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: JsonLimits = JsonLimits {
        bytes: 1 << 20,
        depth: 64,
    };

    fn parse(text: &str) -> Result<JsonText, Error> {
        JsonText::parse(text, LIMITS)
    }

    #[test]
    fn numbers_and_text_stay_as_they_were_written() {
        for text in [
            "9007199254740993",
            "1e400",
            "-0",
            "0.1000000000000000000000000000000000000001",
            "18446744073709551616",
        ] {
            let json = format!("{{\"n\":{text}}}");
            assert_eq!(parse(&json).unwrap().as_str(), json);
            assert_eq!(parse(&json).unwrap().canonical().unwrap(), json);
        }
    }

    #[test]
    fn repeated_keys_are_refused_at_every_level_and_in_every_spelling() {
        for text in [
            r#"{"a":1,"a":2}"#,
            r#"[{"b":{"a":1,"\u0061":2}}]"#,
            r#"{"x":[{"k":1},{"k":1,"k":1}]}"#,
        ] {
            assert_eq!(parse(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
        assert!(parse(r#"{"a":{"a":1},"b":[{"a":1},{"a":2}],"c":"a"}"#).is_ok());
    }

    #[test]
    fn depth_is_bounded_without_recursion() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(&nested(64)).is_ok());
        assert_eq!(parse(&nested(65)).unwrap_err().kind(), ErrorKind::TooLarge);
        let deep = JsonText::parse(
            nested(1_000_000),
            JsonLimits {
                bytes: 1 << 30,
                depth: 64,
            },
        );
        assert_eq!(deep.unwrap_err().kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn bytes_are_bounded() {
        let limits = JsonLimits { bytes: 4, depth: 4 };
        assert!(JsonText::parse("1234", limits).is_ok());
        assert_eq!(
            JsonText::parse("12345", limits).unwrap_err().kind(),
            ErrorKind::TooLarge
        );
    }

    #[test]
    fn the_canonical_form_ignores_order_white_space_and_escapes_only() {
        let canonical = |text: &str| parse(text).unwrap().canonical().unwrap();
        assert_eq!(
            canonical("{ \"b\" : 1, \"a\" : \"\\u00e9\" }"),
            "{\"a\":\"é\",\"b\":1}"
        );
        assert_ne!(canonical("[1,2]"), canonical("[2,1]"));
        assert_ne!(
            canonical("18446744073709551616"),
            canonical("18446744073709551617")
        );
    }

    #[test]
    fn half_a_surrogate_pair_has_no_canonical_form() {
        assert!(parse(r#"["\ud800"]"#).unwrap().canonical().is_err());
    }

    proptest! {
        #[test]
        fn canonical_is_stable_under_reserialization(value in arbitrary_json()) {
            let compact = parse(&value.to_string()).unwrap();
            let pretty = parse(&serde_json::to_string_pretty(&value).unwrap()).unwrap();
            prop_assert_eq!(compact.canonical().unwrap(), pretty.canonical().unwrap());
            let again = parse(&compact.canonical().unwrap()).unwrap();
            prop_assert_eq!(again.read::<serde_json::Value>().unwrap(), value);
        }
    }

    fn arbitrary_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(6, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
                prop::collection::hash_map(any::<String>(), inner, 0..8)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }
}
