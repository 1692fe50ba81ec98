//! Values between SQLite and JSON. Nothing is rounded and nothing is replaced: integers keep all 64 bits, text keeps
//! its NUL characters, and what JSON cannot say becomes an object that says it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;

use super::text::shown;

/// One value of a row, as JSON.
#[derive(Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct Cell(Json);

impl Cell {
    pub(super) fn from_sqlite(value: ValueRef<'_>) -> Self {
        let encoded =
            |kind: &str, bytes: &[u8]| serde_json::json!({"type": kind, "base64": BASE64.encode(bytes)});
        Self(match value {
            ValueRef::Null => Json::Null,
            ValueRef::Integer(integer) => integer.into(),
            ValueRef::Real(real) => match serde_json::Number::from_f64(real) {
                Some(number) => Json::Number(number),
                // SQLite has no not-a-number; it stores NULL instead.
                None => {
                    serde_json::json!({"type": "real", "value": if real > 0.0 { "Infinity" } else { "-Infinity" }})
                }
            },
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(_) => encoded("text", bytes),
            },
            ValueRef::Blob(bytes) => encoded("blob", bytes),
        })
    }

    /// At least as many bytes as the value takes, known without building it.
    pub(super) fn least_bytes(value: ValueRef<'_>) -> usize {
        match value {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len(),
            ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => 1,
        }
    }
}

impl JsonSchema for Cell {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Cell".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "NULL, an integer (all 64 bits), a real, a text, or an object for a blob, a text that is not UTF-8, or an infinite real.",
            "anyOf": [
                {"type": ["null", "integer", "number", "string"]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"enum": ["blob", "text"]},
                        "base64": {"type": "string", "contentEncoding": "base64"}
                    },
                    "required": ["type", "base64"],
                    "additionalProperties": false
                },
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "real"},
                        "value": {"enum": ["Infinity", "-Infinity"]}
                    },
                    "required": ["type", "value"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

/// One bound parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Parameter {
    Null,
    /// Also for booleans, which SQLite keeps as 0 and 1.
    Integer(i64),
    Real(f64),
    Text(String),
}

impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;

        match Json::deserialize(deserializer)? {
            Json::Null => Ok(Self::Null),
            Json::Bool(value) => Ok(Self::Integer(value.into())),
            Json::String(text) => Ok(Self::Text(text)),
            Json::Number(number) => match (number.as_i64(), number.is_u64(), number.as_f64()) {
                (Some(integer), ..) => Ok(Self::Integer(integer)),
                // Never by way of a real, which would round it.
                (None, true, _) => Err(D::Error::custom(format!(
                    "parameter {number} does not fit a 64-bit signed integer; pass it as a string"
                ))),
                (None, false, Some(real)) => Ok(Self::Real(real)),
                (None, false, None) => Err(D::Error::custom("parameter is no number that SQLite knows")),
            },
            other @ (Json::Array(_) | Json::Object(_)) => Err(D::Error::custom(format!(
                "parameter {} is not null, a boolean, a number or a string; pass JSON as a string",
                shown(&other.to_string())
            ))),
        }
    }
}

impl JsonSchema for Parameter {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Parameter".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["null", "boolean", "integer", "number", "string"]})
    }
}

impl ToSql for Parameter {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(integer) => ValueRef::Integer(*integer),
            Self::Real(real) => ValueRef::Real(*real),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(value: ValueRef<'_>) -> String {
        serde_json::to_string(&Cell::from_sqlite(value)).unwrap()
    }

    #[test]
    fn cells_say_exactly_what_the_database_holds() {
        assert_eq!(cell(ValueRef::Integer(i64::MIN)), "-9223372036854775808");
        assert_eq!(cell(ValueRef::Integer(9_007_199_254_740_993)), "9007199254740993");
        assert_eq!(cell(ValueRef::Real(1.0)), "1.0");
        assert_eq!(
            cell(ValueRef::Real(f64::INFINITY)),
            r#"{"type":"real","value":"Infinity"}"#
        );
        assert_eq!(
            cell(ValueRef::Real(f64::NEG_INFINITY)),
            r#"{"type":"real","value":"-Infinity"}"#
        );
        assert_eq!(cell(ValueRef::Text("a\u{0}b".as_bytes())), r#""a\u0000b""#);
        assert_eq!(
            cell(ValueRef::Text(b"\xff")),
            r#"{"base64":"/w==","type":"text"}"#
        );
        assert_eq!(
            cell(ValueRef::Blob(b"\0\x01")),
            r#"{"base64":"AAE=","type":"blob"}"#
        );
    }

    #[test]
    fn parameters_are_never_rounded() {
        let parse = |json: &str| serde_json::from_str::<Parameter>(json).map_err(|error| error.to_string());
        assert_eq!(parse("9223372036854775807"), Ok(Parameter::Integer(i64::MAX)));
        assert_eq!(parse("-9223372036854775808"), Ok(Parameter::Integer(i64::MIN)));
        assert_eq!(parse("true"), Ok(Parameter::Integer(1)));
        assert_eq!(parse("1.5"), Ok(Parameter::Real(1.5)));
        assert_eq!(parse("null"), Ok(Parameter::Null));
        assert!(parse("9223372036854775808").unwrap_err().contains("does not fit"));
        assert!(parse("[1]").unwrap_err().contains("pass JSON as a string"));
    }
}
