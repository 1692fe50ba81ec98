//! The OpenAPI document: made of the handlers, completed here with what holds for every route.

use std::collections::BTreeMap;

use axum::body::Bytes;
use http::StatusCode;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Required};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

use crate::problem::{PROBLEM_JSON, ProblemDocument};
use crate::settings::{ApiPrefix, PROJECT_HEADER};

/// The name of the security scheme.
const BEARER: &str = "bearer";

/// The document of the routes under the default prefix.
///
/// ```
/// let document = caliber_http::openapi();
/// assert!(document.paths.paths.contains_key("/ajax-api/2.0/mlflow/caliber/mcp-servers"));
/// ```
pub fn openapi() -> OpenApi {
    of_prefix(&ApiPrefix::default())
}

/// The document as text.
pub(crate) fn written(prefix: &ApiPrefix) -> Bytes {
    of_prefix(prefix).to_json().unwrap_or_default().into()
}

fn of_prefix(prefix: &ApiPrefix) -> OpenApi {
    let (_, mut document) = crate::router::declared(prefix).split_for_parts();
    document.info.title = "caliber".to_owned();
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    document.info.description = Some(
        "The operator API of caliber: MCP servers, their tools and policies, calls, approvals and the audit trail. \
         Successes are `{\"data\": …}`; everything else is a problem document (RFC 9457) with a `reason_code`."
            .to_owned(),
    );
    document.security = Some(vec![SecurityRequirement::new(BEARER, Vec::<String>::new())]);
    let components = document.components.get_or_insert_default();
    components
        .schemas
        .insert(ProblemDocument::name().into_owned(), ProblemDocument::schema());
    let mut inner = Vec::new();
    ProblemDocument::schemas(&mut inner);
    components.schemas.extend(inner);
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token of `POST /tokens` or `caliber token create`."))
        .build();
    components.add_security_scheme(BEARER, SecurityScheme::Http(scheme));
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
            complete(operation);
        }
    }
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.patch,
        &mut item.delete,
    ]
    .into_iter()
    .flatten()
}

/// Adds what holds for every operation, and for every one that needs a caller.
fn complete(operation: &mut Operation) {
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        for content in body.content.values_mut() {
            // A body that may be missing is still never `null`.
            if let RefOr::T(content) = content
                && let Some(RefOr::T(Schema::OneOf(choice))) = &mut content.schema
            {
                choice.items.retain(|item| matches!(item, RefOr::Ref(_)));
            }
        }
    }
    let needs_caller = operation.security.is_none();
    let statuses: &[StatusCode] = if needs_caller {
        &OF_EVERY_CALLER
    } else {
        &OF_EVERYBODY
    };
    if needs_caller {
        operation
            .parameters
            .get_or_insert_default()
            .push(project_parameter().into());
    }
    for status in statuses {
        let key = status.as_str().to_owned();
        operation
            .responses
            .responses
            .entry(key)
            .or_insert_with(|| problem(*status).into());
    }
}

fn project_parameter() -> Parameter {
    let schema = ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .pattern(Some("^[a-z0-9][a-z0-9-]{0,63}$"));
    ParameterBuilder::new()
        .name(PROJECT_HEADER)
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "The project that the request works in; that of the token, or `default`.",
        ))
        .schema(Some(schema))
        .build()
}

/// What the guard answers to anybody.
const OF_EVERYBODY: [StatusCode; 9] = [
    StatusCode::BAD_REQUEST,
    StatusCode::FORBIDDEN,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::MISDIRECTED_REQUEST,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::GATEWAY_TIMEOUT,
];

/// What every route with a caller answers besides.
const OF_EVERY_CALLER: [StatusCode; 13] = [
    StatusCode::BAD_REQUEST,
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::MISDIRECTED_REQUEST,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

fn problem(status: StatusCode) -> Response {
    let description = match status {
        StatusCode::BAD_REQUEST => "A field, parameter or header is wrong; `errors` names each",
        StatusCode::UNAUTHORIZED => "Nobody could be identified",
        StatusCode::FORBIDDEN => "The caller may not, or the page that asks stands on a foreign origin",
        StatusCode::NOT_FOUND => "There is no such thing, or the caller may not see it",
        StatusCode::METHOD_NOT_ALLOWED => "The route does not take this method",
        StatusCode::REQUEST_TIMEOUT => "The body did not arrive in time",
        StatusCode::CONFLICT => "The state does not allow it; `reason_code` says what stands against it",
        StatusCode::PRECONDITION_FAILED => "The thing is no longer at the revision of `If-Match`",
        StatusCode::PAYLOAD_TOO_LARGE => "The body is larger than the limit",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "The body is no JSON by its type, or compressed",
        StatusCode::MISDIRECTED_REQUEST => "This server does not answer for the host that the request names",
        StatusCode::TOO_MANY_REQUESTS => "Too many requests of this source, or calls of this tool or server",
        StatusCode::INTERNAL_SERVER_ERROR => "A defect in caliber",
        StatusCode::BAD_GATEWAY => "The MCP server failed, broke the protocol, or its answer was lost",
        StatusCode::SERVICE_UNAVAILABLE => "The store or the MCP server is away",
        StatusCode::GATEWAY_TIMEOUT => "The MCP server or the store did not answer in time",
        _ => "It was refused",
    };
    let schema = RefOr::Ref(Ref::from_schema_name(ProblemDocument::name()));
    ResponseBuilder::new()
        .description(description)
        .content(PROBLEM_JSON, ContentBuilder::new().schema(Some(schema)).build())
        .build()
}

fn problems(statuses: &[StatusCode]) -> BTreeMap<String, RefOr<Response>> {
    statuses
        .iter()
        .map(|status| (status.as_str().to_owned(), problem(*status).into()))
        .collect()
}

/// Answers of routes that may meet a state that does not allow the request.
pub(crate) struct Existing;

impl IntoResponses for Existing {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[StatusCode::CONFLICT])
    }
}

/// Answers of routes that take `If-Match`.
pub(crate) struct Conditional;

impl IntoResponses for Conditional {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[StatusCode::CONFLICT, StatusCode::PRECONDITION_FAILED])
    }
}

/// Answers of routes that reach a server.
pub(crate) struct Remote;

impl IntoResponses for Remote {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[StatusCode::CONFLICT, StatusCode::BAD_GATEWAY])
    }
}

/// The answer of a probe while the store is away.
pub(crate) struct StoreAway;

impl IntoResponses for StoreAway {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[StatusCode::SERVICE_UNAVAILABLE])
    }
}
