//! Medians and rows.

use std::fmt;
use std::time::Duration;

/// One line of the table.
pub struct Row {
    what: &'static str,
    figure: String,
    target: String,
    /// `None` where nothing was measured.
    holds: Option<bool>,
}

impl Row {
    /// A figure that must not exceed `most`.
    pub fn at_most(what: &'static str, value: f64, unit: &str, most: f64, detail: String) -> Self {
        Self {
            what,
            figure: format!("{value:.2}{unit}{detail}"),
            target: format!("at most {most}{unit}"),
            holds: Some(value <= most),
        }
    }

    /// A figure that must reach `least`.
    pub fn at_least(what: &'static str, value: f64, unit: &str, least: f64, detail: String) -> Self {
        Self {
            what,
            figure: format!("{value:.0}{unit}{detail}"),
            target: format!("at least {least}{unit}"),
            holds: Some(value >= least),
        }
    }

    /// A figure that could not be taken here.
    pub fn skipped(what: &'static str, why: &str) -> Self {
        Self {
            what,
            figure: why.to_owned(),
            target: "-".into(),
            holds: None,
        }
    }

    /// Whether the target was missed. What was not measured neither holds nor misses.
    pub fn is_missed(&self) -> bool {
        self.holds == Some(false)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = match self.holds {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not measured",
        };
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
