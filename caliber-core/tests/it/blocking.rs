//! The facade for code that is not async, wherever such code runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use caliber_core::audit::{AuditAction, AuditQuery};
use caliber_core::blocking::Caliber;
use caliber_core::id::ServerId;
use caliber_core::memory::{self, Parts, ScriptedServer, ScriptedTool};
use caliber_core::page::PageRequest;
use caliber_core::policy::ToolPolicy;
use caliber_core::principal::Surface;
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind, InvokeRequest, Settings};
use tokio_util::sync::CancellationToken;

use crate::support::*;

fn request(server: &ServerId) -> InvokeRequest {
    InvokeRequest::new(server.clone(), tool("number"), json(ARGUMENTS), Surface::Workflow)
}

/// The whole life through the facade; gives the server.
fn live(parts: &Parts, facade: &Caliber) -> ServerId {
    let admin = admin();
    let who = (&admin, Surface::Library);
    let name = "weather".parse().unwrap();
    parts
        .gateway
        .serve(&name, ScriptedServer::new([number_tool("number")]));
    let server = facade
        .register_server(who, memory::registration("weather").unwrap())
        .unwrap();
    let id = &server.id;
    facade.check(who, id).unwrap().report.unwrap();
    facade.discover(who, id).unwrap();
    refused(
        facade.invoke(&admin, request(id)),
        ErrorKind::Denied,
        ReasonCode::Unclassified,
    );
    facade
        .classify(who, id, &tool("number"), ToolPolicy::allow_read(), None)
        .unwrap();
    let outcome = facade.invoke(&admin, request(id)).unwrap();
    assert_eq!(
        outcome
            .answer
            .result
            .member("structuredContent")
            .unwrap()
            .as_str(),
        ARGUMENTS
    );
    assert_eq!(
        facade
            .servers(&admin, Default::default(), &PageRequest::default())
            .unwrap()
            .items
            .len(),
        1
    );
    assert_eq!(
        facade
            .tools(&admin, id, &PageRequest::default())
            .unwrap()
            .tools
            .items
            .len(),
        1
    );
    assert!(!facade.drift(&admin, id, &tool("number")).unwrap().place_changed);
    assert!(facade.server(&admin, id).unwrap().readiness.is_ready());
    let query = AuditQuery {
        action: Some(AuditAction::InvokeTool),
        ..AuditQuery::default()
    };
    assert_eq!(
        facade
            .audit(&admin, query, &PageRequest::default())
            .unwrap()
            .items
            .len(),
        2
    );
    server.id
}

fn facade() -> (Parts, Caliber) {
    let parts = Parts::new();
    let facade = parts.caliber().blocking().unwrap();
    (parts, facade)
}

#[test]
fn it_works_on_a_plain_thread() {
    let (parts, facade) = facade();
    let id = live(&parts, &facade);
    // And on several at once.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    facade.invoke(&admin(), request(&id)).unwrap();
                }
            });
        }
    });
    assert_eq!(parts.gateway.calls().len(), 161);
    let who = admin();
    facade.remove_server((&who, Surface::Library), &id, None).unwrap();
    refused(facade.invoke(&who, request(&id)), ErrorKind::NotFound, None);
}

#[test]
fn it_works_while_another_runtime_is_entered() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (parts, facade) = facade();
    // Waiting needs timers and tasks of the facade's own runtime, not of the one that is entered.
    let outcome = std::thread::scope(|scope| {
        let (parts, facade) = (&parts, &facade);
        scope
            .spawn(move || {
                let _entered = runtime.enter();
                catch_unwind(AssertUnwindSafe(|| live(parts, facade)))
            })
            .join()
    });
    assert!(outcome.unwrap().is_ok());
}

