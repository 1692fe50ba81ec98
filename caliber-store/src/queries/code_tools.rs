//! Versions of code tools.

use caliber_core::code_tool::{CodeToolRecord, CodeToolStatus, CodeToolSummary, FAMILY_VERSIONS, FamilyName};
use caliber_core::id::{CodeToolId, ProjectId};
use caliber_core::page::{Page, PageRequest};
use caliber_core::reason::ReasonCode;
use caliber_core::registry::{CodeToolQuery, DeploymentReference, Entity, SecretOwner, Viewer};
use caliber_core::secret::SecretReference;
use caliber_core::server::Visibility;
use caliber_core::text::escaped;
use caliber_core::{Error as CoreError, ErrorKind};
use diesel::result::{DatabaseErrorKind, Error as DieselError};
use diesel::{
    BoolExpressionMethods, EscapeExpressionMethods, ExpressionMethods, OptionalExtension, QueryDsl,
    SelectableHelper, TextExpressionMethods,
};
use diesel_async::RunQueryDsl;

use super::servers::{SEARCH_LENGTH, pattern};
use super::{Backend, Connection, revisions, secrets};
use crate::cursor::List;
use crate::error::Result;
use crate::keys::SealedSecret;
use crate::rows::{CodeToolColumns, CodeToolRow, CodeToolSummaryRow, NewCodeToolRow, word_column};
use crate::schema::{code_tool_deployment_references as references, code_tools};

const LIST: List = List("code_tools");

/// A version.
pub(crate) async fn code_tool(conn: &mut Connection, id: &CodeToolId) -> Result<Option<CodeToolRecord>> {
    let row: Option<CodeToolRow> = code_tools::table
        .find(id.as_str())
        .select(CodeToolRow::as_select())
        .get_result(conn)
        .await
        .optional()?;
    row.map(CodeToolRow::record).transpose()
}

/// Versions by family, then by project, then the newest first; without their definitions.
pub(crate) async fn code_tools(
    conn: &mut Connection,
    query: &CodeToolQuery,
    request: &PageRequest,
) -> Result<Page<CodeToolSummary>> {
    let after: Option<CodeToolId> = LIST.after(request)?;
    let mut select = code_tools::table
        .select(CodeToolSummaryRow::as_select())
        .order((
            code_tools::family.asc(),
            code_tools::project.asc(),
            code_tools::version_key.desc(),
        ))
        .limit(List::rows(request))
        .into_boxed::<Backend>();
    if let Some(after) = after {
        let (family, project, version) = place(conn, &after).await?;
        select = select.filter(
            code_tools::family
                .gt(family.clone())
                .or(code_tools::family.eq(family).and(
                    code_tools::project.gt(project.clone()).or(code_tools::project
                        .eq(project)
                        .and(code_tools::version_key.lt(version))),
                )),
        );
    }
    if let Some(Viewer {
        subject,
        project,
        admin,
    }) = &query.viewer
    {
        let own = code_tools::visibility
            .eq("user")
            .and(code_tools::owner.eq(subject.to_string()));
        let public = code_tools::visibility.eq("public");
        let in_project = code_tools::project.eq(project.to_string());
        select = if *admin {
            select.filter(public.or(own).or(in_project))
        } else {
            select.filter(
                public
                    .or(own)
                    .or(in_project.and(code_tools::visibility.eq("project"))),
            )
        };
    }
    if let Some(family) = &query.family {
        select = select.filter(code_tools::family.eq(family.to_string()));
    }
    if let Some(project) = &query.project {
        select = select.filter(code_tools::project.eq(project.to_string()));
    }
    if let Some(status) = query.status {
        select = select.filter(code_tools::status.eq(word_column(&status)?));
    }
    if let Some(visibility) = query.visibility {
        select = select.filter(code_tools::visibility.eq(word_column(&visibility)?));
    }
    if let Some(text) = &query.text {
        if text.len() > SEARCH_LENGTH {
            return Ok(Page {
                items: Vec::new(),
                next: None,
            });
        }
        select = select.filter(code_tools::search_text.like(pattern(text)).escape('\\'));
    }
    let rows: Vec<CodeToolSummaryRow> = select.load(conn).await?;
    LIST.page(rows, request, |row| row.id.clone(), CodeToolSummaryRow::summary)
}

/// Where a version stands in the list; it never moves.
async fn place(conn: &mut Connection, id: &CodeToolId) -> Result<(String, String, String)> {
    let found = code_tools::table
        .find(id.as_str())
        .select((code_tools::family, code_tools::project, code_tools::version_key))
        .get_result(conn)
        .await
        .optional()?;
    found.ok_or_else(|| {
        let foreign = "it does not come from a page of this list; begin without one";
        CoreError::invalid("cursor", foreign).into()
    })
}

/// The active deployments that need a version.
pub(crate) async fn deployments_using_code_tool(
    conn: &mut Connection,
    id: &CodeToolId,
) -> Result<Vec<DeploymentReference>> {
    let rows: Vec<(String, String, i64)> = references::table
        .filter(references::code_tool_id.eq(id.as_str()))
        .order((references::workflow, references::alias, references::rollback_only))
        .select((references::workflow, references::alias, references::rollback_only))
        .load(conn)
        .await?;
    let found = rows
        .into_iter()
        .map(|(workflow, alias, rollback_only)| DeploymentReference {
            workflow,
            alias,
            rollback_only: rollback_only != 0,
        });
    Ok(found.collect())
}

