//! Code tools on the command line: registering, finding, looking at, running and retiring versions of a callable.

use std::path::{Path, PathBuf};

use caliber::core::code_tool::{ToolVersion, VersionConstraint};
use caliber::core::id::CodeToolId;
use caliber::core::json::{JsonLimits, JsonText};
use caliber::core::text::escaped;
use clap::{ArgGroup, Args};
use http::Method;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::call::{milliseconds, visible};
use crate::cli::backend::{Backend, value, with_query};
use crate::cli::confirm::confirm;
use crate::cli::context::{Context, for_shell};
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::cli::input::{keyed, read_text};
use crate::cli::output::{Output, cell, long, time, with_progress};
use crate::cli::{segment, view};

/// The largest schema that is read, in bytes.
const SCHEMA_BYTES: usize = 1 << 20;

/// Register a version of a code tool: a Python callable, or an executable.
///
/// Its source is read once and kept; what runs later is that copy. A module is imported
/// once, in the sandbox, to see that the callable is there; it is not called.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("program").required(true).args(["callable", "executable"])))]
pub(crate) struct Register {
    /// The name that all versions share
    name: String,
    /// Which version it is (SemVer), such as 1.0.0
    #[arg(id = "number", value_name = "VERSION")]
    version: String,
    /// The Python callable, as `package.module:name`
    #[arg(long, value_name = "MODULE:NAME")]
    callable: Option<String>,
    /// A folder with its source; may be repeated. The working directory when none is named
    #[arg(long = "source", value_name = "FOLDER", requires = "callable")]
    sources: Vec<PathBuf>,
    /// A folder with installed packages, such as site-packages of an environment; may be repeated
    #[arg(long = "packages", value_name = "FOLDER", requires = "callable")]
    packages: Vec<PathBuf>,
    /// An executable file in place of a callable
    #[arg(long, value_name = "FILE")]
    executable: Option<PathBuf>,
    /// An argument of the executable; may be repeated
    #[arg(
        long = "arg",
        value_name = "ARGUMENT",
        requires = "executable",
        allow_hyphen_values = true
    )]
    args: Vec<String>,
    /// How the executable is spoken to
    #[arg(long, value_name = "HOW", requires = "executable", default_value = "json", value_parser = ["json", "framed"])]
    protocol: String,
    /// How far a run reaches
    #[arg(long, value_name = "LEVEL", default_value = "read", value_parser = ["read", "write", "external_action"])]
    level: String,
    /// Each run needs a person's consent; so do write and external_action tools anyway
    #[arg(long, conflicts_with = "waive_approval")]
    approval: bool,
    /// Why a write or external_action tool needs no consent
    #[arg(long, value_name = "REASON")]
    waive_approval: Option<String>,
    /// A preview of a workflow may run it
    #[arg(long)]
    allow_in_preview: bool,
    /// The schema of the arguments; @FILE to read it
    #[arg(long, value_name = "JSON")]
    input_schema: Option<String>,
    /// The schema of the value; @FILE to read it
    #[arg(long, value_name = "JSON")]
    output_schema: Option<String>,
    /// A secret that a run gets: a reference (env://NAME, file:///path), or @FILE, which is stored encrypted
    ///
    /// Python reads it with `import caliber_secrets; caliber_secrets.get("NAME")`, an executable with --protocol json
    /// from the variable CALIBER_SECRET_NAME, one with --protocol framed from the frame of the call.
    #[arg(long, value_name = "NAME=VALUE")]
    secret: Vec<String>,
    /// For people and models
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Who sees it
    #[arg(long, value_name = "WHO", value_parser = ["user", "project", "public"])]
    visibility: Option<String>,
    /// The longest run, in milliseconds
    #[arg(long, value_name = "N")]
    timeout_ms: Option<u64>,
    /// The memory of one process, in bytes
    #[arg(long, value_name = "N")]
    memory_bytes: Option<u64>,
    /// The most processes and threads
    #[arg(long, value_name = "N")]
    processes: Option<u32>,
    /// The largest result, in bytes
    #[arg(long, value_name = "N")]
    result_bytes: Option<u64>,
    /// Runs a minute at most
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Which way of running it asks for
    #[arg(long, value_name = "HOW", value_parser = ["isolated", "cold", "persistent"])]
    preference: Option<String>,
}

