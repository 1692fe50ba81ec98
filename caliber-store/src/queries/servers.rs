//! Servers.

use std::collections::BTreeSet;

use caliber_core::clock::Timestamp;
use caliber_core::id::{SecretId, ServerId};
use caliber_core::page::{Page, PageRequest};
use caliber_core::reason::ReasonCode;
use caliber_core::registry::{DeploymentReference, Entity, SecretOwner, ServerQuery, Viewer};
use caliber_core::secret::SecretReference;
use caliber_core::server::{ServerDefinition, ServerName, ServerRecord, ServerSummary};
use caliber_core::text::escaped;
use caliber_core::{Error as CoreError, ErrorKind};
use diesel::result::{DatabaseErrorKind, Error as DieselError};
use diesel::{
    BoolExpressionMethods, EscapeExpressionMethods, ExpressionMethods, NullableExpressionMethods,
    OptionalExtension, QueryDsl, SelectableHelper, TextExpressionMethods,
};
use diesel_async::RunQueryDsl;

use super::{Backend, Connection, revisions, secrets, tools};
use crate::cursor::List;
use crate::error::Result;
use crate::keys::SealedSecret;
use crate::rows::{ServerColumns, ServerRow, SummaryRow, micros, unsigned, word_column};
use crate::schema::{classifications, deployment_references, inventories, servers};

const LIST: List = List("servers");
/// No search text is longer than name, description and location together, so nothing longer is found.
pub(super) const SEARCH_LENGTH: usize = 4_096;

/// A server.
pub(crate) async fn server(conn: &mut Connection, id: &ServerId) -> Result<Option<ServerRecord>> {
    row(conn, id).await?.map(ServerRow::record).transpose()
}

pub(super) async fn row(conn: &mut Connection, id: &ServerId) -> Result<Option<ServerRow>> {
    Ok(servers::table
        .find(id.as_str())
        .select(ServerRow::as_select())
        .get_result(conn)
        .await
        .optional()?)
}

/// A server by its name.
pub(crate) async fn server_by_name(conn: &mut Connection, name: &ServerName) -> Result<Option<ServerRecord>> {
    let row: Option<ServerRow> = servers::table
        .filter(servers::name.eq(name.as_str()))
        .select(ServerRow::as_select())
        .get_result(conn)
        .await
        .optional()?;
    row.map(ServerRow::record).transpose()
}

/// Servers by name, without their definitions.
pub(crate) async fn servers(
    conn: &mut Connection,
    query: &ServerQuery,
    request: &PageRequest,
) -> Result<Page<ServerSummary>> {
    let after: Option<ServerName> = LIST.after(request)?;
    let mut select = servers::table
        .left_join(inventories::table)
        .select((SummaryRow::as_select(), inventories::tool_count.nullable()))
        .order(servers::name.asc())
        .limit(List::rows(request))
        .into_boxed::<Backend>();
    if let Some(after) = after {
        select = select.filter(servers::name.gt(after.to_string()));
    }
    if let Some(Viewer {
        subject,
        project,
        admin,
    }) = &query.viewer
    {
        let own = servers::visibility
            .eq("user")
            .and(servers::owner.eq(subject.to_string()));
        let public = servers::visibility.eq("public");
        let in_project = servers::project.eq(project.to_string());
        select = if *admin {
            select.filter(public.or(own).or(in_project))
        } else {
            select.filter(
                public
                    .or(own)
                    .or(in_project.and(servers::visibility.eq("project"))),
            )
        };
    }
    if let Some(status) = query.status {
        select = select.filter(servers::status.eq(word_column(&status)?));
    }
    if let Some(transport) = &query.transport {
        select = select.filter(servers::transport.eq(transport.clone()));
    }
    match query.failing {
        Some(true) => select = select.filter(servers::connection_error.is_not_null()),
        Some(false) => select = select.filter(servers::connection_error.is_null()),
        None => {}
    }
    if let Some(text) = &query.text {
        if text.len() > SEARCH_LENGTH {
            return Ok(Page {
                items: Vec::new(),
                next: None,
            });
        }
        select = select.filter(servers::search_text.like(pattern(text)).escape('\\'));
    }
    let rows: Vec<(SummaryRow, Option<i64>)> = select.load(conn).await?;
    LIST.page(
        rows,
        request,
        |(row, _)| row.name.clone(),
        |(row, tool_count)| row.summary(tool_count),
    )
}

