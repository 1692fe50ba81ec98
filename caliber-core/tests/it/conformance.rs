use std::sync::Arc;
use std::time::Duration;

use caliber_core::conformance;
use caliber_core::conformance::gateway::{Bench, Upstream};
use caliber_core::conformance::sandbox::Behaviour;
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::memory::{
    self, CallEnd, CountingQuota, LoggedCall, MemoryRegistry, MemorySecrets, Parts, ReferencePolicy,
    ScriptedCall, ScriptedGateway, ScriptedServer, ScriptedTool,
};
use caliber_core::quota::QuotaStore;
use caliber_core::registry::{DeploymentReference, Registry};
use caliber_core::sandbox::{Exit, Phase, Program, RunRequest, RunStatus};
use caliber_core::secret::{SecretReference, SecretSource, SecretText};
use caliber_core::server::ServerName;

use crate::support::admin;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_reference_registry_keeps_its_contract() {
    conformance::registry::run(async || Arc::new(MemoryRegistry::new()) as Arc<dyn Registry>).await;
}

#[tokio::test]
async fn the_reference_registry_keeps_needed_servers() {
    let registry = Arc::new(MemoryRegistry::new());
    let reference = DeploymentReference {
        workflow: "billing".into(),
        alias: "prod".into(),
        rollback_only: false,
    };
    conformance::registry::a_needed_server_stays(registry.clone(), async |server, needed| {
        if needed {
            registry.add_deployment(server, reference.clone());
        } else {
            registry.clear_deployments(server);
        }
    })
    .await;
}

#[tokio::test]
async fn the_reference_registry_keeps_needed_versions() {
    let registry = Arc::new(MemoryRegistry::new());
    let reference = DeploymentReference {
        workflow: "billing".into(),
        alias: "prod".into(),
        rollback_only: true,
    };
    conformance::registry::a_needed_version_stays(registry.clone(), async |tool, needed| {
        if needed {
            registry.add_code_tool_deployment(tool, reference.clone());
        } else {
            registry.clear_code_tool_deployments(tool);
        }
    })
    .await;
}

