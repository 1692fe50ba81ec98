//! The document and the explorer. Every file of the explorer is in the binary: it works without a network.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::{StatusCode, header};
use utoipa_swagger_ui::Config;

use crate::problem::{HttpReason, Problem};
use crate::state::Api;

/// What the explorer's page may load: its own files. Its styles stand in the page.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";

/// `/openapi.json`.
pub(crate) async fn document(State(api): State<Api>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], api.document()).into_response()
}

/// `/docs`: its files are named relative to `/docs/`.
pub(crate) async fn moved() -> Redirect {
    Redirect::permanent("docs/")
}

/// `/docs/`.
pub(crate) async fn index() -> Result<Response, Problem> {
    file("index.html")
}

/// Every other file of the explorer.
pub(crate) async fn asset(path: Option<Path<String>>) -> Result<Response, Problem> {
    file(path.as_ref().map_or("", |path| path.as_str()))
}

fn file(name: &str) -> Result<Response, Problem> {
    let config = Arc::new(Config::from("../openapi.json"));
    match utoipa_swagger_ui::serve(name, config) {
        Ok(Some(file)) => {
            let headers = [
                (header::CONTENT_TYPE, file.content_type.as_str()),
                (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
            ];
            let mut response = (headers, file.bytes.into_owned()).into_response();
            if file.gzpipped {
                let gzip = http::HeaderValue::from_static("gzip");
                response.headers_mut().insert(header::CONTENT_ENCODING, gzip);
            }
            Ok(response)
        }
        Ok(None) => Err(Problem::new(
            StatusCode::NOT_FOUND,
            HttpReason::NotFound,
            "the explorer has no such file",
        )),
        Err(error) => Err(
            caliber_core::Error::internal("a file of the explorer could not be read")
                .with_context("cause", error.to_string())
                .into(),
        ),
    }
}
