//! What arrives on one connection: answers find their waiter, everything else is counted or obeyed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::error::Failure;
use crate::raw::{self, Incoming, RpcError};

/// The answer to a request: the text of its result, or the error.
pub(crate) type Reply = Result<String, RpcError>;

/// Receives the messages of one connection.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    waiters: Mutex<Waiters>,
    tool_changes: Mutex<ToolChanges>,
    dropped: AtomicU64,
    late: AtomicU64,
    /// Told when the list of tools changed, shared with whoever lists again.
    wake: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Waiters {
    open: HashMap<u64, oneshot::Sender<Result<Reply, Failure>>>,
    /// The largest id that was ever waited for.
    newest: u64,
    /// Why nothing will arrive any more.
    closed: Option<Failure>,
}

/// What was told of changes to the list of tools.
#[derive(Debug, Default)]
struct ToolChanges {
    told: u64,
    /// When the first was told that no listing has seen.
    pending: Option<Instant>,
    newest: Option<Instant>,
}

impl Inbox {
    pub(crate) fn new(wake: Arc<Notify>) -> Self {
        Self {
            wake,
            ..Self::default()
        }
    }

    /// Takes one message; returns what is to be answered, if it was a request.
    pub(crate) fn take(&self, text: &str) -> Option<String> {
        match raw::parse(text) {
            Ok(Incoming::Answer { id, outcome }) => {
                self.settle(id, Ok(outcome.map(str::to_owned)));
                None
            }
            Ok(Incoming::Request { id, method }) => {
                if method != "ping" {
                    self.count_dropped();
                }
                Some(raw::answer(id, &method))
            }
            Ok(Incoming::Notification { method }) => {
                if method == "notifications/tools/list_changed" {
                    self.note_tools_changed();
                }
                None
            }
            Err(problem) => {
                self.count_dropped();
                if let Some(id) = raw::broken_answer_id(text) {
                    let waiter = self.waiters().open.remove(&id);
                    let failure =
                        Failure::protocol(format!("the answer of the upstream is malformed: {problem}"));
                    drop(waiter.map(|waiter| waiter.send(Err(failure))));
                }
                None
            }
        }
    }

    /// Waits for the answer to `id`. Dropping the guard forgets the request.
    ///
    /// # Errors
    ///
    /// The reason why the connection has ended.
    pub(crate) fn register(self: &Arc<Self>, id: u64) -> Result<PendingAnswer, Failure> {
        let (sender, receiver) = oneshot::channel();
        let mut waiters = self.waiters();
        if let Some(failure) = &waiters.closed {
            return Err(failure.clone().not_sent());
        }
        waiters.newest = waiters.newest.max(id);
        waiters.open.insert(id, sender);
        Ok(PendingAnswer {
            inbox: Arc::clone(self),
            id,
            receiver,
        })
    }

    /// Gives `id` its outcome; counts what nobody waits for.
    pub(crate) fn settle(&self, id: Option<u64>, outcome: Result<Reply, Failure>) {
        let mut waiters = self.waiters();
        match id.and_then(|id| waiters.open.remove(&id)) {
            Some(waiter) => drop(waiter.send(outcome)),
            None if id.is_some_and(|id| id <= waiters.newest) => {
                drop(waiters);
                self.late.fetch_add(1, Ordering::Relaxed);
                self.count_dropped();
            }
            None => {
                drop(waiters);
                self.count_dropped();
            }
        }
    }

    /// Ends all waiting with `failure`; the first reason stays.
    pub(crate) fn close(&self, failure: Failure) {
        let mut waiters = self.waiters();
        let open = std::mem::take(&mut waiters.open);
        let failure = waiters.closed.get_or_insert(failure).clone();
        drop(waiters);
        for (_, waiter) in open {
            drop(waiter.send(Err(failure.clone())));
        }
        self.wake.notify_one();
    }

    /// Why the connection has ended, if it has.
    pub(crate) fn closed(&self) -> Option<Failure> {
        self.waiters().closed.clone()
    }

