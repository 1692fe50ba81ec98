//! The reference registry: every clause of the contract in the plainest code there is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::paging;
use super::state::State;
use crate::approval::{Approval, ApprovalState};
use crate::audit::{AuditEntry, AuditQuery};
use crate::clock::{Clock, SystemClock};
use crate::code_tool::{CodeToolRecord, CodeToolSummary};
use crate::descriptor::ToolName;
use crate::digest::TokenHash;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Grant, Membership};
use crate::id::{ApprovalId, AuditId, CodeToolId, InvocationId, ProjectId, ServerId};
use crate::inventory::{Inventory, ToolView};
use crate::invocation::{InvocationRecord, InvokedTool};
use crate::page::{Page, PageRequest};
use crate::principal::Subject;
use crate::reason::ReasonCode;
use crate::registry::{
    AdmissionQuery, CodeToolQuery, Commit, Committed, DeploymentReference, InvocationsOf, Registry,
    RunAdmissionQuery, ServerQuery, StoredFacts, StoredRunFacts,
};
use crate::secret::{SecretReference, SecretSource, SecretText};
use crate::server::{ServerName, ServerRecord, ServerSummary};
use crate::token::TokenRecord;

/// A [`Registry`] in memory: for tests and as the executable form of the contract. Nothing outlives the process,
/// and nothing is bounded in number.
///
/// It is also the [`SecretSource`] of the secrets that it stores; they are kept in the clear.
#[derive(Debug)]
pub struct MemoryRegistry {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    outage: Mutex<Option<Outage>>,
}

/// What the registry plays dead for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Everything, as a store that is away.
    Everything,
    /// Commits, as a store that is full or read-only.
    Commits,
}

impl MemoryRegistry {
    /// An empty registry on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty registry whose leases and expiries run on `clock`.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            outage: Mutex::default(),
        }
    }

    /// Says that a deployment needs a server, so that it cannot be removed.
    pub fn add_deployment(&self, server: &ServerId, reference: DeploymentReference) {
        self.state().deployments.push((server.clone(), reference));
    }

    /// Says that no deployment needs a server any more.
    pub fn clear_deployments(&self, server: &ServerId) {
        self.state().deployments.retain(|(needed, _)| needed != server);
    }

    /// Says that a deployment needs a version of a code tool, so that it cannot be archived.
    pub fn add_code_tool_deployment(&self, tool: &CodeToolId, reference: DeploymentReference) {
        self.state().code_tool_deployments.push((tool.clone(), reference));
    }

    /// Says that no deployment needs a version any more.
    pub fn clear_code_tool_deployments(&self, tool: &CodeToolId) {
        self.state()
            .code_tool_deployments
            .retain(|(needed, _)| needed != tool);
    }

    /// Fails from now on, with `Unavailable`, until `None` ends it.
    pub fn set_outage(&self, outage: Option<Outage>) {
        *self.outage.lock().unwrap_or_else(PoisonError::into_inner) = outage;
    }

    /// How many secrets are stored.
    pub fn secret_count(&self) -> usize {
        self.state().secrets.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state for reading, unless the registry plays dead.
    fn read(&self) -> Result<MutexGuard<'_, State>> {
        match *self.outage.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Outage::Everything) => Err(away()),
            Some(Outage::Commits) | None => Ok(self.state()),
        }
    }
}

impl Default for MemoryRegistry {
    fn default() -> Self {
        Self::new()
    }
}

fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is away; try again later")
        .with_reason(ReasonCode::StoreUnavailable)
}

#[async_trait]
impl Registry for MemoryRegistry {
    async fn commit(&self, commit: Commit) -> Result<Committed> {
        if self
            .outage
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
        {
            return Err(away());
        }
        self.state().apply(commit, self.clock.now())
    }

    async fn admission(&self, query: &AdmissionQuery) -> Result<Option<StoredFacts>> {
        Ok(self.read()?.facts(query))
    }

    async fn server(&self, id: &ServerId) -> Result<Option<ServerRecord>> {
        Ok(self.read()?.servers.get(id).cloned())
    }

