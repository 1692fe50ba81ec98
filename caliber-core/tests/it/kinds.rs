//! What each use case refuses, and as what.

use std::collections::BTreeMap;

use caliber_core::grant::{Grantee, Membership};
use caliber_core::id::{GrantId, TokenId};
use caliber_core::memory::{self, Parts, ScriptedServer};
use caliber_core::page::PageRequest;
use caliber_core::policy::{SideEffectLevel, ToolPolicy};
use caliber_core::principal::{Principal, Scope, Scopes, Surface};
use caliber_core::reason::ReasonCode;
use caliber_core::registry::{DeploymentReference, Revision, ServerQuery};
use caliber_core::server::{Auth, Endpoint, RemoteEndpoint, ServerLimits, StdioEndpoint};
use caliber_core::{Error, ErrorKind, ServerPatch, TokenRequest};

use crate::support::*;

/// Every use case that takes an admin of the project.
async fn governed(world: &World, who: &Principal) -> Vec<(&'static str, Option<Error>)> {
    let caliber = &world.caliber;
    let by = (who, Surface::Http);
    let id = &world.server.id;
    let number = tool("number");
    let policy = ToolPolicy::allow_read();
    let patch = ServerPatch {
        description: Some("x".into()),
        ..ServerPatch::default()
    };
    let token = TokenRequest {
        subject: subject("ci"),
        project: Some(who.project.clone()),
        scopes: Scopes::NONE.with(Scope::Viewer),
        label: String::new(),
        expires_at: None,
    };
    let membership = Membership {
        project: Some(who.project.clone()),
        subject: subject("ada"),
        scopes: Scopes::NONE.with(Scope::Viewer),
    };
    let definition = || memory::definition("new").unwrap();
    let registration = memory::registration("new").unwrap();
    let grantee = Grantee::Subject(subject("ada"));
    vec![
        (
            "register_server",
            caliber.register_server(by, registration).await.err(),
        ),
        ("update_server", caliber.update_server(by, id, patch).await.err()),
        ("check", caliber.check(by, id).await.err()),
        (
            "check_definition",
            caliber.check_definition(who, definition()).await.err(),
        ),
        ("discover", caliber.discover(by, id).await.err()),
        (
            "discover_definition",
            caliber.discover_definition(who, definition()).await.err(),
        ),
        ("readiness", caliber.readiness(who, definition()).await.err()),
        (
            "classify",
            caliber.classify(by, id, &number, policy, None).await.err(),
        ),
        ("declassify", caliber.declassify(by, id, &number).await.err()),
        ("grant", caliber.grant(by, id, grantee, None).await.err()),
        (
            "revoke_grant",
            caliber.revoke_grant(by, &GrantId::new()).await.err(),
        ),
        ("create_token", caliber.create_token(by, token).await.err()),
        ("tokens", caliber.tokens(who, &PageRequest::default()).await.err()),
        (
            "revoke_token",
            caliber.revoke_token(by, &TokenId::new()).await.err(),
        ),
        (
            "set_membership",
            caliber.set_membership(by, membership).await.err(),
        ),
        ("remove_server", caliber.remove_server(by, id, None).await.err()),
    ]
}

#[tokio::test]
async fn governing_takes_an_admin() {
    let world = World::with(ToolPolicy::allow_read()).await;
    world
        .parts
        .gateway
        .serve(&"new".parse().unwrap(), ScriptedServer::default());
    let before = world.parts.sink.entries().len();
    for scope in [Scope::Viewer, Scope::Operator, Scope::Approver] {
        for (case, error) in governed(&world, &person("eve", "default", scope)).await {
            let error = error.unwrap_or_else(|| panic!("{case} takes no more than {scope}"));
            assert_eq!(error.kind(), ErrorKind::Forbidden, "{case}: {error}");
            assert!(
                error.message().contains("admin"),
                "{case} does not say what is wanted: {error}"
            );
        }
    }
    assert_eq!(
        world.parts.sink.entries().len(),
        before,
        "a refused act has left a trace"
    );
    let absent = ["revoke_grant", "revoke_token"];
    for (case, error) in governed(&world, &person("root", "default", Scope::Admin)).await {
        match error {
            None => assert!(!absent.contains(&case)),
            Some(error) => assert!(absent.contains(&case), "{case}: {error}"),
        }
    }
}

