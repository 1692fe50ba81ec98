//! What happens to every server on every surface.

use std::time::Duration;

use serde_json::Value;

use super::scenario::{Call, Scenario, Slow, everything_over, git_on, time_on};
use super::surface::{Ended, Surface};
use crate::support::peers::Python;
use crate::support::{SECOND, Transport, ends_within, isolated, signal};

fn assert_answer(ended: &Ended, call: &Call, failed: bool) {
    let Ended::Answered { is_error, result } = ended else {
        panic!("{call:?} was refused: {ended:?}")
    };
    assert_eq!(*is_error, failed, "{call:?}: {result}");
    let said = result["content"][0]["text"].as_str().unwrap_or_default();
    assert!(said.contains(&call.text), "{call:?} answers {said:?}");
}

fn assert_refused(ended: Ended, expected: &str) {
    match ended {
        Ended::Refused { reason, said } => assert_eq!(reason, expected, "{said}"),
        answered => panic!("the call was to be refused as {expected}: {answered:?}"),
    }
}

/// What the ledger says of a call that met the end of its server's process: lost with it, or not sent because the
/// caller's state is gone. `None` for every other call.
fn met_an_ending(ended: &Ended) -> Option<&'static str> {
    match ended {
        Ended::Refused { reason, said } if reason == "outcome_unknown" => {
            said.contains("process ended").then_some("outcome_unknown")
        }
        Ended::Refused { reason, .. } if reason == "session_restarted" => Some("upstream_error"),
        _ => None,
    }
}

async fn told(surface: Surface, scenario: Scenario) {
    let Scenario {
        tools,
        protocol,
        good,
        structured,
        failing,
        slow,
        peer: _peer,
    } = &scenario;
    let call = |call: &Call| {
        let (tool, arguments) = (call.tool, call.arguments.clone());
        let surface = &surface;
        async move { surface.call(tool, &arguments, None).await }
    };
    let mut expected = Vec::new();

    let (spoken, checked) = surface.check().await;
    assert_eq!(
        (spoken.as_str(), checked as u64),
        (*protocol, *tools),
        "a check sees every tool"
    );
    assert_refused(call(good).await, "inventory_absent");
    assert_eq!(
        surface.discover().await,
        *tools,
        "a discovery takes in every tool"
    );
    assert_refused(call(good).await, "unclassified");
    expected.extend(["denied", "denied"]);

    surface.classify(good.tool).await;
    assert_answer(&call(good).await, good, false);
    expected.push("ok");
    if let Some((structured, member, value)) = structured {
        surface.classify(structured.tool).await;
        let ended = call(structured).await;
        assert_answer(&ended, structured, false);
        let Ended::Answered { result, .. } = ended else {
            panic!("it was looked at above")
        };
        assert_eq!(result["structuredContent"][*member], *value, "{result}");
        expected.push("ok");
    }
    surface.classify(failing.tool).await;
    assert_answer(&call(failing).await, failing, true);
    expected.push("tool_error");
    assert_refused(
        surface
            .call("no-such-tool", &Value::Object(Default::default()), None)
            .await,
        "tool_unknown",
    );
    expected.push("denied");

    if surface.can_stop(slow) {
        run_slow(&surface, good, slow).await;
        expected.extend(["timeout", "cancelled"]);
    }
    let mut ended = call(good).await;
    // The older SDK may end when it wakes up to calls that were given up meanwhile. Its caller is told, nothing is
    // sent again, and the next call finds a new process.
    if let (Slow::Stopped(_), Some(outcome)) = (slow, met_an_ending(&ended)) {
        expected.push(outcome);
        ended = call(good).await;
    }
    assert_answer(&ended, good, false);
    expected.push("ok");
    assert_eq!(surface.outcomes().await, expected, "each call has its record");
}

/// A call that times out, and one that is given up.
async fn run_slow(surface: &Surface, good: &Call, slow: &Slow) {
    // Far less than the call takes; enough for a command to start and shake hands.
    let limit = match surface {
        Surface::Command(_) => Duration::from_secs(4),
        _ => Duration::from_millis(800),
    };
    match slow {
        Slow::Call(tool, arguments) => {
            surface.classify(tool).await;
            // A command needs its own time to start and to end besides.
            let whole = if matches!(surface, Surface::Command(_)) {
                SECOND * 30
            } else {
                limit
            };
            assert_refused(
                ends_within(whole, surface.call(tool, arguments, Some(limit))).await,
                "timeout",
            );
            surface.give_up(tool, arguments).await;
        }
        Slow::Stopped(text) => {
            let process = surface.stop(text).await;
            let call = surface.call(good.tool, &good.arguments, Some(limit));
            assert_refused(ends_within(limit, call).await, "timeout");
            surface.give_up(good.tool, &good.arguments).await;
            signal(process, "CONT");
        }
    }
}

macro_rules! stories {
    ($($name:ident: $scenario:expr, $surface:ident;)*) => {
        $(
            #[test]
            fn $name() {
                isolated(|| async {
                    let Some(scenario) = $scenario else { return };
                    told(Surface::$surface(&scenario.peer).await, scenario).await;
                });
            }
        )*
    };
}

stories! {
    everything_over_stdio_through_the_library: everything_over(Transport::Stdio), library;
    everything_over_stdio_through_the_api: everything_over(Transport::Stdio), api;
    everything_over_stdio_through_the_command: everything_over(Transport::Stdio), command;
    everything_over_http_through_the_library: everything_over(Transport::Http), library;
    everything_over_http_through_the_api: everything_over(Transport::Http), api;
    everything_over_http_through_the_command: everything_over(Transport::Http), command;
    everything_over_sse_through_the_library: everything_over(Transport::Sse), library;
    everything_over_sse_through_the_api: everything_over(Transport::Sse), api;
    everything_over_sse_through_the_command: everything_over(Transport::Sse), command;
    legacy_time_through_the_library: time_on(Python::Mcp1), library;
    legacy_time_through_the_command: time_on(Python::Mcp1), command;
    time_of_both_families_through_the_library: time_on(Python::Mcp2), library;
    time_of_both_families_through_the_api: time_on(Python::Mcp2), api;
    legacy_git_through_the_library: git_on(Python::Mcp1), library;
    legacy_git_through_the_api: git_on(Python::Mcp1), api;
    git_of_both_families_through_the_library: git_on(Python::Mcp2), library;
    git_of_both_families_through_the_command: git_on(Python::Mcp2), command;
}
