//! Where every attack takes place: an installation with a healthy server beside the hostile one and two callers,
//! watched by the oracles from beginning to end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use caliber::core::audit::AuditQuery;
use caliber::core::invocation::InvocationOutcome;
use caliber::core::page::{PAGE_LIMIT, PageRequest};
use caliber::core::principal::Principal;
use caliber::core::reason::ReasonCode;
use caliber::core::secret::ConfigValue;
use caliber::core::server::{Auth, Endpoint, ServerDefinition, Sharing};
use caliber::{Config, Error, ErrorKind, InvokeOutcome, InvokeRequest, Result};
use serde_json::{Value, json};

use crate::support::rig::definition;
use crate::support::{
    RequestExt, Rig, Server, Transport, Upstream, Watch, assert_absent, ends_within, eventually, outcomes,
};

/// The time of a call that is meant to be answered.
pub(super) const TIME: Duration = Duration::from_secs(15);
/// The time of a call that is meant to run out of it.
pub(super) const SHORT: Duration = Duration::from_millis(1_200);

/// The credential of every hostile server.
const SECRET: &str = "canary-credential-of-the-upstream";
/// What the rig puts into bodies that are no answers, as an upstream's own internals.
const INTERNAL: [&str; 2] = ["canary-internal-address", "10.9.8.7"];

/// An installation with its control server. Only in an isolated test.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) rig: Rig,
    pub(super) watch: Watch,
}

impl Stage {
    pub(super) async fn set() -> Self {
        Self::set_with(|_| {}).await
    }

    pub(super) async fn set_with(change: impl FnOnce(&mut Config)) -> Self {
        let rig = Rig::open_with(change).await;
        let watch = Watch::start(&rig).await;
        Self { rig, watch }
    }

    /// A fake server that is hostile from the start, registered and no more.
    pub(super) async fn register(&self, transport: Transport, settings: &[&str]) -> Attack {
        let upstream = Upstream::start(transport, settings).await;
        let server = self.rig.register_definition(hostile(&upstream)).await;
        Attack::of(server, upstream)
    }

    /// A fake server, discovered, with all its tools classified as `read` and open to both callers.
    pub(super) async fn admit(&self, transport: Transport, settings: &[&str]) -> Attack {
        let upstream = Upstream::start(transport, settings).await;
        let server = self.rig.admit_definition(hostile(&upstream)).await;
        Attack::of(server, upstream)
    }

    /// The same, healthy so far, with one session for both callers, which is open; see [`Attack::turn`].
    pub(super) async fn admit_shared(&self, transport: Transport, settings: &[&str]) -> Attack {
        let upstream = Upstream::start(transport, settings).await;
        let definition = ServerDefinition {
            sharing: Sharing::Shared,
            ..hostile(&upstream)
        };
        let attack = Attack::of(self.rig.admit_definition(definition).await, upstream);
        self.call(&attack, "echo", json!({ "value": "first" }))
            .await
            .expect("the server is healthy so far");
        if transport == Transport::Stdio {
            // A control query reaches every process; that of the discovery is on its way out.
            eventually("one process is left", || {
                let one = (attack.upstream.processes().len() == 1).then_some(());
                async move { one }
            })
            .await;
        }
        attack
    }

    /// Ada calls, with plenty of time.
    pub(super) async fn call(&self, attack: &Attack, tool: &str, arguments: Value) -> Result<InvokeOutcome> {
        attack
            .send(&self.rig.ada, attack.server.request(tool, arguments), TIME)
            .await
    }

    /// Ada and Ben call a tool that takes a `value`, at once, each with a canary of its own. Nobody receives the
    /// canary of the other, whatever becomes of the calls (O7).
    pub(super) async fn both(
        &self,
        attack: &Attack,
        tool: &str,
        time: Duration,
    ) -> [Result<InvokeOutcome>; 2] {
        let request = |canary| attack.server.request(tool, json!({ "value": canary }));
        let (ada, ben) = tokio::join!(
            attack.send(&self.rig.ada, request("canary-of-ada"), time),
            attack.send(&self.rig.ben, request("canary-of-ben"), time),
        );
        for (answer, foreign) in [(&ada, "canary-of-ben"), (&ben, "canary-of-ada")] {
            assert!(!shown(answer).contains(foreign), "{}", shown(answer));
        }
        [ada, ben]
    }

