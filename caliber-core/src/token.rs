//! API tokens: shown once, kept as a digest.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::digest::TokenHash;
use crate::id::{ProjectId, TokenId};
use crate::principal::{Scopes, Subject};
use crate::secret::SecretText;

/// What a token text begins with, so that scanners find lost ones.
pub const TOKEN_PREFIX: &str = "caliber_";

/// A token in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Its identifier.
    pub id: TokenId,
    /// Whom it speaks for.
    pub subject: Subject,
    /// Where its scopes hold; everywhere, when no project is named.
    pub project: Option<ProjectId>,
    /// What it may do.
    pub scopes: Scopes,
    /// What it is for, in the words of its maker.
    pub label: String,
    /// Who made it.
    pub created_by: Subject,
    /// When.
    pub created_at: Timestamp,
    /// When it ends, if ever.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Timestamp>,
}

/// A token at the one moment when its text is known.
#[derive(Debug)]
pub struct NewToken {
    /// The text, for the person who will use it.
    pub text: SecretText,
    /// What is stored.
    pub record: TokenRecord,
}

/// The digest that a token is found by. Tokens carry 244 random bits, so a plain digest is enough.
pub fn token_hash(text: &str) -> TokenHash {
    TokenHash::of(text.as_bytes())
}

/// A fresh token text.
pub(crate) fn generate() -> SecretText {
    let random = || uuid::Uuid::new_v4().simple();
    SecretText::new(format!("{TOKEN_PREFIX}{}{}", random(), random()))
}
