//! Servers that are child processes.

use caliber_core::readiness::{Boundary, Control, Readiness};
use caliber_core::reason::ReasonCode;
use caliber_core::server::{StdioEndpoint, is_environment_key};
use caliber_core::text::shown;

use super::{block, list, verdict, warn};
use crate::settings::{PYTHON, PolicySettings, Resolved, is_refused_variable};

/// Judges a child process. Whatever isolates it here is containment: no such boundary counts for production.
pub(super) fn judge(
    settings: &PolicySettings,
    endpoint: &StdioEndpoint,
    resolved: Resolved<'_>,
) -> Readiness {
    let mut verdict = boundary(settings);
    check_command(settings, endpoint, resolved, &mut verdict);
    check_environment(settings, endpoint, &mut verdict);
    verdict
}

fn boundary(settings: &PolicySettings) -> Readiness {
    let isolation = &settings.isolation;
    let mut controls = vec![
        Control::NoShell,
        Control::SanitizedEnvironment,
        Control::CommandAllowlist,
    ];
    if settings.isolated_workdir {
        controls.push(Control::PrivateWorkingDirectory);
    }
    let mut verdict = if isolation.is_bubblewrap() {
        controls.extend([
            Control::VerifiedNamespaceProfile,
            Control::NetworkNamespace,
            Control::ReadOnlyHostRoot,
        ]);
        let mut verdict = verdict(Boundary::Bubblewrap, controls);
        warn(
            &mut verdict,
            ReasonCode::NotIsolated,
            "the process can read the files of this machine: containment, and no boundary for production",
        );
        verdict
    } else if isolation.prefix.is_empty() {
        let mut verdict = verdict(Boundary::LocalContainment, controls);
        warn(
            &mut verdict,
            ReasonCode::NotIsolated,
            if settings.namespaces {
                "the process shares the kernel of this machine, and its network where no network namespace is enforced: \
                 containment, and no boundary for production"
            } else {
                "the process shares files and network of this machine: containment, and no boundary for production"
            },
        );
        verdict
    } else {
        let mut verdict = verdict(Boundary::ExternalWrapper, controls);
        warn(
            &mut verdict,
            ReasonCode::WrapperUnverified,
            "a wrapper is configured that caliber cannot verify, so nothing is claimed for it",
        );
        verdict
    };
    if !settings.isolated_workdir {
        warn(
            &mut verdict,
            ReasonCode::NotIsolated,
            "the process works in a folder that it shares with others, because the operator says so",
        );
    }
    if let Err(error) = isolation.validate() {
        block(
            &mut verdict,
            ReasonCode::IsolationMisconfigured,
            format!("the wrapper of stdio servers cannot be started: {error}"),
        );
    }
    verdict
}

fn check_command(
    settings: &PolicySettings,
    endpoint: &StdioEndpoint,
    resolved: Resolved<'_>,
    verdict: &mut Readiness,
) {
    let command = endpoint.command.as_str();
    if command.trim().is_empty() {
        block(
            verdict,
            ReasonCode::EndpointMissing,
            "no command is given; name an executable",
        );
        return;
    }
    let is_relative = command.contains('/') && !command.starts_with('/');
    let mut rules = settings
        .launch
        .iter()
        .filter(|rule| !is_relative && rule.validate().is_ok() && rule.is_about(command, resolved))
        .peekable();
    if rules.peek().is_none() {
        let advice = if is_relative {
            "write an absolute path"
        } else if command == PYTHON {
            "let the operator allow it with its module or script"
        } else if resolved.is_python {
            "write `${PYTHON}`, and let the operator allow the module or script"
        } else {
            "the operator can add a launch rule for it"
        };
        let command = shown(command);
        block(
            verdict,
            ReasonCode::CommandNotAllowed,
            format!("the command {command} is not on the allowlist; {advice}"),
        );
        return;
    }
    if !rules.any(|rule| rule.fits(&endpoint.args, resolved)) {
        let advice = if command == PYTHON {
            "begin with `-m` and an allowed module, or with the absolute path of an allowed script"
        } else {
            "the operator can add a launch rule with them"
        };
        let command = shown(command);
        block(
            verdict,
            ReasonCode::ArgumentsNotAllowed,
            format!("the command {command} is allowed, but not with these arguments; {advice}"),
        );
    }
    if resolved.executable.is_none() {
        let command = shown(command);
        block(
            verdict,
            ReasonCode::ExecutableNotFound,
            format!("the command {command} is no executable file here; install it, or correct the path"),
        );
    }
}

fn check_environment(settings: &PolicySettings, endpoint: &StdioEndpoint, verdict: &mut Readiness) {
    let keys = || endpoint.env.keys().map(String::as_str);
    let is_open = |key: &str| settings.environment.iter().any(|pattern| pattern.matches(key));
    // One canonical parser first: a key with a space around it must not be another key to the rules behind.
    if let Some(keys) = list(keys().filter(|key| !is_environment_key(key))) {
        block(
            verdict,
            ReasonCode::EnvironmentNotAllowed,
            format!("{keys} is no name of an environment variable; use letters, digits and _"),
        );
    }
    let valid = || keys().filter(|key| is_environment_key(key));
    if let Some(keys) = list(valid().filter(|key| is_refused_variable(key))) {
        block(
            verdict,
            ReasonCode::EnvironmentNotAllowed,
            format!(
                "{keys} decides what a process loads or runs, and is refused for every server; remove it"
            ),
        );
    }
    if let Some(keys) = list(valid().filter(|key| !is_refused_variable(key) && !is_open(key))) {
        block(
            verdict,
            ReasonCode::EnvironmentNotAllowed,
            format!("{keys} is not on the allowlist of environment variables; the operator can add it"),
        );
    }
}
