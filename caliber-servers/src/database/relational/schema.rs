//! `list_tables` and `describe_table`.

use rusqlite::Row;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::authorizer::Phase;
use super::budget::Budget;
use super::outcome::{Failure, ToolError, ToolResult};
use super::reader::Reader;
use super::text::shown;

/// Arguments of `list_tables`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListTables {}

/// Result of `list_tables`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TableList {
    /// Tables and views by name.
    tables: Vec<Table>,
    /// Whether there are more than this result holds.
    truncated: bool,
}

/// One table or view.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Table {
    /// Its name.
    name: String,
    /// `table`, `view` or `virtual`.
    kind: String,
}

/// Arguments of `describe_table`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DescribeTable {
    /// Name of a table or view, as `list_tables` gives it.
    table: String,
}

/// Result of `describe_table`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TableDescription {
    /// Name of the table, as the database spells it.
    table: String,
    /// `table`, `view` or `virtual`.
    kind: String,
    /// The columns, in their order.
    columns: Vec<Column>,
    /// The references to other tables.
    foreign_keys: Vec<ForeignKey>,
}

/// One column.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Column {
    /// Its name.
    name: String,
    /// The declared type; empty if there is none.
    #[serde(rename = "type")]
    declared_type: String,
    /// Whether it may be NULL, as declared.
    nullable: bool,
    /// The SQL text of the default.
    default: Option<String>,
    /// Its place in the primary key, counted from 1.
    primary_key: Option<i64>,
    /// Whether it is computed from other columns.
    generated: bool,
}

/// One column's part of a reference to another table.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ForeignKey {
    /// Number of the reference within the table; a reference of several columns has several entries.
    id: i64,
    /// The referencing column.
    column: String,
    /// The table that is referred to.
    references_table: String,
    /// The column that is referred to; none stands for the primary key.
    references_column: Option<String>,
}

/// Lists the tables and views of the main database, without SQLite's own and the inner tables of virtual ones.
pub(super) fn list_tables(reader: &Reader) -> ToolResult<TableList> {
    let limits = reader.limits();
    let mut budget = Budget::new(limits.max_bytes);
    let mut list = TableList {
        tables: Vec::new(),
        truncated: false,
    };
    each_row(
        reader,
        "SELECT name, type FROM pragma_table_list \
         WHERE schema = 'main' AND type <> 'shadow' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
         ORDER BY name COLLATE NOCASE, name",
        None,
        |row| {
            let table = Table {
                name: row.get(0)?,
                kind: row.get(1)?,
            };
            if list.tables.len() == limits.max_rows || !budget.take_json(&table) {
                list.truncated = true;
                return Ok(false);
            }
            list.tables.push(table);
            Ok(true)
        },
    )?;
    Ok(list)
}

/// Describes one table or view of the main database.
pub(super) fn describe_table(reader: &Reader, arguments: &DescribeTable) -> ToolResult<TableDescription> {
    let mut found = None;
    each_row(
        reader,
        "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE",
        Some(&arguments.table),
        |row| {
            found = Some((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
            Ok(false)
        },
    )?;
    let (table, kind) = found.ok_or_else(|| {
        ToolError::new(
            Failure::UnknownTable,
            format!(
                "there is no table or view {}; list_tables names them",
                shown(&arguments.table)
            ),
        )
    })?;

    let mut budget = Budget::new(reader.limits().max_bytes);
    let mut fits = true;
    let mut columns = Vec::new();
    each_row(
        reader,
        "SELECT name, type, \"notnull\", dflt_value, pk, hidden FROM pragma_table_xinfo(?1, 'main') ORDER BY cid",
        Some(&table),
        |row| {
            let hidden: i64 = row.get(5)?;
            // 1 is a hidden column of a virtual table, 2 and 3 are generated columns.
            if hidden != 1 {
                let column = Column {
                    name: row.get(0)?,
                    declared_type: row.get(1)?,
                    nullable: !row.get::<_, bool>(2)?,
                    default: row.get(3)?,
                    primary_key: Some(row.get(4)?).filter(|place| *place > 0),
                    generated: hidden > 1,
                };
                fits = fits && budget.take_json(&column);
                columns.push(column);
            }
            Ok(fits)
        },
    )?;
    let mut foreign_keys = Vec::new();
    each_row(
        reader,
        "SELECT id, \"from\", \"table\", \"to\" FROM pragma_foreign_key_list(?1, 'main') ORDER BY id, seq",
        Some(&table),
        |row| {
            let key = ForeignKey {
                id: row.get(0)?,
                column: row.get(1)?,
                references_table: row.get(2)?,
                references_column: row.get(3)?,
            };
            fits = fits && budget.take_json(&key);
            foreign_keys.push(key);
            Ok(fits)
        },
    )?;
    if !fits {
        return Err(ToolError::new(
            Failure::TooLarge,
            format!(
                "the description takes more than the limit of {} bytes",
                reader.limits().max_bytes
            ),
        ));
    }
    Ok(TableDescription {
        table,
        kind,
        columns,
        foreign_keys,
    })
}

/// Runs one of this server's own statements; `row` says whether to go on.
fn each_row(
    reader: &Reader,
    sql: &str,
    argument: Option<&str>,
    mut row: impl FnMut(&Row<'_>) -> rusqlite::Result<bool>,
) -> ToolResult<()> {
    reader.enter(Phase::Server);
    let mut read = || -> rusqlite::Result<()> {
        let mut statement = reader.connection().prepare(sql)?;
        if let Some(argument) = argument {
            statement.raw_bind_parameter(1, argument)?;
        }
        let mut rows = statement.raw_query();
        while let Some(next) = rows.next()? {
            if !row(next)? {
                break;
            }
        }
        Ok(())
    };
    read().map_err(|error| reader.explain(&error))
}
