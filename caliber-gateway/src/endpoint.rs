//! From what an admin wrote to what is started or dialled: executables on a safe path, addresses that were checked.

mod client;
mod executable;
mod resolver;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use caliber_core::address::AddressRules;
use caliber_core::clock::Deadline;
use caliber_core::process::Launch;
use caliber_core::readiness::EndpointFacts;
use caliber_core::reason::ReasonCode;
use caliber_core::secret::SecretText;
use caliber_core::server::{Endpoint, RemoteEndpoint, ServerDefinition, StdioEndpoint};
use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};
use lru::LruCache;
use url::{Host, Url};

use self::client::Clients;
use self::executable::Executables;
use self::resolver::Resolver;

/// How commands are found and hosts are dialled.
///
/// The paths, the isolation prefix and the address rules must be the ones that readiness judges by.
#[derive(Clone, Debug)]
pub struct EndpointSettings {
    /// The interpreter that `${PYTHON}` stands for, an absolute path. Default: none, and `${PYTHON}` is not found.
    pub python: Option<PathBuf>,
    /// Where bare command names are looked for, and the `PATH` of every child; the `PATH` of this process plays no
    /// part. Entries that are not absolute are passed over. Default `/usr/local/bin:/usr/bin:/bin`.
    pub safe_path: String,
    /// A program with arguments that every stdio server is started in, such as bubblewrap; the command and its
    /// arguments follow them. Default: none.
    pub isolation_prefix: Vec<String>,
    /// Which addresses may be dialled for which host. Default: public ones, and loopback for hosts that say so.
    pub addresses: AddressRules,
    /// How long what was looked up (executables, addresses) is used before it is looked up and checked again.
    /// Default 5 s.
    pub cache_time: Duration,
    /// How many lookups are remembered. Default 1,024.
    pub cached_lookups: usize,
    /// The longest lookup of a host's addresses. Default 3 s.
    pub dns_timeout: Duration,
    /// The longest look at the files of a command. Default 2 s.
    pub file_timeout: Duration,
    /// Lookups of addresses that may be under way at once; a system resolver that hangs holds one thread for each.
    /// Default 32.
    pub lookups: usize,
    /// The most addresses of one host; a host with more is refused, because all of them are checked. Default 256.
    pub host_addresses: usize,
    /// The longest set-up of one connection, TLS included. Default 10 s.
    pub connect_timeout: Duration,
    /// How many HTTP clients are kept, each with its connections, one per origin and set of addresses; the one that
    /// was unused for the longest goes first. Default 256.
    pub clients: usize,
    /// The most resting connections of one client. Default 32.
    pub resting_connections: usize,
    /// How long a connection rests before it is closed. Default 60 s.
    pub rest_time: Duration,
    /// Certificates in PEM that sign upstreams, besides those the platform trusts. Default: none.
    pub extra_roots: Vec<u8>,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        Self {
            python: None,
            safe_path: "/usr/local/bin:/usr/bin:/bin".into(),
            isolation_prefix: Vec::new(),
            addresses: AddressRules::default(),
            cache_time: Duration::from_secs(5),
            cached_lookups: 1_024,
            dns_timeout: Duration::from_secs(3),
            file_timeout: Duration::from_secs(2),
            lookups: 32,
            host_addresses: 256,
            connect_timeout: Duration::from_secs(10),
            clients: 256,
            resting_connections: 32,
            rest_time: Duration::from_secs(60),
            extra_roots: Vec::new(),
        }
    }
}

/// Looks endpoints up and makes them ready to be started or dialled.
#[derive(Debug)]
pub(crate) struct Endpoints {
    addresses: AddressRules,
    cache_time: Duration,
    file_timeout: Duration,
    executables: Arc<Executables>,
    resolver: Resolver,
    clients: Clients,
    facts: Mutex<LruCache<String, (Instant, EndpointFacts)>>,
}

impl Endpoints {
    /// Reads no file and starts nothing.
    pub(crate) fn new(settings: EndpointSettings) -> Self {
        let resolver = Resolver::of_the_system(&settings);
        Self::with_resolver(settings, resolver)
    }

    fn with_resolver(settings: EndpointSettings, resolver: Resolver) -> Self {
        Self {
            clients: Clients::new(&settings),
            executables: Arc::new(Executables {
                python: settings.python,
                safe_path: settings.safe_path,
                isolation_prefix: settings.isolation_prefix,
            }),
            addresses: settings.addresses,
            cache_time: settings.cache_time,
            file_timeout: settings.file_timeout,
            resolver,
            facts: Mutex::new(LruCache::new(bounded(settings.cached_lookups))),
        }
    }

    /// What the machine says about the endpoint of `definition`, at most [`EndpointSettings::cache_time`] old. What
    /// could not be found in time counts as not found. Dropping the future is safe.
    pub(crate) async fn inspect(&self, definition: &ServerDefinition) -> EndpointFacts {
        match &definition.endpoint {
            Endpoint::Stdio(stdio) => {
                // Debug text keeps the two parts apart.
                let key = format!("{:?} {:?}", stdio.command, stdio.args.first());
                if let Some(facts) = self.remembered(&key) {
                    return facts;
                }
                let (executables, stdio) = (self.executables.clone(), stdio.clone());
                let facts = self.with_files(move || executables.facts(&stdio)).await;
                let facts = facts.unwrap_or(EndpointFacts::Stdio {
                    executable: None,
                    is_python: false,
                    script: None,
                });
                self.remember(key, facts.clone());
                facts
            }
            Endpoint::StreamableHttp(remote) | Endpoint::Sse(remote) => {
                let addresses = match usable_url(remote) {
                    Ok(url) => self.addresses_of(&url).await.ok(),
                    Err(_) => None,
                };
                EndpointFacts::Remote { addresses }
            }
            // A transport that is newer than this gateway; readiness refuses what has no executable.
            _ => EndpointFacts::Remote { addresses: None },
        }
    }

