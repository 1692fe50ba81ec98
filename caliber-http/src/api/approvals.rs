//! Consent to single calls.

use axum::extract::State;
use axum::response::Response;

use crate::body::OptionalJson;
use crate::convert;
use crate::document::Existing;
use crate::identity::Caller;
use crate::input::{Parameters, Segments, page_request};
use crate::problem::Problem;
use crate::reply::{self, Data, Paged, Reply};
use crate::state::Api;
use crate::wire::approvals::{Approval, ApprovalFilter, ApprovalPath, ApprovalStateFilter, DecisionInput};

/// List requests for consent
///
/// Of the caller's project, newest first. Approvers see all, others their own.
#[utoipa::path(
    get, path = "/approvals", tag = "approvals", operation_id = "list_approvals", params(ApprovalFilter),
    responses((status = 200, description = "A page of requests", body = Paged<Vec<Approval>>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Parameters(filter): Parameters<ApprovalFilter>,
) -> Reply<Response> {
    let pending_only = filter.state == Some(ApprovalStateFilter::Pending);
    let page = page_request(filter.limit, filter.cursor);
    let approvals = api
        .caliber()
        .approvals(&principal, pending_only, &page)
        .await
        .map_err(|error| Problem::from(error).in_query())?
        .map(convert::approval);
    reply::page(approvals.items, approvals.next)
}

/// A request for consent
///
/// For whoever made it, and for approvers of its project.
#[utoipa::path(
    get, path = "/approvals/{approval_id}", tag = "approvals", operation_id = "get_approval", params(ApprovalPath),
    responses((status = 200, description = "The request", body = Data<Approval>))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<ApprovalPath>,
) -> Reply<Response> {
    let approval = api
        .caliber()
        .approval(&principal, &path.approval_id.parse()?)
        .await?;
    reply::ok(convert::approval(approval))
}

/// Consent to a call
///
/// Once, for exactly this tool and these arguments. Nobody decides about their own call. Needs `approver`.
#[utoipa::path(
    post, path = "/approvals/{approval_id}/approve", tag = "approvals", operation_id = "approve_call",
    params(ApprovalPath), request_body = Option<DecisionInput>,
    responses((status = 200, description = "The request as it is now", body = Data<Approval>), Existing)
)]
pub(crate) async fn approve(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<ApprovalPath>,
    OptionalJson(input): OptionalJson<DecisionInput>,
) -> Reply<Response> {
    decide(&api, &caller, &path, true, input).await
}

/// Refuse a call
///
/// Needs `approver`.
#[utoipa::path(
    post, path = "/approvals/{approval_id}/refuse", tag = "approvals", operation_id = "refuse_call",
    params(ApprovalPath), request_body = Option<DecisionInput>,
    responses((status = 200, description = "The request as it is now", body = Data<Approval>), Existing)
)]
pub(crate) async fn refuse(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<ApprovalPath>,
    OptionalJson(input): OptionalJson<DecisionInput>,
) -> Reply<Response> {
    decide(&api, &caller, &path, false, input).await
}

async fn decide(
    api: &Api,
    caller: &Caller,
    path: &ApprovalPath,
    consent: bool,
    input: DecisionInput,
) -> Reply<Response> {
    let id = path.approval_id.parse()?;
    let approval = api
        .caliber()
        .decide_approval(caller.who(), &id, consent, input.note)
        .await?;
    reply::ok(convert::approval(approval))
}
