//! Code tools: registered, found, changed, and seen by whom.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use caliber_core::admission::{AdmissionFacts, AdmissionPolicy, Decision};
use caliber_core::audit::{AuditAction, AuditQuery};
use caliber_core::code_tool::{CodeToolDefinition, CodeToolRecord, CodeToolStatus, LifecycleStage};
use caliber_core::grant::{GrantedTools, Grantee};
use caliber_core::id::CodeToolId;
use caliber_core::memory::{self, Parts, ReferencePolicy};
use caliber_core::page::PageRequest;
use caliber_core::principal::{Principal, Scope, Surface};
use caliber_core::readiness::{Readiness, ReadinessFacts};
use caliber_core::reason::{Reason, ReasonCode};
use caliber_core::registry::{CodeToolQuery, DeploymentReference};
use caliber_core::sandbox::Enforcement;
use caliber_core::secret::{ConfigValue, SecretReference, SecretText};
use caliber_core::server::Visibility;
use caliber_core::{Caliber, CodeToolPatch, Error, ErrorKind, Result};

use crate::support::{admin, person, project, subject};

const HERE: Surface = Surface::Library;

fn admin_of(place: &str) -> Principal {
    person("root", place, Scope::Admin)
}

async fn register(caliber: &Caliber, who: &Principal, name: &str, version: &str) -> Result<CodeToolRecord> {
    let registration = memory::code_tool(name, version).unwrap();
    caliber.register_code_tool((who, HERE), registration).await
}

async fn visible(
    caliber: &Caliber,
    who: &Principal,
    name: &str,
    visibility: Visibility,
) -> Result<CodeToolRecord> {
    let mut registration = memory::code_tool(name, "1").unwrap();
    registration.visibility = visibility;
    caliber.register_code_tool((who, HERE), registration).await
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T>, kind: ErrorKind, reason: Option<ReasonCode>) -> Error {
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (kind, reason), "{error}");
    error
}

async fn actions(caliber: &Caliber, id: &CodeToolId) -> Vec<AuditAction> {
    let query = AuditQuery {
        entity_type: Some("code_tool".to_owned()),
        entity_id: Some(id.to_string()),
        ..AuditQuery::default()
    };
    let page = caliber
        .audit(&admin(), query, &PageRequest::first(50))
        .await
        .unwrap();
    page.items.iter().rev().map(|entry| entry.action).collect()
}

#[tokio::test]
async fn a_registered_version_is_pinned_and_reads_back() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let root = admin_of("home");
    let record = register(&caliber, &root, "weather", "1.0").await.unwrap();
    let view = caliber.code_tool(&root, &record.id).await.unwrap();
    assert_eq!(view.record.definition.version.to_string(), "1.0.0");
    assert_eq!(view.record.content_hash, record.computed_hash().unwrap());
    assert_eq!((view.record.revision.0, view.stage), (1, LifecycleStage::Draft));
    assert_eq!(
        (view.record.project.as_str(), view.record.owner.as_str()),
        ("home", "root")
    );
    assert_eq!(
        actions(&caliber, &record.id).await,
        [AuditAction::RegisterCodeTool]
    );
    // Another source is another content, although the definition is the same.
    parts.sandbox.set_source("second");
    let other = register(&caliber, &root, "weather", "1.1").await.unwrap();
    assert_ne!(other.content_hash, record.content_hash);
}

