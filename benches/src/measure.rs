//! Medians and rows.

use std::fmt;
use std::time::Duration;

/// One line of the table.
pub struct Row {
    what: &'static str,
    figure: String,
    target: String,
    holds: bool,
}

impl Row {
    /// A figure that must not exceed `most`.
    pub fn at_most(what: &'static str, value: f64, unit: &str, most: f64, detail: String) -> Self {
        Self {
            what,
            figure: format!("{value:.2}{unit}{detail}"),
            target: format!("at most {most}{unit}"),
            holds: value <= most,
        }
    }

    /// A figure that must reach `least`.
    pub fn at_least(what: &'static str, value: f64, unit: &str, least: f64, detail: String) -> Self {
        Self {
            what,
            figure: format!("{value:.0}{unit}{detail}"),
            target: format!("at least {least}{unit}"),
            holds: value >= least,
        }
    }

    /// A figure that could not be taken here.
    pub fn skipped(what: &'static str, why: &str) -> Self {
        Self {
            what,
            figure: format!("not measured: {why}"),
            target: "-".into(),
            holds: true,
        }
    }

    /// Whether the target holds.
    pub fn holds(&self) -> bool {
        self.holds
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = if self.holds { "yes" } else { "no" };
        write!(
            formatter,
            "| {} | {} | {} | {holds} |",
            self.what, self.figure, self.target
        )
    }
}

/// The middle of some times.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A time in microseconds.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
