//! The whole life of a tool: registered, discovered, refused, classified, called, drifted, looked at, called again.

use std::time::Duration;

use caliber_core::audit::{AuditAction, AuditQuery};
use caliber_core::inventory::ToolState;
use caliber_core::invocation::InvocationOutcome;
use caliber_core::memory::{self, Parts, ScriptedServer};
use caliber_core::page::PageRequest;
use caliber_core::policy::ToolPolicy;
use caliber_core::principal::Surface;
use caliber_core::reason::ReasonCode;
use caliber_core::{ErrorKind, InvokeRequest, ServerPatch};
use tokio_util::sync::CancellationToken;

use crate::support::*;

#[tokio::test]
async fn a_tool_is_callable_exactly_while_what_was_classified_is_there() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let admin = admin();
    let who = (&admin, Surface::Library);
    let name = "weather".parse().unwrap();
    let original = number_tool("number");
    parts
        .gateway
        .serve(&name, ScriptedServer::new([original.clone()]));

    let registration = memory::registration("weather").unwrap();
    let server = caliber.register_server(who, registration).await.unwrap();
    let request = || {
        InvokeRequest::new(
            server.id.clone(),
            tool("number"),
            json(ARGUMENTS),
            Surface::Library,
        )
    };
    let refusal = async |reason| {
        refused(caliber.invoke(&admin, request()).await, ErrorKind::Denied, reason);
    };
    refusal(ReasonCode::InventoryAbsent).await;

    let check = caliber.check(who, &server.id).await.unwrap();
    assert_eq!(check.report.unwrap().tools, ["number"]);
    let found = caliber.discover(who, &server.id).await.unwrap();
    assert_eq!(
        (found.added, found.inventory.tool_count),
        (vec![tool("number")], 1)
    );
    refusal(ReasonCode::Unclassified).await;
    let view = caliber
        .tool(&admin, &server.id, &tool("number"))
        .await
        .unwrap()
        .view;
    assert_eq!(
        view.state(&server.definition.fingerprint()),
        ToolState::Unclassified
    );

    let seen = Some(view.descriptor.digest());
    let policy = ToolPolicy::allow_read();
    caliber
        .classify(who, &server.id, &tool("number"), policy.clone(), seen)
        .await
        .unwrap();
    let outcome = caliber.invoke(&admin, request()).await.unwrap();
    assert_eq!(
        outcome
            .answer
            .result
            .member("structuredContent")
            .unwrap()
            .as_str(),
        ARGUMENTS
    );

    // The server describes its tool in another way, without a word: the next session stumbles over it.
    let changed = original
        .clone()
        .described("Answers with somebody else's number.")
        .unwrap();
    parts.gateway.serve(&name, ScriptedServer::new([changed.clone()]));
    caliber.discover(who, &server.id).await.unwrap();
    refusal(ReasonCode::Drifted).await;
    let drift = caliber.drift(&admin, &server.id, &tool("number")).await.unwrap();
    assert_eq!(drift.state, ToolState::Drifted);
    assert!(!drift.place_changed);
    let lines = |sign: char| drift.lines.iter().filter(move |line| line.starts_with(sign));
    assert_eq!(lines('-').count(), 1, "{:?}", drift.lines);
    assert_eq!(lines('+').count(), 1, "{:?}", drift.lines);
    assert!(lines('+').all(|line| line.contains("somebody else's")));

    // What the admin looked at is not what is there any more: nothing is decided.
    let stale = caliber
        .classify(who, &server.id, &tool("number"), policy.clone(), seen)
        .await;
    refused(stale, ErrorKind::Conflict, ReasonCode::StaleRevision);
    let now = Some(drift.current_digest);
    caliber
        .classify(who, &server.id, &tool("number"), policy.clone(), now)
        .await
        .unwrap();
    parts.gateway.end_sessions();
    caliber.invoke(&admin, request()).await.unwrap();

    // Taking the change back is a change too.
    parts.gateway.serve(&name, ScriptedServer::new([original]));
    caliber.discover(who, &server.id).await.unwrap();
    refusal(ReasonCode::Drifted).await;
    parts.gateway.serve(&name, ScriptedServer::new([changed]));
    caliber.discover(who, &server.id).await.unwrap();
    refusal(ReasonCode::Drifted).await;
    let current = caliber.drift(&admin, &server.id, &tool("number")).await.unwrap();
    assert_eq!(current.classified_digest, Some(current.current_digest));
    assert_eq!(current.state, ToolState::Drifted);
    caliber
        .classify(who, &server.id, &tool("number"), policy, None)
        .await
        .unwrap();
    caliber.invoke(&admin, request()).await.unwrap();

    caliber
        .declassify(who, &server.id, &tool("number"))
        .await
        .unwrap();
    refusal(ReasonCode::Unclassified).await;
    // A tool that was taken back can be classified again.
    let again = ToolPolicy::allow_read();
    caliber
        .classify(who, &server.id, &tool("number"), again, None)
        .await
        .unwrap();
    caliber.invoke(&admin, request()).await.unwrap();
    caliber.remove_server(who, &server.id, None).await.unwrap();
    refused(caliber.invoke(&admin, request()).await, ErrorKind::NotFound, None);

    let history = caliber
        .server_history(&admin, &server.id, &PageRequest::first(500))
        .await
        .unwrap();
    let mut actions: Vec<_> = history.items.iter().map(|entry| entry.action).collect();
    actions.reverse();
    use AuditAction as A;
    let expected = [
        A::CreateServer,
        A::TestConnection,
        A::DiscoverTools,
        A::ClassifyTool,
        A::DiscoverTools,
        A::ClassifyTool,
        A::DiscoverTools,
        A::DiscoverTools,
        A::ClassifyTool,
        A::DeclassifyTool,
        A::ClassifyTool,
        A::DeleteServer,
    ];
    let administrative: Vec<_> = actions
        .iter()
        .copied()
        .filter(|action| *action != A::InvokeTool)
        .collect();
    assert_eq!(administrative, expected);
    // Six refusals and four answers; the call after the removal concerns no server.
    assert_eq!(actions.len() - administrative.len(), 10);
    // The export has seen what the store has.
    let query = AuditQuery::default();
    let trail = walk(async |page| caliber.audit(&admin, query.clone(), &page).await.unwrap()).await;
    let mut stored: Vec<_> = trail.into_iter().map(|entry| entry.id).collect();
    let mut exported: Vec<_> = parts.sink.entries().into_iter().map(|entry| entry.id).collect();
    stored.sort();
    exported.sort();
    assert_eq!(exported, stored);
}

