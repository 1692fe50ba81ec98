//! Registering, changing and removing servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::sealing::{apply, differences, refuse_stored, seal};
use super::{Caliber, Inner, viewer};
use crate::audit::{AuditAction, AuditQuery};
use crate::error::{Error, ErrorKind, Result};
use crate::gateway::{ServerHealth, Target, without_last_words};
use crate::id::{AuditId, ProjectId, ServerId};
use crate::inventory::Inventory;
use crate::page::{Page, PageRequest};
use crate::principal::{Principal, Scope, Subject, Surface};
use crate::readiness::{BoundaryReport, Readiness, ReadinessFacts};
use crate::reason::ReasonCode;
use crate::registry::{Change, DeploymentReference, Entity, Expect, Revision, ServerQuery};
use crate::secret::{ConfigValue, SecretText};
use crate::server::{
    Auth, Endpoint, ServerDefinition, ServerLimits, ServerName, ServerRecord, ServerStatus, ServerSummary,
    Sharing, Visibility,
};
use crate::text::escaped;

/// A server to be registered.
#[derive(Clone, Debug)]
pub struct ServerRegistration {
    /// What the admin wrote.
    pub definition: ServerDefinition,
    /// Who will see it.
    pub visibility: Visibility,
}

/// A change of a server; `None` keeps what is there. The name never changes.
#[derive(Clone, Debug, Default)]
pub struct ServerPatch {
    /// The text for people.
    pub description: Option<String>,
    /// The icon for people.
    pub icon: Option<String>,
    /// Where it runs, whole. [`ConfigValue::Unchanged`] keeps a stored value of the same place.
    pub endpoint: Option<Endpoint>,
    /// How we sign in, whole; likewise.
    pub auth: Option<Auth>,
    /// Who may meet in a session.
    pub sharing: Option<Sharing>,
    /// The bounds, whole.
    pub limits: Option<ServerLimits>,
    /// The owner.
    pub owner: Option<Subject>,
    /// Who sees it.
    pub visibility: Option<Visibility>,
    /// Whether it takes part.
    pub status: Option<ServerStatus>,
    /// The revision that the change was decided on; `None` changes whatever is there.
    pub expect: Option<Revision>,
}

/// A server with everything an operator looks at.
#[derive(Clone, Debug)]
pub struct ServerView {
    /// The record; mask its definition before it is shown.
    pub record: ServerRecord,
    /// Whether it may be started or dialled, and how well it is isolated.
    pub readiness: Readiness,
    /// What isolates it: what is enforced, attested, and not there.
    pub boundary: BoundaryReport,
    /// The last live listing, without the tools.
    pub inventory: Option<Inventory>,
    /// How its sessions do in this process.
    pub health: ServerHealth,
}

impl Caliber {
    /// Registers a server in the caller's project. It takes part at once; its tools stay closed until they are
    /// discovered and classified.
    ///
    /// # Errors
    ///
    /// `Forbidden` without `admin`; `Invalid` for a wrong field; `Conflict` with `name_taken`;
    /// `Unavailable` when a literal secret is given and the store has no key for it.
    pub async fn register_server(
        &self,
        who: (&Principal, Surface),
        registration: ServerRegistration,
    ) -> Result<ServerRecord> {
        let (principal, _) = who;
        principal.require(Scope::Admin, &principal.project)?;
        self.inner
            .register(
                who,
                registration,
                &principal.project,
                AuditAction::CreateServer,
                serde_json::Map::new(),
            )
            .await
    }

    /// The servers that the caller sees, by name.
    ///
    /// # Errors
    ///
    /// `Forbidden` without any scope; `Invalid` for a foreign cursor.
    pub async fn servers(
        &self,
        principal: &Principal,
        mut query: ServerQuery,
        page: &PageRequest,
    ) -> Result<Page<ServerSummary>> {
        principal.require(Scope::Viewer, &principal.project)?;
        query.viewer = viewer(principal);
        let mut page = self.inner.registry.servers(&query, page).await?;
        for server in &mut page.items {
            if !principal.scopes_in(&server.project).allow(Scope::Admin) {
                hide_last_words(&mut server.connection_error);
            }
        }
        Ok(page)
    }

