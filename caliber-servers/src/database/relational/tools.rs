//! The tools that this server offers: names, texts, schemas, annotations.

use std::collections::BTreeMap;
use std::sync::Arc;

use rmcp::handler::server::tool::{schema_for_input, schema_for_output};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};

use super::query::{QueryResult, RunQuery};
use super::schema::{DescribeTable, ListTables, TableDescription, TableList};
use crate::{Error, ErrorKind};

/// Names of the tools, in the order in which they are listed.
pub(super) const TOOL_NAMES: [&str; 3] = [DESCRIBE_TABLE, LIST_TABLES, RUN_QUERY];

pub(super) const LIST_TABLES: &str = "list_tables";
pub(super) const DESCRIBE_TABLE: &str = "describe_table";
pub(super) const RUN_QUERY: &str = "run_query";

/// The tools with their built-in descriptions, sorted by name.
pub(super) fn tools() -> Result<Vec<Tool>, Error> {
    Ok(vec![
        tool(
            DESCRIBE_TABLE,
            "Describe a table",
            "Describes one table or view: its columns with declared type, nullability, default and primary key, and its foreign keys.",
            schema_for_input::<DescribeTable>(),
            schema_for_output::<TableDescription>(),
        )?,
        tool(
            LIST_TABLES,
            "List tables",
            "Lists the tables and views of the database.",
            schema_for_input::<ListTables>(),
            schema_for_output::<TableList>(),
        )?,
        tool(
            RUN_QUERY,
            "Run a query",
            "Runs one SQL statement that only reads, in SQLite's dialect, and returns columns and rows. Pass values in params, one for each placeholder. Rows beyond the limits are cut, and truncated says so.",
            schema_for_input::<RunQuery>(),
            schema_for_output::<QueryResult>(),
        )?,
    ])
}

fn tool(
    name: &'static str,
    title: &str,
    description: &'static str,
    input_schema: Result<Arc<JsonObject>, String>,
    output_schema: Arc<JsonObject>,
) -> Result<Tool, Error> {
    let mut input_schema = input_schema.map(Arc::unwrap_or_clone).map_err(|problem| {
        Error::new(
            ErrorKind::Internal,
            format!("the input schema of {name} cannot be made"),
        )
        .because(problem)
    })?;
    // Some clients insist on it, even for a tool without arguments.
    input_schema
        .entry("properties")
        .or_insert_with(|| JsonObject::new().into());
    let annotations = ToolAnnotations::new()
        .read_only(true)
        .destructive(false)
        .idempotent(true)
        .open_world(false);
    Ok(Tool::new(name, description, input_schema)
        .with_title(title)
        .with_raw_output_schema(output_schema)
        .with_annotations(annotations))
}

/// `tools` with the descriptions that the operator chose.
pub(super) fn described(tools: &[Tool], mut descriptions: BTreeMap<String, String>) -> Vec<Tool> {
    tools
        .iter()
        .cloned()
        .map(|mut tool| {
            if let Some(description) = descriptions.remove(tool.name.as_ref()) {
                tool.description = Some(description.into());
            }
            tool
        })
        .collect()
}
