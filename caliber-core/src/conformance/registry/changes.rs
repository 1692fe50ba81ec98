use std::sync::Arc;
use std::time::Duration;

use crate::conformance::samples::*;
use crate::error::ErrorKind;
use crate::grant::Membership;
use crate::id::ProjectId;
use crate::principal::{Scope, Scopes};
use crate::reason::ReasonCode;
use crate::registry::{Change, Entity, Expect, Registry, Revision};

pub(super) async fn a_stale_expectation_changes_nothing(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let entity = Entity::Server(record.id.clone());
    let update = |description: &str| {
        let mut after = record.clone();
        after.definition.description = description.to_owned();
        Change::UpdateServer {
            record: Box::new(after),
            secrets: Vec::new(),
        }
    };
    let expect = |revision| Expect::revision(entity.clone(), Revision(revision));
    commit_expecting(&*registry, update("second"), expect(1))
        .await
        .unwrap();
    let before = trail(&*registry).await.len();
    for revision in [0, 1, 3] {
        let outcome = commit_expecting(&*registry, update("third"), expect(revision)).await;
        refused(outcome, ErrorKind::Conflict, Some(ReasonCode::StaleRevision));
    }
    let read = registry.server(&record.id).await.unwrap().unwrap();
    assert_eq!(
        (read.definition.description.as_str(), read.revision),
        ("second", Revision(2))
    );
    assert_eq!(
        trail(&*registry).await.len(),
        before,
        "a refused change is in the trail"
    );
    commit_expecting(&*registry, update("third"), expect(2))
        .await
        .unwrap();
}

pub(super) async fn every_expectation_counts(registry: Arc<dyn Registry>) {
    let (record, echo) = ready(&*registry, "weather").await;
    let holds = vec![
        (Entity::Server(record.id.clone()), Revision(1)),
        (Entity::Inventory(record.id.clone()), Revision(1)),
        (
            Entity::Classification(record.id.clone(), echo.name().clone()),
            Revision(1),
        ),
        (Entity::Access(record.project.clone()), Revision(0)),
    ];
    let touch = || Change::RecordConnection {
        server: record.id.clone(),
        at: now(),
        error: None,
    };
    commit_expecting(&*registry, touch(), Expect(holds.clone()))
        .await
        .unwrap();
    for wrong in 0..holds.len() {
        let mut expect = holds.clone();
        expect[wrong].1 = Revision(expect[wrong].1.0 + 1);
        let outcome = commit_expecting(&*registry, touch(), Expect(expect)).await;
        refused(outcome, ErrorKind::Conflict, Some(ReasonCode::StaleRevision));
    }
}

pub(super) async fn staleness_is_told_before_absence(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    commit(
        &*registry,
        Change::RemoveServer {
            id: record.id.clone(),
        },
    )
    .await
    .unwrap();
    let expect = Expect::revision(Entity::Server(record.id.clone()), Revision(1));
    let change = Change::UpdateServer {
        record: Box::new(record),
        secrets: Vec::new(),
    };
    let outcome = commit_expecting(&*registry, change, expect).await;
    refused(outcome, ErrorKind::Conflict, Some(ReasonCode::StaleRevision));
}

pub(super) async fn an_absent_thing_has_revision_zero_and_counts_on(registry: Arc<dyn Registry>) {
    let (record, echo) = ready(&*registry, "weather").await;
    let entity = Entity::Classification(record.id.clone(), echo.name().clone());
    let classify = || Change::Classify {
        classification: Box::new(classification(&record, &echo)),
    };
    let declassify = Change::Declassify {
        server: record.id.clone(),
        tool: echo.name().clone(),
    };
    commit(&*registry, declassify).await.unwrap();
    let absent = Expect::revision(entity.clone(), Revision(0));
    let back = commit_expecting(&*registry, classify(), absent)
        .await
        .unwrap()
        .revision;
    assert!(back > Revision(1), "two states share the revision {back}");
    let view = registry.tool(&record.id, echo.name()).await.unwrap().unwrap();
    assert_eq!(view.classification.unwrap().revision, back);
    let first = Expect::revision(entity.clone(), Revision(1));
    let outcome = commit_expecting(&*registry, classify(), first).await;
    refused(outcome, ErrorKind::Conflict, Some(ReasonCode::StaleRevision));
    let current = Expect::revision(entity, back);
    commit_expecting(&*registry, classify(), current).await.unwrap();
}

