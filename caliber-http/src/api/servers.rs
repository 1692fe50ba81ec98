//! Registering, changing, checking and removing servers.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use caliber_core::ErrorKind;
use caliber_core::id::ServerId;
use caliber_core::secret::SecretText;
use http::{HeaderValue, StatusCode, header};

use crate::body::{Json, NoBody};
use crate::convert;
use crate::document::{Conditional, Existing, Remote};
use crate::identity::Caller;
use crate::input::{IfMatch, Parameters, Segments, ServerPath, page_request};
use crate::problem::Problem;
use crate::reply::{self, Data, Paged, Reply};
use crate::state::Api;
use crate::wire::servers::{
    Check, RestoreInput, Server, ServerFilter, ServerInput, ServerPatchInput, ServerSummary,
};

/// How often a change without a condition is decided again when somebody else changes the server meanwhile.
const CHANGE_ATTEMPTS: usize = 3;

/// List servers
///
/// By name: those that the caller sees. A list shows no arguments, environment or headers.
#[utoipa::path(
    get, path = "/mcp-servers", tag = "servers", operation_id = "list_servers", params(ServerFilter),
    responses((status = 200, description = "A page of servers", body = Paged<Vec<ServerSummary>>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Parameters(filter): Parameters<ServerFilter>,
) -> Reply<Response> {
    let query = convert::server_query(&filter);
    let page = page_request(filter.limit, filter.cursor);
    let servers = api
        .caliber()
        .servers(&principal, query, &page)
        .await
        .map_err(|error| Problem::from(error).in_query())?;
    let servers = servers.map(convert::summary);
    reply::page(servers.items, servers.next)
}

/// Register a server
///
/// In the project of the request. It takes part at once; its tools stay closed until they are discovered and
/// classified. Needs `admin`.
#[utoipa::path(
    post, path = "/mcp-servers", tag = "servers", operation_id = "create_server", request_body = ServerInput,
    responses(
        (status = 201, description = "The server", body = Data<Server>,
            headers(("ETag" = String, description = "Its revision"), ("Location" = String, description = "Where it stands"))),
        Existing
    )
)]
pub(crate) async fn create(
    State(api): State<Api>,
    caller: Caller,
    Json(input): Json<ServerInput>,
) -> Reply<Response> {
    let registration = convert::definition(input)?;
    let record = api.caliber().register_server(caller.who(), registration).await?;
    created(&api, &caller, &record.id).await
}

/// Register a removed server again
///
/// From the audit entry of its removal, under a new identifier. Stored secrets were not kept: give each again.
/// Needs `admin` in its project.
#[utoipa::path(
    post, path = "/mcp-servers/restore", tag = "servers", operation_id = "restore_server", request_body = RestoreInput,
    responses(
        (status = 201, description = "The server", body = Data<Server>,
            headers(("ETag" = String, description = "Its revision"), ("Location" = String, description = "Where it stands"))),
        Existing
    )
)]
pub(crate) async fn restore(
    State(api): State<Api>,
    caller: Caller,
    Json(input): Json<RestoreInput>,
) -> Reply<Response> {
    let entry = input.audit_id.parse()?;
    let secrets = input
        .secrets
        .unwrap_or_default()
        .into_iter()
        .map(|(path, secret)| (path, SecretText::new(secret)))
        .collect();
    let record = api
        .caliber()
        .restore_server(caller.who(), &entry, secrets)
        .await?;
    created(&api, &caller, &record.id).await
}

async fn created(api: &Api, caller: &Caller, id: &ServerId) -> Reply<Response> {
    let view = api.caliber().server(&caller.0, id).await?;
    let server = convert::server(view);
    let (location, revision) = (api.location(&format!("/mcp-servers/{id}")), server.revision);
    Ok(tagged(reply::created(&location, server)?, revision))
}

/// Check a server that is not registered
///
/// Opens a connection, lists the tools and closes it; nothing is stored. Answers 200 also when the server cannot
/// be reached: `success` says so. Needs `admin`.
#[utoipa::path(
    post, path = "/mcp-servers/check", tag = "servers", operation_id = "check_definition", request_body = ServerInput,
    responses((status = 200, description = "What came of it", body = Data<Check>), Remote)
)]
pub(crate) async fn check_definition(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Json(input): Json<ServerInput>,
) -> Reply<Response> {
    let definition = convert::definition(input)?.definition;
    match api.caliber().check_definition(&principal, definition).await {
        Ok(report) => reply::ok(convert::good_check(None, report)),
        Err(error) => failed_check(None, error),
    }
}

