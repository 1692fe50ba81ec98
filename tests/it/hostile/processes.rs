//! Servers that are child processes: what may be started, what they print, how they end, what they leave behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use caliber::core::ServerPatch;
use caliber::core::audit::{AuditAction, AuditQuery};
use caliber::core::page::PageRequest;
use caliber::core::principal::Scope;
use caliber::core::reason::ReasonCode;
use caliber::core::secret::ConfigValue;
use caliber::core::server::{Endpoint, StdioEndpoint, Visibility};
use caliber::{ErrorKind, ServerRegistration};
use serde_json::json;

use super::stage::{SHORT, Stage, TIME};
use crate::support::rig::definition;
use crate::support::{
    Rig, SECOND, Transport, Upstream, eventually, eventually_within, isolated, processes_with, signal,
    structured, text,
};

/// How long a descendant may be there once its server has stopped (P4).
const TEN_SECONDS: Duration = Duration::from_secs(10);

fn stdio(command: &str, args: &[&str]) -> Endpoint {
    Endpoint::Stdio(StdioEndpoint {
        command: command.into(),
        args: args.iter().map(|argument| (*argument).to_owned()).collect(),
        env: Default::default(),
    })
}

/// P1: whoever calls tools cannot register or change a server, and no operator gets past the allowlist.
#[test]
fn commands_are_not_injected() {
    isolated(|| async {
        let stage = Stage::set().await;
        let rig = &stage.rig;
        let file = rig.folder().join("pwned");
        let touch = format!("touch {}", file.display());
        let registration = |name: &str, endpoint| ServerRegistration {
            definition: definition(name, endpoint),
            visibility: Visibility::Project,
        };

        let attack = stage.admit(Transport::Stdio, &[]).await;
        let api = rig.serve().await;
        let caller = api.as_subject(&rig.admin, "caller", Scope::Viewer).await;
        let shell = stdio("/bin/sh", &["-c", &touch]);
        let who = (&rig.ada, caliber::core::principal::Surface::Library);
        let error = rig
            .caliber
            .register_server(who, registration("shell", shell.clone()))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Forbidden, "{error:?}");
        let patch = ServerPatch {
            endpoint: Some(shell.clone()),
            ..ServerPatch::default()
        };
        let error = rig
            .caliber
            .update_server(who, &attack.server.id, patch.clone())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Forbidden, "{error:?}");
        let body =
            json!({ "name": "shell", "transport": "stdio", "command": "/bin/sh", "args": ["-c", touch] });
        assert_eq!(caller.post("/mcp-servers", body).await.status, 403);

        let semicolon = format!("; {touch}");
        let substitution = format!("$({touch})");
        for (number, (command, args)) in [
            ("/bin/sh", vec!["-c", touch.as_str()]),
            ("sh", vec!["-c", &touch]),
            ("./sh", vec!["-c", &touch]),
            ("../../bin/sh", vec!["-c", &touch]),
            ("/usr/bin/env", vec!["sh", "-c", &touch]),
            ("npx", vec!["-y", "x"]),
            ("node", vec!["-e", "require('fs').writeFileSync('pwned','')"]),
            (touch.as_str(), vec![]),
            (substitution.as_str(), vec![]),
            ("${PYTHON}", vec!["-c", "open('pwned','w')"]),
            ("${PYTHON}", vec!["-m", "http.server"]),
            ("${PYTHON}", vec![]),
            ("${PYTHON}", vec!["/bin/../etc/passwd"]),
            ("${PYTHON} -c pass", vec![]),
            ("${PYTHON}", vec![semicolon.as_str()]),
        ]
        .into_iter()
        .enumerate()
        {
            let server = rig
                .register(&format!("operator-{number}"), stdio(command, &args))
                .await;
            let error = server.discover().await.expect_err("it is not on the allowlist");
            assert_eq!(error.kind(), ErrorKind::Denied, "{command} {args:?}: {error:?}");
            assert!(
                matches!(
                    error.reason(),
                    Some(
                        ReasonCode::CommandNotAllowed
                            | ReasonCode::ArgumentsNotAllowed
                            | ReasonCode::ExecutableNotFound
                    )
                ),
                "{command} {args:?}: {error:?}"
            );
            let query = AuditQuery {
                entity_id: Some(server.id.to_string()),
                ..AuditQuery::default()
            };
            let trail = rig
                .caliber
                .audit(&rig.admin, query, &PageRequest::default())
                .await
                .unwrap();
            let actions: BTreeSet<_> = trail.items.iter().map(|entry| entry.action.as_str()).collect();
            for action in [AuditAction::CreateServer, AuditAction::DiscoverTools] {
                assert!(actions.contains(action.as_str()), "{command}: {actions:?}");
            }
        }

        // A server that was admitted and then moved: what was said about it holds no longer, and nothing starts.
        rig.caliber
            .update_server(attack.server.who(), &attack.server.id, patch)
            .await
            .unwrap();
        for answer in stage.both(&attack, "echo", TIME).await {
            let error = answer.unwrap_err();
            assert_eq!(error.reason(), Some(ReasonCode::ServerNotReady), "{error:?}");
        }

        // An allowed program gets shell text as the argument that it is.
        let upstream = Upstream::start(Transport::Stdio, &["--server-name", &semicolon]).await;
        let server = rig.admit("literal", upstream.endpoint()).await;
        let outcome = server.call(&rig.ada, "environment", json!({})).await.unwrap();
        let arguments = structured(&outcome)["argv"].to_string();
        assert!(arguments.contains(&semicolon), "{arguments}");
        server.remove().await;
        assert!(!file.exists(), "a command ran");
        drop((api, caller));
        attack.end(0).await;
        stage.end().await;
    });
}

