//! What the cases are made of.

use std::time::Duration;

use crate::approval::{Approval, ApprovalState, RequestedTool};
use crate::audit::{AuditAction, AuditEntries, AuditEntry, AuditQuery};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::code_tool::{CodeToolRecord, CodeToolStatus, content_hash};
use crate::descriptor::{Descriptor, ToolName};
use crate::digest::{ArgumentDigest, DescriptorDigest, EnvironmentDigest, SourceDigest};
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Grant, GrantedTools, Grantee};
use crate::id::{ApprovalId, CodeToolId, GrantId, InstanceId, InvocationId, ProjectId, ServerId};
use crate::invocation::{
    Invocation, InvocationIntent, InvocationOutcome, InvocationRecord, InvokedTool, Settlement,
};
use crate::json::JsonText;
use crate::page::{Page, PageRequest};
use crate::policy::{Classification, SideEffectLevel, ToolPolicy};
use crate::principal::{Identity, Principal, Subject, Surface};
use crate::reason::ReasonCode;
use crate::registry::{AdmissionQuery, Change, Commit, Committed, Expect, NewInventory, Registry, Revision};
use crate::sandbox::PinnedProgram;
use crate::secret::{ConfigValue, SecretReference};
use crate::server::{Auth, ServerRecord, ServerStatus, Visibility};

pub(super) fn now() -> Timestamp {
    SystemClock.now()
}

pub(super) fn ago(duration: Duration) -> Timestamp {
    now() - duration
}

pub(super) fn subject(name: &str) -> Subject {
    name.parse().unwrap()
}

pub(super) fn project(name: &str) -> ProjectId {
    name.parse().unwrap()
}

pub(super) fn tool(name: &str) -> ToolName {
    name.parse().unwrap()
}

/// A remote server in the default project, owned by `owner`.
pub(super) fn server(name: &str) -> ServerRecord {
    ServerRecord {
        id: ServerId::new(),
        revision: Revision(1),
        definition: crate::memory::definition(name).unwrap(),
        owner: subject("owner"),
        project: ProjectId::default(),
        visibility: Visibility::Project,
        status: ServerStatus::Active,
        last_connected_at: None,
        connection_error: None,
        created_at: now(),
        updated_at: now(),
    }
}

pub(super) fn json(text: &str) -> JsonText {
    JsonText::parse(text, crate::json::JsonLimits::ARGUMENTS).unwrap()
}

/// A version of a code tool in the default project, owned by `owner`.
pub(super) fn code_tool(name: &str, version: &str) -> CodeToolRecord {
    let definition = crate::memory::code_tool(name, version).unwrap().definition;
    let pinned = PinnedProgram {
        program: definition.program.clone(),
        source: SourceDigest::of(version.as_bytes()),
        environment: EnvironmentDigest::of(b"environment"),
    };
    CodeToolRecord {
        id: CodeToolId::new(),
        revision: Revision(1),
        content_hash: content_hash(&definition, &pinned).unwrap(),
        definition,
        pinned,
        status: CodeToolStatus::Active,
        deprecated_at: None,
        successor: None,
        owner: subject("owner"),
        project: ProjectId::default(),
        visibility: Visibility::Project,
        created_at: now(),
        updated_at: now(),
    }
}

/// The same server with a stored secret as its token.
pub(super) fn with_token(mut record: ServerRecord, id: &crate::id::SecretId) -> ServerRecord {
    let token = ConfigValue::Reference(SecretReference::Stored(id.clone()));
    record.definition.auth = Auth::Token { token };
    record
}

pub(super) fn descriptor(name: &str, description: &str) -> Descriptor {
    let text = serde_json::json!({
        "name": name,
        "description": description,
        "inputSchema": { "type": "object" },
    });
    Descriptor::parse(text.to_string()).unwrap()
}

