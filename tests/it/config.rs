//! The settings of the command, from all three sources.

use crate::support::command::CommandRig;

fn write(rig: &CommandRig, settings: &str) {
    std::fs::write(rig.folder().join("caliber.toml"), settings).expect("the settings can be written");
}

#[tokio::test]
async fn check_explains_every_problem_at_once() {
    let mut rig = CommandRig::new(&[]);
    write(
        &rig,
        "databas = 'x'\n[http]\nbody_bytes = 'many'\nprefix = 'no slash'\n[policy]\nlaunch = ['bin/x', '/usr/bin/y']\n\
         remote_hosts = ['*.example.com']\n[policy.secrets]\nfiles = ['relative']\n",
    );
    rig.set("CALIBER_CALLS_TIMEOUT", "soon");
    rig.set("CALIBER_MCP_ALLOW_INSECURE_HTTP", "perhaps");
    rig.set("CALIBER_MCP_MANAGED_SIDECAR_HOSTS", "mcp-db");
    rig.set("CALIBER_TYPO", "1");
    let said = rig
        .run(&["config", "check", "--set", "http.listen=nowhere"])
        .await;
    assert_eq!(said.code, 2, "{}", said.stderr);
    let document: serde_json::Value = serde_json::from_str(&said.stdout).expect("the problems are JSON");
    let told: Vec<_> = document["problems"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|problem| {
            format!(
                "{} | {} | {}",
                problem["key"], problem["source"], problem["problem"]
            )
        })
        .collect();
    for (key, source) in [
        ("databas", "caliber.toml"),
        ("http.body_bytes", "caliber.toml"),
        ("http.prefix", "caliber.toml"),
        ("policy.launch", "caliber.toml"),
        ("policy.remote_hosts", "caliber.toml"),
        ("policy.secrets.files", "caliber.toml"),
        ("calls.timeout", "variable CALIBER_CALLS_TIMEOUT"),
        (
            "policy.allow_plain_http",
            "variable CALIBER_MCP_ALLOW_INSECURE_HTTP",
        ),
        ("http.listen", "flag --set http.listen"),
    ] {
        let found = told
            .iter()
            .any(|problem| problem.starts_with(&format!("\"{key}\"")) && problem.contains(source));
        assert!(found, "{key} from {source} is not among {told:#?}");
    }
    let warned = document["warnings"].to_string();
    assert!(
        warned.contains("CALIBER_TYPO") && warned.contains("policy.addresses.sidecars"),
        "{warned}"
    );

    let people = rig.run_for_people(&["config", "check"]).await;
    assert!(
        people
            .stdout
            .lines()
            .filter(|line| line.starts_with("problem: "))
            .count()
            >= 8,
        "{}",
        people.stdout
    );
    let refused = rig.run_for_people(&["servers", "list"]).await;
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("config check"), "{}", refused.stderr);
    assert!(
        !rig.folder().join("caliber.db").exists(),
        "the database was opened with settings that cannot be used"
    );
}

#[tokio::test]
async fn show_tells_where_each_value_comes_from() {
    let mut rig = CommandRig::new(&[]);
    write(&rig, "[http]\ngrace = '1s'\nbody_bytes = 1000\njson_depth = 10\n");
    rig.set("CALIBER_HTTP_BODY_BYTES", "2000");
    rig.set("CALIBER_HTTP_JSON_DEPTH", "20");
    let shown = rig
        .run(&["config", "show", "--set", "http.json_depth=30"])
        .await
        .json();
    let of = |key: &str| {
        let found = shown
            .as_array()
            .into_iter()
            .flatten()
            .find(|row| row["key"] == key)
            .expect("the key is there");
        (
            found["value"].clone(),
            found["source"].as_str().expect("a source").to_owned(),
        )
    };
    assert_eq!(of("http.grace").0, "1s");
    assert!(of("http.grace").1.ends_with("caliber.toml"));
    assert_eq!(
        of("http.body_bytes"),
        (2000.into(), "variable CALIBER_HTTP_BODY_BYTES".to_owned())
    );
    assert_eq!(
        of("http.json_depth"),
        (30.into(), "flag --set http.json_depth".to_owned())
    );
    assert_eq!(of("http.max_connections").1, "default");
}

#[tokio::test]
async fn a_file_that_is_not_there_or_not_toml_is_refused() {
    let rig = CommandRig::new(&[]);
    std::fs::remove_file(rig.folder().join("caliber.toml")).expect("the file is there");
    let absent = rig.run(&["servers", "list"]).await;
    assert_eq!(absent.code, 2, "{}", absent.stderr);
    write(&rig, "a = = b");
    let broken = rig.run(&["config", "check"]).await;
    assert_eq!(broken.code, 2);
    assert!(broken.stdout.contains("not valid TOML"), "{}", broken.stdout);
}

#[tokio::test]
async fn check_says_what_of_the_machine_is_missing() {
    let rig = CommandRig::new(&[]);
    let fine = rig.run(&["config", "check"]).await;
    assert_eq!(fine.code, 0, "{}", fine.stdout);
    assert!(
        !rig.folder().join("caliber.db.key").exists(),
        "a check makes nothing"
    );
    std::fs::write(rig.folder().join("bad.key"), "no key").expect("the file can be written");
    let key = format!("key_file={}", rig.folder().join("bad.key").display());
    for (key, settings) in [
        ("database", &["--database", "/nonexistent/caliber.db"][..]),
        ("key_file", &["--set", &key]),
        ("key_file", &["--set", "key_file=/nonexistent/key"]),
        (
            "launcher.directory",
            &["--set", "launcher.directory=/nonexistent"],
        ),
    ] {
        let said = rig.run(&[&["config", "check"], settings].concat()).await;
        assert_eq!(said.code, 2, "{settings:?}: {}", said.stdout);
        let document: serde_json::Value = serde_json::from_str(&said.stdout).expect("the problems are JSON");
        assert_eq!(document["problems"][0]["key"], key, "{document}");
    }
    write(
        &rig,
        "[policy]\nlaunch = ['/nonexistent/server --x']\nsecrets.files = ['/nonexistent']\n",
    );
    let warned = rig.run_for_people(&["config", "check"]).await;
    assert_eq!(warned.code, 0, "{}", warned.stderr);
    assert_eq!(
        warned
            .stdout
            .lines()
            .filter(|line| line.starts_with("warning: "))
            .count(),
        2,
        "{}",
        warned.stdout
    );
}
