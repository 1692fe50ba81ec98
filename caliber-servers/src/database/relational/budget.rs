//! How much of a result still fits.

use serde::Serialize;

/// The JSON bytes that are left for one result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: usize,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        Self { left: bytes }
    }

    /// Takes `bytes`, if as many are left.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    /// Takes what `value` needs as JSON, if as much is left.
    pub(super) fn take_json(&mut self, value: &impl Serialize) -> bool {
        let mut counter = Counter(0);
        serde_json::to_writer(&mut counter, value).is_ok() && self.take(counter.0)
    }
}

struct Counter(usize);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
