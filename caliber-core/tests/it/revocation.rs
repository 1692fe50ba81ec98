//! A thousand calls race a revocation: whatever started after it was acknowledged is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use caliber_core::grant::Grantee;
use caliber_core::invocation::InvocationOutcome;
use caliber_core::policy::ToolPolicy;
use caliber_core::principal::{Principal, Scope, Surface};
use caliber_core::reason::ReasonCode;
use caliber_core::{Caliber, ErrorKind};
use tokio::sync::watch;

use crate::support::*;

const CALLS: usize = 1_000;

/// How far the revocation is.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Stage {
    Before,
    UnderWay,
    Acknowledged,
}

/// Races calls of `caller` against `revoke`; returns how many were accepted. Some begin before it, some when it
/// begins, some once it is acknowledged; a refused one is refused for `reason`.
async fn race<F>(world: &World, caller: &Principal, reason: ReasonCode, revoke: F) -> usize
where
    F: AsyncFnOnce(&Caliber),
{
    let (stage, _) = watch::channel(Stage::Before);
    let finished = Arc::new(AtomicUsize::new(0));
    let calls: Vec<_> = (0..CALLS)
        .map(|index| {
            let (mut stage, finished) = (stage.subscribe(), Arc::clone(&finished));
            let (caliber, caller) = (world.caliber.clone(), caller.clone());
            let request = world.request("number", &format!(r#"{{"n":{index}}}"#));
            let starts = match index % 10 {
                0..=4 => Stage::Before,
                5..=7 => Stage::UnderWay,
                _ => Stage::Acknowledged,
            };
            tokio::spawn(async move {
                stage.wait_for(|stage| *stage >= starts).await.unwrap();
                // Spread over the race, not all at once.
                for _ in 0..index {
                    tokio::task::yield_now().await;
                }
                let after = *stage.borrow() == Stage::Acknowledged;
                let outcome = caliber.invoke(&caller, request).await;
                finished.fetch_add(1, Ordering::SeqCst);
                if outcome.is_ok() {
                    assert!(!after, "a call was accepted that began after the revocation");
                    return true;
                }
                refused(outcome, ErrorKind::Denied, reason);
                false
            })
        })
        .collect();
    eventually("the race is on", async || {
        finished.load(Ordering::SeqCst) > CALLS / 10
    })
    .await;
    stage.send_replace(Stage::UnderWay);
    revoke(&world.caliber).await;
    stage.send_replace(Stage::Acknowledged);
    let mut accepted = 0;
    for call in calls {
        accepted += usize::from(call.await.unwrap());
    }
    accepted
}

/// Every call has one record, and what was accepted is what reached the server.
async fn adds_up(world: &World, accepted: usize) {
    assert!(
        accepted > 0 && accepted < CALLS,
        "there was no race: {accepted} of {CALLS} were accepted"
    );
    assert_eq!(world.parts.gateway.calls().len(), accepted);
    let outcomes = world.outcomes().await;
    assert_eq!(outcomes.len(), CALLS);
    let ok = outcomes
        .iter()
        .filter(|outcome| **outcome == InvocationOutcome::Ok)
        .count();
    let denied = outcomes
        .iter()
        .filter(|outcome| **outcome == InvocationOutcome::Denied)
        .count();
    assert_eq!((ok, denied), (accepted, CALLS - accepted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_calls_race_the_end_of_a_classification() {
    for policy in [ToolPolicy::allow_read(), allow_write()] {
        let world = World::with(policy).await;
        let id = world.server.id.clone();
        let accepted = race(&world, &admin(), ReasonCode::Unclassified, async |caliber| {
            let admin = admin();
            caliber
                .declassify((&admin, Surface::Library), &id, &tool("number"))
                .await
                .unwrap();
        })
        .await;
        adds_up(&world, accepted).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_calls_race_the_end_of_a_grant() {
    let world = World::with(allow_write()).await;
    let operator = admin();
    let who = (&operator, Surface::Library);
    let grantee = Grantee::Subject(subject("ada"));
    let grant = world
        .caliber
        .grant(who, &world.server.id, grantee, None)
        .await
        .unwrap();
    let caller = person("ada", "default", Scope::Viewer);
    let accepted = race(&world, &caller, ReasonCode::NotGranted, async |caliber| {
        caliber
            .revoke_grant((&admin(), Surface::Library), &grant.id)
            .await
            .unwrap();
    })
    .await;
    adds_up(&world, accepted).await;
}
