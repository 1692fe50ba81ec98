//! The oracles that are functions: what must hold after every hostile run. Those that need a baseline are in
//! [`Watch`](super::Watch).
//!
//! | oracle | asked by |
//! |---|---|
//! | O1 liveness: the control tool and health answer within 1 s | [`Watch`](super::Watch), all the time |
//! | O2 memory: growth under 64 MiB | [`Watch::finish`](super::Watch::finish) |
//! | O3 time: one answer by the deadline and 1 s | [`ends_within`] |
//! | O4 leaks: children, descriptors, tasks back to the baseline within 10 s | [`Watch::finish`](super::Watch::finish) |
//! | O5 audit: one terminal record per call | [`assert_ledger`] |
//! | O6 secrecy: no canary in what anybody is shown | [`assert_absent`] |
//! | O7 no cross-talk | [`assert_no_cross_talk`] |
//! | O8 effects: at most one execution per call | [`assert_executions`] |
//! | O9 process: the same process, not restarted | [`isolated`](super::isolated) |

use std::collections::BTreeSet;
use std::future::Future;
use std::time::{Duration, Instant};

use caliber::core::audit::{AuditAction, AuditQuery};
use caliber::core::invocation::InvocationOutcome;
use caliber::core::page::{PAGE_LIMIT, PageRequest};
use caliber::core::principal::Principal;

use super::server::Server;
use super::upstream::Upstream;
use super::waiting::SECOND;

/// O3: `call` ends by `deadline` and one second more, with its one answer.
pub(crate) async fn ends_within<T>(deadline: Duration, call: impl Future<Output = T>) -> T {
    let started = Instant::now();
    match tokio::time::timeout(deadline + SECOND, call).await {
        Ok(answer) => answer,
        Err(_) => panic!(
            "no answer {:?} after a deadline of {deadline:?}",
            started.elapsed()
        ),
    }
}

/// O5: the ledger of a server holds exactly these terminal outcomes, oldest first, each with one audit entry.
pub(crate) async fn assert_ledger(server: &Server, expected: &[InvocationOutcome]) {
    assert_eq!(outcomes(server).await, expected, "the ledger, oldest first");
}

/// O5: the terminal outcomes in the ledger of a server, oldest first. Fails for a call without one, for a call that
/// is there twice, and for one whose audit entry is missing or there twice.
pub(crate) async fn outcomes(server: &Server) -> Vec<InvocationOutcome> {
    let mut records = server.ledger().await;
    records.reverse();
    let mut seen = BTreeSet::new();
    let mut outcomes = Vec::new();
    for record in &records {
        let id = record.invocation.id.to_string();
        let settlement = record.settlement.as_ref();
        outcomes.push(
            settlement
                .unwrap_or_else(|| panic!("the call {id} has no terminal record"))
                .outcome,
        );
        assert!(seen.insert(id.clone()), "the call {id} is in the ledger twice");
    }
    let mut audited = audited_calls(server).await;
    audited.sort();
    assert_eq!(
        audited,
        seen.into_iter().collect::<Vec<_>>(),
        "each call has one terminal entry in the audit trail"
    );
    outcomes
}

/// The identifiers of the calls that have a terminal entry in the audit trail, one for each entry.
async fn audited_calls(server: &Server) -> Vec<String> {
    let query = AuditQuery {
        entity_id: Some(server.id.to_string()),
        action: Some(AuditAction::InvokeTool),
        ..AuditQuery::default()
    };
    let mut page = PageRequest::first(PAGE_LIMIT);
    let mut calls = Vec::new();
    loop {
        let listed = server
            .caliber
            .audit(server.who().0, query.clone(), &page)
            .await
            .expect("the trail can be read");
        for entry in listed.items {
            let id = entry
                .details
                .member("invocation_id")
                .expect("an entry of a call names it");
            calls.push(id.read::<String>().expect("an identifier is a text"));
        }
        match listed.next {
            Some(next) => page.cursor = Some(next),
            None => return calls,
        }
    }
}

/// O6: none of the canaries stands in any of the texts. Texts are pairs of what they are and what they say.
pub(crate) fn assert_absent<T: AsRef<[u8]>>(canaries: &[&str], texts: impl IntoIterator<Item = (String, T)>) {
    for (what, text) in texts {
        for canary in canaries {
            assert!(
                !holds(text.as_ref(), canary.as_bytes()),
                "{what} holds the secret {canary}"
            );
        }
    }
}

/// Whether `needle` stands in `text`; never for an empty one.
pub(crate) fn holds(text: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && text.windows(needle.len()).any(|window| window == needle)
}

/// O7: what each caller received holds its own canary, and nobody else's.
pub(crate) fn assert_no_cross_talk(received: &[(&Principal, &str, &str)]) {
    for (caller, _, text) in received {
        for (other, canary, _) in received {
            let own = caller.subject == other.subject;
            assert_eq!(
                holds(text.as_bytes(), canary.as_bytes()),
                own,
                "{} received {text:?}; {canary:?} belongs to {}",
                caller.subject,
                other.subject,
            );
        }
    }
}

/// O8: so many tools ran at the upstream, whatever became of their answers.
pub(crate) fn assert_executions(upstream: &Upstream, expected: usize) {
    let executions = upstream.records().text("executions");
    assert_eq!(
        executions.lines().count(),
        expected,
        "executions at the upstream:\n{executions}"
    );
}
