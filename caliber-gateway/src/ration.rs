//! How many listings the notifications of one session may cause.

use std::time::Duration;

use tokio::time::Instant;

/// Listings at once, after a time without any.
const BURST: u32 = 3;

/// A burst of listings, and after that one in each interval; what was spent comes back with time.
#[derive(Debug)]
pub(crate) struct Ration {
    interval: Duration,
    /// When the whole burst is there again.
    full: Instant,
}

impl Ration {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            full: Instant::now(),
        }
    }

    /// How long the next listing has to wait.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        let missing = self.full.saturating_duration_since(now);
        missing.saturating_sub(self.interval.saturating_mul(BURST - 1))
    }

    /// Takes a listing out.
    pub(crate) fn spend(&mut self, now: Instant) {
        self.full = self.full.max(now) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(2);

    /// How many listings there are at once now.
    fn at_once(ration: &mut Ration) -> u32 {
        let mut listings = 0;
        while ration.wait(Instant::now()).is_zero() && listings < 100 {
            ration.spend(Instant::now());
            listings += 1;
        }
        listings
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_spent_comes_back_with_time() {
        let mut ration = Ration::new(INTERVAL);
        assert_eq!(at_once(&mut ration), 3);
        assert_eq!(ration.wait(Instant::now()), INTERVAL);
        for (pause, listings) in [(1, 0), (1, 1), (4, 2), (6, 3), (3_600, 3)] {
            tokio::time::advance(Duration::from_secs(pause)).await;
            assert_eq!(at_once(&mut ration), listings, "after {pause} s");
        }
        assert_eq!(ration.wait(Instant::now()), INTERVAL);
    }
}
