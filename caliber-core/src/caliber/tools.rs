//! Checks, discovery, and what admins decide about tools.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use similar::TextDiff;

use super::sealing::refuse_stored;
use super::{Caliber, Inner};
use crate::audit::AuditAction;
use crate::clock::Deadline;
use crate::descriptor::{Descriptor, ToolName};
use crate::digest::{DescriptorDigest, Fingerprint};
use crate::error::{Error, ErrorKind, Result};
use crate::gateway::{CheckReport, Listing, Target};
use crate::id::ServerId;
use crate::inventory::{Discovery, Inventory, ToolState, ToolView, WithheldTool};
use crate::page::{Page, PageRequest};
use crate::policy::{Classification, ToolPolicy};
use crate::principal::{Principal, Scope, Surface};
use crate::reason::ReasonCode;
use crate::registry::{Change, Entity, Expect, NewInventory, Revision};
use crate::schema;
use crate::secret::ConfigValue;
use crate::server::{ServerDefinition, ServerRecord};
use crate::text::escaped;

/// How often a listing is compared again when the inventory moved meanwhile.
const RECORD_ATTEMPTS: usize = 3;

/// What came of a check: a report, or the error that an operator needs to see. Both are recorded.
#[derive(Debug)]
pub struct CheckOutcome {
    /// The report.
    pub report: Result<CheckReport>,
}

/// What a discovery stored.
#[derive(Clone, Debug)]
pub struct DiscoveryOutcome {
    /// The inventory as it stands now.
    pub inventory: Inventory,
    /// The tools whose classification this discovery found drifted.
    pub drifted: Vec<ToolName>,
    /// The tools that were in the list for the first time.
    pub added: Vec<ToolName>,
    /// The tools that are no longer in the list.
    pub removed: Vec<ToolName>,
}

/// A page of a server's tools.
#[derive(Clone, Debug)]
pub struct ToolListing {
    /// The last live listing, if there was one.
    pub inventory: Option<Inventory>,
    /// Where the server runs now.
    pub fingerprint: Fingerprint,
    /// The tools with what was decided about each.
    pub tools: Page<ToolView>,
}

/// One tool of a server.
#[derive(Clone, Debug)]
pub struct ToolDetail {
    /// The tool with what was decided about it.
    pub view: ToolView,
    /// Where the server runs now.
    pub fingerprint: Fingerprint,
}

/// What changed of a tool since an admin classified it.
#[derive(Clone, Debug, Serialize)]
pub struct Drift {
    /// Whether the decision still holds.
    pub state: ToolState,
    /// The digest that the admin saw.
    pub classified_digest: Option<DescriptorDigest>,
    /// The digest now.
    pub current_digest: DescriptorDigest,
    /// Whether the server runs elsewhere now.
    pub place_changed: bool,
    /// The difference in the lines of the canonical JSON: `-` was seen, `+` is there now, a space is both.
    /// Without a decision, all of it is new. Untrusted text, not escaped.
    pub lines: Vec<String>,
}

impl Caliber {
    /// Opens a connection to a server once, lists its tools and closes it; the outcome is recorded.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Forbidden` without `admin`. What the server did wrong is in the outcome.
    pub async fn check(&self, who: (&Principal, Surface), id: &ServerId) -> Result<CheckOutcome> {
        let inner = &self.inner;
        let record = inner.server_for(who.0, id, Scope::Admin).await?;
        let target = inner.target(&record);
        let report = inner.check(&target).await;
        inner
            .record_connection(who, &record, AuditAction::TestConnection, report.as_ref().err())
            .await?;
        Ok(CheckOutcome { report })
    }

    /// Like [`check`](Self::check), for a definition that is not registered; nothing is recorded.
    ///
    /// # Errors
    ///
    /// `Forbidden` without `admin`, `Invalid`, `Denied` with `server_not_ready`, and what the gateway reports.
    pub async fn check_definition(
        &self,
        principal: &Principal,
        definition: ServerDefinition,
    ) -> Result<CheckReport> {
        self.inner.check(&unregistered(principal, definition)?).await
    }

