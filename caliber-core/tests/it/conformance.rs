use std::sync::Arc;
use std::time::Duration;

use caliber_core::conformance;
use caliber_core::conformance::gateway::{Bench, Upstream};
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::memory::{
    self, CallEnd, CountingQuota, LoggedCall, MemoryRegistry, MemorySecrets, Parts, ReferencePolicy,
    ScriptedCall, ScriptedGateway, ScriptedServer, ScriptedTool,
};
use caliber_core::quota::QuotaStore;
use caliber_core::registry::{DeploymentReference, Registry};
use caliber_core::secret::{SecretReference, SecretSource, SecretText};
use caliber_core::server::ServerName;

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
