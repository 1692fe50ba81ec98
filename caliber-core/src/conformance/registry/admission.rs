use std::sync::Arc;
use std::time::Duration;

use crate::conformance::samples::*;
use crate::error::ErrorKind;
use crate::grant::{Grant, GrantedTools, Grantee, Membership};
use crate::id::{ApprovalId, ProjectId, ServerId};
use crate::inventory::WithheldTool;
use crate::principal::{Scope, Scopes};
use crate::reason::ReasonCode;
use crate::registry::{AdmissionQuery, Change, Entity, Registry, Revision};
use crate::server::{ServerRecord, ServerStatus, Visibility};

const LEASE: Duration = Duration::from_secs(60);

fn updated(record: &ServerRecord) -> Change {
    Change::UpdateServer {
        record: Box::new(record.clone()),
        secrets: Vec::new(),
    }
}

pub(super) async fn the_facts_are_complete(registry: Arc<dyn Registry>) {
    let (record, echo) = ready(&*registry, "weather").await;
    let given = grant(&record.id, &record.project, "caller");
    commit(&*registry, Change::CreateGrant { grant: given.clone() })
        .await
        .unwrap();
    let asked = approval(&record.id, "echo");
    consented(&*registry, &asked).await;
    let query = AdmissionQuery {
        approval: Some(asked.id.clone()),
        ..question(&record.id, "echo")
    };
    let facts = registry.admission(&query).await.unwrap().unwrap();
    assert_eq!(facts.server.id, record.id);
    assert_eq!(
        facts.server.definition.fingerprint(),
        record.definition.fingerprint()
    );
    assert_eq!(
        (facts.server.status, facts.server.revision),
        (ServerStatus::Active, Revision(1))
    );
    assert!(facts.discovered);
    assert_eq!(facts.tool.unwrap().digest, echo.digest());
    assert_eq!(facts.withheld, None);
    let bound = facts.classification.unwrap();
    assert_eq!(
        (bound.descriptor_digest, bound.revision),
        (echo.digest(), Revision(1))
    );
    assert_eq!(facts.grants, [given]);
    assert_eq!(
        facts.approval,
        Some(approved(&asked)).map(|mut expected| {
            // When it was decided is the only part that the sample does not fix.
            expected.state = registry_state(&facts.approval);
            expected
        })
    );
    let told: Vec<_> = facts.expect.0.iter().map(|(entity, _)| entity.clone()).collect();
    for entity in [
        Entity::Server(record.id.clone()),
        Entity::Inventory(record.id.clone()),
        Entity::Classification(record.id.clone(), echo.name().clone()),
        Entity::Access(record.project.clone()),
        Entity::Approval(asked.id.clone()),
    ] {
        assert!(told.contains(&entity), "{entity} is not among the revisions");
    }
}

fn registry_state(approval: &Option<crate::approval::Approval>) -> crate::approval::ApprovalState {
    let state = approval.as_ref().map(|approval| approval.state.clone()).unwrap();
    assert!(
        matches!(state, crate::approval::ApprovalState::Approved { .. }),
        "{state:?}"
    );
    state
}

pub(super) async fn the_facts_tell_what_is_missing(registry: Arc<dyn Registry>) {
    assert!(
        registry
            .admission(&question(&ServerId::new(), "echo"))
            .await
            .unwrap()
            .is_none()
    );
    let record = registered(&*registry, "weather").await;
    let query = AdmissionQuery {
        approval: Some(ApprovalId::new()),
        ..question(&record.id, "echo")
    };
    let facts = registry.admission(&query).await.unwrap().unwrap();
    assert!(!facts.discovered && facts.tool.is_none() && facts.classification.is_none());
    assert!(facts.approval.is_none() && facts.grants.is_empty() && facts.withheld.is_none());
    let mut listing = listing(vec![descriptor("other", "o")]);
    listing.withheld = vec![WithheldTool {
        name: "broken".to_owned(),
        reason: "its schema is a bomb".to_owned(),
    }];
    let change = Change::RecordDiscovery {
        server: record.id.clone(),
        listing: Box::new(listing),
    };
    commit(&*registry, change).await.unwrap();
    let unlisted = registry
        .admission(&question(&record.id, "echo"))
        .await
        .unwrap()
        .unwrap();
    assert!(unlisted.discovered && unlisted.tool.is_none() && unlisted.withheld.is_none());
    let withheld = registry
        .admission(&question(&record.id, "broken"))
        .await
        .unwrap()
        .unwrap();
    assert!(withheld.tool.is_none());
    assert_eq!(withheld.withheld.as_deref(), Some("its schema is a bomb"));
    let unclassified = registry
        .admission(&question(&record.id, "other"))
        .await
        .unwrap()
        .unwrap();
    assert!(unclassified.tool.is_some() && unclassified.classification.is_none());
}

