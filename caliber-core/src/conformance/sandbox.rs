//! The contract of [`Sandbox`](crate::sandbox::Sandbox), in cases. They go through a [`Caliber`]: nothing else makes a
//! permit.

use std::time::Duration;

use super::{Case, cases, run_all};
use crate::code_tool::{CodeToolDefinition, CodeToolRecord};
use crate::error::{Error, ErrorKind, Result};
use crate::invocation::InvocationOutcome;
use crate::json::{JsonLimits, JsonText};
use crate::policy::SideEffectLevel;
use crate::principal::{Principal, Surface};
use crate::reason::ReasonCode;
use crate::sandbox::{ExecutionPreference, Guarantee, Phase, Program, RunLimits, RunStatus};
use crate::server::Visibility;
use crate::{Caliber, CodeToolCall, CodeToolRegistration, CodeToolRun};

/// What the suite is run on: a control plane over the sandbox, with an empty registry.
pub struct Bench {
    /// The control plane.
    pub caliber: Caliber,
    /// An admin of the project that tools are registered in.
    pub admin: Principal,
    /// How many runs can be made at once, at least 2.
    pub places: usize,
    /// A program that does this.
    pub program: Box<dyn Fn(Behaviour) -> Program + Send + Sync>,
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Bench")
            .field("places", &self.places)
            .finish_non_exhaustive()
    }
}

/// What a program of the suite does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Behaviour {
    /// Returns its arguments: an object.
    Echo,
    /// Raises an error of the type `ValueError` with the text `as the suite wants`.
    Raise,
    /// Sleeps for the milliseconds in its argument `milliseconds`, then returns `null`.
    Sleep,
    /// Ends its process with the exit code 0, without a result.
    Silent,
    /// Writes as many bytes of `x` as its argument `bytes` says to standard output, then returns `null`.
    Chatter,
    /// Returns a string of as many characters as its argument `bytes` says.
    Large,
    /// Returns what is not a number.
    NoJson,
    /// Counts its calls in whatever it can keep: a global variable, its working folder, its temporary folder. Returns
    /// how many it knows of, this one included.
    Count,
}

impl Behaviour {
    /// Every behaviour.
    pub const ALL: [Self; 8] = [
        Self::Echo,
        Self::Raise,
        Self::Sleep,
        Self::Silent,
        Self::Chatter,
        Self::Large,
        Self::NoJson,
        Self::Count,
    ];

    /// A word for it: a name that a callable can have.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Raise => "fail",
            Self::Sleep => "sleep",
            Self::Silent => "silent",
            Self::Chatter => "chatter",
            Self::Large => "large",
            Self::NoJson => "no_json",
            Self::Count => "count",
        }
    }
}

/// Runs every case of [`cases`] on a bench of its own.
///
/// # Panics
///
/// With the names of the clauses that are violated.
pub async fn run(make: impl AsyncFn() -> Bench) {
    run_all(cases(), make).await;
}

/// Every clause, to be run one by one.
pub fn cases() -> Vec<Case<Bench>> {
    cases![
        clauses::{
            the_report_speaks_of_every_guarantee,
            a_value_comes_back_as_it_is,
            what_is_raised_is_told_and_no_failure_of_ours,
            a_process_that_ends_without_a_result_is_no_success,
            a_deadline_ends_the_run,
            a_run_that_nobody_waits_for_ends,
            what_is_no_json_is_refused,
            a_value_beyond_the_limit_is_refused,
            output_is_bounded_and_counted,
            runs_at_once_get_their_own_values,
            nothing_is_left_for_the_next_run,
            a_run_beyond_the_places_waits_for_one,
            after_the_end_nothing_runs,
        }
    ]
}

/// How much longer than its deadline a run may take on a busy machine.
const SLACK: Duration = Duration::from_secs(20);

impl Bench {
    async fn tool(&self, behaviour: Behaviour, limits: RunLimits) -> CodeToolRecord {
        self.tool_with(behaviour, limits, ExecutionPreference::Isolated)
            .await
    }

    async fn tool_with(
        &self,
        behaviour: Behaviour,
        limits: RunLimits,
        preference: ExecutionPreference,
    ) -> CodeToolRecord {
        let definition = CodeToolDefinition {
            family: format!("{}-{preference:?}", behaviour.as_str()).parse().unwrap(),
            version: "1.0.0".parse().unwrap(),
            description: String::new(),
            program: (self.program)(behaviour),
            input_schema: None,
            output_schema: None,
            side_effect_level: SideEffectLevel::Read,
            requires_approval: false,
            approval_waiver: None,
            allow_in_preview: false,
            secret_refs: Default::default(),
            limits,
            preference,
            rate_limit_per_minute: None,
        };
        let registration = CodeToolRegistration {
            definition,
            visibility: Visibility::Project,
        };
        self.caliber
            .register_code_tool((&self.admin, Surface::Library), registration)
            .await
            .unwrap()
    }

