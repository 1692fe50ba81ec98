//! Registering, finding, changing and running code tools.

use axum::extract::State;
use axum::response::Response;
use caliber_core::code_tool::{ToolReference, VersionConstraint};
use caliber_core::id::CodeToolId;
use caliber_core::invocation::InvocationOutcome;
use caliber_core::principal::{Principal, Surface};
use caliber_core::reason::ReasonCode;
use http::{HeaderValue, header};

use crate::body::{Json, NoBody, OptionalJson};
use crate::convert;
use crate::document::{Conditional, Existing, Remote};
use crate::identity::Caller;
use crate::input::{IfMatch, PageParameters, Parameters, Segments, page_request};
use crate::problem::Problem;
use crate::reply::{self, Data, Paged, Reply};
use crate::state::Api;
use crate::wire::calls::InvocationRecord;
use crate::wire::code_tools::{
    CodeTool, CodeToolFilter, CodeToolInput, CodeToolPatchInput, CodeToolPath, CodeToolRun, CodeToolSource,
    CodeToolSummary, CodeToolUsage, ResolveQuery, ResolvedCodeTool, RunInput, Sandbox,
};

/// How often a change without a condition is decided again when somebody else changes the version meanwhile.
const CHANGE_ATTEMPTS: usize = 3;

/// List code tools
///
/// The versions that the caller sees: by name, then by project, the newest version first. A list shows no program,
/// schema or secret.
#[utoipa::path(
    get, path = "/tools", tag = "code tools", operation_id = "list_code_tools", params(CodeToolFilter),
    responses((status = 200, description = "A page of versions", body = Paged<Vec<CodeToolSummary>>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Parameters(filter): Parameters<CodeToolFilter>,
) -> Reply<Response> {
    let query = convert::code_tool_query(&filter)?;
    let page = page_request(filter.limit, filter.cursor);
    let tools = api
        .caliber()
        .code_tools(&principal, query, &page)
        .await
        .map_err(|error| Problem::from(error).in_query())?
        .map(convert::code_tool_summary);
    reply::page(tools.items, tools.next)
}

/// Register a version of a code tool
///
/// In the project of the request. Its source is read once and kept: what runs later is that copy. A module
/// is imported once, in the sandbox, to see that the callable is there; it is not called. Needs `admin`.
#[utoipa::path(
    post, path = "/tools", tag = "code tools", operation_id = "register_code_tool", request_body = CodeToolInput,
    responses(
        (status = 201, description = "The version", body = Data<CodeTool>,
            headers(("ETag" = String, description = "Its revision"), ("Location" = String, description = "Where it stands"))),
        Existing
    )
)]
pub(crate) async fn register(
    State(api): State<Api>,
    caller: Caller,
    Json(input): Json<CodeToolInput>,
) -> Reply<Response> {
    let registration = convert::code_tool_registration(input)?;
    let record = api
        .caliber()
        .register_code_tool(caller.who(), registration)
        .await
        .map_err(|error| Problem::from(error).without_step("program"))?;
    let tool = convert::code_tool(api.caliber().code_tool(&caller.0, &record.id).await?);
    let (location, revision) = (
        api.location(&format!("/tools/{}", record.id)),
        tool.summary.revision,
    );
    Ok(tagged(reply::created(&location, tool)?, revision))
}

/// Resolve a reference to a code tool
///
/// To the one version that it stands for in the project of the request: its own family before the public one of
/// another project, active before deprecated, then the highest version. It reads metadata only.
#[utoipa::path(
    get, path = "/tools/resolve", tag = "code tools", operation_id = "resolve_code_tool", params(ResolveQuery),
    responses((status = 200, description = "The version", body = Data<ResolvedCodeTool>))
)]
pub(crate) async fn resolve(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Parameters(query): Parameters<ResolveQuery>,
) -> Reply<Response> {
    let wrong = |field: &str, error: &caliber_core::Error| {
        let problem = error
            .fields()
            .first()
            .map_or(error.message(), |field| &field.problem);
        Problem::invalid_field("query", field, problem)
    };
    let reference: ToolReference = query
        .reference
        .parse()
        .map_err(|error| wrong("reference", &error))?;
    let constraint: VersionConstraint = query
        .constraint
        .as_deref()
        .unwrap_or_default()
        .parse()
        .map_err(|error| wrong("constraint", &error))?;
    let resolved = api
        .caliber()
        .resolve_code_tool(&principal, &reference, &constraint)
        .await?;
    reply::ok(ResolvedCodeTool {
        tool: convert::code_tool_summary(resolved.tool),
        warning: resolved.warning.map(convert::reason),
    })
}

