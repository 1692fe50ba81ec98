//! Tokens, memberships, grants: who a credential stands for, and what that may do.

use std::time::Duration;

use caliber_core::audit::AuditAction;
use caliber_core::clock::Clock;
use caliber_core::grant::{Grantee, Membership};
use caliber_core::id::ProjectId;
use caliber_core::memory::{self, Parts};
use caliber_core::page::PageRequest;
use caliber_core::policy::ToolPolicy;
use caliber_core::principal::{Authenticator, Credential, Identity, Principal, Scope, Scopes, Surface};
use caliber_core::reason::ReasonCode;
use caliber_core::secret::SecretText;
use caliber_core::server::Visibility;
use caliber_core::token::{NewToken, TOKEN_PREFIX};
use caliber_core::{Caliber, ErrorKind, Result, ServerPatch, TokenRequest};

use crate::support::*;

fn token(place: Option<&str>, scopes: &[Scope]) -> TokenRequest {
    TokenRequest {
        subject: subject("ci"),
        project: place.map(project),
        scopes: scopes.iter().copied().collect(),
        label: "for the build".into(),
        expires_at: None,
    }
}

async fn make(caliber: &Caliber, who: &Principal, request: TokenRequest) -> Result<NewToken> {
    caliber.create_token((who, Surface::Command), request).await
}

async fn sign_in(caliber: &Caliber, token: &NewToken, place: Option<&str>) -> Result<Principal> {
    let credential = Credential::Bearer(token.text.clone());
    caliber
        .authenticate(&credential, place.map(project).as_ref())
        .await
}

async fn header(caliber: &Caliber, name: &str, place: Option<&str>) -> Result<Principal> {
    let credential = Credential::TrustedSubject(name.to_owned());
    caliber
        .authenticate(&credential, place.map(project).as_ref())
        .await
}

#[tokio::test]
async fn a_token_speaks_for_its_subject_in_its_project_until_it_ends() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let mut request = token(Some("one"), &[Scope::Operator]);
    request.expires_at = Some(parts.clock.now() + Duration::from_secs(60));
    let made = make(&caliber, &admin(), request).await.unwrap();
    assert!(made.text.expose().starts_with(TOKEN_PREFIX));
    let principal = sign_in(&caliber, &made, None).await.unwrap();
    let expected = Principal {
        subject: subject("ci"),
        identity: Identity::Token(made.record.id.clone()),
        project: project("one"),
        scopes: Scopes::NONE.with(Scope::Operator),
        everywhere: false,
    };
    assert_eq!(principal, expected);
    assert_eq!(sign_in(&caliber, &made, Some("one")).await.unwrap(), expected);
    refused(
        sign_in(&caliber, &made, Some("two")).await,
        ErrorKind::Forbidden,
        None,
    );
    parts.clock.advance(Duration::from_secs(60));
    let expired = refused(
        sign_in(&caliber, &made, None).await,
        ErrorKind::Unauthenticated,
        None,
    );

    let second = make(&caliber, &admin(), token(None, &[Scope::Viewer]))
        .await
        .unwrap();
    let everywhere = sign_in(&caliber, &second, Some("two")).await.unwrap();
    assert_eq!(
        (everywhere.project, everywhere.everywhere),
        (project("two"), true)
    );
    caliber
        .revoke_token((&admin(), Surface::Command), &second.record.id)
        .await
        .unwrap();
    let revoked = refused(
        sign_in(&caliber, &second, None).await,
        ErrorKind::Unauthenticated,
        None,
    );
    let unknown = Credential::Bearer(SecretText::new(format!("{TOKEN_PREFIX}unknown")));
    let unknown = refused(
        caliber.authenticate(&unknown, None).await,
        ErrorKind::Unauthenticated,
        None,
    );
    // What a wrong token lacks is nobody's business.
    assert_eq!(shape(&expired), shape(&unknown));
    assert_eq!(shape(&revoked), shape(&unknown));
}

#[tokio::test]
async fn the_text_of_a_token_is_nowhere_but_in_the_answer() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let made = make(&caliber, &admin(), token(None, &[Scope::Viewer]))
        .await
        .unwrap();
    let text = made.text.expose();
    let list = caliber.tokens(&admin(), &PageRequest::default()).await.unwrap();
    assert_eq!(list.items, std::slice::from_ref(&made.record));
    let exported = serde_json::to_string(&parts.sink.entries()).unwrap();
    for place in [
        format!("{list:?}"),
        exported,
        format!("{made:?}"),
        format!("{:?}", parts.registry),
    ] {
        assert!(!place.contains(text), "the token shows: {place}");
    }
}

