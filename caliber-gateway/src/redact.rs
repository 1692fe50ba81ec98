//! Keeps the credentials of a session out of what its upstream says about itself.

use caliber_core::secret::SecretText;

/// The shortest value that is replaced, in bytes. Every variable and header of a definition counts as a secret, `1`
/// and `true` among them: replacing those would garble texts and hide nothing. docs/api.md says so to the people who
/// give secrets.
const SHORTEST_SECRET: usize = 6;
/// What stands in place of a secret.
const REPLACEMENT: &str = "[secret]";

/// Replaces the secrets of one session.
#[derive(Debug, Default)]
pub(crate) struct Redactor {
    secrets: Vec<SecretText>,
}

impl Redactor {
    /// Replaces `secrets`, but for those that are shorter than [`SHORTEST_SECRET`].
    pub(crate) fn new(secrets: impl IntoIterator<Item = SecretText>) -> Self {
        let mut secrets: Vec<SecretText> = secrets
            .into_iter()
            .filter(|secret| secret.expose().len() >= SHORTEST_SECRET)
            .collect();
        // The longest first: one may contain another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        Self { secrets }
    }

    /// `text` without any of the secrets that are long enough.
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
    fn secrets_are_replaced_and_values_below_the_documented_length_are_left() {
        let redactor = Redactor::new(["canary", "canary-long", "12345", "1"].map(SecretText::new));
        assert_eq!(
            redactor.redact("1 canary-long canary 12345"),
            "1 [secret] [secret] 12345"
        );
        let documented = format!("from {SHORTEST_SECRET} bytes on");
        assert!(include_str!("../../docs/api.md").contains(&documented));
    }
}
