//! Request bodies: read within bounds, checked as JSON, then as what the route takes. What is wrong is named.

use std::fmt;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::text::{escaped, shown};
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::problem::{FieldError, FieldErrorType, HttpReason, Problem};
use crate::state::Api;

/// A body that must be there.
pub(crate) struct Json<T>(pub(crate) T);

/// A body that may be missing.
pub(crate) struct OptionalJson<T>(pub(crate) T);

/// A route that takes no body: nothing, or an empty object.
pub(crate) struct NoBody;

impl<T: DeserializeOwned> FromRequest<Api> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        match read_body(request, api).await? {
            Some(text) => read_typed(&text).map(Self),
            None => Err(Problem::invalid_field(
                "body",
                "",
                "it is empty; send a JSON object",
            )),
        }
    }
}

impl<T: DeserializeOwned + Default> FromRequest<Api> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        match read_body(request, api).await? {
            Some(text) => read_typed(&text).map(Self),
            None => Ok(Self(T::default())),
        }
    }
}

impl FromRequest<Api> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, expecting = "an object")]
        struct Nothing {}
        match read_body(request, api).await? {
            Some(text) => read_typed::<Nothing>(&text).map(|_| Self),
            None => Ok(Self),
        }
    }
}

/// The body as checked JSON; `None` when it is empty.
async fn read_body(request: Request, api: &Api) -> Result<Option<JsonText>, Problem> {
    let settings = api.settings();
    let (parts, body) = request.into_parts();
    let bytes = tokio::time::timeout(settings.body_timeout, collect(body, settings.body_bytes))
        .await
        .map_err(|_| {
            let seconds = settings.body_timeout.as_secs_f64();
            Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                HttpReason::BodyTimeout,
                format!("the body did not arrive within {seconds} seconds"),
            )
        })??;
    if bytes.is_empty() {
        return Ok(None);
    }
    require_json_type(&parts.headers)?;
    let text =
        String::from_utf8(bytes).map_err(|_| Problem::invalid_field("body", "", "it is no UTF-8 text"))?;
    check_json(text, settings.json_depth).map(Some)
}

async fn collect(body: Body, limit: usize) -> Result<Vec<u8>, Problem> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes().into()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Err(_) => Err(Problem::invalid_field("body", "", "it broke off before its end")),
    }
}

pub(crate) fn too_large(limit: usize) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        HttpReason::TooLarge,
        format!("the body is larger than {limit} bytes"),
    )
}

fn require_json_type(headers: &HeaderMap) -> Result<(), Problem> {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let essence = match (values.next(), values.next()) {
        (Some(value), None) => value
            .to_str()
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim(),
        _ => "",
    };
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        HttpReason::ContentTypeRefused,
        "send the body as `Content-Type: application/json`",
    ))
}

/// Valid JSON, not too deep, no key twice.
fn check_json(text: String, depth: usize) -> Result<JsonText, Problem> {
    let limits = JsonLimits {
        bytes: usize::MAX,
        depth,
    };
    JsonText::parse(text.clone(), limits).map_err(|error| {
        // The check says what is wrong; where it is takes a second, slower walk.
        let located = RawValue::from_string(text)
            .ok()
            .and_then(|raw| locate(&raw, &mut vec!["body".to_owned()], depth));
        let error = located.unwrap_or_else(|| FieldError {
            loc: vec!["body".to_owned()],
            msg: error.message().to_owned(),
            r#type: FieldErrorType::Invalid,
        });
        Problem::invalid_fields(vec![error])
    })
}

/// Finds the first repeated key or the place that nests too deep.
fn locate(raw: &RawValue, path: &mut Vec<String>, depth: usize) -> Option<FieldError> {
    let text = raw.get();
    let children: Vec<(String, &RawValue)> = match text.as_bytes().first() {
        Some(b'{') => serde_json::from_str::<Members<'_>>(text).ok()?.0,
        Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(text)
            .ok()?
            .into_iter()
            .enumerate()
            .map(|(index, item)| (index.to_string(), item))
            .collect(),
        _ => return None,
    };
    let here = |path: &[String], msg: String, r#type| FieldError {
        loc: path.to_vec(),
        msg,
        r#type,
    };
    if depth == 0 {
        let problem = "it nests deeper than this server reads".to_owned();
        return Some(here(path, problem, FieldErrorType::Invalid));
    }
    let mut seen = std::collections::HashSet::new();
    for (key, value) in children {
        path.push(escaped(&key, 120));
        if !seen.insert(key) {
            return Some(here(
                path,
                "it stands there twice".to_owned(),
                FieldErrorType::Duplicate,
            ));
        }
        if let Some(found) = locate(value, path, depth - 1) {
            return Some(found);
        }
        path.pop();
    }
    None
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

