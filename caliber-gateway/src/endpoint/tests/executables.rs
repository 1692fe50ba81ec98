//! Finding executables.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::*;

/// A folder with an executable `tool`, a file `text` that may not be run, and a directory `folder`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("tool"), 0o755);
    write(&folder.path().join("text"), 0o644);
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    folder
}

fn write(path: &Path, mode: u32) {
    std::fs::write(path, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn settings(folder: &Path) -> EndpointSettings {
    EndpointSettings {
        safe_path: format!("relative:{}", folder.display()),
        cache_time: Duration::ZERO,
        ..EndpointSettings::default()
    }
}

async fn facts(settings: &EndpointSettings, stdio: &StdioEndpoint) -> (Option<String>, bool, Option<String>) {
    let endpoints = Endpoints::new(settings.clone());
    match endpoints
        .inspect(&definition(Endpoint::Stdio(stdio.clone())))
        .await
    {
        EndpointFacts::Stdio {
            executable,
            is_python,
            script,
        } => (executable, is_python, script),
        other => panic!("{other:?}"),
    }
}

/// The real path, as text.
fn real(path: impl AsRef<Path>) -> Option<String> {
    Some(path.as_ref().canonicalize().unwrap().to_str().unwrap().to_owned())
}

#[tokio::test]
async fn commands_are_found_on_the_safe_path_and_nowhere_else() {
    let folder = folder();
    let settings = settings(folder.path());
    symlink(folder.path().join("tool"), folder.path().join("other-name")).unwrap();
    let absolute = folder.path().join("tool").to_str().unwrap().to_owned();
    for command in ["tool", "other-name", &absolute] {
        let (executable, is_python, script) = facts(&settings, &stdio(command, &[])).await;
        assert_eq!(executable, real(&absolute), "{command}: told by its real path");
        assert!(!is_python && script.is_none());
    }
    // `sh` is on the path of this process and of every other one.
    for command in [
        "sh",
        "text",
        "folder",
        "absent",
        "",
        ".",
        "./tool",
        "folder/../tool",
        "/absent",
        "${PYTHON}",
    ] {
        let endpoint = stdio(command, &[]);
        assert_eq!(
            facts(&settings, &endpoint).await,
            (None, false, None),
            "{command}"
        );
        let error = Endpoints::new(settings.clone())
            .launch_spec(&endpoint, BTreeMap::new())
            .await
            .unwrap_err();
        assert_eq!(
            error.reason(),
            Some(ReasonCode::ExecutableNotFound),
            "{command}: {error}"
        );
    }
}

#[tokio::test]
async fn the_interpreter_is_recognised_under_every_name() {
    let folder = folder();
    let python = folder.path().join("tool");
    let mut settings = settings(folder.path());
    settings.python = Some(python.clone());
    symlink(&python, folder.path().join("symbolic")).unwrap();
    std::fs::hard_link(&python, folder.path().join("hard")).unwrap();
    write(&folder.path().join("another"), 0o755);
    for (command, is_python) in [
        ("${PYTHON}", true),
        ("tool", true),
        ("symbolic", true),
        ("hard", true),
        ("another", false),
    ] {
        let found = facts(&settings, &stdio(command, &[])).await;
        assert_eq!(found.1, is_python, "{command}");
        assert!(found.0.is_some(), "{command}");
    }
    for unusable in ["relative/python", "/absent"] {
        settings.python = Some(unusable.into());
        assert_eq!(
            facts(&settings, &stdio("${PYTHON}", &[])).await.0,
            None,
            "{unusable}"
        );
    }
}

#[tokio::test]
async fn a_script_is_told_by_its_real_path() {
    let folder = folder();
    let script = folder.path().join("text");
    let link = folder.path().join("link");
    symlink(&script, &link).unwrap();
    let settings = settings(folder.path());
    let script_of = async |argument: &str| facts(&settings, &stdio("tool", &[argument, "x"])).await.2;
    assert_eq!(script_of(script.to_str().unwrap()).await, real(&script));
    assert_eq!(script_of(link.to_str().unwrap()).await, real(&script));
    let folder_path = folder.path().to_str().unwrap();
    for argument in ["-m", "-c", "text", "./text", "/absent", folder_path] {
        assert_eq!(script_of(argument).await, None, "{argument}");
    }
}

#[tokio::test]
async fn what_was_found_is_used_for_the_cache_time_only() {
    let folder = folder();
    let tool = folder.path().join("tool");
    for (cache_time, still_there) in [(Duration::from_secs(60), true), (Duration::ZERO, false)] {
        write(&tool, 0o755);
        let settings = EndpointSettings {
            cache_time,
            ..settings(folder.path())
        };
        let endpoints = Endpoints::new(settings);
        let definition = definition(Endpoint::Stdio(stdio("tool", &[])));
        let exists = async || match endpoints.inspect(&definition).await {
            EndpointFacts::Stdio { executable, .. } => executable.is_some(),
            other => panic!("{other:?}"),
        };
        assert!(exists().await);
        std::fs::remove_file(&tool).unwrap();
        assert_eq!(exists().await, still_there);
    }
}

fn environment(launch: &Launch) -> Vec<(&str, &str)> {
    launch
        .env
        .iter()
        .map(|(key, value)| (key.as_str(), value.expose()))
        .collect()
}

#[tokio::test]
async fn a_launch_holds_a_minimal_environment_and_the_servers_own() {
    let folder = folder();
    let settings = settings(folder.path());
    let env = BTreeMap::from([
        ("TOKEN".to_owned(), SecretText::new("canary-51")),
        ("PATH".to_owned(), SecretText::new("/elsewhere")),
        ("LANG".to_owned(), SecretText::new("ja_JP.UTF-8")),
    ]);
    let args = ["", "a b", "$(x)", "${PYTHON}"];
    let launch = Endpoints::new(settings.clone())
        .launch_spec(&stdio("tool", &args), env)
        .await
        .unwrap();
    assert_eq!(launch.executable, folder.path().join("tool"));
    assert_eq!(launch.args, args, "as they were written");
    assert_eq!(
        environment(&launch),
        [
            ("LANG", "ja_JP.UTF-8"),
            ("PATH", settings.safe_path.as_str()),
            ("TERM", "dumb"),
            ("TOKEN", "canary-51")
        ]
    );
    assert!(!format!("{launch:?}").contains("canary"));
}

#[tokio::test]
async fn the_interpreter_keeps_the_name_it_was_configured_under() {
    let folder = folder();
    // As in a virtual environment of Python, which is recognised by this very name.
    let link = folder.path().join("python");
    symlink(folder.path().join("tool"), &link).unwrap();
    let settings = EndpointSettings {
        python: Some(link.clone()),
        ..settings(folder.path())
    };
    let launch = Endpoints::new(settings)
        .launch_spec(&stdio("${PYTHON}", &["-m", "server"]), BTreeMap::new())
        .await
        .unwrap();
    assert_eq!(launch.executable, link);
    assert_eq!(launch.args, ["-m", "server"]);
}

#[tokio::test]
async fn an_isolation_prefix_comes_before_the_command() {
    let folder = folder();
    write(&folder.path().join("bwrap"), 0o755);
    let prefixed = |prefix: &[&str]| EndpointSettings {
        isolation_prefix: prefix.iter().map(|word| (*word).to_owned()).collect(),
        ..settings(folder.path())
    };
    let launch = Endpoints::new(prefixed(&[
        "bwrap",
        "--unshare-all",
        "--tmpfs",
        "/tmp",
        "--chdir",
        "/tmp",
    ]))
    .launch_spec(&stdio("tool", &["x"]), BTreeMap::new())
    .await
    .unwrap();
    assert_eq!(launch.executable, folder.path().join("bwrap"));
    let tool = folder.path().join("tool");
    assert_eq!(
        launch.args,
        [
            "--unshare-all",
            "--tmpfs",
            "/tmp",
            "--chdir",
            "/tmp",
            tool.to_str().unwrap(),
            "x"
        ]
    );
    let keys: Vec<_> = environment(&launch)
        .into_iter()
        .filter(|(_, value)| *value == "/tmp")
        .collect();
    assert_eq!(
        keys,
        [("HOME", "/tmp"), ("TMPDIR", "/tmp")],
        "the private directory is out of sight"
    );

    let launch = Endpoints::new(prefixed(&["bwrap"]))
        .launch_spec(&stdio("tool", &[]), BTreeMap::new())
        .await
        .unwrap();
    assert!(!launch.env.contains_key("HOME"), "left to the launcher");
    let error = Endpoints::new(prefixed(&["absent"]))
        .launch_spec(&stdio("tool", &[]), BTreeMap::new())
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::IsolationMisconfigured));
}
