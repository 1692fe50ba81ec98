//! What a successful request gets: `{"data": …}`.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

use crate::problem::Problem;

/// The result of a handler.
pub(crate) type Reply<T> = Result<T, Problem>;

/// A success.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Data<T: ToSchema> {
    /// What was asked for.
    pub(crate) data: T,
}

/// A success with the way to more of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Paged<T: ToSchema> {
    /// What was asked for.
    pub(crate) data: T,
    /// Send it back as `cursor` for the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

/// Writes `body`. Our own types always can be written, or it is a defect.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Reply<Response> {
    let bytes = serde_json::to_vec(body).map_err(|error| {
        caliber_core::Error::internal("an answer could not be written").with_source(error)
    })?;
    let content_type = HeaderValue::from_static("application/json");
    Ok((status, [(header::CONTENT_TYPE, content_type)], bytes).into_response())
}

/// 200 with `data`.
pub(crate) fn ok(data: impl Serialize + ToSchema) -> Reply<Response> {
    json(StatusCode::OK, &Data { data })
}

/// 201 with `data`, which now stands at `location`.
pub(crate) fn created(location: &str, data: impl Serialize + ToSchema) -> Reply<Response> {
    let mut response = json(StatusCode::CREATED, &Data { data })?;
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// 200 with one page of `data`.
pub(crate) fn page(data: impl Serialize + ToSchema, next_cursor: Option<String>) -> Reply<Response> {
    json(StatusCode::OK, &Paged { data, next_cursor })
}
