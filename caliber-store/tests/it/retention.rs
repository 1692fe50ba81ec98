//! Retention of more than one transaction removes.

use std::time::Duration;

use caliber_core::audit::{AuditAction, AuditEntry, AuditQuery};
use caliber_core::invocation::InvocationRecord;
use caliber_core::json::JsonText;
use caliber_core::page::PageRequest;
use caliber_core::principal::{Principal, Surface};
use caliber_core::registry::{Change, Commit, Expect, InvocationsOf, Registry, Retention};

use crate::support::{Home, commit, commit_of, invocation, now, registered, settlement};

#[tokio::test(flavor = "multi_thread")]
async fn a_large_prune_takes_several_transactions_and_keeps_what_is_young() {
    let home = Home::new();
    let store = home.open().await;
    let record = registered(&store, "weather").await;
    let tool = "echo".parse().unwrap();
    let old = now() - Duration::from_secs(90 * 24 * 60 * 60);
    let ended = |at| InvocationRecord {
        invocation: invocation(&record, &tool),
        settlement: Some(settlement(at)),
    };
    for _ in 0..24 {
        let records = (0..500).map(|_| ended(old)).collect();
        commit(&store, Change::RecordInvocations { records })
            .await
            .unwrap();
    }
    let young = ended(now());
    let records = vec![young.clone()];
    commit(&store, Change::RecordInvocations { records })
        .await
        .unwrap();

    let audit = AuditEntry::new(
        &Principal::system(),
        Surface::System,
        now(),
        AuditAction::Prune,
        ("installation", "installation"),
        None,
        JsonText::empty_object(),
    );
    let prune = Change::Prune(Retention {
        invocations_before: Some(now() - Duration::from_secs(60)),
        ..Retention::default()
    });
    let before = store.statistics();
    let done = store
        .commit(Commit {
            change: prune,
            expect: Expect::nothing(),
            audit: audit.into(),
        })
        .await
        .unwrap();
    assert_eq!(done.affected, 12_000);
    let transactions = store.statistics().transactions - before.transactions;
    assert!(transactions >= 3, "{transactions}");
    let query = AuditQuery {
        action: Some(AuditAction::Prune),
        ..AuditQuery::default()
    };
    let trail = store.audit(&query, &PageRequest::first(50)).await.unwrap();
    assert_eq!(
        trail.items.len(),
        3,
        "one entry for each transaction that removed something"
    );
    let left = store
        .invocations(&InvocationsOf::Everything, &PageRequest::first(50))
        .await
        .unwrap();
    assert_eq!(left.items, [young]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_of_the_whole_trail_ends_and_keeps_its_own_entry() {
    let home = Home::new();
    let store = home.open().await;
    for n in 0..20 {
        registered(&store, &format!("server-{n}")).await;
    }
    let change = Change::Prune(Retention {
        audit_before: Some(now() + Duration::from_secs(60 * 60)),
        ..Retention::default()
    });
    let done = store.commit(commit_of(change)).await.unwrap();
    assert_eq!(done.affected, 20);
    let page = PageRequest::first(50);
    assert_eq!(
        store
            .audit(&AuditQuery::default(), &page)
            .await
            .unwrap()
            .items
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_a_reader_has_held_is_emptied_once_it_lets_go() {
    use diesel::connection::SimpleConnection;
    const BOUND: u64 = 1 << 20;
    let home = Home::new();
    let store = caliber_store::Store::open(caliber_store::StoreSettings {
        wal_bytes: BOUND,
        ..home.settings()
    })
    .await
    .unwrap();
    let record = registered(&store, "weather").await;
    let tool = "echo".parse().unwrap();
    let write = async || {
        let records = (0..200)
            .map(|_| InvocationRecord {
                invocation: invocation(&record, &tool),
                settlement: Some(settlement(now())),
            })
            .collect();
        commit(&store, Change::RecordInvocations { records })
            .await
            .unwrap();
    };
    let mut reader = home.connect();
    reader
        .batch_execute("BEGIN; SELECT COUNT(*) FROM servers;")
        .unwrap();
    let mut writes = 0;
    while home.log_bytes() <= 2 * BOUND {
        write().await;
        writes += 1;
        assert!(writes < 1_000, "the log does not grow");
    }
    reader.batch_execute("ROLLBACK").unwrap();
    let mut writes = 0;
    while home.log_bytes() > BOUND {
        registered(&store, &format!("server-{writes}")).await;
        writes += 1;
        assert!(writes < 1_000, "the log stays at {} bytes", home.log_bytes());
    }
}
