//! Calling a tool, and the ledger of calls.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use caliber_core::descriptor::ToolName;
use caliber_core::id::{ApprovalId, InvocationId, ServerId};
use caliber_core::invocation::InvocationOutcome;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::policy::LONGEST_CALL_MS;
use caliber_core::principal::Surface;
use caliber_core::{FieldProblem, InvokeRequest};

use crate::body::Json;
use crate::convert;
use crate::document::{Existing, Remote};
use crate::identity::Caller;
use crate::input::{PageParameters, Parameters, Segments, ServerPath};
use crate::problem::Problem;
use crate::reply::{self, Data, Paged, Reply};
use crate::state::Api;
use crate::wire::calls::{InvocationPath, InvocationRecord, InvokeInput, Invoked};

/// Call a tool
///
/// Through admission, like every other caller. Answers 200 when the tool has answered, also that it failed
/// (`is_error`). A refusal is a problem with the code of the step that refused; when a person's consent is
/// needed, it is a 409 with `approval_id`: the same call with that `approval_id` passes once somebody else has
/// approved it.
#[utoipa::path(
    post, path = "/mcp-servers/{server_id}/invoke-tool", tag = "calls", operation_id = "invoke_tool",
    params(ServerPath), request_body = InvokeInput,
    responses((status = 200, description = "The tool has answered", body = Data<Invoked>), Existing, Remote)
)]
pub(crate) async fn invoke(
    State(api): State<Api>,
    Caller(principal, surface): Caller,
    Segments(path): Segments<ServerPath>,
    Json(input): Json<InvokeInput>,
) -> Reply<Response> {
    let server = path.server()?;
    let request = request(&server, input, surface.unwrap_or(Surface::Playground))?;
    let tool = request.tool.clone();
    let invoked = api.caliber().invoke(&principal, request).await;
    // What is not in the ledger was no call.
    let outcome = match &invoked {
        Ok(invoked) if invoked.answer.is_error => Some(InvocationOutcome::ToolError),
        Ok(_) => Some(InvocationOutcome::Ok),
        Err(error) => InvocationOutcome::of(error),
    };
    if let Some(outcome) = outcome {
        api.metrics().invoked(outcome);
    }
    let invoked = invoked.map_err(|error| Problem::from(error).about_field("arguments"))?;
    let microseconds = u64::try_from(invoked.duration.as_micros()).unwrap_or(u64::MAX);
    reply::ok(Invoked {
        server_id: server.to_string(),
        tool_name: tool.to_string(),
        success: !invoked.answer.is_error,
        is_error: invoked.answer.is_error,
        result: invoked.answer.result,
        duration_ms: convert::milliseconds(microseconds),
        invocation_id: invoked.invocation.to_string(),
    })
}

fn request(server: &ServerId, input: InvokeInput, surface: Surface) -> Result<InvokeRequest, Problem> {
    let mut problems = Vec::new();
    let mut add = |field: &str, problem: &str| {
        problems.push(FieldProblem {
            field: field.to_owned(),
            problem: problem.to_owned(),
        });
    };
    let tool = input.tool_name.parse::<ToolName>();
    if tool.is_err() {
        add("tool_name", "it takes 1 to 128 of A-Z, a-z, 0-9, _, - and .");
    }
    let arguments = match &input.arguments {
        Some(raw) => JsonText::parse(raw.get(), JsonLimits::ARGUMENTS),
        None => Ok(JsonText::empty_object()),
    };
    if arguments.as_ref().is_ok_and(|arguments| !arguments.is_object()) {
        add("arguments", "it must be an object");
    }
    let approval = input
        .approval_id
        .as_deref()
        .map(str::parse::<ApprovalId>)
        .transpose();
    if approval.is_err() {
        add("approval_id", "it is no identifier of an approval");
    }
    if input
        .timeout_ms
        .is_some_and(|timeout| !(1..=LONGEST_CALL_MS).contains(&timeout))
    {
        add("timeout_ms", "it must lie between 1 and 3600000");
    }
    if !problems.is_empty() {
        return Err(Problem::invalid("body", problems));
    }
    let arguments = arguments.map_err(|error| Problem::from(error).about_field("arguments"))?;
    let mut request = InvokeRequest::new(server.clone(), tool?, arguments, surface);
    request.approval = approval?;
    request.break_glass = input.break_glass;
    request.timeout = input.timeout_ms.map(Duration::from_millis);
    Ok(request)
}

/// List the calls of a server
///
/// Newest first. Needs `operator`.
#[utoipa::path(
    get, path = "/mcp-servers/{server_id}/invocations", tag = "calls", operation_id = "list_invocations",
    params(ServerPath, PageParameters),
    responses((status = 200, description = "A page of calls", body = Paged<Vec<InvocationRecord>>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<ServerPath>,
    Parameters(page): Parameters<PageParameters>,
) -> Reply<Response> {
    let id = path.server()?;
    let records = api
        .caliber()
        .invocations(&principal, &id, &page.page())
        .await
        .map_err(|error| Problem::from(error).in_query())?
        .map(convert::invocation_record);
    reply::page(records.items, records.next)
}

/// A call
///
/// Its caller sees it, and the operators of its project.
#[utoipa::path(
    get, path = "/invocations/{invocation_id}", tag = "calls", operation_id = "get_invocation",
    params(InvocationPath),
    responses((status = 200, description = "The call", body = Data<InvocationRecord>))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<InvocationPath>,
) -> Reply<Response> {
    let id: InvocationId = path.invocation_id.parse()?;
    let record = api.caliber().invocation(&principal, &id).await?;
    reply::ok(convert::invocation_record(record))
}