    /// A server.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is absent or hidden.
    pub async fn server(&self, principal: &Principal, id: &ServerId) -> Result<ServerView> {
        let mut record = self.inner.visible_server(principal, id).await?;
        let readiness = self.inner.readiness(&self.inner.target(&record)).await;
        let measures = if readiness.boundary.is_child() {
            let gateway = Arc::clone(&self.inner.gateway);
            let asked = tokio::task::spawn_blocking(move || gateway.containment());
            asked.await.unwrap_or_default()
        } else {
            Vec::new()
        };
        let boundary = BoundaryReport::new(&readiness, &measures);
        let inventory = self.inner.registry.inventory(id).await?;
        let mut health = self.inner.gateway.health(id);
        if !principal.scopes_in(&record.project).allow(Scope::Admin) {
            health.stderr_tail = None;
            hide_last_words(&mut record.connection_error);
        }
        Ok(ServerView {
            record,
            readiness,
            boundary,
            inventory,
            health,
        })
    }

    /// A server by its name.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is absent or hidden.
    pub async fn server_named(&self, principal: &Principal, name: &str) -> Result<ServerRecord> {
        let absent = || Error::not_found("server", name);
        let parsed: ServerName = name.parse().map_err(|_| absent())?;
        let record = self
            .inner
            .registry
            .server_by_name(&parsed)
            .await?
            .ok_or_else(absent)?;
        if super::sees(principal, (&record.owner, &record.project, record.visibility)) {
            Ok(record)
        } else {
            Err(absent())
        }
    }

    /// Whether a definition may be started or dialled here, without registering it.
    ///
    /// # Errors
    ///
    /// `Forbidden` without `admin`; `Invalid` for a wrong field.
    pub async fn readiness(&self, principal: &Principal, definition: ServerDefinition) -> Result<Readiness> {
        principal.require(Scope::Admin, &principal.project)?;
        definition.validate()?;
        refuse_stored(&definition)?;
        Ok(self
            .inner
            .readiness(&Target {
                server: None,
                definition: Arc::new(definition),
            })
            .await)
    }

    /// Changes a server. A change of the place drifts every classification and ends its sessions. A secret does
    /// not follow the server to another origin: it must be given again.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Forbidden` without `admin`, `Invalid`, `Conflict` with `stale_revision` or
    /// `secret_origin_changed`.
    pub async fn update_server(
        &self,
        who: (&Principal, Surface),
        id: &ServerId,
        patch: ServerPatch,
    ) -> Result<ServerRecord> {
        let inner = &self.inner;
        let before = inner.server_for(who.0, id, Scope::Admin).await?;
        if patch.expect.is_some_and(|expected| expected != before.revision) {
            return Err(stale(&before));
        }
        let mut after = before.clone();
        apply(&mut after, patch)?;
        after.definition.validate()?;
        let secrets = seal(&mut after)?;
        let changes = differences(&before, &after)?;
        if changes.is_empty() && secrets.is_empty() {
            return Ok(before);
        }
        after.updated_at = inner.now();
        let moved = before.definition.fingerprint() != after.definition.fingerprint();
        let details =
            serde_json::json!({ "name": after.definition.name, "changes": changes, "place_changed": moved });
        let audit = inner.entry(
            who,
            AuditAction::UpdateServer,
            ("mcp_server", id.as_str()),
            Some(&after.project),
            details,
        )?;
        let expect = Expect::revision(Entity::Server(id.clone()), before.revision);
        let change = Change::UpdateServer {
            record: Box::new(after.clone()),
            secrets,
        };
        after.revision = inner.commit(change, expect, audit).await?.revision;
        Ok(after)
    }

