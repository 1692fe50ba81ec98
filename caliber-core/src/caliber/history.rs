//! Reading the trail and the ledger.

use super::Caliber;
use crate::audit::{AuditEntry, AuditQuery};
use crate::error::{Error, Result};
use crate::id::{CodeToolId, InvocationId, ServerId};
use crate::invocation::InvocationRecord;
use crate::page::{Page, PageRequest};
use crate::principal::{Principal, Scope};
use crate::registry::InvocationsOf;

impl Caliber {
    /// The audit trail, newest first, as far as the caller is an operator of it. Records of this process that
    /// wait to be written are written first.
    ///
    /// # Errors
    ///
    /// `Forbidden` without `operator`; `Unavailable` when waiting records cannot be written.
    pub async fn audit(
        &self,
        principal: &Principal,
        mut query: AuditQuery,
        page: &PageRequest,
    ) -> Result<Page<AuditEntry>> {
        principal.require(Scope::Operator, &principal.project)?;
        if !principal.everywhere {
            query.projects = Some(vec![principal.project.clone()]);
        }
        self.inner.flush_records().await?;
        self.inner.registry.audit(&query, page).await
    }

    /// The calls of a server, newest first.
    ///
    /// # Errors
    ///
    /// `NotFound` when the server is absent or hidden, `Forbidden` without `operator` in its project.
    pub async fn invocations(
        &self,
        principal: &Principal,
        server: &ServerId,
        page: &PageRequest,
    ) -> Result<Page<InvocationRecord>> {
        self.inner.server_for(principal, server, Scope::Operator).await?;
        self.inner.flush_records().await?;
        let of = InvocationsOf::Server(server.clone());
        self.inner.registry.invocations(&of, page).await
    }

    /// The runs of a version of a code tool, newest first.
    ///
    /// # Errors
    ///
    /// `NotFound` when the version is absent or hidden, `Forbidden` without `operator` in its project.
    pub async fn code_tool_invocations(
        &self,
        principal: &Principal,
        tool: &CodeToolId,
        page: &PageRequest,
    ) -> Result<Page<InvocationRecord>> {
        self.inner.code_tool_for(principal, tool, Scope::Operator).await?;
        self.inner.flush_records().await?;
        let of = InvocationsOf::CodeTool(tool.clone());
        self.inner.registry.invocations(&of, page).await
    }

    /// One call. Its caller sees it, and the operators of its project.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is absent or hidden.
    pub async fn invocation(&self, principal: &Principal, id: &InvocationId) -> Result<InvocationRecord> {
        self.inner.flush_records().await?;
        let record = self.inner.registry.invocation(id).await?.filter(|record| {
            let made = record.invocation.subject == principal.subject && !principal.scopes.is_empty();
            made || principal
                .scopes_in(&record.invocation.project)
                .allow(Scope::Operator)
        });
        record.ok_or_else(|| Error::not_found("invocation", id.as_str()))
    }
}