#[tokio::test]
async fn a_token_holds_no_more_than_its_maker() {
    let caliber = Parts::new().caliber();
    let local = person("root", "one", Scope::Admin);
    make(&caliber, &local, token(Some("one"), &Scope::ALL))
        .await
        .unwrap();
    refused(
        make(&caliber, &local, token(Some("two"), &[Scope::Viewer])).await,
        ErrorKind::Forbidden,
        None,
    );
    refused(
        make(&caliber, &local, token(None, &[Scope::Viewer])).await,
        ErrorKind::Forbidden,
        None,
    );
    for scope in [Scope::Viewer, Scope::Operator, Scope::Approver] {
        let other = person("eve", "one", scope);
        let outcome = make(&caliber, &other, token(Some("one"), &[Scope::Viewer])).await;
        refused(outcome, ErrorKind::Forbidden, None);
    }
    // Scopes that hold everywhere, but for no admin, make nothing.
    let viewer = Principal {
        scopes: Scopes::NONE.with(Scope::Viewer),
        ..admin()
    };
    refused(
        make(&caliber, &viewer, token(None, &[Scope::Viewer])).await,
        ErrorKind::Forbidden,
        None,
    );
}

#[tokio::test]
async fn a_wrong_request_for_a_token_names_its_field() {
    let parts = Parts::new();
    let caliber = parts.caliber();
    let good = || token(Some("one"), &[Scope::Viewer]);
    for (request, field) in [
        (
            TokenRequest {
                scopes: Scopes::NONE,
                ..good()
            },
            "scopes",
        ),
        (
            TokenRequest {
                label: "x".repeat(257),
                ..good()
            },
            "label",
        ),
        (
            TokenRequest {
                expires_at: Some(parts.clock.now()),
                ..good()
            },
            "expires_at",
        ),
    ] {
        let error = refused(make(&caliber, &admin(), request).await, ErrorKind::Invalid, None);
        assert_eq!(error.fields()[0].field, field);
    }
}

#[tokio::test]
async fn tokens_are_seen_and_revoked_by_the_admins_of_their_project() {
    let caliber = Parts::new().caliber();
    let inside = make(&caliber, &admin(), token(Some("one"), &[Scope::Viewer]))
        .await
        .unwrap();
    let everywhere = make(&caliber, &admin(), token(None, &[Scope::Viewer]))
        .await
        .unwrap();
    let (one, two) = (person("a", "one", Scope::Admin), person("b", "two", Scope::Admin));
    let page = PageRequest::default();
    assert_eq!(caliber.tokens(&admin(), &page).await.unwrap().items.len(), 2);
    assert_eq!(
        caliber.tokens(&one, &page).await.unwrap().items,
        std::slice::from_ref(&inside.record)
    );
    assert!(caliber.tokens(&two, &page).await.unwrap().items.is_empty());
    let viewer = person("v", "one", Scope::Operator);
    refused(caliber.tokens(&viewer, &page).await, ErrorKind::Forbidden, None);
    let revoke = async |who: &Principal, token: &NewToken| {
        caliber.revoke_token((who, Surface::Http), &token.record.id).await
    };
    refused(revoke(&two, &inside).await, ErrorKind::NotFound, None);
    refused(revoke(&one, &everywhere).await, ErrorKind::NotFound, None);
    refused(revoke(&viewer, &inside).await, ErrorKind::Forbidden, None);
    revoke(&one, &inside).await.unwrap();
    refused(revoke(&one, &inside).await, ErrorKind::NotFound, None);
    revoke(&admin(), &everywhere).await.unwrap();
}

async fn member(
    caliber: &Caliber,
    who: &Principal,
    name: &str,
    place: Option<&str>,
    scopes: &[Scope],
) -> Result<()> {
    let membership = Membership {
        project: place.map(project),
        subject: subject(name),
        scopes: scopes.iter().copied().collect(),
    };
    caliber.set_membership((who, Surface::Http), membership).await
}

