//! Secrets: never in the clear on disk, bound to their server, under a key that can be changed.

use caliber_core::audit::{AuditAction, AuditQuery};
use caliber_core::page::PageRequest;
use caliber_core::principal::{Principal, Surface};
use caliber_core::reason::ReasonCode;
use caliber_core::registry::{Change, NewSecret, Registry, SecretOwner};
use caliber_core::secret::{ConfigValue, SecretReference, SecretSource, SecretText};
use caliber_core::server::Auth;
use caliber_core::{ErrorKind, Result};
use caliber_store::{KeyRing, Store, StoreSettings};

use crate::support::{Home, KEY_ONE, KEY_TWO, commit, contains, registration, server, with_secret};

const CANARY: &str = "canary-7c1e5b0a";

async fn open(home: &Home, keys: &[&str]) -> Store {
    let key_ring = match keys {
        [] => None,
        keys => Some(KeyRing::parse(&keys.join("\n")).unwrap()),
    };
    let settings = StoreSettings {
        key_ring,
        ..home.settings()
    };
    Store::open(settings).await.unwrap()
}

async fn resolve(store: &Store, id: &caliber_core::id::SecretId) -> Result<SecretText> {
    store.resolve(&SecretReference::Stored(id.clone())).await
}

async fn rotate(store: &Store) -> caliber_store::Result<u64> {
    let system = Principal::system();
    store.rotate_secrets((&system, Surface::Command)).await
}

