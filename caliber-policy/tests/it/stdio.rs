//! Servers that are child processes.

use std::sync::Arc;

use caliber_core::readiness::{Boundary, Control, EndpointFacts, ReadinessFacts};
use caliber_core::reason::ReasonCode;
use caliber_core::secret::ConfigValue;
use caliber_core::server::{Endpoint, RemoteEndpoint};
use caliber_policy::PolicySettings;
use caliber_policy::readiness::readiness;
use caliber_policy::settings::{ArgumentRule, Isolation, IsolationProfile, LaunchRule, SecretRules};

use crate::coverage::Example;
use crate::facts::{blockers, definition, stdio, warnings};

fn settings(rules: &[&str]) -> PolicySettings {
    PolicySettings {
        launch: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
        ..PolicySettings::default()
    }
}

fn isolated(line: &str, profile: IsolationProfile) -> PolicySettings {
    PolicySettings {
        isolation: Isolation {
            prefix: Isolation::parse_prefix(line).unwrap(),
            profile,
        },
        ..settings(&["/usr/bin/mcp-git"])
    }
}

const BUBBLEWRAP: &str = "/usr/bin/bwrap --unshare-all --die-with-parent --new-session --ro-bind / / --proc /proc \
                          --dev /dev --tmpfs /tmp --chdir /tmp";

/// The machine's word on [`stdio`].
fn machine(
    facts: ReadinessFacts,
    executable: Option<&str>,
    is_python: bool,
    script: Option<&str>,
) -> ReadinessFacts {
    ReadinessFacts {
        endpoint: EndpointFacts::Stdio {
            executable: executable.map(str::to_owned),
            is_python,
            script: script.map(str::to_owned),
        },
        ..facts
    }
}

pub(crate) fn examples() -> Vec<Example> {
    let allow = settings(&["/usr/bin/mcp-git --stdio"]);
    let good = stdio("/usr/bin/mcp-git", &["--stdio"]);
    let verdict = |settings: &PolicySettings, facts: &ReadinessFacts| readiness(settings, facts);
    let blocker = |code, with: &ReadinessFacts| Example {
        code,
        blocks: true,
        with: verdict(&allow, with),
        without: verdict(&allow, &good),
    };
    let mut env = stdio("/usr/bin/mcp-git", &["--stdio"]);
    if let Endpoint::Stdio(endpoint) = &mut Arc::make_mut(&mut env.definition).endpoint {
        let value = ConfigValue::from_input("env://CALIBER_KEY");
        endpoint.env.insert("TOKEN".into(), value);
    }
    let secrets = PolicySettings {
        environment: vec!["TOKEN".parse().unwrap()],
        secrets: SecretRules {
            environment: vec!["CALIBER_KEY".parse().unwrap()],
            files: Vec::new(),
        },
        ..allow.clone()
    };
    let closed = PolicySettings {
        secrets: SecretRules::default(),
        ..secrets.clone()
    };
    let plain = stdio("/usr/bin/mcp-git", &[]);
    let wrapped = |line, profile| verdict(&isolated(line, profile), &plain);
    vec![
        blocker(ReasonCode::EndpointMissing, &stdio(" ", &[])),
        blocker(ReasonCode::CommandNotAllowed, &stdio("/bin/sh", &["--stdio"])),
        blocker(
            ReasonCode::ArgumentsNotAllowed,
            &stdio("/usr/bin/mcp-git", &["--http"]),
        ),
        blocker(
            ReasonCode::ExecutableNotFound,
            &machine(good.clone(), None, false, None),
        ),
        Example {
            code: ReasonCode::EnvironmentNotAllowed,
            blocks: true,
            with: verdict(&allow, &env),
            without: verdict(&secrets, &env),
        },
        Example {
            code: ReasonCode::SecretNotAllowed,
            blocks: true,
            with: verdict(&closed, &env),
            without: verdict(&secrets, &env),
        },
        Example {
            code: ReasonCode::IsolationMisconfigured,
            blocks: true,
            with: wrapped("", IsolationProfile::Bubblewrap),
            without: wrapped(BUBBLEWRAP, IsolationProfile::Bubblewrap),
        },
        blocker(
            ReasonCode::PolicyError,
            &ReadinessFacts {
                endpoint: EndpointFacts::Remote { addresses: None },
                ..good.clone()
            },
        ),
        Example {
            code: ReasonCode::NotIsolated,
            blocks: false,
            with: verdict(&allow, &good),
            without: wrapped("/usr/bin/firejail", IsolationProfile::None),
        },
        Example {
            code: ReasonCode::WrapperUnverified,
            blocks: false,
            with: wrapped("/usr/bin/firejail", IsolationProfile::None),
            without: wrapped(BUBBLEWRAP, IsolationProfile::Bubblewrap),
        },
    ]
}

