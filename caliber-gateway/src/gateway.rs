//! The gateway: core's port, over the pool.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use caliber_core::admission::{Permit, SessionFact, Slot};
use caliber_core::clock::Deadline;
use caliber_core::descriptor::ToolName;
use caliber_core::digest::DescriptorDigest;
use caliber_core::gateway::{Answer, CallerKey, CheckReport, Gateway, Listing, ServerHealth, Target};
use caliber_core::id::ServerId;
use caliber_core::inventory::Discovery;
use caliber_core::json::JsonText;
use caliber_core::process::{ContainmentMeasure, ProcessLauncher};
use caliber_core::readiness::EndpointFacts;
use caliber_core::reason::ReasonCode;
use caliber_core::secret::SecretSource;
use caliber_core::text::{SHOWN_CHARACTERS, escaped, shown};
use caliber_core::{Error, ErrorKind, Result};

use crate::client::refusal;
use crate::convert;
use crate::error::Failure;
use crate::opening::Opener;
use crate::pool::{Lease, Pool, Server};
use crate::session::Session;
use crate::settings::GatewaySettings;

/// Reaches MCP servers over stdio, streamable HTTP and HTTP+SSE, in both protocol families.
///
/// Re-listing and the recycling of idle sessions go on while somebody waits in
/// [`next_listing`](Gateway::next_listing), as [`Caliber::run`](caliber_core::Caliber::run) does.
pub struct McpGateway {
    pool: Arc<Pool>,
}

impl fmt::Debug for McpGateway {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("McpGateway").finish_non_exhaustive()
    }
}

impl McpGateway {
    /// A gateway without a session. `secrets` resolves credentials when a session opens, `launcher` starts stdio
    /// servers.
    ///
    /// # Errors
    ///
    /// `Invalid` for a setting that cannot work.
    pub fn new(
        settings: GatewaySettings,
        secrets: Arc<dyn SecretSource>,
        launcher: Arc<dyn ProcessLauncher>,
    ) -> Result<Self> {
        settings.validate()?;
        Ok(Self {
            pool: Arc::new(Pool::new(Opener::new(settings, secrets, launcher))),
        })
    }

    /// Sees to it that the session advertises what was admitted.
    async fn compare(
        &self,
        server: &Server,
        session: &Session,
        tool: &ToolName,
        admitted: DescriptorDigest,
    ) -> Result<(), Failure> {
        self.pool.list_before_call(server, session).await?;
        match session.fact(tool) {
            SessionFact::Advertised(digest) if digest == admitted => Ok(()),
            SessionFact::Advertised(_) => Err(Failure::denied(
                ReasonCode::Drifted,
                format!(
                    "the server describes the tool {} differently from what was classified; look at the difference \
                     and classify it again",
                    shown(tool.as_str())
                ),
            )),
            SessionFact::Unlisted | SessionFact::NotOpen => Err(Failure::denied(
                ReasonCode::ToolUnknown,
                format!("the server has no tool {} any more", shown(tool.as_str())),
            )),
        }
    }

    /// Makes the call in the caller's session.
    async fn make(&self, server: &Arc<Server>, call: &AdmittedCall) -> Result<Answer, Failure> {
        let mut lease = self
            .pool
            .lease(server, &call.target, &call.caller, call.deadline)
            .await?;
        let session = Arc::clone(&lease.session);
        let compared = self.compare(server, &session, &call.tool, call.descriptor_digest);
        match tokio::time::timeout_at(call.deadline.instant(), compared).await {
            Ok(Ok(())) => send(&mut lease, call).await,
            Ok(Err(failure)) => {
                lease.refused(&failure);
                Err(failure.before_call())
            }
            Err(_) => Err(Failure::timeout("listing the tools again")),
        }
    }
}

/// The JSON-RPC code of a revision that the upstream does not speak, any more: the next call negotiates anew.
const UNSUPPORTED_REVISION: i64 = -32022;

/// What a permit admits, apart from the place that is held for it.
struct AdmittedCall {
    target: Target,
    tool: ToolName,
    arguments: JsonText,
    descriptor_digest: DescriptorDigest,
    caller: CallerKey,
    deadline: Deadline,
    result_bytes: usize,
}

