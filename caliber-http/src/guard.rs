//! What every request passes before a handler sees it, and every answer after.

use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use caliber_core::policy::LONGEST_CALL_MS;
use caliber_core::{Error, ErrorKind};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode, header};
use tower_http::request_id::{MakeRequestId, MakeRequestUuid};
use tracing::Instrument;

use crate::body::too_large;
use crate::identity::{only, peer};
use crate::problem::{HttpReason, Problem};
use crate::state::{Api, Source, Underway};

/// Names a request in our log and for its sender. One that a client sends is not taken over.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest call of a tool that a policy or a server may set.
const LONGEST_CALL: Duration = Duration::from_millis(LONGEST_CALL_MS);

/// The way of one request.
pub(crate) async fn guard(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    let method = request.method().clone();
    let id = MakeRequestUuid.make_request_id(&request);
    request.headers_mut().remove(&REQUEST_ID);
    let shown_id = id
        .as_ref()
        .and_then(|id| id.header_value().to_str().ok())
        .unwrap_or_default();
    let span = tracing::info_span!("request", %method, route, id = shown_id);
    let metrics = api.metrics();
    metrics.under_way.inc();
    let _leave = OnDrop(|| {
        metrics.under_way.dec();
    });
    let mut response = pass(&api, request, next, &route).instrument(span.clone()).await;
    let headers = response.headers_mut();
    if let Some(id) = id {
        headers.insert(REQUEST_ID, id.into_header_value());
    }
    // Answers hold what only this caller may see.
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static(
            "default-src 'none'; frame-ancestors 'none'",
        ));
    let elapsed = started.elapsed();
    metrics.answered(&method, &route, response.status(), elapsed);
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), ?elapsed, "answered"));
    response
}

async fn pass(api: &Api, request: Request, next: Next, route: &str) -> Response {
    let (parts, body) = request.into_parts();
    let _underway = match check(api, &parts, route) {
        Ok(underway) => underway,
        Err(problem) => return problem.into_response(),
    };
    let mut limit = api.settings().request_timeout;
    if route.ends_with("/invoke-tool") {
        limit = limit.saturating_add(LONGEST_CALL);
    }
    let request = Request::from_parts(parts, body);
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            tracing::warn!("a request was given up at its time limit");
            let seconds = limit.as_secs_f64();
            let detail = format!("the request was not answered within {seconds} seconds");
            Problem::from(Error::new(ErrorKind::Timeout, detail)).into_response()
        }
    }
}

/// The cheap checks, none of which needs to know who asks.
fn check(api: &Api, parts: &Parts, route: &str) -> Result<Option<Underway>, Problem> {
    // Probes of an orchestrator name the address of the container, and learn nothing but whether we live.
    if !matches!(route, "/healthz" | "/readyz") {
        api.origins().check(&parts.uri, &parts.headers)?;
    }
    let encoded = parts
        .headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"));
    if encoded {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            HttpReason::ContentEncodingRefused,
            "send the body as it is: compressed bodies are not read",
        ));
    }
    let limit = api.settings().body_bytes;
    let length = only(&parts.headers, &header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let Some(source) = source(api, parts) else {
        // A host that serves the router itself without telling addresses has limits of its own.
        return Ok(None);
    };
    let underway = api.enter(source).ok_or_else(|| {
        Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            HttpReason::TooManyRequests,
            "too many requests of this source are under way; wait for some of them",
        )
        .with_retry_after(Duration::from_secs(1))
    })?;
    Ok(Some(underway))
}

fn source(api: &Api, parts: &Parts) -> Option<Source> {
    let peer = peer(parts)?;
    let trusted = api
        .settings()
        .trusted_identity
        .as_ref()
        .filter(|trusted| trusted.trusts(peer));
    let subject = trusted.and_then(|trusted| only(&parts.headers, &trusted.header));
    Some(Source {
        peer,
        subject: subject.map(|subject| subject.as_bytes().into()),
    })
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
