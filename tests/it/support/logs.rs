//! What is logged, kept as text.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use super::isolation::is_isolated;

/// Everything that was logged in this process since [`capture`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<u8>>>);

/// Keeps everything that is logged from now on, at every level and of every crate. Only in an isolated test: the
/// subscriber is that of the whole process.
pub(crate) fn capture() -> Logs {
    assert!(is_isolated(), "the log is the whole process's; use `isolated`");
    let logs = Logs::default();
    let writer = logs.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    logs
}

impl Logs {
    /// The lines so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
