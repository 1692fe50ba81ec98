//! Registering, finding and changing code tools.

use std::sync::Arc;

use super::{Caliber, Inner, sees, viewer};
use crate::audit::AuditAction;
use crate::code_tool::{
    CodeToolDefinition, CodeToolRecord, CodeToolStatus, CodeToolSummary, FamilyName, KnownEvidence,
    LifecycleStage, Resolved, ToolReference, VersionConstraint, content_hash, resolve,
};
use crate::error::{Error, ErrorKind, FieldProblem, Result};
use crate::id::{CodeToolId, ProjectId, SecretId};
use crate::page::{PAGE_LIMIT, Page, PageRequest};
use crate::principal::{Principal, Scope, Surface};
use crate::registry::{Change, CodeToolQuery, DeploymentReference, Expect, NewSecret, Revision, SecretOwner};
use crate::sandbox::SandboxReport;
use crate::secret::{ConfigValue, SecretReference};
use crate::server::Visibility;

mod change;
mod source;

pub use change::CodeToolPatch;
pub(super) use source::no_sandbox;

/// A version of a code tool to be registered.
#[derive(Clone, Debug)]
pub struct CodeToolRegistration {
    /// What the admin wrote.
    pub definition: CodeToolDefinition,
    /// Who will see it.
    pub visibility: Visibility,
}

/// A version with everything an operator looks at.
#[derive(Clone, Debug)]
pub struct CodeToolView {
    /// The record; mask its definition before it is shown.
    pub record: CodeToolRecord,
    /// What is known of it. Cases and calibrations are not stored yet, so nothing is.
    pub evidence: KnownEvidence,
    /// How far it has come by that.
    pub stage: LifecycleStage,
}

impl Caliber {
    /// Registers a version of a code tool in the caller's project. Its source is read once and kept: what runs later
    /// is that copy. It is imported once, in the sandbox: what hangs, ends there or has no such callable is refused.
    ///
    /// # Errors
    ///
    /// `Forbidden` without `admin`; `Invalid` for a wrong field or a program that cannot be one; `Denied` with the
    /// code of what stands against it, such as `module_not_allowed`; `Conflict` with `version_taken` or `name_taken`;
    /// `TooLarge` beyond 1,000 versions; `Unavailable` with `sandbox_unavailable` when there is no sandbox, and when
    /// a literal secret is given and the store has no key for it; `Timeout`.
    pub async fn register_code_tool(
        &self,
        who: (&Principal, Surface),
        registration: CodeToolRegistration,
    ) -> Result<CodeToolRecord> {
        let (inner, principal) = (&self.inner, who.0);
        principal.require(Scope::Admin, &principal.project)?;
        let definition = validated(registration.definition).await?;
        let blockers = inner.policy.blockers(&definition);
        if let Some(first) = blockers.first() {
            // All of them: whoever repairs the definition wants to do it once.
            let texts: Vec<_> = blockers.iter().map(|blocker| blocker.text.as_str()).collect();
            return Err(Error::new(ErrorKind::Denied, texts.join("; ")).with_reason(first.code));
        }
        let pinned = inner.pin(&definition).await?;
        let seen = inner.try_import(&pinned).await?;
        let now = inner.now();
        let mut record = CodeToolRecord {
            id: CodeToolId::new(),
            revision: Revision(1),
            content_hash: content_hash(&definition, &pinned)?,
            definition,
            pinned,
            status: CodeToolStatus::Active,
            deprecated_at: None,
            successor: None,
            owner: principal.subject.clone(),
            project: principal.project.clone(),
            visibility: registration.visibility,
            created_at: now,
            updated_at: now,
        };
        let secrets = seal(&mut record)?;
        let details = serde_json::json!({
            "name": record.definition.family,
            "version": record.definition.version,
            "side_effect_level": record.definition.side_effect_level,
            "requires_approval": record.definition.requires_approval,
            "approval_waiver": record.definition.approval_waiver,
            "visibility": record.visibility,
            "content_hash": record.content_hash,
            "source": record.pinned.source,
            "environment": record.pinned.environment,
        });
        let audit = inner.entry(
            who,
            AuditAction::RegisterCodeTool,
            ("code_tool", record.id.as_str()),
            Some(&record.project),
            details,
        )?;
        let change = Change::RegisterCodeTool {
            record: Box::new(record.clone()),
            secrets,
        };
        record.revision = inner.commit(change, Expect::nothing(), audit).await?.revision;
        inner.keep_reflection(&record, &seen);
        Ok(record)
    }

