//! Code tools: flat on the wire; a definition with its program in the core.

use std::path::PathBuf;
use std::time::Duration;

use caliber_core::code_tool::{self as core, CodeToolDefinition};
use caliber_core::id::{ApprovalId, CodeToolId};
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::registry::{CodeToolQuery, DeploymentReference};
use caliber_core::sandbox::{
    self, Enforcement, ExecutionMode, ExecutionPreference, NativeProtocol, Program, Reflection, RunStatus,
    SandboxReport,
};
use caliber_core::secret::{ConfigValue, WRITE_ONLY};
use caliber_core::{CodeToolCall, CodeToolPatch, CodeToolRegistration, CodeToolRun, CodeToolView, Error};
use serde_json::value::RawValue;

use super::milliseconds;
use crate::problem::Problem;
use crate::wire::code_tools as wire;
use crate::wire::code_tools::{
    Captured, CodeTool, CodeToolFilter, CodeToolInput, CodeToolPatchInput, CodeToolSource, CodeToolStatus,
    CodeToolStatusFilter, CodeToolSummary, CodeToolUsage, Deployment, Guarantee, Preference, Protocol,
    RunInput, RunLimits, RunLimitsInput, Runtime, Sandbox,
};

/// The longest time of a run that may be asked for, in milliseconds.
const LONGEST_RUN_MS: u64 = 3_600_000;

/// What an admin wrote about a new version. Only fields that a type of the core cannot be made of are refused here.
pub(crate) fn code_tool_registration(input: CodeToolInput) -> Result<CodeToolRegistration, Problem> {
    let definition = CodeToolDefinition {
        family: input.name.parse()?,
        version: input.version.parse()?,
        description: input.description.clone().unwrap_or_default(),
        program: program(&input)?,
        input_schema: schema("input_schema", input.input_schema)?,
        output_schema: schema("output_schema", input.output_schema)?,
        side_effect_level: input
            .side_effect_level
            .unwrap_or(crate::wire::tools::Level::Read)
            .into(),
        requires_approval: input.requires_approval.unwrap_or_default(),
        approval_waiver: input.approval_waiver,
        allow_in_preview: input.allow_in_preview.unwrap_or_default(),
        secret_refs: input
            .secret_refs
            .unwrap_or_default()
            .into_iter()
            .map(|(name, value)| (name, ConfigValue::from_input(&value)))
            .collect(),
        limits: input.limits.unwrap_or_default().into(),
        preference: input
            .preference
            .map_or_else(ExecutionPreference::default, Into::into),
        rate_limit_per_minute: input.rate_limit_per_minute,
    };
    Ok(CodeToolRegistration {
        definition,
        visibility: input
            .visibility
            .map_or_else(caliber_core::server::Visibility::default, Into::into),
    })
}

fn program(input: &CodeToolInput) -> Result<Program, Problem> {
    let missing = |field: &str| Problem::invalid_field("body", field, "it is missing");
    let unused = |field: &str, given: bool, kind: &str| match given {
        true => Err(Problem::invalid_field(
            "body",
            field,
            format!("a {kind} tool has none; leave it out"),
        )),
        false => Ok(()),
    };
    let paths = |paths: &Option<Vec<String>>| paths.iter().flatten().map(PathBuf::from).collect();
    match input.runtime.unwrap_or_default() {
        Runtime::Python => {
            unused("executable", input.executable.is_some(), "Python")?;
            unused("args", input.args.is_some(), "Python")?;
            unused("protocol", input.protocol.is_some(), "Python")?;
            Ok(Program::Python {
                module_path: input.module_path.clone().ok_or_else(|| missing("module_path"))?,
                callable_name: input
                    .callable_name
                    .clone()
                    .ok_or_else(|| missing("callable_name"))?,
                source_roots: paths(&input.source_roots),
                package_roots: paths(&input.package_roots),
            })
        }
        Runtime::Native => {
            unused("module_path", input.module_path.is_some(), "native")?;
            unused("callable_name", input.callable_name.is_some(), "native")?;
            unused("source_roots", input.source_roots.is_some(), "native")?;
            unused("package_roots", input.package_roots.is_some(), "native")?;
            Ok(Program::Native {
                executable: input
                    .executable
                    .clone()
                    .ok_or_else(|| missing("executable"))?
                    .into(),
                args: input.args.clone().unwrap_or_default(),
                protocol: match input.protocol.unwrap_or(Protocol::Json) {
                    Protocol::Framed => NativeProtocol::Framed,
                    Protocol::Json => NativeProtocol::Json,
                },
            })
        }
    }
}

fn schema(field: &str, raw: Option<Box<RawValue>>) -> Result<Option<JsonText>, Problem> {
    raw.map(|raw| JsonText::parse(raw.get(), core::SCHEMA_LIMITS))
        .transpose()
        .map_err(|error| Problem::invalid_field("body", field, error.message()))
}

