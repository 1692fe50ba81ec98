//! Secrets: values that are written and never shown, and references to where they are kept.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};
use crate::id::SecretId;

/// The longest secret, in bytes.
pub const SECRET_LENGTH: usize = 64 << 10;

/// A secret in memory: wiped when dropped, absent from `Debug`, not serializable.
#[derive(Clone)]
pub struct SecretText(SecretString);

impl SecretText {
    /// Takes a value over.
    pub fn new(value: impl Into<String>) -> Self {
        Self(SecretString::from(value.into()))
    }

    /// The value. Every use is a place to look at in a review.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretText(…)")
    }
}

/// Where a secret is kept. The reference itself is not secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SecretReference {
    /// An encrypted row of the store: `secret://sec_…`.
    Stored(SecretId),
    /// A variable of the environment of the process that runs caliber: `env://NAME` or `${NAME}`.
    Environment(String),
    /// A file, read when it is needed, white space at the end removed: `file:///path`.
    File(String),
}

impl FromStr for SecretReference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let braced = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        if let Some(name) = text.strip_prefix("env://").or(braced) {
            let valid = !name.is_empty()
                && name.len() <= 256
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && !name.starts_with(|first: char| first.is_ascii_digit());
            if valid {
                return Ok(Self::Environment(name.to_owned()));
            }
        } else if let Some(path) = text.strip_prefix("file://") {
            if path.starts_with('/') && path.len() <= 4096 && !path.contains('\0') {
                return Ok(Self::File(path.to_owned()));
            }
        } else if let Some(id) = text.strip_prefix("secret://")
            && let Ok(id) = id.parse()
        {
            return Ok(Self::Stored(id));
        }
        // The text is not repeated: it may be a secret in the wrong place.
        Err(Error::invalid(
            "secret",
            "this is no reference; use env://NAME, ${NAME} or file:///absolute/path",
        ))
    }
}

impl fmt::Display for SecretReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored(id) => write!(formatter, "secret://{id}"),
            Self::Environment(name) => write!(formatter, "env://{name}"),
            Self::File(path) => write!(formatter, "file://{path}"),
        }
    }
}

impl Serialize for SecretReference {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SecretReference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A value of a server definition that may be secret: an environment value, a header, a password.
///
/// All of them are treated as secret. A definition that has been registered holds references only: literal
/// values were moved into the store, encrypted, by [`Change`](crate::registry::Change).
#[derive(Clone, Debug)]
pub enum ConfigValue {
    /// The value itself, on its way into the store or into a server that is only checked.
    Literal(SecretText),
    /// Where the value is kept.
    Reference(SecretReference),
    /// The value that is stored at the same place already: what [`WRITE_ONLY`] stands for. Only a change of a
    /// registered server can hold it.
    Unchanged,
}

/// What every surface shows in place of a stored secret. Sent back, it means: keep what is stored.
pub const WRITE_ONLY: &str = "__caliber_write_only__";

impl ConfigValue {
    /// Reads what a person wrote: a reference if it looks like one, otherwise the value itself.
    ///
    /// `secret://` is never read from outside: an encrypted value belongs to the server it was given to.
    pub fn from_input(text: &str) -> Self {
        if text == WRITE_ONLY {
            return Self::Unchanged;
        }
        match text.parse::<SecretReference>() {
            Ok(SecretReference::Stored(_)) | Err(_) => Self::Literal(SecretText::new(text)),
            Ok(reference) => Self::Reference(reference),
        }
    }

    /// The reference, when it is one.
    pub fn reference(&self) -> Option<&SecretReference> {
        match self {
            Self::Reference(reference) => Some(reference),
            Self::Literal(_) | Self::Unchanged => None,
        }
    }
}

impl Serialize for ConfigValue {
    /// Fails on a literal: a secret that is still in memory cannot be written anywhere by accident.
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Reference(reference) => reference.serialize(serializer),
            Self::Unchanged => serializer.serialize_str(WRITE_ONLY),
            Self::Literal(_) => Err(serde::ser::Error::custom("a literal secret cannot be serialized")),
        }
    }
}

impl<'de> Deserialize<'de> for ConfigValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == WRITE_ONLY {
            return Ok(Self::Unchanged);
        }
        text.parse()
            .map(Self::Reference)
            .map_err(serde::de::Error::custom)
    }
}

/// Resolves references when a session is opened.
#[async_trait]
pub trait SecretSource: Send + Sync + fmt::Debug {
    /// The value behind `reference`.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is none (never an empty value instead), `Forbidden` when this source may not
    /// read it, `Unsupported` for a kind it does not know, `Unavailable` when it is away.
    async fn resolve(&self, reference: &SecretReference) -> Result<SecretText>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_round_trip() {
        let stored = SecretReference::Stored(SecretId::new());
        for text in [
            "env://TOKEN",
            "file:///run/secrets/token",
            stored.to_string().as_str(),
        ] {
            assert_eq!(text.parse::<SecretReference>().unwrap().to_string(), text);
        }
        assert_eq!(
            "${TOKEN}".parse::<SecretReference>().unwrap().to_string(),
            "env://TOKEN"
        );
    }

    #[test]
    fn a_secret_shows_nowhere() {
        let value = ConfigValue::from_input("canary-1");
        assert!(!format!("{value:?}").contains("canary"));
        assert!(serde_json::to_string(&value).is_err());
        let error = "canary-1".parse::<SecretReference>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"));
    }

    #[test]
    fn a_stored_reference_cannot_be_written_from_outside() {
        let text = SecretReference::Stored(SecretId::new()).to_string();
        assert!(matches!(ConfigValue::from_input(&text), ConfigValue::Literal(_)));
    }
}
