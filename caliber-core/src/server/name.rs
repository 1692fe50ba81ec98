//! Names of servers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::text::shown;

/// The longest server name, in characters: with `__` and a tool name it must be worth showing to a model.
pub const SERVER_NAME_LENGTH: usize = 48;
/// The name that code tools stand under in an aggregated list.
pub const RESERVED_SERVER_NAME: &str = "code";

/// The name of a server, unique in an installation: 1 to 48 of `A-Z a-z 0-9 -`, beginning with a letter or digit.
///
/// It holds no underscore, so that `<server>__<tool>` can be taken apart again.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerName(Box<str>);

impl ServerName {
    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ServerName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let valid = (1..=SERVER_NAME_LENGTH).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !text.starts_with('-');
        if !valid {
            return Err(Error::invalid(
                "name",
                format!(
                    "{} is no server name; use 1 to {SERVER_NAME_LENGTH} of A-Z, a-z, 0-9 and -",
                    shown(text)
                ),
            ));
        }
        if text == RESERVED_SERVER_NAME {
            return Err(Error::invalid(
                "name",
                "`code` is reserved for code tools; choose another name",
            ));
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for ServerName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ServerName> for String {
    fn from(name: ServerName) -> Self {
        name.0.into()
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for ServerName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_leave_room_for_the_separator() {
        for name in ["", "a_b", "code", "-a", "a.b", "ä"] {
            assert!(name.parse::<ServerName>().is_err(), "{name}");
        }
        assert!("git-hub2".parse::<ServerName>().is_ok());
    }
}
