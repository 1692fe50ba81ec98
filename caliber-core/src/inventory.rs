//! What servers advertise: inventory, not authorization.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::descriptor::{Descriptor, ToolName};
use crate::digest::{DescriptorDigest, Fingerprint};
use crate::json::JsonText;
use crate::policy::Classification;
use crate::registry::Revision;

/// What one live listing of a server gave, before it is stored.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// When the listing was asked for. Of two listings the one that was asked for later tells what is there.
    pub listed_at: std::time::Instant,
    /// Where the server ran.
    pub fingerprint: Fingerprint,
    /// The protocol revision that was spoken.
    pub protocol_version: String,
    /// What the server says about itself, if anything; untrusted.
    pub server_info: Option<JsonText>,
    /// What the server tells models, if anything; untrusted.
    pub instructions: Option<String>,
    /// The tools, in the order of the server, without duplicates.
    pub tools: Vec<Descriptor>,
    /// The tools that cannot be offered.
    pub withheld: Vec<WithheldTool>,
}

/// A tool that a server advertised and that cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithheldTool {
    /// Its name as the server wrote it, escaped and bounded; it may be no valid name.
    pub name: String,
    /// Why, one line.
    pub reason: String,
}

/// The stored result of the last live listing of a server.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// Counts the changes.
    pub revision: Revision,
    /// When the listing was made.
    pub discovered_at: Timestamp,
    /// The protocol revision that was spoken.
    pub protocol_version: String,
    /// What the server says about itself.
    pub server_info: Option<JsonText>,
    /// What the server tells models.
    pub instructions: Option<String>,
    /// How many tools are offered.
    pub tool_count: u32,
    /// The tools that cannot be offered.
    pub withheld: Vec<WithheldTool>,
}

/// One tool of the inventory with our classification of it.
#[derive(Clone, Debug)]
pub struct ToolView {
    /// Everything the server says about it.
    pub descriptor: Descriptor,
    /// What an admin decided, if anything.
    pub classification: Option<Classification>,
}

impl ToolView {
    /// Whether the classification still holds for the tool as it is and for a server at `fingerprint`.
    pub fn state(&self, fingerprint: &Fingerprint) -> ToolState {
        classification_state(
            self.classification.as_ref(),
            self.descriptor.digest(),
            *fingerprint,
        )
    }

    /// The name.
    pub fn name(&self) -> &ToolName {
        self.descriptor.name()
    }
}

/// Whether a tool is classified, for lists and for admission alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolState {
    /// Nobody has decided.
    Unclassified,
    /// Somebody decided on something that has changed since.
    Drifted,
    /// The decision holds.
    Classified,
}

/// The one rule of drift: a classification holds for exactly the descriptor and the place that it names, and
/// never again once a change was seen.
pub fn classification_state(
    classification: Option<&Classification>,
    descriptor: DescriptorDigest,
    fingerprint: Fingerprint,
) -> ToolState {
    match classification {
        None => ToolState::Unclassified,
        Some(bound)
            if bound.drifted_at.is_none()
                && bound.descriptor_digest == descriptor
                && bound.fingerprint == fingerprint =>
        {
            ToolState::Classified
        }
        Some(_) => ToolState::Drifted,
    }
}
