//! What the reference registry holds, and the revisions of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::approval::Approval;
use crate::audit::{AuditEntries, AuditEntry};
use crate::clock::Timestamp;
use crate::code_tool::{CodeToolRecord, FamilyName, ToolVersion};
use crate::descriptor::{Descriptor, ToolName};
use crate::digest::TokenHash;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Grant, Membership};
use crate::id::{
    ApprovalId, AuditId, CodeToolId, GrantId, InvocationId, ProjectId, SecretId, ServerId, TokenId,
};
use crate::inventory::{Inventory, ToolView};
use crate::invocation::InvocationRecord;
use crate::policy::Classification;
use crate::principal::Subject;
use crate::reason::ReasonCode;
use crate::registry::{
    AdmissionQuery, DeploymentReference, Entity, Expect, Revision, RunAdmissionQuery, SecretOwner,
    StoredFacts, StoredRunFacts, ToolFacts,
};
use crate::secret::SecretText;
use crate::server::{ServerName, ServerRecord, Visibility};

/// Everything that is stored.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) servers: BTreeMap<ServerId, ServerRecord>,
    pub(super) names: BTreeMap<ServerName, ServerId>,
    pub(super) inventories: BTreeMap<ServerId, StoredInventory>,
    pub(super) classifications: BTreeMap<(ServerId, ToolName), Classification>,
    pub(super) grants: BTreeMap<GrantId, Grant>,
    pub(super) memberships: BTreeMap<(Subject, Option<ProjectId>), Membership>,
    pub(super) tokens: BTreeMap<TokenId, TokenRecord>,
    pub(super) approvals: BTreeMap<ApprovalId, Approval>,
    pub(super) invocations: BTreeMap<InvocationId, StoredInvocation>,
    pub(super) audit: Trail,
    pub(super) secrets: BTreeMap<SecretId, (SecretOwner, SecretText)>,
    pub(super) deployments: Vec<(ServerId, DeploymentReference)>,
    pub(super) code_tools: BTreeMap<CodeToolId, CodeToolRecord>,
    /// The versions in the order of lists: by family, by project, the newest first.
    pub(super) versions: BTreeMap<VersionKey, CodeToolId>,
    pub(super) code_tool_deployments: Vec<(CodeToolId, DeploymentReference)>,
    revisions: BTreeMap<Entity, Counter>,
}

/// What names a version, in the order of lists.
pub(super) type VersionKey = (FamilyName, ProjectId, Reverse<ToolVersion>);

/// A token with what it is found by.
#[derive(Debug)]
pub(super) struct TokenRecord {
    pub(super) record: crate::token::TokenRecord,
    pub(super) hash: TokenHash,
}

/// A listing with its tools.
#[derive(Debug)]
pub(super) struct StoredInventory {
    pub(super) inventory: Inventory,
    pub(super) tools: BTreeMap<ToolName, Descriptor>,
}

/// A call, with the end of its lease when it was begun.
#[derive(Debug)]
pub(super) struct StoredInvocation {
    pub(super) record: InvocationRecord,
    pub(super) lease_until: Option<Timestamp>,
}

/// How often a thing has changed, and whether it is there.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    changes: u64,
    absent: bool,
}

/// The audit trail in the order of its commits, which is not the order in which the entries were made.
#[derive(Debug, Default)]
pub(super) struct Trail {
    entries: BTreeMap<u64, AuditEntry>,
    positions: BTreeMap<AuditId, u64>,
    last: u64,
}

impl Trail {
    /// Adds an entry, unless it is there.
    pub(super) fn push(&mut self, entry: AuditEntry) {
        if self.positions.contains_key(&entry.id) {
            return;
        }
        self.last += 1;
        self.positions.insert(entry.id.clone(), self.last);
        self.entries.insert(self.last, entry);
    }

    /// Adds several entries.
    pub(super) fn extend(&mut self, entries: &AuditEntries) {
        entries.iter().cloned().for_each(|entry| self.push(entry));
    }

    pub(super) fn get(&self, id: &AuditId) -> Option<&AuditEntry> {
        self.entries.get(self.positions.get(id)?)
    }

    pub(super) fn position(&self, id: &AuditId) -> Option<u64> {
        self.positions.get(id).copied()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &AuditEntry)> {
        self.entries.iter().map(|(position, entry)| (*position, entry))
    }

    /// Removes what was made before `before`; returns how many.
    pub(super) fn prune(&mut self, before: Timestamp) -> u64 {
        let count = self.entries.len();
        self.entries.retain(|_, entry| entry.at >= before);
        let entries = &self.entries;
        self.positions
            .retain(|_, position| entries.contains_key(position));
        size(count - self.entries.len())
    }
}