    async fn server_by_name(&self, name: &ServerName) -> Result<Option<ServerRecord>> {
        let state = self.read()?;
        Ok(state
            .names
            .get(name)
            .and_then(|id| state.servers.get(id))
            .cloned())
    }

    async fn servers(&self, query: &ServerQuery, page: &PageRequest) -> Result<Page<ServerSummary>> {
        let state = self.read()?;
        let after: Option<ServerName> = paging::after(page)?;
        let rest = state
            .names
            .iter()
            .filter(|(name, _)| after.as_ref().is_none_or(|after| *name > after));
        let found = rest.filter_map(|(name, id)| {
            let record = state.servers.get(id)?;
            let tools = state
                .inventories
                .get(id)
                .map_or(0, |stored| stored.inventory.tool_count);
            let summary = record.summary(tools);
            paging::matches(query, &summary).then(|| (name.to_string(), summary))
        });
        Ok(paging::page(found, page))
    }

    async fn inventory(&self, server: &ServerId) -> Result<Option<Inventory>> {
        Ok(self
            .read()?
            .inventories
            .get(server)
            .map(|stored| stored.inventory.clone()))
    }

    async fn tools(&self, server: &ServerId, page: &PageRequest) -> Result<Page<ToolView>> {
        let state = self.read()?;
        let after: Option<ToolName> = paging::after(page)?;
        let tools = state
            .inventories
            .get(server)
            .into_iter()
            .flat_map(|stored| &stored.tools);
        let rest = tools.filter(|(name, _)| after.as_ref().is_none_or(|after| *name > after));
        let found = rest.map(|(name, tool)| (name.to_string(), state.tool_view(server, tool)));
        Ok(paging::page(found, page))
    }

    async fn tool(&self, server: &ServerId, tool: &ToolName) -> Result<Option<ToolView>> {
        let state = self.read()?;
        let descriptor = state
            .inventories
            .get(server)
            .and_then(|stored| stored.tools.get(tool));
        Ok(descriptor.map(|descriptor| state.tool_view(server, descriptor)))
    }

    async fn deployments_using(&self, server: &ServerId) -> Result<Vec<DeploymentReference>> {
        let state = self.read()?;
        let needed = state.deployments.iter().filter(|(needed, _)| needed == server);
        Ok(needed.map(|(_, reference)| reference.clone()).collect())
    }

    async fn run_admission(&self, query: &RunAdmissionQuery) -> Result<Option<StoredRunFacts>> {
        Ok(self.read()?.run_facts(query))
    }

    async fn code_tool(&self, id: &CodeToolId) -> Result<Option<CodeToolRecord>> {
        Ok(self.read()?.code_tools.get(id).cloned())
    }

    async fn code_tools(&self, query: &CodeToolQuery, page: &PageRequest) -> Result<Page<CodeToolSummary>> {
        let state = self.read()?;
        let after: Option<CodeToolId> = paging::after(page)?;
        // A version keeps its place in the list for ever, so the last one shown says where to go on.
        let mut rest = state.versions.values();
        if let Some(after) = &after {
            rest.find(|id| *id == after);
        }
        let found = rest.filter_map(|id| {
            let summary = state.code_tools.get(id)?.summary();
            paging::matches_code_tool(query, &summary).then(|| (id.to_string(), summary))
        });
        Ok(paging::page(found, page))
    }

    async fn deployments_using_code_tool(&self, id: &CodeToolId) -> Result<Vec<DeploymentReference>> {
        let state = self.read()?;
        let needed = state
            .code_tool_deployments
            .iter()
            .filter(|(needed, _)| needed == id);
        Ok(needed.map(|(_, reference)| reference.clone()).collect())
    }

    async fn grants(&self, project: &ProjectId, page: &PageRequest) -> Result<Page<Grant>> {
        let state = self.read()?;
        let own = state.grants.iter().filter(|(_, grant)| grant.project == *project);
        paging::oldest_first(own, page)
    }

    async fn memberships(&self, subject: &Subject) -> Result<Vec<Membership>> {
        let state = self.read()?;
        let own = state
            .memberships
            .values()
            .filter(|membership| membership.subject == *subject);
        Ok(own.cloned().collect())
    }

