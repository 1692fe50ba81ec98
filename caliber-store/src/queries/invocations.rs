//! The ledger of calls.

use caliber_core::clock::Timestamp;
use caliber_core::id::InvocationId;
use caliber_core::invocation::{InvocationIntent, InvocationOutcome, InvocationRecord, Settlement};
use caliber_core::page::{Page, PageRequest};
use caliber_core::reason::ReasonCode;
use caliber_core::registry::InvocationsOf;
use caliber_core::{Error as CoreError, ErrorKind};
use diesel::{ExpressionMethods, OptionalExtension, QueryDsl, SelectableHelper};
use diesel_async::RunQueryDsl;

use super::{Backend, Connection, approvals, now};
use crate::cursor::List;
use crate::error::Result;
use crate::rows::{InvocationRow, SettlementColumns, instant, micros, number};
use crate::schema::invocations;

const LIST: List = List("invocations");

/// One call.
pub(crate) async fn invocation(conn: &mut Connection, id: &InvocationId) -> Result<Option<InvocationRecord>> {
    let found = row(conn, id).await?;
    found.map(InvocationRow::record).transpose()
}

async fn row(conn: &mut Connection, id: &InvocationId) -> Result<Option<InvocationRow>> {
    Ok(invocations::table
        .find(id.as_str())
        .select(InvocationRow::as_select())
        .get_result(conn)
        .await
        .optional()?)
}

/// Calls, newest first.
pub(crate) async fn invocations(
    conn: &mut Connection,
    of: &InvocationsOf,
    request: &PageRequest,
) -> Result<Page<InvocationRecord>> {
    let after: Option<InvocationId> = LIST.after(request)?;
    let mut select = invocations::table
        .select(InvocationRow::as_select())
        .order(invocations::id.desc())
        .limit(List::rows(request))
        .into_boxed::<Backend>();
    match of {
        InvocationsOf::Everything => {}
        InvocationsOf::Server(server) => {
            select = select.filter(invocations::server_id.eq(server.to_string()));
        }
        InvocationsOf::CodeTool(tool) => {
            select = select.filter(invocations::code_tool_id.eq(tool.to_string()));
        }
    }
    if let Some(after) = after {
        select = select.filter(invocations::id.lt(after.to_string()));
    }
    let rows: Vec<InvocationRow> = select.load(conn).await?;
    LIST.page(rows, request, |row| row.id.clone(), InvocationRow::record)
}

/// A call with effects, before a byte is sent. Returns the revision of the approval that it spends, or zero.
pub(super) async fn begin(conn: &mut Connection, intent: &InvocationIntent) -> Result<u64> {
    let InvocationIntent {
        invocation,
        owner,
        lease_ms,
    } = intent;
    let lease = number(*lease_ms).saturating_mul(1_000);
    let until = now(conn).await?.saturating_add(lease);
    let inserted = diesel::insert_into(invocations::table)
        .values(InvocationRow::begun(invocation, owner.to_string(), until)?)
        .on_conflict(invocations::id)
        .do_nothing()
        .execute(conn)
        .await?;
    if inserted == 0 {
        let begun = format!("the call {} has begun already", invocation.id);
        return Err(CoreError::new(ErrorKind::Conflict, begun).into());
    }
    match &invocation.approval {
        Some(approval) => approvals::spend(conn, approval, &invocation.id).await,
        None => Ok(0),
    }
}

/// The end of a call that was begun.
pub(super) async fn settle(conn: &mut Connection, id: &InvocationId, settlement: &Settlement) -> Result<()> {
    let open = invocations::table
        .filter(invocations::id.eq(id.as_str()))
        .filter(invocations::outcome.is_null());
    let settled = diesel::update(open)
        .set(SettlementColumns::of(settlement))
        .execute(conn)
        .await?;
    if settled > 0 {
        return Ok(());
    }
    let refusal = match row(conn, id).await? {
        Some(_) => CoreError::new(ErrorKind::Conflict, format!("the call {id} is settled already")),
        None => CoreError::not_found("invocation", id.as_str()),
    };
    Err(refusal.into())
}

/// Calls that began and ended without an intent; those that are there already stay as they are. Returns how many
/// are new.
pub(super) async fn record(conn: &mut Connection, records: &[InvocationRecord]) -> Result<usize> {
    let mut new = 0;
    for InvocationRecord {
        invocation,
        settlement,
    } in records
    {
        let settlement = settlement.as_ref().ok_or_else(|| {
            let open = format!("the call {} has no settlement; begin it instead", invocation.id);
            CoreError::new(ErrorKind::Invalid, open)
        })?;
        new += diesel::insert_into(invocations::table)
            .values(InvocationRow::ended(invocation, settlement)?)
            .on_conflict(invocations::id)
            .do_nothing()
            .execute(conn)
            .await?;
    }
    Ok(new)
}

/// Settles at most `limit` calls whose lease has run out as unknown, and returns them.
pub(super) async fn settle_orphans(conn: &mut Connection, limit: u32) -> Result<Vec<InvocationRecord>> {
    let now = now(conn).await?;
    let due: Vec<InvocationRow> = invocations::table
        .filter(invocations::lease_until.le(now))
        .filter(invocations::outcome.is_null())
        .order(invocations::id.asc())
        .limit(i64::from(limit))
        .select(InvocationRow::as_select())
        .load(conn)
        .await?;
    let ended_at = instant("now", now)?;
    let mut settled = Vec::with_capacity(due.len());
    for row in due {
        let mut record = row.record()?;
        let lasted = ended_at.signed_duration_since(record.invocation.started_at);
        let settlement = Settlement {
            outcome: InvocationOutcome::OutcomeUnknown,
            reason: Some(ReasonCode::OutcomeUnknown),
            detail: Some("the instance that made the call has not settled it in time".to_owned()),
            ended_at,
            duration_us: lasted
                .num_microseconds()
                .and_then(|lasted| u64::try_from(lasted).ok())
                .unwrap_or(0),
            result_bytes: None,
        };
        diesel::update(invocations::table.find(record.invocation.id.as_str()))
            .set(SettlementColumns::of(&settlement))
            .execute(conn)
            .await?;
        record.settlement = Some(settlement);
        settled.push(record);
    }
    Ok(settled)
}

/// Removes at most `limit` calls that ended before `before`; returns how many.
pub(super) async fn prune(conn: &mut Connection, before: Timestamp, limit: i64) -> Result<usize> {
    let old: Vec<String> = invocations::table
        .filter(invocations::ended_at.lt(micros(before)))
        .select(invocations::id)
        .limit(limit)
        .load(conn)
        .await?;
    for id in &old {
        diesel::delete(invocations::table.find(id)).execute(conn).await?;
    }
    Ok(old.len())
}
