//! A database that is not as it should be is refused clearly, and left as it is.

use std::fs;
use std::path::Path;
use std::time::Duration;

use caliber_core::reason::ReasonCode;
use caliber_core::registry::Registry;
use caliber_store::{Error, ErrorKind, Store, StoreSettings};
use diesel::connection::SimpleConnection;
use diesel::{Connection, SqliteConnection};

use crate::support::{Home, commit, registered, registration, server};

async fn refused(settings: StoreSettings, kind: ErrorKind, told: &str) -> Error {
    let error = Store::open(settings).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(told) && !text.contains('\n'), "{text}");
    error
}

/// A database with something in it, closed.
async fn filled() -> Home {
    let home = Home::new();
    let store = home.open().await;
    for n in 0..200 {
        registered(&store, &format!("server-{n}")).await;
    }
    store.close().await;
    home
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_can_hold_no_database_is_refused() {
    let home = Home::new();
    let at = |path: &Path| StoreSettings {
        path: path.to_owned(),
        ..home.settings()
    };
    let absent = home.folder().join("absent/caliber.db");
    refused(at(&absent), ErrorKind::Path, "is no directory; make it first").await;
    refused(at(home.folder()), ErrorKind::Path, "is a directory").await;
    let settings = StoreSettings {
        create: false,
        ..home.settings()
    };
    refused(settings, ErrorKind::Path, "does not exist").await;
    assert!(
        fs::read_dir(home.folder()).unwrap().next().is_none(),
        "something was made"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_file_is_refused() {
    let home = filled().await;
    let mut permissions = fs::metadata(home.path()).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(home.path(), permissions).unwrap();
    refused(home.settings(), ErrorKind::ReadOnly, "read-only").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_database_is_refused_in_time() {
    let home = filled().await;
    let mut other = home.connect();
    other
        .batch_execute("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; CREATE TABLE t (a); COMMIT;")
        .unwrap();
    let settings = StoreSettings {
        busy: Duration::from_millis(200),
        ..home.settings()
    };
    let open = refused(settings, ErrorKind::Locked, "another process");
    tokio::time::timeout(Duration::from_secs(5), open).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_database_is_refused_and_left_alone() {
    for content in ["hello\n".to_owned(), "no database\n".repeat(1_000)] {
        let home = Home::new();
        fs::write(home.path(), &content).unwrap();
        refused(home.settings(), ErrorKind::NotADatabase, "no database of caliber").await;
        assert_eq!(fs::read_to_string(home.path()).unwrap(), content);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_of_another_program_is_refused() {
    let home = Home::new();
    home.execute("CREATE TABLE notes (text TEXT)");
    refused(home.settings(), ErrorKind::NotADatabase, "another program").await;
    let home = Home::new();
    home.execute("PRAGMA application_id = 7");
    refused(home.settings(), ErrorKind::NotADatabase, "another program").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_refused() {
    let home = filled().await;
    let whole = fs::read(home.path()).unwrap();
    assert!(whole.len() > 20 * 4_096, "the file is too small for this test");
    // Pages overwritten, and a file cut short.
    let mut bent = whole.clone();
    bent[10 * 4_096..16 * 4_096].fill(0xa5);
    let cut = whole[..12 * 4_096].to_vec();
    for damaged in [bent, cut] {
        fs::write(home.path(), &damaged).unwrap();
        let error = refused(home.settings(), ErrorKind::Corrupt, "damaged").await;
        let core = caliber_core::Error::from(error);
        assert_eq!(core.kind(), caliber_core::ErrorKind::Unavailable);
        assert_eq!(core.reason(), Some(ReasonCode::StoreUnavailable));
        assert_eq!(
            fs::read(home.path()).unwrap(),
            damaged,
            "the damaged file was changed"
        );
    }
    fs::write(home.path(), &whole).unwrap();
    let store = home.open().await;
    assert!(
        store
            .server_by_name(&"server-7".parse().unwrap())
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_refused() {
    let home = filled().await;
    home.execute("INSERT INTO __diesel_schema_migrations (version) VALUES ('29991231000000')");
    let error = refused(home.settings(), ErrorKind::NewerSchema, "newer version").await;
    assert!(
        error.context().contains(&("schema", "29991231000000".to_owned())),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_does_not_hold_the_schema_is_told_as_full() {
    let home = Home::new();
    let settings = StoreSettings {
        max_bytes: Some(16 << 10),
        ..home.settings()
    };
    refused(settings, ErrorKind::Full, "full").await;
    // Nothing is left that a larger limit would stumble over.
    let store = home.open().await;
    registered(&store, "weather").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_refuses_writes_keeps_what_it_has_and_goes_on_reading() {
    let home = Home::new();
    let settings = StoreSettings {
        max_bytes: Some(512 << 10),
        ..home.settings()
    };
    let store = Store::open(settings).await.unwrap();
    let mut kept = Vec::new();
    let error = loop {
        assert!(kept.len() < 10_000, "it never becomes full");
        let record = server(&format!("server-{}", kept.len()));
        match commit(&store, registration(&record)).await {
            Ok(_) => kept.push(record),
            Err(error) => {
                assert!(
                    store.server(&record.id).await.unwrap().is_none(),
                    "half a commit was kept"
                );
                break error;
            }
        }
    };
    assert_eq!(error.kind(), caliber_core::ErrorKind::Unavailable);
    assert_eq!(error.reason(), Some(ReasonCode::StoreUnavailable));
    assert!(error.to_string().contains("full"), "{error}");
    assert!(kept.len() > 10);
    for record in &kept {
        assert!(store.server(&record.id).await.unwrap().is_some());
    }
    store.close().await;
    assert_eq!(audited(&home), i64::try_from(kept.len()).unwrap());
    // With more room it goes on.
    let store = home.open().await;
    registered(&store, "later").await;
}

fn audited(home: &Home) -> i64 {
    use diesel::RunQueryDsl;
    #[derive(diesel::QueryableByName)]
    struct Count {
        #[diesel(sql_type = diesel::sql_types::BigInt)]
        count: i64,
    }
    let count: Count = diesel::sql_query("SELECT COUNT(*) AS count FROM audit_entries")
        .get_result(&mut home.connect())
        .unwrap();
    count.count
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_taken_away_takes_no_more_commits() {
    let home = Home::new();
    let store = home.open().await;
    registered(&store, "weather").await;
    store.ping().await.unwrap();
    fs::rename(home.path(), home.folder().join("elsewhere.db")).unwrap();
    let error = commit(&store, registration(&server("lost"))).await.unwrap_err();
    assert_eq!(error.kind(), caliber_core::ErrorKind::Unavailable);
    assert!(error.to_string().contains("removed or replaced"), "{error}");
    assert_eq!(
        store.ping().await.unwrap_err().reason(),
        Some(ReasonCode::StoreUnavailable)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_says_so_and_leaves_one_file() {
    let home = Home::new();
    let store = home.open().await;
    registered(&store, "weather").await;
    store.close().await;
    for error in [
        commit(&store, registration(&server("late"))).await.unwrap_err(),
        store
            .server_by_name(&"weather".parse().unwrap())
            .await
            .unwrap_err(),
        store.ping().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), caliber_core::ErrorKind::Unavailable);
        assert!(error.to_string().contains("closed"), "{error}");
    }
    let left: Vec<_> = fs::read_dir(home.folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["caliber.db"]);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn the_files_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let store = home.open().await;
    registered(&store, "weather").await;
    store.backup(&home.folder().join("backup.db")).await.unwrap();
    let mut seen = 0;
    for entry in fs::read_dir(home.folder()).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        seen += 1;
    }
    assert_eq!(seen, 4, "database, log, shared memory, backup");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_with_letters_that_mean_something_elsewhere_is_a_path() {
    let home = Home::new();
    let path = home.folder().join("a b?mode=ro&%00'天気.db");
    let settings = StoreSettings {
        path: path.clone(),
        ..home.settings()
    };
    let store = Store::open(settings).await.unwrap();
    registered(&store, "weather").await;
    store.close().await;
    assert!(path.is_file());
    let mut read = SqliteConnection::establish(path.to_str().unwrap()).unwrap();
    read.batch_execute("SELECT * FROM servers").unwrap();
}