/// A change of a version.
pub(crate) fn code_tool_patch(input: CodeToolPatchInput) -> Result<CodeToolPatch, Problem> {
    let wrong = |field: &str, error: &Error| Problem::invalid_field("body", field, error.message());
    let successor = match input.successor_tool_id.as_deref() {
        None => None,
        Some("") => Some(None),
        Some(id) => Some(Some(
            id.parse::<CodeToolId>()
                .map_err(|error| wrong("successor_tool_id", &error))?,
        )),
    };
    let owner = input
        .owner
        .map(|owner| owner.parse().map_err(|error| wrong("owner", &error)))
        .transpose()?;
    Ok(CodeToolPatch {
        description: input.description,
        owner,
        status: input.status.map(Into::into),
        successor,
        visibility: input.visibility.map(Into::into),
        expect: None,
    })
}

/// Which versions a list shows.
pub(crate) fn code_tool_query(filter: &CodeToolFilter) -> Result<CodeToolQuery, Problem> {
    let family = filter
        .name
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|error: Error| Problem::invalid_field("query", "name", error.message()))?;
    let status = match filter.status {
        None | Some(CodeToolStatusFilter::Active) => Some(core::CodeToolStatus::Active),
        Some(CodeToolStatusFilter::Deprecated) => Some(core::CodeToolStatus::Deprecated),
        Some(CodeToolStatusFilter::Archived) => Some(core::CodeToolStatus::Archived),
        Some(CodeToolStatusFilter::All) => None,
    };
    Ok(CodeToolQuery {
        viewer: None,
        family,
        project: None,
        status,
        visibility: filter.visibility.map(Into::into),
        text: filter.search.clone().filter(|text| !text.is_empty()),
    })
}

pub(crate) fn code_tool_summary(tool: core::CodeToolSummary) -> CodeToolSummary {
    CodeToolSummary {
        tool_id: tool.id.to_string(),
        revision: tool.revision.0,
        registry_ref: format!("tool.{}.v{}", tool.family, tool.version.major()),
        name: tool.family.to_string(),
        version: tool.version.to_string(),
        description: tool.description,
        runtime: tool.runtime,
        side_effect_level: tool.side_effect_level.into(),
        requires_approval: tool.requires_approval,
        allow_in_preview: tool.allow_in_preview,
        content_hash: tool.content_hash.to_string(),
        status: tool.status.into(),
        deprecated_at: tool.deprecated_at,
        successor_tool_id: tool.successor.map(|id| id.to_string()),
        owner: tool.owner.to_string(),
        project_id: tool.project.to_string(),
        visibility: tool.visibility.into(),
        created_at: tool.created_at,
        updated_at: tool.updated_at,
    }
}

/// A version with everything an operator looks at, secrets masked.
pub(crate) fn code_tool(view: CodeToolView) -> CodeTool {
    let CodeToolView { record, stage, .. } = view;
    let summary = code_tool_summary(record.summary());
    let definition = record.definition.masked();
    let texts = |paths: Vec<PathBuf>| -> Vec<String> {
        paths
            .into_iter()
            .map(|path| path.to_string_lossy().into_owned())
            .collect()
    };
    let mut tool = CodeTool {
        summary,
        module_path: None,
        callable_name: None,
        source_roots: Vec::new(),
        package_roots: Vec::new(),
        executable: None,
        args: Vec::new(),
        protocol: None,
        input_schema: definition.input_schema,
        output_schema: definition.output_schema,
        approval_waiver: definition.approval_waiver,
        secret_refs: definition
            .secret_refs
            .into_iter()
            .map(|(name, value)| {
                let shown = value
                    .reference()
                    .map_or_else(|| WRITE_ONLY.to_owned(), ToString::to_string);
                (name, shown)
            })
            .collect(),
        limits: RunLimits {
            timeout_ms: definition.limits.timeout_ms,
            memory_bytes: definition.limits.memory_bytes,
            processes: definition.limits.processes,
            scratch_bytes: definition.limits.scratch_bytes,
            result_bytes: definition.limits.result_bytes,
        },
        preference: match definition.preference {
            ExecutionPreference::Isolated => Preference::Isolated,
            ExecutionPreference::Cold => Preference::Cold,
            ExecutionPreference::Persistent => Preference::Persistent,
        },
        rate_limit_per_minute: definition.rate_limit_per_minute,
        source_digest: record.pinned.source.to_string(),
        environment_digest: record.pinned.environment.to_string(),
        lifecycle: stage.as_str(),
    };
    match definition.program {
        Program::Python {
            module_path,
            callable_name,
            source_roots,
            package_roots,
        } => {
            tool.module_path = Some(module_path);
            tool.callable_name = Some(callable_name);
            tool.source_roots = texts(source_roots);
            tool.package_roots = texts(package_roots);
        }
        Program::Native {
            executable,
            args,
            protocol,
        } => {
            tool.executable = Some(executable.to_string_lossy().into_owned());
            tool.args = args;
            tool.protocol = Some(match protocol {
                NativeProtocol::Framed => Protocol::Framed,
                NativeProtocol::Json => Protocol::Json,
            });
        }
        _ => {}
    }
    tool
}

