//! Facts that the tests start from.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use caliber_core::admission::{
    ArgumentsFact, CallerFact, InventoryFact, QuotaFact, ServerToolFacts, SessionFact,
};
use caliber_core::approval::{Approval, ApprovalState, RequestedTool};
use caliber_core::clock::{Clock, SystemClock, Timestamp};
use caliber_core::digest::{ArgumentDigest, DescriptorDigest, Fingerprint};
use caliber_core::grant::Grantee;
use caliber_core::id::{ApprovalId, InvocationId, ProjectId, ServerId};
use caliber_core::policy::{Classification, SideEffectLevel, ToolPolicy};
use caliber_core::principal::{Scope, Scopes};
use caliber_core::readiness::{Boundary, EndpointFacts, Readiness, ReadinessFacts};
use caliber_core::reason::{Reason, ReasonCode};
use caliber_core::registry::Revision;
use caliber_core::server::{
    Auth, Endpoint, RemoteEndpoint, ServerDefinition, ServerLimits, ServerStatus, Sharing, StdioEndpoint,
};

pub(crate) static NOW: LazyLock<Timestamp> = LazyLock::new(|| SystemClock.now());
pub(crate) static SERVER: LazyLock<ServerId> = LazyLock::new(ServerId::new);

pub(crate) fn descriptor(text: &str) -> DescriptorDigest {
    DescriptorDigest::of(text.as_bytes())
}

pub(crate) fn fingerprint(text: &str) -> Fingerprint {
    Fingerprint::of(text.as_bytes())
}

pub(crate) fn arguments(text: &str) -> ArgumentDigest {
    ArgumentDigest::of(text.as_bytes())
}

pub(crate) fn ready() -> Readiness {
    Readiness {
        boundary: Boundary::RemoteHttps,
        controls: Vec::new(),
        blockers: Vec::new(),
        warnings: Vec::new(),
    }
}

pub(crate) fn blocked(blockers: &[(ReasonCode, &str)]) -> Readiness {
    Readiness {
        blockers: blockers
            .iter()
            .map(|(code, text)| Reason::new(*code, *text))
            .collect(),
        ..ready()
    }
}

/// `weather` of [`SERVER`], classified as an allowed `read` tool with a rate.
pub(crate) fn classification() -> Classification {
    Classification {
        server: SERVER.clone(),
        tool: "weather".parse().unwrap(),
        revision: Revision(1),
        policy: ToolPolicy {
            rate_limit_per_minute: Some(60),
            ..ToolPolicy::allow_read()
        },
        descriptor_digest: descriptor("weather"),
        fingerprint: fingerprint("here"),
        descriptor: caliber_core::json::JsonText::of(&serde_json::json!({"name": "weather"})).unwrap(),
        classified_by: "root".parse().unwrap(),
        classified_at: *NOW,
        drifted_at: None,
    }
}

/// Ada, who has a grant for every tool of the server, calls `weather`, and nothing stands against it.
pub(crate) fn allowed() -> ServerToolFacts {
    ServerToolFacts {
        now: *NOW,
        status: ServerStatus::Active,
        readiness: ready(),
        inventory: InventoryFact::Listed(descriptor("weather")),
        classification: Some(classification()),
        fingerprint: fingerprint("here"),
        session: SessionFact::NotOpen,
        caller: CallerFact {
            subject: "ada".parse().unwrap(),
            scopes: Scopes::NONE.with(Scope::Operator),
            grants: vec![(Grantee::Subject("ada".parse().unwrap()), None)],
            tool: "weather".parse().unwrap(),
            break_glass: None,
        },
        arguments: ArgumentsFact::Fit,
        quota: QuotaFact::NotAsked,
        approval: None,
        argument_digest: arguments("{}"),
    }
}

/// [`allowed`], for a tool that needs approval, with an approval that fits.
pub(crate) fn approved() -> ServerToolFacts {
    let mut facts = allowed();
    if let Some(classification) = &mut facts.classification {
        classification.policy.side_effect_level = SideEffectLevel::Write;
        classification.policy.requires_approval = true;
    }
    facts.approval = Some(approval());
    facts
}

pub(crate) fn approval() -> Approval {
    Approval {
        id: ApprovalId::new(),
        project: ProjectId::default(),
        tool: RequestedTool::Server {
            server: SERVER.clone(),
            tool: "weather".parse().unwrap(),
            descriptor_digest: descriptor("weather"),
        },
        arguments: caliber_core::json::JsonText::of(&serde_json::json!({})).unwrap(),
        argument_digest: arguments("{}"),
        requested_by: "ada".parse().unwrap(),
        requested_at: *NOW - std::time::Duration::from_secs(60),
        expires_at: *NOW + std::time::Duration::from_secs(60),
        state: consented("grace"),
    }
}

pub(crate) fn consented(by: &str) -> ApprovalState {
    ApprovalState::Approved {
        by: by.parse().unwrap(),
        at: *NOW,
        note: None,
    }
}

pub(crate) fn spent() -> ApprovalState {
    ApprovalState::Spent {
        by: "grace".parse().unwrap(),
        invocation: InvocationId::new(),
    }
}

pub(crate) fn definition(endpoint: Endpoint) -> ServerDefinition {
    ServerDefinition {
        name: "weather".parse().unwrap(),
        description: String::new(),
        icon: String::new(),
        endpoint,
        auth: Auth::None,
        sharing: Sharing::PerCaller,
        limits: ServerLimits::default(),
    }
}

/// A child process of which the machine says what it says of a plain executable.
pub(crate) fn stdio(command: &str, args: &[&str]) -> ReadinessFacts {
    ReadinessFacts {
        definition: Arc::new(definition(Endpoint::Stdio(StdioEndpoint {
            command: command.into(),
            args: args.iter().map(|argument| (*argument).to_owned()).collect(),
            env: BTreeMap::new(),
        }))),
        endpoint: EndpointFacts::Stdio {
            executable: Some(command.into()),
            is_python: false,
            script: None,
        },
    }
}

/// A remote server whose host has these addresses; none of them means that it did not resolve.
pub(crate) fn remote(url: &str, addresses: &[&str]) -> ReadinessFacts {
    let addresses: Vec<_> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    ReadinessFacts {
        definition: Arc::new(definition(Endpoint::StreamableHttp(RemoteEndpoint {
            url: url.into(),
            headers: BTreeMap::new(),
        }))),
        endpoint: EndpointFacts::Remote {
            addresses: (!addresses.is_empty()).then_some(addresses),
        },
    }
}

/// The codes of the blockers.
pub(crate) fn blockers(readiness: &Readiness) -> Vec<ReasonCode> {
    readiness.blockers.iter().map(|reason| reason.code).collect()
}

/// The codes of the warnings.
pub(crate) fn warnings(readiness: &Readiness) -> Vec<ReasonCode> {
    readiness.warnings.iter().map(|reason| reason.code).collect()
}

/// Whether a text may be shown to a person: one line, bounded, nothing invisible.
pub(crate) fn is_presentable(text: &str) -> bool {
    !text.is_empty()
        && text.chars().count() <= caliber_policy::admission::REASON_LENGTH + 1
        && !caliber_core::text::has_suspicious(text)
}

/// Texts that try to break out of where they are shown.
pub(crate) const HOSTILE: [&str; 5] = [
    "two\nlines\r\n\u{2028}and more",
    "\u{1b}[2J\u{1b}[31mred",
    "right\u{202e}to left",
    "tag\u{e0041}zero\u{200b}width\0",
    "",
];
