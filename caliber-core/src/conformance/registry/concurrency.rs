use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::audit::AuditAction;
use crate::conformance::samples::*;
use crate::error::ErrorKind;
use crate::page::PageRequest;
use crate::reason::ReasonCode;
use crate::registry::{Change, Commit, Entity, Expect, Registry, Revision, ServerQuery};

pub(super) async fn many_writers_all_land(registry: Arc<dyn Registry>) {
    let writers: Vec<_> = (0..64)
        .map(|index| {
            let registry = Arc::clone(&registry);
            tokio::spawn(async move {
                let record = registered(&*registry, &format!("server-{index}")).await;
                // What returned is there for every read that begins now.
                assert!(registry.server(&record.id).await.unwrap().is_some());
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let page = registry
        .servers(&ServerQuery::default(), &PageRequest::first(500))
        .await
        .unwrap();
    assert_eq!(page.items.len(), 64);
    let entries = trail(&*registry).await;
    let ids: BTreeSet<_> = entries.iter().map(|entry| entry.id.clone()).collect();
    assert_eq!((entries.len(), ids.len()), (64, 64), "one entry for each change");
}

pub(super) async fn one_of_many_updates_of_a_revision_wins(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let writers: Vec<_> = (0..20)
        .map(|index| {
            let (registry, mut after) = (Arc::clone(&registry), record.clone());
            after.definition.description = format!("writer {index}");
            tokio::spawn(async move {
                let expect = Expect::revision(Entity::Server(after.id.clone()), Revision(1));
                let change = Change::UpdateServer {
                    record: Box::new(after),
                    secrets: Vec::new(),
                };
                commit_expecting(&*registry, change, expect).await.map(|_| index)
            })
        })
        .collect();
    let mut winners = Vec::new();
    for writer in writers {
        match writer.await.unwrap() {
            Ok(index) => winners.push(index),
            loser => drop(refused(
                loser,
                ErrorKind::Conflict,
                Some(ReasonCode::StaleRevision),
            )),
        }
    }
    assert_eq!(
        winners.len(),
        1,
        "several updates of one revision have won: {winners:?}"
    );
    let read = registry.server(&record.id).await.unwrap().unwrap();
    assert_eq!(read.definition.description, format!("writer {}", winners[0]));
    assert_eq!(trail(&*registry).await.len(), 2);
}

/// Each change touches one thing and expects the other: were both taken, neither would have been right.
pub(super) async fn two_changes_cannot_add_up_to_a_wrong_state(registry: Arc<dyn Registry>) {
    for round in 0..20 {
        let (record, echo) = ready(&*registry, &format!("server-{round}")).await;
        let place = Entity::Server(record.id.clone());
        let bound = Entity::Classification(record.id.clone(), echo.name().clone());
        let update = Change::UpdateServer {
            record: Box::new(record.clone()),
            secrets: Vec::new(),
        };
        let declassify = Change::Declassify {
            server: record.id,
            tool: echo.name().clone(),
        };
        let attempts: Vec<_> = [(update, bound), (declassify, place)]
            .into_iter()
            .map(|(change, entity)| {
                let registry = Arc::clone(&registry);
                let expect = Expect::revision(entity, Revision(1));
                tokio::spawn(async move { commit_expecting(&*registry, change, expect).await })
            })
            .collect();
        let mut taken = 0;
        for attempt in attempts {
            match attempt.await.unwrap() {
                Ok(_) => taken += 1,
                refusal => drop(refused(
                    refusal,
                    ErrorKind::Conflict,
                    Some(ReasonCode::StaleRevision),
                )),
            }
        }
        assert_eq!(taken, 1, "both changes were taken, or none");
    }
}

pub(super) async fn a_dropped_commit_happens_wholly_or_not_at_all(registry: Arc<dyn Registry>) {
    let names: Vec<_> = (0..60).map(|index| format!("dropped-{index}")).collect();
    for (index, name) in names.iter().enumerate() {
        let record = server(name);
        let audit = entry(AuditAction::CreateServer, ("dropped", name)).into();
        let change = Change::RegisterServer {
            record: Box::new(record),
            secrets: Vec::new(),
        };
        let mut commit = pin!(registry.commit(Commit {
            change,
            expect: Expect::nothing(),
            audit
        }));
        // Dropped after no, one, two … looks at it, with time for others in between.
        for _ in 0..index % 6 {
            if poll_once(commit.as_mut()).is_ready() {
                break;
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
    // Nothing holds the store: the next change is not kept waiting.
    let after = tokio::time::timeout(Duration::from_secs(10), registered(&*registry, "after")).await;
    assert!(after.is_ok(), "a dropped commit still holds the store");
    let audited = async || -> BTreeSet<String> {
        let entries = trail(&*registry).await;
        let of = entries.into_iter().filter(|entry| entry.entity_type == "dropped");
        of.map(|entry| entry.entity_id).collect()
    };
    let stored = async || -> BTreeSet<String> {
        let request = PageRequest::first(500);
        let page = registry.servers(&ServerQuery::default(), &request).await.unwrap();
        let names = page.items.into_iter().map(|server| server.name.to_string());
        names.filter(|name| name.starts_with("dropped")).collect()
    };
    // One that was handed over may still land; then it lands with its entry.
    eventually("every change has its entry", async || {
        stored().await == audited().await
    })
    .await;
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

pub(super) async fn it_answers_a_ping(registry: Arc<dyn Registry>) {
    registry.ping().await.unwrap();
}
