//! What machines ask: whether the process lives, whether it can work, and how it does. Without authentication;
//! the answers name nothing and nobody.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

use crate::document::StoreAway;
use crate::reply::{self, Reply};
use crate::state::Api;

/// A sign of life.
#[derive(Serialize, ToSchema)]
pub(crate) struct Sign {
    /// Always `ok`; anything else comes as another status.
    status: &'static str,
}

/// Whether the process lives
#[utoipa::path(
    get, path = "/healthz", tag = "operations", operation_id = "healthz", security(()),
    responses((status = 200, description = "It does", body = Sign))
)]
pub(crate) async fn healthz() -> Reply<Response> {
    reply::json(StatusCode::OK, &Sign { status: "ok" })
}

/// Whether it can work
///
/// The store answers.
#[utoipa::path(
    get, path = "/readyz", tag = "operations", operation_id = "readyz", security(()),
    responses((status = 200, description = "It can", body = Sign), StoreAway)
)]
pub(crate) async fn readyz(State(api): State<Api>) -> Reply<Response> {
    api.caliber().ping().await?;
    reply::json(StatusCode::OK, &Sign { status: "ok" })
}

/// How it does
///
/// Metrics as OpenMetrics text.
#[utoipa::path(
    get, path = "/metrics", tag = "operations", operation_id = "metrics", security(()),
    responses((status = 200, description = "The metrics", content_type = "application/openmetrics-text", body = String))
)]
pub(crate) async fn metrics(State(api): State<Api>) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], api.metrics().text()).into_response()
}
