//! The three ways to the same control plane, and what they have in common.

use std::time::Duration;

use caliber::core::server::Endpoint;
use serde_json::{Value, json};

use super::scenario::Slow;
use crate::support::command::CommandRig;
use crate::support::{
    Api, RequestExt, Rig, Server, descendants, eventually, level_of, outcomes, policy_for, signal,
};

/// How a call ended, as its caller sees it.
#[derive(Clone, Debug)]
pub(super) enum Ended {
    /// The tool answered, maybe that it failed.
    Answered { is_error: bool, result: Value },
    /// It was refused or failed, with this reason code and everything that was said about it.
    Refused { reason: String, said: String },
}

/// A way to the control plane, with one server registered there.
#[derive(Debug)]
pub(super) enum Surface {
    Library {
        rig: Box<Rig>,
        server: Server,
    },
    Api {
        /// Kept, so that it goes on.
        _rig: Box<Rig>,
        api: Box<Api>,
        server: Server,
    },
    Command(CommandRig),
}

/// The name that every server is registered under.
const NAME: &str = "official";

impl Surface {
    pub(super) async fn library(peer: &crate::support::peers::Peer) -> Self {
        let rig = Rig::open_with(|config| peer.allow(config)).await;
        let server = rig.register(NAME, peer.endpoint.clone()).await;
        Self::Library {
            rig: Box::new(rig),
            server,
        }
    }

    pub(super) async fn api(peer: &crate::support::peers::Peer) -> Self {
        let rig = Rig::open_with(|config| peer.allow(config)).await;
        let api = rig.serve().await;
        let place = match &peer.endpoint {
            Endpoint::Stdio(stdio) => {
                json!({ "transport": "stdio", "command": stdio.command, "args": stdio.args })
            }
            endpoint => json!({ "transport": endpoint.transport(), "uri": endpoint.remote().unwrap().url }),
        };
        let mut body = json!({ "name": NAME });
        body.as_object_mut()
            .unwrap()
            .extend(place.as_object().unwrap().clone());
        let id = api.post("/mcp-servers", body).await.data()["server_id"]
            .as_str()
            .unwrap()
            .to_owned();
        let server = Server::of(&rig, id.parse().unwrap());
        Self::Api {
            _rig: Box::new(rig),
            api: Box::new(api),
            server,
        }
    }

    pub(super) async fn command(peer: &crate::support::peers::Peer) -> Self {
        let command = CommandRig::new(&peer.launch_rules());
        let said = match &peer.endpoint {
            Endpoint::Stdio(stdio) => {
                let mut arguments = vec!["servers", "add", NAME, "--", &stdio.command];
                arguments.extend(stdio.args.iter().map(String::as_str));
                command.run(&arguments).await
            }
            endpoint => {
                let mut arguments = vec!["servers", "add", NAME, "--url", &endpoint.remote().unwrap().url];
                arguments.extend((endpoint.transport() == "sse").then_some("--sse"));
                command.run(&arguments).await
            }
        };
        assert_eq!(said.json()["name"], NAME);
        Self::Command(command)
    }

    /// Checks the server, and gives the protocol revision and the number of tools that it says it has.
    pub(super) async fn check(&self) -> (String, usize) {
        let checked = match self {
            Self::Library { rig, server } => {
                let checked = rig.caliber.check(server.who(), &server.id).await.unwrap();
                let report = checked.report.unwrap();
                return (report.protocol_version, report.tools.len());
            }
            Self::Api { api, server, .. } => api
                .post(
                    &format!("/mcp-servers/{}/test-connection", server.id),
                    Value::Null,
                )
                .await
                .data(),
            Self::Command(command) => command.run(&["servers", "check", NAME]).await.json(),
        };
        assert_eq!(checked["success"], true, "{checked}");
        (
            text(&checked["protocol_version"]),
            checked["tools"].as_array().unwrap().len(),
        )
    }