    /// The versions that the caller sees: by family, then by project, then the newest version first.
    ///
    /// # Errors
    ///
    /// `Forbidden` without any scope; `Invalid` for a foreign cursor.
    pub async fn code_tools(
        &self,
        principal: &Principal,
        mut query: CodeToolQuery,
        page: &PageRequest,
    ) -> Result<Page<CodeToolSummary>> {
        principal.require(Scope::Viewer, &principal.project)?;
        query.viewer = viewer(principal);
        self.inner.registry.code_tools(&query, page).await
    }

    /// A version.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is absent or hidden.
    pub async fn code_tool(&self, principal: &Principal, id: &CodeToolId) -> Result<CodeToolView> {
        let record = self.inner.visible_code_tool(principal, id).await?;
        let evidence = KnownEvidence::default();
        Ok(CodeToolView {
            record,
            stage: LifecycleStage::of(&evidence),
            evidence,
        })
    }

    /// The versions of the family of `id`, in its project, the newest first; those that the caller sees.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is absent or hidden; `Invalid` for a foreign cursor.
    pub async fn code_tool_versions(
        &self,
        principal: &Principal,
        id: &CodeToolId,
        page: &PageRequest,
    ) -> Result<Page<CodeToolSummary>> {
        let record = self.inner.visible_code_tool(principal, id).await?;
        let query = CodeToolQuery {
            viewer: viewer(principal),
            family: Some(record.definition.family),
            project: Some(record.project),
            ..CodeToolQuery::default()
        };
        self.inner.registry.code_tools(&query, page).await
    }

    /// The version that a reference stands for in the caller's project; see [`resolve`]. It reads metadata only.
    ///
    /// # Errors
    ///
    /// `Forbidden` without any scope; `NotFound` with `tool_unresolved`, listing the versions that there are.
    pub async fn resolve_code_tool(
        &self,
        principal: &Principal,
        reference: &ToolReference,
        constraint: &VersionConstraint,
    ) -> Result<Resolved> {
        principal.require(Scope::Viewer, &principal.project)?;
        let candidates = self.inner.candidates(principal, &reference.family).await?;
        let mut resolved = resolve(&candidates, &principal.project, reference, constraint)?;
        // A successor outside of the family was no candidate.
        if let (Some(warning), Some(successor)) = (&mut resolved.warning, &resolved.tool.successor)
            && !candidates.iter().any(|tool| tool.id == *successor)
            && let Ok(successor) = self.inner.visible_code_tool(principal, successor).await
        {
            let (old, new) = (&resolved.tool, &successor.definition);
            warning.text = format!(
                "{} {} is deprecated; use {} {}",
                old.family, old.version, new.family, new.version
            );
        }
        Ok(resolved)
    }

    /// The deployments that need a version. Workflows do not record theirs yet, so there are none.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is absent or hidden.
    pub async fn code_tool_usage(
        &self,
        principal: &Principal,
        id: &CodeToolId,
    ) -> Result<Vec<DeploymentReference>> {
        self.inner.visible_code_tool(principal, id).await?;
        self.inner.registry.deployments_using_code_tool(id).await
    }

    /// What the sandbox enforces on this machine; `None` when there is no sandbox.
    ///
    /// # Errors
    ///
    /// `Forbidden` without any scope.
    pub fn sandbox_report(&self, principal: &Principal) -> Result<Option<Arc<SandboxReport>>> {
        principal.require(Scope::Viewer, &principal.project)?;
        Ok(self.inner.sandbox.as_ref().map(|sandbox| sandbox.report()))
    }
}

