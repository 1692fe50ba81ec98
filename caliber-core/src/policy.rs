//! Our classification of a tool, bound to what the admin saw.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::descriptor::ToolName;
use crate::digest::{DescriptorDigest, Fingerprint};
use crate::error::{Error, FieldProblem, Result};
use crate::id::ServerId;
use crate::principal::Subject;
use crate::registry::Revision;

/// How far a call reaches: `read` < `write` < `external_action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SideEffectLevel {
    /// It changes nothing.
    Read,
    /// It changes data that the server owns.
    Write,
    /// It acts on the world outside: mail, money, machines.
    ExternalAction,
}

impl SideEffectLevel {
    /// The word, as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ExternalAction => "external_action",
        }
    }
}

impl std::str::FromStr for SideEffectLevel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Read, Self::Write, Self::ExternalAction]
            .into_iter()
            .find(|level| level.as_str() == text)
            .ok_or_else(|| Error::invalid("side_effect_level", "use read, write or external_action"))
    }
}

/// The longest call that a policy, a server or a caller may ask for, in milliseconds.
pub const LONGEST_CALL_MS: u64 = 3_600_000;
/// The largest result that a policy or a server may ask for, in bytes.
pub const LARGEST_RESULT: u64 = 64 << 20;
/// The most calls at once that a server may be given.
pub const HIGHEST_CONCURRENCY: u32 = 1_024;
/// The most calls a minute that a policy may allow.
pub const HIGHEST_RATE: u32 = 100_000;

/// The policy of one tool. It is set whole; see [`ToolPolicy::validate`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolPolicy {
    /// Whether it may be called at all.
    pub allowed: bool,
    /// How far a call reaches, in our judgement.
    pub side_effect_level: SideEffectLevel,
    /// Whether each call needs a person's consent.
    pub requires_approval: bool,
    /// Why an allowed `write` or `external_action` tool needs no approval; 1 to 1,000 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_waiver: Option<String>,
    /// Calls a minute at most, 1 to 100,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit_per_minute: Option<u32>,
    /// The longest call, in milliseconds, 1 to 3,600,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The largest result, in bytes, 1 to 64 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_bytes: Option<u64>,
    /// Whether a call whose answer was lost may be sent again. An operator's word; a server's hint is not believed.
    #[serde(default)]
    pub replay_safe: bool,
}

impl ToolPolicy {
    /// An allowed `read` tool without approval.
    pub fn allow_read() -> Self {
        Self {
            allowed: true,
            side_effect_level: SideEffectLevel::Read,
            requires_approval: false,
            approval_waiver: None,
            rate_limit_per_minute: None,
            timeout_ms: None,
            result_bytes: None,
            replay_safe: false,
        }
    }

    /// The longest call as a duration.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    /// Checks bounds, and that an allowed tool with effects needs approval unless a reason waives it.
    ///
    /// # Errors
    ///
    /// `Invalid`, naming each wrong field.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut add = |field: &str, problem: &str| {
            problems.push(FieldProblem {
                field: field.into(),
                problem: problem.into(),
            });
        };
        let effects = self.side_effect_level > SideEffectLevel::Read;
        if self.allowed && effects && !self.requires_approval && self.approval_waiver.is_none() {
            add(
                "requires_approval",
                "an allowed write or external_action tool needs approval, or an approval_waiver with the reason",
            );
        }
        if self
            .approval_waiver
            .as_ref()
            .is_some_and(|reason| reason.trim().is_empty() || reason.len() > 1_000)
        {
            add("approval_waiver", "give a reason of 1 to 1,000 bytes");
        }
        if self.requires_approval && self.approval_waiver.is_some() {
            add(
                "approval_waiver",
                "a tool that requires approval has nothing to waive",
            );
        }
        if self
            .rate_limit_per_minute
            .is_some_and(|limit| !(1..=HIGHEST_RATE).contains(&limit))
        {
            add("rate_limit_per_minute", "it must lie between 1 and 100000");
        }
        if self
            .timeout_ms
            .is_some_and(|limit| !(1..=LONGEST_CALL_MS).contains(&limit))
        {
            add("timeout_ms", "it must lie between 1 and 3600000");
        }
        if self
            .result_bytes
            .is_some_and(|limit| !(1..=LARGEST_RESULT).contains(&limit))
        {
            add("result_bytes", "it must lie between 1 and 67108864");
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::invalid_fields(problems))
        }
    }
}

/// A policy with what it is bound to and who set it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classification {
    /// The server.
    pub server: ServerId,
    /// The tool.
    pub tool: ToolName,
    /// Counts the changes; zero before the first is stored.
    pub revision: Revision,
    /// What was decided.
    pub policy: ToolPolicy,
    /// What the admin saw of the tool.
    pub descriptor_digest: DescriptorDigest,
    /// Where the server ran.
    pub fingerprint: Fingerprint,
    /// The descriptor that the admin saw, to show what changed since.
    pub descriptor: crate::json::JsonText,
    /// Who decided.
    pub classified_by: Subject,
    /// When.
    pub classified_at: Timestamp,
    /// When a change of the descriptor or the fingerprint was first seen; until then `None`. The tool stays
    /// unclassified from then on, also if the change is taken back, until an admin classifies it again.
    pub drifted_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_need_approval_or_a_reason() {
        let mut policy = ToolPolicy {
            side_effect_level: SideEffectLevel::Write,
            ..ToolPolicy::allow_read()
        };
        assert!(policy.validate().is_err());
        policy.approval_waiver = Some("a scratch database".into());
        assert!(policy.validate().is_ok());
        policy.approval_waiver = Some(" ".into());
        assert!(policy.validate().is_err());
        policy.approval_waiver = None;
        policy.requires_approval = true;
        assert!(policy.validate().is_ok());
        let denied = ToolPolicy {
            allowed: false,
            requires_approval: false,
            ..policy
        };
        assert!(denied.validate().is_ok());
    }

    #[test]
    fn the_three_words_are_required() {
        for missing in [
            "{}",
            r#"{"allowed":true}"#,
            r#"{"allowed":true,"side_effect_level":"read"}"#,
        ] {
            assert!(serde_json::from_str::<ToolPolicy>(missing).is_err(), "{missing}");
        }
        let whole = r#"{"allowed":true,"side_effect_level":"read","requires_approval":false}"#;
        assert_eq!(
            serde_json::from_str::<ToolPolicy>(whole).unwrap(),
            ToolPolicy::allow_read()
        );
    }
}
