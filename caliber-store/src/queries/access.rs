//! Grants, memberships and tokens.

use caliber_core::Error as CoreError;
use caliber_core::clock::Timestamp;
use caliber_core::code_tool::FamilyName;
use caliber_core::digest::TokenHash;
use caliber_core::grant::{Grant, GrantedTools, Membership};
use caliber_core::id::{GrantId, ProjectId, TokenId};
use caliber_core::page::{Page, PageRequest};
use caliber_core::principal::Subject;
use caliber_core::registry::AdmissionQuery;
use caliber_core::token::TokenRecord;
use diesel::{BoolExpressionMethods, ExpressionMethods, OptionalExtension, QueryDsl, SelectableHelper};
use diesel_async::RunQueryDsl;

use super::{Backend, Connection, code_tools, revisions, servers};
use crate::cursor::List;
use crate::error::Result;
use crate::rows::{GrantRow, MembershipRow, SCOPE, SUBJECT, TokenRow, micros};
use crate::schema::{grants, memberships, tokens};

const GRANTS: List = List("grants");
const TOKENS: List = List("tokens");

/// The grants of a project, in the order in which they were given.
pub(crate) async fn grants(
    conn: &mut Connection,
    project: &ProjectId,
    request: &PageRequest,
) -> Result<Page<Grant>> {
    let after: Option<GrantId> = GRANTS.after(request)?;
    let mut select = grants::table
        .filter(grants::project.eq(project.to_string()))
        .select(GrantRow::as_select())
        .order(grants::id.asc())
        .limit(List::rows(request))
        .into_boxed::<Backend>();
    if let Some(after) = after {
        select = select.filter(grants::id.gt(after.to_string()));
    }
    let rows: Vec<GrantRow> = select.load(conn).await?;
    GRANTS.page(rows, request, |row| row.id.clone(), GrantRow::grant)
}

/// The grants that can open a tool to a caller: those that name the server and the tool, or all its tools, and the
/// caller, or a scope; given in one of two projects.
pub(super) async fn grants_for(
    conn: &mut Connection,
    query: &AdmissionQuery,
    projects: (&ProjectId, &ProjectId),
) -> Result<Vec<Grant>> {
    let to_caller = grants::grantee_kind
        .eq(SUBJECT)
        .and(grants::grantee.eq(query.subject.as_str()));
    let rows: Vec<GrantRow> = grants::table
        .filter(grants::server_id.eq(query.server.as_str()))
        .filter(grants::grantee_kind.eq(SCOPE).or(to_caller))
        .filter(
            grants::project
                .eq(projects.0.as_str())
                .or(grants::project.eq(projects.1.as_str())),
        )
        .filter(grants::tool.is_null().or(grants::tool.eq(query.tool.as_str())))
        .order(grants::id.asc())
        .select(GrantRow::as_select())
        .load(conn)
        .await?;
    rows.into_iter().map(GrantRow::grant).collect()
}

/// The grants that can open a family to a caller: those that name it, and the caller, or a scope; given in one of two
/// projects.
pub(super) async fn grants_for_family(
    conn: &mut Connection,
    family: (&ProjectId, &FamilyName),
    subject: &Subject,
    projects: (&ProjectId, &ProjectId),
) -> Result<Vec<Grant>> {
    let to_caller = grants::grantee_kind
        .eq(SUBJECT)
        .and(grants::grantee.eq(subject.as_str()));
    let rows: Vec<GrantRow> = grants::table
        .filter(grants::family.eq(family.1.as_str()))
        .filter(grants::family_project.eq(family.0.as_str()))
        .filter(grants::grantee_kind.eq(SCOPE).or(to_caller))
        .filter(
            grants::project
                .eq(projects.0.as_str())
                .or(grants::project.eq(projects.1.as_str())),
        )
        .order(grants::id.asc())
        .select(GrantRow::as_select())
        .load(conn)
        .await?;
    rows.into_iter().map(GrantRow::grant).collect()
}

/// The scopes of a subject, everywhere and in each project.
pub(crate) async fn memberships(conn: &mut Connection, subject: &Subject) -> Result<Vec<Membership>> {
    let rows: Vec<MembershipRow> = memberships::table
        .filter(memberships::subject.eq(subject.as_str()))
        .order(memberships::project.asc())
        .select(MembershipRow::as_select())
        .load(conn)
        .await?;
    rows.into_iter().map(MembershipRow::membership).collect()
}

