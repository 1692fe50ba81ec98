//! What the operator of an installation allows.

use std::fmt::Display;

use caliber_core::address::AddressRules;
use caliber_core::{Error, FieldProblem, Result};
use serde::{Deserialize, Serialize};

pub use code_tools::{CodeToolRules, ModulePattern};
pub use environment::is_refused_variable;
pub use host::RemoteHost;
pub use isolation::{Isolation, IsolationProfile};
pub(crate) use launch::Resolved;
pub use launch::{ArgumentRule, LaunchRule, PYTHON};
pub use list::{
    parse_blocked_categories, parse_launch_lists, parse_modules, parse_names, parse_remote_hosts,
    parse_sidecars,
};
pub use name::NamePattern;
pub use secrets::SecretRules;

mod code_tools;
mod environment;
mod host;
mod isolation;
mod launch;
mod list;
mod name;
mod secrets;

/// The most entries of one list in the settings.
pub const SETTING_ENTRIES: usize = 1_024;

/// What the operator allows. The default allows remote servers on loopback and nothing else: no process is
/// started, no environment is set, no secret is referred to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    /// What stdio servers may run: executables, each with its arguments. Default: nothing.
    pub launch: Vec<LaunchRule>,
    /// The environment variables that the definition of a stdio server may set. Variables that control a loader
    /// or an interpreter are refused whatever stands here ([`is_refused_variable`]). Default: none.
    pub environment: Vec<NamePattern>,
    /// The wrapper that stdio servers run in. Default: none. The launcher must be given the same one.
    pub isolation: Isolation,
    /// Whether each process gets a fresh private working directory. Default: true. The launcher must be told
    /// the same.
    pub isolated_workdir: bool,
    /// Whether the launcher starts each process in namespaces of its own; it tells itself what holds. Default: false.
    pub namespaces: bool,
    /// The hosts that remote servers may have; exact, no wildcards. Default: `localhost`, `127.0.0.1`, `::1`, on
    /// every port. A sidecar of [`AddressRules::sidecars`] need not be named here.
    pub remote_hosts: Vec<RemoteHost>,
    /// Whether plain HTTP is accepted to hosts that are neither loopback nor a sidecar. Default: false.
    pub allow_plain_http: bool,
    /// Which addresses may be dialled. Default: public ones, and loopback for hosts that say loopback. The
    /// gateway must be given the same rules.
    pub addresses: AddressRules,
    /// Which secrets a definition may refer to. Default: those in the store only.
    pub secrets: SecretRules,
    /// Which programs code tools may be. Default: all, within what the sandbox enforces.
    pub code_tools: CodeToolRules,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            launch: Vec::new(),
            environment: Vec::new(),
            isolation: Isolation::default(),
            isolated_workdir: true,
            namespaces: false,
            remote_hosts: RemoteHost::loopback(),
            allow_plain_http: false,
            addresses: AddressRules::default(),
            secrets: SecretRules::default(),
            code_tools: CodeToolRules::default(),
        }
    }
}

impl PolicySettings {
    /// Checks the settings as a whole.
    ///
    /// # Errors
    ///
    /// `Invalid`, naming everything that is wrong at once.
    pub fn validate(&self) -> Result<()> {
        let mut problems = Vec::new();
        for (field, count) in [
            ("launch", self.launch.len()),
            ("environment", self.environment.len()),
            ("isolation.prefix", self.isolation.prefix.len()),
            ("remote_hosts", self.remote_hosts.len()),
            ("addresses.sidecars", self.addresses.sidecars.len()),
            ("secrets.environment", self.secrets.environment.len()),
            ("secrets.files", self.secrets.files.len()),
            ("code_tools.modules", self.code_tools.modules.len()),
            ("code_tools.executables", self.code_tools.executables.len()),
        ] {
            if count > SETTING_ENTRIES {
                problems.push(FieldProblem {
                    field: field.to_owned(),
                    problem: format!("it has {count} entries; the limit is {SETTING_ENTRIES}"),
                });
            }
        }
        let errors = self.launch.iter().map(LaunchRule::validate).chain([
            self.isolation.validate(),
            self.secrets.validate(),
            self.code_tools.validate(),
        ]);
        for error in errors.filter_map(Result::err) {
            problems.extend_from_slice(error.fields());
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::invalid_fields(problems))
        }
    }
}

/// The problem of one entry of a setting, with what would be right.
fn problem(setting: &str, entry: impl Display, problem: &str) -> Error {
    let shown = caliber_core::text::shown(&entry.to_string());
    Error::invalid(setting, format!("{shown} {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_names_every_problem() {
        assert!(PolicySettings::default().validate().is_ok());
        let wrong = PolicySettings {
            launch: vec![LaunchRule {
                executable: "./x".into(),
                arguments: ArgumentRule::Exact(Vec::new()),
            }],
            isolation: Isolation {
                prefix: Vec::new(),
                profile: IsolationProfile::Bubblewrap,
            },
            secrets: SecretRules {
                files: vec!["secrets".into()],
                ..SecretRules::default()
            },
            remote_hosts: vec!["localhost".parse().unwrap(); SETTING_ENTRIES + 1],
            ..PolicySettings::default()
        };
        let error = wrong.validate().unwrap_err();
        let fields: Vec<_> = error
            .fields()
            .iter()
            .map(|problem| problem.field.as_str())
            .collect();
        assert_eq!(fields, ["remote_hosts", "launch", "isolation", "secrets.files"]);
    }

    #[test]
    fn settings_are_read_from_a_document_and_unknown_ones_refused() {
        let document = serde_json::json!({
            "launch": [
                "/usr/bin/mcp-git",
                {"executable": "/usr/bin/mcp-files", "arguments": {"prefix": ["--root", "/srv/my files"]}},
            ],
            "environment": ["API_*"],
            "isolation": {"prefix": ["/usr/bin/bwrap", "--unshare-all"], "profile": "bubblewrap"},
            "remote_hosts": ["mcp.example.com:443"],
            "addresses": {"sidecars": ["http://mcp-db:8101 172.18.0.0/16"]},
            "secrets": {"environment": ["MCP_*"], "files": ["/run/secrets"]},
        });
        let settings: PolicySettings = serde_json::from_value(document).unwrap();
        settings.validate().unwrap();
        assert_eq!(settings.launch.len(), 2);
        assert!(settings.isolated_workdir);
        let again = serde_json::from_value(serde_json::to_value(&settings).unwrap()).unwrap();
        assert_eq!(settings, again);
        assert!(serde_json::from_value::<PolicySettings>(serde_json::json!({"lunch": []})).is_err());
    }
}
