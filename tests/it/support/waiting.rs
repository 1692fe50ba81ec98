//! Waiting for a condition, with a deadline.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

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

/// Runs one body for each case, all of them at once: for cases that mostly wait. The first that fails ends them.
pub(crate) async fn at_once<C, F>(cases: impl IntoIterator<Item = C>, body: impl Fn(C) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let bodies: JoinSet<()> = cases.into_iter().map(body).collect();
    bodies.join_all().await;
}