/// The token with this digest.
pub(crate) async fn token_by_hash(conn: &mut Connection, hash: &TokenHash) -> Result<Option<TokenRecord>> {
    let row: Option<TokenRow> = tokens::table
        .filter(tokens::hash.eq(hash.to_string()))
        .select(TokenRow::as_select())
        .get_result(conn)
        .await
        .optional()?;
    row.map(TokenRow::token).transpose()
}

/// Tokens, newest first.
pub(crate) async fn tokens(
    conn: &mut Connection,
    projects: Option<&[ProjectId]>,
    request: &PageRequest,
) -> Result<Page<TokenRecord>> {
    let after: Option<TokenId> = TOKENS.after(request)?;
    let mut select = tokens::table
        .select(TokenRow::as_select())
        .order(tokens::id.desc())
        .limit(List::rows(request))
        .into_boxed::<Backend>();
    if let Some(projects) = projects {
        select = select.filter(tokens::project.eq_any(projects.iter().map(ToString::to_string)));
    }
    if let Some(after) = after {
        select = select.filter(tokens::id.lt(after.to_string()));
    }
    let rows: Vec<TokenRow> = select.load(conn).await?;
    TOKENS.page(rows, request, |row| row.id.clone(), TokenRow::token)
}

/// A grant.
pub(super) async fn create_grant(conn: &mut Connection, grant: &Grant) -> Result<u64> {
    match &grant.tools {
        GrantedTools::Server { server, .. } => servers::require(conn, server).await?,
        GrantedTools::Family { project, family } => code_tools::require_family(conn, project, family).await?,
    }
    diesel::insert_into(grants::table)
        .values(GrantRow::of(grant))
        .execute(conn)
        .await?;
    revisions::advance_access(conn, &grant.project).await
}

/// The end of a grant.
pub(super) async fn delete_grant(conn: &mut Connection, project: &ProjectId, id: &GrantId) -> Result<u64> {
    let grant = grants::table
        .filter(grants::id.eq(id.as_str()))
        .filter(grants::project.eq(project.as_str()));
    if diesel::delete(grant).execute(conn).await? == 0 {
        return Err(CoreError::not_found("grant", id.as_str()).into());
    }
    revisions::advance_access(conn, project).await
}

/// The scopes of a subject, whole.
pub(super) async fn set_membership(conn: &mut Connection, membership: &Membership) -> Result<u64> {
    let project = membership.project.as_ref();
    let key = (
        membership.subject.as_str(),
        project.map_or("", |project| project.as_str()),
    );
    diesel::delete(memberships::table.find(key)).execute(conn).await?;
    if !membership.scopes.is_empty() {
        diesel::insert_into(memberships::table)
            .values(MembershipRow::of(membership))
            .execute(conn)
            .await?;
    }
    match project {
        Some(project) => revisions::advance_access(conn, project).await,
        None => Ok(0),
    }
}

/// A token.
pub(super) async fn create_token(conn: &mut Connection, token: &TokenRecord, hash: &TokenHash) -> Result<()> {
    diesel::insert_into(tokens::table)
        .values(TokenRow::of(token, hash.to_string()))
        .execute(conn)
        .await?;
    Ok(())
}

/// The end of a token that holds, in `project` if one is named.
pub(super) async fn prune_tokens(conn: &mut Connection, before: Timestamp, limit: i64) -> Result<usize> {
    let before = micros(before);
    let ended: Vec<String> = tokens::table
        .filter(tokens::expires_at.lt(before).or(tokens::revoked_at.lt(before)))
        .select(tokens::id)
        .limit(limit)
        .load(conn)
        .await?;
    for id in &ended {
        diesel::delete(tokens::table.find(id)).execute(conn).await?;
    }
    Ok(ended.len())
}

pub(super) async fn revoke_token(
    conn: &mut Connection,
    id: &TokenId,
    project: Option<&ProjectId>,
    at: Timestamp,
) -> Result<()> {
    let token = tokens::table
        .filter(tokens::id.eq(id.as_str()))
        .filter(tokens::revoked_at.is_null());
    let revoked = tokens::revoked_at.eq(micros(at));
    let changed = match project {
        None => diesel::update(token).set(revoked).execute(conn).await?,
        Some(project) => {
            diesel::update(token.filter(tokens::project.eq(project.as_str())))
                .set(revoked)
                .execute(conn)
                .await?
        }
    };
    if changed == 0 {
        return Err(CoreError::not_found("token", id.as_str()).into());
    }
    Ok(())
}
