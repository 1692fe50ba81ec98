//! Typed identifiers: a prefix that says what it names, then 128 bits that sort by time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::text::shown;

/// Length of the part after the prefix, in characters: 128 bits in hexadecimal.
const HEX_LENGTH: usize = 32;

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// The letters before the underscore.
            pub const PREFIX: &str = $prefix;

            /// A new identifier; later ones sort after earlier ones.
            #[allow(clippy::new_without_default, reason = "each call gives another value")]
            pub fn new() -> Self {
                Self(format!("{}_{}", $prefix, uuid::Uuid::now_v7().simple()).into())
            }

            /// The text form.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let valid = text
                    .strip_prefix(concat!($prefix, "_"))
                    .is_some_and(|rest| {
                        rest.len() == HEX_LENGTH
                            && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
                    });
                if valid { Ok(Self(text.into())) } else { Err(Error::not_found($what, text)) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self, Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }
    };
}

identifier!(
    /// A registered server.
    ServerId, "srv", "server"
);
identifier!(
    /// One call, in the invocation ledger.
    InvocationId, "inv", "invocation"
);
identifier!(
    /// One entry of the audit trail.
    AuditId, "aud", "audit entry"
);
identifier!(
    /// One person's consent to one call.
    ApprovalId, "apr", "approval"
);
identifier!(
    /// A project's record that somebody may invoke a server's tools.
    GrantId, "gra", "grant"
);
identifier!(
    /// An API token; not the token itself.
    TokenId, "tok", "token"
);
identifier!(
    /// An encrypted secret in the store.
    SecretId, "sec", "secret"
);
identifier!(
    /// A running instance of caliber: the owner of its leases.
    InstanceId, "ins", "instance"
);
identifier!(
    /// One registered version of a code tool.
    CodeToolId, "ctl", "code tool"
);
identifier!(
    /// A durable calibration job.
    JobId, "job", "job"
);

/// The longest name of a project, in characters.
pub const PROJECT_LENGTH: usize = 64;

/// A project: the scope of visibility, scopes and grants. A lower-case slug that people choose.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProjectId(Box<str>);

impl ProjectId {
    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for ProjectId {
    /// The project `default`, which every installation has.
    fn default() -> Self {
        Self("default".into())
    }
}

impl FromStr for ProjectId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let valid = (1..=PROJECT_LENGTH).contains(&text.len())
            && text
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
            && !text.starts_with('-');
        if valid {
            Ok(Self(text.into()))
        } else {
            Err(Error::invalid(
                "project",
                format!(
                    "{} is not a project; use 1 to {PROJECT_LENGTH} of a-z, 0-9 and -",
                    shown(text)
                ),
            ))
        }
    }
}

impl TryFrom<String> for ProjectId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<ProjectId> for String {
    fn from(id: ProjectId) -> Self {
        id.0.into()
    }
}

impl fmt::Display for ProjectId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for ProjectId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_sort_by_time_and_round_trip() {
        let first = ServerId::new();
        let second = ServerId::new();
        assert!(first < second);
        assert_eq!(first.as_str().parse::<ServerId>().unwrap(), first);
    }

    #[test]
    fn foreign_text_is_no_identifier() {
        let shout = ServerId::new().to_string().to_uppercase();
        for text in [
            "",
            "srv_",
            "srv_1",
            "inv_0123456789abcdef0123456789abcdef",
            shout.as_str(),
        ] {
            assert!(text.parse::<ServerId>().is_err(), "{text}");
        }
    }
}