/// Which version of a code tool.
#[derive(Debug, Args)]
pub(crate) struct Version {
    /// A name, a reference such as tool.NAME.v1, or the identifier of a version
    tool: String,
    /// Which versions fit, such as ^1.2, '>=1,<2' or '~=1.4'; the highest of them is taken
    #[arg(long, value_name = "CONSTRAINT")]
    constraint: Option<String>,
}

/// Run a code tool once, in the sandbox, through admission like every other call.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    version: Version,
    /// Its arguments, a JSON object; @FILE or @- to read them
    #[arg(value_name = "JSON", default_value = "{}")]
    arguments: String,
    /// The consent to spend, when the tool needs one
    #[arg(long, value_name = "APPROVAL")]
    approval: Option<String>,
    /// Go past approval, as an admin, for this reason; it is written into the audit trail
    #[arg(long, value_name = "REASON")]
    break_glass: Option<String>,
    /// A shorter time than the tool allows, such as 5s
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
}

/// Deprecate a version: it still runs, and resolves where no active version fits.
#[derive(Debug, Args)]
pub(crate) struct Deprecate {
    #[command(flatten)]
    version: Version,
    /// What should be used in its place: the identifier of a version
    #[arg(long, value_name = "ID")]
    successor: Option<String>,
}

/// Use a version again that was deprecated or archived.
#[derive(Debug, Args)]
pub(crate) struct Activate {
    /// A name, with --constraint, or the identifier of a version
    tool: String,
    /// Which version it is, such as =1.4.0
    #[arg(long, value_name = "CONSTRAINT")]
    constraint: Option<String>,
}

/// Archive a version: it neither resolves nor runs any more.
#[derive(Debug, Args)]
pub(crate) struct Archive {
    #[command(flatten)]
    version: Version,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Registers a version.
pub(super) async fn register(backend: &Backend, context: &Context, register: &Register) -> Outcome {
    let output = context.output();
    let body = register.body()?;
    let sending = backend.send(Method::POST, "/tools", Some(&body));
    let raw = with_progress("reading the source", sending)
        .await
        .map_err(|failure| match failure.exit {
            Exit::Timeout => failure.with_hint(
                "sandbox.pin_timeout bounds reading the source, sandbox.inspect_timeout importing the module once",
            ),
            _ => failure,
        })?;
    if output.json {
        return output.document(&raw);
    }
    let tool: view::CodeTool = value(&raw)?;
    output.line(format_args!(
        "registered: {} {} ({})",
        cell(&tool.name),
        cell(&tool.version),
        cell(&tool.tool_id)
    ))?;
    let next = context.command(&format!(
        "tools run {} --constraint=={} '{{}}'",
        for_shell(&tool.name),
        for_shell(&tool.version)
    ));
    output.line(format_args!("next: {next}"))
}

impl Register {
    /// Whether it asks for a way of running that the settings have to allow.
    pub(super) fn is_persistent(&self) -> bool {
        self.preference.as_deref() == Some("persistent")
    }

