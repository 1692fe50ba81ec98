//! Where secrets come from: the encrypted store, named variables, and files in named folders.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use caliber_core::secret::{SECRET_LENGTH, SecretReference, SecretSource, SecretText};
use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};
use caliber_policy::settings::SecretRules;

/// Asks the source that a kind of reference belongs to, within the rules that readiness judges by.
#[derive(Debug)]
pub(crate) struct SecretChain {
    stored: Arc<dyn SecretSource>,
    rules: Arc<SecretRules>,
    variables: BTreeMap<String, SecretText>,
}

impl SecretChain {
    /// A chain that asks `stored` for `secret://`, and `variables` for `env://`: what the host took over from its
    /// environment.
    pub(crate) fn new(
        stored: Arc<dyn SecretSource>,
        rules: SecretRules,
        variables: BTreeMap<String, SecretText>,
    ) -> Self {
        Self {
            stored,
            rules: Arc::new(rules),
            variables,
        }
    }

    fn variable(&self, name: &str) -> Result<SecretText> {
        let value = self
            .variables
            .get(name)
            .filter(|value| !value.expose().is_empty());
        value.cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("the variable {} is not set or empty", shown(name)),
            )
        })
    }
}

#[async_trait]
impl SecretSource for SecretChain {
    async fn resolve(&self, reference: &SecretReference) -> Result<SecretText> {
        // Before anything is looked up: whoever may not read here learns nothing of what is here.
        if !self.rules.allow(reference) {
            return Err(Error::new(
                ErrorKind::Forbidden,
                format!(
                    "{} may not be referred to; allow it in the rules for secrets",
                    shown(&reference.to_string())
                ),
            ));
        }
        match reference {
            SecretReference::Stored(_) => self.stored.resolve(reference).await,
            SecretReference::Environment(name) => self.variable(name),
            SecretReference::File(path) => {
                let (rules, path) = (Arc::clone(&self.rules), path.clone());
                tokio::task::spawn_blocking(move || read_file(&rules.files, &path))
                    .await
                    .map_err(|error| Error::internal("reading a secret was cut off").with_source(error))?
            }
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                "this kind of secret reference is not known here; use env://NAME or file:///absolute/path",
            )),
        }
    }
}

/// Reads a whole file below one of `folders`. Links are followed first, so that none leads out of them. Blocking.
fn read_file(folders: &[String], path: &str) -> Result<SecretText> {
    let name = || shown(path);
    let absent = |error: std::io::Error| {
        Error::new(ErrorKind::NotFound, format!("the file {} cannot be read", name())).with_source(error)
    };
    let real = Path::new(path).canonicalize().map_err(absent)?;
    let inside = |folder: &String| {
        Path::new(folder)
            .canonicalize()
            .is_ok_and(|folder| real.starts_with(folder))
    };
    if !folders.iter().any(inside) {
        return Err(Error::new(
            ErrorKind::Forbidden,
            format!(
                "the file {} is a link out of the folders that secrets may be read from",
                name()
            ),
        ));
    }
    // A pipe or a device would be waited for without end.
    if !real.metadata().map_err(absent)?.is_file() {
        return Err(Error::new(
            ErrorKind::Forbidden,
            format!("{} is no regular file", name()),
        ));
    }
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(&real).map_err(absent)?;
    opened
        .take(SECRET_LENGTH as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(absent)?;
    if bytes.len() > SECRET_LENGTH {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("the file {} is larger than {SECRET_LENGTH} bytes", name()),
        ));
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        // The cause would carry the bytes.
        Error::new(
            ErrorKind::Invalid,
            format!("the file {} is no UTF-8 text", name()),
        )
    })?;
    let text = text.trim_end();
    if text.is_empty() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("the file {} is empty", name()),
        ));
    }
    Ok(SecretText::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that has one secret.
    #[derive(Debug)]
    struct Stored;

    #[async_trait]
    impl SecretSource for Stored {
        async fn resolve(&self, reference: &SecretReference) -> Result<SecretText> {
            assert!(matches!(reference, SecretReference::Stored(_)), "{reference}");
            Ok(SecretText::new("from the store"))
        }
    }

    fn chain(rules: &[&str], files: &[&Path], variables: &[(&str, &str)]) -> SecretChain {
        let rules = SecretRules {
            environment: rules.iter().map(|pattern| pattern.parse().unwrap()).collect(),
            files: files
                .iter()
                .map(|folder| folder.to_str().unwrap().to_owned())
                .collect(),
        };
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), SecretText::new(*value)));
        SecretChain::new(Arc::new(Stored), rules, variables.collect())
    }

    async fn resolved(chain: &SecretChain, reference: &str) -> Result<String> {
        let reference = reference.parse().unwrap();
        chain
            .resolve(&reference)
            .await
            .map(|value| value.expose().to_owned())
    }

    #[tokio::test]
    async fn each_kind_of_reference_has_its_source() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "from a file \n\n").unwrap();
        let chain = chain(&["TOKEN"], &[folder.path()], &[("TOKEN", "from a variable")]);
        let stored = SecretReference::Stored(caliber_core::id::SecretId::new()).to_string();
        assert_eq!(resolved(&chain, &stored).await.unwrap(), "from the store");
        assert_eq!(resolved(&chain, "env://TOKEN").await.unwrap(), "from a variable");
        let file = format!("file://{}", path.display());
        assert_eq!(resolved(&chain, &file).await.unwrap(), "from a file");
    }

    #[tokio::test]
    async fn only_named_variables_are_read() {
        let chain = chain(
            &["UNSET", "EMPTY"],
            &[],
            &[("PATH", "canary-path"), ("EMPTY", "")],
        );
        for (reference, kind) in [
            ("env://PATH", ErrorKind::Forbidden),
            ("env://UNSET", ErrorKind::NotFound),
            ("env://EMPTY", ErrorKind::NotFound),
        ] {
            let error = resolved(&chain, reference).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{reference}");
            assert!(!format!("{error} {error:?}").contains("canary"));
        }
    }

    #[tokio::test]
    async fn files_are_read_in_named_folders_only() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("token"), "canary-outside").unwrap();
        std::os::unix::fs::symlink(outside.path().join("token"), inside.path().join("link")).unwrap();
        std::fs::write(inside.path().join("empty"), " \n").unwrap();
        std::fs::write(inside.path().join("binary"), [0xff, 0xfe]).unwrap();
        std::fs::write(inside.path().join("large"), "x".repeat(SECRET_LENGTH + 1)).unwrap();
        std::fs::write(inside.path().join("longest"), "x".repeat(SECRET_LENGTH)).unwrap();
        let chain = chain(&[], &[inside.path()], &[]);
        let below = |name: &str| format!("file://{}/{name}", inside.path().display());
        let outside = format!("file://{}/token", outside.path().display());
        for (reference, kind) in [
            (outside.clone(), ErrorKind::Forbidden),
            (below("link"), ErrorKind::Forbidden),
            (below(""), ErrorKind::Forbidden),
            (below("absent"), ErrorKind::NotFound),
            (below("empty"), ErrorKind::NotFound),
            (below("binary"), ErrorKind::Invalid),
            (below("large"), ErrorKind::TooLarge),
        ] {
            let error = resolved(&chain, &reference).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{reference}: {error}");
            assert!(!format!("{error} {error:?}").contains("canary"));
        }
        assert_eq!(
            resolved(&chain, &below("longest")).await.unwrap().len(),
            SECRET_LENGTH
        );
    }
}
