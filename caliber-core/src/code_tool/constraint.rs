//! Which versions a manifest accepts.

use std::fmt;
use std::str::FromStr;

use semver::{Comparator, Op, VersionReq};
use serde::{Deserialize, Serialize};

use super::ToolVersion;
use crate::error::{Error, Result};
use crate::text::shown;

/// The longest constraint, in characters.
pub const CONSTRAINT_LENGTH: usize = 256;
/// The most clauses of a constraint.
pub const CONSTRAINT_CLAUSES: usize = 16;

/// Which versions are accepted: clauses with commas between them, all of which must hold.
///
/// | clause | accepts |
/// |---|---|
/// | `1.2`, `^1.2`, `~1.2`, `1.*`, `=1.2`, `>1.2`, `>=1.2`, `<1.2`, `<=1.2` | what Cargo accepts; a missing number stands for all, so that `<=1.2` accepts 1.2.7 |
/// | `==1.2` | 1.2.0 and nothing else: a missing number is zero |
/// | `==1.2.*` | every 1.2 |
/// | `!=1.2`, `!=1.2.*` | all but those |
/// | `~=1.2` | 1.2.0 and later ones below 2 (PEP 440, compatible release) |
/// | `~=1.2.3` | 1.2.3 and later ones below 1.3 |
/// | nothing, `*` or `latest`, alone | every version |
///
/// A pre-release is accepted only if a clause other than `!=` names a pre-release of the same three numbers, as in
/// Cargo.
///
/// ```
/// use caliber_core::code_tool::VersionConstraint;
///
/// # fn main() -> caliber_core::Result<()> {
/// let constraint: VersionConstraint = "~=1.4, !=1.5.0".parse()?;
/// assert!(constraint.accepts(&"1.6.0".parse()?));
/// assert!(!constraint.accepts(&"1.5.0".parse()?));
/// assert!(!constraint.accepts(&"2.0.0".parse()?));
/// assert!(!constraint.accepts(&"1.7.0-rc.1".parse()?));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VersionConstraint {
    text: String,
    wanted: VersionReq,
    excluded: Vec<Comparator>,
}

impl VersionConstraint {
    /// Every version that is no pre-release.
    pub fn any() -> Self {
        Self {
            text: String::new(),
            wanted: VersionReq::STAR,
            excluded: Vec::new(),
        }
    }

    /// Whether `version` is accepted.
    pub fn accepts(&self, version: &ToolVersion) -> bool {
        let version = version.semver();
        self.wanted.matches(version) && !self.excluded.iter().any(|excluded| names(excluded, version))
    }

    /// The text, as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Default for VersionConstraint {
    fn default() -> Self {
        Self::any()
    }
}

/// Whether an excluded version, or an excluded group of them, holds `version`. Build metadata does not count.
fn names(excluded: &Comparator, version: &semver::Version) -> bool {
    let number = |wanted: Option<u64>, there| wanted.is_none_or(|wanted| wanted == there);
    excluded.major == version.major
        && number(excluded.minor, version.minor)
        && number(excluded.patch, version.patch)
        && (excluded.patch.is_none() || excluded.pre == version.pre)
}

impl FromStr for VersionConstraint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.len() > CONSTRAINT_LENGTH {
            return Err(Error::invalid(
                "version_constraint",
                format!("it is longer than {CONSTRAINT_LENGTH} characters"),
            ));
        }
        let mut constraint = Self {
            text: text.to_owned(),
            ..Self::any()
        };
        if matches!(text, "" | "*" | "latest") {
            return Ok(constraint);
        }
        let clauses: Vec<_> = text.split(',').map(str::trim).collect();
        if clauses.len() > CONSTRAINT_CLAUSES {
            return Err(Error::invalid(
                "version_constraint",
                format!("it has more than {CONSTRAINT_CLAUSES} clauses"),
            ));
        }
        for clause in clauses {
            constraint.add(clause).ok_or_else(|| {
                Error::invalid(
                    "version_constraint",
                    format!(
                        "{} is no clause; use one of ^ ~ = > >= < <= == != ~= and a version, as in >=1.2",
                        shown(clause)
                    ),
                )
            })?;
        }
        Ok(constraint)
    }
}