#[test]
fn each_reason_stands_where_it_belongs() {
    examples().iter().for_each(Example::check);
}

#[test]
fn nothing_runs_by_default() {
    for (command, args) in [
        ("sh", &["-c", "touch /tmp/pwn"][..]),
        ("/bin/sh", &["-c", "touch /tmp/pwn"]),
        ("npx", &["-y", "x"]),
        ("node", &["-e", "1"]),
        ("python3", &["-c", "1"]),
        ("${PYTHON}", &["-c", "1"]),
        ("docker", &["run", "x"]),
        ("uvx", &["x"]),
    ] {
        let verdict = readiness(&PolicySettings::default(), &stdio(command, args));
        assert_eq!(blockers(&verdict), [ReasonCode::CommandNotAllowed], "{command}");
    }
}

/// Each row: what the operator allows, what an admin registered, and what stands against it.
#[test]
fn executable_and_arguments_are_pinned_together() {
    const COMMAND: &[ReasonCode] = &[ReasonCode::CommandNotAllowed];
    const ARGUMENTS: &[ReasonCode] = &[ReasonCode::ArgumentsNotAllowed];
    const NOTHING: &[ReasonCode] = &[];
    for (rule, command, args, expected) in [
        (
            "/usr/bin/npx -y pinned@1.0.0",
            "/usr/bin/npx",
            &["-y", "pinned@1.0.0"][..],
            NOTHING,
        ),
        (
            "/usr/bin/npx -y pinned@1.0.0",
            "/usr/bin/npx",
            &["-y", "other@1.0.0"],
            ARGUMENTS,
        ),
        (
            "/usr/bin/npx -y pinned@1.0.0",
            "/usr/bin/npx",
            &["-y", "pinned@1.0.0", "more"],
            ARGUMENTS,
        ),
        ("/usr/bin/npx -y pinned@1.0.0", "/usr/bin/npx", &["-y"], ARGUMENTS),
        (
            "/usr/bin/npx -y pinned@1.0.0",
            "/usr/bin/npx",
            &["-y pinned@1.0.0"],
            ARGUMENTS,
        ),
        ("/usr/bin/npx -y pinned@1.0.0", "/usr/bin/npx", &[], ARGUMENTS),
        ("/usr/bin/npx", "/usr/bin/npx", &["-y", "x"], ARGUMENTS),
        ("/usr/bin/npx", "/usr/bin/npx", &[""], ARGUMENTS),
        (
            "/usr/bin/git-mcp --read-only *",
            "/usr/bin/git-mcp",
            &["--read-only"],
            NOTHING,
        ),
        (
            "/usr/bin/git-mcp --read-only *",
            "/usr/bin/git-mcp",
            &["--read-only", "/srv"],
            NOTHING,
        ),
        (
            "/usr/bin/git-mcp --read-only *",
            "/usr/bin/git-mcp",
            &["/srv", "--read-only"],
            ARGUMENTS,
        ),
        (
            "/usr/bin/git-mcp --read-only *",
            "/usr/bin/git-mcp",
            &["--read-only; sh"],
            ARGUMENTS,
        ),
        ("/usr/bin/git-mcp", "/usr/bin/git-mcp;sh", &[], COMMAND),
        ("/usr/bin/git-mcp", "/usr/bin/git-mcp $(sh)", &[], COMMAND),
        ("/usr/bin/git-mcp", "/usr/bin/git-mcp ", &[], COMMAND),
        ("/usr/bin/git-mcp", "/usr/bin/../bin/git-mcp", &[], COMMAND),
        ("/usr/bin/git-mcp", "usr/bin/git-mcp", &[], COMMAND),
        ("/usr/bin/git-mcp", "./git-mcp", &[], COMMAND),
        ("/usr/bin/git-mcp", "git-mcp", &[], COMMAND),
        ("git-mcp", "git-mcp", &[], NOTHING),
        ("git-mcp", "/tmp/git-mcp", &[], COMMAND),
        ("git-mcp", "GIT-MCP", &[], COMMAND),
    ] {
        let verdict = readiness(&settings(&[rule]), &stdio(command, args));
        assert_eq!(blockers(&verdict), expected, "{rule}: {command} {args:?}");
    }
}

