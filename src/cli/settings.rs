//! The settings of the command: one TOML file, then the environment, then flags; later wins.
//!
//! Everything that is wrong is found at once, each problem with where its value comes from.

mod keys;
mod layers;
mod sandbox;
mod setting;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use caliber::Config;
use caliber::core::secret::SecretText;
use caliber::core::text::{escaped, shown};
use caliber::http::{Authentication, HttpSettings, TrustedIdentity};
use figment::value::{Dict, Value};
use figment::{Figment, Provider as _};
use serde::Serialize;

use super::log;

pub(crate) use keys::KEYS;
pub(crate) use sandbox::{NamespacesSection, SandboxBackend, SandboxSection, named, service_token};

/// Everything that can be set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The installation.
    pub(crate) config: Config,
    /// The keys of stored secrets; beside the database when nothing is said.
    pub(crate) key_file: Option<PathBuf>,
    /// Where code tools run, and how.
    pub(crate) sandbox: SandboxSection,
    /// Whether stdio servers are started in namespaces, and what each gets.
    pub(crate) namespaces: NamespacesSection,
    /// The HTTP API.
    pub(crate) http: HttpSettings,
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// What is logged.
    pub(crate) log_filter: String,
    /// Whether as JSON.
    pub(crate) log_json: bool,
    /// The longest line of the log, in bytes.
    pub(crate) log_line_bytes: usize,
    open_on_loopback: bool,
    trusted_header: Option<String>,
    trusted_networks: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config: Config::default(),
            key_file: None,
            sandbox: SandboxSection::default(),
            namespaces: NamespacesSection::default(),
            http: HttpSettings::default(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8640)),
            log_filter: log::DEFAULT_FILTER.to_owned(),
            log_json: false,
            log_line_bytes: log::DEFAULT_LINE_BYTES,
            open_on_loopback: false,
            trusted_header: None,
            trusted_networks: Vec::new(),
        }
    }
}

impl Settings {
    /// The file with the keys of stored secrets.
    pub(crate) fn key_path(&self) -> PathBuf {
        self.key_file.clone().unwrap_or_else(|| {
            let mut path = self.config.store.path.clone().into_os_string();
            path.push(".key");
            path.into()
        })
    }
}

/// What the settings are read from.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The file that was named; `caliber.toml` in the working directory, if there is one, when none was.
    pub(crate) file: Option<PathBuf>,
    /// The environment.
    pub(crate) environment: BTreeMap<String, String>,
    /// Flags: how each is written, the key, the value. The last of a key wins.
    pub(crate) flags: Vec<(String, String, String)>,
}

/// One thing that is wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// The key, or the variable.
    pub(crate) key: String,
    /// Where the value comes from.
    pub(crate) source: String,
    /// What is wrong and what would be right.
    pub(crate) problem: String,
}

/// The key of a problem with the settings file as a whole.
pub(crate) const SETTINGS_FILE: &str = "the settings file";

impl Problem {
    /// Whether it is about a setting, and not about the file as a whole.
    pub(crate) fn is_about_a_key(&self) -> bool {
        self.key != SETTINGS_FILE
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({}): {}", self.key, self.source, self.problem)
    }
}

/// The settings with where each comes from and everything that is wrong.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    /// Where the value of a key comes from; a key that is not in here has its default.
    pub(crate) sources: BTreeMap<&'static str, String>,
    /// What keeps the settings from being used.
    pub(crate) problems: Vec<Problem>,
    /// What has no effect and may be a mistake.
    pub(crate) warnings: Vec<Problem>,
}

/// Reads all sources.
pub(crate) fn load(sources: &Sources) -> Loaded {
    let mut loaded = Loaded {
        settings: Settings::default(),
        sources: BTreeMap::new(),
        problems: Vec::new(),
        warnings: Vec::new(),
    };
    let figment = layers::layered(sources, &mut loaded);
    apply(&figment, &mut loaded);
    finish(&mut loaded);
    let variables = sources.environment.iter();
    // Only what may be referred to is kept in memory any longer.
    loaded.settings.config.variables = variables
        .filter(|(name, _)| {
            loaded
                .settings
                .config
                .policy
                .secrets
                .environment
                .iter()
                .any(|pattern| pattern.matches(name))
        })
        .map(|(name, value)| (name.clone(), SecretText::new(value.as_str())))
        .collect();
    loaded
}