fn read_typed<T: DeserializeOwned>(text: &JsonText) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_str(text.as_str());
    match serde_path_to_error::deserialize(&mut deserializer) {
        Ok(Object(value)) => Ok(value),
        Err(error) => {
            let path = error.path().iter().map(segment).collect();
            Err(Problem::invalid_fields(vec![field_error(
                "body",
                path,
                &error.inner().to_string(),
            )]))
        }
    }
}

/// Reads an object only. A derived reader would take a list of the fields in their order as well.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Read<T> {
            type Value = Object<T>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Read(std::marker::PhantomData))
    }
}

fn segment(segment: &serde_path_to_error::Segment) -> String {
    use serde_path_to_error::Segment;
    match segment {
        Segment::Seq { index } => index.to_string(),
        Segment::Map { key } => escaped(key, 120),
        Segment::Enum { variant } => escaped(variant, 120),
        Segment::Unknown => "?".to_owned(),
    }
}

/// What a reader of typed values says, in words for people. Values are not repeated: they may be secret.
pub(crate) fn field_error(place: &str, path: Vec<String>, message: &str) -> FieldError {
    let named = |prefix: &str| {
        let rest = message.strip_prefix(prefix)?;
        // The name may hold backticks itself; what follows it does not begin with one.
        let end = rest
            .rfind("`, expected")
            .or_else(|| rest.rfind("`, there are no fields"))
            .or_else(|| rest.rfind('`'))?;
        rest.get(..end)
    };
    let (step, msg, r#type) = if let Some(name) = named("missing field `") {
        (Some(name), "it is required".to_owned(), FieldErrorType::Missing)
    } else if let Some(name) = named("unknown field `") {
        let known = expected(message).map_or_else(String::new, |known| format!("; known here: {known}"));
        (
            Some(name),
            format!("there is no such field{known}"),
            FieldErrorType::Unknown,
        )
    } else if let Some(name) = named("duplicate field `") {
        (
            Some(name),
            "it stands there twice".to_owned(),
            FieldErrorType::Duplicate,
        )
    } else if let Some(expected) = expected(message) {
        (None, format!("it must be {expected}"), FieldErrorType::Invalid)
    } else {
        (None, "it cannot be read".to_owned(), FieldErrorType::Invalid)
    };
    let mut loc = vec![place.to_owned()];
    loc.extend(path);
    if let Some(name) = step {
        let name = escaped(name, 120);
        if loc.last() != Some(&name) || loc.len() == 1 {
            loc.push(name);
        }
    }
    FieldError { loc, msg, r#type }
}

/// What would have been right, in words for people.
fn expected(message: &str) -> Option<String> {
    let start = message.rfind(", expected ")? + ", expected ".len();
    let text = message.get(start..)?;
    let text = text
        .rfind(" at line ")
        .map_or(text, |end| text.get(..end).unwrap_or(text));
    let text = match text {
        "a map" => "an object",
        "a sequence" => "a list",
        "a boolean" => "true or false",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, not negative and not too large",
        other => other,
    };
    Some(escaped(
        text.strip_prefix("one of ").map_or(text, |words| words),
        500,
    ))
}

/// Reads an optional field: when it is there it must have a value, so that `null` never means something by accident.
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Like [`given`], for an object within an object.
pub(crate) fn given_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| Some(value))
}

/// Reads one of a few words. A derived reader would take an object with the word as its key as well.
struct Word<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::deserialize(text.into_deserializer()).map(Word)
    }
}

/// Reads one of a few words.
pub(crate) fn word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Word::deserialize(deserializer).map(|Word(word)| word)
}

/// Like [`given`], for one of a few words.
pub(crate) fn given_word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    word(deserializer).map(Some)
}

/// Reads a list of words.
pub(crate) fn words<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let words = Vec::deserialize(deserializer)?;
    Ok(words.into_iter().map(|Word(word)| word).collect())
}

