//! How a version changes: in one way, archiving included.

use std::collections::BTreeMap;

use crate::audit::AuditAction;
use crate::caliber::servers::refuse_in_use;
use crate::caliber::{Caliber, Inner};
use crate::code_tool::{CodeToolRecord, CodeToolStatus};
use crate::error::{Error, ErrorKind, Result};
use crate::id::CodeToolId;
use crate::principal::{Principal, Scope, Subject, Surface};
use crate::reason::ReasonCode;
use crate::registry::{Change, Entity, Expect, Revision};
use crate::server::{DESCRIPTION_LENGTH, Visibility};

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

impl Caliber {
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
}

impl Inner {
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
