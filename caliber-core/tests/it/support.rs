//! A control plane over the references with one scripted server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use caliber_core::admission::{Permit, SessionFact, Slot};
use caliber_core::audit::{AuditAction, AuditEntry, AuditQuery};
use caliber_core::clock::Deadline;
use caliber_core::descriptor::ToolName;
use caliber_core::gateway::{Answer, CallerKey, CheckReport, Gateway, Listing, ServerHealth, Target};
use caliber_core::grant::Grantee;
use caliber_core::id::{ProjectId, ServerId};
use caliber_core::inventory::Discovery;
use caliber_core::invocation::{InvocationOutcome, InvocationRecord};
use caliber_core::json::{JsonLimits, JsonText};
use caliber_core::memory::{self, Parts, ScriptedGateway, ScriptedServer, ScriptedTool};
use caliber_core::page::{Page, PageRequest};
use caliber_core::policy::{SideEffectLevel, ToolPolicy};
use caliber_core::principal::{Principal, Scope, Scopes, Subject, Surface};
use caliber_core::readiness::EndpointFacts;
use caliber_core::reason::ReasonCode;
use caliber_core::server::ServerRecord;
use caliber_core::{Caliber, Error, ErrorKind, InvokeOutcome, InvokeRequest, Result};

pub(crate) fn tool(name: &str) -> ToolName {
    name.parse().unwrap()
}

pub(crate) fn subject(name: &str) -> Subject {
    name.parse().unwrap()
}

pub(crate) fn project(name: &str) -> ProjectId {
    name.parse().unwrap()
}

pub(crate) fn json(text: &str) -> JsonText {
    JsonText::parse(text, JsonLimits::ARGUMENTS).unwrap()
}

/// Somebody with one scope in a project.
pub(crate) fn person(name: &str, place: &str, scope: Scope) -> Principal {
    Principal::host(subject(name), project(place), Scopes::NONE.with(scope))
}

pub(crate) fn admin() -> Principal {
    Principal::local_administrator()
}

/// An allowed tool with effects that needs no approval.
pub(crate) fn allow_write() -> ToolPolicy {
    ToolPolicy {
        side_effect_level: SideEffectLevel::Write,
        approval_waiver: Some("a scratch database".into()),
        ..ToolPolicy::allow_read()
    }
}

/// An allowed tool whose calls need consent.
pub(crate) fn allow_with_approval() -> ToolPolicy {
    ToolPolicy {
        side_effect_level: SideEffectLevel::Write,
        requires_approval: true,
        ..ToolPolicy::allow_read()
    }
}

/// A tool that takes an integer `n` and answers with it.
pub(crate) fn number_tool(name: &str) -> ScriptedTool {
    let descriptor = serde_json::json!({
        "name": name,
        "description": "Answers with its number.",
        "inputSchema": {
            "type": "object",
            "properties": { "n": { "type": "integer" } },
            "required": ["n"],
        },
    });
    ScriptedTool::new(&descriptor.to_string(), |call| async move {
        result(&format!(
            r#"{{"content":[],"structuredContent":{}}}"#,
            call.arguments.as_str()
        ))
    })
    .unwrap()
}

pub(crate) fn result(text: &str) -> Result<JsonText> {
    JsonText::parse(text, JsonLimits::RESULT)
}

pub(crate) const ARGUMENTS: &str = r#"{"n":1}"#;

/// The parts with a control plane, and the server `weather` with the tools that a test wants.
pub(crate) struct World {
    pub(crate) parts: Parts,
    pub(crate) caliber: Caliber,
    pub(crate) server: ServerRecord,
}

impl World {
    /// With the tool `number`, classified as `policy`.
    pub(crate) async fn with(policy: ToolPolicy) -> Self {
        let world = Self::over(Parts::new(), vec![number_tool("number")]).await;
        world.classify("number", policy).await;
        world
    }

    /// With these tools, discovered and not classified.
    pub(crate) async fn over(parts: Parts, tools: Vec<ScriptedTool>) -> Self {
        let caliber = parts.caliber();
        Self::around(parts, caliber, tools).await
    }

