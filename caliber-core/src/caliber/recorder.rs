//! Read-level records: collected for a moment and written together, never dropped.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::Inner;
use crate::audit::{AuditEntries, AuditEntry};
use crate::error::{Error, ErrorKind, Result};
use crate::invocation::InvocationRecord;
use crate::reason::ReasonCode;
use crate::registry::{Change, Expect};

/// The most records of one transaction.
const BATCH: usize = 512;

pub(super) struct Recorder {
    linger: Duration,
    backlog: usize,
    pending: Mutex<Pending>,
    written: Notify,
}

#[derive(Default)]
struct Pending {
    records: Vec<InvocationRecord>,
    /// Whether a task is on its way to write them.
    scheduled: bool,
    /// Records taken out for writing.
    in_flight: usize,
    /// Whether the last attempt failed.
    failing: bool,
}

impl Recorder {
    pub(super) fn new(linger: Duration, backlog: usize) -> Self {
        Self {
            linger,
            backlog,
            pending: Mutex::default(),
            written: Notify::new(),
        }
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Refuses a call whose record could not be kept: as long as the store takes no records, the backlog is
    /// all there is.
    pub(super) fn refuse_unrecordable(&self) -> Result<()> {
        let pending = self.recorder.pending();
        if pending.failing && pending.records.len() + pending.in_flight >= self.recorder.backlog {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the ledger cannot be written; no call is made until it can",
            )
            .with_reason(ReasonCode::StoreUnavailable));
        }
        Ok(())
    }

    /// Keeps a record and makes sure that it will be written.
    pub(super) fn record(self: &Arc<Self>, record: InvocationRecord) {
        let mut pending = self.recorder.pending();
        pending.records.push(record);
        if !pending.scheduled {
            pending.scheduled = true;
            drop(pending);
            let inner = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(inner.recorder.linger).await;
                inner.write_pending().await;
            });
        }
    }

    /// Writes until nothing is left, or until the store refuses for a while.
    async fn write_pending(self: &Arc<Self>) {
        let mut delay = Duration::from_millis(100);
        loop {
            match self.write_batch().await {
                Ok(0) => {
                    let mut pending = self.recorder.pending();
                    if pending.records.is_empty() {
                        pending.scheduled = false;
                        drop(pending);
                        self.recorder.written.notify_waiters();
                        return;
                    }
                }
                Ok(_) => delay = Duration::from_millis(100),
                Err(error) => {
                    tracing::warn!(%error, "call records could not be written; trying again");
                    self.recorder.written.notify_waiters();
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(Duration::from_secs(5));
                }
            }
        }
    }

    async fn write_batch(&self) -> Result<usize> {
        let records: Vec<InvocationRecord> = {
            let mut pending = self.recorder.pending();
            let count = pending.records.len().min(BATCH);
            let records: Vec<_> = pending.records.drain(..count).collect();
            pending.in_flight = records.len();
            records
        };
        let Some(audit) = entries(&records) else {
            return Ok(0);
        };
        let count = records.len();
        let result = self
            .commit(
                Change::RecordInvocations {
                    records: records.clone(),
                },
                Expect::nothing(),
                audit,
            )
            .await;
        let mut pending = self.recorder.pending();
        pending.in_flight = 0;
        pending.failing = result.is_err();
        if let Err(error) = result {
            // Back to the front, so that the order of the calls stays.
            let later = std::mem::replace(&mut pending.records, records);
            pending.records.extend(later);
            return Err(error);
        }
        Ok(count)
    }

    /// Waits until every record so far is written.
    pub(super) async fn flush_records(self: &Arc<Self>) -> Result<()> {
        loop {
            let written = self.recorder.written.notified();
            {
                let pending = self.recorder.pending();
                if !pending.scheduled {
                    return Ok(());
                }
                if pending.failing {
                    return Err(
                        Error::new(ErrorKind::Unavailable, "the ledger cannot be written just now")
                            .with_reason(ReasonCode::StoreUnavailable),
                    );
                }
            }
            // The bound is for the case that the writer finished between the look and the wait.
            let _ = tokio::time::timeout(Duration::from_millis(20), written).await;
        }
    }
}

fn entries(records: &[InvocationRecord]) -> Option<AuditEntries> {
    let mut entries = records.iter().filter_map(|record| {
        record
            .settlement
            .as_ref()
            .map(|settlement| AuditEntry::of_invocation(&record.invocation, settlement))
    });
    let first = entries.next()?;
    Some(AuditEntries::new(first, entries.collect()))
}