pub(crate) fn code_tool_source(view: CodeToolView, seen: Reflection) -> CodeToolSource {
    let (module_path, callable_name) = match view.record.definition.program {
        Program::Python {
            module_path,
            callable_name,
            ..
        } => (Some(module_path), Some(callable_name)),
        _ => (None, None),
    };
    CodeToolSource {
        tool_id: view.record.id.to_string(),
        module_path,
        callable_name,
        available: seen.available,
        signature: seen.signature,
        doc: seen.doc,
        source: seen.source,
        truncated: seen.truncated,
        error: seen.error,
    }
}

pub(crate) fn code_tool_usage(view: CodeToolView, usage: Vec<DeploymentReference>) -> CodeToolUsage {
    CodeToolUsage {
        tool_id: view.record.id.to_string(),
        name: view.record.definition.family.to_string(),
        usage: usage
            .into_iter()
            .map(|reference| Deployment {
                workflow: reference.workflow,
                alias: reference.alias,
                rollback_only: reference.rollback_only,
            })
            .collect(),
    }
}

/// A run that somebody wants to make.
pub(crate) fn run_call(
    tool: CodeToolId,
    input: RunInput,
    surface: caliber_core::principal::Surface,
) -> Result<CodeToolCall, Problem> {
    let wrong = |field: &str, problem: &str| Problem::invalid_field("body", field, problem);
    let arguments = match &input.input {
        Some(raw) => JsonText::parse(raw.get(), JsonLimits::ARGUMENTS)
            .map_err(|error| Problem::from(error).about_field("input"))?,
        None => JsonText::empty_object(),
    };
    if !arguments.is_object() {
        return Err(wrong("input", "it must be an object"));
    }
    let mut call = CodeToolCall::new(tool, arguments, surface);
    call.approval = input
        .approval_id
        .as_deref()
        .map(str::parse::<ApprovalId>)
        .transpose()
        .map_err(|_| wrong("approval_id", "it is no identifier of an approval"))?;
    call.content_hash = input
        .content_hash
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|_| wrong("content_hash", "it is no `sha256:` and 64 hexadecimal digits"))?;
    call.timeout = match input.timeout_ms {
        Some(timeout) if !(1..=LONGEST_RUN_MS).contains(&timeout) => {
            return Err(wrong("timeout_ms", "it must lie between 1 and 3600000"));
        }
        timeout => timeout.map(Duration::from_millis),
    };
    call.break_glass = input.break_glass;
    Ok(call)
}

pub(crate) fn code_tool_run(tool: &CodeToolId, ended: CodeToolRun) -> wire::CodeToolRun {
    let CodeToolRun {
        invocation,
        run,
        reason,
        duration,
        ..
    } = ended;
    let told = told(run.status);
    let isolation = match run.mode {
        ExecutionMode::Cold => "cold",
        ExecutionMode::Zygote => "zygote",
        ExecutionMode::Spare => "spare",
        ExecutionMode::Oneshot => "oneshot",
        ExecutionMode::Persistent => "persistent",
        ExecutionMode::Native => "native",
    };
    wire::CodeToolRun {
        tool_id: tool.to_string(),
        success: told.output.is_some(),
        output: told.output,
        mocked: false,
        error: told.error,
        error_type: told.error_type,
        status: told.status,
        reason_code: reason.map(|reason| reason.as_str()),
        isolation,
        unenforced: run
            .unenforced
            .iter()
            .map(|guarantee| guarantee.as_str())
            .collect(),
        stdout: captured(run.stdout),
        stderr: captured(run.stderr),
        duration_ms: milliseconds(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)),
        run_ms: milliseconds(run.times.run_us),
        invocation_id: invocation.to_string(),
    }
}

/// A status in the words of the wire.
struct Told {
    status: &'static str,
    output: Option<JsonText>,
    error: Option<String>,
    error_type: Option<String>,
}

