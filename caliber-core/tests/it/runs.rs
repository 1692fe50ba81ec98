//! A run of a code tool from the request to its one record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use caliber_core::audit::{AuditAction, AuditQuery};
use caliber_core::code_tool::{CodeToolDefinition, CodeToolRecord, CodeToolStatus};
use caliber_core::digest::ContentHash;
use caliber_core::grant::Grantee;
use caliber_core::invocation::{InvocationOutcome, InvocationRecord, InvokedTool};
use caliber_core::memory::{self, Parts};
use caliber_core::page::PageRequest;
use caliber_core::policy::SideEffectLevel;
use caliber_core::principal::{Principal, Scope, Surface};
use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{Enforcement, Exit, Guarantee, Phase, Resource, RunStatus};
use caliber_core::secret::{ConfigValue, SecretReference, SecretText};
use caliber_core::{Caliber, CodeToolCall, CodeToolPatch, CodeToolRun, Error, ErrorKind, Result, Settings};
use tokio::sync::Notify;

use crate::support::{admin, json, person, subject};

const HERE: Surface = Surface::Library;

struct World {
    parts: Parts,
    caliber: Caliber,
    tool: CodeToolRecord,
    root: Principal,
    ada: Principal,
}

impl World {
    /// One tool, which Ada may run.
    async fn with(change: impl FnOnce(&mut CodeToolDefinition)) -> Self {
        Self::over(Parts::new(), Settings::default(), change).await
    }

    async fn over(parts: Parts, settings: Settings, change: impl FnOnce(&mut CodeToolDefinition)) -> Self {
        let caliber = parts.caliber_with(settings);
        let root = person("root", "home", Scope::Admin);
        let mut registration = memory::code_tool("weather", "1").unwrap();
        change(&mut registration.definition);
        let tool = caliber
            .register_code_tool((&root, HERE), registration)
            .await
            .unwrap();
        let family = tool.definition.family.clone();
        let ada = Grantee::Subject(subject("ada"));
        caliber.grant_family((&root, HERE), &family, ada).await.unwrap();
        Self {
            parts,
            caliber,
            tool,
            root,
            ada: person("ada", "home", Scope::Operator),
        }
    }

    fn call(&self, arguments: &str) -> CodeToolCall {
        CodeToolCall::new(self.tool.id.clone(), json(arguments), HERE)
    }

    async fn run(&self, arguments: &str) -> Result<CodeToolRun> {
        self.caliber.run_code_tool(&self.ada, self.call(arguments)).await
    }

    /// What the callable answers from now on.
    fn answers(&self, status: RunStatus) {
        self.parts.sandbox.script("run", move |_| {
            let status = status.clone();
            async move { Ok(status) }
        });
    }

    /// The ledger, newest first.
    async fn ledger(&self) -> Vec<InvocationRecord> {
        let page = PageRequest::first(100);
        let found = self
            .caliber
            .code_tool_invocations(&self.root, &self.tool.id, &page)
            .await;
        found.unwrap().items
    }

    async fn trail(&self, action: AuditAction) -> usize {
        let query = AuditQuery {
            action: Some(action),
            ..AuditQuery::default()
        };
        let page = PageRequest::first(100);
        self.caliber
            .audit(&admin(), query, &page)
            .await
            .unwrap()
            .items
            .len()
    }
}

fn with_effects(definition: &mut CodeToolDefinition) {
    definition.side_effect_level = SideEffectLevel::Write;
    definition.approval_waiver = Some("a scratch database".to_owned());
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T>, kind: ErrorKind, reason: ReasonCode) -> Error {
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (kind, Some(reason)), "{error}");
    error
}

