//! Names of families.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::text::shown;

/// The longest name of a family, in characters; that of any tool (MCP 2025-11-25, tool names).
pub const FAMILY_NAME_LENGTH: usize = 128;

/// The name that all versions of a code tool share: 1 to 128 of `a-z A-Z 0-9 _ - .`.
///
/// A name that a [`ToolReference`](super::ToolReference) could not spell is refused: one that begins with `tool.` or
/// ends like `.v2`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FamilyName(Box<str>);

impl FamilyName {
    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text before a trailing `.v<digits>`, and the digits.
pub(super) fn split_major(text: &str) -> Option<(&str, &str)> {
    let (name, digits) = text.rsplit_once(".v")?;
    let numeric = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    numeric.then_some((name, digits))
}

impl FromStr for FamilyName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let valid = (1..=FAMILY_NAME_LENGTH).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
        if !valid {
            return Err(Error::invalid(
                "name",
                format!(
                    "{} is no name of a code tool; use 1 to {FAMILY_NAME_LENGTH} of a-z, A-Z, 0-9, _, - and .",
                    shown(text)
                ),
            ));
        }
        if text.starts_with("tool.") || split_major(text).is_some() {
            return Err(Error::invalid(
                "name",
                format!(
                    "{} looks like a reference; a name neither begins with `tool.` nor ends like `.v2`",
                    shown(text)
                ),
            ));
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for FamilyName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<FamilyName> for String {
    fn from(name: FamilyName) -> Self {
        name.0.into()
    }
}

impl fmt::Display for FamilyName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for FamilyName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reference_cannot_spell_is_no_name() {
        let long = "x".repeat(FAMILY_NAME_LENGTH + 1);
        for name in [
            "",
            "a b",
            "ä",
            "a/b",
            "a\n",
            "tool.a",
            "tool.",
            "a.v2",
            "a.v0",
            ".v1",
            "tool.a.v2",
            long.as_str(),
        ] {
            assert!(name.parse::<FamilyName>().is_err(), "{name:?}");
        }
        for name in [
            "a",
            "A_b-c.d",
            "tool",
            "toolbox.a",
            "a.v",
            "a.v2x",
            "v2",
            "a.V2",
            "a.v2.b",
            &long[1..],
        ] {
            assert_eq!(name.parse::<FamilyName>().unwrap().as_str(), name);
        }
    }
}
