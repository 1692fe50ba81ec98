//! A thousand calls race a revoke: none that began after the revoke was acknowledged reaches the upstream.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use caliber::core::ServerPatch;
use caliber::core::grant::Grantee;
use caliber::core::invocation::InvocationOutcome;
use caliber::core::policy::{SideEffectLevel, ToolPolicy};
use caliber::core::reason::ReasonCode;
use caliber::core::server::ServerStatus;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{Rig, Server, Transport, Upstream, eventually, outcomes, policy_for};

const CALLS: usize = 1_000;
/// Callers at once; each makes one call after the other.
const CALLERS: usize = 20;
/// How many calls have ended when the revoke begins.
const BEFORE: usize = 250;

/// One call: when it was asked for, and whether the tool answered or with which code it was refused.
#[derive(Debug)]
struct Made {
    number: usize,
    started: Instant,
    refused: Option<ReasonCode>,
}

/// Makes the calls, revokes in the middle of them, and looks at what was executed.
async fn race<F, Fut>(policy: ToolPolicy, reason: ReasonCode, revoke: F)
where
    F: FnOnce(Server, caliber::core::grant::Grant) -> Fut,
    Fut: Future<Output = ()>,
{
    let rig = Rig::open().await;
    let upstream = Upstream::start(Transport::Http, &[]).await;
    let server = rig.register("raced", upstream.endpoint()).await;
    server.discover().await.unwrap();
    server.classify("echo", policy).await.unwrap();
    let grant = server.open_to(Grantee::Subject(rig.ada.subject.clone())).await;

    let (next, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (server, ada) = (server.clone(), rig.ada.clone());
        let (next, ended) = (Arc::clone(&next), Arc::clone(&ended));
        callers.spawn(async move {
            let mut made = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::SeqCst);
                if number >= CALLS {
                    return made;
                }
                let started = Instant::now();
                let outcome = server
                    .call(&ada, "echo", json!({ "value": format!("call-{number}.") }))
                    .await;
                let refused = outcome
                    .err()
                    .map(|error| error.reason().expect("a refusal has a code"));
                made.push(Made {
                    number,
                    started,
                    refused,
                });
                ended.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    eventually("some calls have ended", || async {
        (ended.load(Ordering::SeqCst) >= BEFORE).then_some(())
    })
    .await;
    revoke(server.clone(), grant).await;
    let acknowledged = Instant::now();
    let made: Vec<Made> = callers.join_all().await.into_iter().flatten().collect();

    let requests = upstream.records().text("requests");
    let executed: BTreeSet<usize> = made
        .iter()
        .map(|call| call.number)
        .filter(|number| requests.contains(&format!("\"call-{number}.\"")))
        .collect();
    let late: Vec<&Made> = made.iter().filter(|call| call.started > acknowledged).collect();
    assert!(
        late.len() > CALLERS,
        "only {} calls began after the revoke: this was no race",
        late.len()
    );
    for call in &late {
        assert_eq!(
            call.refused,
            Some(reason),
            "call {} began after the revoke",
            call.number
        );
        assert!(
            !executed.contains(&call.number),
            "call {} was executed after the revoke",
            call.number
        );
    }
    let accepted = made.iter().filter(|call| call.refused.is_none()).count();
    assert!(
        accepted >= BEFORE,
        "only {accepted} calls were accepted before the revoke"
    );
    assert_eq!(
        upstream.records().executions_of("echo"),
        executed.len(),
        "no call was executed twice"
    );
    assert_eq!(
        accepted,
        executed.len(),
        "what was executed was answered, and nothing else"
    );
    let ledger = outcomes(&server).await;
    let answered = ledger
        .iter()
        .filter(|outcome| **outcome == InvocationOutcome::Ok)
        .count();
    assert_eq!(
        (ledger.len(), answered),
        (CALLS, accepted),
        "each call has one record"
    );
}

async fn declassify(server: Server, _: caliber::core::grant::Grant) {
    server.declassify("echo").await.unwrap();
}

async fn take_the_grant_back(server: Server, grant: caliber::core::grant::Grant) {
    server
        .caliber
        .revoke_grant(server.who(), &grant.id)
        .await
        .unwrap();
}

async fn switch_off(server: Server, _: caliber::core::grant::Grant) {
    let patch = ServerPatch {
        status: Some(ServerStatus::Disabled),
        ..Default::default()
    };
    server
        .caliber
        .update_server(server.who(), &server.id, patch)
        .await
        .unwrap();
}

async fn block(server: Server, _: caliber::core::grant::Grant) {
    let policy = ToolPolicy {
        allowed: false,
        ..ToolPolicy::allow_read()
    };
    server.classify("echo", policy).await.unwrap();
}

/// With effects: each call is committed to before it is sent.
fn writes() -> ToolPolicy {
    ToolPolicy {
        side_effect_level: SideEffectLevel::Write,
        ..policy_for("add")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_passes_a_declassification() {
    race(ToolPolicy::allow_read(), ReasonCode::Unclassified, declassify).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_with_effects_passes_a_declassification() {
    race(writes(), ReasonCode::Unclassified, declassify).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_passes_the_removal_of_its_grant() {
    race(
        ToolPolicy::allow_read(),
        ReasonCode::NotGranted,
        take_the_grant_back,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_with_effects_passes_the_removal_of_its_grant() {
    race(writes(), ReasonCode::NotGranted, take_the_grant_back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_passes_a_server_that_was_switched_off() {
    race(ToolPolicy::allow_read(), ReasonCode::ServerDisabled, switch_off).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_passes_a_policy_that_blocks() {
    race(writes(), ReasonCode::Blocked, block).await;
}
