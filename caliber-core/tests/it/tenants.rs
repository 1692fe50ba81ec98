//! What belongs to another project, or is hidden, answers exactly like what is absent.

use std::collections::BTreeMap;

use caliber_core::audit::{AuditAction, AuditQuery};
use caliber_core::grant::Grantee;
use caliber_core::id::{ApprovalId, AuditId, GrantId, InvocationId, ServerId, TokenId};
use caliber_core::memory::{self, Parts};
use caliber_core::page::PageRequest;
use caliber_core::policy::ToolPolicy;
use caliber_core::principal::{Principal, Scope, Scopes, Surface};
use caliber_core::registry::ServerQuery;
use caliber_core::server::Visibility;
use caliber_core::{Error, ErrorKind, InvokeRequest, ServerPatch, ServerRegistration, TokenRequest};

use crate::support::*;

/// One identifier of each kind.
struct Ids {
    server: ServerId,
    invocation: InvocationId,
    grant: GrantId,
    token: TokenId,
    approval: ApprovalId,
    removal: AuditId,
}

impl Ids {
    fn absent() -> Self {
        Self {
            server: ServerId::new(),
            invocation: InvocationId::new(),
            grant: GrantId::new(),
            token: TokenId::new(),
            approval: ApprovalId::new(),
            removal: AuditId::new(),
        }
    }
}

/// Every use case that takes an identifier, as `who` meets it.
async fn answers(world: &World, who: &Principal, ids: &Ids) -> Vec<(&'static str, Option<Error>)> {
    let caliber = &world.caliber;
    let by = (who, Surface::Http);
    let page = PageRequest::default();
    let number = tool("number");
    let id = &ids.server;
    let request = InvokeRequest::new(id.clone(), number.clone(), json(ARGUMENTS), Surface::Http);
    let patch = ServerPatch {
        description: Some("mine".into()),
        ..ServerPatch::default()
    };
    let policy = ToolPolicy::allow_read();
    let grantee = Grantee::Subject(who.subject.clone());
    vec![
        ("server", caliber.server(who, id).await.err()),
        ("update_server", caliber.update_server(by, id, patch).await.err()),
        (
            "deployments_using",
            caliber.deployments_using(who, id).await.err(),
        ),
        (
            "server_history",
            caliber.server_history(who, id, &page).await.err(),
        ),
        ("check", caliber.check(by, id).await.err()),
        ("discover", caliber.discover(by, id).await.err()),
        ("tools", caliber.tools(who, id, &page).await.err()),
        ("tool", caliber.tool(who, id, &number).await.err()),
        (
            "classify",
            caliber.classify(by, id, &number, policy, None).await.err(),
        ),
        ("declassify", caliber.declassify(by, id, &number).await.err()),
        ("drift", caliber.drift(who, id, &number).await.err()),
        ("invoke", caliber.invoke(who, request).await.err()),
        ("invocations", caliber.invocations(who, id, &page).await.err()),
        ("invocation", caliber.invocation(who, &ids.invocation).await.err()),
        ("grant", caliber.grant(by, id, grantee, None).await.err()),
        ("revoke_grant", caliber.revoke_grant(by, &ids.grant).await.err()),
        ("revoke_token", caliber.revoke_token(by, &ids.token).await.err()),
        ("approval", caliber.approval(who, &ids.approval).await.err()),
        (
            "decide_approval",
            caliber.decide_approval(by, &ids.approval, true, None).await.err(),
        ),
        (
            "restore_server",
            caliber
                .restore_server(by, &ids.removal, BTreeMap::new())
                .await
                .err(),
        ),
        ("remove_server", caliber.remove_server(by, id, None).await.err()),
    ]
}

/// A server of the default project with one of everything, made by the local administrator.
async fn furnished(visibility: Visibility) -> (World, Ids) {
    let world = World::over(Parts::new(), vec![number_tool("number")]).await;
    world.classify("number", allow_with_approval()).await;
    let root = admin();
    let who = (&root, Surface::Library);
    let caliber = &world.caliber;
    let patch = ServerPatch {
        visibility: Some(visibility),
        ..ServerPatch::default()
    };
    caliber.update_server(who, &world.server.id, patch).await.unwrap();
    let error = caliber
        .invoke(&root, world.request("number", ARGUMENTS))
        .await
        .unwrap_err();
    let context = |wanted: &str| {
        let found = error.context().iter().find(|(key, _)| *key == wanted);
        found.unwrap().1.clone()
    };
    let grantee = Grantee::Subject(subject("friend"));
    let grant = caliber.grant(who, &world.server.id, grantee, None).await.unwrap();
    let request = TokenRequest {
        subject: subject("ci"),
        project: Some(project("default")),
        scopes: Scopes::NONE.with(Scope::Viewer),
        label: String::new(),
        expires_at: None,
    };
    let token = caliber.create_token(who, request).await.unwrap();
    let gone = memory::registration("gone").unwrap();
    let gone = caliber.register_server(who, gone).await.unwrap();
    caliber.remove_server(who, &gone.id, None).await.unwrap();
    let removal = world.parts.sink.entries().last().unwrap().id.clone();
    let ids = Ids {
        server: world.server.id.clone(),
        invocation: context("invocation").parse().unwrap(),
        grant: grant.id,
        token: token.record.id,
        approval: context("approval").parse().unwrap(),
        removal,
    };
    world.ledger().await;
    (world, ids)
}

