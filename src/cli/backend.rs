//! Where a command does its work: a server that is reached over the network, or the local database.
//!
//! Both answer the same requests, those of the HTTP API: the local database through the very same routes, without a
//! network in between and as the local administrator. So a command is written once, and prints the same either way.

mod local;
mod remote;

use caliber::core::reason::ReasonCode;
use caliber::core::text::escaped;
use http::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::context::Context;
use super::failure::{Exit, Failure, Outcome, hint};
use super::fields::flag;
use local::Local;
pub(crate) use local::open_installation;
use remote::Remote;

use super::view;

/// The most items that a listing gathers.
const LIST_LIMIT: usize = 100_000;
/// The page that is asked for, in items: the largest.
const PAGE: usize = 500;

/// Where a command does its work.
#[derive(Debug)]
pub(crate) enum Backend {
    /// The local database.
    Local(Box<Local>),
    /// A server.
    Remote(Remote),
}

/// An answer: the status, and the body as it arrived.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    body: Vec<u8>,
}

/// A success of the API.
#[derive(Deserialize)]
struct Data {
    data: Box<RawValue>,
    #[serde(default)]
    next_cursor: Option<String>,
}

/// A problem document of the API, as far as it is read here.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Problem {
    detail: String,
    reason_code: String,
    approval_id: Option<String>,
    invocation_id: Option<String>,
    errors: Vec<FieldError>,
}

/// One wrong field of a problem document.
#[derive(Deserialize)]
struct FieldError {
    loc: Vec<String>,
    msg: String,
}

/// What a command needs of the local installation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Whether a database that is not there is made: the command has something to put into it. Otherwise it is refused:
    /// an empty database has no answer, and its path may be a slip.
    make: bool,
    /// Whether code tools are run or looked at. Finding out what the machine enforces takes a moment.
    sandbox: bool,
}

impl Needs {
    /// A database that is there.
    pub(crate) const DATABASE: Self = Self {
        make: false,
        sandbox: false,
    };

    /// The same, and a database that is not there is made.
    pub(crate) const fn or_make(self) -> Self {
        Self { make: true, ..self }
    }

    /// The same, and the sandbox.
    pub(crate) const fn with_sandbox(self) -> Self {
        Self {
            sandbox: true,
            ..self
        }
    }
}

impl Backend {
    /// The server of the flags, or else the local database.
    async fn open(context: &Context, needs: Needs) -> Outcome<Self> {
        match &context.global.server {
            Some(server) => Remote::open(context, server).map(Self::Remote),
            None => Local::open(context, needs)
                .await
                .map(|local| Self::Local(Box::new(local))),
        }
    }

    /// Opens it, does `work` with it, and closes it whatever came of the work: records are written at the end.
    pub(crate) async fn with(
        context: &Context,
        needs: Needs,
        work: impl AsyncFnOnce(&Self) -> Outcome,
    ) -> Outcome {
        let backend = Self::open(context, needs).await?;
        let done = work(&backend).await;
        let closed = match backend {
            Self::Local(local) => local.close().await,
            Self::Remote(_) => Ok(()),
        };
        done.and(closed)
    }

    /// Reads one thing.
    pub(crate) async fn get(&self, path: &str) -> Outcome<Box<RawValue>> {
        self.send(Method::GET, path, None::<&()>).await
    }