/// P2, SH-20: a child has a minimal environment and what its definition names; loader and interpreter variables are
/// refused, and nothing of caliber's own environment is inherited.
#[test]
fn environments_are_built_from_nothing() {
    isolated(|| async {
        let stage = Stage::set().await;
        let rig = &stage.rig;
        let attack = stage.admit(Transport::Stdio, &[]).await;
        let outcome = stage
            .call(&attack, "environment", json!({ "values": true }))
            .await
            .unwrap();
        let seen = structured(&outcome);
        let keys: BTreeSet<&str> = seen["values"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        // What every child gets from the launcher and its guard, what Python itself adds (LC_CTYPE), and what the
        // definition names.
        let expected: BTreeSet<&str> = [
            "CALIBER_CHILD",
            "HOME",
            "LANG",
            "LC_CTYPE",
            "LOGNAME",
            "PATH",
            "PWD",
            "RIG_CREDENTIAL",
            "SHELL",
            "TERM",
            "TMPDIR",
            "USER",
        ]
        .into_iter()
        .collect();
        let surplus: Vec<_> = keys.difference(&expected).collect();
        assert!(surplus.is_empty(), "inherited: {surplus:?}");
        assert!(
            keys.contains("PATH") && keys.contains("RIG_CREDENTIAL"),
            "{keys:?}"
        );
        assert!(
            std::env::var_os("CALIBER_TEST_ISOLATED").is_some(),
            "this process has variables of its own"
        );

        let dangerous = [
            "NODE_OPTIONS",
            "NODE_PATH",
            "LD_PRELOAD",
            "LD_AUDIT",
            "LD_LIBRARY_PATH",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "PERL5OPT",
            "RUBYOPT",
            "BASH_ENV",
            "ENV",
            "PATH",
            "GIT_SSH_COMMAND",
            "DYLD_INSERT_LIBRARIES",
            "node_options",
            "Ld_Preload",
            "UNLISTED",
        ];
        for (number, key) in dangerous.into_iter().enumerate() {
            let upstream = Upstream::start(Transport::Stdio, &[]).await;
            let mut endpoint = upstream.endpoint();
            if let Endpoint::Stdio(stdio) = &mut endpoint {
                stdio
                    .env
                    .insert(key.to_owned(), ConfigValue::from_input("--inspect=127.0.0.1:0"));
            }
            let server = rig.register(&format!("variable-{number}"), endpoint).await;
            let error = server.discover().await.expect_err(key);
            assert_eq!(
                error.reason(),
                Some(ReasonCode::EnvironmentNotAllowed),
                "{key}: {error:?}"
            );
            assert!(error.message().contains(key), "names the variable: {error}");
            assert_eq!(upstream.records().count("pids"), 0, "{key}: nothing was started");
        }
        attack.end(1).await;
        stage.end().await;
    });
}

/// P4, SH-04: whatever a server leaves behind is gone when it crashes, when it is removed, and when it never got
/// ready.
#[test]
fn no_descendant_survives_its_server() {
    isolated(|| async {
        let stage = Stage::set().await;
        for variant in ["setsid", "same_group", "closed_pipes"] {
            let settings = ["--mode", "grandchild", "--variant", variant];
            let attack = stage.admit(Transport::Stdio, &settings).await;
            for answer in stage.both(&attack, "echo", TIME).await {
                answer.unwrap();
            }
            // The discovery's process and its descendant go; two callers have two each.
            let processes = |count: usize| {
                let upstream = &attack.upstream;
                eventually_within(TEN_SECONDS, "so many processes are left", move || {
                    let there = (upstream.processes().len() == count).then_some(());
                    async move { there }
                })
            };
            processes(4).await;
            let lines = attack.upstream.records().lines("pids");
            let server = lines
                .iter()
                .rfind(|line| line[1] == "server")
                .expect("a server runs");
            signal(server[0].parse().unwrap(), "KILL");
            processes(2).await;
            let upstream = attack.end_keeping(2).await;
            upstream.is_gone_within(TEN_SECONDS).await;
        }

        let settings = ["--mode", "grandchild", "--mode", "silent_start"];
        let attack = stage.register(Transport::Stdio, &settings).await;
        let discovery = tokio::spawn({
            let server = attack.server.clone();
            async move { server.discover().await }
        });
        attack.upstream.records().wait_for("pids", 2).await;
        // It is removed while it is still starting.
        discovery.abort();
        let upstream = attack.end_keeping(0).await;
        upstream.is_gone_within(TEN_SECONDS).await;
        stage.end().await;
    });
}

/// Set, to where its children leave their marker, in the process that the test below kills.
const VICTIM: &str = "CALIBER_TEST_VICTIM";

/// P4: the whole process is killed with SIGKILL, which nobody can handle, and no descendant is left.
#[test]
fn no_descendant_survives_a_killed_process() {
    isolated(|| async {
        if let Ok(folder) = std::env::var(VICTIM) {
            let rig = Rig::open().await;
            let upstream = Upstream::start(Transport::Stdio, &["--mode", "grandchild"]).await;
            let server = rig.admit("doomed", upstream.endpoint()).await;
            server
                .call(&rig.ada, "echo", json!({ "value": 1 }))
                .await
                .unwrap();
            let Endpoint::Stdio(endpoint) = upstream.endpoint() else {
                unreachable!("the fake server is a child")
            };
            let marker = endpoint
                .args
                .iter()
                .skip_while(|argument| *argument != "--marker")
                .nth(1)
                .unwrap();
            std::fs::write(Path::new(&folder).join("marker"), marker).unwrap();
            // Until it is killed; bounded by the time of an isolated test.
            tokio::time::sleep(Duration::from_secs(60)).await;
            return;
        }
        let stage = Stage::set().await;
        // What the victim leaves in its folder for temporary files goes with this one.
        let folder = tempfile::tempdir().unwrap();
        let mut victim = Command::new(std::env::current_exe().unwrap());
        victim
            .args([
                "hostile::processes::no_descendant_survives_a_killed_process",
                "--exact",
                "--nocapture",
            ])
            .env(VICTIM, folder.path())
            .env("TMPDIR", folder.path());
        let mut victim = victim.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let marker = eventually_within(Duration::from_secs(40), "the victim is at work", || {
            let marker = std::fs::read_to_string(folder.path().join("marker")).ok();
            async move { marker.filter(|marker| !marker.is_empty()) }
        })
        .await;
        assert!(
            processes_with(&marker).len() >= 2,
            "a server and its descendant run"
        );
        victim.kill().unwrap();
        victim.wait().unwrap();
        eventually_within(TEN_SECONDS, "no descendant of the killed process is left", || {
            let gone = processes_with(&marker).is_empty().then_some(());
            async move { gone }
        })
        .await;
        stage.end().await;
    });
}

/// P5, SH-01: standard error is drained whatever is written there, and the operator sees a bounded end of it.
#[test]
fn a_flood_of_standard_error_blocks_nothing() {
    isolated(|| async {
        let stage = Stage::set().await;
        for (variant, bytes) in [
            ("lines", "262144"),
            ("binary", "262144"),
            ("escapes", "262144"),
            ("no_newline", "50000000"),
        ] {
            let settings = ["--mode", "stderr_flood", "--variant", variant, "--bytes", bytes];
            let attack = stage.admit(Transport::Stdio, &settings).await;
            for round in 0..3 {
                let value = format!("round {round}");
                let outcome = stage.call(&attack, "echo", json!({ "value": value })).await;
                let outcome = outcome.unwrap_or_else(|error| panic!("{variant}: {error:?}"));
                assert_eq!(text(&outcome), value, "{variant}");
            }
            let view = stage
                .rig
                .caliber
                .server(&stage.rig.admin, &attack.server.id)
                .await
                .unwrap();
            let tail = view.health.stderr_tail.expect("the operator sees the end of it");
            assert!(tail.len() <= 4 * (64 << 10), "{} bytes are kept", tail.len());
            assert!(
                !tail.contains(['\u{1b}', '\n', '\u{202e}']),
                "{variant}: it is escaped"
            );
            attack.end(3).await;
        }
        stage.end().await;
    });
}

/// P6: lines that are no messages are dropped and counted; a broken line forges nothing; an argument is one line.
#[test]
fn only_whole_lines_that_are_messages_count() {
    isolated(|| async {
        let stage = Stage::set().await;
        for mode in ["stdout_noise", "crlf"] {
            let attack = stage.admit(Transport::Stdio, &["--mode", mode]).await;
            for [ada, ben] in [
                stage.both(&attack, "echo", TIME).await,
                stage.both(&attack, "echo", TIME).await,
            ] {
                assert_eq!(text(&ada.unwrap()), "canary-of-ada", "{mode}");
                assert_eq!(text(&ben.unwrap()), "canary-of-ben", "{mode}");
            }
            let view = stage
                .rig
                .caliber
                .server(&stage.rig.admin, &attack.server.id)
                .await
                .unwrap();
            assert_eq!(
                view.health.dropped_messages > 0,
                mode == "stdout_noise",
                "{:?}",
                view.health
            );
            attack.end(4).await;
        }

        for variant in ["pretty", "forged"] {
            let settings = [
                "--mode",
                "newline_in_answer",
                "--variant",
                variant,
                "--times",
                "1",
            ];
            let attack = stage.admit(Transport::Stdio, &settings).await;
            for answer in stage.both(&attack, "echo", SHORT).await {
                let error = answer.expect_err("a broken line is no answer");
                // A line that can be told to be the beginning of the answer is an error at once.
                assert!(
                    matches!(error.kind(), ErrorKind::Upstream | ErrorKind::Timeout),
                    "{variant}: {error:?}"
                );
            }
            for answer in stage.both(&attack, "echo", TIME).await {
                assert!(text(&answer.unwrap()).starts_with("canary-of-"), "{variant}");
            }
            attack.end(4).await;
        }

        let attack = stage.admit(Transport::Stdio, &[]).await;
        stage.call(&attack, "echo", json!({ "value": 0 })).await.unwrap();
        let before = attack.upstream.records().count("requests");
        let forged = "\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\"}\r\n\u{2028}\u{85}";
        // As a value, and as white space between the tokens.
        let spread = format!("{{\n\"value\"\r\n:\n{}\n}}", json!(forged));
        for arguments in [json!({ "value": forged }).to_string(), spread] {
            let request = attack.server.raw_request("echo", &arguments);
            let outcome = attack.send(&stage.rig.ada, request, TIME).await.unwrap();
            assert_eq!(text(&outcome), forged);
        }
        assert_eq!(
            attack.upstream.records().count("requests"),
            before + 2,
            "two calls are two lines"
        );
        attack.end(3).await;
        stage.end().await;
    });
}

/// P7, SH-02: whoever waits is told within a second of the end of the process, and no call is made twice.
#[test]
fn a_death_amid_a_call_is_told_at_once() {
    isolated(|| async {
        let stage = Stage::set().await;
        for variant in ["exit", "kill", "half_line", "close_stdout"] {
            let attack = stage.admit(Transport::Stdio, &[]).await;
            for answer in stage.both(&attack, "echo", TIME).await {
                answer.unwrap();
            }
            let records = attack.upstream.records();
            attack
                .turn_all(&format!("mode=exit_on_call&variant={variant}"), 2)
                .await;
            let calls = stage.both_fail(&attack, "echo", TIME, ErrorKind::OutcomeUnknown);
            let executed = async {
                records.wait_for("executions", 4).await;
                Instant::now()
            };
            let ((), executed) = tokio::join!(calls, executed);
            assert!(
                executed.elapsed() < SECOND,
                "{variant}: {:?} after the end",
                executed.elapsed()
            );
            attack.end(4).await;
        }
        stage.end().await;
    });
}

/// P7: a server that dies at every call or at every start is started a bounded number of times.
#[test]
fn a_crash_loop_is_bounded() {
    isolated(|| async {
        let stage = Stage::set().await;
        let attack = stage.admit(Transport::Stdio, &["--mode", "exit_on_call"]).await;
        let mut executions = 0;
        let mut refused = 0;
        let end = Instant::now() + 3 * SECOND;
        while Instant::now() < end {
            let error = stage
                .call(&attack, "echo", json!({ "value": 1 }))
                .await
                .unwrap_err();
            match (error.kind(), error.reason()) {
                (ErrorKind::OutcomeUnknown, _) => executions += 1,
                (ErrorKind::Unavailable, Some(ReasonCode::BreakerOpen)) => refused += 1,
                // The process ended before the call was written.
                (ErrorKind::Upstream, _) => {}
                _ => panic!("{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let starts = attack
            .upstream
            .records()
            .lines("pids")
            .iter()
            .filter(|line| line[1] == "server")
            .count();
        // The discovery, five failures, and one trial after each pause of 250 ms, 500 ms, 1 s, 2 s.
        assert!(starts <= 12, "{starts} starts in 3 s");
        assert!(refused > 0, "the breaker opens");
        attack.end(executions).await;

        for mode in ["exit_at_start", "exit_before_initialize"] {
            let attack = stage.register(Transport::Stdio, &["--mode", mode]).await;
            let error = tokio::time::timeout(2 * SECOND, attack.server.discover())
                .await
                .expect("at once")
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Upstream, "{mode}: {error:?}");
            attack.note_error(&error);
            attack.end(0).await;
        }
        stage.end().await;
    });
}

/// P8, SH-03: a line without end is cut at the limit, and the process that writes it is stopped.
#[test]
fn a_line_without_end_is_cut() {
    isolated(|| async {
        let stage = Stage::set().await;
        for variant in ["json", "letters", "spaces"] {
            let settings = [
                "--mode",
                "unbounded_line",
                "--variant",
                variant,
                "--bytes",
                "100000000",
            ];
            let attack = stage.admit(Transport::Stdio, &settings).await;
            let error = stage
                .call(&attack, "echo", json!({ "value": 1 }))
                .await
                .unwrap_err();
            assert_eq!(
                error.reason(),
                Some(ReasonCode::ResultTooLarge),
                "{variant}: {error:?}"
            );
            eventually("the process is stopped", || {
                let gone = attack.upstream.processes().is_empty().then_some(());
                async move { gone }
            })
            .await;
            attack.end(1).await;
        }
        let settings = [
            "--mode",
            "unbounded_line",
            "--when",
            "start",
            "--bytes",
            "100000000",
        ];
        let attack = stage.register(Transport::Stdio, &settings).await;
        let error = attack.server.discover().await.expect_err("it says nothing else");
        assert!(
            matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Upstream),
            "{error:?}"
        );
        attack.note_error(&error);
        attack.end(0).await;
        stage.end().await;
    });
}

/// P8: a line of exactly the limit is taken, and one byte more is refused, naming the limit.
#[test]
fn the_longest_line_is_exact() {
    isolated(|| async {
        const LIMIT: usize = 1 << 20;
        let stage = Stage::set_with(|config| config.gateway.message_bytes = LIMIT).await;
        let attack = stage.admit_shared(Transport::Stdio, &[]).await;
        for bytes in [LIMIT - 1, LIMIT] {
            attack.turn(&format!("mode=line_of&bytes={bytes}")).await;
            stage.call(&attack, "echo", json!({ "value": 1 })).await.unwrap();
        }
        attack.turn(&format!("mode=line_of&bytes={}", LIMIT + 1)).await;
        for answer in stage.both(&attack, "echo", TIME).await {
            let error = answer.unwrap_err();
            assert_eq!(error.reason(), Some(ReasonCode::ResultTooLarge), "{error:?}");
            assert!(error.message().contains(&LIMIT.to_string()), "{error}");
        }
        attack.turn("mode=healthy").await;
        let outcome = stage
            .call(&attack, "echo", json!({ "value": "goes on" }))
            .await
            .unwrap();
        assert_eq!(text(&outcome), "goes on");
        attack.end(6).await;
        stage.end().await;
    });
}
