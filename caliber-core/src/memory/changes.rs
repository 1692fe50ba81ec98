//! How the reference registry makes each change: first everything that can refuse it, then the change.

use std::collections::BTreeSet;

use super::state::{State, StoredInventory, StoredInvocation, TokenRecord, size};
use crate::approval::{Approval, ApprovalState};
use crate::audit::{AuditEntries, AuditEntry};
use crate::clock::Timestamp;
use crate::descriptor::ToolName;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{GrantedTools, Membership};
use crate::id::{InvocationId, ProjectId, SecretId, ServerId};
use crate::inventory::Inventory;
use crate::invocation::{InvocationIntent, InvocationOutcome, InvocationRecord, Settlement};
use crate::policy::Classification;
use crate::reason::ReasonCode;
use crate::registry::{
    Change, Commit, Committed, DeploymentReference, Entity, NewInventory, NewSecret, Retention, Revision,
    SecretOwner,
};
use crate::secret::SecretReference;
use crate::server::{ServerDefinition, ServerRecord};

impl State {
    /// Makes one change, or none at all. `now` is the time of the store.
    pub(super) fn apply(&mut self, commit: Commit, now: Timestamp) -> Result<Committed> {
        let Commit {
            change,
            expect,
            audit,
        } = commit;
        self.check(&expect)?;
        let committed = match change {
            Change::RegisterServer { record, secrets } => moved(self.register(*record, secrets)?),
            Change::UpdateServer { record, secrets } => moved(self.update(*record, secrets)?),
            Change::RemoveServer { id } => moved(self.remove(&id)?),
            Change::RegisterCodeTool { record, secrets } => moved(self.register_code_tool(*record, secrets)?),
            Change::UpdateCodeTool { record } => moved(self.update_code_tool(*record)?),
            Change::RecordInspection { tool } => {
                self.code_tool_exists(&tool)?;
                Committed::default()
            }
            Change::RecordConnection { server, at, error } => {
                self.record_connection(&server, at, error)?;
                Committed::default()
            }
            Change::RecordDiscovery { server, listing } => moved(self.record_discovery(&server, *listing)?),
            Change::Classify { classification } => moved(self.classify(*classification)?),
            Change::Declassify { server, tool } => moved(self.declassify(server, tool)?),
            Change::CreateGrant { grant } => {
                match &grant.tools {
                    GrantedTools::Server { server, .. } => self.server_exists(server)?,
                    GrantedTools::Family { project, family } => self.family_exists(project, family)?,
                }
                let access = Entity::Access(grant.project.clone());
                self.grants.insert(grant.id.clone(), grant);
                moved(self.advance(access))
            }
            Change::DeleteGrant { project, id } => {
                let found = self.grants.get(&id).filter(|grant| grant.project == project);
                found.ok_or_else(|| Error::not_found("grant", id.as_str()))?;
                self.grants.remove(&id);
                moved(self.advance(Entity::Access(project)))
            }
            Change::SetMembership { membership } => moved(self.set_membership(membership)),
            Change::CreateToken { record, hash } => {
                self.tokens
                    .insert(record.id.clone(), TokenRecord { record, hash });
                Committed::default()
            }
            Change::RevokeToken { id, project, at } => {
                let found = self
                    .tokens
                    .get_mut(&id)
                    .map(|token| &mut token.record)
                    .filter(|token| {
                        token.revoked_at.is_none() && (project.is_none() || token.project == project)
                    });
                found
                    .ok_or_else(|| Error::not_found("token", id.as_str()))?
                    .revoked_at = Some(at);
                Committed::default()
            }
            Change::CreateApproval { approval, limit } => {
                self.may_wait(&approval, limit, now)?;
                let id = approval.id.clone();
                self.approvals.insert(id.clone(), *approval);
                moved(self.advance(Entity::Approval(id)))
            }
            Change::DecideApproval { approval } => moved(self.decide(*approval, now)?),
            Change::BeginInvocation { intent } => moved(self.begin(*intent, now)?),
            Change::SettleInvocation { id, settlement } => {
                self.settle(&id, *settlement)?;
                Committed::default()
            }
            Change::RecordInvocations { records } => self.record_invocations(records),
            // Both keep their entry only when they touched something.
            Change::SettleOrphans { limit } => return Ok(self.settle_orphans(limit, &audit, now)),
            Change::Prune(retention) => {
                let affected = self.prune(retention);
                if affected > 0 {
                    self.audit.extend(&audit);
                }
                return Ok(Committed {
                    affected,
                    ..Committed::default()
                });
            }
        };
        self.audit.extend(&audit);
        Ok(committed)
    }

