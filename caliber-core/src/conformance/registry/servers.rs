use std::sync::Arc;

use crate::clock::Timestamp;
use crate::conformance::samples::*;
use crate::descriptor::ToolName;
use crate::error::ErrorKind;
use crate::id::{GrantId, ProjectId, SecretId, ServerId};
use crate::page::PageRequest;
use crate::policy::Classification;
use crate::reason::ReasonCode;
use crate::registry::{Change, NewSecret, Registry, Revision, SecretOwner, ServerQuery};
use crate::secret::SecretText;
use crate::server::{ServerRecord, ServerStatus, Visibility};

/// Everything of a record, as text, to compare.
fn whole(record: &ServerRecord) -> serde_json::Value {
    serde_json::to_value(record).unwrap()
}

pub(super) async fn a_registered_server_reads_back_whole(registry: Arc<dyn Registry>) {
    let mut record = server("weather");
    record.definition.description = "天気 \u{2028} \u{1f326}".to_owned();
    record.visibility = Visibility::Public;
    record.status = ServerStatus::Disabled;
    register(&*registry, &record).await;
    let read = registry.server(&record.id).await.unwrap().unwrap();
    assert_eq!(whole(&read), whole(&record));
    assert_eq!(read.revision, Revision(1));
    let named = registry
        .server_by_name(&record.definition.name)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(whole(&named), whole(&record));
    let listed = registry
        .servers(&ServerQuery::default(), &PageRequest::default())
        .await
        .unwrap();
    assert_eq!(listed.items, [record.summary(0)]);
    assert!(registry.server(&ServerId::new()).await.unwrap().is_none());
    assert!(
        registry
            .server_by_name(&"other".parse().unwrap())
            .await
            .unwrap()
            .is_none()
    );
}

pub(super) async fn a_taken_name_is_refused_and_leaves_nothing(registry: Arc<dyn Registry>) {
    registered(&*registry, "weather").await;
    let before = trail(&*registry).await.len();
    let second = server("weather");
    let change = Change::RegisterServer {
        record: Box::new(second.clone()),
        secrets: Vec::new(),
    };
    refused(
        commit(&*registry, change).await,
        ErrorKind::Conflict,
        Some(ReasonCode::NameTaken),
    );
    assert!(registry.server(&second.id).await.unwrap().is_none());
    assert_eq!(
        trail(&*registry).await.len(),
        before,
        "a refused change is in the trail"
    );
}

pub(super) async fn an_update_moves_the_revision_and_keeps_the_rest(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let mut after = record.clone();
    after.definition.description = "changed".to_owned();
    after.owner = subject("heir");
    after.visibility = Visibility::User;
    after.status = ServerStatus::Disabled;
    after.updated_at = now();
    // What an update does not set: the store knows better.
    after.revision = Revision(77);
    after.project = project("elsewhere");
    after.created_at = Timestamp::UNIX_EPOCH;
    let change = Change::UpdateServer {
        record: Box::new(after.clone()),
        secrets: Vec::new(),
    };
    assert_eq!(commit(&*registry, change).await.unwrap().revision, Revision(2));
    let read = registry.server(&record.id).await.unwrap().unwrap();
    let expected = ServerRecord {
        revision: Revision(2),
        project: record.project.clone(),
        created_at: record.created_at,
        ..after
    };
    assert_eq!(whole(&read), whole(&expected));
}

pub(super) async fn an_update_keeps_how_connections_went(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let connected = Change::RecordConnection {
        server: record.id.clone(),
        at: now(),
        error: Some("no route".to_owned()),
    };
    commit(&*registry, connected).await.unwrap();
    // Decided on what was read before the connection was tried.
    let change = Change::UpdateServer {
        record: Box::new(record.clone()),
        secrets: Vec::new(),
    };
    commit(&*registry, change).await.unwrap();
    let read = registry.server(&record.id).await.unwrap().unwrap();
    assert_eq!(read.connection_error.as_deref(), Some("no route"));
}

pub(super) async fn a_connection_is_recorded_and_moves_nothing(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let at = now();
    for (error, connected, failed) in [
        (None, Some(at), None),
        (Some("no route".to_owned()), Some(at), Some("no route".to_owned())),
        (None, Some(at), None),
    ] {
        let change = Change::RecordConnection {
            server: record.id.clone(),
            at,
            error,
        };
        assert_eq!(commit(&*registry, change).await.unwrap().revision, Revision(0));
        let read = registry.server(&record.id).await.unwrap().unwrap();
        assert_eq!(
            (read.last_connected_at, read.connection_error),
            (connected, failed)
        );
        assert_eq!(read.revision, Revision(1));
    }
}