    /// Discovers the server and gives the number of tools in its inventory.
    pub(super) async fn discover(&self) -> u64 {
        match self {
            Self::Library { server, .. } => server.discover().await.unwrap().inventory.tool_count.into(),
            Self::Api { api, server, .. } => {
                let found = api
                    .post(&format!("/mcp-servers/{}/discover-tools", server.id), Value::Null)
                    .await
                    .data();
                found["tool_count"].as_u64().unwrap()
            }
            Self::Command(command) => command.run(&["servers", "discover", NAME]).await.json()["tool_count"]
                .as_u64()
                .unwrap(),
        }
    }

    /// Classifies a tool as the tests do ([`policy_for`]).
    pub(super) async fn classify(&self, tool: &str) {
        let policy = policy_for(tool);
        match self {
            Self::Library { server, .. } => drop(server.classify(tool, policy).await.unwrap()),
            Self::Api { api, server, .. } => {
                let path = format!("/mcp-servers/{}/tools/{tool}/policy", server.id);
                let body = serde_json::to_value(policy).unwrap();
                assert_eq!(
                    api.send("PATCH", &path, Some(body)).await.data()["tool_name"],
                    tool
                );
            }
            Self::Command(command) => {
                let level = level_of(tool).as_str();
                let mut arguments = vec![
                    "tools", "classify", NAME, tool, "--level", level, "--allow", "--yes",
                ];
                if let Some(reason) = &policy.approval_waiver {
                    arguments.extend(["--waive-approval", reason]);
                }
                assert_eq!(command.run(&arguments).await.json()["tool_name"], tool);
            }
        }
    }

    /// Calls a tool, in at most `timeout` where one is given.
    pub(super) async fn call(&self, tool: &str, arguments: &Value, timeout: Option<Duration>) -> Ended {
        match self {
            Self::Library { rig, server } => {
                let mut request = server.request(tool, arguments.clone());
                request = match timeout {
                    Some(timeout) => request.within(timeout),
                    None => request,
                };
                match server.send(&rig.admin, request).await {
                    Ok(outcome) => Ended::Answered {
                        is_error: outcome.answer.is_error,
                        result: outcome.answer.result.read().unwrap(),
                    },
                    Err(error) => Ended::Refused {
                        reason: error
                            .reason()
                            .map(|reason| reason.to_string())
                            .unwrap_or_default(),
                        said: format!("{error:?}"),
                    },
                }
            }
            Self::Api { api, server, .. } => {
                let reply = api
                    .post(&invoke_path(server), invoke_body(tool, arguments, timeout))
                    .await;
                if reply.status != 200 {
                    assert_ne!(reply.status, 500, "{}", reply.text);
                    return Ended::Refused {
                        reason: reply.reason(),
                        said: reply.text,
                    };
                }
                answered(&reply.data())
            }
            Self::Command(command) => {
                let (arguments, timeout) = (
                    arguments.to_string(),
                    timeout.map(|time| format!("{}ms", time.as_millis())),
                );
                let mut words = vec!["tools", "call", NAME, tool, &arguments];
                words.extend(timeout.iter().flat_map(|timeout| ["--timeout", timeout]));
                let said = command.run(&words).await;
                match said.code {
                    // The tool's own failure is printed like a success, and has an exit code of its own.
                    0 | 11 => answered(&serde_json::from_str(&said.stdout).unwrap()),
                    _ => Ended::Refused {
                        reason: said.reason(),
                        said: said.stderr,
                    },
                }
            }
        }
    }

