//! The decision itself.

use std::hint::black_box;
use std::time::Instant;

use caliber_core::admission::{
    AdmissionPolicy, ArgumentsFact, CallerFact, InventoryFact, Outcome, QuotaFact, ServerToolFacts,
    SessionFact,
};
use caliber_core::clock::{Clock, SystemClock};
use caliber_core::digest::{ArgumentDigest, DescriptorDigest, Fingerprint};
use caliber_core::grant::Grantee;
use caliber_core::id::ServerId;
use caliber_core::json::JsonText;
use caliber_core::policy::{Classification, ToolPolicy};
use caliber_core::principal::{Scope, Scopes};
use caliber_core::readiness::{Boundary, Readiness};
use caliber_core::registry::Revision;
use caliber_core::server::ServerStatus;
use caliber_policy::{Policy, PolicySettings};

use crate::measure::Row;

const DECISIONS: u32 = 200_000;

/// The time of one decision on a call that is allowed by the last of twenty grants.
pub fn decide() -> Row {
    let policy = Policy::new(PolicySettings::default());
    let facts = facts();
    assert_eq!(
        policy.decide((&facts).into()).outcome,
        Outcome::Allow,
        "the call that is measured must be allowed"
    );
    let start = Instant::now();
    for _ in 0..DECISIONS {
        black_box(policy.decide(black_box(&facts).into()));
    }
    let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(DECISIONS);
    Row::at_most("one decision, 20 grants", each, " µs", 5.0, String::new())
}

fn facts() -> ServerToolFacts {
    let tool: caliber_core::descriptor::ToolName =
        "echo".parse().unwrap_or_else(|error| unreachable!("{error}"));
    let subject = |name: &str| name.parse().unwrap_or_else(|error| unreachable!("{error}"));
    let (digest, fingerprint) = (DescriptorDigest::of(b"tool"), Fingerprint::of(b"place"));
    let grants = (0..20)
        .map(|number| (Grantee::Subject(subject(&format!("user-{number}"))), None))
        .collect();
    ServerToolFacts {
        now: SystemClock.now(),
        status: ServerStatus::Active,
        readiness: Readiness {
            boundary: Boundary::RemoteHttps,
            controls: vec![],
            blockers: vec![],
            warnings: vec![],
        },
        inventory: InventoryFact::Listed(digest),
        classification: Some(Classification {
            server: ServerId::new(),
            tool: tool.clone(),
            revision: Revision(1),
            policy: ToolPolicy::allow_read(),
            descriptor_digest: digest,
            fingerprint,
            descriptor: JsonText::empty_object(),
            classified_by: subject("admin"),
            classified_at: SystemClock.now(),
            drifted_at: None,
        }),
        fingerprint,
        session: SessionFact::Advertised(digest),
        caller: CallerFact {
            subject: subject("user-19"),
            scopes: Scopes::NONE.with(Scope::Viewer),
            grants,
            tool,
            break_glass: None,
        },
        arguments: ArgumentsFact::Fit,
        quota: QuotaFact::NotAsked,
        approval: None,
        argument_digest: ArgumentDigest::of(b"{}"),
    }
}
