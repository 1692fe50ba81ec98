//! The bounds of shape of a definition.

use std::collections::BTreeMap;

use super::{
    Auth, DESCRIPTION_LENGTH, ENDPOINT_ENTRIES, ENDPOINT_TEXT_LENGTH, Endpoint, ICON_LENGTH, ServerDefinition,
};
use crate::error::{Error, FieldProblem, Result};
use crate::policy::{HIGHEST_CONCURRENCY, LARGEST_RESULT, LONGEST_CALL_MS};
use crate::secret::{ConfigValue, SECRET_LENGTH};
use crate::text::shown;

impl ServerDefinition {
    /// Checks every bound of shape at once. What the installation allows is a question for readiness, later.
    ///
    /// # Errors
    ///
    /// `Invalid`, naming each wrong field.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Problems(Vec::new());
        problems.bytes("description", &self.description, DESCRIPTION_LENGTH);
        problems.bytes("icon", &self.icon, ICON_LENGTH);
        match &self.endpoint {
            Endpoint::Stdio(stdio) => {
                problems.text("command", &stdio.command, ENDPOINT_TEXT_LENGTH);
                if stdio.command.trim().is_empty() {
                    problems.add("command", "it is empty; name an executable".into());
                }
                problems.count("args", stdio.args.len());
                for (index, argument) in stdio.args.iter().enumerate() {
                    problems.text(&format!("args[{index}]"), argument, ENDPOINT_TEXT_LENGTH);
                }
                problems.values(
                    "env",
                    &stdio.env,
                    is_environment_key,
                    "letters, digits and _, not starting with a digit",
                );
                if !matches!(self.auth, Auth::None) {
                    problems.add(
                        "auth_type",
                        "a stdio server takes its credentials from `env`; use none".into(),
                    );
                }
            }
            Endpoint::StreamableHttp(remote) | Endpoint::Sse(remote) => {
                problems.text("uri", &remote.url, ENDPOINT_TEXT_LENGTH);
                match url::Url::parse(&remote.url) {
                    Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {
                        if !url.username().is_empty() || url.password().is_some() {
                            problems.add("uri", "it holds credentials; move them into `auth_config`".into());
                        }
                        if url.fragment().is_some() {
                            problems.add("uri", "it holds a fragment; remove it".into());
                        }
                    }
                    _ => problems.add("uri", "it is no absolute http or https URL".into()),
                }
                problems.headers("headers", &remote.headers);
            }
        }
        match &self.auth {
            Auth::None => {}
            Auth::Token { token } => problems.header_value("auth_config.token", token),
            Auth::Basic { username, password } => {
                problems.text("auth_config.username", username, 256);
                if username.contains(':') {
                    problems.add("auth_config.username", "it holds a colon".into());
                }
                problems.header_value("auth_config.password", password);
            }
            Auth::Custom { headers } => problems.headers("auth_config.headers", headers),
        }
        let limits = &self.limits;
        problems.range("limits.timeout_ms", limits.timeout_ms, 1, LONGEST_CALL_MS);
        problems.range(
            "limits.concurrency",
            limits.concurrency.map(u64::from),
            1,
            HIGHEST_CONCURRENCY.into(),
        );
        problems.range("limits.result_bytes", limits.result_bytes, 1, LARGEST_RESULT);
        if problems.0.is_empty() {
            Ok(())
        } else {
            Err(Error::invalid_fields(problems.0))
        }
    }
}

/// Whether `key` can name an environment variable. The one parser of such names.
pub fn is_environment_key(key: &str) -> bool {
    (1..=256).contains(&key.len())
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !key.starts_with(|first: char| first.is_ascii_digit())
}

