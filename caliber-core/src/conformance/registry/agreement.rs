//! Random histories, made on the registry and on the reference: both answer alike.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::approval::{Approval, ApprovalState};
use crate::audit::{AuditAction, AuditQuery};
use crate::code_tool::{CodeToolRecord, CodeToolStatus};
use crate::conformance::samples::*;
use crate::descriptor::Descriptor;
use crate::error::Result;
use crate::grant::{Grant, GrantedTools, Grantee, Membership};
use crate::id::{ApprovalId, AuditId, GrantId, InvocationId, ProjectId, SecretId, ServerId, TokenId};
use crate::inventory::WithheldTool;
use crate::invocation::{Invocation, InvocationOutcome};
use crate::memory::MemoryRegistry;
use crate::principal::Scope;
use crate::registry::{
    AdmissionQuery, Change, CodeToolQuery, Commit, Committed, Expect, InvocationsOf, NewSecret, Registry,
    Retention, Revision, RunAdmissionQuery, SecretOwner, ServerQuery,
};
use crate::secret::SecretText;
use crate::server::{ServerRecord, ServerStatus, Visibility};
use crate::token::{TokenRecord, token_hash};

/// Histories, and changes of each.
const HISTORIES: u64 = 4;
const CHANGES: u64 = 60;

const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
const TOOLS: [&str; 3] = ["echo", "read", "send"];
const PROJECTS: [&str; 2] = ["default", "guest"];
const PEOPLE: [&str; 2] = ["ada", "bob"];

pub(super) async fn random_histories_agree_with_the_reference(registry: Arc<dyn Registry>) {
    let reference = MemoryRegistry::new();
    let mut accepted = 0;
    for seed in 1..=HISTORIES {
        // The histories follow one another on the same registry; the later ones meet what the earlier ones left.
        let mut history = History::new(seed);
        for step in 0..CHANGES {
            let plan = history.plan();
            let told = format!("{} with {:?}", plan.shown, plan.expectation);
            let theirs = plan.make(&*registry).await;
            let ours = plan.make(&reference).await;
            assert_eq!(
                shape(&theirs),
                shape(&ours),
                "history {seed}, change {step}: {told}"
            );
            accepted += u64::from(ours.is_ok());
            let (theirs, ours) = (history.dump(&*registry).await, history.dump(&reference).await);
            if theirs != ours {
                let line = theirs
                    .lines()
                    .zip(ours.lines())
                    .find(|(theirs, ours)| theirs != ours);
                panic!("history {seed}, after change {step}: {told}\n(registry, reference): {line:#?}");
            }
        }
    }
    let made = HISTORIES * CHANGES;
    assert!(
        accepted > made / 4 && accepted < made,
        "the histories say nothing: {accepted} of {made}"
    );
}

/// What a commit answers; how far a classification counts is up to the registry.
fn shape(outcome: &Result<Committed>) -> String {
    match outcome {
        Ok(committed) => format!("ok, {} touched", committed.affected),
        Err(error) => format!("{:?} {:?}", error.kind(), error.reason()),
    }
}

/// A small generator of numbers (xorshift, Marsaglia 2003): the same histories everywhere.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// Which revisions a change is made on.
#[derive(Clone, Debug)]
enum Expectation {
    /// None.
    Nothing,
    /// All that an admission reads, as they are.
    Fresh(AdmissionQuery),
    /// The same, one of them moved on.
    Stale(AdmissionQuery, usize),
}

/// A change that can be made on two registries.
struct Plan {
    change: Box<dyn Fn() -> Change>,
    shown: String,
    expectation: Expectation,
}

impl Plan {
    async fn make(&self, registry: &dyn Registry) -> Result<Committed> {
        let facts = async |query| {
            registry
                .admission(query)
                .await
                .map(|facts| facts.map(|facts| facts.expect))
        };
        let expect = match &self.expectation {
            Expectation::Nothing => Expect::nothing(),
            Expectation::Fresh(query) => facts(query).await?.unwrap_or_default(),
            Expectation::Stale(query, which) => {
                let mut expect = facts(query).await?.unwrap_or_default();
                let count = expect.0.len().max(1);
                if let Some((_, revision)) = expect.0.get_mut(which % count) {
                    *revision = Revision(revision.0 + 1);
                }
                expect
            }
        };
        let change = (self.change)();
        let audit = entry(AuditAction::UpdateServer, ("case", &self.shown)).into();
        registry
            .commit(Commit {
                change,
                expect,
                audit,
            })
            .await
    }
}

