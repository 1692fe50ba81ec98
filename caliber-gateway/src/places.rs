//! How many calls one server gets at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Failure;

/// The places of one server.
#[derive(Debug)]
pub(crate) struct Places {
    current: Mutex<Room>,
    waiting: AtomicUsize,
    /// The most that may wait.
    queue: usize,
}

#[derive(Clone, Debug)]
struct Room {
    size: u32,
    places: Arc<Semaphore>,
}

/// A place that is taken until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    room: Arc<Semaphore>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(crate) fn new(size: u32, queue: usize) -> Self {
        Self {
            current: Mutex::new(Room::new(size)),
            waiting: AtomicUsize::new(0),
            queue,
        }
    }

    /// Takes over the number that the server's definition allows now. Places that are taken stay taken.
    pub(crate) fn resize(&self, size: u32) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.size != size {
            *current = Room::new(size);
        }
    }

    /// Waits for a place.
    ///
    /// # Errors
    ///
    /// `ServerBusy` when the deadline passes or too many wait already.
    pub(crate) async fn take(&self, deadline: Deadline) -> Result<Place, Failure> {
        let room = self.room();
        if let Ok(permit) = Arc::clone(&room.places).try_acquire_owned() {
            return Ok(Place {
                room: room.places,
                _permit: permit,
            });
        }
        let queued = Queued::enter(&self.waiting);
        if queued.before >= self.queue {
            return Err(busy(format!(
                "the server works on {} calls, and {} wait already",
                room.size, self.queue
            )));
        }
        let waited =
            tokio::time::timeout_at(deadline.instant(), Arc::clone(&room.places).acquire_owned()).await;
        match waited {
            Ok(Ok(permit)) => Ok(Place {
                room: room.places,
                _permit: permit,
            }),
            _ => Err(busy(format!(
                "the server works on {} calls, and none ended by the deadline",
                room.size
            ))),
        }
    }

    /// Whether `place` counts against the present number: it may have been taken before that was known.
    pub(crate) fn counts(&self, place: &Place) -> bool {
        Arc::ptr_eq(&place.room, &self.room().places)
    }

    fn room(&self) -> Room {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Room {
    fn new(size: u32) -> Self {
        let places = usize::try_from(size.max(1)).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            size,
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
        }
    }
}

fn busy(message: String) -> Failure {
    Failure::busy(ReasonCode::ServerBusy, message)
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

    #[tokio::test]
    async fn places_are_bounded_and_so_is_the_queue() {
        let places = Arc::new(Places::new(1, 1));
        let soon = || Deadline::after(Duration::from_secs(1));
        let first = places.take(soon()).await.unwrap();
        let waiting = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(soon()).await }
        });
        tokio::task::yield_now().await;
        let refused = places.take(soon()).await.unwrap_err();
        assert!(refused.message.contains("wait already"), "{}", refused.message);
        drop(first);
        let second = waiting.await.unwrap().unwrap();
        let late = places.take(soon()).await.unwrap_err();
        assert!(late.message.contains("deadline"), "{}", late.message);
        drop(second);
        assert!(places.take(soon()).await.is_ok());
    }

    #[tokio::test]
    async fn a_new_number_holds_from_the_next_call_on() {
        let places = Places::new(4, 8);
        let now = Deadline::after(Duration::from_secs(1));
        let early = places.take(now).await.unwrap();
        places.resize(1);
        assert!(!places.counts(&early));
        let one = places.take(now).await.unwrap();
        assert!(places.counts(&one));
        let none = places.take(Deadline::after(Duration::from_millis(20))).await;
        assert_eq!(none.unwrap_err().reason, ReasonCode::ServerBusy);
    }
}