#[tokio::test]
async fn looking_takes_a_scope() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let page = PageRequest::default();
    let caliber = &world.caliber;
    let id = &world.server.id;
    let viewer = person("vera", "default", Scope::Viewer);
    assert_eq!(
        caliber
            .servers(&viewer, ServerQuery::default(), &page)
            .await
            .unwrap()
            .items
            .len(),
        1
    );
    assert_eq!(
        caliber.tools(&viewer, id, &page).await.unwrap().tools.items.len(),
        1
    );
    assert!(caliber.drift(&viewer, id, &tool("number")).await.is_ok());
    assert!(caliber.grants(&viewer, &page).await.is_ok());
    assert!(caliber.approvals(&viewer, true, &page).await.is_ok());
    let view = caliber.server(&viewer, id).await.unwrap();
    assert!(view.readiness.is_ready());
    assert_eq!(view.inventory.unwrap().tool_count, 1);
    let nobody = Principal {
        scopes: Scopes::NONE,
        ..viewer
    };
    for error in [
        caliber
            .servers(&nobody, ServerQuery::default(), &page)
            .await
            .err(),
        caliber.grants(&nobody, &page).await.err(),
        caliber.approvals(&nobody, true, &page).await.err(),
    ] {
        assert_eq!(error.unwrap().kind(), ErrorKind::Forbidden);
    }
}

#[tokio::test]
async fn a_wrong_definition_names_its_fields() {
    let caliber = Parts::new().caliber();
    let root = admin();
    let register = async |change: &dyn Fn(&mut caliber_core::server::ServerDefinition)| {
        let mut registration = memory::registration("weather").unwrap();
        change(&mut registration.definition);
        let outcome = caliber
            .register_server((&root, Surface::Http), registration)
            .await;
        let error = refused(outcome, ErrorKind::Invalid, None);
        error
            .fields()
            .iter()
            .map(|field| field.field.clone())
            .collect::<Vec<_>>()
    };
    let url = |url: &str| {
        Endpoint::StreamableHttp(RemoteEndpoint {
            url: url.into(),
            headers: BTreeMap::new(),
        })
    };
    assert_eq!(
        register(&|it| it.description = "x".repeat(2_049)).await,
        ["description"]
    );
    assert_eq!(register(&|it| it.endpoint = url("ftp://x")).await, ["uri"]);
    assert_eq!(register(&|it| it.endpoint = url("http://a:b@x/")).await, ["uri"]);
    let two = register(&|it| {
        it.icon = "x".repeat(65);
        it.limits = ServerLimits {
            timeout_ms: Some(0),
            ..ServerLimits::default()
        };
    });
    assert_eq!(two.await, ["icon", "limits.timeout_ms"]);
    let stdio = register(&|it| {
        it.endpoint = Endpoint::Stdio(StdioEndpoint {
            command: " ".into(),
            args: vec!["a\0".into()],
            env: BTreeMap::new(),
        });
        it.auth = Auth::Basic {
            username: "u".into(),
            password: caliber_core::secret::ConfigValue::from_input("p"),
        };
    });
    let fields = stdio.await;
    for field in ["command", "args[0]", "auth_type"] {
        assert!(
            fields.iter().any(|named| named == field),
            "{field} is not among {fields:?}"
        );
    }
}

#[tokio::test]
async fn a_wrong_policy_names_its_fields() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let root = admin();
    for (policy, field) in [
        (
            ToolPolicy {
                side_effect_level: SideEffectLevel::Write,
                ..ToolPolicy::allow_read()
            },
            "requires_approval",
        ),
        (
            ToolPolicy {
                rate_limit_per_minute: Some(0),
                ..ToolPolicy::allow_read()
            },
            "rate_limit_per_minute",
        ),
        (
            ToolPolicy {
                timeout_ms: Some(3_600_001),
                ..ToolPolicy::allow_read()
            },
            "timeout_ms",
        ),
        (
            ToolPolicy {
                result_bytes: Some(0),
                ..ToolPolicy::allow_read()
            },
            "result_bytes",
        ),
        (
            ToolPolicy {
                approval_waiver: Some(" ".into()),
                ..ToolPolicy::allow_read()
            },
            "approval_waiver",
        ),
    ] {
        let who = (&root, Surface::Http);
        let outcome = world
            .caliber
            .classify(who, &world.server.id, &tool("number"), policy, None)
            .await;
        assert_eq!(
            refused(outcome, ErrorKind::Invalid, None).fields()[0].field,
            field
        );
    }
    let who = (&root, Surface::Http);
    let absent = tool("absent");
    let policy = ToolPolicy::allow_read();
    let outcome = world
        .caliber
        .classify(who, &world.server.id, &absent, policy, None)
        .await;
    refused(outcome, ErrorKind::NotFound, None);
    refused(
        world.caliber.declassify(who, &world.server.id, &absent).await,
        ErrorKind::NotFound,
        None,
    );
    refused(
        world.caliber.drift(&root, &world.server.id, &absent).await,
        ErrorKind::NotFound,
        None,
    );
    refused(
        world.caliber.tool(&root, &world.server.id, &absent).await,
        ErrorKind::NotFound,
        None,
    );
}

