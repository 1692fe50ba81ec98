//! Secrets: written, never shown, bound to the place that they were given for.

use std::collections::BTreeMap;

use caliber_core::audit::AuditAction;
use caliber_core::id::{AuditId, SecretId};
use caliber_core::memory::{self, Parts};
use caliber_core::page::PageRequest;
use caliber_core::principal::{Principal, Surface};
use caliber_core::reason::ReasonCode;
use caliber_core::secret::{ConfigValue, SecretReference, SecretSource, SecretText};
use caliber_core::server::{
    Auth, Endpoint, RemoteEndpoint, ServerDefinition, ServerRecord, StdioEndpoint, Visibility,
};
use caliber_core::{Caliber, ErrorKind, Result, ServerPatch, ServerRegistration};

use crate::support::*;

fn literal(text: &str) -> ConfigValue {
    ConfigValue::Literal(SecretText::new(text))
}

fn stored() -> ConfigValue {
    ConfigValue::Reference(SecretReference::Stored(SecretId::new()))
}

fn remote(url: &str, headers: &[(&str, ConfigValue)]) -> Endpoint {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    Endpoint::StreamableHttp(RemoteEndpoint {
        url: url.to_owned(),
        headers: headers.collect(),
    })
}

/// A definition with every kind of value: two that get stored, one by reference.
fn definition() -> ServerDefinition {
    let mut definition = memory::definition("weather").unwrap();
    let environment = ConfigValue::Reference(SecretReference::Environment("WEATHER_KEY".into()));
    definition.endpoint = remote(
        "https://weather.example/mcp",
        &[("X-Key", literal("canary-header")), ("X-Env", environment)],
    );
    definition.auth = Auth::Token {
        token: literal("canary-token"),
    };
    definition
}

async fn register(caliber: &Caliber, who: &Principal, definition: ServerDefinition) -> Result<ServerRecord> {
    let registration = ServerRegistration {
        definition,
        visibility: Visibility::Project,
    };
    caliber.register_server((who, Surface::Http), registration).await
}

/// The values behind a definition, by the path of their field.
async fn values(parts: &Parts, record: &ServerRecord) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for (path, value) in record.definition.config_values() {
        let reference = value
            .reference()
            .expect("a registered definition holds references only");
        if matches!(reference, SecretReference::Stored(_)) {
            let secret = parts.registry.resolve(reference).await.unwrap();
            values.insert(path, secret.expose().to_owned());
        }
    }
    values
}

async fn update(caliber: &Caliber, record: &ServerRecord, patch: ServerPatch) -> Result<ServerRecord> {
    caliber
        .update_server((&admin(), Surface::Http), &record.id, patch)
        .await
}

#[tokio::test]
async fn literal_secrets_move_into_the_store_and_show_nowhere() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let record = register(&caliber, &admin(), definition()).await.unwrap();
    let kept = values(&parts, &record).await;
    assert_eq!(kept["auth_config.token"], "canary-token");
    assert_eq!(kept["headers.X-Key"], "canary-header");
    assert_eq!((kept.len(), parts.registry.secret_count()), (2, 2));
    update(
        &caliber,
        &record,
        ServerPatch {
            description: Some("x".into()),
            ..ServerPatch::default()
        },
    )
    .await
    .unwrap();
    let view = caliber.server(&admin(), &record.id).await.unwrap();
    let history = caliber
        .server_history(&admin(), &record.id, &PageRequest::default())
        .await
        .unwrap();
    caliber
        .remove_server((&admin(), Surface::Http), &record.id, None)
        .await
        .unwrap();
    for shown in [
        format!("{view:?} {record:?} {history:?}"),
        serde_json::to_string(&view.record.definition.masked()).unwrap(),
        serde_json::to_string(&view.record).unwrap(),
        serde_json::to_string(&history).unwrap(),
        serde_json::to_string(&parts.sink.entries()).unwrap(),
    ] {
        assert!(!shown.contains("canary"), "a secret shows: {shown}");
    }
    assert_eq!(
        parts.registry.secret_count(),
        0,
        "a secret has outlived its server"
    );
}