async fn rotations(store: &Store) -> usize {
    let query = AuditQuery {
        action: Some(AuditAction::RotateSecretKey),
        ..AuditQuery::default()
    };
    let page = store.audit(&query, &PageRequest::first(500)).await.unwrap();
    page.items.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_in_no_file() {
    let home = Home::new();
    let store = open(&home, &[KEY_ONE]).await;
    let (record, id) = with_secret(&store, "weather", CANARY).await;
    // In the log, in the database after the log was taken over, and in a backup.
    assert!(home.log_bytes() > 0);
    assert!(!contains(&home.bytes(), CANARY), "the secret is in the log");
    home.execute("PRAGMA wal_checkpoint(TRUNCATE)");
    store.backup(&home.folder().join("backup.db")).await.unwrap();
    let bytes = home.bytes();
    assert!(
        contains(&bytes, record.id.as_str()),
        "the search finds nothing at all"
    );
    assert!(!contains(&bytes, CANARY), "the secret is in a file");
    assert_eq!(resolve(&store, &id).await.unwrap().expose(), CANARY);
    assert!(!format!("{store:?}").contains(&KEY_ONE[..8]));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_nothing_is_written() {
    let home = Home::new();
    let store = open(&home, &[]).await;
    let mut record = server("weather");
    let id = caliber_core::id::SecretId::new();
    record.definition.auth = Auth::Token {
        token: ConfigValue::Reference(SecretReference::Stored(id.clone())),
    };
    let secrets = vec![NewSecret {
        id,
        owner: SecretOwner::Server(record.id.clone()),
        value: SecretText::new(CANARY),
    }];
    let change = Change::RegisterServer {
        record: Box::new(record.clone()),
        secrets,
    };
    let error = commit(&store, change).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.reason(), Some(ReasonCode::SecretKeyMissing));
    assert!(!format!("{error} {error:?}").contains(CANARY));
    assert!(store.server(&record.id).await.unwrap().is_none());
    let trail = store
        .audit(&AuditQuery::default(), &PageRequest::first(10))
        .await
        .unwrap();
    assert!(trail.items.is_empty());
    assert!(!contains(&home.bytes(), CANARY));
    // What needs no key works.
    commit(&store, registration(&server("open"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_is_told_by_its_name() {
    let home = Home::new();
    let store = open(&home, &[KEY_ONE]).await;
    let (_, id) = with_secret(&store, "weather", CANARY).await;
    store.close().await;
    let right = KeyRing::parse(KEY_ONE).unwrap();
    for (keys, told) in [
        (&[][..], "no key is configured"),
        (&[KEY_TWO][..], right.current().as_str()),
    ] {
        let store = open(&home, keys).await;
        let error = resolve(&store, &id).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.reason(), Some(ReasonCode::SecretKeyMissing));
        assert!(error.to_string().contains(told), "{error}");
        store.close().await;
    }
    let store = open(&home, &[KEY_ONE]).await;
    assert_eq!(resolve(&store, &id).await.unwrap().expose(), CANARY);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_was_moved_does_not_open() {
    let home = Home::new();
    let store = open(&home, &[KEY_ONE]).await;
    let (_, one) = with_secret(&store, "one", "canary-one").await;
    let (other, two) = with_secret(&store, "two", "canary-two").await;
    // Somebody with write access to the database lets one server have what was given to the other.
    home.execute(&format!(
        "UPDATE secrets SET (nonce, ciphertext) = (SELECT nonce, ciphertext FROM secrets WHERE id = '{two}') WHERE id = '{one}'"
    ));
    let error = resolve(&store, &one).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::SecretUnresolved), "{error}");
    home.execute(&format!(
        "UPDATE secrets SET server_id = '{}' WHERE id = '{one}'",
        other.id
    ));
    assert!(resolve(&store, &one).await.is_err());
    assert_eq!(resolve(&store, &two).await.unwrap().expose(), "canary-two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_moves_everything_and_leaves_a_trail() {
    let home = Home::new();
    let store = open(&home, &[KEY_ONE]).await;
    let mut stored = Vec::new();
    for n in 0..300 {
        let value = format!("canary-{n}");
        let (_, id) = with_secret(&store, &format!("server-{n}"), &value).await;
        stored.push((id, value));
    }
    assert_eq!(
        rotate(&store).await.unwrap(),
        0,
        "nothing lies under an older key"
    );
    assert_eq!(rotations(&store).await, 0);
    store.close().await;

    let store = open(&home, &[KEY_TWO, KEY_ONE]).await;
    for (id, value) in &stored {
        assert_eq!(resolve(&store, id).await.unwrap().expose(), value);
    }
    assert_eq!(rotate(&store).await.unwrap(), 300);
    assert_eq!(rotations(&store).await, 2, "one entry for each transaction");
    assert_eq!(rotate(&store).await.unwrap(), 0);
    store.close().await;

    let store = open(&home, &[KEY_TWO]).await;
    for (id, value) in &stored {
        assert_eq!(resolve(&store, id).await.unwrap().expose(), value);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_without_the_old_key_changes_nothing() {
    let home = Home::new();
    let store = open(&home, &[KEY_ONE]).await;
    let (_, id) = with_secret(&store, "weather", CANARY).await;
    store.close().await;
    let store = open(&home, &[KEY_TWO]).await;
    let error = rotate(&store).await.unwrap_err();
    assert_eq!(error.kind(), caliber_store::ErrorKind::Key, "{error}");
    assert_eq!(rotations(&store).await, 0);
    store.close().await;
    let store = open(&home, &[]).await;
    assert_eq!(
        rotate(&store).await.unwrap_err().kind(),
        caliber_store::ErrorKind::Key
    );
    store.close().await;
    let store = open(&home, &[KEY_ONE]).await;
    assert_eq!(resolve(&store, &id).await.unwrap().expose(), CANARY);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_is_not_stored_with_a_literal_or_a_foreign_secret() {
    let home = Home::new();
    let store = open(&home, &[KEY_ONE]).await;
    let (_, foreign) = with_secret(&store, "weather", CANARY).await;
    for (token, field) in [
        (ConfigValue::Literal(SecretText::new(CANARY)), "auth_config.token"),
        (ConfigValue::Unchanged, "auth_config.token"),
        (
            ConfigValue::Reference(SecretReference::Stored(foreign)),
            "endpoint",
        ),
    ] {
        let mut record = server("thief");
        record.definition.auth = Auth::Token { token };
        let error = commit(&store, registration(&record)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(error.fields()[0].field, field);
        assert!(!error.to_string().contains(CANARY));
        assert!(store.server(&record.id).await.unwrap().is_none());
    }
    assert!(!contains(&home.bytes(), CANARY));
}
