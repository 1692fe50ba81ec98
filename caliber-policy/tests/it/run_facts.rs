//! Facts of runs that the tests start from.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use caliber_core::admission::{ArgumentsFact, CodeToolFacts, QuotaFact, RunCallerFact};
use caliber_core::approval::{Approval, RequestedTool};
use caliber_core::code_tool::{CodeToolDefinition, CodeToolStatus};
use caliber_core::digest::ContentHash;
use caliber_core::grant::Grantee;
use caliber_core::id::CodeToolId;
use caliber_core::policy::{SideEffectLevel, ToolPolicy};
use caliber_core::principal::{Scope, Scopes};
use caliber_core::sandbox::{Enforcement, Guarantee, SandboxReport};

use crate::facts::{NOW, approval, arguments};

pub(crate) static TOOL: LazyLock<CodeToolId> = LazyLock::new(CodeToolId::new);

pub(crate) fn content(text: &str) -> ContentHash {
    ContentHash::of(text.as_bytes())
}

/// A machine where everything that is required holds, but for what is `missing`.
pub(crate) fn report(missing: &[Guarantee]) -> SandboxReport {
    let state = |guarantee: Guarantee| {
        if missing.contains(&guarantee) {
            Enforcement::NotEnforced {
                stage: "mount_proc".into(),
                errno: "EPERM".into(),
                remedy: "start it elsewhere".into(),
            }
        } else {
            Enforcement::Enforced { by: Vec::new() }
        }
    };
    let guarantees: BTreeMap<_, _> = Guarantee::ALL
        .into_iter()
        .map(|guarantee| (guarantee, state(guarantee)))
        .collect();
    SandboxReport {
        backend: "linux".into(),
        guarantees,
        required: Guarantee::DEFAULT_REQUIRED.to_vec(),
        interpreter: None,
        problem: None,
        unenforced_allowed: false,
    }
}

/// Ada, who has a grant for the family, runs a `read` tool with a rate, and nothing stands against it.
pub(crate) fn allowed_run() -> CodeToolFacts {
    CodeToolFacts {
        now: *NOW,
        tool: TOOL.clone(),
        status: CodeToolStatus::Active,
        policy: ToolPolicy {
            rate_limit_per_minute: Some(60),
            ..ToolPolicy::allow_read()
        },
        sandbox: Some(Arc::new(report(&[]))),
        blockers: Vec::new(),
        content_hash: content("weather"),
        computed_hash: content("weather"),
        expected_hash: None,
        caller: RunCallerFact {
            subject: "ada".parse().unwrap(),
            scopes: Scopes::NONE.with(Scope::Operator),
            grants: vec![Grantee::Subject("ada".parse().unwrap())],
            break_glass: None,
        },
        arguments: ArgumentsFact::Fit,
        quota: QuotaFact::NotAsked,
        approval: None,
        argument_digest: arguments("{}"),
    }
}

/// [`allowed_run`], for a tool that needs approval, with an approval that fits.
pub(crate) fn approved_run() -> CodeToolFacts {
    let mut facts = allowed_run();
    facts.policy.side_effect_level = SideEffectLevel::Write;
    facts.policy.requires_approval = true;
    facts.approval = Some(run_approval());
    facts
}

pub(crate) fn requested(id: &CodeToolId, hash: ContentHash) -> RequestedTool {
    RequestedTool::Code {
        id: id.clone(),
        family: "weather".parse().unwrap(),
        version: "1.0.0".parse().unwrap(),
        content_hash: hash,
    }
}

pub(crate) fn run_approval() -> Approval {
    Approval {
        tool: requested(&TOOL, content("weather")),
        ..approval()
    }
}

/// A tool of this program, with these secrets.
pub(crate) fn definition(program: serde_json::Value, secrets: serde_json::Value) -> CodeToolDefinition {
    serde_json::from_value(serde_json::json!({
        "name": "weather",
        "version": "1.0.0",
        "program": program,
        "side_effect_level": "read",
        "requires_approval": false,
        "secret_refs": secrets,
    }))
    .unwrap()
}
