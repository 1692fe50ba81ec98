//! The settings of the sandbox, and what they choose.

use std::path::{Path, PathBuf};
use std::time::Duration;

use caliber::core::sandbox::Guarantee;
use caliber::core::text::shown;
use caliber::sandbox::remote::{RemoteSettings, ServiceToken};
use caliber::sandbox::{LauncherSettings, SandboxSettings, ServerProfile};
use caliber::{Error, SandboxChoice};

use super::Settings;
use super::keys::KEYS;
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::cli::output::complain;

/// The largest token or certificate file, in bytes.
const FILE_BYTES: u64 = 64 << 10;

/// Where code tools run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SandboxBackend {
    /// On this machine.
    #[default]
    Local,
    /// At a service.
    Remote,
    /// Nowhere.
    Off,
}

impl SandboxBackend {
    pub(super) const ALL: [Self; 3] = [Self::Local, Self::Remote, Self::Off];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
            Self::Off => "off",
        }
    }
}

/// Everything that can be set about the sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct SandboxSection {
    /// Where code tools run.
    pub(crate) backend: SandboxBackend,
    /// How they run on this machine.
    pub(crate) local: SandboxSettings,
    /// Where copies of sources are kept; beside the database when nothing is said.
    pub(crate) snapshots: Option<PathBuf>,
    /// How a service is reached.
    pub(crate) remote: RemoteSection,
}

/// How stdio servers are kept in namespaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespacesSection {
    /// Whether they are.
    pub(crate) enabled: bool,
    /// What each of them gets.
    pub(crate) profile: ServerProfile,
}

/// How a sandbox service is reached.
#[derive(Clone, Debug)]
pub(crate) struct RemoteSection {
    pub(crate) url: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) report_age: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) answer_bytes: usize,
}

impl Default for RemoteSection {
    fn default() -> Self {
        Self {
            url: None,
            token_file: None,
            ca_file: None,
            report_age: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            answer_bytes: 8 << 20,
        }
    }
}

impl Settings {
    /// What the settings choose.
    pub(crate) fn sandbox_choice(&self) -> Outcome<SandboxChoice> {
        Ok(match self.sandbox.backend {
            SandboxBackend::Off => SandboxChoice::Off,
            SandboxBackend::Local => SandboxChoice::Local(Box::new(self.local_sandbox()?)),
            SandboxBackend::Remote => SandboxChoice::Remote(Box::new(self.remote_sandbox()?)),
        })
    }

    /// How stdio servers are kept in namespaces, if they are.
    pub(crate) fn namespaces(&self) -> Option<LauncherSettings> {
        self.namespaces.enabled.then(|| LauncherSettings {
            children: self.config.launcher.children,
            input_grace: self.config.launcher.input_grace,
            term_grace: self.config.launcher.term_grace,
            profile: self.namespaces.profile.clone(),
            ..LauncherSettings::default()
        })
    }

    /// The sandbox of this machine, with the folder of its copies.
    pub(crate) fn local_sandbox(&self) -> Outcome<SandboxSettings> {
        let folder = self.sandbox.snapshots.clone().unwrap_or_else(|| {
            let mut path = self.config.store.path.clone().into_os_string();
            path.push(".snapshots");
            path.into()
        });
        let folder = std::path::absolute(&folder).map_err(|error| {
            Failure::io(
                &format!("the folder {}", shown(&folder.to_string_lossy())),
                &error,
            )
        })?;
        Ok(SandboxSettings {
            snapshot_folder: folder,
            left_out: self.own_files(),
            startup_grace: self.config.settings.startup_grace,
            ..self.sandbox.local.clone()
        })
    }

