//! An installation on a file of its own.

use std::collections::BTreeMap;

use caliber::{Config, Installation};
use caliber_core::digest::DescriptorDigest;
use caliber_core::id::ServerId;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::page::PageRequest;
use caliber_core::policy::ToolPolicy;
use caliber_core::principal::{Principal, Surface};
use caliber_core::server::{
    Auth, Endpoint, RemoteEndpoint, ServerDefinition, ServerLimits, Sharing, StdioEndpoint, Visibility,
};
use caliber_core::{Caliber, InvokeRequest, ServerRegistration};
use caliber_policy::settings::LaunchRule;

/// A control plane with its database in a temporary folder of the disk that the build is on.
pub struct Bench {
    pub caliber: Caliber,
    pub admin: Principal,
    pub store: caliber_store::Store,
    // Removed with the value.
    folder: tempfile::TempDir,
}

impl Bench {
    /// Opens it; `launch` may be started.
    pub async fn open(launch: Vec<LaunchRule>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
        let mut config = Config::at(folder.path().join("bench.db"));
        config.policy.launch = launch;
        let Installation { caliber, store, .. } = Installation::open(config).await?;
        Ok(Self {
            caliber,
            admin: Principal::local_administrator(),
            store,
            folder,
        })
    }

    /// The folder of the database.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Registers a server under `name`.
    pub async fn register(&self, name: &str, endpoint: Endpoint) -> anyhow::Result<ServerId> {
        let registration = registration(name, endpoint)?;
        Ok(self
            .caliber
            .register_server((&self.admin, Surface::Library), registration)
            .await?
            .id)
    }

    /// Discovers its tools and classifies the first one with `policy`; returns its name.
    pub async fn open_tool(&self, server: &ServerId, tool: &str, policy: ToolPolicy) -> anyhow::Result<()> {
        let who = (&self.admin, Surface::Library);
        self.caliber.discover(who, server).await?;
        let seen: Option<DescriptorDigest> = None;
        self.caliber
            .classify(who, server, &tool.parse()?, policy, seen)
            .await?;
        Ok(())
    }

    /// A request of `tool` with `arguments`.
    pub fn request(
        &self,
        server: &ServerId,
        tool: &str,
        arguments: &serde_json::Value,
    ) -> anyhow::Result<InvokeRequest> {
        let arguments = JsonText::parse(arguments.to_string(), JsonLimits::ARGUMENTS)?;
        Ok(InvokeRequest::new(
            server.clone(),
            tool.parse()?,
            arguments,
            Surface::Library,
        ))
    }

    /// How many tools a server has.
    pub async fn tools(&self, server: &ServerId) -> anyhow::Result<u32> {
        let listing = self
            .caliber
            .tools(&self.admin, server, &PageRequest::first(1))
            .await?;
        Ok(listing.inventory.map_or(0, |inventory| inventory.tool_count))
    }
}

/// A streamable HTTP endpoint.
pub fn remote(url: &str) -> Endpoint {
    Endpoint::StreamableHttp(RemoteEndpoint {
        url: url.into(),
        headers: BTreeMap::new(),
    })
}

/// A child process.
pub fn stdio(command: &str, args: &[&str]) -> Endpoint {
    let args = args.iter().map(|&argument| argument.to_owned()).collect();
    Endpoint::Stdio(StdioEndpoint {
        command: command.into(),
        args,
        env: BTreeMap::new(),
    })
}

/// What is registered: a server at `endpoint` with nothing else to it.
pub fn registration(name: &str, endpoint: Endpoint) -> anyhow::Result<ServerRegistration> {
    let definition = ServerDefinition {
        name: name.parse()?,
        description: "a server to be measured".into(),
        icon: String::new(),
        endpoint,
        auth: Auth::None,
        sharing: Sharing::PerCaller,
        limits: ServerLimits::default(),
    };
    Ok(ServerRegistration {
        definition,
        visibility: Visibility::Project,
    })
}
