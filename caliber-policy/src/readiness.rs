//! May this server be started or dialled, and what isolates it?

use caliber_core::readiness::{Boundary, Control, EndpointFacts, Readiness, ReadinessFacts};
use caliber_core::reason::{Reason, ReasonCode};
use caliber_core::server::{Endpoint, ServerDefinition};
use caliber_core::text::{escaped, shown};

use crate::admission::REASON_LENGTH;
use crate::settings::{PolicySettings, SecretRules};

mod remote;
mod stdio;

/// The most names that one reason lists.
const NAMES_LISTED: usize = 8;

/// Judges one server by what its admin wrote and by what the machine says about it. It collects everything that
/// stands against the server, so that it can be repaired at once.
pub fn readiness(settings: &PolicySettings, facts: &ReadinessFacts) -> Readiness {
    let definition = &facts.definition;
    let mut verdict = match (&definition.endpoint, &facts.endpoint) {
        (
            Endpoint::Stdio(endpoint),
            EndpointFacts::Stdio {
                executable,
                is_python,
                script,
            },
        ) => {
            let resolved = crate::settings::Resolved {
                executable: executable.as_deref(),
                is_python: *is_python,
                script: script.as_deref(),
            };
            stdio::judge(settings, endpoint, resolved)
        }
        (
            Endpoint::StreamableHttp(endpoint) | Endpoint::Sse(endpoint),
            EndpointFacts::Remote { addresses },
        ) => remote::judge(settings, &endpoint.url, addresses.as_deref().unwrap_or_default()),
        (endpoint, _) => contradiction(endpoint),
    };
    check_secrets(&settings.secrets, definition, &mut verdict);
    verdict
}

/// What the machine says belongs to another kind of endpoint, or to one that is not known here.
fn contradiction(endpoint: &Endpoint) -> Readiness {
    let boundary = match endpoint {
        Endpoint::Stdio(_) => Boundary::LocalContainment,
        _ => Boundary::RemoteTransport,
    };
    let mut verdict = verdict(boundary, Vec::new());
    block(
        &mut verdict,
        ReasonCode::PolicyError,
        "nothing can be said: what is known of the machine is about another transport",
    );
    verdict
}

/// Names the fields, never what they refer to: a path or a variable of ours is nothing for everybody.
fn check_secrets(rules: &SecretRules, definition: &ServerDefinition, verdict: &mut Readiness) {
    let values = definition.config_values();
    let refused = values
        .iter()
        .filter(|(_, value)| value.reference().is_some_and(|reference| !rules.allow(reference)))
        .map(|(field, _)| field.as_str());
    if let Some(fields) = list(refused) {
        block(
            verdict,
            ReasonCode::SecretNotAllowed,
            format!(
                "{fields} refers to an environment variable or a file that may not be referred to; give the value \
                 itself, which is stored encrypted, or let the operator open the reference"
            ),
        );
    }
}

fn verdict(boundary: Boundary, controls: Vec<Control>) -> Readiness {
    Readiness {
        boundary,
        controls,
        blockers: Vec::new(),
        warnings: Vec::new(),
    }
}

fn block(verdict: &mut Readiness, code: ReasonCode, text: impl AsRef<str>) {
    verdict.blockers.push(reason(code, text.as_ref()));
}

fn warn(verdict: &mut Readiness, code: ReasonCode, text: impl AsRef<str>) {
    verdict.warnings.push(reason(code, text.as_ref()));
}

fn reason(code: ReasonCode, text: &str) -> Reason {
    Reason::new(code, escaped(text, REASON_LENGTH))
}

/// The names with commas between them, the first few of them; `None` when there are none.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut listed = Vec::new();
    let mut more = 0;
    for name in names {
        if listed.len() < NAMES_LISTED {
            listed.push(shown(name));
        } else {
            more += 1;
        }
    }
    if listed.is_empty() {
        return None;
    }
    let mut text = listed.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    Some(text)
}
