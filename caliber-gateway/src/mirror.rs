//! Arguments that a tool wants mirrored into HTTP headers (`x-mcp-header`, MCP 2026-07-28).

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use caliber_core::json::JsonText;
use http::{HeaderName, HeaderValue};
use serde_json::Value;

/// The most mirrored arguments of one tool.
const MIRRORS: usize = 32;
/// The longest value that is mirrored, in bytes.
const VALUE_BYTES: usize = 4 << 10;
/// The largest integer that is mirrored: 2^53 - 1.
const SAFE_INTEGER: u64 = (1 << 53) - 1;

/// One mirrored argument.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mirror {
    /// The keys that lead to it.
    path: Vec<String>,
    header: HeaderName,
}

/// The mirrored arguments of a tool.
///
/// # Errors
///
/// What is wrong with an annotation; such a tool is not offered.
pub(crate) fn mirrors(input_schema: &JsonText) -> Result<Vec<Mirror>, String> {
    // Most schemas have none, and need not be read.
    if !input_schema.as_str().contains("x-mcp-header") {
        return Ok(Vec::new());
    }
    let schema: Value = input_schema.read().map_err(|error| error.to_string())?;
    let mut mirrors = Vec::new();
    collect(&schema, &mut Vec::new(), &mut mirrors)?;
    if count(&schema) != mirrors.len() {
        return Err("`x-mcp-header` stands where no argument can be reached".to_owned());
    }
    if mirrors.len() > MIRRORS {
        return Err(format!("more than {MIRRORS} arguments have `x-mcp-header`"));
    }
    Ok(mirrors)
}

fn collect(schema: &Value, path: &mut Vec<String>, mirrors: &mut Vec<Mirror>) -> Result<(), String> {
    let Some(Value::Object(properties)) = schema.get("properties") else {
        return Ok(());
    };
    for (key, property) in properties {
        path.push(key.clone());
        if let Some(annotation) = property.get("x-mcp-header") {
            let header = header_name(annotation)?;
            let primitive = property
                .get("type")
                .and_then(Value::as_str)
                .is_some_and(|kind| matches!(kind, "string" | "integer" | "boolean"));
            if !primitive {
                return Err(
                    "`x-mcp-header` stands at an argument that is no string, integer or boolean".to_owned(),
                );
            }
            if mirrors.iter().any(|mirror| mirror.header == header) {
                return Err("two arguments have the same `x-mcp-header`".to_owned());
            }
            mirrors.push(Mirror {
                path: path.clone(),
                header,
            });
        }
        collect(property, path, mirrors)?;
        path.pop();
    }
    Ok(())
}

/// How often the annotation stands in the schema, wherever a schema may stand.
fn count(schema: &Value) -> usize {
    let count_all = |value: &Value| match value {
        Value::Object(members) => members.values().map(count).sum(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    };
    let Value::Object(members) = schema else {
        return if schema.is_array() { count_all(schema) } else { 0 };
    };
    let count_member = |(key, value): (&String, &Value)| match key.as_str() {
        "x-mcp-header" => 1,
        // Their members are named by the author.
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => count_all(value),
        // These hold data and no schemas.
        "default" | "const" | "enum" | "examples" | "required" | "dependentRequired" => 0,
        _ => count(value),
    };
    members.iter().map(count_member).sum()
}

/// The header is `Mcp-Param-` and the name, so it can never be one that means something else.
fn header_name(annotation: &Value) -> Result<HeaderName, String> {
    let name = annotation.as_str().unwrap_or_default();
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !(1..=64).contains(&name.len()) || !name.bytes().all(token) {
        return Err("its `x-mcp-header` is no header name".to_owned());
    }
    HeaderName::try_from(format!("mcp-param-{}", name.to_ascii_lowercase()))
        .map_err(|_| "its `x-mcp-header` is no header name".to_owned())
}

/// The headers for one call.
///
/// # Errors
///
/// What cannot be mirrored.
pub(crate) fn headers(
    mirrors: &[Mirror],
    arguments: &JsonText,
) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    if mirrors.is_empty() {
        return Ok(Vec::new());
    }
    let arguments: Value = arguments.read().map_err(|error| error.to_string())?;
    let mut headers = Vec::with_capacity(mirrors.len());
    for mirror in mirrors {
        let mut value = Some(&arguments);
        for key in &mirror.path {
            value = value.and_then(|value| value.get(key));
        }
        let text = match value {
            None | Some(Value::Null) => continue,
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(flag)) => flag.to_string(),
            Some(Value::Number(number))
                if number
                    .as_i64()
                    .is_some_and(|number| number.unsigned_abs() <= SAFE_INTEGER) =>
            {
                number.to_string()
            }
            Some(_) => return Err("an argument that is mirrored into a header has no text form".to_owned()),
        };
        if text.len() > VALUE_BYTES {
            return Err(format!(
                "an argument that is mirrored into a header is longer than {VALUE_BYTES} bytes"
            ));
        }
        let value = HeaderValue::try_from(header_text(&text))
            .map_err(|_| "an argument cannot be mirrored into a header".to_owned())?;
        headers.push((mirror.header.clone(), value));
    }
    Ok(headers)
}

