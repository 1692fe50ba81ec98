//! The wrapper that stdio servers run in.

use caliber_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::problem;
use super::secrets::is_plain_path;

/// A wrapper that is put before the command of every stdio server, and what it claims to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Isolation {
    /// The executable of the wrapper, absolute, and its arguments. Default: none, and no wrapper.
    pub prefix: Vec<String>,
    /// What the operator says it is. Default: nothing that caliber knows.
    pub profile: IsolationProfile,
}

/// A kind of wrapper that caliber can recognise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IsolationProfile {
    /// None: whatever the wrapper does, nothing is claimed for it.
    #[default]
    None,
    /// Bubblewrap with exactly the arguments of [`Isolation::BUBBLEWRAP_ARGUMENTS`].
    Bubblewrap,
}

impl Isolation {
    /// The one profile that is recognised: every namespace of its own, the host's files read-only, a `/tmp` of its
    /// own, no terminal, and an end with its parent. One argument more or less, and it is another profile.
    pub const BUBBLEWRAP_ARGUMENTS: [&str; 14] = [
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "--chdir",
        "/tmp",
    ];

    /// Reads a prefix from one line: words with white space between them. No shell reads it, and quotes mean
    /// nothing; what needs them is written as a list.
    ///
    /// # Errors
    ///
    /// `Invalid` when it holds a quote or a backslash.
    pub fn parse_prefix(line: &str) -> Result<Vec<String>> {
        if line.contains(['"', '\'', '\\']) {
            return Err(problem(
                "isolation.prefix",
                line,
                "holds a quote or a backslash, which mean nothing here; write a list of words",
            ));
        }
        Ok(line.split_ascii_whitespace().map(str::to_owned).collect())
    }

    /// Whether this is the recognised bubblewrap profile, word for word.
    pub fn is_bubblewrap(&self) -> bool {
        let Some((wrapper, arguments)) = self.prefix.split_first() else {
            return false;
        };
        let name = wrapper.rsplit('/').next();
        self.profile == IsolationProfile::Bubblewrap
            && matches!(name, Some("bwrap" | "bubblewrap"))
            && arguments == Self::BUBBLEWRAP_ARGUMENTS
    }

    /// Checks that the wrapper can be started at all.
    ///
    /// # Errors
    ///
    /// `Invalid`, saying what is wrong.
    pub fn validate(&self) -> Result<()> {
        match self.prefix.first() {
            None if self.profile == IsolationProfile::None => Ok(()),
            None => Err(Error::invalid(
                "isolation",
                "a profile is named and no wrapper is configured; set the prefix, or profile none",
            )),
            Some(wrapper) if !is_plain_path(wrapper) => Err(problem(
                "isolation.prefix",
                wrapper,
                "is no absolute path of a wrapper; write one without `.` and `..`",
            )),
            Some(_) if self.prefix.iter().any(|word| word.contains('\0')) => Err(Error::invalid(
                "isolation.prefix",
                "it holds a NUL character; remove it",
            )),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bubblewrap(change: impl FnOnce(&mut Vec<String>)) -> Isolation {
        let line = "/usr/bin/bwrap --unshare-all --die-with-parent --new-session --ro-bind / / --proc /proc \
                    --dev /dev --tmpfs /tmp --chdir /tmp";
        let mut prefix = Isolation::parse_prefix(line).unwrap();
        change(&mut prefix);
        Isolation {
            prefix,
            profile: IsolationProfile::Bubblewrap,
        }
    }

    #[test]
    fn only_the_exact_profile_is_recognised() {
        assert!(bubblewrap(|_| {}).is_bubblewrap());
        assert!(bubblewrap(|prefix| prefix[0] = "/opt/bin/bubblewrap".into()).is_bubblewrap());
        let unnamed = Isolation {
            profile: IsolationProfile::None,
            ..bubblewrap(|_| {})
        };
        assert!(!unnamed.is_bubblewrap());
        assert!(!bubblewrap(|prefix| prefix.push("--share-net".into())).is_bubblewrap());
        assert!(!bubblewrap(|prefix| prefix.push("--".into())).is_bubblewrap());
        assert!(!bubblewrap(|prefix| prefix.clear()).is_bubblewrap());
        assert!(!bubblewrap(|prefix| prefix[0] = "/usr/bin/bwrap2".into()).is_bubblewrap());
        assert!(!bubblewrap(|prefix| prefix[0] = "/usr/bin/env".into()).is_bubblewrap());
        for left_out in 1..=Isolation::BUBBLEWRAP_ARGUMENTS.len() {
            let one_less = bubblewrap(|prefix| drop(prefix.remove(left_out)));
            assert!(!one_less.is_bubblewrap(), "without word {left_out}");
        }
        let writable = bubblewrap(|prefix| prefix[4] = "--bind".into());
        assert!(!writable.is_bubblewrap());
    }

    #[test]
    fn a_wrapper_that_cannot_start_is_said_so() {
        assert!(Isolation::default().validate().is_ok());
        assert!(bubblewrap(|_| {}).validate().is_ok());
        assert!(bubblewrap(|prefix| prefix.clear()).validate().is_err());
        assert!(
            bubblewrap(|prefix| prefix[0] = "bwrap".into())
                .validate()
                .is_err()
        );
        assert!(bubblewrap(|prefix| prefix[1] = "a\0b".into()).validate().is_err());
        assert!(Isolation::parse_prefix("/usr/bin/bwrap --bind 'a b' /x").is_err());
    }
}
