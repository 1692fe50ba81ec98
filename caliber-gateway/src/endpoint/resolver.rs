//! Looking up the addresses of a host, bounded in time and number.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Semaphore;

use super::EndpointSettings;

/// Answers every address of a name; the system's answer, or a table in tests.
type Lookup = dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync;

pub(super) struct Resolver {
    lookup: Arc<Lookup>,
    places: Arc<Semaphore>,
    pub(super) timeout: Duration,
    most: usize,
}

impl Resolver {
    /// Asks the system, which also reads its hosts file.
    pub(super) fn of_the_system(settings: &EndpointSettings) -> Self {
        Self::new(settings, |name: String| {
            Box::pin(async move {
                // The port has no part in the lookup.
                let found = tokio::net::lookup_host((name, 0)).await?;
                Ok(found.map(|address| address.ip()).collect())
            })
        })
    }

    pub(super) fn new(
        settings: &EndpointSettings,
        lookup: impl Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            lookup: Arc::new(lookup),
            places: Arc::new(Semaphore::new(settings.lookups.clamp(1, Semaphore::MAX_PERMITS))),
            timeout: settings.dns_timeout,
            most: settings.host_addresses,
        }
    }

    /// Every address of `name`, sorted, each once; `None` when there is none, when there are too many to check, or
    /// when the answer took too long.
    pub(super) async fn addresses(&self, name: &str) -> Option<Vec<IpAddr>> {
        let (lookup, places) = (self.lookup.clone(), self.places.clone());
        let name = name.to_owned();
        // A task of its own keeps the place for as long as the system's lookup really runs: that cannot be stopped.
        let answer = tokio::spawn(async move {
            let _place = places.acquire_owned().await.ok()?;
            lookup(name).await.ok()
        });
        let mut addresses = tokio::time::timeout(self.timeout, answer).await.ok()?.ok()??;
        addresses.sort_unstable();
        addresses.dedup();
        (1..=self.most).contains(&addresses.len()).then_some(addresses)
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Resolver")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
