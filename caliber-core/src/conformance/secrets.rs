//! The contract of [`SecretSource`], in cases: for any source, and for a store that keeps secrets.

use std::sync::Arc;

use super::samples::{code_tool, commit, commit_expecting, now, refused, server, with_token};
use super::{Case, cases, run_all};
use crate::code_tool::CodeToolStatus;
use crate::error::ErrorKind;
use crate::id::SecretId;
use crate::registry::{Change, Entity, Expect, NewSecret, Registry, Revision, SecretOwner};
use crate::secret::{ConfigValue, SecretReference, SecretSource, SecretText};
use crate::server::{Auth, ServerRecord};

/// A source resolves what it holds, and tells what it does not hold by an error, never by an empty value.
///
/// `known` are references that the source resolves, each with its value.
///
/// # Panics
///
/// When the source does otherwise, or shows a value.
pub async fn run(source: &dyn SecretSource, known: &[(SecretReference, SecretText)]) {
    for (reference, value) in known {
        let resolved = source
            .resolve(reference)
            .await
            .unwrap_or_else(|error| panic!("{reference}: {error}"));
        assert_eq!(
            resolved.expose(),
            value.expose(),
            "{reference} resolves to another value"
        );
        assert!(
            !format!("{source:?}").contains(value.expose()),
            "the source shows a value"
        );
    }
    for absent in [
        SecretReference::Stored(SecretId::new()),
        SecretReference::Environment("CALIBER_CONFORMANCE_ABSENT".to_owned()),
        SecretReference::File("/caliber-conformance/absent".to_owned()),
    ] {
        match source.resolve(&absent).await {
            Ok(_) => panic!("{absent} is absent and was resolved"),
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::Unsupported | ErrorKind::Forbidden
                ),
                "{absent}: {error}"
            ),
        }
    }
}

/// A registry and the source that resolves what is stored in it.
pub type StoredSecrets = (Arc<dyn Registry>, Arc<dyn SecretSource>);

/// Runs every case of [`stored_cases`] on a store of its own, which is empty and can keep secrets.
///
/// # Panics
///
/// With the names of the clauses that are violated.
pub async fn run_stored(make: impl AsyncFn() -> StoredSecrets) {
    run_all(stored_cases(), make).await;
}

/// Every clause, to be run one by one.
pub fn stored_cases() -> Vec<Case<StoredSecrets>> {
    cases![
        clauses::{
            a_stored_secret_resolves_to_the_same_bytes,
            a_secret_that_is_no_longer_referred_to_is_gone,
            a_secret_goes_with_its_server,
            a_refused_change_stores_and_removes_no_secret,
            a_change_of_one_server_leaves_the_secrets_of_another,
            a_code_tool_keeps_its_secrets_and_no_others,
            other_kinds_are_not_resolved_here,
        }
    ]
}

mod clauses {
    use super::*;

    fn secret(server: &ServerRecord, id: &SecretId, value: &str) -> NewSecret {
        NewSecret {
            id: id.clone(),
            owner: SecretOwner::Server(server.id.clone()),
            value: SecretText::new(value),
        }
    }

    /// Registers a server whose token is a stored secret.
    async fn registered(registry: &dyn Registry, name: &str, value: &str) -> (ServerRecord, SecretId) {
        let id = SecretId::new();
        let record = with_token(server(name), &id);
        let secrets = vec![secret(&record, &id, value)];
        let change = Change::RegisterServer {
            record: Box::new(record.clone()),
            secrets,
        };
        commit(registry, change).await.unwrap();
        (record, id)
    }

    async fn value(source: &dyn SecretSource, id: &SecretId) -> Option<String> {
        match source.resolve(&SecretReference::Stored(id.clone())).await {
            Ok(value) => Some(value.expose().to_owned()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                None
            }
        }
    }

    pub(super) async fn a_stored_secret_resolves_to_the_same_bytes(stored: StoredSecrets) {
        let (registry, source) = stored;
        let long = "x".repeat(crate::secret::SECRET_LENGTH);
        for (index, text) in ["s", "天気 \u{2028} \" \\ ' %00", long.as_str()]
            .into_iter()
            .enumerate()
        {
            let (_, id) = registered(&*registry, &format!("server-{index}"), text).await;
            assert_eq!(value(&*source, &id).await.as_deref(), Some(text));
            assert!(!format!("{source:?} {registry:?}").contains(text) || text == "s");
        }
    }

    pub(super) async fn a_secret_that_is_no_longer_referred_to_is_gone(stored: StoredSecrets) {
        let (registry, source) = stored;
        let (record, old) = registered(&*registry, "weather", "old").await;
        // Kept, as long as the definition refers to it.
        let same = Change::UpdateServer {
            record: Box::new(record.clone()),
            secrets: Vec::new(),
        };
        commit(&*registry, same).await.unwrap();
        assert_eq!(value(&*source, &old).await.as_deref(), Some("old"));
        let new = SecretId::new();
        let after = with_token(record, &new);
        let secrets = vec![secret(&after, &new, "new")];
        let change = Change::UpdateServer {
            record: Box::new(after.clone()),
            secrets,
        };
        commit(&*registry, change).await.unwrap();
        assert_eq!(value(&*source, &old).await, None);
        assert_eq!(value(&*source, &new).await.as_deref(), Some("new"));
        let mut none = after;
        none.definition.auth = Auth::None;
        let change = Change::UpdateServer {
            record: Box::new(none),
            secrets: Vec::new(),
        };
        commit(&*registry, change).await.unwrap();
        assert_eq!(value(&*source, &new).await, None);
    }

