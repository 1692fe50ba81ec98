//! Starting servers that are child processes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::Result;
use crate::secret::SecretText;

/// Starts child processes and keeps them from outliving us. One implementation uses process groups and says
/// what it lacks; `caliber-sandbox` brings one with namespaces.
#[async_trait]
pub trait ProcessLauncher: Send + Sync + fmt::Debug {
    /// Starts a process.
    ///
    /// # Errors
    ///
    /// `Upstream` with the operating system's reason when it cannot be started, `Unavailable` when too many
    /// run already.
    async fn launch(&self, launch: Launch) -> Result<LaunchedProcess>;

    /// What this launcher enforces.
    fn containment(&self) -> Vec<ContainmentMeasure>;
}

/// What is to be started. No shell reads any of it.
pub struct Launch {
    /// The executable, absolute.
    pub executable: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its whole environment; nothing is inherited.
    pub env: BTreeMap<String, SecretText>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Launch")
            .field("executable", &self.executable)
            .field("args", &self.args.len())
            .field("env", &self.env.keys())
            .finish()
    }
}

/// A running process with its streams. Dropping [`LaunchedProcess::handle`] ends the process and its descendants.
pub struct LaunchedProcess {
    /// What it reads.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// What it writes.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// What it complains; it must be drained.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Its life.
    pub handle: Box<dyn ProcessHandle>,
}

impl fmt::Debug for LaunchedProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LaunchedProcess")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

/// The life of a process.
#[async_trait]
pub trait ProcessHandle: Send + Sync + fmt::Debug {
    /// Its process id.
    fn id(&self) -> u32;

    /// Waits until it has ended by itself; text such as `exit status: 1`. Cancel-safe.
    async fn wait(&mut self) -> String;

    /// Ends it and all its descendants, politely first; returns when none is left.
    async fn terminate(&mut self);
}

/// What a launcher does to a child, and how surely.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainmentMeasure {
    /// What, such as `process_group`.
    pub measure: String,
    /// Whether it is in force.
    pub enforced: bool,
    /// What it does not cover, or why it is not in force.
    pub note: String,
}