#[tokio::test]
async fn a_header_stands_for_the_memberships_of_its_subject() {
    let caliber = Parts::new().caliber();
    member(&caliber, &admin(), "ada", Some("one"), &[Scope::Admin])
        .await
        .unwrap();
    member(&caliber, &admin(), "ada", None, &[Scope::Viewer])
        .await
        .unwrap();
    member(&caliber, &admin(), "bob", None, &[Scope::Admin])
        .await
        .unwrap();
    let in_one = header(&caliber, "ada", Some("one")).await.unwrap();
    assert_eq!(
        (in_one.identity.clone(), in_one.scopes),
        (Identity::Header, Scopes::NONE.with(Scope::Admin))
    );
    // The scopes of one project must not reach into another.
    assert!(!in_one.everywhere);
    let in_two = header(&caliber, "ada", Some("two")).await.unwrap();
    assert_eq!(
        (in_two.scopes, in_two.everywhere),
        (Scopes::NONE.with(Scope::Viewer), true)
    );
    let bob = header(&caliber, "bob", None).await.unwrap();
    assert_eq!((bob.project, bob.everywhere), (ProjectId::default(), true));
    let nobody = header(&caliber, "eve", Some("one")).await.unwrap();
    assert!(nobody.scopes.is_empty() && !nobody.everywhere);
    for wrong in ["", " ada", "a\u{200b}da", "a\nb", &"x".repeat(257)] {
        refused(
            header(&caliber, wrong, None).await,
            ErrorKind::Unauthenticated,
            None,
        );
    }
    // What ends, ends at once.
    member(&caliber, &admin(), "ada", Some("one"), &[]).await.unwrap();
    let demoted = header(&caliber, "ada", Some("one")).await.unwrap();
    assert_eq!(demoted.scopes, Scopes::NONE.with(Scope::Viewer));
}

#[tokio::test]
async fn whoever_holds_no_scope_sees_nothing() {
    let world = World::with(ToolPolicy::allow_read()).await;
    world.grant("eve").await;
    let admin = admin();
    let patch = ServerPatch {
        visibility: Some(Visibility::Public),
        ..ServerPatch::default()
    };
    world
        .caliber
        .update_server((&admin, Surface::Library), &world.server.id, patch)
        .await
        .unwrap();
    let eve = header(&world.caliber, "eve", None).await.unwrap();
    let id = &world.server.id;
    refused(world.caliber.server(&eve, id).await, ErrorKind::NotFound, None);
    let call = world
        .caliber
        .invoke(&eve, world.request("number", ARGUMENTS))
        .await;
    refused(call, ErrorKind::NotFound, None);
    let list = world
        .caliber
        .servers(&eve, Default::default(), &PageRequest::default())
        .await;
    refused(list, ErrorKind::Forbidden, None);
}

#[tokio::test]
async fn memberships_are_set_by_admins_of_where_they_hold() {
    let caliber = Parts::new().caliber();
    let one = person("root", "one", Scope::Admin);
    member(&caliber, &one, "ada", Some("one"), &[Scope::Viewer])
        .await
        .unwrap();
    for place in [Some("two"), None] {
        refused(
            member(&caliber, &one, "ada", place, &[Scope::Viewer]).await,
            ErrorKind::Forbidden,
            None,
        );
    }
    let operator = person("op", "one", Scope::Operator);
    let outcome = member(&caliber, &operator, "op", Some("one"), &[Scope::Admin]).await;
    refused(outcome, ErrorKind::Forbidden, None);
}

