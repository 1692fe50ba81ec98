//! From what a probe found to what is reported, and from what is reported to a refusal.

use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{Enforcement, SandboxReport};
use caliber_core::{Error, ErrorKind};

/// The refusal of a sandbox whose report says that nothing may run; `None` when something may.
pub(crate) fn refusal(report: &SandboxReport) -> Option<Error> {
    if report.is_available() {
        return None;
    }
    let missing = report.missing();
    let mut message = match &report.problem {
        Some(problem) => format!("no code tool runs here: {problem}"),
        None => {
            let names: Vec<_> = missing.iter().map(|guarantee| guarantee.as_str()).collect();
            format!(
                "no code tool runs here: what the settings require does not hold ({})",
                names.join(", ")
            )
        }
    };
    let remedy = missing
        .iter()
        .find_map(|guarantee| match report.guarantees.get(guarantee) {
            Some(Enforcement::NotEnforced { remedy, .. }) if !remedy.is_empty() => Some(remedy),
            Some(Enforcement::Partial { gaps, .. }) => gaps.last(),
            _ => None,
        });
    if let (None, Some(remedy)) = (&report.problem, remedy) {
        message.push_str("; ");
        message.push_str(remedy);
    }
    Some(Error::new(ErrorKind::Unavailable, message).with_reason(ReasonCode::SandboxUnavailable))
}