    /// Both callers end like this.
    pub(super) async fn both_fail(&self, attack: &Attack, tool: &str, time: Duration, expected: ErrorKind) {
        for answer in self.both(attack, tool, time).await {
            let error = answer.expect_err("the upstream is hostile");
            assert_eq!(error.kind(), expected, "{error:?}");
        }
    }

    /// O1, O2, O4.
    pub(super) async fn end(self) {
        self.watch.finish().await;
    }
}

/// One hostile server, and everything that was said about it.
#[derive(Debug)]
pub(super) struct Attack {
    pub(super) server: Server,
    pub(super) upstream: Upstream,
    told: Mutex<Vec<InvocationOutcome>>,
    said: Mutex<Vec<String>>,
}

impl Attack {
    fn of(server: Server, upstream: Upstream) -> Self {
        Self {
            server,
            upstream,
            told: Mutex::default(),
            said: Mutex::default(),
        }
    }

    /// Sends a call; it ends by its deadline and one second (O3).
    pub(super) async fn send(
        &self,
        caller: &Principal,
        request: InvokeRequest,
        time: Duration,
    ) -> Result<InvokeOutcome> {
        let answer = ends_within(time, self.server.send(caller, request.within(time))).await;
        self.note(&answer);
        answer
    }

    /// Notes an answer that was fetched otherwise: one terminal record is owed for it.
    pub(super) fn note(&self, answer: &Result<InvokeOutcome>) {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(expected_record(answer));
        if answer.is_err() {
            self.say(shown(answer));
        }
    }

    /// Notes an error of an operator.
    pub(super) fn note_error(&self, error: &Error) {
        self.say(format!("{error} {error:?}"));
    }

    /// A call that was dropped: a record is owed, and nobody was told.
    pub(super) fn note_cancelled(&self) {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(InvocationOutcome::Cancelled);
    }

