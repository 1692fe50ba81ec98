//! Waiting for a condition, with a deadline.

use std::future::Future;
use std::time::{Duration, Instant};

/// One second.
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// How long a condition may take to come true where nothing else is said. No promise of caliber's: only the end of
/// a test that has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks `condition` until it gives something, and returns that; fails after 20 s, saying `what` was waited for.
pub(crate) async fn eventually<T, F>(what: &str, condition: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    eventually_within(PATIENCE, what, condition).await
}

/// [`eventually`], within a stated time.
pub(crate) async fn eventually_within<T, F>(
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> F,
) -> T
where
    F: Future<Output = Option<T>>,
{
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
