//! A code tool as an admin wrote it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{FamilyName, ToolVersion};
use crate::error::{Error, FieldProblem, Result};
use crate::json::{JsonLimits, JsonText};
use crate::policy::{SideEffectLevel, ToolPolicy};
use crate::sandbox::{ExecutionPreference, Program, RunLimits};
use crate::schema;
use crate::secret::{ConfigValue, SECRET_LENGTH, SecretReference};
use crate::server::DESCRIPTION_LENGTH;
use crate::text::has_suspicious;

/// The most secrets of one code tool.
pub const SECRET_REFS: usize = 32;
/// The most arguments, source roots or package roots of one program.
pub const PROGRAM_ENTRIES: usize = 64;
/// The longest module path, callable name, file path or argument, in bytes.
pub const PROGRAM_TEXT_LENGTH: usize = 1_024;
/// The bounds of a schema: those of everything that a server says about one tool.
pub const SCHEMA_LIMITS: JsonLimits = JsonLimits::DESCRIPTOR;
/// The longest name of a secret, in characters.
const SECRET_NAME_LENGTH: usize = 128;

/// One version of a code tool. Everything but the description stays as it was registered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeToolDefinition {
    /// The name that all versions share.
    #[serde(rename = "name")]
    pub family: FamilyName,
    /// Which version it is.
    pub version: ToolVersion,
    /// For people and models; at most 2,048 bytes.
    #[serde(default)]
    pub description: String,
    /// What runs.
    pub program: Program,
    /// The schema of the arguments; without one, every object fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<JsonText>,
    /// The schema of the value; without one, every value fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<JsonText>,
    /// How far a run reaches, in the admin's judgement.
    pub side_effect_level: SideEffectLevel,
    /// Whether each run needs a person's consent.
    pub requires_approval: bool,
    /// Why a `write` or `external_action` tool needs no approval; 1 to 1,000 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_waiver: Option<String>,
    /// Whether a preview of a workflow may run it; otherwise a preview puts a made-up value in its place.
    #[serde(default)]
    pub allow_in_preview: bool,
    /// The secrets that a run gets, by the name that the tool knows each under; at most 32.
    #[serde(default)]
    pub secret_refs: BTreeMap<String, ConfigValue>,
    /// Bounds of a run, where they differ from the settings of the installation.
    #[serde(default)]
    pub limits: RunLimits,
    /// Which way of running it asks for.
    #[serde(default)]
    pub preference: ExecutionPreference,
    /// Runs a minute at most, 1 to 100,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit_per_minute: Option<u32>,
}

impl CodeToolDefinition {
    /// The word for what runs it, as on the wire.
    pub fn runtime(&self) -> &'static str {
        match self.program {
            Program::Python { .. } => "python",
            Program::Native { .. } => "native",
        }
    }

    /// What the definition says about approval and bounds, as the policy of a tool: one rule for both kinds.
    pub fn policy(&self) -> ToolPolicy {
        ToolPolicy {
            allowed: true,
            side_effect_level: self.side_effect_level,
            requires_approval: self.requires_approval,
            approval_waiver: self.approval_waiver.clone(),
            rate_limit_per_minute: self.rate_limit_per_minute,
            timeout_ms: self.limits.timeout_ms,
            result_bytes: self.limits.result_bytes,
            replay_safe: false,
        }
    }

    /// Checks everything about it that does not depend on the installation.
    ///
    /// # Errors
    ///
    /// `Invalid`, naming each wrong field; effects need approval, or the reason why not.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut add = |field: String, problem: String| problems.push(FieldProblem { field, problem });
        if self.description.len() > DESCRIPTION_LENGTH {
            add(
                "description".to_owned(),
                format!("it is longer than {DESCRIPTION_LENGTH} bytes"),
            );
        }
        check_program(&self.program, &mut add);
        for (field, schema) in [
            ("input_schema", &self.input_schema),
            ("output_schema", &self.output_schema),
        ] {
            if let Some(schema) = schema
                && let Err(error) = check_schema(schema)
            {
                add(field.to_owned(), error.message().to_owned());
            }
        }
        check_secrets(&self.secret_refs, &mut add);
        check_limits(&self.limits, &mut add);
        if let Err(error) = self.policy().validate() {
            for problem in error.fields() {
                // The limits have told of theirs.
                if !matches!(problem.field.as_str(), "timeout_ms" | "result_bytes") {
                    add(problem.field.clone(), problem.problem.clone());
                }
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::invalid_fields(problems))
        }
    }

    /// The same definition with [`ConfigValue::Unchanged`] in place of every stored secret: what surfaces show and
    /// what the audit trail keeps.
    #[must_use]
    pub fn masked(&self) -> Self {
        let mut masked = self.clone();
        for value in masked.secret_refs.values_mut() {
            if !matches!(
                value,
                ConfigValue::Reference(SecretReference::Environment(_) | SecretReference::File(_))
            ) {
                *value = ConfigValue::Unchanged;
            }
        }
        masked
    }

    /// What of it decides what a run does.
    pub(super) fn behaviour(&self) -> Result<serde_json::Value> {
        let mut value = serde_json::to_value(self.masked()).map_err(|error| {
            Error::internal("a definition could not be written as JSON").with_source(error)
        })?;
        if let Some(members) = value.as_object_mut() {
            for prose in ["name", "version", "description"] {
                members.remove(prose);
            }
        }
        Ok(value)
    }
}