    fn body(&self) -> Outcome<Value> {
        let mut body = Map::new();
        let mut set = |field: &str, value: Value| body.insert(field.to_owned(), value);
        set("name", self.name.as_str().into());
        set("version", self.version.as_str().into());
        if let Some(callable) = &self.callable {
            let (module, name) = callable.split_once(':').ok_or_else(|| {
                let shown = caliber::core::text::shown(callable);
                Failure::usage(format!(
                    "--callable {shown} names no callable; write it as package.module:name"
                ))
            })?;
            set("module_path", module.into());
            set("callable_name", name.into());
            let sources = if self.sources.is_empty() {
                vec![PathBuf::from(".")]
            } else {
                self.sources.clone()
            };
            set("source_roots", absolute(&sources)?.into());
            if !self.packages.is_empty() {
                set("package_roots", absolute(&self.packages)?.into());
            }
        }
        if let Some(executable) = &self.executable {
            set("runtime", "native".into());
            set(
                "executable",
                absolute(std::slice::from_ref(executable))?.remove(0).into(),
            );
            set("args", self.args.clone().into());
            set("protocol", self.protocol.as_str().into());
        }
        let effects = self.level != "read";
        set("side_effect_level", self.level.as_str().into());
        set(
            "requires_approval",
            (self.approval || (effects && self.waive_approval.is_none())).into(),
        );
        if self.allow_in_preview {
            set("allow_in_preview", true.into());
        }
        for (field, flag, text) in [
            ("input_schema", "--input-schema", &self.input_schema),
            ("output_schema", "--output-schema", &self.output_schema),
        ] {
            if let Some(text) = text {
                set(field, schema(flag, text)?);
            }
        }
        if !self.secret.is_empty() {
            set("secret_refs", Value::Object(keyed("--secret", &self.secret)?));
        }
        for (field, value) in [
            ("approval_waiver", &self.waive_approval),
            ("description", &self.description),
            ("visibility", &self.visibility),
            ("preference", &self.preference),
        ] {
            if let Some(value) = value {
                set(field, value.as_str().into());
            }
        }
        if let Some(rate) = self.rate {
            set("rate_limit_per_minute", rate.into());
        }
        let mut limits = Map::new();
        for (field, value) in [
            ("timeout_ms", self.timeout_ms),
            ("memory_bytes", self.memory_bytes),
            ("processes", self.processes.map(u64::from)),
            ("result_bytes", self.result_bytes),
        ] {
            limits.extend(value.map(|value| (field.to_owned(), value.into())));
        }
        if !limits.is_empty() {
            set("limits", Value::Object(limits));
        }
        Ok(Value::Object(body))
    }
}

/// Absolute paths without `..`. Links are not followed here: the sandbox refuses them where it has to.
fn absolute(paths: &[PathBuf]) -> Outcome<Vec<String>> {
    let one = |path: &Path| -> std::io::Result<String> {
        let plain = path.components().all(|part| {
            !matches!(
                part,
                std::path::Component::ParentDir | std::path::Component::CurDir
            )
        });
        let whole = if plain {
            std::path::absolute(path)?
        } else {
            path.canonicalize()?
        };
        whole
            .into_os_string()
            .into_string()
            .map_err(|_| std::io::Error::other("it is no UTF-8"))
    };
    paths
        .iter()
        .map(|path| {
            one(path).map_err(|error| {
                let shown = caliber::core::text::shown(&path.to_string_lossy());
                Failure::usage(format!("the path {shown} cannot be used: {error}"))
            })
        })
        .collect()
}

fn schema(flag: &str, text: &str) -> Outcome<Value> {
    let text = match text.strip_prefix('@') {
        Some(path) => read_text(flag, path, SCHEMA_BYTES)?,
        None => text.to_owned(),
    };
    serde_json::from_str(&text).map_err(|error| Failure::usage(format!("{flag} is no JSON: {error}")))
}

/// Lists all versions, of every family.
pub(super) async fn list(backend: &Backend, output: Output, status: &str, search: Option<&str>) -> Outcome {
    let mut query = vec![("status", status)];
    query.extend(search.map(|text| ("search", text)));
    let items = backend.list("/tools", &query, None).await?;
    table(
        output,
        &items,
        "there are no code tools; `caliber tools register` registers one, `caliber tools list SERVER` lists those of a server",
    )
}

/// Lists the versions of one family.
pub(super) async fn versions(backend: &Backend, output: Output, name: &str) -> Outcome {
    let items = match name.parse::<CodeToolId>() {
        Ok(_) => {
            let path = format!("/tools/{}/versions", segment(name));
            backend.list(&path, &[], None).await?
        }
        Err(_) => {
            let query = [("status", "all"), ("name", name)];
            backend.list("/tools", &query, None).await?
        }
    };
    if items.is_empty() {
        let text = format!("there is no code tool {}", caliber::core::text::shown(name));
        return Err(Failure::new(Exit::NotFound, text)
            .with_reason("not_found")
            .with_hint("`caliber tools list` shows those that you may see"));
    }
    table(output, &items, "there are no versions")
}

fn table(output: Output, items: &[Box<RawValue>], empty: &str) -> Outcome {
    if output.json {
        return output.document(&items);
    }
    let rows = items.iter().map(|raw| {
        let tool: view::CodeTool = value(raw)?;
        Ok::<_, Failure>(vec![
            cell(&tool.name),
            cell(&tool.version),
            cell(&tool.status),
            cell(&tool.runtime),
            policy(&tool),
            cell(&tool.project_id),
            escaped(tool.description.trim(), 60),
            cell(&tool.tool_id),
        ])
    });
    let rows = rows.collect::<Outcome<Vec<_>>>()?;
    let headers = [
        "NAME",
        "VERSION",
        "STATUS",
        "RUNTIME",
        "POLICY",
        "PROJECT",
        "DESCRIPTION",
        "ID",
    ];
    output.table(&headers, rows, empty)
}

fn policy(tool: &view::CodeTool) -> String {
    let consent = if tool.requires_approval {
        ", needs approval"
    } else {
        ""
    };
    format!("{}{consent}", cell(&tool.side_effect_level))
}

/// Shows which version a reference stands for.
pub(super) async fn resolve(backend: &Backend, output: Output, version: &Version) -> Outcome {
    let raw = resolution(backend, version).await?;
    if output.json {
        return output.document(&raw);
    }
    let resolved: view::ResolvedCodeTool = value(&raw)?;
    let tool = &resolved.tool;
    output.pairs(&[
        ("name", long(&tool.name)),
        ("version", long(&tool.version)),
        ("status", long(&tool.status)),
        ("id", long(&tool.tool_id)),
        ("project", long(&tool.project_id)),
        ("policy", policy(tool)),
        ("content", long(&tool.content_hash)),
        ("registered", time(Some(&tool.created_at))),
    ])?;
    warn(output, &resolved);
    Ok(())
}

fn warn(output: Output, resolved: &view::ResolvedCodeTool) {
    if let Some(warning) = &resolved.warning {
        output.note(&format!("warning: {}", long(&warning.text)));
    }
}

async fn resolution(backend: &Backend, version: &Version) -> Outcome<Box<RawValue>> {
    let constraint = version.constraint.as_deref().unwrap_or_default();
    let query = [("reference", version.tool.as_str()), ("constraint", constraint)];
    backend.get(&with_query("/tools/resolve", &query)).await
}

/// The version that is meant: by its identifier, or resolved.
async fn find(backend: &Backend, output: Output, version: &Version) -> Outcome<view::CodeTool> {
    if version.tool.parse::<CodeToolId>().is_ok() {
        if version.constraint.is_some() {
            let text = "an identifier names one version; leave --constraint out";
            return Err(Failure::usage(text));
        }
        return value(&backend.get(&format!("/tools/{}", segment(&version.tool))).await?);
    }
    let resolved: view::ResolvedCodeTool = value(&resolution(backend, version).await?)?;
    warn(output, &resolved);
    Ok(resolved.tool)
}

/// Shows the signature, documentation and source of a version.
pub(super) async fn source(backend: &Backend, output: Output, version: &Version) -> Outcome {
    let tool = find(backend, output, version).await?;
    let path = format!("/tools/{}/source", segment(&tool.tool_id));
    let raw = with_progress("looking at the source", backend.get(&path)).await?;
    if output.json {
        return output.document(&raw);
    }
    let source: view::CodeToolSource = value(&raw)?;
    output.pairs(&[
        ("tool", format!("{} {}", cell(&tool.name), cell(&tool.version))),
        ("signature", long(&source.signature)),
        ("problem", long(source.error.as_deref().unwrap_or_default())),
    ])?;
    for (what, text) in [("documentation", &source.doc), ("source", &source.source)] {
        if !text.is_empty() {
            output.line(format_args!("{what} (untrusted):"))?;
            for line in text.lines() {
                output.line(format_args!("  {}", escaped(line, usize::MAX)))?;
            }
        }
    }
    if source.truncated {
        output.line("the source is longer; the rest is left out")?;
    }
    Ok(())
}

/// The request of a run. The arguments stay the text that was given.
#[derive(Serialize)]
struct Request<'a> {
    input: &'a JsonText,
    content_hash: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    break_glass: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
}

