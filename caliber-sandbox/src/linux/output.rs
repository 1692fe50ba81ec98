//! Captured output: its beginning and its end, without the secrets of the call.

use std::collections::VecDeque;

use caliber_core::sandbox::Captured;
use caliber_core::secret::SecretText;

/// What stands in place of a secret.
const REDACTED: &[u8] = b"[secret]";

/// Collects one stream within bounds.
#[derive(Debug)]
pub(crate) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    half: usize,
    total: u64,
    kept: u64,
    secrets: Vec<Secret>,
    /// The end of what came, which may be the beginning of a secret.
    pending: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Secret(SecretText);

impl Secret {
    fn bytes(&self) -> &[u8] {
        self.0.expose().as_bytes()
    }
}

impl Capture {
    /// Keeps at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            half: limit / 2,
            total: 0,
            kept: 0,
            secrets: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Replaces these from here on.
    pub(crate) fn redact(&mut self, secrets: &[(String, SecretText)]) {
        let mut secrets: Vec<_> = secrets.iter().map(|(_, value)| Secret(value.clone())).collect();
        secrets.retain(|secret| !secret.bytes().is_empty());
        // The longer one first, where one secret begins with another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.bytes().len()));
        self.secrets = secrets;
    }

    /// Takes the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if self.secrets.is_empty() {
            self.keep(bytes);
            return;
        }
        self.pending.extend_from_slice(bytes);
        let longest = self.secrets.first().map_or(0, |secret| secret.bytes().len());
        let pending = std::mem::take(&mut self.pending);
        let rest = self.keep_redacted(&pending, longest.saturating_sub(1));
        self.pending = pending.get(rest..).unwrap_or_default().to_vec();
    }

    /// Keeps what comes before the last `hold` bytes, and says how far it came.
    fn keep_redacted(&mut self, bytes: &[u8], hold: usize) -> usize {
        let secrets = self.secrets.clone();
        let certain = bytes.len().saturating_sub(hold);
        let (mut plain, mut at) = (0, 0);
        while at < certain {
            let rest = bytes.get(at..).unwrap_or_default();
            match secrets.iter().find(|secret| rest.starts_with(secret.bytes())) {
                Some(secret) => {
                    self.keep(bytes.get(plain..at).unwrap_or_default());
                    self.keep(REDACTED);
                    at += secret.bytes().len();
                    plain = at;
                }
                None => at += 1,
            }
        }
        self.keep(bytes.get(plain..at).unwrap_or_default());
        at
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.kept += bytes.len() as u64;
        let room = self.half - self.head.len().min(self.half);
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        // Of a long rest only the end can stay.
        let rest = rest
            .get(rest.len().saturating_sub(self.half)..)
            .unwrap_or_default();
        let surplus = (self.tail.len() + rest.len()).saturating_sub(self.half);
        self.tail.drain(..surplus.min(self.tail.len()));
        self.tail.extend(rest);
    }

    /// What was kept.
    pub(crate) fn finish(&mut self) -> Captured {
        let pending = std::mem::take(&mut self.pending);
        self.keep_redacted(&pending, 0);
        let truncated = self.kept > (self.head.len() + self.tail.len()) as u64;
        let mut bytes = std::mem::take(&mut self.head);
        if truncated {
            bytes.extend_from_slice("\n…\n".as_bytes());
        }
        bytes.extend(self.tail.drain(..));
        Captured {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            total_bytes: self.total,
            truncated,
        }
    }
}

/// A text of a tool without the secrets of its call.
pub(crate) fn redacted(text: &str, secrets: &[(String, SecretText)]) -> String {
    let mut capture = Capture::new(2 * (text.len() + 1) * REDACTED.len());
    capture.redact(secrets);
    capture.push(text.as_bytes());
    capture.finish().text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[&str]) -> Vec<(String, SecretText)> {
        let named = values.iter().enumerate();
        named
            .map(|(number, value)| (format!("S{number}"), SecretText::new(*value)))
            .collect()
    }

    #[test]
    fn the_beginning_and_the_end_are_kept() {
        let mut capture = Capture::new(10);
        for _ in 0..1000 {
            capture.push(b"0123456789");
        }
        capture.push(b"end");
        let captured = capture.finish();
        assert_eq!(captured.text, "01234\n…\n89end");
        assert_eq!(captured.total_bytes, 10_003);
        assert!(captured.truncated);
    }

    #[test]
    fn what_fits_is_whole() {
        let mut capture = Capture::new(10);
        capture.push(b"0123");
        capture.push(b"456789");
        let captured = capture.finish();
        assert_eq!(
            (captured.text.as_str(), captured.truncated),
            ("0123456789", false)
        );
    }

    #[test]
    fn secrets_are_replaced_wherever_they_are_cut() {
        let text = "a hunter2 b hunter22 c hunterhunter2";
        let expected = "a [secret] b [secret] c hunter[secret]";
        for cut in 1..text.len() {
            let mut capture = Capture::new(200);
            capture.redact(&secrets(&["hunter2", "hunter22", ""]));
            for part in text.as_bytes().chunks(cut) {
                capture.push(part);
            }
            assert_eq!(capture.finish().text, expected, "cut at {cut}");
        }
        assert_eq!(redacted(text, &secrets(&["hunter2", "hunter22"])), expected);
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_such() {
        let mut capture = Capture::new(10);
        capture.push(b"a\xffb");
        assert_eq!(capture.finish().text, "a\u{fffd}b");
    }
}
