//! Records of calls without an intent: collected for a moment and written together, never dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// Calls that have begun and will record their end.
    calls: usize,
}

/// A record with its entry: made once, so that a repeated commit writes the same.
#[derive(Clone)]
struct Kept {
    record: InvocationRecord,
    entry: AuditEntry,
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
        loop {
            let changed = self.recorder.changed.notified();
            {
                let state = self.recorder.state();
                if state.waiting.len() < self.recorder.backlog {
                    return Ok(());
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
    pub(super) fn record(self: &Arc<Self>, invocation: Invocation, settlement: Settlement) {
        let entry = AuditEntry::of_invocation(&invocation, &settlement);
        let record = InvocationRecord {
            invocation,
            settlement: Some(settlement),
        };
        let full = {
            let mut state = self.recorder.state();
            state.waiting.push_back(Kept { record, entry });
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
        let (target, failures) = {
            let state = self.recorder.state();
            (state.recorded, state.failures)
        };
        loop {
            let changed = self.recorder.changed.notified();
            {
                let state = self.recorder.state();
                if state.written >= target {
                    return Ok(());
                }
                if state.failures > failures {
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

    /// Writes the oldest records; returns whether there were any.
    async fn write_batch(&self) -> Result<bool> {
        let batch: Vec<Kept> = self
            .recorder
            .state()
            .waiting
            .iter()
            .take(BATCH)
            .cloned()
            .collect();
        let count = batch.len();
        let (records, entries): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|kept| (kept.record, kept.entry)).unzip();
        let mut entries = entries.into_iter();
        let Some(first) = entries.next() else {
            return Ok(false);
        };
        let audit = AuditEntries::new(first, entries.collect());
        let change = Change::RecordInvocations { records };
        let result = self.commit(change, Expect::nothing(), audit).await;
        {
            let mut state = self.recorder.state();
            state.failing = result.is_err();
            if result.is_ok() {
                // Only the writer takes records out, so these are the ones that it has copied.
                state.waiting.drain(..count);
                state.written += count as u64;
            } else {
                state.failures += 1;
            }
        }
        self.recorder.changed.notify_waiters();
        result.map(|_| true)
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
                Ok(_) => delay = RETRY,
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