#[tokio::test]
async fn it_works_inside_spawn_blocking() {
    let (parts, facade) = facade();
    tokio::task::spawn_blocking(move || live(&parts, &facade))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_works_inside_block_in_place() {
    let (parts, facade) = facade();
    tokio::task::block_in_place(|| live(&parts, &facade));
    // From a task as well.
    let task = tokio::spawn(async move { tokio::task::block_in_place(|| facade.inner().clone()) });
    task.await.unwrap().ping().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_panics_inside_async_code() {
    let (parts, facade) = facade();
    let clone = facade.clone();
    let id = tokio::task::spawn_blocking(move || live(&parts, &clone))
        .await
        .unwrap();
    let waiting = catch_unwind(AssertUnwindSafe(|| facade.invoke(&admin(), request(&id))));
    let panic = waiting.expect_err("waiting in async code must panic");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    assert!(
        text.contains("Cannot") && text.contains("runtime"),
        "another message: {text}"
    );
    // The facade is as good as before.
    tokio::task::spawn_blocking(move || facade.invoke(&admin(), request(&id)))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn it_may_be_dropped_inside_async_code() {
    let (_, facade) = facade();
    let second = facade.clone();
    drop(facade);
    drop(second);
    // The last clone may also end in a task.
    let (_, facade) = self::facade();
    tokio::spawn(async move { drop(facade) }).await.unwrap();
}

#[test]
fn the_same_instance_serves_both_faces() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let facade = caliber.blocking().unwrap();
    let id = live(&parts, &facade);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime
        .block_on(async { caliber.invoke(&admin(), request(&id)).await })
        .unwrap();
    facade.invoke(&admin(), request(&id)).unwrap();
    // One session, whichever face opened it.
    assert_eq!(parts.gateway.openings(), 1);
}

#[test]
fn records_outlive_the_facade() {
    let parts = Parts::new();
    let hour = Settings {
        record_linger: Duration::from_secs(3_600),
        ..Settings::default()
    };
    let caliber = parts.caliber_with(hour);
    let facade = caliber.blocking().unwrap();
    let id = live(&parts, &facade);
    facade.invoke(&admin(), request(&id)).unwrap();
    drop(facade);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let query = AuditQuery {
        action: Some(AuditAction::InvokeTool),
        ..AuditQuery::default()
    };
    let (admin, page) = (admin(), PageRequest::default());
    let looking =
        async { tokio::time::timeout(Duration::from_secs(10), caliber.audit(&admin, query, &page)).await };
    assert_eq!(runtime.block_on(looking).unwrap().unwrap().items.len(), 3);
}

#[test]
fn whatever_has_no_method_of_its_own_can_be_waited_for() {
    let (parts, facade) = facade();
    let id = live(&parts, &facade);
    let found = facade.wait(move |caliber| async move {
        caliber.invocations(&admin(), &id, &PageRequest::default()).await
    });
    assert_eq!(found.unwrap().items.len(), 2);
    let refusal: caliber_core::Result<()> =
        facade.wait(|_| async { Err(Error::new(ErrorKind::Unsupported, "not here")) });
    refused(refusal, ErrorKind::Unsupported, None);
    // A panic of the operation is the caller's, and the facade goes on.
    let panic = catch_unwind(AssertUnwindSafe(|| {
        facade.wait(|_| async { if true { panic!("a defect") } else { Ok(()) } })
    }));
    assert_eq!(*panic.unwrap_err().downcast_ref::<&str>().unwrap(), "a defect");
    facade
        .wait(|caliber| async move { caliber.ping().await })
        .unwrap();
}

#[test]
fn background_work_runs_on_the_facades_runtime() {
    let (parts, facade) = facade();
    let id = live(&parts, &facade);
    let cancel = CancellationToken::new();
    facade.run(cancel.clone(), Duration::from_secs(5));
    let name = "weather".parse().unwrap();
    let changed = number_tool("number").described("changed").unwrap();
    parts.gateway.serve(&name, ScriptedServer::new([changed]));
    parts.gateway.announce(&name);
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let drift = facade.drift(&admin(), &id, &tool("number")).unwrap();
        if drift.state == caliber_core::inventory::ToolState::Drifted {
            break;
        }
        assert!(Instant::now() < end, "the inventory does not follow");
        std::thread::sleep(Duration::from_millis(5));
    }
    cancel.cancel();
}

#[test]
fn calls_side_by_side_do_not_wait_for_one_another() {
    let parts = Parts::new();
    let facade = parts.caliber().blocking().unwrap();
    let slow = ScriptedTool::new(
        r#"{"name":"number","inputSchema":{"type":"object"}}"#,
        |_| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            result(r#"{"content":[]}"#)
        },
    );
    parts
        .gateway
        .serve(&"weather".parse().unwrap(), ScriptedServer::new([slow.unwrap()]));
    let root = admin();
    let who = (&root, Surface::Library);
    let id = facade
        .register_server(who, memory::registration("weather").unwrap())
        .unwrap()
        .id;
    facade.discover(who, &id).unwrap();
    facade
        .classify(who, &id, &tool("number"), ToolPolicy::allow_read(), None)
        .unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| facade.invoke(&admin(), request(&id)).unwrap());
        }
    });
    // The facade has two threads; 20 calls of a second each must not share them one by one.
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "it took {:?}",
        began.elapsed()
    );
}
