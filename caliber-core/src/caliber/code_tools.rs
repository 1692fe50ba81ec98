//! Registering, finding and changing code tools.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use super::servers::refuse_in_use;
use super::{Caliber, Inner, sees, viewer};
use crate::audit::AuditAction;
use crate::clock::Deadline;
use crate::code_tool::{
    CodeToolDefinition, CodeToolRecord, CodeToolStatus, CodeToolSummary, FamilyName, KnownEvidence,
    LifecycleStage, Resolved, ToolReference, VersionConstraint, content_hash, resolve,
};
use crate::error::{Error, ErrorKind, FieldProblem, Result};
use crate::id::{CodeToolId, ProjectId, SecretId};
use crate::page::{PAGE_LIMIT, Page, PageRequest};
use crate::principal::{Principal, Scope, Subject, Surface};
use crate::reason::{Reason, ReasonCode};
use crate::registry::{
    Change, CodeToolQuery, DeploymentReference, Entity, Expect, NewSecret, Revision, SecretOwner,
};
use crate::sandbox::{PinnedProgram, Reflection, SandboxReport};
use crate::secret::{ConfigValue, SecretReference};
use crate::server::{DESCRIPTION_LENGTH, Visibility};

/// A version of a code tool to be registered.
#[derive(Clone, Debug)]
pub struct CodeToolRegistration {
    /// What the admin wrote.
    pub definition: CodeToolDefinition,
    /// Who will see it.
    pub visibility: Visibility,
}

/// A change of a version; `None` keeps what is there. What decides its behaviour never changes: that is another
/// version.
#[derive(Clone, Debug, Default)]
pub struct CodeToolPatch {
    /// The text for people and models.
    pub description: Option<String>,
    /// Who answers for it.
    pub owner: Option<Subject>,
    /// Whether it may be used. Archiving goes the same way as [`Caliber::archive_code_tool`].
    pub status: Option<CodeToolStatus>,
    /// What should be used in its place; `Some(None)` takes the name of one away.
    pub successor: Option<Option<CodeToolId>>,
    /// Who sees it.
    pub visibility: Option<Visibility>,
    /// The revision that the change was decided on; `None` changes whatever is there.
    pub expect: Option<Revision>,
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
    /// is that copy. Nothing of it is imported or run.
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
        if let Some(first) = inner.policy.blockers(&definition).into_iter().next() {
            return Err(Error::new(ErrorKind::Denied, first.text).with_reason(first.code));
        }
        let pinned = inner.pin(&definition).await?;
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

    /// Changes a version: its description, owner, status, successor or visibility.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Forbidden` without `admin`, `Invalid`, `Conflict` with `stale_revision`, with `in_use` when it
    /// would archive what active deployments need (naming them), or with `name_taken` when it would make public what
    /// another project has a public family of that name for.
    pub async fn update_code_tool(
        &self,
        who: (&Principal, Surface),
        id: &CodeToolId,
        patch: CodeToolPatch,
    ) -> Result<CodeToolRecord> {
        self.inner.change_code_tool(who, id, patch).await
    }

    /// Archives a version: it neither resolves nor runs any more. Archiving again changes nothing.
    ///
    /// # Errors
    ///
    /// As for [`update_code_tool`](Self::update_code_tool).
    pub async fn archive_code_tool(
        &self,
        who: (&Principal, Surface),
        id: &CodeToolId,
        expect: Option<Revision>,
    ) -> Result<CodeToolRecord> {
        let patch = CodeToolPatch {
            status: Some(CodeToolStatus::Archived),
            expect,
            ..CodeToolPatch::default()
        };
        self.inner.change_code_tool(who, id, patch).await
    }

    /// The signature, documentation and source of a version, as the sandbox sees them in a child of its own; never by
    /// an import here. What was seen is kept by content hash. Untrusted text, bounded, not escaped. What stands in
    /// the way of looking is told in the reflection.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is absent or hidden; `Timeout`; `Unavailable` when the store or the sandbox is away.
    pub async fn code_tool_source(&self, who: (&Principal, Surface), id: &CodeToolId) -> Result<Reflection> {
        let inner = &self.inner;
        let record = inner.visible_code_tool(who.0, id).await?;
        let audit = inner.entry(
            who,
            AuditAction::InspectCodeTool,
            ("code_tool", id.as_str()),
            Some(&record.project),
            serde_json::json!({ "content_hash": record.content_hash }),
        )?;
        let change = Change::RecordInspection { tool: id.clone() };
        inner.commit(change, Expect::nothing(), audit).await?;
        inner.reflection(&record).await
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

    /// Reads the source and keeps it.
    async fn pin(&self, definition: &CodeToolDefinition) -> Result<PinnedProgram> {
        let sandbox = self.sandbox.as_ref().ok_or_else(no_sandbox)?;
        let deadline = Deadline::after(self.settings.pin_timeout);
        let pinning = sandbox.pin(&definition.program, deadline);
        match tokio::time::timeout_at(deadline.instant(), pinning).await {
            Ok(pinned) => pinned,
            Err(_) => Err(too_slow("reading the source")),
        }
    }

    async fn reflection(&self, record: &CodeToolRecord) -> Result<Reflection> {
        let unseen = |text: String| Reflection {
            error: Some(text),
            ..Reflection::default()
        };
        // What is not allowed any more is not imported any more, and not shown from memory either.
        if let Some(Reason { text, .. }) = self.policy.blockers(&record.definition).into_iter().next() {
            return Ok(unseen(text));
        }
        let kept = self
            .reflections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&record.content_hash)
            .cloned();
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let Some(sandbox) = &self.sandbox else {
            return Ok(unseen(no_sandbox().message().to_owned()));
        };
        if !sandbox.report().is_available() {
            return Ok(unseen(
                "the sandbox does not enforce what is required, so nothing is imported".to_owned(),
            ));
        }
        let deadline = Deadline::after(self.settings.inspect_timeout);
        let inspecting = sandbox.inspect(&record.pinned, deadline);
        let reflection = match tokio::time::timeout_at(deadline.instant(), inspecting).await {
            Ok(reflection) => reflection?,
            Err(_) => return Err(too_slow("looking at the source")),
        };
        if reflection.available {
            self.reflections
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .put(record.content_hash, reflection.clone());
        }
        Ok(reflection)
    }