#[tokio::test]
async fn what_is_unchanged_keeps_its_value_and_what_is_given_again_replaces_it() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let record = register(&caliber, &admin(), definition()).await.unwrap();
    // The whole endpoint is sent back as it was shown, with one new header.
    let headers = [
        ("X-Key", ConfigValue::Unchanged),
        (
            "X-Env",
            ConfigValue::Reference(SecretReference::Environment("WEATHER_KEY".into())),
        ),
        ("X-New", literal("canary-new")),
    ];
    let patch = ServerPatch {
        endpoint: Some(remote("https://weather.example/other", &headers)),
        ..ServerPatch::default()
    };
    let after = update(&caliber, &record, patch).await.unwrap();
    let kept = values(&parts, &after).await;
    assert_eq!(kept["headers.X-Key"], "canary-header");
    assert_eq!(kept["headers.X-New"], "canary-new");
    assert_eq!(kept["auth_config.token"], "canary-token");
    let patch = ServerPatch {
        auth: Some(Auth::Token {
            token: literal("canary-second"),
        }),
        ..ServerPatch::default()
    };
    let last = update(&caliber, &after, patch).await.unwrap();
    assert_eq!(values(&parts, &last).await["auth_config.token"], "canary-second");
    assert_eq!(
        parts.registry.secret_count(),
        3,
        "the replaced secret is still stored"
    );
    // A changed secret is told, and not shown.
    let entries = parts.sink.entries();
    let details: serde_json::Value = entries.last().unwrap().details.read().unwrap();
    assert_eq!(details["changes"]["secrets"], "changed", "{details}");
    // A value that was never given cannot be unchanged.
    let patch = ServerPatch {
        auth: Some(Auth::Basic {
            username: "u".into(),
            password: ConfigValue::Unchanged,
        }),
        ..ServerPatch::default()
    };
    let error = refused(update(&caliber, &last, patch).await, ErrorKind::Invalid, None);
    assert_eq!(error.fields()[0].field, "auth_config.password");
}

#[tokio::test]
async fn a_secret_does_not_follow_its_server_to_another_origin() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let record = register(&caliber, &admin(), definition()).await.unwrap();
    let elsewhere = |headers: &[(&str, ConfigValue)]| remote("https://evil.example/mcp", headers);
    let token_reference = match &record.definition.auth {
        Auth::Token { token } => token.clone(),
        other => panic!("{other:?}"),
    };
    let env = ConfigValue::Reference(SecretReference::Environment("WEATHER_KEY".into()));
    let stdio = Endpoint::Stdio(StdioEndpoint {
        command: "/bin/evil".into(),
        args: Vec::new(),
        env: BTreeMap::new(),
    });
    let patches = [
        // The token is kept without a word.
        ServerPatch {
            endpoint: Some(elsewhere(&[])),
            ..ServerPatch::default()
        },
        // It is said to be unchanged.
        ServerPatch {
            endpoint: Some(elsewhere(&[])),
            auth: Some(Auth::Token {
                token: ConfigValue::Unchanged,
            }),
            ..ServerPatch::default()
        },
        // It is named.
        ServerPatch {
            endpoint: Some(elsewhere(&[])),
            auth: Some(Auth::Token {
                token: token_reference,
            }),
            ..ServerPatch::default()
        },
        // A header is said to be unchanged.
        ServerPatch {
            endpoint: Some(elsewhere(&[("X-Key", ConfigValue::Unchanged)])),
            auth: Some(Auth::None),
            ..ServerPatch::default()
        },
        // Another port of the same host is another origin.
        ServerPatch {
            endpoint: Some(remote("https://weather.example:8443/mcp", &[])),
            ..ServerPatch::default()
        },
    ];
    for patch in patches {
        let text = format!("{patch:?}");
        let outcome = update(&caliber, &record, patch).await;
        let Err(error) = outcome else {
            panic!("a secret has followed: {text}")
        };
        assert_eq!(
            error.reason(),
            Some(ReasonCode::SecretOriginChanged),
            "{text}: {error}"
        );
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }
    let untouched = caliber.server(&admin(), &record.id).await.unwrap().record;
    assert_eq!(values(&parts, &untouched).await.len(), 2);
    assert_eq!(untouched.revision, record.revision);
    // Given again, it moves; left behind, it is gone.
    let patch = ServerPatch {
        endpoint: Some(elsewhere(&[("X-Env", env)])),
        auth: Some(Auth::Token {
            token: literal("canary-again"),
        }),
        ..ServerPatch::default()
    };
    let outcome = update(&caliber, &record, patch).await;
    // The reference to the environment was given for the old origin, too, and is given again here.
    let moved = outcome.unwrap();
    assert_eq!(
        values(&parts, &moved).await.into_values().collect::<Vec<_>>(),
        ["canary-again"]
    );
    let patch = ServerPatch {
        endpoint: Some(stdio),
        auth: Some(Auth::None),
        ..ServerPatch::default()
    };
    let local = update(&caliber, &moved, patch).await.unwrap();
    assert!(values(&parts, &local).await.is_empty());
    assert_eq!(parts.registry.secret_count(), 0);
}

