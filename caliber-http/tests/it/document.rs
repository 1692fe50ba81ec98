//! The OpenAPI document and the explorer.

use std::collections::BTreeSet;

use caliber_http::HttpSettings;
use serde_json::Value;

use crate::support::{PREFIX, Request, Service};

const ROUTES: [&str; 45] = [
    "DELETE /grants/{grant_id}",
    "DELETE /mcp-servers/{server_id}",
    "DELETE /mcp-servers/{server_id}/tools/{tool_name}/policy",
    "DELETE /tokens/{token_id}",
    "GET /approvals",
    "GET /approvals/{approval_id}",
    "GET /audit",
    "GET /grants",
    "GET /invocations/{invocation_id}",
    "GET /mcp-servers",
    "GET /mcp-servers/{server_id}",
    "GET /mcp-servers/{server_id}/history",
    "GET /mcp-servers/{server_id}/invocations",
    "GET /mcp-servers/{server_id}/tools",
    "GET /mcp-servers/{server_id}/tools/{tool_name}",
    "GET /mcp-servers/{server_id}/tools/{tool_name}/diff",
    "GET /tokens",
    "PATCH /mcp-servers/{server_id}",
    "PATCH /mcp-servers/{server_id}/tools/{tool_name}/policy",
    "POST /approvals/{approval_id}/approve",
    "POST /approvals/{approval_id}/refuse",
    "POST /grants",
    "POST /mcp-servers",
    "POST /mcp-servers/check",
    "POST /mcp-servers/restore",
    "POST /mcp-servers/{server_id}/discover-tools",
    "POST /mcp-servers/{server_id}/invoke-tool",
    "POST /mcp-servers/{server_id}/test-connection",
    "POST /tokens",
    "PUT /memberships",
    "GET /sandbox",
    "GET /tools",
    "POST /tools",
    "GET /tools/resolve",
    "GET /tools/{tool_id}",
    "PATCH /tools/{tool_id}",
    "POST /tools/{tool_id}/archive",
    "GET /tools/{tool_id}/invocations",
    "GET /tools/{tool_id}/source",
    "POST /tools/{tool_id}/test-run",
    "GET /tools/{tool_id}/usage",
    "GET /tools/{tool_id}/versions",
    "GET /healthz",
    "GET /metrics",
    "GET /readyz",
];

fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            found.push((method.to_uppercase(), path.clone(), operation.clone()));
        }
    }
    found
}

/// The attributes of the wire types hold numbers of their own: they are those that the rules have.
#[test]
fn the_bounds_of_the_document_are_those_of_the_rules() {
    use caliber_core::policy::{HIGHEST_CONCURRENCY, HIGHEST_RATE, LARGEST_RESULT, LONGEST_CALL_MS};
    let document = serde_json::to_value(caliber_http::openapi()).unwrap();
    let mut seen = 0;
    for (schema, definition) in document["components"]["schemas"].as_object().unwrap() {
        let Some(properties) = definition["properties"].as_object() else {
            continue;
        };
        for (name, property) in properties {
            let bound = match name.as_str() {
                "timeout_ms" => LONGEST_CALL_MS,
                "result_bytes" => LARGEST_RESULT,
                "concurrency" => HIGHEST_CONCURRENCY.into(),
                "rate_limit_per_minute" => HIGHEST_RATE.into(),
                _ => continue,
            };
            let Some(maximum) = property.get("maximum") else {
                continue;
            };
            assert_eq!(maximum.as_u64(), Some(bound), "{schema}.{name}");
            seen += 1;
        }
    }
    assert!(seen >= 6, "only {seen} bounds are in the document");
}

