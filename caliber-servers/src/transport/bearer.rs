//! The bearer token of an HTTP endpoint.

use std::fmt;
use std::io::Read as _;
use std::path::Path;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use secrecy::{ExposeSecret as _, SecretString};
use subtle::ConstantTimeEq as _;

use crate::Error;

/// Bytes of a token; the lower bound keeps guessing out of reach.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=4_096;

/// The one token that an endpoint accepts. It never shows in `Debug` output.
#[derive(Clone)]
pub struct BearerToken(SecretString);

impl BearerToken {
    /// Takes a token of 16 to 4,096 visible ASCII characters.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if it is anything else.
    pub fn new(token: impl Into<String>) -> Result<Self, Error> {
        let token = SecretString::from(token.into());
        let bytes = token.expose_secret().as_bytes();
        if !TOKEN_BYTES.contains(&bytes.len()) || !bytes.iter().all(u8::is_ascii_graphic) {
            return Err(Error::configuration(format!(
                "the bearer token must be {} to {} visible ASCII characters",
                TOKEN_BYTES.start(),
                TOKEN_BYTES.end()
            )));
        }
        Ok(Self(token))
    }

    /// Reads the token from a file; white space around it is not part of it. Blocks on the file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if the file cannot be read or holds no token as
    /// [`BearerToken::new`] takes it.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let mut text = String::new();
        let limit = TOKEN_BYTES.end().saturating_mul(2) as u64;
        std::fs::File::open(path)
            .and_then(|file| file.take(limit).read_to_string(&mut text))
            .map_err(|error| Error::configuration("the bearer token file cannot be read").because(error))?;
        Self::new(text.trim())
    }

    /// Whether the request carries exactly this token, compared in constant time.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return false;
        };
        let Some((scheme, token)) = value.as_bytes().split_at_checked("Bearer ".len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ") && token.ct_eq(self.0.expose_secret().as_bytes()).into()
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "canary-0123456789";

    fn headers(values: &[&str]) -> HeaderMap {
        values
            .iter()
            .map(|value| (AUTHORIZATION, value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn only_the_exact_token_is_admitted() {
        let token = BearerToken::new(TOKEN).unwrap();
        assert!(token.admits(&headers(&["Bearer canary-0123456789"])));
        assert!(token.admits(&headers(&["bearer canary-0123456789"])));
        for refused in [
            &[][..],
            &["canary-0123456789"],
            &["Bearer"],
            &["Bearer "],
            &["Bearer canary-012345678"],
            &["Bearer canary-01234567890"],
            &["Bearer  canary-0123456789"],
            &["Basic canary-0123456789"],
            &["Bearer canary-0123456789", "Bearer canary-0123456789"],
        ] {
            assert!(!token.admits(&headers(refused)), "{refused:?}");
        }
    }

    #[test]
    fn weak_and_unusable_tokens_are_refused_without_showing_them() {
        for token in ["", "short", "with space in the middle", "umlaut-ääääääääääääää"] {
            let error = BearerToken::new(token).unwrap_err();
            assert!(token.is_empty() || !format!("{error:?}").contains(token));
        }
        assert!(!format!("{:?}", BearerToken::new(TOKEN).unwrap()).contains(TOKEN));
    }
}