    /// Reads a list, all of its pages up to `limit` items.
    pub(crate) async fn list(
        &self,
        path: &str,
        query: &[(&str, &str)],
        limit: Option<usize>,
    ) -> Outcome<Vec<Box<RawValue>>> {
        let limit = limit.unwrap_or(LIST_LIMIT);
        let mut items: Vec<Box<RawValue>> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = PAGE.min(limit.saturating_sub(items.len())).max(1).to_string();
            let mut parameters: Vec<(&str, &str)> = query.to_vec();
            parameters.push(("limit", &page));
            if let Some(cursor) = &cursor {
                parameters.push(("cursor", cursor));
            }
            let answer = self
                .answer(Method::GET, &with_query(path, &parameters), None)
                .await?;
            let data: Data = read(&answer.body)?;
            let page: Vec<Box<RawValue>> = read(data.data.get().as_bytes())?;
            items.extend(page);
            cursor = data.next_cursor;
            if cursor.is_none() || items.len() >= limit {
                items.truncate(limit);
                return Ok(items);
            }
        }
    }

    /// Reads the tools of a server, all of its pages.
    pub(crate) async fn tools(&self, path: &str) -> Outcome<view::ToolList> {
        let mut list: Option<view::ToolList> = None;
        let mut cursor: Option<String> = None;
        loop {
            let page = PAGE.to_string();
            let mut parameters = vec![("limit", page.as_str())];
            parameters.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let answer = self
                .answer(Method::GET, &with_query(path, &parameters), None)
                .await?;
            let data: Data = read(&answer.body)?;
            let page: view::ToolList = value(&data.data)?;
            let tools = match &mut list {
                Some(list) => {
                    list.tools.extend(page.tools);
                    list.tools.len()
                }
                None => list.insert(page).tools.len(),
            };
            cursor = data.next_cursor;
            if let Some(list) = list.take_if(|_| cursor.is_none() || tools >= LIST_LIMIT) {
                return Ok(list);
            }
        }
    }

    /// Makes a request with a body, and gives what the answer holds; an empty object when it holds nothing.
    pub(crate) async fn send<T: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&T>,
    ) -> Outcome<Box<RawValue>> {
        let body = body.map(serde_json::to_vec).transpose().map_err(|error| {
            Failure::new(Exit::Failure, format!("the request cannot be written: {error}"))
        })?;
        let answer = self.answer(method, path, body).await?;
        if answer.body.is_empty() {
            return read(b"{}");
        }
        let data: Data = read(&answer.body)?;
        Ok(data.data)
    }

    /// Makes one request; everything but a success is a failure.
    async fn answer(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Outcome<Answer> {
        let answer = match self {
            Self::Local(local) => local.answer(method, path, body).await?,
            Self::Remote(remote) => remote.answer(method, path, body).await?,
        };
        if answer.status.is_success() {
            return Ok(answer);
        }
        Err(self.with_key_hint(refusal(&answer, path)))
    }

    /// A failure for want of a key names the file that lacks it, where that is on this machine.
    pub(crate) fn with_key_hint(&self, failure: Failure) -> Failure {
        match (failure.exit, self) {
            (Exit::Key, Self::Local(local)) => failure.with_hint(local.key_hint()),
            _ => failure,
        }
    }
}

/// Reads what the API sent.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Outcome<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Failure::new(
            Exit::Failure,
            format!("the answer is not one of this API: {error}"),
        )
        .with_hint("is the address that of a caliber server, with its prefix?")
    })
}

/// Reads a value of the API.
pub(crate) fn value<T: DeserializeOwned>(raw: &RawValue) -> Outcome<T> {
    read(raw.get().as_bytes())
}

/// A path with a query.
pub(crate) fn with_query(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters);
    format!("{path}?{}", query.finish())
}

/// The failure that an answer stands for.
fn refusal(answer: &Answer, path: &str) -> Failure {
    let Ok(problem) = serde_json::from_slice::<Problem>(&answer.body) else {
        let failure = Failure::new(
            Exit::Failure,
            format!("the server answered {} without saying why", answer.status),
        );
        return failure.with_hint("is the address that of a caliber server, with its prefix?");
    };
    let reason = serde_json::from_value(problem.reason_code.as_str().into())
        .ok()
        .filter(|reason| *reason != ReasonCode::Unknown);
    let exit = exit_of(answer.status, reason);
    let detail = if problem.detail.is_empty() {
        answer.status.to_string()
    } else if problem.errors.is_empty() || reason.is_some() {
        problem.detail
    } else {
        // The fields of the API are nothing to somebody who has written flags.
        let told = |error: &FieldError| format!("{}: {}", flag(&error.loc, path), error.msg);
        problem.errors.iter().map(told).collect::<Vec<_>>().join("; ")
    };
    let mut failure = Failure::new(exit, escaped(&detail, 4_000));
    let approval = problem.approval_id.map(|id| escaped(&id, 100));
    failure.hint = hint(exit, reason, approval.as_deref());
    if answer.status == StatusCode::UNAUTHORIZED {
        failure.hint = Some("give a token with --token-file or in CALIBER_TOKEN".into());
    }
    if !problem.reason_code.is_empty() {
        failure = failure.with_reason(escaped(&problem.reason_code, 100));
    }
    failure.approval = approval.map(Into::into);
    failure.invocation = problem.invocation_id.map(|id| escaped(&id, 100).into());
    failure
}

