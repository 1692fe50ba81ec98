//! Commits that wait share a transaction, and stay apart in everything else.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use caliber_core::reason::ReasonCode;
use caliber_core::registry::{Change, Commit, Committed, Entity, Expect, Registry, Revision};
use caliber_core::{ErrorKind, Result};
use caliber_store::{Store, StoreSettings};
use diesel::connection::SimpleConnection;

use crate::support::{Home, commit_of, entries, eventually, registered, registration, server};

type Pending<'a> = Pin<Box<dyn Future<Output = Result<Committed>> + Send + 'a>>;

/// Hands every commit over while another process holds the database, so that all of them wait when it lets go.
async fn all_at_once(home: &Home, store: &Store, commits: Vec<Commit>) -> Vec<Result<Committed>> {
    let mut other = home.connect();
    other.batch_execute("BEGIN IMMEDIATE").unwrap();
    let mut pending: Vec<Pending<'_>> = commits
        .into_iter()
        .map(|commit| Box::pin(store.commit(commit)) as Pending<'_>)
        .collect();
    for commit in &mut pending {
        let look = commit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(
            matches!(look, Poll::Pending),
            "a commit was answered while the database was held"
        );
    }
    other.batch_execute("ROLLBACK").unwrap();
    let mut outcomes = Vec::new();
    for commit in pending {
        outcomes.push(commit.await);
    }
    outcomes
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_commits_at_once_need_two_transactions() {
    let home = Home::new();
    let store = home.open().await;
    let before = store.statistics();
    let commits = (0..64)
        .map(|n| commit_of(registration(&server(&format!("server-{n}")))))
        .collect();
    for outcome in all_at_once(&home, &store, commits).await {
        assert_eq!(outcome.unwrap().revision, Revision(1));
    }
    let after = store.statistics();
    assert_eq!(after.commits - before.commits, 64);
    // One may have been on its way alone when the others came.
    assert!(after.transactions - before.transactions <= 2, "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_commit_leaves_its_neighbours_alone() {
    let home = Home::new();
    let store = home.open().await;
    let taken = registered(&store, "taken").await;
    let before = store.statistics();
    let commits = (0..64)
        .map(|n| {
            let (change, expect) = match n % 4 {
                // The name is taken: refused by the table, in the middle of the change.
                1 => (registration(&server("taken")), Expect::nothing()),
                // Decided on a state that has gone: refused before the change.
                2 => {
                    let entity = Entity::Server(taken.id.clone());
                    let change = registration(&server(&format!("stale-{n}")));
                    (change, Expect::revision(entity, Revision(7)))
                }
                // Absent: refused by the change itself.
                3 => {
                    let (server, at) = (server("absent").id, crate::support::now());
                    let change = Change::RecordConnection {
                        server,
                        at,
                        error: None,
                    };
                    (change, Expect::nothing())
                }
                _ => (registration(&server(&format!("server-{n}"))), Expect::nothing()),
            };
            Commit {
                change,
                expect,
                audit: entries(&format!("commit-{n}")),
            }
        })
        .collect();
    let outcomes = all_at_once(&home, &store, commits).await;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        let (kind, reason) = match n % 4 {
            1 => (ErrorKind::Conflict, Some(ReasonCode::NameTaken)),
            2 => (ErrorKind::Conflict, Some(ReasonCode::StaleRevision)),
            3 => (ErrorKind::NotFound, None),
            _ => {
                outcome.unwrap();
                continue;
            }
        };
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.reason()), (kind, reason), "{n}: {error}");
    }
    let after = store.statistics();
    assert_eq!(after.commits - before.commits, 16);
    assert!(after.transactions - before.transactions <= 2, "{after:?}");
    let page = caliber_core::page::PageRequest::first(500);
    let trail = store.audit(&Default::default(), &page).await.unwrap();
    let told: Vec<_> = trail
        .items
        .iter()
        .filter_map(|entry| entry.entity_id.strip_prefix("commit-"))
        .collect();
    assert_eq!(told.len(), 16, "a refused commit has left an entry: {told:?}");
    assert!(
        told.iter().all(|n| n.parse::<u32>().unwrap() % 4 == 0),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_handed_over_happens_without_its_caller() {
    let home = Home::new();
    let store = home.open().await;
    let mut other = home.connect();
    other.batch_execute("BEGIN IMMEDIATE").unwrap();
    let mut abandoned = store.commit(commit_of(registration(&server("abandoned"))));
    let look = abandoned.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(look.is_pending());
    drop(abandoned);
    other.batch_execute("ROLLBACK").unwrap();
    eventually("the commit happens", || store.statistics().commits == 1).await;
    let name = "abandoned".parse().unwrap();
    assert!(store.server_by_name(&name).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_after_a_while_and_loses_nothing() {
    let home = Home::new();
    let store = Store::open(StoreSettings {
        queue: 2,
        wait: std::time::Duration::from_millis(100),
        // Longer than the other one holds on, also on a busy machine.
        busy: std::time::Duration::from_secs(60),
        ..home.settings()
    })
    .await
    .unwrap();
    let mut other = home.connect();
    other.batch_execute("BEGIN IMMEDIATE").unwrap();
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let record = server(&format!("server-{n}"));
                let outcome = store.commit(commit_of(registration(&record))).await;
                (record, outcome)
            })
        })
        .collect();
    eventually("most are refused", || {
        tasks.iter().filter(|task| task.is_finished()).count() >= 10
    })
    .await;
    other.batch_execute("ROLLBACK").unwrap();
    let (mut done, mut refused) = (0, 0);
    for task in tasks {
        let (record, outcome) = task.await.unwrap();
        let found = store.server(&record.id).await.unwrap();
        match outcome {
            Ok(_) => done += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert_eq!(error.reason(), Some(ReasonCode::StoreUnavailable));
                assert!(found.is_none(), "a refused commit has happened");
                refused += 1;
                continue;
            }
        }
        assert!(found.is_some());
    }
    assert!(done >= 2 && refused >= 10, "{done} done, {refused} refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_that_holds_on_is_told_and_nothing_happens() {
    let home = Home::new();
    let store = Store::open(StoreSettings {
        busy: std::time::Duration::from_millis(100),
        ..home.settings()
    })
    .await
    .unwrap();
    let mut other = home.connect();
    other.batch_execute("BEGIN IMMEDIATE").unwrap();
    let record = server("weather");
    let error = store.commit(commit_of(registration(&record))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("another process"), "{error}");
    other.batch_execute("ROLLBACK").unwrap();
    assert!(store.server(&record.id).await.unwrap().is_none());
    store.commit(commit_of(registration(&record))).await.unwrap();
}
