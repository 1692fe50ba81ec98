//! The contract of [`Gateway`], in cases. Every permit comes from a [`Caliber`]: there is no other way to one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Case, cases, run_all};
use crate::caliber::{Caliber, ServerRegistration};
use crate::gateway::Gateway;

mod calls;
mod limits;
mod sessions;

/// A gateway under test: in front of it a control plane, behind it a server with the tools below.
///
/// | tool | arguments | result |
/// |---|---|---|
/// | `echo` | any object | `{"content":[],"structuredContent":` the arguments, byte for byte `}` |
/// | `counter` | `{}` | `{"content":[],"structuredContent":{"count":` calls of `counter` in this session `}}` |
/// | `sleep` | `{"ms":` number `}` | `{"content":[]}`, after that many milliseconds |
/// | `fail` | `{}` | `{"content":[],"isError":true}` |
/// | `text` | `{"bytes":` number `}` | one text of that many bytes as its content |
///
/// Every input schema is `{"type":"object"}`, and there is no output schema.
pub struct Bench {
    /// A control plane over the gateway. Its policy holds the server ready.
    pub caliber: Caliber,
    /// The gateway itself.
    pub gateway: Arc<dyn Gateway>,
    /// Where the server runs, with the most calls at once that [`Bench::concurrency`] names. A server that keeps
    /// sessions is needed, and its sharing is per caller.
    pub registration: ServerRegistration,
    /// The most calls at once: 2 to 16.
    pub concurrency: u32,
    /// What the server can be told and asked.
    pub upstream: Arc<dyn Upstream>,
    /// A definition of the same kind that nothing answers at.
    pub dead_end: ServerRegistration,
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Bench")
            .field("gateway", &self.gateway)
            .finish_non_exhaustive()
    }
}

/// The server behind the gateway, as the test that starts it sees it.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// Describes `echo` with another text from now on, without a word to open sessions.
    async fn describe_echo(&self, description: &str);

    /// How many calls of tools have arrived.
    async fn arrived(&self) -> u64;

    /// How many calls of tools the server was told to stop, by a notification or by the end of their connection.
    async fn cancelled(&self) -> u64;
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
        calls::{
            a_check_and_a_discovery_list_the_tools,
            what_nothing_answers_at_is_an_upstream_error,
            arguments_and_results_pass_unchanged,
            a_failure_that_a_tool_tells_is_an_answer,
            calls_of_one_caller_run_side_by_side,
        },
        sessions::{
            each_caller_keeps_a_session_and_meets_no_other,
            a_session_tells_what_it_saw,
            an_opened_session_hands_its_listing_over,
            a_changed_tool_is_not_called,
            an_evicted_session_begins_anew,
            closing_ends_every_session,
        },
        limits::{
            only_so_many_places_are_reserved,
            a_changed_limit_holds_at_once,
            a_running_call_holds_its_place,
            a_deadline_ends_a_call_and_frees_its_place,
            a_dropped_call_is_cancelled_upstream_and_frees_its_place,
            a_result_beyond_its_limit_is_refused,
        },
    ]
}

/// The longest that a case waits for one step.
const STEP: Duration = Duration::from_secs(15);

/// What the cases do with a bench.
mod steps {
    use std::time::Duration;

    use super::{Bench, STEP};
    use crate::admission::Slot;
    use crate::caliber::{InvokeOutcome, InvokeRequest};
    use crate::clock::Deadline;
    use crate::conformance::samples::{subject, tool};
    use crate::error::Result;
    use crate::gateway::{CallerKey, Target};
    use crate::id::ServerId;
    use crate::json::{JsonLimits, JsonText};
    use crate::policy::ToolPolicy;
    use crate::principal::{Principal, Surface};
    use crate::server::ServerRecord;

    pub(super) const TOOLS: [&str; 5] = ["counter", "echo", "fail", "sleep", "text"];

    pub(super) fn admin() -> Principal {
        Principal::local_administrator()
    }

    /// A caller of this name who may call everything.
    pub(super) fn caller(name: &str) -> Principal {
        Principal {
            subject: subject(name),
            ..admin()
        }
    }

    pub(super) fn json(text: &str) -> JsonText {
        JsonText::parse(text, JsonLimits::ARGUMENTS).unwrap()
    }

    /// Registers the server, discovers it and allows its tools.
    pub(super) async fn ready(bench: &Bench) -> ServerRecord {
        let admin = admin();
        let who = (&admin, Surface::Library);
        let record = bench
            .caliber
            .register_server(who, bench.registration.clone())
            .await
            .unwrap();
        bench.caliber.discover(who, &record.id).await.unwrap();
        for name in TOOLS {
            allow(bench, &record.id, name, ToolPolicy::allow_read()).await;
        }
        record
    }

    pub(super) async fn allow(bench: &Bench, server: &ServerId, name: &str, policy: ToolPolicy) {
        let admin = admin();
        let who = (&admin, Surface::Library);
        bench
            .caliber
            .classify(who, server, &tool(name), policy, None)
            .await
            .unwrap();
    }

    pub(super) fn request(server: &ServerId, name: &str, arguments: &str) -> InvokeRequest {
        InvokeRequest::new(server.clone(), tool(name), json(arguments), Surface::Library)
    }

    pub(super) async fn call(
        bench: &Bench,
        who: &str,
        server: &ServerId,
        name: &str,
        arguments: &str,
    ) -> Result<InvokeOutcome> {
        let caller = caller(who);
        let outcome = bench.caliber.invoke(&caller, request(server, name, arguments));
        tokio::time::timeout(STEP, outcome).await.expect("the call ends")
    }

    /// The count that the tool `counter` answers with.
    pub(super) async fn count(bench: &Bench, who: &str, server: &ServerId) -> u64 {
        let outcome = call(bench, who, server, "counter", "{}").await.unwrap();
        let result: serde_json::Value = outcome.answer.result.read().unwrap();
        result["structuredContent"]["count"]
            .as_u64()
            .expect("the counter counts")
    }

    pub(super) fn target(record: &ServerRecord) -> Target {
        Target {
            server: Some(record.id.clone()),
            definition: record.definition.clone().into(),
        }
    }

    pub(super) fn key(who: &str) -> CallerKey {
        CallerKey {
            subject: subject(who),
            inbound_session: None,
        }
    }

    /// Takes a place, waiting this long.
    pub(super) async fn reserve(
        bench: &Bench,
        server: &ServerId,
        concurrency: u32,
        patience: Duration,
    ) -> Result<Slot> {
        let deadline = Deadline::after(patience);
        bench.gateway.reserve(server, Some(concurrency), deadline).await
    }

    /// Takes every place of the server.
    pub(super) async fn all_places(bench: &Bench, server: &ServerId) -> Vec<Slot> {
        let mut places = Vec::new();
        for _ in 0..bench.concurrency {
            let place = reserve(bench, server, bench.concurrency, STEP).await;
            places.push(place.expect("a place has not been given back"));
        }
        places
    }

    /// Every place of the server can be taken, and is given back.
    pub(super) async fn places_are_free(bench: &Bench, server: &ServerId) {
        drop(all_places(bench, server).await);
    }
}