fn problem(key: &str, source: &str, text: impl Into<String>) -> Problem {
    Problem {
        key: escaped(key, 120),
        source: source.to_owned(),
        problem: text.into(),
    }
}

/// Puts every value where it belongs; unknown keys and bad values become problems.
fn apply(figment: &Figment, loaded: &mut Loaded) {
    let merged = match figment.data() {
        Ok(merged) => merged.into_values().fold(Dict::new(), |mut all, dict| {
            all.extend(dict);
            all
        }),
        Err(error) => {
            loaded.problems.push(problem(
                "settings",
                "all sources",
                escaped(&error.to_string(), 500),
            ));
            return;
        }
    };
    let name = |value: &Value| {
        // The name of a table is that of whoever touched it first; a value has its own.
        figment
            .get_metadata(value.tag())
            .map_or_else(|| "unknown".to_owned(), |metadata| metadata.name.to_string())
    };
    let root = Value::from(merged);
    for key in KEYS {
        let Some(value) = root.find_ref(key.path) else {
            continue;
        };
        loaded.sources.insert(key.path, name(value));
        if let Err(problems) = (key.place)(&mut loaded.settings).read(value) {
            let source = name(value);
            loaded
                .problems
                .extend(problems.into_iter().map(|text| problem(key.path, &source, text)));
        }
    }
    let mut unknown = Vec::new();
    unknown_keys(&root, "", &mut unknown);
    for (path, value) in unknown {
        let text = match nearest(&path) {
            Some(key) => format!("there is no such setting; did you mean {key}?"),
            None => "there is no such setting; `caliber config show` lists all".to_owned(),
        };
        loaded.problems.push(problem(&path, &name(value), text));
    }
}

fn unknown_keys<'a>(value: &'a Value, path: &str, unknown: &mut Vec<(String, &'a Value)>) {
    if KEYS.iter().any(|key| key.path == path) {
        return;
    }
    let is_table = path.is_empty()
        || KEYS.iter().any(|key| {
            key.path
                .strip_prefix(path)
                .is_some_and(|rest| rest.starts_with('.'))
        });
    match value {
        Value::Dict(_, members) if is_table => {
            for (name, member) in members {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                unknown_keys(member, &path, unknown);
            }
        }
        value => unknown.push((path.to_owned(), value)),
    }
}

/// A key that ends in the same word: the table is what people forget.
fn nearest(path: &str) -> Option<&'static str> {
    let word = path.rsplit('.').next()?;
    let mut found = KEYS
        .iter()
        .map(|key| key.path)
        .filter(|key| key.rsplit('.').next() == Some(word));
    found.next().filter(|_| found.next().is_none())
}

