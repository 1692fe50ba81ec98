//! `run_query`: one reading statement.

use rusqlite::fallible_iterator::FallibleIterator as _;
use rusqlite::{Batch, Row, Statement};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::authorizer::Phase;
use super::budget::Budget;
use super::limits::Limits;
use super::outcome::{Failure, ToolError, ToolResult};
use super::reader::Reader;
use super::value::{Cell, Parameter};

/// Arguments of `run_query`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunQuery {
    /// One SELECT (or VALUES, WITH … SELECT, EXPLAIN of one) in SQLite's dialect. Put values into `params`.
    sql: String,
    /// Values for the placeholders of the statement, in their order: ?, ?1, :name.
    #[serde(default)]
    params: Vec<Parameter>,
}

/// Result of `run_query`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct QueryResult {
    /// Names of the columns, in the order of the values of a row. They need not be unique.
    columns: Vec<String>,
    /// The rows, in the order of the statement.
    rows: Vec<Vec<Cell>>,
    /// Number of rows in this result.
    row_count: usize,
    /// Whether there are more rows than this result holds.
    truncated: bool,
    /// The limit that cut the rows.
    truncated_by: Option<Cut>,
}

/// What cut the rows.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Cut {
    /// The limit of rows.
    MaxRows,
    /// The limit of bytes.
    MaxBytes,
}

/// Runs one statement that only reads.
pub(super) fn run_query(reader: &Reader, arguments: &RunQuery) -> ToolResult<QueryResult> {
    let limits = reader.limits();
    check_text(&arguments.sql, limits)?;
    let mut statement = compile(reader, &arguments.sql)?;
    bind(reader, &mut statement, &arguments.params)?;
    let result = read(reader, &mut statement, limits);
    // Not left to SQLite's reset in the drop: the next statement is somebody else's.
    drop(statement);
    result
}

fn check_text(sql: &str, limits: &Limits) -> ToolResult<()> {
    if sql.len() > limits.max_sql_bytes {
        return Err(ToolError::new(
            Failure::TooLarge,
            format!(
                "the SQL text has {} bytes; the limit is {}",
                sql.len(),
                limits.max_sql_bytes
            ),
        ));
    }
    // SQLite would stop reading there, and everything behind it would be silently ignored.
    if sql.contains('\0') {
        return Err(ToolError::new(
            Failure::InvalidSql,
            "the SQL text holds a NUL character; pass such values as params",
        ));
    }
    Ok(())
}

/// Compiles exactly one statement.
fn compile<'reader>(reader: &'reader Reader, sql: &str) -> ToolResult<Statement<'reader>> {
    reader.enter(Phase::Caller);
    // `Connection::prepare` recurses over every further statement; this looks at one more only.
    let mut statements = Batch::new(reader.connection(), sql);
    let statement = match statements.next() {
        Ok(Some(statement)) => statement,
        Ok(None) => {
            return Err(ToolError::new(
                Failure::NotOneStatement,
                "there is no statement in the SQL text",
            ));
        }
        Err(error) => return Err(reader.explain(&error)),
    };
    if !matches!(statements.next(), Ok(None)) {
        return Err(ToolError::new(
            Failure::NotOneStatement,
            "there is something behind the first statement; send one statement at a time",
        ));
    }
    // The authorizer has already refused everything that writes; this is SQLite's second opinion.
    if !statement.readonly() {
        return Err(ToolError::new(
            Failure::NotReadOnly,
            "this server only reads; write one SELECT statement",
        ));
    }
    Ok(statement)
}

fn bind(reader: &Reader, statement: &mut Statement<'_>, params: &[Parameter]) -> ToolResult<()> {
    let expected = statement.parameter_count();
    if expected != params.len() {
        return Err(ToolError::new(
            Failure::InvalidArguments,
            format!(
                "the statement has {expected} parameters, and params holds {}",
                params.len()
            ),
        ));
    }
    for (index, parameter) in params.iter().enumerate() {
        statement
            .raw_bind_parameter(index + 1, parameter)
            .map_err(|error| reader.explain(&error))?;
    }
    Ok(())
}

fn read(reader: &Reader, statement: &mut Statement<'_>, limits: &Limits) -> ToolResult<QueryResult> {
    reader.enter(Phase::Running);
    let mut budget = Budget::new(limits.max_bytes);
    let columns: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
    if !budget.take_json(&columns) {
        return Err(row_too_large(limits));
    }
    let mut result = QueryResult {
        columns,
        rows: Vec::new(),
        row_count: 0,
        truncated: false,
        truncated_by: None,
    };
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next().map_err(|error| reader.explain(&error))? {
        let cut = if result.rows.len() == limits.max_rows {
            Cut::MaxRows
        } else if let Some(cells) = read_row(reader, row, result.columns.len(), &mut budget)? {
            result.rows.push(cells);
            continue;
        } else if result.rows.is_empty() {
            return Err(row_too_large(limits));
        } else {
            Cut::MaxBytes
        };
        result.truncated = true;
        result.truncated_by = Some(cut);
        break;
    }
    result.row_count = result.rows.len();
    Ok(result)
}

/// The row, or nothing if it does not fit any more.
fn read_row(
    reader: &Reader,
    row: &Row<'_>,
    columns: usize,
    budget: &mut Budget,
) -> ToolResult<Option<Vec<Cell>>> {
    // Brackets and the comma behind the row; a comma is counted with each value.
    if !budget.take(3) {
        return Ok(None);
    }
    let mut cells = Vec::with_capacity(columns);
    for column in 0..columns {
        let value = row.get_ref(column).map_err(|error| reader.explain(&error))?;
        let fits = {
            let mut probe = *budget;
            probe.take(Cell::least_bytes(value))
        };
        if !fits {
            return Ok(None);
        }
        let cell = Cell::from_sqlite(value);
        if !budget.take_json(&cell) || !budget.take(1) {
            return Ok(None);
        }
        cells.push(cell);
    }
    Ok(Some(cells))
}

fn row_too_large(limits: &Limits) -> ToolError {
    ToolError::new(
        Failure::TooLarge,
        format!(
            "one row takes more than the limit of {} bytes; select fewer columns, or less of a column with substr()",
            limits.max_bytes
        ),
    )
}
