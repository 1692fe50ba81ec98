//! How a manifest names a code tool.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::name::split_major;
use super::{FamilyName, ToolVersion};
use crate::error::{Error, Result};
use crate::text::shown;

/// A family as a manifest names it: `tool.NAME.vMAJOR`, or the bare name. The major counts: `tool.weather.v1` never
/// stands for version 2.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolReference {
    /// The family.
    pub family: FamilyName,
    /// The first number of the version, where the reference says it.
    pub major: Option<u64>,
}

impl ToolReference {
    /// Whether it can stand for `version`.
    pub fn accepts(&self, version: &ToolVersion) -> bool {
        self.major.is_none_or(|major| major == version.major())
    }
}

impl FromStr for ToolReference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let problem = || {
            Error::invalid(
                "registry_ref",
                format!(
                    "{} is no reference to a code tool; write tool.NAME.v1 or the name",
                    shown(text)
                ),
            )
        };
        let rest = text.strip_prefix("tool.").unwrap_or(text);
        let (name, major) = match split_major(rest) {
            None => (rest, None),
            Some((_, digits)) if digits.len() > 1 && digits.starts_with('0') => return Err(problem()),
            Some((name, digits)) => (name, Some(digits.parse().map_err(|_| problem())?)),
        };
        let family = name.parse().map_err(|_| problem())?;
        Ok(Self { family, major })
    }
}

impl From<FamilyName> for ToolReference {
    fn from(family: FamilyName) -> Self {
        Self { family, major: None }
    }
}

impl TryFrom<String> for ToolReference {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ToolReference> for String {
    fn from(reference: ToolReference) -> Self {
        reference.to_string()
    }
}

impl fmt::Display for ToolReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.major {
            Some(major) => write!(formatter, "tool.{}.v{major}", self.family),
            None => fmt::Display::fmt(&self.family, formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> (String, Option<u64>) {
        let reference: ToolReference = text.parse().unwrap();
        (reference.family.to_string(), reference.major)
    }

    #[test]
    fn the_prefix_and_the_major_are_taken_off() {
        for (text, family, major) in [
            ("tool.weather.v2", "weather", Some(2)),
            ("weather", "weather", None),
            ("tool.weather", "weather", None),
            ("weather.v10", "weather", Some(10)),
            ("tool.a.b.v0", "a.b", Some(0)),
            ("tool", "tool", None),
        ] {
            assert_eq!(read(text), (family.to_owned(), major), "{text}");
        }
        for text in [
            "",
            "tool.",
            ".v1",
            "tool..v1",
            "a b",
            "a.v1.v2",
            "tool.tool.a",
            "a.v01",
            "a.v99999999999999999999",
        ] {
            assert!(text.parse::<ToolReference>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_family_can_be_referred_to(name in "[a-zA-Z0-9_.-]{1,20}", major in proptest::option::of(any::<u64>())) {
            let Ok(family) = name.parse::<FamilyName>() else { return Ok(()) };
            let reference = ToolReference { family, major };
            prop_assert_eq!(reference.to_string().parse::<ToolReference>().unwrap(), reference);
        }
    }
}
