//! Everything that anybody was shown, to be searched at the end.

use std::error::Error as _;
use std::fmt::Debug;
use std::path::Path;

use crate::support::command::Said;
use crate::support::oracles::holds;
use crate::support::{Reply, assert_absent};

/// Texts with where each was seen.
#[derive(Debug, Default)]
pub(super) struct Sightings(Vec<(String, Vec<u8>)>);

impl Sightings {
    pub(super) fn text(&mut self, what: impl Into<String>, text: impl AsRef<[u8]>) {
        self.0.push((what.into(), text.as_ref().to_vec()));
    }

    /// Both spellings of `Debug`.
    pub(super) fn debug(&mut self, what: &str, value: &impl Debug) {
        self.text(format!("Debug of {what}"), format!("{value:?} {value:#?}"));
    }

    /// An error with all its causes.
    pub(super) fn error(&mut self, what: &str, error: &caliber::Error) {
        self.text(
            format!("the error of {what}"),
            format!("{error} {error:?} {:?}", error.fields()),
        );
        let mut cause = error.source();
        while let Some(error) = cause {
            self.text(
                format!("a cause of the error of {what}"),
                format!("{error} {error:?}"),
            );
            cause = error.source();
        }
    }

    /// A value or an error.
    pub(super) fn outcome<T: Debug>(&mut self, what: &str, outcome: &caliber::Result<T>) {
        match outcome {
            Ok(value) => self.debug(what, value),
            Err(error) => self.error(what, error),
        }
    }

    /// An answer of the API, headers and body.
    pub(super) fn reply(&mut self, what: &str, reply: &Reply) {
        self.text(
            format!("{what} ({})", reply.status),
            format!("{:?}\n{}", reply.headers, reply.text),
        );
    }

    /// What the command printed, whichever way it ended.
    pub(super) fn said(&mut self, what: &[&str], said: &Said) {
        self.text(
            format!("caliber {} ({})", what.join(" "), said.code),
            format!("{}\n{}", said.stdout, said.stderr),
        );
    }

    /// The bytes of every file in a folder, and in those below it.
    pub(super) fn files(&mut self, folder: &Path) {
        for entry in std::fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                self.files(&path);
            } else {
                self.text(
                    format!("the file {}", path.display()),
                    std::fs::read(&path).expect("the file can be read"),
                );
            }
        }
    }

    /// Whether a text was seen anywhere: that the search looks at something.
    pub(super) fn has(&self, text: &str) -> bool {
        self.0.iter().any(|(_, seen)| holds(seen, text.as_bytes()))
    }

    /// None of the canaries was seen.
    pub(super) fn assert_free_of(self, canaries: &[&str]) {
        assert!(self.0.len() > 20, "only {} texts were gathered", self.0.len());
        assert_absent(canaries, self.0);
    }
}
