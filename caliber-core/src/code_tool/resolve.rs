//! From a reference and a constraint to one version.

use super::{CodeToolStatus, CodeToolSummary, ToolReference, VersionConstraint};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ProjectId;
use crate::reason::{Reason, ReasonCode};
use crate::server::Visibility;
use crate::text::shown;

/// The most versions that an error lists.
const LISTED: usize = 20;

/// What a reference stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The version.
    pub tool: CodeToolSummary,
    /// What whoever uses it should know: that it is deprecated, and what to use instead.
    pub warning: Option<Reason>,
}

/// Chooses among `candidates`, which are versions that the caller may see, for a workflow of `project`.
///
/// Only versions of the project and public ones of others count. When the project has a family of this name, only
/// that one does: nobody can put a newer version in front of it by publishing the same name elsewhere. Archived
/// versions never win, an active one beats every deprecated one, then the highest version wins. It reads nothing but
/// its arguments.
///
/// # Errors
///
/// `NotFound` with [`ToolUnresolved`](ReasonCode::ToolUnresolved) when there is no such family, or none of its
/// versions fits; then the text lists those that there are.
pub fn resolve(
    candidates: &[CodeToolSummary],
    project: &ProjectId,
    reference: &ToolReference,
    constraint: &VersionConstraint,
) -> Result<Resolved> {
    let of_family = candidates.iter().filter(|tool| tool.family == reference.family);
    let (own, others): (Vec<_>, Vec<_>) = of_family.partition(|tool| tool.project == *project);
    let family: Vec<_> = if own.is_empty() {
        let public = |tool: &&CodeToolSummary| tool.visibility == Visibility::Public;
        others.into_iter().filter(public).collect()
    } else {
        own
    };
    if family.is_empty() {
        return Err(unresolved(format!(
            "there is no code tool {}; register it, or look for its name in the list",
            shown(reference.family.as_str())
        )));
    }
    let usable = || {
        family
            .iter()
            .filter(|tool| tool.status != CodeToolStatus::Archived)
    };
    let fitting =
        usable().filter(|tool| reference.accepts(&tool.version) && constraint.accepts(&tool.version));
    // The identifier decides what a store should never let happen: the same version twice.
    let best = fitting.max_by_key(|tool| (tool.status == CodeToolStatus::Active, &tool.version, &tool.id));
    match best {
        Some(tool) => Ok(Resolved {
            tool: (*tool).clone(),
            warning: warning(tool, candidates),
        }),
        None => Err(unresolved(nothing_fits(
            usable().copied().collect(),
            reference,
            constraint,
        ))),
    }
}

fn unresolved(text: String) -> Error {
    Error::new(ErrorKind::NotFound, text).with_reason(ReasonCode::ToolUnresolved)
}

fn nothing_fits(
    mut available: Vec<&CodeToolSummary>,
    reference: &ToolReference,
    constraint: &VersionConstraint,
) -> String {
    available.sort_by(|one, two| two.version.cmp(&one.version));
    let mut listed: Vec<_> = available
        .iter()
        .take(LISTED)
        .map(|tool| match tool.status {
            CodeToolStatus::Deprecated => format!("{} (deprecated)", tool.version),
            _ => tool.version.to_string(),
        })
        .collect();
    if available.len() > LISTED {
        listed.push(format!("{} more", available.len() - LISTED));
    }
    if listed.is_empty() {
        listed.push("none, all are archived".to_owned());
    }
    let wanted = match constraint.as_str() {
        "" => "any version".to_owned(),
        text => shown(text),
    };
    format!(
        "no version of {} fits {wanted}; available: {}",
        shown(&reference.to_string()),
        listed.join(", ")
    )
}

fn warning(tool: &CodeToolSummary, candidates: &[CodeToolSummary]) -> Option<Reason> {
    if tool.status != CodeToolStatus::Deprecated {
        return None;
    }
    let successor = candidates
        .iter()
        .filter(|other| other.status != CodeToolStatus::Archived)
        .find(|other| tool.successor.as_ref() == Some(&other.id));
    let instead = match (successor, &tool.successor) {
        (Some(successor), _) => format!("use {} {}", successor.family, successor.version),
        (None, Some(id)) => format!("use {id}"),
        (None, None) => "no successor is named".to_owned(),
    };
    Some(Reason::new(
        ReasonCode::ToolDeprecated,
        format!("{} {} is deprecated; {instead}", tool.family, tool.version),
    ))
}
