//! The settings of the command: one TOML file, then the environment, then flags; later wins.
//!
//! Everything that is wrong is found at once, each problem with where its value comes from.

mod keys;
mod setting;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use caliber::Config;
use caliber::core::secret::SecretText;
use caliber::core::text::{escaped, shown};
use caliber::http::{Authentication, HttpSettings, TrustedIdentity};
use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::Serialize;

use keys::FOREIGN_VARIABLES;
pub(crate) use keys::KEYS;

/// Where the file is looked for when nobody names one.
const DEFAULT_FILE: &str = "caliber.toml";
/// The largest settings file, in bytes.
const FILE_BYTES: u64 = 1 << 20;
/// Variables that the command reads itself: they are no settings.
pub(crate) const OWN_VARIABLES: &[&str] = &[
    "CALIBER_CONFIG",
    "CALIBER_SERVER",
    "CALIBER_TOKEN",
    "CALIBER_TOKEN_FILE",
    "CALIBER_PROJECT",
];
/// The three lists of the reference that together say what may be launched.
const LAUNCH_VARIABLES: [&str; 3] = [
    "CALIBER_MCP_STDIO_COMMAND_ALLOWLIST",
    "CALIBER_MCP_STDIO_PYTHON_MODULE_ALLOWLIST",
    "CALIBER_MCP_STDIO_PYTHON_SCRIPT_ALLOWLIST",
];
const WORKDIR_VARIABLE: &str = "CALIBER_MCP_STDIO_ISOLATED_WORKDIR";
const EGRESS_VARIABLE: &str = "CALIBER_EGRESS_POLICY_ENABLED";

/// Everything that can be set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The installation.
    pub(crate) config: Config,
    /// The keys of stored secrets; beside the database when nothing is said.
    pub(crate) key_file: Option<PathBuf>,
    /// The HTTP API.
    pub(crate) http: HttpSettings,
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// What is logged.
    pub(crate) log_filter: String,
    /// Whether as JSON.
    pub(crate) log_json: bool,
    open_on_loopback: bool,
    trusted_header: Option<String>,
    trusted_networks: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config: Config::default(),
            key_file: None,
            http: HttpSettings::default(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8640)),
            log_filter: "info".to_owned(),
            log_json: false,
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
    let mut figment = read_file(sources.file.as_deref(), &mut loaded.problems);
    for layer in environment_layers(&sources.environment, &mut loaded) {
        figment = figment.merge(layer);
    }
    for (flag, key, value) in &sources.flags {
        if KEYS.iter().any(|known| known.path == key) {
            figment = figment.merge(Layer {
                name: flag.clone(),
                key: key.clone(),
                value: value.clone().into(),
            });
        } else {
            loaded.problems.push(problem(
                key,
                flag,
                "there is no such setting; `caliber config show` lists all",
            ));
        }
    }
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

fn read_file(named: Option<&Path>, problems: &mut Vec<Problem>) -> Figment {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    let name = escaped(&path.to_string_lossy(), 200);
    let mut refuse = |text: String| problems.push(problem("the settings file", &name, text));
    let text = match read_bounded(path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Figment::new();
        }
        Err(error) => {
            refuse(format!("it cannot be read: {error}"));
            return Figment::new();
        }
    };
    let figment = Figment::new().merge(File {
        name: name.clone(),
        toml: Toml::string(&text),
    });
    match figment.data() {
        Ok(_) => figment,
        Err(error) => {
            refuse(format!(
                "it is not valid TOML: {}",
                escaped(error.to_string().trim(), 500)
            ));
            Figment::new()
        }
    }
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(FILE_BYTES + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES {
        return Err(std::io::Error::other(format!(
            "it is larger than {FILE_BYTES} bytes"
        )));
    }
    Ok(text)
}

/// The file under the name by which its reader knows it.
struct File {
    name: String,
    toml: figment::providers::Data<Toml>,
}

impl Provider for File {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        self.toml.data()
    }
}

/// One value from a variable or a flag.
struct Layer {
    name: String,
    key: String,
    value: Value,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let mut value = self.value.clone();
        for part in self.key.rsplit('.') {
            value = Dict::from([(part.to_owned(), value)]).into();
        }
        Ok(Profile::Default.collect(value.into_dict().unwrap_or_default()))
    }
}

/// The variables that are settings, those of the reference before our own; what is left over is a warning.
fn environment_layers(environment: &BTreeMap<String, String>, loaded: &mut Loaded) -> Vec<Layer> {
    let mut layers = Vec::new();
    let mut known: Vec<String> = OWN_VARIABLES.iter().map(|name| (*name).to_owned()).collect();
    let mut layer = |name: &str, key: &str, value: Value| {
        layers.push(Layer {
            name: format!("variable {name}"),
            key: key.to_owned(),
            value,
        });
    };
    reference_variables(environment, loaded, &mut layer);
    known.extend(LAUNCH_VARIABLES.map(str::to_owned));
    known.extend([WORKDIR_VARIABLE, EGRESS_VARIABLE].map(str::to_owned));
    for own in [false, true] {
        for key in KEYS {
            let names: Vec<String> = if own {
                vec![key.variable()]
            } else {
                key.aliases.iter().map(|name| (*name).to_owned()).collect()
            };
            for name in names {
                if let Some(value) = environment.get(&name) {
                    layer(&name, key.path, value.clone().into());
                }
                known.push(name);
            }
        }
    }
    for name in environment
        .keys()
        .filter(|name| name.starts_with("CALIBER_") && !known.contains(name))
    {
        let foreign = FOREIGN_VARIABLES.iter().find(|(foreign, _)| foreign == name);
        let text = foreign.map_or("it is not known and has no effect", |(_, why)| why);
        loaded.warnings.push(problem(name, "environment", text));
    }
    layers
}

/// The variables of the reference that are no single setting of ours.
fn reference_variables(
    environment: &BTreeMap<String, String>,
    loaded: &mut Loaded,
    layer: &mut impl FnMut(&str, &str, Value),
) {
    let [commands, modules, scripts] = LAUNCH_VARIABLES.map(|name| environment.get(name));
    if commands.is_some() || modules.is_some() || scripts.is_some() {
        let names: Vec<_> = LAUNCH_VARIABLES
            .into_iter()
            .filter(|name| environment.contains_key(*name))
            .collect();
        let text = |list: Option<&String>| list.cloned().unwrap_or_default();
        // The reference allows its interpreter where nothing is said.
        let commands = commands.cloned().unwrap_or_else(|| "${PYTHON}".to_owned());
        match caliber::policy::settings::parse_launch_lists(&commands, &text(modules), &text(scripts)) {
            Ok(rules) => {
                let rules: Vec<_> = rules.iter().map(ToString::to_string).collect();
                layer(&names.join(", "), "policy.launch", rules.into());
            }
            Err(error) => loaded
                .problems
                .push(problem(&names.join(", "), "environment", error.message())),
        }
    }
    if environment
        .get(WORKDIR_VARIABLE)
        .is_some_and(|value| value != "true")
    {
        let text = "every stdio server has a private working directory here; remove it or say true";
        loaded
            .problems
            .push(problem(WORKDIR_VARIABLE, "environment", text));
    }
    match environment.get(EGRESS_VARIABLE).map(String::as_str) {
        None | Some("true") => {}
        Some("false") => layer(
            EGRESS_VARIABLE,
            "policy.addresses.blocked",
            Vec::<String>::new().into(),
        ),
        Some(_) => loaded
            .problems
            .push(problem(EGRESS_VARIABLE, "environment", "give true or false")),
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
