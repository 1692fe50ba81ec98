use std::sync::Arc;
use std::time::Duration;

use crate::approval::{Approval, ApprovalState, RequestedTool};
use crate::conformance::samples::*;
use crate::error::ErrorKind;
use crate::id::ApprovalId;
use crate::json::{JsonLimits, JsonText};
use crate::reason::ReasonCode;
use crate::registry::{Change, Registry};

async fn create(registry: &dyn Registry, approval: &Approval) {
    commit(
        registry,
        Change::CreateApproval {
            approval: Box::new(approval.clone()),
            limit: 1_000,
        },
    )
    .await
    .unwrap();
}

pub(super) async fn an_approval_reads_back_whole(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let mut asked = approval(&record.id, "echo");
    let text = "{ \"b\":1.0, \"a\":\"\u{2028}\" }";
    asked.arguments = JsonText::parse(text, JsonLimits::ARGUMENTS).unwrap();
    create(&*registry, &asked).await;
    assert_eq!(registry.approval(&asked.id).await.unwrap(), Some(asked.clone()));
    let note = Some("fine \u{2713}".to_owned());
    asked.state = ApprovalState::Refused {
        by: subject("approver"),
        at: now(),
        note,
    };
    commit(
        &*registry,
        Change::DecideApproval {
            approval: Box::new(asked.clone()),
        },
    )
    .await
    .unwrap();
    assert_eq!(registry.approval(&asked.id).await.unwrap(), Some(asked));
    assert_eq!(
        registry.approval(&crate::id::ApprovalId::new()).await.unwrap(),
        None
    );
}

pub(super) async fn an_approval_is_decided_once(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let asked = approval(&record.id, "echo");
    create(&*registry, &asked).await;
    let decide = || Change::DecideApproval {
        approval: Box::new(approved(&asked)),
    };
    commit(&*registry, decide()).await.unwrap();
    refused(commit(&*registry, decide()).await, ErrorKind::Conflict, None);
}

pub(super) async fn an_expired_approval_is_not_decided(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let mut asked = approval(&record.id, "echo");
    asked.expires_at = ago(Duration::from_secs(1));
    create(&*registry, &asked).await;
    let decide = Change::DecideApproval {
        approval: Box::new(approved(&asked)),
    };
    refused(commit(&*registry, decide).await, ErrorKind::Conflict, None);
    assert_eq!(registry.approval(&asked.id).await.unwrap(), Some(asked));
}

pub(super) async fn the_pending_list_shows_what_waits(registry: Arc<dyn Registry>) {
    let record = registered(&*registry, "weather").await;
    let (waits, decided) = (approval(&record.id, "a"), approval(&record.id, "b"));
    let mut elsewhere = approval(&record.id, "c");
    elsewhere.project = project("other");
    let mut expired = approval(&record.id, "d");
    expired.expires_at = ago(Duration::from_secs(1));
    create(&*registry, &waits).await;
    consented(&*registry, &decided).await;
    create(&*registry, &elsewhere).await;
    create(&*registry, &expired).await;
    let names = async |projects, pending| -> Vec<String> {
        let page = registry.approvals(projects, pending, &first(10)).await.unwrap();
        page.items
            .iter()
            .map(|approval| match &approval.tool {
                RequestedTool::Server { tool, .. } => tool.to_string(),
                RequestedTool::Code { family, .. } => family.to_string(),
            })
            .collect()
    };
    let home = [waits.project.clone()];
    assert_eq!(
        names(None, false).await,
        ["d", "c", "b", "a"],
        "the newest comes first"
    );
    assert_eq!(names(Some(&home[..]), false).await, ["d", "b", "a"]);
    assert_eq!(names(None, true).await, ["c", "a"]);
    assert_eq!(names(Some(&home[..]), true).await, ["a"]);
    assert!(names(Some(&[]), false).await.is_empty());
}