#[tokio::test]
async fn a_stored_secret_is_not_reached_through_another_server_or_place() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let victim = register(&caliber, &admin(), definition()).await.unwrap();
    let Auth::Token { token } = victim.definition.auth.clone() else {
        panic!()
    };
    let thief = |value: ConfigValue| {
        let mut definition = memory::definition("thief").unwrap();
        definition.auth = Auth::Token { token: value };
        definition
    };
    for value in [token.clone(), stored()] {
        let outcome = register(&caliber, &admin(), thief(value.clone())).await;
        assert_eq!(
            refused(outcome, ErrorKind::Invalid, None).fields()[0].field,
            "auth_config.token"
        );
        // Nor by trying a definition that is not registered.
        for outcome in [
            caliber
                .check_definition(&admin(), thief(value.clone()))
                .await
                .map(drop),
            caliber
                .discover_definition(&admin(), thief(value.clone()))
                .await
                .map(drop),
            caliber.readiness(&admin(), thief(value.clone())).await.map(drop),
        ] {
            refused(outcome, ErrorKind::Invalid, None);
        }
    }
    let other = register(&caliber, &admin(), thief(literal("own"))).await.unwrap();
    let patch = ServerPatch {
        auth: Some(Auth::Token { token: token.clone() }),
        ..ServerPatch::default()
    };
    refused(update(&caliber, &other, patch).await, ErrorKind::Invalid, None);
    // Not even at another place of the same server.
    let patch = ServerPatch {
        endpoint: Some(remote(
            "https://weather.example/mcp",
            &[("X-Copy", token.clone())],
        )),
        ..ServerPatch::default()
    };
    refused(update(&caliber, &victim, patch).await, ErrorKind::Invalid, None);
    // At its own place the reference says that nothing changes.
    let patch = ServerPatch {
        auth: Some(Auth::Token { token }),
        ..ServerPatch::default()
    };
    let same = update(&caliber, &victim, patch).await.unwrap();
    assert_eq!(values(&parts, &same).await["auth_config.token"], "canary-token");
    // What is not registered has nothing stored.
    let outcome = caliber
        .check_definition(&admin(), thief(ConfigValue::Unchanged))
        .await;
    assert_eq!(
        refused(outcome, ErrorKind::Invalid, None).fields()[0].field,
        "auth_config.token"
    );
}

/// Removes the server and gives the entry of its removal.
async fn remove(parts: &Parts, caliber: &Caliber, record: &ServerRecord) -> AuditId {
    caliber
        .remove_server((&admin(), Surface::Http), &record.id, None)
        .await
        .unwrap();
    parts.sink.entries().last().unwrap().id.clone()
}

#[tokio::test]
async fn a_removed_server_comes_back_from_its_entry_with_its_secrets_given_again() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let record = register(&caliber, &admin(), definition()).await.unwrap();
    let entry = remove(&parts, &caliber, &record).await;
    let restore = async |secrets: &[(&str, &str)]| {
        let secrets = secrets
            .iter()
            .map(|(path, value)| ((*path).to_owned(), SecretText::new(*value)));
        caliber
            .restore_server((&admin(), Surface::Http), &entry, secrets.collect())
            .await
    };
    let error = refused(restore(&[]).await, ErrorKind::Invalid, None);
    let missing: Vec<_> = error.fields().iter().map(|field| field.field.as_str()).collect();
    assert_eq!(missing, ["headers.X-Key", "auth_config.token"]);
    let both = [
        ("headers.X-Key", "new-header"),
        ("auth_config.token", "new-token"),
    ];
    let surplus = [both[0], both[1], ("auth_config.password", "x")];
    let error = refused(restore(&surplus).await, ErrorKind::Invalid, None);
    assert_eq!(error.fields()[0].field, "secrets.auth_config.password");
    let back = restore(&both).await.unwrap();
    assert_ne!(back.id, record.id);
    assert_eq!(back.definition.fingerprint(), record.definition.fingerprint());
    let kept = values(&parts, &back).await;
    assert_eq!(
        (kept["headers.X-Key"].as_str(), kept["auth_config.token"].as_str()),
        ("new-header", "new-token")
    );
    refused(restore(&both).await, ErrorKind::Conflict, ReasonCode::NameTaken);
    let entries = parts.sink.entries();
    let restored = entries.last().unwrap();
    assert_eq!(restored.action, AuditAction::RestoreServer);
    assert_eq!(
        restored.details.read::<serde_json::Value>().unwrap()["restored_from"],
        entry.as_str()
    );
}

#[tokio::test]
async fn only_the_entry_of_a_removal_restores() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let plain = memory::definition("plain").unwrap();
    let record = register(&caliber, &admin(), plain).await.unwrap();
    let registration = parts.sink.entries().last().unwrap().id.clone();
    let entry = remove(&parts, &caliber, &record).await;
    let restore = async |who: &Principal, entry: &AuditId| {
        caliber
            .restore_server((who, Surface::Http), entry, BTreeMap::new())
            .await
    };
    let absent = refused(
        restore(&admin(), &AuditId::new()).await,
        ErrorKind::NotFound,
        None,
    );
    let other = refused(restore(&admin(), &registration).await, ErrorKind::NotFound, None);
    assert_eq!(shape(&other), shape(&absent));
    use caliber_core::principal::Scope;
    let stranger = person("eve", "elsewhere", Scope::Admin);
    let hidden = refused(restore(&stranger, &entry).await, ErrorKind::NotFound, None);
    assert_eq!(shape(&hidden), shape(&absent));
    let viewer = person("eve", "default", Scope::Operator);
    refused(restore(&viewer, &entry).await, ErrorKind::Forbidden, None);
    let back = restore(&person("root", "default", Scope::Admin), &entry)
        .await
        .unwrap();
    assert_eq!(back.definition.name.as_str(), "plain");
}
