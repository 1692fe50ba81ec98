use std::sync::Arc;
use std::time::Duration;

use crate::audit::AuditAction;
use crate::clock::Timestamp;
use crate::conformance::registry::access::{create, token};
use crate::conformance::samples::*;
use crate::invocation::{InvocationOutcome, InvocationRecord};
use crate::registry::{Change, Commit, Expect, InvocationsOf, Registry, Retention};
use crate::token::TokenRecord;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// What is to be removed: calls, entries, approvals, tokens.
type Before = [Option<Timestamp>; 4];

async fn prune(registry: &dyn Registry, before: Before) -> u64 {
    let [invocations_before, audit_before, approvals_before, tokens_before] = before;
    let entry = entry(AuditAction::Prune, ("installation", "installation"));
    let change = Change::Prune(Retention {
        invocations_before,
        audit_before,
        approvals_before,
        tokens_before,
    });
    let commit = Commit {
        change,
        expect: Expect::nothing(),
        audit: entry.into(),
    };
    registry.commit(commit).await.unwrap().affected
}

async fn prunings(registry: &dyn Registry) -> usize {
    let entries = trail(registry).await;
    entries
        .iter()
        .filter(|entry| entry.action == AuditAction::Prune)
        .count()
}

pub(super) async fn old_calls_are_pruned_and_open_ones_stay(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let ended = |age: Duration| {
        let mut call = settled(invocation(&record, "echo"), InvocationOutcome::Ok);
        call.invocation.started_at = ago(age);
        if let Some(settlement) = &mut call.settlement {
            settlement.ended_at = ago(age);
        }
        call
    };
    let (old, new) = (ended(DAY), ended(Duration::ZERO));
    let records = vec![old.clone(), new.clone()];
    commit(&*registry, Change::RecordInvocations { records })
        .await
        .unwrap();
    let mut open = invocation(&record, "echo");
    open.started_at = ago(DAY);
    commit(&*registry, intent(&open, DAY)).await.unwrap();
    assert_eq!(prune(&*registry, [Some(ago(HOUR)), None, None, None]).await, 1);
    let there = async |record: &InvocationRecord| {
        registry
            .invocation(&record.invocation.id)
            .await
            .unwrap()
            .is_some()
    };
    assert!(!there(&old).await && there(&new).await);
    assert!(
        registry.invocation(&open.id).await.unwrap().is_some(),
        "an open call was pruned"
    );
    assert_eq!(prunings(&*registry).await, 1);
}

pub(super) async fn old_entries_are_pruned(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let mut old = entry(AuditAction::TestConnection, ("mcp_server", record.id.as_str()));
    old.at = ago(DAY);
    let change = Change::RecordConnection {
        server: record.id.clone(),
        at: now(),
        error: None,
    };
    let commit = Commit {
        change,
        expect: Expect::nothing(),
        audit: old.clone().into(),
    };
    registry.commit(commit).await.unwrap();
    let before = trail(&*registry).await.len();
    assert_eq!(prune(&*registry, [None, Some(ago(HOUR)), None, None]).await, 1);
    assert!(registry.audit_entry(&old.id).await.unwrap().is_none());
    // One has gone, and the pruning itself has come.
    assert_eq!(trail(&*registry).await.len(), before);
    assert_eq!(prunings(&*registry).await, 1);
}

pub(super) async fn old_approvals_are_pruned(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let (mut old, new) = (approval(&record.id, "echo"), approval(&record.id, "echo"));
    old.expires_at = ago(DAY);
    for approval in [&old, &new] {
        let approval = Box::new(approval.clone());
        commit(
            &*registry,
            Change::CreateApproval {
                approval,
                limit: 1_000,
            },
        )
        .await
        .unwrap();
    }
    assert_eq!(prune(&*registry, [None, None, Some(ago(HOUR)), None]).await, 1);
    assert!(registry.approval(&old.id).await.unwrap().is_none());
    assert!(registry.approval(&new.id).await.unwrap().is_some());
    assert_eq!(prunings(&*registry).await, 1);
}

pub(super) async fn a_prune_that_finds_nothing_leaves_no_entry(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let records = vec![settled(invocation(&record, "echo"), InvocationOutcome::Ok)];
    commit(&*registry, Change::RecordInvocations { records })
        .await
        .unwrap();
    let old = Some(ago(DAY));
    assert_eq!(prune(&*registry, [old, old, old, old]).await, 0);
    assert_eq!(prune(&*registry, [None, None, None, None]).await, 0);
    assert_eq!(prunings(&*registry).await, 0);
    assert_eq!(
        registry
            .invocations(&InvocationsOf::Everything, &first(10))
            .await
            .unwrap()
            .items
            .len(),
        1
    );
}

pub(super) async fn tokens_that_ended_long_ago_are_pruned(registry: Arc<dyn Registry>) {
    let revoked = token(None);
    let [expired, young, endless] =
        [Some(ago(DAY)), Some(ago(Duration::ZERO)), None].map(|expires_at| TokenRecord {
            expires_at,
            ..token(None)
        });
    for token in [&revoked, &expired, &young, &endless] {
        create(&*registry, token).await;
    }
    let change = Change::RevokeToken {
        id: revoked.id.clone(),
        project: None,
        at: ago(DAY),
    };
    commit(&*registry, change).await.unwrap();
    assert_eq!(prune(&*registry, [None, None, None, Some(ago(HOUR))]).await, 2);
    let left = registry.tokens(None, &first(10)).await.unwrap().items;
    let left: Vec<_> = left.into_iter().map(|token| token.id).collect();
    assert_eq!(left, [endless.id, young.id]);
}
