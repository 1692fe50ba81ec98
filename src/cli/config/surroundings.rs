//! What the settings need of the machine: folders, the key file, executables. What the next command would fail on is a
//! problem; what some server would fail on is a warning.

use std::path::Path;

use caliber::core::text::shown;

use crate::cli::key_file;
use crate::cli::settings::{Loaded, Problem, SandboxBackend};

/// Adds what is missing on this machine to what is wrong with the settings. It makes nothing.
pub(super) fn check(loaded: &mut Loaded) {
    let settings = &loaded.settings;
    let config = &settings.config;
    let mut problems = Vec::new();
    let mut warnings = Vec::new();

    let database = &config.store.path;
    if let Err(what) = folder_of(database) {
        problems.push(("database", what));
    } else if database.is_dir() {
        problems.push(("database", format!("{} is a folder", name(database))));
    }
    let keys = settings.key_path();
    match keys.try_exists() {
        Ok(true) => {
            if let Err(failure) = key_file::read_or_make(&keys) {
                problems.push(("key_file", failure.message));
            }
        }
        // It is made on first use, where its folder is.
        _ if settings.key_file.is_some() => {
            problems.extend(folder_of(&keys).err().map(|what| ("key_file", what)))
        }
        _ => {}
    }
    if !config.launcher.directory.is_dir() {
        let what = format!("there is no folder {}", name(&config.launcher.directory));
        problems.push(("launcher.directory", what));
    }
    if let Some(python) = &config.gateway.endpoints.python
        && !Path::new(python).is_file()
    {
        warnings.push((
            "gateway.python",
            format!("there is no file {}", name(Path::new(python))),
        ));
    }
    for rule in &config.policy.launch {
        let executable = Path::new(&rule.executable);
        if executable.is_absolute() && !executable.is_file() {
            warnings.push(("policy.launch", format!("there is no file {}", name(executable))));
        }
    }
    for folder in &config.policy.secrets.files {
        if !Path::new(folder).is_dir() {
            warnings.push((
                "policy.secrets.files",
                format!("there is no folder {}", shown(folder)),
            ));
        }
    }

    match settings.sandbox.backend {
        SandboxBackend::Local => {
            let interpreter = &settings.sandbox.local.interpreter;
            if !interpreter.is_file() {
                warnings.push((
                    "sandbox.interpreter",
                    format!("there is no file {}; Python tools cannot run", name(interpreter)),
                ));
            }
        }
        SandboxBackend::Remote => {
            if let Err(failure) = settings.sandbox_choice() {
                let key = match (&settings.sandbox.remote.url, &settings.sandbox.remote.token_file) {
                    (None, _) => "sandbox.remote.url",
                    (_, None) => "sandbox.remote.token_file",
                    _ if failure.message.contains("URL") => "sandbox.remote.url",
                    _ if failure.message.starts_with("the certificates") => "sandbox.remote.ca_file",
                    _ => "sandbox.remote.token_file",
                };
                problems.push((key, failure.message));
            }
        }
        SandboxBackend::Off => {}
    }
    let profile = &settings.namespaces.profile;
    if settings.namespaces.enabled {
        for (key, paths) in [
            ("launcher.readable", &profile.readable),
            ("launcher.writable", &profile.writable),
        ] {
            let absent = paths.iter().filter(|path| !path.exists());
            warnings.extend(absent.map(|path| {
                let what = format!("there is no {}; no server can be started", name(path));
                (key, what)
            }));
        }
    }

    let told = |(key, problem): (&'static str, String)| Problem {
        key: key.to_owned(),
        source: loaded
            .sources
            .get(key)
            .map_or("default", String::as_str)
            .to_owned(),
        problem,
    };
    let problems: Vec<_> = problems.into_iter().map(told).collect();
    let warnings: Vec<_> = warnings.into_iter().map(told).collect();
    loaded.problems.extend(problems);
    loaded.warnings.extend(warnings);
}

/// Whether the folder is there that a file would be made in.
fn folder_of(file: &Path) -> Result<(), String> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => return Ok(()),
    };
    if folder.is_dir() {
        Ok(())
    } else {
        Err(format!("there is no folder {}; make it first", name(folder)))
    }
}

fn name(path: &Path) -> String {
    shown(&path.to_string_lossy())
}
