//! The token that a service and its clients share.

use std::fmt;

use caliber_core::secret::SecretText;
use caliber_core::{Error, Result};
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue};
use subtle::ConstantTimeEq as _;

/// Bytes of a token; the lower bound keeps guessing out of reach.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 32..=4096;
const SCHEME: &[u8] = b"Bearer ";

/// The one token that a service accepts: who holds it can run code there. It never shows in `Debug` output.
#[derive(Clone)]
pub struct ServiceToken(SecretText);

impl ServiceToken {
    /// Takes a token of 32 to 4,096 visible ASCII characters.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is anything else.
    pub fn new(token: impl Into<String>) -> Result<Self> {
        let token = token.into();
        if !TOKEN_BYTES.contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::invalid(
                "token",
                format!(
                    "the token of the sandbox service must be {} to {} visible ASCII characters; make one with `openssl rand -hex 32`",
                    TOKEN_BYTES.start(),
                    TOKEN_BYTES.end()
                ),
            ));
        }
        Ok(Self(SecretText::new(token)))
    }

    /// The value of the `Authorization` header that carries it.
    pub(super) fn header(&self) -> Result<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0.expose()))
            .map_err(|_| Error::internal("a token that was checked is no header"))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Whether the request carries exactly this token, compared in constant time.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return false;
        };
        let Some((scheme, token)) = value.as_bytes().split_at_checked(SCHEME.len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(SCHEME) && token.ct_eq(self.0.expose().as_bytes()).into()
    }
}

impl fmt::Debug for ServiceToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ServiceToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "canary-0123456789-0123456789-0123";

    #[test]
    fn only_the_exact_token_is_admitted() {
        let token = ServiceToken::new(TOKEN).unwrap();
        let admits = |values: &[&str]| {
            let headers = values
                .iter()
                .map(|value| (AUTHORIZATION, value.parse().unwrap()))
                .collect();
            token.admits(&headers)
        };
        assert!(admits(&[&format!("Bearer {TOKEN}")]));
        assert!(admits(&[&format!("bearer {TOKEN}")]));
        assert!(!admits(&[]));
        for refused in [
            TOKEN.to_owned(),
            "Bearer".to_owned(),
            "Bearer ".to_owned(),
            format!("Bearer {}", &TOKEN[1..]),
            format!("Bearer {TOKEN}0"),
            format!("Bearer  {TOKEN}"),
            format!("Basic {TOKEN}"),
        ] {
            assert!(!admits(&[&refused]), "{refused:?}");
        }
        let twice = format!("Bearer {TOKEN}");
        assert!(!admits(&[&twice, &twice]));
        assert!(token.admits(&[(AUTHORIZATION, token.header().unwrap())].into_iter().collect()));
    }

    #[test]
    fn weak_tokens_are_refused_without_showing_them() {
        for text in ["", "canary-short", &"ä".repeat(40), &"a b".repeat(20)] {
            let error = ServiceToken::new(text).unwrap_err();
            assert!(text.is_empty() || !format!("{error} {error:?}").contains(text));
        }
        let token = ServiceToken::new(TOKEN).unwrap();
        assert!(!format!("{token:?} {:?}", token.header()).contains("canary"));
    }
}
