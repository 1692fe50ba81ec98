//! Time: instants that are recorded, and the deadline of one operation.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, SubsecRound, Utc};

/// An instant in UTC, cut to microseconds (the finest that every store keeps).
pub type Timestamp = DateTime<Utc>;

/// Where recorded instants come from. Tests move it by hand.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The current instant, cut to microseconds.
    fn now(&self) -> Timestamp;
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Utc::now().trunc_subsecs(6)
    }
}

/// One absolute end of an operation: it covers queueing, connecting, the handshake and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(tokio::time::Instant);

impl Deadline {
    /// The deadline that lies `duration` ahead; what the machine cannot count to is read as a year.
    pub fn after(duration: Duration) -> Self {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        let now = tokio::time::Instant::now();
        Self(now.checked_add(duration).unwrap_or(now + YEAR))
    }

    /// The instant, for `tokio::time::timeout_at`.
    pub fn instant(self) -> tokio::time::Instant {
        self.0
    }

    /// What is left; zero when the deadline has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(tokio::time::Instant::now())
    }
}
