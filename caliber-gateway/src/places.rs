//! How many calls one server gets at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use caliber_core::clock::Deadline;
use caliber_core::reason::ReasonCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Failure;

/// The places of one server.
#[derive(Debug)]
pub(crate) struct Places {
    room: Arc<Room>,
    waiting: AtomicUsize,
    /// The most that may wait.
    queue: usize,
}

#[derive(Debug)]
struct Room {
    free: Arc<Semaphore>,
    size: Mutex<Size>,
}

#[derive(Debug)]
struct Size {
    /// How many calls there may be at once.
    allowed: usize,
    /// How many were taken beyond that, before it was lowered. They are not given to others any more.
    beyond: usize,
}

/// A place that is taken until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    room: Arc<Room>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Places {
    pub(crate) fn new(size: u32, queue: usize) -> Self {
        let allowed = places(size);
        Self {
            room: Arc::new(Room {
                free: Arc::new(Semaphore::new(allowed)),
                size: Mutex::new(Size { allowed, beyond: 0 }),
            }),
            waiting: AtomicUsize::new(0),
            queue,
        }
    }

    /// Waits for one of `size` places: the number that the server's definition allows now. It holds for everybody.
    ///
    /// # Errors
    ///
    /// `ServerBusy` when the deadline passes or too many wait already.
    pub(crate) async fn take(&self, size: u32, deadline: Deadline) -> Result<Place, Failure> {
        self.room.resize(places(size));
        let free = Arc::clone(&self.room.free);
        if let Ok(permit) = Arc::clone(&free).try_acquire_owned() {
            return Ok(self.room.place(permit));
        }
        let queued = Queued::enter(&self.waiting);
        if queued.before >= self.queue {
            return Err(busy(format!(
                "the server works on {size} calls, and {} wait already",
                self.queue
            )));
        }
        match tokio::time::timeout_at(deadline.instant(), free.acquire_owned()).await {
            Ok(Ok(permit)) => Ok(self.room.place(permit)),
            _ => Err(busy(format!(
                "the server works on {size} calls, and none ended by the deadline"
            ))),
        }
    }

    /// Whether nobody holds a place.
    pub(crate) fn are_free(&self) -> bool {
        Arc::strong_count(&self.room) == 1
    }
}

impl Room {
    fn place(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Place {
        Place {
            room: Arc::clone(self),
            permit: Some(permit),
        }
    }

    fn resize(&self, allowed: usize) {
        let mut size = self.size();
        if allowed > size.allowed {
            let more = allowed - size.allowed;
            let kept = more.min(size.beyond);
            size.beyond -= kept;
            self.free.add_permits(more - kept);
        } else {
            let fewer = size.allowed - allowed;
            size.beyond += fewer - self.free.forget_permits(fewer);
        }
        size.allowed = allowed;
    }

    fn size(&self) -> MutexGuard<'_, Size> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut size = self.room.size();
        match self.permit.take() {
            Some(permit) if size.beyond > 0 => {
                size.beyond -= 1;
                permit.forget();
            }
            permit => drop(permit),
        }
    }
}

fn places(size: u32) -> usize {
    let size = usize::try_from(size.max(1)).unwrap_or(Semaphore::MAX_PERMITS);
    size.min(Semaphore::MAX_PERMITS)
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

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(1))
    }

    /// How many places can be taken at once now.
    async fn free(places: &Places, size: u32) -> usize {
        let mut taken = Vec::new();
        let at_once = Deadline::after(Duration::ZERO);
        while let Ok(place) = places.take(size, at_once).await {
            taken.push(place);
        }
        taken.len()
    }

    #[tokio::test]
    async fn places_are_bounded_and_so_is_the_queue() {
        let places = Arc::new(Places::new(64, 1));
        let first = places.take(1, soon()).await.unwrap();
        let waiting = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(1, soon()).await }
        });
        tokio::task::yield_now().await;
        let refused = places.take(1, soon()).await.unwrap_err();
        assert!(refused.message.contains("wait already"), "{}", refused.message);
        drop(first);
        let second = waiting.await.unwrap().unwrap();
        let late = places.take(1, soon()).await.unwrap_err();
        assert!(late.message.contains("deadline"), "{}", late.message);
        assert!(!places.are_free());
        drop(second);
        assert!(places.are_free());
        assert!(places.take(1, soon()).await.is_ok());
    }

    #[tokio::test]
    async fn a_new_number_holds_at_once_and_counts_what_is_taken() {
        let places = Places::new(4, 8);
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.push(places.take(4, soon()).await.unwrap());
        }
        assert_eq!(free(&places, 2).await, 0);
        taken.truncate(2);
        assert_eq!(free(&places, 2).await, 0, "two are taken");
        taken.truncate(1);
        assert_eq!(free(&places, 2).await, 1);
        assert_eq!(free(&places, 3).await, 2);
        drop(taken);
        assert_eq!(free(&places, 3).await, 3);
    }

    #[tokio::test]
    async fn who_waits_profits_from_a_larger_number() {
        let places = Arc::new(Places::new(1, 8));
        let first = places.take(1, soon()).await.unwrap();
        let waiting = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(1, Deadline::after(Duration::from_secs(15))).await }
        });
        tokio::task::yield_now().await;
        let other = places.take(3, soon()).await.unwrap();
        let third = waiting.await.unwrap().unwrap();
        assert_eq!(free(&places, 3).await, 0);
        drop((first, other, third));
        assert_eq!(free(&places, 3).await, 3);
    }
}
