//! The audit trail.

use axum::extract::State;
use axum::response::Response;
use caliber_core::audit::{AuditAction, AuditQuery};

use crate::convert;
use crate::identity::Caller;
use crate::input::{PageParameters, Parameters, Segments, ServerPath, page_request};
use crate::problem::Problem;
use crate::reply::{self, Paged, Reply};
use crate::state::Api;
use crate::wire::history::{AuditEntry, AuditFilter};

/// The history of a server
///
/// Everything that the audit trail holds about it, newest first, also after its removal. Needs `operator`.
#[utoipa::path(
    get, path = "/mcp-servers/{server_id}/history", tag = "history", operation_id = "server_history",
    params(ServerPath, PageParameters),
    responses((status = 200, description = "A page of entries", body = Paged<Vec<AuditEntry>>))
)]
pub(crate) async fn of_server(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<ServerPath>,
    Parameters(page): Parameters<PageParameters>,
) -> Reply<Response> {
    let id = path.server()?;
    let entries = api
        .caliber()
        .server_history(&principal, &id, &page.page())
        .await
        .map_err(|error| Problem::from(error).in_query())?
        .map(convert::audit_entry);
    reply::page(entries.items, entries.next)
}

/// The audit trail
///
/// Newest first, of the caller's project, or of all for whoever holds their scopes everywhere. With `after` it
/// is read oldest first from there on: to follow it, send the last `audit_id` again. Needs `operator`.
#[utoipa::path(
    get, path = "/audit", tag = "history", operation_id = "list_audit", params(AuditFilter),
    responses((status = 200, description = "A page of entries", body = Paged<Vec<AuditEntry>>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Parameters(filter): Parameters<AuditFilter>,
) -> Reply<Response> {
    let invalid = |field: &str, problem: &str| Problem::invalid_field("query", field, problem);
    let action = filter.action.as_deref().map(|word| {
        let found = AuditAction::ALL.iter().find(|action| action.as_str() == word);
        found
            .copied()
            .ok_or_else(|| invalid("action", "there is no such action"))
    });
    let actor = filter.actor.as_deref().map(|actor| {
        actor
            .parse()
            .map_err(|_| invalid("actor", "use 1 to 256 visible characters, no space around them"))
    });
    let after = filter.after.as_deref().map(|after| {
        after
            .parse()
            .map_err(|_| invalid("after", "it is no identifier of an audit entry"))
    });
    let query = AuditQuery {
        entity_type: filter.entity_type,
        entity_id: filter.entity_id,
        projects: None,
        action: action.transpose()?,
        actor: actor.transpose()?,
        after: after.transpose()?,
    };
    let page = page_request(filter.limit, filter.cursor);
    let entries = api
        .caliber()
        .audit(&principal, query, &page)
        .await
        .map_err(|error| Problem::from(error).in_query())?
        .map(convert::audit_entry);
    reply::page(entries.items, entries.next)
}
