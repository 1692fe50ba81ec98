//! Inventories, their tools, and classifications.

use caliber_core::Error as CoreError;
use caliber_core::descriptor::ToolName;
use caliber_core::id::ServerId;
use caliber_core::inventory::{Inventory, ToolView};
use caliber_core::page::{Page, PageRequest};
use caliber_core::policy::Classification;
use caliber_core::registry::{Entity, NewInventory};
use diesel::{
    BoolExpressionMethods, ExpressionMethods, JoinOnDsl, OptionalExtension, QueryDsl, SelectableHelper,
};
use diesel_async::RunQueryDsl;

use super::{Backend, Connection, revisions, servers};
use crate::cursor::List;
use crate::error::Result;
use crate::rows::{
    ClassificationRow, InventoryRow, NewToolRow, NewWithheldRow, WithheldRow, micros, tool_view, unsigned,
};
use crate::schema::{classifications, inventories, tools, withheld_tools};

const LIST: List = List("tools");

/// The last listing of a server, without its tools.
pub(crate) async fn inventory(conn: &mut Connection, server: &ServerId) -> Result<Option<Inventory>> {
    let row: Option<InventoryRow> = inventories::table
        .find(server.as_str())
        .select(InventoryRow::as_select())
        .get_result(conn)
        .await
        .optional()?;
    let Some(row) = row else {
        return Ok(None);
    };
    let withheld: Vec<WithheldRow> = withheld_tools::table
        .filter(withheld_tools::server_id.eq(server.as_str()))
        .order(withheld_tools::position)
        .select(WithheldRow::as_select())
        .load(conn)
        .await?;
    row.inventory(withheld).map(Some)
}

/// The tools of a server by name, with their classifications.
pub(crate) async fn tools(
    conn: &mut Connection,
    server: &ServerId,
    request: &PageRequest,
) -> Result<Page<ToolView>> {
    let after: Option<ToolName> = LIST.after(request)?;
    let bound = classifications::server_id
        .eq(tools::server_id)
        .and(classifications::tool.eq(tools::name));
    let mut select = tools::table
        .left_join(classifications::table.on(bound))
        .filter(tools::server_id.eq(server.to_string()))
        .select((
            tools::name,
            tools::descriptor,
            Option::<ClassificationRow>::as_select(),
        ))
        .order(tools::name.asc())
        .limit(List::rows(request))
        .into_boxed::<Backend>();
    if let Some(after) = after {
        select = select.filter(tools::name.gt(after.to_string()));
    }
    let rows: Vec<(String, String, Option<ClassificationRow>)> = select.load(conn).await?;
    LIST.page(
        rows,
        request,
        |(name, ..)| name.clone(),
        |(_, descriptor, classification)| tool_view(descriptor, classification),
    )
}

/// One tool of a server.
pub(crate) async fn tool(
    conn: &mut Connection,
    server: &ServerId,
    tool: &ToolName,
) -> Result<Option<ToolView>> {
    let descriptor: Option<String> = tools::table
        .find((server.as_str(), tool.as_str()))
        .select(tools::descriptor)
        .get_result(conn)
        .await
        .optional()?;
    let Some(descriptor) = descriptor else {
        return Ok(None);
    };
    let classification = classification_row(conn, server, tool).await?;
    tool_view(descriptor, classification).map(Some)
}

/// Why a tool is withheld, if it is.
pub(super) async fn withheld(
    conn: &mut Connection,
    server: &ServerId,
    tool: &ToolName,
) -> Result<Option<String>> {
    Ok(withheld_tools::table
        .filter(withheld_tools::server_id.eq(server.as_str()))
        .filter(withheld_tools::name.eq(tool.as_str()))
        .order(withheld_tools::position)
        .select(withheld_tools::reason)
        .first(conn)
        .await
        .optional()?)
}

/// What an admin decided about a tool.
async fn classification_row(
    conn: &mut Connection,
    server: &ServerId,
    tool: &ToolName,
) -> Result<Option<ClassificationRow>> {
    Ok(classifications::table
        .find((server.as_str(), tool.as_str()))
        .select(ClassificationRow::as_select())
        .get_result(conn)
        .await
        .optional()?)
}

