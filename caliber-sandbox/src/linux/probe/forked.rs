//! The canary of forked calls: the others are processes of their own, and most calls are not.

use std::sync::Arc;
use std::time::Duration;

use caliber_core::clock::Deadline;
use caliber_core::id::ProjectId;
use caliber_core::json::JsonText;
use caliber_core::sandbox::{ExecutionMode, ExecutionPreference, RunLimits, RunRequest, RunStatus};

use super::{MEMORY, PATIENCE, Trial};
use crate::linux::engine::Engine;
use crate::linux::layers::Layers;
use crate::settings::{Limits, SandboxSettings};

/// The tool that lies in the source of the probe.
pub(super) const TOOL: &str = include_str!("forked.py");

/// What every call of it has to say.
const HELD: &str = r#"{"calls":1,"left":[],"others":0,"net":"held","read":"held"}"#;

/// Makes two calls of one imported module, the first of which leaves a file and a process behind, and says what was wrong
/// with them.
pub(super) fn try_calls(trial: &Trial<'_>, layers: &Layers) -> Result<(), String> {
    let settings = SandboxSettings {
        snapshot_folder: trial.host.folder().to_owned(),
        places: 1,
        zygotes: 1,
        spares: 0,
        limits: Limits {
            memory_bytes: trial.settings.limits.memory_bytes.max(MEMORY),
            ..trial.settings.limits
        },
        ..trial.settings.clone()
    };
    let engine = Engine::start_with(settings, layers.clone(), trial.interpreter.clone())
        .map_err(|error| error.message().to_owned())?;
    let program = Arc::new(trial.host.program());
    let canary = trial.host.folder().join("canary");
    let result = (0..2).try_for_each(|_| {
        let request = RunRequest {
            program: Arc::clone(&program),
            arguments: JsonText::of(&serde_json::json!({ "canary": canary }))
                .map_err(|error| error.message().to_owned())?,
            secrets: Vec::new(),
            tenant: ProjectId::default(),
            preference: ExecutionPreference::Isolated,
            limits: RunLimits::default(),
            startup_grace: Duration::ZERO,
            deadline: Deadline::after(PATIENCE),
            result_bytes: 4096,
        };
        let outcome = engine
            .run_blocking(request)
            .map_err(|error| error.message().to_owned())?;
        match &outcome.status {
            _ if outcome.mode != ExecutionMode::Zygote => Err("no call was forked".to_owned()),
            RunStatus::Ok { value } if value.as_str() == HELD => Ok(()),
            RunStatus::Ok { value } => Err(value.as_str().to_owned()),
            other => Err(format!("{other:?}")),
        }
    });
    engine.end();
    result
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Otherwise the canary would prove nothing.
    #[test]
    fn a_second_call_without_isolation_is_seen_as_one() {
        let home = tempfile::tempdir().unwrap();
        let code = format!(
            "{TOOL}\nimport json\nfor _ in range(2): said = run('/proc/version', 0)\nprint(json.dumps(said))"
        );
        let output = Command::new("/usr/bin/python3")
            .args(["-I", "-S", "-B", "-c", &code])
            .env("HOME", home.path())
            .output()
            .unwrap();
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        for (field, value) in [
            ("calls", serde_json::json!(2)),
            ("left", serde_json::json!(["left"])),
            ("net", "open".into()),
            ("read", "open".into()),
        ] {
            assert_eq!(said[field], value, "{said}");
        }
        assert!(said["others"].as_u64().unwrap() > 0, "{said}");
    }
}
