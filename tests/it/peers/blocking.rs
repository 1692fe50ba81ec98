//! The blocking facade with an official server.

use caliber::core::inventory::ToolState;
use caliber::core::json::JsonText;
use caliber::core::page::PageRequest;
use caliber::core::principal::{Principal, Surface};
use caliber::core::reason::ReasonCode;
use caliber::core::server::Visibility;
use caliber::{InvokeRequest, ServerRegistration};
use serde_json::json;

use crate::support::peers::{Python, time};
use crate::support::rig::definition;
use crate::support::{Rig, policy_for, text};

/// From a plain thread, as a workflow interpreter calls it.
#[test]
fn a_thread_without_a_runtime_makes_a_governed_call() {
    let Some(peer) = time(Python::Mcp2) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let rig = runtime.block_on(Rig::open_with(|config| peer.allow(config)));
    let caliber = rig.caliber.blocking().unwrap();
    let admin = Principal::local_administrator();
    let who = (&admin, Surface::Library);

    let registration = ServerRegistration {
        definition: definition("time", peer.endpoint.clone()),
        visibility: Visibility::Project,
    };
    let server = caliber.register_server(who, registration).unwrap().id;
    let report = caliber.check(who, &server).unwrap().report.unwrap();
    assert_eq!(report.tools.len(), 2);
    assert_eq!(caliber.discover(who, &server).unwrap().inventory.tool_count, 2);

    let tool: caliber::core::descriptor::ToolName = "get_current_time".parse().unwrap();
    let arguments = JsonText::of(&json!({ "timezone": "Asia/Tokyo" })).unwrap();
    let request = InvokeRequest::new(server.clone(), tool.clone(), arguments, Surface::Workflow);
    let refused = caliber.invoke(&admin, request.clone()).unwrap_err();
    assert_eq!(refused.reason(), Some(ReasonCode::Unclassified));
    caliber
        .classify(who, &server, &tool, policy_for(tool.as_str()), None)
        .unwrap();
    let listing = caliber.tools(&admin, &server, &PageRequest::default()).unwrap();
    let states: Vec<_> = listing
        .tools
        .items
        .iter()
        .map(|view| (view.name().to_string(), view.state(&listing.fingerprint)))
        .collect();
    assert!(
        states.contains(&("get_current_time".to_owned(), ToolState::Classified)),
        "{states:?}"
    );
    let outcome = caliber.invoke(&admin, request).unwrap();
    assert!(text(&outcome).contains("Asia/Tokyo"), "{}", text(&outcome));
    let entries = caliber
        .audit(&admin, Default::default(), &PageRequest::default())
        .unwrap()
        .items;
    assert!(
        entries
            .iter()
            .any(|entry| entry.details.as_str().contains("\"ok\"")),
        "the call is in the trail"
    );
    caliber.remove_server(who, &server, None).unwrap();
    drop(caliber);
    runtime.block_on(async { rig.close().await });
}
