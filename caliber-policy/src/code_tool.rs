//! What stands against a code tool, whoever calls it?

use caliber_core::code_tool::CodeToolDefinition;
use caliber_core::reason::{Reason, ReasonCode};
use caliber_core::sandbox::Program;
use caliber_core::text::{escaped, shown};

use crate::admission::REASON_LENGTH;
use crate::settings::PolicySettings;

/// Judges a definition under the settings, when it is registered and at each run. It names the fields of secrets,
/// never what they refer to.
pub fn blockers(settings: &PolicySettings, definition: &CodeToolDefinition) -> Vec<Reason> {
    let mut blockers = Vec::new();
    let mut add = |code, text: String| blockers.push(Reason::new(code, escaped(&text, REASON_LENGTH)));
    let rules = &settings.code_tools;
    match &definition.program {
        Program::Python { module_path, .. } if !rules.allow_module(module_path) => add(
            ReasonCode::ModuleNotAllowed,
            format!(
                "the module {} is not on the list of allowed ones; the operator can add it to code_tools.modules",
                shown(module_path)
            ),
        ),
        Program::Native { executable, .. } if !rules.allow_executable(executable) => add(
            ReasonCode::ModuleNotAllowed,
            format!(
                "the executable {} is not on the list of allowed ones; the operator can add it to \
                 code_tools.executables",
                shown(&executable.to_string_lossy())
            ),
        ),
        Program::Python { .. } | Program::Native { .. } => {}
        _ => add(
            ReasonCode::ModuleNotAllowed,
            "nothing is known about this kind of program, so it is not allowed".to_owned(),
        ),
    }
    let secrets = definition.secret_refs.iter();
    let refused: Vec<_> = secrets
        .filter(|(_, value)| {
            let mut reference = value.reference().into_iter();
            reference.any(|reference| !settings.secrets.allow(reference))
        })
        .map(|(name, _)| shown(name))
        .collect();
    if !refused.is_empty() {
        add(
            ReasonCode::SecretNotAllowed,
            format!(
                "secret_refs refers for {} to an environment variable or a file that may not be referred to; give the \
                 value itself, which is stored encrypted, or let the operator open the reference",
                refused.join(", ")
            ),
        );
    }
    blockers
}