#[tokio::test]
async fn a_run_ends_in_one_record_that_says_what_ran() {
    let world = World::with(with_effects).await;
    let done = world.run(r#"{"n":1}"#).await.unwrap();
    assert_eq!((done.outcome, done.reason), (InvocationOutcome::Ok, None));
    assert!(matches!(&done.run.status, RunStatus::Ok { value } if value.as_str() == r#"{"n":1}"#));
    let ledger = world.ledger().await;
    assert_eq!(ledger.len(), 1);
    let call = &ledger[0].invocation;
    assert_eq!(call.id, done.invocation);
    let ran = InvokedTool::Code {
        id: world.tool.id.clone(),
        family: "weather".parse().unwrap(),
        version: "1.0.0".parse().unwrap(),
        content_hash: world.tool.content_hash,
    };
    assert_eq!(
        (&call.tool, call.side_effect_level),
        (&ran, Some(SideEffectLevel::Write))
    );
    let settlement = ledger[0].settlement.as_ref().unwrap();
    assert_eq!(
        (settlement.outcome, settlement.result_bytes),
        (InvocationOutcome::Ok, Some(7))
    );
    assert_eq!(world.trail(AuditAction::BeginRun).await, 1);
    assert_eq!(world.trail(AuditAction::RunCodeTool).await, 1);
    // What the sandbox got.
    let asked = &world.parts.sandbox.runs()[0];
    assert_eq!(*asked.program, world.tool.pinned);
    assert_eq!(asked.tenant.as_str(), "home");
    assert_eq!(asked.startup_grace, Settings::default().startup_grace);
    assert_eq!(world.parts.sandbox.free_places(), 16, "the place is given back");
}

#[tokio::test]
async fn every_end_has_its_outcome() {
    let value = || json("[1]");
    let ends = [
        (RunStatus::Ok { value: value() }, InvocationOutcome::Ok, None),
        (
            RunStatus::ToolError {
                error_type: "ValueError".to_owned(),
                message: "canary".to_owned(),
            },
            InvocationOutcome::ToolError,
            None,
        ),
        (
            RunStatus::NoResult {
                phase: Phase::Run,
                exit: Exit::Code(0),
            },
            InvocationOutcome::ToolError,
            Some(ReasonCode::ToolCrashed),
        ),
        (
            RunStatus::NoResult {
                phase: Phase::Import,
                exit: Exit::Signal(9),
            },
            InvocationOutcome::UpstreamError,
            Some(ReasonCode::SandboxFailed),
        ),
        (
            RunStatus::ResourceLimit {
                resource: Resource::Memory,
            },
            InvocationOutcome::ToolError,
            Some(ReasonCode::ToolCrashed),
        ),
        (
            RunStatus::DeadlineExceeded { phase: Phase::Run },
            InvocationOutcome::Timeout,
            Some(ReasonCode::Timeout),
        ),
        (
            RunStatus::ResultInvalid {
                problem: "NaN".to_owned(),
            },
            InvocationOutcome::UpstreamError,
            Some(ReasonCode::ResultInvalid),
        ),
        (
            RunStatus::ResultTooLarge { limit: 5 },
            InvocationOutcome::UpstreamError,
            Some(ReasonCode::ResultTooLarge),
        ),
        (
            RunStatus::ProtocolViolation {
                problem: "two results".to_owned(),
            },
            InvocationOutcome::UpstreamError,
            Some(ReasonCode::ProtocolViolation),
        ),
    ];
    let world = World::with(|_| {}).await;
    for (status, outcome, reason) in ends {
        world.answers(status.clone());
        let done = world.run("{}").await.unwrap();
        assert_eq!(
            (done.outcome, done.reason, &done.run.status),
            (outcome, reason, &status)
        );
        let ledger = world.ledger().await;
        let settlement = ledger[0].settlement.as_ref().unwrap();
        assert_eq!(
            (settlement.outcome, settlement.reason),
            (outcome, reason),
            "{status:?}"
        );
        let detail = settlement.detail.clone().unwrap_or_default();
        assert_eq!(detail.is_empty(), outcome == InvocationOutcome::Ok, "{status:?}");
        assert!(
            !detail.contains("canary"),
            "what a tool says may be secret: {detail}"
        );
    }
    assert_eq!(world.ledger().await.len(), 9);
}

#[tokio::test]
async fn arguments_and_values_fit_their_schemas_or_do_not_pass() {
    let world = World::with(|definition| {
        let number = |field| {
            let text = format!(r#"{{"type":"object","properties":{{"{field}":{{"type":"integer"}}}},"required":["{field}"]}}"#);
            Some(json(&text))
        };
        definition.input_schema = number("n");
        definition.output_schema = number("m");
    })
    .await;
    refused(
        world.run(r#"{"n":"one"}"#).await,
        ErrorKind::Denied,
        ReasonCode::ArgumentsInvalid,
    );
    refused(
        world.run("[1]").await,
        ErrorKind::Denied,
        ReasonCode::ArgumentsInvalid,
    );
    assert!(world.parts.sandbox.runs().is_empty(), "nothing ran");
    let misfit = world.run(r#"{"n":1}"#).await.unwrap();
    assert_eq!(misfit.reason, Some(ReasonCode::ResultInvalid));
    assert!(matches!(misfit.run.status, RunStatus::ResultInvalid { .. }));
    world.answers(RunStatus::Ok {
        value: json(r#"{"m":2}"#),
    });
    assert_eq!(
        world.run(r#"{"n":1}"#).await.unwrap().outcome,
        InvocationOutcome::Ok
    );
    let outcomes: Vec<_> = world
        .ledger()
        .await
        .iter()
        .map(|record| record.settlement.as_ref().unwrap().outcome)
        .collect();
    use InvocationOutcome::{Denied, Ok, UpstreamError};
    assert_eq!(outcomes, [Ok, UpstreamError, Denied, Denied]);
}

#[tokio::test]
async fn each_step_refuses_and_records() {
    let world = World::with(|definition| definition.rate_limit_per_minute = Some(1)).await;
    let stranger = person("eve", "home", Scope::Operator);
    let outcome = world.caliber.run_code_tool(&stranger, world.call("{}")).await;
    refused(outcome, ErrorKind::Denied, ReasonCode::NotGranted);
    let pinned = CodeToolCall {
        content_hash: Some(ContentHash::of(b"what was there before")),
        ..world.call("{}")
    };
    let outcome = world.caliber.run_code_tool(&world.ada, pinned).await;
    refused(outcome, ErrorKind::Denied, ReasonCode::SourceChanged);
    let pinned = CodeToolCall {
        content_hash: Some(world.tool.content_hash),
        ..world.call("{}")
    };
    world.caliber.run_code_tool(&world.ada, pinned).await.unwrap();
    let error = refused(
        world.run("{}").await,
        ErrorKind::RateLimited,
        ReasonCode::RateLimited,
    );
    assert!(error.context().iter().any(|(key, _)| *key == "retry_after_ms"));
    world.parts.sandbox.set_report(|report| {
        let missing = Enforcement::NotEnforced {
            stage: "net".to_owned(),
            errno: "EPERM".to_owned(),
            remedy: String::new(),
        };
        report.guarantees.insert(Guarantee::Net, missing);
    });
    refused(
        world.run("{}").await,
        ErrorKind::Unavailable,
        ReasonCode::SandboxUnavailable,
    );
    world
        .caliber
        .archive_code_tool((&world.root, HERE), &world.tool.id, None)
        .await
        .unwrap();
    refused(world.run("{}").await, ErrorKind::Denied, ReasonCode::ToolArchived);
    let ledger = world.ledger().await;
    assert_eq!(ledger.len(), 6);
    let denied = ledger.iter().filter(|record| {
        let settlement = record.settlement.as_ref().unwrap();
        settlement.outcome == InvocationOutcome::Denied
    });
    assert_eq!(denied.count(), 5);
    assert_eq!(world.parts.sandbox.runs().len(), 1);
}

#[tokio::test]
async fn a_deprecated_version_runs_until_it_is_archived() {
    let world = World::with(|_| {}).await;
    let patch = CodeToolPatch {
        status: Some(CodeToolStatus::Deprecated),
        ..CodeToolPatch::default()
    };
    world
        .caliber
        .update_code_tool((&world.root, HERE), &world.tool.id, patch)
        .await
        .unwrap();
    assert_eq!(world.run("{}").await.unwrap().outcome, InvocationOutcome::Ok);
}

#[tokio::test]
async fn consent_is_for_one_run_of_one_content_with_these_arguments() {
    let world = World::with(|definition| {
        definition.side_effect_level = SideEffectLevel::ExternalAction;
        definition.requires_approval = true;
    })
    .await;
    let approver = person("grace", "home", Scope::Approver);
    let asked = async |arguments: &str| {
        let error = refused(
            world.run(arguments).await,
            ErrorKind::ApprovalNeeded,
            ReasonCode::ApprovalRequired,
        );
        let id = error
            .context()
            .iter()
            .find(|(key, _)| *key == "approval")
            .unwrap()
            .1
            .clone();
        id.parse().unwrap()
    };
    let id = asked(r#"{"n":1}"#).await;
    assert_eq!(asked(r#"{ "n": 1 }"#).await, id, "the same call asks once");
    assert_ne!(asked(r#"{"n":2}"#).await, id);
    world
        .caliber
        .decide_approval((&approver, HERE), &id, true, None)
        .await
        .unwrap();
    let with = |arguments: &str| CodeToolCall {
        approval: Some(id.clone()),
        ..world.call(arguments)
    };
    let other = world.caliber.run_code_tool(&world.ada, with(r#"{"n":2}"#)).await;
    refused(other, ErrorKind::Denied, ReasonCode::ApprovalInvalid);
    let done = world
        .caliber
        .run_code_tool(&world.ada, with(r#"{"n":1}"#))
        .await
        .unwrap();
    assert_eq!(done.outcome, InvocationOutcome::Ok);
    let again = world.caliber.run_code_tool(&world.ada, with(r#"{"n":1}"#)).await;
    refused(again, ErrorKind::Denied, ReasonCode::ApprovalInvalid);
    // An admin goes past it with a reason, which is recorded.
    let glass = CodeToolCall {
        break_glass: Some("the pager rang".to_owned()),
        ..world.call("{}")
    };
    world.caliber.run_code_tool(&world.root, glass).await.unwrap();
    assert_eq!(
        world.ledger().await[0].invocation.break_glass.as_deref(),
        Some("the pager rang")
    );
    assert_eq!(world.parts.sandbox.runs().len(), 2);
}

#[tokio::test]
async fn secrets_are_resolved_for_each_run_and_shown_nowhere() {
    let world = World::with(|definition| {
        definition.secret_refs = BTreeMap::from([
            (
                "STORED".to_owned(),
                ConfigValue::Literal(SecretText::new("canary-1")),
            ),
            ("OUTSIDE".to_owned(), ConfigValue::from_input("env://OUTSIDE")),
        ]);
    })
    .await;
    let error = refused(
        world.run("{}").await,
        ErrorKind::Unavailable,
        ReasonCode::SecretUnresolved,
    );
    assert!(
        error.to_string().contains("OUTSIDE") && !format!("{error}").contains("env://"),
        "{error}"
    );
    let set = |value: &str| {
        let reference: SecretReference = "env://OUTSIDE".parse().unwrap();
        world.parts.secrets.set(reference, SecretText::new(value));
    };
    for value in ["canary-2", "canary-3"] {
        set(value);
        world.run("{}").await.unwrap();
        let runs = world.parts.sandbox.runs();
        let given: BTreeMap<_, _> = runs
            .last()
            .unwrap()
            .secrets
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose()))
            .collect();
        assert_eq!(
            given,
            BTreeMap::from([("STORED", "canary-1"), ("OUTSIDE", value)])
        );
        assert!(!format!("{runs:?}").contains("canary"));
    }
    assert!(
        !serde_json::to_string(&world.ledger().await)
            .unwrap()
            .contains("canary")
    );
}

#[tokio::test]
async fn a_grant_that_is_taken_back_binds_the_next_run_also_one_that_waits() {
    let world = World::with(|_| {}).await;
    let (entered, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (inside, leave) = (entered.clone(), go_on.clone());
    world.parts.sandbox.script("run", move |_| {
        let (inside, leave) = (inside.clone(), leave.clone());
        async move {
            inside.notify_one();
            leave.notified().await;
            Ok(RunStatus::Ok { value: json("1") })
        }
    });
    // Every place is taken, so the last run waits for one.
    let mut running = Vec::new();
    for _ in 0..16 {
        let (caliber, ada, call) = (world.caliber.clone(), world.ada.clone(), world.call("{}"));
        running.push(tokio::spawn(
            async move { caliber.run_code_tool(&ada, call).await },
        ));
        entered.notified().await;
    }
    let (caliber, ada, call) = (world.caliber.clone(), world.ada.clone(), world.call("{}"));
    let waiting = tokio::spawn(async move { caliber.run_code_tool(&ada, call).await });
    tokio::task::yield_now().await;
    let grants = world
        .caliber
        .grants(&world.root, &PageRequest::first(10))
        .await
        .unwrap()
        .items;
    world
        .caliber
        .revoke_grant((&world.root, HERE), &grants[0].id)
        .await
        .unwrap();
    for task in running {
        go_on.notify_one();
        task.await.unwrap().unwrap();
    }
    refused(waiting.await.unwrap(), ErrorKind::Denied, ReasonCode::NotGranted);
    assert_eq!(world.parts.sandbox.runs().len(), 16);
}

#[tokio::test]
async fn a_run_ends_by_its_deadline_and_a_dropped_one_is_cancelled() {
    let settings = Settings {
        startup_grace: Duration::ZERO,
        ..Settings::default()
    };
    let world = World::over(Parts::new(), settings, |definition| {
        with_effects(definition);
        definition.limits.timeout_ms = Some(300);
    })
    .await;
    let entered = Arc::new(Notify::new());
    let inside = entered.clone();
    world.parts.sandbox.script("run", move |_| {
        inside.notify_one();
        std::future::pending()
    });
    refused(world.run("{}").await, ErrorKind::Timeout, ReasonCode::Timeout);
    entered.notified().await;
    let (caliber, ada, call) = (world.caliber.clone(), world.ada.clone(), world.call("{}"));
    let task = tokio::spawn(async move { caliber.run_code_tool(&ada, call).await });
    entered.notified().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    world.caliber.close(Duration::from_secs(5)).await.unwrap();
    let ledger = world.ledger().await;
    let ends: Vec<_> = ledger
        .iter()
        .map(|record| record.settlement.as_ref().unwrap().outcome)
        .collect();
    assert_eq!(ends, [InvocationOutcome::Cancelled, InvocationOutcome::Timeout]);
    let deadline = world.parts.sandbox.runs()[0].deadline;
    assert_eq!(
        deadline.remaining(),
        Duration::ZERO,
        "the deadline was that of the tool"
    );
}

#[test]
fn the_blocking_twins_do_the_same() {
    let caliber = Parts::new().caliber().blocking().unwrap();
    let root = person("root", "home", Scope::Admin);
    let who = (&root, HERE);
    let registration = memory::code_tool("weather", "1").unwrap();
    let tool = caliber.register_code_tool(who, registration).unwrap();
    let page = PageRequest::first(10);
    assert_eq!(
        caliber
            .code_tools(&root, Default::default(), &page)
            .unwrap()
            .items
            .len(),
        1
    );
    assert_eq!(caliber.code_tool(&root, &tool.id).unwrap().record.id, tool.id);
    assert_eq!(
        caliber
            .code_tool_versions(&root, &tool.id, &page)
            .unwrap()
            .items
            .len(),
        1
    );
    let reference = "tool.weather.v1".parse().unwrap();
    let resolved = caliber
        .resolve_code_tool(&root, &reference, &"^1".parse().unwrap())
        .unwrap();
    assert_eq!(resolved.tool.id, tool.id);
    let call = CodeToolCall::new(tool.id.clone(), json("{}"), HERE);
    assert_eq!(
        caliber.run_code_tool(&root, call).unwrap().outcome,
        InvocationOutcome::Ok
    );
    assert!(caliber.code_tool_source(who, &tool.id).unwrap().available);
    assert!(caliber.code_tool_usage(&root, &tool.id).unwrap().is_empty());
    let patch = CodeToolPatch {
        description: Some("Tells the weather.".to_owned()),
        ..CodeToolPatch::default()
    };
    let changed = caliber.update_code_tool(who, &tool.id, patch).unwrap();
    let archived = caliber
        .archive_code_tool(who, &tool.id, Some(changed.revision))
        .unwrap();
    assert_eq!(archived.status, CodeToolStatus::Archived);
}
