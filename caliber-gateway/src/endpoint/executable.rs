//! Finding the executable of a stdio server.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use caliber_core::process::Launch;
use caliber_core::readiness::EndpointFacts;
use caliber_core::reason::ReasonCode;
use caliber_core::secret::SecretText;
use caliber_core::server::StdioEndpoint;
use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};

/// The command that stands for the configured interpreter.
const PYTHON: &str = "${PYTHON}";

/// Where commands are looked for. Every method looks at files and blocks.
#[derive(Debug)]
pub(super) struct Executables {
    pub(super) python: Option<PathBuf>,
    pub(super) safe_path: String,
    pub(super) isolation_prefix: Vec<String>,
}

impl Executables {
    pub(super) fn facts(&self, stdio: &StdioEndpoint) -> EndpointFacts {
        let executable = self.find(&stdio.command);
        let script = stdio
            .args
            .first()
            .map(Path::new)
            // A child works in a directory of its own, so that a relative path names nothing there.
            .filter(|path| path.is_absolute() && path.is_file())
            .and_then(real_path);
        EndpointFacts::Stdio {
            is_python: executable.as_deref().is_some_and(|path| self.is_python(path)),
            executable: executable.as_deref().and_then(real_path),
            script,
        }
    }

    pub(super) fn launch(&self, stdio: &StdioEndpoint, env: BTreeMap<String, SecretText>) -> Result<Launch> {
        // Started under the name it was found by, not by its real path: a virtual environment of Python and
        // programs with many names tell by that name what they are.
        let executable = self.find(&stdio.command).ok_or_else(|| {
            let text = match (stdio.command.as_str(), &self.python) {
                (PYTHON, None) => "`${PYTHON}` stands for no interpreter; configure one".to_owned(),
                (command, _) => format!(
                    "there is no executable {} on {}; use an absolute path or a bare name",
                    shown(command),
                    shown(&self.safe_path)
                ),
            };
            Error::new(ErrorKind::Upstream, text).with_reason(ReasonCode::ExecutableNotFound)
        })?;
        let mut environment = BTreeMap::from([
            ("LANG".to_owned(), SecretText::new("C.UTF-8")),
            ("TERM".to_owned(), SecretText::new("dumb")),
        ]);
        if self.has_own_tmp() {
            // The directory that the launcher makes is out of sight in there.
            for key in ["HOME", "TMPDIR"] {
                environment.insert(key.to_owned(), SecretText::new("/tmp"));
            }
        }
        environment.extend(env);
        environment.insert("PATH".to_owned(), SecretText::new(self.safe_path.clone()));
        let Some((wrapper, wrapper_args)) = self.isolation_prefix.split_first() else {
            return Ok(Launch {
                executable,
                args: stdio.args.clone(),
                env: environment,
            });
        };
        let wrapper = self.find(wrapper).ok_or_else(|| {
            let text = format!(
                "the isolation prefix names no executable: {}; install it or change the setting",
                shown(wrapper)
            );
            Error::new(ErrorKind::Upstream, text).with_reason(ReasonCode::IsolationMisconfigured)
        })?;
        let executable = executable.into_os_string().into_string().map_err(|_| {
            Error::new(ErrorKind::Upstream, "the path of the executable is not UTF-8")
                .with_reason(ReasonCode::ExecutableNotFound)
        })?;
        let mut args = wrapper_args.to_vec();
        args.push(executable);
        args.extend(stdio.args.iter().cloned());
        Ok(Launch {
            executable: wrapper,
            args,
            env: environment,
        })
    }

    /// The absolute path under which `command` can be run.
    fn find(&self, command: &str) -> Option<PathBuf> {
        if command == PYTHON {
            let python = self.python.clone()?;
            return (python.is_absolute() && is_executable(&python)).then_some(python);
        }
        let path = Path::new(command);
        if path.is_absolute() {
            return is_executable(path).then(|| path.to_owned());
        }
        // Anything else with a slash would depend on where this process happens to stand.
        if command.is_empty() || command.contains('/') {
            return None;
        }
        std::env::split_paths(&self.safe_path)
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(command))
            .find(|candidate| is_executable(candidate))
    }

    /// Whether `path` is the configured interpreter, under whatever name: the same file, be it by a symbolic or by
    /// a hard link.
    fn is_python(&self, path: &Path) -> bool {
        let same_file = |python: &Path| {
            let (one, other) = (std::fs::metadata(python).ok()?, std::fs::metadata(path).ok()?);
            Some(one.dev() == other.dev() && one.ino() == other.ino())
        };
        self.python.as_deref().and_then(same_file).unwrap_or(false)
    }

    /// Whether the isolation prefix mounts an empty `/tmp`, as the known bubblewrap profile does.
    fn has_own_tmp(&self) -> bool {
        self.isolation_prefix
            .array_windows()
            .any(|[option, value]| option == "--tmpfs" && value == "/tmp")
    }
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// `None` also for a path that is not UTF-8: such a path cannot be allowed.
fn real_path(path: &Path) -> Option<String> {
    path.canonicalize().ok()?.into_os_string().into_string().ok()
}
