//! Who makes a request: a bearer token, or a subject that a trusted proxy names. Nothing else counts.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts};
use caliber_core::id::ProjectId;
use caliber_core::principal::{Authenticator, Credential, Principal, Surface};
use caliber_core::secret::SecretText;
use caliber_core::{Error, ErrorKind};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::problem::{HttpReason, Problem};
use crate::settings::{Authentication, PROJECT_HEADER};
use crate::state::Api;

/// A caller that the host of the router has identified itself, and the surface that its acts are recorded under.
/// The host puts it into the extensions of a request; it then counts before every credential, and nothing that comes
/// over a network can bring one.
#[derive(Clone, Debug)]
pub struct HostCaller {
    /// Who makes the request. Its project is the one that counts.
    pub principal: Principal,
    /// Where the request came in.
    pub surface: Surface,
}

/// Who makes a request, and where it came in when the host says so. A handler that takes one cannot be reached
/// without.
pub(crate) struct Caller(pub(crate) Principal, pub(crate) Option<Surface>);

impl Caller {
    /// The caller with the surface that its acts are recorded under.
    pub(crate) fn who(&self) -> (&Principal, Surface) {
        (&self.0, self.1.unwrap_or(Surface::Http))
    }
}

impl FromRequestParts<Api> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        if let Some(HostCaller { principal, surface }) = parts.extensions.get::<HostCaller>() {
            return Ok(Self(principal.clone(), Some(*surface)));
        }
        let project = read_project(&parts.headers);
        let Some(credential) = credential(parts, api)? else {
            let mut principal = Principal::local_administrator();
            principal.project = project?.unwrap_or_default();
            return Ok(Self(principal, None));
        };
        // Whoever cannot say who they are learns nothing about their other mistakes.
        let asked = project.as_ref().ok().and_then(Option::as_ref);
        let principal = api.caliber().authenticate(&credential, asked).await?;
        project?;
        Ok(Self(principal, None))
    }
}

/// What the request presents; `None` where the API is open to this machine.
fn credential(parts: &Parts, api: &Api) -> Result<Option<Credential>, Problem> {
    let refused = |detail: &str| {
        Problem::new(StatusCode::UNAUTHORIZED, HttpReason::Unauthenticated, detail)
            .with_challenge(r#"Bearer realm="caliber""#)
    };
    if parts.headers.contains_key(AUTHORIZATION) {
        return match only(&parts.headers, &AUTHORIZATION).and_then(bearer) {
            Some(token) => Ok(Some(Credential::Bearer(SecretText::new(token)))),
            None => Err(refused("send one `Authorization: Bearer <token>` header")),
        };
    }
    let peer = peer(parts);
    let trusted = api.settings().trusted_identity.as_ref();
    if let Some(trusted) = trusted.filter(|trusted| peer.is_some_and(|peer| trusted.trusts(peer))) {
        let subject = only(&parts.headers, &trusted.header)
            .and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
        return match subject {
            Some(subject) => Ok(Some(Credential::TrustedSubject(subject.to_owned()))),
            None => Err(refused("the proxy named no subject, or more than one")),
        };
    }
    let open = api.settings().authentication == Authentication::OpenOnLoopback;
    if open && peer.is_some_and(|peer| peer.to_canonical().is_loopback()) {
        return Ok(None);
    }
    Err(refused("send a token as `Authorization: Bearer <token>`"))
}

/// The address that the connection comes from. Headers that claim another are not read.
pub(crate) fn peer(parts: &Parts) -> Option<IpAddr> {
    parts
        .extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map(|ConnectInfo(address)| address.ip())
}

/// The value of a header that stands there exactly once.
pub(crate) fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value),
        _ => None,
    }
}

/// The token of `Bearer <token>` (RFC 6750 §2.1).
fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.bytes().all(valid)).then_some(token)
}

fn read_project(headers: &HeaderMap) -> Result<Option<ProjectId>, Problem> {
    let name = HeaderName::from_static(PROJECT_HEADER);
    if !headers.contains_key(&name) {
        return Ok(None);
    }
    only(headers, &name)
        .and_then(|value| value.to_str().ok())
        .ok_or_else(|| Error::invalid("project", "send it once, as plain text"))
        .and_then(str::parse)
        .map(Some)
        .map_err(|error| {
            debug_assert_eq!(error.kind(), ErrorKind::Invalid);
            let problem = error
                .fields()
                .first()
                .map_or(error.message(), |field| &field.problem);
            Problem::invalid_field("header", PROJECT_HEADER, problem)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_read_strictly() {
        let read = |text: &'static str| bearer(&HeaderValue::from_static(text)).map(str::to_owned);
        assert_eq!(read("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(read("bEARER  abc ").as_deref(), Some("abc"));
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Basic abc",
            "abc",
            "Bearer a b",
            "Bearer a,b",
            "Bearer\tabc",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