#[tokio::test]
async fn a_session_that_sees_another_tool_sends_nothing_and_refreshes_the_inventory() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let name = world.server.definition.name.clone();
    let changed = number_tool("number").described("changed").unwrap();
    world.parts.gateway.serve(&name, ScriptedServer::new([changed]));
    refused(world.call().await, ErrorKind::Denied, ReasonCode::Drifted);
    assert!(
        world.parts.gateway.calls().is_empty(),
        "a changed tool was called"
    );
    // The inventory has followed, so that the difference can be looked at.
    let drift = world
        .caliber
        .drift(&admin(), &world.server.id, &tool("number"))
        .await
        .unwrap();
    assert_eq!(drift.state, ToolState::Drifted);
    assert_ne!(drift.classified_digest, Some(drift.current_digest));
    assert_eq!(world.trail(AuditAction::RefreshInventory).await.len(), 1);
    assert_eq!(world.outcomes().await, [InvocationOutcome::Denied]);
}

#[tokio::test]
async fn an_announced_change_drifts_in_the_background_and_never_classifies() {
    let world = World::with(ToolPolicy::allow_read()).await;
    world.call().await.unwrap();
    let cancel = CancellationToken::new();
    let (caliber, ended) = (world.caliber.clone(), cancel.clone());
    let background = tokio::spawn(async move { caliber.run(ended, Duration::from_secs(5)).await });
    let name = world.server.definition.name.clone();
    let changed = number_tool("number").described("changed").unwrap();
    world
        .parts
        .gateway
        .serve(&name, ScriptedServer::new([changed, number_tool("more")]));
    world.parts.gateway.announce(&name);
    let state = async |name: &str| {
        let view = world
            .caliber
            .tool(&admin(), &world.server.id, &tool(name))
            .await
            .ok()?
            .view;
        Some(view.state(&world.server.definition.fingerprint()))
    };
    eventually("the tool drifts", async || {
        state("number").await == Some(ToolState::Drifted)
    })
    .await;
    eventually("the new tool is listed", async || {
        state("more").await == Some(ToolState::Unclassified)
    })
    .await;
    refused(world.call().await, ErrorKind::Denied, ReasonCode::Drifted);
    cancel.cancel();
    background.await.unwrap().unwrap();
    assert_eq!(world.parts.gateway.calls().len(), 1);
}

#[tokio::test]
async fn a_move_drifts_every_tool_and_moving_back_does_not_help() {
    let world = World::with(ToolPolicy::allow_read()).await;
    world.call().await.unwrap();
    let admin = admin();
    let who = (&admin, Surface::Library);
    let patch = |definition: caliber_core::server::ServerDefinition| ServerPatch {
        endpoint: Some(definition.endpoint),
        ..ServerPatch::default()
    };
    let elsewhere = memory::definition("elsewhere").unwrap();
    let id = &world.server.id;
    world
        .caliber
        .update_server(who, id, patch(elsewhere))
        .await
        .unwrap();
    refused(world.call().await, ErrorKind::Denied, ReasonCode::Drifted);
    let drift = world.caliber.drift(&admin, id, &tool("number")).await.unwrap();
    assert!(drift.place_changed);
    let home = memory::definition("weather").unwrap();
    world.caliber.update_server(who, id, patch(home)).await.unwrap();
    refused(world.call().await, ErrorKind::Denied, ReasonCode::Drifted);
    world.classify("number", ToolPolicy::allow_read()).await;
    world.call().await.unwrap();
}

#[tokio::test]
async fn a_disabled_server_takes_no_call() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let admin = admin();
    let who = (&admin, Surface::Library);
    let set = |status| ServerPatch {
        status: Some(status),
        ..ServerPatch::default()
    };
    use caliber_core::server::ServerStatus::{Active, Disabled};
    world
        .caliber
        .update_server(who, &world.server.id, set(Disabled))
        .await
        .unwrap();
    refused(world.call().await, ErrorKind::Denied, ReasonCode::ServerDisabled);
    world
        .caliber
        .update_server(who, &world.server.id, set(Active))
        .await
        .unwrap();
    world.call().await.unwrap();
}