#[tokio::test]
async fn what_cannot_be_registered_is_refused_and_leaves_nothing() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let root = admin_of("home");
    register(&caliber, &root, "weather", "1.0.0").await.unwrap();
    let operator = person("ada", "home", Scope::Operator);
    refused(
        register(&caliber, &operator, "weather", "2").await,
        ErrorKind::Forbidden,
        None,
    );
    for same in ["1", "1.0.0", "1.0.0+build.7"] {
        let outcome = register(&caliber, &root, "weather", same).await;
        refused(outcome, ErrorKind::Conflict, Some(ReasonCode::VersionTaken));
    }
    let mut wrong = memory::code_tool("weather", "3").unwrap();
    wrong.definition.side_effect_level = caliber_core::policy::SideEffectLevel::Write;
    let outcome = caliber.register_code_tool((&root, HERE), wrong).await;
    let error = refused(outcome, ErrorKind::Invalid, None);
    assert_eq!(error.fields()[0].field, "requires_approval");
    let all = caliber
        .code_tools(&root, CodeToolQuery::default(), &PageRequest::first(50))
        .await;
    assert_eq!(all.unwrap().items.len(), 1);
    // Without a sandbox there is nothing to register for.
    let bare = Caliber::builder(
        parts.registry.clone(),
        std::sync::Arc::new(parts.gateway.clone()),
        parts.policy.clone(),
        parts.quotas.clone(),
    )
    .build();
    let outcome = register(&bare, &root, "weather", "4").await;
    refused(
        outcome,
        ErrorKind::Unavailable,
        Some(ReasonCode::SandboxUnavailable),
    );
    assert!(bare.sandbox_report(&root).unwrap().is_none());
    assert!(caliber.sandbox_report(&root).unwrap().unwrap().is_available());
}

#[tokio::test]
async fn a_hidden_version_answers_like_an_absent_one_everywhere() {
    let caliber = Parts::new().caliber();
    let hidden = register(&caliber, &admin_of("secret"), "weather", "1")
        .await
        .unwrap();
    // The same name and version are free in every other project: a conflict tells nothing.
    let stranger = admin_of("home");
    let own = register(&caliber, &stranger, "weather", "1").await.unwrap();
    let (absent, page) = (CodeToolId::new(), PageRequest::first(10));
    let told = |error: Error, id: &CodeToolId| error.to_string().replace(id.as_str(), "…");
    for surface in 0..8 {
        let ask = async |id: &CodeToolId| -> Error {
            let who = (&stranger, HERE);
            match surface {
                0 => caliber.code_tool(&stranger, id).await.unwrap_err(),
                1 => caliber
                    .code_tool_versions(&stranger, id, &page)
                    .await
                    .unwrap_err(),
                2 => caliber.code_tool_usage(&stranger, id).await.unwrap_err(),
                3 => caliber.code_tool_source(who, id).await.unwrap_err(),
                4 => caliber
                    .update_code_tool(who, id, CodeToolPatch::default())
                    .await
                    .unwrap_err(),
                5 => caliber.archive_code_tool(who, id, None).await.unwrap_err(),
                6 => caliber
                    .code_tool_invocations(&stranger, id, &page)
                    .await
                    .unwrap_err(),
                _ => {
                    let arguments = crate::support::json("{}");
                    let call = caliber_core::CodeToolCall::new(id.clone(), arguments, HERE);
                    caliber.run_code_tool(&stranger, call).await.unwrap_err()
                }
            }
        };
        let (one, two) = (ask(&hidden.id).await, ask(&absent).await);
        assert_eq!(
            (one.kind(), two.kind()),
            (ErrorKind::NotFound, ErrorKind::NotFound)
        );
        assert_eq!(told(one, &hidden.id), told(two, &absent), "surface {surface}");
    }
    let listed = caliber
        .code_tools(&stranger, CodeToolQuery::default(), &page)
        .await
        .unwrap();
    assert_eq!(
        listed.items.iter().map(|tool| &tool.id).collect::<Vec<_>>(),
        [&own.id]
    );
    // Nor can it be named as a successor.
    let patch = CodeToolPatch {
        successor: Some(Some(hidden.id.clone())),
        ..CodeToolPatch::default()
    };
    let outcome = caliber.update_code_tool((&stranger, HERE), &own.id, patch).await;
    refused(outcome, ErrorKind::Invalid, None);
}

