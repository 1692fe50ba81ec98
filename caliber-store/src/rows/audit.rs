//! The audit trail.

use caliber_core::audit::AuditEntry;
use diesel::prelude::*;

use super::{instant, json, micros, object, optional_parsed, parsed, word};
use crate::error::Result;
use crate::schema::audit_entries;

/// An entry with its number.
#[derive(Queryable, Selectable)]
#[diesel(table_name = audit_entries, check_for_backend(diesel::sqlite::Sqlite))]
pub(crate) struct AuditRow {
    pub(crate) sequence: i64,
    id: String,
    pub(crate) at: i64,
    actor: String,
    identity: String,
    surface: String,
    action: String,
    entity_type: String,
    entity_id: String,
    project: Option<String>,
    details: String,
}

/// An entry on its way in; the database numbers it.
#[derive(Insertable)]
#[diesel(table_name = audit_entries, treat_none_as_default_value = false)]
pub(crate) struct NewAuditRow<'a> {
    id: &'a str,
    at: i64,
    actor: &'a str,
    identity: String,
    surface: &'a str,
    action: &'a str,
    entity_type: &'a str,
    entity_id: &'a str,
    project: Option<&'a str>,
    details: &'a str,
}

impl<'a> NewAuditRow<'a> {
    pub(crate) fn of(entry: &'a AuditEntry) -> Result<Self> {
        Ok(Self {
            id: entry.id.as_str(),
            at: micros(entry.at),
            actor: entry.actor.as_str(),
            identity: serde_json::to_string(&entry.identity)?,
            surface: entry.surface.as_str(),
            action: entry.action.as_str(),
            entity_type: &entry.entity_type,
            entity_id: &entry.entity_id,
            project: entry.project.as_ref().map(|project| project.as_str()),
            details: entry.details.as_str(),
        })
    }
}

impl AuditRow {
    pub(crate) fn entry(self) -> Result<AuditEntry> {
        Ok(AuditEntry {
            id: parsed("audit_entries.id", &self.id)?,
            at: instant("audit_entries.at", self.at)?,
            actor: parsed("audit_entries.actor", &self.actor)?,
            identity: object("audit_entries.identity", &self.identity)?,
            surface: word("audit_entries.surface", &self.surface)?,
            action: word("audit_entries.action", &self.action)?,
            entity_type: self.entity_type,
            entity_id: self.entity_id,
            project: optional_parsed("audit_entries.project", self.project.as_deref())?,
            details: json("audit_entries.details", self.details)?,
        })
    }
}
