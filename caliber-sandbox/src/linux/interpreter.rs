//! The interpreter of Python tools: what it is, and what of this machine it needs to run.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use caliber_core::text::{escaped, shown};
use serde::Deserialize;

use super::confinement::RootEntry;

/// How long the interpreter may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most that it may say, in bytes.
const ANSWER: u64 = 256 << 10;
/// The oldest version that tools are run on.
const OLDEST: (u32, u32) = (3, 9);

/// Asks the interpreter about itself. No code but this and the interpreter's own is run.
const QUESTION: &str = r#"
import sys, os
mapped = []
try:
    with open("/proc/self/maps") as maps:
        mapped = sorted({line.split(None, 5)[5].strip() for line in maps if line.count("/")})
except OSError:
    pass
def text(values):
    return "[" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "]"
print('{"version":%s,"numbers":[%d,%d],"libraries":%s,"mapped":%s}' % (
    text([sys.version])[1:-1].replace("\n", " "), sys.version_info[0], sys.version_info[1],
    text([path for path in sys.path if os.path.isabs(path) and os.path.exists(path)]), text(mapped)))
"#;

/// Where systems keep the libraries that programs are linked with.
const SYSTEM_LIBRARIES: [&str; 7] = [
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
];
/// The loader's table of libraries.
const LOADER_CACHE: &str = "/etc/ld.so.cache";

/// An interpreter that runs here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// The file, without links on the way.
    pub executable: PathBuf,
    /// What it says of its version: number, build, compiler.
    pub version: String,
    /// The folders and archives of its own library.
    pub libraries: Vec<PathBuf>,
    /// Files outside of the system's library folders that it is linked with.
    linked: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Answer {
    version: String,
    numbers: (u32, u32),
    libraries: Vec<PathBuf>,
    mapped: Vec<PathBuf>,
}

impl Interpreter {
    /// Runs the interpreter, outside of any sandbox and with no code but its own library's, to ask what it is. Blocks.
    ///
    /// # Errors
    ///
    /// What is wrong, in words for an operator.
    pub fn examine(path: &Path) -> Result<Self, String> {
        let name = shown(&path.to_string_lossy());
        if !path.is_absolute() {
            return Err(format!("the interpreter {name} is no absolute path"));
        }
        let executable = std::fs::canonicalize(path)
            .map_err(|error| format!("the interpreter {name} cannot be found: {error}"))?;
        let mut start = [0; 2];
        std::fs::File::open(&executable)
            .and_then(|mut file| file.read_exact(&mut start))
            .map_err(|error| format!("the interpreter {name} cannot be read: {error}"))?;
        if start == *b"#!" {
            return Err(format!(
                "the interpreter {name} is a script that starts another one; name the interpreter itself"
            ));
        }
        let text = ask(&executable).map_err(|problem| format!("the interpreter {name} {problem}"))?;
        let answer: Answer = serde_json::from_str(&text)
            .map_err(|_| format!("the interpreter {name} did not answer as Python does"))?;
        if answer.numbers < OLDEST {
            return Err(format!(
                "the interpreter {name} is Python {}.{}; tools need {}.{} or newer",
                answer.numbers.0, answer.numbers.1, OLDEST.0, OLDEST.1
            ));
        }
        let is_system = |path: &Path| SYSTEM_LIBRARIES.iter().any(|folder| path.starts_with(folder));
        let linked = answer
            .mapped
            .into_iter()
            .filter(|path| path.is_absolute() && !is_system(path) && *path != executable && path.is_file())
            .filter(|path| path.to_string_lossy().contains(".so"))
            .collect();
        Ok(Self {
            executable,
            version: answer.version,
            libraries: answer.libraries,
            linked,
        })
    }

    /// The name in the digest of an environment: a rebuilt interpreter is another one.
    pub fn identity(&self) -> String {
        format!("{} {}", self.executable.to_string_lossy(), self.version)
    }

    /// The name for people.
    pub fn title(&self) -> String {
        let number = self.version.split_whitespace().next().unwrap_or_default();
        format!("{} (Python {number})", self.executable.to_string_lossy())
    }

