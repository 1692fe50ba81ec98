//! Tools, policies and differences.

use caliber_core::Drift;
use caliber_core::digest::{DescriptorDigest, Fingerprint};
use caliber_core::id::ServerId;
use caliber_core::inventory::{self, ToolState, ToolView};
use caliber_core::policy::{self as core, SideEffectLevel, ToolPolicy};

use crate::problem::Problem;
use crate::wire::tools::{
    Classification, Difference, EffectivePolicy, Level, Policy, PolicyInput, Tool, WithheldTool,
};

impl From<Level> for SideEffectLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Read => Self::Read,
            Level::Write => Self::Write,
            Level::ExternalAction => Self::ExternalAction,
        }
    }
}

impl From<SideEffectLevel> for Level {
    fn from(level: SideEffectLevel) -> Self {
        match level {
            SideEffectLevel::Read => Self::Read,
            SideEffectLevel::Write => Self::Write,
            SideEffectLevel::ExternalAction => Self::ExternalAction,
        }
    }
}

/// A policy, and what the admin looked at.
pub(crate) fn policy_input(input: PolicyInput) -> Result<(ToolPolicy, Option<DescriptorDigest>), Problem> {
    let seen = input
        .descriptor_digest
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|_| {
            Problem::invalid_field(
                "body",
                "descriptor_digest",
                "it is no `sha256:` and 64 hexadecimal digits",
            )
        })?;
    let policy = ToolPolicy {
        allowed: input.allowed,
        side_effect_level: input.side_effect_level.into(),
        requires_approval: input.requires_approval,
        approval_waiver: input.approval_waiver,
        rate_limit_per_minute: input.rate_limit_per_minute,
        timeout_ms: input.timeout_ms,
        result_bytes: input.result_bytes,
        replay_safe: input.replay_safe.unwrap_or_default(),
    };
    Ok((policy, seen))
}

fn policy(policy: ToolPolicy) -> Policy {
    Policy {
        allowed: policy.allowed,
        side_effect_level: policy.side_effect_level.into(),
        requires_approval: policy.requires_approval,
        approval_waiver: policy.approval_waiver,
        rate_limit_per_minute: policy.rate_limit_per_minute,
        timeout_ms: policy.timeout_ms,
        result_bytes: policy.result_bytes,
        replay_safe: policy.replay_safe,
    }
}

/// A tool of a server that runs at `fingerprint`; `whole` shows everything that the server says about it.
pub(crate) fn tool(view: ToolView, fingerprint: &Fingerprint, whole: bool) -> Tool {
    let state = view.state(fingerprint);
    let ToolView {
        descriptor,
        classification: decided,
    } = view;
    let counts = decided.as_ref().filter(|_| state == ToolState::Classified);
    let effective = EffectivePolicy {
        allowed: counts.is_some_and(|decided| decided.policy.allowed),
        side_effect_level: counts.map(|decided| decided.policy.side_effect_level.into()),
        requires_approval: counts.map(|decided| decided.policy.requires_approval),
        rate_limit_per_minute: counts.and_then(|decided| decided.policy.rate_limit_per_minute),
    };
    Tool {
        name: descriptor.name().to_string(),
        title: descriptor.title().map(str::to_owned),
        description: descriptor.description().unwrap_or_default().to_owned(),
        input_schema: descriptor.input_schema().clone(),
        output_schema: descriptor.output_schema().cloned(),
        annotations: descriptor.text().member("annotations"),
        descriptor_digest: descriptor.digest().to_string(),
        state,
        classified: state == ToolState::Classified,
        policy: effective,
        classification: decided.map(classification),
        descriptor: whole.then(|| descriptor.text().clone()),
    }
}

pub(crate) fn classification(decided: core::Classification) -> Classification {
    Classification {
        server_id: decided.server.to_string(),
        tool_name: decided.tool.to_string(),
        revision: decided.revision.0,
        policy: policy(decided.policy),
        descriptor_digest: decided.descriptor_digest.to_string(),
        fingerprint: decided.fingerprint.to_string(),
        classified_by: decided.classified_by.to_string(),
        classified_at: decided.classified_at,
        drifted_at: decided.drifted_at,
    }
}

pub(crate) fn withheld(tools: Vec<inventory::WithheldTool>) -> Vec<WithheldTool> {
    tools
        .into_iter()
        .map(|tool| WithheldTool {
            name: tool.name,
            reason: tool.reason,
        })
        .collect()
}

pub(crate) fn difference(
    server: &ServerId,
    tool: &caliber_core::descriptor::ToolName,
    drift: Drift,
) -> Difference {
    Difference {
        server_id: server.to_string(),
        tool_name: tool.to_string(),
        state: drift.state,
        classified_digest: drift.classified_digest.map(|digest| digest.to_string()),
        current_digest: drift.current_digest.to_string(),
        place_changed: drift.place_changed,
        lines: drift.lines,
    }
}
