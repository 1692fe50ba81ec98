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
    let has_pre_release = available.iter().any(|tool| !tool.version.semver().pre.is_empty());
    let note = if has_pre_release {
        "; a pre-release fits only where the constraint names one"
    } else {
        ""
    };
    format!(
        "no version of {} fits {wanted}; available: {}{note}",
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::code_tool::{FamilyName, ToolVersion};
    use crate::digest::ContentHash;
    use crate::id::CodeToolId;
    use crate::policy::SideEffectLevel;
    use crate::registry::Revision;

    const VERSIONS: [&str; 9] = [
        "0.9.0",
        "1.0.0-rc.1",
        "1.0.0",
        "1.1.0",
        "1.10.0",
        "2.0.0-alpha",
        "2.0.0-beta",
        "2.0.0",
        "10.0.0",
    ];
    const CONSTRAINTS: [&str; 9] = [
        "",
        "latest",
        "^1",
        "~=1.0",
        "==1.0",
        ">=1.0.0-rc.1,<1.1",
        "!=2.0.0",
        ">=2.0.0-alpha",
        "==7",
    ];

    fn tool(family: &str, version: &str, project: &str) -> CodeToolSummary {
        let now = SystemClock.now();
        CodeToolSummary {
            id: CodeToolId::new(),
            revision: Revision(1),
            family: family.parse().unwrap(),
            version: version.parse().unwrap(),
            description: String::new(),
            runtime: "python".to_owned(),
            side_effect_level: SideEffectLevel::Read,
            requires_approval: false,
            allow_in_preview: false,
            content_hash: ContentHash::of(version.as_bytes()),
            status: CodeToolStatus::Active,
            deprecated_at: None,
            successor: None,
            owner: "ada".parse().unwrap(),
            project: project.parse().unwrap(),
            visibility: Visibility::Project,
            created_at: now,
            updated_at: now,
        }
    }

    fn find(candidates: &[CodeToolSummary], reference: &str, constraint: &str) -> Result<Resolved> {
        let (reference, constraint) = (reference.parse().unwrap(), constraint.parse().unwrap());
        resolve(candidates, &"home".parse().unwrap(), &reference, &constraint)
    }

    fn version(candidates: &[CodeToolSummary], reference: &str, constraint: &str) -> String {
        find(candidates, reference, constraint)
            .unwrap()
            .tool
            .version
            .to_string()
    }

    #[test]
    fn the_highest_active_version_wins() {
        let mut tools: Vec<_> = VERSIONS
            .iter()
            .map(|version| tool("weather", version, "home"))
            .collect();
        assert_eq!(version(&tools, "weather", ""), "10.0.0");
        assert_eq!(version(&tools, "tool.weather.v1", ""), "1.10.0");
        assert_eq!(
            version(&tools, "tool.weather.v2", ">=2.0.0-alpha, <2.0.0"),
            "2.0.0-beta"
        );
        tools[8].status = CodeToolStatus::Deprecated;
        tools[7].status = CodeToolStatus::Archived;
        assert_eq!(
            version(&tools, "weather", ""),
            "1.10.0",
            "active beats deprecated"
        );
        let deprecated = find(&tools, "weather", ">2").unwrap();
        assert_eq!(deprecated.tool.version.to_string(), "10.0.0");
        let text = |resolved: &Resolved| resolved.warning.as_ref().map(|warning| warning.text.clone());
        assert!(text(&deprecated).unwrap().contains("no successor"));
        tools[8].successor = Some(tools[4].id.clone());
        assert!(
            text(&find(&tools, "weather", ">2").unwrap())
                .unwrap()
                .contains("use weather 1.10.0")
        );
        assert_eq!(find(&tools, "weather", "^1").unwrap().warning, None);
    }

    #[test]
    fn what_cannot_be_resolved_says_what_there_is() {
        let mut tools = vec![
            tool("weather", "1.9.0", "home"),
            tool("weather", "1.10.0", "home"),
        ];
        tools[0].status = CodeToolStatus::Deprecated;
        let error = find(&tools, "tool.weather.v2", "<=2").unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::NotFound, Some(ReasonCode::ToolUnresolved))
        );
        assert!(
            error
                .to_string()
                .contains("available: 1.10.0, 1.9.0 (deprecated)"),
            "{error}"
        );
        assert!(
            find(&tools, "other", "")
                .unwrap_err()
                .to_string()
                .contains("no code tool `other`")
        );
        let many: Vec<_> = (0..30)
            .map(|n| tool("weather", &format!("1.{n}.0"), "home"))
            .collect();
        let error = find(&many, "weather", "2").unwrap_err();
        assert!(error.to_string().ends_with("10 more"), "{error}");
        tools
            .iter_mut()
            .for_each(|tool| tool.status = CodeToolStatus::Archived);
        assert!(
            find(&tools, "weather", "")
                .unwrap_err()
                .to_string()
                .contains("all are archived")
        );
    }

    #[test]
    fn nobody_puts_a_version_in_front_of_the_projects_own() {
        let own = tool("weather", "1.0.0", "home");
        let mut public = tool("weather", "9.0.0", "elsewhere");
        let hidden = [public.clone()];
        assert!(find(&hidden, "weather", "").is_err());
        public.visibility = Visibility::Public;
        assert_eq!(version(&[public.clone()], "weather", ""), "9.0.0");
        let both = [public, own];
        assert_eq!(version(&both, "weather", ""), "1.0.0");
        assert!(find(&both, "weather", "9").is_err());
    }

    /// Which versions of PEP 440 and Cargo each of [`CONSTRAINTS`] accepts, written out by hand.
    fn naive_accepts(constraint: &str, version: &str) -> bool {
        let stable = !version.contains('-');
        match constraint {
            "" | "latest" => stable,
            "^1" | "~=1.0" => ["1.0.0", "1.1.0", "1.10.0"].contains(&version),
            "==1.0" => version == "1.0.0",
            ">=1.0.0-rc.1,<1.1" => ["1.0.0-rc.1", "1.0.0"].contains(&version),
            "!=2.0.0" => stable && version != "2.0.0",
            ">=2.0.0-alpha" => ["2.0.0-alpha", "2.0.0-beta", "2.0.0", "10.0.0"].contains(&version),
            _ => false,
        }
    }

    /// The same question answered in another way: everything that may not win is taken out, one rule after the other,
    /// and what beats all that is left wins.
    fn naive(
        candidates: &[CodeToolSummary],
        family: &str,
        major: Option<u64>,
        constraint: &str,
    ) -> Option<CodeToolId> {
        let home: ProjectId = "home".parse().unwrap();
        let mut left: Vec<&CodeToolSummary> = candidates.iter().collect();
        left.retain(|tool| tool.family.as_str() == family);
        if left.iter().any(|tool| tool.project == home) {
            left.retain(|tool| tool.project == home);
        }
        left.retain(|tool| tool.project == home || tool.visibility == Visibility::Public);
        left.retain(|tool| tool.status != CodeToolStatus::Archived);
        left.retain(|tool| {
            major.is_none_or(|major| tool.version.to_string().starts_with(&format!("{major}.")))
        });
        left.retain(|tool| naive_accepts(constraint, &tool.version.to_string()));
        if left.iter().any(|tool| tool.status == CodeToolStatus::Active) {
            left.retain(|tool| tool.status == CodeToolStatus::Active);
        }
        // The position in the list of versions is the order.
        let rank = |tool: &CodeToolSummary| {
            let text = tool.version.to_string();
            VERSIONS.iter().position(|version| *version == text)
        };
        left.sort_by_key(|tool| rank(tool));
        left.last().map(|tool| tool.id.clone())
    }

    /// A set of versions, each once in its project, as a store keeps them.
    fn candidates() -> impl Strategy<Value = Vec<CodeToolSummary>> {
        let one = (0..VERSIONS.len(), 0..5_u8, 0..5_u8, 0..5_u8, 0..4_u8);
        proptest::collection::vec(one, 0..12).prop_map(|drawn| {
            let mut tools: Vec<CodeToolSummary> = Vec::new();
            for (version, family, project, status, visibility) in drawn {
                let family = if family == 0 { "other" } else { "weather" };
                let project = ["elsewhere", "home", "home", "elsewhere", "elsewhere"][usize::from(project)];
                let mut new = tool(family, VERSIONS[version], project);
                new.status = match status {
                    0 => CodeToolStatus::Archived,
                    1 | 2 => CodeToolStatus::Deprecated,
                    _ => CodeToolStatus::Active,
                };
                new.visibility = match visibility {
                    0 => Visibility::User,
                    1 => Visibility::Project,
                    _ => Visibility::Public,
                };
                let key = |tool: &CodeToolSummary| -> (FamilyName, ProjectId, ToolVersion) {
                    (tool.family.clone(), tool.project.clone(), tool.version.clone())
                };
                if !tools.iter().any(|tool| key(tool) == key(&new)) {
                    tools.push(new);
                }
            }
            tools
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_agrees_with_a_naive_resolver(
            tools in candidates(),
            major in proptest::option::weighted(0.3, 0..3_u64),
            constraint in proptest::sample::select(&CONSTRAINTS[..]),
        ) {
            let reference = ToolReference { family: "weather".parse().unwrap(), major };
            let found = resolve(&tools, &"home".parse().unwrap(), &reference, &constraint.parse().unwrap());
            let expected = naive(&tools, "weather", major, constraint);
            match found {
                Ok(resolved) => {
                    prop_assert_eq!(Some(resolved.tool.id), expected);
                    let warned = resolved.warning.is_some();
                    prop_assert_eq!(warned, resolved.tool.status == CodeToolStatus::Deprecated);
                }
                Err(error) => {
                    prop_assert_eq!(expected, None, "{}", error);
                    prop_assert_eq!(error.reason(), Some(ReasonCode::ToolUnresolved));
                }
            }
        }
    }
}
