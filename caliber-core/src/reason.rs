//! The closed set of reason codes: what programs act on where people read texts.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// Why something was refused or failed. The words are stable; new ones may be added.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum ReasonCode {
            $($(#[$doc])* #[serde(rename = $code)] $name,)*
            /// What a newer version of caliber wrote into a shared store, and this one does not know.
            #[serde(rename = "unknown", other)]
            Unknown,
        }

        impl ReasonCode {
            /// Every code that this version gives.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The stable word.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)* Self::Unknown => "unknown" }
            }
        }
    };
}

reasons! {
    // Admission, in the order in which it asks.
    /// An admin switched the server off.
    ServerDisabled = "server_disabled",
    /// Readiness has blockers; they are named beside this code.
    ServerNotReady = "server_not_ready",
    /// The server was never discovered live.
    InventoryAbsent = "inventory_absent",
    /// The tool is not in the inventory.
    ToolUnknown = "tool_unknown",
    /// The tool is in the inventory and cannot be offered, because its descriptor is broken or too large.
    ToolWithheld = "tool_withheld",
    /// No admin has classified the tool.
    Unclassified = "unclassified",
    /// The descriptor or the place changed since an admin classified the tool.
    Drifted = "drifted",
    /// The policy does not allow the tool.
    Blocked = "blocked",
    /// No grant lets this caller call the tool.
    NotGranted = "not_granted",
    /// The arguments do not fit the input schema.
    ArgumentsInvalid = "arguments_invalid",
    /// The arguments could not be checked within the bounds.
    ArgumentsUnchecked = "arguments_unchecked",
    /// The call needs a person's consent first.
    ApprovalRequired = "approval_required",
    /// The approval that was presented does not fit this call, or is expired, refused or spent.
    ApprovalInvalid = "approval_invalid",
    /// The tool's calls per minute are spent.
    RateLimited = "rate_limited",
    /// The quota could not be asked, and the setting is to refuse then.
    QuotaUnavailable = "quota_unavailable",
    /// The facts contradict each other; nothing is decided on them.
    PolicyError = "policy_error",

    // Readiness blockers.
    /// The executable or URL is missing.
    EndpointMissing = "endpoint_missing",
    /// The executable is not on the allowlist.
    CommandNotAllowed = "command_not_allowed",
    /// The executable is allowed, these arguments are not.
    ArgumentsNotAllowed = "arguments_not_allowed",
    /// The executable does not exist or cannot be run.
    ExecutableNotFound = "executable_not_found",
    /// An environment key is not on the allowlist, or controls a loader or an interpreter.
    EnvironmentNotAllowed = "environment_not_allowed",
    /// The URL cannot be used.
    UrlInvalid = "url_invalid",
    /// The URL holds a user or a password.
    CredentialsInUrl = "credentials_in_url",
    /// The host is not on the allowlist.
    HostNotAllowed = "host_not_allowed",
    /// An address of the host lies in a range that is not dialled.
    AddressBlocked = "address_blocked",
    /// Plain HTTP to a host that is not loopback.
    PlainHttp = "plain_http",
    /// A secret reference is outside what may be referred to.
    SecretNotAllowed = "secret_not_allowed",
    /// The wrapper that stdio servers run in is misconfigured.
    IsolationMisconfigured = "isolation_misconfigured",

    // Readiness warnings.
    /// The server shares the host: containment, no isolation.
    NotIsolated = "not_isolated",
    /// A wrapper is configured that caliber cannot verify.
    WrapperUnverified = "wrapper_unverified",
    /// The isolation of a sidecar is the operator's word.
    OperatorAttested = "operator_attested",
    /// The name of the host did not resolve just now.
    HostUnresolved = "host_unresolved",
    /// Plain HTTP is in use because the operator allows it.
    PlainHttpAllowed = "plain_http_allowed",

    // Calls and connections.
    /// The server works on as many calls as it may.
    ServerBusy = "server_busy",
    /// The server failed too often just now; it is tried again soon.
    BreakerOpen = "breaker_open",
    /// The upstream could not be reached or started.
    ConnectFailed = "connect_failed",
    /// The upstream wants OAuth, which has to be terminated by a proxy for now.
    OauthUnsupported = "oauth_unsupported",
    /// The upstream refused our credentials.
    UpstreamUnauthorized = "upstream_unauthorized",
    /// A secret that the server needs could not be resolved.
    SecretUnresolved = "secret_unresolved",
    /// The upstream broke the protocol.
    ProtocolViolation = "protocol_violation",
    /// The upstream answered with an error.
    UpstreamError = "upstream_error",
    /// The session that held the caller's state is gone; a new one is used from the next call on.
    SessionRestarted = "session_restarted",
    /// The result is larger than the limit.
    ResultTooLarge = "result_too_large",
    /// The result does not fit the output schema, or is no valid result.
    ResultInvalid = "result_invalid",
    /// A list ended at a limit: too many tools, pages, bytes, or a repeated cursor.
    ListTooLarge = "list_too_large",
    /// The deadline passed.
    Timeout = "timeout",
    /// The caller gave up.
    Cancelled = "cancelled",
    /// The call was sent and its answer was lost.
    OutcomeUnknown = "outcome_unknown",

    // Code tools.
    /// A guarantee that the settings require does not hold on this machine; nothing ran.
    SandboxUnavailable = "sandbox_unavailable",
    /// Every place of the sandbox is taken.
    SandboxBusy = "sandbox_busy",
    /// The isolated process could not be set up; the tool did not run.
    SandboxFailed = "sandbox_failed",
    /// The source is no longer the one that was registered.
    SourceChanged = "source_changed",
    /// The module is not on the list of allowed ones.
    ModuleNotAllowed = "module_not_allowed",
    /// The version is archived.
    ToolArchived = "tool_archived",
    /// The version is deprecated; it still runs.
    ToolDeprecated = "tool_deprecated",
    /// No version fits the reference and the constraint.
    ToolUnresolved = "tool_unresolved",
    /// The tool ended without a result, or a limit of the sandbox ended it.
    ToolCrashed = "tool_crashed",

    // State.
    /// A name is taken.
    NameTaken = "name_taken",
    /// The family has this version, or one that differs in build metadata only.
    VersionTaken = "version_taken",
    /// The state changed since it was read.
    StaleRevision = "stale_revision",
    /// An active deployment needs the thing.
    InUse = "in_use",
    /// A secret would follow the server to another origin.
    SecretOriginChanged = "secret_origin_changed",
    /// Secrets cannot be stored, because no key is configured.
    SecretKeyMissing = "secret_key_missing",
    /// The store cannot be reached or written.
    StoreUnavailable = "store_unavailable",
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A code with a text a person can act on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// For programs.
    pub code: ReasonCode,
    /// For people: one line, lower case, says what to do.
    pub text: String,
}

impl Reason {
    /// A reason.
    pub fn new(code: ReasonCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_serialize_as_their_words() {
        let words: std::collections::HashSet<_> = ReasonCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(words.len(), ReasonCode::ALL.len());
        for code in ReasonCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
