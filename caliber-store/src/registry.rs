//! The store as the ports of the core.

use async_trait::async_trait;
use caliber_core::approval::Approval;
use caliber_core::audit::{AuditEntries, AuditEntry, AuditQuery};
use caliber_core::code_tool::{CodeToolRecord, CodeToolSummary};
use caliber_core::descriptor::ToolName;
use caliber_core::digest::TokenHash;
use caliber_core::grant::{Grant, Membership};
use caliber_core::id::{ApprovalId, AuditId, CodeToolId, InvocationId, ProjectId, ServerId};
use caliber_core::inventory::{Inventory, ToolView};
use caliber_core::invocation::InvocationRecord;
use caliber_core::page::{Page, PageRequest};
use caliber_core::principal::Subject;
use caliber_core::registry::{
    AdmissionQuery, Change, CodeToolQuery, Commit, Committed, DeploymentReference, Expect, InvocationsOf,
    NewSecret, Registry, RunAdmissionQuery, ServerQuery, StoredFacts, StoredRunFacts,
};
use caliber_core::secret::{SecretReference, SecretSource, SecretText};
use caliber_core::server::{ServerName, ServerRecord, ServerSummary};
use caliber_core::token::TokenRecord;
use caliber_core::{Error, ErrorKind, Result};

use crate::keys::SealedSecret;
use crate::sqlite::{Connection, queries, run};
use crate::store::{Store, no_key, read};

/// Records of one kind that one transaction of a prune removes: other commits get their turn in between.
const PRUNE: u32 = 5_000;

#[async_trait]
impl Registry for Store {
    async fn commit(&self, commit: Commit) -> Result<Committed> {
        match commit.change {
            Change::Prune(retention) => {
                self.prune(|| Change::Prune(retention), commit.expect, commit.audit)
                    .await
            }
            change => Ok(self.commit_once(Commit { change, ..commit }).await?),
        }
    }

    async fn admission(&self, query: &AdmissionQuery) -> Result<Option<StoredFacts>> {
        let query = query.clone();
        Ok(read!(self, admission(&query))?)
    }

    async fn server(&self, id: &ServerId) -> Result<Option<ServerRecord>> {
        let id = id.clone();
        Ok(read!(self, server(&id))?)
    }

    async fn server_by_name(&self, name: &ServerName) -> Result<Option<ServerRecord>> {
        let name = name.clone();
        Ok(read!(self, server_by_name(&name))?)
    }

    async fn servers(&self, query: &ServerQuery, page: &PageRequest) -> Result<Page<ServerSummary>> {
        let (query, page) = (query.clone(), page.clone());
        Ok(read!(self, servers(&query, &page))?)
    }

    async fn inventory(&self, server: &ServerId) -> Result<Option<Inventory>> {
        let server = server.clone();
        Ok(read!(self, inventory(&server))?)
    }

    async fn tools(&self, server: &ServerId, page: &PageRequest) -> Result<Page<ToolView>> {
        let (server, page) = (server.clone(), page.clone());
        Ok(read!(self, tools(&server, &page))?)
    }

    async fn tool(&self, server: &ServerId, tool: &ToolName) -> Result<Option<ToolView>> {
        let (server, name) = (server.clone(), tool.clone());
        Ok(read!(self, tool(&server, &name))?)
    }

    async fn deployments_using(&self, server: &ServerId) -> Result<Vec<DeploymentReference>> {
        let server = server.clone();
        Ok(read!(self, deployments_using(&server))?)
    }

    async fn run_admission(&self, query: &RunAdmissionQuery) -> Result<Option<StoredRunFacts>> {
        let query = query.clone();
        Ok(read!(self, run_admission(&query))?)
    }

    async fn code_tool(&self, id: &CodeToolId) -> Result<Option<CodeToolRecord>> {
        let id = id.clone();
        Ok(read!(self, code_tool(&id))?)
    }

    async fn code_tools(&self, query: &CodeToolQuery, page: &PageRequest) -> Result<Page<CodeToolSummary>> {
        let (query, page) = (query.clone(), page.clone());
        Ok(read!(self, code_tools(&query, &page))?)
    }

    async fn deployments_using_code_tool(&self, id: &CodeToolId) -> Result<Vec<DeploymentReference>> {
        let id = id.clone();
        Ok(read!(self, deployments_using_code_tool(&id))?)
    }

    async fn grants(&self, project: &ProjectId, page: &PageRequest) -> Result<Page<Grant>> {
        let (project, page) = (project.clone(), page.clone());
        Ok(read!(self, grants(&project, &page))?)
    }

    async fn memberships(&self, subject: &Subject) -> Result<Vec<Membership>> {
        let subject = subject.clone();
        Ok(read!(self, memberships(&subject))?)
    }

