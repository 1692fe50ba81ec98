use std::sync::Arc;
use std::time::Duration;

use crate::conformance::samples::*;
use crate::error::ErrorKind;
use crate::grant::{GrantedTools, Grantee, Membership};
use crate::id::{ProjectId, TokenId};
use crate::principal::{Scope, Scopes};
use crate::registry::{Change, Registry};
use crate::token::{TokenRecord, token_hash};

pub(super) async fn grants_are_listed_by_project_in_their_order(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let home = ProjectId::default();
    let mut given = Vec::new();
    for index in 0..5 {
        let mut grant = grant(&record.id, &home, &format!("caller-{index}"));
        if index == 3 {
            grant.grantee = Grantee::Scope(Scope::Operator);
            grant.tools = GrantedTools::Server {
                server: record.id.clone(),
                tool: Some(tool("echo")),
            };
        }
        given.push(grant.clone());
        commit(&*registry, Change::CreateGrant { grant }).await.unwrap();
    }
    let elsewhere = grant(&record.id, &project("other"), "caller");
    commit(
        &*registry,
        Change::CreateGrant {
            grant: elsewhere.clone(),
        },
    )
    .await
    .unwrap();
    assert_eq!(registry.grants(&home, &first(10)).await.unwrap().items, given);
    assert_eq!(
        registry
            .grants(&project("other"), &first(10))
            .await
            .unwrap()
            .items,
        [elsewhere]
    );
    assert!(
        registry
            .grants(&project("none"), &first(10))
            .await
            .unwrap()
            .items
            .is_empty()
    );
}

pub(super) async fn a_grant_ends_in_its_own_project_only(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let home = ProjectId::default();
    let given = grant(&record.id, &home, "caller");
    commit(&*registry, Change::CreateGrant { grant: given.clone() })
        .await
        .unwrap();
    let end = |project: &ProjectId| Change::DeleteGrant {
        project: project.clone(),
        id: given.id.clone(),
    };
    refused(
        commit(&*registry, end(&project("other"))).await,
        ErrorKind::NotFound,
        None,
    );
    assert_eq!(registry.grants(&home, &first(10)).await.unwrap().items.len(), 1);
    commit(&*registry, end(&home)).await.unwrap();
    assert!(registry.grants(&home, &first(10)).await.unwrap().items.is_empty());
    refused(commit(&*registry, end(&home)).await, ErrorKind::NotFound, None);
}

fn membership(to: &str, in_project: Option<&str>, scopes: &[Scope]) -> Membership {
    Membership {
        project: in_project.map(project),
        subject: subject(to),
        scopes: scopes.iter().copied().collect(),
    }
}

async fn set(registry: &dyn Registry, membership: &Membership) {
    let membership = membership.clone();
    commit(registry, Change::SetMembership { membership })
        .await
        .unwrap();
}

pub(super) async fn memberships_hold_in_a_project_or_everywhere(registry: Arc<dyn Registry>) {
    let all = [
        membership("ada", None, &[Scope::Viewer]),
        membership("ada", Some("one"), &[Scope::Admin]),
        membership("ada", Some("two"), &[Scope::Approver]),
    ];
    for membership in &all {
        set(&*registry, membership).await;
    }
    set(&*registry, &membership("bob", Some("one"), &[Scope::Operator])).await;
    let mut held = registry.memberships(&subject("ada")).await.unwrap();
    held.sort_by_key(|membership| membership.project.clone());
    assert_eq!(held, all);
    assert!(registry.memberships(&subject("eve")).await.unwrap().is_empty());
    // A membership is set whole.
    let less = membership("ada", Some("one"), &[Scope::Viewer]);
    set(&*registry, &less).await;
    let held = registry.memberships(&subject("ada")).await.unwrap();
    assert!(held.len() == 3 && held.contains(&less), "{held:?}");
}

pub(super) async fn an_empty_membership_ends_it(registry: Arc<dyn Registry>) {
    for place in [None, Some("one")] {
        set(&*registry, &membership("ada", place, &[Scope::Admin])).await;
        set(&*registry, &membership("ada", place, &[])).await;
        assert!(registry.memberships(&subject("ada")).await.unwrap().is_empty());
        // There is nothing left to end, and that is no error.
        set(&*registry, &membership("ada", place, &[])).await;
    }
}

pub(super) fn token(in_project: Option<&str>) -> TokenRecord {
    TokenRecord {
        id: TokenId::new(),
        subject: subject("ada"),
        project: in_project.map(project),
        scopes: Scopes::NONE.with(Scope::Operator),
        label: "ci \u{2713}".to_owned(),
        created_by: subject("admin"),
        created_at: now(),
        expires_at: Some(ago(Duration::from_secs(60))),
        revoked_at: None,
    }
}

pub(super) async fn create(registry: &dyn Registry, record: &TokenRecord) {
    let change = Change::CreateToken {
        record: record.clone(),
        hash: token_hash(record.id.as_str()),
    };
    commit(registry, change).await.unwrap();
}

pub(super) async fn a_token_is_found_by_its_hash_also_when_it_is_revoked(registry: Arc<dyn Registry>) {
    let made = token(Some("one"));
    create(&*registry, &made).await;
    create(&*registry, &token(Some("one"))).await;
    let hash = token_hash(made.id.as_str());
    assert_eq!(registry.token_by_hash(&hash).await.unwrap(), Some(made.clone()));
    assert_eq!(registry.token_by_hash(&token_hash("other")).await.unwrap(), None);
    let at = now();
    let change = Change::RevokeToken {
        id: made.id.clone(),
        project: None,
        at,
    };
    commit(&*registry, change).await.unwrap();
    let revoked = TokenRecord {
        revoked_at: Some(at),
        ..made
    };
    assert_eq!(registry.token_by_hash(&hash).await.unwrap(), Some(revoked));
}

pub(super) async fn a_token_is_revoked_once_and_where_it_holds(registry: Arc<dyn Registry>) {
    let (inside, everywhere) = (token(Some("one")), token(None));
    create(&*registry, &inside).await;
    create(&*registry, &everywhere).await;
    let revoke = |token: &TokenRecord, place: Option<&str>| Change::RevokeToken {
        id: token.id.clone(),
        project: place.map(project),
        at: now(),
    };
    for (token, place) in [(&inside, Some("two")), (&everywhere, Some("one"))] {
        refused(
            commit(&*registry, revoke(token, place)).await,
            ErrorKind::NotFound,
            None,
        );
    }
    for (token, place) in [(&inside, Some("one")), (&everywhere, None)] {
        commit(&*registry, revoke(token, place)).await.unwrap();
        refused(
            commit(&*registry, revoke(token, place)).await,
            ErrorKind::NotFound,
            None,
        );
    }
}

pub(super) async fn tokens_are_listed_by_project(registry: Arc<dyn Registry>) {
    let made: Vec<_> = [Some("one"), None, Some("two"), Some("one")]
        .into_iter()
        .map(token)
        .collect();
    for token in &made {
        create(&*registry, token).await;
    }
    let ids = async |projects: Option<&[ProjectId]>| -> Vec<TokenId> {
        let page = registry.tokens(projects, &first(10)).await.unwrap();
        page.items.into_iter().map(|token| token.id).collect()
    };
    let id = |index: usize| made[index].id.clone();
    assert_eq!(ids(None).await, [id(3), id(2), id(1), id(0)]);
    assert_eq!(ids(Some(&[project("one")])).await, [id(3), id(0)]);
    assert_eq!(
        ids(Some(&[project("one"), project("two")])).await,
        [id(3), id(2), id(0)]
    );
    assert!(ids(Some(&[])).await.is_empty());
}
