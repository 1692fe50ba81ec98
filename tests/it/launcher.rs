//! An official server in namespaces, called through the gateway.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use caliber::core::descriptor::ToolName;
use caliber::core::json::{JsonLimits, JsonText};
use caliber::core::memory::MemorySecrets;
use caliber::core::policy::ToolPolicy;
use caliber::core::principal::{Principal, Surface};
use caliber::core::process::ProcessLauncher;
use caliber::core::server::{Endpoint, Visibility};
use caliber::gateway::{GatewaySettings, McpGateway};
use caliber::policy::{Policy, PolicySettings, ProcessQuota};
use caliber::sandbox::linux::launcher::{LauncherSettings, NamespaceLauncher, ServerProfile};
use caliber::store::{Store, StoreSettings};
use caliber::{Caliber, InvokeRequest, ServerRegistration};
use tokio_util::sync::CancellationToken;

use crate::support::SECOND;
use crate::support::peers::{self, Python};
use crate::support::rig::definition;

#[tokio::test(flavor = "multi_thread")]
async fn an_official_server_answers_from_namespaces() {
    for python in [Python::Mcp1, Python::Mcp2] {
        let Some(peer) = peers::time(python) else { return };
        let Endpoint::Stdio(stdio) = &peer.endpoint else {
            panic!("the server of the time speaks on standard input and output");
        };
        let launcher = NamespaceLauncher::new(LauncherSettings {
            term_grace: SECOND,
            profile: ServerProfile {
                readable: environment_of(Path::new(&stdio.command)),
                ..ServerProfile::default()
            },
            ..LauncherSettings::default()
        })
        .expect("the settings can be");
        let launcher = Arc::new(launcher);
        let measures = launcher.containment();
        let holds = |name: &str| {
            measures
                .iter()
                .any(|measure| measure.measure == name && measure.enforced)
        };
        if !holds("process_namespace") {
            let required = std::env::var_os("CI").is_some_and(|value| value == "true");
            assert!(!required, "no namespaces here: {measures:#?}");
            eprintln!("skipped: no namespaces can be made here");
            return;
        }

        let folder = tempfile::tempdir().expect("a folder for the database");
        let store = Store::open(StoreSettings {
            path: folder.path().join("caliber.db"),
            ..StoreSettings::default()
        })
        .await
        .expect("the store opens");
        let gateway = McpGateway::new(
            GatewaySettings::default(),
            Arc::new(MemorySecrets::default()),
            launcher.clone(),
        )
        .expect("the gateway starts");
        let policy = PolicySettings {
            launch: peer.launch_rules(),
            isolated_workdir: true,
            ..PolicySettings::default()
        };
        let caliber = Caliber::builder(
            Arc::new(store.clone()),
            Arc::new(gateway),
            Arc::new(Policy::new(policy)),
            Arc::new(ProcessQuota::new()),
        )
        .build();
        let cancel = CancellationToken::new();
        let background = tokio::spawn({
            let (caliber, cancel) = (caliber.clone(), cancel.clone());
            async move { caliber.run(cancel, SECOND * 5).await }
        });

        let admin = Principal::local_administrator();
        let who = (&admin, Surface::Library);
        let registration = ServerRegistration {
            definition: definition("time", peer.endpoint.clone()),
            visibility: Visibility::Project,
        };
        let server = caliber
            .register_server(who, registration)
            .await
            .expect("it is registered")
            .id;
        let found = caliber.discover(who, &server).await.expect("it is discovered");
        assert_eq!(found.inventory.tool_count, 2);
        let tool: ToolName = "get_current_time".parse().expect("a name");
        caliber
            .classify(who, &server, &tool, ToolPolicy::allow_read(), None)
            .await
            .expect("it is classified");
        let arguments =
            JsonText::parse(r#"{"timezone":"Europe/Berlin"}"#, JsonLimits::ARGUMENTS).expect("JSON");
        let request = InvokeRequest::new(server, tool, arguments, Surface::Library);
        let outcome = caliber.invoke(&admin, request).await.expect("it is called");
        let text = outcome.answer.result.as_str();
        assert!(text.contains("Europe/Berlin"), "{text}");

        cancel.cancel();
        background
            .await
            .expect("it does not panic")
            .expect("it ends in time");
        store.close().await;
    }
}

/// The folder of a virtual environment, and that of the interpreter that it was made from.
fn environment_of(python: &Path) -> Vec<PathBuf> {
    let above = |path: &Path| {
        path.ancestors()
            .nth(2)
            .expect("it lies in `bin` of a folder")
            .to_owned()
    };
    let interpreter = python.canonicalize().expect("the interpreter is there");
    vec![above(python), above(&interpreter)]
}
