//! Servers.

use caliber_core::registry::Revision;
use caliber_core::secret::ConfigValue;
use caliber_core::server::{ServerDefinition, ServerRecord, ServerSummary};
use diesel::prelude::*;

use super::{instant, micros, number, object, optional_instant, parsed, unsigned, word, word_column};
use crate::error::Result;
use crate::schema::servers;

/// A server with its definition.
#[derive(Queryable, Selectable)]
#[diesel(table_name = servers, check_for_backend(diesel::sqlite::Sqlite))]
pub(crate) struct ServerRow {
    id: String,
    revision: i64,
    project: String,
    owner: String,
    visibility: String,
    status: String,
    last_connected_at: Option<i64>,
    connection_error: Option<String>,
    created_at: i64,
    updated_at: i64,
    definition: String,
}

/// A server in a list.
#[derive(Queryable, Selectable)]
#[diesel(table_name = servers, check_for_backend(diesel::sqlite::Sqlite))]
pub(crate) struct SummaryRow {
    id: String,
    revision: i64,
    pub(crate) name: String,
    project: String,
    owner: String,
    visibility: String,
    status: String,
    transport: String,
    last_connected_at: Option<i64>,
    connection_error: Option<String>,
    created_at: i64,
    updated_at: i64,
    location: String,
    icon: String,
    description: String,
}

/// What a registration and a change write: everything but identity, project, and how connections went.
#[derive(Insertable, AsChangeset)]
#[diesel(table_name = servers, treat_none_as_null = true, treat_none_as_default_value = false)]
pub(crate) struct ServerColumns {
    revision: i64,
    name: String,
    owner: String,
    visibility: String,
    status: String,
    transport: String,
    updated_at: i64,
    location: String,
    icon: String,
    description: String,
    search_text: String,
    definition: String,
}

impl ServerRow {
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    pub(crate) fn definition(&self) -> Result<ServerDefinition> {
        object("servers.definition", &self.definition)
    }

    pub(crate) fn record(self) -> Result<ServerRecord> {
        Ok(ServerRecord {
            id: parsed("servers.id", &self.id)?,
            revision: Revision(unsigned("servers.revision", self.revision)?),
            definition: self.definition()?,
            owner: parsed("servers.owner", &self.owner)?,
            project: parsed("servers.project", &self.project)?,
            visibility: word("servers.visibility", &self.visibility)?,
            status: word("servers.status", &self.status)?,
            last_connected_at: optional_instant("servers.last_connected_at", self.last_connected_at)?,
            connection_error: self.connection_error,
            created_at: instant("servers.created_at", self.created_at)?,
            updated_at: instant("servers.updated_at", self.updated_at)?,
        })
    }
}

impl SummaryRow {
    pub(crate) fn summary(self, tool_count: Option<i64>) -> Result<ServerSummary> {
        let tool_count = unsigned("inventories.tool_count", tool_count.unwrap_or(0))?;
        Ok(ServerSummary {
            id: parsed("servers.id", &self.id)?,
            revision: Revision(unsigned("servers.revision", self.revision)?),
            name: parsed("servers.name", &self.name)?,
            description: self.description,
            icon: self.icon,
            transport: self.transport,
            location: self.location,
            owner: parsed("servers.owner", &self.owner)?,
            project: parsed("servers.project", &self.project)?,
            visibility: word("servers.visibility", &self.visibility)?,
            status: word("servers.status", &self.status)?,
            last_connected_at: optional_instant("servers.last_connected_at", self.last_connected_at)?,
            connection_error: self.connection_error,
            tool_count: u32::try_from(tool_count).unwrap_or(u32::MAX),
            created_at: instant("servers.created_at", self.created_at)?,
            updated_at: instant("servers.updated_at", self.updated_at)?,
        })
    }
}

impl ServerColumns {
    /// # Errors
    ///
    /// Refuses a definition that holds anything but references where secrets belong: nothing secret gets into a
    /// row, whatever the caller forgot.
    pub(crate) fn of(record: &ServerRecord, revision: u64) -> Result<Self> {
        let values = record.definition.config_values();
        if let Some((field, _)) = values
            .iter()
            .find(|(_, value)| !matches!(value, ConfigValue::Reference(_)))
        {
            let problem = "it holds no reference; a definition is stored without literal secrets";
            return Err(caliber_core::Error::invalid(field.clone(), problem).into());
        }
        let summary = record.summary(0);
        let search = [
            summary.name.as_str(),
            summary.description.as_str(),
            summary.location.as_str(),
        ];
        Ok(Self {
            revision: number(revision),
            name: summary.name.to_string(),
            owner: record.owner.to_string(),
            visibility: word_column(&record.visibility)?,
            status: word_column(&record.status)?,
            updated_at: micros(record.updated_at),
            search_text: search.join("\n").to_ascii_lowercase(),
            transport: summary.transport,
            location: summary.location,
            icon: summary.icon,
            description: summary.description,
            definition: serde_json::to_string(&record.definition)?,
        })
    }
}
