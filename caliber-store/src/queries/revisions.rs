//! Revisions: what they are now, and how they go on counting for what has no row.

use caliber_core::id::ProjectId;
use caliber_core::reason::ReasonCode;
use caliber_core::registry::{Entity, Expect};
use caliber_core::{Error as CoreError, ErrorKind};
use diesel::{ExpressionMethods, OptionalExtension, QueryDsl};
use diesel_async::RunQueryDsl;

use super::Connection;
use crate::error::Result;
use crate::rows::{number, unsigned};
use crate::schema::{approvals, classifications, code_tools, inventories, revisions, servers};

/// Refuses a change whose expectations do not hold any more. The transaction holds the lock that keeps them.
pub(super) async fn check(conn: &mut Connection, expect: &Expect) -> Result<()> {
    for (entity, revision) in &expect.0 {
        let current = current(conn, entity).await?;
        if current != revision.0 {
            return Err(CoreError::new(
                ErrorKind::Conflict,
                format!("{entity} was at revision {revision} when this was decided and is at {current} now; read it again"),
            )
            .with_reason(ReasonCode::StaleRevision)
            .into());
        }
    }
    Ok(())
}

/// How often `entity` has changed; zero while it is absent.
pub(super) async fn current(conn: &mut Connection, entity: &Entity) -> Result<u64> {
    let revision: Option<i64> = match entity {
        Entity::Server(id) => servers::table
            .find(id.as_str())
            .select(servers::revision)
            .get_result(conn)
            .await
            .optional()?,
        Entity::Inventory(id) => inventories::table
            .find(id.as_str())
            .select(inventories::revision)
            .get_result(conn)
            .await
            .optional()?,
        Entity::Classification(id, tool) => classifications::table
            .find((id.as_str(), tool.as_str()))
            .select(classifications::revision)
            .get_result(conn)
            .await
            .optional()?,
        Entity::Approval(id) => approvals::table
            .find(id.as_str())
            .select(approvals::revision)
            .get_result(conn)
            .await
            .optional()?,
        Entity::CodeTool(id) => code_tools::table
            .find(id.as_str())
            .select(code_tools::revision)
            .get_result(conn)
            .await
            .optional()?,
        Entity::Access(_) => return counted(conn, entity).await,
        _ => {
            return Err(CoreError::new(
                ErrorKind::Unsupported,
                format!("this store does not count the changes of {entity}"),
            )
            .into());
        }
    };
    unsigned("revision", revision.unwrap_or(0))
}

/// The counter of what has no row.
async fn counted(conn: &mut Connection, entity: &Entity) -> Result<u64> {
    let count: Option<i64> = revisions::table
        .find(entity.to_string())
        .select(revisions::revision)
        .get_result(conn)
        .await
        .optional()?;
    unsigned("revisions.revision", count.unwrap_or(0))
}

/// The first revision of what comes into being, or comes back.
pub(super) async fn first(conn: &mut Connection, entity: &Entity) -> Result<u64> {
    Ok(counted(conn, entity).await? + 1)
}

/// Keeps the count of what loses its row.
pub(super) async fn keep(conn: &mut Connection, entity: &Entity, count: u64) -> Result<()> {
    diesel::insert_into(revisions::table)
        .values((
            revisions::entity.eq(entity.to_string()),
            revisions::revision.eq(number(count)),
        ))
        .on_conflict(revisions::entity)
        .do_update()
        .set(revisions::revision.eq(number(count)))
        .execute(conn)
        .await?;
    Ok(())
}

/// Counts a change of who may do what in a project.
pub(super) async fn advance_access(conn: &mut Connection, project: &ProjectId) -> Result<u64> {
    let entity = Entity::Access(project.clone());
    let next = first(conn, &entity).await?;
    keep(conn, &entity, next).await?;
    Ok(next)
}
