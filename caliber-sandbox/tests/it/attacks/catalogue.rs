//! The list of attacks: each row of the design's list with what must come of it, and how it is shown that it would work.

mod files;
mod kernel;
mod network;
mod processes;
mod resources;
mod results;

use std::time::Duration;

use caliber_core::sandbox::{Guarantee, RunLimits, RunOutcome, RunStatus};
use caliber_sandbox::linux::layers::Layers;
use serde_json::{Value, json};

use super::cell::Cell;
use super::control::Control;
use super::host::Touch;

/// The last row of the list.
pub(crate) const ROWS: u8 = 67;

/// Words in the answer of an attack.
const WON: &str = "won";
const WORKS: &str = "works";
/// What an attack may tell of an attempt that was held: an error of the system, or one of these.
const HELD: &[&str] = &[
    "nothing",
    "killed",
    "absent",
    "RuntimeError",
    "MemoryError",
    "ValueError",
    "timeout",
    "TimeoutError",
];

/// One attack.
pub(crate) struct Attack {
    pub(crate) row: u8,
    pub(crate) module: &'static str,
    pub(crate) callable: &'static str,
    /// What it is told besides the facts about the host.
    pub(crate) more: Value,
    pub(crate) limits: RunLimits,
    /// How long it may take inside.
    pub(crate) timeout: Duration,
    pub(crate) required: Required,
    pub(crate) control: Control,
    /// Held by namespaces or a control group only: what is left of it without them.
    pub(crate) needs: Needs,
}

/// Layers without which an attack is not held, which the report then says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Landlock and the system call filter do.
    Nothing,
    Namespaces,
    ControlGroup,
}

/// What must come of it.
pub(crate) enum Required {
    /// It returns, none of its attempts won, and what must work works.
    Held,
    /// As `Held`, or it was killed by a signal.
    HeldOrKilled,
    /// It ends in the way that is described.
    Ends(&'static str, fn(&RunOutcome) -> bool),
}

/// A sequence of calls that is more than one attack.
pub(crate) struct Scenario {
    pub(crate) row: u8,
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Cell),
}

pub(crate) fn attacks() -> Vec<Attack> {
    let mut all = files::attacks();
    all.extend(processes::attacks());
    all.extend(network::attacks());
    all.extend(kernel::attacks());
    all.extend(resources::attacks());
    all.extend(results::attacks());
    all
}

/// An attack that must be held, and that wins as a plain child.
fn attack(row: u8, module: &'static str, callable: &'static str) -> Attack {
    Attack {
        row,
        module,
        callable,
        more: json!({}),
        limits: RunLimits::default(),
        timeout: Duration::from_secs(20),
        required: Required::Held,
        control: Control::WINS,
        needs: Needs::Nothing,
    }
}

impl Attack {
    pub(crate) fn name(&self) -> String {
        format!("row {} {}.{}", self.row, self.module, self.callable)
    }

    /// The promise that it would break.
    pub(crate) fn guarantee(&self) -> Option<Guarantee> {
        Some(match self.row {
            _ if self.callable == "change_metadata" => Guarantee::FsWrite,
            1..=3 | 7..=10 => Guarantee::FsRead,
            4 | 11 => Guarantee::FsWrite,
            13..=17 => Guarantee::ProcVisibility,
            18 | 20 => Guarantee::TreePids,
            19 | 21 | 44 | 46 => Guarantee::TreeKill,
            23..=25 | 28 => Guarantee::Net,
            26 | 27 | 29 => Guarantee::Ipc,
            22 | 30..=38 => Guarantee::SyscallSurface,
            40 => Guarantee::TreeMemory,
            _ => return None,
        })
    }

    /// What it may get to where the layers that hold it are not there.
    pub(crate) fn may_touch(&self, layers: &Layers) -> &'static [Touch] {
        match self.control {
            Control::Wins { touches, .. } if self.needs == Needs::Namespaces && !layers.namespaces => touches,
            _ => &[],
        }
    }

    fn more(mut self, more: Value) -> Self {
        self.more = more;
        self
    }

    fn timeout(mut self, seconds: u64) -> Self {
        self.timeout = Duration::from_secs(seconds);
        self
    }

    fn limits(mut self, limits: RunLimits) -> Self {
        self.limits = limits;
        self
    }

    fn ends(mut self, text: &'static str, is: fn(&RunOutcome) -> bool) -> Self {
        self.required = Required::Ends(text, is);
        self
    }

    fn may_be_killed(mut self) -> Self {
        self.required = Required::HeldOrKilled;
        self
    }

    fn control(mut self, control: Control) -> Self {
        self.control = control;
        self
    }

    /// Attempts that do not win as a plain child of an unprivileged user either, or not on every machine.
    fn except(mut self, attempts: &'static [&'static str]) -> Self {
        if let Control::Wins { except, .. } = &mut self.control {
            *except = attempts;
        }
        self
    }

    /// What of the host the plain child gets to.
    fn touches(mut self, expected: &'static [Touch]) -> Self {
        if let Control::Wins { touches, .. } = &mut self.control {
            *touches = expected;
        }
        self
    }

    /// The plain child is root in a user namespace of its own.
    fn in_own_namespace(mut self) -> Self {
        if let Control::Wins { namespace_root, .. } = &mut self.control {
            *namespace_root = true;
        }
        self
    }

    fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    /// What is wrong with `outcome`.
    pub(crate) fn judge(&self, outcome: &RunOutcome) -> Result<(), String> {
        match (&self.required, &outcome.status) {
            (Required::Ends(text, is), _) => match is(outcome) {
                true => Ok(()),
                false => Err(format!("it must end thus: {text}")),
            },
            (_, RunStatus::Ok { value }) => judge_answer(value.as_str()),
            (
                Required::HeldOrKilled,
                RunStatus::NoResult {
                    exit: caliber_core::sandbox::Exit::Signal(_),
                    ..
                },
            ) => Ok(()),
            _ => Err("it must return what it found".into()),
        }
    }
}

/// Every attempt was held, and by the sandbox rather than by a mistake in the attack.
pub(crate) fn judge_answer(text: &str) -> Result<(), String> {
    let answer: serde_json::Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("its answer is no object of words: {error}"))?;
    for (attempt, word) in &answer {
        let word = word.as_str().unwrap_or_default();
        let is_error = word.starts_with('E')
            && word
                .chars()
                .all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit());
        if attempt.starts_with('_') || is_error || word == WORKS || HELD.contains(&word) {
            continue;
        }
        return Err(format!("{attempt}: {word}"));
    }
    Ok(())
}

/// Which attempts won.
pub(crate) fn won(answer: &Value) -> Vec<&str> {
    let words = answer.as_object().into_iter().flatten();
    words
        .filter(|(_, word)| *word == WON || *word == WORKS)
        .map(|(attempt, _)| attempt.as_str())
        .collect()
}