/// A whole listing in place of the last one.
pub(super) async fn record_discovery(
    conn: &mut Connection,
    server: &ServerId,
    listing: &NewInventory,
) -> Result<u64> {
    servers::must_exist(conn, server).await?;
    if listing.asked_for {
        servers::record_connection(conn, server, listing.discovered_at, None).await?;
    }
    let id = server.as_str();
    let at = micros(listing.discovered_at);
    let before: Option<(i64, Option<i64>)> = inventories::table
        .find(id)
        .select((inventories::revision, inventories::live_discovered_at))
        .get_result(conn)
        .await
        .optional()?;
    let (revision, live_before) = match before {
        Some((revision, live)) => (unsigned("inventories.revision", revision)? + 1, live),
        None => (
            revisions::first(conn, &Entity::Inventory(server.clone())).await?,
            None,
        ),
    };
    let row = InventoryRow {
        server_id: id.to_owned(),
        revision: crate::rows::number(revision),
        discovered_at: at,
        live_discovered_at: if listing.asked_for { Some(at) } else { live_before },
        tool_count: i64::try_from(listing.tools.len()).unwrap_or(i64::MAX),
        protocol_version: listing.protocol_version.clone(),
        server_info: listing.server_info.as_ref().map(|info| info.as_str().to_owned()),
        instructions: listing.instructions.clone(),
    };
    diesel::delete(inventories::table.find(id)).execute(conn).await?;
    diesel::insert_into(inventories::table)
        .values(row)
        .execute(conn)
        .await?;
    drift(conn, server, listing).await?;
    diesel::delete(tools::table.filter(tools::server_id.eq(id)))
        .execute(conn)
        .await?;
    for descriptor in &listing.tools {
        diesel::insert_into(tools::table)
            .values(NewToolRow::of(id, descriptor))
            .execute(conn)
            .await?;
    }
    diesel::delete(withheld_tools::table.filter(withheld_tools::server_id.eq(id)))
        .execute(conn)
        .await?;
    for (position, tool) in (0..).zip(&listing.withheld) {
        diesel::insert_into(withheld_tools::table)
            .values(NewWithheldRow {
                server_id: id,
                position,
                name: &tool.name,
                reason: &tool.reason,
            })
            .execute(conn)
            .await?;
    }
    Ok(revision)
}

/// Marks every classification whose tool is listed with another digest.
async fn drift(conn: &mut Connection, server: &ServerId, listing: &NewInventory) -> Result<()> {
    let bound: Vec<(String, String)> = classifications::table
        .filter(classifications::server_id.eq(server.as_str()))
        .filter(classifications::drifted_at.is_null())
        .select((classifications::tool, classifications::descriptor_digest))
        .load(conn)
        .await?;
    let seen: std::collections::HashMap<&str, String> = listing
        .tools
        .iter()
        .map(|tool| (tool.name().as_str(), tool.digest().to_string()))
        .collect();
    for (tool, digest) in bound {
        if seen.get(tool.as_str()).is_some_and(|now| *now != digest) {
            diesel::update(classifications::table.find((server.as_str(), tool.as_str())))
                .set(classifications::drifted_at.eq(micros(listing.discovered_at)))
                .execute(conn)
                .await?;
        }
    }
    Ok(())
}

/// A classification, whole.
pub(super) async fn classify(conn: &mut Connection, classification: &Classification) -> Result<u64> {
    let (server, tool) = (&classification.server, &classification.tool);
    servers::require(conn, server).await?;
    let entity = Entity::Classification(server.clone(), tool.clone());
    let revision = match revisions::current(conn, &entity).await? {
        0 => revisions::first(conn, &entity).await?,
        current => current + 1,
    };
    diesel::delete(classifications::table.find((server.as_str(), tool.as_str())))
        .execute(conn)
        .await?;
    diesel::insert_into(classifications::table)
        .values(ClassificationRow::of(classification, revision)?)
        .execute(conn)
        .await?;
    Ok(revision)
}

/// The end of a classification.
pub(super) async fn declassify(conn: &mut Connection, server: &ServerId, tool: &ToolName) -> Result<u64> {
    let entity = Entity::Classification(server.clone(), tool.clone());
    let current = revisions::current(conn, &entity).await?;
    if current == 0 {
        return Err(CoreError::not_found("classification of the tool", tool.as_str()).into());
    }
    revisions::keep(conn, &entity, current + 1).await?;
    diesel::delete(classifications::table.find((server.as_str(), tool.as_str())))
        .execute(conn)
        .await?;
    Ok(current + 1)
}

/// Keeps the counts of everything that goes with its server.
pub(super) async fn keep_counts(conn: &mut Connection, server: &ServerId) -> Result<()> {
    let inventory = Entity::Inventory(server.clone());
    let current = revisions::current(conn, &inventory).await?;
    if current > 0 {
        revisions::keep(conn, &inventory, current).await?;
    }
    let bound: Vec<(String, i64)> = classifications::table
        .filter(classifications::server_id.eq(server.as_str()))
        .select((classifications::tool, classifications::revision))
        .load(conn)
        .await?;
    for (tool, revision) in bound {
        let tool = tool.parse().map_err(crate::Error::from)?;
        let revision = unsigned("classifications.revision", revision)?;
        revisions::keep(conn, &Entity::Classification(server.clone(), tool), revision).await?;
    }
    Ok(())
}