/// The pattern of what holds `text`; ASCII letters in lower case, as the searched text has them.
pub(super) fn pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 2);
    pattern.push('%');
    for character in text.chars() {
        if matches!(character, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character.to_ascii_lowercase());
    }
    pattern.push('%');
    pattern
}

/// The active deployments that need a server.
pub(crate) async fn deployments_using(
    conn: &mut Connection,
    id: &ServerId,
) -> Result<Vec<DeploymentReference>> {
    let rows: Vec<(String, String, i64)> = deployment_references::table
        .filter(deployment_references::server_id.eq(id.as_str()))
        .order((
            deployment_references::workflow,
            deployment_references::alias,
            deployment_references::rollback_only,
        ))
        .select((
            deployment_references::workflow,
            deployment_references::alias,
            deployment_references::rollback_only,
        ))
        .load(conn)
        .await?;
    let references = rows
        .into_iter()
        .map(|(workflow, alias, rollback_only)| DeploymentReference {
            workflow,
            alias,
            rollback_only: rollback_only != 0,
        });
    Ok(references.collect())
}

/// Says which deployments need a server.
#[cfg(feature = "testing")]
pub(crate) async fn set_deployments(
    conn: &mut Connection,
    id: &ServerId,
    references: &[DeploymentReference],
) -> Result<()> {
    let before = deployment_references::table.filter(deployment_references::server_id.eq(id.as_str()));
    diesel::delete(before).execute(conn).await?;
    for reference in references {
        diesel::insert_into(deployment_references::table)
            .values((
                deployment_references::server_id.eq(id.as_str()),
                deployment_references::workflow.eq(&reference.workflow),
                deployment_references::alias.eq(&reference.alias),
                deployment_references::rollback_only.eq(i64::from(reference.rollback_only)),
            ))
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Whether the tables can be read.
pub(crate) async fn answers(conn: &mut Connection) -> Result<()> {
    let _: Option<String> = servers::table.select(servers::id).first(conn).await.optional()?;
    Ok(())
}

/// A new server with its secrets.
pub(super) async fn register(
    conn: &mut Connection,
    record: &ServerRecord,
    sealed: &[SealedSecret],
) -> Result<u64> {
    let id = record.id.as_str();
    let revision = revisions::first(conn, &Entity::Server(record.id.clone())).await?;
    let inserted = diesel::insert_into(servers::table)
        .values((
            servers::id.eq(id),
            servers::project.eq(record.project.as_str()),
            servers::created_at.eq(micros(record.created_at)),
            servers::last_connected_at.eq(record.last_connected_at.map(micros)),
            servers::connection_error.eq(record.connection_error.as_deref()),
            ServerColumns::of(record, revision)?,
        ))
        .execute(conn)
        .await;
    match inserted {
        Ok(_) => {}
        Err(DieselError::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => {
            return Err(CoreError::new(
                ErrorKind::Conflict,
                format!("the name {} is taken; choose another", record.definition.name),
            )
            .with_reason(ReasonCode::NameTaken)
            .into());
        }
        Err(error) => return Err(error.into()),
    }
    secrets::insert(conn, &owner(&record.id), sealed).await?;
    owns_its_secrets(conn, record).await?;
    Ok(revision)
}

/// A server with another definition, status, owner or visibility.
pub(super) async fn update(
    conn: &mut Connection,
    record: &ServerRecord,
    sealed: &[SealedSecret],
) -> Result<u64> {
    let id = record.id.as_str();
    let stored = row(conn, &record.id).await?.ok_or_else(|| absent(&record.id))?;
    let before = stored.definition()?;
    if before.name != record.definition.name {
        return Err(CoreError::invalid("name", "the name of a server never changes").into());
    }
    let revision = unsigned("servers.revision", stored.revision())? + 1;
    diesel::update(servers::table.find(id))
        .set(ServerColumns::of(record, revision)?)
        .execute(conn)
        .await?;
    let owner = owner(&record.id);
    secrets::insert(conn, &owner, sealed).await?;
    secrets::remove_unused(conn, &owner, &stored_secrets(&record.definition)).await?;
    owns_its_secrets(conn, record).await?;
    if before.fingerprint() != record.definition.fingerprint() {
        let bound = classifications::table
            .filter(classifications::server_id.eq(id))
            .filter(classifications::drifted_at.is_null());
        diesel::update(bound)
            .set(classifications::drifted_at.eq(micros(record.updated_at)))
            .execute(conn)
            .await?;
    }
    Ok(revision)
}

/// The end of a server. What belongs to it goes with its row; the counters stay.
pub(super) async fn remove(conn: &mut Connection, id: &ServerId) -> Result<u64> {
    let stored = row(conn, id).await?.ok_or_else(|| absent(id))?;
    let needed = deployments_using(conn, id).await?;
    if let [first, ..] = needed.as_slice() {
        return Err(CoreError::new(
            ErrorKind::Conflict,
            format!(
                "{} deployments need this server, among them {}@{}",
                needed.len(),
                escaped(&first.alias, 80),
                escaped(&first.workflow, 80)
            ),
        )
        .with_reason(ReasonCode::InUse)
        .into());
    }
    tools::keep_counts(conn, id).await?;
    let revision = unsigned("servers.revision", stored.revision())? + 1;
    revisions::keep(conn, &Entity::Server(id.clone()), revision).await?;
    diesel::delete(servers::table.find(id.as_str()))
        .execute(conn)
        .await?;
    Ok(revision)
}

/// How a connection went.
pub(super) async fn record_connection(
    conn: &mut Connection,
    id: &ServerId,
    at: Timestamp,
    error: Option<&str>,
) -> Result<()> {
    let server = servers::table.find(id.as_str());
    let changed = match error {
        None => {
            diesel::update(server)
                .set((
                    servers::last_connected_at.eq(micros(at)),
                    servers::connection_error.eq(None::<String>),
                ))
                .execute(conn)
                .await?
        }
        Some(error) => {
            diesel::update(server)
                .set(servers::connection_error.eq(error))
                .execute(conn)
                .await?
        }
    };
    if changed == 0 { Err(absent(id)) } else { Ok(()) }
}

/// Refuses what belongs to a server that is absent.
pub(super) async fn require(conn: &mut Connection, id: &ServerId) -> Result<()> {
    if revisions::current(conn, &Entity::Server(id.clone())).await? == 0 {
        return Err(absent(id));
    }
    Ok(())
}

/// # Errors
///
/// `NotFound` when there is no such server.
pub(super) async fn must_exist(conn: &mut Connection, id: &ServerId) -> Result<()> {
    let found: Option<String> = servers::table
        .find(id.as_str())
        .select(servers::id)
        .first(conn)
        .await
        .optional()?;
    found.map(drop).ok_or_else(|| absent(id))
}

fn owner(id: &ServerId) -> SecretOwner {
    SecretOwner::Server(id.clone())
}

fn absent(id: &ServerId) -> crate::Error {
    CoreError::not_found("server", id.as_str()).into()
}

/// The stored secrets that a definition refers to.
fn stored_secrets(definition: &ServerDefinition) -> BTreeSet<SecretId> {
    let values = definition.config_values().into_iter();
    let stored = values.filter_map(|(_, value)| match value.reference() {
        Some(SecretReference::Stored(id)) => Some(id.clone()),
        _ => None,
    });
    stored.collect()
}

/// Refuses a definition that refers to a secret of another server, or to none.
async fn owns_its_secrets(conn: &mut Connection, record: &ServerRecord) -> Result<()> {
    let own = secrets::of_owner(conn, &owner(&record.id)).await?;
    let wanted = stored_secrets(&record.definition);
    match wanted.iter().find(|id| !own.contains(id.as_str())) {
        None => Ok(()),
        Some(id) => Err(CoreError::invalid(
            "endpoint",
            format!("it refers to the secret {id}, which is not stored for this server"),
        )
        .into()),
    }
}