#[test]
fn every_route_is_documented() {
    let document = serde_json::to_value(caliber_http::openapi()).unwrap();
    let found: BTreeSet<String> = operations(&document)
        .into_iter()
        .map(|(method, path, _)| format!("{method} {}", path.strip_prefix(PREFIX).unwrap_or(&path)))
        .collect();
    let expected: BTreeSet<String> = ROUTES
        .iter()
        .filter(|route| !route.is_empty())
        .map(|route| (*route).to_owned())
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn the_document_is_whole() {
    let document = serde_json::to_value(caliber_http::openapi()).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["title"], "caliber");
    let text = document.to_string();
    for rest in text.split("\"$ref\":\"").skip(1) {
        let target = rest.split('"').next().unwrap();
        let pointer = target.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{target} leads nowhere");
    }
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let place = format!("{method} {path}");
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap().to_owned()),
            "{place}"
        );
        assert!(operation["summary"].is_string(), "{place}");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{place}");
        for (status, response) in responses {
            if !status.starts_with('2') {
                assert!(
                    response["content"]["application/problem+json"].is_object(),
                    "{place} {status}"
                );
            }
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(
                !parameter["schema"].to_string().contains("null"),
                "{place}: {parameter}"
            );
        }
        let open = operation["security"] == serde_json::json!([{}]);
        assert_eq!(open, !path.starts_with(PREFIX), "{place}");
        assert_eq!(responses.contains_key("401"), !open, "{place}");
    }
}

#[test]
fn bodies_take_no_unknown_field_and_no_null() {
    let document = serde_json::to_value(caliber_http::openapi()).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut inputs = 0;
    for (name, schema) in schemas.iter().filter(|(name, _)| name.ends_with("Input")) {
        if schema["type"] == "string" {
            continue;
        }
        inputs += 1;
        assert_eq!(schema["additionalProperties"], false, "{name}");
        for (field, property) in schema["properties"].as_object().unwrap() {
            assert!(
                !property.to_string().contains("\"null\""),
                "{name}.{field}: {property}"
            );
            assert!(property["description"].is_string(), "{name}.{field}");
        }
    }
    assert_eq!(inputs, 15, "{:?}", schemas.keys().collect::<Vec<_>>());
}

#[tokio::test]
async fn the_document_is_served_for_the_prefix_in_use() {
    let service = Service::start().await;
    let served = service
        .send(&Request::new("GET", "/openapi.json"))
        .await
        .expect(200);
    assert_eq!(served.header("content-type"), Some("application/json"));
    assert_eq!(
        served.json(),
        serde_json::to_value(caliber_http::openapi()).unwrap()
    );

    for prefix in ["", "/api"] {
        let settings = HttpSettings {
            prefix: prefix.parse().unwrap(),
            ..HttpSettings::default()
        };
        let service = Service::with(settings).await;
        let served = service
            .send(&Request::new("GET", "/openapi.json"))
            .await
            .expect(200);
        assert!(served.json()["paths"][format!("{prefix}/mcp-servers")].is_object());
        let mut request = Request::new("GET", &format!("{prefix}/mcp-servers"));
        service.send(request.token(&service.admin)).await.expect(200);
    }
}

#[tokio::test]
async fn the_explorer_needs_no_network() {
    let service = Service::start().await;
    let moved = service.send(&Request::new("GET", "/docs")).await;
    assert_eq!((moved.status, moved.header("location")), (308, Some("docs/")));
    let page = service.send(&Request::new("GET", "/docs/")).await.expect(200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'self';"), "{policy}");
    let mut files = vec!["swagger-initializer.js".to_owned()];
    for attribute in ["src=\"", "href=\""] {
        for rest in page.text().split(attribute).skip(1) {
            let file = rest.split('"').next().unwrap();
            assert!(!file.contains("//"), "{file} is elsewhere");
            files.push(file.trim_start_matches("./").to_owned());
        }
    }
    assert!(files.len() > 3);
    for file in files {
        let served = service
            .send(&Request::new("GET", &format!("/docs/{file}")))
            .await
            .expect(200);
        assert!(!served.body.is_empty(), "{file}");
    }
    let start = service
        .send(&Request::new("GET", "/docs/swagger-initializer.js"))
        .await;
    assert!(start.text().contains("../openapi.json"));
    service
        .send(&Request::new("GET", "/docs/absent.js"))
        .await
        .expect(404);
    service
        .send(&Request::new("GET", "/docs/../../etc/passwd"))
        .await
        .expect(404);
}