/// What a history has met so far.
struct History {
    numbers: Numbers,
    servers: Vec<ServerRecord>,
    code_tools: Vec<CodeToolRecord>,
    grants: Vec<Grant>,
    tokens: Vec<TokenRecord>,
    approvals: Vec<Approval>,
    calls: Vec<Invocation>,
    steps: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            numbers: Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            servers: Vec::new(),
            code_tools: Vec::new(),
            grants: Vec::new(),
            tokens: Vec::new(),
            approvals: Vec::new(),
            calls: Vec::new(),
            steps: 0,
        }
    }

    /// A server of the history, or one that is absent.
    fn server(&mut self) -> ServerRecord {
        if self.servers.is_empty() || self.numbers.one_in(10) {
            return server("absent");
        }
        self.numbers.pick(&self.servers)
    }

    fn query(&mut self, server: &ServerId) -> AdmissionQuery {
        let approval = (!self.approvals.is_empty() && self.numbers.one_in(2))
            .then(|| self.numbers.pick(&self.approvals).id.clone());
        AdmissionQuery {
            server: server.clone(),
            tool: tool(self.numbers.pick(&TOOLS)),
            subject: subject(self.numbers.pick(&PEOPLE)),
            project: project(self.numbers.pick(&PROJECTS)),
            approval,
        }
    }

    /// A tool in one of two shapes.
    fn descriptor(&mut self) -> Descriptor {
        let name = self.numbers.pick(&TOOLS);
        descriptor(name, self.numbers.pick(&["one", "two"]))
    }

    fn plan(&mut self) -> Plan {
        self.steps += 1;
        let target = self.server();
        let change = self.change(&target);
        let shown = format!("{} {:?}", self.steps, change());
        let query = self.query(&target.id);
        let expectation = match self.numbers.below(8) {
            0..=3 => Expectation::Nothing,
            4..=6 => Expectation::Fresh(query),
            _ => Expectation::Stale(query, self.numbers.below(6)),
        };
        Plan {
            change,
            shown,
            expectation,
        }
    }

    fn change(&mut self, target: &ServerRecord) -> Box<dyn Fn() -> Change> {
        let id = target.id.clone();
        let at = now();
        match self.numbers.below(25) {
            0 | 1 => self.registration(),
            2 | 3 => self.update(target.clone()),
            4 if self.numbers.one_in(3) => Box::new(move || Change::RemoveServer { id: id.clone() }),
            4 | 5 => {
                let error = self.numbers.one_in(2).then(|| "no route".to_owned());
                Box::new(move || Change::RecordConnection {
                    server: id.clone(),
                    at,
                    error: error.clone(),
                })
            }
            6..=8 => self.discovery(id),
            9 | 10 => {
                let mut bound = classification(target, &self.descriptor());
                bound.policy.allowed = self.numbers.one_in(2);
                Box::new(move || Change::Classify {
                    classification: Box::new(bound.clone()),
                })
            }
            11 => {
                let tool = tool(self.numbers.pick(&TOOLS));
                Box::new(move || Change::Declassify {
                    server: id.clone(),
                    tool: tool.clone(),
                })
            }
            12 => self.granting(id),
            13 => {
                let membership = Membership {
                    project: self.numbers.one_in(3).then(|| project("guest")),
                    subject: subject(self.numbers.pick(&PEOPLE)),
                    scopes: self
                        .numbers
                        .one_in(2)
                        .then_some(Scope::Operator)
                        .into_iter()
                        .collect(),
                };
                Box::new(move || Change::SetMembership {
                    membership: membership.clone(),
                })
            }
            14 => self.token(),
            15 | 16 => self.approval(id),
            17 | 18 => self.call(target),
            19 | 20 => self.code_tool(),
            21 | 22 => self.code_tool_change(),
            23 => self.code_tool_grant(),
            _ => self.housekeeping(),
        }
    }

    fn registration(&mut self) -> Box<dyn Fn() -> Change> {
        let secret = SecretId::new();
        let mut record = with_token(server(self.numbers.pick(&NAMES)), &secret);
        record.visibility = self
            .numbers
            .pick(&[Visibility::User, Visibility::Project, Visibility::Public]);
        record.project = project(self.numbers.pick(&PROJECTS));
        record.owner = subject(self.numbers.pick(&PEOPLE));
        self.servers.push(record.clone());
        Box::new(move || Change::RegisterServer {
            record: Box::new(record.clone()),
            secrets: vec![NewSecret {
                id: secret.clone(),
                owner: SecretOwner::Server(record.id.clone()),
                value: SecretText::new("value"),
            }],
        })
    }

    /// A version of one of two families.
    fn code_tool(&mut self) -> Box<dyn Fn() -> Change> {
        let mut record = code_tool(
            self.numbers.pick(&["alpha", "beta"]),
            self.numbers
                .pick(&["1.0.0", "1.0.0+build", "1.10.0-rc.1", "1.9.0"]),
        );
        record.project = project(self.numbers.pick(&PROJECTS));
        record.owner = subject(self.numbers.pick(&PEOPLE));
        record.visibility = self
            .numbers
            .pick(&[Visibility::User, Visibility::Project, Visibility::Public]);
        self.code_tools.push(record.clone());
        Box::new(move || Change::RegisterCodeTool {
            record: Box::new(record.clone()),
            secrets: Vec::new(),
        })
    }

    /// A version of the history, or one that is absent.
    fn known_code_tool(&mut self) -> CodeToolRecord {
        if self.code_tools.is_empty() || self.numbers.one_in(10) {
            return code_tool("absent", "1");
        }
        self.numbers.pick(&self.code_tools)
    }

    fn code_tool_change(&mut self) -> Box<dyn Fn() -> Change> {
        let mut record = self.known_code_tool();
        if self.numbers.one_in(4) {
            return Box::new(move || Change::RecordInspection {
                tool: record.id.clone(),
            });
        }
        record.definition.description = format!("step {}", self.steps);
        record.status = self.numbers.pick(&CodeToolStatus::ALL);
        record.visibility = self.numbers.pick(&[Visibility::Project, Visibility::Public]);
        record.updated_at = now();
        Box::new(move || Change::UpdateCodeTool {
            record: Box::new(record.clone()),
        })
    }

    fn code_tool_grant(&mut self) -> Box<dyn Fn() -> Change> {
        let tool = self.known_code_tool();
        let place = project(self.numbers.pick(&PROJECTS));
        let mut given = grant(&ServerId::new(), &place, self.numbers.pick(&PEOPLE));
        given.tools = GrantedTools::Family {
            project: tool.project,
            family: tool.definition.family,
        };
        self.grants.push(given.clone());
        Box::new(move || Change::CreateGrant { grant: given.clone() })
    }

    fn update(&mut self, mut record: ServerRecord) -> Box<dyn Fn() -> Change> {
        record.definition.description = format!("step {}", self.steps);
        record.status = self.numbers.pick(&[ServerStatus::Active, ServerStatus::Disabled]);
        record.visibility = self.numbers.pick(&[Visibility::Project, Visibility::Public]);
        record.updated_at = now();
        if self.numbers.one_in(3) {
            record.definition.endpoint = crate::memory::definition("elsewhere").unwrap().endpoint;
        }
        Box::new(move || Change::UpdateServer {
            record: Box::new(record.clone()),
            secrets: Vec::new(),
        })
    }

    fn discovery(&mut self, server: ServerId) -> Box<dyn Fn() -> Change> {
        let mut tools = BTreeMap::new();
        for _ in 0..self.numbers.below(4) {
            let tool = self.descriptor();
            tools.insert(tool.name().clone(), tool);
        }
        let mut listing = listing(tools.into_values().collect());
        if self.numbers.one_in(3) {
            listing.withheld = vec![WithheldTool {
                name: "broken".to_owned(),
                reason: "no JSON".to_owned(),
            }];
        }
        Box::new(move || Change::RecordDiscovery {
            server: server.clone(),
            listing: Box::new(listing.clone()),
        })
    }

    fn granting(&mut self, server: ServerId) -> Box<dyn Fn() -> Change> {
        let place = project(self.numbers.pick(&PROJECTS));
        if !self.grants.is_empty() && self.numbers.one_in(3) {
            let id = self.numbers.pick(&self.grants).id.clone();
            return Box::new(move || Change::DeleteGrant {
                project: place.clone(),
                id: id.clone(),
            });
        }
        let mut given = grant(&server, &place, self.numbers.pick(&PEOPLE));
        if self.numbers.one_in(2) {
            given.grantee = Grantee::Scope(Scope::Viewer);
            given.tools = GrantedTools::Server {
                server: server.clone(),
                tool: Some(tool("echo")),
            };
        }
        given.id = GrantId::new();
        self.grants.push(given.clone());
        Box::new(move || Change::CreateGrant { grant: given.clone() })
    }

    fn token(&mut self) -> Box<dyn Fn() -> Change> {
        if !self.tokens.is_empty() && self.numbers.one_in(2) {
            let id = self.numbers.pick(&self.tokens).id.clone();
            let place = self.numbers.one_in(2).then(|| project("guest"));
            let at = now();
            return Box::new(move || Change::RevokeToken {
                id: id.clone(),
                project: place.clone(),
                at,
            });
        }
        let record = TokenRecord {
            id: TokenId::new(),
            subject: subject(self.numbers.pick(&PEOPLE)),
            project: self.numbers.one_in(2).then(|| project("guest")),
            scopes: [Scope::Viewer].into_iter().collect(),
            label: String::new(),
            created_by: subject("admin"),
            created_at: now(),
            expires_at: None,
            revoked_at: None,
        };
        self.tokens.push(record.clone());
        Box::new(move || {
            let hash = token_hash(record.id.as_str());
            Change::CreateToken {
                record: record.clone(),
                hash,
            }
        })
    }

    fn approval(&mut self, server: ServerId) -> Box<dyn Fn() -> Change> {
        if !self.approvals.is_empty() && self.numbers.one_in(2) {
            let mut decided = approved(&self.numbers.pick(&self.approvals));
            if self.numbers.one_in(4) {
                decided.state = ApprovalState::Refused {
                    by: subject("approver"),
                    at: now(),
                    note: None,
                };
            }
            return Box::new(move || Change::DecideApproval {
                approval: Box::new(decided.clone()),
            });
        }
        let mut asked = approval(&server, self.numbers.pick(&TOOLS));
        if self.numbers.one_in(4) {
            asked.expires_at = ago(Duration::from_secs(3_600));
        }
        asked.project = project(self.numbers.pick(&PROJECTS));
        self.approvals.push(asked.clone());
        Box::new(move || Change::CreateApproval {
            approval: Box::new(asked.clone()),
            limit: 1_000,
        })
    }

    fn call(&mut self, target: &ServerRecord) -> Box<dyn Fn() -> Change> {
        let outcome = self.numbers.pick(&InvocationOutcome::ALL);
        if !self.calls.is_empty() && self.numbers.one_in(3) {
            let id = self.numbers.pick(&self.calls).id.clone();
            let end = settlement(outcome);
            return Box::new(move || Change::SettleInvocation {
                id: id.clone(),
                settlement: Box::new(end.clone()),
            });
        }
        let mut call = invocation(target, self.numbers.pick(&TOOLS));
        if self.numbers.one_in(3) {
            let records = vec![settled(call.clone(), outcome)];
            self.calls.push(call);
            return Box::new(move || Change::RecordInvocations {
                records: records.clone(),
            });
        }
        if self.numbers.one_in(2) {
            let absent = ApprovalId::new();
            let known: Vec<_> = self
                .approvals
                .iter()
                .map(|approval| approval.id.clone())
                .collect();
            call.approval = Some(if known.is_empty() {
                absent
            } else {
                self.numbers.pick(&known)
            });
        }
        // A lease that has run out long before the next sweep, or not at all.
        let lease = self.numbers.pick(&[Duration::ZERO, Duration::from_secs(3_600)]);
        self.calls.push(call.clone());
        Box::new(move || intent(&call, lease))
    }

    fn housekeeping(&mut self) -> Box<dyn Fn() -> Change> {
        if self.numbers.one_in(2) {
            // Both registries sweep after every lease of no time has run out.
            std::thread::sleep(Duration::from_millis(3));
            return Box::new(|| Change::SettleOrphans { limit: 1_000 });
        }
        let old = Some(ago(Duration::from_secs(600)));
        let approvals_before = self.numbers.one_in(2).then_some(old).flatten();
        Box::new(move || {
            Change::Prune(Retention {
                invocations_before: old,
                audit_before: old,
                approvals_before,
                tokens_before: old,
            })
        })
    }

    /// Everything that the port shows, but for what each registry chooses by itself: the counts of
    /// classifications, and the times and identifiers of what a sweep writes.
    async fn dump(&self, registry: &dyn Registry) -> String {
        let mut out = String::new();
        let page = first(500);
        let mut line = |what: &str, value: &dyn Debug| {
            // Writing to a `String` cannot fail.
            let _ = writeln!(out, "{what}: {value:?}");
        };
        line(
            "servers",
            &registry.servers(&ServerQuery::default(), &page).await.unwrap(),
        );
        for record in &self.servers {
            let read = registry.server(&record.id).await.unwrap();
            line("server", &serde_json::to_string(&read).unwrap());
            line("inventory", &registry.inventory(&record.id).await.unwrap());
            for view in registry.tools(&record.id, &page).await.unwrap().items {
                let bound = view.classification.map(|mut bound| {
                    bound.revision = Revision(0);
                    bound
                });
                line("tool", &(view.descriptor, bound));
            }
            for name in TOOLS {
                for place in PROJECTS {
                    let asked = self.approvals.last().map(|approval| approval.id.clone());
                    let query = AdmissionQuery {
                        project: project(place),
                        subject: subject("ada"),
                        approval: asked,
                        ..question(&record.id, name)
                    };
                    let Some(facts) = registry.admission(&query).await.unwrap() else {
                        continue;
                    };
                    let mut grants: Vec<_> = facts.grants.iter().map(|grant| grant.id.clone()).collect();
                    grants.sort();
                    let digest = facts.tool.map(|tool| tool.digest);
                    let drift = facts.classification.map(|bound| (bound.policy, bound.drifted_at));
                    let mut entities: Vec<_> =
                        facts.expect.0.iter().map(|(entity, _)| entity.clone()).collect();
                    entities.sort();
                    let withheld = facts.withheld;
                    line(
                        "facts",
                        &(digest, withheld, drift, grants, facts.approval, entities),
                    );
                }
            }
        }
        let listed = registry
            .code_tools(&CodeToolQuery::default(), &page)
            .await
            .unwrap();
        line("code tools", &listed);
        for record in &self.code_tools {
            let read = registry.code_tool(&record.id).await.unwrap();
            line("code tool", &serde_json::to_string(&read).unwrap());
            let query = RunAdmissionQuery {
                tool: record.id.clone(),
                subject: subject("ada"),
                project: project("guest"),
                approval: self.approvals.last().map(|approval| approval.id.clone()),
            };
            let Some(facts) = registry.run_admission(&query).await.unwrap() else {
                continue;
            };
            let mut grants: Vec<_> = facts.grants.iter().map(|grant| grant.id.clone()).collect();
            grants.sort();
            let mut expect = facts.expect.0;
            expect.sort();
            line("run facts", &(grants, facts.approval, expect));
        }
        for place in PROJECTS {
            line("grants", &registry.grants(&project(place), &page).await.unwrap());
        }
        for name in PEOPLE {
            let mut held = registry.memberships(&subject(name)).await.unwrap();
            held.sort_by_key(|membership| membership.project.clone());
            line("memberships", &held);
        }
        line("tokens", &registry.tokens(None, &page).await.unwrap());
        let guests: [ProjectId; 1] = [project("guest")];
        for pending in [false, true] {
            line(
                "approvals",
                &registry.approvals(None, pending, &page).await.unwrap().items,
            );
            let some = registry
                .approvals(Some(&guests), pending, &page)
                .await
                .unwrap()
                .items;
            line("approvals of guests", &some);
        }
        for call in registry
            .invocations(&InvocationsOf::Everything, &page)
            .await
            .unwrap()
            .items
        {
            let end = call
                .settlement
                .map(|settlement| (settlement.outcome, settlement.reason));
            line("call", &(call.invocation, end));
        }
        // In the order of commits: entries that a registry makes by itself have the time of its own clock.
        let trail = AuditQuery {
            after: Some(AuditId::new()),
            ..AuditQuery::default()
        };
        for entry in registry.audit(&trail, &page).await.unwrap().items {
            line(
                "entry",
                &(entry.action, entry.entity_type, entry.entity_id, entry.project),
            );
        }
        let absent = InvocationId::new();
        line("absent", &registry.invocation(&absent).await.unwrap());
        out
    }
}
