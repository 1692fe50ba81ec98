//! Versions of code tools: SemVer, in one total order.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::text::shown;

/// The longest version, in characters.
pub const VERSION_LENGTH: usize = 64;

/// The version of a code tool, by Semantic Versioning 2.0.0. `1` and `1.0` are read as `1.0.0`.
///
/// Two versions are equal when they have the same precedence: build metadata is kept and shown, and never decides.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolVersion(semver::Version);

impl ToolVersion {
    /// The first number.
    pub fn major(&self) -> u64 {
        self.0.major
    }

    /// Whether it is a pre-release, such as `1.0.0-rc.1`.
    pub fn is_pre_release(&self) -> bool {
        !self.0.pre.is_empty()
    }

    /// A text that sorts, byte by byte, as the version does, and is the same for versions of the same precedence: a
    /// key for stores.
    ///
    /// ```
    /// use caliber_core::code_tool::ToolVersion;
    ///
    /// # fn main() -> caliber_core::Result<()> {
    /// let key = |text: &str| text.parse::<ToolVersion>().map(|version| version.sort_key());
    /// assert!(key("1.9.0")? < key("1.10.0-rc.1")? && key("1.10.0-rc.1")? < key("1.10.0")?);
    /// assert_eq!(key("1.0.0+linux")?, key("1")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn sort_key(&self) -> String {
        let semver::Version {
            major, minor, patch, ..
        } = self.0;
        // 20 digits hold every u64.
        let mut key = format!("{major:020}.{minor:020}.{patch:020}");
        if !self.is_pre_release() {
            // After every pre-release: `~` is above what follows in the other case.
            key.push('~');
            return key;
        }
        for identifier in self.0.pre.split('.') {
            if identifier.bytes().all(|byte| byte.is_ascii_digit()) {
                // Numbers come before words, a longer one after a shorter one.
                key.push_str(&format!("0{:02}", identifier.len()));
            } else {
                key.push('1');
            }
            key.push_str(identifier);
            // Below every character of an identifier, so that `alpha` comes before `alpha-1`.
            key.push('!');
        }
        key
    }

    pub(super) fn semver(&self) -> &semver::Version {
        &self.0
    }
}

impl FromStr for ToolVersion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let problem = || {
            Error::invalid(
                "version",
                format!(
                    "{} is no version; write three numbers, as in 1.4.0 or 2.0.0-rc.1, at most {VERSION_LENGTH} characters",
                    shown(text)
                ),
            )
        };
        if text.len() > VERSION_LENGTH {
            return Err(problem());
        }
        let numbers = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let missing = match text.bytes().filter(|byte| *byte == b'.').count() {
            0 if numbers => ".0.0",
            1 if numbers => ".0",
            _ => "",
        };
        semver::Version::parse(&format!("{text}{missing}"))
            .map(Self)
            .map_err(|_| problem())
    }
}

impl Ord for ToolVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp_precedence(&other.0)
    }
}

impl PartialOrd for ToolVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ToolVersion {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ToolVersion {}

impl Hash for ToolVersion {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.major, self.0.minor, self.0.patch, &self.0.pre).hash(state);
    }
}

impl TryFrom<String> for ToolVersion {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ToolVersion> for String {
    fn from(version: ToolVersion) -> Self {
        version.0.to_string()
    }
}

impl fmt::Display for ToolVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl fmt::Debug for ToolVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(text: &str) -> ToolVersion {
        text.parse().unwrap()
    }

    #[test]
    fn short_versions_are_filled_up_and_the_rest_is_semver() {
        for (text, read) in [
            ("1", "1.0.0"),
            ("1.0", "1.0.0"),
            ("0", "0.0.0"),
            ("1.2.3-rc.1+b", "1.2.3-rc.1+b"),
        ] {
            assert_eq!(version(text).to_string(), read);
        }
        let long = format!("1.0.0-{}", "a".repeat(VERSION_LENGTH));
        for text in [
            "",
            ".",
            "1.",
            ".1",
            "v1",
            "1.0-rc",
            "01",
            "1.0.0.0",
            "1.0.0-01",
            "banana",
            "2024-01-01",
            "1.0.²",
            "1.0.0-",
            " 1",
            "1 ",
            "18446744073709551616",
            long.as_str(),
        ] {
            assert!(text.parse::<ToolVersion>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_order_is_that_of_the_specification() {
        // Semantic Versioning 2.0.0, §11.
        let rising = [
            "0.9.0",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.9.0",
            "1.10.0",
            "9.0.0",
            "10.0.0",
        ];
        for pair in rising.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
            assert!(
                version(pair[0]).sort_key() < version(pair[1]).sort_key(),
                "{pair:?}"
            );
        }
        assert_eq!(version("1.0.0+a"), version("1.0.0+b"));
        assert_eq!(version("1.0.0+a").to_string(), "1.0.0+a");
    }

    /// Versions that are often alike, and sometimes as large as they get.
    fn versions() -> impl Strategy<Value = ToolVersion> {
        let number = || prop_oneof![4 => 0..3_u64, 1 => Just(u64::MAX), 1 => any::<u64>()];
        let identifier = prop_oneof![
            (0..3_u64).prop_map(|number| number.to_string()),
            Just("18446744073709551616".to_owned()),
            "[a-b-]{1,3}",
            "[0-9]{1,2}[a-z-]",
        ];
        let pre = proptest::collection::vec(identifier, 0..3);
        (number(), number(), number(), pre, "[ab]?").prop_filter_map(
            "too long",
            |(major, minor, patch, pre, build)| {
                let mut text = format!("{major}.{minor}.{patch}");
                if !pre.is_empty() {
                    text.push_str(&format!("-{}", pre.join(".")));
                }
                if !build.is_empty() {
                    text.push_str(&format!("+{build}"));
                }
                text.parse().ok()
            },
        )
    }

    fn hash(version: &ToolVersion) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        version.hash(&mut hasher);
        hasher.finish()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_order_is_total_and_the_keys_agree_with_it(one in versions(), two in versions(), three in versions()) {
            prop_assert_eq!(one.cmp(&two), two.cmp(&one).reverse());
            prop_assert_eq!(one == two, one.cmp(&two) == Ordering::Equal);
            prop_assert!(one != two || hash(&one) == hash(&two));
            if one <= two && two <= three {
                prop_assert!(one <= three);
            }
            prop_assert_eq!(one.cmp(&two), one.sort_key().cmp(&two.sort_key()));
            prop_assert_eq!(version(&one.to_string()).to_string(), one.to_string());
        }
    }
}