#[tokio::test]
async fn a_name_is_public_in_one_project() {
    let caliber = Parts::new().caliber();
    let (one, two) = (admin_of("one"), admin_of("two"));
    let public = visible(&caliber, &one, "weather", Visibility::Public)
        .await
        .unwrap();
    let outcome = visible(&caliber, &two, "weather", Visibility::Public).await;
    refused(outcome, ErrorKind::Conflict, Some(ReasonCode::NameTaken));
    // A name of its own project is fine, and shadows the public one there.
    let reference = "weather".parse().unwrap();
    let any = Default::default();
    let resolved = async |who: &Principal| {
        caliber
            .resolve_code_tool(who, &reference, &any)
            .await
            .unwrap()
            .tool
            .id
    };
    assert_eq!(resolved(&two).await, public.id);
    let own = visible(&caliber, &two, "weather", Visibility::Project)
        .await
        .unwrap();
    assert_eq!(resolved(&two).await, own.id);
    let publish = CodeToolPatch {
        visibility: Some(Visibility::Public),
        ..CodeToolPatch::default()
    };
    let outcome = caliber.update_code_tool((&two, HERE), &own.id, publish).await;
    refused(outcome, ErrorKind::Conflict, Some(ReasonCode::NameTaken));
}

#[tokio::test]
async fn versions_come_newest_first_and_resolve() {
    let caliber = Parts::new().caliber();
    let root = admin_of("home");
    let mut ids = BTreeMap::new();
    for version in ["1.9.0", "1.10.0", "2.0.0-rc.1", "1.1.0", "2.0.0"] {
        ids.insert(
            version,
            register(&caliber, &root, "weather", version).await.unwrap().id,
        );
    }
    let viewer = person("ada", "home", Scope::Viewer);
    let mut shown = Vec::new();
    let mut request = PageRequest::first(2);
    loop {
        let page = caliber
            .code_tool_versions(&viewer, &ids["1.1.0"], &request)
            .await
            .unwrap();
        shown.extend(page.items.iter().map(|tool| tool.version.to_string()));
        match page.next {
            Some(cursor) => request.cursor = Some(cursor),
            None => break,
        }
    }
    assert_eq!(shown, ["2.0.0", "2.0.0-rc.1", "1.10.0", "1.9.0", "1.1.0"]);
    let resolve = async |reference: &str, constraint: &str| {
        let (reference, constraint) = (reference.parse().unwrap(), constraint.parse().unwrap());
        caliber.resolve_code_tool(&viewer, &reference, &constraint).await
    };
    assert_eq!(
        resolve("tool.weather.v1", "").await.unwrap().tool.id,
        ids["1.10.0"]
    );
    let error = refused(
        resolve("weather", ">3").await,
        ErrorKind::NotFound,
        Some(ReasonCode::ToolUnresolved),
    );
    assert!(error.to_string().contains("2.0.0, 2.0.0-rc.1, 1.10.0"), "{error}");
    // A deprecated one warns, and names what to use, also in another family.
    let other = register(&caliber, &root, "forecast", "3").await.unwrap();
    let patch = CodeToolPatch {
        status: Some(CodeToolStatus::Deprecated),
        successor: Some(Some(other.id.clone())),
        ..CodeToolPatch::default()
    };
    let changed = caliber
        .update_code_tool((&root, HERE), &ids["2.0.0"], patch)
        .await
        .unwrap();
    assert!(changed.deprecated_at.is_some());
    let resolved = resolve("weather", "2").await.unwrap();
    let warning = resolved.warning.unwrap();
    assert_eq!(warning.code, ReasonCode::ToolDeprecated);
    assert!(warning.text.contains("use forecast 3.0.0"), "{}", warning.text);
    // Archived ones never resolve.
    caliber
        .archive_code_tool((&root, HERE), &ids["2.0.0"], None)
        .await
        .unwrap();
    refused(
        resolve("weather", "2").await,
        ErrorKind::NotFound,
        Some(ReasonCode::ToolUnresolved),
    );
}

