//! What isolates a server, as a report: what is enforced, what is attested, what is not there.

use serde::{Deserialize, Serialize};

use super::{Boundary, Control, Readiness};
use crate::process::ContainmentMeasure;
use crate::reason::ReasonCode;

/// How a server is isolated, told without a claim that nobody checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundaryReport {
    /// The kind of boundary.
    pub boundary: Boundary,
    /// Whether a production deployment may rely on it. Local containment never counts.
    pub production_isolated: bool,
    /// What caliber enforces, as stable words: those of [`Control`] and the measures of the launcher.
    pub enforced: Vec<String>,
    /// What the operator says and caliber cannot see, one line each.
    pub attested: Vec<String>,
    /// What a boundary of this transport could have and this one has not, as stable words, some with a reason
    /// behind `: `.
    pub absent: Vec<String>,
}

impl BoundaryReport {
    /// The report of a verdict. `measures` are what the launcher does to a child process; they count for stdio only.
    pub fn new(readiness: &Readiness, measures: &[ContainmentMeasure]) -> Self {
        let boundary = readiness.boundary;
        let (possible, measures) = if boundary.is_child() {
            (CHILD, measures)
        } else {
            (REMOTE, &[][..])
        };
        // What the launcher has found out counts more than what it can be known to do without one.
        let possible: Vec<_> = possible
            .iter()
            .filter(|control| !measures.iter().any(|measure| measure.measure == control.as_str()))
            .collect();
        let is_enforced = |control: &&&Control| readiness.controls.contains(control);
        let word = |control: &&Control| control.as_str().to_owned();
        let mut enforced: Vec<_> = possible.iter().filter(is_enforced).map(word).collect();
        let mut absent: Vec<_> = possible
            .iter()
            .filter(|control| !is_enforced(control))
            .map(word)
            .collect();
        for measure in measures {
            if measure.enforced {
                enforced.push(measure.measure.clone());
            } else {
                absent.push(format!("{}: {}", measure.measure, measure.note));
            }
        }
        let attestations = readiness.warnings.iter().filter(|warning| {
            matches!(
                warning.code,
                ReasonCode::OperatorAttested | ReasonCode::WrapperUnverified
            )
        });
        Self {
            boundary,
            production_isolated: boundary.is_production_isolated(),
            enforced,
            attested: attestations.map(|warning| warning.text.clone()).collect(),
            absent,
        }
    }
}

/// What a child process can have.
const CHILD: &[Control] = &[
    Control::NoShell,
    Control::SanitizedEnvironment,
    Control::CommandAllowlist,
    Control::PrivateWorkingDirectory,
    Control::VerifiedNamespaceProfile,
    Control::NetworkNamespace,
    Control::ReadOnlyHostRoot,
];

/// What a remote server can have.
const REMOTE: &[Control] = &[Control::RemoteHostAllowlist, Control::PinnedAddress, Control::Tls];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readiness::Boundary;

    #[test]
    fn a_measure_of_the_launcher_stands_once() {
        let readiness = Readiness {
            boundary: Boundary::LocalContainment,
            controls: vec![Control::NoShell],
            blockers: Vec::new(),
            warnings: Vec::new(),
        };
        for enforced in [true, false] {
            let measure = ContainmentMeasure {
                measure: "network_namespace".to_owned(),
                enforced,
                note: "a note".to_owned(),
            };
            let report = BoundaryReport::new(&readiness, &[measure]);
            let about = |words: &[String]| {
                let found = words.iter().filter(|word| word.starts_with("network_namespace"));
                found.count()
            };
            assert_eq!(about(&report.enforced), usize::from(enforced));
            assert_eq!(about(&report.absent), usize::from(!enforced));
        }
    }
}