pub(super) fn listing(tools: Vec<Descriptor>) -> NewInventory {
    NewInventory {
        discovered_at: now(),
        asked_for: true,
        protocol_version: "2025-11-25".to_owned(),
        server_info: None,
        instructions: None,
        tools,
        withheld: Vec::new(),
    }
}

pub(super) fn classification(server: &ServerRecord, descriptor: &Descriptor) -> Classification {
    Classification {
        server: server.id.clone(),
        tool: descriptor.name().clone(),
        revision: Revision(0),
        policy: ToolPolicy::allow_read(),
        descriptor_digest: descriptor.digest(),
        fingerprint: server.definition.fingerprint(),
        descriptor: descriptor.text().clone(),
        classified_by: subject("admin"),
        classified_at: now(),
        drifted_at: None,
    }
}

pub(super) fn grant(server: &ServerId, project: &ProjectId, to: &str) -> Grant {
    Grant {
        id: GrantId::new(),
        project: project.clone(),
        grantee: Grantee::Subject(subject(to)),
        tools: GrantedTools::Server {
            server: server.clone(),
            tool: None,
        },
        created_by: subject("admin"),
        created_at: now(),
    }
}

pub(super) fn approval(server: &ServerId, name: &str) -> Approval {
    Approval {
        id: ApprovalId::new(),
        project: ProjectId::default(),
        tool: RequestedTool::Server {
            server: server.clone(),
            tool: tool(name),
            descriptor_digest: DescriptorDigest::of(b"seen"),
        },
        arguments: JsonText::empty_object(),
        argument_digest: ArgumentDigest::of(b"{}"),
        requested_by: subject("caller"),
        requested_at: now(),
        expires_at: now() + Duration::from_secs(3_600),
        state: ApprovalState::Pending,
    }
}

pub(super) fn approved(approval: &Approval) -> Approval {
    let state = ApprovalState::Approved {
        by: subject("approver"),
        at: now(),
        note: None,
    };
    Approval {
        state,
        ..approval.clone()
    }
}

pub(super) fn invocation(server: &ServerRecord, name: &str) -> Invocation {
    Invocation {
        id: InvocationId::new(),
        started_at: now(),
        subject: subject("caller"),
        identity: Identity::Host,
        surface: Surface::Library,
        project: server.project.clone(),
        tool: InvokedTool::Server {
            server: server.id.clone(),
            server_name: server.definition.name.clone(),
            tool: tool(name),
            descriptor_digest: Some(DescriptorDigest::of(b"seen")),
            policy_revision: Some(Revision(1)),
        },
        side_effect_level: Some(SideEffectLevel::Write),
        argument_digest: ArgumentDigest::of(b"{}"),
        approval: None,
        break_glass: None,
    }
}

pub(super) fn intent(invocation: &Invocation, lease: Duration) -> Change {
    Change::BeginInvocation {
        intent: Box::new(InvocationIntent {
            invocation: invocation.clone(),
            owner: InstanceId::new(),
            lease_ms: u64::try_from(lease.as_millis()).unwrap(),
        }),
    }
}

pub(super) fn settlement(outcome: InvocationOutcome) -> Settlement {
    Settlement {
        outcome,
        reason: None,
        detail: None,
        ended_at: now(),
        duration_us: 1_234,
        result_bytes: Some(2),
    }
}

pub(super) fn settled(invocation: Invocation, outcome: InvocationOutcome) -> InvocationRecord {
    InvocationRecord {
        invocation,
        settlement: Some(settlement(outcome)),
    }
}

/// One entry about `entity`.
pub(super) fn entry(action: AuditAction, entity: (&str, &str)) -> AuditEntry {
    AuditEntry::new(
        &Principal::local_administrator(),
        Surface::Library,
        now(),
        action,
        entity,
        Some(ProjectId::default()),
        JsonText::empty_object(),
    )
}

/// An entry that says nothing in particular.
pub(super) fn some_entry() -> AuditEntries {
    entry(AuditAction::UpdateServer, ("mcp_server", "case")).into()
}