    /// What to start for `stdio`: the executable as an absolute path, inside the isolation prefix where one is set;
    /// its environment is `PATH`, `TERM`, `LANG` and `env`, and nothing else (the launcher adds where the child
    /// works). Looked up anew, because a start is rare and its files may have changed.
    ///
    /// # Errors
    ///
    /// `Upstream` with [`ExecutableNotFound`](ReasonCode::ExecutableNotFound), or with
    /// [`IsolationMisconfigured`](ReasonCode::IsolationMisconfigured) when the prefix names no program.
    pub(crate) async fn launch_spec(
        &self,
        stdio: &StdioEndpoint,
        env: BTreeMap<String, SecretText>,
    ) -> Result<Launch> {
        let (executables, stdio) = (self.executables.clone(), stdio.clone());
        match self.with_files(move || executables.launch(&stdio, env)).await {
            Some(launch) => launch,
            None => Err(
                Error::new(ErrorKind::Upstream, "the executable was not found in time")
                    .with_reason(ReasonCode::ExecutableNotFound),
            ),
        }
    }

    /// A client that dials `remote` at the addresses that were checked and nowhere else, and the URL to ask it for.
    /// The client follows no redirect, uses no proxy, decompresses nothing and sends nothing twice; it has no time
    /// limit for answers. Sessions to one origin share its connections.
    ///
    /// # Errors
    ///
    /// `Denied` with [`AddressBlocked`](ReasonCode::AddressBlocked) when any address of the host may not be dialled,
    /// `Upstream` with [`ConnectFailed`](ReasonCode::ConnectFailed) when the host has none, or with
    /// [`UrlInvalid`](ReasonCode::UrlInvalid) or [`CredentialsInUrl`](ReasonCode::CredentialsInUrl), `Timeout` when
    /// `deadline` passes first.
    pub(crate) async fn remote_client(
        &self,
        remote: &RemoteEndpoint,
        deadline: Deadline,
    ) -> Result<(reqwest::Client, Url)> {
        let url = usable_url(remote)?;
        let ready = async {
            let addresses = self.addresses_of(&url).await?;
            for address in &addresses {
                self.addresses.check(&url, *address).map_err(|category| {
                    let host = shown(url.host_str().unwrap_or_default());
                    let text = format!(
                        "the host {host} has a {category} address, which is not dialled for it; see the address rules"
                    );
                    Error::new(ErrorKind::Denied, text).with_reason(ReasonCode::AddressBlocked)
                })?;
            }
            self.clients.get(&url, addresses).await
        };
        match tokio::time::timeout_at(deadline.instant(), ready).await {
            Ok(client) => Ok((client?, url)),
            Err(_) => Err(
                Error::new(ErrorKind::Timeout, "the host was not found by the deadline")
                    .with_reason(ReasonCode::Timeout),
            ),
        }
    }

    /// Every address of the host of `url`: a literal speaks for itself, a name is looked up. Never empty.
    async fn addresses_of(&self, url: &Url) -> Result<Vec<IpAddr>> {
        let name = match url.host() {
            Some(Host::Ipv4(address)) => return Ok(vec![address.into()]),
            Some(Host::Ipv6(address)) => return Ok(vec![address.into()]),
            Some(Host::Domain(name)) => name,
            None => return Err(url_problem(ReasonCode::UrlInvalid, "has no host")),
        };
        let addresses = match self.remembered(name) {
            Some(EndpointFacts::Remote { addresses }) => addresses,
            _ => {
                let addresses = self.resolver.addresses(name).await;
                self.remember(
                    name.to_owned(),
                    EndpointFacts::Remote {
                        addresses: addresses.clone(),
                    },
                );
                addresses
            }
        };
        addresses.ok_or_else(|| {
            let text = format!(
                "the host {} has no addresses just now; check its name and the DNS",
                shown(name)
            );
            Error::new(ErrorKind::Upstream, text).with_reason(ReasonCode::ConnectFailed)
        })
    }

    /// Runs `work`, which looks at files, off the runtime; `None` when it took too long.
    async fn with_files<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let work = tokio::task::spawn_blocking(work);
        tokio::time::timeout(self.file_timeout, work).await.ok()?.ok()
    }

    fn remembered(&self, key: &str) -> Option<EndpointFacts> {
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, found) = facts.get(key)?;
        (at.elapsed() < self.cache_time).then(|| found.clone())
    }

    fn remember(&self, key: String, found: EndpointFacts) {
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.put(key, (Instant::now(), found));
    }
}

/// A capacity; zero counts as one.
fn bounded(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN)
}

fn usable_url(remote: &RemoteEndpoint) -> Result<Url> {
    let url = Url::parse(&remote.url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .ok_or_else(|| url_problem(ReasonCode::UrlInvalid, "is no absolute http or https URL"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(url_problem(
            ReasonCode::CredentialsInUrl,
            "holds credentials; move them into `auth_config`",
        ));
    }
    Ok(url)
}

/// The URL itself is not repeated: it may hold a secret.
fn url_problem(reason: ReasonCode, what: &str) -> Error {
    Error::new(ErrorKind::Upstream, format!("the URL of the server {what}")).with_reason(reason)
}

#[cfg(test)]
mod tests;
