//! The small ports: clock, quotas, secrets, the export of the trail.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::SubsecRound;

use super::MemoryRegistry;
use crate::audit::{AuditEntry, AuditSink};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::error::{Error, Result};
use crate::quota::{QuotaOutcome, QuotaStore};
use crate::secret::{SecretReference, SecretSource, SecretText};

/// A [`Clock`] that stands still until it is moved. Deadlines do not run on it; tokio's time does that.
#[derive(Debug)]
pub struct ManualClock(Mutex<Timestamp>);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(Mutex::new(now.trunc_subsecs(6)))
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let by = chrono::Duration::from_std(by).unwrap_or(chrono::Duration::MAX);
        *now = now.checked_add_signed(by).unwrap_or(Timestamp::MAX_UTC);
    }
}

impl Default for ManualClock {
    /// A clock that shows the time of the machine.
    fn default() -> Self {
        Self::at(SystemClock.now())
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`QuotaStore`] that lets a minute's calls through at once and then one after the other, as places come back
/// (the generic cell rate algorithm).
#[derive(Debug)]
pub struct CountingQuota {
    clock: Arc<dyn Clock>,
    /// When each key will have no call left to pay off.
    paid_off: Mutex<HashMap<String, Timestamp>>,
}

impl CountingQuota {
    /// Quotas on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// Quotas on `clock`.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            paid_off: Mutex::default(),
        }
    }
}

impl Default for CountingQuota {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl QuotaStore for CountingQuota {
    async fn spend(&self, key: &str, per_minute: u32) -> Result<QuotaOutcome> {
        let now = self.clock.now();
        let minute = chrono::Duration::minutes(1);
        let Some(price) = i32::try_from(per_minute)
            .ok()
            .and_then(|limit| minute.checked_div(limit))
        else {
            return Ok(QuotaOutcome::Exhausted {
                retry_after: Duration::from_secs(60),
            });
        };
        let mut paid_off = self.paid_off.lock().unwrap_or_else(PoisonError::into_inner);
        let due = paid_off.entry(key.to_owned()).or_insert(now);
        let next = now.max(*due) + price;
        let beyond = next.signed_duration_since(now) - minute;
        if beyond > chrono::Duration::zero() {
            return Ok(QuotaOutcome::Exhausted {
                retry_after: beyond.to_std().unwrap_or(Duration::ZERO),
            });
        }
        *due = next;
        Ok(QuotaOutcome::Spent)
    }
}

/// A [`SecretSource`] of references that a test sets.
#[derive(Debug, Default)]
pub struct MemorySecrets(Mutex<HashMap<SecretReference, SecretText>>);

impl MemorySecrets {
    /// Sets the value behind a reference.
    pub fn set(&self, reference: SecretReference, value: SecretText) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(reference, value);
    }
}

#[async_trait]
impl SecretSource for MemorySecrets {
    async fn resolve(&self, reference: &SecretReference) -> Result<SecretText> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values
            .get(reference)
            .cloned()
            .ok_or_else(|| Error::not_found("secret", &reference.to_string()))
    }
}

/// The stored secrets of a registry, and the other ones of a test.
#[derive(Debug)]
pub(super) struct StoredOrSet {
    pub(super) stored: Arc<MemoryRegistry>,
    pub(super) set: Arc<MemorySecrets>,
}

#[async_trait]
impl SecretSource for StoredOrSet {
    async fn resolve(&self, reference: &SecretReference) -> Result<SecretText> {
        match reference {
            SecretReference::Stored(_) => self.stored.resolve(reference).await,
            SecretReference::Environment(_) | SecretReference::File(_) => self.set.resolve(reference).await,
        }
    }
}

/// An [`AuditSink`] that keeps what it gets.
#[derive(Debug, Default)]
pub struct MemoryAuditSink(Mutex<Vec<AuditEntry>>);

impl MemoryAuditSink {
    /// Everything that was exported, in its order.
    pub fn entries(&self) -> Vec<AuditEntry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl AuditSink for MemoryAuditSink {
    fn export(&self, entry: &AuditEntry) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(entry.clone());
    }
}