/// A server
///
/// With its readiness, the health of its sessions, and its credentials as references or masked.
#[utoipa::path(
    get, path = "/mcp-servers/{server_id}", tag = "servers", operation_id = "get_server", params(ServerPath),
    responses((status = 200, description = "The server", body = Data<Server>,
        headers(("ETag" = String, description = "Its revision"))))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<ServerPath>,
) -> Reply<Response> {
    let view = api.caliber().server(&principal, &path.server()?).await?;
    let server = convert::server(view);
    let revision = server.revision;
    Ok(tagged(reply::ok(server)?, revision))
}

/// Change a server
///
/// A change of the place (transport, URL, command, arguments, environment keys, kind of sign-in) returns every
/// tool to *drifted* and ends the sessions. A secret does not follow the server to another origin: give it again.
/// Needs `admin`.
#[utoipa::path(
    patch, path = "/mcp-servers/{server_id}", tag = "servers", operation_id = "update_server", params(ServerPath),
    request_body = ServerPatchInput,
    responses(
        (status = 200, description = "The server as it is now", body = Data<Server>,
            headers(("ETag" = String, description = "Its revision"))),
        Conditional
    )
)]
pub(crate) async fn update(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<ServerPath>,
    condition: IfMatch,
    Json(input): Json<ServerPatchInput>,
) -> Reply<Response> {
    if input == ServerPatchInput::default() {
        return Err(Problem::invalid_field(
            "body",
            "",
            "it changes nothing; name at least one field",
        ));
    }
    let id = path.server()?;
    let mut attempt = 1;
    loop {
        // The change is made of what is stored, so it is decided on exactly that revision.
        let before = api.caliber().server(&caller.0, &id).await?.record;
        condition.expect(before.revision)?;
        let mut patch = convert::patch(input.clone(), &before.definition)?;
        patch.expect = Some(before.revision);
        match api.caliber().update_server(caller.who(), &id, patch).await {
            Ok(_) => break,
            Err(error) => {
                let moved = error.reason() == Some(caliber_core::reason::ReasonCode::StaleRevision);
                if !moved || condition != IfMatch::Anything || attempt == CHANGE_ATTEMPTS {
                    let problem = Problem::from(error);
                    return Err(if condition == IfMatch::Anything {
                        problem
                    } else {
                        problem.into_failed_precondition()
                    });
                }
                attempt += 1;
            }
        }
    }
    let view = api.caliber().server(&caller.0, &id).await?;
    let server = convert::server(view);
    let revision = server.revision;
    Ok(tagged(reply::ok(server)?, revision))
}

/// Remove a server
///
/// With its inventory, classifications, grants and secrets. Refused while an active deployment needs it. The
/// audit entry keeps the definition, secrets masked; `restore` reads it. Needs `admin`.
#[utoipa::path(
    delete, path = "/mcp-servers/{server_id}", tag = "servers", operation_id = "delete_server", params(ServerPath),
    responses((status = 204, description = "It is gone"), Conditional)
)]
pub(crate) async fn remove(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<ServerPath>,
    condition: IfMatch,
) -> Reply<Response> {
    let id = path.server()?;
    let expect = match &condition {
        IfMatch::Anything => None,
        one_of @ IfMatch::OneOf(_) => {
            one_of.expect(api.caliber().server(&caller.0, &id).await?.record.revision)?
        }
    };
    let removed = api.caliber().remove_server(caller.who(), &id, expect).await;
    removed.map_err(|error| match condition {
        IfMatch::Anything => Problem::from(error),
        IfMatch::OneOf(_) => Problem::from(error).into_failed_precondition(),
    })?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Test the connection of a server
///
/// Opens a connection, lists the tools and closes it; the outcome is recorded. Answers 200 also when the server
/// cannot be reached: `success` says so. Needs `admin`.
#[utoipa::path(
    post, path = "/mcp-servers/{server_id}/test-connection", tag = "servers", operation_id = "test_connection",
    params(ServerPath),
    responses((status = 200, description = "What came of it", body = Data<Check>))
)]
pub(crate) async fn test_connection(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<ServerPath>,
    _: NoBody,
) -> Reply<Response> {
    let id = path.server()?;
    match api.caliber().check(caller.who(), &id).await?.report {
        Ok(report) => reply::ok(convert::good_check(Some(&id), report)),
        Err(error) => failed_check(Some(&id), error),
    }
}

/// A check that did not reach the server is an answer; one that the caller may not ask for is none.
fn failed_check(server: Option<&ServerId>, error: caliber_core::Error) -> Reply<Response> {
    let refused = matches!(
        error.kind(),
        ErrorKind::Invalid
            | ErrorKind::Unauthenticated
            | ErrorKind::Forbidden
            | ErrorKind::NotFound
            | ErrorKind::Internal
    );
    let problem = Problem::from(error);
    if refused {
        return Err(problem);
    }
    reply::ok(convert::failed_check(server, &problem))
}

/// The revision as a strong entity tag.
fn tagged(mut response: Response, revision: u64) -> Response {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