    /// Removes a server with its inventory, classifications, grants and secrets. The audit entry keeps the
    /// definition, secrets masked; [`restore_server`](Self::restore_server) reads it.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Forbidden` without `admin`, `Conflict` with `in_use` (naming the deployments) or
    /// `stale_revision`.
    pub async fn remove_server(
        &self,
        who: (&Principal, Surface),
        id: &ServerId,
        expect: Option<Revision>,
    ) -> Result<()> {
        let inner = &self.inner;
        let record = inner.server_for(who.0, id, Scope::Admin).await?;
        if expect.is_some_and(|expected| expected != record.revision) {
            return Err(stale(&record));
        }
        refuse_in_use("server", &inner.registry.deployments_using(id).await?)?;
        let details = serde_json::json!({
            "name": record.definition.name,
            "snapshot": {
                "definition": record.definition.masked(),
                "visibility": record.visibility,
                "owner": record.owner,
            },
        });
        let audit = inner.entry(
            who,
            AuditAction::DeleteServer,
            ("mcp_server", id.as_str()),
            Some(&record.project),
            details,
        )?;
        let expect = Expect::revision(Entity::Server(id.clone()), record.revision);
        inner
            .commit(Change::RemoveServer { id: id.clone() }, expect, audit)
            .await?;
        inner.listings.forget(id);
        Ok(())
    }

    /// Registers a removed server again from the audit entry of its removal, under a new identifier. Stored
    /// secrets were not kept: `secrets` gives each again, by the path of its field, such as `auth_config.token`.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no such entry, `Forbidden` without `admin` in its project, `Invalid` naming
    /// each secret that is missing, `Conflict` with `name_taken`.
    pub async fn restore_server(
        &self,
        who: (&Principal, Surface),
        entry: &AuditId,
        mut secrets: BTreeMap<String, SecretText>,
    ) -> Result<ServerRecord> {
        #[derive(serde::Deserialize)]
        struct Details {
            snapshot: Snapshot,
        }
        #[derive(serde::Deserialize)]
        struct Snapshot {
            definition: ServerDefinition,
            visibility: Visibility,
        }
        let absent = || Error::not_found("audit entry of a removed server", entry.as_str());
        let found = self
            .inner
            .registry
            .audit_entry(entry)
            .await?
            .filter(|found| found.action == AuditAction::DeleteServer);
        let found = found.ok_or_else(absent)?;
        let project = found.project.clone().ok_or_else(absent)?;
        if who.0.scopes_in(&project).is_empty() {
            return Err(absent());
        }
        who.0.require(Scope::Admin, &project)?;
        let Details {
            snapshot: Snapshot {
                mut definition,
                visibility,
            },
        } = found.details.read()?;
        for (path, value) in definition.config_values_mut() {
            if let (ConfigValue::Unchanged, Some(secret)) = (&*value, secrets.remove(&path)) {
                *value = ConfigValue::Literal(secret);
            }
        }
        if let Some(path) = secrets.into_keys().next() {
            return Err(Error::invalid(
                format!("secrets.{}", escaped(&path, 80)),
                "the server has no secret at this place",
            ));
        }
        let details = serde_json::Map::from_iter([("restored_from".to_owned(), serde_json::json!(entry))]);
        let registration = ServerRegistration {
            definition,
            visibility,
        };
        self.inner
            .register(who, registration, &project, AuditAction::RestoreServer, details)
            .await
    }

    /// The deployments that need a server.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is absent or hidden.
    pub async fn deployments_using(
        &self,
        principal: &Principal,
        id: &ServerId,
    ) -> Result<Vec<DeploymentReference>> {
        self.inner.visible_server(principal, id).await?;
        self.inner.registry.deployments_using(id).await
    }