/// For each change: what it moves cannot be expected at its old revision any more, and what it does not move can.
pub(super) async fn each_change_moves_what_it_says(registry: Arc<dyn Registry>) {
    let (record, echo) = ready(&*registry, "weather").await;
    let home = ProjectId::default();
    let asked = approval(&record.id, "echo");
    let given = grant(&record.id, &home, "caller");
    let watched = [
        Entity::Server(record.id.clone()),
        Entity::Inventory(record.id.clone()),
        Entity::Classification(record.id.clone(), echo.name().clone()),
        Entity::Access(home.clone()),
        Entity::Approval(asked.id.clone()),
    ];
    let member = |project| Change::SetMembership {
        membership: Membership {
            project,
            subject: subject("caller"),
            scopes: Scopes::NONE.with(Scope::Viewer),
        },
    };
    let mut begun = invocation(&record, "echo");
    begun.approval = Some(asked.id.clone());
    let plain = invocation(&record, "echo");
    let listing = |description| Box::new(listing(vec![descriptor("echo", description)]));
    let id = || record.id.clone();
    let bound = classification(&record, &echo);
    let steps = [
        (
            Change::UpdateServer {
                record: Box::new(record.clone()),
                secrets: Vec::new(),
            },
            Some(0),
        ),
        (
            Change::RecordConnection {
                server: id(),
                at: now(),
                error: None,
            },
            None,
        ),
        (
            Change::RecordDiscovery {
                server: id(),
                listing: listing("one"),
            },
            Some(1),
        ),
        (
            Change::Classify {
                classification: Box::new(bound),
            },
            Some(2),
        ),
        (Change::CreateGrant { grant: given.clone() }, Some(3)),
        (member(Some(home.clone())), Some(3)),
        (member(None), None),
        (member(Some(project("other"))), None),
        (
            Change::DeleteGrant {
                project: home.clone(),
                id: given.id.clone(),
            },
            Some(3),
        ),
        (
            Change::CreateApproval {
                approval: Box::new(asked.clone()),
                limit: 1_000,
            },
            Some(4),
        ),
        (
            Change::DecideApproval {
                approval: Box::new(approved(&asked)),
            },
            Some(4),
        ),
        (intent(&begun, Duration::from_secs(60)), Some(4)),
        (intent(&plain, Duration::from_secs(60)), None),
        (
            Change::Declassify {
                server: id(),
                tool: echo.name().clone(),
            },
            Some(2),
        ),
    ];
    let touch = || Change::RecordConnection {
        server: id(),
        at: now(),
        error: None,
    };
    for (change, moves) in steps {
        let text = format!("{change:?}");
        let mut before = Vec::new();
        for entity in &watched {
            before.push((entity.clone(), revision_of(&*registry, entity).await));
        }
        commit(&*registry, change)
            .await
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        for (index, expected) in before.into_iter().enumerate() {
            let outcome = commit_expecting(&*registry, touch(), Expect(vec![expected.clone()])).await;
            let moved = outcome.is_err();
            assert_eq!(moved, moves == Some(index), "{:?} after {text}", expected.0);
        }
    }
}

/// The revision, found by trying: the port tells it only with what is read for a use.
async fn revision_of(registry: &dyn Registry, entity: &Entity) -> Revision {
    let probe = server("probe");
    for revision in (0..40).map(Revision) {
        let expect = Expect::revision(entity.clone(), revision);
        let change = Change::RecordConnection {
            server: probe.id.clone(),
            at: now(),
            error: None,
        };
        let error = commit_expecting(registry, change, expect)
            .await
            .expect_err("the probe is absent");
        if error.kind() == ErrorKind::NotFound {
            return revision;
        }
    }
    panic!("{entity} has no revision below 40");
}