    /// Lists a server's tools live and makes them its inventory. Nothing becomes callable by it.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Forbidden` without `admin`, `Denied` with `server_not_ready` naming the blockers, and what
    /// the gateway reports; the failure is recorded.
    pub async fn discover(&self, who: (&Principal, Surface), id: &ServerId) -> Result<DiscoveryOutcome> {
        let inner = &self.inner;
        let record = inner.server_for(who.0, id, Scope::Admin).await?;
        let target = inner.target(&record);
        match inner.discover(&target).await {
            Ok(discovery) => inner.record_discovery(who, &record, discovery, true).await,
            Err(error) => {
                inner
                    .record_connection(who, &record, AuditAction::DiscoverTools, Some(&error))
                    .await?;
                Err(error)
            }
        }
    }

    /// Like [`discover`](Self::discover), for a definition that is not registered; nothing is recorded.
    ///
    /// # Errors
    ///
    /// As for [`check_definition`](Self::check_definition).
    pub async fn discover_definition(
        &self,
        principal: &Principal,
        definition: ServerDefinition,
    ) -> Result<Discovery> {
        self.inner.discover(&unregistered(principal, definition)?).await
    }

    /// The inventory of a server with what was decided about each tool.
    ///
    /// # Errors
    ///
    /// `NotFound` when the server is absent or hidden; `Invalid` for a foreign cursor.
    pub async fn tools(
        &self,
        principal: &Principal,
        id: &ServerId,
        page: &PageRequest,
    ) -> Result<ToolListing> {
        let record = self.inner.visible_server(principal, id).await?;
        let inventory = self.inner.registry.inventory(id).await?;
        let tools = self.inner.registry.tools(id, page).await?;
        Ok(ToolListing {
            inventory,
            fingerprint: record.definition.fingerprint(),
            tools,
        })
    }

    /// One tool of a server.
    ///
    /// # Errors
    ///
    /// `NotFound` when the server is absent or hidden, or the tool is not in its inventory.
    pub async fn tool(&self, principal: &Principal, id: &ServerId, tool: &ToolName) -> Result<ToolDetail> {
        let record = self.inner.visible_server(principal, id).await?;
        Ok(ToolDetail {
            view: self.inner.listed_tool(id, tool).await?,
            fingerprint: record.definition.fingerprint(),
        })
    }