impl VersionConstraint {
    fn add(&mut self, clause: &str) -> Option<()> {
        let wanted = &mut self.wanted.comparators;
        if clause.starts_with("===") {
            return None;
        } else if let Some(version) = clause.strip_prefix("==") {
            wanted.push(whole(version)?);
        } else if let Some(version) = clause.strip_prefix("!=") {
            self.excluded.push(whole(version)?);
        } else if let Some(version) = clause.strip_prefix("~=") {
            let least = operand(version)?;
            let minor = least.minor?;
            // All numbers but the last stay, and the last but one may not rise.
            let below = Comparator {
                op: Op::Less,
                major: if least.patch.is_none() {
                    least.major.checked_add(1)?
                } else {
                    least.major
                },
                minor: match least.patch {
                    Some(_) => Some(minor.checked_add(1)?),
                    None => None,
                },
                patch: None,
                pre: semver::Prerelease::EMPTY,
            };
            wanted.push(Comparator {
                op: Op::GreaterEq,
                patch: least.patch.or(Some(0)),
                ..least
            });
            wanted.push(below);
        } else {
            wanted.push(clause.parse().ok()?);
        }
        Some(())
    }
}

/// A version without an operator or a wildcard, whose last numbers may be missing.
fn operand(version: &str) -> Option<Comparator> {
    let version = version.trim();
    if !version.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let comparator: Comparator = version.parse().ok()?;
    (comparator.op == Op::Caret).then_some(comparator)
}

/// Exactly one version, or all that begin with the same numbers: `1.2`, which is 1.2.0, or `1.2.*`.
fn whole(version: &str) -> Option<Comparator> {
    let exact = match version.trim().strip_suffix(".*") {
        Some(numbers) => operand(numbers).filter(|group| group.patch.is_none())?,
        None => {
            let one = operand(version)?;
            Comparator {
                minor: one.minor.or(Some(0)),
                patch: one.patch.or(Some(0)),
                ..one
            }
        }
    };
    Some(Comparator {
        op: Op::Exact,
        ..exact
    })
}

impl PartialEq for VersionConstraint {
    fn eq(&self, other: &Self) -> bool {
        self.wanted == other.wanted && self.excluded == other.excluded
    }
}

impl Eq for VersionConstraint {}

impl TryFrom<String> for VersionConstraint {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<VersionConstraint> for String {
    fn from(constraint: VersionConstraint) -> Self {
        constraint.text
    }
}

impl fmt::Display for VersionConstraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl fmt::Debug for VersionConstraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, formatter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VERSIONS: [&str; 14] = [
        "0.9.0",
        "1.0.0-rc.1",
        "1.0.0",
        "1.0.1",
        "1.2.0-rc.1",
        "1.2.0-rc.2",
        "1.2.0",
        "1.2.3+linux",
        "1.3.0",
        "1.10.0",
        "2.0.0-alpha",
        "2.0.0",
        "2.2.0",
        "3.0.0",
    ];

