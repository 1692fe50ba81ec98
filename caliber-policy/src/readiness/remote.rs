//! Servers that are dialled.

use std::net::IpAddr;

use caliber_core::address::{AddressCategory, AddressRules, address_category, is_loopback_host};
use caliber_core::readiness::{Boundary, Control, Readiness};
use caliber_core::reason::ReasonCode;
use caliber_core::text::shown;
use url::{Host, Url};

use super::{block, list, verdict, warn};
use crate::settings::PolicySettings;

/// Judges a remote endpoint. `addresses` are those that its host has just now; none when it did not resolve.
pub(super) fn judge(settings: &PolicySettings, text: &str, addresses: &[IpAddr]) -> Readiness {
    let mut verdict = verdict(Boundary::RemoteTransport, Vec::new());
    let Some(url) = read(text, &mut verdict) else {
        return verdict;
    };
    let is_sidecar = settings.addresses.sidecar(&url).is_some();
    let is_listed = settings.remote_hosts.iter().any(|host| host.is_at(&url));
    let may_be_dialled = if is_sidecar || is_listed {
        verdict.controls.push(Control::RemoteHostAllowlist);
        check_addresses(&settings.addresses, &url, addresses, &mut verdict)
    } else {
        // Nothing more is said about a host that is not allowed: that would be a way to map the network.
        let host = host_and_port(&url);
        block(
            &mut verdict,
            ReasonCode::HostNotAllowed,
            format!("{host} is not on the allowlist of remote hosts; the operator can add it"),
        );
        false
    };
    let is_encrypted = url.scheme() == "https";
    if is_encrypted {
        verdict.controls.push(Control::Tls);
    } else if !is_loopback_host(&url) && !is_sidecar {
        plain_http(settings, &mut verdict);
    }
    if is_sidecar && may_be_dialled {
        verdict.boundary = Boundary::ManagedSidecar;
        let host = host_and_port(&url);
        warn(
            &mut verdict,
            ReasonCode::OperatorAttested,
            format!("the operator attests the isolation of {host}; caliber cannot see it"),
        );
    } else if is_encrypted && may_be_dialled && is_public(&settings.addresses, &url, addresses) {
        verdict.boundary = Boundary::RemoteHttps;
    } else if may_be_dialled {
        warn(
            &mut verdict,
            ReasonCode::NotIsolated,
            "plain HTTP, this machine or an internal network: no boundary for production",
        );
    } else {
        // How it would be isolated is open as long as it may not be dialled.
        warn(
            &mut verdict,
            ReasonCode::NotIsolated,
            "what may not be dialled has no boundary for production",
        );
    }
    verdict
}

/// Reads a URL that is written exactly as it will be dialled. Parsers agree on the usual spelling of a URL, and a
/// reader sees through no other.
fn read(text: &str, verdict: &mut Readiness) -> Option<Url> {
    let mut refuse = |code, problem: &str| {
        block(verdict, code, problem);
        None
    };
    if text.trim().is_empty() {
        return refuse(
            ReasonCode::EndpointMissing,
            "no URL is given; write an absolute one",
        );
    }
    let Ok(url) = Url::parse(text) else {
        return refuse(
            ReasonCode::UrlInvalid,
            "the URL cannot be read; write an absolute one",
        );
    };
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return refuse(
            ReasonCode::UrlInvalid,
            "the URL is no http or https URL with a host",
        );
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse(
            ReasonCode::CredentialsInUrl,
            "the URL holds credentials; move them into the authentication of the server",
        );
    }
    if url.fragment().is_some() {
        return refuse(ReasonCode::UrlInvalid, "the URL holds a fragment; remove it");
    }
    let origin = format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default());
    let is_plain = text
        .get(..origin.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(&origin))
        && text
            .get(origin.len()..)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/', '?']))
        && !text.contains(|character: char| character == '\\' || character <= ' ' || character.is_control());
    if !is_plain {
        return refuse(
            ReasonCode::UrlInvalid,
            &format!(
                "the URL is not written as it is dialled; write it as {}",
                shown(&origin)
            ),
        );
    }
    Some(url)
}

/// Whether every address that is known may be dialled.
fn check_addresses(rules: &AddressRules, url: &Url, addresses: &[IpAddr], verdict: &mut Readiness) -> bool {
    let addresses = with_literal(url, addresses);
    if addresses.is_empty() {
        let host = host_and_port(url);
        warn(
            verdict,
            ReasonCode::HostUnresolved,
            format!("{host} has no address just now; what it gets is checked when it is dialled"),
        );
    }
    let mut blocked: Vec<AddressCategory> = addresses
        .iter()
        .filter_map(|address| rules.check(url, *address).err())
        .collect();
    blocked.sort_unstable();
    blocked.dedup();
    // The category, and not the address: an internal address is nothing for everybody.
    if let Some(categories) = list(blocked.iter().map(|category| category.as_str())) {
        let host = host_and_port(url);
        block(
            verdict,
            ReasonCode::AddressBlocked,
            format!(
                "{host} has an address that is not dialled for it ({categories}); use a public address, or let \
                 the operator attest the service as a sidecar"
            ),
        );
    } else {
        verdict.controls.push(Control::PinnedAddress);
    }
    blocked.is_empty()
}

/// The addresses, and that of a host that is an address itself.
fn with_literal(url: &Url, addresses: &[IpAddr]) -> Vec<IpAddr> {
    let literal = match url.host() {
        Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
        Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
        Some(Host::Domain(_)) | None => None,
    };
    literal.into_iter().chain(addresses.iter().copied()).collect()
}

/// Whether the host is known to lie outside: by its addresses, or, while it has none, because no other may be
/// dialled.
fn is_public(rules: &AddressRules, url: &Url, addresses: &[IpAddr]) -> bool {
    let addresses = with_literal(url, addresses);
    if addresses.is_empty() {
        let may_lie_inside = AddressCategory::ALL.into_iter().any(|category| {
            !matches!(category, AddressCategory::Public | AddressCategory::Metadata)
                && !rules.blocked.contains(&category)
        });
        return !may_lie_inside && !is_loopback_host(url);
    }
    addresses
        .iter()
        .all(|address| address_category(*address) == AddressCategory::Public)
}

fn plain_http(settings: &PolicySettings, verdict: &mut Readiness) {
    if settings.allow_plain_http {
        warn(
            verdict,
            ReasonCode::PlainHttpAllowed,
            "everybody on the way can read and change what is sent: plain HTTP, because the operator allows it",
        );
    } else {
        block(
            verdict,
            ReasonCode::PlainHttp,
            "plain HTTP is for loopback only; use https, or let the operator allow plain HTTP",
        );
    }
}

fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => shown(&format!("{host}:{port}")),
        None => shown(host),
    }
}