pub(super) async fn grants_count_by_project_and_visibility(registry: Arc<dyn Registry>) {
    let (mut record, _) = ready(&*registry, "weather").await;
    let (other, _) = ready(&*registry, "other").await;
    let guest = project("guest");
    for (server, project) in [
        (&record.id, &record.project),
        (&record.id, &guest),
        (&record.id, &project("third")),
        (&other.id, &record.project),
    ] {
        let grant = grant(server, project, "caller");
        commit(&*registry, Change::CreateGrant { grant }).await.unwrap();
    }
    let counted = async |caller: &ProjectId| -> Vec<ProjectId> {
        let query = AdmissionQuery {
            project: caller.clone(),
            ..question(&record.id, "echo")
        };
        let facts = registry.admission(&query).await.unwrap().unwrap();
        assert!(
            facts
                .grants
                .iter()
                .all(|grant| grant.server() == Some(&record.id))
        );
        facts.grants.into_iter().map(|grant| grant.project).collect()
    };
    let home = ProjectId::default();
    assert_eq!(counted(&home).await, std::slice::from_ref(&home));
    assert_eq!(
        counted(&guest).await,
        std::slice::from_ref(&home),
        "a foreign project has opened a server"
    );
    record.visibility = Visibility::Public;
    commit(&*registry, updated(&record)).await.unwrap();
    let counted = async |caller: &ProjectId| -> Vec<ProjectId> {
        let query = AdmissionQuery {
            project: caller.clone(),
            ..question(&record.id, "echo")
        };
        let facts = registry.admission(&query).await.unwrap().unwrap();
        let mut projects: Vec<_> = facts.grants.into_iter().map(|grant| grant.project).collect();
        projects.sort();
        projects
    };
    assert_eq!(counted(&home).await, std::slice::from_ref(&home));
    assert_eq!(counted(&guest).await, [home, guest.clone()]);
}

pub(super) async fn only_grants_that_concern_the_call_are_read(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let home = ProjectId::default();
    let given = async |grantee: Grantee, name: Option<&str>| {
        let tools = GrantedTools::Server {
            server: record.id.clone(),
            tool: name.map(tool),
        };
        let grant = Grant {
            grantee,
            tools,
            ..grant(&record.id, &home, "caller")
        };
        commit(&*registry, Change::CreateGrant { grant: grant.clone() })
            .await
            .unwrap();
        grant.id
    };
    let caller = || Grantee::Subject(subject("caller"));
    let concern = [
        given(caller(), None).await,
        given(caller(), Some("echo")).await,
        // Whether the caller holds the scope is for the policy to say.
        given(Grantee::Scope(Scope::Admin), None).await,
        given(Grantee::Scope(Scope::Viewer), Some("echo")).await,
    ];
    given(Grantee::Subject(subject("Caller")), None).await;
    given(caller(), Some("Echo")).await;
    given(Grantee::Scope(Scope::Viewer), Some("other")).await;
    let facts = registry
        .admission(&question(&record.id, "echo"))
        .await
        .unwrap()
        .unwrap();
    let mut read: Vec<_> = facts.grants.into_iter().map(|grant| grant.id).collect();
    read.sort();
    assert_eq!(read, concern);
}