    pub(crate) async fn around(parts: Parts, caliber: Caliber, tools: Vec<ScriptedTool>) -> Self {
        parts
            .gateway
            .serve(&"weather".parse().unwrap(), ScriptedServer::new(tools));
        let admin = admin();
        let who = (&admin, Surface::Library);
        let registration = memory::registration("weather").unwrap();
        let server = caliber.register_server(who, registration).await.unwrap();
        caliber.discover(who, &server.id).await.unwrap();
        Self {
            parts,
            caliber,
            server,
        }
    }

    pub(crate) async fn classify(&self, name: &str, policy: ToolPolicy) {
        let admin = admin();
        let who = (&admin, Surface::Library);
        self.caliber
            .classify(who, &self.server.id, &tool(name), policy, None)
            .await
            .unwrap();
    }

    /// Lets somebody call every tool of the server.
    pub(crate) async fn grant(&self, name: &str) {
        let admin = admin();
        let grantee = Grantee::Subject(subject(name));
        self.caliber
            .grant((&admin, Surface::Library), &self.server.id, grantee, None)
            .await
            .unwrap();
    }

    /// A person of the server's project who may call its tools.
    pub(crate) async fn caller(&self, name: &str) -> Principal {
        self.grant(name).await;
        person(name, "default", Scope::Viewer)
    }

    pub(crate) fn request(&self, name: &str, arguments: &str) -> InvokeRequest {
        InvokeRequest::new(
            self.server.id.clone(),
            tool(name),
            json(arguments),
            Surface::Library,
        )
    }

    /// The admin calls `number`.
    pub(crate) async fn call(&self) -> Result<InvokeOutcome> {
        self.caliber
            .invoke(&admin(), self.request("number", ARGUMENTS))
            .await
    }

    /// Every call in the ledger, oldest first. Each has ended, once, and the trail says so, once.
    pub(crate) async fn ledger(&self) -> Vec<InvocationRecord> {
        let admin = admin();
        let mut calls = walk(async |page| {
            self.caliber
                .invocations(&admin, &self.server.id, &page)
                .await
                .unwrap()
        })
        .await;
        calls.reverse();
        let ids: BTreeSet<_> = calls.iter().map(|call| call.invocation.id.to_string()).collect();
        assert_eq!(ids.len(), calls.len(), "a call is in the ledger twice");
        let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in self.trail(AuditAction::InvokeTool).await {
            let details: serde_json::Value = entry.details.read().unwrap();
            let text = |key: &str| details[key].as_str().unwrap().to_owned();
            told.entry(text("invocation_id"))
                .or_default()
                .push(text("outcome"));
        }
        for call in &calls {
            let settlement = call.settlement.as_ref().expect("the call has ended");
            let entries = told.remove(call.invocation.id.as_str()).unwrap_or_default();
            assert_eq!(
                entries,
                [settlement.outcome.as_str()],
                "the trail tells another end"
            );
        }
        assert!(
            told.is_empty(),
            "the trail tells of calls that are not in the ledger: {told:?}"
        );
        calls
    }

    /// How the calls ended, in their order.
    pub(crate) async fn outcomes(&self) -> Vec<InvocationOutcome> {
        let calls = self.ledger().await;
        calls
            .into_iter()
            .map(|call| call.settlement.unwrap().outcome)
            .collect()
    }

    /// The entries of one action, oldest first.
    pub(crate) async fn trail(&self, action: AuditAction) -> Vec<AuditEntry> {
        let query = AuditQuery {
            action: Some(action),
            ..AuditQuery::default()
        };
        let mut entries =
            walk(async |page| self.caliber.audit(&admin(), query.clone(), &page).await.unwrap()).await;
        entries.reverse();
        entries
    }
}