#[test]
fn the_reference_policy_keeps_its_contract() {
    conformance::policy::run(&ReferencePolicy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_reference_quota_keeps_its_contract() {
    conformance::quota::run(async || Arc::new(CountingQuota::new()) as Arc<dyn QuotaStore>).await;
}

#[tokio::test]
async fn the_reference_secrets_keep_their_contract() {
    let source = MemorySecrets::default();
    let known = [
        (
            SecretReference::Environment("TOKEN".into()),
            SecretText::new("canary-env"),
        ),
        (
            SecretReference::File("/run/secrets/token".into()),
            SecretText::new("canary-file"),
        ),
    ];
    for (reference, value) in &known {
        source.set(reference.clone(), value.clone());
    }
    conformance::secrets::run(&source, &known).await;
}

#[tokio::test]
async fn the_reference_registry_keeps_secrets() {
    conformance::secrets::run_stored(async || {
        let registry = Arc::new(MemoryRegistry::new());
        (
            registry.clone() as Arc<dyn Registry>,
            registry as Arc<dyn SecretSource>,
        )
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_scripted_gateway_keeps_its_contract() {
    conformance::gateway::run(async || {
        let parts = Parts {
            gateway: ScriptedGateway::with_concurrency(4),
            ..Parts::new()
        };
        let upstream = Scripted {
            gateway: parts.gateway.clone(),
            name: "bench".parse().unwrap(),
        };
        upstream.serve("Answers with its arguments.");
        Bench {
            caliber: parts.caliber(),
            gateway: Arc::new(parts.gateway.clone()),
            registration: memory::registration("bench").unwrap(),
            concurrency: 4,
            upstream: Arc::new(upstream),
            dead_end: memory::registration("nobody").unwrap(),
        }
    })
    .await;
}

/// The server of the bench, scripted.
struct Scripted {
    gateway: ScriptedGateway,
    name: ServerName,
}

impl Scripted {
    fn serve(&self, description: &str) {
        let sleep = async |call: ScriptedCall| {
            let pause = number(&call, "ms");
            tokio::time::sleep(Duration::from_millis(pause)).await;
            result(r#"{"content":[]}"#.to_owned())
        };
        let text = async |call: ScriptedCall| {
            let text = "x".repeat(usize::try_from(number(&call, "bytes")).unwrap());
            result(format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#))
        };
        let counter = async |call: ScriptedCall| {
            let count = call.ordinal;
            result(format!(
                r#"{{"content":[],"structuredContent":{{"count":{count}}}}}"#
            ))
        };
        let fail = async |_| result(r#"{"content":[],"isError":true}"#.to_owned());
        let named = |name: &str| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
        let tools = [
            ScriptedTool::echo("echo")
                .unwrap()
                .described(description)
                .unwrap(),
            ScriptedTool::new(&named("counter"), counter).unwrap(),
            ScriptedTool::new(&named("sleep"), sleep).unwrap(),
            ScriptedTool::new(&named("fail"), fail).unwrap(),
            ScriptedTool::new(&named("text"), text).unwrap(),
        ];
        self.gateway.serve(&self.name, ScriptedServer::new(tools));
    }
}

fn number(call: &ScriptedCall, key: &str) -> u64 {
    let arguments: serde_json::Value = call.arguments.read().unwrap();
    arguments[key].as_u64().unwrap()
}

fn result(text: String) -> caliber_core::Result<JsonText> {
    JsonText::parse(text, JsonLimits::RESULT)
}

#[async_trait::async_trait]
impl Upstream for Scripted {
    async fn describe_echo(&self, description: &str) {
        self.serve(description);
    }

    async fn arrived(&self) -> u64 {
        self.gateway.calls().len() as u64
    }

    async fn cancelled(&self) -> u64 {
        let stopped = |call: &LoggedCall| matches!(call.end, Some(CallEnd::Cancelled | CallEnd::TimedOut));
        self.gateway.calls().iter().filter(|call| stopped(call)).count() as u64
    }
}

/// It runs functions of the test, so it captures no output.
#[tokio::test(flavor = "multi_thread")]
async fn the_scripted_sandbox_keeps_the_contract_of_its_port() {
    let (mut tried, mut left_out) = (0, Vec::new());
    for case in conformance::sandbox::cases() {
        if case.name == "output_is_bounded_and_counted" {
            left_out.push(case.name);
            continue;
        }
        case.run(scripted_bench()).await;
        tried += 1;
    }
    assert!(tried > 10 && left_out.len() == 1);
}

fn scripted_bench() -> conformance::sandbox::Bench {
    let parts = Parts::new();
    for behaviour in Behaviour::ALL {
        let script = move |request| scripted(behaviour, request);
        parts.sandbox.script(behaviour.as_str(), script);
    }
    conformance::sandbox::Bench {
        caliber: parts.caliber(),
        admin: admin(),
        places: 16,
        program: Box::new(|behaviour| Program::Python {
            module_path: "suite".to_owned(),
            callable_name: behaviour.as_str().to_owned(),
            source_roots: Vec::new(),
            package_roots: Vec::new(),
        }),
    }
}

async fn scripted(behaviour: Behaviour, request: RunRequest) -> caliber_core::Result<RunStatus> {
    let number = |name: &str| {
        let member = request.arguments.member(name);
        member.map_or(0, |member| member.as_str().parse::<u64>().unwrap())
    };
    let value = |text: String| RunStatus::Ok {
        value: JsonText::parse(text, JsonLimits::RESULT).unwrap(),
    };
    Ok(match behaviour {
        Behaviour::Echo => RunStatus::Ok {
            value: request.arguments.clone(),
        },
        Behaviour::Raise => RunStatus::ToolError {
            error_type: "ValueError".to_owned(),
            message: "as the suite wants".to_owned(),
        },
        Behaviour::Sleep => {
            let sleep = tokio::time::sleep(Duration::from_millis(number("milliseconds")));
            match tokio::time::timeout_at(request.deadline.instant(), sleep).await {
                Ok(()) => value("null".to_owned()),
                Err(_) => RunStatus::DeadlineExceeded { phase: Phase::Run },
            }
        }
        Behaviour::Silent => RunStatus::NoResult {
            phase: Phase::Run,
            exit: Exit::Code(0),
        },
        Behaviour::Large if number("bytes") + 2 > request.result_bytes as u64 => RunStatus::ResultTooLarge {
            limit: request.result_bytes as u64,
        },
        Behaviour::Large => value(format!("\"{}\"", "x".repeat(number("bytes") as usize))),
        Behaviour::NoJson => RunStatus::ResultInvalid {
            problem: "it is not a number".to_owned(),
        },
        Behaviour::Chatter => value("null".to_owned()),
        Behaviour::Count => value("1".to_owned()),
    })
}