/// Runs a version once.
pub(super) async fn run(backend: &Backend, output: Output, run: &Run) -> Outcome {
    let text = match run.arguments.strip_prefix('@') {
        Some(path) => read_text("the arguments", path, JsonLimits::ARGUMENTS.bytes)?,
        None => run.arguments.clone(),
    };
    let arguments = JsonText::parse(text.trim(), JsonLimits::ARGUMENTS)
        .map_err(|error| Failure::usage(format!("the arguments: {}", error.message())))?;
    let timeout_ms = run.timeout.as_deref().map(milliseconds).transpose()?;
    let tool = find(backend, output, &run.version).await?;
    let request = Request {
        input: &arguments,
        // What was resolved is what runs.
        content_hash: &tool.content_hash,
        approval_id: run.approval.as_deref(),
        break_glass: run.break_glass.as_deref(),
        timeout_ms,
    };
    let path = format!("/tools/{}/test-run", segment(&tool.tool_id));
    let what = format!("running {} {}", tool.name, tool.version);
    let raw = with_progress(&what, backend.send(Method::POST, &path, Some(&request)))
        .await
        .map_err(|failure| about_code(failure, &tool))?;
    let ended: view::CodeToolRun = value(&raw)?;
    if output.json {
        output.document(&raw)?;
    } else {
        print(output, &ended)?;
    }
    if ended.success {
        return Ok(());
    }
    // Everything but the time is what the tool did, its wrong values included.
    let exit = match ended.status.as_str() {
        "deadline_exceeded" => Exit::Timeout,
        _ => Exit::ToolError,
    };
    let bound = bound_of(&ended);
    let told = ended.error.unwrap_or_else(|| "it did not end well".to_owned());
    let mut failure = Failure::new(
        exit,
        match ended.error_type {
            Some(kind) => format!("{}: {}", escaped(&kind, 200), escaped(&told, 4_000)),
            None => escaped(&told, 4_000),
        },
    );
    failure.hint = bound.map(Into::into);
    failure.reason_code = ended.reason_code.map(Into::into);
    failure.invocation = Some(ended.invocation_id.into());
    Err(failure)
}

