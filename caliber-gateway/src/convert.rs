//! From what an upstream answers to what core knows.

use std::borrow::Cow;
use std::time::Duration;

use caliber_core::ErrorKind;
use caliber_core::gateway::Answer;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::reason::ReasonCode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::client::refusal;
use crate::connection::Connection;
use crate::error::{Failure, upstream_text};
use crate::inbox::Reply;

/// A result beyond this size, in bytes, is read off the runtime's threads.
const SMALL_RESULT: usize = 256 << 10;

/// The parts of the result of a call that decide whether it is one. Everything else is passed on unseen.
#[derive(Deserialize)]
struct CallResult<'a> {
    #[serde(default)]
    content: Option<Vec<Block>>,
    #[serde(rename = "structuredContent", borrow, default)]
    structured_content: Option<&'a RawValue>,
    #[serde(rename = "isError", default)]
    is_error: Option<bool>,
    #[serde(rename = "resultType", borrow, default)]
    result_type: Option<Cow<'a, str>>,
}

/// A block of content: an object of whatever type.
#[derive(Deserialize)]
#[serde(expecting = "an object with a type")]
struct Block {
    #[serde(rename = "type")]
    _type: IgnoredAny,
}

/// Reads the answer to a call.
pub(crate) async fn answer(
    connection: &Connection,
    reply: Reply,
    result_bytes: usize,
    upstream_time: Duration,
) -> Result<Answer, Failure> {
    let text = match reply {
        Ok(text) => text,
        Err(error) => return Err(refusal(connection, "the call", &error)),
    };
    let limits = JsonLimits {
        bytes: result_bytes,
        depth: JsonLimits::RESULT.depth,
    };
    let (result, is_error) = if text.len() <= SMALL_RESULT {
        read(text, limits)?
    } else {
        let reading = tokio::task::spawn_blocking(move || read(text, limits));
        reading
            .await
            .map_err(|_| Failure::protocol("the result of the tool could not be read"))??
    };
    Ok(Answer {
        result,
        is_error,
        upstream_time,
    })
}

/// The checked result, and whether the tool says that it failed.
fn read(text: String, limits: JsonLimits) -> Result<(JsonText, bool), Failure> {
    let result = JsonText::parse(text, limits).map_err(|error| match error.kind() {
        ErrorKind::TooLarge => Failure::too_large(
            ReasonCode::ResultTooLarge,
            format!("the result of the tool cannot be taken: {}", error.message()),
        ),
        _ => Failure::protocol(format!(
            "the result of the tool is malformed: {}",
            error.message()
        )),
    })?;
    let read: CallResult<'_> = serde_json::from_str(result.as_str())
        .map_err(|_| Failure::protocol("the result of the tool has not the shape of one"))?;
    match read.result_type.as_deref() {
        None | Some("complete") => {}
        Some("input_required") => {
            return Err(Failure::upstream(
                "the tool asks for further input, which callers cannot give yet",
            ));
        }
        Some("task") => {
            return Err(Failure::upstream(
                "the tool answered with a task, which callers cannot follow yet",
            ));
        }
        Some(unknown) => {
            return Err(Failure::protocol(format!(
                "the result of the tool is of the unknown type {}",
                upstream_text(unknown)
            )));
        }
    }
    if read.content.is_none() && read.structured_content.is_none() {
        return Err(Failure::protocol("the result of the tool holds no content"));
    }
    let is_error = read.is_error.unwrap_or(false);
    Ok((result, is_error))
}
