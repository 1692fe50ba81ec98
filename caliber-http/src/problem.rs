//! What a refused or failed request gets: a problem document (RFC 9457), and the one mapping of errors to it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind, FieldProblem};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

/// The media type of every answer that is no success.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// The reason codes of HTTP itself. They stand beside those of admission and of the gateway
        /// ([`ReasonCode`]) in `reason_code`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum HttpReason {
            $($(#[$doc])* $name,)*
        }

        impl HttpReason {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The stable word.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code),* }
            }
        }
    };
}

reasons! {
    /// 400: a field, parameter or header is wrong; `errors` names each.
    InvalidRequest = "invalid_request",
    /// 401: nobody could be identified.
    Unauthenticated = "unauthenticated",
    /// 403: the caller lacks a scope.
    Forbidden = "forbidden",
    /// 403: the page that sends the request stands on another origin.
    OriginRefused = "origin_refused",
    /// 404: there is no such thing, or the caller may not see it.
    NotFound = "not_found",
    /// 405: the thing does not take this method.
    MethodNotAllowed = "method_not_allowed",
    /// 408: the body did not arrive in time.
    BodyTimeout = "body_timeout",
    /// 409: the state does not allow it.
    Conflict = "conflict",
    /// 413: a body or a value is larger than the limit.
    TooLarge = "too_large",
    /// 415: the body is no JSON by its type.
    ContentTypeRefused = "content_type_refused",
    /// 415: the body is compressed.
    ContentEncodingRefused = "content_encoding_refused",
    /// 421: the host that the request is addressed to is not ours.
    HostRefused = "host_refused",
    /// 429: this source has too many requests under way.
    TooManyRequests = "too_many_requests",
    /// 409: this installation does not offer it.
    Unsupported = "unsupported",
    /// 500: a defect; the log has the request id.
    Internal = "internal",
    /// 503: something that is needed is away.
    Unavailable = "unavailable",
}

/// A refusal or failure on its way to the client.
pub(crate) struct Problem(Box<Inner>);

struct Inner {
    status: StatusCode,
    reason: Cow<'static, str>,
    detail: String,
    errors: Vec<FieldError>,
    approval_id: Option<String>,
    invocation_id: Option<String>,
    retry_after: Option<Duration>,
    challenge: Option<HeaderValue>,
    /// Whether a moved revision was a condition of the request.
    kind: Option<ErrorKind>,
}

/// A problem document (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemDocument<'a> {
    /// Always `about:blank`: `reason_code` says what happened.
    r#type: &'static str,
    /// The phrase of the status.
    #[schema(min_length = 1)]
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// The HTTP status again, where clients of the reference look for it.
    #[schema(minimum = 400, maximum = 599)]
    status_code: u16,
    /// One line for people: what was wrong and what to do.
    detail: &'a str,
    /// The stable word for programs.
    #[schema(min_length = 1)]
    reason_code: &'a str,
    /// Each wrong field, when fields were wrong.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(required = false)]
    errors: &'a [FieldError],
    /// The request for consent that was made, when the call needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    approval_id: Option<&'a str>,
    /// The call in the ledger, when it was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    invocation_id: Option<&'a str>,
}

/// One wrong field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FieldError {
    /// Where: `body`, `query`, `path` or `header`, then the way to the field.
    pub(crate) loc: Vec<String>,
    /// What is wrong and what would be right.
    pub(crate) msg: String,
    /// The class.
    pub(crate) r#type: FieldErrorType,
}

