//! Who may ask, from where, and under which name.

use caliber_core::grant::Membership;
use caliber_core::principal::{Principal, Scope, Scopes, Surface};
use caliber_http::{Authentication, Error, HttpSettings, TrustedIdentity};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, PREFIX, Request, Service, remote};

fn list() -> Request {
    Request::new("GET", &format!("{PREFIX}/mcp-servers"))
}

async fn with_headers(service: &Service, headers: &[(&str, &str)]) -> Answer {
    let mut request = list();
    for (name, value) in headers {
        request.header(name, value);
    }
    service.send(&request).await
}

#[tokio::test]
async fn only_a_bearer_token_in_its_header_counts() {
    let service = Service::start().await;
    let admin = service.admin.clone();
    let good = format!("Bearer {admin}");
    with_headers(&service, &[("Authorization", &good)])
        .await
        .expect(200);
    with_headers(&service, &[("authorization", &good.replace("Bearer", "bearer"))])
        .await
        .expect(200);
    let basic = format!("Basic {admin}");
    let shortened = &good[..good.len() - 1];
    let longer = format!("{good}0");
    for headers in [
        &[][..],
        &[("Authorization", "")],
        &[("Authorization", "Bearer")],
        &[("Authorization", "Bearer wrong")],
        &[("Authorization", &basic)],
        &[("Authorization", &admin)],
        &[("Authorization", shortened)],
        &[("Authorization", &longer)],
        &[("Authorization", &good), ("Authorization", &good)],
        &[("Authorization", "Bearer wrong"), ("Authorization", &good)],
        &[("Proxy-Authorization", &good)],
        &[("X-Api-Key", &admin)],
        &[("Cookie", &format!("token={admin}"))],
    ] {
        let refused = with_headers(&service, headers).await.expect(401);
        assert_eq!(refused.reason(), "unauthenticated", "{headers:?}");
        assert!(!refused.text().contains(&admin));
    }
    for query in ["token", "access_token", "api_key"] {
        let target = format!("{PREFIX}/mcp-servers?{query}={admin}");
        service.send(&Request::new("GET", &target)).await.expect(401);
    }
}

#[tokio::test]
async fn every_route_asks_who_it_is() {
    let service = Service::start().await;
    let document = caliber_http::openapi();
    let mut asked = 0;
    for (path, item) in &document.paths.paths {
        if !path.starts_with(PREFIX) {
            continue;
        }
        let operations = [
            ("GET", &item.get),
            ("POST", &item.post),
            ("PUT", &item.put),
            ("PATCH", &item.patch),
            ("DELETE", &item.delete),
        ];
        for (method, operation) in operations {
            if operation.is_some() {
                // Whatever else is wrong with the request: the answer is the same.
                let target = path.replace(['{', '}'], "");
                service
                    .send(Request::new(method, &target).json("[1"))
                    .await
                    .expect(401);
                asked += 1;
            }
        }
    }
    assert!(asked > 25, "{asked}");
}

#[tokio::test]
async fn a_token_ends_at_its_time() {
    let service = Service::start().await;
    let now = caliber_core::clock::Clock::now(&*service.parts.clock);
    let end = now + chrono::Duration::seconds(60);
    let body = json!({ "subject": "bot", "scopes": ["viewer"], "expires_at": end.to_rfc3339() });
    let made = service.post("/tokens", body).await.expect(201).data();
    let token = made["token"].as_str().unwrap();
    service
        .call_as(token, "GET", "/mcp-servers", None)
        .await
        .expect(200);
    service.parts.clock.advance(std::time::Duration::from_secs(60));
    service
        .call_as(token, "GET", "/mcp-servers", None)
        .await
        .expect(401);
}

