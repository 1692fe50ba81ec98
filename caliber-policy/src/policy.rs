//! The policy behind core's port.

use caliber_core::admission::{AdmissionFacts, AdmissionPolicy, Decision};
use caliber_core::code_tool::CodeToolDefinition;
use caliber_core::readiness::{Readiness, ReadinessFacts};
use caliber_core::reason::Reason;

use crate::settings::PolicySettings;

/// The admission policy of an installation: the rules of this crate under its settings.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    settings: PolicySettings,
}

impl Policy {
    /// A policy under `settings`. Ask [`PolicySettings::validate`] first: a rule that is no rule allows nothing,
    /// and says so only there.
    pub fn new(settings: PolicySettings) -> Self {
        Self { settings }
    }

    /// What it goes by.
    pub fn settings(&self) -> &PolicySettings {
        &self.settings
    }
}

impl AdmissionPolicy for Policy {
    fn decide(&self, facts: AdmissionFacts<'_>) -> Decision {
        crate::admission::decide(facts)
    }

    fn readiness(&self, facts: &ReadinessFacts) -> Readiness {
        crate::readiness::readiness(&self.settings, facts)
    }

    fn blockers(&self, definition: &CodeToolDefinition) -> Vec<Reason> {
        crate::code_tool::blockers(&self.settings, definition)
    }
}