#[tokio::test]
async fn a_change_on_an_old_revision_is_refused() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let root = admin();
    let who = (&root, Surface::Http);
    let id = &world.server.id;
    let patch = |text: &str, revision| ServerPatch {
        description: Some(text.into()),
        expect: Some(Revision(revision)),
        ..ServerPatch::default()
    };
    let second = world
        .caliber
        .update_server(who, id, patch("two", 1))
        .await
        .unwrap();
    assert_eq!(second.revision, Revision(2));
    let stale = world.caliber.update_server(who, id, patch("three", 1)).await;
    refused(stale, ErrorKind::Conflict, ReasonCode::StaleRevision);
    // A change that changes nothing moves nothing and leaves no trace.
    let before = world.parts.sink.entries().len();
    let same = world
        .caliber
        .update_server(who, id, patch("two", 2))
        .await
        .unwrap();
    assert_eq!(
        (same.revision, world.parts.sink.entries().len()),
        (Revision(2), before)
    );
    let removal = world.caliber.remove_server(who, id, Some(Revision(1))).await;
    refused(removal, ErrorKind::Conflict, ReasonCode::StaleRevision);
    world
        .caliber
        .remove_server(who, id, Some(Revision(2)))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_name_belongs_to_one_server_and_a_needed_server_stays() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let root = admin();
    let who = (&root, Surface::Http);
    let id = &world.server.id;
    let registration = memory::registration("weather").unwrap();
    let taken = world.caliber.register_server(who, registration).await;
    refused(taken, ErrorKind::Conflict, ReasonCode::NameTaken);
    let reference = DeploymentReference {
        workflow: "billing\u{202e}".into(),
        alias: "prod".into(),
        rollback_only: true,
    };
    world.parts.registry.add_deployment(id, reference.clone());
    assert_eq!(
        world.caliber.deployments_using(&root, id).await.unwrap(),
        [reference]
    );
    let outcome = world.caliber.remove_server(who, id, None).await;
    let error = refused(outcome, ErrorKind::Conflict, ReasonCode::InUse);
    assert!(
        error.message().contains("prod@billing\\u{202e} (rollback)"),
        "{error}"
    );
    world.parts.registry.clear_deployments(id);
    world.caliber.remove_server(who, id, None).await.unwrap();
    refused(
        world.caliber.remove_server(who, id, None).await,
        ErrorKind::NotFound,
        None,
    );
    let registration = memory::registration("weather").unwrap();
    world.caliber.register_server(who, registration).await.unwrap();
}

#[tokio::test]
async fn a_failed_connection_is_told_and_recorded() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let root = admin();
    let who = (&root, Surface::Http);
    let id = &world.server.id;
    let name = world.server.definition.name.clone();
    world.parts.gateway.serve(
        &name,
        ScriptedServer::default().failing("no route to the weather"),
    );
    let check = world.caliber.check(who, id).await.unwrap();
    refused(check.report, ErrorKind::Upstream, ReasonCode::ConnectFailed);
    let failed = world.caliber.server(&root, id).await.unwrap().record;
    assert_eq!(
        failed.connection_error.as_deref(),
        Some("no route to the weather")
    );
    refused(
        world.caliber.discover(who, id).await,
        ErrorKind::Upstream,
        ReasonCode::ConnectFailed,
    );
    // A failed discovery takes no tool away.
    assert_eq!(failed.revision, Revision(1));
    assert!(world.caliber.tool(&root, id, &tool("number")).await.is_ok());
    world
        .parts
        .gateway
        .serve(&name, ScriptedServer::new([number_tool("number")]));
    world.caliber.check(who, id).await.unwrap().report.unwrap();
    let record = world.caliber.server(&root, id).await.unwrap().record;
    assert_eq!(record.connection_error, None);
    let absent = memory::definition("nobody").unwrap();
    let outcome = world.caliber.check_definition(&root, absent).await;
    refused(outcome, ErrorKind::Upstream, ReasonCode::ConnectFailed);
}

#[tokio::test]
async fn a_foreign_cursor_is_invalid() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let root = admin();
    let page = PageRequest {
        limit: 10,
        cursor: Some("no cursor".into()),
    };
    for error in [
        world
            .caliber
            .servers(&root, ServerQuery::default(), &page)
            .await
            .err(),
        world.caliber.tools(&root, &world.server.id, &page).await.err(),
        world.caliber.approvals(&root, false, &page).await.err(),
        world.caliber.audit(&root, Default::default(), &page).await.err(),
    ] {
        assert_eq!(error.unwrap().kind(), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn an_outage_of_the_store_is_told_as_that() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let root = admin();
    world.caliber.ping().await.unwrap();
    world.parts.registry.set_outage(Some(memory::Outage::Everything));
    for error in [
        world.caliber.ping().await.err(),
        world.caliber.server(&root, &world.server.id).await.err(),
        world
            .caliber
            .servers(&root, ServerQuery::default(), &PageRequest::default())
            .await
            .err(),
        world.call().await.err(),
        world.caliber.sweep_orphans().await.err(),
    ] {
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.retry(), caliber_core::Retry::Later);
    }
    world.parts.registry.set_outage(None);
    world.caliber.ping().await.unwrap();
}
