//! The contracts of the ports, as the core's suites say them.

use std::sync::Arc;

use caliber_core::conformance;
use caliber_core::id::{CodeToolId, ServerId};
use caliber_core::registry::Registry;
use caliber_core::secret::{SecretReference, SecretSource, SecretText};
use caliber_store::Store;

use crate::support::{Home, with_secret};

/// Stores of one test. Their folders go at its end.
#[derive(Default)]
struct Homes(std::cell::RefCell<Vec<Home>>);

impl Homes {
    async fn store(&self) -> Store {
        let home = Home::new();
        let store = home.open().await;
        self.0.borrow_mut().push(home);
        store
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_a_registry() {
    let homes = Homes::default();
    conformance::registry::run(async || Arc::new(homes.store().await) as Arc<dyn Registry>).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_needed_server_stays() {
    let home = Home::new();
    let store = home.open().await;
    let registry: Arc<dyn Registry> = Arc::new(store);
    let set_needed = async |server: &ServerId, needed: bool| {
        home.execute(&if needed {
            format!("INSERT INTO deployment_references VALUES ('{server}', 'billing', 'live', 0)")
        } else {
            "DELETE FROM deployment_references".to_owned()
        });
    };
    conformance::registry::a_needed_server_stays(registry, set_needed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_needed_version_stays() {
    let home = Home::new();
    let store = home.open().await;
    let registry: Arc<dyn Registry> = Arc::new(store);
    let set_needed = async |tool: &CodeToolId, needed: bool| {
        home.execute(&if needed {
            format!("INSERT INTO code_tool_deployment_references VALUES ('{tool}', 'billing', 'live', 0)")
        } else {
            "DELETE FROM code_tool_deployment_references".to_owned()
        });
    };
    conformance::registry::a_needed_version_stays(registry, set_needed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_the_source_of_the_secrets_that_it_keeps() {
    let homes = Homes::default();
    conformance::secrets::run_stored(async || {
        let store = homes.store().await;
        (
            Arc::new(store.clone()) as Arc<dyn Registry>,
            Arc::new(store) as Arc<dyn SecretSource>,
        )
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_a_secret_source() {
    let home = Home::new();
    let store = home.open().await;
    let (_, id) = with_secret(&store, "weather", "canary-conformance").await;
    let known = [(SecretReference::Stored(id), SecretText::new("canary-conformance"))];
    conformance::secrets::run(&store, &known).await;
}

#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread")]
async fn a_needed_server_stays_when_a_test_says_so() {
    let home = Home::new();
    let store = home.open().await;
    let registry: Arc<dyn Registry> = Arc::new(store.clone());
    let set_needed = async |server: &ServerId, needed: bool| {
        let reference = caliber_core::registry::DeploymentReference {
            workflow: "billing".to_owned(),
            alias: "live".to_owned(),
            rollback_only: true,
        };
        let references = if needed { vec![reference] } else { Vec::new() };
        store.set_deployments(server, &references).await.unwrap();
    };
    conformance::registry::a_needed_server_stays(registry, set_needed).await;
}

#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread")]
async fn a_needed_version_stays_when_a_test_says_so() {
    let home = Home::new();
    let store = home.open().await;
    let registry: Arc<dyn Registry> = Arc::new(store.clone());
    let set_needed = async |tool: &CodeToolId, needed: bool| {
        let reference = caliber_core::registry::DeploymentReference {
            workflow: "billing".to_owned(),
            alias: "live".to_owned(),
            rollback_only: true,
        };
        let references = if needed { vec![reference] } else { Vec::new() };
        store.set_code_tool_deployments(tool, &references).await.unwrap();
    };
    conformance::registry::a_needed_version_stays(registry, set_needed).await;
}
