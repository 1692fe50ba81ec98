//! Records of reads and refusals: written together, never dropped, and no call is made that could not be recorded.

use std::time::{Duration, Instant};

use caliber_core::audit::{AuditAction, AuditQuery};
use caliber_core::invocation::InvocationOutcome;
use caliber_core::memory::{Outage, Parts};
use caliber_core::page::PageRequest;
use caliber_core::policy::ToolPolicy;
use caliber_core::reason::ReasonCode;
use caliber_core::registry::{InvocationsOf, Registry};
use caliber_core::{ErrorKind, Settings};

use crate::support::*;

async fn world(settings: Settings) -> World {
    let parts = Parts::new();
    let caliber = parts.caliber_with(settings);
    let world = World::around(parts, caliber, vec![number_tool("number")]).await;
    world.classify("number", ToolPolicy::allow_read()).await;
    world
}

/// What the store holds, without asking the control plane to write first.
async fn stored(world: &World) -> usize {
    let page = PageRequest::first(500);
    world
        .parts
        .registry
        .invocations(&InvocationsOf::Server(world.server.id.clone()), &page)
        .await
        .unwrap()
        .items
        .len()
}

#[tokio::test]
async fn reads_are_written_together_after_a_moment() {
    let linger = Duration::from_millis(300);
    let world = world(Settings {
        record_linger: linger,
        ..Settings::default()
    })
    .await;
    let began = Instant::now();
    for _ in 0..20 {
        world.call().await.unwrap();
    }
    if began.elapsed() < linger / 2 {
        assert_eq!(stored(&world).await, 0, "a read has waited for its record");
    }
    eventually("they are written", async || stored(&world).await == 20).await;
    assert_eq!(world.outcomes().await, [InvocationOutcome::Ok; 20]);
}

#[tokio::test]
async fn whoever_looks_sees_every_call_that_has_ended() {
    // Nobody waits for the linger.
    let hour = Duration::from_secs(3_600);
    let world = world(Settings {
        record_linger: hour,
        ..Settings::default()
    })
    .await;
    let outcome = world.call().await.unwrap();
    let operator = admin();
    let looking = world.caliber.invocation(&operator, &outcome.invocation);
    let record = tokio::time::timeout(Duration::from_secs(10), looking)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.settlement.unwrap().outcome, InvocationOutcome::Ok);
    world.call().await.unwrap();
    assert_eq!(world.trail(AuditAction::InvokeTool).await.len(), 2);
    world.call().await.unwrap();
    world.caliber.close(Duration::from_secs(10)).await.unwrap();
    assert_eq!(stored(&world).await, 3);
}

#[tokio::test]
async fn looking_ends_while_calls_go_on() {
    let world = world(Settings {
        record_linger: Duration::from_millis(1),
        ..Settings::default()
    })
    .await;
    let (caliber, id) = (world.caliber.clone(), world.server.id.clone());
    let traffic = tokio::spawn(async move {
        loop {
            let surface = caliber_core::principal::Surface::Library;
            let request =
                caliber_core::InvokeRequest::new(id.clone(), tool("number"), json(ARGUMENTS), surface);
            caliber.invoke(&admin(), request).await.unwrap();
        }
    });
    for _ in 0..50 {
        let admin = admin();
        let page = PageRequest::first(1);
        let looking = world.caliber.audit(&admin, AuditQuery::default(), &page);
        tokio::time::timeout(Duration::from_secs(10), looking)
            .await
            .expect("looking ends")
            .unwrap();
        tokio::task::yield_now().await;
    }
    traffic.abort();
}

