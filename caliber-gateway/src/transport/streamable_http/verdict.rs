//! What an HTTP answer means for a session.

use http::{StatusCode, header};

use super::over_limit;
use crate::error::Failure;
use crate::inbox::Reply;
use crate::raw::{self, Incoming, RpcError};
use caliber_core::reason::ReasonCode;

/// The largest body of a refusal that is read, in bytes.
const REFUSAL_BYTES: usize = 64 << 10;
/// The JSON-RPC code of a method that the upstream does not have.
const METHOD_NOT_FOUND: i64 = -32601;

/// A request that could not be sent, or whose answer did not come. The text names no address and no path.
pub(in crate::transport) fn of_error(error: &reqwest::Error) -> Failure {
    if error.is_connect() || error.is_builder() {
        Failure::connect(format!("the upstream cannot be reached: {}", root_cause(error)))
    } else {
        Failure::lost(format!(
            "the connection broke off before the answer: {}",
            root_cause(error)
        ))
    }
}

/// The innermost cause: `connection refused` rather than a chain that repeats the URL.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if std::ptr::eq(cause, error as &dyn std::error::Error) {
        return "the request failed".to_owned();
    }
    caliber_core::text::escaped(&cause.to_string(), 200).to_lowercase()
}

/// Refuses compressed answers: their size says nothing of what they expand to.
pub(in crate::transport) fn check_encoding(response: &reqwest::Response) -> Result<(), Failure> {
    let encodings = response.headers().get_all(header::CONTENT_ENCODING);
    if encodings.iter().all(|encoding| encoding == "identity") {
        Ok(())
    } else {
        Err(Failure::protocol(
            "the upstream compressed its answer, although it was asked not to",
        ))
    }
}

/// The media type without its parameters, in lower case.
pub(in crate::transport) fn content_type(response: &reqwest::Response) -> Option<String> {
    let value = response.headers().get(header::CONTENT_TYPE)?.to_str().ok()?;
    let media_type = value.split(';').next().unwrap_or_default();
    Some(media_type.trim().to_ascii_lowercase())
}

/// Reads a body of at most `limit` bytes.
pub(in crate::transport) async fn read_body(
    response: &mut reqwest::Response,
    limit: usize,
) -> Result<Vec<u8>, Failure> {
    let announced = response
        .content_length()
        .and_then(|length| usize::try_from(length).ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(over_limit(limit));
    }
    let mut body = Vec::with_capacity(announced.unwrap_or_default());
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > limit => return Err(over_limit(limit)),
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Err(_) => return Err(Failure::lost("the connection broke off within the answer")),
        }
    }
}

/// What a status that is no success says. Nothing of a body that is no JSON-RPC error is repeated.
pub(in crate::transport) async fn of_refusal(
    response: &mut reqwest::Response,
    id: u64,
    had_session: bool,
    has_credentials: bool,
) -> Result<Reply, Failure> {
    let status = response.status();
    match status {
        StatusCode::UNAUTHORIZED if !has_credentials && wants_oauth(response) => {
            return Err(Failure::unauthorized(
                ReasonCode::OauthUnsupported,
                "the upstream wants OAuth, and caliber exchanges and refreshes no tokens: terminate OAuth in a proxy \
                 that you operate and register the proxy, or give a static token in `auth_config`",
            ));
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(Failure::unauthorized(
                ReasonCode::UpstreamUnauthorized,
                format!(
                    "the upstream refused our credentials (HTTP {}); correct `auth_config`",
                    status.as_u16()
                ),
            ));
        }
        _ if status.is_redirection() => {
            return Err(Failure::upstream(format!(
                "the upstream answered with a redirect (HTTP {}), which is not followed; register the address that it \
                 leads to",
                status.as_u16()
            )));
        }
        _ => {}
    }
    let body = read_body(response, REFUSAL_BYTES).await.unwrap_or_default();
    let error = rpc_error(&body, id);
    if had_session && forgot_session(status, error.as_ref()) {
        return Err(Failure::session_forgotten());
    }
    match error {
        Some(error) => Ok(Err(error)),
        None if status.is_server_error() => Err(Failure::lost(format!(
            "the upstream failed (HTTP {}); whether it acted is unknown",
            status.as_u16()
        ))),
        None => Err(Failure::upstream(format!(
            "the upstream refused the request (HTTP {})",
            status.as_u16()
        ))),
    }
}

/// Whether a bearer challenge names the metadata of RFC 9728, or is one at all.
fn wants_oauth(response: &reqwest::Response) -> bool {
    response
        .headers()
        .get_all(header::WWW_AUTHENTICATE)
        .iter()
        .filter_map(|challenge| challenge.to_str().ok())
        .any(|challenge| challenge.trim_start().to_ascii_lowercase().starts_with("bearer"))
}

fn rpc_error(body: &[u8], id: u64) -> Option<RpcError> {
    match raw::parse(std::str::from_utf8(body).ok()?) {
        Ok(Incoming::Answer {
            id: answered,
            outcome: Err(error),
        }) if answered.is_none_or(|answered| answered == id) => Some(error),
        _ => None,
    }
}

/// 404 is what the specification says; some servers say 400 and explain themselves.
fn forgot_session(status: StatusCode, error: Option<&RpcError>) -> bool {
    match status {
        StatusCode::NOT_FOUND => error.is_none_or(|error| error.code != METHOD_NOT_FOUND),
        StatusCode::BAD_REQUEST => {
            error.is_some_and(|error| error.message.to_ascii_lowercase().contains("session"))
        }
        _ => false,
    }
}
