//! Listings that sessions made by themselves, until somebody takes them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use caliber_core::gateway::Listing;
use caliber_core::id::ServerId;
use caliber_core::inventory::Discovery;
use tokio::sync::Notify;

/// Servers whose listings wait; beyond that the oldest is dropped, and its server lists again later.
const WAITING: usize = 1_024;

/// The newest listing of each server, in the order in which the servers first waited.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    order: VecDeque<ServerId>,
    newest: HashMap<ServerId, Discovery>,
}

impl Listings {
    pub(crate) fn push(&self, listing: Listing) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Listing { server, discovery } = listing;
        if waiting.newest.insert(server.clone(), discovery).is_none() {
            waiting.order.push_back(server);
        }
        if waiting.order.len() > WAITING
            && let Some(oldest) = waiting.order.pop_front()
        {
            waiting.newest.remove(&oldest);
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    pub(crate) fn pop(&self) -> Option<Listing> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let server = waiting.order.pop_front()?;
        let discovery = waiting.newest.remove(&server)?;
        Some(Listing { server, discovery })
    }

    /// Waits until there may be one.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use caliber_core::digest::Fingerprint;

    use super::*;

    fn listing(server: &ServerId, version: &str) -> Listing {
        Listing {
            server: server.clone(),
            discovery: Discovery {
                listed_at: std::time::Instant::now(),
                fingerprint: Fingerprint::of(b"place"),
                protocol_version: version.to_owned(),
                server_info: None,
                instructions: None,
                tools: Vec::new(),
                withheld: Vec::new(),
            },
        }
    }

    #[test]
    fn the_newest_listing_of_each_server_waits() {
        let listings = Listings::default();
        let (one, two) = (ServerId::new(), ServerId::new());
        listings.push(listing(&one, "1"));
        listings.push(listing(&two, "2"));
        listings.push(listing(&one, "3"));
        let taken: Vec<_> = std::iter::from_fn(|| listings.pop())
            .map(|listing| (listing.server, listing.discovery.protocol_version))
            .collect();
        assert_eq!(taken, [(one, "3".to_owned()), (two, "2".to_owned())]);
    }

    #[test]
    fn what_waits_is_bounded() {
        let listings = Listings::default();
        for _ in 0..2 * WAITING {
            listings.push(listing(&ServerId::new(), "1"));
        }
        assert_eq!(std::iter::from_fn(|| listings.pop()).count(), WAITING);
    }
}