    async fn token_by_hash(&self, hash: &TokenHash) -> Result<Option<TokenRecord>> {
        let state = self.read()?;
        let found = state.tokens.values().find(|token| token.hash == *hash);
        Ok(found.map(|token| token.record.clone()))
    }

    async fn tokens(&self, projects: Option<&[ProjectId]>, page: &PageRequest) -> Result<Page<TokenRecord>> {
        let state = self.read()?;
        let tokens = state.tokens.iter().map(|(id, token)| (id, &token.record));
        let found = tokens.filter(|(_, token)| match (projects, &token.project) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(projects), Some(project)) => projects.contains(project),
        });
        paging::newest_first(found, page)
    }

    async fn approval(&self, id: &ApprovalId) -> Result<Option<Approval>> {
        Ok(self.read()?.approvals.get(id).cloned())
    }

    async fn approvals(
        &self,
        projects: Option<&[ProjectId]>,
        pending_only: bool,
        page: &PageRequest,
    ) -> Result<Page<Approval>> {
        let now = self.clock.now();
        let state = self.read()?;
        let found = state.approvals.iter().filter(|(_, approval)| {
            let waits = approval.state == ApprovalState::Pending && approval.expires_at > now;
            projects.is_none_or(|projects| projects.contains(&approval.project)) && (waits || !pending_only)
        });
        paging::newest_first(found, page)
    }

    async fn audit(&self, query: &AuditQuery, page: &PageRequest) -> Result<Page<AuditEntry>> {
        let state = self.read()?;
        let cursor: Option<paging::Moment> = paging::after(page)?;
        let matching = state
            .audit
            .iter()
            .filter(|(_, entry)| paging::matches_entry(query, entry));
        let moment = |(position, entry): &(u64, &AuditEntry)| paging::Moment::new(entry.at, *position);
        let shown = |item: (u64, &AuditEntry)| (moment(&item).to_string(), item.1.clone());
        let Some(after) = &query.after else {
            let mut older: Vec<_> = matching
                .filter(|item| cursor.is_none_or(|cursor| moment(item) < cursor))
                .collect();
            older.sort_unstable_by_key(|item| std::cmp::Reverse(moment(item)));
            return Ok(paging::page(older.into_iter().map(shown), page));
        };
        // An entry that has been pruned is followed from the oldest that is left.
        let after = cursor
            .map(|cursor| cursor.position)
            .or_else(|| state.audit.position(after))
            .unwrap_or(0);
        let newer = matching.filter(|(position, _)| *position > after);
        Ok(paging::page(newer.map(shown), page))
    }

    async fn audit_entry(&self, id: &AuditId) -> Result<Option<AuditEntry>> {
        Ok(self.read()?.audit.get(id).cloned())
    }

    async fn invocation(&self, id: &InvocationId) -> Result<Option<InvocationRecord>> {
        Ok(self
            .read()?
            .invocations
            .get(id)
            .map(|stored| stored.record.clone()))
    }

    async fn invocations(&self, of: &InvocationsOf, page: &PageRequest) -> Result<Page<InvocationRecord>> {
        let state = self.read()?;
        let records = state.invocations.iter().map(|(id, stored)| (id, &stored.record));
        let found = records.filter(|(_, record)| match (of, &record.invocation.tool) {
            (InvocationsOf::Everything, _) => true,
            (InvocationsOf::Server(wanted), InvokedTool::Server { server, .. }) => wanted == server,
            (InvocationsOf::CodeTool(wanted), InvokedTool::Code { id, .. }) => wanted == id,
            (InvocationsOf::Server(_) | InvocationsOf::CodeTool(_), _) => false,
        });
        paging::newest_first(found, page)
    }

    async fn ping(&self) -> Result<()> {
        self.read().map(drop)
    }
}

#[async_trait]
impl SecretSource for MemoryRegistry {
    async fn resolve(&self, reference: &SecretReference) -> Result<SecretText> {
        let SecretReference::Stored(id) = reference else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the store keeps stored secrets only",
            ));
        };
        let state = self.read()?;
        let found = state.secrets.get(id).map(|(_, value)| value.clone());
        found.ok_or_else(|| Error::not_found("secret", id.as_str()))
    }
}
