//! Pages of the reference registry, and what its lists show.

use std::fmt;
use std::str::FromStr;

use crate::audit::{AuditEntry, AuditQuery};
use crate::clock::Timestamp;
use crate::code_tool::CodeToolSummary;
use crate::error::{Error, Result};
use crate::page::{Page, PageRequest};
use crate::registry::{CodeToolQuery, ServerQuery};
use crate::server::ServerSummary;

/// The key that the last page ended with.
pub(super) fn after<K: FromStr>(page: &PageRequest) -> Result<Option<K>> {
    let foreign = |_| {
        Error::invalid(
            "cursor",
            "it does not come from a page of this list; begin without one",
        )
    };
    page.cursor
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(foreign)
}

/// The place of an audit entry in the list by time; the order of commits decides between entries of one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    /// When it was made, in microseconds.
    at: i64,
    /// Its place in the order of commits.
    pub(super) position: u64,
}

impl Moment {
    pub(super) fn new(at: Timestamp, position: u64) -> Self {
        Self {
            at: at.timestamp_micros(),
            position,
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.at, self.position)
    }
}

impl FromStr for Moment {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        let (at, position) = text.split_once('.').ok_or(())?;
        Ok(Self {
            at: at.parse().map_err(|_| ())?,
            position: position.parse().map_err(|_| ())?,
        })
    }
}

/// The first items of `rest`, each with its key.
pub(super) fn page<T>(rest: impl Iterator<Item = (String, T)>, page: &PageRequest) -> Page<T> {
    let limit = page.bounded_limit();
    let mut taken: Vec<_> = rest.take(limit + 1).collect();
    let more = taken.len() > limit;
    taken.truncate(limit);
    let next = if more {
        taken.last().map(|(key, _)| key.clone())
    } else {
        None
    };
    Page {
        items: taken.into_iter().map(|(_, item)| item).collect(),
        next,
    }
}

/// A page of what sorts by time, the oldest first.
pub(super) fn oldest_first<'a, K, T>(
    all: impl Iterator<Item = (&'a K, &'a T)>,
    request: &PageRequest,
) -> Result<Page<T>>
where
    K: FromStr + Ord + ToString + 'a,
    T: Clone + 'a,
{
    let after: Option<K> = after(request)?;
    let rest = all.filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after));
    Ok(page(
        rest.map(|(key, item)| (key.to_string(), item.clone())),
        request,
    ))
}

/// A page of what sorts by time, the newest first.
pub(super) fn newest_first<'a, K, T>(
    all: impl DoubleEndedIterator<Item = (&'a K, &'a T)>,
    request: &PageRequest,
) -> Result<Page<T>>
where
    K: FromStr + Ord + ToString + 'a,
    T: Clone + 'a,
{
    let after: Option<K> = after(request)?;
    let rest = all
        .rev()
        .filter(|(key, _)| after.as_ref().is_none_or(|after| *key < after));
    Ok(page(
        rest.map(|(key, item)| (key.to_string(), item.clone())),
        request,
    ))
}

/// Whether a list of servers shows `server`.
pub(super) fn matches(query: &ServerQuery, server: &ServerSummary) -> bool {
    let ServerQuery {
        viewer,
        status,
        failing,
        transport,
        text,
    } = query;
    let holds = |text: &String| {
        let text = text.to_ascii_lowercase();
        [server.name.as_str(), &server.description, &server.location]
            .into_iter()
            .any(|place| place.to_ascii_lowercase().contains(&text))
    };
    viewer
        .as_ref()
        .is_none_or(|viewer| viewer.sees(&server.owner, &server.project, server.visibility))
        && status.is_none_or(|status| status == server.status)
        && failing.is_none_or(|failing| failing == server.connection_error.is_some())
        && transport
            .as_ref()
            .is_none_or(|transport| *transport == server.transport)
        && text.as_ref().is_none_or(holds)
}

/// Whether a list of code tools shows `tool`.
pub(super) fn matches_code_tool(query: &CodeToolQuery, tool: &CodeToolSummary) -> bool {
    let CodeToolQuery {
        viewer,
        family,
        project,
        status,
        visibility,
        text,
    } = query;
    let holds = |text: &String| {
        let text = text.to_ascii_lowercase();
        [tool.family.as_str(), &tool.description]
            .into_iter()
            .any(|place| place.to_ascii_lowercase().contains(&text))
    };
    viewer
        .as_ref()
        .is_none_or(|viewer| viewer.sees(&tool.owner, &tool.project, tool.visibility))
        && family.as_ref().is_none_or(|family| *family == tool.family)
        && project.as_ref().is_none_or(|project| *project == tool.project)
        && status.is_none_or(|status| status == tool.status)
        && visibility.is_none_or(|visibility| visibility == tool.visibility)
        && text.as_ref().is_none_or(holds)
}

/// Whether a query of the trail asks for `entry`.
pub(super) fn matches_entry(query: &AuditQuery, entry: &AuditEntry) -> bool {
    let AuditQuery {
        entity_type,
        entity_id,
        projects,
        action,
        actor,
        after: _,
    } = query;
    let in_projects = |projects: &Vec<_>| entry.project.as_ref().is_some_and(|own| projects.contains(own));
    entity_type
        .as_ref()
        .is_none_or(|wanted| *wanted == entry.entity_type)
        && entity_id.as_ref().is_none_or(|wanted| *wanted == entry.entity_id)
        && projects.as_ref().is_none_or(in_projects)
        && action.is_none_or(|wanted| wanted == entry.action)
        && actor.as_ref().is_none_or(|wanted| *wanted == entry.actor)
}