impl Inner {
    /// The version, if `principal` may see it. A hidden one answers exactly like an absent one.
    pub(super) async fn visible_code_tool(
        &self,
        principal: &Principal,
        id: &CodeToolId,
    ) -> Result<CodeToolRecord> {
        let record = self.registry.code_tool(id).await?;
        record
            .filter(|record| sees(principal, (&record.owner, &record.project, record.visibility)))
            .ok_or_else(|| Error::not_found("code tool", id.as_str()))
    }

    /// The version, if `principal` may see it and holds `scope` in its project.
    pub(super) async fn code_tool_for(
        &self,
        principal: &Principal,
        id: &CodeToolId,
        scope: Scope,
    ) -> Result<CodeToolRecord> {
        let record = self.visible_code_tool(principal, id).await?;
        principal.require(scope, &record.project)?;
        Ok(record)
    }

    /// The project that a family belongs to, as the caller's project knows it: its own, or that of the public one.
    pub(super) async fn family_project(
        &self,
        principal: &Principal,
        family: &FamilyName,
    ) -> Result<ProjectId> {
        principal.require(Scope::Viewer, &principal.project)?;
        for query in family_queries(principal, family) {
            let found = self.registry.code_tools(&query, &PageRequest::first(1)).await?;
            if let Some(tool) = found.items.into_iter().next() {
                return Ok(tool.project);
            }
        }
        Err(Error::not_found("code tool", family.as_str()))
    }

    /// The versions that a reference to a family can stand for.
    async fn candidates(&self, principal: &Principal, family: &FamilyName) -> Result<Vec<CodeToolSummary>> {
        let mut found = Vec::new();
        for query in family_queries(principal, family) {
            let mut request = PageRequest::first(PAGE_LIMIT);
            loop {
                // A family has at most 1,000 versions in a project, and is public in one project only.
                let page = self.registry.code_tools(&query, &request).await?;
                found.extend(page.items);
                match page.next {
                    Some(cursor) => request.cursor = Some(cursor),
                    None => break,
                }
            }
            if !found.is_empty() {
                break;
            }
        }
        Ok(found)
    }
}

/// Where the versions of a family are looked for, in this order: in the caller's project, then among the public ones.
fn family_queries(principal: &Principal, family: &FamilyName) -> [CodeToolQuery; 2] {
    let family = CodeToolQuery {
        viewer: viewer(principal),
        family: Some(family.clone()),
        ..CodeToolQuery::default()
    };
    let own = CodeToolQuery {
        project: Some(principal.project.clone()),
        ..family.clone()
    };
    let public = CodeToolQuery {
        visibility: Some(Visibility::Public),
        ..family
    };
    [own, public]
}

/// Checks a definition off the runtime's threads: compiling a schema takes a while.
async fn validated(definition: CodeToolDefinition) -> Result<CodeToolDefinition> {
    let work = tokio::task::spawn_blocking(move || definition.validate().map(|()| definition));
    work.await
        .map_err(|error| Error::internal("checking a definition failed").with_source(error))?
}

/// Moves literal secrets out of the definition; what stays are references.
fn seal(record: &mut CodeToolRecord) -> Result<Vec<NewSecret>> {
    let mut secrets = Vec::new();
    let mut problems = Vec::new();
    for (name, value) in &mut record.definition.secret_refs {
        let mut refuse = |problem: &str| {
            problems.push(FieldProblem {
                field: format!("secret_refs.{name}"),
                problem: problem.to_owned(),
            });
        };
        match value {
            ConfigValue::Reference(SecretReference::Stored(_)) => {
                refuse("a stored secret belongs to the tool that it was given for; give the value");
            }
            ConfigValue::Unchanged => refuse("nothing is stored at this place; give the value"),
            ConfigValue::Reference(_) => {}
            ConfigValue::Literal(secret) => {
                let id = SecretId::new();
                secrets.push(NewSecret {
                    id: id.clone(),
                    owner: SecretOwner::CodeTool(record.id.clone()),
                    value: secret.clone(),
                });
                *value = ConfigValue::Reference(SecretReference::Stored(id));
            }
        }
    }
    if problems.is_empty() {
        Ok(secrets)
    } else {
        Err(Error::invalid_fields(problems))
    }
}
