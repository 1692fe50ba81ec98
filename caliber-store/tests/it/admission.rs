//! The facts of admission: what can matter and nothing else, at one moment, and never older than an answer.

use std::time::Duration;

use caliber_core::grant::{Grant, GrantedTools, Grantee};
use caliber_core::id::GrantId;
use caliber_core::principal::Scope;
use caliber_core::registry::{AdmissionQuery, Change, Entity, Registry, Revision};
use caliber_core::server::ServerRecord;
use caliber_store::Store;

use crate::support::{
    Home, classification, commit, descriptor, intent, invocation, listing, now, registered,
};

async fn ready(store: &Store) -> (ServerRecord, AdmissionQuery) {
    let record = registered(store, "weather").await;
    let tool = descriptor("echo");
    let discovery = Change::RecordDiscovery {
        server: record.id.clone(),
        listing: Box::new(listing(vec![tool.clone(), descriptor("other")])),
    };
    commit(store, discovery).await.unwrap();
    let bound = Box::new(classification(&record, &tool));
    commit(
        store,
        Change::Classify {
            classification: bound,
        },
    )
    .await
    .unwrap();
    let query = AdmissionQuery {
        server: record.id.clone(),
        tool: tool.name().clone(),
        subject: "ada".parse().unwrap(),
        project: record.project.clone(),
        approval: None,
    };
    (record, query)
}

fn grant(record: &ServerRecord, grantee: Grantee, tool: Option<&str>) -> Grant {
    Grant {
        id: GrantId::new(),
        project: record.project.clone(),
        grantee,
        tools: GrantedTools::Server {
            server: record.id.clone(),
            tool: tool.map(|tool| tool.parse().unwrap()),
        },
        created_by: "root".parse().unwrap(),
        created_at: now(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_grants_those_are_read_that_can_open_the_tool_to_the_caller() {
    let home = Home::new();
    let store = home.open().await;
    let (record, query) = ready(&store).await;
    let subject = |name: &str| Grantee::Subject(name.parse().unwrap());
    let mut wanted = Vec::new();
    for (grantee, tool, counts) in [
        (subject("ada"), None, true),
        (subject("ada"), Some("echo"), true),
        (subject("ada"), Some("other"), false),
        (subject("bob"), None, false),
        // A subject that is spelled like a scope is a subject.
        (subject("operator"), None, false),
        (Grantee::Scope(Scope::Operator), None, true),
        (Grantee::Scope(Scope::Viewer), Some("echo"), true),
        (Grantee::Scope(Scope::Admin), Some("other"), false),
    ] {
        let grant = grant(&record, grantee, tool);
        commit(&store, Change::CreateGrant { grant: grant.clone() })
            .await
            .unwrap();
        wanted.extend(counts.then_some(grant));
    }
    let facts = store.admission(&query).await.unwrap().unwrap();
    assert_eq!(facts.grants, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoke_that_was_acknowledged_is_seen_by_every_read_after_it() {
    let home = Home::new();
    let store = home.open().await;
    let (record, query) = ready(&store).await;
    for _ in 0..50 {
        let grant = grant(&record, Grantee::Subject("ada".parse().unwrap()), None);
        commit(&store, Change::CreateGrant { grant: grant.clone() })
            .await
            .unwrap();
        let stop = tokio_flag();
        let readers: Vec<_> = (0..8)
            .map(|_| {
                let (store, query, revoked) = (store.clone(), query.clone(), stop.clone());
                tokio::spawn(async move {
                    loop {
                        let after = revoked.load(std::sync::atomic::Ordering::SeqCst);
                        let facts = store.admission(&query).await.unwrap().unwrap();
                        if after {
                            return facts.grants.len();
                        }
                    }
                })
            })
            .collect();
        let revoke = Change::DeleteGrant {
            project: record.project.clone(),
            id: grant.id,
        };
        commit(&store, revoke).await.unwrap();
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        for reader in readers {
            assert_eq!(reader.await.unwrap(), 0, "a revoked grant was read");
        }
    }
}

fn tokio_flag() -> std::sync::Arc<std::sync::atomic::AtomicBool> {
    std::sync::Arc::default()
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_are_of_one_moment_however_fast_everything_changes() {
    let home = Home::new();
    let store = home.open().await;
    let (record, query) = ready(&store).await;
    // Each listing says in its protocol version and in the tool's digest which one it is; the revision counts them.
    let writer = {
        let (store, server) = (store.clone(), record.id.clone());
        tokio::spawn(async move {
            for n in 0..200_u32 {
                let name = if n % 2 == 0 { "echo" } else { "echo2" };
                let change = Change::RecordDiscovery {
                    server: server.clone(),
                    listing: Box::new(listing(vec![descriptor(name)])),
                };
                commit(&store, change).await.unwrap();
            }
        })
    };
    let mut seen = std::collections::BTreeSet::new();
    while !writer.is_finished() {
        let facts = store.admission(&query).await.unwrap().unwrap();
        let inventory = Entity::Inventory(record.id.clone());
        let found = facts.expect.0.iter().find(|(entity, _)| *entity == inventory);
        let Revision(revision) = found.unwrap().1;
        // The first listing and then every other one holds the tool.
        let listed = revision == 1 || revision % 2 == 0;
        assert_eq!(
            facts.tool.is_some(),
            listed,
            "the facts of revision {revision} are mixed"
        );
        seen.insert(revision);
    }
    writer.await.unwrap();
    assert!(seen.len() > 3, "nothing changed while the facts were read");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_decided_on_facts_that_moved_does_not_begin() {
    let home = Home::new();
    let store = home.open().await;
    let (record, query) = ready(&store).await;
    let facts = store.admission(&query).await.unwrap().unwrap();
    let declassify = Change::Declassify {
        server: record.id.clone(),
        tool: query.tool.clone(),
    };
    commit(&store, declassify).await.unwrap();
    let bound = Box::new(classification(&record, &descriptor("echo")));
    commit(
        &store,
        Change::Classify {
            classification: bound,
        },
    )
    .await
    .unwrap();
    // Classified again just as it was: the old decision still does not count.
    let call = invocation(&record, &query.tool);
    let mut commit = crate::support::commit_of(intent(&call, Duration::from_secs(60)));
    commit.expect = facts.expect;
    let error = store.commit(commit).await.unwrap_err();
    assert_eq!(
        error.reason(),
        Some(caliber_core::reason::ReasonCode::StaleRevision),
        "{error}"
    );
    assert!(store.invocation(&call.id).await.unwrap().is_none());
}