/// The class of a wrong field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FieldErrorType {
    /// It is required.
    Missing,
    /// There is no such field.
    Unknown,
    /// It stands there twice.
    Duplicate,
    /// Its type or value is wrong.
    Invalid,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, reason: HttpReason, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            status,
            reason: Cow::Borrowed(reason.as_str()),
            detail: detail.into(),
            errors: Vec::new(),
            approval_id: None,
            invocation_id: None,
            retry_after: None,
            challenge: None,
            kind: None,
        }))
    }

    /// A 400 that names what is wrong. `place` is `body`, `query`, `path` or `header`.
    pub(crate) fn invalid(place: &str, problems: Vec<FieldProblem>) -> Self {
        let errors = problems
            .into_iter()
            .map(|problem| FieldError {
                loc: location(place, &problem.field),
                msg: problem.problem,
                r#type: FieldErrorType::Invalid,
            })
            .collect();
        Self::invalid_fields(errors)
    }

    /// A 400 about one field.
    pub(crate) fn invalid_field(place: &str, field: &str, problem: impl Into<String>) -> Self {
        Self::invalid(
            place,
            vec![FieldProblem {
                field: field.to_owned(),
                problem: problem.into(),
            }],
        )
    }

    pub(crate) fn invalid_fields(errors: Vec<FieldError>) -> Self {
        let detail = errors
            .iter()
            .map(|error| format!("{}: {}", error.loc.join("."), error.msg))
            .collect::<Vec<_>>()
            .join("; ");
        let mut problem = Self::new(StatusCode::BAD_REQUEST, HttpReason::InvalidRequest, detail);
        problem.0.errors = errors;
        problem
    }

    pub(crate) fn with_retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    pub(crate) fn with_challenge(mut self, challenge: &'static str) -> Self {
        self.0.challenge = Some(HeaderValue::from_static(challenge));
        self
    }

    /// The wrong fields of a request without a body are parameters of its query.
    pub(crate) fn in_query(mut self) -> Self {
        for error in &mut self.0.errors {
            if let Some(place) = error.loc.first_mut() {
                "query".clone_into(place);
            }
        }
        self
    }

    /// Leaves out a step that the fields of the core have and those of the wire have not.
    pub(crate) fn without_step(mut self, step: &str) -> Self {
        for error in &mut self.0.errors {
            error.loc.retain(|own| own != step);
        }
        self
    }

    /// Arguments that do not fit stand in this field of the request.
    pub(crate) fn with_arguments_at(mut self, field: &str) -> Self {
        for error in &mut self.0.errors {
            if let [_, named] = error.loc.as_mut_slice()
                && named == "arguments"
            {
                field.clone_into(named);
            }
        }
        self
    }

    /// An invalid request that names no field is about this one.
    pub(crate) fn about_field(self, field: &str) -> Self {
        if self.0.kind == Some(ErrorKind::Invalid) && self.0.errors.is_empty() {
            let mut problem = Self::invalid_field("body", field, self.0.detail);
            problem.0.reason = self.0.reason;
            problem.0.invocation_id = self.0.invocation_id;
            return problem;
        }
        self
    }

    /// A moved revision that the client made a condition (`If-Match`) is a failed precondition (RFC 9110 §13.1.1).
    pub(crate) fn into_failed_precondition(mut self) -> Self {
        if self.0.reason == ReasonCode::StaleRevision.as_str() {
            self.0.status = StatusCode::PRECONDITION_FAILED;
        }
        self
    }

    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    pub(crate) fn reason(&self) -> &str {
        &self.0.reason
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let (status, reason) = classify(&error);
        let mut detail = error.message().to_owned();
        match error.kind() {
            ErrorKind::Internal => {
                tracing::error!(%error, source = ?std::error::Error::source(&error), "a defect");
                "a defect in caliber; the log has more under this request's id".clone_into(&mut detail);
            }
            _ if status.is_server_error() => tracing::warn!(%error, "a request failed"),
            _ => {}
        }
        let mut problem = Self::new(status, HttpReason::Internal, detail);
        let inner = &mut problem.0;
        inner.kind = Some(error.kind());
        inner.reason = Cow::Borrowed(reason);
        let field_error = |field: &FieldProblem| FieldError {
            loc: location("body", &field.field),
            msg: field.problem.clone(),
            r#type: FieldErrorType::Invalid,
        };
        inner.errors = error.fields().iter().map(field_error).collect();
        if matches!(
            error.reason(),
            Some(ReasonCode::ArgumentsInvalid | ReasonCode::ArgumentsUnchecked)
        ) {
            inner.errors = vec![FieldError {
                loc: location("body", "arguments"),
                msg: inner.detail.clone(),
                r#type: FieldErrorType::Invalid,
            }];
        }
        for (key, value) in error.context() {
            match *key {
                "approval" => inner.approval_id = Some(value.clone()),
                "invocation" => inner.invocation_id = Some(value.clone()),
                "retry_after_ms" => inner.retry_after = value.parse().ok().map(Duration::from_millis),
                _ => {}
            }
        }
        let passing = matches!(
            status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        );
        if passing && inner.retry_after.is_none() {
            inner.retry_after = Some(Duration::from_secs(1));
        }
        if status == StatusCode::UNAUTHORIZED {
            inner.challenge = Some(HeaderValue::from_static(
                r#"Bearer realm="caliber", error="invalid_token""#,
            ));
        }
        problem
    }
}