#[tokio::test]
async fn a_grant_lets_in_whom_it_names_and_ends_at_once() {
    let world = World::over(Parts::new(), vec![number_tool("number"), number_tool("other")]).await;
    world.classify("number", ToolPolicy::allow_read()).await;
    world.classify("other", ToolPolicy::allow_read()).await;
    let root = admin();
    let who = (&root, Surface::Http);
    let call =
        async |who: &Principal, name: &str| world.caliber.invoke(who, world.request(name, ARGUMENTS)).await;
    let ada = person("ada", "default", Scope::Viewer);
    let op = person("op", "default", Scope::Operator);
    refused(
        call(&ada, "number").await,
        ErrorKind::Denied,
        ReasonCode::NotGranted,
    );
    let id = &world.server.id;
    let to_ada = Grantee::Subject(subject("ada"));
    let narrow = world
        .caliber
        .grant(who, id, to_ada, Some(tool("number")))
        .await
        .unwrap();
    call(&ada, "number").await.unwrap();
    refused(
        call(&ada, "other").await,
        ErrorKind::Denied,
        ReasonCode::NotGranted,
    );
    let wide = world
        .caliber
        .grant(who, id, Grantee::Scope(Scope::Operator), None)
        .await
        .unwrap();
    call(&op, "other").await.unwrap();
    refused(
        call(&ada, "other").await,
        ErrorKind::Denied,
        ReasonCode::NotGranted,
    );
    let listed = world.caliber.grants(&ada, &PageRequest::default()).await.unwrap();
    assert_eq!(listed.items, [narrow.clone(), wide.clone()]);
    for (grant, who, name) in [(&narrow, &ada, "number"), (&wide, &op, "other")] {
        world
            .caliber
            .revoke_grant((&root, Surface::Http), &grant.id)
            .await
            .unwrap();
        refused(call(who, name).await, ErrorKind::Denied, ReasonCode::NotGranted);
    }
    // An admin of the server's project needs none.
    call(&person("root", "default", Scope::Admin), "number")
        .await
        .unwrap();
    // Only admins give and take.
    let grantee = Grantee::Subject(subject("op"));
    refused(
        world.caliber.grant((&op, Surface::Http), id, grantee, None).await,
        ErrorKind::Forbidden,
        None,
    );
    refused(
        world.caliber.revoke_grant((&op, Surface::Http), &wide.id).await,
        ErrorKind::Forbidden,
        None,
    );
    assert_eq!(world.trail(AuditAction::CreateGrant).await.len(), 2);
    assert_eq!(world.trail(AuditAction::DeleteGrant).await.len(), 2);
}

#[tokio::test]
async fn a_public_server_is_granted_by_each_project_to_its_own_people() {
    let world = World::with(ToolPolicy::allow_read()).await;
    let id = &world.server.id;
    let guest_admin = person("gina", "guest", Scope::Admin);
    let guest = person("gus", "guest", Scope::Operator);
    let call = async |who: &Principal| {
        world
            .caliber
            .invoke(who, world.request("number", ARGUMENTS))
            .await
    };
    let grant = async |who: &Principal, grantee: Grantee| {
        world.caliber.grant((who, Surface::Http), id, grantee, None).await
    };
    refused(call(&guest).await, ErrorKind::NotFound, None);
    let root = admin();
    let set = |visibility| ServerPatch {
        visibility: Some(visibility),
        ..ServerPatch::default()
    };
    let show = async |visibility| {
        world
            .caliber
            .update_server((&root, Surface::Http), id, set(visibility))
            .await
            .unwrap();
    };
    show(Visibility::Public).await;
    refused(call(&guest).await, ErrorKind::Denied, ReasonCode::NotGranted);
    // Being admin elsewhere is being nobody here.
    refused(
        call(&guest_admin).await,
        ErrorKind::Denied,
        ReasonCode::NotGranted,
    );
    // A grant of the server's project to a scope means the people who hold it there.
    grant(
        &person("root", "default", Scope::Admin),
        Grantee::Scope(Scope::Viewer),
    )
    .await
    .unwrap();
    refused(call(&guest).await, ErrorKind::Denied, ReasonCode::NotGranted);
    // The guests' own project grants to a scope that is held there.
    let given = grant(&guest_admin, Grantee::Scope(Scope::Operator))
        .await
        .unwrap();
    assert_eq!(given.project, project("guest"));
    call(&guest).await.unwrap();
    let viewer = person("vera", "guest", Scope::Viewer);
    refused(call(&viewer).await, ErrorKind::Denied, ReasonCode::NotGranted);
    let third = person("tom", "third", Scope::Operator);
    refused(call(&third).await, ErrorKind::Denied, ReasonCode::NotGranted);
    // The caller finds its own call, and the server's operators find it too.
    let outcome = call(&guest).await.unwrap();
    assert!(
        world
            .caliber
            .invocation(&guest, &outcome.invocation)
            .await
            .is_ok()
    );
    let operator = person("op", "default", Scope::Operator);
    assert!(
        world
            .caliber
            .invocation(&operator, &outcome.invocation)
            .await
            .is_ok()
    );
    refused(
        world.caliber.invocation(&guest_admin, &outcome.invocation).await,
        ErrorKind::NotFound,
        None,
    );
    // Once the server is no longer public, the guests' grant opens nothing.
    show(Visibility::Project).await;
    refused(call(&guest).await, ErrorKind::NotFound, None);
}