    /// Everything the trail holds about a server, newest first, also after its removal. Like the whole trail it
    /// is for operators.
    ///
    /// # Errors
    ///
    /// `NotFound` when the server is hidden, or was never there; once it is removed, also without `operator` in
    /// its project. `Forbidden` without `operator` in the project of a server that the caller sees.
    pub async fn server_history(
        &self,
        principal: &Principal,
        id: &ServerId,
        page: &PageRequest,
    ) -> Result<Page<crate::audit::AuditEntry>> {
        let inner = &self.inner;
        let query = AuditQuery {
            entity_type: Some("mcp_server".to_owned()),
            entity_id: Some(id.to_string()),
            ..AuditQuery::default()
        };
        if inner.registry.server(id).await?.is_some() {
            inner.server_for(principal, id, Scope::Operator).await?;
        } else {
            let last = inner.registry.audit(&query, &PageRequest::first(1)).await?.items;
            let project = last.first().and_then(|entry| entry.project.as_ref());
            if !project.is_some_and(|project| principal.scopes_in(project).allow(Scope::Operator)) {
                return Err(Error::not_found("server", id.as_str()));
            }
        }
        inner.flush_records().await?;
        inner.registry.audit(&query, page).await
    }
}

impl Inner {
    async fn register(
        &self,
        who: (&Principal, Surface),
        registration: ServerRegistration,
        project: &ProjectId,
        action: AuditAction,
        mut details: serde_json::Map<String, serde_json::Value>,
    ) -> Result<ServerRecord> {
        registration.definition.validate()?;
        refuse_stored(&registration.definition)?;
        let now = self.now();
        let mut record = ServerRecord {
            id: ServerId::new(),
            revision: Revision(1),
            definition: registration.definition,
            owner: who.0.subject.clone(),
            project: project.clone(),
            visibility: registration.visibility,
            status: ServerStatus::Active,
            last_connected_at: None,
            connection_error: None,
            created_at: now,
            updated_at: now,
        };
        let secrets = seal(&mut record)?;
        details.insert("name".to_owned(), serde_json::json!(record.definition.name));
        details.insert(
            "transport".to_owned(),
            serde_json::json!(record.definition.endpoint.transport()),
        );
        let entity = ("mcp_server", record.id.as_str());
        let audit = self.entry(who, action, entity, Some(project), details.into())?;
        let change = Change::RegisterServer {
            record: Box::new(record.clone()),
            secrets,
        };
        self.commit(change, Expect::nothing(), audit).await?;
        Ok(record)
    }

    pub(super) fn target(&self, record: &ServerRecord) -> Target {
        Target {
            server: Some(record.id.clone()),
            definition: Arc::new(record.definition.clone()),
        }
    }

    pub(super) async fn readiness(&self, target: &Target) -> Readiness {
        let endpoint = self.gateway.inspect(target).await;
        self.policy.readiness(&ReadinessFacts {
            definition: Arc::clone(&target.definition),
            endpoint,
        })
    }
}

/// What a server's process wrote may be anything, also a secret of its own: it is for admins.
fn hide_last_words(error: &mut Option<String>) {
    if let Some(error) = error {
        error.truncate(without_last_words(error).len());
    }
}

fn stale(record: &ServerRecord) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the server has changed since it was read; it is at revision {} now",
            record.revision
        ),
    )
    .with_reason(ReasonCode::StaleRevision)
}

/// The refusal to remove what deployments need, naming them.
pub(super) fn refuse_in_use(what: &str, references: &[DeploymentReference]) -> Result<()> {
    if references.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = references
        .iter()
        .take(20)
        .map(|reference| {
            let rollback = if reference.rollback_only {
                " (rollback)"
            } else {
                ""
            };
            format!(
                "{}@{}{rollback}",
                escaped(&reference.alias, 80),
                escaped(&reference.workflow, 80)
            )
        })
        .collect();
    Err(Error::new(
        ErrorKind::Conflict,
        format!("active deployments need this {what}: {}", names.join(", ")),
    )
    .with_reason(ReasonCode::InUse))
}
