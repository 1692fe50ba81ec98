//! The HTTP client that reaches a service.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use caliber_core::{Error, Result};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;

use super::settings::RemoteSettings;

/// A client that dials the service directly, once per request.
pub(super) async fn client(settings: &RemoteSettings) -> Result<reqwest::Client> {
    let tls = match settings.url.scheme() {
        "https" => {
            let roots = settings.extra_roots.clone();
            tokio::task::spawn_blocking(move || trusting_tls(&roots))
                .await
                .map_err(|error| Error::internal("loading the certificates broke off").with_source(error))??
        }
        // Plain HTTP: no root is trusted, so that nothing could be sent over TLS by mistake.
        _ => rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::internal("TLS could not be set up").with_source(error))?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth(),
    };
    let mut builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .http1_only()
        .tcp_nodelay(true)
        .connect_timeout(settings.connect_timeout)
        // A resting connection that the other side closes at the wrong moment would lose a run.
        .pool_max_idle_per_host(0);
    if settings.url.scheme() == "http" {
        // This machine, whatever the resolver says.
        let port = settings.url.port_or_known_default().unwrap_or_default();
        builder = builder.resolve_to_addrs(
            "localhost",
            &[
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
                SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port),
            ],
        );
    }
    builder
        .build()
        .map_err(|error| Error::internal("the HTTP client could not be set up").with_source(error))
}

/// Passed explicitly, so that a provider of the embedding program is neither needed nor disturbed.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn trusting_tls(extra_roots: &[u8]) -> Result<rustls::ClientConfig> {
    let extra = CertificateDer::pem_slice_iter(extra_roots)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| {
            Error::invalid("remote.extra_roots", "these are no certificates in PEM").with_source(error)
        })?;
    let unusable = |text: &str, error: rustls::Error| Error::internal(text).with_source(error);
    let verifier = Verifier::new_with_extra_roots(extra, provider())
        .map_err(|error| unusable("no trusted certificates could be loaded", error))?;
    Ok(rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS could not be set up", error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}