/// Whether `name` can be a header that a person sets: token characters (RFC 9110 §5.6.2), and none that the
/// transport or the protocol owns.
pub fn is_settable_header(name: &str) -> bool {
    const OWNED: [&str; 14] = [
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "last-event-id",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let lower = name.to_ascii_lowercase();
    (1..=256).contains(&name.len())
        && name.bytes().all(token)
        && !OWNED.contains(&lower.as_str())
        && !lower.starts_with("mcp-")
        && !lower.starts_with("proxy-")
}

struct Problems(Vec<FieldProblem>);

impl Problems {
    fn add(&mut self, field: &str, problem: String) {
        self.0.push(FieldProblem {
            field: field.to_owned(),
            problem,
        });
    }

    fn bytes(&mut self, field: &str, value: &str, limit: usize) {
        if value.len() > limit {
            self.add(
                field,
                format!("it has {} bytes; the limit is {limit}", value.len()),
            );
        }
    }

    fn text(&mut self, field: &str, value: &str, limit: usize) {
        self.bytes(field, value, limit);
        if value.contains('\0') {
            self.add(field, "it holds a NUL character".into());
        }
    }

    fn count(&mut self, field: &str, count: usize) {
        if count > ENDPOINT_ENTRIES {
            self.add(
                field,
                format!("it has {count} entries; the limit is {ENDPOINT_ENTRIES}"),
            );
        }
    }

    fn range(&mut self, field: &str, value: Option<u64>, least: u64, most: u64) {
        if value.is_some_and(|value| !(least..=most).contains(&value)) {
            self.add(field, format!("it must lie between {least} and {most}"));
        }
    }

    fn values(
        &mut self,
        field: &str,
        values: &BTreeMap<String, ConfigValue>,
        valid: fn(&str) -> bool,
        rule: &str,
    ) {
        self.count(field, values.len());
        for (key, value) in values {
            if !valid(key) {
                self.add(
                    field,
                    format!("{} is not allowed as a key; use {rule}", shown(key)),
                );
            }
            if let ConfigValue::Literal(secret) = value {
                if secret.expose().len() > SECRET_LENGTH {
                    self.add(
                        &format!("{field}.{key}"),
                        format!("it is longer than {SECRET_LENGTH} bytes"),
                    );
                }
                if secret.expose().contains('\0') {
                    self.add(&format!("{field}.{key}"), "it holds a NUL character".into());
                }
            }
        }
    }

    fn headers(&mut self, field: &str, headers: &BTreeMap<String, ConfigValue>) {
        self.values(
            field,
            headers,
            is_settable_header,
            "token characters, and no header that HTTP or MCP owns",
        );
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in headers {
            let lower = name.to_ascii_lowercase();
            if seen.contains(&lower) {
                self.add(field, format!("{} appears twice", shown(name)));
            }
            seen.push(lower);
            self.header_value(&format!("{field}.{name}"), value);
        }
    }

    fn header_value(&mut self, field: &str, value: &ConfigValue) {
        let ConfigValue::Literal(secret) = value else {
            return;
        };
        let text = secret.expose();
        let visible =
            |byte: u8| byte == b'\t' || byte == b' ' || (0x21..=0x7e).contains(&byte) || byte >= 0x80;
        if text.is_empty() || text.trim() != text || !text.bytes().all(visible) {
            self.add(
                field,
                "a header value has visible characters only and no space around it".into(),
            );
        }
        if text.len() > SECRET_LENGTH {
            self.add(field, format!("it is longer than {SECRET_LENGTH} bytes"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RemoteEndpoint, ServerLimits, Sharing};
    use super::*;

    fn remote(url: &str) -> ServerDefinition {
        ServerDefinition {
            name: "weather".parse().unwrap(),
            description: String::new(),
            icon: String::new(),
            endpoint: Endpoint::StreamableHttp(RemoteEndpoint {
                url: url.into(),
                headers: BTreeMap::new(),
            }),
            auth: Auth::None,
            sharing: Sharing::PerCaller,
            limits: ServerLimits::default(),
        }
    }

    #[test]
    fn urls_are_absolute_and_hold_no_credentials() {
        assert!(remote("https://example.com/mcp").validate().is_ok());
        for url in [
            "",
            "/mcp",
            "ftp://example.com",
            "https://user:pw@example.com",
            "https://example.com/#x",
            "http://",
        ] {
            let error = remote(url).validate().unwrap_err();
            assert!(
                error.fields().iter().any(|field| field.field == "uri"),
                "{url}: {error}"
            );
            assert!(!error.to_string().contains("pw"), "{error}");
        }
    }

    #[test]
    fn headers_cannot_split_a_request_or_take_over_the_protocol() {
        let with = |name: &str, value: &str| {
            let mut definition = remote("https://example.com/mcp");
            let headers = BTreeMap::from([(name.to_owned(), ConfigValue::from_input(value))]);
            definition.endpoint = Endpoint::StreamableHttp(RemoteEndpoint {
                url: "https://example.com/mcp".into(),
                headers,
            });
            definition.validate()
        };
        assert!(with("X-Api-Key", "abc").is_ok());
        for name in [
            "Host",
            "Content-Length",
            "Transfer-Encoding",
            "Connection",
            "Mcp-Session-Id",
            "a b",
            "",
            "ü",
        ] {
            assert!(with(name, "abc").is_err(), "{name}");
        }
        for value in ["a\r\nX-Evil: 1", "a\0", " a", "a ", ""] {
            assert!(with("X-Api-Key", value).is_err(), "{value:?}");
        }
    }
}
