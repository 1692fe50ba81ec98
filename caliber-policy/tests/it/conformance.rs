//! The suites that every adapter of core's ports has to pass.

use std::sync::Arc;

use caliber_core::conformance;
use caliber_core::quota::QuotaStore;
use caliber_policy::{Policy, ProcessQuota};

#[test]
fn the_policy_keeps_its_contract() {
    conformance::policy::run(&Policy::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quota_keeps_its_contract() {
    conformance::quota::run(async || Arc::new(ProcessQuota::new()) as Arc<dyn QuotaStore>).await;
}
