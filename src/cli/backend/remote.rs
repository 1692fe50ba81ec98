//! A server that is reached over the network.

use std::time::Duration;

use caliber::core::address::is_loopback_host;
use caliber::core::id::ProjectId;
use caliber::core::policy::{LARGEST_RESULT, LONGEST_CALL_MS};
use caliber::core::secret::SecretText;
use caliber::core::text::shown;
use caliber::http::{ApiPrefix, PROJECT_HEADER};
use http::{HeaderMap, HeaderValue, Method, header};
use url::Url;

use super::Answer;
use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure, Outcome};

/// The longest set-up of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest silence of the server. A call may be under way for an hour, the longest that a policy allows.
const READ_TIMEOUT: Duration = Duration::from_millis(LONGEST_CALL_MS + 60_000);
/// The largest answer, in bytes: the largest result of a call and what stands around it.
const ANSWER_BYTES: usize = LARGEST_RESULT as usize + (1 << 20);

/// A server, with the token for it.
#[derive(Debug)]
pub(crate) struct Remote {
    client: reqwest::Client,
    /// Scheme, host, port and prefix, without a slash at the end.
    base: String,
}

impl Remote {
    pub(super) fn open(context: &Context, server: &str) -> Outcome<Self> {
        let token = context.token()?;
        let url = server_url(server, token.is_some(), context.global.plain_http)?;
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(header::AUTHORIZATION, bearer(&token)?);
        }
        if let Some(project) = &context.global.project {
            let project: ProjectId = project.parse()?;
            let value = HeaderValue::from_str(project.as_str());
            headers.insert(
                PROJECT_HEADER,
                value.map_err(|error| Failure::usage(error.to_string()))?,
            );
        }
        // This is a program and no library: the provider may be that of the whole process. It is set already when
        // another part of the command was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .user_agent(concat!("caliber/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            // A token goes where it was sent and nowhere else.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .build()
            .map_err(|error| {
                Failure::new(
                    Exit::Failure,
                    format!("no connection can be made: {}", whole(&error)),
                )
            })?;
        Ok(Self {
            client,
            base: base(&url),
        })
    }

    pub(super) async fn answer(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Outcome<Answer> {
        let reads = method == Method::GET;
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request
                .header(header::CONTENT_TYPE, "application/json")
                .body(body);
        }
        let mut response = request.send().await.map_err(|error| {
            if error.is_connect() || error.is_builder() || reads {
                let text = format!(
                    "the server {} cannot be reached: {}",
                    shown(&self.base),
                    whole(&error)
                );
                Failure::new(Exit::Unavailable, text)
            } else {
                lost(&error)
            }
        })?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| lost(&error))? {
            if body.len() + chunk.len() > ANSWER_BYTES {
                return Err(Failure::new(
                    Exit::Failure,
                    format!("the answer is larger than {ANSWER_BYTES} bytes"),
                ));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { status, body })
    }
}

/// What is left to say when a request was sent and nothing came back.
fn lost(error: &reqwest::Error) -> Failure {
    let text = format!("the request was sent and its answer was lost: {}", whole(error));
    Failure::new(Exit::OutcomeUnknown, text).with_hint("look at the server before you do it again")
}

/// An error with its causes. The URL holds no secret: a token travels in a header.
fn whole(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

fn bearer(token: &SecretText) -> Outcome<HeaderValue> {
    let value = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
    let mut value = value.map_err(|_| Failure::usage("the token holds characters that no token has"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads the address of a server. A token is not sent in clear text over a network unless somebody says so.
fn server_url(text: &str, with_token: bool, plain_http: bool) -> Outcome<Url> {
    let wrong = |what: &str| Failure::usage(format!("the server {} {what}", shown(text)));
    let url = Url::parse(text).map_err(|_| wrong("is no URL; write it as https://host:port"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(wrong("is no http or https URL"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // The address is not repeated: it holds a secret.
        return Err(Failure::usage(
            "the address of the server holds credentials; give a token instead",
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("holds more than host, port and prefix"));
    }
    if with_token && url.scheme() == "http" && !is_loopback_host(&url) && !plain_http {
        let failure = wrong("is reached over plain HTTP, and the token would be readable on the way");
        return Err(failure.with_hint("use https, or say --plain-http where the network is yours"));
    }
    Ok(url)
}

/// Where the routes stand: the path of the address, or the default prefix when it has none.
fn base(url: &Url) -> String {
    let origin = url.origin().ascii_serialization();
    match url.path().trim_end_matches('/') {
        "" => format!("{origin}{}", ApiPrefix::default()),
        path => format!("{origin}{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_sent_in_clear_text() {
        for (text, with_token, plain_http, fine) in [
            ("https://caliber.example.com", true, false, true),
            ("http://127.0.0.1:8640", true, false, true),
            ("http://[::1]:8640", true, false, true),
            ("http://caliber.example.com", false, false, true),
            ("http://caliber.example.com", true, false, false),
            ("http://127.0.0.1.example.com", true, false, false),
            ("http://caliber.example.com", true, true, true),
            ("https://ada:canary@caliber.example.com", true, false, false),
            ("caliber.example.com", true, false, false),
            ("ftp://caliber.example.com", true, false, false),
            ("https://caliber.example.com/?a=b", true, false, false),
        ] {
            let read = server_url(text, with_token, plain_http);
            assert_eq!(read.is_ok(), fine, "{text}");
            assert!(
                read.err()
                    .is_none_or(|failure| !failure.text().contains("canary"))
            );
        }
    }

    #[test]
    fn the_prefix_is_the_path_of_the_address() {
        for (text, expected) in [
            (
                "http://127.0.0.1:8640",
                "http://127.0.0.1:8640/ajax-api/2.0/mlflow/caliber",
            ),
            (
                "http://127.0.0.1:8640/",
                "http://127.0.0.1:8640/ajax-api/2.0/mlflow/caliber",
            ),
            ("https://example.com/caliber/", "https://example.com/caliber"),
        ] {
            assert_eq!(base(&Url::parse(text).unwrap()), expected);
        }
    }
}
