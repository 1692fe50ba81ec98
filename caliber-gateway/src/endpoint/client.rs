//! HTTP clients that dial checked addresses and nothing else.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind, Result};
use lru::LruCache;
use reqwest::dns::{Name, Resolve, Resolving};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;
use tokio::sync::OnceCell;
use url::Url;

use super::{EndpointSettings, bounded};

/// How often a resting connection is probed, so that a peer that vanished is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The clients in use, one per origin and set of addresses.
#[derive(Debug)]
pub(super) struct Clients {
    connect_timeout: Duration,
    resting_connections: usize,
    rest_time: Duration,
    extra_roots: Vec<u8>,
    tls: OnceCell<rustls::ClientConfig>,
    kept: Mutex<LruCache<Key, reqwest::Client>>,
}

type Key = (String, Vec<IpAddr>);

impl Clients {
    pub(super) fn new(settings: &EndpointSettings) -> Self {
        Self {
            connect_timeout: settings.connect_timeout,
            resting_connections: settings.resting_connections,
            rest_time: settings.rest_time,
            extra_roots: settings.extra_roots.clone(),
            tls: OnceCell::new(),
            kept: Mutex::new(LruCache::new(bounded(settings.clients))),
        }
    }

    /// The client for the origin of `url` at `addresses`, which the caller has checked.
    pub(super) async fn get(&self, url: &Url, addresses: Vec<IpAddr>) -> Result<reqwest::Client> {
        let key = (url.origin().ascii_serialization(), addresses);
        if let Some(client) = self.kept().get(&key) {
            return Ok(client.clone());
        }
        let tls = match url.scheme() {
            "https" => self.tls().await?,
            // Plain HTTP: no root is trusted, so that nothing could be sent over TLS by mistake.
            _ => bare_tls()?,
        };
        let client = self.build(url, &key.1, tls)?;
        // Another task may have been faster; then its client, which may hold connections, is the one to share.
        Ok(self.kept().get_or_insert(key, || client).clone())
    }

    fn build(&self, url: &Url, addresses: &[IpAddr], tls: rustls::ClientConfig) -> Result<reqwest::Client> {
        let port = url.port_or_known_default().unwrap_or_default();
        let checked: Vec<_> = addresses
            .iter()
            .map(|address| SocketAddr::new(*address, port))
            .collect();
        reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .dns_resolver(NoOtherName)
            .resolve_to_addrs(url.host_str().unwrap_or_default(), &checked)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_gzip()
            .no_brotli()
            .no_deflate()
            .no_zstd()
            .http1_only()
            .tcp_nodelay(true)
            .tcp_keepalive(KEEPALIVE)
            .connect_timeout(self.connect_timeout)
            .pool_max_idle_per_host(self.resting_connections)
            .pool_idle_timeout(self.rest_time)
            .build()
            .map_err(|error| unusable("the HTTP client could not be set up", error))
    }

    /// The platform's roots are read once, off the runtime, when the first https server is dialled.
    async fn tls(&self) -> Result<rustls::ClientConfig> {
        let load = || async {
            let roots = self.extra_roots.clone();
            tokio::task::spawn_blocking(move || trusting_tls(&roots))
                .await
                .map_err(|error| unusable("loading the trusted certificates was cut short", error))?
        };
        self.tls.get_or_try_init(load).await.cloned()
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, LruCache<Key, reqwest::Client>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses every name: the one name of a client has its addresses already.
#[derive(Debug)]
struct NoOtherName;

impl Resolve for NoOtherName {
    fn resolve(&self, _: Name) -> Resolving {
        Box::pin(async { Err("no other host is dialled".into()) })
    }
}

/// Passed explicitly, so that a provider of the embedding program is neither needed nor disturbed.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn bare_tls() -> Result<rustls::ClientConfig> {
    Ok(rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS could not be set up", error))?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth())
}

fn trusting_tls(extra_roots: &[u8]) -> Result<rustls::ClientConfig> {
    let extra = CertificateDer::pem_slice_iter(extra_roots)
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|error| unusable("the extra root certificates are not PEM", error))?;
    let verifier = Verifier::new_with_extra_roots(extra, provider())
        .map_err(|error| unusable("no trusted certificates could be loaded", error))?;
    Ok(rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS could not be set up", error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

fn unusable(text: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Upstream, text)
        .with_reason(ReasonCode::ConnectFailed)
        .with_source(cause)
}
