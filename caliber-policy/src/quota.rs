//! Calls per minute, counted in this process.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use caliber_core::quota::{QuotaOutcome, QuotaStore};
use caliber_core::{Error, ErrorKind, Result};
use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

/// The most keys that are counted at once, where nothing else is said.
pub const QUOTA_KEYS: usize = 10_000;

/// How long a full table is left alone before it is looked through again.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);

/// Counts calls by the generic cell rate algorithm: a key with `n` calls a minute takes `n` at once, and then one
/// each `60 / n` seconds. One number per key says it all.
///
/// It counts in this process and forgets everything when the process ends; replicas that must agree need a shared
/// store.
///
/// **Bounded keys.** When the table is full, only keys are forgotten that have all their calls back: for them,
/// being forgotten changes nothing. A spent key is never forgotten, so nobody gets calls back by filling the table.
/// While every key is in use, a new one is refused as `Unavailable`; within a minute every key has its calls
/// back.
///
/// **A limit that changes.** What share of its calls a key has spent stays the same, rounded up to a whole call, and
/// with it the moment at which it has them all back. Changing a limit to and fro gives nobody calls.
pub struct ProcessQuota {
    table: Table<DefaultClock>,
}

impl ProcessQuota {
    /// Counts at most [`QUOTA_KEYS`] keys at once.
    pub fn new() -> Self {
        Self::with_keys(QUOTA_KEYS)
    }

    /// Counts at most `keys` keys at once.
    pub fn with_keys(keys: usize) -> Self {
        Self {
            table: Table::new(keys, DefaultClock::default()),
        }
    }
}

impl Default for ProcessQuota {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ProcessQuota {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ProcessQuota")
            .field("keys", &self.table.keys)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl QuotaStore for ProcessQuota {
    async fn spend(&self, key: &str, per_minute: u32) -> Result<QuotaOutcome> {
        self.table.spend(key, per_minute)
    }
}

/// The counters under one clock, which tests move by hand.
struct Table<C: Clock> {
    keys: usize,
    clock: C,
    counters: Mutex<Counters<C>>,
}

struct Counters<C: Clock> {
    by_key: HashMap<Box<str>, Counter<C>>,
    last_sweep: Option<C::Instant>,
}

impl<C: Clock + Clone> Table<C> {
    fn new(keys: usize, clock: C) -> Self {
        Self {
            keys,
            clock,
            counters: Mutex::new(Counters {
                by_key: HashMap::new(),
                last_sweep: None,
            }),
        }
    }

    fn spend(&self, key: &str, per_minute: u32) -> Result<QuotaOutcome> {
        let limit = NonZeroU32::new(per_minute)
            .ok_or_else(|| Error::invalid("per_minute", "a limit is at least one call a minute"))?;
        // A panic while the lock was held cannot leave a counter half written: each is one atomic number.
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let Counters { by_key, last_sweep } = &mut *counters;
        if let Some(counter) = by_key.get_mut(key) {
            if counter.limit != limit {
                *counter = counter.under(limit);
            }
            return Ok(counter.spend());
        }
        if by_key.len() >= self.keys {
            let now = self.clock.now();
            if last_sweep.is_none_or(|last| now >= last + SWEEP_PAUSE.into()) {
                *last_sweep = Some(now);
                by_key.retain(|_, counter| !counter.has_everything_back());
            }
            if by_key.len() >= self.keys {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{} rates are counted at once, and no more are; try again within a minute",
                        self.keys
                    ),
                ));
            }
        }
        let counter = Counter::new(limit, self.clock.clone());
        let outcome = counter.spend();
        by_key.insert(key.into(), counter);
        Ok(outcome)
    }
}

/// The calls of one key.
struct Counter<C: Clock> {
    limit: NonZeroU32,
    limiter: RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<C::Instant>>,
}

impl<C: Clock + Clone> Counter<C> {
    fn new(limit: NonZeroU32, clock: C) -> Self {
        Self {
            limit,
            limiter: RateLimiter::direct_with_clock(Quota::per_minute(limit), clock),
        }
    }