    /// Classifies a tool as it stands in the inventory. `seen` is the digest of what the admin looked at: when
    /// the tool has changed since, nothing is decided.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Forbidden` without `admin`, `Invalid` for a policy that contradicts itself, `Conflict` with
    /// `stale_revision` when the tool is no longer what was seen.
    pub async fn classify(
        &self,
        who: (&Principal, Surface),
        id: &ServerId,
        tool: &ToolName,
        policy: ToolPolicy,
        seen: Option<DescriptorDigest>,
    ) -> Result<Classification> {
        let inner = &self.inner;
        let record = inner.server_for(who.0, id, Scope::Admin).await?;
        let inventory = inner.registry.inventory(id).await?;
        let view = inner.listed_tool(id, tool).await?;
        policy.validate()?;
        if seen.is_some_and(|seen| seen != view.descriptor.digest()) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("the tool {tool} has changed since it was looked at; look at the difference and decide again"),
            )
            .with_reason(ReasonCode::StaleRevision));
        }
        let before = view.classification.as_ref();
        let mut classification = Classification {
            server: id.clone(),
            tool: tool.clone(),
            revision: before.map_or(Revision(0), |before| before.revision),
            policy,
            descriptor_digest: view.descriptor.digest(),
            fingerprint: record.definition.fingerprint(),
            descriptor: view.descriptor.text().clone(),
            classified_by: who.0.subject.clone(),
            classified_at: inner.now(),
            drifted_at: None,
        };
        let details = serde_json::json!({
            "tool_name": tool,
            "policy": { "from": before.map(|before| &before.policy), "to": classification.policy },
            "descriptor_digest": {
                "from": before.map(|before| before.descriptor_digest),
                "to": classification.descriptor_digest,
            },
            "fingerprint": classification.fingerprint,
        });
        let audit = inner.entry(
            who,
            AuditAction::ClassifyTool,
            ("mcp_server", id.as_str()),
            Some(&record.project),
            details,
        )?;
        let expect = Expect(vec![
            (Entity::Server(id.clone()), record.revision),
            (
                Entity::Inventory(id.clone()),
                inventory.map_or(Revision(0), |inventory| inventory.revision),
            ),
            (
                Entity::Classification(id.clone(), tool.clone()),
                classification.revision,
            ),
        ]);
        let change = Change::Classify {
            classification: Box::new(classification.clone()),
        };
        classification.revision = inner.commit(change, expect, audit).await?.revision;
        Ok(classification)
    }

    /// Takes a classification back: nobody can call the tool any more.
    ///
    /// # Errors
    ///
    /// `NotFound` when the server is absent or hidden, or the tool has no classification; `Forbidden` without `admin`.
    pub async fn declassify(&self, who: (&Principal, Surface), id: &ServerId, tool: &ToolName) -> Result<()> {
        let inner = &self.inner;
        let record = inner.server_for(who.0, id, Scope::Admin).await?;
        let details = serde_json::json!({ "tool_name": tool });
        let audit = inner.entry(
            who,
            AuditAction::DeclassifyTool,
            ("mcp_server", id.as_str()),
            Some(&record.project),
            details,
        )?;
        let change = Change::Declassify {
            server: id.clone(),
            tool: tool.clone(),
        };
        inner.commit(change, Expect::nothing(), audit).await.map(drop)
    }

    /// What changed of a tool since an admin classified it.
    ///
    /// # Errors
    ///
    /// `NotFound` when the server is absent or hidden, or the tool is not in its inventory.
    pub async fn drift(&self, principal: &Principal, id: &ServerId, tool: &ToolName) -> Result<Drift> {
        let record = self.inner.visible_server(principal, id).await?;
        let view = self.inner.listed_tool(id, tool).await?;
        let fingerprint = record.definition.fingerprint();
        let current = view.descriptor.text().canonical_lines()?;
        let seen = match &view.classification {
            Some(classification) => classification.descriptor.canonical_lines()?,
            None => String::new(),
        };
        let lines = TextDiff::from_lines(&seen, &current)
            .iter_all_changes()
            .map(|change| format!("{}{}", change.tag(), change.value().trim_end_matches('\n')))
            .collect();
        Ok(Drift {
            state: view.state(&fingerprint),
            classified_digest: view
                .classification
                .as_ref()
                .map(|classification| classification.descriptor_digest),
            current_digest: view.descriptor.digest(),
            place_changed: view
                .classification
                .as_ref()
                .is_some_and(|bound| bound.fingerprint != fingerprint),
            lines,
        })
    }
}

fn is_unchanged(value: &ConfigValue) -> bool {
    matches!(value, ConfigValue::Unchanged)
}

fn unregistered(principal: &Principal, definition: ServerDefinition) -> Result<Target> {
    principal.require(Scope::Admin, &principal.project)?;
    definition.validate()?;
    refuse_stored(&definition)?;
    if let Some((field, _)) = definition
        .config_values()
        .into_iter()
        .find(|(_, value)| is_unchanged(value))
    {
        return Err(Error::invalid(
            field,
            "nothing is stored at this place; give the value",
        ));
    }
    Ok(Target {
        server: None,
        definition: Arc::new(definition),
    })
}

impl Inner {
    async fn check(&self, target: &Target) -> Result<CheckReport> {
        self.refuse_unready(target).await?;
        self.gateway
            .check(target, Deadline::after(self.settings.discovery_timeout))
            .await
    }

    async fn discover(&self, target: &Target) -> Result<Discovery> {
        self.refuse_unready(target).await?;
        self.gateway
            .discover(target, Deadline::after(self.settings.discovery_timeout))
            .await
    }

    /// A server that may not be started or dialled is not even tried.
    async fn refuse_unready(&self, target: &Target) -> Result<()> {
        let readiness = self.readiness(target).await;
        let Some(first) = readiness.blockers.first() else {
            return Ok(());
        };
        let texts: Vec<_> = readiness
            .blockers
            .iter()
            .map(|blocker| blocker.text.as_str())
            .collect();
        Err(Error::new(ErrorKind::Denied, texts.join("; ")).with_reason(first.code))
    }

    async fn listed_tool(&self, id: &ServerId, tool: &ToolName) -> Result<ToolView> {
        self.registry
            .tool(id, tool)
            .await?
            .ok_or_else(|| Error::not_found("tool", tool.as_str()))
    }

