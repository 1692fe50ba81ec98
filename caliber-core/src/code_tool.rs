//! Code tools: registered versions of callables that run in the sandbox.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::digest::ContentHash;
use crate::error::{Error, Result};
use crate::id::{CodeToolId, ProjectId};
use crate::principal::Subject;
use crate::registry::Revision;
use crate::sandbox::PinnedProgram;
use crate::server::Visibility;
use crate::text::shown;

mod constraint;
mod definition;
mod lifecycle;
mod name;
mod reference;
mod resolve;
mod version;

pub use constraint::{CONSTRAINT_CLAUSES, CONSTRAINT_LENGTH, VersionConstraint};
pub use definition::{CodeToolDefinition, PROGRAM_ENTRIES, PROGRAM_TEXT_LENGTH, SCHEMA_LIMITS, SECRET_REFS};
pub use lifecycle::{KnownEvidence, LifecycleStage};
pub use name::{FAMILY_NAME_LENGTH, FamilyName};
pub use reference::ToolReference;
pub use resolve::{Resolved, resolve};
pub use version::{ToolVersion, VERSION_LENGTH};

/// The most versions of one family in one project.
pub const FAMILY_VERSIONS: u32 = 1_000;

/// One registered version of a code tool, as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CodeToolRecord {
    /// Its identifier.
    pub id: CodeToolId,
    /// Counts the changes.
    pub revision: Revision,
    /// What the admin wrote; literal secrets have become references.
    pub definition: CodeToolDefinition,
    /// What runs: the source as it was when the version was registered.
    pub pinned: PinnedProgram,
    /// Names the behaviour; see [`CodeToolRecord::computed_hash`].
    pub content_hash: ContentHash,
    /// Whether it may be used.
    pub status: CodeToolStatus,
    /// When it was deprecated, while it is not active.
    pub deprecated_at: Option<Timestamp>,
    /// What should be used in its place.
    pub successor: Option<CodeToolId>,
    /// Who answers for it.
    pub owner: Subject,
    /// The project that it belongs to.
    pub project: ProjectId,
    /// Who sees it.
    pub visibility: Visibility,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When the record last changed.
    pub updated_at: Timestamp,
}

impl CodeToolRecord {
    /// The digest of everything that decides what the tool does: the definition without family, version and
    /// description, the source and the environment. Prose does not move it, nor do owner, status or visibility.
    ///
    /// # Errors
    ///
    /// `Internal` when the definition has no canonical form.
    pub fn computed_hash(&self) -> Result<ContentHash> {
        content_hash(&self.definition, &self.pinned)
    }

    /// The view for lists.
    pub fn summary(&self) -> CodeToolSummary {
        let definition = &self.definition;
        CodeToolSummary {
            id: self.id.clone(),
            revision: self.revision,
            family: definition.family.clone(),
            version: definition.version.clone(),
            description: definition.description.clone(),
            runtime: definition.runtime().to_owned(),
            side_effect_level: definition.side_effect_level,
            requires_approval: definition.requires_approval,
            allow_in_preview: definition.allow_in_preview,
            content_hash: self.content_hash,
            status: self.status,
            deprecated_at: self.deprecated_at,
            successor: self.successor.clone(),
            owner: self.owner.clone(),
            project: self.project.clone(),
            visibility: self.visibility,
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }
}

/// See [`CodeToolRecord::computed_hash`].
///
/// # Errors
///
/// `Internal` when the definition has no canonical form.
pub fn content_hash(definition: &CodeToolDefinition, pinned: &PinnedProgram) -> Result<ContentHash> {
    let behaviour = serde_json::json!({
        "definition": definition.behaviour()?,
        "source": pinned.source,
        "environment": pinned.environment,
    });
    let canonical = crate::json::JsonText::of(&behaviour)?.canonical()?;
    Ok(ContentHash::of(canonical.as_bytes()))
}

/// Whether a version may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeToolStatus {
    /// It is used.
    #[default]
    Active,
    /// It still runs, and resolves where no active version fits; whoever uses it is warned.
    Deprecated,
    /// It neither resolves nor runs.
    Archived,
}

impl CodeToolStatus {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Active, Self::Deprecated, Self::Archived];

    /// The word, as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Deprecated => "deprecated",
            Self::Archived => "archived",
        }
    }
}

impl std::str::FromStr for CodeToolStatus {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|status| status.as_str() == text);
        found.ok_or_else(|| {
            Error::invalid(
                "status",
                format!("{} is no status; use active, deprecated or archived", shown(text)),
            )
        })
    }
}

/// A version in a list: no program, no schemas, no secret references.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeToolSummary {
    /// Its identifier.
    pub id: CodeToolId,
    /// Counts the changes.
    pub revision: Revision,
    /// Its family.
    pub family: FamilyName,
    /// Its version.
    pub version: ToolVersion,
    /// For people.
    pub description: String,
    /// What runs it: `python` or `native`.
    pub runtime: String,
    /// How far a run reaches.
    pub side_effect_level: crate::policy::SideEffectLevel,
    /// Whether each run needs a person's consent.
    pub requires_approval: bool,
    /// Whether a preview may run it.
    pub allow_in_preview: bool,
    /// Names the behaviour.
    pub content_hash: ContentHash,
    /// Whether it may be used.
    pub status: CodeToolStatus,
    /// When it was deprecated, while it is not active.
    pub deprecated_at: Option<Timestamp>,
    /// What should be used in its place.
    pub successor: Option<CodeToolId>,
    /// Who answers for it.
    pub owner: Subject,
    /// The project that it belongs to.
    pub project: ProjectId,
    /// Who sees it.
    pub visibility: Visibility,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When the record last changed.
    pub updated_at: Timestamp,
}
