//! The contract of [`QuotaStore`], in cases.

use std::sync::Arc;
use std::time::Duration;

use super::{Case, cases, run_all};
use crate::quota::{QuotaOutcome, QuotaStore};

/// Runs every case of [`cases`] on a store of its own, empty, on the machine's clock.
///
/// # Panics
///
/// With the names of the clauses that are violated.
pub async fn run(make: impl AsyncFn() -> Arc<dyn QuotaStore>) {
    run_all(cases(), make).await;
}

/// Every clause, to be run one by one.
pub fn cases() -> Vec<Case<Arc<dyn QuotaStore>>> {
    cases![
        clauses::{
            a_limit_lets_that_many_through_at_once,
            what_is_refused_is_not_counted,
            keys_are_counted_apart,
            racing_calls_never_pass_the_limit,
            it_tells_truly_when_the_next_may_pass,
        }
    ]
}

mod clauses {
    use super::*;

    /// Spends until the limit is met; returns how many passed and when the next may.
    async fn exhaust(quotas: &dyn QuotaStore, key: &str, limit: u32) -> (u32, Duration) {
        let mut passed = 0;
        for _ in 0..20 * limit {
            match quotas.spend(key, limit).await.unwrap() {
                QuotaOutcome::Spent => passed += 1,
                QuotaOutcome::Exhausted { retry_after } => return (passed, retry_after),
            }
        }
        panic!("a limit of {limit} has let {passed} calls through");
    }

    pub(super) async fn a_limit_lets_that_many_through_at_once(quotas: Arc<dyn QuotaStore>) {
        for limit in [1, 2, 7, 20] {
            let (passed, retry_after) = exhaust(&*quotas, &format!("limit-{limit}"), limit).await;
            assert_eq!(passed, limit);
            let minute = Duration::from_secs(60);
            assert!(
                !retry_after.is_zero() && retry_after <= minute,
                "retry after {retry_after:?}"
            );
        }
    }

    pub(super) async fn what_is_refused_is_not_counted(quotas: Arc<dyn QuotaStore>) {
        let (_, first) = exhaust(&*quotas, "tool", 3).await;
        let mut last = first;
        for _ in 0..100 {
            match quotas.spend("tool", 3).await.unwrap() {
                QuotaOutcome::Spent => panic!("a call passed an exhausted limit"),
                QuotaOutcome::Exhausted { retry_after } => last = retry_after,
            }
        }
        assert!(
            last <= first,
            "refusals have pushed the next call from {first:?} to {last:?}"
        );
    }

    pub(super) async fn keys_are_counted_apart(quotas: Arc<dyn QuotaStore>) {
        exhaust(&*quotas, "srv_1/echo", 2).await;
        for key in ["srv_1/echo2", "srv_2/echo", "", "srv_1/Echo", "srv_1/echo "] {
            assert_eq!(
                quotas.spend(key, 2).await.unwrap(),
                QuotaOutcome::Spent,
                "{key:?}"
            );
        }
    }

    pub(super) async fn racing_calls_never_pass_the_limit(quotas: Arc<dyn QuotaStore>) {
        // At 20 a minute a place comes back every 3 s: none within this race.
        let racers: Vec<_> = (0..200)
            .map(|_| {
                let quotas = Arc::clone(&quotas);
                tokio::spawn(async move { quotas.spend("tool", 20).await.unwrap() })
            })
            .collect();
        let mut passed = 0;
        for racer in racers {
            passed += u32::from(racer.await.unwrap() == QuotaOutcome::Spent);
        }
        assert_eq!(passed, 20);
    }

    pub(super) async fn it_tells_truly_when_the_next_may_pass(quotas: Arc<dyn QuotaStore>) {
        let (_, retry_after) = exhaust(&*quotas, "tool", 120).await;
        tokio::time::sleep(retry_after + Duration::from_millis(5)).await;
        assert_eq!(quotas.spend("tool", 120).await.unwrap(), QuotaOutcome::Spent);
    }
}
