//! Where code tools run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use caliber_core::Result;
use caliber_core::clock::Deadline;
use caliber_core::sandbox::Sandbox;
use caliber_sandbox::SandboxSettings;
use caliber_sandbox::remote::{RemoteSandbox, RemoteSettings};

/// How long the first question to a sandbox service may take. A service that does not answer is asked again later.
const FIRST_QUESTION: Duration = Duration::from_secs(5);

/// Where the code tools of an installation run.
#[derive(Clone, Debug, Default)]
pub enum SandboxChoice {
    /// Nowhere: none can be registered or run. The default, so that opening an installation starts no process.
    #[default]
    Off,
    /// On this machine. What it enforces is found out when the installation is opened, by trying.
    Local(Box<SandboxSettings>),
    /// At a sandbox service; see `caliber sandbox serve`.
    Remote(Box<RemoteSettings>),
}

impl SandboxChoice {
    /// On this machine, with the defaults, and the copies of registered sources in `snapshots`.
    pub fn local(snapshots: impl Into<PathBuf>) -> Self {
        Self::Local(Box::new(SandboxSettings {
            snapshot_folder: snapshots.into(),
            ..SandboxSettings::default()
        }))
    }

    /// The same, with the files of the database at this path never part of a tool, although a source may lie around them.
    /// Opening an installation does it.
    #[must_use]
    pub fn leaving_out_database(mut self, database: &Path) -> Self {
        if let Self::Local(settings) = &mut self {
            settings
                .left_out
                .extend(["", "-wal", "-shm", "-journal"].map(|end| {
                    let mut file = database.to_owned().into_os_string();
                    file.push(end);
                    PathBuf::from(file)
                }));
        }
        self
    }

    /// Starts what was chosen.
    ///
    /// # Errors
    ///
    /// `Invalid` for settings that cannot work. What the machine cannot do, or that the service is away, is in the
    /// report of the sandbox.
    pub async fn start(self) -> Result<Option<Arc<dyn Sandbox>>> {
        match self {
            Self::Off => Ok(None),
            Self::Local(settings) => caliber_sandbox::start(*settings).await.map(Some),
            Self::Remote(settings) => {
                let deadline = Deadline::after(FIRST_QUESTION);
                let remote = RemoteSandbox::connect(*settings, deadline).await?;
                Ok(Some(Arc::new(remote)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_left_out_of_copies() {
        let chosen = SandboxChoice::local("/snapshots").leaving_out_database(Path::new("/srv/caliber.db"));
        let SandboxChoice::Local(settings) = chosen else {
            panic!("it was a local one");
        };
        let expected =
            ["", "-wal", "-shm", "-journal"].map(|end| PathBuf::from(format!("/srv/caliber.db{end}")));
        assert_eq!(settings.left_out, expected);
    }
}