#[tokio::test]
async fn a_version_changes_in_one_way_and_keeps_what_it_does() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let root = admin_of("home");
    let who = (&root, HERE);
    let before = register(&caliber, &root, "weather", "1").await.unwrap();
    let patch = CodeToolPatch {
        description: Some("Tells the weather.".to_owned()),
        owner: Some(subject("grace")),
        expect: Some(before.revision),
        ..CodeToolPatch::default()
    };
    let after = caliber
        .update_code_tool(who, &before.id, patch.clone())
        .await
        .unwrap();
    assert_eq!(after.content_hash, before.content_hash, "prose is no behaviour");
    assert_eq!(after.content_hash, after.computed_hash().unwrap());
    assert_eq!((after.revision.0, after.owner.as_str()), (2, "grace"));
    let read = caliber.code_tool(&root, &before.id).await.unwrap().record;
    assert_eq!(read.definition.description, "Tells the weather.");
    // The same again is stale, and without a revision it changes nothing and leaves no entry.
    let stale = caliber.update_code_tool(who, &before.id, patch.clone()).await;
    refused(stale, ErrorKind::Conflict, Some(ReasonCode::StaleRevision));
    let again = CodeToolPatch {
        expect: None,
        ..patch
    };
    assert_eq!(
        caliber
            .update_code_tool(who, &before.id, again)
            .await
            .unwrap()
            .revision
            .0,
        2
    );
    let long = CodeToolPatch {
        description: Some("x".repeat(2_049)),
        ..CodeToolPatch::default()
    };
    refused(
        caliber.update_code_tool(who, &before.id, long).await,
        ErrorKind::Invalid,
        None,
    );
    let itself = CodeToolPatch {
        successor: Some(Some(before.id.clone())),
        ..CodeToolPatch::default()
    };
    refused(
        caliber.update_code_tool(who, &before.id, itself).await,
        ErrorKind::Invalid,
        None,
    );
    let operator = person("ada", "home", Scope::Operator);
    let outcome = caliber
        .archive_code_tool((&operator, HERE), &before.id, None)
        .await;
    refused(outcome, ErrorKind::Forbidden, None);
    let status = |status| CodeToolPatch {
        status: Some(status),
        ..CodeToolPatch::default()
    };
    let archived = caliber.archive_code_tool(who, &before.id, None).await.unwrap();
    assert_eq!(archived.status, CodeToolStatus::Archived);
    assert_eq!(
        caliber
            .archive_code_tool(who, &before.id, None)
            .await
            .unwrap()
            .revision,
        archived.revision
    );
    let back = caliber
        .update_code_tool(who, &before.id, status(CodeToolStatus::Active))
        .await
        .unwrap();
    assert_eq!((back.status, back.deprecated_at), (CodeToolStatus::Active, None));
    assert_eq!(
        actions(&caliber, &before.id).await,
        [
            AuditAction::RegisterCodeTool,
            AuditAction::UpdateCodeTool,
            AuditAction::ArchiveCodeTool,
            AuditAction::UpdateCodeTool
        ]
    );
}

#[tokio::test]
async fn what_deployments_need_is_not_archived_by_any_way() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let root = admin_of("home");
    let who = (&root, HERE);
    let needed = register(&caliber, &root, "weather", "2").await.unwrap();
    let old = register(&caliber, &root, "weather", "1").await.unwrap();
    let reference = DeploymentReference {
        workflow: "billing".to_owned(),
        alias: "prod".to_owned(),
        rollback_only: false,
    };
    parts
        .registry
        .add_code_tool_deployment(&needed.id, reference.clone());
    assert_eq!(
        caliber.code_tool_usage(&root, &needed.id).await.unwrap(),
        [reference]
    );
    let patch = || CodeToolPatch {
        status: Some(CodeToolStatus::Archived),
        ..CodeToolPatch::default()
    };
    let by_patch = caliber.update_code_tool(who, &needed.id, patch()).await;
    let by_archive = caliber.archive_code_tool(who, &needed.id, None).await;
    for outcome in [by_patch, by_archive] {
        let error = refused(outcome, ErrorKind::Conflict, Some(ReasonCode::InUse));
        assert!(error.to_string().contains("prod@billing"), "{error}");
    }
    // Another version of the family is another matter, and so is a change that archives nothing.
    caliber.archive_code_tool(who, &old.id, None).await.unwrap();
    let deprecate = CodeToolPatch {
        status: Some(CodeToolStatus::Deprecated),
        ..CodeToolPatch::default()
    };
    caliber
        .update_code_tool(who, &needed.id, deprecate)
        .await
        .unwrap();
    parts.registry.clear_code_tool_deployments(&needed.id);
    caliber.update_code_tool(who, &needed.id, patch()).await.unwrap();
}

