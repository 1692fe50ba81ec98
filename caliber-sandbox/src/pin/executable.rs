//! What an executable has to be: nothing here reads a script, or names what would.

use std::os::fd::OwnedFd;
use std::path::Path;

use caliber_core::text::shown;
use caliber_core::{Error, Result};

/// How every program begins that the kernel runs by itself.
const ELF: &[u8] = b"\x7fELF";

/// Refuses a file that the kernel would not run, saying what it is. The place in the file stays where it is.
///
/// # Errors
///
/// `Invalid` for `executable`.
pub(super) fn check(file: &OwnedFd, path: &Path) -> Result<()> {
    let mut beginning = [0; 4];
    let read = rustix::io::pread(file, &mut beginning, 0)
        .map_err(|errno| Error::invalid("executable", format!("it cannot be read: {errno}")))?;
    let beginning = beginning.get(..read).unwrap_or_default();
    if beginning == ELF {
        return Ok(());
    }
    let what = match beginning {
        [] => "is empty; name a compiled program (ELF)",
        [b'#', b'!', ..] => {
            "is a script, and a native tool sees no interpreter and no script; name the interpreter as the executable \
             and the text of the script as an argument, such as -c 'echo 1'"
        }
        [b'M', b'Z', ..] => "is a program for Windows; name one for Linux (ELF)",
        [0xcf | 0xce, 0xfa, 0xed, 0xfe] => "is a program for macOS; name one for Linux (ELF)",
        _ => "is no program for Linux (ELF)",
    };
    let text = format!("{} {what}", shown(&path.to_string_lossy()));
    Err(Error::invalid("executable", text))
}