    pub(super) async fn a_secret_goes_with_its_server(stored: StoredSecrets) {
        let (registry, source) = stored;
        let (record, id) = registered(&*registry, "weather", "canary").await;
        commit(&*registry, Change::RemoveServer { id: record.id })
            .await
            .unwrap();
        assert_eq!(value(&*source, &id).await, None);
    }

    pub(super) async fn a_refused_change_stores_and_removes_no_secret(stored: StoredSecrets) {
        let (registry, source) = stored;
        let (record, old) = registered(&*registry, "weather", "old").await;
        let new = SecretId::new();
        let second = with_token(server("weather"), &new);
        let secrets = vec![secret(&second, &new, "new")];
        let taken = Change::RegisterServer {
            record: Box::new(second),
            secrets,
        };
        assert_eq!(
            commit(&*registry, taken).await.unwrap_err().kind(),
            ErrorKind::Conflict
        );
        let after = with_token(record.clone(), &new);
        let secrets = vec![secret(&after, &new, "new")];
        let update = Change::UpdateServer {
            record: Box::new(after),
            secrets,
        };
        let stale = Expect::revision(Entity::Server(record.id), Revision(9));
        let outcome = commit_expecting(&*registry, update, stale).await;
        refused(
            outcome,
            ErrorKind::Conflict,
            Some(crate::reason::ReasonCode::StaleRevision),
        );
        assert_eq!(value(&*source, &new).await, None);
        assert_eq!(value(&*source, &old).await.as_deref(), Some("old"));
    }

    pub(super) async fn a_change_of_one_server_leaves_the_secrets_of_another(stored: StoredSecrets) {
        let (registry, source) = stored;
        let (mut one, _) = registered(&*registry, "one", "one").await;
        let (_, other) = registered(&*registry, "two", "two").await;
        one.definition.auth = Auth::None;
        one.updated_at = now();
        let id = one.id.clone();
        let change = Change::UpdateServer {
            record: Box::new(one),
            secrets: Vec::new(),
        };
        commit(&*registry, change).await.unwrap();
        assert_eq!(value(&*source, &other).await.as_deref(), Some("two"));
        commit(&*registry, Change::RemoveServer { id }).await.unwrap();
        assert_eq!(value(&*source, &other).await.as_deref(), Some("two"));
    }

    pub(super) async fn a_code_tool_keeps_its_secrets_and_no_others(stored: StoredSecrets) {
        let (registry, source) = stored;
        let (server, of_server) = registered(&*registry, "weather", "server's").await;
        let registration = |version: &str, id: &SecretId, given: bool| {
            let mut record = code_tool("weather", version);
            let reference = ConfigValue::Reference(SecretReference::Stored(id.clone()));
            record
                .definition
                .secret_refs
                .insert("TOKEN".to_owned(), reference);
            let secret = NewSecret {
                id: id.clone(),
                owner: SecretOwner::CodeTool(record.id.clone()),
                value: SecretText::new("tool's"),
            };
            let change = Change::RegisterCodeTool {
                record: Box::new(record.clone()),
                secrets: given.then_some(secret).into_iter().collect(),
            };
            (record, change)
        };
        let id = SecretId::new();
        let (mut record, change) = registration("1", &id, true);
        commit(&*registry, change).await.unwrap();
        assert_eq!(value(&*source, &id).await.as_deref(), Some("tool's"));
        // A refused registration stores nothing.
        let refused_id = SecretId::new();
        let (_, taken) = registration("1", &refused_id, true);
        assert_eq!(
            commit(&*registry, taken).await.unwrap_err().kind(),
            ErrorKind::Conflict
        );
        assert_eq!(value(&*source, &refused_id).await, None);
        // The secret of a server or of another version is not to be had.
        for foreign in [&of_server, &id, &SecretId::new()] {
            let (_, change) = registration("2", foreign, false);
            refused(commit(&*registry, change).await, ErrorKind::Invalid, None);
        }
        // It stays when the version is changed, and when a server ends.
        record.status = CodeToolStatus::Archived;
        let change = Change::UpdateCodeTool {
            record: Box::new(record),
        };
        commit(&*registry, change).await.unwrap();
        commit(&*registry, Change::RemoveServer { id: server.id })
            .await
            .unwrap();
        assert_eq!(value(&*source, &id).await.as_deref(), Some("tool's"));
        assert_eq!(value(&*source, &of_server).await, None);
    }

    pub(super) async fn other_kinds_are_not_resolved_here(stored: StoredSecrets) {
        let (_, source) = stored;
        for reference in [
            SecretReference::Environment("PATH".to_owned()),
            SecretReference::File("/etc/hostname".to_owned()),
        ] {
            refused(source.resolve(&reference).await, ErrorKind::Unsupported, None);
        }
    }
}
