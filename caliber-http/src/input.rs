//! What a request says outside of its body: the way, the query and the conditions.

use axum::extract::{FromRequestParts, Path};
use caliber_core::descriptor::ToolName;
use caliber_core::id::ServerId;
use caliber_core::page::{PAGE_LIMIT, PageRequest};
use caliber_core::registry::Revision;
use caliber_core::text::escaped;
use caliber_core::{Error, ErrorKind};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use serde::de::{DeserializeOwned, Unexpected};
use serde::{Deserialize, Deserializer};
use utoipa::IntoParams;

use crate::body::field_error;
use crate::problem::{FieldError, FieldErrorType, HttpReason, Problem};
use crate::state::Api;

/// The named segments of a path.
pub(crate) struct Segments<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Api> for Segments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, api).await {
            Ok(Path(segments)) => Ok(Self(segments)),
            // Not UTF-8 after decoding: nothing of ours has such a name.
            Err(_) => Err(Problem::new(
                StatusCode::NOT_FOUND,
                HttpReason::NotFound,
                "there is nothing at this path",
            )),
        }
    }
}

/// A server.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct ServerPath {
    /// The server.
    #[param(pattern = "^srv_[0-9a-f]{32}$")]
    server_id: String,
}

impl ServerPath {
    pub(crate) fn server(&self) -> Result<ServerId, Error> {
        self.server_id.parse()
    }
}

/// A tool of a server.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct ToolPath {
    /// The server.
    #[param(pattern = "^srv_[0-9a-f]{32}$")]
    server_id: String,
    /// The tool, as the server calls it.
    #[param(pattern = "^[A-Za-z0-9_.-]{1,128}$")]
    tool_name: String,
}

impl ToolPath {
    /// The server and the tool. What cannot be a name is the name of nothing.
    pub(crate) fn tool(&self) -> Result<(ServerId, ToolName), Error> {
        let tool = self
            .tool_name
            .parse()
            .map_err(|_| Error::not_found("tool", &self.tool_name))?;
        Ok((self.server_id.parse()?, tool))
    }
}

/// The parameters of a query. Unknown ones are refused.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Api> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        let mut values = serde_json::Map::new();
        let query = parts.uri.query().unwrap_or_default();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let shown = escaped(&name, 120);
            if values
                .insert(name.into_owned(), value.into_owned().into())
                .is_some()
            {
                return Err(Problem::invalid_fields(vec![FieldError {
                    loc: vec!["query".to_owned(), shown],
                    msg: "it stands there twice".to_owned(),
                    r#type: FieldErrorType::Duplicate,
                }]));
            }
        }
        serde_path_to_error::deserialize(serde_json::Value::Object(values))
            .map(Self)
            .map_err(|error| {
                let path = error
                    .path()
                    .iter()
                    .map(|step| escaped(&step.to_string(), 120))
                    .collect();
                Problem::invalid_fields(vec![field_error("query", path, &error.inner().to_string())])
            })
    }
}

/// Which page of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParameters {
    /// Items at most; 50 when it is not given.
    #[serde(deserialize_with = "limit")]
    #[param(minimum = 1, maximum = 500, nullable = false)]
    pub(crate) limit: Option<u32>,
    /// Where to go on: `next_cursor` of the page before.
    #[param(nullable = false)]
    pub(crate) cursor: Option<String>,
}

impl PageParameters {
    pub(crate) fn page(self) -> PageRequest {
        page_request(self.limit, self.cursor)
    }
}

pub(crate) fn page_request(limit: Option<u32>, cursor: Option<String>) -> PageRequest {
    let default = PageRequest::default();
    PageRequest {
        limit: limit.unwrap_or(default.limit),
        cursor,
    }
}

/// Reads a page size, 1 to [`PAGE_LIMIT`].
pub(crate) fn limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    const RANGE: &str = "a whole number from 1 to 500";
    const _: () = assert!(PAGE_LIMIT == 500);
    let text = String::deserialize(deserializer)?;
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|limit| plain && (1..=PAGE_LIMIT).contains(limit))
        .map(Some)
        .ok_or_else(|| serde::de::Error::invalid_value(Unexpected::Other("text"), &RANGE))
}

/// What `If-Match` asks for: that nothing has changed since the client looked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IfMatch {
    /// There is no such condition, or `*`.
    Anything,
    /// The thing must be at one of these revisions; an entity tag of somebody else is none of them.
    OneOf(Vec<Revision>),
}

impl FromRequestParts<Api> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Problem> {
        read_if_match(&parts.headers).ok_or_else(|| {
            Problem::invalid_field("header", "if-match", "it is no list of quoted entity tags")
        })
    }
}

fn read_if_match(headers: &HeaderMap) -> Option<IfMatch> {
    let values: Vec<_> = headers.get_all(header::IF_MATCH).iter().collect();
    if values.is_empty() {
        return Some(IfMatch::Anything);
    }
    let mut revisions = Vec::new();
    for value in values {
        let text = value.to_str().ok()?.trim();
        if text == "*" {
            return Some(IfMatch::Anything);
        }
        for tag in text.split(',') {
            let tag = tag.trim();
            // A weak tag never matches here (RFC 9110 §13.1.1).
            let (weak, quoted) = tag
                .strip_prefix("W/")
                .map_or((false, tag), |strong| (true, strong));
            let opaque = quoted.strip_prefix('"')?.strip_suffix('"')?;
            if let (false, Ok(revision)) = (weak, opaque.parse()) {
                revisions.push(Revision(revision));
            }
        }
    }
    Some(IfMatch::OneOf(revisions))
}

impl IfMatch {
    /// The revision to expect of a thing that is at `current`; an error when the condition does not hold.
    pub(crate) fn expect(&self, current: Revision) -> Result<Option<Revision>, Problem> {
        match self {
            Self::Anything => Ok(None),
            Self::OneOf(revisions) if revisions.contains(&current) => Ok(Some(current)),
            Self::OneOf(_) => {
                let text = format!("it has changed since it was read; it is at revision {current} now");
                let error = Error::new(ErrorKind::Conflict, text)
                    .with_reason(caliber_core::reason::ReasonCode::StaleRevision);
                Err(Problem::from(error).into_failed_precondition())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(values: &[&str]) -> Option<IfMatch> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::IF_MATCH, HeaderValue::from_str(value).unwrap());
        }
        read_if_match(&headers)
    }

    #[test]
    fn conditions_are_read_strictly() {
        let one_of =
            |revisions: &[u64]| Some(IfMatch::OneOf(revisions.iter().copied().map(Revision).collect()));
        assert_eq!(read(&[]), Some(IfMatch::Anything));
        assert_eq!(read(&["*"]), Some(IfMatch::Anything));
        assert_eq!(read(&["\"3\""]), one_of(&[3]));
        assert_eq!(read(&["\"3\", \"4\"", "\"5\""]), one_of(&[3, 4, 5]));
        assert_eq!(read(&["W/\"3\""]), one_of(&[]));
        assert_eq!(read(&["\"abc\""]), one_of(&[]));
        for bad in ["3", "", "\"3", "W/3", "\"3\",", "\""] {
            assert_eq!(read(&[bad]), None, "{bad}");
        }
    }
}
