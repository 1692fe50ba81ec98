//! The guard: a small shell script that outlives this process and ends what it left behind.

use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Shared;

const SCRIPT: &str = include_str!("guard.sh");

/// How the guard does.
#[derive(Debug, Default)]
pub(super) enum State {
    /// No child was started yet.
    #[default]
    Idle,
    Running(Guard),
    /// Why it could not be started.
    Failed(String),
}

impl State {
    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Running(guard) if !guard.has_ended())
    }
}

/// A guard process. It looks for children once more and ends when this is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    /// Open for as long as this process and its launcher live.
    _pipe: ChildStdin,
    ended: Arc<AtomicBool>,
}

impl Guard {
    /// Starts a guard in a session of its own, which no terminal or group signal reaches.
    ///
    /// The error is a text for people.
    pub(super) fn start(shared: &Shared) -> Result<Self, String> {
        let probe = shared.probe();
        let shell = probe.guard_shell.clone()?;
        let mut command = match &probe.setsid {
            Ok(setsid) => {
                let mut command = Command::new(setsid);
                command.arg(shell);
                command
            }
            Err(_) => {
                let mut command = Command::new(shell);
                command.process_group(0);
                command
            }
        };
        command.args(["-c", SCRIPT, "caliber-guard", &shared.instance]);
        command.arg(shared.root());
        if let Ok(group) = &probe.cgroup {
            command.arg(group.path());
        }
        command
            .env_clear()
            .env("PATH", &shared.settings.tool_path)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = command
            .spawn()
            .map_err(|error| format!("the shell could not be started: {error}"))?;
        let pipe = process
            .stdin
            .take()
            .ok_or("the pipe to the shell could not be made")?;
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        std::thread::Builder::new()
            .name("caliber-guard".into())
            .spawn(move || {
                // Reaps it; how it ended does not matter.
                let _ = process.wait();
                seen.store(true, Ordering::Relaxed);
            })
            .map_err(|error| format!("no thread could be started to wait for it: {error}"))?;
        Ok(Self { _pipe: pipe, ended })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}
