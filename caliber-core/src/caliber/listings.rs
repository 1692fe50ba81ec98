//! Listings that sessions made by themselves, until they are in the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Inner;
use crate::error::Result;
use crate::gateway::Listing;
use crate::id::ServerId;

/// The newest listing of each server that is not in the store yet. A listing leaves only when it was taken over: one
/// that met a busy store is there for the next turn.
#[derive(Default)]
pub(super) struct Listings(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: BTreeMap<ServerId, Arc<Listing>>,
    /// When the listing was asked for that is the inventory now, as far as this process made it.
    stored: BTreeMap<ServerId, Instant>,
}

impl Listings {
    /// Keeps a listing until it is taken over, in place of an older one of the same server.
    pub(super) fn note(&self, listing: Listing) {
        let waiting = &mut self.lock().waiting;
        let newer = waiting
            .get(&listing.server)
            .is_none_or(|before| before.discovery.listed_at <= listing.discovery.listed_at);
        if newer {
            waiting.insert(listing.server.clone(), Arc::new(listing));
        }
    }

    fn waiting(&self) -> Vec<Arc<Listing>> {
        self.lock().waiting.values().cloned().collect()
    }

    /// Forgets a listing, unless a newer one has taken its place.
    fn done(&self, listing: &Arc<Listing>) {
        let waiting = &mut self.lock().waiting;
        if waiting
            .get(&listing.server)
            .is_some_and(|noted| Arc::ptr_eq(noted, listing))
        {
            waiting.remove(&listing.server);
        }
    }

    /// Remembers which listing the inventory is.
    pub(super) fn stored(&self, server: &ServerId, listed_at: Instant) {
        let stored = &mut self.lock().stored;
        let newest = stored.entry(server.clone()).or_insert(listed_at);
        *newest = listed_at.max(*newest);
    }

    /// Whether the inventory is a listing that was asked for later.
    pub(super) fn is_superseded(&self, server: &ServerId, listed_at: Instant) -> bool {
        self.lock()
            .stored
            .get(server)
            .is_some_and(|stored| *stored > listed_at)
    }

    /// Forgets a server that is gone.
    pub(super) fn forget(&self, server: &ServerId) {
        let mut state = self.lock();
        state.waiting.remove(server);
        state.stored.remove(server);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes over what is noted. Each server is tried; the first failure is told. Cancel-safe.
    pub(super) async fn apply_listings(&self) -> Result<()> {
        let mut outcome = Ok(());
        for listing in self.listings.waiting() {
            match self.apply_listing(&listing).await {
                Ok(()) => self.listings.done(&listing),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Takes over every listing that the gateway has ready, without waiting for more.
    pub(super) async fn apply_waiting_listings(&self) -> Result<()> {
        while let Ok(listing) = tokio::time::timeout(Duration::ZERO, self.gateway.next_listing()).await {
            self.listings.note(listing);
        }
        self.apply_listings().await
    }
}