#[test]
fn a_path_is_itself_and_the_name_that_is_found_there() {
    let rules = settings(&["/usr/lib/git/git-mcp"]);
    for (command, real, allowed) in [
        ("/usr/lib/git/git-mcp", "/usr/lib/git/git-mcp", true),
        ("git-mcp", "/usr/lib/git/git-mcp", true),
        // What it is called by decides what some programs do, and a link can be turned after it was checked.
        ("sh", "/usr/lib/git/git-mcp", false),
        ("/tmp/git-mcp", "/usr/lib/git/git-mcp", false),
        ("./git-mcp", "/usr/lib/git/git-mcp", false),
        ("git-mcp", "/tmp/git-mcp", false),
    ] {
        let facts = machine(stdio(command, &[]), Some(real), false, None);
        let verdict = readiness(&rules, &facts);
        assert_eq!(verdict.is_ready(), allowed, "{command} is {real}: {verdict:?}");
    }
}

#[test]
fn the_interpreter_runs_allowed_modules_and_scripts_only() {
    let rules = settings(&["${PYTHON} -m mcp_server_time *", "${PYTHON} /opt/server.py *"]);
    for (args, script, allowed) in [
        (&["-m", "mcp_server_time"][..], None, true),
        (&["-m", "mcp_server_time", "--local-timezone", "UTC"], None, true),
        (&["-m", "mcp_server_time.evil"], None, false),
        (&["-m", "pip"], None, false),
        (&["-mmcp_server_time"], None, false),
        (&["-c", "import os"], None, false),
        (&["-i", "-m", "mcp_server_time"], None, false),
        (&["-"], None, false),
        (&[], None, false),
        (&["/opt/server.py"], Some("/opt/server.py"), true),
        (&["/opt/server.py", "--any"], Some("/opt/server.py"), true),
        (&["/srv/link.py"], Some("/opt/server.py"), false),
        (&["/opt/server.py"], Some("/tmp/evil.py"), false),
        (&["/opt/server.py"], None, false),
        (&["server.py"], Some("/opt/server.py"), false),
    ] {
        let python = Some("/usr/bin/python3.13");
        let facts = machine(stdio("${PYTHON}", args), python, true, script);
        let verdict = readiness(&rules, &facts);
        let expected = if allowed {
            vec![]
        } else {
            vec![ReasonCode::ArgumentsNotAllowed]
        };
        assert_eq!(blockers(&verdict), expected, "{args:?}");
    }
}

#[test]
fn the_interpreter_is_the_interpreter_under_every_name() {
    let python = Some("/usr/bin/python3.13");
    let run = |rules: &PolicySettings, command: &str, args: &[&str]| {
        let facts = machine(stdio(command, args), python, true, None);
        blockers(&readiness(rules, &facts))
    };
    let by_sentinel = settings(&["${PYTHON} -m mcp_server_time *"]);
    let module = ["-m", "mcp_server_time"];
    assert_eq!(
        run(&by_sentinel, "/usr/bin/python3", &module),
        [ReasonCode::CommandNotAllowed],
        "the word stands for itself only"
    );
    let open = PolicySettings {
        launch: vec![LaunchRule {
            executable: "/usr/bin/python3.13".into(),
            arguments: ArgumentRule::Prefix(Vec::new()),
        }],
        ..PolicySettings::default()
    };
    for command in ["/usr/bin/python3.13", "python3.13"] {
        assert_eq!(
            run(&open, command, &["-c", "1"]),
            [ReasonCode::ArgumentsNotAllowed],
            "a prefix never opens the interpreter: {command}"
        );
    }
    let exact = settings(&["/usr/bin/python3.13 -I -m mcp_server_time"]);
    assert_eq!(run(&exact, "python3.13", &["-I", "-m", "mcp_server_time"]), []);
    assert_eq!(
        run(&exact, "python3.13", &module),
        [ReasonCode::ArgumentsNotAllowed]
    );
}

#[test]
fn a_rule_that_is_none_allows_nothing() {
    let rules = PolicySettings {
        launch: vec![
            LaunchRule {
                executable: "${PYTHON}".into(),
                arguments: ArgumentRule::Prefix(Vec::new()),
            },
            LaunchRule {
                executable: "bin/x".into(),
                arguments: ArgumentRule::Prefix(Vec::new()),
            },
        ],
        ..PolicySettings::default()
    };
    assert!(rules.validate().is_err());
    for command in ["${PYTHON}", "bin/x"] {
        let verdict = readiness(&rules, &stdio(command, &[]));
        assert_eq!(blockers(&verdict), [ReasonCode::CommandNotAllowed], "{command}");
    }
}

#[test]
fn an_executable_that_is_not_allowed_is_not_looked_for() {
    let facts = machine(stdio("/root/secret", &[]), None, false, None);
    let verdict = readiness(&settings(&["/usr/bin/mcp-git"]), &facts);
    assert_eq!(blockers(&verdict), [ReasonCode::CommandNotAllowed]);
}