/// One more field that is wrong, and how.
type Add<'a> = dyn FnMut(String, String) + 'a;

fn check_program(program: &Program, add: &mut Add<'_>) {
    match program {
        Program::Python {
            module_path,
            callable_name,
            source_roots,
            package_roots,
        } => {
            let dotted = |text: &str| text.split('.').all(is_identifier);
            if module_path.len() > 512 || !dotted(module_path) {
                add(
                    "program.module_path".to_owned(),
                    "it is no dotted path of a module, such as reports.weekly, of at most 512 bytes"
                        .to_owned(),
                );
            }
            if callable_name.len() > 128 || !dotted(callable_name) {
                add(
                    "program.callable_name".to_owned(),
                    "it is no name of a callable, of at most 128 bytes".to_owned(),
                );
            }
            check_roots("program.source_roots", source_roots, add);
            check_roots("program.package_roots", package_roots, add);
        }
        Program::Native { executable, args, .. } => {
            check_path("program.executable", executable, add);
            if args.len() > PROGRAM_ENTRIES {
                add(
                    "program.args".to_owned(),
                    format!("there are more than {PROGRAM_ENTRIES}"),
                );
            }
            for (index, argument) in args.iter().take(PROGRAM_ENTRIES).enumerate() {
                if argument.len() > PROGRAM_TEXT_LENGTH || argument.contains('\0') {
                    add(
                        format!("program.args[{index}]"),
                        format!("it holds a zero byte, or is longer than {PROGRAM_TEXT_LENGTH} bytes"),
                    );
                }
            }
        }
    }
}

