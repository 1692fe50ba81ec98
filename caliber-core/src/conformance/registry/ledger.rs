use std::sync::Arc;
use std::time::Duration;

use crate::audit::{AuditAction, AuditEntries, AuditEntry};
use crate::conformance::samples::*;
use crate::error::ErrorKind;
use crate::id::InvocationId;
use crate::invocation::{InvocationOutcome, InvocationRecord, InvokedTool};
use crate::registry::{Change, Commit, Committed, Expect, InvocationsOf, Registry};

const LONG: Duration = Duration::from_secs(600);
const NO_TIME: Duration = Duration::ZERO;

fn settle(id: &InvocationId, outcome: InvocationOutcome) -> Change {
    Change::SettleInvocation {
        id: id.clone(),
        settlement: Box::new(settlement(outcome)),
    }
}

pub(super) async fn a_call_begins_and_settles(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let (other, _) = ready(&*registry, "other").await;
    let mut call = invocation(&record, "echo");
    call.break_glass = Some("the pager".to_owned());
    commit(&*registry, intent(&call, LONG)).await.unwrap();
    let open = InvocationRecord {
        invocation: call.clone(),
        settlement: None,
    };
    assert_eq!(registry.invocation(&call.id).await.unwrap(), Some(open));
    let end = settlement(InvocationOutcome::ToolError);
    let change = Change::SettleInvocation {
        id: call.id.clone(),
        settlement: Box::new(end.clone()),
    };
    commit(&*registry, change).await.unwrap();
    let closed = InvocationRecord {
        invocation: call,
        settlement: Some(end),
    };
    let second = invocation(&record, "echo");
    commit(&*registry, intent(&second, LONG)).await.unwrap();
    let elsewhere = invocation(&other, "echo");
    commit(&*registry, intent(&elsewhere, LONG)).await.unwrap();
    let listed = registry
        .invocations(&InvocationsOf::Server(record.id.clone()), &first(10))
        .await
        .unwrap()
        .items;
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0].invocation.id, second.id, "the newest comes first");
    assert_eq!(listed[1], closed);
    assert_eq!(
        registry
            .invocations(&InvocationsOf::Everything, &first(10))
            .await
            .unwrap()
            .items
            .len(),
        3
    );
}

pub(super) async fn the_first_settlement_stands(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let call = invocation(&record, "echo");
    commit(&*registry, intent(&call, LONG)).await.unwrap();
    let attempts: Vec<_> = InvocationOutcome::ALL
        .into_iter()
        .map(|outcome| {
            let (registry, change) = (Arc::clone(&registry), settle(&call.id, outcome));
            tokio::spawn(async move { (outcome, commit(&*registry, change).await) })
        })
        .collect();
    let mut stands = Vec::new();
    for attempt in attempts {
        match attempt.await.unwrap() {
            (outcome, Ok(_)) => stands.push(outcome),
            (_, refusal) => drop(refused(refusal, ErrorKind::Conflict, None)),
        }
    }
    assert_eq!(stands.len(), 1, "several settlements were taken: {stands:?}");
    let read = registry.invocation(&call.id).await.unwrap().unwrap();
    assert_eq!(read.settlement.unwrap().outcome, stands[0]);
}

pub(super) async fn a_call_begins_once(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let call = invocation(&record, "echo");
    commit(&*registry, intent(&call, LONG)).await.unwrap();
    commit(&*registry, settle(&call.id, InvocationOutcome::Ok))
        .await
        .unwrap();
    refused(
        commit(&*registry, intent(&call, LONG)).await,
        ErrorKind::Conflict,
        None,
    );
    assert!(
        registry
            .invocation(&call.id)
            .await
            .unwrap()
            .unwrap()
            .settlement
            .is_some()
    );
}

/// The records with the entry of each.
fn recorded(records: &[InvocationRecord]) -> Commit {
    let mut entries = records
        .iter()
        .map(|record| AuditEntry::of_invocation(&record.invocation, record.settlement.as_ref().unwrap()));
    let first = entries.next().unwrap();
    Commit {
        change: Change::RecordInvocations {
            records: records.to_vec(),
        },
        expect: Expect::nothing(),
        audit: AuditEntries::new(first, entries.collect()),
    }
}

pub(super) async fn recorded_calls_are_kept_with_their_entries(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let mut call = invocation(&record, "echo");
    if let InvokedTool::Server {
        descriptor_digest,
        policy_revision,
        ..
    } = &mut call.tool
    {
        *descriptor_digest = None;
        *policy_revision = None;
    }
    call.side_effect_level = None;
    let records: Vec<_> = InvocationOutcome::ALL
        .into_iter()
        .map(|outcome| {
            let id = InvocationId::new();
            settled(crate::invocation::Invocation { id, ..call.clone() }, outcome)
        })
        .collect();
    let before = trail(&*registry).await.len();
    registry.commit(recorded(&records)).await.unwrap();
    for record in &records {
        let read = registry.invocation(&record.invocation.id).await.unwrap();
        assert_eq!(read.as_ref(), Some(record));
    }
    let entries = trail(&*registry).await;
    assert_eq!(entries.len(), before + records.len());
    assert!(
        entries[..records.len()]
            .iter()
            .all(|entry| entry.action == AuditAction::InvokeTool)
    );
}

