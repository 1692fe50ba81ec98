//! A backup is taken while everything goes on, is whole, and is restored by being opened.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caliber_core::registry::Registry;
use caliber_core::secret::{SecretReference, SecretSource};
use caliber_store::{ErrorKind, Store, StoreSettings};
use diesel::sql_types::{BigInt, Text};
use diesel::{Connection, QueryableByName, RunQueryDsl, SqliteConnection};

use crate::support::{Home, commit_of, entries, eventually, intent, invocation, registered, with_secret};

#[derive(QueryableByName)]
struct Found {
    #[diesel(sql_type = Text)]
    integrity_check: String,
}

#[derive(QueryableByName)]
struct Count {
    #[diesel(sql_type = BigInt)]
    count: i64,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_restores_to_one_moment() {
    let home = Home::new();
    let store = home.open().await;
    let record = registered(&store, "weather").await;
    let (_, secret) = with_secret(&store, "secretive", "canary-backup").await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (store, record, stop) = (store.clone(), record.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut written = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let call = invocation(&record, &"echo".parse().unwrap());
                    let mut commit = commit_of(intent(&call, Duration::from_secs(60)));
                    commit.audit = entries(call.id.as_str());
                    store.commit(commit).await.unwrap();
                    written.push(call.id);
                }
                written
            })
        })
        .collect();
    eventually("there is load", || store.statistics().commits > 100).await;
    let before = store.statistics().commits;
    let target = home.folder().join("backup.db");
    store.backup(&target).await.unwrap();
    let during = store.statistics().commits;
    eventually("the load goes on", || store.statistics().commits > during + 20).await;
    stop.store(true, Ordering::Relaxed);
    let mut written = Vec::new();
    for writer in writers {
        written.extend(writer.await.unwrap());
    }

    let restored = Home::new();
    fs::copy(&target, restored.path()).unwrap();
    let copy = restored.open().await;
    let mut there = 0;
    for id in &written {
        there += u64::from(copy.invocation(id).await.unwrap().is_some());
    }
    // Two of the commits registered the servers.
    assert!(
        there + 2 >= before,
        "{there} of at least {before} are in the backup"
    );
    assert!(there < written.len() as u64, "the backup did not run under load");
    let value = copy.resolve(&SecretReference::Stored(secret)).await.unwrap();
    assert_eq!(value.expose(), "canary-backup");
    // It is a database like any other.
    registered(&copy, "later").await;
    copy.close().await;

    let mut connection = restored.connect();
    let found: Found = diesel::sql_query("PRAGMA integrity_check")
        .get_result(&mut connection)
        .unwrap();
    assert_eq!(found.integrity_check, "ok");
    let halves: Count = diesel::sql_query(
        "SELECT COUNT(*) AS count FROM invocations WHERE id NOT IN (SELECT entity_id FROM audit_entries)",
    )
    .get_result(&mut connection)
    .unwrap();
    assert_eq!(halves.count, 0, "the backup holds calls without their entries");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_replaces_nothing_and_leaves_nothing_half_done() {
    let home = Home::new();
    let store = home.open().await;
    registered(&store, "weather").await;
    let target = home.folder().join("taken.db");
    fs::write(&target, "precious").unwrap();
    let error = store.backup(&target).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Path, "{error}");
    assert!(error.to_string().contains("exists already"), "{error}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    let absent = home.folder().join("absent/backup.db");
    assert_eq!(store.backup(&absent).await.unwrap_err().kind(), ErrorKind::Path);
    let names: Vec<_> = fs::read_dir(home.folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(!names.iter().any(|name| name.contains("partial")), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_damaged_database_is_refused() {
    let home = Home::new();
    let store = home.open().await;
    for n in 0..200 {
        registered(&store, &format!("server-{n}")).await;
    }
    store.close().await;
    let mut bytes = fs::read(home.path()).unwrap();
    let page = bytes.len() / 4_096 / 2;
    bytes[page * 4_096..(page + 3) * 4_096].fill(0xa5);
    fs::write(home.path(), &bytes).unwrap();
    let settings = StoreSettings {
        check: false,
        ..home.settings()
    };
    let store = Store::open(settings).await.unwrap();
    let target = home.folder().join("backup.db");
    let error = store.backup(&target).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(!target.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_opens_with_any_sqlite() {
    let home = Home::new();
    let store = home.open().await;
    registered(&store, "weather").await;
    let target = home.folder().join("backup.db");
    store.backup(&target).await.unwrap();
    let mut connection = SqliteConnection::establish(target.to_str().unwrap()).unwrap();
    let count: Count = diesel::sql_query("SELECT COUNT(*) AS count FROM servers")
        .get_result(&mut connection)
        .unwrap();
    assert_eq!(count.count, 1);
}