/// Says which deployments need a version.
#[cfg(feature = "testing")]
pub(crate) async fn set_code_tool_deployments(
    conn: &mut Connection,
    id: &CodeToolId,
    needed_by: &[DeploymentReference],
) -> Result<()> {
    let before = references::table.filter(references::code_tool_id.eq(id.as_str()));
    diesel::delete(before).execute(conn).await?;
    for reference in needed_by {
        diesel::insert_into(references::table)
            .values((
                references::code_tool_id.eq(id.as_str()),
                references::workflow.eq(&reference.workflow),
                references::alias.eq(&reference.alias),
                references::rollback_only.eq(i64::from(reference.rollback_only)),
            ))
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// A new version with its secrets.
pub(super) async fn register(
    conn: &mut Connection,
    record: &CodeToolRecord,
    sealed: &[SealedSecret],
) -> Result<u64> {
    let definition = &record.definition;
    let versions: i64 = code_tools::table
        .filter(code_tools::family.eq(definition.family.as_str()))
        .filter(code_tools::project.eq(record.project.as_str()))
        .count()
        .get_result(conn)
        .await?;
    let revision = revisions::first(conn, &Entity::CodeTool(record.id.clone())).await?;
    let inserted = diesel::insert_into(code_tools::table)
        .values((
            NewCodeToolRow::of(record)?,
            CodeToolColumns::of(record, definition, revision)?,
        ))
        .execute(conn)
        .await;
    match inserted {
        Ok(_) => {}
        Err(DieselError::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => {
            return Err(CoreError::new(
                ErrorKind::Conflict,
                format!(
                    "{} has a version {} in this project; choose another",
                    definition.family, definition.version
                ),
            )
            .with_reason(ReasonCode::VersionTaken)
            .into());
        }
        Err(error) => return Err(error.into()),
    }
    if versions >= i64::from(FAMILY_VERSIONS) {
        return Err(CoreError::new(
            ErrorKind::TooLarge,
            format!("a code tool has at most {FAMILY_VERSIONS} versions in a project"),
        )
        .into());
    }
    public_name_is_free(conn, record).await?;
    let owner = SecretOwner::CodeTool(record.id.clone());
    secrets::insert(conn, &owner, sealed).await?;
    let own = secrets::of_owner(conn, &owner).await?;
    let mut stored = definition
        .secret_refs
        .values()
        .filter_map(|value| match value.reference() {
            Some(SecretReference::Stored(id)) => Some(id),
            _ => None,
        });
    if let Some(foreign) = stored.find(|id| !own.contains(id.as_str())) {
        let problem = format!("it refers to the secret {foreign}, which is not stored for this tool");
        return Err(CoreError::invalid("secret_refs", problem).into());
    }
    Ok(revision)
}

/// A name is public in one project only, so that a reference to it is never ambiguous.
async fn public_name_is_free(conn: &mut Connection, record: &CodeToolRecord) -> Result<()> {
    if record.visibility != Visibility::Public {
        return Ok(());
    }
    let family = &record.definition.family;
    let elsewhere: i64 = code_tools::table
        .filter(code_tools::family.eq(family.as_str()))
        .filter(code_tools::project.ne(record.project.as_str()))
        .filter(code_tools::visibility.eq("public"))
        .count()
        .get_result(conn)
        .await?;
    if elsewhere == 0 {
        return Ok(());
    }
    Err(CoreError::new(
        ErrorKind::Conflict,
        format!(
            "another project has a public code tool {family}; choose another name, or keep this one in its project"
        ),
    )
    .with_reason(ReasonCode::NameTaken)
    .into())
}

/// A version with another description, status, successor, owner or visibility.
pub(super) async fn update(conn: &mut Connection, record: &CodeToolRecord) -> Result<u64> {
    let stored = code_tool(conn, &record.id)
        .await?
        .ok_or_else(|| absent(&record.id))?;
    let archives = record.status == CodeToolStatus::Archived && stored.status != CodeToolStatus::Archived;
    let mut after = stored;
    after.visibility = record.visibility;
    public_name_is_free(conn, &after).await?;
    if archives {
        let needed = deployments_using_code_tool(conn, &record.id).await?;
        if let [first, ..] = needed.as_slice() {
            return Err(CoreError::new(
                ErrorKind::Conflict,
                format!(
                    "{} deployments need this version, among them {}@{}",
                    needed.len(),
                    escaped(&first.alias, 80),
                    escaped(&first.workflow, 80)
                ),
            )
            .with_reason(ReasonCode::InUse)
            .into());
        }
    }
    let revision = after.revision.0 + 1;
    after
        .definition
        .description
        .clone_from(&record.definition.description);
    diesel::update(code_tools::table.find(record.id.as_str()))
        .set(CodeToolColumns::of(record, &after.definition, revision)?)
        .execute(conn)
        .await?;
    Ok(revision)
}

/// Refuses what is about a version that is absent.
pub(super) async fn require(conn: &mut Connection, id: &CodeToolId) -> Result<()> {
    if revisions::current(conn, &Entity::CodeTool(id.clone())).await? == 0 {
        return Err(absent(id));
    }
    Ok(())
}

/// Refuses what is about a family that is absent.
pub(super) async fn require_family(
    conn: &mut Connection,
    project: &ProjectId,
    family: &FamilyName,
) -> Result<()> {
    let versions: i64 = code_tools::table
        .filter(code_tools::family.eq(family.as_str()))
        .filter(code_tools::project.eq(project.as_str()))
        .count()
        .get_result(conn)
        .await?;
    if versions == 0 {
        return Err(CoreError::not_found("code tool", family.as_str()).into());
    }
    Ok(())
}

fn absent(id: &CodeToolId) -> crate::Error {
    CoreError::not_found("code tool", id.as_str()).into()
}
