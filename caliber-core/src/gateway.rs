//! Reaching servers: checks, discovery and calls.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::admission::{Permit, SessionFact, SharedDefinition, Slot};
use crate::clock::Deadline;
use crate::descriptor::ToolName;
use crate::error::Result;
use crate::id::ServerId;
use crate::inventory::Discovery;
use crate::json::JsonText;
use crate::principal::Subject;
use crate::process::ContainmentMeasure;
use crate::readiness::EndpointFacts;

/// Reaches servers. It trusts its caller in nothing but the [`Permit`]: only core's admission makes one.
///
/// Contract: every operation ends by its deadline; dropping a future cancels what it does, upstream included;
/// after a byte of a call was sent the call is never sent again unless [`Permit::is_replay_safe`]; a lost
/// answer is `OutcomeUnknown`; every list, line, result and queue is bounded.
#[async_trait]
pub trait Gateway: Send + Sync + fmt::Debug {
    /// Reserves one of the server's concurrent calls, waiting for a free one until `deadline`. `concurrency` is how
    /// many its definition allows at once, 1 or more; `None` stands for the gateway's own number. It holds from here
    /// on, also for those who wait; a place that was taken before counts until it is given back.
    ///
    /// # Errors
    ///
    /// `Unavailable` with [`ServerBusy`](crate::reason::ReasonCode::ServerBusy) when the deadline passes or the
    /// queue is full.
    async fn reserve(&self, server: &ServerId, concurrency: Option<u32>, deadline: Deadline) -> Result<Slot>;

    /// What the machine says about an endpoint: the real executable, or the addresses of the host. Bounded in
    /// time; it connects to nothing.
    async fn inspect(&self, target: &Target) -> EndpointFacts;

    /// What the open session of `caller` advertised last about `tool`. It opens none. A session that has to list its
    /// tools again before the next call answers [`NotOpen`](SessionFact::NotOpen): like one that is yet to be opened
    /// it compares before it sends.
    fn session(&self, target: &Target, caller: &CallerKey, tool: &ToolName) -> SessionFact;

    /// Opens a connection, shakes hands and lists the tools once, on a session of its own that is closed again.
    ///
    /// # Errors
    ///
    /// `Upstream`, `Timeout`, `TooLarge`, each with a reason code; a failed start names the end of the
    /// server's standard error.
    async fn check(&self, target: &Target, deadline: Deadline) -> Result<CheckReport>;

    /// Like [`check`](Self::check), and returns everything that the server advertised. Broken descriptors are
    /// withheld one by one; a list that ends at a limit is an error, never a short list. Open sessions of the server
    /// that advertise something else list again before their next call.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check).
    async fn discover(&self, target: &Target, deadline: Deadline) -> Result<Discovery>;

    /// Makes the admitted call in the caller's session. Before sending it compares what the session advertises
    /// with [`Permit::descriptor_digest`].
    ///
    /// # Errors
    ///
    /// `Denied` with [`Drifted`](crate::reason::ReasonCode::Drifted) or
    /// [`ToolUnknown`](crate::reason::ReasonCode::ToolUnknown) when the session sees another tool than was
    /// admitted (nothing was sent); `Upstream`, `Timeout`, `TooLarge`, `Unavailable`; `OutcomeUnknown` when the
    /// call was sent and its answer was lost. What fails once the call may have been sent says so
    /// ([`Error::may_have_been_sent`](crate::Error::may_have_been_sent)).
    async fn call(&self, permit: Permit) -> Result<Answer>;

    /// Waits for the next listing that a session made by itself: at its opening, after `list_changed`, at the
    /// re-list interval. Listings of one server that nobody waited for are merged into the newest. Cancel-safe: a
    /// wait that is dropped loses no listing.
    async fn next_listing(&self) -> Listing;

    /// Ends the sessions of a server that was changed or removed.
    async fn evict(&self, server: &ServerId);

    /// Ends everything, children included, until `deadline`.
    async fn close(&self, deadline: Deadline);

    /// How the server's sessions do, for operators.
    fn health(&self, server: &ServerId) -> ServerHealth;

    /// What is done to the child processes of stdio servers. It may try things out, so it may block for some
    /// milliseconds. A gateway that starts no processes has nothing to tell.
    fn containment(&self) -> Vec<ContainmentMeasure> {
        Vec::new()
    }
}

/// Where to go: a registered server, or a definition that is only tried.
#[derive(Clone, Debug)]
pub struct Target {
    /// The identifier, when it is registered. Only such targets have pooled sessions.
    pub server: Option<ServerId>,
    /// The definition.
    pub definition: SharedDefinition,
}

/// Whose session a call belongs to. One caller never meets another's state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallerKey {
    /// The caller.
    pub subject: Subject,
    /// The inbound session, where there is one.
    pub inbound_session: Option<String>,
}

/// What a check found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckReport {
    /// The protocol revision that was spoken.
    pub protocol_version: String,
    /// What the server says about itself; untrusted.
    pub server_info: Option<JsonText>,
    /// The names of its tools, as it wrote them, escaped and bounded.
    pub tools: Vec<String>,
    /// How long it took, in microseconds.
    pub duration_us: u64,
}

/// The answer of a tool, as it arrived.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The `result` of the call, byte for byte.
    pub result: JsonText,
    /// Whether the tool says that it failed.
    pub is_error: bool,
    /// How long the upstream took.
    pub upstream_time: Duration,
}

/// A listing that a session made by itself.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The server.
    pub server: ServerId,
    /// What it advertised.
    pub discovery: Discovery,
}

/// What stands in an error between what happened and the end of what the server's process wrote to standard error.
/// Those words are for admins: [`without_last_words`] is what others are shown.
pub const BEFORE_LAST_WORDS: &str = "; its standard error ends with ";

/// An error text without the end of the server's standard error.
pub fn without_last_words(text: &str) -> &str {
    text.split_once(BEFORE_LAST_WORDS).map_or(text, |(text, _)| text)
}

/// How a server's sessions do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServerHealth {
    /// Open sessions.
    pub sessions: u32,
    /// Calls under way.
    pub calls: u32,
    /// Whether the breaker lets nothing through just now.
    pub breaker_open: bool,
    /// The end of what its process wrote to standard error, escaped.
    pub stderr_tail: Option<String>,
    /// Messages that were dropped because they were no messages.
    pub dropped_messages: u64,
}
