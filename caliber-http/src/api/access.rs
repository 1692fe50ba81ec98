//! Tokens, grants and memberships.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use caliber_core::TokenRequest;
use caliber_core::grant::Membership as CoreMembership;
use http::StatusCode;

use crate::body::{Json, read_time};
use crate::convert;
use crate::document::Existing;
use crate::identity::Caller;
use crate::input::{PageParameters, Parameters, Segments};
use crate::problem::Problem;
use crate::reply::{self, Data, Paged, Reply};
use crate::state::Api;
use crate::wire::access::{
    Grant, GrantInput, GrantPath, Membership, MembershipInput, NewToken, Token, TokenInput, TokenPath,
};

/// Make a token
///
/// Its text is in this answer and nowhere else. Needs `admin` where the token will hold.
#[utoipa::path(
    post, path = "/tokens", tag = "access", operation_id = "create_token", request_body = TokenInput,
    responses((status = 201, description = "The token", body = Data<NewToken>))
)]
pub(crate) async fn create_token(
    State(api): State<Api>,
    caller: Caller,
    Json(input): Json<TokenInput>,
) -> Reply<Response> {
    let expires_at = input
        .expires_at
        .as_deref()
        .map(|text| read_time("expires_at", text))
        .transpose()?;
    let request = TokenRequest {
        subject: convert::subject(&input.subject)?,
        project: convert::project_reach(&caller.0, input.project_id.as_deref(), input.everywhere)?,
        scopes: convert::scopes(&input.scopes)?,
        label: input.label.unwrap_or_default(),
        expires_at,
    };
    let made = api.caliber().create_token(caller.who(), request).await?;
    reply::json(
        StatusCode::CREATED,
        &Data {
            data: convert::new_token(&made),
        },
    )
}

/// List tokens
///
/// Those that the caller may revoke, newest first, without their texts. Needs `admin`.
#[utoipa::path(
    get, path = "/tokens", tag = "access", operation_id = "list_tokens", params(PageParameters),
    responses((status = 200, description = "A page of tokens", body = Paged<Vec<Token>>))
)]
pub(crate) async fn list_tokens(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Parameters(page): Parameters<PageParameters>,
) -> Reply<Response> {
    let tokens = api
        .caliber()
        .tokens(&principal, &page.page())
        .await
        .map_err(|error| Problem::from(error).in_query())?
        .map(convert::token);
    reply::page(tokens.items, tokens.next)
}

/// Revoke a token
///
/// It ends at once. Needs `admin` where it holds.
#[utoipa::path(
    delete, path = "/tokens/{token_id}", tag = "access", operation_id = "revoke_token", params(TokenPath),
    responses((status = 204, description = "It holds no more"))
)]
pub(crate) async fn revoke_token(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<TokenPath>,
) -> Reply<Response> {
    api.caliber()
        .revoke_token(caller.who(), &path.token_id.parse()?)
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Give a grant
///
/// It lets somebody invoke a server's tools, which must also be classified and allowed, or run every version of a code
/// tool. Needs `admin`.
#[utoipa::path(
    post, path = "/grants", tag = "access", operation_id = "create_grant", request_body = GrantInput,
    responses((status = 201, description = "The grant", body = Data<Grant>), Existing)
)]
pub(crate) async fn create_grant(
    State(api): State<Api>,
    caller: Caller,
    Json(input): Json<GrantInput>,
) -> Reply<Response> {
    let grantee = convert::grantee(&input)?;
    let tool = input
        .tool_name
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|_| {
            Problem::invalid_field(
                "body",
                "tool_name",
                "it takes 1 to 128 of A-Z, a-z, 0-9, _, - and .",
            )
        })?;
    let wrong = |field: &str, problem: &str| Problem::invalid_field("body", field, problem);
    let grant = match (&input.server_id, &input.family) {
        (Some(server), None) => {
            let server = server.parse()?;
            api.caliber().grant(caller.who(), &server, grantee, tool).await?
        }
        (None, Some(_)) if tool.is_some() => {
            return Err(wrong("tool_name", "a code tool has none; leave it out"));
        }
        (None, Some(family)) => {
            let family = family
                .parse()
                .map_err(|error: caliber_core::Error| wrong("family", error.message()))?;
            api.caliber().grant_family(caller.who(), &family, grantee).await?
        }
        (Some(_), Some(_)) => {
            return Err(wrong("family", "a server is named too; choose one of the two"));
        }
        (None, None) => return Err(wrong("server_id", "name a server or a family of code tools")),
    };
    reply::json(
        StatusCode::CREATED,
        &Data {
            data: convert::grant(grant),
        },
    )
}

/// List grants
///
/// Those of the caller's project.
#[utoipa::path(
    get, path = "/grants", tag = "access", operation_id = "list_grants", params(PageParameters),
    responses((status = 200, description = "A page of grants", body = Paged<Vec<Grant>>))
)]
pub(crate) async fn list_grants(
    State(api): State<Api>,
    Caller(principal, _): Caller,
    Parameters(page): Parameters<PageParameters>,
) -> Reply<Response> {
    let grants = api
        .caliber()
        .grants(&principal, &page.page())
        .await
        .map_err(|error| Problem::from(error).in_query())?
        .map(convert::grant);
    reply::page(grants.items, grants.next)
}

/// Take a grant back
///
/// Needs `admin` in its project.
#[utoipa::path(
    delete, path = "/grants/{grant_id}", tag = "access", operation_id = "delete_grant", params(GrantPath),
    responses((status = 204, description = "It is gone"))
)]
pub(crate) async fn delete_grant(
    State(api): State<Api>,
    caller: Caller,
    Segments(path): Segments<GrantPath>,
) -> Reply<Response> {
    api.caliber()
        .revoke_grant(caller.who(), &path.grant_id.parse()?)
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Set the scopes of a subject
///
/// Whole; none ends the membership. Needs `admin` where they hold.
#[utoipa::path(
    put, path = "/memberships", tag = "access", operation_id = "set_membership", request_body = MembershipInput,
    responses((status = 200, description = "What holds now", body = Data<Membership>))
)]
pub(crate) async fn set_membership(
    State(api): State<Api>,
    caller: Caller,
    Json(input): Json<MembershipInput>,
) -> Reply<Response> {
    let membership = CoreMembership {
        project: convert::project_reach(&caller.0, input.project_id.as_deref(), input.everywhere)?,
        subject: convert::subject(&input.subject)?,
        scopes: convert::scopes(&input.scopes)?,
    };
    let shown = convert::membership(&membership);
    api.caliber().set_membership(caller.who(), membership).await?;
    reply::ok(shown)
}
