//! How the reference registry keeps code tools.

use std::cmp::Reverse;

use super::changes::in_use;
use super::state::{State, VersionKey};
use crate::code_tool::{CodeToolRecord, CodeToolStatus, FAMILY_VERSIONS, FamilyName};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{CodeToolId, ProjectId};
use crate::reason::ReasonCode;
use crate::registry::{Entity, NewSecret, Revision};
use crate::secret::{ConfigValue, SecretReference};
use crate::server::Visibility;

/// What names a version.
fn key(record: &CodeToolRecord) -> VersionKey {
    let definition = &record.definition;
    let version = Reverse(definition.version.clone());
    (definition.family.clone(), record.project.clone(), version)
}

impl State {
    pub(super) fn code_tool_exists(&self, id: &CodeToolId) -> Result<()> {
        if self.code_tools.contains_key(id) {
            Ok(())
        } else {
            Err(Error::not_found("code tool", id.as_str()))
        }
    }

    pub(super) fn family_exists(&self, project: &ProjectId, family: &FamilyName) -> Result<()> {
        let mut versions = self.versions.keys();
        if versions.any(|(name, place, _)| name == family && place == project) {
            Ok(())
        } else {
            Err(Error::not_found("code tool", family.as_str()))
        }
    }

    pub(super) fn register_code_tool(
        &mut self,
        mut record: CodeToolRecord,
        secrets: Vec<NewSecret>,
    ) -> Result<Revision> {
        let definition = &record.definition;
        if self.versions.contains_key(&key(&record)) || self.code_tools.contains_key(&record.id) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{} has a version {} in this project; choose another",
                    definition.family, definition.version
                ),
            )
            .with_reason(ReasonCode::VersionTaken));
        }
        let versions = self.versions.keys();
        let own = versions.filter(|(name, place, _)| *name == definition.family && *place == record.project);
        if own.count() >= FAMILY_VERSIONS as usize {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("a code tool has at most {FAMILY_VERSIONS} versions in a project"),
            ));
        }
        self.public_name_is_free(&record)?;
        let mut references = definition.secret_refs.values().filter_map(ConfigValue::reference);
        let foreign = references.find(|reference| {
            matches!(reference, SecretReference::Stored(id) if !secrets.iter().any(|secret| secret.id == *id))
        });
        if let Some(reference) = foreign {
            let problem = format!("it refers to {reference}, which is not stored for this tool");
            return Err(Error::invalid("secret_refs", problem));
        }
        let id = record.id.clone();
        let revision = self.advance(Entity::CodeTool(id.clone()));
        record.revision = revision;
        self.versions.insert(key(&record), id.clone());
        self.code_tools.insert(id, record);
        self.keep_secrets(secrets);
        Ok(revision)
    }

    /// A name is public in one project only, so that a reference to it is never ambiguous.
    fn public_name_is_free(&self, record: &CodeToolRecord) -> Result<()> {
        let elsewhere = |other: &CodeToolRecord| {
            other.visibility == Visibility::Public
                && other.definition.family == record.definition.family
                && other.project != record.project
        };
        if record.visibility == Visibility::Public && self.code_tools.values().any(elsewhere) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "another project has a public code tool {}; choose another name, or keep this one in its project",
                    record.definition.family
                ),
            )
            .with_reason(ReasonCode::NameTaken));
        }
        Ok(())
    }

    pub(super) fn update_code_tool(&mut self, record: CodeToolRecord) -> Result<Revision> {
        let absent = || Error::not_found("code tool", record.id.as_str());
        let stored = self.code_tools.get(&record.id).ok_or_else(absent)?;
        let archives = record.status == CodeToolStatus::Archived && stored.status != CodeToolStatus::Archived;
        let mut after = stored.clone();
        let CodeToolRecord {
            definition,
            status,
            deprecated_at,
            successor,
            owner,
            visibility,
            updated_at,
            ..
        } = record;
        after.definition.description = definition.description;
        after.status = status;
        after.deprecated_at = deprecated_at;
        after.successor = successor;
        after.owner = owner;
        after.visibility = visibility;
        after.updated_at = updated_at;
        self.public_name_is_free(&after)?;
        let needed = self
            .code_tool_deployments
            .iter()
            .filter(|(tool, _)| *tool == after.id);
        let needed: Vec<_> = needed.map(|(_, reference)| reference).collect();
        if let ([first, ..], true) = (needed.as_slice(), archives) {
            return Err(in_use("version", needed.len(), first));
        }
        let id = after.id.clone();
        after.revision = self.advance(Entity::CodeTool(id.clone()));
        let revision = after.revision;
        self.code_tools.insert(id, after);
        Ok(revision)
    }
}
