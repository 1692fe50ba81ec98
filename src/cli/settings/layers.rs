//! The three sources as layers: the file, the variables of the environment, the flags.

use std::collections::BTreeMap;
use std::path::Path;

use caliber::core::text::escaped;
use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::keys::{FOREIGN_VARIABLES, KEYS};
use super::{Loaded, Problem, SETTINGS_FILE, Sources, problem};

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

/// All sources, one over the other: later wins. What cannot be used of them goes to the problems of `loaded`.
pub(super) fn layered(sources: &Sources, loaded: &mut Loaded) -> Figment {
    let mut figment = read_file(sources.file.as_deref(), &mut loaded.problems);
    for layer in environment_layers(&sources.environment, loaded) {
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
            let text = "there is no such setting; `caliber config show` lists all";
            loaded.problems.push(problem(key, flag, text));
        }
    }
    figment
}

fn read_file(named: Option<&Path>, problems: &mut Vec<Problem>) -> Figment {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    let name = escaped(&path.to_string_lossy(), 200);
    let mut refuse = |text: String| problems.push(problem(SETTINGS_FILE, &name, text));
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
                // Empty, this list of the reference restricts nothing, which is the default here too.
                let nothing = name == "CALIBER_REGISTERED_TOOL_MODULE_ALLOWLIST"
                    && environment
                        .get(&name)
                        .is_some_and(|value| value.trim().is_empty());
                if let Some(value) = environment.get(&name).filter(|_| !nothing) {
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
