//! How many runs there are at once, and how many wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places of one sandbox.
#[derive(Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    size: usize,
    waiting: AtomicUsize,
    queue: usize,
}

/// A place that is taken until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Places {
    /// `size` places, and at most `queue` that wait for one.
    pub(crate) fn new(size: usize, queue: usize) -> Self {
        let size = size.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(size)),
            size,
            waiting: AtomicUsize::new(0),
            queue,
        }
    }

    /// Waits for a place, in the order of asking. Cancel-safe.
    ///
    /// # Errors
    ///
    /// `Unavailable` with `SandboxBusy` when the deadline passes or too many wait already; with `SandboxUnavailable`
    /// after [`Places::close`].
    pub(crate) async fn take(&self, deadline: Deadline) -> Result<Place> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Ok(Place { _permit: permit });
        }
        if self.free.is_closed() {
            return Err(closed());
        }
        let queued = Queued::enter(&self.waiting);
        if queued.before >= self.queue {
            return Err(busy(format!(
                "the sandbox has {} runs, and {} wait already",
                self.size, self.queue
            )));
        }
        let waited = tokio::time::timeout_at(deadline.instant(), Arc::clone(&self.free).acquire_owned());
        match waited.await {
            Ok(Ok(permit)) => Ok(Place { _permit: permit }),
            Ok(Err(_)) => Err(closed()),
            Err(_) => Err(busy(format!(
                "the sandbox has {} runs, and none ended by the deadline",
                self.size
            ))),
        }
    }

    /// Gives no more places; who waits is refused. Places that are taken stay taken.
    pub(crate) fn close(&self) {
        self.free.close();
    }
}

fn busy(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message).with_reason(ReasonCode::SandboxBusy)
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the sandbox has been closed")
        .with_reason(ReasonCode::SandboxUnavailable)
}

/// Counts one that waits.
struct Queued<'a> {
    waiting: &'a AtomicUsize,
    before: usize,
}

impl<'a> Queued<'a> {
    fn enter(waiting: &'a AtomicUsize) -> Self {
        Self {
            waiting,
            before: waiting.fetch_add(1, Ordering::AcqRel),
        }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(10))
    }

    #[tokio::test]
    async fn places_are_bounded_and_so_is_the_queue() {
        let places = Arc::new(Places::new(1, 1));
        let first = places.take(soon()).await.unwrap();
        let waiting = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(soon()).await }
        });
        while places.waiting.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
        let refused = places.take(soon()).await.unwrap_err();
        assert_eq!(refused.reason(), Some(ReasonCode::SandboxBusy));
        assert!(refused.message().contains("wait already"), "{refused}");
        drop(first);
        let second = waiting.await.unwrap().unwrap();
        let late = places
            .take(Deadline::after(Duration::from_millis(20)))
            .await
            .unwrap_err();
        assert!(late.message().contains("deadline"), "{late}");
        drop(second);
        assert!(places.take(soon()).await.is_ok());
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_its_turn() {
        let places = Arc::new(Places::new(1, 1));
        let first = places.take(soon()).await.unwrap();
        let gone = tokio::time::timeout(Duration::from_millis(10), places.take(soon())).await;
        assert!(gone.is_err());
        assert_eq!(places.waiting.load(Ordering::Acquire), 0);
        drop(first);
        assert!(places.take(soon()).await.is_ok());
    }

    #[tokio::test]
    async fn a_closed_sandbox_gives_no_places() {
        let places = Arc::new(Places::new(1, 4));
        let held = places.take(soon()).await.unwrap();
        let waiting = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(soon()).await }
        });
        while places.waiting.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
        places.close();
        let refused = waiting.await.unwrap().unwrap_err();
        assert_eq!(refused.reason(), Some(ReasonCode::SandboxUnavailable));
        drop(held);
        let refused = places.take(soon()).await.unwrap_err();
        assert_eq!(refused.reason(), Some(ReasonCode::SandboxUnavailable));
    }
}
