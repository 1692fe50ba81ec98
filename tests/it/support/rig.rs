//! An installation to test against.

use std::path::Path;
use std::time::Duration;

use caliber::core::grant::Grantee;
use caliber::core::principal::{Principal, Scope, Scopes, Surface};
use caliber::core::server::{Endpoint, ServerDefinition};
use caliber::gateway::LauncherSettings;
use caliber::policy::settings::{ArgumentRule, LaunchRule};
use caliber::store::{KeyRing, Store};
use caliber::{Caliber, Config, Installation};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::api::Api;
use super::server::Server;
use super::upstream::{rig_program, rig_python};
use super::waiting::SECOND;

/// How long an installation may take to end.
const GRACE: Duration = Duration::from_secs(5);

/// An installation on a temporary folder, with its background work running. Everything ends when it is dropped;
/// [`close`](Self::close) waits for it.
#[derive(Debug)]
pub(crate) struct Rig {
    /// The control plane.
    pub(crate) caliber: Caliber,
    /// Its store.
    pub(crate) store: Store,
    /// The administrator.
    pub(crate) admin: Principal,
    /// A caller with the scope `viewer`.
    pub(crate) ada: Principal,
    /// Another.
    pub(crate) ben: Principal,
    folder: TempDir,
    config: Config,
    background: Option<JoinHandle<caliber::Result<()>>>,
    cancel: CancellationToken,
}

impl Rig {
    /// An installation with the settings of [`config`](Self::config).
    pub(crate) async fn open() -> Self {
        Self::open_with(|_| {}).await
    }

    /// An installation with other settings.
    pub(crate) async fn open_with(change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the database");
        let mut config = Self::config(&folder.path().join("caliber.db"));
        change(&mut config);
        Self::open_at(folder, config).await
    }

    async fn open_at(folder: TempDir, config: Config) -> Self {
        let Installation { caliber, store, .. } = Installation::open(config.clone())
            .await
            .expect("the installation opens");
        let cancel = CancellationToken::new();
        let background = tokio::spawn({
            let (caliber, cancel) = (caliber.clone(), cancel.clone());
            async move { caliber.run(cancel, GRACE).await }
        });
        Self {
            caliber,
            store,
            admin: Principal::local_administrator(),
            ada: caller("ada"),
            ben: caller("ben"),
            folder,
            config,
            background: Some(background),
            cancel,
        }
    }

    /// The settings of a rig: it may start the programs of `tests/rig`, and dial loopback; it has a key for
    /// secrets; `env://CANARY_…` may be referred to; connections that rest are closed after a second.
    pub(crate) fn config(database: &Path) -> Config {
        let mut config = Config::at(database);
        let line = KeyRing::generate_line().expect("a key");
        config.store.key_ring = Some(KeyRing::parse(line.expose()).expect("a key ring"));
        config.policy.launch = vec![LaunchRule {
            executable: "${PYTHON}".into(),
            arguments: ArgumentRule::Script(rig_program("fake_stdio.py").to_string_lossy().into_owned()),
        }];
        config.policy.environment = vec!["RIG_*".parse().expect("a pattern")];
        config.policy.secrets.environment = vec!["CANARY_*".parse().expect("a pattern")];
        config.gateway.endpoints.python = Some(rig_python());
        config.gateway.endpoints.rest_time = SECOND;
        config.launcher = LauncherSettings {
            term_grace: SECOND,
            ..LauncherSettings::default()
        };
        config
    }

    /// A caller with the scope `viewer` in the default project.
    pub(crate) fn caller(&self, name: &str) -> Principal {
        caller(name)
    }

    /// Registers a server; nothing is discovered yet.
    pub(crate) async fn register(&self, name: &str, endpoint: Endpoint) -> Server {
        self.register_definition(definition(name, endpoint)).await
    }

    /// Registers a server with a whole definition.
    pub(crate) async fn register_definition(&self, definition: ServerDefinition) -> Server {
        Server::register(&self.caliber, &self.admin, definition)
            .await
            .expect("the server is registered")
    }

    /// Registers and discovers a server, classifies all its tools ([`super::policy_for`]) and lets everybody with
    /// the scope `viewer` call them.
    pub(crate) async fn admit(&self, name: &str, endpoint: Endpoint) -> Server {
        self.admit_definition(definition(name, endpoint)).await
    }

    /// [`admit`](Self::admit), with a whole definition.
    pub(crate) async fn admit_definition(&self, definition: ServerDefinition) -> Server {
        let server = self.register_definition(definition).await;
        server.discover().await.expect("the server is discovered");
        server.classify_all().await;
        server.open_to(Grantee::Scope(Scope::Viewer)).await;
        server
    }

    /// Serves the operator API on loopback, with a token of the administrator.
    pub(crate) async fn serve(&self) -> Api {
        Api::serve(self).await
    }

    /// The folder of the database.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Who acts, on the surface of the library.
    pub(crate) fn administrator(&self) -> (&Principal, Surface) {
        (&self.admin, Surface::Library)
    }

    /// Ends the installation and opens it again, as a restart does.
    pub(crate) async fn reopen(self) -> Self {
        let config = self.config.clone();
        Self::open_at(self.close().await, config).await
    }

    /// Ends everything and waits for it: sessions, children, records. Returns the folder of the database, to be
    /// looked at.
    pub(crate) async fn close(mut self) -> TempDir {
        self.cancel.cancel();
        if let Some(background) = self.background.take() {
            background
                .await
                .expect("the background work does not panic")
                .expect("the installation ends in its grace");
        }
        self.store.close().await;
        let folder = tempfile::tempdir().expect("a folder");
        std::mem::replace(&mut self.folder, folder)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// A definition with nothing but a name and a place.
pub(crate) fn definition(name: &str, endpoint: Endpoint) -> ServerDefinition {
    ServerDefinition {
        name: name.parse().expect("a server name"),
        description: String::new(),
        icon: String::new(),
        endpoint,
        auth: Default::default(),
        sharing: Default::default(),
        limits: Default::default(),
    }
}

fn caller(name: &str) -> Principal {
    let subject = name.parse().expect("a subject");
    Principal::host(subject, Default::default(), Scopes::NONE.with(Scope::Viewer))
}
