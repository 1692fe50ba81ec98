//! Server-sent events, read within bounds.
//!
//! Line breaks are CR, LF or both; several `data` lines are one event; comments keep a stream alive and nothing
//! else. An event that the stream ends in is dropped, as the HTML standard has it.

use std::collections::VecDeque;
use std::time::Duration;

use caliber_core::reason::ReasonCode;

use crate::error::Failure;

/// One event.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Event {
    /// Its name; `message` when it has none.
    pub(crate) name: String,
    pub(crate) data: String,
}

/// Takes chunks, gives events.
#[derive(Debug)]
pub(crate) struct EventReader {
    event_bytes: usize,
    left: usize,
    line: Vec<u8>,
    name: String,
    data: Vec<u8>,
    has_data: bool,
    after_carriage_return: bool,
    started: bool,
    last_id: Option<String>,
    retry: Option<Duration>,
    events: VecDeque<Event>,
}

impl EventReader {
    /// A reader of events of at most `event_bytes`, out of a stream of at most `stream_bytes`.
    pub(crate) fn new(event_bytes: usize, stream_bytes: usize) -> Self {
        Self {
            event_bytes,
            left: stream_bytes,
            line: Vec::new(),
            name: String::new(),
            data: Vec::new(),
            has_data: false,
            after_carriage_return: false,
            started: false,
            last_id: None,
            retry: None,
            events: VecDeque::new(),
        }
    }

    /// The id that the stream can be continued from, if it gave one.
    pub(crate) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// How long the upstream wants us to wait before we continue, if it said so.
    pub(crate) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// The next complete event.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes a chunk.
    ///
    /// # Errors
    ///
    /// `ResultTooLarge` at a bound.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        self.left = self.left.checked_sub(chunk.len()).ok_or_else(|| {
            Failure::too_large(
                ReasonCode::ResultTooLarge,
                "the event stream is longer than the limit",
            )
        })?;
        let mut rest = chunk;
        while let Some((&first, _)) = rest.split_first() {
            if self.after_carriage_return {
                self.after_carriage_return = false;
                if first == b'\n' {
                    rest = rest.get(1..).unwrap_or_default();
                    continue;
                }
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
            if self.line.len() + part.len() + self.data.len() > self.event_bytes {
                return Err(Failure::too_large(
                    ReasonCode::ResultTooLarge,
                    format!("an event is larger than {} bytes", self.event_bytes),
                ));
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { break };
            self.after_carriage_return = rest.get(end) == Some(&b'\r');
            rest = rest.get(end + 1..).unwrap_or_default();
            let line = std::mem::take(&mut self.line);
            self.take_line(&line);
            self.line = line;
            self.line.clear();
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8]) {
        let line = if self.started {
            line
        } else {
            self.started = true;
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
        };
        if line.is_empty() {
            self.dispatch();
            return;
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => {
                let value = line.get(colon + 1..).unwrap_or_default();
                (
                    line.get(..colon).unwrap_or_default(),
                    value.strip_prefix(b" ").unwrap_or(value),
                )
            }
            None => (line, &b""[..]),
        };
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"id" if !value.contains(&0) => {
                self.last_id = std::str::from_utf8(value).ok().map(str::to_owned);
            }
            b"retry" => {
                let milliseconds = std::str::from_utf8(value)
                    .ok()
                    .and_then(|value| value.parse().ok());
                self.retry = milliseconds.map(Duration::from_millis).or(self.retry);
            }
            // Comments, and what nobody knows.
            _ => {}
        }
    }

    fn dispatch(&mut self) {
        let name = std::mem::take(&mut self.name);
        let data = std::mem::take(&mut self.data);
        if std::mem::take(&mut self.has_data)
            && let Ok(data) = String::from_utf8(data)
        {
            self.events.push_back(Event {
                name: if name.is_empty() {
                    "message".to_owned()
                } else {
                    name
                },
                data,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&str]) -> Vec<(String, String)> {
        let mut reader = EventReader::new(1 << 20, 1 << 20);
        let mut events = Vec::new();
        for chunk in chunks {
            reader.push(chunk.as_bytes()).unwrap();
            events.extend(std::iter::from_fn(|| reader.pop()).map(|event| (event.name, event.data)));
        }
        events
    }

    fn pair(name: &str, data: &str) -> (String, String) {
        (name.to_owned(), data.to_owned())
    }

    #[test]
    fn every_line_break_and_every_split_gives_the_same_events() {
        let text =
            "\u{feff}event: endpoint\ndata: /a\n\n: comment\ndata:{\ndata: }\nid: 7\n\nretry: 1\n\ndata\n\n";
        let expected = vec![
            pair("endpoint", "/a"),
            pair("message", "{\n}"),
            pair("message", ""),
        ];
        for breaks in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', breaks);
            assert_eq!(events(&[&text]), expected, "{breaks:?}");
            let bytes: Vec<String> = text.chars().map(String::from).collect();
            let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
            assert_eq!(events(&bytes), expected, "{breaks:?} one by one");
        }
    }

    #[test]
    fn an_unfinished_event_is_none() {
        assert!(events(&["data: {}\n"]).is_empty());
    }

    #[test]
    fn events_and_streams_are_bounded() {
        let mut reader = EventReader::new(100, 1 << 20);
        reader.push(b"data: ").unwrap();
        assert!(reader.push(&[b'x'; 100]).is_err());
        let mut reader = EventReader::new(100, 1 << 20);
        let lines = "data: xxxxxxxxxxxxxxxx\n".repeat(10);
        assert!(reader.push(lines.as_bytes()).is_err());
        let mut reader = EventReader::new(100, 300);
        let comments = ":\n".repeat(151);
        assert!(reader.push(comments.as_bytes()).is_err());
    }

    #[test]
    fn the_last_id_is_kept() {
        let mut reader = EventReader::new(100, 300);
        reader.push(b"id: a\ndata: 1\n\nid: b\n\n").unwrap();
        assert_eq!(reader.last_id(), Some("b"));
        reader.push(b"retry: 1500\nretry: soon\n").unwrap();
        assert_eq!(reader.retry(), Some(Duration::from_millis(1_500)));
    }
}
