//! From what an upstream answers to what core knows.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::read::DecoderReader;
use caliber_core::ErrorKind;
use caliber_core::gateway::Answer;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::reason::ReasonCode;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
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
    content: Option<Content>,
    #[serde(rename = "structuredContent", borrow, default)]
    structured_content: Option<&'a RawValue>,
    #[serde(rename = "isError", default)]
    is_error: Option<bool>,
    #[serde(rename = "resultType", borrow, default)]
    result_type: Option<Cow<'a, str>>,
}

/// The blocks of content, none of which is kept: a result of the largest size may be a million of them.
struct Content {
    is_sound: bool,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Judge;
        impl<'de> Visitor<'de> for Judge {
            type Value = Content;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an array of content")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut blocks: A) -> Result<Content, A::Error> {
                let mut is_sound = true;
                while let Some(block) = blocks.next_element::<Block<'de>>()? {
                    is_sound &= block.is_sound();
                }
                Ok(Content { is_sound })
            }
        }
        deserializer.deserialize_seq(Judge)
    }
}

/// A block of content: an object of whatever type.
#[derive(Deserialize)]
#[serde(expecting = "an object with a type")]
struct Block<'a> {
    #[serde(rename = "type", borrow)]
    kind: &'a RawValue,
    /// What an image or a sound is.
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    /// What a resource holds.
    #[serde(borrow, default)]
    resource: Option<&'a RawValue>,
}

/// Base64 with or without padding: whoever reads it copes with both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

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
    if read.content.is_some_and(|content| !content.is_sound) {
        return Err(Failure::protocol(
            "the result of the tool holds binary data that is not Base64",
        ));
    }
    let is_error = read.is_error.unwrap_or(false);
    Ok((result, is_error))
}

impl Block<'_> {
    /// Whether what has to be Base64 is. Blocks of types that are not known here are nobody's to judge.
    fn is_sound(&self) -> bool {
        #[derive(Deserialize)]
        struct Resource<'a> {
            #[serde(borrow, default)]
            blob: Option<&'a RawValue>,
        }
        match self.kind.get() {
            r#""image""# | r#""audio""# => self.data.is_none_or(|data| is_base64(data.get())),
            r#""resource""# => self.resource.is_none_or(|resource| {
                serde_json::from_str::<Resource<'_>>(resource.get())
                    .is_ok_and(|resource| resource.blob.is_none_or(|blob| is_base64(blob.get())))
            }),
            _ => true,
        }
    }
}

/// Whether a JSON text is a string of Base64. Decodes in pieces and keeps none.
fn is_base64(json: &str) -> bool {
    let Ok(text) = serde_json::from_str::<Cow<'_, str>>(json) else {
        return false;
    };
    std::io::copy(
        &mut DecoderReader::new(text.as_bytes(), &BASE64),
        &mut std::io::sink(),
    )
    .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_data_has_to_be_base64() {
        let read = |block: &str| read(format!(r#"{{"content":[{block}]}}"#), JsonLimits::RESULT).is_ok();
        for block in [
            r#"{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png"}"#,
            r#"{"type":"image","data":"iVBORw0KGgo","mimeType":"image/png"}"#,
            r#"{"type":"audio","data":"","mimeType":"audio/wav"}"#,
            r#"{"type":"audio","data":"QUJD\/\u002b==","mimeType":"audio/wav"}"#,
            r#"{"type":"resource","resource":{"uri":"a:b","text":"%%%"}}"#,
            r#"{"type":"resource","resource":{"uri":"a:b","blob":"QUJD"}}"#,
            r#"{"type":"example","data":"%%%"}"#,
            r#"{"type":"text","text":"%%%","data":7}"#,
        ] {
            assert!(read(block), "{block}");
        }
        for block in [
            r#"{"type":"image","data":"%%%not base64%%%"}"#,
            r#"{"type":"audio","data":"QUJD="}"#,
            r#"{"type":"audio","data":7}"#,
            r#"{"type":"resource","resource":{"uri":"a:b","blob":"\u0000\u0001"}}"#,
        ] {
            assert!(!read(block), "{block}");
        }
    }
}