/// The status and the reason code of an error. 502, 503 and 504 are kept for faults of an upstream or the store:
/// nothing that a client can send leads to them.
fn classify(error: &Error) -> (StatusCode, &'static str) {
    use {ErrorKind as Kind, ReasonCode as Code};
    let (status, word) = match error.kind() {
        Kind::Invalid => (StatusCode::BAD_REQUEST, HttpReason::InvalidRequest.as_str()),
        Kind::Unauthenticated => (StatusCode::UNAUTHORIZED, HttpReason::Unauthenticated.as_str()),
        Kind::Forbidden => (StatusCode::FORBIDDEN, HttpReason::Forbidden.as_str()),
        Kind::NotFound => (StatusCode::NOT_FOUND, HttpReason::NotFound.as_str()),
        Kind::Conflict => (StatusCode::CONFLICT, HttpReason::Conflict.as_str()),
        Kind::Unsupported => (StatusCode::CONFLICT, HttpReason::Unsupported.as_str()),
        // The state of a tool or server forbids the call until somebody changes it; only a caller that may
        // not call, or a tool that nobody may, is forbidden.
        Kind::Denied => match error.reason() {
            Some(Code::Blocked | Code::NotGranted | Code::PolicyError) | None => {
                (StatusCode::FORBIDDEN, HttpReason::Forbidden.as_str())
            }
            Some(Code::ArgumentsInvalid | Code::ArgumentsUnchecked) => {
                (StatusCode::BAD_REQUEST, HttpReason::InvalidRequest.as_str())
            }
            Some(_) => (StatusCode::CONFLICT, HttpReason::Conflict.as_str()),
        },
        Kind::ApprovalNeeded => (StatusCode::CONFLICT, Code::ApprovalRequired.as_str()),
        Kind::RateLimited => (StatusCode::TOO_MANY_REQUESTS, Code::RateLimited.as_str()),
        Kind::Unavailable => match error.reason() {
            // Too many callers at once, and a secret where none can be kept, are no faults of ours.
            Some(Code::ServerBusy) => (StatusCode::TOO_MANY_REQUESTS, Code::ServerBusy.as_str()),
            Some(Code::SecretKeyMissing) => (StatusCode::CONFLICT, Code::SecretKeyMissing.as_str()),
            _ => (StatusCode::SERVICE_UNAVAILABLE, HttpReason::Unavailable.as_str()),
        },
        Kind::Upstream => (StatusCode::BAD_GATEWAY, Code::UpstreamError.as_str()),
        Kind::OutcomeUnknown => (StatusCode::BAD_GATEWAY, Code::OutcomeUnknown.as_str()),
        Kind::Timeout => (StatusCode::GATEWAY_TIMEOUT, Code::Timeout.as_str()),
        Kind::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, Code::Cancelled.as_str()),
        Kind::TooLarge => match error.reason() {
            Some(Code::ResultTooLarge | Code::ListTooLarge) => {
                (StatusCode::BAD_GATEWAY, Code::UpstreamError.as_str())
            }
            _ => (StatusCode::PAYLOAD_TOO_LARGE, HttpReason::TooLarge.as_str()),
        },
        _ => (StatusCode::INTERNAL_SERVER_ERROR, HttpReason::Internal.as_str()),
    };
    (status, error.reason().map_or(word, ReasonCode::as_str))
}