/// Whoever lost the answer of a commit makes it again, with more that has come in meanwhile.
pub(super) async fn recording_again_changes_nothing(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let call = || settled(invocation(&record, "echo"), InvocationOutcome::Ok);
    let (one, two) = (call(), call());
    let Commit {
        change,
        expect,
        audit,
    } = recorded(std::slice::from_ref(&one));
    let again = audit.clone();
    registry
        .commit(Commit {
            change,
            expect,
            audit,
        })
        .await
        .unwrap();
    let before = trail(&*registry).await.len();
    let mut altered = one.clone();
    altered.settlement = Some(settlement(InvocationOutcome::Denied));
    let second = recorded(std::slice::from_ref(&two)).audit;
    let entries: Vec<_> = again.iter().chain(second.iter()).cloned().collect();
    let commit = Commit {
        change: Change::RecordInvocations {
            records: vec![altered, two.clone()],
        },
        expect: Expect::nothing(),
        audit: AuditEntries::new(entries[0].clone(), entries[1..].to_vec()),
    };
    registry.commit(commit).await.unwrap();
    assert_eq!(registry.invocation(&one.invocation.id).await.unwrap(), Some(one));
    assert_eq!(registry.invocation(&two.invocation.id).await.unwrap(), Some(two));
    assert_eq!(
        trail(&*registry).await.len(),
        before + 1,
        "an entry is there twice, or was lost"
    );
}

async fn sweep(registry: &dyn Registry, limit: u32) -> Committed {
    let entry = entry(AuditAction::SettleOrphans, ("installation", "installation"));
    let change = Change::SettleOrphans { limit };
    registry
        .commit(Commit {
            change,
            expect: Expect::nothing(),
            audit: entry.into(),
        })
        .await
        .unwrap()
}

pub(super) async fn a_sweep_settles_what_outlived_its_lease(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let calls = [
        invocation(&record, "a"),
        invocation(&record, "b"),
        invocation(&record, "c"),
    ];
    let [orphan, alive, done] = &calls;
    commit(&*registry, intent(orphan, NO_TIME)).await.unwrap();
    commit(&*registry, intent(alive, LONG)).await.unwrap();
    commit(&*registry, intent(done, NO_TIME)).await.unwrap();
    commit(&*registry, settle(&done.id, InvocationOutcome::Ok))
        .await
        .unwrap();
    let mut swept = 0;
    eventually("the orphan is swept", async || {
        swept += sweep(&*registry, 100).await.affected;
        swept > 0
    })
    .await;
    assert_eq!(swept, 1);
    let outcome = async |call: &crate::invocation::Invocation| {
        let read = registry.invocation(&call.id).await.unwrap().unwrap();
        read.settlement.map(|settlement| settlement.outcome)
    };
    assert_eq!(outcome(orphan).await, Some(InvocationOutcome::OutcomeUnknown));
    assert_eq!(outcome(alive).await, None);
    assert_eq!(outcome(done).await, Some(InvocationOutcome::Ok));
    let entries = trail(&*registry).await;
    let of = |action| entries.iter().filter(move |entry| entry.action == action);
    assert_eq!(of(AuditAction::SettleOrphans).count(), 1);
    let told: Vec<_> = of(AuditAction::InvokeTool).collect();
    assert_eq!(told.len(), 1, "the orphan has one entry of its own");
    let details: serde_json::Value = told[0].details.read().unwrap();
    assert_eq!(details["invocation_id"], orphan.id.as_str());
    assert_eq!(details["outcome"], "outcome_unknown");
    // The instance that was slow finds its call settled.
    let late = commit(&*registry, settle(&orphan.id, InvocationOutcome::Ok)).await;
    refused(late, ErrorKind::Conflict, None);
}

pub(super) async fn a_sweep_keeps_to_its_limit(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    for _ in 0..5 {
        commit(&*registry, intent(&invocation(&record, "echo"), NO_TIME))
            .await
            .unwrap();
    }
    let mut counts = Vec::new();
    eventually("all are swept", async || {
        let affected = sweep(&*registry, 2).await.affected;
        assert!(affected <= 2);
        if affected > 0 {
            counts.push(affected);
        }
        counts.iter().sum::<u64>() == 5
    })
    .await;
    assert!(counts.len() >= 3);
    assert_eq!(sweep(&*registry, 2).await.affected, 0);
}

pub(super) async fn a_sweep_that_finds_nothing_leaves_no_entry(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    commit(&*registry, intent(&invocation(&record, "echo"), LONG))
        .await
        .unwrap();
    let before = trail(&*registry).await.len();
    assert_eq!(sweep(&*registry, 100).await.affected, 0);
    assert_eq!(trail(&*registry).await.len(), before);
}