pub(super) async fn what_is_absent_cannot_be_changed(registry: Arc<dyn Registry>) {
    let absent = server("absent");
    let echo = descriptor("echo", "one");
    let (present, _) = ready(&*registry, "present").await;
    let before = trail(&*registry).await.len();
    let id = || absent.id.clone();
    let changes = [
        Change::UpdateServer {
            record: Box::new(absent.clone()),
            secrets: Vec::new(),
        },
        Change::RemoveServer { id: id() },
        Change::RecordConnection {
            server: id(),
            at: now(),
            error: None,
        },
        Change::RecordDiscovery {
            server: id(),
            listing: Box::new(listing(vec![echo.clone()])),
        },
        Change::Classify {
            classification: Box::new(classification(&absent, &echo)),
        },
        Change::Declassify {
            server: id(),
            tool: echo.name().clone(),
        },
        Change::Declassify {
            server: present.id.clone(),
            tool: tool("other"),
        },
        Change::CreateGrant {
            grant: grant(&absent.id, &ProjectId::default(), "caller"),
        },
        Change::DeleteGrant {
            project: ProjectId::default(),
            id: GrantId::new(),
        },
        Change::RevokeToken {
            id: crate::id::TokenId::new(),
            project: None,
            at: now(),
        },
        Change::DecideApproval {
            approval: Box::new(approved(&approval(&present.id, "echo"))),
        },
        Change::SettleInvocation {
            id: crate::id::InvocationId::new(),
            settlement: Box::new(settlement(crate::invocation::InvocationOutcome::Ok)),
        },
    ];
    for change in changes {
        let text = format!("{change:?}");
        let error = commit(&*registry, change).await.expect_err(&text);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{text}: {error}");
    }
    assert!(registry.inventory(&absent.id).await.unwrap().is_none());
    assert_eq!(
        trail(&*registry).await.len(),
        before,
        "a refused change is in the trail"
    );
}

pub(super) async fn a_removed_server_takes_everything_along(registry: Arc<dyn Registry>) {
    let (record, echo) = ready(&*registry, "weather").await;
    let (other, _) = ready(&*registry, "other").await;
    let given = grant(&record.id, &ProjectId::default(), "caller");
    let kept = grant(&other.id, &ProjectId::default(), "caller");
    for grant in [given, kept.clone()] {
        commit(&*registry, Change::CreateGrant { grant }).await.unwrap();
    }
    commit(
        &*registry,
        Change::RemoveServer {
            id: record.id.clone(),
        },
    )
    .await
    .unwrap();
    assert!(registry.server(&record.id).await.unwrap().is_none());
    assert!(
        registry
            .server_by_name(&record.definition.name)
            .await
            .unwrap()
            .is_none()
    );
    assert!(registry.inventory(&record.id).await.unwrap().is_none());
    assert!(registry.tool(&record.id, echo.name()).await.unwrap().is_none());
    assert!(
        registry
            .tools(&record.id, &first(10))
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert!(
        registry
            .admission(&question(&record.id, "echo"))
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        registry
            .grants(&ProjectId::default(), &first(10))
            .await
            .unwrap()
            .items,
        [kept]
    );
    // The neighbour is as it was.
    let view = registry.tool(&other.id, echo.name()).await.unwrap().unwrap();
    assert!(view.classification.is_some());
}

pub(super) async fn a_removed_name_comes_back_empty(registry: Arc<dyn Registry>) {
    let secret = SecretId::new();
    let old = with_token(server("weather"), &secret);
    let secrets = vec![NewSecret {
        id: secret,
        owner: SecretOwner::Server(old.id.clone()),
        value: SecretText::new("canary"),
    }];
    let change = Change::RegisterServer {
        record: Box::new(old.clone()),
        secrets,
    };
    commit(&*registry, change).await.unwrap();
    let echo = descriptor("echo", "one");
    discovered(&*registry, &old.id, vec![echo.clone()]).await;
    classified(&*registry, &old, &echo).await;
    let grant = grant(&old.id, &ProjectId::default(), "caller");
    commit(&*registry, Change::CreateGrant { grant }).await.unwrap();
    commit(&*registry, Change::RemoveServer { id: old.id.clone() })
        .await
        .unwrap();

    let new = registered(&*registry, "weather").await;
    let named = registry
        .server_by_name(&new.definition.name)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((named.id, named.revision), (new.id.clone(), Revision(1)));
    assert!(registry.inventory(&new.id).await.unwrap().is_none());
    discovered(&*registry, &new.id, vec![echo.clone()]).await;
    let none: Option<Classification> = None;
    let view = registry
        .tool(&new.id, echo.name() as &ToolName)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(view.classification, none, "a classification outlived its server");
    let facts = registry
        .admission(&question(&new.id, "echo"))
        .await
        .unwrap()
        .unwrap();
    assert!(facts.grants.is_empty(), "a grant outlived its server");
}
