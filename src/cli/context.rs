//! What a command knows before it does anything: its flags, the environment, the settings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use caliber::core::secret::SecretText;
use caliber::core::text::escaped;

use super::Global;
use super::failure::{Exit, Failure, Outcome};
use super::output::Output;
use super::settings::{Loaded, Settings, Sources, load};

/// The largest token file, in bytes.
const TOKEN_BYTES: u64 = 4_096;

/// The flags and the environment of this run.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) global: Global,
    sources: Sources,
    malformed: Vec<String>,
}

impl Context {
    /// Takes over the flags and the environment. Variables that are no UTF-8 are nobody's setting.
    pub(crate) fn new(global: Global, variables: impl Iterator<Item = (OsString, OsString)>) -> Self {
        let environment: BTreeMap<String, String> = variables
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let mut flags = Vec::new();
        let mut malformed = Vec::new();
        for set in &global.set {
            match set.split_once('=') {
                Some((key, value)) => {
                    let key = key.trim();
                    flags.push((format!("flag --set {key}"), key.to_owned(), value.to_owned()));
                }
                None => malformed.push(set.clone()),
            }
        }
        if let Some(database) = &global.database {
            let path = database.to_string_lossy().into_owned();
            flags.push(("flag --database".to_owned(), "database".to_owned(), path));
        }
        let sources = Sources {
            file: global.config.clone(),
            environment,
            flags,
        };
        Self {
            global,
            sources,
            malformed,
        }
    }

    /// How to print.
    pub(crate) fn output(&self) -> Output {
        Output {
            json: self.global.json,
        }
    }

    /// A command for the next step, which works as it is printed: on the installation that this one works on.
    /// `words` are what stands behind `caliber` and its flags.
    pub(crate) fn command(&self, words: &str) -> String {
        let mut command = "caliber".to_owned();
        let mut add = |flag: &str, variable: &str, value: Option<&str>| {
            // What the environment says, it says to the next command too.
            let inherited = self.sources.environment.get(variable).map(String::as_str) == value;
            if let (Some(value), false) = (value, inherited) {
                let _ = write!(command, " {flag} {}", for_shell(value));
            }
        };
        let global = &self.global;
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
        add("--config", "CALIBER_CONFIG", path(&global.config).as_deref());
        add("--database", "", path(&global.database).as_deref());
        for set in &global.set {
            add("--set", "", Some(set));
        }
        add("--server", "CALIBER_SERVER", global.server.as_deref());
        add(
            "--token-file",
            "CALIBER_TOKEN_FILE",
            path(&global.token_file).as_deref(),
        );
        add("--project", "CALIBER_PROJECT", global.project.as_deref());
        if global.plain_http {
            command.push_str(" --plain-http");
        }
        format!("{command} {words}")
    }

    /// All settings with everything that is wrong with them; `flags` are those of one command.
    pub(crate) fn load(&self, flags: &[(&str, &str, String)]) -> Outcome<Loaded> {
        if let Some(set) = self.malformed.first() {
            let shown = caliber::core::text::shown(set);
            return Err(Failure::usage(format!(
                "--set {shown} names no value; write --set KEY=VALUE"
            )));
        }
        let own = flags
            .iter()
            .map(|(flag, key, value)| ((*flag).to_owned(), (*key).to_owned(), value.clone()));
        let sources = Sources {
            file: self.sources.file.clone(),
            environment: self.sources.environment.clone(),
            flags: self.sources.flags.iter().cloned().chain(own).collect(),
        };
        Ok(load(&sources))
    }

    /// The settings, or the first thing that is wrong with them.
    pub(crate) fn settings(&self, flags: &[(&str, &str, String)]) -> Outcome<Settings> {
        let loaded = self.load(flags)?;
        let Some(first) = loaded.problems.first() else {
            return Ok(loaded.settings);
        };
        let more = loaded.problems.len() - 1;
        let failure = Failure::usage(if first.is_about_a_key() {
            format!("the setting {first}")
        } else {
            first.to_string()
        });
        Err(failure.with_hint(match more {
            0 => "`caliber config check` explains the settings".to_owned(),
            more => format!("`caliber config check` explains this and {more} more"),
        }))
    }

    /// The token for a server, if there is one: from the file that was named, or from the environment.
    pub(crate) fn token(&self) -> Outcome<Option<SecretText>> {
        let text = match &self.global.token_file {
            Some(path) => Some(read_token(path)?),
            None => self.sources.environment.get("CALIBER_TOKEN").cloned(),
        };
        let Some(text) = text
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty())
        else {
            return Ok(None);
        };
        // Anything else could not stand in a header.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::usage("the token holds characters that no token has"));
        }
        Ok(Some(SecretText::new(text)))
    }
}

/// A word as a shell reads it back.
pub(crate) fn for_shell(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", escaped(word, 1_000).replace('\'', "'\\''"))
}

fn read_token(path: &Path) -> Outcome<String> {
    use std::io::Read as _;
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(TOKEN_BYTES + 1).read_to_string(&mut text));
    let shown = caliber::core::text::shown(&path.to_string_lossy());
    match read {
        Ok(length) if length as u64 > TOKEN_BYTES => Err(Failure::usage(format!(
            "the token file {shown} is larger than {TOKEN_BYTES} bytes"
        ))),
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::new(
            Exit::Usage,
            format!("the token file {shown} cannot be read: {error}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_names_the_installation_of_this_one() {
        let global = Global {
            config: Some("my settings.toml".into()),
            set: vec!["http.grace=5s".to_owned()],
            database: Some("it's.db".into()),
            server: None,
            token_file: None,
            plain_http: false,
            project: Some("alpha".to_owned()),
            json: false,
        };
        let variables = [("CALIBER_PROJECT".into(), "alpha".into())];
        let context = Context::new(global, variables.into_iter());
        assert_eq!(
            context.command("servers list"),
            r"caliber --config 'my settings.toml' --database 'it'\''s.db' --set http.grace=5s servers list"
        );
    }
}