pub(super) async fn an_approval_is_spent_by_one_of_fifty_calls(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let asked = approval(&record.id, "echo");
    consented(&*registry, &asked).await;
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let mut call = invocation(&record, "echo");
            call.approval = Some(asked.id.clone());
            call
        })
        .collect();
    let begun: Vec<_> = calls
        .iter()
        .map(|call| {
            let (registry, change) = (Arc::clone(&registry), intent(call, Duration::from_secs(60)));
            tokio::spawn(async move { commit(&*registry, change).await })
        })
        .collect();
    let mut winners = Vec::new();
    for (call, begun) in calls.iter().zip(begun) {
        match begun.await.unwrap() {
            Ok(_) => winners.push(call.id.clone()),
            outcome => {
                refused(outcome, ErrorKind::Conflict, Some(ReasonCode::ApprovalInvalid));
                assert!(
                    registry.invocation(&call.id).await.unwrap().is_none(),
                    "a loser has begun"
                );
            }
        }
    }
    assert_eq!(winners.len(), 1, "the approval was spent by {}", winners.len());
    let spent = registry.approval(&asked.id).await.unwrap().unwrap();
    let expected = ApprovalState::Spent {
        by: subject("approver"),
        invocation: winners[0].clone(),
    };
    assert_eq!(spent.state, expected);
}

pub(super) async fn what_is_not_approved_cannot_be_spent(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let pending = approval(&record.id, "echo");
    create(&*registry, &pending).await;
    let mut refusal = approval(&record.id, "echo");
    refusal.requested_by = subject("bob");
    create(&*registry, &refusal).await;
    refusal.state = ApprovalState::Refused {
        by: subject("approver"),
        at: now(),
        note: None,
    };
    commit(
        &*registry,
        Change::DecideApproval {
            approval: Box::new(refusal.clone()),
        },
    )
    .await
    .unwrap();
    // Approved in time, and presented too late.
    let mut expired = approval(&record.id, "echo");
    expired.requested_by = subject("cleo");
    expired.expires_at = now() + Duration::from_millis(1_500);
    consented(&*registry, &expired).await;
    eventually("the approval expires", async || now() > expired.expires_at).await;
    for unfit in [&pending, &refusal, &expired] {
        let mut call = invocation(&record, "echo");
        call.approval = Some(unfit.id.clone());
        let before = trail(&*registry).await.len();
        let outcome = commit(&*registry, intent(&call, Duration::from_secs(60))).await;
        refused(outcome, ErrorKind::Conflict, Some(ReasonCode::ApprovalInvalid));
        assert!(registry.invocation(&call.id).await.unwrap().is_none());
        assert_eq!(
            trail(&*registry).await.len(),
            before,
            "a refused change is in the trail"
        );
    }
    let mut call = invocation(&record, "echo");
    call.approval = Some(crate::id::ApprovalId::new());
    let outcome = commit(&*registry, intent(&call, Duration::from_secs(60))).await;
    refused(outcome, ErrorKind::NotFound, None);
}

pub(super) async fn what_is_asked_for_twice_waits_once(registry: Arc<dyn Registry>) {
    let (record, _) = ready(&*registry, "weather").await;
    let mut one = approval(&record.id, "echo");
    one.expires_at = now() + Duration::from_secs(3_600);
    let ask = async |approval: &Approval, limit: usize| {
        let change = Change::CreateApproval {
            approval: Box::new(approval.clone()),
            limit,
        };
        commit(&*registry, change).await
    };
    let again = || Approval {
        id: ApprovalId::new(),
        ..one.clone()
    };
    // Of many that ask at once for the same, one waits.
    let racers: Vec<_> = (0..8).map(|_| again()).collect();
    let outcomes = futures::future::join_all(racers.iter().map(|racer| ask(racer, 2))).await;
    let (made, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|outcome| outcome.is_ok());
    assert_eq!((made.len(), refused.len()), (1, 7));
    let waiting = registry.approvals(None, true, &first(10)).await.unwrap().items;
    assert_eq!(waiting.len(), 1);
    for refusal in refused {
        let error = refusal.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(
            error.context().contains(&("approval", waiting[0].id.to_string())),
            "{error:?}"
        );
    }
    // Another person, another project and other arguments are other requests; a caller's own are counted.
    let mut other = again();
    other.requested_by = subject("bob");
    ask(&other, 2).await.unwrap();
    let mut elsewhere = again();
    elsewhere.project = project("elsewhere");
    ask(&elsewhere, 2).await.unwrap();
    let with_arguments = |text: &str| Approval {
        argument_digest: crate::digest::ArgumentDigest::of(text.as_bytes()),
        ..again()
    };
    ask(&with_arguments("two"), 2).await.unwrap();
    let error = ask(&with_arguments("three"), 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited);
}
