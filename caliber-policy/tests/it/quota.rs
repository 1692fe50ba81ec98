//! The quota through its port.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use caliber_core::ErrorKind;
use caliber_core::quota::{QuotaOutcome, QuotaStore};
use caliber_policy::ProcessQuota;

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn many_tasks_spend_each_call_once() {
    let quota: Arc<dyn QuotaStore> = Arc::new(ProcessQuota::new());
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let quota = Arc::clone(&quota);
            tokio::spawn(async move {
                let mut spent = BTreeMap::new();
                for attempt in 0..100 {
                    // At one call a minute nothing comes back while the test runs.
                    let key = format!("server/tool {}", attempt % 50);
                    if quota.spend(&key, 1).await.unwrap() == QuotaOutcome::Spent {
                        *spent.entry(key).or_insert(0) += 1;
                    }
                }
                spent
            })
        })
        .collect();
    let mut spent = BTreeMap::new();
    for task in tasks {
        for (key, count) in task.await.unwrap() {
            *spent.entry(key).or_insert(0) += count;
        }
    }
    assert_eq!(spent.len(), 50);
    assert!(spent.values().all(|count| *count == 1), "{spent:?}");
}

#[tokio::test]
async fn a_spent_key_says_when_to_come_back() {
    let quota = ProcessQuota::new();
    for _ in 0..2 {
        assert_eq!(quota.spend("a", 2).await.unwrap(), QuotaOutcome::Spent);
    }
    match quota.spend("a", 2).await.unwrap() {
        QuotaOutcome::Exhausted { retry_after } => {
            assert!(
                retry_after > Duration::ZERO && retry_after <= Duration::from_secs(30),
                "{retry_after:?}"
            );
        }
        QuotaOutcome::Spent => panic!("three calls at two a minute"),
    }
}

#[tokio::test]
async fn a_full_table_refuses_new_keys_and_keeps_the_spent_ones() {
    let quota = ProcessQuota::with_keys(2);
    for key in ["a", "b"] {
        assert_eq!(quota.spend(key, 1).await.unwrap(), QuotaOutcome::Spent);
    }
    for attempt in 0..1_000 {
        let error = quota.spend(&format!("key {attempt}"), 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    for key in ["a", "b"] {
        let outcome = quota.spend(key, 1).await.unwrap();
        assert!(matches!(outcome, QuotaOutcome::Exhausted { .. }), "{key}");
    }
}