#[tokio::test]
async fn a_request_works_in_the_project_that_it_names() {
    let service = Service::start().await;
    let create = |name: &str, project: &[&str]| {
        let mut request = Request::new("POST", &format!("{PREFIX}/mcp-servers"));
        request.token(&service.admin).json(&remote(name).to_string());
        for project in project {
            request.header("X-CALIBER-Project", project);
        }
        request
    };
    let created = service.send(&create("one", &["alpha"])).await.expect(201).data();
    assert_eq!(created["project_id"], "alpha");
    for bad in [&["Alpha"][..], &[""], &["a b"], &["alpha", "alpha"], &["-x"]] {
        let refused = service.send(&create("two", bad)).await.expect(400);
        assert_eq!(refused.wrong_fields(), ["header.x-caliber-project"], "{bad:?}");
    }
    // Who cannot say who they are does not learn that the project was wrong too.
    let mut request = list();
    request.header("X-CALIBER-Project", "Alpha");
    service.send(&request).await.expect(401);

    let alpha = service.token("amy", Some("alpha"), &[Scope::Viewer]).await;
    let seen = service
        .call_as(&alpha, "GET", "/mcp-servers", None)
        .await
        .expect(200)
        .data();
    assert_eq!(seen.as_array().unwrap().len(), 1);
    let beta = service.token("ben", Some("beta"), &[Scope::Viewer]).await;
    assert_eq!(
        service
            .call_as(&beta, "GET", "/mcp-servers", None)
            .await
            .expect(200)
            .data(),
        json!([])
    );
}

fn trusting(network: &str) -> HttpSettings {
    HttpSettings {
        trusted_identity: Some(TrustedIdentity {
            header: http::HeaderName::from_static("x-forwarded-user"),
            networks: vec![network.parse().unwrap()],
        }),
        ..HttpSettings::default()
    }
}