    fn say(&self, text: String) {
        self.said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text);
    }

    /// Makes the running server behave otherwise.
    pub(super) async fn turn(&self, query: &str) {
        self.upstream.control(query).await;
    }

    /// The names and reasons of the tools that were withheld.
    pub(super) async fn withheld(&self) -> Vec<(String, String)> {
        let page = PageRequest::default();
        let caliber = &self.server.caliber;
        let listing = caliber.tools(self.server.who().0, &self.server.id, &page).await;
        let inventory = listing.expect("the tools are listed").inventory;
        let withheld = inventory.map(|inventory| inventory.withheld).unwrap_or_default();
        withheld
            .into_iter()
            .map(|tool| (tool.name, tool.reason))
            .collect()
    }

    /// The same for a stdio server with several sessions: waits until `processes` of them obey.
    pub(super) async fn turn_all(&self, query: &str, processes: usize) {
        eventually("the sessions are open, and no other process is", || {
            let there = (self.upstream.processes().len() == processes).then_some(());
            async move { there }
        })
        .await;
        let obeyed = self.upstream.records().count("control");
        self.upstream.control(query).await;
        self.upstream
            .records()
            .wait_for("control", obeyed + processes)
            .await;
    }

    /// Ends the attack: each call has one terminal record of what its caller was told (O5), nothing that anybody
    /// was shown holds a secret (O6), `executions` tools ran, and no more than calls were made (O8).
    pub(super) async fn end(self, executions: usize) {
        drop(self.end_keeping(executions).await);
    }

    /// [`end`](Self::end), and the fake server to be looked at further.
    pub(super) async fn end_keeping(self, executions: usize) -> Upstream {
        let mut told = std::mem::take(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner));
        let calls = told.len();
        let mut recorded = outcomes(&self.server).await;
        told.sort_by_key(|outcome| outcome.as_str());
        recorded.sort_by_key(|outcome| outcome.as_str());
        assert_eq!(recorded, told, "the ledger against what the callers were told");

        let secrets: Vec<&str> = INTERNAL.into_iter().chain([SECRET]).collect();
        assert_absent(&secrets, self.everything_shown().await);

        let log = self.upstream.records().text("executions");
        assert!(executions <= calls, "{executions} of {calls} calls may run");
        assert_eq!(
            log.lines().count(),
            executions,
            "executions at the upstream:\n{log}"
        );
        self.server.remove().await;
        self.upstream
    }

    /// What callers and operators see: errors, the view of the server, the inventory, ledger and audit trail.
    async fn everything_shown(&self) -> Vec<(String, String)> {
        let (caliber, admin, id) = (&self.server.caliber, self.server.who().0, &self.server.id);
        let said = std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner));
        let mut texts: Vec<_> = said
            .into_iter()
            .map(|text| ("an error".to_owned(), text))
            .collect();
        let view = caliber.server(admin, id).await.expect("the server is there");
        texts.push(("the view of the server".to_owned(), format!("{view:?}")));
        for record in self.server.ledger().await {
            texts.push(("the ledger".to_owned(), format!("{record:?}")));
        }
        let query = AuditQuery {
            entity_id: Some(id.to_string()),
            ..AuditQuery::default()
        };
        let mut page = PageRequest::first(PAGE_LIMIT);
        loop {
            let listed = caliber
                .audit(admin, query.clone(), &page)
                .await
                .expect("the trail");
            let details = listed.items.iter().map(|entry| entry.details.as_str().to_owned());
            texts.extend(details.map(|details| ("the audit trail".to_owned(), details)));
            match listed.next {
                Some(next) => page.cursor = Some(next),
                None => return texts,
            }
        }
    }
}

/// A hostile server has a credential of ours, which it would like to see elsewhere.
fn hostile(upstream: &Upstream) -> ServerDefinition {
    static COUNTER: AtomicU32 = AtomicU32::new(1);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let mut definition = definition(&format!("hostile-{number}"), upstream.endpoint());
    let secret = ConfigValue::from_input(SECRET);
    match &mut definition.endpoint {
        Endpoint::Stdio(stdio) => drop(stdio.env.insert("RIG_CREDENTIAL".to_owned(), secret)),
        _ => definition.auth = Auth::Token { token: secret },
    }
    definition
}

/// The record that is owed for an answer.
fn expected_record(answer: &Result<InvokeOutcome>) -> InvocationOutcome {
    let error = match answer {
        Ok(outcome) if outcome.answer.is_error => return InvocationOutcome::ToolError,
        Ok(_) => return InvocationOutcome::Ok,
        Err(error) => error,
    };
    match (error.kind(), error.reason()) {
        (ErrorKind::Timeout, _) => InvocationOutcome::Timeout,
        (ErrorKind::Cancelled, _) => InvocationOutcome::Cancelled,
        (ErrorKind::OutcomeUnknown, _) => InvocationOutcome::OutcomeUnknown,
        // Refused before anything was handed over.
        (ErrorKind::Denied | ErrorKind::ApprovalNeeded | ErrorKind::RateLimited, _)
        | (ErrorKind::Unavailable, Some(ReasonCode::ServerBusy)) => InvocationOutcome::Denied,
        (ErrorKind::Upstream | ErrorKind::TooLarge | ErrorKind::Unavailable, _) => {
            InvocationOutcome::UpstreamError
        }
        _ => panic!("no upstream may cause this: {error:?}"),
    }
}

/// Everything that a caller sees of an answer.
pub(super) fn shown(answer: &Result<InvokeOutcome>) -> String {
    match answer {
        Ok(outcome) => outcome.answer.result.as_str().to_owned(),
        Err(error) => format!("{error} {error:?}"),
    }
}