    async fn record_connection(
        &self,
        who: (&Principal, Surface),
        record: &ServerRecord,
        action: AuditAction,
        error: Option<&Error>,
    ) -> Result<()> {
        let text = error.map(|error| escaped(error.message(), 1_000));
        let details = serde_json::json!({
            "success": error.is_none(),
            "error": text,
            "reason_code": error.and_then(Error::reason),
        });
        let audit = self.entry(
            who,
            action,
            ("mcp_server", record.id.as_str()),
            Some(&record.project),
            details,
        )?;
        let change = Change::RecordConnection {
            server: record.id.clone(),
            at: self.now(),
            error: text,
        };
        self.commit(change, Expect::nothing(), audit).await.map(drop)
    }

    /// Makes a listing the inventory. `asked_for` tells a discovery from what a session listed by itself: that changes
    /// nothing when it brings nothing new, or when a later listing is there.
    async fn record_discovery(
        &self,
        who: (&Principal, Surface),
        record: &ServerRecord,
        discovery: Discovery,
        asked_for: bool,
    ) -> Result<DiscoveryOutcome> {
        for _ in 0..RECORD_ATTEMPTS {
            match self
                .try_record_discovery(who, record, &discovery, asked_for)
                .await
            {
                // Another listing was stored meanwhile: compare with that one.
                Err(error)
                    if error.reason() == Some(ReasonCode::StaleRevision)
                        && self.is_current(record).await? => {}
                outcome => return outcome,
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            "the inventory keeps changing; discover the server again",
        )
        .with_reason(ReasonCode::StaleRevision))
    }

    async fn is_current(&self, record: &ServerRecord) -> Result<bool> {
        let current = self.registry.server(&record.id).await?;
        Ok(current.is_some_and(|current| current.revision == record.revision))
    }

    async fn try_record_discovery(
        &self,
        who: (&Principal, Surface),
        record: &ServerRecord,
        discovery: &Discovery,
        asked_for: bool,
    ) -> Result<DiscoveryOutcome> {
        let stored = self.registry.inventory(&record.id).await?;
        let before = self.all_tools(&record.id).await?;
        let (tools, withheld) = accept_schemas(&before, discovery).await?;
        let changes = ListingChanges::between(&before, &tools);
        if let Some(inventory) = &stored
            && !asked_for
            && (self.listings.is_superseded(&record.id, discovery.listed_at)
                || (changes.same && inventory.withheld == withheld))
        {
            return Ok(DiscoveryOutcome {
                inventory: inventory.clone(),
                drifted: changes.drifted,
                added: changes.added,
                removed: changes.removed,
            });
        }
        let listing = NewInventory {
            discovered_at: self.now(),
            asked_for,
            protocol_version: discovery.protocol_version.clone(),
            server_info: discovery.server_info.clone(),
            instructions: discovery.instructions.clone(),
            tools,
            withheld,
        };
        let names = |names: &[ToolName]| {
            names
                .iter()
                .take(100)
                .map(ToolName::to_string)
                .collect::<Vec<_>>()
        };
        let details = serde_json::json!({
            "tool_count": listing.tools.len(),
            "withheld_count": listing.withheld.len(),
            "added": names(&changes.added),
            "removed": names(&changes.removed),
            "drifted": names(&changes.drifted),
        });
        let action = if asked_for {
            AuditAction::DiscoverTools
        } else {
            AuditAction::RefreshInventory
        };
        let audit = self.entry(
            who,
            action,
            ("mcp_server", record.id.as_str()),
            Some(&record.project),
            details,
        )?;
        // The listing belongs to the place that was listed, and its differences to the inventory before it.
        let expect = Expect(vec![
            (Entity::Server(record.id.clone()), record.revision),
            (
                Entity::Inventory(record.id.clone()),
                stored.map_or(Revision(0), |inventory| inventory.revision),
            ),
        ]);
        let mut inventory = Inventory {
            revision: Revision(0),
            discovered_at: listing.discovered_at,
            protocol_version: listing.protocol_version.clone(),
            server_info: listing.server_info.clone(),
            instructions: listing.instructions.clone(),
            tool_count: u32::try_from(listing.tools.len()).unwrap_or(u32::MAX),
            withheld: listing.withheld.clone(),
        };
        let change = Change::RecordDiscovery {
            server: record.id.clone(),
            listing: Box::new(listing),
        };
        inventory.revision = self.commit(change, expect, audit).await?.revision;
        self.listings.stored(&record.id, discovery.listed_at);
        Ok(DiscoveryOutcome {
            inventory,
            drifted: changes.drifted,
            added: changes.added,
            removed: changes.removed,
        })
    }

