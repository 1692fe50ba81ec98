//! Servers that a test writes down.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::descriptor::{Descriptor, ToolName};
use crate::error::{Error, ErrorKind, Result};
use crate::gateway::{CallerKey, Target};
use crate::id::{InvocationId, ServerId};
use crate::inventory::{Discovery, WithheldTool};
use crate::json::{JsonLimits, JsonText};
use crate::reason::ReasonCode;

/// The protocol revision that scripted servers claim to speak.
const PROTOCOL_VERSION: &str = "2025-11-25";

/// One server: its tools, and how it fails.
#[derive(Clone, Debug, Default)]
pub struct ScriptedServer {
    pub(super) tools: Vec<ScriptedTool>,
    pub(super) withheld: Vec<WithheldTool>,
    instructions: Option<String>,
    failure: Option<String>,
}

/// One tool: what is advertised of it, and what it does.
#[derive(Clone)]
pub struct ScriptedTool {
    pub(super) descriptor: Descriptor,
    pub(super) handler: Handler,
    pub(super) delay: Duration,
}

type Handler =
    Arc<dyn Fn(ScriptedCall) -> Pin<Box<dyn Future<Output = Result<JsonText>> + Send>> + Send + Sync>;

/// A call as a handler gets it.
#[derive(Clone, Debug)]
pub struct ScriptedCall {
    /// The arguments, as they were sent.
    pub arguments: JsonText,
    /// Whose session the call came in.
    pub caller: CallerKey,
    /// The call in the ledger.
    pub invocation: InvocationId,
    /// Which call of its session it is, counted from 1.
    pub ordinal: u64,
}

/// A call that reached a server.
#[derive(Clone, Debug)]
pub struct LoggedCall {
    /// The server.
    pub server: ServerId,
    /// The tool.
    pub tool: ToolName,
    /// The call as the handler got it.
    pub call: ScriptedCall,
    /// How it ended; `None` while it runs.
    pub end: Option<CallEnd>,
}

/// How a call ended at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// The handler answered, with a result or an error.
    Answered,
    /// The deadline passed.
    TimedOut,
    /// The future was dropped.
    Cancelled,
}

impl ScriptedTool {
    /// A tool that is advertised as `descriptor`, an item of `tools/list`, and does what `handler` does. The
    /// handler returns the whole `result`; with `"isError": true` the tool says that it failed.
    ///
    /// # Errors
    ///
    /// As for [`Descriptor::parse`].
    pub fn new<F, Fut>(descriptor: &str, handler: F) -> Result<Self>
    where
        F: Fn(ScriptedCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<JsonText>> + Send + 'static,
    {
        Ok(Self {
            descriptor: Descriptor::parse(descriptor)?,
            handler: Arc::new(move |call| Box::pin(handler(call))),
            delay: Duration::ZERO,
        })
    }

    /// A tool that takes any object and answers with it as its structured content.
    ///
    /// # Errors
    ///
    /// `Invalid` for what is no tool name.
    pub fn echo(name: &str) -> Result<Self> {
        let descriptor = serde_json::json!({
            "name": name,
            "description": "Answers with its arguments.",
            "inputSchema": { "type": "object" },
        });
        Self::new(&descriptor.to_string(), |call| async move {
            let arguments = call.arguments.as_str();
            JsonText::parse(
                format!(r#"{{"content":[],"structuredContent":{arguments}}}"#),
                JsonLimits::RESULT,
            )
        })
    }

    /// The same tool, which takes `delay` before it does what it does.
    #[must_use]
    pub fn delayed(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The same tool, advertised with another description: what drifts.
    ///
    /// # Errors
    ///
    /// `TooLarge` when the descriptor gets too large.
    pub fn described(mut self, description: &str) -> Result<Self> {
        let mut descriptor: serde_json::Map<String, serde_json::Value> = self.descriptor.text().read()?;
        descriptor.insert("description".to_owned(), description.into());
        self.descriptor = Descriptor::parse(serde_json::Value::from(descriptor).to_string())?;
        Ok(self)
    }

    /// What is advertised.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }
}

impl std::fmt::Debug for ScriptedTool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_tuple("ScriptedTool")
            .field(self.descriptor.name())
            .finish()
    }
}

impl ScriptedServer {
    /// A server with these tools.
    pub fn new(tools: impl IntoIterator<Item = ScriptedTool>) -> Self {
        Self {
            tools: tools.into_iter().collect(),
            ..Self::default()
        }
    }

    /// The same server, which also advertises a tool that cannot be offered.
    #[must_use]
    pub fn withholding(mut self, name: &str, reason: &str) -> Self {
        self.withheld.push(WithheldTool {
            name: name.to_owned(),
            reason: reason.to_owned(),
        });
        self
    }

    /// The same server, out of reach, for `reason`.
    #[must_use]
    pub fn failing(mut self, reason: &str) -> Self {
        self.failure = Some(reason.to_owned());
        self
    }

    /// What a listing of the server gives.
    pub(super) fn discovery(&self, target: &Target) -> Result<Discovery> {
        if let Some(reason) = &self.failure {
            return Err(
                Error::new(ErrorKind::Upstream, reason.clone()).with_reason(ReasonCode::ConnectFailed)
            );
        }
        Ok(Discovery {
            listed_at: std::time::Instant::now(),
            fingerprint: target.definition.fingerprint(),
            protocol_version: PROTOCOL_VERSION.to_owned(),
            server_info: None,
            instructions: self.instructions.clone(),
            tools: self.tools.iter().map(|tool| tool.descriptor.clone()).collect(),
            withheld: self.withheld.clone(),
        })
    }
}
