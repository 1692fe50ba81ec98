//! Terminal records: collected for a moment and written together, never dropped.
//!
//! Nobody waits for them: a call with effects has waited for its intent, and a settlement that is lost with the
//! process is made up for by the sweep.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::Notify;

use super::Inner;
use crate::audit::{AuditEntries, AuditEntry};
use crate::error::{Error, ErrorKind, Result};
use crate::invocation::{Invocation, InvocationRecord, Settlement};
use crate::reason::ReasonCode;
use crate::registry::{Change, Expect};

/// The most records of one transaction.
const BATCH: usize = 512;
/// The first wait after a failed attempt; each further one is twice as long.
const RETRY: Duration = Duration::from_millis(100);
/// How many writers may end before their time while somebody waits for them. A runtime that is shutting down drops
/// every task that it is given: starting one more there would go on for ever.
const ABANDONED_WRITERS: u64 = 3;
/// The longest wait after a failed attempt.
const RETRY_LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Recorder {
    linger: Duration,
    backlog: usize,
    state: Mutex<State>,
    /// Records were written, an attempt failed, or a call ended.
    changed: Notify,
    /// Somebody waits: write now.
    hurry: Notify,
}

#[derive(Default)]
struct State {
    /// Records that are not known to be written, the oldest first.
    waiting: VecDeque<Kept>,
    /// Whether a task is on its way to write them.
    has_writer: bool,
    /// Records taken in, ever.
    recorded: u64,
    /// Records written, ever.
    written: u64,
    /// Attempts that failed, ever.
    failures: u64,
    /// Whether the last attempt failed.
    failing: bool,
    /// Writers that ended before their time, ever.
    abandoned: u64,
    /// Calls that have begun and will record their end.
    calls: usize,
}

/// A record with its entry: made once, so that a repeated commit writes the same.
#[derive(Clone)]
struct Kept {
    invocation: Invocation,
    settlement: Settlement,
    entry: AuditEntry,
    /// Whether the ledger holds the intent of the call already.
    begun: bool,
}