    /// Takes over a listing that a session made by itself. It can drift or remove a tool, never classify one.
    pub(super) async fn apply_listing(&self, listing: &Listing) -> Result<()> {
        let Some(record) = self.registry.server(&listing.server).await? else {
            return Ok(());
        };
        if record.definition.fingerprint() != listing.discovery.fingerprint {
            return Ok(());
        }
        let system = Principal::system();
        let who = (&system, Surface::System);
        self.record_discovery(who, &record, listing.discovery.clone(), false)
            .await
            .map(drop)
    }

    async fn all_tools(&self, id: &ServerId) -> Result<Vec<ToolView>> {
        let mut request = PageRequest::first(crate::page::PAGE_LIMIT);
        let mut views = Vec::new();
        loop {
            let page = self.registry.tools(id, &request).await?;
            views.extend(page.items);
            match page.next {
                Some(cursor) => request.cursor = Some(cursor),
                None => return Ok(views),
            }
        }
    }
}

/// How a listing differs from the inventory before it.
struct ListingChanges {
    same: bool,
    drifted: Vec<ToolName>,
    added: Vec<ToolName>,
    removed: Vec<ToolName>,
}

impl ListingChanges {
    fn between(before: &[ToolView], tools: &[Descriptor]) -> Self {
        let digests: BTreeMap<_, _> = tools.iter().map(|tool| (tool.name(), tool.digest())).collect();
        let known: BTreeSet<_> = before.iter().map(ToolView::name).collect();
        let drifts = |view: &&ToolView| {
            let bound = view.classification.as_ref();
            let standing = bound.filter(|bound| bound.drifted_at.is_none());
            let now = digests.get(view.name());
            standing.is_some_and(|bound| now.is_some_and(|now| *now != bound.descriptor_digest))
        };
        Self {
            same: before.len() == tools.len()
                && before
                    .iter()
                    .all(|view| digests.get(view.name()) == Some(&view.descriptor.digest())),
            drifted: before
                .iter()
                .filter(drifts)
                .map(|view| view.name().clone())
                .collect(),
            added: digests
                .keys()
                .filter(|name| !known.contains(*name))
                .map(|name| (*name).clone())
                .collect(),
            removed: known
                .iter()
                .filter(|name| !digests.contains_key(*name))
                .map(|name| (*name).clone())
                .collect(),
        }
    }
}

/// Withholds every tool with a schema that cannot be used; the others are served. What stands in the inventory with
/// the same digest was accepted before.
async fn accept_schemas(
    before: &[ToolView],
    discovery: &Discovery,
) -> Result<(Vec<Descriptor>, Vec<WithheldTool>)> {
    let accepted_before: BTreeSet<_> = before.iter().map(|view| view.descriptor.digest()).collect();
    let (tools, mut withheld) = (discovery.tools.clone(), discovery.withheld.clone());
    let work = tokio::task::spawn_blocking(move || {
        let mut accepted = Vec::with_capacity(tools.len());
        for tool in tools {
            if accepted_before.contains(&tool.digest()) {
                accepted.push(tool);
                continue;
            }
            let verdict = schema::accept(tool.input_schema())
                .map_err(|error| format!("input schema: {error}"))
                .and_then(|()| {
                    tool.output_schema().map_or(Ok(()), |output| {
                        schema::accept(output).map_err(|error| format!("output schema: {error}"))
                    })
                });
            match verdict {
                Ok(()) => accepted.push(tool),
                Err(reason) => withheld.push(WithheldTool {
                    name: tool.name().to_string(),
                    reason: escaped(&reason, 500),
                }),
            }
        }
        (accepted, withheld)
    });
    work.await
        .map_err(|error| Error::internal("checking the schemas of a listing failed").with_source(error))
}