#[tokio::test]
async fn a_full_backlog_refuses_while_the_store_fails_and_nothing_is_lost() {
    let settings = Settings {
        record_backlog: 10,
        record_linger: Duration::from_millis(1),
        ..Settings::default()
    };
    let world = world(settings).await;
    world.parts.registry.set_outage(Some(Outage::Commits));
    let mut made = 0;
    let error = loop {
        match world.call().await {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made <= 10, "more calls were made than can be recorded");
        // The writer gets its turn to fail.
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert_eq!(made, 10);
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Unavailable, Some(ReasonCode::StoreUnavailable))
    );
    assert_eq!(world.parts.gateway.calls().len(), 10);
    // Nobody is shown a trail that lacks something.
    let (admin, page) = (admin(), PageRequest::default());
    let shown = world.caliber.audit(&admin, AuditQuery::default(), &page).await;
    refused(shown, ErrorKind::Unavailable, ReasonCode::StoreUnavailable);
    let closing = world.caliber.close(Duration::from_millis(200)).await;
    refused(closing, ErrorKind::Unavailable, ReasonCode::StoreUnavailable);

    world.parts.registry.set_outage(None);
    // Whoever looks first after the outage sees all of it, without waiting for the next attempt.
    let looking = Instant::now();
    assert_eq!(world.outcomes().await, [InvocationOutcome::Ok; 10]);
    assert!(
        looking.elapsed() < Duration::from_secs(2),
        "it took {:?}",
        looking.elapsed()
    );
    world.call().await.unwrap();
    assert_eq!(world.outcomes().await.len(), 11);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn more_calls_than_the_backlog_holds_wait_for_room() {
    let settings = Settings {
        record_backlog: 4,
        record_linger: Duration::from_millis(1),
        ..Settings::default()
    };
    let world = world(settings).await;
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let (caliber, request) = (world.caliber.clone(), world.request("number", ARGUMENTS));
            tokio::spawn(async move { caliber.invoke(&admin(), request).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(world.outcomes().await, [InvocationOutcome::Ok; 200]);
}

#[tokio::test]
async fn a_call_with_effects_is_refused_when_its_intent_cannot_be_written() {
    let world = World::with(allow_write()).await;
    world.parts.registry.set_outage(Some(Outage::Commits));
    refused(
        world.call().await,
        ErrorKind::Unavailable,
        ReasonCode::StoreUnavailable,
    );
    world.parts.registry.set_outage(Some(Outage::Everything));
    refused(
        world.call().await,
        ErrorKind::Unavailable,
        ReasonCode::StoreUnavailable,
    );
    world.parts.registry.set_outage(None);
    assert!(world.parts.gateway.calls().is_empty());
    // The first was refused under a server that was known, so it has a record.
    assert_eq!(world.outcomes().await, [InvocationOutcome::Denied]);
}

#[tokio::test]
async fn a_store_that_fails_at_the_end_leaves_the_call_to_the_sweep() {
    let parts = Parts::new();
    let registry = parts.registry.clone();
    let breaking = caliber_core::memory::ScriptedTool::new(
        r#"{"name":"number","inputSchema":{"type":"object"}}"#,
        move |_| {
            registry.set_outage(Some(Outage::Commits));
            async { result(r#"{"content":[]}"#) }
        },
    );
    let world = World::over(parts, vec![breaking.unwrap()]).await;
    world.classify("number", allow_write()).await;
    // The call has happened: its caller gets the answer.
    world.call().await.unwrap();
    world.parts.registry.set_outage(None);
    world.parts.clock.advance(Duration::from_secs(600));
    assert_eq!(world.caliber.sweep_orphans().await.unwrap(), 1);
    assert_eq!(world.outcomes().await, [InvocationOutcome::OutcomeUnknown]);
}

#[test]
fn a_runtime_that_ends_takes_no_record_along() {
    let parts = Parts::new();
    let settings = Settings {
        record_linger: Duration::from_secs(3_600),
        ..Settings::default()
    };
    let first = tokio::runtime::Runtime::new().unwrap();
    let caliber = parts.caliber_with(settings);
    let world = first.block_on(async {
        let world = World::around(parts, caliber, vec![number_tool("number")]).await;
        world.classify("number", ToolPolicy::allow_read()).await;
        world.call().await.unwrap();
        world
    });
    // The task that was to write the record ends with its runtime.
    first.shutdown_background();
    let second = tokio::runtime::Runtime::new().unwrap();
    second.block_on(async {
        let outcomes = tokio::time::timeout(Duration::from_secs(10), world.outcomes()).await;
        assert_eq!(
            outcomes.expect("another runtime writes it"),
            [InvocationOutcome::Ok]
        );
    });
}

/// A runtime that shuts down drops every task that it is given. Whoever closes there must come to an end, or the
/// runtime never does.
#[test]
fn closing_ends_on_a_runtime_that_is_shutting_down() {
    let parts = Parts::new();
    let settings = Settings {
        record_linger: Duration::from_secs(3_600),
        ..Settings::default()
    };
    let first = tokio::runtime::Runtime::new().unwrap();
    let caliber = parts.caliber_with(settings);
    let world = first.block_on(async {
        let world = World::around(parts, caliber, vec![number_tool("number")]).await;
        world.classify("number", ToolPolicy::allow_read()).await;
        world.call().await.unwrap();
        world
    });
    first.shutdown_timeout(Duration::from_secs(10));

    let second = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (handle, caliber) = (second.handle().clone(), world.caliber.clone());
    let (started, has_started) = std::sync::mpsc::channel();
    second.spawn(async move {
        started.send(()).unwrap();
        // A task that never ends is finished only because the runtime refuses it.
        while !handle.spawn(std::future::pending::<()>()).is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        caliber.close(Duration::from_secs(1)).await
    });
    has_started.recv().unwrap();
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(second);
        ended.send(()).unwrap();
    });
    has_ended
        .recv_timeout(Duration::from_secs(20))
        .expect("the runtime comes to its end");
}

#[test]
fn a_call_whose_runtime_ends_is_recorded_as_cancelled() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let hang = caliber_core::memory::ScriptedTool::new(
        r#"{"name":"number","inputSchema":{"type":"object"}}"#,
        |_| std::future::pending(),
    );
    let world = runtime.block_on(async {
        let world = World::around(parts, caliber, vec![hang.unwrap()]).await;
        world.classify("number", ToolPolicy::allow_read()).await;
        let (caliber, request) = (world.caliber.clone(), world.request("number", "{}"));
        tokio::spawn(async move { caliber.invoke(&admin(), request).await });
        eventually("the call arrives", async || {
            world.parts.gateway.calls().len() == 1
        })
        .await;
        world
    });
    drop(runtime);
    let second = tokio::runtime::Runtime::new().unwrap();
    let outcomes = second.block_on(world.outcomes());
    assert_eq!(outcomes, [InvocationOutcome::Cancelled]);
}
