//! The program that runs inside of interpreters, compiled once by the interpreter itself.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use caliber_core::reason::ReasonCode;
use caliber_core::text::shown;
use caliber_core::{Error, ErrorKind, Result};

/// What the engine sends to every interpreter that it starts.
const BOOTSTRAP: &str = include_str!("bootstrap.py");

/// What reads the compiled bootstrap from the channel.
pub(crate) const STUB: &str = "\
import posix,marshal
b=bytearray()
while len(b)<4 or len(b)<4+int.from_bytes(b[:4],'little'):
 d=posix.read(3,1<<18)
 if not d:posix._exit(0)
 b+=d
n=4+int.from_bytes(b[:4],'little')
exec(marshal.loads(bytes(b[4:n])),{'rest':bytes(b[n:]),'__name__':'caliber_bootstrap'})
";

/// How an interpreter is started, besides the program: isolated from the environment and the user, without `site`, which
/// runs code of installed packages; never writing compiled files and never trusting one by its time.
pub(crate) const OPTIONS: [&str; 7] = [
    "-I",
    "-S",
    "-B",
    "-X",
    "utf8",
    "--check-hash-based-pycs",
    "always",
];

const COMPILE: &str = "\
import marshal,sys
code=compile(sys.stdin.buffer.read(),'<caliber>','exec',dont_inherit=True,optimize=2)
sys.stdout.buffer.write(marshal.dumps(code))
";

/// The most that the compiled bootstrap may be, in bytes: it must fit one message of a packet socket.
const COMPILED: u64 = 128 << 10;
/// How long the interpreter may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Has the interpreter compile the bootstrap: the bytes that the stub reads, their length first. Blocks for about as long
/// as the interpreter takes to start.
pub(crate) fn compile(interpreter: &Path) -> Result<Arc<[u8]>> {
    let code = run(interpreter).map_err(|error| {
        let name = shown(&interpreter.to_string_lossy());
        Error::new(
            ErrorKind::Unavailable,
            format!("the interpreter {name} does not compile what runs tools in it: {error}"),
        )
        .with_reason(ReasonCode::SandboxUnavailable)
    })?;
    let length = u32::try_from(code.len()).unwrap_or(u32::MAX);
    Ok(length.to_le_bytes().into_iter().chain(code).collect())
}

fn run(interpreter: &Path) -> std::io::Result<Vec<u8>> {
    let mut child = Command::new(interpreter)
        .args(OPTIONS)
        .args(["-c", COMPILE])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // The pipe holds the whole bootstrap, so that writing it does not wait for the interpreter.
    let written = child
        .stdin
        .take()
        .map(|mut stdin| stdin.write_all(BOOTSTRAP.as_bytes()));
    let (sender, receiver) = std::sync::mpsc::channel();
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut code = Vec::new();
        let read = stdout.map(|stdout| stdout.take(COMPILED).read_to_end(&mut code));
        let _ = sender.send(());
        read.map(|read| read.map(|_| code))
    });
    if receiver.recv_timeout(PATIENCE).is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    let code = reader.join().ok().flatten();
    written.transpose()?;
    match code {
        Some(Ok(code)) if status.success() && !code.is_empty() => Ok(code),
        Some(Err(error)) => Err(error),
        _ => Err(std::io::Error::other(format!("it ended with {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bootstrap_compiles_and_fits_one_message() {
        let code = compile(Path::new("/usr/bin/python3")).unwrap();
        assert!((1_000..100_000).contains(&code.len()), "{}", code.len());
        // Writing it never waits for the interpreter to read.
        assert!(BOOTSTRAP.len() < 64 << 10);
    }

    #[test]
    fn what_is_no_interpreter_is_refused() {
        for path in ["/nowhere/python3", "/usr/bin/true"] {
            let error = compile(Path::new(path)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{path}: {error}");
        }
    }
}