    fn server_exists(&self, id: &ServerId) -> Result<()> {
        if self.servers.contains_key(id) {
            Ok(())
        } else {
            Err(Error::not_found("server", id.as_str()))
        }
    }

    fn register(&mut self, mut record: ServerRecord, secrets: Vec<NewSecret>) -> Result<Revision> {
        let name = record.definition.name.clone();
        if self.names.contains_key(&name) || self.servers.contains_key(&record.id) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("the name {name} is taken; choose another"),
            )
            .with_reason(ReasonCode::NameTaken));
        }
        let id = record.id.clone();
        let revision = self.advance(Entity::Server(id.clone()));
        record.revision = revision;
        self.names.insert(name, id.clone());
        self.servers.insert(id, record);
        self.keep_secrets(secrets);
        Ok(revision)
    }

    fn update(&mut self, record: ServerRecord, secrets: Vec<NewSecret>) -> Result<Revision> {
        let absent = || Error::not_found("server", record.id.as_str());
        let stored = self.servers.get(&record.id).ok_or_else(absent)?;
        if stored.definition.name != record.definition.name {
            return Err(Error::invalid("name", "the name of a server never changes"));
        }
        let moved = stored.definition.fingerprint() != record.definition.fingerprint();
        let (id, at) = (record.id.clone(), record.updated_at);
        let revision = self.advance(Entity::Server(id.clone()));
        if let Some(stored) = self.servers.get_mut(&id) {
            stored.revision = revision;
            stored.definition = record.definition;
            stored.owner = record.owner;
            stored.visibility = record.visibility;
            stored.status = record.status;
            stored.updated_at = at;
            let referred = stored_secrets(&stored.definition);
            let owner = SecretOwner::Server(id.clone());
            self.secrets
                .retain(|secret, (of, _)| *of != owner || referred.contains(secret));
        }
        self.keep_secrets(secrets);
        if moved {
            for bound in self
                .classifications
                .values_mut()
                .filter(|bound| bound.server == id)
            {
                bound.drifted_at.get_or_insert(at);
            }
        }
        Ok(revision)
    }

    pub(super) fn keep_secrets(&mut self, secrets: Vec<NewSecret>) {
        for NewSecret { id, owner, value } in secrets {
            self.secrets.insert(id, (owner, value));
        }
    }

    fn remove(&mut self, id: &ServerId) -> Result<Revision> {
        let absent = || Error::not_found("server", id.as_str());
        let record = self.servers.get(id).ok_or_else(absent)?;
        let needed: Vec<_> = self
            .deployments
            .iter()
            .filter(|(server, _)| server == id)
            .collect();
        if let Some((_, first)) = needed.first() {
            return Err(in_use("server", needed.len(), first));
        }
        self.names.remove(&record.definition.name);
        self.servers.remove(id);
        self.inventories.remove(id);
        self.grants.retain(|_, grant| grant.server() != Some(id));
        let owner = SecretOwner::Server(id.clone());
        self.secrets.retain(|_, (of, _)| *of != owner);
        let tools: Vec<_> = self
            .classifications
            .keys()
            .filter(|(server, _)| server == id)
            .cloned()
            .collect();
        for (server, tool) in tools {
            self.classifications.remove(&(server.clone(), tool.clone()));
            self.retire(Entity::Classification(server, tool));
        }
        let revision = self.advance(Entity::Server(id.clone()));
        self.retire(Entity::Server(id.clone()));
        self.retire(Entity::Inventory(id.clone()));
        Ok(revision)
    }

    fn record_connection(&mut self, server: &ServerId, at: Timestamp, error: Option<String>) -> Result<()> {
        let absent = || Error::not_found("server", server.as_str());
        let stored = self.servers.get_mut(server).ok_or_else(absent)?;
        if error.is_none() {
            stored.last_connected_at = Some(at);
        }
        stored.connection_error = error;
        Ok(())
    }

    fn record_discovery(&mut self, server: &ServerId, listing: NewInventory) -> Result<Revision> {
        self.server_exists(server)?;
        if listing.asked_for {
            self.record_connection(server, listing.discovered_at, None)?;
        }
        let revision = self.advance(Entity::Inventory(server.clone()));
        for descriptor in &listing.tools {
            let key = (server.clone(), descriptor.name().clone());
            if let Some(bound) = self.classifications.get_mut(&key)
                && bound.descriptor_digest != descriptor.digest()
            {
                bound.drifted_at.get_or_insert(listing.discovered_at);
            }
        }
        let inventory = Inventory {
            revision,
            discovered_at: listing.discovered_at,
            protocol_version: listing.protocol_version,
            server_info: listing.server_info,
            instructions: listing.instructions,
            tool_count: u32::try_from(listing.tools.len()).unwrap_or(u32::MAX),
            withheld: listing.withheld,
        };
        let tools = listing
            .tools
            .into_iter()
            .map(|tool| (tool.name().clone(), tool))
            .collect();
        self.inventories
            .insert(server.clone(), StoredInventory { inventory, tools });
        Ok(revision)
    }

    fn classify(&mut self, mut classification: Classification) -> Result<Revision> {
        self.server_exists(&classification.server)?;
        let key = (classification.server.clone(), classification.tool.clone());
        let revision = self.advance(Entity::Classification(key.0.clone(), key.1.clone()));
        classification.revision = revision;
        classification.drifted_at = None;
        self.classifications.insert(key, classification);
        Ok(revision)
    }

    fn declassify(&mut self, server: ServerId, tool: ToolName) -> Result<Revision> {
        let key = (server, tool);
        if self.classifications.remove(&key).is_none() {
            return Err(Error::not_found("classification of the tool", key.1.as_str()));
        }
        let entity = Entity::Classification(key.0, key.1);
        let revision = self.advance(entity.clone());
        self.retire(entity);
        Ok(revision)
    }

    fn set_membership(&mut self, membership: Membership) -> Revision {
        let key = (membership.subject.clone(), membership.project.clone());
        if membership.scopes.is_empty() {
            self.memberships.remove(&key);
        } else {
            self.memberships.insert(key, membership.clone());
        }
        membership.project.map_or(Revision(0), |project: ProjectId| {
            self.advance(Entity::Access(project))
        })
    }

    fn decide(&mut self, approval: Approval, now: Timestamp) -> Result<Revision> {
        let absent = || Error::not_found("approval", approval.id.as_str());
        let stored = self.approvals.get_mut(&approval.id).ok_or_else(absent)?;
        if stored.state != ApprovalState::Pending || stored.expires_at <= now {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the request is decided or expired",
            ));
        }
        stored.state = approval.state;
        Ok(self.advance(Entity::Approval(approval.id)))
    }

    fn begin(&mut self, intent: InvocationIntent, now: Timestamp) -> Result<Revision> {
        let InvocationIntent {
            invocation, lease_ms, ..
        } = intent;
        let id = invocation.id.clone();
        if self.invocations.contains_key(&id) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("the call {id} has begun already"),
            ));
        }
        let mut revision = Revision(0);
        if let Some(spent) = &invocation.approval {
            let absent = || Error::not_found("approval", spent.as_str());
            let approval = self.approvals.get_mut(spent).ok_or_else(absent)?;
            match &approval.state {
                ApprovalState::Approved { by, .. } if approval.expires_at > now => {
                    approval.state = ApprovalState::Spent {
                        by: by.clone(),
                        invocation: id.clone(),
                    };
                }
                _ => {
                    return Err(Error::new(
                        ErrorKind::Conflict,
                        "the approval is not approved, expired or spent",
                    )
                    .with_reason(ReasonCode::ApprovalInvalid));
                }
            }
            revision = self.advance(Entity::Approval(spent.clone()));
        }
        let lease = chrono::Duration::milliseconds(i64::try_from(lease_ms).unwrap_or(i64::MAX / 1_000_000));
        let record = InvocationRecord {
            invocation,
            settlement: None,
        };
        let lease_until = Some(now.checked_add_signed(lease).unwrap_or(Timestamp::MAX_UTC));
        self.invocations
            .insert(id, StoredInvocation { record, lease_until });
        Ok(revision)
    }

    fn settle(&mut self, id: &InvocationId, settlement: Settlement) -> Result<()> {
        let absent = || Error::not_found("invocation", id.as_str());
        let stored = self.invocations.get_mut(id).ok_or_else(absent)?;
        if stored.record.settlement.is_some() {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("the call {id} is settled already"),
            ));
        }
        stored.record.settlement = Some(settlement);
        Ok(())
    }

    fn record_invocations(&mut self, records: Vec<InvocationRecord>) -> Committed {
        let before = self.invocations.len();
        for record in records {
            let id = record.invocation.id.clone();
            self.invocations.entry(id).or_insert(StoredInvocation {
                record,
                lease_until: None,
            });
        }
        Committed {
            affected: size(self.invocations.len() - before),
            ..Committed::default()
        }
    }

    fn settle_orphans(&mut self, limit: u32, audit: &AuditEntries, now: Timestamp) -> Committed {
        let due = self.invocations.values_mut().filter(|stored| {
            stored.record.settlement.is_none() && stored.lease_until.is_some_and(|until| until <= now)
        });
        let mut entries = Vec::new();
        for stored in due.take(usize::try_from(limit).unwrap_or(usize::MAX)) {
            let invocation = &stored.record.invocation;
            let lasted = now
                .signed_duration_since(invocation.started_at)
                .num_microseconds();
            let settlement = Settlement {
                outcome: InvocationOutcome::OutcomeUnknown,
                reason: Some(ReasonCode::OutcomeUnknown),
                detail: Some("the instance that made the call has not settled it in time".to_owned()),
                ended_at: now,
                duration_us: lasted.and_then(|lasted| u64::try_from(lasted).ok()).unwrap_or(0),
                result_bytes: None,
            };
            entries.push(AuditEntry::of_invocation(invocation, &settlement));
            stored.record.settlement = Some(settlement);
        }
        let affected = size(entries.len());
        if affected > 0 {
            self.audit.extend(audit);
            entries.into_iter().for_each(|entry| self.audit.push(entry));
        }
        Committed {
            affected,
            ..Committed::default()
        }
    }

    fn may_wait(&self, wanted: &Approval, limit: usize, now: Timestamp) -> Result<()> {
        let waiting = || {
            self.approvals
                .values()
                .filter(|approval| approval.is_waiting(now))
        };
        if let Some(same) = waiting().find(|approval| approval.asks_the_same(wanted)) {
            return Err(Approval::waits_already(&same.id));
        }
        let own = |approval: &&Approval| {
            approval.project == wanted.project && approval.requested_by == wanted.requested_by
        };
        if waiting().filter(own).count() >= limit {
            return Err(Approval::too_many_wait(limit));
        }
        Ok(())
    }

    fn prune(&mut self, retention: Retention) -> u64 {
        let Retention {
            invocations_before,
            audit_before,
            approvals_before,
            tokens_before,
        } = retention;
        let mut removed = 0;
        if let Some(before) = invocations_before {
            let count = self.invocations.len();
            self.invocations.retain(|_, stored| {
                stored
                    .record
                    .settlement
                    .as_ref()
                    .is_none_or(|settlement| settlement.ended_at >= before)
            });
            removed += size(count - self.invocations.len());
        }
        if let Some(before) = approvals_before {
            let gone: Vec<_> = self
                .approvals
                .values()
                .filter(|approval| approval.expires_at < before)
                .map(|approval| approval.id.clone())
                .collect();
            removed += size(gone.len());
            for id in gone {
                self.approvals.remove(&id);
                self.retire(Entity::Approval(id));
            }
        }
        if let Some(before) = tokens_before {
            let count = self.tokens.len();
            self.tokens.retain(|_, token| {
                let ends = [token.record.expires_at, token.record.revoked_at];
                !ends.into_iter().flatten().any(|end| end < before)
            });
            removed += size(count - self.tokens.len());
        }
        removed + audit_before.map_or(0, |before| self.audit.prune(before))
    }
}

/// The refusal to take away what deployments need.
pub(super) fn in_use(what: &str, count: usize, first: &DeploymentReference) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "{count} deployments need this {what}, among them {}@{}",
            crate::text::escaped(&first.alias, 80),
            crate::text::escaped(&first.workflow, 80)
        ),
    )
    .with_reason(ReasonCode::InUse)
}

fn moved(revision: Revision) -> Committed {
    Committed {
        revision,
        affected: 0,
    }
}

/// The stored secrets that a definition refers to.
fn stored_secrets(definition: &ServerDefinition) -> BTreeSet<SecretId> {
    definition
        .config_values()
        .into_iter()
        .filter_map(|(_, value)| match value.reference() {
            Some(SecretReference::Stored(id)) => Some(id.clone()),
            _ => None,
        })
        .collect()
}