impl Recorder {
    pub(super) fn new(linger: Duration, backlog: usize) -> Self {
        Self {
            linger,
            backlog: backlog.max(1),
            state: Mutex::default(),
            changed: Notify::new(),
            hurry: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts one call as under way for as long as it lives.
pub(super) struct UnderWay(Arc<Inner>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.recorder.state().calls -= 1;
        self.0.recorder.changed.notify_waiters();
    }
}

impl Inner {
    /// Notes that a call has begun, so that the end of the process waits for its record.
    pub(super) fn under_way(self: &Arc<Self>) -> UnderWay {
        self.recorder.state().calls += 1;
        UnderWay(Arc::clone(self))
    }

    /// Waits until no call is under way.
    pub(super) async fn calls_ended(&self) {
        loop {
            let changed = self.recorder.changed.notified();
            if self.recorder.state().calls == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Waits until there is room for one more record. As long as the store takes no records, the backlog is all
    /// there is, and a call whose record could not be kept is refused.
    pub(super) async fn room_for_record(self: &Arc<Self>) -> Result<()> {
        let abandoned = self.recorder.state().abandoned;
        loop {
            let changed = self.recorder.changed.notified();
            {
                let state = self.recorder.state();
                if state.waiting.len() < self.recorder.backlog {
                    return Ok(());
                }
                if state.abandoned > abandoned + ABANDONED_WRITERS {
                    return Err(unwritable());
                }
                if state.failing {
                    drop(state);
                    self.start_writer();
                    return Err(unwritable());
                }
            }
            self.start_writer();
            self.recorder.hurry.notify_one();
            changed.await;
        }
    }

    /// Keeps a record and makes sure that it will be written.
    pub(super) fn record(self: &Arc<Self>, invocation: Invocation, settlement: Settlement, begun: bool) {
        let kept = Kept {
            entry: AuditEntry::of_invocation(&invocation, &settlement),
            invocation,
            settlement,
            begun,
        };
        let full = {
            let mut state = self.recorder.state();
            state.waiting.push_back(kept);
            state.recorded += 1;
            state.waiting.len() == BATCH
        };
        if full {
            self.recorder.hurry.notify_one();
        }
        self.start_writer();
    }

    /// Waits until every record so far is written.
    pub(super) async fn flush_records(self: &Arc<Self>) -> Result<()> {
        let (target, failures, abandoned) = {
            let state = self.recorder.state();
            (state.recorded, state.failures, state.abandoned)
        };
        loop {
            let changed = self.recorder.changed.notified();
            {
                let state = self.recorder.state();
                if state.written >= target {
                    return Ok(());
                }
                if state.failures > failures || state.abandoned > abandoned + ABANDONED_WRITERS {
                    return Err(unwritable());
                }
            }
            self.start_writer();
            self.recorder.hurry.notify_one();
            changed.await;
        }
    }

    /// Starts a task that writes, if there is something to write and none is on its way. Outside a runtime the
    /// next record or flush starts it.
    fn start_writer(self: &Arc<Self>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        {
            let mut state = self.recorder.state();
            if state.has_writer || state.waiting.is_empty() {
                return;
            }
            state.has_writer = true;
        }
        let mut writer = Writer {
            inner: Arc::clone(self),
            done: false,
        };
        runtime.spawn(async move { writer.run().await });
    }

    /// Writes the oldest records. What was written is taken out, also when the rest could not be.
    async fn write_batch(&self) -> Result<()> {
        let batch: Vec<Kept> = self
            .recorder
            .state()
            .waiting
            .iter()
            .take(BATCH)
            .cloned()
            .collect();
        let begun: Vec<bool> = batch.iter().map(|kept| kept.begun).collect();
        let (settlements, records): (Vec<_>, Vec<_>) = batch.into_iter().partition(|kept| kept.begun);
        let recorded = self.write_records(records).await;
        // Handed over at once, so that the store can write them together.
        let settled = join_all(settlements.into_iter().map(|kept| self.write_settlement(kept))).await;
        let mut failure = recorded.as_ref().err().map(ToString::to_string);
        let mut settled = settled.into_iter();
        let done: Vec<bool> = begun
            .into_iter()
            .map(|begun| match begun.then(|| settled.next()).flatten() {
                None => recorded.is_ok(),
                Some(Ok(())) => true,
                Some(Err(error)) => {
                    failure = Some(error.to_string());
                    false
                }
            })
            .collect();
        {
            let mut state = self.recorder.state();
            // Only the writer takes records out, so the first ones are those that it has copied.
            let mut done = done.into_iter();
            let before = state.waiting.len();
            state.waiting.retain(|_| !done.next().unwrap_or(false));
            state.written += (before - state.waiting.len()) as u64;
            state.failing = failure.is_some();
            state.failures += u64::from(failure.is_some());
        }
        self.recorder.changed.notify_waiters();
        failure.map_or(Ok(()), |text| Err(Error::new(ErrorKind::Unavailable, text)))
    }

    /// Writes calls that the ledger knows nothing of yet.
    async fn write_records(&self, records: Vec<Kept>) -> Result<()> {
        let mut entries = records.iter().map(|kept| kept.entry.clone());
        let Some(first) = entries.next() else {
            return Ok(());
        };
        let audit = AuditEntries::new(first, entries.collect());
        let records = records
            .into_iter()
            .map(|kept| InvocationRecord {
                invocation: kept.invocation,
                settlement: Some(kept.settlement),
            })
            .collect();
        let change = Change::RecordInvocations { records };
        self.commit(change, Expect::nothing(), audit).await.map(drop)
    }

    /// Settles a call whose intent is in the ledger. What a sweep has settled meanwhile stays as it is.
    async fn write_settlement(&self, kept: Kept) -> Result<()> {
        let change = Change::SettleInvocation {
            id: kept.invocation.id,
            settlement: Box::new(kept.settlement),
        };
        match self.commit(change, Expect::nothing(), kept.entry.into()).await {
            Err(error) if !matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => Err(error),
            _ => Ok(()),
        }
    }
}

/// The one task that writes. Whatever ends it, another one can take over.
struct Writer {
    inner: Arc<Inner>,
    done: bool,
}

impl Writer {
    async fn run(&mut self) {
        let recorder = &self.inner.recorder;
        let mut delay = RETRY;
        let mut pause = recorder.linger;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = recorder.hurry.notified() => {}
            }
            match self.inner.write_batch().await {
                Ok(()) => delay = RETRY,
                Err(error) => {
                    tracing::warn!(%error, "call records could not be written; trying again");
                    pause = delay;
                    delay = (delay * 2).min(RETRY_LIMIT);
                    continue;
                }
            }
            let mut state = recorder.state();
            if state.waiting.is_empty() {
                state.has_writer = false;
                self.done = true;
                return;
            }
            pause = if state.waiting.len() >= BATCH {
                Duration::ZERO
            } else {
                recorder.linger
            };
        }
    }
}

impl Drop for Writer {
    /// The runtime has ended, or the store has panicked: the records wait for the next writer.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        {
            let mut state = self.inner.recorder.state();
            state.has_writer = false;
            state.abandoned += 1;
            if std::thread::panicking() {
                state.failing = true;
                state.failures += 1;
            }
        }
        self.inner.recorder.changed.notify_waiters();
    }
}

fn unwritable() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the ledger cannot be written just now; try again later",
    )
    .with_reason(ReasonCode::StoreUnavailable)
}
