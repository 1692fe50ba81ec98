//! Patterns of environment names.

use std::fmt;
use std::str::FromStr;

use caliber_core::server::is_environment_key;
use caliber_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::problem;

/// An environment name, or the beginning of one: `API_KEY`, `API_*`, `*`. The case of letters counts.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern {
    /// The name, or what it has to begin with.
    stem: Box<str>,
    open: bool,
}

impl NamePattern {
    /// Whether `name` is meant.
    pub fn matches(&self, name: &str) -> bool {
        if self.open {
            name.starts_with(&*self.stem)
        } else {
            *name == *self.stem
        }
    }
}

impl FromStr for NamePattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (stem, open) = match text.strip_suffix('*') {
            Some(stem) => (stem, true),
            None => (text, false),
        };
        if is_environment_key(stem) || (open && stem.is_empty()) {
            Ok(Self {
                stem: stem.into(),
                open,
            })
        } else {
            Err(problem(
                "environment",
                text,
                "is no pattern of environment names; write a name, or the beginning of one and `*`",
            ))
        }
    }
}

impl TryFrom<String> for NamePattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<NamePattern> for String {
    fn from(pattern: NamePattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.stem)?;
        formatter.write_str(if self.open { "*" } else { "" })
    }
}

impl fmt::Debug for NamePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "NamePattern({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_what_it_says() {
        for (pattern, name, meant) in [
            ("API_KEY", "API_KEY", true),
            ("API_KEY", "API_KEY2", false),
            ("API_KEY", "api_key", false),
            ("API_*", "API_KEY", true),
            ("API_*", "API_", true),
            ("API_*", "MY_API_KEY", false),
            ("*", "ANYTHING", true),
        ] {
            let parsed: NamePattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(name), meant, "{pattern} {name}");
            assert_eq!(parsed.to_string(), pattern);
        }
        for wrong in ["", " API", "API KEY", "A*B", "**", "1A", "A=B", "ä*"] {
            assert!(wrong.parse::<NamePattern>().is_err(), "{wrong}");
        }
    }
}
