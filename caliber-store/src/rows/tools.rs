//! Inventories, their tools, and classifications.

use caliber_core::descriptor::Descriptor;
use caliber_core::inventory::{Inventory, ToolView, WithheldTool};
use caliber_core::policy::Classification;
use caliber_core::registry::{Revision, ToolFacts};
use diesel::prelude::*;

use super::{
    instant, json, micros, number, object, optional_instant, optional_json, parsed, unreadable, unsigned,
};
use crate::error::Result;
use crate::schema::{classifications, inventories, tools, withheld_tools};

/// The last listing of a server, without its tools.
#[derive(Queryable, Selectable, Insertable, AsChangeset)]
#[diesel(
    table_name = inventories,
    check_for_backend(diesel::sqlite::Sqlite),
    treat_none_as_null = true,
    treat_none_as_default_value = false
)]
pub(crate) struct InventoryRow {
    pub(crate) server_id: String,
    pub(crate) revision: i64,
    pub(crate) discovered_at: i64,
    pub(crate) live_discovered_at: Option<i64>,
    pub(crate) tool_count: i64,
    pub(crate) protocol_version: String,
    pub(crate) server_info: Option<String>,
    pub(crate) instructions: Option<String>,
}

impl InventoryRow {
    pub(crate) fn inventory(self, withheld: Vec<WithheldRow>) -> Result<Inventory> {
        Ok(Inventory {
            revision: Revision(unsigned("inventories.revision", self.revision)?),
            discovered_at: instant("inventories.discovered_at", self.discovered_at)?,
            protocol_version: self.protocol_version,
            server_info: optional_json("inventories.server_info", self.server_info)?,
            instructions: self.instructions,
            tool_count: u32::try_from(self.tool_count)
                .map_err(|error| unreadable("inventories.tool_count", error))?,
            withheld: withheld
                .into_iter()
                .map(|row| WithheldTool {
                    name: row.name,
                    reason: row.reason,
                })
                .collect(),
        })
    }
}

/// A tool that cannot be offered.
#[derive(Queryable, Selectable)]
#[diesel(table_name = withheld_tools, check_for_backend(diesel::sqlite::Sqlite))]
pub(crate) struct WithheldRow {
    name: String,
    reason: String,
}

/// The same on its way in.
#[derive(Insertable)]
#[diesel(table_name = withheld_tools, treat_none_as_default_value = false)]
pub(crate) struct NewWithheldRow<'a> {
    pub(crate) server_id: &'a str,
    pub(crate) position: i64,
    pub(crate) name: &'a str,
    pub(crate) reason: &'a str,
}

/// A tool on its way in.
#[derive(Insertable)]
#[diesel(table_name = tools, treat_none_as_default_value = false)]
pub(crate) struct NewToolRow<'a> {
    server_id: &'a str,
    name: &'a str,
    digest: String,
    input_schema: &'a str,
    output_schema: Option<&'a str>,
    descriptor: &'a str,
}

impl<'a> NewToolRow<'a> {
    pub(crate) fn of(server: &'a str, descriptor: &'a Descriptor) -> Self {
        Self {
            server_id: server,
            name: descriptor.name().as_str(),
            digest: descriptor.digest().to_string(),
            input_schema: descriptor.input_schema().as_str(),
            output_schema: descriptor.output_schema().map(|schema| schema.as_str()),
            descriptor: descriptor.text().as_str(),
        }
    }
}

/// What admission needs of a tool.
#[derive(Queryable, Selectable)]
#[diesel(table_name = tools, check_for_backend(diesel::sqlite::Sqlite))]
pub(crate) struct ToolFactsRow {
    digest: String,
    input_schema: String,
    output_schema: Option<String>,
}

impl ToolFactsRow {
    pub(crate) fn facts(self) -> Result<ToolFacts> {
        Ok(ToolFacts {
            digest: parsed("tools.digest", &self.digest)?,
            input_schema: json("tools.input_schema", self.input_schema)?,
            output_schema: optional_json("tools.output_schema", self.output_schema)?,
        })
    }
}

/// What an admin decided about a tool.
#[derive(Queryable, Selectable, Insertable, AsChangeset)]
#[diesel(
    table_name = classifications,
    check_for_backend(diesel::sqlite::Sqlite),
    treat_none_as_null = true,
    treat_none_as_default_value = false
)]
pub(crate) struct ClassificationRow {
    server_id: String,
    tool: String,
    revision: i64,
    policy: String,
    descriptor_digest: String,
    fingerprint: String,
    classified_by: String,
    classified_at: i64,
    drifted_at: Option<i64>,
    descriptor: String,
}

impl ClassificationRow {
    /// A fresh decision: it has not drifted.
    pub(crate) fn of(classification: &Classification, revision: u64) -> Result<Self> {
        Ok(Self {
            server_id: classification.server.to_string(),
            tool: classification.tool.to_string(),
            revision: number(revision),
            policy: serde_json::to_string(&classification.policy)?,
            descriptor_digest: classification.descriptor_digest.to_string(),
            fingerprint: classification.fingerprint.to_string(),
            classified_by: classification.classified_by.to_string(),
            classified_at: micros(classification.classified_at),
            drifted_at: None,
            descriptor: classification.descriptor.as_str().to_owned(),
        })
    }

    pub(crate) fn classification(self) -> Result<Classification> {
        Ok(Classification {
            server: parsed("classifications.server_id", &self.server_id)?,
            tool: parsed("classifications.tool", &self.tool)?,
            revision: Revision(unsigned("classifications.revision", self.revision)?),
            policy: object("classifications.policy", &self.policy)?,
            descriptor_digest: parsed("classifications.descriptor_digest", &self.descriptor_digest)?,
            fingerprint: parsed("classifications.fingerprint", &self.fingerprint)?,
            descriptor: json("classifications.descriptor", self.descriptor)?,
            classified_by: parsed("classifications.classified_by", &self.classified_by)?,
            classified_at: instant("classifications.classified_at", self.classified_at)?,
            drifted_at: optional_instant("classifications.drifted_at", self.drifted_at)?,
        })
    }
}

/// A tool with what was decided about it.
pub(crate) fn tool_view(descriptor: String, classification: Option<ClassificationRow>) -> Result<ToolView> {
    Ok(ToolView {
        descriptor: Descriptor::parse(descriptor).map_err(|error| unreadable("tools.descriptor", error))?,
        classification: classification
            .map(ClassificationRow::classification)
            .transpose()?,
    })
}