async fn join(service: &Service, subject: &str) {
    let root = Principal::local_administrator();
    let membership = Membership {
        project: Some("default".parse().unwrap()),
        subject: subject.parse().unwrap(),
        scopes: Scopes::NONE.with(Scope::Admin),
    };
    service
        .caliber
        .set_membership((&root, Surface::Library), membership)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_trusted_proxy_names_the_caller() {
    let service = Service::with(trusting("127.0.0.0/8")).await;
    join(&service, "mia").await;
    with_headers(&service, &[("X-Forwarded-User", "mia")])
        .await
        .expect(200);
    let mut request = Request::new("POST", &format!("{PREFIX}/mcp-servers"));
    request
        .header("x-forwarded-user", "mia")
        .json(&remote("weather").to_string());
    let created = service.send(&request).await.expect(201).data();
    assert_eq!(created["owner"], "mia");
    let id = created["server_id"].as_str().unwrap();
    let history = service.get(&format!("/mcp-servers/{id}/history")).await.data();
    assert_eq!(
        (&history[0]["identity"], &history[0]["token_id"]),
        (&json!("header"), &json!(null))
    );

    // Somebody without a membership is known and may nothing.
    with_headers(&service, &[("X-Forwarded-User", "nobody")])
        .await
        .expect(403);
    for headers in [
        &[][..],
        &[("X-Forwarded-User", "")],
        &[("X-Forwarded-User", "mia"), ("X-Forwarded-User", "mia")],
        &[("X-Forwarded-User", "mia"), ("x-forwarded-user", "nobody")],
        &[("X-Forwarded-User", "mia"), ("Authorization", "Bearer wrong")],
        &[
            ("X-Forwarded-User", "mia"),
            ("Authorization", "Basic bWlhOm1pYQ=="),
        ],
        &[("X-Forwarded-Email", "mia")],
    ] {
        with_headers(&service, headers).await.expect(401);
    }
    // A token says more than a header.
    let viewer = service.token("vic", Some("default"), &[Scope::Viewer]).await;
    let mut request = Request::new("POST", &format!("{PREFIX}/mcp-servers"));
    request
        .token(&viewer)
        .header("x-forwarded-user", "mia")
        .json(&remote("other").to_string());
    service.send(&request).await.expect(403);
}

#[tokio::test]
async fn headers_from_elsewhere_change_nothing() {
    let service = Service::with(trusting("10.0.0.0/8")).await;
    join(&service, "mia").await;
    let forged = [
        ("X-Forwarded-User", "mia"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("X-Real-IP", "10.0.0.1"),
        ("Forwarded", "for=10.0.0.1;host=localhost"),
        ("X-Forwarded-Host", "localhost"),
        ("X-Original-URL", "/healthz"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("X-Tenant", "default"),
        ("mcp-init-host", "localhost"),
        ("router-key", "x"),
        ("x-mcp-authorized", "1"),
        ("X-Request-Id", "forged"),
    ];
    let plain = with_headers(&service, &[]).await.expect(401);
    for header in forged {
        let refused = with_headers(&service, &[header]).await.expect(401);
        assert_eq!(refused.text(), plain.text(), "{header:?}");
        assert_ne!(refused.header("x-request-id"), Some("forged"));
    }
    with_headers(&service, &forged).await.expect(401);
    let bearer = format!("Bearer {}", service.admin);
    let mut headers = forged.to_vec();
    headers.push(("Authorization", &bearer));
    let without = with_headers(&service, &[("Authorization", &bearer)])
        .await
        .expect(200);
    assert_eq!(
        with_headers(&service, &headers).await.expect(200).text(),
        without.text()
    );
}

#[tokio::test]
async fn open_on_loopback_is_a_choice_and_ends_there() {
    let settings = HttpSettings {
        authentication: Authentication::OpenOnLoopback,
        ..HttpSettings::default()
    };
    let service = Service::with(settings.clone()).await;
    let mut request = Request::new("POST", &format!("{PREFIX}/mcp-servers"));
    request
        .json(&remote("weather").to_string())
        .header("X-CALIBER-Project", "alpha");
    let created = service.send(&request).await.expect(201).data();
    assert_eq!(
        (&created["owner"], &created["project_id"]),
        (&json!("local-administrator"), &json!("alpha"))
    );
    // A wrong token is not better for being on loopback, and a page from elsewhere is not this machine.
    with_headers(&service, &[("Authorization", "Bearer wrong")])
        .await
        .expect(401);
    with_headers(&service, &[("Origin", "https://evil.example")])
        .await
        .expect(403);

    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = caliber_http::serve(
        listener,
        service.caliber.clone(),
        settings,
        CancellationToken::new(),
    )
    .await;
    assert!(
        matches!(refused, Err(Error::OpenBeyondLoopback { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn hosts_and_pages_that_are_not_ours_are_refused_everywhere() {
    let service = Service::start().await;
    let bearer = format!("Bearer {}", service.admin);
    for target in [
        &format!("{PREFIX}/mcp-servers"),
        "/openapi.json",
        "/docs/",
        "/metrics",
        "/nothing",
    ] {
        for (host, status) in [
            ("evil.example", 421),
            ("localhost.", 421),
            ("localhost@evil.example", 400),
            ("", 400),
        ] {
            let mut request = Request::new("GET", target);
            request.host(Some(host)).header("Authorization", &bearer);
            service.send(&request).await.expect(status);
        }
        for origin in ["https://evil.example", "null", "http://localhost:1"] {
            let mut request = Request::new("GET", target);
            request.header("Authorization", &bearer).header("Origin", origin);
            assert_eq!(
                service.send(&request).await.expect(403).reason(),
                "origin_refused",
                "{target} {origin}"
            );
        }
    }
    let mut request = list();
    request
        .header("Authorization", &bearer)
        .header("Origin", "http://localhost");
    service.send(&request).await.expect(200);
    service.send(list().host(None)).await.expect(400);
    // Probes name the container's address.
    service
        .send(Request::new("GET", "/healthz").host(Some("10.1.2.3:80")))
        .await
        .expect(200);
    service
        .send(Request::new("GET", "/readyz").host(Some("10.1.2.3:80")))
        .await
        .expect(200);
}

#[tokio::test]
async fn an_outage_of_the_store_lets_nobody_in() {
    let service = Service::start().await;
    service
        .parts
        .registry
        .set_outage(Some(caliber_core::memory::Outage::Everything));
    let refused = service.get("/mcp-servers").await.expect(503);
    assert_eq!(refused.reason(), "store_unavailable");
}