    fn accepted(constraint: &str) -> Vec<&'static str> {
        let constraint: VersionConstraint = constraint.parse().unwrap();
        let accepts = |version: &&str| constraint.accepts(&version.parse().unwrap());
        VERSIONS.into_iter().filter(accepts).collect()
    }

    #[test]
    fn each_operator_accepts_what_it_says() {
        let stable: Vec<_> = VERSIONS.into_iter().filter(|text| !text.contains('-')).collect();
        for any in ["", "  ", "*", "latest"] {
            assert_eq!(accepted(any), stable, "{any:?}");
        }
        for (constraint, expected) in [
            ("==1", vec!["1.0.0"]),
            ("==1.2", vec!["1.2.0"]),
            ("==1.2.3", vec!["1.2.3+linux"]),
            ("==1.2.0-rc.1", vec!["1.2.0-rc.1"]),
            ("== 1.2.*", vec!["1.2.0", "1.2.3+linux"]),
            (
                "==1.*",
                vec!["1.0.0", "1.0.1", "1.2.0", "1.2.3+linux", "1.3.0", "1.10.0"],
            ),
            ("~=1.2", vec!["1.2.0", "1.2.3+linux", "1.3.0", "1.10.0"]),
            ("~=1.2.1", vec!["1.2.3+linux"]),
            ("~=1.2.0-rc.2", vec!["1.2.0-rc.2", "1.2.0", "1.2.3+linux"]),
            (">=1.3,!=1.10,<3", vec!["1.3.0", "2.0.0", "2.2.0"]),
            ("!=1.*,!=2.0.0,<3", vec!["0.9.0", "2.2.0"]),
            ("^1.2", vec!["1.2.0", "1.2.3+linux", "1.3.0", "1.10.0"]),
            ("~1.2", vec!["1.2.0", "1.2.3+linux"]),
            ("1.2", vec!["1.2.0", "1.2.3+linux", "1.3.0", "1.10.0"]),
            ("=1.2", vec!["1.2.0", "1.2.3+linux"]),
            ("1.2.*", vec!["1.2.0", "1.2.3+linux"]),
            ("<=1.2", vec!["0.9.0", "1.0.0", "1.0.1", "1.2.0", "1.2.3+linux"]),
            (">1.2, <2", vec!["1.3.0", "1.10.0"]),
            (">2.0.0-a,<2.0.1", vec!["2.0.0-alpha", "2.0.0"]),
            ("!=1.2.0-rc.1,<1.3,>1.1", vec!["1.2.0", "1.2.3+linux"]),
        ] {
            assert_eq!(accepted(constraint), expected, "{constraint:?}");
        }
    }

    #[test]
    fn what_is_no_constraint_is_refused() {
        let long = format!("=={}", "1".repeat(CONSTRAINT_LENGTH));
        let many = vec!["!=1"; CONSTRAINT_CLAUSES + 1].join(",");
        for text in [
            "banana",
            "===1.0",
            "==",
            "!=",
            "~=",
            "~=1",
            "~=1.*",
            "==*",
            "!=*",
            "==1.2.3.*",
            "1,",
            ",1",
            "1,,2",
            "*,1",
            "latest,1",
            "Latest",
            "==^1",
            "==>=1",
            "!==1",
            "=!1",
            "> =1",
            "1 2",
            "==1 2",
            "~=18446744073709551615.1",
            long.as_str(),
            many.as_str(),
        ] {
            assert!(text.parse::<VersionConstraint>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// What Cargo accepts is accepted as Cargo does.
        #[test]
        fn it_agrees_with_cargo(clauses in proptest::collection::vec(
            "(\\^|~|=|>|>=|<|<=)?[0-3](\\.[0-3](\\.[0-3](-rc\\.[1-2])?)?)?", 1..4)) {
            let text = clauses.join(", ");
            let theirs = VersionReq::parse(&text).unwrap();
            let ours: VersionConstraint = text.parse().unwrap();
            for version in VERSIONS {
                let parsed: ToolVersion = version.parse().unwrap();
                prop_assert_eq!(ours.accepts(&parsed), theirs.matches(parsed.semver()), "{} and {}", text, version);
            }
        }

        #[test]
        fn any_text_is_read_or_refused_and_reads_the_same_again(text in "[0-9a-z.,*^~=!<> +-]{0,24}") {
            if let Ok(constraint) = text.parse::<VersionConstraint>() {
                let again: VersionConstraint = constraint.to_string().parse().unwrap();
                prop_assert_eq!(&again, &constraint);
            }
        }
    }
}
