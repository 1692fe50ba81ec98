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
use crate::caliber::{Caliber, CaliberBuilder, ServerRegistration, Settings};
use crate::clock::Clock;
use crate::error::Result;
use crate::gateway::Gateway;
use crate::registry::Registry;
use crate::server::{Auth, Endpoint, RemoteEndpoint, ServerDefinition, ServerLimits, Sharing, Visibility};

mod changes;
mod code_tools;
mod gateway;
mod paging;
mod parts;
mod policy;
mod registry;
mod script;
mod state;

pub use gateway::ScriptedGateway;
pub use parts::{CountingQuota, ManualClock, MemoryAuditSink, MemorySecrets};
pub use policy::ReferencePolicy;
pub use registry::{MemoryRegistry, Outage};
pub use script::{CallEnd, LoggedCall, ScriptedCall, ScriptedServer, ScriptedTool};

/// The references, one of each, on one clock.
#[derive(Clone, Debug)]
pub struct Parts {
    /// What is stored.
    pub registry: Arc<MemoryRegistry>,
    /// What is reached.
    pub gateway: ScriptedGateway,
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
    }
}

impl Default for Parts {
    fn default() -> Self {
        Self::new()
    }
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
