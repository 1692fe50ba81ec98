//! Consent: asked for, given by somebody else, spent once, for the very call.

use std::time::Duration;

use caliber_core::approval::{Approval, ApprovalState};
use caliber_core::audit::AuditAction;
use caliber_core::id::ApprovalId;
use caliber_core::invocation::InvocationOutcome;
use caliber_core::memory::Parts;
use caliber_core::page::PageRequest;
use caliber_core::policy::ToolPolicy;
use caliber_core::principal::{Principal, Scope, Surface};
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind, InvokeOutcome, Result, Settings};

use crate::support::*;

/// The request that an error names.
fn asked(error: &Error) -> ApprovalId {
    let context = error.context().iter().find(|(key, _)| *key == "approval");
    context.expect("the error names the request").1.parse().unwrap()
}

async fn call(
    world: &World,
    who: &Principal,
    arguments: &str,
    approval: Option<&ApprovalId>,
) -> Result<InvokeOutcome> {
    let mut request = world.request("number", arguments);
    request.approval = approval.cloned();
    world.caliber.invoke(who, request).await
}

/// Asks for consent to the usual call.
async fn ask(world: &World, who: &Principal) -> ApprovalId {
    let outcome = call(world, who, ARGUMENTS, None).await;
    asked(&refused(
        outcome,
        ErrorKind::ApprovalNeeded,
        ReasonCode::ApprovalRequired,
    ))
}

async fn decide(world: &World, who: &Principal, id: &ApprovalId, consent: bool) -> Result<Approval> {
    world
        .caliber
        .decide_approval((who, Surface::Http), id, consent, Some("seen".into()))
        .await
}

fn approver() -> Principal {
    person("grace", "default", Scope::Approver)
}

#[tokio::test]
async fn consent_is_asked_for_given_and_spent_once() {
    let world = World::with(allow_with_approval()).await;
    let ada = world.caller("ada").await;
    let id = ask(&world, &ada).await;
    let waits = world.caliber.approval(&ada, &id).await.unwrap();
    assert_eq!(
        (waits.state, waits.arguments.as_str()),
        (ApprovalState::Pending, ARGUMENTS)
    );
    // Nobody has decided yet.
    let early = call(&world, &ada, ARGUMENTS, Some(&id)).await;
    refused(early, ErrorKind::Denied, ReasonCode::ApprovalRequired);
    let pending = world
        .caliber
        .approvals(&approver(), true, &PageRequest::default())
        .await
        .unwrap();
    assert_eq!(pending.items.len(), 1);

    let decided = decide(&world, &approver(), &id, true).await.unwrap();
    assert!(matches!(decided.state, ApprovalState::Approved { .. }));
    refused(
        decide(&world, &approver(), &id, false).await,
        ErrorKind::Conflict,
        None,
    );
    // The very call, and nothing else.
    for arguments in [r#"{"n":2}"#, r#"{"n":1,"m":2}"#, r#"{"n":1.0}"#] {
        let other = call(&world, &ada, arguments, Some(&id)).await;
        refused(other, ErrorKind::Denied, ReasonCode::ApprovalInvalid);
    }
    let bob = world.caller("bob").await;
    let stolen = call(&world, &bob, ARGUMENTS, Some(&id)).await;
    refused(stolen, ErrorKind::Denied, ReasonCode::ApprovalInvalid);
    assert!(world.parts.gateway.calls().is_empty());

    // White space makes no other call.
    let outcome = call(&world, &ada, "{ \"n\" : 1 }", Some(&id)).await.unwrap();
    let spent = world.caliber.approval(&ada, &id).await.unwrap();
    let by = subject("grace");
    assert_eq!(
        spent.state,
        ApprovalState::Spent {
            by,
            invocation: outcome.invocation.clone()
        }
    );
    let again = call(&world, &ada, ARGUMENTS, Some(&id)).await;
    refused(again, ErrorKind::Denied, ReasonCode::ApprovalInvalid);
    assert_eq!(world.parts.gateway.calls().len(), 1);
    let calls = world.ledger().await;
    let made: Vec<_> = calls
        .iter()
        .filter(|call| call.invocation.approval.is_some())
        .collect();
    assert_eq!(
        made.len(),
        1,
        "only the call that has spent the approval names it"
    );
    assert_eq!(made[0].invocation.id, outcome.invocation);
    for action in [AuditAction::RequestApproval, AuditAction::DecideApproval] {
        assert_eq!(world.trail(action).await.len(), 1, "{action}");
    }
}

