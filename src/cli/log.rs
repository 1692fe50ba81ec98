//! The log of `caliber serve`: standard error, in lines of a bounded length.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::output::complain;
use super::settings::Settings;

/// What is logged where nothing is set: news of our own crates, and of others only what is wrong. Others log what
/// they were sent, and what a server sends is anybody's text.
pub(crate) const DEFAULT_FILTER: &str = "warn,caliber=info";
/// The longest line where nothing is set, in bytes.
pub(crate) const DEFAULT_LINE_BYTES: usize = 16 << 10;

/// Installs the log of this process. Escapes are for terminals; standard output belongs to the line that says that
/// the server is ready.
pub(crate) fn install(settings: &Settings) {
    let is_terminal = io::IsTerminal::is_terminal(&io::stderr());
    let bounded = Bounded {
        target: io::stderr,
        bytes: settings.log_line_bytes,
        json: settings.log_json,
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&settings.log_filter))
        .with_ansi(is_terminal)
        .with_writer(bounded);
    let installed = if settings.log_json {
        log.json().try_init()
    } else {
        log.try_init()
    };
    if let Err(error) = installed {
        complain(&format!("caliber: there is no log: {error}"));
    }
}

/// Cuts lines that are longer than `bytes`. The formatter writes each line at once.
#[derive(Clone, Copy, Debug)]
struct Bounded<M> {
    target: M,
    bytes: usize,
    json: bool,
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Bounded<M> {
    type Writer = BoundedWriter<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        BoundedWriter {
            target: self.target.make_writer(),
            bytes: self.bytes,
            json: self.json,
        }
    }
}

struct BoundedWriter<W> {
    target: W,
    bytes: usize,
    json: bool,
}

impl<W: Write> Write for BoundedWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if line.len() <= self.bytes {
            self.target.write_all(line)?;
        } else {
            let cut = self.cut(line);
            self.target.write_all(cut.as_bytes())?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.target.flush()
    }
}

impl<W> BoundedWriter<W> {
    /// The beginning of a line, and how much of it is missing; a document of its own where lines are documents.
    fn cut(&self, line: &[u8]) -> String {
        let beginning = line.get(..self.bytes).unwrap_or(line);
        // The last character may be cut through.
        let beginning = String::from_utf8_lossy(beginning);
        let beginning = beginning.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let missing = line.len().saturating_sub(beginning.len());
        if self.json {
            let line =
                serde_json::json!({ "level": "WARN", "cut_line": beginning, "missing_bytes": missing });
            return format!("{line}\n");
        }
        format!("{beginning}… ({missing} more bytes)\n")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Memory {
        fn text(&self) -> String {
            let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8(bytes.clone()).unwrap()
        }
    }

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            held.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(json: bool, log: impl FnOnce()) -> String {
        let memory = Memory::default();
        let held = memory.clone();
        let bounded = Bounded {
            target: move || held.clone(),
            bytes: 2_000,
            json,
        };
        let builder = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(DEFAULT_FILTER))
            .with_ansi(false)
            .with_writer(bounded);
        if json {
            tracing::subscriber::with_default(builder.json().finish(), log);
        } else {
            tracing::subscriber::with_default(builder.finish(), log);
        }
        memory.text()
    }

    #[test]
    fn others_are_quiet_and_our_own_crates_are_not() {
        let told = logged(false, || {
            tracing::info!(target: "rmcp::service", peer_info = "theirs", "Service initialized as client");
            tracing::warn!(target: "rmcp::service", "a warning of theirs");
            tracing::info!(target: "caliber_gateway::pool", "news of ours");
            tracing::info!(target: "caliber::cli::serve", "news of the command");
        });
        assert!(!told.contains("peer_info"), "{told}");
        for kept in ["a warning of theirs", "news of ours", "news of the command"] {
            assert!(told.contains(kept), "{kept} is not in {told}");
        }
    }

    #[test]
    fn a_line_is_never_longer_than_the_limit() {
        let text = "天".repeat(100_000);
        let told = logged(false, || tracing::warn!(text, "long"));
        assert!(
            told.len() < 2_100 && told.ends_with("more bytes)\n"),
            "{}",
            told.len()
        );
        assert_eq!(told.lines().count(), 1);
        let told = logged(true, || tracing::warn!(text, "long"));
        let line: serde_json::Value = serde_json::from_str(told.trim()).unwrap();
        assert!(line["missing_bytes"].as_u64().unwrap() > 290_000, "{line}");
        assert!(told.len() < 5_000);
    }
}
