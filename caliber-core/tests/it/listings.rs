//! What sessions list by themselves, and what must not be lost when somebody goes away.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use caliber_core::gateway::Gateway;
use caliber_core::inventory::ToolState;
use caliber_core::memory::{Outage, Parts, ScriptedServer};
use caliber_core::policy::ToolPolicy;
use caliber_core::principal::Surface;
use caliber_core::registry::Registry;
use caliber_core::{Caliber, Settings};
use tokio_util::sync::CancellationToken;

use crate::support::*;

const GRACE: Duration = Duration::from_secs(5);

/// A control plane whose gateway takes time where a real one does, with an open session of the admin.
async fn with_open_session() -> (World, Interposed) {
    let parts = Parts::new();
    let gateway = Interposed::new(parts.gateway.clone());
    let caliber = Caliber::builder(
        parts.registry.clone(),
        Arc::new(gateway.clone()),
        parts.policy.clone(),
        parts.quotas.clone(),
    )
    .settings(Settings {
        sweep_interval: Duration::from_millis(10),
        ..Settings::default()
    })
    .build();
    let world = World::around(parts, caliber, vec![number_tool("number")]).await;
    world.classify("number", ToolPolicy::allow_read()).await;
    world.call().await.unwrap();
    (world, gateway)
}

impl World {
    fn serve(&self, description: &str) {
        let tool = number_tool("number").described(description).unwrap();
        self.parts
            .gateway
            .serve(&self.server.definition.name, ScriptedServer::new([tool]));
    }

    async fn state(&self) -> ToolState {
        let view = self
            .caliber
            .tool(&admin(), &self.server.id, &tool("number"))
            .await
            .unwrap()
            .view;
        view.state(&self.server.definition.fingerprint())
    }
}

#[tokio::test]
async fn a_listing_that_meets_a_busy_store_is_taken_over_later() {
    let (world, gateway) = with_open_session().await;
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let (caliber, cancel) = (world.caliber.clone(), cancel.clone());
        async move { caliber.run(cancel, GRACE).await }
    });
    world.serve("another tool");
    world.parts.registry.set_outage(Some(Outage::Commits));
    world.parts.gateway.announce(&world.server.definition.name);
    eventually("the listing is handed out", async || gateway.listings() == 1).await;
    world.parts.registry.set_outage(None);
    eventually("the drift is stored", async || {
        world.state().await == ToolState::Drifted
    })
    .await;
    cancel.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_older_listing_does_not_undo_a_discovery() {
    let (world, gateway) = with_open_session().await;
    let admin = admin();
    let who = (&admin, Surface::Library);
    world.serve("for a moment only");
    world.parts.gateway.announce(&world.server.definition.name);
    world.serve("for good");
    world.caliber.discover(who, &world.server.id).await.unwrap();
    world.classify("number", ToolPolicy::allow_read()).await;
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let (caliber, cancel) = (world.caliber.clone(), cancel.clone());
        async move { caliber.run(cancel, GRACE).await }
    });
    eventually("the older one is handed out", async || gateway.listings() == 1).await;
    // The next one is handed out when that one was dealt with.
    world.parts.gateway.announce(&world.server.definition.name);
    eventually("the next one is handed out", async || gateway.listings() == 2).await;
    cancel.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(world.state().await, ToolState::Classified);
}

#[tokio::test]
async fn who_goes_away_after_a_removal_leaves_no_session() {
    let (world, _) = with_open_session().await;
    let admin = admin();
    let sessions = || world.parts.gateway.health(&world.server.id).sessions;
    assert_eq!(sessions(), 1);
    let mut removing = Box::pin(
        world
            .caliber
            .remove_server((&admin, Surface::Http), &world.server.id, None),
    );
    loop {
        let polled = poll_fn(|context| Poll::Ready(removing.as_mut().poll(context).is_ready())).await;
        assert!(!polled, "it was dropped too late to prove anything");
        if world
            .parts
            .registry
            .server(&world.server.id)
            .await
            .unwrap()
            .is_none()
        {
            break;
        }
        tokio::task::yield_now().await;
    }
    drop(removing);
    eventually("its session ends", async || sessions() == 0).await;
}