/// The exit code of a refusal. Reason codes say more than statuses: a call that admission refused may be any of
/// several.
pub(crate) fn exit_of(status: StatusCode, reason: Option<ReasonCode>) -> Exit {
    use ReasonCode as Code;
    match reason {
        Some(Code::ApprovalRequired) => return Exit::ApprovalNeeded,
        Some(Code::OutcomeUnknown | Code::SessionRestarted) => return Exit::OutcomeUnknown,
        Some(Code::Timeout) => return Exit::Timeout,
        Some(Code::Cancelled) => return Exit::Interrupted,
        Some(
            Code::RateLimited
            | Code::QuotaUnavailable
            | Code::ServerBusy
            | Code::BreakerOpen
            | Code::StoreUnavailable
            | Code::SandboxBusy
            | Code::SandboxFailed,
        ) => {
            return Exit::Unavailable;
        }
        Some(Code::SandboxUnavailable) => return Exit::SandboxUnavailable,
        Some(Code::ToolUnresolved) => return Exit::NotFound,
        Some(Code::ModuleNotAllowed | Code::ToolArchived) => return Exit::Denied,
        Some(Code::ArgumentsInvalid | Code::ArgumentsUnchecked) => return Exit::Usage,
        Some(
            Code::NameTaken
            | Code::VersionTaken
            | Code::SourceChanged
            | Code::StaleRevision
            | Code::InUse
            | Code::SecretOriginChanged,
        ) => {
            return Exit::Conflict;
        }
        Some(Code::SecretKeyMissing) => return Exit::Key,
        Some(
            Code::ServerNotReady
            | Code::EndpointMissing
            | Code::CommandNotAllowed
            | Code::ArgumentsNotAllowed
            | Code::EnvironmentNotAllowed
            | Code::UrlInvalid
            | Code::CredentialsInUrl
            | Code::HostNotAllowed
            | Code::AddressBlocked
            | Code::PlainHttp
            | Code::SecretNotAllowed
            | Code::IsolationMisconfigured,
        ) => return Exit::Denied,
        _ => {}
    }
    match status.as_u16() {
        400 | 408 | 413 | 415 | 421 => Exit::Usage,
        401 | 403 => Exit::Denied,
        404 => Exit::NotFound,
        // A conflict with a reason of admission is a refusal of the call; one without is about the state.
        409 if reason.is_some() => Exit::Denied,
        409 | 412 => Exit::Conflict,
        429 | 503 => Exit::Unavailable,
        502 => Exit::Upstream,
        504 => Exit::Timeout,
        _ => Exit::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> Failure {
        let answer = Answer {
            status: StatusCode::from_u16(status).unwrap(),
            body: body.as_bytes().to_vec(),
        };
        refusal(&answer, "/mcp-servers")
    }

    #[test]
    fn refusals_have_the_exit_code_of_their_reason() {
        for (status, reason, exit) in [
            (409, "unclassified", Exit::Denied),
            (409, "drifted", Exit::Denied),
            (403, "not_granted", Exit::Denied),
            (409, "approval_required", Exit::ApprovalNeeded),
            (409, "name_taken", Exit::Conflict),
            (409, "conflict", Exit::Conflict),
            (409, "version_taken", Exit::Conflict),
            (409, "module_not_allowed", Exit::Denied),
            (404, "tool_unresolved", Exit::NotFound),
            (503, "sandbox_unavailable", Exit::SandboxUnavailable),
            (503, "sandbox_busy", Exit::Unavailable),
            (412, "stale_revision", Exit::Conflict),
            (404, "not_found", Exit::NotFound),
            (400, "invalid_request", Exit::Usage),
            (400, "arguments_invalid", Exit::Usage),
            (429, "rate_limited", Exit::Unavailable),
            (502, "connect_failed", Exit::Upstream),
            (502, "outcome_unknown", Exit::OutcomeUnknown),
            (504, "timeout", Exit::Timeout),
            (500, "internal", Exit::Failure),
        ] {
            let body = format!(r#"{{"detail":"d","reason_code":"{reason}"}}"#);
            assert_eq!(refused(status, &body).exit, exit, "{status} {reason}");
        }
    }

    #[test]
    fn an_answer_of_somebody_else_is_told_as_such() {
        for body in ["<html>", "", "[1]"] {
            let failure = refused(404, body);
            assert!(failure.message.contains("404"), "{}", failure.message);
            assert!(failure.hint.is_some_and(|hint| hint.contains("prefix")));
        }
    }

    #[test]
    fn wrong_fields_are_told_by_their_flags() {
        let failure = refused(
            400,
            r#"{"detail":"body.limits.timeout_ms: no; body.x_y: so","reason_code":"invalid_request",
               "errors":[{"loc":["body","limits","timeout_ms"],"msg":"no"},{"loc":["body","x_y"],"msg":"so"}]}"#,
        );
        assert_eq!(failure.message, "--timeout-ms: no; --x-y: so");
    }

    #[test]
    fn a_request_for_consent_is_named_in_what_to_do() {
        let failure = refused(
            409,
            r#"{"detail":"d","reason_code":"approval_required","approval_id":"apr_7"}"#,
        );
        let hint = failure.hint.unwrap();
        assert!(
            hint.contains("approvals approve apr_7") && hint.contains("--approval apr_7"),
            "{hint}"
        );
    }

    #[test]
    fn what_a_server_says_is_escaped() {
        let failure = refused(
            409,
            "{\"detail\":\"a\\u001b[2J\\nb\",\"reason_code\":\"x\\u202e\"}",
        );
        assert_eq!(failure.message, "a\\u{1b}[2J\\nb");
        assert_eq!(failure.reason_code.as_deref(), Some("x\\u{202e}"));
    }
}