/// A time as people write it (RFC 3339).
pub(crate) fn read_time(field: &str, text: &str) -> Result<caliber_core::clock::Timestamp, Problem> {
    chrono::DateTime::parse_from_rfc3339(text)
        .map(|time| chrono::SubsecRound::trunc_subsecs(time.to_utc(), 6))
        .map_err(|_| {
            let problem = format!("{} is no time such as 2027-01-31T12:00:00Z", shown(text));
            Problem::invalid_field("body", field, problem)
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default, expecting = "an object")]
    #[allow(dead_code, reason = "only read")]
    struct Body {
        #[serde(deserialize_with = "given")]
        name: Option<String>,
        #[serde(deserialize_with = "given")]
        count: Option<u32>,
        #[serde(deserialize_with = "given")]
        env: Option<BTreeMap<String, String>>,
        #[serde(deserialize_with = "given")]
        args: Option<Vec<String>>,
        #[serde(deserialize_with = "given_word")]
        word: Option<OneOrTwo>,
        #[serde(deserialize_with = "words")]
        words: Vec<OneOrTwo>,
        #[serde(deserialize_with = "given")]
        raw: Option<Box<RawValue>>,
        #[serde(deserialize_with = "given_object")]
        inner: Option<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[allow(dead_code, reason = "only read")]
    enum OneOrTwo {
        One,
        Two,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, expecting = "an object")]
    #[allow(dead_code, reason = "only read")]
    struct Inner {
        must: bool,
    }

    fn read(text: &str) -> Result<Body, String> {
        check_json(text.to_owned(), 8)
            .and_then(|text| read_typed(&text))
            .map_err(|problem| problem.detail().to_owned())
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, says) in [
            ("null", "body: it must be an object"),
            ("[]", "body: it must be an object"),
            (
                "{",
                "body: this is not JSON: EOF while parsing an object at line 1 column 1",
            ),
            (r#"{"name":null}"#, "body.name: it must be a string"),
            (r#"{"name":1}"#, "body.name: it must be a string"),
            (
                r#"{"count":-1}"#,
                "body.count: it must be a whole number, not negative and not too large",
            ),
            (
                r#"{"count":1e99}"#,
                "body.count: it must be a whole number, not negative and not too large",
            ),
            (r#"{"env":{"A":null}}"#, "body.env.A: it must be a string"),
            (r#"{"env":[]}"#, "body.env: it must be an object"),
            (r#"{"args":["a",{}]}"#, "body.args.1: it must be a string"),
            (r#"{"word":"three"}"#, "body.word: it must be `one` or `two`"),
            (r#"{"word":1}"#, "body.word: it must be a string"),
            (r#"{"word":null}"#, "body.word: it must be a string"),
            (r#"{"word":{"one":null}}"#, "body.word: it must be a string"),
            (
                r#"{"words":["one",{"one":null}]}"#,
                "body.words.1: it must be a string",
            ),
            (
                r#"{"words":["one","three"]}"#,
                "body.words.1: it must be `one` or `two`",
            ),
            (r#"{"inner":[true]}"#, "body.inner: it must be an object"),
            (r#"{"inner":{}}"#, "body.inner.must: it is required"),
            (
                r#"{"inner":{"must":true,"more":1}}"#,
                "body.inner.more: there is no such field; known here: `must`",
            ),
            (r#"{"name":"a","name":"b"}"#, "body.name: it stands there twice"),
            (
                r#"{"env":{"A":"1","A":"2"}}"#,
                "body.env.A: it stands there twice",
            ),
            (
                r#"{"raw":[{"k":1,"\u006b":2}]}"#,
                "body.raw.0.k: it stands there twice",
            ),
            (
                r#"{"raw":[[[[[[[[[]]]]]]]]]}"#,
                "body.raw.0.0.0.0.0.0.0: it nests deeper than this server reads",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), says, "{text}");
        }
        let unknown = read(r#"{"a`, expected b":1}"#).unwrap_err();
        assert!(
            unknown.starts_with("body.a`, expected b: there is no such field; known here: "),
            "{unknown}"
        );
    }

    #[test]
    fn values_are_not_repeated() {
        for text in [
            r#"{"env":"canary"}"#,
            r#"{"count":"canary"}"#,
            r#"{"word":"canary"}"#,
            r#"["canary"]"#,
        ] {
            let detail = read(text).unwrap_err();
            assert!(!detail.contains("canary"), "{detail}");
        }
    }

    #[test]
    fn raw_values_keep_their_text() {
        let body = read(r#"{"raw": {"n": 1e400, "m" :9007199254740993} }"#).unwrap();
        assert_eq!(body.raw.unwrap().get(), r#"{"n": 1e400, "m" :9007199254740993}"#);
    }
}
