//! The route table: one line for each route, and the layers around all of them.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use caliber_core::Caliber;
use http::{Method, StatusCode, Uri};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::{access, approvals, calls, code_tools, history, operations, servers, tools};
use crate::explorer;
use crate::guard::guard;
use crate::problem::{HttpReason, Problem};
use crate::settings::{ApiPrefix, HttpSettings};
use crate::state::Api;

/// The API as a router, for a host that serves HTTP itself. Such a host bounds connections and the time of
/// heads by itself, and has to tell addresses (`into_make_service_with_connect_info::<SocketAddr>`): without
/// them no proxy is trusted, nothing is open on loopback, and requests are not counted by source.
///
/// `/openapi.json`, `/docs`, `/healthz`, `/readyz` and `/metrics` stand beside the prefix, at the root of the router.
pub fn router(caliber: Caliber, settings: HttpSettings) -> Router {
    routes(Api::new(caliber, settings))
}

pub(crate) fn routes(api: Api) -> Router {
    let (router, _) = declared(&api.settings().prefix).split_for_parts();
    router
        .route("/openapi.json", get(explorer::document))
        .route("/docs", get(explorer::moved))
        .route("/docs/", get(explorer::index))
        .route("/docs/{*file}", get(explorer::asset))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(api.clone(), guard))
        .with_state(api)
}

/// Every route that the document lists.
pub(crate) fn declared(prefix: &ApiPrefix) -> OpenApiRouter<Api> {
    let of_prefix = OpenApiRouter::default()
        .routes(routes!(servers::list, servers::create))
        .routes(routes!(servers::restore))
        .routes(routes!(servers::check_definition))
        .routes(routes!(servers::show, servers::update, servers::remove))
        .routes(routes!(servers::test_connection))
        .routes(routes!(history::of_server))
        .routes(routes!(tools::discover))
        .routes(routes!(tools::list))
        .routes(routes!(tools::show))
        .routes(routes!(tools::classify, tools::declassify))
        .routes(routes!(tools::diff))
        .routes(routes!(calls::invoke))
        .routes(routes!(calls::list))
        .routes(routes!(calls::show))
        .routes(routes!(code_tools::list, code_tools::register))
        .routes(routes!(code_tools::resolve))
        .routes(routes!(code_tools::show, code_tools::update))
        .routes(routes!(code_tools::archive))
        .routes(routes!(code_tools::versions))
        .routes(routes!(code_tools::source))
        .routes(routes!(code_tools::usage))
        .routes(routes!(code_tools::test_run))
        .routes(routes!(code_tools::runs))
        .routes(routes!(code_tools::sandbox))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::show))
        .routes(routes!(approvals::approve))
        .routes(routes!(approvals::refuse))
        .routes(routes!(history::list))
        .routes(routes!(access::create_token, access::list_tokens))
        .routes(routes!(access::revoke_token))
        .routes(routes!(access::create_grant, access::list_grants))
        .routes(routes!(access::delete_grant))
        .routes(routes!(access::set_membership));
    let beside = OpenApiRouter::default()
        .routes(routes!(operations::healthz))
        .routes(routes!(operations::readyz))
        .routes(routes!(operations::metrics));
    if prefix.as_str().is_empty() {
        beside.merge(of_prefix)
    } else {
        beside.nest(prefix.as_str(), of_prefix)
    }
}

async fn unknown(uri: Uri) -> Problem {
    let path = caliber_core::text::shown(uri.path());
    Problem::new(
        StatusCode::NOT_FOUND,
        HttpReason::NotFound,
        format!("there is nothing at {path}"),
    )
}

async fn wrong_method(method: Method) -> Problem {
    let method = caliber_core::text::shown(method.as_str());
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        HttpReason::MethodNotAllowed,
        format!("this route does not take {method}; `Allow` says what it takes"),
    )
}

/// The last resort: a defect in one request stays in that request.
fn panicked(panic: Box<dyn std::any::Any + Send>) -> axum::response::Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a value that is no text");
    tracing::error!(panic = text, "a handler panicked");
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        HttpReason::Internal,
        "a defect in caliber; the log has more under this request's id",
    )
    .into_response()
}
