//! What a server says about one tool, and nothing of it believed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::DescriptorDigest;
use crate::error::{Error, ErrorKind};
use crate::json::{JsonLimits, JsonText};
use crate::text::shown;

/// The longest name of a tool, in characters (MCP 2025-11-25, tool names).
pub const TOOL_NAME_LENGTH: usize = 128;

/// The name of a tool: 1 to 128 of `A-Z a-z 0-9 _ - .`, so that two names never look alike.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolName(Box<str>);

impl ToolName {
    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ToolName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let valid = (1..=TOOL_NAME_LENGTH).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
        if valid {
            Ok(Self(text.into()))
        } else {
            Err(Error::invalid(
                "tool",
                format!(
                    "{} is not a tool name; it takes 1 to {TOOL_NAME_LENGTH} of A-Z, a-z, 0-9, _, - and .",
                    shown(text)
                ),
            ))
        }
    }
}

impl TryFrom<String> for ToolName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<ToolName> for String {
    fn from(name: ToolName) -> Self {
        name.0.into()
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for ToolName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

/// Everything a server advertised about one tool, as it arrived, with the parts that we read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    name: ToolName,
    text: JsonText,
    digest: DescriptorDigest,
    title: Option<String>,
    description: Option<String>,
    input_schema: JsonText,
    output_schema: Option<JsonText>,
}

impl Descriptor {
    /// Reads one item of `tools/list`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooLarge`] over [`JsonLimits::DESCRIPTOR`]; [`ErrorKind::Invalid`] for a bad name, an input
    /// schema that is no object, or text that has no canonical form.
    pub fn parse(text: impl Into<String>) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Read {
            name: String,
            #[serde(default)]
            title: Option<String>,
            #[serde(default)]
            description: Option<String>,
            #[serde(rename = "inputSchema")]
            input_schema: JsonText,
            #[serde(rename = "outputSchema", default)]
            output_schema: Option<JsonText>,
        }
        let text = JsonText::parse(text, JsonLimits::DESCRIPTOR)?;
        let digest = DescriptorDigest::of(text.canonical()?.as_bytes());
        let read: Read = text.read()?;
        let schemas = [Some(&read.input_schema), read.output_schema.as_ref()];
        if schemas.into_iter().flatten().any(|schema| !schema.is_object()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a schema of the tool is not a JSON object",
            ));
        }
        Ok(Self {
            name: read.name.parse()?,
            digest,
            title: read.title,
            description: read.description,
            input_schema: read.input_schema,
            output_schema: read.output_schema,
            text,
        })
    }

    /// The name under which the server takes calls.
    pub fn name(&self) -> &ToolName {
        &self.name
    }

    /// The whole item, byte for byte.
    pub fn text(&self) -> &JsonText {
        &self.text
    }

    /// The digest of the whole item: name, title, description, schemas, annotations, icons, `_meta` and the rest.
    pub fn digest(&self) -> DescriptorDigest {
        self.digest
    }

    /// The title for people, if any; untrusted.
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// The description, if any; untrusted.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The schema of the arguments.
    pub fn input_schema(&self) -> &JsonText {
        &self.input_schema
    }

    /// The schema of structured results, if any.
    pub fn output_schema(&self) -> Option<&JsonText> {
        self.output_schema.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: &str =
        r#"{"name":"echo","description":"d","inputSchema":{"type":"object"},"_meta":{"a":[1]}}"#;

    #[test]
    fn every_field_counts_and_order_does_not() {
        let digest = |text: &str| Descriptor::parse(text).unwrap().digest();
        let reordered =
            r#"{ "_meta":{"a":[1]}, "inputSchema":{"type":"object"}, "description":"d", "name":"echo" }"#;
        assert_eq!(digest(TOOL), digest(reordered));
        for (from, to) in [
            ("\"d\"", "\"e\""),
            ("[1]", "[2]"),
            ("\"object\"}", "\"object\",\"x\":1}"),
            ("echo", "Echo"),
        ] {
            assert_ne!(digest(TOOL), digest(&TOOL.replace(from, to)), "{from} -> {to}");
        }
    }

    #[test]
    fn names_that_could_deceive_are_refused() {
        let long = "x".repeat(129);
        for name in [
            "",
            "еcho",
            "ｅcho",
            "a\u{200b}",
            "a b",
            "a\u{202e}",
            "\u{1b}[2J",
            "a\u{0}",
            long.as_str(),
        ] {
            assert!(name.parse::<ToolName>().is_err(), "{name:?}");
        }
        assert!("x".repeat(128).parse::<ToolName>().is_ok());
    }

    #[test]
    fn schemas_must_be_objects() {
        assert!(Descriptor::parse(r#"{"name":"a","inputSchema":true}"#).is_err());
        assert!(Descriptor::parse(r#"{"name":"a"}"#).is_err());
    }
}