#[test]
fn only_the_exact_bubblewrap_profile_is_recognised_and_it_is_no_production_boundary() {
    let plain = stdio("/usr/bin/mcp-git", &[]);
    let judge = |line: &str, profile| readiness(&isolated(line, profile), &plain);
    let verdict = judge(BUBBLEWRAP, IsolationProfile::Bubblewrap);
    assert_eq!(verdict.boundary, Boundary::Bubblewrap);
    assert!(verdict.is_ready() && !verdict.boundary.is_production_isolated());
    assert_eq!(warnings(&verdict), [ReasonCode::NotIsolated]);
    for control in [
        Control::VerifiedNamespaceProfile,
        Control::NetworkNamespace,
        Control::ReadOnlyHostRoot,
    ] {
        assert!(verdict.controls.contains(&control), "{control:?}");
    }
    for (line, profile) in [
        (format!("{BUBBLEWRAP} --share-net"), IsolationProfile::Bubblewrap),
        (
            BUBBLEWRAP.replace("--new-session ", ""),
            IsolationProfile::Bubblewrap,
        ),
        (
            BUBBLEWRAP.replace("--ro-bind", "--bind"),
            IsolationProfile::Bubblewrap,
        ),
        (BUBBLEWRAP.replace("bwrap", "env"), IsolationProfile::Bubblewrap),
        (BUBBLEWRAP.to_owned(), IsolationProfile::None),
    ] {
        let verdict = judge(&line, profile);
        assert_eq!(verdict.boundary, Boundary::ExternalWrapper, "{line}");
        assert!(!verdict.boundary.is_production_isolated());
        assert_eq!(warnings(&verdict), [ReasonCode::WrapperUnverified], "{line}");
        assert!(!verdict.controls.contains(&Control::NetworkNamespace), "{line}");
    }
}

#[test]
fn a_child_process_has_no_boundary_for_production() {
    let verdict = readiness(&settings(&["/usr/bin/mcp-git"]), &stdio("/usr/bin/mcp-git", &[]));
    assert_eq!(verdict.boundary, Boundary::LocalContainment);
    assert!(!verdict.boundary.is_production_isolated());
    assert_eq!(
        verdict.controls,
        [
            Control::NoShell,
            Control::SanitizedEnvironment,
            Control::CommandAllowlist,
            Control::PrivateWorkingDirectory
        ]
    );
}

#[test]
fn a_shared_folder_is_told() {
    let shared = PolicySettings {
        isolated_workdir: false,
        ..settings(&["/usr/bin/mcp-git"])
    };
    let verdict = readiness(&shared, &stdio("/usr/bin/mcp-git", &[]));
    assert!(!verdict.controls.contains(&Control::PrivateWorkingDirectory));
    assert_eq!(
        warnings(&verdict),
        [ReasonCode::NotIsolated, ReasonCode::NotIsolated]
    );
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let mut facts = machine(stdio("/usr/bin/mcp-git", &["--http"]), None, false, None);
    if let Endpoint::Stdio(endpoint) = &mut Arc::make_mut(&mut facts.definition).endpoint {
        let value = ConfigValue::from_input("file:///etc/shadow");
        endpoint.env.insert("LD_PRELOAD".into(), value);
    }
    let broken = PolicySettings {
        isolation: Isolation {
            prefix: vec!["bwrap".into()],
            profile: IsolationProfile::None,
        },
        ..settings(&["/usr/bin/mcp-git --stdio"])
    };
    let verdict = readiness(&broken, &facts);
    assert_eq!(
        blockers(&verdict),
        [
            ReasonCode::IsolationMisconfigured,
            ReasonCode::ArgumentsNotAllowed,
            ReasonCode::ExecutableNotFound,
            ReasonCode::EnvironmentNotAllowed,
            ReasonCode::SecretNotAllowed,
        ]
    );
    let shown = format!("{verdict:?}");
    assert!(
        !shown.contains("shadow"),
        "what a reference points at is told to nobody: {shown}"
    );
    assert!(shown.contains("env.LD_PRELOAD"), "{shown}");
}

#[test]
fn facts_about_another_transport_are_refused() {
    let facts = ReadinessFacts {
        definition: Arc::new(definition(Endpoint::Sse(RemoteEndpoint {
            url: "http://localhost/sse".into(),
            headers: Default::default(),
        }))),
        ..stdio("/usr/bin/mcp-git", &[])
    };
    let verdict = readiness(&settings(&["/usr/bin/mcp-git"]), &facts);
    assert_eq!(blockers(&verdict), [ReasonCode::PolicyError]);
    assert_eq!(verdict.boundary, Boundary::RemoteTransport);
}
