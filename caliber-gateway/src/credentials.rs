//! What a server is given to sign us in: headers or environment values, resolved and checked when a session opens.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use caliber_core::reason::ReasonCode;
use caliber_core::secret::{ConfigValue, SECRET_LENGTH, SecretSource, SecretText};
use caliber_core::server::{Auth, Endpoint, ServerDefinition, is_settable_header};
use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

/// The resolved secrets of one server. They live as long as one session needs them.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// Headers of every request to a remote server, each marked sensitive, so that `Debug` does not show it.
    pub(crate) headers: HeaderMap,
    /// Environment values of a child process.
    pub(crate) env: BTreeMap<String, SecretText>,
}

/// Resolves every secret of `definition`. The headers of the endpoint come first; `token` and `basic` apply only
/// where these hold no `Authorization`; the headers of `custom` replace equal ones. A stdio server has no headers.
///
/// Bounded by nothing but the source: the caller holds the deadline. Dropping the future is safe.
///
/// # Errors
///
/// `Unavailable` when the source is away, otherwise `Upstream`; each with
/// [`SecretUnresolved`](ReasonCode::SecretUnresolved) and the name of the field. No text holds a value.
pub(crate) async fn resolve(
    definition: &ServerDefinition,
    secrets: &dyn SecretSource,
) -> Result<Credentials> {
    let mut headers = HeaderMap::new();
    let mut env = BTreeMap::new();
    match &definition.endpoint {
        Endpoint::Stdio(stdio) => {
            for (key, value) in &stdio.env {
                let field = format!("env.{key}");
                env.insert(key.clone(), secret(&field, value, secrets).await?);
            }
        }
        Endpoint::StreamableHttp(remote) | Endpoint::Sse(remote) => {
            for (name, value) in &remote.headers {
                insert(&mut headers, "headers", name, value, secrets).await?;
            }
            sign_in(&mut headers, &definition.auth, secrets).await?;
        }
        other => {
            let text = format!("this gateway knows no transport {}", shown(other.transport()));
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
    }
    Ok(Credentials { headers, env })
}

async fn sign_in(headers: &mut HeaderMap, auth: &Auth, secrets: &dyn SecretSource) -> Result<()> {
    let authorization = match auth {
        Auth::Custom { headers: custom } => {
            for (name, value) in custom {
                insert(headers, "auth_config.headers", name, value, secrets).await?;
            }
            return Ok(());
        }
        _ if headers.contains_key(AUTHORIZATION) => return Ok(()),
        Auth::None => return Ok(()),
        Auth::Token { token } => {
            let field = "auth_config.token";
            let token = header_text(field, secret(field, token, secrets).await?)?;
            SecretText::new(format!("Bearer {}", token.expose()))
        }
        Auth::Basic { username, password } => {
            let field = "auth_config.password";
            let password = header_text(field, secret(field, password, secrets).await?)?;
            if username.contains(':') || username.chars().any(char::is_control) {
                return Err(problem(
                    "auth_config.username",
                    "holds a colon or a control character; remove it",
                ));
            }
            let pair = SecretText::new(format!("{username}:{}", password.expose()));
            let encoded = SecretText::new(BASE64_STANDARD.encode(pair.expose()));
            SecretText::new(format!("Basic {}", encoded.expose()))
        }
        other => {
            let text = format!("this gateway knows no authentication {}", shown(other.kind()));
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
    };
    headers.insert(AUTHORIZATION, header_value("auth_config", &authorization)?);
    Ok(())
}

async fn insert(
    headers: &mut HeaderMap,
    group: &str,
    name: &str,
    value: &ConfigValue,
    secrets: &dyn SecretSource,
) -> Result<()> {
    let field = format!("{group}.{name}");
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .ok()
        .filter(|_| is_settable_header(name))
        .ok_or_else(|| {
            problem(
                &field,
                "is no header that can be set; HTTP and MCP own some names",
            )
        })?;
    let text = header_text(&field, secret(&field, value, secrets).await?)?;
    headers.insert(parsed, header_value(&field, &text)?);
    Ok(())
}

/// The value of one field: never empty, bounded, and without NUL.
async fn secret(field: &str, value: &ConfigValue, secrets: &dyn SecretSource) -> Result<SecretText> {
    let text = match value {
        ConfigValue::Literal(text) => text.clone(),
        ConfigValue::Reference(reference) => secrets.resolve(reference).await.map_err(|error| {
            // The text of the cause is left out: a source of the embedder's could repeat a value in it.
            let kind = match error.kind() {
                ErrorKind::Unavailable => ErrorKind::Unavailable,
                _ => ErrorKind::Upstream,
            };
            if error.reason() == Some(ReasonCode::SecretKeyMissing) {
                let text = format!(
                    "the secret of {} is encrypted with a key that is not here",
                    shown(field)
                );
                return Error::new(kind, text)
                    .with_reason(ReasonCode::SecretKeyMissing)
                    .with_context("field", shown(field));
            }
            let cause = match error.kind() {
                ErrorKind::NotFound => "there is none",
                ErrorKind::Forbidden => "it may not be read",
                ErrorKind::Unsupported => "references of this kind are not supported",
                ErrorKind::Unavailable => "the place where it is kept is away",
                _ => "reading it failed",
            };
            let reference = shown(&reference.to_string());
            let text = format!("the secret of {} at {reference}: {cause}", shown(field));
            unresolved(kind, text, field)
        })?,
        ConfigValue::Unchanged => return Err(problem(field, "is a placeholder; enter the value")),
    };
    let value = text.expose();
    if value.is_empty() {
        return Err(problem(field, "is empty"));
    }
    if value.len() > SECRET_LENGTH {
        return Err(problem(field, &format!("is longer than {SECRET_LENGTH} bytes")));
    }
    if value.contains('\0') {
        return Err(problem(field, "holds a NUL character"));
    }
    Ok(text)
}

/// What may stand in a header: visible characters, no space around them, nothing that could end the line.
fn header_text(field: &str, text: SecretText) -> Result<SecretText> {
    let value = text.expose();
    let visible = |byte: u8| matches!(byte, b'\t' | 0x20..=0x7e | 0x80..);
    if value.trim() != value || !value.bytes().all(visible) {
        return Err(problem(
            field,
            "cannot be a header: it holds a control character or a line break, or space around it",
        ));
    }
    Ok(text)
}

fn header_value(field: &str, text: &SecretText) -> Result<HeaderValue> {
    // The error of `http` is dropped on purpose; it says no more than this.
    let mut value = HeaderValue::from_bytes(text.expose().as_bytes())
        .map_err(|_| problem(field, "cannot be a header: it holds a control character"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn problem(field: &str, what: &str) -> Error {
    let text = format!("the secret of {} {what}", shown(field));
    unresolved(ErrorKind::Upstream, text, field)
}

fn unresolved(kind: ErrorKind, text: String, field: &str) -> Error {
    Error::new(kind, text)
        .with_reason(ReasonCode::SecretUnresolved)
        .with_context("field", shown(field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use caliber_core::secret::SecretReference;
    use caliber_core::server::{RemoteEndpoint, ServerLimits, Sharing, StdioEndpoint};

    const CANARY: &str = "canary-7d1f";

    /// Answers environment references from a table, and fails in the way that their name says.
    #[derive(Debug)]
    struct Source(Vec<(&'static str, String)>);

    #[async_trait]
    impl SecretSource for Source {
        async fn resolve(&self, reference: &SecretReference) -> Result<SecretText> {
            let SecretReference::Environment(name) = reference else {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("{CANARY} is not supported"),
                ));
            };
            match name.as_str() {
                "AWAY" => Err(Error::new(ErrorKind::Unavailable, format!("{CANARY} is away"))),
                "LOST" => {
                    let error = Error::new(ErrorKind::Unavailable, format!("{CANARY} has another key"));
                    Err(error.with_reason(ReasonCode::SecretKeyMissing))
                }
                "SHUT" => Err(Error::new(ErrorKind::Forbidden, format!("{CANARY} is forbidden"))),
                name => self
                    .0
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| SecretText::new(value.clone()))
                    .ok_or_else(|| Error::not_found("secret", CANARY)),
            }
        }
    }

    fn source() -> Source {
        Source(vec![
            ("GOOD", format!("{CANARY}-good")),
            ("EMPTY", String::new()),
            ("INJECTION", format!("{CANARY}\r\nX-Evil: 1")),
            ("NEWLINE", format!("{CANARY}\n")),
            ("NUL", format!("{CANARY}\0")),
            ("SPACE", format!(" {CANARY}")),
            ("LONG", "x".repeat(SECRET_LENGTH + 1)),
            ("LINES", format!("{CANARY}\nsecond")),
        ])
    }

    fn value(text: &str) -> ConfigValue {
        ConfigValue::from_input(text)
    }

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, ConfigValue> {
        pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), value(text)))
            .collect()
    }

    fn remote(headers: &[(&str, &str)], auth: Auth) -> ServerDefinition {
        definition(
            Endpoint::StreamableHttp(RemoteEndpoint {
                url: "https://example.com/mcp".into(),
                headers: values(headers),
            }),
            auth,
        )
    }

    fn stdio(env: &[(&str, &str)]) -> ServerDefinition {
        definition(
            Endpoint::Stdio(StdioEndpoint {
                command: "/bin/true".into(),
                args: vec![],
                env: values(env),
            }),
            Auth::None,
        )
    }

    fn definition(endpoint: Endpoint, auth: Auth) -> ServerDefinition {
        ServerDefinition {
            name: "one".parse().unwrap(),
            description: String::new(),
            icon: String::new(),
            endpoint,
            auth,
            sharing: Sharing::PerCaller,
            limits: ServerLimits::default(),
        }
    }

    fn token(text: &str) -> Auth {
        Auth::Token { token: value(text) }
    }

    async fn header(definition: ServerDefinition, name: &str) -> Option<String> {
        let credentials = resolve(&definition, &source()).await.unwrap();
        assert!(credentials.env.is_empty());
        assert!(credentials.headers.values().all(HeaderValue::is_sensitive));
        assert!(
            !format!("{credentials:?}").contains(CANARY),
            "Debug shows no secret"
        );
        let value = credentials.headers.get(name)?;
        Some(value.to_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn each_kind_of_authentication_has_its_header() {
        let good = format!("{CANARY}-good");
        assert_eq!(header(remote(&[], Auth::None), "authorization").await, None);
        assert_eq!(
            header(remote(&[], token("env://GOOD")), "authorization").await,
            Some(format!("Bearer {good}"))
        );
        let basic = Auth::Basic {
            username: "anna".into(),
            password: value("pass:word"),
        };
        // printf 'anna:pass:word' | base64
        assert_eq!(
            header(remote(&[], basic), "authorization").await.as_deref(),
            Some("Basic YW5uYTpwYXNzOndvcmQ=")
        );
        let custom = Auth::Custom {
            headers: values(&[("X-Api-Key", "env://GOOD"), ("authorization", "Key 2")]),
        };
        let definition = remote(&[("Authorization", "Key 1")], custom);
        assert_eq!(header(definition.clone(), "x-api-key").await, Some(good));
        assert_eq!(
            header(definition, "authorization").await.as_deref(),
            Some("Key 2"),
            "custom replaces"
        );
    }

    #[tokio::test]
    async fn an_authorization_header_of_the_endpoint_wins_over_token_and_basic() {
        let basic = Auth::Basic {
            username: "anna".into(),
            password: value("x"),
        };
        for auth in [token("other"), basic] {
            let definition = remote(&[("aUTHORIZATION", "Key 1")], auth);
            assert_eq!(
                header(definition, "authorization").await.as_deref(),
                Some("Key 1")
            );
        }
    }

    #[tokio::test]
    async fn a_child_gets_its_environment_and_no_header() {
        let definition = stdio(&[("TOKEN", "env://GOOD"), ("KEY", "env://LINES"), ("MODE", "plain")]);
        let credentials = resolve(&definition, &source()).await.unwrap();
        assert!(credentials.headers.is_empty());
        let keys: Vec<_> = credentials.env.keys().map(String::as_str).collect();
        assert_eq!(keys, ["KEY", "MODE", "TOKEN"]);
        assert_eq!(
            credentials.env.get("KEY").unwrap().expose(),
            format!("{CANARY}\nsecond")
        );
        assert!(!format!("{credentials:?}").contains(CANARY));
    }

    #[tokio::test]
    async fn what_cannot_be_resolved_names_its_field_and_no_value() {
        let cases = [
            ("env://ABSENT", ErrorKind::Upstream, "there is none"),
            ("env://SHUT", ErrorKind::Upstream, "may not be read"),
            ("env://AWAY", ErrorKind::Unavailable, "is away"),
            ("env://LOST", ErrorKind::Unavailable, "key that is not here"),
            ("file:///nowhere", ErrorKind::Upstream, "not supported"),
            ("env://EMPTY", ErrorKind::Upstream, "is empty"),
            ("env://NUL", ErrorKind::Upstream, "NUL"),
            ("env://LONG", ErrorKind::Upstream, "longer than"),
            (
                caliber_core::secret::WRITE_ONLY,
                ErrorKind::Upstream,
                "placeholder",
            ),
        ];
        for (text, kind, what) in cases {
            let field_of = [
                (stdio(&[("TOKEN", text)]), "env.TOKEN"),
                (remote(&[("X-Key", text)], Auth::None), "headers.X-Key"),
                (remote(&[], token(text)), "auth_config.token"),
            ];
            for (definition, field) in field_of {
                let error = resolve(&definition, &source()).await.unwrap_err();
                assert_eq!(error.kind(), kind, "{text}");
                let reason = match text {
                    "env://LOST" => ReasonCode::SecretKeyMissing,
                    _ => ReasonCode::SecretUnresolved,
                };
                assert_eq!(error.reason(), Some(reason), "{text}");
                assert!(error.message().contains(field), "{error}");
                assert!(error.message().contains(what), "{error}");
                assert!(!format!("{error} {error:?}").contains(CANARY), "{text}");
            }
        }
    }

    #[tokio::test]
    async fn no_value_can_end_a_header_line() {
        for text in [
            "env://INJECTION",
            "env://NEWLINE",
            "env://SPACE",
            "a\r\nX-Evil: 1",
            "a\u{7f}",
        ] {
            let basic = Auth::Basic {
                username: "anna".into(),
                password: value(text),
            };
            let custom = Auth::Custom {
                headers: values(&[("X-Key", text)]),
            };
            for definition in [
                remote(&[("X-Key", text)], Auth::None),
                remote(&[], token(text)),
                remote(&[], basic),
                remote(&[], custom),
            ] {
                let error = resolve(&definition, &source()).await.unwrap_err();
                assert_eq!(error.reason(), Some(ReasonCode::SecretUnresolved), "{text:?}");
                let shown = format!("{error} {error:?}");
                assert!(
                    !shown.contains(CANARY) && !shown.contains("X-Evil"),
                    "{text:?}: {shown}"
                );
            }
        }
    }

    #[tokio::test]
    async fn headers_that_http_or_mcp_own_are_refused_here_too() {
        for name in [
            "Host",
            "Content-Length",
            "Mcp-Session-Id",
            "Transfer-Encoding",
            "a b",
            "x\r\ny",
        ] {
            let error = resolve(&remote(&[(name, "1")], Auth::None), &source())
                .await
                .unwrap_err();
            assert!(error.message().contains("no header that can be set"), "{error}");
            assert!(!error.message().contains('\n'));
        }
    }

    #[tokio::test]
    async fn a_user_name_cannot_shift_the_password() {
        for username in ["a:b", "a\nb"] {
            let basic = Auth::Basic {
                username: username.into(),
                password: value("x"),
            };
            assert!(
                resolve(&remote(&[], basic), &source()).await.is_err(),
                "{username:?}"
            );
        }
    }
}
