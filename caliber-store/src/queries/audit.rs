//! The audit trail.

use std::fmt;
use std::str::FromStr;

use caliber_core::audit::{AuditEntry, AuditQuery};
use caliber_core::clock::Timestamp;
use caliber_core::id::AuditId;
use caliber_core::page::{Page, PageRequest};
use diesel::{BoolExpressionMethods, ExpressionMethods, OptionalExtension, QueryDsl, SelectableHelper};
use diesel_async::RunQueryDsl;

use super::{Backend, Connection};
use crate::cursor::List;
use crate::error::Result;
use crate::rows::{AuditRow, NewAuditRow, micros};
use crate::schema::audit_entries;

const LIST: List = List("audit");

/// The place of an entry in the list by time; `sequence` decides between entries of one time.
#[derive(Clone, Copy, Debug)]
struct Position {
    at: i64,
    sequence: i64,
}

impl Position {
    fn of(row: &AuditRow) -> Self {
        Self {
            at: row.at,
            sequence: row.sequence,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.at, self.sequence)
    }
}

impl FromStr for Position {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        let (at, sequence) = text.split_once('.').ok_or(())?;
        Ok(Self {
            at: at.parse().map_err(|_| ())?,
            sequence: sequence.parse().map_err(|_| ())?,
        })
    }
}

/// Entries by time, newest first; after an entry, in the order of their commits, in which nothing is missed.
pub(crate) async fn audit(
    conn: &mut Connection,
    query: &AuditQuery,
    request: &PageRequest,
) -> Result<Page<AuditEntry>> {
    let cursor: Option<Position> = LIST.after(request)?;
    let mut select = audit_entries::table
        .select(AuditRow::as_select())
        .limit(List::rows(request))
        .into_boxed::<Backend>();
    if let Some(entity_type) = &query.entity_type {
        select = select.filter(audit_entries::entity_type.eq(entity_type.clone()));
    }
    if let Some(entity_id) = &query.entity_id {
        select = select.filter(audit_entries::entity_id.eq(entity_id.clone()));
    }
    match query.projects.as_deref() {
        None => {}
        // Equality keeps the order of the index; a set would be sorted.
        Some([project]) => select = select.filter(audit_entries::project.eq(project.to_string())),
        Some(projects) => {
            select = select.filter(audit_entries::project.eq_any(projects.iter().map(ToString::to_string)));
        }
    }
    if let Some(action) = query.action {
        select = select.filter(audit_entries::action.eq(action.as_str()));
    }
    if let Some(actor) = &query.actor {
        select = select.filter(audit_entries::actor.eq(actor.to_string()));
    }
    match (&query.after, cursor) {
        (None, None) => {
            select = select.order((audit_entries::at.desc(), audit_entries::sequence.desc()));
        }
        (None, Some(cursor)) => {
            let before = audit_entries::at
                .lt(cursor.at)
                .or(audit_entries::sequence.lt(cursor.sequence));
            select = select
                // The first condition is what an index can use.
                .filter(audit_entries::at.le(cursor.at).and(before))
                .order((audit_entries::at.desc(), audit_entries::sequence.desc()));
        }
        (Some(_), Some(cursor)) => {
            select = select
                .filter(audit_entries::sequence.gt(cursor.sequence))
                .order(audit_entries::sequence.asc());
        }
        (Some(after), None) => {
            // An entry that has been pruned is followed from the oldest that is left.
            let position = sequence(conn, after).await?.unwrap_or(0);
            select = select
                .filter(audit_entries::sequence.gt(position))
                .order(audit_entries::sequence.asc());
        }
    }
    let rows: Vec<AuditRow> = select.load(conn).await?;
    LIST.page(
        rows,
        request,
        |row| Position::of(row).to_string(),
        AuditRow::entry,
    )
}

async fn sequence(conn: &mut Connection, id: &AuditId) -> Result<Option<i64>> {
    Ok(audit_entries::table
        .filter(audit_entries::id.eq(id.as_str()))
        .select(audit_entries::sequence)
        .get_result(conn)
        .await
        .optional()?)
}

/// One entry.
pub(crate) async fn audit_entry(conn: &mut Connection, id: &AuditId) -> Result<Option<AuditEntry>> {
    let row: Option<AuditRow> = audit_entries::table
        .filter(audit_entries::id.eq(id.as_str()))
        .select(AuditRow::as_select())
        .get_result(conn)
        .await
        .optional()?;
    row.map(AuditRow::entry).transpose()
}

/// Adds entries in their order; one that is there already stays as it is.
pub(crate) async fn record<'a>(
    conn: &mut Connection,
    entries: impl IntoIterator<Item = &'a AuditEntry>,
) -> Result<()> {
    for entry in entries {
        diesel::insert_into(audit_entries::table)
            .values(NewAuditRow::of(entry)?)
            .on_conflict(audit_entries::id)
            .do_nothing()
            .execute(conn)
            .await?;
    }
    Ok(())
}

/// Removes at most `limit` entries that were made before `before`; returns how many.
pub(super) async fn prune(conn: &mut Connection, before: Timestamp, limit: i64) -> Result<usize> {
    let old: Vec<i64> = audit_entries::table
        .filter(audit_entries::at.lt(micros(before)))
        .select(audit_entries::sequence)
        .limit(limit)
        .load(conn)
        .await?;
    for sequence in &old {
        diesel::delete(audit_entries::table.find(sequence))
            .execute(conn)
            .await?;
    }
    Ok(old.len())
}
