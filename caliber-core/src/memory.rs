//! An in-memory reference of each port, and a [`Caliber`] over all of them.
//!
//! They are the plainest code that keeps the contract of each port: for tests of everything that stands on the
//! ports, and to be read beside them. Nothing outlives the process.
//!
//! ```
//! use caliber_core::memory::{self, ScriptedServer, ScriptedTool};
//! use caliber_core::principal::{Principal, Surface};
//!
//! # fn main() -> caliber_core::Result<()> {
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let parts = memory::Parts::new();
//! let caliber = parts.caliber();
//! parts.gateway.serve(&"echo".parse()?, ScriptedServer::new([ScriptedTool::echo("say")?]));
//!
//! let admin = Principal::local_administrator();
//! let who = (&admin, Surface::Library);
//! let server = caliber.register_server(who, memory::registration("echo")?).await?;
//! let found = caliber.discover(who, &server.id).await?;
//! assert_eq!(found.inventory.tool_count, 1);
//! # Ok(())
//! # })
//! # }
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::admission::AdmissionPolicy;
use crate::audit::AuditSink;
use crate::caliber::{Caliber, CaliberBuilder, CodeToolRegistration, ServerRegistration, Settings};
use crate::clock::Clock;
use crate::code_tool::CodeToolDefinition;
use crate::error::Result;
use crate::gateway::Gateway;
use crate::policy::SideEffectLevel;
use crate::registry::Registry;
use crate::sandbox::{ExecutionPreference, Program, RunLimits};
use crate::server::{Auth, Endpoint, RemoteEndpoint, ServerDefinition, ServerLimits, Sharing, Visibility};

mod changes;
mod code_tools;
mod gateway;
mod paging;
mod parts;
mod policy;
mod registry;
mod sandbox;
mod script;
mod state;

pub use gateway::ScriptedGateway;
use parts::StoredOrSet;
pub use parts::{CountingQuota, ManualClock, MemoryAuditSink, MemorySecrets};
pub use policy::ReferencePolicy;
pub use registry::{MemoryRegistry, Outage};
pub use sandbox::ScriptedSandbox;
pub use script::{CallEnd, LoggedCall, ScriptedCall, ScriptedServer, ScriptedTool};

/// The references, one of each, on one clock.
#[derive(Clone, Debug)]
pub struct Parts {
    /// What is stored.
    pub registry: Arc<MemoryRegistry>,
    /// What is reached.
    pub gateway: ScriptedGateway,
    /// What runs code tools.
    pub sandbox: ScriptedSandbox,
    /// What resolves the secrets of code tools that are not stored; the registry resolves those that are.
    pub secrets: Arc<MemorySecrets>,
    /// The order of admission.
    pub policy: Arc<dyn AdmissionPolicy>,
    /// The rates.
    pub quotas: Arc<CountingQuota>,
    /// The time that is recorded; it stands still until it is moved.
    pub clock: Arc<ManualClock>,
    /// What was exported of the trail.
    pub sink: Arc<MemoryAuditSink>,
}

impl Parts {
    /// Fresh references.
    pub fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        Self {
            registry: Arc::new(MemoryRegistry::with_clock(Arc::clone(&clock) as Arc<dyn Clock>)),
            gateway: ScriptedGateway::new(),
            sandbox: ScriptedSandbox::new(),
            secrets: Arc::default(),
            policy: Arc::new(ReferencePolicy),
            quotas: Arc::new(CountingQuota::with_clock(Arc::clone(&clock) as Arc<dyn Clock>)),
            clock,
            sink: Arc::default(),
        }
    }

    /// A control plane over them. Each call gives another instance on the same parts: a replica.
    pub fn caliber(&self) -> Caliber {
        self.builder().build()
    }

    /// The same with other settings.
    pub fn caliber_with(&self, settings: Settings) -> Caliber {
        self.builder().settings(settings).build()
    }

    /// The same, to be changed first.
    pub fn builder(&self) -> CaliberBuilder {
        Caliber::builder(
            Arc::clone(&self.registry) as Arc<dyn Registry>,
            Arc::new(self.gateway.clone()) as Arc<dyn Gateway>,
            Arc::clone(&self.policy),
            Arc::clone(&self.quotas) as _,
        )
        .clock(Arc::clone(&self.clock) as Arc<dyn Clock>)
        .audit_sink(Arc::clone(&self.sink) as Arc<dyn AuditSink>)
        .sandbox(Arc::new(self.sandbox.clone()))
        .secrets(Arc::new(StoredOrSet {
            stored: Arc::clone(&self.registry),
            set: Arc::clone(&self.secrets),
        }))
    }
}

impl Default for Parts {
    fn default() -> Self {
        Self::new()
    }
}

/// A code tool of this name and version: the callable `run` of the module of that name, which only reads.
///
/// # Errors
///
/// `Invalid` for what is no name or no version.
pub fn code_tool(name: &str, version: &str) -> Result<CodeToolRegistration> {
    Ok(CodeToolRegistration {
        definition: CodeToolDefinition {
            family: name.parse()?,
            version: version.parse()?,
            description: String::new(),
            program: Program::Python {
                module_path: "tools.sample".to_owned(),
                callable_name: "run".to_owned(),
                source_roots: Vec::new(),
                package_roots: Vec::new(),
            },
            input_schema: None,
            output_schema: None,
            side_effect_level: SideEffectLevel::Read,
            requires_approval: false,
            approval_waiver: None,
            allow_in_preview: false,
            secret_refs: BTreeMap::new(),
            limits: RunLimits::default(),
            preference: ExecutionPreference::Isolated,
            rate_limit_per_minute: None,
        },
        visibility: Visibility::Project,
    })
}

/// A remote server of this name, shown to its project, without credentials.
///
/// # Errors
///
/// `Invalid` for what is no server name.
pub fn registration(name: &str) -> Result<ServerRegistration> {
    Ok(ServerRegistration {
        definition: definition(name)?,
        visibility: Visibility::Project,
    })
}

/// The definition of a remote server of this name, without credentials.
///
/// # Errors
///
/// `Invalid` for what is no server name.
pub fn definition(name: &str) -> Result<ServerDefinition> {
    Ok(ServerDefinition {
        name: name.parse()?,
        description: String::new(),
        icon: String::new(),
        endpoint: Endpoint::StreamableHttp(RemoteEndpoint {
            url: format!("http://127.0.0.1:1/{name}"),
            headers: BTreeMap::new(),
        }),
        auth: Auth::None,
        sharing: Sharing::PerCaller,
        limits: ServerLimits::default(),
    })
}