    async fn token_by_hash(&self, hash: &TokenHash) -> Result<Option<TokenRecord>> {
        let hash = *hash;
        Ok(read!(self, token_by_hash(&hash))?)
    }

    async fn tokens(&self, projects: Option<&[ProjectId]>, page: &PageRequest) -> Result<Page<TokenRecord>> {
        let (projects, page) = (projects.map(<[_]>::to_vec), page.clone());
        Ok(read!(self, tokens(projects.as_deref(), &page))?)
    }

    async fn approval(&self, id: &ApprovalId) -> Result<Option<Approval>> {
        let id = id.clone();
        Ok(read!(self, approval(&id))?)
    }

    async fn approvals(
        &self,
        projects: Option<&[ProjectId]>,
        pending_only: bool,
        page: &PageRequest,
    ) -> Result<Page<Approval>> {
        let (projects, page) = (projects.map(<[_]>::to_vec), page.clone());
        Ok(read!(self, approvals(projects.as_deref(), pending_only, &page))?)
    }

    async fn audit(&self, query: &AuditQuery, page: &PageRequest) -> Result<Page<AuditEntry>> {
        let (query, page) = (query.clone(), page.clone());
        Ok(read!(self, audit(&query, &page))?)
    }

    async fn audit_entry(&self, id: &AuditId) -> Result<Option<AuditEntry>> {
        let id = id.clone();
        Ok(read!(self, audit_entry(&id))?)
    }

    async fn invocation(&self, id: &InvocationId) -> Result<Option<InvocationRecord>> {
        let id = id.clone();
        Ok(read!(self, invocation(&id))?)
    }

    async fn invocations(&self, of: &InvocationsOf, page: &PageRequest) -> Result<Page<InvocationRecord>> {
        let (of, page) = (of.clone(), page.clone());
        Ok(read!(self, invocations(&of, &page))?)
    }

    async fn ping(&self) -> Result<()> {
        if !self.inner.writer.is_open() {
            let closed = crate::Error::new(crate::ErrorKind::Closed, "the store is closed");
            return Err(closed.into());
        }
        let file = self.inner.file.clone();
        let answer = self.inner.readers.read(move |conn| {
            file.check()?;
            run(queries::answers(conn))
        });
        Ok(answer.await?)
    }
}

#[async_trait]
impl SecretSource for Store {
    async fn resolve(&self, reference: &SecretReference) -> Result<SecretText> {
        let SecretReference::Stored(id) = reference else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the store keeps stored secrets only",
            ));
        };
        let wanted = id.clone();
        let sealed = read!(self, secret(&wanted))?;
        let sealed = sealed.ok_or_else(|| Error::not_found("secret", id.as_str()))?;
        let ring = self.inner.key_ring.as_ref().ok_or_else(no_key)?;
        Ok(ring.open(&sealed)?)
    }
}

impl Store {
    /// One change in one transaction. Its secrets are sealed before it is queued: none waits in the clear.
    async fn commit_once(&self, mut commit: Commit) -> crate::Result<Committed> {
        let sealed = match &mut commit.change {
            Change::RegisterServer { secrets, .. }
            | Change::UpdateServer { secrets, .. }
            | Change::RegisterCodeTool { secrets, .. } => self.seal(std::mem::take(secrets))?,
            _ => Vec::new(),
        };
        let work = move |conn: &mut Connection| run(queries::apply(conn, &commit, &sealed, PRUNE));
        self.inner.writer.commit(Box::new(work)).await
    }

    fn seal(&self, secrets: Vec<NewSecret>) -> crate::Result<Vec<SealedSecret>> {
        if secrets.is_empty() {
            return Ok(Vec::new());
        }
        let ring = self.inner.key_ring.as_ref().ok_or_else(no_key)?;
        secrets
            .iter()
            .map(|secret| ring.seal(&secret.id, &secret.owner, &secret.value))
            .collect()
    }

    /// Removes old records in as many transactions as it takes, each with its entry.
    async fn prune(
        &self,
        change: impl Fn() -> Change,
        expect: Expect,
        audit: AuditEntries,
    ) -> Result<Committed> {
        let mut next = Commit {
            change: change(),
            expect,
            audit: audit.clone(),
        };
        let mut total = Committed::default();
        loop {
            let Committed { affected, .. } = self.commit_once(next).await?;
            total.affected += affected;
            if affected < u64::from(PRUNE) {
                return Ok(total);
            }
            next = Commit {
                change: change(),
                expect: Expect::nothing(),
                audit: renewed(&audit),
            };
        }
    }
}

/// The same entries under other identifiers.
fn renewed(audit: &AuditEntries) -> AuditEntries {
    let mut entries = audit.iter().map(|entry| AuditEntry {
        id: AuditId::new(),
        ..entry.clone()
    });
    match entries.next() {
        Some(first) => AuditEntries::new(first, entries.collect()),
        None => audit.clone(),
    }
}