/// A version of a code tool
///
/// With its program, its schemas, and its secrets as references or masked.
#[utoipa::path(
    get, path = "/tools/{tool_id}", tag = "code tools", operation_id = "get_code_tool", params(CodeToolPath),
    responses((status = 200, description = "The version", body = Data<CodeTool>,
        headers(("ETag" = String, description = "Its revision"))))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<CodeToolPath>,
) -> Reply<Response> {
    shown(&api, &principal, &path.tool_id.parse()?).await
}

/// Change a version of a code tool
///
/// Its description, owner, status, successor or visibility. What decides its behaviour never changes: register another
/// version. Archiving here is refused like `archive`. Needs `admin`.
#[utoipa::path(
    patch, path = "/tools/{tool_id}", tag = "code tools", operation_id = "update_code_tool", params(CodeToolPath),
    request_body = CodeToolPatchInput,
    responses(
        (status = 200, description = "The version as it is now", body = Data<CodeTool>,
            headers(("ETag" = String, description = "Its revision"))),
        Conditional
    )
)]
pub(crate) async fn update(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<CodeToolPath>,
    condition: IfMatch,
    Json(input): Json<CodeToolPatchInput>,
) -> Reply<Response> {
    if input == CodeToolPatchInput::default() {
        let problem = "it changes nothing; name at least one field";
        return Err(Problem::invalid_field("body", "", problem));
    }
    let id: CodeToolId = path.tool_id.parse()?;
    let mut attempt = 1;
    loop {
        let mut patch = convert::code_tool_patch(input.clone())?;
        let before = api.caliber().code_tool(&caller.0, &id).await?.record;
        condition.expect(before.revision)?;
        patch.expect = Some(before.revision);
        match api.caliber().update_code_tool(caller.who(), &id, patch).await {
            Ok(_) => return shown(&api, &caller.0, &id).await,
            Err(error) => {
                let moved = error.reason() == Some(ReasonCode::StaleRevision);
                if !moved || condition != IfMatch::Anything || attempt == CHANGE_ATTEMPTS {
                    return Err(precondition(&condition, error));
                }
                attempt += 1;
            }
        }
    }
}

/// Archive a version of a code tool
///
/// It neither resolves nor runs any more. Refused while an active deployment needs it. Archiving again changes nothing.
/// Needs `admin`.
#[utoipa::path(
    post, path = "/tools/{tool_id}/archive", tag = "code tools", operation_id = "archive_code_tool",
    params(CodeToolPath),
    responses(
        (status = 200, description = "The version as it is now", body = Data<CodeTool>,
            headers(("ETag" = String, description = "Its revision"))),
        Conditional
    )
)]
pub(crate) async fn archive(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<CodeToolPath>,
    condition: IfMatch,
    _: NoBody,
) -> Reply<Response> {
    let id: CodeToolId = path.tool_id.parse()?;
    let expect = match &condition {
        IfMatch::Anything => None,
        one_of @ IfMatch::OneOf(_) => {
            one_of.expect(api.caliber().code_tool(&caller.0, &id).await?.record.revision)?
        }
    };
    api.caliber()
        .archive_code_tool(caller.who(), &id, expect)
        .await
        .map_err(|error| precondition(&condition, error))?;
    shown(&api, &caller.0, &id).await
}

/// List the versions of a code tool
///
/// Those of its family in its project that the caller sees, the newest first.
#[utoipa::path(
    get, path = "/tools/{tool_id}/versions", tag = "code tools", operation_id = "list_code_tool_versions",
    params(CodeToolPath, PageParameters),
    responses((status = 200, description = "A page of versions", body = Paged<Vec<CodeToolSummary>>))
)]
pub(crate) async fn versions(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<CodeToolPath>,
    Parameters(page): Parameters<PageParameters>,
) -> Reply<Response> {
    let id = path.tool_id.parse()?;
    let tools = api
        .caliber()
        .code_tool_versions(&principal, &id, &page.page())
        .await
        .map_err(|error| Problem::from(error).in_query())?
        .map(convert::code_tool_summary);
    reply::page(tools.items, tools.next)
}