#[tokio::test]
async fn a_guest_follows_its_own_request_for_consent() {
    let world = World::with(allow_with_approval()).await;
    let root = admin();
    let id = &world.server.id;
    let patch = ServerPatch {
        visibility: Some(Visibility::Public),
        ..ServerPatch::default()
    };
    world
        .caliber
        .update_server((&root, Surface::Http), id, patch)
        .await
        .unwrap();
    let guest_admin = person("gina", "guest", Scope::Admin);
    let grantee = Grantee::Subject(subject("gus"));
    world
        .caliber
        .grant((&guest_admin, Surface::Http), id, grantee, None)
        .await
        .unwrap();
    let guest = person("gus", "guest", Scope::Viewer);
    let mut request = world.request("number", ARGUMENTS);
    let error = world.caliber.invoke(&guest, request.clone()).await.unwrap_err();
    let asked = error
        .context()
        .iter()
        .find(|(key, _)| *key == "approval")
        .unwrap();
    let approval = asked.1.parse().unwrap();
    assert!(world.caliber.approval(&guest, &approval).await.is_ok());
    // The project of the server decides, not the guest's.
    let decide = async |who: &Principal| {
        world
            .caliber
            .decide_approval((who, Surface::Http), &approval, true, None)
            .await
    };
    refused(decide(&guest_admin).await, ErrorKind::NotFound, None);
    decide(&person("grace", "default", Scope::Approver))
        .await
        .unwrap();
    request.approval = Some(approval.clone());
    world.caliber.invoke(&guest, request).await.unwrap();
}

#[tokio::test]
async fn the_trail_is_for_operators_of_their_project() {
    let caliber = Parts::new().caliber();
    let one = person("root", "one", Scope::Admin);
    let registration = memory::registration("weather").unwrap();
    let server = caliber
        .register_server((&one, Surface::Http), registration)
        .await
        .unwrap();
    make(&caliber, &admin(), token(None, &[Scope::Viewer]))
        .await
        .unwrap();
    let page = PageRequest::default();
    let seen = async |who: &Principal| {
        let entries = caliber.audit(who, Default::default(), &page).await.unwrap().items;
        entries.len()
    };
    assert_eq!(seen(&admin()).await, 2);
    assert_eq!(seen(&person("op", "one", Scope::Operator)).await, 1);
    assert_eq!(seen(&person("op", "two", Scope::Operator)).await, 0);
    for scope in [Scope::Viewer, Scope::Approver] {
        let who = person("eve", "one", scope);
        refused(
            caliber.audit(&who, Default::default(), &page).await,
            ErrorKind::Forbidden,
            None,
        );
        refused(
            caliber.server_history(&who, &server.id, &page).await,
            ErrorKind::Forbidden,
            None,
        );
        refused(
            caliber.invocations(&who, &server.id, &page).await,
            ErrorKind::Forbidden,
            None,
        );
    }
    // Asking for another project's entries gives none of them.
    let query = caliber_core::audit::AuditQuery {
        projects: Some(vec![project("one")]),
        ..Default::default()
    };
    let two = person("op", "two", Scope::Operator);
    assert!(caliber.audit(&two, query, &page).await.unwrap().items.is_empty());
    // After the removal it stays where it was.
    caliber
        .remove_server((&one, Surface::Http), &server.id, None)
        .await
        .unwrap();
    let op = person("op", "one", Scope::Operator);
    assert_eq!(
        caliber
            .server_history(&op, &server.id, &page)
            .await
            .unwrap()
            .items
            .len(),
        2
    );
    let first = caliber
        .server_history(&op, &server.id, &PageRequest::first(1))
        .await
        .unwrap();
    let rest = PageRequest {
        limit: 10,
        cursor: first.next,
    };
    assert_eq!(
        caliber
            .server_history(&op, &server.id, &rest)
            .await
            .unwrap()
            .items
            .len(),
        1
    );
    refused(
        caliber.server_history(&two, &server.id, &page).await,
        ErrorKind::NotFound,
        None,
    );
}