    /// The one way in which a version changes, archiving included.
    async fn change_code_tool(
        &self,
        who: (&Principal, Surface),
        id: &CodeToolId,
        patch: CodeToolPatch,
    ) -> Result<CodeToolRecord> {
        let before = self.code_tool_for(who.0, id, Scope::Admin).await?;
        if patch.expect.is_some_and(|expected| expected != before.revision) {
            return Err(stale(&before));
        }
        let mut after = before.clone();
        self.apply_patch(who.0, &mut after, patch).await?;
        let changes = differences(&before, &after);
        if changes.is_empty() {
            return Ok(before);
        }
        let archives = after.status == CodeToolStatus::Archived && before.status != CodeToolStatus::Archived;
        if archives {
            let needed = self.registry.deployments_using_code_tool(id).await?;
            refuse_in_use("version", &needed)?;
        }
        after.updated_at = self.now();
        let action = if archives {
            AuditAction::ArchiveCodeTool
        } else {
            AuditAction::UpdateCodeTool
        };
        let details = serde_json::json!({
            "name": after.definition.family,
            "version": after.definition.version,
            "changes": changes,
        });
        let entity = ("code_tool", id.as_str());
        let audit = self.entry(who, action, entity, Some(&after.project), details)?;
        let expect = Expect::revision(Entity::CodeTool(id.clone()), before.revision);
        let change = Change::UpdateCodeTool {
            record: Box::new(after.clone()),
        };
        after.revision = self.commit(change, expect, audit).await?.revision;
        Ok(after)
    }

    async fn apply_patch(
        &self,
        principal: &Principal,
        record: &mut CodeToolRecord,
        patch: CodeToolPatch,
    ) -> Result<()> {
        let CodeToolPatch {
            description,
            owner,
            status,
            successor,
            visibility,
            expect: _,
        } = patch;
        if let Some(description) = description {
            if description.len() > DESCRIPTION_LENGTH {
                let problem = format!("it is longer than {DESCRIPTION_LENGTH} bytes");
                return Err(Error::invalid("description", problem));
            }
            record.definition.description = description;
        }
        if let Some(owner) = owner {
            record.owner = owner;
        }
        if let Some(visibility) = visibility {
            record.visibility = visibility;
        }
        if let Some(successor) = successor {
            if let Some(named) = &successor {
                let invalid = |problem: &str| Error::invalid("successor_tool_id", problem);
                if *named == record.id {
                    return Err(invalid("a version does not succeed itself"));
                }
                match self.visible_code_tool(principal, named).await {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        return Err(invalid("there is no such version"));
                    }
                    Err(error) => return Err(error),
                }
            }
            record.successor = successor;
        }
        if let Some(status) = status {
            record.status = status;
            match status {
                CodeToolStatus::Active => record.deprecated_at = None,
                CodeToolStatus::Deprecated => {
                    record.deprecated_at.get_or_insert(self.now());
                }
                CodeToolStatus::Archived => {}
            }
        }
        Ok(())
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

/// What changed, field by field: for the trail.
fn differences(before: &CodeToolRecord, after: &CodeToolRecord) -> BTreeMap<&'static str, serde_json::Value> {
    let shown = |record: &CodeToolRecord| {
        [
            ("description", serde_json::json!(record.definition.description)),
            ("owner", serde_json::json!(record.owner)),
            ("status", serde_json::json!(record.status)),
            ("successor_tool_id", serde_json::json!(record.successor)),
            ("visibility", serde_json::json!(record.visibility)),
        ]
    };
    let pairs = shown(before).into_iter().zip(shown(after));
    pairs
        .filter(|((_, was), (_, now))| was != now)
        .map(|((field, was), (_, now))| (field, serde_json::json!({ "from": was, "to": now })))
        .collect()
}

pub(super) fn no_sandbox() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "there is no sandbox, so no code tool can be registered or run; build caliber with one",
    )
    .with_reason(ReasonCode::SandboxUnavailable)
}

fn too_slow(what: &str) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!("{what} took too long; nothing was changed"),
    )
    .with_reason(ReasonCode::Timeout)
}

fn stale(record: &CodeToolRecord) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the version has changed since it was read; it is at revision {} now",
            record.revision
        ),
    )
    .with_reason(ReasonCode::StaleRevision)
}