pub(super) async fn commit(registry: &dyn Registry, change: Change) -> Result<Committed> {
    commit_expecting(registry, change, Expect::nothing()).await
}

pub(super) async fn commit_expecting(
    registry: &dyn Registry,
    change: Change,
    expect: Expect,
) -> Result<Committed> {
    registry
        .commit(Commit {
            change,
            expect,
            audit: some_entry(),
        })
        .await
}

/// Registers a server of this name.
pub(super) async fn registered(registry: &dyn Registry, name: &str) -> ServerRecord {
    let record = server(name);
    register(registry, &record).await;
    record
}

pub(super) async fn register(registry: &dyn Registry, record: &ServerRecord) {
    let change = Change::RegisterServer {
        record: Box::new(record.clone()),
        secrets: Vec::new(),
    };
    commit(registry, change).await.unwrap();
}

pub(super) async fn discovered(registry: &dyn Registry, server: &ServerId, tools: Vec<Descriptor>) {
    let change = Change::RecordDiscovery {
        server: server.clone(),
        listing: Box::new(listing(tools)),
    };
    commit(registry, change).await.unwrap();
}

pub(super) async fn classified(registry: &dyn Registry, server: &ServerRecord, tool: &Descriptor) {
    let change = Change::Classify {
        classification: Box::new(classification(server, tool)),
    };
    commit(registry, change).await.unwrap();
}

/// A server with the classified tool `echo`.
pub(super) async fn ready(registry: &dyn Registry, name: &str) -> (ServerRecord, Descriptor) {
    let record = registered(registry, name).await;
    let echo = descriptor("echo", "one");
    discovered(registry, &record.id, vec![echo.clone()]).await;
    classified(registry, &record, &echo).await;
    (record, echo)
}

/// An approval that somebody has consented to.
pub(super) async fn consented(registry: &dyn Registry, approval: &Approval) {
    commit(
        registry,
        Change::CreateApproval {
            approval: Box::new(approval.clone()),
            limit: 1_000,
        },
    )
    .await
    .unwrap();
    let approval = Box::new(approved(approval));
    commit(registry, Change::DecideApproval { approval })
        .await
        .unwrap();
}

pub(super) fn question(server: &ServerId, name: &str) -> AdmissionQuery {
    AdmissionQuery {
        server: server.clone(),
        tool: tool(name),
        subject: subject("caller"),
        project: ProjectId::default(),
        approval: None,
    }
}

pub(super) fn first(limit: u32) -> PageRequest {
    PageRequest::first(limit)
}

/// The whole trail, newest first.
pub(super) async fn trail(registry: &dyn Registry) -> Vec<AuditEntry> {
    let query = AuditQuery::default();
    walk(500, async |page| registry.audit(&query, &page).await.unwrap()).await
}

/// Reads a list to its end in pages of `limit`.
pub(super) async fn walk<T>(limit: u32, read: impl AsyncFn(PageRequest) -> Page<T>) -> Vec<T> {
    let mut request = PageRequest::first(limit);
    let mut items = Vec::new();
    for _ in 0..10_000 {
        let page = read(request.clone()).await;
        assert!(
            page.items.len() <= request.bounded_limit(),
            "a page is longer than its limit"
        );
        items.extend(page.items);
        match page.next {
            None => return items,
            Some(cursor) => request.cursor = Some(cursor),
        }
    }
    panic!("the list does not end");
}

/// The change was refused as `kind` with `reason`.
#[track_caller]
pub(super) fn refused<T: std::fmt::Debug>(
    outcome: Result<T>,
    kind: ErrorKind,
    reason: Option<ReasonCode>,
) -> Error {
    match outcome {
        Ok(done) => panic!("it must be refused as {kind:?}, and was done: {done:?}"),
        Err(error) => {
            assert_eq!((error.kind(), error.reason()), (kind, reason), "{error}");
            error
        }
    }
}

/// Waits until `holds`, at most ten seconds.
pub(super) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = tokio::time::Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(tokio::time::Instant::now() < end, "it never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
