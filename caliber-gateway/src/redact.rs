//! Keeps the credentials of a session out of what its upstream says about itself.

use caliber_core::secret::SecretText;

/// Shorter values are no secrets, and replacing them would garble texts.
const SHORTEST: usize = 6;
/// What stands in place of a secret.
const REPLACEMENT: &str = "[secret]";

/// Replaces the secrets of one session.
#[derive(Debug, Default)]
pub(crate) struct Redactor {
    secrets: Vec<SecretText>,
}

impl Redactor {
    pub(crate) fn new(secrets: impl IntoIterator<Item = SecretText>) -> Self {
        let mut secrets: Vec<SecretText> = secrets
            .into_iter()
            .filter(|secret| secret.expose().len() >= SHORTEST)
            .collect();
        // The longest first: one may contain another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        Self { secrets }
    }

    /// `text` without any of the secrets.
    pub(crate) fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            if text.contains(secret.expose()) {
                text = text.replace(secret.expose(), REPLACEMENT);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_and_short_values_are_left() {
        let redactor = Redactor::new(["canary", "canary-long", "1"].map(SecretText::new));
        assert_eq!(
            redactor.redact("1 canary-long canary 11"),
            "1 [secret] [secret] 11"
        );
    }
}
