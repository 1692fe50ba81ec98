//! The default parts, put together: SQLite, the MCP gateway, the admission policy, quotas of this process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use caliber_core::secret::{SecretSource, SecretText};
use caliber_core::{Caliber, Error, Result, Settings};
use caliber_gateway::{GatewaySettings, LauncherSettings, McpGateway, PlainLauncher};
use caliber_policy::{Policy, PolicySettings, ProcessQuota};
use caliber_store::{Store, StoreSettings};

use crate::secrets::SecretChain;

/// Everything that can be set about an installation. The default needs no more than a path; see [`Config::at`].
///
/// What several parts have to agree on is set once, in [`policy`](Self::policy): the isolation prefix, the rules for
/// addresses and for secrets. [`open`] copies it to the other parts.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The database: its path, its keys, its bounds.
    pub store: StoreSettings,
    /// What the operator allows. The default starts no process and dials loopback only.
    pub policy: PolicySettings,
    /// How servers are reached: sessions, queues, lists, messages, times.
    pub gateway: GatewaySettings,
    /// How stdio servers are started, as plain children in process groups.
    pub launcher: LauncherSettings,
    /// Starts them in namespaces instead, with what each may reach. A server that cannot be started so is not started at
    /// all. `None`, the default, uses [`launcher`](Self::launcher). Linux only.
    #[cfg(feature = "sandbox")]
    pub namespaces: Option<caliber_sandbox::LauncherSettings>,
    /// Bounds and intervals of calls and records.
    pub settings: Settings,
    /// The variables that `env://NAME` is looked up in, as the host took them from its environment; default none.
    /// Which names may be used, [`PolicySettings::secrets`] says.
    pub variables: BTreeMap<String, SecretText>,
    /// Where code tools run; default nowhere. Which modules and executables may be code tools,
    /// [`PolicySettings::code_tools`] says.
    #[cfg(feature = "sandbox")]
    pub sandbox: crate::SandboxChoice,
}

impl Config {
    /// The defaults, with the database at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let store = StoreSettings {
            path: path.into(),
            ..StoreSettings::default()
        };
        Self {
            store,
            ..Self::default()
        }
    }
}

/// An open installation: the control plane, and the handle of its store for what only an operator does (backup,
/// rotation of keys).
#[derive(Clone, Debug)]
pub struct Installation {
    /// The control plane.
    pub caliber: Caliber,
    /// Its store.
    pub store: Store,
}

impl Installation {
    /// Opens the database, which is made if it is absent, and puts the parts around it. Nothing runs in the
    /// background yet: see [`Caliber::run`].
    ///
    /// # Errors
    ///
    /// `Invalid`, naming each setting that cannot be used; `Unavailable` when the database cannot be opened: the
    /// source is a [`caliber_store::Error`], whose kind says why; what the gateway reports when it cannot be set up.
    pub async fn open(config: Config) -> Result<Self> {
        let Config {
            store,
            mut policy,
            mut gateway,
            launcher,
            #[cfg(feature = "sandbox")]
            namespaces,
            settings,
            variables,
            #[cfg(feature = "sandbox")]
            sandbox,
        } = config;
        policy.validate()?;
        gateway.endpoints.addresses = policy.addresses.clone();
        gateway.endpoints.isolation_prefix = policy.isolation.prefix.clone();
        // The launcher gives every child a private working directory; readiness must not say otherwise.
        policy.isolated_workdir = true;
        #[cfg(feature = "sandbox")]
        {
            policy.namespaces = namespaces.is_some();
        }

        #[cfg(feature = "sandbox")]
        let sandbox = sandbox.leaving_out_database(&store.path);
        let store = Store::open(store).await.map_err(Error::from)?;
        let registry = Arc::new(store.clone());
        let stored: Arc<dyn SecretSource> = registry.clone();
        let secrets = Arc::new(SecretChain::new(stored, policy.secrets.clone(), variables));
        #[cfg(feature = "sandbox")]
        let launcher = match namespaces {
            Some(namespaces) => caliber_sandbox::launcher(namespaces)?,
            None => Arc::new(PlainLauncher::new(launcher)),
        };
        #[cfg(not(feature = "sandbox"))]
        let launcher = Arc::new(PlainLauncher::new(launcher));
        let gateway = McpGateway::new(gateway, secrets.clone(), launcher)?;
        let builder = Caliber::builder(
            registry,
            Arc::new(gateway),
            Arc::new(Policy::new(policy)),
            Arc::new(ProcessQuota::new()),
        )
        .settings(settings)
        .secrets(secrets);
        #[cfg(feature = "sandbox")]
        let builder = match sandbox.start().await? {
            Some(sandbox) => builder.sandbox(sandbox),
            None => builder,
        };
        Ok(Self {
            caliber: builder.build(),
            store,
        })
    }
}

/// Opens an installation for a host that needs no more than the control plane.
///
/// # Errors
///
/// As for [`Installation::open`].
pub async fn open(config: Config) -> Result<Caliber> {
    Installation::open(config)
        .await
        .map(|installation| installation.caliber)
}

#[cfg(test)]
mod tests;
