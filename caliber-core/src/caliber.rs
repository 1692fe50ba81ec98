//! The control plane: it owns the parts and holds every rule once.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lru::LruCache;

use crate::admission::AdmissionPolicy;
use crate::audit::{AuditAction, AuditEntries, AuditEntry, AuditSink};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::digest::ContentHash;
use crate::error::{Error, ErrorKind, Result};
use crate::gateway::Gateway;
use crate::id::{InstanceId, ProjectId, ServerId};
use crate::json::JsonText;
use crate::principal::{Principal, Scope, Subject, Surface};
use crate::quota::QuotaStore;
use crate::registry::{Change, Commit, Committed, Expect, Registry, Viewer};
use crate::sandbox::{Reflection, Sandbox};
use crate::schema::SchemaChecker;
use crate::secret::SecretSource;
use crate::server::{ServerRecord, Visibility};

mod access;
mod admitting;
mod approvals;
mod background;
mod code_tools;
mod history;
mod invoke;
mod ledger;
mod listings;
mod recorder;
mod runs;
mod sealing;
mod servers;
mod tools;

pub use access::TokenRequest;
pub use code_tools::{CodeToolPatch, CodeToolRegistration, CodeToolView};
pub use invoke::{InvokeOutcome, InvokeRequest};
pub use runs::{CodeToolCall, CodeToolRun};
pub use servers::{ServerPatch, ServerRegistration, ServerView};
pub use tools::{CheckOutcome, DiscoveryOutcome, Drift, ToolDetail, ToolListing};

/// The control plane. Cheap to clone; all clones are one.
///
/// Every surface is thin over these methods: whoever asks, the same rule answers.
#[derive(Clone)]
pub struct Caliber {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Arc<dyn Registry>,
    gateway: Arc<dyn Gateway>,
    policy: Arc<dyn AdmissionPolicy>,
    quotas: Arc<dyn QuotaStore>,
    clock: Arc<dyn Clock>,
    sinks: Vec<Arc<dyn AuditSink>>,
    settings: Settings,
    instance: InstanceId,
    schemas: SchemaChecker,
    recorder: recorder::Recorder,
    listings: listings::Listings,
    sandbox: Option<Arc<dyn Sandbox>>,
    secrets: Option<Arc<dyn SecretSource>>,
    /// What was seen of the source of code tools.
    reflections: Mutex<LruCache<ContentHash, Reflection>>,
}

/// Sources of code tools that are kept to be shown again.
const REFLECTIONS_KEPT: usize = 64;

/// Bounds and intervals of an installation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The longest call where nothing else is said; default 45 s.
    pub call_timeout: Duration,
    /// The longest check or discovery; default 20 s.
    pub discovery_timeout: Duration,
    /// How long the start of a run of a code tool may take before the clock of the run starts; default 15 s. Zero: it
    /// spends the run's time.
    pub startup_grace: Duration,
    /// The longest reading of a source when a code tool is registered; default 60 s.
    pub pin_timeout: Duration,
    /// The longest look at a source; default 30 s.
    pub inspect_timeout: Duration,
    /// The largest result where nothing else is said, in bytes; default 16 MiB.
    pub result_bytes: usize,
    /// How long a request for consent, and the consent, stay valid; default 1 h.
    pub approval_lifetime: Duration,
    /// The most requests for consent of one caller that may wait in one project; default 100. At most 500 wait in
    /// one project, whoever asks.
    pub waiting_approvals: usize,
    /// How much longer than its deadline a call may hold its ledger lease; default 30 s.
    pub lease_margin: Duration,
    /// How long read-level records may wait to be written together; default 50 ms.
    pub record_linger: Duration,
    /// The most read-level records that wait; beyond that, calls wait, and are refused while the store fails.
    /// Default 8,192.
    pub record_backlog: usize,
    /// How often orphaned calls are swept; default 10 s.
    pub sweep_interval: Duration,
    /// How long settled calls are kept; default 90 days.
    pub keep_invocations: Duration,
    /// How long audit entries are kept; `None`, the default, keeps all.
    pub keep_audit: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(45),
            discovery_timeout: Duration::from_secs(20),
            startup_grace: Duration::from_secs(15),
            pin_timeout: Duration::from_secs(60),
            inspect_timeout: Duration::from_secs(30),
            result_bytes: crate::json::JsonLimits::RESULT.bytes,
            approval_lifetime: Duration::from_secs(60 * 60),
            waiting_approvals: 100,
            lease_margin: Duration::from_secs(30),
            record_linger: Duration::from_millis(50),
            record_backlog: 8_192,
            sweep_interval: Duration::from_secs(10),
            keep_invocations: Duration::from_secs(90 * 24 * 60 * 60),
            keep_audit: None,
        }
    }
}

/// Puts a [`Caliber`] together.
#[derive(Debug)]
pub struct CaliberBuilder {
    registry: Arc<dyn Registry>,
    gateway: Arc<dyn Gateway>,
    policy: Arc<dyn AdmissionPolicy>,
    quotas: Arc<dyn QuotaStore>,
    clock: Arc<dyn Clock>,
    sinks: Vec<Arc<dyn AuditSink>>,
    settings: Settings,
    sandbox: Option<Arc<dyn Sandbox>>,
    secrets: Option<Arc<dyn SecretSource>>,
}

impl CaliberBuilder {
    /// Where code tools run. Without one, none can be registered or run.
    #[must_use]
    pub fn sandbox(mut self, sandbox: Arc<dyn Sandbox>) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// What resolves the secrets of code tools: the source that the gateway resolves those of servers with. Without
    /// one, a tool that names secrets does not run.
    #[must_use]
    pub fn secrets(mut self, secrets: Arc<dyn SecretSource>) -> Self {
        self.secrets = Some(secrets);
        self
    }