    fn spend(&self) -> QuotaOutcome {
        match self.limiter.check() {
            Ok(()) => QuotaOutcome::Spent,
            Err(not_until) => QuotaOutcome::Exhausted {
                retry_after: not_until.wait_time_from(self.limiter.clock().now()),
            },
        }
    }

    /// Takes `calls` at once, if that many are left. More than the limit is never asked: the library multiplies
    /// before it compares.
    fn take(&self, calls: NonZeroU32) -> bool {
        calls <= self.limit && matches!(self.limiter.check_n(calls), Ok(Ok(())))
    }

    /// Whether this counter is like a new one. It is of no use after it said yes, and unchanged after no.
    fn has_everything_back(&self) -> bool {
        self.take(self.limit)
    }

    /// The counter that goes on from this one under another limit; this one is of no use then.
    fn under(&self, limit: NonZeroU32) -> Self {
        // Bit by bit, this takes everything that is left.
        let left: u32 = (0..=self.limit.ilog2())
            .rev()
            .filter_map(|bit| NonZeroU32::new(1 << bit))
            .filter(|calls| self.take(*calls))
            .map(NonZeroU32::get)
            .sum();
        let before = u64::from(self.limit.get());
        let spent = before.saturating_sub(u64::from(left));
        let spent = (spent * u64::from(limit.get())).div_ceil(before);
        let next = Self::new(limit, self.limiter.clock().clone());
        if let Some(spent) = u32::try_from(spent).ok().and_then(NonZeroU32::new) {
            next.take(spent);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use governor::clock::FakeRelativeClock;

    use super::*;

    fn table(keys: usize) -> (Table<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        (Table::new(keys, clock.clone()), clock)
    }

    /// How many calls pass at this moment.
    fn burst(table: &Table<FakeRelativeClock>, key: &str, limit: u32) -> u32 {
        let mut passed = 0;
        while table.spend(key, limit).unwrap() == QuotaOutcome::Spent {
            passed += 1;
        }
        passed
    }

    fn wait(table: &Table<FakeRelativeClock>, key: &str, limit: u32) -> Duration {
        match table.spend(key, limit).unwrap() {
            QuotaOutcome::Exhausted { retry_after } => retry_after,
            QuotaOutcome::Spent => panic!("the key still has calls"),
        }
    }

    #[test]
    fn a_limit_is_a_burst_and_then_a_rhythm() {
        for limit in [1, 2, 7, 60, 1_000, 100_000] {
            let (table, clock) = table(8);
            assert_eq!(burst(&table, "a", limit), limit);
            clock.advance(Duration::from_secs(60) / limit);
            assert_eq!(
                burst(&table, "a", limit),
                1,
                "one call comes back at limit {limit}"
            );
            clock.advance(Duration::from_secs(600));
            assert_eq!(burst(&table, "a", limit), limit, "and all of them, but no more");
        }
    }

    #[test]
    fn retry_after_is_exact_to_the_nanosecond() {
        for limit in [1, 7, 59, 100_000] {
            let (table, clock) = table(8);
            burst(&table, "a", limit);
            clock.advance(Duration::from_nanos(123));
            let wait = wait(&table, "a", limit);
            clock.advance(wait - Duration::from_nanos(1));
            assert_eq!(
                table.spend("a", limit).unwrap(),
                QuotaOutcome::Exhausted {
                    retry_after: Duration::from_nanos(1)
                }
            );
            clock.advance(Duration::from_nanos(1));
            assert_eq!(table.spend("a", limit).unwrap(), QuotaOutcome::Spent);
        }
    }

    #[test]
    fn keys_do_not_meet() {
        let (table, _) = table(8);
        assert_eq!(burst(&table, "a", 3), 3);
        assert_eq!(burst(&table, "b", 5), 5);
    }

    #[test]
    fn a_changed_limit_keeps_the_share_that_was_spent() {
        let (table, clock) = table(8);
        for _ in 0..4 {
            assert_eq!(table.spend("a", 10).unwrap(), QuotaOutcome::Spent);
        }
        assert_eq!(burst(&table, "a", 100), 60, "raised");
        assert_eq!(
            wait(&table, "a", 10),
            Duration::from_secs(6),
            "lowered below what was spent"
        );
        clock.advance(Duration::from_secs(30));
        assert_eq!(burst(&table, "a", 20), 10, "half came back");
        clock.advance(Duration::from_secs(60));
        assert_eq!(burst(&table, "a", 3), 3);
    }

    #[test]
    fn a_share_is_rounded_against_the_caller() {
        let (table, _) = table(8);
        table.spend("a", 100).unwrap();
        assert_eq!(burst(&table, "a", 10), 9, "one of a hundred counts as one of ten");
    }

    #[test]
    fn changing_a_limit_to_and_fro_gives_nothing() {
        let (table, _) = table(8);
        burst(&table, "a", 10);
        for limit in [9, 10, 1, 10, 5, 10] {
            wait(&table, "a", limit);
        }
    }

    #[test]
    fn a_full_table_forgets_only_what_is_like_new() {
        let (table, clock) = table(3);
        burst(&table, "spent", 2);
        table.spend("used once", 60).unwrap();
        table.spend("used once too", 60).unwrap();
        let error = table.spend("new", 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(
            !format!("{error}").contains("spent"),
            "no key is shown to another"
        );

        clock.advance(Duration::from_secs(1));
        assert_eq!(table.spend("new", 2).unwrap(), QuotaOutcome::Spent);
        assert_eq!(
            wait(&table, "spent", 2),
            Duration::from_secs(29),
            "a spent key was not forgotten"
        );
        table.spend("new too", 2).unwrap();
        assert!(table.spend("new as well", 2).is_err());

        clock.advance(Duration::from_secs(60));
        for key in ["x", "y", "z"] {
            assert_eq!(table.spend(key, 2).unwrap(), QuotaOutcome::Spent);
        }
        assert!(table.counters.lock().unwrap().by_key.len() <= 3);
    }

    #[test]
    fn looking_for_room_spends_nothing() {
        let (table, clock) = table(1);
        for _ in 0..3 {
            table.spend("a", 10).unwrap();
        }
        for _ in 0..20 {
            clock.advance(SWEEP_PAUSE);
            assert!(table.spend("new", 1).is_err());
        }
        assert_eq!(burst(&table, "a", 10), 7);
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        let (table, _) = table(8);
        assert_eq!(table.spend("a", 0).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn many_threads_spend_each_call_once() {
        const THREADS: u32 = 16;
        const ATTEMPTS: u32 = 1_000;
        let (table, _) = table(64);
        let table = Arc::new(table);
        let spent: Arc<[AtomicU32; 4]> = Arc::default();
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (table, spent) = (Arc::clone(&table), Arc::clone(&spent));
                thread::spawn(move || {
                    for attempt in 0..ATTEMPTS {
                        let key = attempt % 4;
                        let outcome = table.spend(&format!("key {key}"), 500 + key).unwrap();
                        if outcome == QuotaOutcome::Spent {
                            spent[key as usize].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for (key, spent) in spent.iter().enumerate() {
            assert_eq!(spent.load(Ordering::Relaxed) as usize, 500 + key);
        }
    }

    #[test]
    fn many_threads_with_changing_limits_never_pass_the_largest() {
        let (table, _) = table(4);
        let table = Arc::new(table);
        let spent = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..16u32)
            .map(|thread| {
                let (table, spent) = (Arc::clone(&table), Arc::clone(&spent));
                thread::spawn(move || {
                    for attempt in 0..500u32 {
                        let limit = [50, 100, 200][((thread + attempt) % 3) as usize];
                        if table.spend("a", limit).unwrap() == QuotaOutcome::Spent {
                            spent.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let spent = spent.load(Ordering::Relaxed);
        assert!((25..=200).contains(&spent), "{spent}");
    }
}
