//! One registered server, and calls of its tools.

use std::time::Duration;

use caliber::core::descriptor::ToolName;
use caliber::core::grant::{Grant, Grantee};
use caliber::core::id::ServerId;
use caliber::core::inventory::ToolView;
use caliber::core::invocation::InvocationRecord;
use caliber::core::json::{JsonLimits, JsonText};
use caliber::core::page::{PAGE_LIMIT, PageRequest};
use caliber::core::policy::{Classification, SideEffectLevel, ToolPolicy};
use caliber::core::principal::{Principal, Surface};
use caliber::core::server::{ServerDefinition, Visibility};
use caliber::{Caliber, DiscoveryOutcome, InvokeOutcome, InvokeRequest, Result, ServerRegistration};
use serde_json::Value;

use super::rig::Rig;

/// A registered server as its administrator sees it. Cheap to clone, so that a task can have its own.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// The control plane that it is registered at.
    pub(crate) caliber: Caliber,
    /// Its identifier.
    pub(crate) id: ServerId,
    admin: Principal,
}

impl Server {
    pub(super) async fn register(
        caliber: &Caliber,
        admin: &Principal,
        definition: ServerDefinition,
    ) -> Result<Self> {
        let registration = ServerRegistration {
            definition,
            visibility: Visibility::Project,
        };
        let record = caliber
            .register_server((admin, Surface::Library), registration)
            .await?;
        Ok(Self {
            caliber: caliber.clone(),
            id: record.id,
            admin: admin.clone(),
        })
    }

    /// A server that was registered in another way.
    pub(crate) fn of(rig: &Rig, id: ServerId) -> Self {
        Self {
            caliber: rig.caliber.clone(),
            id,
            admin: rig.admin.clone(),
        }
    }

    /// Lists its tools live.
    pub(crate) async fn discover(&self) -> Result<DiscoveryOutcome> {
        self.caliber.discover(self.who(), &self.id).await
    }

    /// Its whole inventory.
    pub(crate) async fn tools(&self) -> Vec<ToolView> {
        let mut page = PageRequest::first(PAGE_LIMIT);
        let mut tools = Vec::new();
        loop {
            let listing = self
                .caliber
                .tools(&self.admin, &self.id, &page)
                .await
                .expect("the tools are listed");
            tools.extend(listing.tools.items);
            match listing.tools.next {
                Some(next) => page.cursor = Some(next),
                None => return tools,
            }
        }
    }

    /// The names of its tools, in the order of the inventory.
    pub(crate) async fn tool_names(&self) -> Vec<String> {
        self.tools()
            .await
            .iter()
            .map(|tool| tool.name().to_string())
            .collect()
    }

    /// Classifies every tool as [`policy_for`] says.
    pub(crate) async fn classify_all(&self) {
        for tool in self.tools().await {
            self.classify(tool.name().as_str(), policy_for(tool.name().as_str()))
                .await
                .expect("the tool is classified");
        }
    }

    /// Classifies one tool.
    pub(crate) async fn classify(&self, tool: &str, policy: ToolPolicy) -> Result<Classification> {
        self.caliber
            .classify(self.who(), &self.id, &name(tool), policy, None)
            .await
    }

    /// Takes the classification of a tool back.
    pub(crate) async fn declassify(&self, tool: &str) -> Result<()> {
        self.caliber.declassify(self.who(), &self.id, &name(tool)).await
    }

    /// Lets somebody call every tool.
    pub(crate) async fn open_to(&self, grantee: Grantee) -> Grant {
        self.caliber
            .grant(self.who(), &self.id, grantee, None)
            .await
            .expect("the grant is given")
    }

    /// A call to be sent; see [`RequestExt`].
    pub(crate) fn request(&self, tool: &str, arguments: Value) -> InvokeRequest {
        self.raw_request(tool, &arguments.to_string())
    }

    /// A call with arguments that stay as they are written.
    pub(crate) fn raw_request(&self, tool: &str, arguments: &str) -> InvokeRequest {
        let arguments = JsonText::parse(arguments, JsonLimits::ARGUMENTS).expect("arguments are JSON");
        InvokeRequest::new(self.id.clone(), name(tool), arguments, Surface::Library)
    }

    /// Sends a call.
    pub(crate) async fn send(&self, caller: &Principal, request: InvokeRequest) -> Result<InvokeOutcome> {
        self.caliber.invoke(caller, request).await
    }

    /// Makes a call with the time of the installation.
    pub(crate) async fn call(
        &self,
        caller: &Principal,
        tool: &str,
        arguments: Value,
    ) -> Result<InvokeOutcome> {
        self.send(caller, self.request(tool, arguments)).await
    }

    /// Its calls in the ledger, newest first, after everything that waits was written.
    pub(crate) async fn ledger(&self) -> Vec<InvocationRecord> {
        let mut page = PageRequest::first(PAGE_LIMIT);
        let mut records = Vec::new();
        loop {
            let listed = self
                .caliber
                .invocations(&self.admin, &self.id, &page)
                .await
                .expect("the ledger can be read");
            records.extend(listed.items);
            match listed.next {
                Some(next) => page.cursor = Some(next),
                None => return records,
            }
        }
    }

    /// Removes the server, which ends its sessions.
    pub(crate) async fn remove(&self) {
        self.caliber
            .remove_server(self.who(), &self.id, None)
            .await
            .expect("the server is removed");
    }

    /// The administrator, on the surface of the library.
    pub(crate) fn who(&self) -> (&Principal, Surface) {
        (&self.admin, Surface::Library)
    }
}

/// What tests change about a call.
pub(crate) trait RequestExt {
    /// With a time of its own.
    fn within(self, timeout: Duration) -> Self;
    /// In an inbound session.
    fn in_session(self, session: &str) -> Self;
}

impl RequestExt for InvokeRequest {
    fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn in_session(mut self, session: &str) -> Self {
        self.inbound_session = Some(session.to_owned());
        self
    }
}

/// How far the tests say that a tool reaches, by its name: what counts, adds, commits, creates, resets, checks out,
/// toggles or triggers writes; everything else reads.
pub(crate) fn level_of(tool: &str) -> SideEffectLevel {
    const WRITING: [&str; 8] = [
        "count", "add", "commit", "create", "reset", "checkout", "toggle", "trigger",
    ];
    if WRITING.iter().any(|word| tool.contains(word)) {
        SideEffectLevel::Write
    } else {
        SideEffectLevel::Read
    }
}

/// The policy that tests classify a tool with: allowed, as [`level_of`] says, approval waived.
pub(crate) fn policy_for(tool: &str) -> ToolPolicy {
    match level_of(tool) {
        SideEffectLevel::Read => ToolPolicy::allow_read(),
        level => ToolPolicy {
            side_effect_level: level,
            approval_waiver: Some("a test server, which nobody depends on".into()),
            ..ToolPolicy::allow_read()
        },
    }
}

/// The text of the first content block of an answer; empty where there is none.
pub(crate) fn text(outcome: &InvokeOutcome) -> String {
    let result: Value = outcome.answer.result.read().expect("a result is JSON");
    result
        .pointer("/content/0/text")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// The structured content of an answer; null where there is none.
pub(crate) fn structured(outcome: &InvokeOutcome) -> Value {
    let content = outcome.answer.result.member("structuredContent");
    content.map_or(Value::Null, |content| {
        content.read().expect("structured content is JSON")
    })
}

fn name(tool: &str) -> ToolName {
    tool.parse().expect("a tool name")
}