    /// Another clock than the machine's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// A further export of the audit trail.
    #[must_use]
    pub fn audit_sink(mut self, sink: Arc<dyn AuditSink>) -> Self {
        self.sinks.push(sink);
        self
    }

    /// Other bounds than the default ones.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// The whole.
    pub fn build(self) -> Caliber {
        let recorder = recorder::Recorder::new(self.settings.record_linger, self.settings.record_backlog);
        Caliber {
            inner: Arc::new(Inner {
                registry: self.registry,
                gateway: self.gateway,
                policy: self.policy,
                quotas: self.quotas,
                clock: self.clock,
                sinks: self.sinks,
                settings: self.settings,
                instance: InstanceId::new(),
                schemas: SchemaChecker::default(),
                recorder,
                listings: listings::Listings::default(),
                sandbox: self.sandbox,
                secrets: self.secrets,
                reflections: Mutex::new(LruCache::new(
                    NonZeroUsize::new(REFLECTIONS_KEPT).unwrap_or(NonZeroUsize::MIN),
                )),
            }),
        }
    }
}

impl Caliber {
    /// A control plane of these parts.
    pub fn builder(
        registry: Arc<dyn Registry>,
        gateway: Arc<dyn Gateway>,
        policy: Arc<dyn AdmissionPolicy>,
        quotas: Arc<dyn QuotaStore>,
    ) -> CaliberBuilder {
        CaliberBuilder {
            registry,
            gateway,
            policy,
            quotas,
            clock: Arc::new(SystemClock),
            sinks: Vec::new(),
            settings: Settings::default(),
            sandbox: None,
            secrets: None,
        }
    }

    /// The same control plane for code that is not async; see [`crate::blocking`].
    ///
    /// # Errors
    ///
    /// `Unavailable` when the runtime of the facade cannot be started.
    pub fn blocking(&self) -> Result<crate::blocking::Caliber> {
        crate::blocking::Caliber::new(self.clone())
    }

    /// Whether the store answers; for readiness probes.
    ///
    /// # Errors
    ///
    /// `Unavailable` when it does not.
    pub async fn ping(&self) -> Result<()> {
        self.inner.registry.ping().await
    }

    /// The settings that it was built with.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }
}

impl std::fmt::Debug for Caliber {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Caliber")
            .field("instance", &self.inner.instance)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Commits, and then does what follows from it: the entries are exported, the sessions of a server that was
    /// changed or removed end. Owned: a caller that goes away after the commit leaves nothing of that undone.
    async fn commit(&self, change: Change, expect: Expect, audit: AuditEntries) -> Result<Committed> {
        let (registry, gateway) = (Arc::clone(&self.registry), Arc::clone(&self.gateway));
        let exported = (!self.sinks.is_empty()).then(|| (self.sinks.clone(), audit.clone()));
        let changed = match &change {
            Change::UpdateServer { record, .. } => Some(record.id.clone()),
            Change::RemoveServer { id } => Some(id.clone()),
            _ => None,
        };
        let commit = Commit {
            change,
            expect,
            audit,
        };
        to_the_end(async move {
            let committed = registry.commit(commit).await?;
            if let Some((sinks, entries)) = &exported {
                export(sinks, entries);
            }
            if let Some(server) = &changed {
                gateway.evict(server).await;
            }
            Ok(committed)
        })
        .await
    }

    /// An entry about one thing.
    fn entry(
        &self,
        who: (&Principal, Surface),
        action: AuditAction,
        entity: (&str, &str),
        project: Option<&ProjectId>,
        details: serde_json::Value,
    ) -> Result<AuditEntries> {
        let details = JsonText::of(&details)?;
        Ok(AuditEntry::new(
            who.0,
            who.1,
            self.now(),
            action,
            entity,
            project.cloned(),
            details,
        )
        .into())
    }

    /// The server, if `principal` may see it. A hidden server answers exactly like an absent one.
    async fn visible_server(&self, principal: &Principal, id: &ServerId) -> Result<ServerRecord> {
        let record = self.registry.server(id).await?;
        record
            .filter(|record| sees(principal, (&record.owner, &record.project, record.visibility)))
            .ok_or_else(|| Error::not_found("server", id.as_str()))
    }

    /// The server, if `principal` may see it and holds `scope` in its project.
    async fn server_for(&self, principal: &Principal, id: &ServerId, scope: Scope) -> Result<ServerRecord> {
        let record = self.visible_server(principal, id).await?;
        principal.require(scope, &record.project)?;
        Ok(record)
    }
}

fn export(sinks: &[Arc<dyn AuditSink>], entries: &AuditEntries) {
    for entry in entries.iter() {
        sinks.iter().for_each(|sink| sink.export(entry));
    }
}

/// Does work in a task of its own, which goes on when the caller goes away.
async fn to_the_end<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => {
            Err(Error::new(ErrorKind::Cancelled, "the runtime is shutting down").with_source(error))
        }
    }
}

/// Whether `principal` sees what belongs to an owner and a project.
fn sees(principal: &Principal, of: (&Subject, &ProjectId, Visibility)) -> bool {
    let (owner, project, visibility) = of;
    viewer(principal)
        .is_none_or(|viewer| !principal.scopes.is_empty() && viewer.sees(owner, project, visibility))
}

/// Who looks at lists; `None` sees everything.
fn viewer(principal: &Principal) -> Option<Viewer> {
    let everything = principal.everywhere && principal.scopes.allow(Scope::Admin);
    (!everything).then(|| Viewer {
        subject: principal.subject.clone(),
        project: principal.project.clone(),
        admin: principal.scopes.allow(Scope::Admin),
    })
}
