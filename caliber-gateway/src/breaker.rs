//! Leaves an upstream alone that fails to connect again and again.
//!
//! Only what costs something counts: processes that end at once, and dials that hang. A refused connection answers
//! in an instant, so an upstream that comes back is usable at the next call.

use std::time::{Duration, Instant};

use crate::settings::GatewaySettings;

/// The state of one server.
#[derive(Debug)]
pub(crate) struct Breaker {
    allowed_failures: u32,
    first_pause: Duration,
    longest_pause: Duration,
    failures: u32,
    open_until: Option<Instant>,
    /// Whether the one attempt that may find out is under way.
    probing: bool,
}

impl Breaker {
    pub(crate) fn new(settings: &GatewaySettings) -> Self {
        Self {
            allowed_failures: settings.breaker_failures.max(1),
            first_pause: settings.breaker_pause,
            longest_pause: settings.breaker_longest,
            failures: 0,
            open_until: None,
            probing: false,
        }
    }

    /// Whether a connection may be tried now; `Err` says how long not.
    pub(crate) fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        match self.open_until {
            None => Ok(()),
            Some(until) if now < until => Err(until - now),
            Some(_) if self.probing => Err(self.first_pause),
            Some(_) => {
                self.probing = true;
                Ok(())
            }
        }
    }

    /// A connection was made, or a call answered.
    pub(crate) fn success(&mut self) {
        self.failures = 0;
        self.open_until = None;
        self.probing = false;
    }

    /// A connection failed at a cost. `jitter` lies between 0 and 1.
    pub(crate) fn failure(&mut self, now: Instant, jitter: f64) {
        self.failures = self.failures.saturating_add(1);
        self.probing = false;
        if let Some(beyond) = self.failures.checked_sub(self.allowed_failures) {
            let pause = self
                .first_pause
                .saturating_mul(2_u32.saturating_pow(beyond.min(16)));
            let pause = pause
                .min(self.longest_pause)
                .mul_f64(0.75 + jitter.clamp(0.0, 1.0) / 2.0);
            self.open_until = Some(now + pause);
        }
    }

    /// An attempt ended in a way that says nothing about the upstream's health.
    pub(crate) fn undecided(&mut self) {
        self.probing = false;
    }

    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.open_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(&GatewaySettings {
            breaker_failures: 3,
            breaker_pause: Duration::from_secs(1),
            breaker_longest: Duration::from_secs(4),
            ..GatewaySettings::default()
        })
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_attempt_through() {
        let mut breaker = breaker();
        let start = Instant::now();
        breaker.failure(start, 0.5);
        breaker.failure(start, 0.5);
        breaker.success();
        breaker.failure(start, 0.5);
        breaker.failure(start, 0.5);
        assert!(breaker.admit(start).is_ok());
        breaker.failure(start, 0.5);
        assert_eq!(breaker.admit(start), Err(Duration::from_secs(1)));
        let later = start + Duration::from_millis(1_001);
        assert!(breaker.admit(later).is_ok());
        assert!(breaker.admit(later).is_err(), "only one attempt may find out");
        breaker.success();
        assert!(breaker.admit(later).is_ok());
        assert!(!breaker.is_open(later));
    }

    #[test]
    fn the_pause_doubles_up_to_its_longest_and_is_spread() {
        let mut breaker = breaker();
        let start = Instant::now();
        breaker.failure(start, 0.5);
        breaker.failure(start, 0.5);
        for (jitter, pause) in [
            (0.5, 1_000),
            (0.5, 2_000),
            (0.5, 4_000),
            (0.5, 4_000),
            (0.0, 3_000),
            (1.0, 5_000),
        ] {
            breaker.failure(start, jitter);
            assert_eq!(breaker.admit(start), Err(Duration::from_millis(pause)));
        }
    }
}