async fn send(lease: &mut Lease, call: &AdmittedCall) -> Result<Answer, Failure> {
    let session = Arc::clone(&lease.session);
    let started = Instant::now();
    lease.sending();
    let answering = session.call(&call.tool, &call.arguments, call.result_bytes);
    match tokio::time::timeout_at(call.deadline.instant(), answering).await {
        Ok(Ok(Err(error))) if error.code == UNSUPPORTED_REVISION => {
            let failure = refusal(&session.connection, "the call", &error).ending_session();
            lease.failed(&failure);
            Err(failure)
        }
        Ok(Ok(reply)) => {
            lease.answered();
            let upstream_time = started.elapsed();
            convert::answer(&session.connection, reply, call.result_bytes, upstream_time).await
        }
        Ok(Err(failure)) => {
            lease.failed(&failure);
            Err(failure)
        }
        Err(_) => Err(Failure::timeout("the call").sent()),
    }
}

#[async_trait]
impl Gateway for McpGateway {
    async fn reserve(&self, server: &ServerId, concurrency: Option<u32>, deadline: Deadline) -> Result<Slot> {
        let concurrency = concurrency.unwrap_or(self.pool.opener.settings.concurrency);
        let server = self.pool.server(server);
        let place = server.places.take(concurrency, deadline).await?;
        Ok(Slot::new(place))
    }

    async fn inspect(&self, target: &Target) -> EndpointFacts {
        self.pool.opener.endpoints.inspect(&target.definition).await
    }

    fn session(&self, target: &Target, caller: &CallerKey, tool: &ToolName) -> SessionFact {
        let server = target.server.as_ref().and_then(|id| self.pool.known(id));
        let settings = &self.pool.opener.settings;
        server.map_or(SessionFact::NotOpen, |server| {
            server.fact(target, caller, tool, settings)
        })
    }

    async fn check(&self, target: &Target, deadline: Deadline) -> Result<CheckReport> {
        let started = Instant::now();
        let discovery = self.pool.visit(target, deadline).await?;
        let offered = discovery.tools.iter().map(|tool| tool.name().to_string());
        let withheld = discovery
            .withheld
            .iter()
            .map(|tool| escaped(&tool.name, SHOWN_CHARACTERS));
        Ok(CheckReport {
            protocol_version: discovery.protocol_version.clone(),
            tools: offered.chain(withheld).collect(),
            server_info: discovery.server_info,
            duration_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
        })
    }

    async fn discover(&self, target: &Target, deadline: Deadline) -> Result<Discovery> {
        let discovery = self.pool.visit(target, deadline).await?;
        if let Some(id) = &target.server {
            self.pool.notice(id, &discovery);
        }
        Ok(discovery)
    }

    async fn call(&self, permit: Permit) -> Result<Answer> {
        let server = self.pool.server(permit.server());
        let call = AdmittedCall {
            target: permit.target().clone(),
            tool: permit.tool().clone(),
            arguments: permit.arguments().clone(),
            descriptor_digest: permit.descriptor_digest(),
            caller: permit.caller().clone(),
            deadline: permit.deadline(),
            result_bytes: permit.result_bytes(),
        };
        let replay_safe = permit.is_replay_safe();
        // Held until the call has ended.
        let _place = permit.into_slot();
        let outcome = match self.make(&server, &call).await {
            // The operator allows the tool to be called twice, and the answer to the first call is lost.
            Err(failure) if failure.kind == ErrorKind::OutcomeUnknown && replay_safe => {
                tracing::info!(server = %server.id, tool = %call.tool, "a call is repeated");
                self.make(&server, &call).await.map_err(Failure::sent)
            }
            outcome => outcome,
        };
        outcome.map_err(Error::from)
    }

    async fn next_listing(&self) -> Listing {
        self.pool.next_listing().await
    }

    async fn evict(&self, server: &ServerId) {
        self.pool.evict(server);
    }

    async fn close(&self, deadline: Deadline) {
        self.pool.close(deadline).await;
    }

    fn health(&self, server: &ServerId) -> ServerHealth {
        self.pool
            .known(server)
            .map_or_else(ServerHealth::default, |server| server.health())
    }

    fn containment(&self) -> Vec<ContainmentMeasure> {
        self.pool.opener.containment()
    }
}