    /// What a child's private root needs for the interpreter to run: the file, its library, and the system's libraries,
    /// all read-only.
    pub fn root_entries(&self) -> Vec<RootEntry> {
        let mut entries = system_entries();
        let files = [&self.executable].into_iter().chain(&self.linked);
        let bound: Vec<PathBuf> = self.readable();
        let own = self.libraries.iter().chain(files);
        for path in own {
            let is_inside = |folder: &PathBuf| path.starts_with(folder) && path != folder;
            if bound.iter().any(is_inside) {
                continue;
            }
            entries.push(bind(path));
        }
        entries
    }

    /// The same as paths, for what may be read and executed.
    pub fn readable(&self) -> Vec<PathBuf> {
        let mut paths = system_paths();
        paths.extend(self.libraries.iter().cloned());
        paths.push(self.executable.clone());
        paths.extend(self.linked.iter().cloned());
        paths.sort();
        paths.dedup();
        paths
    }
}

/// The system's libraries, and the loader's table of them.
fn system_entries() -> Vec<RootEntry> {
    let mut entries: Vec<_> = system_paths().iter().map(|path| bind(path)).collect();
    for folder in SYSTEM_LIBRARIES {
        let path = Path::new(folder);
        // Where `/lib` is a link into `/usr`, the loader's path leads over the link.
        if let Ok(content) = std::fs::read_link(path) {
            entries.push(RootEntry::Symlink {
                target: path.to_owned(),
                content,
            });
        }
    }
    entries
}

fn system_paths() -> Vec<PathBuf> {
    SYSTEM_LIBRARIES
        .iter()
        .map(PathBuf::from)
        .filter(|path| path.is_dir() && !path.is_symlink())
        .chain(
            [PathBuf::from(LOADER_CACHE)]
                .into_iter()
                .filter(|path| path.is_file()),
        )
        .collect()
}

fn bind(path: &Path) -> RootEntry {
    RootEntry::Bind {
        source: path.to_owned(),
        target: path.to_owned(),
        writable: false,
    }
}

fn ask(executable: &Path) -> Result<String, String> {
    let mut child = Command::new(executable)
        .args(["-I", "-S", "-B", "-X", "utf8", "-c", QUESTION])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot be started: {error}"))?;
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(ANSWER).read_to_string(&mut text);
        }
        text
    });
    let end = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => break Err("did not say what it is in time".to_owned()),
            Err(error) => break Err(format!("cannot be waited for: {error}")),
        }
    };
    if status.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let text = reader.join().unwrap_or_default();
    match status? {
        status if status.success() => Ok(text),
        status => Err(format!("ended with {}", escaped(&status.to_string(), 80))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_interpreter_says_what_it_needs() {
        let interpreter = Interpreter::examine(Path::new("/usr/bin/python3")).unwrap();
        assert!(interpreter.version.starts_with("3."), "{interpreter:?}");
        assert!(!interpreter.executable.is_symlink());
        assert!(
            interpreter
                .libraries
                .iter()
                .any(|path| path.join("json/__init__.py").is_file())
        );
        assert!(interpreter.title().contains("(Python 3."));
        assert!(interpreter.identity().contains(&interpreter.version));
        for entry in interpreter.root_entries() {
            match entry {
                RootEntry::Bind { source, writable, .. } => {
                    assert!(!writable && !source.is_symlink(), "{source:?}");
                }
                RootEntry::Symlink { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn shims_and_other_programs_are_no_interpreters() {
        let folder = tempfile::tempdir().unwrap();
        let shim = folder.path().join("python3");
        std::fs::write(&shim, "#!/bin/sh\nexec /usr/bin/python3 \"$@\"\n").unwrap();
        std::fs::set_permissions(&shim, std::fs::Permissions::from_mode(0o755)).unwrap();
        let problem = |path: &Path| Interpreter::examine(path).unwrap_err();
        assert!(problem(&shim).contains("script"));
        assert!(problem(Path::new("python3")).contains("absolute"));
        assert!(problem(Path::new("/no/python3")).contains("cannot be found"));
        assert!(problem(Path::new("/bin/true")).contains("did not answer"));
        assert!(problem(Path::new("/bin/false")).contains("ended with"));
    }
}
