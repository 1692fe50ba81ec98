//! Discovering tools and deciding about them.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use caliber_core::page::{PAGE_LIMIT, PageRequest};
use http::StatusCode;

use crate::body::{Json, NoBody};
use crate::convert;
use crate::document::{Existing, Remote};
use crate::identity::Caller;
use crate::input::{PageParameters, Parameters, Segments, ServerPath, ToolPath};
use crate::problem::Problem;
use crate::reply::{self, Data, Paged, Reply};
use crate::state::Api;
use crate::wire::tools::{Classification, Difference, Discovery, PolicyInput, Tool, ToolList};

/// Discover the tools of a server
///
/// Lists them live and makes them its inventory. Nothing becomes callable by it. The answer shows the first 500
/// tools; the list of tools has the others. Needs `admin`.
#[utoipa::path(
    post, path = "/mcp-servers/{server_id}/discover-tools", tag = "tools", operation_id = "discover_tools",
    params(ServerPath),
    responses((status = 200, description = "What was found", body = Data<Discovery>), Remote)
)]
pub(crate) async fn discover(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<ServerPath>,
    _: NoBody,
) -> Reply<Response> {
    let id = path.server()?;
    let found = api.caliber().discover(caller.who(), &id).await?;
    let listing = api
        .caliber()
        .tools(&caller.0, &id, &PageRequest::first(PAGE_LIMIT))
        .await?;
    let names =
        |names: &[caliber_core::descriptor::ToolName]| names.iter().map(ToString::to_string).collect();
    reply::ok(Discovery {
        server_id: id.to_string(),
        discovered_at: found.inventory.discovered_at,
        protocol_version: found.inventory.protocol_version,
        tool_count: found.inventory.tool_count,
        added: names(&found.added),
        removed: names(&found.removed),
        drifted: names(&found.drifted),
        withheld: convert::withheld(found.inventory.withheld),
        tools: shown(listing.tools.items, &listing.fingerprint),
    })
}

fn shown(
    tools: Vec<caliber_core::inventory::ToolView>,
    fingerprint: &caliber_core::digest::Fingerprint,
) -> Vec<Tool> {
    tools
        .into_iter()
        .map(|view| convert::tool(view, fingerprint, false))
        .collect()
}

/// List the tools of a server
///
/// Its inventory, with what was decided about each tool and what holds for calls now.
#[utoipa::path(
    get, path = "/mcp-servers/{server_id}/tools", tag = "tools", operation_id = "list_tools",
    params(ServerPath, PageParameters),
    responses((status = 200, description = "A page of tools", body = Paged<ToolList>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<ServerPath>,
    Parameters(page): Parameters<PageParameters>,
) -> Reply<Response> {
    let id = path.server()?;
    let listing = api
        .caliber()
        .tools(&principal, &id, &page.page())
        .await
        .map_err(|error| Problem::from(error).in_query())?;
    let next = listing.tools.next;
    let inventory = listing.inventory;
    let list = ToolList {
        server_id: id.to_string(),
        fingerprint: listing.fingerprint.to_string(),
        discovered_at: inventory.as_ref().map(|inventory| inventory.discovered_at),
        protocol_version: inventory
            .as_ref()
            .map(|inventory| inventory.protocol_version.clone()),
        server_info: inventory
            .as_ref()
            .and_then(|inventory| inventory.server_info.clone()),
        instructions: inventory
            .as_ref()
            .and_then(|inventory| inventory.instructions.clone()),
        tool_count: inventory.as_ref().map_or(0, |inventory| inventory.tool_count),
        tools: shown(listing.tools.items, &listing.fingerprint),
        withheld: inventory.map_or_else(Vec::new, |inventory| convert::withheld(inventory.withheld)),
    };
    reply::page(list, next)
}

/// A tool
///
/// With everything that the server says about it.
#[utoipa::path(
    get, path = "/mcp-servers/{server_id}/tools/{tool_name}", tag = "tools", operation_id = "get_tool",
    params(ToolPath),
    responses((status = 200, description = "The tool", body = Data<Tool>))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<ToolPath>,
) -> Reply<Response> {
    let (id, tool) = path.tool()?;
    let detail = api.caliber().tool(&principal, &id, &tool).await?;
    reply::ok(convert::tool(detail.view, &detail.fingerprint, true))
}

/// Classify a tool
///
/// Sets its policy, whole, for the tool as it stands in the inventory. Send `descriptor_digest` of what you
/// looked at, so that nothing is decided about something else. Needs `admin`.
#[utoipa::path(
    patch, path = "/mcp-servers/{server_id}/tools/{tool_name}/policy", tag = "tools", operation_id = "classify_tool",
    params(ToolPath), request_body = PolicyInput,
    responses((status = 200, description = "What was decided", body = Data<Classification>), Existing)
)]
pub(crate) async fn classify(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<ToolPath>,
    Json(input): Json<PolicyInput>,
) -> Reply<Response> {
    let (id, tool) = path.tool()?;
    let (policy, seen) = convert::policy_input(input)?;
    let decided = api
        .caliber()
        .classify(caller.who(), &id, &tool, policy, seen)
        .await?;
    reply::ok(convert::classification(decided))
}

/// Take a classification back
///
/// Nobody can call the tool any more. Needs `admin`.
#[utoipa::path(
    delete, path = "/mcp-servers/{server_id}/tools/{tool_name}/policy", tag = "tools",
    operation_id = "declassify_tool", params(ToolPath),
    responses((status = 204, description = "It is gone"))
)]
pub(crate) async fn declassify(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<ToolPath>,
) -> Reply<Response> {
    let (id, tool) = path.tool()?;
    api.caliber().declassify(caller.who(), &id, &tool).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What changed of a tool
///
/// Since an admin classified it; all of it without a classification.
#[utoipa::path(
    get, path = "/mcp-servers/{server_id}/tools/{tool_name}/diff", tag = "tools", operation_id = "diff_tool",
    params(ToolPath),
    responses((status = 200, description = "The difference", body = Data<Difference>))
)]
pub(crate) async fn diff(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Segments(path): Segments<ToolPath>,
) -> Reply<Response> {
    let (id, tool) = path.tool()?;
    let drift = api.caliber().drift(&principal, &id, &tool).await?;
    reply::ok(convert::difference(&id, &tool, drift))
}
