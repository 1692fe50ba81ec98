//! Versions of code tools.

use caliber_core::code_tool::{CodeToolDefinition, CodeToolRecord, CodeToolSummary};
use caliber_core::registry::Revision;
use caliber_core::secret::ConfigValue;
use diesel::prelude::*;

use super::{
    instant, micros, number, object, optional_instant, optional_parsed, parsed, unsigned, word, word_column,
};
use crate::error::Result;
use crate::schema::code_tools;

/// A version with its definition.
#[derive(Queryable, Selectable)]
#[diesel(table_name = code_tools, check_for_backend(diesel::sqlite::Sqlite))]
pub(crate) struct CodeToolRow {
    id: String,
    revision: i64,
    project: String,
    owner: String,
    visibility: String,
    status: String,
    content_hash: String,
    deprecated_at: Option<i64>,
    successor: Option<String>,
    created_at: i64,
    updated_at: i64,
    pinned: String,
    definition: String,
}

/// A version in a list.
#[derive(Queryable, Selectable)]
#[diesel(table_name = code_tools, check_for_backend(diesel::sqlite::Sqlite))]
pub(crate) struct CodeToolSummaryRow {
    pub(crate) id: String,
    revision: i64,
    family: String,
    project: String,
    version: String,
    owner: String,
    visibility: String,
    status: String,
    runtime: String,
    side_effect_level: String,
    requires_approval: i64,
    allow_in_preview: i64,
    content_hash: String,
    deprecated_at: Option<i64>,
    successor: Option<String>,
    created_at: i64,
    updated_at: i64,
    description: String,
}

/// What a registration writes besides what can change.
#[derive(Insertable)]
#[diesel(table_name = code_tools, treat_none_as_default_value = false)]
pub(crate) struct NewCodeToolRow {
    id: String,
    family: String,
    project: String,
    version_key: String,
    version: String,
    runtime: String,
    side_effect_level: String,
    requires_approval: i64,
    allow_in_preview: i64,
    content_hash: String,
    created_at: i64,
    pinned: String,
}

/// What a registration and a change write.
#[derive(Insertable, AsChangeset)]
#[diesel(table_name = code_tools, treat_none_as_null = true, treat_none_as_default_value = false)]
pub(crate) struct CodeToolColumns {
    revision: i64,
    owner: String,
    visibility: String,
    status: String,
    deprecated_at: Option<i64>,
    successor: Option<String>,
    updated_at: i64,
    description: String,
    search_text: String,
    definition: String,
}

impl CodeToolRow {
    pub(crate) fn record(self) -> Result<CodeToolRecord> {
        Ok(CodeToolRecord {
            id: parsed("code_tools.id", &self.id)?,
            revision: Revision(unsigned("code_tools.revision", self.revision)?),
            definition: object("code_tools.definition", &self.definition)?,
            pinned: object("code_tools.pinned", &self.pinned)?,
            content_hash: parsed("code_tools.content_hash", &self.content_hash)?,
            status: word("code_tools.status", &self.status)?,
            deprecated_at: optional_instant("code_tools.deprecated_at", self.deprecated_at)?,
            successor: optional_parsed("code_tools.successor", self.successor.as_deref())?,
            owner: parsed("code_tools.owner", &self.owner)?,
            project: parsed("code_tools.project", &self.project)?,
            visibility: word("code_tools.visibility", &self.visibility)?,
            created_at: instant("code_tools.created_at", self.created_at)?,
            updated_at: instant("code_tools.updated_at", self.updated_at)?,
        })
    }
}

impl CodeToolSummaryRow {
    pub(crate) fn summary(self) -> Result<CodeToolSummary> {
        Ok(CodeToolSummary {
            id: parsed("code_tools.id", &self.id)?,
            revision: Revision(unsigned("code_tools.revision", self.revision)?),
            family: parsed("code_tools.family", &self.family)?,
            version: parsed("code_tools.version", &self.version)?,
            description: self.description,
            runtime: self.runtime,
            side_effect_level: parsed("code_tools.side_effect_level", &self.side_effect_level)?,
            requires_approval: self.requires_approval != 0,
            allow_in_preview: self.allow_in_preview != 0,
            content_hash: parsed("code_tools.content_hash", &self.content_hash)?,
            status: word("code_tools.status", &self.status)?,
            deprecated_at: optional_instant("code_tools.deprecated_at", self.deprecated_at)?,
            successor: optional_parsed("code_tools.successor", self.successor.as_deref())?,
            owner: parsed("code_tools.owner", &self.owner)?,
            project: parsed("code_tools.project", &self.project)?,
            visibility: word("code_tools.visibility", &self.visibility)?,
            created_at: instant("code_tools.created_at", self.created_at)?,
            updated_at: instant("code_tools.updated_at", self.updated_at)?,
        })
    }
}

impl NewCodeToolRow {
    pub(crate) fn of(record: &CodeToolRecord) -> Result<Self> {
        let definition = &record.definition;
        Ok(Self {
            id: record.id.to_string(),
            family: definition.family.to_string(),
            project: record.project.to_string(),
            version_key: definition.version.sort_key(),
            version: definition.version.to_string(),
            runtime: definition.runtime().to_owned(),
            side_effect_level: definition.side_effect_level.as_str().to_owned(),
            requires_approval: i64::from(definition.requires_approval),
            allow_in_preview: i64::from(definition.allow_in_preview),
            content_hash: record.content_hash.to_string(),
            created_at: micros(record.created_at),
            pinned: serde_json::to_string(&record.pinned)?,
        })
    }
}

impl CodeToolColumns {
    /// What `record` says, under `definition`, which is that of the registration with another description.
    ///
    /// # Errors
    ///
    /// Refuses a definition that holds anything but references where secrets belong: nothing secret gets into a
    /// row, whatever the caller forgot.
    pub(crate) fn of(
        record: &CodeToolRecord,
        definition: &CodeToolDefinition,
        revision: u64,
    ) -> Result<Self> {
        let mut values = definition.secret_refs.iter();
        if let Some((name, _)) = values.find(|(_, value)| !matches!(value, ConfigValue::Reference(_))) {
            let problem = "it holds no reference; a definition is stored without literal secrets";
            return Err(caliber_core::Error::invalid(format!("secret_refs.{name}"), problem).into());
        }
        let description = definition.description.clone();
        Ok(Self {
            revision: number(revision),
            owner: record.owner.to_string(),
            visibility: word_column(&record.visibility)?,
            status: word_column(&record.status)?,
            deprecated_at: record.deprecated_at.map(micros),
            successor: record.successor.as_ref().map(ToString::to_string),
            updated_at: micros(record.updated_at),
            search_text: format!("{}\n{description}", definition.family).to_ascii_lowercase(),
            description,
            definition: serde_json::to_string(definition)?,
        })
    }
}