/// A name as Python has it, of ASCII letters, so that two names never look alike.
fn is_identifier(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn check_roots(field: &str, roots: &[std::path::PathBuf], add: &mut Add<'_>) {
    if roots.len() > PROGRAM_ENTRIES {
        add(field.to_owned(), format!("there are more than {PROGRAM_ENTRIES}"));
    }
    for (index, root) in roots.iter().take(PROGRAM_ENTRIES).enumerate() {
        check_path(&format!("{field}[{index}]"), root, add);
    }
}

fn check_path(field: &str, path: &Path, add: &mut Add<'_>) {
    let plain = |text: &str| text.len() <= PROGRAM_TEXT_LENGTH && !has_suspicious(text);
    let steps_back = path
        .components()
        .any(|part| matches!(part, std::path::Component::ParentDir));
    if !path.is_absolute() || steps_back || !path.to_str().is_some_and(plain) {
        add(
            field.to_owned(),
            format!(
                "it is no absolute path without `..`, of at most {PROGRAM_TEXT_LENGTH} visible characters"
            ),
        );
    }
}

fn check_schema(text: &JsonText) -> Result<()> {
    if !text.is_object() {
        return Err(Error::invalid("schema", "it is no JSON object"));
    }
    let text = JsonText::parse(text.as_str(), SCHEMA_LIMITS)?;
    // The content hash is one of the canonical form.
    text.canonical()?;
    schema::accept(&text)
}

fn check_secrets(secrets: &BTreeMap<String, ConfigValue>, add: &mut Add<'_>) {
    if secrets.len() > SECRET_REFS {
        add(
            "secret_refs".to_owned(),
            format!("there are more than {SECRET_REFS}"),
        );
    }
    for (name, value) in secrets.iter().take(SECRET_REFS) {
        let field = || format!("secret_refs.{name}");
        if name.len() > SECRET_NAME_LENGTH || !is_identifier(name) {
            add(
                field(),
                format!(
                    "the name takes letters, digits and _, not a digit first, at most {SECRET_NAME_LENGTH}"
                ),
            );
        }
        if let ConfigValue::Literal(secret) = value
            && !(1..=SECRET_LENGTH).contains(&secret.expose().len())
        {
            add(field(), format!("the value takes 1 to {SECRET_LENGTH} bytes"));
        }
    }
}

fn check_limits(limits: &RunLimits, add: &mut Add<'_>) {
    let bounds = [
        ("timeout_ms", limits.timeout_ms, 1, 3_600_000),
        ("memory_bytes", limits.memory_bytes, 32 << 20, 16 << 30),
        ("processes", limits.processes.map(u64::from), 1, 4_096),
        ("scratch_bytes", limits.scratch_bytes, 0, 16 << 30),
        ("result_bytes", limits.result_bytes, 1, 64 << 20),
    ];
    for (name, value, least, most) in bounds {
        if value.is_some_and(|value| !(least..=most).contains(&value)) {
            add(
                format!("limits.{name}"),
                format!("it must lie between {least} and {most}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(change: impl FnOnce(&mut serde_json::Value)) -> CodeToolDefinition {
        let mut value = serde_json::json!({
            "name": "weather",
            "version": "1.0",
            "program": {"runtime": "python", "module_path": "weather.today", "callable_name": "forecast"},
            "side_effect_level": "read",
            "requires_approval": false,
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    fn problems(change: impl FnOnce(&mut serde_json::Value)) -> Vec<String> {
        let checked = definition(change).validate();
        let error = checked.err();
        let fields = error.iter().flat_map(|error| error.fields().to_vec());
        fields.map(|problem| problem.field).collect()
    }

    #[test]
    fn a_plain_definition_is_fine() {
        definition(|_| {}).validate().unwrap();
        let unknown = serde_json::json!({"name": "a", "version": "1", "modul": "x"});
        assert!(serde_json::from_value::<CodeToolDefinition>(unknown).is_err());
    }

    #[test]
    fn each_wrong_field_is_named() {
        let secrets = |names: Vec<String>| {
            let pairs = names
                .into_iter()
                .map(|name| (name, serde_json::json!("env://TOKEN")));
            serde_json::Value::Object(pairs.collect())
        };
        let cases: Vec<(&str, serde_json::Value, Vec<&str>)> = vec![
            ("description", "x".repeat(2_049).into(), vec!["description"]),
            ("side_effect_level", "write".into(), vec!["requires_approval"]),
            ("approval_waiver", " ".into(), vec!["approval_waiver"]),
            ("rate_limit_per_minute", 0.into(), vec!["rate_limit_per_minute"]),
            (
                "input_schema",
                serde_json::json!({"type": "strange"}),
                vec!["input_schema"],
            ),
            ("output_schema", serde_json::json!([]), vec!["output_schema"]),
            (
                "limits",
                serde_json::json!({"timeout_ms": 0, "memory_bytes": 1, "processes": 0, "result_bytes": 0}),
                vec![
                    "limits.timeout_ms",
                    "limits.memory_bytes",
                    "limits.processes",
                    "limits.result_bytes",
                ],
            ),
            (
                "secret_refs",
                secrets((0..33).map(|n| format!("A{n}")).collect()),
                vec!["secret_refs"],
            ),
            (
                "secret_refs",
                secrets(vec!["A B".to_owned()]),
                vec!["secret_refs.A B"],
            ),
            (
                "program",
                serde_json::json!({"runtime": "python", "module_path": "a..b", "callable_name": "f g",
                "source_roots": ["src"], "package_roots": ["/x/../y"]}),
                vec![
                    "program.module_path",
                    "program.callable_name",
                    "program.source_roots[0]",
                    "program.package_roots[0]",
                ],
            ),
            (
                "program",
                serde_json::json!({"runtime": "native", "executable": "tool", "protocol": "json",
                "args": ["a\u{0}"]}),
                vec!["program.executable", "program.args[0]"],
            ),
        ];
        for (field, value, expected) in cases {
            assert_eq!(
                problems(|whole| whole[field] = value.clone()),
                expected,
                "{field}: {value}"
            );
        }
    }

    #[test]
    fn prose_and_identity_are_no_behaviour_and_all_else_is() {
        let behaviour = |change: &dyn Fn(&mut serde_json::Value)| definition(change).behaviour().unwrap();
        let plain = behaviour(&|_| {});
        for (field, value) in [("description", "other"), ("name", "other"), ("version", "2")] {
            assert_eq!(behaviour(&|whole| whole[field] = value.into()), plain, "{field}");
        }
        for (field, value) in [
            ("side_effect_level", serde_json::json!("write")),
            ("requires_approval", true.into()),
            ("approval_waiver", "scratch".into()),
            ("allow_in_preview", true.into()),
            ("input_schema", serde_json::json!({"type": "object"})),
            ("output_schema", serde_json::json!({"type": "object"})),
            ("secret_refs", serde_json::json!({"A": "env://A"})),
            ("limits", serde_json::json!({"timeout_ms": 5})),
            ("preference", "cold".into()),
            ("rate_limit_per_minute", 5.into()),
        ] {
            assert_ne!(behaviour(&|whole| whole[field] = value.clone()), plain, "{field}");
        }
    }
}
