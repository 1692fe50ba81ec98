//! Rows: the shape of each table in Rust, and the conversion to domain types, which can fail.
//!
//! A row that cannot be read is an [`ErrorKind::Row`]: it was written by a newer version or by another program.

use std::fmt::Display;
use std::str::FromStr;

use caliber_core::clock::Timestamp;
use caliber_core::json::{JsonLimits, JsonText};
use serde::de::DeserializeOwned;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

mod access;
mod approvals;
mod audit;
mod code_tools;
mod invocations;
mod secrets;
mod servers;
mod tools;

pub(crate) use access::{GrantRow, MembershipRow, SCOPE, SUBJECT, TokenRow};
pub(crate) use approvals::{ApprovalRow, StateColumns};
pub(crate) use audit::{AuditRow, NewAuditRow};
pub(crate) use code_tools::{CodeToolColumns, CodeToolRow, CodeToolSummaryRow, NewCodeToolRow};
pub(crate) use invocations::{InvocationRow, SettlementColumns};
pub(crate) use secrets::SecretRow;
pub(crate) use servers::{ServerColumns, ServerRow, SummaryRow};
pub(crate) use tools::{
    ClassificationRow, InventoryRow, NewToolRow, NewWithheldRow, ToolFactsRow, WithheldRow, tool_view,
};

/// The bounds of JSON that we wrote ourselves: what it was checked for then is not checked again.
const STORED: JsonLimits = JsonLimits {
    bytes: usize::MAX,
    depth: JsonLimits::DEPTH_CEILING,
};

fn unreadable(column: &'static str, error: impl Display) -> Error {
    Error::new(
        ErrorKind::Row,
        format!("the column {column} holds what this version of caliber cannot read: {error}"),
    )
}

/// An instant as it is stored.
pub(crate) fn micros(instant: Timestamp) -> i64 {
    instant.timestamp_micros()
}

pub(crate) fn instant(column: &'static str, micros: i64) -> Result<Timestamp> {
    Timestamp::from_timestamp_micros(micros)
        .ok_or_else(|| unreadable(column, "the instant lies outside the calendar"))
}

fn optional_instant(column: &'static str, micros: Option<i64>) -> Result<Option<Timestamp>> {
    micros.map(|micros| instant(column, micros)).transpose()
}

/// A count, a size or a span as it is stored; what does not fit is cut to the largest.
pub(crate) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(column: &'static str, value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|error| unreadable(column, error))
}

fn parsed<T: FromStr<Err: Display>>(column: &'static str, text: &str) -> Result<T> {
    text.parse().map_err(|error| unreadable(column, error))
}

fn optional_parsed<T: FromStr<Err: Display>>(column: &'static str, text: Option<&str>) -> Result<Option<T>> {
    text.map(|text| parsed(column, text)).transpose()
}

/// One word of a closed set, as it stands on the wire.
fn word<'de, T: Deserialize<'de>>(column: &'static str, text: &'de str) -> Result<T> {
    T::deserialize(StrDeserializer::<serde::de::value::Error>::new(text))
        .map_err(|error| unreadable(column, error))
}

fn optional_word<'de, T: Deserialize<'de>>(
    column: &'static str,
    text: Option<&'de str>,
) -> Result<Option<T>> {
    text.map(|text| word(column, text)).transpose()
}

/// The word for a value of a closed set.
pub(crate) fn word_column(value: &impl Serialize) -> Result<String> {
    match serde_json::to_value(value)? {
        serde_json::Value::String(word) => Ok(word),
        _ => Err(Error::new(
            ErrorKind::Defect,
            "a value of a closed set is no word",
        )),
    }
}

/// A small value that is stored as JSON.
fn object<T: DeserializeOwned>(column: &'static str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| unreadable(column, error))
}

/// JSON that is passed on unchanged.
fn json(column: &'static str, text: String) -> Result<JsonText> {
    JsonText::parse(text, STORED).map_err(|error| unreadable(column, error))
}

fn optional_json(column: &'static str, text: Option<String>) -> Result<Option<JsonText>> {
    text.map(|text| json(column, text)).transpose()
}