    /// The database and its keys: never part of a tool, although a source may lie around them.
    fn own_files(&self) -> Vec<PathBuf> {
        let database = &self.config.store.path;
        let beside = ["", "-wal", "-shm", "-journal"].map(|end| {
            let mut path = database.clone().into_os_string();
            path.push(end);
            PathBuf::from(path)
        });
        let files = beside.into_iter().chain([self.key_path()]);
        files
            .map(|file| std::path::absolute(&file).unwrap_or(file))
            .collect()
    }

    fn remote_sandbox(&self) -> Outcome<RemoteSettings> {
        let section = &self.sandbox.remote;
        let missing = |key: &str| Failure::usage(format!("sandbox.backend is remote: set {key} too"));
        let url = section
            .url
            .as_ref()
            .ok_or_else(|| missing("sandbox.remote.url"))?;
        let url = url
            .parse()
            .map_err(|_| Failure::usage(format!("sandbox.remote.url {} is no URL", shown(url))))?;
        let token = section
            .token_file
            .as_ref()
            .ok_or_else(|| missing("sandbox.remote.token_file"))?;
        let mut remote = RemoteSettings::new(url, service_token(token)?);
        if let Some(file) = &section.ca_file {
            remote.extra_roots = read(file, "the certificates")?;
        }
        remote.required.clone_from(&self.sandbox.local.required);
        remote.allow_unenforced = self.sandbox.local.allow_unenforced;
        remote.places = self.sandbox.local.places;
        remote.queue = self.sandbox.local.queue;
        remote.report_age = section.report_age;
        remote.connect_timeout = section.connect_timeout;
        remote.answer_bytes = section.answer_bytes;
        Ok(remote)
    }
}

/// The token of a sandbox service, from its file.
pub(crate) fn service_token(file: &Path) -> Outcome<ServiceToken> {
    let text = String::from_utf8(read(file, "the token of the sandbox service")?).unwrap_or_default();
    warn_of_mode(file);
    ServiceToken::new(text.trim()).map_err(Failure::from)
}

/// Whoever reads the token can run code.
fn warn_of_mode(file: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(file).map_or(0, |status| status.permissions().mode());
        if mode & 0o077 != 0 {
            let name = shown(&file.to_string_lossy());
            complain(&format!(
                "warning: other users can get at the token in {name} (mode {:04o}); make its mode 0600",
                mode & 0o7777
            ));
        }
    }
}

fn read(file: &Path, what: &str) -> Outcome<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let name = shown(&file.to_string_lossy());
    std::fs::File::open(file)
        .and_then(|file| file.take(FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| Failure::new(Exit::Usage, format!("{what}: {name} cannot be read: {error}")))?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(Failure::usage(format!(
            "{what}: {name} is larger than {FILE_BYTES} bytes"
        )));
    }
    Ok(bytes)
}

/// A failure to start, with the settings named as they are written in the file and on the command line.
pub(crate) fn named(error: Error) -> Failure {
    let key = |field: &str| {
        let key = match field {
            "snapshot_folder" => "sandbox.snapshots".to_owned(),
            "remote.extra_roots" => "sandbox.remote.ca_file".to_owned(),
            field => format!("sandbox.{field}"),
        };
        KEYS.iter().any(|known| known.path == key).then_some(key)
    };
    let told: Option<Vec<_>> = error
        .fields()
        .iter()
        .map(|field| Some(format!("the setting {}: {}", key(&field.field)?, field.problem)))
        .collect();
    let mut failure = Failure::from(error);
    if let Some(told) = told.filter(|told| !told.is_empty()) {
        failure.message = told.join("; ");
    }
    failure
}

/// Reads the word of a guarantee.
pub(super) fn guarantee(text: &str) -> Result<Guarantee, String> {
    let found = Guarantee::ALL
        .into_iter()
        .find(|guarantee| guarantee.as_str() == text);
    found.ok_or_else(|| {
        let all: Vec<_> = Guarantee::ALL
            .iter()
            .map(|guarantee| guarantee.as_str())
            .collect();
        format!("{} is no guarantee; use {}", shown(text), all.join(", "))
    })
}
