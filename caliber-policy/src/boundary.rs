//! What isolates a server, as a report: what is enforced, what is attested, what is not there.

use caliber_core::process::ContainmentMeasure;
use caliber_core::readiness::{Boundary, Control, Readiness};
use caliber_core::reason::ReasonCode;
use serde::{Deserialize, Serialize};

/// How a server is isolated, told without a claim that nobody checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundaryReport {
    /// The kind of boundary.
    pub boundary: Boundary,
    /// Whether a production deployment may rely on it. Local containment never counts.
    pub production_isolated: bool,
    /// What caliber enforces, as stable words.
    pub enforced: Vec<String>,
    /// What the operator says and caliber cannot see, one line each.
    pub attested: Vec<String>,
    /// What a boundary of this transport could have and this one has not, as stable words, some with a reason
    /// behind `: `.
    pub absent: Vec<String>,
}

/// The report of a verdict. `measures` are what the launcher does to a child process; they count for stdio only.
pub fn boundary_report(readiness: &Readiness, measures: &[ContainmentMeasure]) -> BoundaryReport {
    let boundary = readiness.boundary;
    let (possible, measures) = match boundary {
        Boundary::LocalContainment | Boundary::ExternalWrapper | Boundary::Bubblewrap => (STDIO, measures),
        _ => (REMOTE, &[][..]),
    };
    let is_enforced = |control: &&Control| readiness.controls.contains(control);
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
    BoundaryReport {
        boundary,
        production_isolated: boundary.is_production_isolated(),
        enforced,
        attested: attestations.map(|warning| warning.text.clone()).collect(),
        absent,
    }
}

/// What a child process can have.
const STDIO: &[Control] = &[
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

/// The word of a control, as on the wire.
fn word(control: &Control) -> String {
    let word = match control {
        Control::NoShell => "no_shell",
        Control::SanitizedEnvironment => "sanitized_environment",
        Control::CommandAllowlist => "command_allowlist",
        Control::PrivateWorkingDirectory => "private_working_directory",
        Control::VerifiedNamespaceProfile => "verified_namespace_profile",
        Control::NetworkNamespace => "network_namespace",
        Control::ReadOnlyHostRoot => "read_only_host_root",
        Control::RemoteHostAllowlist => "remote_host_allowlist",
        Control::PinnedAddress => "pinned_address",
        Control::Tls => "tls",
        _ => "unknown",
    };
    word.to_owned()
}
