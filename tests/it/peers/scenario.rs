//! What the tests ask of each official server.

use serde_json::{Value, json};

use crate::support::Transport;
use crate::support::peers::{Peer, Python, everything, git, time};

/// The newest revision of the legacy protocol family.
const LEGACY: &str = "2025-11-25";
/// The newest revision of the modern family.
const MODERN: &str = "2026-07-28";

fn newest_of(python: Python) -> &'static str {
    match python {
        Python::Mcp1 => LEGACY,
        Python::Mcp2 => MODERN,
    }
}

/// One call and what its answer must hold.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) tool: &'static str,
    pub(super) arguments: Value,
    /// A part of the text of the answer.
    pub(super) text: String,
}

/// How a call can be made to take long.
#[derive(Clone, Debug)]
pub(super) enum Slow {
    /// This call takes a minute.
    Call(&'static str, Value),
    /// There is no such tool: the process whose arguments hold this text is stopped.
    Stopped(&'static str),
}

/// An official server with what to ask it.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) peer: Peer,
    pub(super) tools: u64,
    /// The protocol revision that is agreed on: the newest that both sides speak.
    pub(super) protocol: &'static str,
    pub(super) good: Call,
    /// A tool that promises structured content, with a member of it.
    pub(super) structured: Option<(Call, &'static str, Value)>,
    pub(super) failing: Call,
    pub(super) slow: Slow,
}

pub(super) fn everything_over(transport: Transport) -> Option<Scenario> {
    let call = |tool, arguments, text: &str| Call {
        tool,
        arguments,
        text: text.to_owned(),
    };
    Some(Scenario {
        peer: everything(transport)?,
        tools: 13,
        protocol: LEGACY,
        good: call("echo", json!({ "message": "Grüße 🔥" }), "Grüße 🔥"),
        structured: Some((
            call(
                "get-structured-content",
                json!({ "location": "Chicago" }),
                "Light rain",
            ),
            "humidity",
            json!(82),
        )),
        failing: call(
            "get-resource-reference",
            json!({ "resourceType": "Text", "resourceId": -1 }),
            "resourceId",
        ),
        slow: Slow::Call(
            "trigger-long-running-operation",
            json!({ "duration": 60, "steps": 60 }),
        ),
    })
}

pub(super) fn time_on(python: Python) -> Option<Scenario> {
    let arguments = json!({ "source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo" });
    let structured = Call {
        tool: "get_current_time",
        arguments: json!({ "timezone": "UTC" }),
        text: "UTC".into(),
    };
    Some(Scenario {
        peer: time(python)?,
        tools: 2,
        protocol: newest_of(python),
        good: Call {
            tool: "convert_time",
            arguments,
            text: "21:00".into(),
        },
        structured: (python == Python::Mcp2).then(|| (structured, "timezone", json!("UTC"))),
        failing: Call {
            tool: "get_current_time",
            arguments: json!({ "timezone": "Nowhere/Atlantis" }),
            text: "Atlantis".into(),
        },
        slow: Slow::Stopped("mcp_server_time"),
    })
}

pub(super) fn git_on(python: Python) -> Option<Scenario> {
    let peer = git(python)?;
    let path = peer
        .repository
        .as_ref()
        .map(|folder| folder.path().canonicalize().expect("the repository is there"));
    let path = path.expect("a git server has a repository");
    Some(Scenario {
        tools: 12,
        protocol: newest_of(python),
        good: Call {
            tool: "git_log",
            arguments: json!({ "repo_path": path }),
            text: "Add a note".into(),
        },
        structured: None,
        failing: Call {
            tool: "git_show",
            arguments: json!({ "repo_path": path, "revision": "no-such-revision" }),
            text: "no-such-revision".into(),
        },
        slow: Slow::Stopped("mcp_server_git"),
        peer,
    })
}
