//! What a command prints: tables for people, JSON for programs. Foreign text is escaped and bounded here.

use std::fmt::Display;
use std::future::Future;
use std::io::{IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use caliber::core::text::escaped;
use comfy_table::{ContentArrangement, Table, TableStyle};
use indicatif::ProgressBar;
use serde::Serialize;

use super::failure::{Exit, Failure, Outcome};

/// The longest cell of a table, in characters.
const CELL_LENGTH: usize = 100;
/// How long a command stays quiet before it shows that it works.
const QUIET: Duration = Duration::from_secs(1);

/// Where a command prints, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    /// One line.
    pub(crate) fn line(self, text: impl Display) -> Outcome {
        write_out(&format!("{text}\n"))
    }

    /// A line beside the output, for people only.
    pub(crate) fn note(self, text: &str) {
        if !self.json {
            complain(text);
        }
    }

    /// A document on one line, so that many of them can be read line by line.
    pub(crate) fn document(self, document: &impl Serialize) -> Outcome {
        let mut text = serde_json::to_string(document)
            .map_err(|error| Failure::new(Exit::Failure, format!("the answer cannot be written: {error}")))?;
        text.push('\n');
        write_out(&text)
    }

    /// A table, or one line that says why there is none.
    pub(crate) fn table(self, headers: &[&str], rows: Vec<Vec<String>>, empty: &str) -> Outcome {
        if rows.is_empty() {
            return self.line(empty);
        }
        let mut table = Table::new();
        table
            .load_style(TableStyle::new())
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(headers.to_vec());
        for row in rows {
            table.add_row(row);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        self.line(lines.join("\n"))
    }

    /// Names with their values, one a line; empty values are left out.
    pub(crate) fn pairs(self, pairs: &[(&str, String)]) -> Outcome {
        let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
            self.line(format_args!("{name:width$}  {value}"))?;
        }
        Ok(())
    }
}

/// Foreign text for a cell of a table.
pub(crate) fn cell(text: &str) -> String {
    escaped(text, CELL_LENGTH)
}

/// Foreign text that may be longer, on one line.
pub(crate) fn long(text: &str) -> String {
    escaped(text, 4_000)
}

/// A time for people, or nothing.
pub(crate) fn time(at: Option<&str>) -> String {
    // RFC 3339 in UTC; people need no fractions of a second.
    at.map(|at| match at.split_once('.') {
        Some((seconds, _)) => format!("{}Z", seconds.replace('T', " ")),
        None => at.replace('T', " "),
    })
    .unwrap_or_default()
}

/// Writes to standard output. A reader that has gone away ends the command without a complaint.
fn write_out(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::io("the output cannot be written", &error)),
    }
}

/// Writes a line to standard error.
pub(crate) fn complain(text: &str) {
    // Nothing is left to tell if even this cannot be written.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Waits for `work`, and shows on a terminal that it goes on when it takes longer than a second. An interrupt drops
/// the work, which cancels it wherever it goes on, and is a failure of its own.
pub(crate) async fn with_progress<T>(what: &str, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::select! {
        done = show_progress(what, work) => done,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.map_err(|error| Failure::io("signals cannot be received", &error))?;
            Err(Failure::new(Exit::Interrupted, format!("{what}: interrupted")))
        }
    }
}

async fn show_progress<T>(what: &str, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let mut work = pin!(work);
    tokio::select! {
        done = &mut work => return done,
        () = tokio::time::sleep(QUIET) => {}
    }
    let bar = ProgressBar::new_spinner().with_message(escaped(what, CELL_LENGTH));
    bar.enable_steady_tick(Duration::from_millis(120));
    let _clear = ClearOnDrop(&bar);
    work.await
}

/// Takes the progress away, also when the work was interrupted.
struct ClearOnDrop<'a>(&'a ProgressBar);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lose_their_fractions() {
        assert_eq!(time(Some("2026-11-30T12:00:01.123456Z")), "2026-11-30 12:00:01Z");
        assert_eq!(time(Some("2026-11-30T12:00:01Z")), "2026-11-30 12:00:01Z");
        assert_eq!(time(None), "");
    }

    #[test]
    fn cells_are_bounded_and_escaped() {
        let text = cell(&format!("a\u{1b}[2J{}", "x".repeat(200)));
        assert!(text.starts_with("a\\u{1b}[2J") && text.ends_with('…'), "{text}");
    }
}
