//! Digests: what was seen, where it runs, and what was asked.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::text::shown;

macro_rules! digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name([u8; 32]);

        impl $name {
            /// The SHA-256 digest of `bytes`.
            pub fn of(bytes: &[u8]) -> Self {
                Self(Sha256::digest(bytes).into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("sha256:")?;
                self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                parse(text).map(Self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self, Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(digest: $name) -> Self {
                digest.to_string()
            }
        }
    };
}

digest!(
    /// Digest of everything a server says about one tool, in canonical JSON.
    DescriptorDigest
);
digest!(
    /// Digest of *where* a server runs: transport, URL or executable, arguments, environment keys, authentication type.
    Fingerprint
);
digest!(
    /// Digest of the arguments of one call, in canonical JSON.
    ArgumentDigest
);
digest!(
    /// Digest of the source of a code tool: every file by its name and content.
    SourceDigest
);
digest!(
    /// Digest of what a code tool runs on: interpreter, version, package roots.
    EnvironmentDigest
);
digest!(
    /// Digest of everything that decides what one version of a code tool does: definition, source, environment.
    ContentHash
);
digest!(
    /// Digest of an API token; the token itself is never stored.
    TokenHash
);

fn parse(text: &str) -> Result<[u8; 32], Error> {
    let problem = || {
        Error::invalid(
            "digest",
            format!("{} is not `sha256:` and 64 hexadecimal digits", shown(text)),
        )
    };
    let hex = text
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64 && hex.is_ascii())
        .ok_or_else(problem)?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| problem())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| problem())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_refuses_the_rest() {
        let digest = DescriptorDigest::of(b"abc");
        assert!(digest.to_string().starts_with("sha256:ba7816bf"));
        assert_eq!(digest.to_string().parse::<DescriptorDigest>().unwrap(), digest);
        assert!("sha256:+1".parse::<DescriptorDigest>().is_err());
        assert!("ba7816bf".parse::<DescriptorDigest>().is_err());
    }
}