/// The source of a code tool
///
/// Its signature, documentation and source, as the sandbox sees them in a child of its own. Answers 200 also when
/// something stands in the way: `error` says what.
#[utoipa::path(
    get, path = "/tools/{tool_id}/source", tag = "code tools", operation_id = "get_code_tool_source",
    params(CodeToolPath),
    responses((status = 200, description = "What was seen", body = Data<CodeToolSource>))
)]
pub(crate) async fn source(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<CodeToolPath>,
) -> Reply<Response> {
    let id = path.tool_id.parse()?;
    let view = api.caliber().code_tool(&caller.0, &id).await?;
    let seen = api.caliber().code_tool_source(caller.who(), &id).await?;
    reply::ok(convert::code_tool_source(view, seen))
}

/// Where a code tool is used
///
/// The active deployments that need it.
#[utoipa::path(
    get, path = "/tools/{tool_id}/usage", tag = "code tools", operation_id = "get_code_tool_usage",
    params(CodeToolPath),
    responses((status = 200, description = "Its usage", body = Data<CodeToolUsage>))
)]
pub(crate) async fn usage(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<CodeToolPath>,
) -> Reply<Response> {
    let id = path.tool_id.parse()?;
    let view = api.caliber().code_tool(&principal, &id).await?;
    let usage = api.caliber().code_tool_usage(&principal, &id).await?;
    reply::ok(convert::code_tool_usage(view, usage))
}

/// Run a code tool
///
/// Once, through admission, in the sandbox. Whatever the tool does is in the answer: 200 also when it failed.
#[utoipa::path(
    post, path = "/tools/{tool_id}/test-run", tag = "code tools", operation_id = "run_code_tool",
    params(CodeToolPath), request_body = Option<RunInput>,
    responses((status = 200, description = "How it ended", body = Data<CodeToolRun>), Remote)
)]
pub(crate) async fn test_run(
    State(api): State<Api>,
    Caller(principal, surface): Caller,
    Segments(path): Segments<CodeToolPath>,
    OptionalJson(input): OptionalJson<RunInput>,
) -> Reply<Response> {
    let id: CodeToolId = path.tool_id.parse()?;
    let call = convert::run_call(id.clone(), input, surface.unwrap_or(Surface::Playground))?;
    let ended = api.caliber().run_code_tool(&principal, call).await;
    // What is not in the ledger was no run.
    let outcome = match &ended {
        Ok(ended) => Some(ended.outcome),
        Err(error) => InvocationOutcome::of(error),
    };
    if let Some(outcome) = outcome {
        api.metrics().invoked(outcome);
    }
    let ended = ended.map_err(|error| Problem::from(error).with_arguments_at("input"))?;
    reply::ok(convert::code_tool_run(&id, ended))
}

/// List the runs of a code tool
///
/// Newest first. Needs `operator`.
#[utoipa::path(
    get, path = "/tools/{tool_id}/invocations", tag = "code tools", operation_id = "list_code_tool_runs",
    params(CodeToolPath, PageParameters),
    responses((status = 200, description = "A page of runs", body = Paged<Vec<InvocationRecord>>))
)]
pub(crate) async fn runs(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<CodeToolPath>,
    Parameters(page): Parameters<PageParameters>,
) -> Reply<Response> {
    let id = path.tool_id.parse()?;
    let records = api
        .caliber()
        .code_tool_invocations(&principal, &id, &page.page())
        .await
        .map_err(|error| Problem::from(error).in_query())?
        .map(convert::invocation_record);
    reply::page(records.items, records.next)
}

/// What the sandbox enforces
///
/// Every promise with its state, found out by trying, and what an operator can do about each gap.
#[utoipa::path(
    get, path = "/sandbox", tag = "code tools", operation_id = "get_sandbox",
    responses((status = 200, description = "The report", body = Data<Sandbox>))
)]
pub(crate) async fn sandbox(State(api): State<Api>, Caller(principal, _): Caller) -> Reply<Response> {
    let report = api.caliber().sandbox_report(&principal)?;
    reply::ok(convert::sandbox(report.as_deref()))
}

async fn shown(api: &Api, principal: &Principal, id: &CodeToolId) -> Reply<Response> {
    let tool = convert::code_tool(api.caliber().code_tool(principal, id).await?);
    let revision = tool.summary.revision;
    Ok(tagged(reply::ok(tool)?, revision))
}

/// A moved revision is a failed precondition for a client that made it one.
fn precondition(condition: &IfMatch, error: caliber_core::Error) -> Problem {
    match condition {
        IfMatch::Anything => error.into(),
        IfMatch::OneOf(_) => Problem::from(error).into_failed_precondition(),
    }
}

/// The revision as a strong entity tag.
fn tagged(mut response: Response, revision: u64) -> Response {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