    async fn call(&self, tool: &CodeToolRecord, arguments: serde_json::Value) -> Result<CodeToolRun> {
        self.call_text(tool, &arguments.to_string()).await
    }

    async fn call_text(&self, tool: &CodeToolRecord, arguments: &str) -> Result<CodeToolRun> {
        let arguments = JsonText::parse(arguments, JsonLimits::ARGUMENTS).unwrap();
        self.caliber
            .run_code_tool(
                &self.admin,
                CodeToolCall::new(tool.id.clone(), arguments, Surface::Library),
            )
            .await
    }
}

fn value(run: &CodeToolRun) -> &str {
    match &run.run.status {
        RunStatus::Ok { value } => value.as_str(),
        other => panic!("it returned no value: {other:?}"),
    }
}

fn within(milliseconds: u64) -> RunLimits {
    RunLimits {
        timeout_ms: Some(milliseconds),
        ..RunLimits::default()
    }
}

mod clauses {
    use super::*;

    pub(super) async fn the_report_speaks_of_every_guarantee(bench: Bench) {
        let report = bench.caliber.sandbox_report(&bench.admin).unwrap().unwrap();
        for guarantee in Guarantee::ALL {
            assert!(
                report.guarantees.contains_key(&guarantee),
                "{} is not told",
                guarantee.as_str()
            );
        }
        assert!(report.is_available(), "nothing runs here: {report:?}");
    }

    pub(super) async fn a_value_comes_back_as_it_is(bench: Bench) {
        let tool = bench.tool(Behaviour::Echo, within(60_000)).await;
        for arguments in [
            "{}",
            r#"{"text":"天気 \u2028 \u0000 \ud83c\udf26","empty":"","":null}"#,
            r#"{"numbers":[0,-1,9223372036854775807,18446744073709551615,-9223372036854775808,1e-7,0.1,1.5e300]}"#,
            r#"{"deep":[[[[[[[[[[[[[[[[{"a":[true,false,null]}]]]]]]]]]]]]]]]]}"#,
        ] {
            let run = bench.call_text(&tool, arguments).await.unwrap();
            let sent: serde_json::Value = serde_json::from_str(arguments).unwrap();
            let received: serde_json::Value = serde_json::from_str(value(&run)).unwrap();
            assert_eq!(received, sent);
            assert_eq!((run.outcome, run.reason), (InvocationOutcome::Ok, None));
        }
    }

    pub(super) async fn what_is_raised_is_told_and_no_failure_of_ours(bench: Bench) {
        let tool = bench.tool(Behaviour::Raise, within(60_000)).await;
        let run = bench.call(&tool, serde_json::json!({})).await.unwrap();
        assert_eq!(
            run.run.status,
            RunStatus::ToolError {
                error_type: "ValueError".to_owned(),
                message: "as the suite wants".to_owned(),
            }
        );
        assert_eq!((run.outcome, run.reason), (InvocationOutcome::ToolError, None));
    }

    pub(super) async fn a_process_that_ends_without_a_result_is_no_success(bench: Bench) {
        let tool = bench.tool(Behaviour::Silent, within(60_000)).await;
        let run = bench.call(&tool, serde_json::json!({})).await.unwrap();
        assert!(
            matches!(
                run.run.status,
                RunStatus::NoResult {
                    phase: Phase::Run,
                    ..
                }
            ),
            "{:?}",
            run.run.status
        );
        assert_eq!(run.reason, Some(ReasonCode::ToolCrashed));
    }

    pub(super) async fn a_deadline_ends_the_run(bench: Bench) {
        let tool = bench.tool(Behaviour::Sleep, within(300)).await;
        let running = bench.call(&tool, serde_json::json!({ "milliseconds": 600_000 }));
        let run = tokio::time::timeout(SLACK, running)
            .await
            .expect("it goes on")
            .unwrap();
        assert!(
            matches!(run.run.status, RunStatus::DeadlineExceeded { .. }),
            "{:?}",
            run.run.status
        );
        assert_eq!(
            (run.outcome, run.reason),
            (InvocationOutcome::Timeout, Some(ReasonCode::Timeout))
        );
    }