/// `auth_config.headers[2]` as steps from `place`.
fn location(place: &str, field: &str) -> Vec<String> {
    let steps = field
        .split(['.', '['])
        .map(|step| step.trim_end_matches(']'))
        .filter(|step| !step.is_empty() && *step != place)
        .map(str::to_owned);
    std::iter::once(place.to_owned()).chain(steps).collect()
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let inner = *self.0;
        let document = ProblemDocument {
            r#type: "about:blank",
            title: inner.status.canonical_reason().unwrap_or("Error"),
            status: inner.status.as_u16(),
            status_code: inner.status.as_u16(),
            detail: &inner.detail,
            reason_code: &inner.reason,
            errors: &inner.errors,
            approval_id: inner.approval_id.as_deref(),
            invocation_id: inner.invocation_id.as_deref(),
        };
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = (inner.status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        if let Some(wait) = inner.retry_after {
            // Whole seconds, rounded up: earlier would be refused again.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if let Some(challenge) = inner.challenge {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Problem")
            .field("status", &self.0.status)
            .field("reason", &self.0.reason)
            .field("detail", &self.0.detail)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_from_each_other() {
        let words: std::collections::HashSet<_> = HttpReason::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(words.len(), HttpReason::ALL.len());
    }

    #[test]
    fn fields_become_steps() {
        assert_eq!(location("body", "args[2]"), ["body", "args", "2"]);
        assert_eq!(
            location("body", "auth_config.token"),
            ["body", "auth_config", "token"]
        );
        assert_eq!(location("body", "body"), ["body"]);
    }

    #[test]
    fn no_client_error_is_a_server_error() {
        let status = |kind, reason: Option<ReasonCode>| {
            let error = Error::new(kind, "x");
            classify(&match reason {
                Some(reason) => error.with_reason(reason),
                None => error,
            })
            .0
            .as_u16()
        };
        assert_eq!(status(ErrorKind::Denied, Some(ReasonCode::NotGranted)), 403);
        assert_eq!(status(ErrorKind::Denied, Some(ReasonCode::Drifted)), 409);
        assert_eq!(status(ErrorKind::Denied, Some(ReasonCode::ArgumentsInvalid)), 400);
        assert_eq!(status(ErrorKind::ApprovalNeeded, None), 409);
        assert_eq!(status(ErrorKind::Unavailable, Some(ReasonCode::ServerBusy)), 429);
        assert_eq!(
            status(ErrorKind::Unavailable, Some(ReasonCode::SecretKeyMissing)),
            409
        );
        assert_eq!(
            status(ErrorKind::Unavailable, Some(ReasonCode::StoreUnavailable)),
            503
        );
        assert_eq!(status(ErrorKind::TooLarge, None), 413);
        assert_eq!(status(ErrorKind::TooLarge, Some(ReasonCode::ResultTooLarge)), 502);
        assert_eq!(status(ErrorKind::Timeout, None), 504);
        assert_eq!(status(ErrorKind::Unsupported, None), 409);
    }

    #[test]
    fn waits_are_rounded_up() {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, HttpReason::TooManyRequests, "x")
            .with_retry_after(Duration::from_millis(1_001));
        assert_eq!(problem.into_response().headers()[header::RETRY_AFTER], "2");
    }
}