/// Asks with the identifiers of others and with absent ones: the answers are the same, and nothing happens.
async fn sees_nothing(world: &World, ids: &Ids, who: &Principal, except: &[&str]) {
    let traces = || {
        let entries = world.parts.sink.entries().into_iter();
        // An approver decides about a call whose server stays hidden: that is no refused look.
        entries
            .filter(|entry| entry.action != AuditAction::DecideApproval)
            .count()
    };
    let before = traces();
    let hidden = answers(world, who, ids).await;
    let absent = answers(world, who, &Ids::absent()).await;
    for ((case, hidden), (_, absent)) in hidden.into_iter().zip(absent) {
        if except.contains(&case) {
            continue;
        }
        let hidden = hidden.unwrap_or_else(|| panic!("{case} has let {who:?} in"));
        let absent = absent.unwrap_or_else(|| panic!("{case} has found what is absent"));
        assert_eq!(hidden.kind(), ErrorKind::NotFound, "{case}: {hidden}");
        assert_eq!(shape(&hidden), shape(&absent), "{case} tells hidden from absent");
    }
    let named = world.caliber.server_named(who, "weather").await.unwrap_err();
    let nobody = world.caliber.server_named(who, "nothing").await.unwrap_err();
    assert_eq!(named.kind(), ErrorKind::NotFound);
    assert_eq!(shape(&named).replace("weather", "nothing"), shape(&nobody));
    world.ledger().await;
    assert_eq!(traces(), before, "a refused look has left a trace");
}

#[tokio::test]
async fn another_project_sees_nothing_whatever_it_may_at_home() {
    let (world, ids) = furnished(Visibility::Project).await;
    for place in ["other", "default-2", "d"] {
        sees_nothing(&world, &ids, &person("eve", place, Scope::Admin), &[]).await;
    }
    let eve = person("eve", "other", Scope::Admin);
    let page = PageRequest::default();
    let caliber = &world.caliber;
    assert!(
        caliber
            .servers(&eve, ServerQuery::default(), &page)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert!(
        caliber
            .approvals(&eve, false, &page)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert!(caliber.grants(&eve, &page).await.unwrap().items.is_empty());
    assert!(caliber.tokens(&eve, &page).await.unwrap().items.is_empty());
    assert!(
        caliber
            .audit(&eve, AuditQuery::default(), &page)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    // The owner of a name in one project finds it taken in another: names are of the installation.
    let registration = memory::registration("weather").unwrap();
    let taken = caliber.register_server((&eve, Surface::Http), registration).await;
    refused(
        taken,
        ErrorKind::Conflict,
        caliber_core::reason::ReasonCode::NameTaken,
    );
}

#[tokio::test]
async fn what_somebody_keeps_to_themselves_is_hidden_in_their_own_project() {
    let (world, ids) = furnished(Visibility::User).await;
    // What is of the project, and not of the server, is there for whoever has the scope.
    let of_the_project = [
        "invocation",
        "revoke_grant",
        "revoke_token",
        "approval",
        "decide_approval",
        "restore_server",
    ];
    for scope in [Scope::Viewer, Scope::Operator, Scope::Approver] {
        let who = person("eve", "default", scope);
        sees_nothing(&world, &ids, &who, &of_the_project).await;
    }
    let admin_of_it = person("root", "default", Scope::Admin);
    assert!(world.caliber.server(&admin_of_it, &ids.server).await.is_ok());
}

#[tokio::test]
async fn a_public_server_is_seen_and_not_governed_from_elsewhere() {
    let (world, ids) = furnished(Visibility::Public).await;
    let eve = person("eve", "other", Scope::Admin);
    for (case, answer) in answers(&world, &eve, &ids).await {
        let expected = match case {
            "server" | "deployments_using" | "tools" | "tool" | "drift" | "grant" => None,
            // Its own grant lets an admin's people call; the tool needs consent.
            "invoke" => Some(ErrorKind::Denied),
            "update_server" | "server_history" | "check" | "discover" | "classify" | "declassify"
            | "invocations" | "remove_server" => Some(ErrorKind::Forbidden),
            _ => Some(ErrorKind::NotFound),
        };
        assert_eq!(answer.as_ref().map(Error::kind), expected, "{case}: {answer:?}");
    }
}

#[tokio::test]
async fn a_server_is_registered_where_its_admin_works() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let one = person("root", "one", Scope::Admin);
    let registration = ServerRegistration {
        visibility: Visibility::Project,
        ..memory::registration("weather").unwrap()
    };
    let server = caliber
        .register_server((&one, Surface::Http), registration)
        .await
        .unwrap();
    assert_eq!((server.project, server.owner), (project("one"), subject("root")));
    // An admin of everything governs it from wherever they work.
    let patch = ServerPatch {
        description: Some("x".into()),
        ..ServerPatch::default()
    };
    caliber
        .update_server((&admin(), Surface::Http), &server.id, patch)
        .await
        .unwrap();
}
