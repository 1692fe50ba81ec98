//! Which secrets a server definition may refer to.

use caliber_core::secret::SecretReference;
use caliber_core::{Error, FieldProblem, Result};
use serde::{Deserialize, Serialize};

use super::{NamePattern, problem};

/// Which secrets a definition may refer to. Secrets in the store belong to the server that they were given to, and
/// may always be referred to; what lies in the environment or the files of the process has to be opened here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecretRules {
    /// The variables of our own environment. Default: none.
    pub environment: Vec<NamePattern>,
    /// The folders whose files may be read, absolute. Default: none. A path is judged as it is written; a link
    /// inside such a folder leads wherever its owner points it.
    pub files: Vec<String>,
}

impl SecretRules {
    /// Whether `reference` may be used.
    pub fn allow(&self, reference: &SecretReference) -> bool {
        match reference {
            SecretReference::Stored(_) => true,
            SecretReference::Environment(name) => {
                self.environment.iter().any(|pattern| pattern.matches(name))
            }
            SecretReference::File(path) => self.files.iter().any(|folder| lies_beneath(path, folder)),
            _ => false,
        }
    }

    /// Checks the rules.
    ///
    /// # Errors
    ///
    /// `Invalid`, naming every folder that is none.
    pub fn validate(&self) -> Result<()> {
        let wrong = self.files.iter().filter(|folder| !is_plain_path(folder));
        let problems: Vec<FieldProblem> = wrong
            .flat_map(|folder| {
                let error = problem(
                    "secrets.files",
                    folder,
                    "is no folder; write an absolute path without `.` and `..`",
                );
                error.fields().to_vec()
            })
            .collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::invalid_fields(problems))
        }
    }
}

fn lies_beneath(path: &str, folder: &str) -> bool {
    is_plain_path(path)
        && is_plain_path(folder)
        && path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
}

/// Whether a path is absolute and has no step that leads elsewhere than it says: no `.`, no `..`, no empty one.
pub(crate) fn is_plain_path(path: &str) -> bool {
    path.strip_prefix('/')
        .is_some_and(|rest| rest.split('/').all(|step| !matches!(step, "" | "." | "..")))
        && !path.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> SecretRules {
        SecretRules {
            environment: vec!["MCP_*".parse().unwrap(), "GITHUB_TOKEN".parse().unwrap()],
            files: vec!["/run/secrets".into()],
        }
    }

    #[test]
    fn only_what_is_opened_may_be_referred_to() {
        for (reference, allowed) in [
            ("env://MCP_TOKEN", true),
            ("${MCP_TOKEN}", true),
            ("env://GITHUB_TOKEN", true),
            ("env://GITHUB_TOKEN2", false),
            ("env://DATABASE_URL", false),
            ("env://mcp_token", false),
            ("file:///run/secrets/token", true),
            ("file:///run/secrets/deep/token", true),
            ("file:///run/secrets", false),
            ("file:///run/secrets/", false),
            ("file:///run/secrets_of_others/token", false),
            ("file:///run/secrets/../shadow", false),
            ("file:///run/secrets/./token", false),
            ("file:///run/secrets//token", false),
            ("file:///etc/shadow", false),
        ] {
            let reference: SecretReference = reference.parse().unwrap();
            assert_eq!(rules().allow(&reference), allowed, "{reference}");
            let stored = matches!(reference, SecretReference::Stored(_));
            assert_eq!(SecretRules::default().allow(&reference), stored, "{reference}");
        }
        let stored = SecretReference::Stored(caliber_core::id::SecretId::new());
        assert!(SecretRules::default().allow(&stored));
    }

    #[test]
    fn a_folder_is_absolute_and_plain() {
        assert!(rules().validate().is_ok());
        for wrong in [
            "",
            "/",
            "secrets",
            "/run/../etc",
            "/run/secrets/",
            "/run//secrets",
        ] {
            let rules = SecretRules {
                files: vec![wrong.into()],
                ..SecretRules::default()
            };
            assert!(rules.validate().is_err(), "{wrong}");
            assert!(!rules.allow(&"file:///etc/shadow".parse().unwrap()), "{wrong}");
        }
    }
}