    /// Notes that the list of tools has changed, and wakes whoever lists again.
    pub(crate) fn note_tools_changed(&self) {
        let now = Instant::now();
        let mut changes = self.tool_changes();
        changes.told += 1;
        changes.newest = Some(now);
        if changes.pending.is_none() {
            changes.pending = Some(now);
            self.wake.notify_one();
        }
    }

    /// Since when the list of tools is known to have changed, until it is listed.
    pub(crate) fn tools_changed(&self) -> Option<Instant> {
        self.tool_changes().pending
    }

    /// How many changes were told: what a listing that begins now will have seen.
    pub(crate) fn told_changes(&self) -> u64 {
        self.tool_changes().told
    }

    /// A listing has seen the first `seen` changes. What was told since asks for another one.
    pub(crate) fn changes_listed(&self, seen: u64) {
        let mut changes = self.tool_changes();
        changes.pending = if changes.told > seen { changes.newest } else { None };
    }

    fn tool_changes(&self) -> MutexGuard<'_, ToolChanges> {
        self.tool_changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages that were no messages, requests that were refused, and answers that nobody waited for.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Answers to requests that had been given up, or answered already.
    pub(crate) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct PendingAnswer {
    inbox: Arc<Inbox>,
    id: u64,
    receiver: oneshot::Receiver<Result<Reply, Failure>>,
}

impl PendingAnswer {
    /// Waits. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> Result<Reply, Failure> {
        match (&mut self.receiver).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::lost("the connection ended before the answer")),
        }
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        self.inbox.waiters().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_reach_their_waiter_and_nobody_else() {
        let inbox = Arc::new(Inbox::default());
        let mut one = inbox.register(1).unwrap();
        let mut two = inbox.register(2).unwrap();
        inbox.take(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#);
        inbox.take(r#"{"jsonrpc":"2.0","id":2,"result":{"a":2}}"#);
        inbox.take(r#"{"jsonrpc":"2.0","id":2,"result":{"a":3}}"#);
        inbox.take(r#"{"jsonrpc":"2.0","id":"1","result":{"a":1}}"#);
        assert_eq!(one.wait().await.unwrap().unwrap(), r#"{"a":1}"#);
        assert_eq!(two.wait().await.unwrap().unwrap(), r#"{"a":2}"#);
        assert_eq!((inbox.dropped(), inbox.late()), (2, 1));
    }

    #[tokio::test]
    async fn a_forgotten_request_leaves_nothing_and_its_answer_is_late() {
        let inbox = Arc::new(Inbox::default());
        drop(inbox.register(1).unwrap());
        assert!(inbox.waiters().open.is_empty());
        inbox.take(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert_eq!(inbox.late(), 1);
    }

    #[tokio::test]
    async fn the_end_reaches_everybody_and_stays() {
        let inbox = Arc::new(Inbox::default());
        let mut one = inbox.register(1).unwrap();
        inbox.close(Failure::lost("gone"));
        inbox.close(Failure::lost("gone again"));
        assert_eq!(one.wait().await.unwrap_err().message, "gone");
        let refused = inbox.register(2).unwrap_err();
        assert_eq!(
            (refused.message.as_str(), refused.fate),
            ("gone", crate::error::Fate::NotSent)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_pending_until_a_listing_has_seen_it() {
        let inbox = Inbox::default();
        let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        assert_eq!(inbox.tools_changed(), None);
        inbox.take(changed);
        let first = Instant::now();
        let seen = inbox.told_changes();
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        inbox.take(changed);
        assert_eq!(inbox.tools_changed(), Some(first), "no listing has ended");
        inbox.changes_listed(seen);
        assert_eq!(
            inbox.tools_changed(),
            Some(Instant::now()),
            "the second was not seen"
        );
        inbox.changes_listed(inbox.told_changes());
        assert_eq!(inbox.tools_changed(), None);
    }

    #[test]
    fn requests_of_the_upstream_are_refused_and_pings_answered() {
        let inbox = Inbox::default();
        let refusal =
            inbox.take(r#"{"jsonrpc":"2.0","id":"x","method":"sampling/createMessage","params":{}}"#);
        assert!(refusal.unwrap().contains("-32601"));
        let pong = inbox.take(r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#);
        assert_eq!(pong.unwrap(), r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
        assert_eq!(inbox.dropped(), 1);
    }
}