#[tokio::test]
async fn nobody_decides_about_their_own_call() {
    let world = World::with(allow_with_approval()).await;
    let ada = world.caller("ada").await;
    let id = ask(&world, &ada).await;
    for scope in [Scope::Viewer, Scope::Operator, Scope::Approver, Scope::Admin] {
        let own = person("ada", "default", scope);
        refused(decide(&world, &own, &id, true).await, ErrorKind::Forbidden, None);
    }
    let everywhere = Principal {
        subject: subject("ada"),
        ..admin()
    };
    refused(
        decide(&world, &everywhere, &id, true).await,
        ErrorKind::Forbidden,
        None,
    );
    assert_eq!(
        world.caliber.approval(&ada, &id).await.unwrap().state,
        ApprovalState::Pending
    );
}

#[tokio::test]
async fn only_approvers_of_the_project_decide_and_look() {
    let world = World::with(allow_with_approval()).await;
    let ada = world.caller("ada").await;
    let id = ask(&world, &ada).await;
    for scope in [Scope::Viewer, Scope::Operator] {
        let other = person("eve", "default", scope);
        refused(
            world.caliber.approval(&other, &id).await,
            ErrorKind::NotFound,
            None,
        );
        refused(decide(&world, &other, &id, true).await, ErrorKind::NotFound, None);
        let list = world
            .caliber
            .approvals(&other, false, &PageRequest::default())
            .await
            .unwrap();
        assert!(list.items.is_empty());
    }
    let elsewhere = person("eve", "other", Scope::Admin);
    refused(
        decide(&world, &elsewhere, &id, true).await,
        ErrorKind::NotFound,
        None,
    );
    let long = Some("x".repeat(1_001));
    let grace = approver();
    let noted = world
        .caliber
        .decide_approval((&grace, Surface::Http), &id, true, long)
        .await;
    assert_eq!(refused(noted, ErrorKind::Invalid, None).fields()[0].field, "note");
    decide(&world, &person("root", "default", Scope::Admin), &id, true)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_refusal_and_an_end_of_time_are_final() {
    let world = World::with(allow_with_approval()).await;
    let ada = world.caller("ada").await;
    let id = ask(&world, &ada).await;
    decide(&world, &approver(), &id, false).await.unwrap();
    let outcome = call(&world, &ada, ARGUMENTS, Some(&id)).await;
    refused(outcome, ErrorKind::Denied, ReasonCode::ApprovalInvalid);

    // A new request for the same call can be made, and expires before anybody decides.
    let second = ask(&world, &ada).await;
    assert_ne!(second, id);
    world.parts.clock.advance(Duration::from_secs(3_600));
    refused(
        decide(&world, &approver(), &second, true).await,
        ErrorKind::Conflict,
        None,
    );

    // A third is approved in time, and presented too late.
    let third = ask(&world, &ada).await;
    assert_ne!(third, second);
    decide(&world, &approver(), &third, true).await.unwrap();
    world.parts.clock.advance(Duration::from_secs(3_600));
    let outcome = call(&world, &ada, ARGUMENTS, Some(&third)).await;
    refused(outcome, ErrorKind::Denied, ReasonCode::ApprovalInvalid);
    assert!(world.parts.gateway.calls().is_empty());
    assert!(
        world
            .outcomes()
            .await
            .iter()
            .all(|outcome| *outcome == InvocationOutcome::Denied)
    );
}

#[tokio::test]
async fn consent_ends_with_what_it_was_given_for() {
    let world = World::with(allow_with_approval()).await;
    let ada = world.caller("ada").await;
    let id = ask(&world, &ada).await;
    decide(&world, &approver(), &id, true).await.unwrap();
    // The tool changes, and an admin classifies what it is now: the consent was to something else.
    let changed = number_tool("number").described("changed").unwrap();
    let server = caliber_core::memory::ScriptedServer::new([changed]);
    world.parts.gateway.serve(&world.server.definition.name, server);
    let admin = admin();
    world
        .caliber
        .discover((&admin, Surface::Library), &world.server.id)
        .await
        .unwrap();
    world.classify("number", allow_with_approval()).await;
    let outcome = call(&world, &ada, ARGUMENTS, Some(&id)).await;
    refused(outcome, ErrorKind::Denied, ReasonCode::ApprovalInvalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_calls_race_for_one_consent() {
    let world = World::with(allow_with_approval()).await;
    let ada = world.caller("ada").await;
    let id = ask(&world, &ada).await;
    decide(&world, &approver(), &id, true).await.unwrap();
    let racers: Vec<_> = (0..50)
        .map(|_| {
            let (caliber, ada) = (world.caliber.clone(), ada.clone());
            let mut request = world.request("number", ARGUMENTS);
            request.approval = Some(id.clone());
            tokio::spawn(async move { caliber.invoke(&ada, request).await })
        })
        .collect();
    let mut accepted = 0;
    for racer in racers {
        match racer.await.unwrap() {
            Ok(_) => accepted += 1,
            loser => drop(refused(loser, ErrorKind::Denied, ReasonCode::ApprovalInvalid)),
        }
    }
    assert_eq!((accepted, world.parts.gateway.calls().len()), (1, 1));
    assert_eq!(world.ledger().await.len(), 51);
}

#[tokio::test]
async fn asking_again_finds_the_request_that_waits_and_no_caller_can_flood() {
    let parts = Parts::new();
    let caliber = parts.caliber_with(Settings {
        waiting_approvals: 3,
        ..Settings::default()
    });
    let world = World::around(parts, caliber, vec![number_tool("number")]).await;
    world.classify("number", allow_with_approval()).await;
    let (ada, bob) = (world.caller("ada").await, world.caller("bob").await);
    let first = ask(&world, &ada).await;
    assert_eq!(ask(&world, &ada).await, first);
    assert_ne!(
        ask(&world, &bob).await,
        first,
        "one caller has got the request of another"
    );
    for n in 2..=3 {
        let outcome = call(&world, &ada, &format!(r#"{{"n":{n}}}"#), None).await;
        refused(outcome, ErrorKind::ApprovalNeeded, ReasonCode::ApprovalRequired);
    }
    let outcome = call(&world, &ada, r#"{"n":4}"#, None).await;
    refused(outcome, ErrorKind::RateLimited, ReasonCode::ApprovalRequired);
    assert_eq!(
        ask(&world, &ada).await,
        first,
        "a request that waits is still found"
    );
    // A decision makes room.
    decide(&world, &approver(), &first, false).await.unwrap();
    let outcome = call(&world, &ada, r#"{"n":4}"#, None).await;
    refused(outcome, ErrorKind::ApprovalNeeded, ReasonCode::ApprovalRequired);
}

#[tokio::test]
async fn a_read_tool_can_need_consent_too() {
    let policy = ToolPolicy {
        requires_approval: true,
        ..ToolPolicy::allow_read()
    };
    let world = World::with(policy).await;
    let ada = world.caller("ada").await;
    let id = ask(&world, &ada).await;
    decide(&world, &approver(), &id, true).await.unwrap();
    call(&world, &ada, ARGUMENTS, Some(&id)).await.unwrap();
    // Where an approval is spent, the intent is committed first.
    assert_eq!(world.trail(AuditAction::BeginInvocation).await.len(), 1);
    let again = call(&world, &ada, ARGUMENTS, Some(&id)).await;
    refused(again, ErrorKind::Denied, ReasonCode::ApprovalInvalid);
}

#[tokio::test]
async fn a_page_of_own_requests_is_full_where_there_are_enough() {
    let world = World::with(allow_with_approval()).await;
    let (ada, bob) = (world.caller("ada").await, world.caller("bob").await);
    for n in 0..12 {
        let who = if n % 3 == 0 { &ada } else { &bob };
        let outcome = call(&world, who, &format!(r#"{{"n":{n}}}"#), None).await;
        refused(outcome, ErrorKind::ApprovalNeeded, ReasonCode::ApprovalRequired);
    }
    let seen = async |who: &Principal, limit: u32| -> Vec<String> {
        let mut request = PageRequest::first(limit);
        let mut seen = Vec::new();
        loop {
            let page = world.caliber.approvals(who, true, &request).await.unwrap();
            assert!(
                page.next.is_none() || page.items.len() == limit as usize,
                "a page is short"
            );
            seen.extend(
                page.items
                    .iter()
                    .map(|approval| approval.arguments.as_str().to_owned()),
            );
            match page.next {
                None => return seen,
                Some(cursor) => request.cursor = Some(cursor),
            }
        }
    };
    let own = [r#"{"n":9}"#, r#"{"n":6}"#, r#"{"n":3}"#, r#"{"n":0}"#];
    for limit in [1, 2, 3, 50] {
        assert_eq!(seen(&ada, limit).await, own);
        assert_eq!(seen(&approver(), limit).await.len(), 12);
    }
}