/// A text that could be misread, or could end the header, travels as Base64.
fn header_text(text: &str) -> String {
    let plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
        && text.trim() == text
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    if plain {
        text.to_owned()
    } else {
        format!("=?base64?{}?=", BASE64_STANDARD.encode(text))
    }
}

#[cfg(test)]
mod tests {
    use caliber_core::json::JsonLimits;

    use super::*;

    fn json(text: &str) -> JsonText {
        JsonText::parse(text, JsonLimits::ARGUMENTS).unwrap()
    }

    fn schema(property: &str) -> JsonText {
        json(&format!(
            r#"{{"type":"object","properties":{{"a":{property},"b":{{"type":"string"}}}}}}"#
        ))
    }

    #[test]
    fn values_arrive_as_they_are_or_in_base64() {
        let schema = json(
            r#"{"properties":{"region":{"type":"string","x-mcp-header":"Region"},
                "deep":{"properties":{"n":{"type":"integer","x-mcp-header":"N"}}},
                "off":{"type":"boolean","x-mcp-header":"Off"}}}"#,
        );
        let mirrors = mirrors(&schema).unwrap();
        let sent = |arguments: &str| -> Vec<(String, String)> {
            let mut sent: Vec<_> = headers(&mirrors, &json(arguments))
                .unwrap()
                .into_iter()
                .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
                .collect();
            sent.sort();
            sent
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            sent(r#"{"region":"eu west","deep":{"n":-3},"off":false}"#),
            [
                pair("mcp-param-n", "-3"),
                pair("mcp-param-off", "false"),
                pair("mcp-param-region", "eu west")
            ]
        );
        assert_eq!(sent("{}"), []);
        for (text, encoded) in [
            (r#""a\r\nX-Evil: 1""#, "=?base64?YQ0KWC1FdmlsOiAx?="),
            (r#"" a""#, "=?base64?IGE=?="),
            (r#""ü""#, "=?base64?w7w=?="),
            (r#""=?base64?YQ==?=""#, "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ] {
            assert_eq!(
                sent(&format!(r#"{{"region":{text}}}"#)),
                [pair("mcp-param-region", encoded)]
            );
        }
        assert!(headers(&mirrors, &json(r#"{"deep":{"n":9007199254740993}}"#)).is_err());
        assert!(headers(&mirrors, &json(r#"{"region":{}}"#)).is_err());
    }

    #[test]
    fn no_name_can_become_another_header() {
        let named = |name: &str| mirrors(&schema(&format!(r#"{{"type":"string","x-mcp-header":{name}}}"#)));
        for name in [r#""a b""#, r#""""#, r#""a\r\nb""#, "1", r#""ü""#, "null"] {
            assert!(named(name).is_err(), "{name}");
        }
        let mirror = named(r#""Transfer-Encoding""#).unwrap();
        assert_eq!(mirror[0].header, "mcp-param-transfer-encoding");
    }

    #[test]
    fn annotations_that_reach_no_argument_are_refused() {
        for property in [
            r#"{"type":"object","x-mcp-header":"A"}"#,
            r#"{"type":"array","items":{"type":"string","x-mcp-header":"A"}}"#,
            r#"{"anyOf":[{"type":"string","x-mcp-header":"A"}]}"#,
        ] {
            assert!(mirrors(&schema(property)).is_err(), "{property}");
        }
        let twice = r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#;
        assert!(mirrors(&json(twice)).is_err());
        let at_root = r#"{"x-mcp-header":"A","properties":{}}"#;
        assert!(mirrors(&json(at_root)).is_err());
    }

    #[test]
    fn an_argument_may_have_that_name() {
        let schema = json(r#"{"properties":{"x-mcp-header":{"type":"string","default":"x-mcp-header"}}}"#);
        assert_eq!(mirrors(&schema).unwrap(), []);
    }
}
