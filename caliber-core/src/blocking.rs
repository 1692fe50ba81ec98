//! The control plane for code that is not async: workflow interpreters, scripts, tests.
//!
//! The facade wraps the async [`Caliber`](crate::Caliber); it is never a second implementation. It owns a small
//! multi-thread runtime, spawns each operation there and lets tokio wait. It works on a plain thread, inside
//! `spawn_blocking` and inside `block_in_place`. A session that was opened through the facade lives on its
//! runtime, so keep the facade for as long as you call.
//!
//! # Panics
//!
//! Every method panics when it is called from async code, with tokio's own message: waiting there would stop
//! the runtime's thread. This is the one documented exception to the rule that this library does not panic.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::audit::{AuditEntry, AuditQuery};
use crate::caliber::{
    CheckOutcome, CodeToolCall, CodeToolPatch, CodeToolRegistration, CodeToolRun, CodeToolView,
    DiscoveryOutcome, Drift, InvokeOutcome, InvokeRequest, ServerPatch, ServerRegistration, ServerView,
    ToolListing,
};
use crate::code_tool::{CodeToolRecord, CodeToolSummary, Resolved, ToolReference, VersionConstraint};
use crate::descriptor::ToolName;
use crate::digest::DescriptorDigest;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{CodeToolId, ServerId};
use crate::page::{Page, PageRequest};
use crate::policy::{Classification, ToolPolicy};
use crate::principal::{Principal, Surface};
use crate::registry::{CodeToolQuery, DeploymentReference, Revision, ServerQuery};
use crate::sandbox::Reflection;
use crate::server::{ServerRecord, ServerSummary};

/// The blocking facade over one [`Caliber`](crate::Caliber). Cheap to clone; clones share the runtime.
#[derive(Clone, Debug)]
pub struct Caliber {
    caliber: crate::Caliber,
    runtime: Arc<Runtime>,
}