/// What moves the bound that a run has met.
fn bound_of(ended: &view::CodeToolRun) -> Option<&'static str> {
    let told = ended.error.as_deref().unwrap_or_default();
    Some(match ended.status.as_str() {
        "deadline_exceeded" => {
            "the time of a run: --timeout here, at most --timeout-ms of its registration or else the setting \
             calls.timeout, and sandbox.timeout for all"
        }
        "result_too_large" => {
            "the largest result: --result-bytes of its registration, or else the setting sandbox.limits.result_bytes"
        }
        "resource_limit" if told.contains("memory") => MEMORY,
        "tool_error" if ended.error_type.as_deref() == Some("MemoryError") => MEMORY,
        "resource_limit" if told.contains("processes") => {
            "the most processes and threads: --processes of its registration, or else the setting \
             sandbox.limits.processes"
        }
        "resource_limit" if told.contains("disk") => {
            "the size of its scratch folder: the setting sandbox.limits.scratch_bytes"
        }
        _ => return None,
    })
}

const MEMORY: &str =
    "its memory: --memory-bytes of its registration, or else the setting sandbox.limits.memory_bytes";

/// A refusal of a run, with what to do about it where that is another thing for code tools than for those of servers.
fn about_code(failure: Failure, tool: &view::CodeTool) -> Failure {
    let name = for_shell(&tool.name);
    match (failure.exit, failure.reason_code.as_deref()) {
        (Exit::Denied, Some("not_granted")) => failure.with_hint(format!(
            "an admin can give a grant with `caliber grants add --code-tool {name} --subject SUBJECT`"
        )),
        (Exit::SandboxUnavailable, _) if failure.message.contains("serves many calls") => failure.with_hint(
            "the setting sandbox.allow_persistent allows it; or register a version without --preference persistent",
        ),
        (Exit::ApprovalNeeded, _) => match failure.approval.clone() {
            Some(approval) => failure.with_hint(format!(
                "an approver, who is not the caller, decides with `caliber approvals approve {approval}`; then run it \
                 again with `--approval {approval}`. Whoever is alone with an installation, as its administrator: \
                 `--break-glass REASON` for this run, or a new version of the tool, registered with \
                 --waive-approval REASON"
            )),
            None => failure,
        },
        _ => failure,
    }
}

fn print(output: Output, ended: &view::CodeToolRun) -> Outcome {
    match &ended.output {
        Some(value) => visible(output, value.as_str())?,
        None if ended.success => output.line("null")?,
        None => {}
    }
    for (what, captured) in [("stdout", &ended.stdout), ("stderr", &ended.stderr)] {
        if captured.text.is_empty() {
            continue;
        }
        for line in captured.text.lines() {
            output.note(&format!("{what}: {}", escaped(line, 1_000)));
        }
        if captured.truncated {
            output.note(&format!(
                "{what}: it wrote {} bytes; the middle of them is left out",
                captured.total_bytes
            ));
        }
    }
    let open = match ended.unenforced.as_slice() {
        [] => String::new(),
        gaps => format!(", not enforced: {}", escaped(&gaps.join(", "), 200)),
    };
    output.note(&format!(
        "{:.0} ms, {}, {}{open}",
        ended.duration_ms,
        escaped(&ended.isolation, 60),
        escaped(&ended.invocation_id, 60)
    ));
    Ok(())
}