impl State {
    /// How often `entity` has changed; zero while it is absent.
    pub(super) fn revision(&self, entity: &Entity) -> Revision {
        self.revisions
            .get(entity)
            .filter(|counter| !counter.absent)
            .map_or(Revision(0), |counter| Revision(counter.changes))
    }

    /// Counts a change of `entity`.
    pub(super) fn advance(&mut self, entity: Entity) -> Revision {
        let counter = self.revisions.entry(entity).or_default();
        counter.changes += 1;
        counter.absent = false;
        Revision(counter.changes)
    }

    /// Notes that `entity` has gone. Its count is kept, so that it goes on when the thing comes back.
    pub(super) fn retire(&mut self, entity: Entity) {
        self.revisions.entry(entity).or_default().absent = true;
    }

    /// Refuses a change whose expectations do not hold any more.
    pub(super) fn check(&self, expect: &Expect) -> Result<()> {
        let moved = expect
            .0
            .iter()
            .find(|(entity, revision)| self.revision(entity) != *revision);
        match moved {
            None => Ok(()),
            Some((entity, revision)) => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{entity} was at revision {revision} when this was decided and is at {} now; read it again",
                    self.revision(entity)
                ),
            )
            .with_reason(ReasonCode::StaleRevision)),
        }
    }

    /// The tool with its classification.
    pub(super) fn tool_view(&self, server: &ServerId, descriptor: &Descriptor) -> ToolView {
        ToolView {
            descriptor: descriptor.clone(),
            classification: self
                .classifications
                .get(&(server.clone(), descriptor.name().clone()))
                .cloned(),
        }
    }

    /// Everything that one admission is decided on.
    pub(super) fn facts(&self, query: &AdmissionQuery) -> Option<StoredFacts> {
        let server = self.servers.get(&query.server)?.clone();
        let inventory = self.inventories.get(&query.server);
        let tool = inventory
            .and_then(|stored| stored.tools.get(&query.tool))
            .map(|descriptor| ToolFacts {
                digest: descriptor.digest(),
                input_schema: descriptor.input_schema().clone(),
                output_schema: descriptor.output_schema().cloned(),
            });
        let withheld = inventory.and_then(|stored| {
            let mut withheld = stored.inventory.withheld.iter();
            withheld
                .find(|tool| tool.name == query.tool.as_str())
                .map(|tool| tool.reason.clone())
        });
        let mut projects = BTreeSet::from([server.project.clone()]);
        if server.visibility == Visibility::Public {
            projects.insert(query.project.clone());
        }
        let grants = self
            .grants
            .values()
            .filter(|grant| projects.contains(&grant.project))
            .filter(|grant| grant.opens_tool(&query.subject, &query.server, &query.tool))
            .cloned()
            .collect();
        let approval = query
            .approval
            .as_ref()
            .and_then(|id| self.approvals.get(id))
            .cloned();
        let mut entities = vec![
            Entity::Server(query.server.clone()),
            Entity::Inventory(query.server.clone()),
            Entity::Classification(query.server.clone(), query.tool.clone()),
        ];
        entities.extend(projects.into_iter().map(Entity::Access));
        entities.extend(query.approval.clone().map(Entity::Approval));
        let expect = self.as_they_are(entities);
        Some(StoredFacts {
            discovered: inventory.is_some(),
            tool,
            withheld,
            classification: self
                .classifications
                .get(&(query.server.clone(), query.tool.clone()))
                .cloned(),
            server,
            grants,
            approval,
            expect,
        })
    }

    /// Everything that one admission of a run is decided on.
    pub(super) fn run_facts(&self, query: &RunAdmissionQuery) -> Option<StoredRunFacts> {
        let record = self.code_tools.get(&query.tool)?.clone();
        let mut projects = BTreeSet::from([record.project.clone()]);
        if record.visibility == Visibility::Public {
            projects.insert(query.project.clone());
        }
        let family = &record.definition.family;
        let grants = self
            .grants
            .values()
            .filter(|grant| projects.contains(&grant.project))
            .filter(|grant| grant.opens_family(&query.subject, &record.project, family))
            .cloned()
            .collect();
        let approval = query
            .approval
            .as_ref()
            .and_then(|id| self.approvals.get(id))
            .cloned();
        let mut entities = vec![Entity::CodeTool(query.tool.clone())];
        entities.extend(projects.into_iter().map(Entity::Access));
        entities.extend(query.approval.clone().map(Entity::Approval));
        Some(StoredRunFacts {
            record,
            grants,
            approval,
            expect: self.as_they_are(entities),
        })
    }

    /// The revisions of things.
    fn as_they_are(&self, entities: Vec<Entity>) -> Expect {
        let with_revision = |entity| {
            let revision = self.revision(&entity);
            (entity, revision)
        };
        Expect(entities.into_iter().map(with_revision).collect())
    }
}

/// A count as it is reported.
pub(super) fn size(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