    /// Begins a call that takes long, waits until it is under way, and gives it up.
    pub(super) async fn give_up(&self, tool: &'static str, arguments: &Value) {
        match self {
            Self::Library { rig, server } => {
                let (admin, server, arguments) = (rig.admin.clone(), server.clone(), arguments.clone());
                let before = rig.caliber.server(&admin, &server.id).await.unwrap().health.calls;
                let call = tokio::spawn({
                    let (server, admin) = (server.clone(), admin.clone());
                    async move { server.call(&admin, tool, arguments).await }
                });
                under_way(&server, before).await;
                call.abort();
            }
            Self::Api { api, server, .. } => {
                let path = invoke_path(server);
                let post = api.post(&path, invoke_body(tool, arguments, None));
                // The client hangs up.
                tokio::select! {
                    reply = post => panic!("the call was to take long: {}", reply.text),
                    () = under_way(server, 0) => {}
                }
            }
            Self::Command(command) => {
                let arguments = arguments.to_string();
                let words = ["tools", "call", NAME, tool, &arguments];
                // A call with effects is committed to before it is sent.
                let before = begun(command).await;
                let committed = eventually("the command has committed to its call", || async {
                    (begun(command).await > before).then_some(())
                });
                let said = command.interrupt(&words, committed).await;
                assert_eq!(said.code, 130, "an interrupted command says so: {}", said.stderr);
            }
        }
    }

    /// Stops the process of a stdio server whose arguments hold a text, and gives its identifier.
    pub(super) async fn stop(&self, text: &str) -> u32 {
        let id = eventually("the server has one process", || async {
            let found = descendants(std::process::id()).into_iter();
            let found =
                found.filter(|process| process.arguments.iter().any(|argument| argument.contains(text)));
            let ids: Vec<u32> = found.map(|process| process.id).collect();
            (ids.len() == 1).then(|| ids[0])
        })
        .await;
        signal(id, "STOP");
        id
    }

    /// How the calls ended, oldest first, as the ledger has it.
    pub(super) async fn outcomes(&self) -> Vec<String> {
        match self {
            Self::Library { server, .. } => outcomes(server)
                .await
                .iter()
                .map(|outcome| outcome.as_str().to_owned())
                .collect(),
            Self::Api { api, server, .. } => {
                let listed = api
                    .get(&format!("/mcp-servers/{}/invocations?limit=100", server.id))
                    .await
                    .data();
                let mut outcomes: Vec<_> = listed
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|call| text(&call["outcome"]))
                    .collect();
                outcomes.reverse();
                outcomes
            }
            Self::Command(command) => {
                let words = ["audit", "tail", "--action", "invoke_mcp_tool", "--lines", "100"];
                let entries = command.run(&words).await.json_lines();
                entries
                    .iter()
                    .map(|entry| text(&entry["details"]["outcome"]))
                    .collect()
            }
        }
    }

    /// Whether the one slow call of this server can be made here. A process that the command starts and ends within
    /// one call cannot be stopped in the middle of it.
    pub(super) fn can_stop(&self, slow: &Slow) -> bool {
        matches!(slow, Slow::Call(..)) || !matches!(self, Self::Command(_))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn invoke_path(server: &Server) -> String {
    format!("/mcp-servers/{}/invoke-tool", server.id)
}

fn invoke_body(tool: &str, arguments: &Value, timeout: Option<Duration>) -> Value {
    let mut body = json!({ "tool_name": tool, "arguments": arguments });
    if let Some(timeout) = timeout {
        body["timeout_ms"] = json!(timeout.as_millis() as u64);
    }
    body
}

fn answered(data: &Value) -> Ended {
    Ended::Answered {
        is_error: data["is_error"].as_bool().unwrap(),
        result: data["result"].clone(),
    }
}

/// Waits until more calls than `before` are under way in a session of the server.
async fn under_way(server: &Server, before: u32) {
    eventually("the call is under way", || async {
        let health = server
            .caliber
            .server(server.who().0, &server.id)
            .await
            .unwrap()
            .health;
        (health.calls > before).then_some(())
    })
    .await;
}

/// How many calls with effects the command has committed to.
async fn begun(command: &CommandRig) -> usize {
    let words = [
        "audit",
        "tail",
        "--action",
        "begin_mcp_tool_call",
        "--lines",
        "100",
    ];
    command.run(&words).await.json_lines().len()
}