/// Deprecates a version.
pub(super) async fn deprecate(backend: &Backend, output: Output, deprecate: &Deprecate) -> Outcome {
    one_version(&deprecate.version)?;
    let tool = find(backend, output, &deprecate.version).await?;
    let mut body = Map::from_iter([("status".to_owned(), "deprecated".into())]);
    if let Some(successor) = &deprecate.successor {
        body.insert("successor_tool_id".to_owned(), successor.as_str().into());
    }
    let path = format!("/tools/{}", segment(&tool.tool_id));
    let raw = backend.send(Method::PATCH, &path, Some(&body)).await?;
    told(output, &raw)
}

/// Retiring takes one version that was named, never the one that happens to be the highest.
fn one_version(version: &Version) -> Outcome {
    if version.constraint.is_some() || version.tool.parse::<CodeToolId>().is_ok() {
        return Ok(());
    }
    let name = for_shell(&version.tool);
    let text = "name the version: --constraint =1.0.0, or its identifier";
    Err(Failure::usage(text).with_hint(format!("`caliber tools versions {name}` lists them")))
}

/// Uses a version again.
pub(super) async fn activate(backend: &Backend, output: Output, activate: &Activate) -> Outcome {
    let version = Version {
        tool: activate.tool.clone(),
        constraint: activate.constraint.clone(),
    };
    one_version(&version)?;
    let id = if version.tool.parse::<CodeToolId>().is_ok() {
        find(backend, output, &version).await?.tool_id
    } else {
        retired(backend, &version).await?
    };
    let body = serde_json::json!({ "status": "active" });
    let raw = backend
        .send(Method::PATCH, &format!("/tools/{}", segment(&id)), Some(&body))
        .await?;
    told(output, &raw)
}

/// The one retired version that fits: what is archived does not resolve.
async fn retired(backend: &Backend, version: &Version) -> Outcome<String> {
    let constraint: VersionConstraint = version.constraint.as_deref().unwrap_or_default().parse()?;
    let query = [("status", "all"), ("name", version.tool.as_str())];
    let items = backend.list("/tools", &query, None).await?;
    let mut fitting = Vec::new();
    for raw in &items {
        let tool: view::CodeTool = value(raw)?;
        let number: ToolVersion = tool.version.parse()?;
        if tool.status != "active" && constraint.accepts(&number) {
            fitting.push(tool);
        }
    }
    let hint = format!("`caliber tools versions {}` lists them", for_shell(&version.tool));
    match fitting.as_slice() {
        [one] => Ok(one.tool_id.clone()),
        [] => Err(Failure::new(
            Exit::NotFound,
            format!(
                "no deprecated or archived version of {} fits",
                caliber::core::text::shown(&version.tool)
            ),
        )
        .with_hint(hint)),
        several => Err(Failure::usage(format!(
            "{} versions fit; name one, as in --constraint =1.0.0, or by its identifier",
            several.len()
        ))
        .with_hint(hint)),
    }
}

/// Archives a version.
pub(super) async fn archive(backend: &Backend, output: Output, archive: &Archive) -> Outcome {
    one_version(&archive.version)?;
    let tool = find(backend, output, &archive.version).await?;
    let question = format!(
        "archive {} {} for everybody? It neither resolves nor runs any more.",
        cell(&tool.name),
        cell(&tool.version)
    );
    confirm(archive.yes, &question)?;
    let path = format!("/tools/{}/archive", segment(&tool.tool_id));
    let raw = backend.send(Method::POST, &path, None::<&()>).await?;
    told(output, &raw)
}

fn told(output: Output, raw: &RawValue) -> Outcome {
    if output.json {
        return output.document(&raw);
    }
    let tool: view::CodeTool = value(raw)?;
    output.line(format_args!(
        "{} {} is {}",
        cell(&tool.name),
        cell(&tool.version),
        cell(&tool.status)
    ))
}
