//! Single calls: how they end, and that each ends in exactly one record.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use caliber_core::audit::AuditAction;
use caliber_core::gateway::Gateway;
use caliber_core::invocation::{InvocationOutcome, InvokedTool};
use caliber_core::memory::{CallEnd, Parts, ScriptedGateway, ScriptedServer, ScriptedTool};
use caliber_core::policy::ToolPolicy;
use caliber_core::principal::{Identity, Scope, Surface};
use caliber_core::reason::ReasonCode;
use caliber_core::server::ServerLimits;
use caliber_core::{Error, ErrorKind, ServerPatch, Settings};
use tokio::sync::Notify;

use crate::support::*;

/// A tool named `number` that does this.
fn scripted<F, Fut>(schemas: &str, handler: F) -> ScriptedTool
where
    F: Fn(caliber_core::memory::ScriptedCall) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = caliber_core::Result<caliber_core::json::JsonText>> + Send + 'static,
{
    let descriptor = format!(r#"{{"name":"number","inputSchema":{{"type":"object"}}{schemas}}}"#);
    ScriptedTool::new(&descriptor, handler).unwrap()
}

async fn world(tool: ScriptedTool, policy: ToolPolicy) -> World {
    let world = World::over(Parts::new(), vec![tool]).await;
    world.classify("number", policy).await;
    world
}

#[tokio::test]
async fn a_record_says_who_called_what_under_which_decision() {
    let world = World::with(allow_write()).await;
    let caller = world.caller("ada").await;
    let mut request = world.request("number", r#"{ "n" : 1 }"#);
    request.surface = Surface::Workflow;
    let outcome = world.caliber.invoke(&caller, request).await.unwrap();
    let calls = world.ledger().await;
    let call = &calls[0].invocation;
    assert_eq!(call.id, outcome.invocation);
    assert_eq!((call.subject.as_str(), &call.identity), ("ada", &Identity::Host));
    assert_eq!(
        (call.surface, call.project.as_str()),
        (Surface::Workflow, "default")
    );
    let view = world
        .caliber
        .tool(&admin(), &world.server.id, &tool("number"))
        .await
        .unwrap()
        .view;
    let called = InvokedTool::Server {
        server: world.server.id.clone(),
        server_name: "weather".parse().unwrap(),
        tool: tool("number"),
        descriptor_digest: Some(view.descriptor.digest()),
        policy_revision: view.classification.map(|bound| bound.revision),
    };
    assert_eq!(call.tool, called);
    // White space is no other argument.
    let digest = caliber_core::digest::ArgumentDigest::of(ARGUMENTS.as_bytes());
    assert_eq!(call.argument_digest, digest);
    let settlement = calls[0].settlement.as_ref().unwrap();
    let size = outcome.answer.result.as_str().len() as u64;
    assert_eq!(
        (settlement.outcome, settlement.result_bytes),
        (InvocationOutcome::Ok, Some(size))
    );
    // What may have an effect was committed to before it was sent.
    assert_eq!(world.trail(AuditAction::BeginInvocation).await.len(), 1);
    // The caller sees the call, and so do operators; a stranger does not.
    let id = &outcome.invocation;
    assert!(world.caliber.invocation(&caller, id).await.is_ok());
    assert!(
        world
            .caliber
            .invocation(&person("op", "default", Scope::Operator), id)
            .await
            .is_ok()
    );
    let eve = person("eve", "default", Scope::Viewer);
    refused(
        world.caliber.invocation(&eve, id).await,
        ErrorKind::NotFound,
        None,
    );
}

#[tokio::test]
async fn every_end_of_a_call_is_told_as_what_it_is() {
    let failing = |kind: ErrorKind, reason: ReasonCode| {
        scripted("", move |_| async move {
            Err(Error::new(kind, "the upstream says no").with_reason(reason))
        })
    };
    for policy in [ToolPolicy::allow_read(), allow_write()] {
        for (kind, reason, outcome) in [
            (
                ErrorKind::Upstream,
                ReasonCode::UpstreamError,
                InvocationOutcome::UpstreamError,
            ),
            (
                ErrorKind::TooLarge,
                ReasonCode::ResultTooLarge,
                InvocationOutcome::UpstreamError,
            ),
            (
                ErrorKind::Unavailable,
                ReasonCode::BreakerOpen,
                InvocationOutcome::UpstreamError,
            ),
            (
                ErrorKind::OutcomeUnknown,
                ReasonCode::OutcomeUnknown,
                InvocationOutcome::OutcomeUnknown,
            ),
            (
                ErrorKind::Timeout,
                ReasonCode::Timeout,
                InvocationOutcome::Timeout,
            ),
            // A defect behind the gateway: nobody knows whether the call took effect.
            (
                ErrorKind::Internal,
                ReasonCode::UpstreamError,
                InvocationOutcome::OutcomeUnknown,
            ),
        ] {
            let world = world(failing(kind, reason), policy.clone()).await;
            let error = refused(world.call().await, kind, reason);
            let calls = world.ledger().await;
            let settlement = calls[0].settlement.as_ref().unwrap();
            assert_eq!((settlement.outcome, settlement.reason), (outcome, Some(reason)));
            assert_eq!(settlement.detail.as_deref(), Some("the upstream says no"));
            let id = ("invocation", calls[0].invocation.id.to_string());
            assert!(error.context().contains(&id), "the error does not name its call");
        }
    }
}

#[tokio::test]
async fn a_failure_that_the_tool_tells_is_an_answer() {
    let tool = scripted(
        r#","outputSchema":{"type":"object","required":["x"]}"#,
        |_| async { result(r#"{"content":[],"isError":true}"#) },
    );
    let world = world(tool, ToolPolicy::allow_read()).await;
    assert!(world.call().await.unwrap().answer.is_error);
    assert_eq!(world.outcomes().await, [InvocationOutcome::ToolError]);
}

#[tokio::test]
async fn a_result_that_breaks_its_promise_is_refused() {
    for broken in [
        r#"{"content":[]}"#,
        r#"{"content":[],"structuredContent":{}}"#,
        r#"{"content":[],"structuredContent":{"x":"1"}}"#,
    ] {
        let schema =
            r#","outputSchema":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}"#;
        let tool = scripted(schema, move |_| async move { result(broken) });
        let world = world(tool, ToolPolicy::allow_read()).await;
        let error = refused(world.call().await, ErrorKind::Upstream, ReasonCode::ResultInvalid);
        assert_eq!(error.retry(), caliber_core::Retry::Never, "the tool has acted");
        assert_eq!(world.outcomes().await, [InvocationOutcome::UpstreamError]);
    }
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_not_sent() {
    let world = World::with(ToolPolicy::allow_read()).await;
    for arguments in ["{}", r#"{"n":"secret-canary"}"#, "[]", "1", "null", r#""text""#] {
        let outcome = world
            .caliber
            .invoke(&admin(), world.request("number", arguments))
            .await;
        let error = refused(outcome, ErrorKind::Denied, ReasonCode::ArgumentsInvalid);
        assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
    }
    assert!(world.parts.gateway.calls().is_empty());
    let details = format!("{:?}", world.ledger().await);
    assert!(!details.contains("canary"), "an argument is in the ledger");
}

#[tokio::test]
async fn the_shortest_time_counts_and_a_caller_cannot_lengthen_it() {
    let settings = Settings {
        call_timeout: Duration::from_millis(150),
        ..Settings::default()
    };
    let parts = Parts::new();
    let caliber = parts.caliber_with(settings);
    let hang = scripted("", |_| std::future::pending());
    let world = World::around(parts, caliber, vec![hang]).await;
    world.classify("number", ToolPolicy::allow_read()).await;
    let timed = async |timeout: Option<Duration>, limit: Duration| {
        let mut request = world.request("number", "{}");
        request.timeout = timeout;
        let began = Instant::now();
        let outcome = world.caliber.invoke(&admin(), request).await;
        refused(outcome, ErrorKind::Timeout, ReasonCode::Timeout);
        assert!(began.elapsed() < limit, "it took {:?}", began.elapsed());
    };
    let (short, long) = (Duration::from_millis(20), Duration::from_secs(10));
    timed(None, long).await;
    timed(Some(short), long).await;
    timed(Some(Duration::MAX), long).await;
    // The policy and the server may allow more than the installation, and the shorter of them counts.
    let admin = admin();
    let who = (&admin, Surface::Library);
    let limits = ServerLimits {
        timeout_ms: Some(60_000),
        ..ServerLimits::default()
    };
    let patch = ServerPatch {
        limits: Some(limits),
        ..ServerPatch::default()
    };
    world
        .caliber
        .update_server(who, &world.server.id, patch)
        .await
        .unwrap();
    let policy = ToolPolicy {
        timeout_ms: Some(50),
        ..ToolPolicy::allow_read()
    };
    world.classify("number", policy).await;
    timed(None, long).await;
    timed(Some(Duration::MAX), long).await;
    assert_eq!(world.outcomes().await, [InvocationOutcome::Timeout; 5]);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_and_recorded_once() {
    for policy in [ToolPolicy::allow_read(), allow_write()] {
        let world = world(scripted("", |_| std::future::pending()), policy).await;
        let (caliber, request) = (world.caliber.clone(), world.request("number", "{}"));
        let running = tokio::spawn(async move { caliber.invoke(&admin(), request).await });
        eventually("the call arrives", async || {
            world.parts.gateway.calls().len() == 1
        })
        .await;
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        eventually("the upstream is told", async || {
            world.parts.gateway.calls()[0].end == Some(CallEnd::Cancelled)
        })
        .await;
        world.caliber.close(Duration::from_secs(5)).await.unwrap();
        assert_eq!(world.outcomes().await, [InvocationOutcome::Cancelled]);
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_while_it_waits_for_a_place_is_recorded_once() {
    let parts = Parts {
        gateway: ScriptedGateway::with_concurrency(1),
        ..Parts::new()
    };
    let world = World::over(parts, vec![scripted("", |_| std::future::pending())]).await;
    world.classify("number", allow_write()).await;
    let spawn = || {
        let (caliber, request) = (world.caliber.clone(), world.request("number", "{}"));
        tokio::spawn(async move { caliber.invoke(&admin(), request).await })
    };
    let first = spawn();
    eventually("the call arrives", async || {
        world.parts.gateway.calls().len() == 1
    })
    .await;
    let second = spawn();
    // A moment to get as far as it can; however far that is, it ends as cancelled.
    tokio::time::sleep(Duration::from_millis(30)).await;
    for call in [second, first] {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
    world.caliber.close(Duration::from_secs(5)).await.unwrap();
    assert_eq!(world.outcomes().await, [InvocationOutcome::Cancelled; 2]);
    assert_eq!(world.parts.gateway.calls().len(), 1);
}

#[tokio::test]
async fn a_busy_server_refuses_after_the_deadline() {
    let parts = Parts {
        gateway: ScriptedGateway::with_concurrency(1),
        ..Parts::new()
    };
    let world = World::over(parts, vec![number_tool("number")]).await;
    world.classify("number", ToolPolicy::allow_read()).await;
    let deadline = caliber_core::clock::Deadline::after(Duration::from_secs(60));
    let place = world
        .parts
        .gateway
        .reserve(&world.server.id, None, deadline)
        .await
        .unwrap();
    let mut request = world.request("number", ARGUMENTS);
    request.timeout = Some(Duration::from_millis(50));
    let outcome = world.caliber.invoke(&admin(), request).await;
    refused(outcome, ErrorKind::Unavailable, ReasonCode::ServerBusy);
    // Who may not see the server does not wait for it.
    let stranger = person("eve", "other", Scope::Admin);
    let outcome = world
        .caliber
        .invoke(&stranger, world.request("number", ARGUMENTS));
    let outcome = tokio::time::timeout(Duration::from_secs(5), outcome)
        .await
        .unwrap();
    refused(outcome, ErrorKind::NotFound, None);
    drop(place);
    world.call().await.unwrap();
    assert_eq!(
        world.outcomes().await,
        [InvocationOutcome::Denied, InvocationOutcome::Ok]
    );
}

#[tokio::test]
async fn what_was_revoked_while_a_call_waited_for_its_place_binds_it() {
    let parts = Parts {
        gateway: ScriptedGateway::with_concurrency(1),
        ..Parts::new()
    };
    let world = World::over(parts, vec![number_tool("number")]).await;
    world.classify("number", ToolPolicy::allow_read()).await;
    let deadline = caliber_core::clock::Deadline::after(Duration::from_secs(60));
    let place = world
        .parts
        .gateway
        .reserve(&world.server.id, None, deadline)
        .await
        .unwrap();
    let admin = admin();
    let call = world.caliber.invoke(&admin, world.request("number", ARGUMENTS));
    let revoke = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let who = (&admin, Surface::Library);
        world
            .caliber
            .declassify(who, &world.server.id, &tool("number"))
            .await
            .unwrap();
        drop(place);
    };
    let (outcome, ()) = tokio::join!(call, revoke);
    refused(outcome, ErrorKind::Denied, ReasonCode::Unclassified);
    assert!(world.parts.gateway.calls().is_empty());
}

#[tokio::test]
async fn a_quota_lets_its_number_through_and_says_when_to_come_back() {
    let policy = ToolPolicy {
        rate_limit_per_minute: Some(3),
        ..ToolPolicy::allow_read()
    };
    let world = World::with(policy).await;
    for _ in 0..3 {
        world.call().await.unwrap();
    }
    let error = refused(
        world.call().await,
        ErrorKind::RateLimited,
        ReasonCode::RateLimited,
    );
    let after = error.context().iter().find(|(key, _)| *key == "retry_after_ms");
    let after: u64 = after.expect("it says when").1.parse().unwrap();
    assert!((1..=60_000).contains(&after), "retry after {after} ms");
    world.parts.clock.advance(Duration::from_millis(after));
    world.call().await.unwrap();
    // What is refused for another reason costs no call.
    world.parts.clock.advance(Duration::from_secs(60));
    for _ in 0..10 {
        let unfit = world
            .caliber
            .invoke(&admin(), world.request("number", "{}"))
            .await;
        refused(unfit, ErrorKind::Denied, ReasonCode::ArgumentsInvalid);
    }
    for _ in 0..3 {
        world.call().await.unwrap();
    }
    assert_eq!(world.parts.gateway.calls().len(), 7);
    world.ledger().await;
}

/// A world whose calls can be met between their facts and their intent.
async fn interposed(policy: ToolPolicy) -> (World, Interposed) {
    let parts = Parts::new();
    let gateway = Interposed::new(parts.gateway.clone());
    let caliber = caliber_core::Caliber::builder(
        parts.registry.clone(),
        Arc::new(gateway.clone()),
        parts.policy.clone(),
        parts.quotas.clone(),
    )
    .clock(parts.clock.clone())
    .build();
    let world = World::around(parts, caliber, vec![number_tool("number")]).await;
    world.classify("number", policy).await;
    (world, gateway)
}

#[tokio::test]
async fn a_call_with_effects_is_decided_again_when_its_facts_move() {
    let (world, gateway) = interposed(allow_write()).await;
    // Something moves that changes nothing: decided again, and allowed.
    let (caliber, id) = (world.caliber.clone(), world.server.id.clone());
    gateway.during_next_decision(async move {
        let admin = admin();
        let patch = ServerPatch {
            description: Some("words".into()),
            ..ServerPatch::default()
        };
        caliber
            .update_server((&admin, Surface::Library), &id, patch)
            .await
            .unwrap();
    });
    world.call().await.unwrap();
    // The classification is taken back: decided again, and refused.
    let (caliber, id) = (world.caliber.clone(), world.server.id.clone());
    gateway.during_next_decision(async move {
        let admin = admin();
        caliber
            .declassify((&admin, Surface::Library), &id, &tool("number"))
            .await
            .unwrap();
    });
    refused(world.call().await, ErrorKind::Denied, ReasonCode::Unclassified);
    assert_eq!(world.parts.gateway.calls().len(), 1);
    assert_eq!(
        world.outcomes().await,
        [InvocationOutcome::Ok, InvocationOutcome::Denied]
    );
    assert_eq!(world.trail(AuditAction::BeginInvocation).await.len(), 1);
}

#[tokio::test]
async fn a_call_gives_up_when_its_facts_never_rest() {
    let policy = ToolPolicy {
        rate_limit_per_minute: Some(1),
        ..allow_write()
    };
    let (world, gateway) = interposed(policy).await;
    for round in 0..3 {
        let (caliber, id) = (world.caliber.clone(), world.server.id.clone());
        gateway.during_next_decision(async move {
            let admin = admin();
            let description = Some(format!("round {round}"));
            let patch = ServerPatch {
                description,
                ..ServerPatch::default()
            };
            caliber
                .update_server((&admin, Surface::Library), &id, patch)
                .await
                .unwrap();
        });
    }
    refused(world.call().await, ErrorKind::Conflict, ReasonCode::StaleRevision);
    assert!(world.parts.gateway.calls().is_empty());
    assert_eq!(world.outcomes().await, [InvocationOutcome::Denied]);
}

#[tokio::test]
async fn an_orphan_is_swept_once_its_lease_has_run_out() {
    let started = Arc::new(Notify::new());
    let signal = Arc::clone(&started);
    let hang = scripted("", move |_| {
        signal.notify_one();
        std::future::pending()
    });
    let world = world(hang, allow_write()).await;
    // An instance dies in the middle of a call: its runtime ends, and nothing of it runs on.
    let (caliber, request) = (world.parts.caliber(), world.request("number", "{}"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let running = runtime.spawn(async move { caliber.invoke(&admin(), request).await });
    started.notified().await;
    runtime.shutdown_background();
    assert!(running.await.is_err());
    assert_eq!(
        world.caliber.sweep_orphans().await.unwrap(),
        0,
        "its lease has not run out"
    );
    let before = world.parts.sink.entries().len();
    world.parts.clock.advance(Duration::from_secs(45 + 30 + 1));
    assert_eq!(world.caliber.sweep_orphans().await.unwrap(), 1);
    assert_eq!(world.caliber.sweep_orphans().await.unwrap(), 0);
    assert_eq!(world.outcomes().await, [InvocationOutcome::OutcomeUnknown]);
    // One sweep found something, and one was exported.
    assert_eq!(world.parts.sink.entries().len(), before + 1);
    assert_eq!(world.trail(AuditAction::SettleOrphans).await.len(), 1);
}

#[tokio::test]
async fn a_slow_instance_does_not_settle_what_a_sweep_has_settled() {
    let release = Arc::new(Notify::new());
    let gate = Arc::clone(&release);
    let slow = scripted("", move |_| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            result(r#"{"content":[]}"#)
        }
    });
    let world = world(slow, allow_write()).await;
    let (caliber, request) = (world.caliber.clone(), world.request("number", "{}"));
    let running = tokio::spawn(async move { caliber.invoke(&admin(), request).await });
    eventually("the call arrives", async || {
        world.parts.gateway.calls().len() == 1
    })
    .await;
    world.parts.clock.advance(Duration::from_secs(600));
    assert_eq!(world.caliber.sweep_orphans().await.unwrap(), 1);
    release.notify_one();
    // Its caller gets the answer; the first settlement stands.
    running.await.unwrap().unwrap();
    assert_eq!(world.outcomes().await, [InvocationOutcome::OutcomeUnknown]);
}

#[tokio::test]
async fn a_defect_in_a_gateway_leaves_a_record() {
    for (policy, outcome) in [
        (ToolPolicy::allow_read(), InvocationOutcome::OutcomeUnknown),
        (allow_write(), InvocationOutcome::OutcomeUnknown),
    ] {
        let world = world(scripted("", |_| async { panic!("a defect") }), policy).await;
        let (caliber, request) = (world.caliber.clone(), world.request("number", "{}"));
        let panic = tokio::spawn(async move { caliber.invoke(&admin(), request).await }).await;
        assert!(panic.unwrap_err().is_panic());
        world.parts.clock.advance(Duration::from_secs(600));
        world.caliber.sweep_orphans().await.unwrap();
        assert_eq!(world.outcomes().await, [outcome]);
    }
}

#[tokio::test]
async fn break_glass_is_for_admins_with_a_reason_and_is_told() {
    let world = World::with(allow_with_approval()).await;
    let caller = world.caller("ada").await;
    let call = async |who: &caliber_core::principal::Principal, reason: &str| {
        let mut request = world.request("number", ARGUMENTS);
        request.break_glass = Some(reason.to_owned());
        request.surface = Surface::Playground;
        world.caliber.invoke(who, request).await
    };
    refused(
        call(&caller, "the pager").await,
        ErrorKind::Denied,
        ReasonCode::NotGranted,
    );
    for reason in ["", "  ", &"x".repeat(1_001)] {
        let error = refused(call(&admin(), reason).await, ErrorKind::Invalid, None);
        assert_eq!(error.fields()[0].field, "break_glass");
    }
    call(&admin(), "the pager").await.unwrap();
    let calls = world.ledger().await;
    assert_eq!(
        calls.last().unwrap().invocation.break_glass.as_deref(),
        Some("the pager")
    );
    for action in [AuditAction::BeginInvocation, AuditAction::InvokeTool] {
        let entries = world.trail(action).await;
        let details: serde_json::Value = entries.last().unwrap().details.read().unwrap();
        assert_eq!(details["break_glass"], "the pager");
    }
    assert!(world.trail(AuditAction::RequestApproval).await.is_empty());
}

#[tokio::test]
async fn one_caller_never_meets_the_state_of_another() {
    let counter = scripted("", |call| async move {
        result(&format!(
            r#"{{"content":[],"structuredContent":{{"count":{}}}}}"#,
            call.ordinal
        ))
    });
    let world = world(counter, ToolPolicy::allow_read()).await;
    let callers = [world.caller("ada").await, world.caller("bob").await];
    for round in 1..=3 {
        for caller in &callers {
            let outcome = world
                .caliber
                .invoke(caller, world.request("number", "{}"))
                .await
                .unwrap();
            let result: serde_json::Value = outcome.answer.result.read().unwrap();
            assert_eq!(result["structuredContent"]["count"], round);
        }
    }
    assert_eq!(world.parts.gateway.openings(), 2);
}

#[tokio::test]
async fn a_withheld_tool_is_refused_as_that() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let admin = admin();
    let who = (&admin, Surface::Library);
    let name = world.server.definition.name.clone();
    // One that the server breaks, and one whose schema cannot be used.
    let bomb = r##"{"name":"bomb","inputSchema":{"type":"object","$ref":"http://127.0.0.1:1/x"}}"##;
    let bomb = ScriptedTool::new(bomb, |_| async { result("{}") }).unwrap();
    let server = ScriptedServer::new([bomb]).withholding("number", "its text is no JSON");
    world.parts.gateway.serve(&name, server);
    let found = world.caliber.discover(who, &world.server.id).await.unwrap();
    assert_eq!(
        (found.inventory.tool_count, found.inventory.withheld.len()),
        (0, 2)
    );
    refused(world.call().await, ErrorKind::Denied, ReasonCode::ToolWithheld);
    let outcome = world.caliber.invoke(&admin, world.request("bomb", "{}")).await;
    refused(outcome, ErrorKind::Denied, ReasonCode::ToolWithheld);
    let outcome = world.caliber.invoke(&admin, world.request("other", "{}")).await;
    refused(outcome, ErrorKind::Denied, ReasonCode::ToolUnknown);
}

#[tokio::test]
async fn a_foreign_change_of_the_store_is_seen_by_the_next_call() {
    let world = World::with(ToolPolicy::allow_read()).await;
    world.call().await.unwrap();
    // Another replica takes the classification back: nothing is cached here.
    let other = world.parts.caliber();
    let admin = admin();
    let who = (&admin, Surface::Library);
    other
        .declassify(who, &world.server.id, &tool("number"))
        .await
        .unwrap();
    refused(world.call().await, ErrorKind::Denied, ReasonCode::Unclassified);
}

#[tokio::test]
async fn a_quota_that_cannot_be_asked_refuses() {
    #[derive(Debug)]
    struct Away(AtomicU32);
    #[async_trait::async_trait]
    impl caliber_core::quota::QuotaStore for Away {
        async fn spend(&self, _: &str, _: u32) -> caliber_core::Result<caliber_core::quota::QuotaOutcome> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(Error::new(ErrorKind::Unavailable, "no route"))
        }
    }
    let parts = Parts::new();
    let quotas = Arc::new(Away(AtomicU32::new(0)));
    let caliber = caliber_core::Caliber::builder(
        parts.registry.clone(),
        Arc::new(parts.gateway.clone()),
        parts.policy.clone(),
        quotas.clone(),
    )
    .build();
    let world = World::around(parts, caliber, vec![number_tool("number")]).await;
    let policy = ToolPolicy {
        rate_limit_per_minute: Some(1),
        ..ToolPolicy::allow_read()
    };
    world.classify("number", policy).await;
    refused(
        world.call().await,
        ErrorKind::Unavailable,
        ReasonCode::QuotaUnavailable,
    );
    assert_eq!(quotas.0.load(Ordering::Relaxed), 1);
    assert!(world.parts.gateway.calls().is_empty());
    assert_eq!(world.outcomes().await, [InvocationOutcome::Denied]);
}

#[tokio::test]
async fn old_calls_are_pruned_and_the_trail_says_so() {
    let settings = Settings {
        keep_audit: Some(Duration::from_secs(3_600)),
        ..Settings::default()
    };
    let parts = Parts::new();
    let caliber = parts.caliber_with(settings);
    let world = World::around(parts, caliber, vec![number_tool("number")]).await;
    world.classify("number", ToolPolicy::allow_read()).await;
    world.call().await.unwrap();
    world.ledger().await;
    assert_eq!(world.caliber.prune().await.unwrap(), 0);
    assert!(world.trail(AuditAction::Prune).await.is_empty());
    world.parts.clock.advance(Duration::from_secs(91 * 24 * 3_600));
    // The call, and the entries of registration, discovery, classification and call.
    assert_eq!(world.caliber.prune().await.unwrap(), 5);
    assert!(world.ledger().await.is_empty());
    assert_eq!(world.trail(AuditAction::Prune).await.len(), 1);
}

#[tokio::test]
async fn an_error_tells_the_outcome_that_stands_in_the_ledger() {
    let kinds = [
        ErrorKind::Denied,
        ErrorKind::Upstream,
        ErrorKind::Unavailable,
        ErrorKind::Unsupported,
        ErrorKind::TooLarge,
        ErrorKind::Timeout,
        ErrorKind::Cancelled,
        ErrorKind::OutcomeUnknown,
        ErrorKind::Internal,
        ErrorKind::Invalid,
    ];
    let next = Arc::new(Mutex::new(None));
    let descriptor = r#"{"name":"fails","inputSchema":{"type":"object"}}"#;
    let failing = {
        let next = Arc::clone(&next);
        ScriptedTool::new(descriptor, move |_| {
            let kind: Option<ErrorKind> = *next.lock().unwrap();
            async move { Err(Error::new(kind.unwrap(), "as the test wants")) }
        })
    };
    let world = World::over(Parts::new(), vec![failing.unwrap()]).await;
    world.classify("fails", ToolPolicy::allow_read()).await;
    let mut told = Vec::new();
    for kind in kinds {
        *next.lock().unwrap() = Some(kind);
        let error = world
            .caliber
            .invoke(&admin(), world.request("fails", "{}"))
            .await
            .unwrap_err();
        told.push(InvocationOutcome::of(&error).unwrap());
    }
    // And one that was refused before anything was sent, and one that was no call at all.
    world
        .classify(
            "fails",
            ToolPolicy {
                allowed: false,
                ..ToolPolicy::allow_read()
            },
        )
        .await;
    let refused = world.caliber.invoke(&admin(), world.request("fails", "{}")).await;
    told.push(InvocationOutcome::of(&refused.unwrap_err()).unwrap());
    let hidden = world
        .caliber
        .invoke(
            &person("bob", "elsewhere", Scope::Viewer),
            world.request("fails", "{}"),
        )
        .await;
    assert_eq!(InvocationOutcome::of(&hidden.unwrap_err()), None);
    assert_eq!(world.outcomes().await, told);
}