#[tokio::test]
async fn literal_secrets_go_into_the_store_and_nowhere_else() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let root = admin_of("home");
    let mut registration = memory::code_tool("weather", "1").unwrap();
    registration.definition.secret_refs = BTreeMap::from([
        (
            "TOKEN".to_owned(),
            ConfigValue::Literal(SecretText::new("canary-1")),
        ),
        ("OTHER".to_owned(), ConfigValue::from_input("env://OTHER")),
    ]);
    let record = caliber
        .register_code_tool((&root, HERE), registration.clone())
        .await
        .unwrap();
    assert_eq!(parts.registry.secret_count(), 1);
    let stored = record.definition.secret_refs["TOKEN"].reference();
    assert!(matches!(stored, Some(SecretReference::Stored(_))));
    let written = serde_json::to_string(&record).unwrap();
    let shown = serde_json::to_string(&record.definition.masked()).unwrap();
    assert!(
        !written.contains("canary") && !shown.contains("secret://"),
        "{written} {shown}"
    );
    // The secret of one tool is not to be had by another.
    registration.definition.version = "2".parse().unwrap();
    registration.definition.secret_refs = record.definition.secret_refs.clone();
    let outcome = caliber
        .register_code_tool((&root, HERE), registration.clone())
        .await;
    refused(outcome, ErrorKind::Invalid, None);
    registration.definition.secret_refs = BTreeMap::from([("A".to_owned(), ConfigValue::Unchanged)]);
    let outcome = caliber.register_code_tool((&root, HERE), registration).await;
    refused(outcome, ErrorKind::Invalid, None);
    assert_eq!(parts.registry.secret_count(), 1);
}

#[tokio::test]
async fn the_source_is_looked_at_once_in_the_sandbox_and_never_unseen() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let root = admin_of("home");
    let record = register(&caliber, &root, "weather", "1").await.unwrap();
    let viewer = person("ada", "home", Scope::Viewer);
    for _ in 0..3 {
        let seen = caliber
            .code_tool_source((&viewer, HERE), &record.id)
            .await
            .unwrap();
        assert_eq!((seen.available, seen.source.as_str()), (true, "first"));
    }
    assert_eq!(
        parts.sandbox.inspections(),
        1,
        "what was seen at the registration is kept by its content"
    );
    assert_eq!(
        actions(&caliber, &record.id).await[1..],
        [AuditAction::InspectCodeTool; 3]
    );
    // Whoever has not seen it yet looks, if the sandbox may.
    let fresh = parts.caliber();
    parts.sandbox.set_report(|report| {
        let missing = Enforcement::NotEnforced {
            stage: "net".to_owned(),
            errno: String::new(),
            remedy: String::new(),
        };
        report
            .guarantees
            .insert(caliber_core::sandbox::Guarantee::Net, missing);
    });
    let unseen = fresh.code_tool_source((&viewer, HERE), &record.id).await.unwrap();
    assert!(!unseen.available && unseen.error.is_some());
    assert_eq!(parts.sandbox.inspections(), 1);
}