/// Everything that a decision rests on: when it moves between the facts and the intent, the intent is refused.
pub(super) async fn whatever_moves_makes_the_intent_stale(registry: Arc<dyn Registry>) {
    let (mut record, echo) = ready(&*registry, "weather").await;
    record.visibility = Visibility::Public;
    commit(&*registry, updated(&record)).await.unwrap();
    let home = record.project.clone();
    let guest = project("guest");
    let asked = approval(&record.id, "echo");
    commit(
        &*registry,
        Change::CreateApproval {
            approval: Box::new(asked.clone()),
            limit: 1_000,
        },
    )
    .await
    .unwrap();
    let given = grant(&record.id, &guest, "caller");
    let query = AdmissionQuery {
        project: guest.clone(),
        approval: Some(asked.id.clone()),
        ..question(&record.id, "echo")
    };
    let member = |project: &ProjectId| Change::SetMembership {
        membership: Membership {
            project: Some(project.clone()),
            subject: subject("caller"),
            scopes: Scopes::NONE.with(Scope::Viewer),
        },
    };
    let id = || record.id.clone();
    let bound = classification(&record, &echo);
    let two = vec![descriptor("echo", "two")];
    let mut disabled = record.clone();
    disabled.status = ServerStatus::Disabled;
    let changes = [
        updated(&disabled),
        updated(&record),
        Change::RecordDiscovery {
            server: id(),
            listing: Box::new(listing(two)),
        },
        Change::Classify {
            classification: Box::new(bound),
        },
        Change::Declassify {
            server: id(),
            tool: echo.name().clone(),
        },
        Change::CreateGrant {
            grant: grant(&record.id, &home, "caller"),
        },
        Change::CreateGrant { grant: given.clone() },
        Change::DeleteGrant {
            project: guest.clone(),
            id: given.id,
        },
        member(&home),
        member(&guest),
        Change::DecideApproval {
            approval: Box::new(approved(&asked)),
        },
        Change::RemoveServer { id: id() },
    ];
    for change in changes {
        let text = format!("{change:?}");
        let facts = registry.admission(&query).await.unwrap().unwrap();
        commit(&*registry, change)
            .await
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        let call = invocation(&record, "echo");
        let outcome = commit_expecting(&*registry, intent(&call, LEASE), facts.expect).await;
        let Err(error) = outcome else {
            panic!("a call has begun on facts that were changed by {text}");
        };
        assert_eq!(error.kind(), ErrorKind::Conflict, "{text}: {error}");
        assert_eq!(error.reason(), Some(ReasonCode::StaleRevision), "{text}: {error}");
        assert!(registry.invocation(&call.id).await.unwrap().is_none());
    }
}

pub(super) async fn what_does_not_matter_leaves_the_intent_fresh(registry: Arc<dyn Registry>) {
    let (record, echo) = ready(&*registry, "weather").await;
    let (other, _) = ready(&*registry, "other").await;
    let second = descriptor("second", "s");
    discovered(&*registry, &record.id, vec![echo, second.clone()]).await;
    let facts = registry
        .admission(&question(&record.id, "echo"))
        .await
        .unwrap()
        .unwrap();
    let elsewhere = grant(&other.id, &project("other"), "caller");
    let asked = approval(&record.id, "echo");
    for change in [
        Change::RecordConnection {
            server: record.id.clone(),
            at: now(),
            error: None,
        },
        Change::Classify {
            classification: Box::new(classification(&record, &second)),
        },
        Change::CreateGrant { grant: elsewhere },
        Change::CreateApproval {
            approval: Box::new(asked),
            limit: 1_000,
        },
        updated(&other),
        intent(&invocation(&record, "echo"), LEASE),
    ] {
        commit(&*registry, change).await.unwrap();
    }
    let call = invocation(&record, "echo");
    commit_expecting(&*registry, intent(&call, LEASE), facts.expect)
        .await
        .unwrap();
    assert!(registry.invocation(&call.id).await.unwrap().is_some());
}