/// Reads a list to its end.
pub(crate) async fn walk<T>(read: impl AsyncFn(PageRequest) -> Page<T>) -> Vec<T> {
    let mut request = PageRequest::first(500);
    let mut items = Vec::new();
    loop {
        let page = read(request.clone()).await;
        items.extend(page.items);
        match page.next {
            None => return items,
            Some(cursor) => request.cursor = Some(cursor),
        }
    }
}

/// It was refused as `kind`, with `reason`.
#[track_caller]
pub(crate) fn refused<T>(
    outcome: Result<T>,
    kind: ErrorKind,
    reason: impl Into<Option<ReasonCode>>,
) -> Error {
    let Err(error) = outcome else {
        panic!("it must be refused as {kind:?}");
    };
    assert_eq!((error.kind(), error.reason()), (kind, reason.into()), "{error}");
    error
}

/// What an error says to the outside, but for the identifiers in it.
pub(crate) fn shape(error: &Error) -> String {
    let text = format!("{error:?} {:?} {:?}", error.fields(), error.retry());
    let mut shape = String::new();
    let mut rest = text.as_str();
    // An identifier is three letters, `_` and 32 hexadecimal digits.
    while let Some(at) = rest.find('_') {
        let digits = rest[at + 1..].chars().take_while(char::is_ascii_hexdigit).count();
        shape.push_str(&rest[..at + 1]);
        let skip = if digits == 32 { 32 } else { 0 };
        rest = &rest[at + 1 + skip..];
    }
    shape + rest
}

/// Waits until `holds`, at most ten seconds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = tokio::time::Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(tokio::time::Instant::now() < end, "it never happened: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

type Hook = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The scripted gateway, and things that happen while a call is decided: between its facts and its intent.
#[derive(Clone)]
pub(crate) struct Interposed {
    inner: ScriptedGateway,
    hooks: Arc<Mutex<VecDeque<Hook>>>,
    listings: Arc<AtomicUsize>,
}

impl Interposed {
    pub(crate) fn new(inner: ScriptedGateway) -> Self {
        Self {
            inner,
            hooks: Arc::default(),
            listings: Arc::default(),
        }
    }

    /// How many listings were handed out.
    pub(crate) fn listings(&self) -> usize {
        self.listings.load(Ordering::SeqCst)
    }

    /// Does this at the next decision.
    pub(crate) fn during_next_decision(&self, hook: impl Future<Output = ()> + Send + 'static) {
        self.hooks.lock().unwrap().push_back(Box::pin(hook));
    }
}

impl std::fmt::Debug for Interposed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Interposed")
    }
}

#[async_trait]
impl Gateway for Interposed {
    async fn reserve(&self, server: &ServerId, concurrency: Option<u32>, deadline: Deadline) -> Result<Slot> {
        self.inner.reserve(server, concurrency, deadline).await
    }

    async fn inspect(&self, target: &Target) -> EndpointFacts {
        let hook = self.hooks.lock().unwrap().pop_front();
        if let Some(hook) = hook {
            hook.await;
        }
        self.inner.inspect(target).await
    }

    fn session(&self, target: &Target, caller: &CallerKey, tool: &ToolName) -> SessionFact {
        self.inner.session(target, caller, tool)
    }

    async fn check(&self, target: &Target, deadline: Deadline) -> Result<CheckReport> {
        self.inner.check(target, deadline).await
    }

    async fn discover(&self, target: &Target, deadline: Deadline) -> Result<Discovery> {
        self.inner.discover(target, deadline).await
    }

    async fn call(&self, permit: Permit) -> Result<Answer> {
        self.inner.call(permit).await
    }

    async fn next_listing(&self) -> Listing {
        let listing = self.inner.next_listing().await;
        self.listings.fetch_add(1, Ordering::SeqCst);
        listing
    }

    async fn evict(&self, server: &ServerId) {
        // As with a real gateway, it takes a while.
        tokio::task::yield_now().await;
        self.inner.evict(server).await;
    }

    async fn close(&self, deadline: Deadline) {
        self.inner.close(deadline).await;
    }

    fn health(&self, server: &ServerId) -> ServerHealth {
        self.inner.health(server)
    }
}