    pub(super) async fn a_run_that_nobody_waits_for_ends(bench: Bench) {
        let tool = bench.tool(Behaviour::Sleep, within(600_000)).await;
        for _ in 0..2 * bench.places {
            let running = bench.call(&tool, serde_json::json!({ "milliseconds": 600_000 }));
            assert!(
                tokio::time::timeout(Duration::from_millis(100), running)
                    .await
                    .is_err()
            );
        }
        // Every place is free again.
        let echo = bench.tool(Behaviour::Echo, within(60_000)).await;
        let calls = (0..bench.places).map(|_| bench.call(&echo, serde_json::json!({})));
        for run in futures::future::join_all(calls).await {
            assert_eq!(value(&run.unwrap()), "{}");
        }
    }

    pub(super) async fn what_is_no_json_is_refused(bench: Bench) {
        let tool = bench.tool(Behaviour::NoJson, within(60_000)).await;
        let run = bench.call(&tool, serde_json::json!({})).await.unwrap();
        assert!(
            matches!(run.run.status, RunStatus::ResultInvalid { .. }),
            "{:?}",
            run.run.status
        );
        assert_eq!(run.reason, Some(ReasonCode::ResultInvalid));
    }

    pub(super) async fn a_value_beyond_the_limit_is_refused(bench: Bench) {
        let limits = RunLimits {
            result_bytes: Some(1_000),
            ..within(60_000)
        };
        let tool = bench.tool(Behaviour::Large, limits).await;
        let fits = bench
            .call(&tool, serde_json::json!({ "bytes": 900 }))
            .await
            .unwrap();
        assert_eq!(value(&fits).len(), 902);
        let run = bench
            .call(&tool, serde_json::json!({ "bytes": 5_000_000 }))
            .await
            .unwrap();
        assert_eq!(run.run.status, RunStatus::ResultTooLarge { limit: 1_000 });
        assert_eq!(run.reason, Some(ReasonCode::ResultTooLarge));
    }

    pub(super) async fn output_is_bounded_and_counted(bench: Bench) {
        let tool = bench.tool(Behaviour::Chatter, within(60_000)).await;
        let short = bench
            .call(&tool, serde_json::json!({ "bytes": 100 }))
            .await
            .unwrap();
        assert_eq!(
            (short.run.stdout.text.len(), short.run.stdout.truncated),
            (100, false)
        );
        let long = bench
            .call(&tool, serde_json::json!({ "bytes": 20_000_000 }))
            .await
            .unwrap();
        assert_eq!(value(&long), "null");
        assert_eq!(long.run.stdout.total_bytes, 20_000_000);
        assert!(long.run.stdout.truncated && long.run.stdout.text.len() < 2_000_000);
    }

    pub(super) async fn runs_at_once_get_their_own_values(bench: Bench) {
        let tool = bench.tool(Behaviour::Echo, within(120_000)).await;
        let calls = (0..40).map(|number| bench.call(&tool, serde_json::json!({ "number": number })));
        let runs = futures::future::join_all(calls).await;
        for (number, run) in runs.into_iter().enumerate() {
            let run = run.unwrap();
            let value: serde_json::Value = serde_json::from_str(value(&run)).unwrap();
            assert_eq!(value, serde_json::json!({ "number": number }));
        }
    }

    pub(super) async fn nothing_is_left_for_the_next_run(bench: Bench) {
        for preference in [ExecutionPreference::Isolated, ExecutionPreference::Cold] {
            let tool = bench
                .tool_with(Behaviour::Count, within(60_000), preference)
                .await;
            for _ in 0..8 {
                let run = bench.call(&tool, serde_json::json!({})).await.unwrap();
                assert_eq!(value(&run), "1", "{preference:?}, {:?}", run.run.mode);
            }
        }
    }

    pub(super) async fn a_run_beyond_the_places_waits_for_one(bench: Bench) {
        let tool = bench.tool(Behaviour::Sleep, within(120_000)).await;
        let calls =
            (0..bench.places + 2).map(|_| bench.call(&tool, serde_json::json!({ "milliseconds": 200 })));
        for run in futures::future::join_all(calls).await {
            assert_eq!(value(&run.unwrap()), "null");
        }
    }

    pub(super) async fn after_the_end_nothing_runs(bench: Bench) {
        let tool = bench.tool(Behaviour::Echo, within(60_000)).await;
        bench.call(&tool, serde_json::json!({})).await.unwrap();
        bench.caliber.close(Duration::from_secs(30)).await.unwrap();
        let error: Error = bench.call(&tool, serde_json::json!({})).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}