/// A runtime that may be dropped anywhere: its threads end in the background.
#[derive(Debug)]
struct Runtime(Option<tokio::runtime::Runtime>);

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Caliber {
    /// A facade with a runtime of two threads.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the threads cannot be started.
    pub fn new(caliber: crate::Caliber) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("caliber-blocking")
            .enable_all()
            .build()
            .map_err(|error| {
                Error::new(
                    ErrorKind::Unavailable,
                    "the runtime of the blocking facade cannot be started",
                )
                .with_source(error)
            })?;
        Ok(Self {
            caliber,
            runtime: Arc::new(Runtime(Some(runtime))),
        })
    }

    /// The async control plane behind the facade.
    pub fn inner(&self) -> &crate::Caliber {
        &self.caliber
    }

    /// Runs any operation of the async control plane and waits for it: the way to what has no method here.
    ///
    /// # Errors
    ///
    /// What the operation reports; `Unavailable` when the runtime has ended.
    pub fn wait<T, F, Fut>(&self, operation: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(crate::Caliber) -> Fut,
        Fut: Future<Output = Result<T>> + Send + 'static,
    {
        let ended = || {
            Error::new(
                ErrorKind::Unavailable,
                "the runtime of the blocking facade has ended",
            )
        };
        let runtime = self.runtime.0.as_ref().ok_or_else(ended)?;
        // Spawned, so that a deep future runs on a worker's stack and not on a small foreign one.
        let task = runtime.spawn(operation(self.caliber.clone()));
        match runtime.block_on(task) {
            Ok(outcome) => outcome,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => Err(ended().with_source(error)),
        }
    }

    /// See [`register_server`](crate::Caliber::register_server).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn register_server(
        &self,
        who: (&Principal, Surface),
        registration: ServerRegistration,
    ) -> Result<ServerRecord> {
        let (principal, surface) = (who.0.clone(), who.1);
        self.wait(|caliber| async move { caliber.register_server((&principal, surface), registration).await })
    }

    /// See [`servers`](crate::Caliber::servers).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn servers(
        &self,
        principal: &Principal,
        query: ServerQuery,
        page: &PageRequest,
    ) -> Result<Page<ServerSummary>> {
        let (principal, page) = (principal.clone(), page.clone());
        self.wait(|caliber| async move { caliber.servers(&principal, query, &page).await })
    }

    /// See [`server`](crate::Caliber::server).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn server(&self, principal: &Principal, id: &ServerId) -> Result<ServerView> {
        let (principal, id) = (principal.clone(), id.clone());
        self.wait(|caliber| async move { caliber.server(&principal, &id).await })
    }

    /// See [`update_server`](crate::Caliber::update_server).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn update_server(
        &self,
        who: (&Principal, Surface),
        id: &ServerId,
        patch: ServerPatch,
    ) -> Result<ServerRecord> {
        let (principal, surface, id) = (who.0.clone(), who.1, id.clone());
        self.wait(|caliber| async move { caliber.update_server((&principal, surface), &id, patch).await })
    }

    /// See [`remove_server`](crate::Caliber::remove_server).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn remove_server(
        &self,
        who: (&Principal, Surface),
        id: &ServerId,
        expect: Option<Revision>,
    ) -> Result<()> {
        let (principal, surface, id) = (who.0.clone(), who.1, id.clone());
        self.wait(|caliber| async move { caliber.remove_server((&principal, surface), &id, expect).await })
    }

    /// See [`check`](crate::Caliber::check).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn check(&self, who: (&Principal, Surface), id: &ServerId) -> Result<CheckOutcome> {
        let (principal, surface, id) = (who.0.clone(), who.1, id.clone());
        self.wait(|caliber| async move { caliber.check((&principal, surface), &id).await })
    }

    /// See [`discover`](crate::Caliber::discover).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn discover(&self, who: (&Principal, Surface), id: &ServerId) -> Result<DiscoveryOutcome> {
        let (principal, surface, id) = (who.0.clone(), who.1, id.clone());
        self.wait(|caliber| async move { caliber.discover((&principal, surface), &id).await })
    }

    /// See [`server_named`](crate::Caliber::server_named).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn server_named(&self, principal: &Principal, name: &str) -> Result<ServerRecord> {
        let (principal, name) = (principal.clone(), name.to_owned());
        self.wait(|caliber| async move { caliber.server_named(&principal, &name).await })
    }

    /// See [`tools`](crate::Caliber::tools).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn tools(&self, principal: &Principal, id: &ServerId, page: &PageRequest) -> Result<ToolListing> {
        let (principal, id, page) = (principal.clone(), id.clone(), page.clone());
        self.wait(|caliber| async move { caliber.tools(&principal, &id, &page).await })
    }

    /// See [`classify`](crate::Caliber::classify).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn classify(
        &self,
        who: (&Principal, Surface),
        id: &ServerId,
        tool: &ToolName,
        policy: ToolPolicy,
        seen: Option<DescriptorDigest>,
    ) -> Result<Classification> {
        let (principal, surface, id, tool) = (who.0.clone(), who.1, id.clone(), tool.clone());
        self.wait(|caliber| async move {
            caliber
                .classify((&principal, surface), &id, &tool, policy, seen)
                .await
        })
    }

    /// See [`drift`](crate::Caliber::drift).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn drift(&self, principal: &Principal, id: &ServerId, tool: &ToolName) -> Result<Drift> {
        let (principal, id, tool) = (principal.clone(), id.clone(), tool.clone());
        self.wait(|caliber| async move { caliber.drift(&principal, &id, &tool).await })
    }

    /// See [`invoke`](crate::Caliber::invoke).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn invoke(&self, principal: &Principal, request: InvokeRequest) -> Result<InvokeOutcome> {
        let principal = principal.clone();
        self.wait(|caliber| async move { caliber.invoke(&principal, request).await })
    }

    /// See [`register_code_tool`](crate::Caliber::register_code_tool).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn register_code_tool(
        &self,
        who: (&Principal, Surface),
        registration: CodeToolRegistration,
    ) -> Result<CodeToolRecord> {
        let (principal, surface) = (who.0.clone(), who.1);
        self.wait(|caliber| async move {
            caliber
                .register_code_tool((&principal, surface), registration)
                .await
        })
    }

    /// See [`code_tools`](crate::Caliber::code_tools).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn code_tools(
        &self,
        principal: &Principal,
        query: CodeToolQuery,
        page: &PageRequest,
    ) -> Result<Page<CodeToolSummary>> {
        let (principal, page) = (principal.clone(), page.clone());
        self.wait(|caliber| async move { caliber.code_tools(&principal, query, &page).await })
    }

    /// See [`code_tool`](crate::Caliber::code_tool).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn code_tool(&self, principal: &Principal, id: &CodeToolId) -> Result<CodeToolView> {
        let (principal, id) = (principal.clone(), id.clone());
        self.wait(|caliber| async move { caliber.code_tool(&principal, &id).await })
    }

    /// See [`code_tool_versions`](crate::Caliber::code_tool_versions).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn code_tool_versions(
        &self,
        principal: &Principal,
        id: &CodeToolId,
        page: &PageRequest,
    ) -> Result<Page<CodeToolSummary>> {
        let (principal, id, page) = (principal.clone(), id.clone(), page.clone());
        self.wait(|caliber| async move { caliber.code_tool_versions(&principal, &id, &page).await })
    }

    /// See [`resolve_code_tool`](crate::Caliber::resolve_code_tool).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn resolve_code_tool(
        &self,
        principal: &Principal,
        reference: &ToolReference,
        constraint: &VersionConstraint,
    ) -> Result<Resolved> {
        let (principal, reference, constraint) = (principal.clone(), reference.clone(), constraint.clone());
        self.wait(|caliber| async move {
            caliber
                .resolve_code_tool(&principal, &reference, &constraint)
                .await
        })
    }

    /// See [`update_code_tool`](crate::Caliber::update_code_tool).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn update_code_tool(
        &self,
        who: (&Principal, Surface),
        id: &CodeToolId,
        patch: CodeToolPatch,
    ) -> Result<CodeToolRecord> {
        let (principal, surface, id) = (who.0.clone(), who.1, id.clone());
        self.wait(|caliber| async move { caliber.update_code_tool((&principal, surface), &id, patch).await })
    }

    /// See [`archive_code_tool`](crate::Caliber::archive_code_tool).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn archive_code_tool(
        &self,
        who: (&Principal, Surface),
        id: &CodeToolId,
        expect: Option<Revision>,
    ) -> Result<CodeToolRecord> {
        let (principal, surface, id) = (who.0.clone(), who.1, id.clone());
        self.wait(|caliber| async move {
            caliber
                .archive_code_tool((&principal, surface), &id, expect)
                .await
        })
    }

    /// See [`code_tool_source`](crate::Caliber::code_tool_source).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn code_tool_source(&self, who: (&Principal, Surface), id: &CodeToolId) -> Result<Reflection> {
        let (principal, surface, id) = (who.0.clone(), who.1, id.clone());
        self.wait(|caliber| async move { caliber.code_tool_source((&principal, surface), &id).await })
    }

    /// See [`code_tool_usage`](crate::Caliber::code_tool_usage).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn code_tool_usage(
        &self,
        principal: &Principal,
        id: &CodeToolId,
    ) -> Result<Vec<DeploymentReference>> {
        let (principal, id) = (principal.clone(), id.clone());
        self.wait(|caliber| async move { caliber.code_tool_usage(&principal, &id).await })
    }

    /// See [`run_code_tool`](crate::Caliber::run_code_tool).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn run_code_tool(&self, principal: &Principal, call: CodeToolCall) -> Result<CodeToolRun> {
        let principal = principal.clone();
        self.wait(|caliber| async move { caliber.run_code_tool(&principal, call).await })
    }

    /// See [`audit`](crate::Caliber::audit).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn audit(
        &self,
        principal: &Principal,
        query: AuditQuery,
        page: &PageRequest,
    ) -> Result<Page<AuditEntry>> {
        let (principal, page) = (principal.clone(), page.clone());
        self.wait(|caliber| async move { caliber.audit(&principal, query, &page).await })
    }

    /// Starts [`run`](crate::Caliber::run) in the background of the facade's runtime, until `cancel`.
    pub fn run(&self, cancel: CancellationToken, grace: Duration) {
        if let Some(runtime) = self.runtime.0.as_ref() {
            let caliber = self.caliber.clone();
            runtime.spawn(async move {
                if let Err(error) = caliber.run(cancel, grace).await {
                    tracing::warn!(%error, "background work did not end cleanly");
                }
            });
        }
    }
}