fn told(status: RunStatus) -> Told {
    let failed = |status, error: String| Told {
        status,
        output: None,
        error: Some(error),
        error_type: None,
    };
    match status {
        RunStatus::Ok { value } => Told {
            status: "ok",
            output: Some(value),
            error: None,
            error_type: None,
        },
        RunStatus::ToolError { error_type, message } => Told {
            error_type: Some(error_type),
            ..failed("tool_error", message)
        },
        RunStatus::NoResult { phase, exit } => failed(
            "no_result",
            format!(
                "it ended without a result while in the phase {} ({})",
                phase_word(phase),
                exit_text(exit)
            ),
        ),
        RunStatus::DeadlineExceeded { phase } => failed(
            "deadline_exceeded",
            format!(
                "its time was over in the phase {}; it was ended",
                phase_word(phase)
            ),
        ),
        RunStatus::ResultInvalid { problem } => failed("result_invalid", problem),
        RunStatus::ResultTooLarge { limit } => failed(
            "result_too_large",
            format!("the result is larger than {limit} bytes"),
        ),
        RunStatus::ProtocolViolation { problem } => failed("protocol_violation", problem),
        RunStatus::ResourceLimit { resource } => failed(
            "resource_limit",
            format!(
                "it reached its limit of {}",
                match resource {
                    sandbox::Resource::Memory => "memory",
                    sandbox::Resource::Cpu => "processor time",
                }
            ),
        ),
    }
}

fn phase_word(phase: sandbox::Phase) -> &'static str {
    match phase {
        sandbox::Phase::Queue => "queue",
        sandbox::Phase::Spawn => "spawn",
        sandbox::Phase::Import => "import",
        sandbox::Phase::Run => "run",
    }
}

fn exit_text(exit: sandbox::Exit) -> String {
    match exit {
        sandbox::Exit::Code(code) => format!("exit code {code}"),
        sandbox::Exit::Signal(signal) => format!("signal {signal}"),
        sandbox::Exit::Unknown => "nobody knows how".to_owned(),
    }
}

fn captured(captured: sandbox::Captured) -> Captured {
    Captured {
        text: captured.text,
        total_bytes: captured.total_bytes,
        truncated: captured.truncated,
    }
}

/// What the sandbox enforces; without one, that there is none.
pub(crate) fn sandbox(report: Option<&SandboxReport>) -> Sandbox {
    let Some(report) = report else {
        return Sandbox {
            available: false,
            backend: "none".to_owned(),
            interpreter: None,
            problem: Some("this installation has no sandbox, so no code tool runs".to_owned()),
            unenforced_allowed: false,
            missing: Vec::new(),
            guarantees: Vec::new(),
        };
    };
    let guarantees = report.guarantees.iter().map(|(guarantee, enforcement)| {
        let mut told = Guarantee {
            guarantee: guarantee.as_str(),
            required: report.required.contains(guarantee),
            state: "enforced",
            by: Vec::new(),
            gaps: Vec::new(),
            stage: None,
            errno: None,
            remedy: None,
        };
        match enforcement {
            Enforcement::Enforced { by } => told.by.clone_from(by),
            Enforcement::Partial { by, gaps } => {
                told.state = "partial";
                told.by.clone_from(by);
                told.gaps.clone_from(gaps);
            }
            Enforcement::NotEnforced { stage, errno, remedy } => {
                told.state = "not_enforced";
                told.stage = Some(stage.clone());
                told.errno = Some(errno.clone()).filter(|errno| !errno.is_empty());
                told.remedy = Some(remedy.clone());
            }
        }
        told
    });
    Sandbox {
        available: report.is_available(),
        backend: report.backend.clone(),
        interpreter: report.interpreter.clone(),
        problem: report.problem.clone(),
        unenforced_allowed: report.unenforced_allowed,
        missing: report
            .missing()
            .iter()
            .map(|guarantee| guarantee.as_str())
            .collect(),
        guarantees: guarantees.collect(),
    }
}

impl From<RunLimitsInput> for sandbox::RunLimits {
    fn from(input: RunLimitsInput) -> Self {
        Self {
            timeout_ms: input.timeout_ms,
            memory_bytes: input.memory_bytes,
            processes: input.processes,
            scratch_bytes: input.scratch_bytes,
            result_bytes: input.result_bytes,
        }
    }
}

impl From<Preference> for ExecutionPreference {
    fn from(preference: Preference) -> Self {
        match preference {
            Preference::Isolated => Self::Isolated,
            Preference::Cold => Self::Cold,
            Preference::Persistent => Self::Persistent,
        }
    }
}

impl From<CodeToolStatus> for core::CodeToolStatus {
    fn from(status: CodeToolStatus) -> Self {
        match status {
            CodeToolStatus::Active => Self::Active,
            CodeToolStatus::Deprecated => Self::Deprecated,
            CodeToolStatus::Archived => Self::Archived,
        }
    }
}

impl From<core::CodeToolStatus> for CodeToolStatus {
    fn from(status: core::CodeToolStatus) -> Self {
        match status {
            core::CodeToolStatus::Active => Self::Active,
            core::CodeToolStatus::Deprecated => Self::Deprecated,
            core::CodeToolStatus::Archived => Self::Archived,
        }
    }
}
