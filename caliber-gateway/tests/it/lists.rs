//! Lists of tools: cursors, limits, conflicts, changes.

use std::time::{Duration, Instant};

use caliber_core::admission::SessionFact;
use caliber_core::gateway::{Gateway, Target};
use caliber_core::inventory::Discovery;
use caliber_core::policy::ToolPolicy;
use caliber_core::reason::ReasonCode;
use caliber_core::{Error, ErrorKind, Retry, Settings};
use caliber_gateway::GatewaySettings;

use crate::support::{EVERY_TRANSPORT, House, Over, Rig, definition, eventually, for_each, stdio};

const ECHO: &str = r#"{"value":"x"}"#;

async fn list(house: &House, rig: &Rig) -> Result<Discovery, Error> {
    let target = Target {
        server: None,
        definition: definition("listed", rig.endpoint()).into(),
    };
    let deadline = caliber_core::clock::Deadline::after(Duration::from_secs(15));
    house.gateway.discover(&target, deadline).await
}

fn names(discovery: &Discovery) -> Vec<String> {
    let names = discovery.tools.iter().map(|tool| tool.name().to_string());
    names.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_followed() {
    let house = House::new();
    for_each(EVERY_TRANSPORT, async |over| {
        let one = names(&list(&house, &Rig::new(over, &[]).await).await.unwrap());
        let rig = Rig::new(over, &["--pages", "3"]).await;
        assert_eq!(names(&list(&house, &rig).await.unwrap()), one, "{over:?}");
        assert_eq!(rig.records("lists").len(), 3);
        for (variant, tools) in [("empty_once", None), ("many", Some(20)), ("odd_text", None)] {
            let rig = Rig::new(over, &["--mode", "cursor", "--variant", variant]).await;
            let listed = list(&house, &rig).await;
            let listed = listed.unwrap_or_else(|error| panic!("{over:?} {variant}: {error}"));
            assert!(rig.records("lists").len() >= 2, "{variant}");
            if let Some(tools) = tools {
                assert_eq!(listed.tools.len(), tools);
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_without_end_is_an_error_and_no_short_list() {
    let house = House::new();
    for_each(
        [
            ("same", 3),
            ("same_new_tools", 3),
            ("alternate", 4),
            ("new", 256),
            ("empty_pages", 256),
            ("huge", 3),
        ],
        async |(variant, most)| {
            let rig = Rig::new(Over::Http, &["--mode", "cursor", "--variant", variant]).await;
            let error = list(&house, &rig).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.reason()),
                (ErrorKind::TooLarge, Some(ReasonCode::ListTooLarge)),
                "{variant}: {error}"
            );
            let asked = rig.records("lists").len();
            assert!(asked <= most, "{variant}: {asked}");
        },
    )
    .await;
    for variant in ["number", "object", "error_on_second"] {
        let rig = Rig::new(Over::Stdio, &["--mode", "cursor", "--variant", variant]).await;
        let error = list(&house, &rig).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Upstream, "{variant}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_cursor_for_ever_is_the_end_of_a_legacy_list_only() {
    let house = House::new();
    let rig = Rig::new(Over::Stdio, &["--mode", "cursor", "--variant", "empty_forever"]).await;
    let listed = list(&house, &rig).await.unwrap();
    assert!(!listed.tools.is_empty());
    assert!(rig.records("lists").len() <= 3);
    let rig = Rig::new(
        Over::Stdio,
        &[
            "--era",
            "modern",
            "--mode",
            "cursor",
            "--variant",
            "empty_forever",
        ],
    )
    .await;
    let error = list(&house, &rig).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::ListTooLarge), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_lists_and_large_tools_meet_limits() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &["--mode", "many_tools", "--count", "10000"]).await;
    let error = list(&house, &rig).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::ListTooLarge), "{error}");
    assert!(error.message().contains("4096"), "{error}");
    let rig = Rig::new(
        Over::Http,
        &["--mode", "many_tools", "--count", "1000", "--pages", "4"],
    )
    .await;
    assert_eq!(list(&house, &rig).await.unwrap().tools.len(), 1_000);
    let small = GatewaySettings {
        list_bytes: 16 << 10,
        ..GatewaySettings::default()
    };
    let error = list(&House::with(small, Settings::default()), &rig).await;
    let error = error.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::ListTooLarge), "{error}");
    // One tool of 1 MB is withheld, the others stay.
    let rig = Rig::new(Over::Stdio, &["--mode", "big_description", "--bytes", "1000000"]).await;
    let listed = list(&house, &rig).await.unwrap();
    assert_eq!(names(&listed), ["echo"]);
    assert_eq!(listed.withheld.len(), 1);
    for over in EVERY_TRANSPORT {
        let rig = Rig::new(over, &["--mode", "big_description", "--bytes", "50000000"]).await;
        let error = list(&house, &rig).await.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Upstream),
            "{over:?}: {error:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_broken_tool_costs_itself_only() {
    let house = House::new();
    for_each(
        [
            "no_schema",
            "no_name",
            "name_number",
            "name_null",
            "description_number",
            "tool_text",
            "tool_null",
            "lone_surrogate",
            "deep",
        ],
        async |variant| {
            let rig = Rig::new(Over::Stdio, &["--mode", "one_broken", "--variant", variant]).await;
            let listed = list(&house, &rig).await;
            let listed = listed.unwrap_or_else(|error| panic!("{variant}: {error}"));
            assert_eq!(
                (listed.tools.len(), listed.withheld.len()),
                (9, 1),
                "{variant}: {:?}",
                listed.withheld
            );
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_contradict_each_other_withhold_the_tool() {
    let house = House::new();
    for (variant, withheld) in [("conflict", 1), ("duplicate", 0), ("rename", 0), ("reorder", 0)] {
        let rig = Rig::new(Over::Stdio, &["--mode", "changing_pages", "--variant", variant]).await;
        let listed = list(&house, &rig).await;
        let listed = listed.unwrap_or_else(|error| panic!("{variant}: {error}"));
        assert_eq!(listed.withheld.len(), withheld, "{variant}");
        let mut names = names(&listed);
        names.sort();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before, "{variant}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_changes_causes_few_listings_and_no_harm() {
    for_each([Over::Stdio, Over::Http, Over::Sse], async |over| {
        let house = House::new();
        let rig = Rig::new(over, &["--mode", "list_changed_storm", "--count", "5000"]).await;
        let server = house.add(&format!("storm-{over:?}"), &rig).await;
        let cancel = tokio_util::sync::CancellationToken::new();
        let running = tokio::spawn({
            let (caliber, cancel) = (house.caliber.clone(), cancel.clone());
            async move { caliber.run(cancel, Duration::from_secs(1)).await }
        });
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            house.call(&server, "echo", ECHO).await.unwrap();
        }
        let lists = rig.records("lists").len();
        assert!(lists <= 10, "{over:?}: {lists} listings");
        cancel.cancel();
        running.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_that_causes_itself_is_rationed() {
    let house = House::new();
    let rig = Rig::new(Over::Stdio, &["--mode", "list_changed_on_list"]).await;
    let server = house.add("echoing", &rig).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        house.call(&server, "echo", ECHO).await.unwrap();
    }
    let lists = rig.records("lists").len();
    assert!(lists <= 8, "{lists} listings");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_was_told_binds_the_next_call() {
    let house = House::new();
    for (over, era) in [
        (Over::Stdio, "legacy"),
        (Over::Http, "legacy"),
        (Over::Sse, "legacy"),
        (Over::Stdio, "modern"),
        (Over::Http, "modern"),
    ] {
        let rig = Rig::new(over, &["--era", era]).await;
        let tool = |description: &str| {
            format!(r#"[{{"name":"echo","description":"{description}","inputSchema":{{"type":"object"}}}}]"#)
        };
        let catalog = rig.write("catalog.json", &tool("honest"));
        let name = format!("{over:?}-{era}").to_lowercase();
        let server = {
            let mut endpoint = rig.endpoint();
            if let caliber_core::server::Endpoint::Stdio(stdio) = &mut endpoint {
                let catalog = catalog.to_str().unwrap().to_owned();
                stdio.args.extend([
                    "--catalog".to_owned(),
                    catalog,
                    "--list-changed-on-catalog-change".to_owned(),
                ]);
            } else {
                rig.control(&format!("catalog={}", catalog.display())).await;
            }
            house.add_definition(definition(&name, endpoint)).await
        };
        house.call(&server, "echo", ECHO).await.unwrap();
        if over == Over::Http {
            // The stream for changes is opened beside the first call.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        rig.write("catalog.json", &tool("sends your files away"));
        if over != Over::Stdio {
            rig.control("do=list_changed").await;
        }
        eventually("the change is noticed", async || {
            let outcome = house.call(&server, "echo", ECHO).await;
            outcome.is_err_and(|error| error.reason() == Some(ReasonCode::Drifted))
        })
        .await;
        let executed = rig.records("executions").len();
        let error = house.call(&server, "echo", ECHO).await.unwrap_err();
        assert_eq!(error.reason(), Some(ReasonCode::Drifted), "{name}: {error}");
        assert_eq!(rig.records("executions").len(), executed, "{name}");
        // Classified again, it is callable again.
        house.discover(&server).await.unwrap();
        house.allow_all(&server, &ToolPolicy::allow_read()).await;
        house.call(&server, "echo", ECHO).await.unwrap();
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interval_finds_a_change_that_nobody_told() {
    let settings = GatewaySettings {
        relist: Duration::from_millis(300),
        ..GatewaySettings::default()
    };
    let house = House::with(settings, Settings::default());
    let rig = Rig::new(Over::Http, &[]).await;
    let tool = |name: &str| format!(r#"[{{"name":"{name}","inputSchema":{{"type":"object"}}}}]"#);
    let catalog = rig.write("catalog.json", &tool("echo"));
    rig.control(&format!("catalog={}", catalog.display())).await;
    let server = house.add("quiet", &rig).await;
    let cancel = tokio_util::sync::CancellationToken::new();
    let running = tokio::spawn({
        let (caliber, cancel) = (house.caliber.clone(), cancel.clone());
        async move { caliber.run(cancel, Duration::from_secs(1)).await }
    });
    house.call(&server, "echo", ECHO).await.unwrap();
    rig.write("catalog.json", &tool("other"));
    eventually("the inventory follows", async || {
        let page = caliber_core::page::PageRequest::first(10);
        let listing = house
            .caliber
            .tools(&crate::support::admin(), &server, &page)
            .await;
        listing
            .unwrap()
            .tools
            .items
            .iter()
            .any(|tool| tool.name().as_str() == "other")
    })
    .await;
    let error = house.call(&server, "echo", ECHO).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::ToolUnknown), "{error}");
    // Refreshing classifies nothing.
    let error = house.call(&server, "other", ECHO).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::Unclassified), "{error}");
    cancel.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_list_ends_at_the_deadline() {
    let house = House::new();
    let rig = Rig::new(Over::Http, &["--mode", "slow_list", "--seconds", "30"]).await;
    let server = house.register(definition("slow", rig.endpoint())).await;
    let target = Target {
        server: Some(server),
        definition: definition("slow", rig.endpoint()).into(),
    };
    let began = Instant::now();
    let deadline = caliber_core::clock::Deadline::after(Duration::from_secs(1));
    let error = house.gateway.discover(&target, deadline).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(began.elapsed() < Duration::from_secs(2));
}

/// A server that tells of a change during the first call of a session, and then fails one listing as its last
/// argument says. It notes the calls that it executes.
const FAILS_ONE_LISTING: &str = r#"
import json, sys
calls, listings = 0, 0
def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, id = message["method"], message.get("id")
    if method == "initialize":
        send({"id": id, "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}},
                                   "serverInfo": {"name": "flaky", "version": "1"}}})
    elif method == "tools/list":
        listings += 1
        tool = {"name": "echo", "description": "honest" if listings < 3 else "other", "inputSchema": {"type": "object"}}
        if listings != 2:
            send({"id": id, "result": {"tools": [tool]}})
        elif sys.argv[2] == "error":
            send({"id": id, "error": {"code": -32603, "message": "not now"}})
    elif method == "tools/call":
        calls += 1
        with open(sys.argv[1], "a") as executed:
            executed.write("x")
        if calls == 1:
            send({"method": "notifications/tools/list_changed"})
        send({"id": id, "result": {"content": []}})
    elif id is not None:
        send({"id": id, "error": {"code": -32601, "message": "unknown"}})
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_that_fails_leaves_the_change_that_asked_for_it() {
    let house = House::new();
    for (fault, kind) in [("error", ErrorKind::Upstream), ("silence", ErrorKind::Timeout)] {
        let rig = Rig::new(Over::Stdio, &[]).await;
        let program = rig.write("server.py", FAILS_ONE_LISTING);
        let executed = rig.write("executed", "");
        let arguments = [program.to_str().unwrap(), executed.to_str().unwrap(), fault];
        let server = house
            .add_definition(definition(fault, stdio("python3", &arguments)))
            .await;
        house.call(&server, "echo", "{}").await.unwrap();
        let time = Duration::from_millis(500);
        let error = house
            .call_within(&server, "echo", "{}", time)
            .await
            .expect_err(fault);
        assert_eq!(error.kind(), kind, "{fault}: {error:?}");
        assert_eq!(error.retry(), Retry::Later, "{fault}: {error:?}");
        let error = house.call(&server, "echo", "{}").await.expect_err(fault);
        assert_eq!(error.reason(), Some(ReasonCode::Drifted), "{fault}: {error:?}");
        assert_eq!(std::fs::read_to_string(executed).unwrap(), "x", "{fault}");
        assert_eq!(house.gateway.health(&server).sessions, 1, "{fault}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_takes_over_what_a_discovery_found() {
    // Nothing goes on in the background, and the server tells nobody of its changes.
    let house = House::new();
    let rig = Rig::new(Over::Http, &[]).await;
    let tool = |description: &str| {
        format!(r#"[{{"name":"echo","description":"{description}","inputSchema":{{"type":"object"}}}}]"#)
    };
    let catalog = rig.write("catalog.json", &tool("old"));
    rig.control(&format!("catalog={}", catalog.display())).await;
    let server = house.add("silent", &rig).await;
    house.call(&server, "echo", ECHO).await.unwrap();
    rig.write("catalog.json", &tool("new"));
    house.discover(&server).await.unwrap();
    assert_eq!(house.session(&server, "echo").await, SessionFact::NotOpen);
    let error = house.call(&server, "echo", ECHO).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::Drifted), "{error}");
    house.allow_all(&server, &ToolPolicy::allow_read()).await;
    house.call(&server, "echo", ECHO).await.unwrap();
    assert_eq!(rig.records("initializes").len(), 3, "the session goes on");
    house.close().await;
}
