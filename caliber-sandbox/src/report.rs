//! From what a probe found to what is reported, and from what is reported to a refusal.

use caliber_core::reason::ReasonCode;
use caliber_core::sandbox::{Enforcement, SandboxReport};
use caliber_core::{Error, ErrorKind};

/// Says in the log, once for a sandbox, that tools run without something that is required, because an operator lets them.
pub(crate) fn warn_of_unenforced(report: &SandboxReport) {
    let missing = report.missing();
    if !report.is_available() || missing.is_empty() {
        return;
    }
    let missing: Vec<_> = missing.iter().map(|guarantee| guarantee.as_str()).collect();
    tracing::warn!(
        backend = report.backend,
        missing = missing.join(", "),
        "code tools run although required guarantees do not hold: the settings allow it"
    );
}

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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::Mutex;

    use caliber_core::sandbox::Guarantee;

    use super::*;

    fn log_of(report: &SandboxReport) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let log = tracing_subscriber::fmt().with_writer(Mutex::new(writer)).finish();
        tracing::subscriber::with_default(log, || warn_of_unenforced(report));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn running_without_what_is_required_is_logged() {
        let mut report = SandboxReport {
            backend: "linux".into(),
            guarantees: Default::default(),
            required: vec![Guarantee::Net, Guarantee::TreeKill],
            interpreter: None,
            problem: None,
            unenforced_allowed: false,
        };
        // Nothing runs.
        assert_eq!(log_of(&report), "");
        report.unenforced_allowed = true;
        let log = log_of(&report);
        assert!(log.contains("WARN") && log.contains("net, tree_kill"), "{log}");
        assert_eq!(log.lines().count(), 1);
        report.required.clear();
        assert_eq!(log_of(&report), "");
    }
}