#[tokio::test]
async fn a_family_is_granted_by_whoever_may() {
    let caliber = Parts::new().caliber();
    let (home, guest) = (admin_of("home"), admin_of("guest"));
    let family = "weather".parse().unwrap();
    let ada = || Grantee::Subject(subject("ada"));
    let absent = caliber.grant_family((&guest, HERE), &family, ada()).await;
    refused(absent, ErrorKind::NotFound, None);
    visible(&caliber, &home, "weather", Visibility::Public)
        .await
        .unwrap();
    let given = caliber
        .grant_family((&guest, HERE), &family, ada())
        .await
        .unwrap();
    let tools = GrantedTools::Family {
        project: project("home"),
        family: family.clone(),
    };
    assert_eq!((given.project.as_str(), &given.tools), ("guest", &tools));
    let viewer = person("eve", "guest", Scope::Operator);
    let outcome = caliber.grant_family((&viewer, HERE), &family, ada()).await;
    refused(outcome, ErrorKind::Forbidden, None);
    let listed = caliber
        .grants(&guest, &PageRequest::first(10))
        .await
        .unwrap()
        .items;
    assert_eq!(listed, std::slice::from_ref(&given));
    caliber.revoke_grant((&guest, HERE), &given.id).await.unwrap();
    assert!(
        caliber
            .grants(&guest, &PageRequest::first(10))
            .await
            .unwrap()
            .items
            .is_empty()
    );
}

/// The reference policy with one module that is not allowed, once it is said.
#[derive(Debug, Default)]
struct Listing(AtomicBool);

impl AdmissionPolicy for Listing {
    fn decide(&self, facts: AdmissionFacts<'_>) -> Decision {
        ReferencePolicy.decide(facts)
    }

    fn readiness(&self, facts: &ReadinessFacts) -> Readiness {
        ReferencePolicy.readiness(facts)
    }

    fn blockers(&self, _: &CodeToolDefinition) -> Vec<Reason> {
        let closed = self.0.load(Ordering::SeqCst);
        let blocker = |text: &str| Reason::new(ReasonCode::ModuleNotAllowed, text);
        if closed {
            vec![blocker("not on the list"), blocker("nor on the other")]
        } else {
            Vec::new()
        }
    }
}

#[tokio::test]
async fn what_is_taken_off_the_list_is_neither_registered_nor_run_nor_shown() {
    let listing = Arc::new(Listing::default());
    let mut parts = Parts::new();
    parts.policy = listing.clone();
    let caliber = parts.caliber();
    let root = admin_of("home");
    let tool = register(&caliber, &root, "weather", "1").await.unwrap();
    let run = async || {
        let call = caliber_core::CodeToolCall::new(tool.id.clone(), crate::support::json("{}"), HERE);
        caliber.run_code_tool(&root, call).await
    };
    run().await.unwrap();
    caliber.code_tool_source((&root, HERE), &tool.id).await.unwrap();
    listing.0.store(true, Ordering::SeqCst);
    let not_allowed = Some(ReasonCode::ModuleNotAllowed);
    let error = refused(
        register(&caliber, &root, "weather", "2").await,
        ErrorKind::Denied,
        not_allowed,
    );
    assert!(error.to_string().contains("nor on the other"), "{error}");
    refused(run().await, ErrorKind::Denied, not_allowed);
    let seen = caliber.code_tool_source((&root, HERE), &tool.id).await.unwrap();
    assert!(
        !seen.available && seen.source.is_empty(),
        "what was kept is not shown either"
    );
    assert_eq!(parts.sandbox.runs().len(), 1);
}

#[tokio::test]
async fn what_cannot_be_imported_is_not_registered() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    parts
        .sandbox
        .set_broken(Some("ImportError: no module named 'gone'\u{1b}[2J"));
    let error = refused(
        register(&caliber, &admin(), "adder", "1").await,
        ErrorKind::Invalid,
        None,
    );
    assert_eq!(error.fields()[0].field, "program");
    assert!(
        error.message().contains("no module named 'gone'\\u{1b}[2J"),
        "{error}"
    );
    let query = CodeToolQuery::default();
    let listed = caliber
        .code_tools(&admin(), query, &PageRequest::first(10))
        .await
        .unwrap();
    assert!(listed.items.is_empty());
    parts.sandbox.set_broken(None);
    register(&caliber, &admin(), "adder", "1").await.unwrap();
}
