//! A process that is killed at any moment loses nothing that it was told is done, and leaves nothing half-done.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use caliber_core::audit::{AuditAction, AuditEntry};
use caliber_core::id::InvocationId;
use caliber_core::json::JsonText;
use caliber_core::page::PageRequest;
use caliber_core::principal::{Principal, Surface};
use caliber_core::registry::{Commit, Expect, InvocationsOf, Registry};
use caliber_store::{Store, StoreSettings};
use diesel::sql_types::{BigInt, Text};
use diesel::{QueryableByName, RunQueryDsl};
use tokio::task::JoinSet;

use crate::support::{Home, intent, invocation, now, server};

const KILLS: u32 = 20;
/// Where the process that is to be killed finds its database.
const DATABASE: &str = "CALIBER_STORE_CRASH_DATABASE";

/// The process that is killed: it writes calls from eight callers at once, and tells each that was acknowledged.
/// Without a database it was not started for that, and there is nothing to do.
#[tokio::test(flavor = "multi_thread")]
async fn the_process_that_is_killed() {
    let Some(path) = std::env::var_os(DATABASE) else {
        return;
    };
    let settings = StoreSettings {
        path: path.into(),
        ..StoreSettings::default()
    };
    let store = Store::open(settings).await.unwrap();
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let store = store.clone();
        callers.spawn(async move {
            let record = server(&format!("server-{caller}"));
            loop {
                let call = invocation(&record, &"echo".parse().unwrap());
                let change = intent(&call, Duration::from_secs(60));
                let audit = AuditEntry::new(
                    &Principal::system(),
                    Surface::Library,
                    now(),
                    AuditAction::BeginInvocation,
                    ("call", &call.id),
                    None,
                    JsonText::empty_object(),
                )
                .into();
                let expect = Expect::nothing();
                store
                    .commit(Commit {
                        change,
                        expect,
                        audit,
                    })
                    .await
                    .unwrap();
                // Not by `println!`, which a test harness keeps for itself.
                if writeln!(std::io::stdout().lock(), "acknowledged {}", call.id).is_err() {
                    return;
                }
            }
        });
    }
    while let Some(outcome) = callers.join_next().await {
        outcome.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_any_kill() {
    let home = Home::new();
    let mut acknowledged: BTreeSet<InvocationId> = BTreeSet::new();
    for round in 0..KILLS {
        let before = acknowledged.len();
        let random = uuid::Uuid::new_v4().as_u128() % 150;
        let wanted = before + 1 + usize::try_from(random).unwrap();
        acknowledged.extend(killed_after(&home, wanted - before));
        assert!(acknowledged.len() >= wanted, "round {round}");
        let store = home.open().await;
        for id in &acknowledged {
            let found = store.invocation(id).await.unwrap();
            assert!(
                found.is_some(),
                "round {round}: the acknowledged call {id} is lost"
            );
        }
        store.close().await;
    }
    assert_eq!(
        halves(&home),
        0,
        "a call stands without its entry, or an entry without its call"
    );
    let store = home.open().await;
    let page = store
        .invocations(&InvocationsOf::Everything, &PageRequest::first(500))
        .await
        .unwrap();
    assert!(!page.items.is_empty());
}

/// Runs the process until it has told `count` acknowledged calls, kills it, and returns all that it told.
fn killed_after(home: &Home, count: usize) -> Vec<InvocationId> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::the_process_that_is_killed", "--nocapture"])
        .env(DATABASE, home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut told = Vec::new();
    let mut killed = false;
    let mut line = String::new();
    loop {
        line.clear();
        // After the kill the pipe still holds what was told before it; the last line may be cut.
        if lines.read_line(&mut line).unwrap() == 0 {
            break;
        }
        let whole = line.strip_suffix('\n').unwrap_or_default();
        if let Some((_, id)) = whole.split_once("acknowledged ") {
            told.push(id.parse().unwrap());
        }
        if told.len() >= count && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the process ended by itself");
    told
}

/// Damage of the file, and calls and entries that stand without the other.
fn halves(home: &Home) -> i64 {
    #[derive(QueryableByName)]
    struct Integrity {
        #[diesel(sql_type = Text)]
        integrity_check: String,
    }
    #[derive(QueryableByName)]
    struct Count {
        #[diesel(sql_type = BigInt)]
        count: i64,
    }
    let mut connection = home.connect();
    let integrity: Integrity = diesel::sql_query("PRAGMA integrity_check")
        .get_result(&mut connection)
        .unwrap();
    assert_eq!(integrity.integrity_check, "ok");
    let count: Count = diesel::sql_query(
        "SELECT (SELECT COUNT(*) FROM invocations WHERE id NOT IN (SELECT entity_id FROM audit_entries)) \
         + (SELECT COUNT(*) FROM audit_entries WHERE entity_id NOT IN (SELECT id FROM invocations)) AS count",
    )
    .get_result(&mut connection)
    .unwrap();
    count.count
}
