//! Requests for consent.

use caliber_core::approval::Approval;
use caliber_core::id::{ApprovalId, InvocationId, ProjectId};
use caliber_core::page::{Page, PageRequest};
use caliber_core::reason::ReasonCode;
use caliber_core::{Error as CoreError, ErrorKind};
use diesel::{ExpressionMethods, OptionalExtension, QueryDsl, SelectableHelper};
use diesel_async::RunQueryDsl;

use super::{Backend, Connection, now};
use crate::cursor::List;
use crate::error::Result;
use crate::rows::{ApprovalRow, StateColumns, micros, number, unsigned};
use crate::schema::approvals;

const LIST: List = List("approvals");

/// An approval.
pub(crate) async fn approval(conn: &mut Connection, id: &ApprovalId) -> Result<Option<Approval>> {
    let found = row(conn, id).await?;
    found.map(ApprovalRow::approval).transpose()
}

pub(super) async fn row(conn: &mut Connection, id: &ApprovalId) -> Result<Option<ApprovalRow>> {
    Ok(approvals::table
        .find(id.as_str())
        .select(ApprovalRow::as_select())
        .get_result(conn)
        .await
        .optional()?)
}

/// Approvals, newest first.
pub(crate) async fn approvals(
    conn: &mut Connection,
    projects: Option<&[ProjectId]>,
    pending_only: bool,
    request: &PageRequest,
) -> Result<Page<Approval>> {
    let after: Option<ApprovalId> = LIST.after(request)?;
    let mut select = approvals::table
        .select(ApprovalRow::as_select())
        .order(approvals::id.desc())
        .limit(List::rows(request))
        .into_boxed::<Backend>();
    if let Some(projects) = projects {
        select = select.filter(approvals::project.eq_any(projects.iter().map(ToString::to_string)));
    }
    if pending_only {
        let now = now(conn).await?;
        select = select
            .filter(approvals::state.eq(StateColumns::PENDING))
            .filter(approvals::expires_at.gt(now));
    }
    if let Some(after) = after {
        select = select.filter(approvals::id.lt(after.to_string()));
    }
    let rows: Vec<ApprovalRow> = select.load(conn).await?;
    LIST.page(rows, request, |row| row.id.clone(), ApprovalRow::approval)
}

/// A request for consent, unless the caller waits for the same, or for too much, already.
pub(super) async fn create(conn: &mut Connection, approval: &Approval, limit: usize) -> Result<u64> {
    let now = now(conn).await?;
    let waiting = || {
        approvals::table
            .filter(approvals::requested_by.eq(approval.requested_by.as_str()))
            .filter(approvals::project.eq(approval.project.as_str()))
            .filter(approvals::state.eq(StateColumns::PENDING))
            .filter(approvals::expires_at.gt(now))
    };
    let alike: Vec<ApprovalRow> = waiting()
        .filter(approvals::argument_digest.eq(approval.argument_digest.to_string()))
        .select(ApprovalRow::as_select())
        .load(conn)
        .await?;
    for row in alike {
        let other = row.approval()?;
        if other.asks_the_same(approval) {
            return Err(Approval::waits_already(&other.id).into());
        }
    }
    let count: i64 = waiting().count().get_result(conn).await?;
    if usize::try_from(count).unwrap_or(usize::MAX) >= limit {
        return Err(Approval::too_many_wait(limit).into());
    }
    diesel::insert_into(approvals::table)
        .values(ApprovalRow::of(approval, 1))
        .execute(conn)
        .await?;
    Ok(1)
}

/// A decision about a request that waits for one.
pub(super) async fn decide(conn: &mut Connection, approval: &Approval) -> Result<u64> {
    let (state, expires_at, revision) = standing(conn, &approval.id).await?;
    if state != StateColumns::PENDING || expires_at <= now(conn).await? {
        let decided = CoreError::new(ErrorKind::Conflict, "the request is decided or expired");
        return Err(decided.into());
    }
    diesel::update(approvals::table.find(approval.id.as_str()))
        .set((
            StateColumns::of(&approval.state),
            approvals::revision.eq(number(revision + 1)),
        ))
        .execute(conn)
        .await?;
    Ok(revision + 1)
}

/// Spends an approval on a call.
pub(super) async fn spend(conn: &mut Connection, id: &ApprovalId, call: &InvocationId) -> Result<u64> {
    let (state, expires_at, revision) = standing(conn, id).await?;
    if state != StateColumns::APPROVED || expires_at <= now(conn).await? {
        return Err(CoreError::new(
            ErrorKind::Conflict,
            "the approval is not approved, expired or spent",
        )
        .with_reason(ReasonCode::ApprovalInvalid)
        .into());
    }
    diesel::update(approvals::table.find(id.as_str()))
        .set((
            approvals::state.eq(StateColumns::SPENT),
            approvals::invocation_id.eq(call.as_str()),
            approvals::revision.eq(number(revision + 1)),
        ))
        .execute(conn)
        .await?;
    Ok(revision + 1)
}

/// The state of an approval, when it expires, and its revision.
async fn standing(conn: &mut Connection, id: &ApprovalId) -> Result<(String, i64, u64)> {
    let found: Option<(String, i64, i64)> = approvals::table
        .find(id.as_str())
        .select((approvals::state, approvals::expires_at, approvals::revision))
        .get_result(conn)
        .await
        .optional()?;
    let (state, expires_at, revision) = found.ok_or_else(|| CoreError::not_found("approval", id.as_str()))?;
    Ok((state, expires_at, unsigned("approvals.revision", revision)?))
}

/// Removes at most `limit` approvals that expired before `before`; returns how many.
pub(super) async fn prune(
    conn: &mut Connection,
    before: caliber_core::clock::Timestamp,
    limit: i64,
) -> Result<usize> {
    let old: Vec<String> = approvals::table
        .filter(approvals::expires_at.lt(micros(before)))
        .select(approvals::id)
        .limit(limit)
        .load(conn)
        .await?;
    for id in &old {
        diesel::delete(approvals::table.find(id)).execute(conn).await?;
    }
    Ok(old.len())
}
