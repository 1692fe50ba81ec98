//! Through the command: what it prints, what its server logs, what its files hold.

use super::mirror::Mirror;
use super::planted::{ARGUMENT, ECHO, ENV, HEADER, PASSWORD, Planted, STDERR, TOKEN, URL, VARIABLE};
use super::sightings::Sightings;
use crate::support::command::CommandRig;
use crate::support::oracles::holds;
use crate::support::{Transport, Upstream};
use caliber::core::server::Endpoint;

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_shows_in_what_the_command_prints() {
    let planted = Planted::new();
    let mut command = CommandRig::new(&planted.launch_rules());
    command.set("CANARY_VARIABLE", VARIABLE);
    let (stdio, http, mirror) = (
        Upstream::start(Transport::Stdio, &[]).await,
        Upstream::start(Transport::Http, &[]).await,
        Mirror::start().await,
    );
    let Endpoint::Stdio(child) = stdio.endpoint() else {
        panic!("it is a stdio server")
    };
    let (url, complaining) = (http.url("/mcp"), planted.path("complaining.py"));
    let pair = |name: &str, value: &str| format!("{name}={value}");
    let (secret, variable) = (pair("RIG_SECRET", ENV), "RIG_VARIABLE=env://CANARY_VARIABLE");
    let (complaint, header, echoed) = (
        pair("RIG_COMPLAINT", STDERR),
        pair("X-Extra", HEADER),
        pair("X-Extra", ECHO),
    );
    let userinfo = format!("http://user:{URL}@127.0.0.1:9/mcp");
    let argument = format!(r#"{{"value":"{ARGUMENT}"}}"#);
    let (wrong, unknown) = (
        format!(r#"{{"seconds":"{ARGUMENT}"}}"#),
        format!(r#"{{"values":true,"x":"{ARGUMENT}"}}"#),
    );
    let mirrored = mirror.urls();

    let mut lines: Vec<Vec<&str>> = vec![
        vec![
            "servers",
            "add",
            "child",
            "--env",
            &secret,
            "--env",
            variable,
            "--",
            "${PYTHON}",
        ],
        vec![
            "servers",
            "add",
            "complaining",
            "--env",
            &complaint,
            "--",
            "${PYTHON}",
            &complaining,
        ],
        vec![
            "servers", "add", "token", "--url", &url, "--header", &header, "--token", TOKEN,
        ],
        vec![
            "servers",
            "add",
            "password",
            "--url",
            &url,
            "--username",
            "user",
            "--password",
            PASSWORD,
        ],
        vec!["servers", "add", "userinfo", "--url", &userinfo],
        vec![
            "servers",
            "add",
            "child",
            "--env",
            &secret,
            "--",
            "${PYTHON}",
            "twice",
        ],
        vec!["servers", "add", "bad header", "--url", &url, "--header", &header],
    ];
    lines[0].extend(child.args.iter().map(String::as_str));
    let names: Vec<String> = (0..mirrored.len())
        .map(|number| format!("mirrored-{number}"))
        .collect();
    for (name, url) in names.iter().zip(&mirrored) {
        lines.push(vec![
            "servers", "add", name, "--url", url, "--header", &echoed, "--token", ECHO,
        ]);
    }
    for name in ["child", "complaining", "token", "password"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
    {
        lines.push(vec!["servers", "check", name]);
        lines.push(vec!["servers", "discover", name]);
    }
    for name in ["child", "token"] {
        for tool in ["echo", "sleep", "environment"] {
            lines.push(vec![
                "tools", "classify", name, tool, "--level", "read", "--allow", "--yes",
            ]);
        }
        lines.push(vec!["tools", "call", name, "sleep", &wrong]);
        lines.push(vec!["tools", "call", name, "no-such-tool", &argument]);
        lines.push(vec!["servers", "show", name]);
        lines.push(vec!["tools", "show", name, "echo"]);
    }
    lines.extend([
        vec!["servers", "list"],
        vec!["servers", "show", "complaining"],
        vec!["servers", "show", "password"],
        vec!["audit", "tail", "--lines", "1000"],
        vec!["config", "show"],
        vec!["config", "check"],
        vec!["servers", "remove", "password", "--yes"],
        vec!["audit", "tail", "--action", "delete_mcp_server"],
        vec!["db", "rotate-keys"],
        vec!["db", "backup", "backup.db"],
        vec!["audit", "tail", "--lines", "1000"],
    ]);

    let mut seen = Sightings::default();
    for (number, line) in lines.iter().enumerate() {
        // Every other line as a person would read it; what only the first run can do is not done twice.
        let said = if number % 2 == 0 {
            command.run(line).await
        } else {
            command.run_for_people(line).await
        };
        seen.said(&[line[0], line[1]], &said);
    }
    // What a tool answers belongs to its caller; that it was asked must not be in the files.
    for name in ["child", "token"] {
        assert_eq!(
            command
                .run(&["tools", "call", name, "echo", &argument])
                .await
                .code,
            0
        );
        assert_eq!(
            command
                .run(&["tools", "call", name, "environment", &unknown])
                .await
                .code,
            0
        );
    }
    assert!(
        holds(&http.records().bytes("http_log"), TOKEN.as_bytes()),
        "the token reached its server"
    );
    assert!(
        stdio.records().text("requests").contains(ARGUMENT),
        "the argument reached its server"
    );
    assert!(
        seen.has("cannot sign in with"),
        "the complaint is shown, without the secret"
    );

    let key = std::fs::read_to_string(command.folder().join("caliber.db.key"));
    let key = key.expect("the command made a key file");
    let key = key
        .lines()
        .find(|line| !line.starts_with('#') && !line.trim().is_empty())
        .expect("a key")
        .trim();
    for name in ["caliber.db", "caliber.db-wal", "backup.db"] {
        if let Ok(bytes) = std::fs::read(command.folder().join(name)) {
            seen.text(format!("the file {name}"), bytes);
        }
    }
    let mut canaries = planted.canaries();
    canaries.push(key);
    seen.assert_free_of(&canaries);
}