/// What several settings have to say together.
fn finish(loaded: &mut Loaded) {
    let settings = &mut loaded.settings;
    if settings.open_on_loopback {
        settings.http.authentication = Authentication::OpenOnLoopback;
    }
    let mut found = Vec::new();
    let mut refuse = |key: &str, text: String| found.push((key.to_owned(), text));
    match (&settings.trusted_header, settings.trusted_networks.is_empty()) {
        (None, true) => {}
        (None, false) => refuse(
            "http.trusted_identity.networks",
            "name the header too: http.trusted_identity.header".to_owned(),
        ),
        (Some(header), _) => match header.parse() {
            Err(_) => refuse(
                "http.trusted_identity.header",
                format!("{} is no name of a header", shown(header)),
            ),
            Ok(header) => {
                let mut networks = Vec::new();
                for network in &settings.trusted_networks {
                    match network.parse() {
                        Ok(network) => networks.push(network),
                        Err(_) => refuse(
                            "http.trusted_identity.networks",
                            format!("{} is no network; write it as 10.0.0.0/8", shown(network)),
                        ),
                    }
                }
                settings.http.trusted_identity = Some(TrustedIdentity { header, networks });
            }
        },
    }
    if let Err(error) = settings.config.policy.validate() {
        for field in error.fields() {
            let key = format!("policy.{}", field.field);
            refuse(&key, field.problem.clone());
        }
    }
    if let Err(error) = settings.http.validate() {
        match error {
            caliber::http::Error::Setting { setting, problem } => refuse(&format!("http.{setting}"), problem),
            other => refuse("http", other.to_string()),
        }
    }
    if tracing_subscriber::EnvFilter::try_new(&settings.log_filter).is_err() {
        refuse(
            "log.filter",
            "it is no filter; write it as `info` or `caliber_gateway=debug,warn`".to_owned(),
        );
    }
    if settings.log_line_bytes < 256 {
        refuse("log.line_bytes", "give 256 or more".to_owned());
    }
    for (key, text) in found {
        let source = loaded
            .sources
            .get(key.as_str())
            .map_or("default", String::as_str)
            .to_owned();
        loaded.problems.push(problem(&key, &source, text));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn sources(
        file: Option<&str>,
        environment: &[(&str, &str)],
        flags: &[(&str, &str)],
    ) -> (Sources, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.toml");
        std::fs::write(&path, file.unwrap_or_default()).unwrap();
        let sources = Sources {
            file: Some(path),
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            flags: flags
                .iter()
                .map(|(key, value)| (format!("--set {key}"), (*key).to_owned(), (*value).to_owned()))
                .collect(),
        };
        (sources, folder)
    }

    fn loaded(file: Option<&str>, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Loaded {
        let (sources, _folder) = sources(file, environment, flags);
        load(&sources)
    }

    #[test]
    fn later_sources_win_key_by_key() {
        let file = "database = 'file.db'\n[http]\nlisten = '127.0.0.1:1'\nbody_bytes = 1\ngrace = '1s'\n";
        let loaded = loaded(
            Some(file),
            &[
                ("CALIBER_HTTP_LISTEN", "127.0.0.1:2"),
                ("CALIBER_HTTP_BODY_BYTES", "2"),
            ],
            &[("http.body_bytes", "3")],
        );
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        let settings = &loaded.settings;
        assert_eq!(settings.config.store.path, Path::new("file.db"));
        assert_eq!(settings.http.grace.as_secs(), 1);
        assert_eq!(settings.listen.port(), 2);
        assert_eq!(settings.http.body_bytes, 3);
        let source = |key: &str| loaded.sources[key].as_str();
        assert!(
            source("http.grace").ends_with("settings.toml"),
            "{}",
            source("http.grace")
        );
        assert_eq!(source("http.listen"), "variable CALIBER_HTTP_LISTEN");
        assert_eq!(source("http.body_bytes"), "--set http.body_bytes");
    }

    #[test]
    fn every_problem_is_told_with_its_source() {
        let file =
            "databas = 'x'\nlisten = 1\n[http]\nbody_bytes = 'many'\n[policy]\nlaunch = ['./x', 'bin/y']\n";
        let loaded = loaded(
            Some(file),
            &[
                ("CALIBER_CALLS_TIMEOUT", "soon"),
                ("CALIBER_MCP_ALLOW_INSECURE_HTTP", "perhaps"),
                ("CALIBER_TYPO", "1"),
            ],
            &[("log.filter", "=,=")],
        );
        let told: Vec<_> = loaded.problems.iter().map(ToString::to_string).collect();
        for wanted in [
            "databas (",
            "listen (",
            "did you mean http.listen",
            "http.body_bytes (",
            "`./x`",
            "`bin/y`",
            "calls.timeout (variable CALIBER_CALLS_TIMEOUT): `soon`",
            "policy.allow_plain_http (variable CALIBER_MCP_ALLOW_INSECURE_HTTP)",
            "log.filter (--set log.filter)",
        ] {
            assert!(
                told.iter().any(|problem| problem.contains(wanted)),
                "{wanted} is not in {told:#?}"
            );
        }
        assert_eq!(loaded.warnings.len(), 1);
        assert_eq!(loaded.warnings[0].key, "CALIBER_TYPO");
    }

    #[test]
    fn the_variables_of_the_reference_mean_what_they_meant() {
        let loaded = loaded(
            None,
            &[
                ("CALIBER_MCP_STDIO_PYTHON_MODULE_ALLOWLIST", "caliber_db"),
                (
                    "CALIBER_MCP_STDIO_COMMAND_ALLOWLIST",
                    "${PYTHON}, /usr/bin/mcp-git --stdio",
                ),
                ("CALIBER_MCP_REMOTE_HOST_ALLOWLIST", "localhost,mcp.example.com"),
                ("CALIBER_MCP_STDIO_SAFE_PATH", "/bin"),
                ("CALIBER_MCP_ALLOW_INSECURE_HTTP", "true"),
                ("CALIBER_MCP_STDIO_ISOLATED_WORKDIR", "true"),
                (
                    "CALIBER_EGRESS_POLICY_BLOCKED_CATEGORIES",
                    "link_local,other_reserved",
                ),
            ],
            &[],
        );
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        let policy = &loaded.settings.config.policy;
        let launch: Vec<_> = policy.launch.iter().map(ToString::to_string).collect();
        assert_eq!(launch, ["${PYTHON} -m caliber_db *", "/usr/bin/mcp-git --stdio"]);
        assert_eq!(policy.remote_hosts.len(), 2);
        assert!(policy.allow_plain_http);
        assert_eq!(loaded.settings.config.gateway.endpoints.safe_path, "/bin");
        assert_eq!(policy.addresses.blocked.len(), 5);
        let own = loaded_with_both();
        assert_eq!(
            own.settings.config.policy.remote_hosts[0].to_string(),
            "own.example.com"
        );
    }

    fn loaded_with_both() -> Loaded {
        let variables = [
            ("CALIBER_MCP_REMOTE_HOST_ALLOWLIST", "theirs.example.com"),
            ("CALIBER_POLICY_REMOTE_HOSTS", "own.example.com"),
        ];
        loaded(None, &variables, &[])
    }

    #[test]
    fn only_variables_that_may_be_referred_to_are_kept() {
        let loaded = loaded(
            None,
            &[
                ("CALIBER_POLICY_SECRETS_ENVIRONMENT", "API_*"),
                ("API_KEY", "canary"),
                ("HOME", "/root"),
            ],
            &[],
        );
        assert_eq!(
            loaded.settings.config.variables.keys().collect::<Vec<_>>(),
            ["API_KEY"]
        );
        assert!(!format!("{:?}", loaded.settings).contains("canary"));
    }

    #[test]
    fn a_file_that_was_named_must_be_there_and_be_toml() {
        let absent = load(&Sources {
            file: Some("/nonexistent/caliber.toml".into()),
            ..Sources::default()
        });
        assert_eq!(absent.problems.len(), 1);
        let broken = loaded(Some("a = = 1"), &[], &[]);
        assert!(
            broken.problems[0].problem.contains("not valid TOML"),
            "{:?}",
            broken.problems
        );
    }

    #[test]
    fn an_identity_header_needs_its_networks_and_the_other_way_round() {
        for (header, networks, fine) in [
            ("x-forwarded-user", "10.0.0.0/8", true),
            ("x-forwarded-user", "", false),
            ("none", "10.0.0.0/8", false),
            ("not a header", "10.0.0.0/8", false),
            ("x-forwarded-user", "everywhere", false),
            ("x-forwarded-user", "0.0.0.0/0", false),
        ] {
            let loaded = loaded(
                None,
                &[],
                &[
                    ("http.trusted_identity.header", header),
                    ("http.trusted_identity.networks", networks),
                ],
            );
            assert_eq!(
                loaded.problems.is_empty(),
                fine,
                "{header} {networks}: {:?}",
                loaded.problems
            );
        }
    }
}
