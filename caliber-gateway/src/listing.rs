//! Listing the tools of an upstream, within bounds: pages, tools, bytes, and cursors that come back.

use std::collections::{HashMap, HashSet};

use caliber_core::descriptor::{Descriptor, ToolName};
use caliber_core::inventory::WithheldTool;
use caliber_core::reason::ReasonCode;
use caliber_core::text::escaped;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::{Introduction, refusal};
use crate::connection::{Connection, Request};
use crate::error::Failure;
use crate::mirror;
use crate::settings::GatewaySettings;
use crate::transport::{Era, Transport};

/// The empty cursor, as JSON text.
const EMPTY_CURSOR: &str = "\"\"";
/// The longest cursor, in bytes.
const CURSOR_BYTES: usize = 4 << 10;
/// The longest name of a withheld tool that is shown, in characters.
const NAME_SHOWN: usize = 128;
/// The longest reason of a withheld tool, in characters.
const REASON_SHOWN: usize = 300;
/// A page beyond this size, in bytes, is read off the runtime's threads.
const SMALL_PAGE: usize = 64 << 10;
/// The JSON-RPC code of a method that the upstream does not have.
const METHOD_NOT_FOUND: i64 = -32601;

/// What an upstream advertises.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// The tools, in the order of the server.
    pub(crate) tools: Vec<Descriptor>,
    /// The tools that cannot be offered.
    pub(crate) withheld: Vec<WithheldTool>,
}

/// Lists every tool.
///
/// # Errors
///
/// `ListTooLarge` at a bound, never a short list; `ProtocolViolation` for pages that are none; what the connection
/// fails with.
pub(crate) async fn list_tools(
    connection: &Connection,
    introduction: &Introduction,
    settings: &GatewaySettings,
) -> Result<Listed, Failure> {
    let mut collected = Collected::new(
        settings.list_tools,
        introduction.era == Era::Modern && matches!(connection.transport, Transport::Http(_)),
    );
    let mut cursor: Option<String> = None;
    let mut seen = HashSet::new();
    let mut bytes_left = settings.list_bytes;
    for _ in 0..settings.list_pages {
        let reply = connection
            .request(Request {
                method: "tools/list",
                params: list_params(cursor.as_deref(), introduction.meta.as_deref()),
                name: None,
                mirrored: &[],
                era: introduction.era,
                version: Some(&introduction.version),
                answer_bytes: bytes_left.min(settings.message_bytes),
            })
            .await
            .map_err(|failure| as_listing(failure).not_sent())?;
        let page = match reply {
            Ok(page) => page,
            Err(error) if error.code == METHOD_NOT_FOUND && !introduction.has_tools && cursor.is_none() => {
                return Ok(Listed::default());
            }
            Err(error) => return Err(refusal(connection, "the request for its tools", &error)),
        };
        bytes_left = bytes_left
            .checked_sub(page.len())
            .ok_or_else(|| too_large(format!("it is larger than {} bytes", settings.list_bytes)))?;
        let known = collected.names.len();
        let read = if page.len() <= SMALL_PAGE {
            collected.add(&page)
        } else {
            let work = tokio::task::spawn_blocking(move || {
                let next = collected.add(&page);
                (collected, next)
            });
            let (returned, next) = work
                .await
                .map_err(|_| Failure::protocol("the list of tools could not be read"))?;
            collected = returned;
            next
        };
        let Some(next) = read? else {
            return Ok(collected.finish());
        };
        if next.len() > CURSOR_BYTES {
            return Err(too_large(format!("a cursor is longer than {CURSOR_BYTES} bytes")));
        }
        if !seen.insert(next.clone()) {
            // Some legacy servers write an empty cursor for the end, and start again when it is followed.
            if next == EMPTY_CURSOR && introduction.era == Era::Legacy && collected.names.len() == known {
                return Ok(collected.finish());
            }
            return Err(too_large("a cursor came back".to_owned()));
        }
        cursor = Some(next);
    }
    Err(too_large(format!(
        "it has more than {} pages",
        settings.list_pages
    )))
}

fn too_large(what: String) -> Failure {
    Failure::too_large(
        ReasonCode::ListTooLarge,
        format!("the list of tools cannot be taken: {what}"),
    )
}

/// A page that is too large is a list that is too large.
fn as_listing(failure: Failure) -> Failure {
    if failure.reason == ReasonCode::ResultTooLarge {
        too_large(failure.message)
    } else {
        failure
    }
}

fn list_params(cursor: Option<&str>, meta: Option<&str>) -> String {
    let cursor = cursor.map(|cursor| format!(r#""cursor":{cursor}"#));
    let meta = meta.map(|meta| format!(r#""_meta":{meta}"#));
    let members: Vec<String> = [cursor, meta].into_iter().flatten().collect();
    format!("{{{}}}", members.join(","))
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    tools: Vec<&'a RawValue>,
    /// Text that means nothing to us, not even as text: it is sent back as it was written.
    #[serde(rename = "nextCursor", borrow, default)]
    next_cursor: Option<&'a RawValue>,
}

/// What the pages have given so far.
struct Collected {
    limit: usize,
    mirrors_headers: bool,
    tools: Vec<Option<Descriptor>>,
    withheld: Vec<WithheldTool>,
    /// Where each tool is.
    names: HashMap<ToolName, usize>,
}

impl Collected {
    fn new(limit: usize, mirrors_headers: bool) -> Self {
        Self {
            limit,
            mirrors_headers,
            tools: Vec::new(),
            withheld: Vec::new(),
            names: HashMap::new(),
        }
    }

    /// Adds a page; returns the cursor of the next.
    fn add(&mut self, page: &str) -> Result<Option<String>, Failure> {
        let page: Page<'_> = serde_json::from_str(page)
            .map_err(|_| Failure::protocol("the upstream answered the request for its tools with no list"))?;
        for item in page.tools {
            if self.tools.len() + self.withheld.len() >= self.limit {
                return Err(too_large(format!("it has more than {} tools", self.limit)));
            }
            self.add_item(item.get());
        }
        match page.next_cursor.map(RawValue::get) {
            Some(cursor) if !cursor.starts_with('"') => {
                Err(Failure::protocol("the cursor of the upstream is no text"))
            }
            cursor => Ok(cursor.map(str::to_owned)),
        }
    }

    fn add_item(&mut self, item: &str) {
        let descriptor = match Descriptor::parse(item) {
            Ok(descriptor) => descriptor,
            Err(error) => return self.withhold(&name_in(item), error.message()),
        };
        if self.mirrors_headers
            && let Err(problem) = mirror::mirrors(descriptor.input_schema())
        {
            tracing::warn!(tool = %descriptor.name(), problem, "a tool is withheld");
            return self.withhold(descriptor.name().as_str(), &problem);
        }
        match self.names.get(descriptor.name()) {
            None => {
                self.names.insert(descriptor.name().clone(), self.tools.len());
                self.tools.push(Some(descriptor));
            }
            Some(&position) => {
                let first = self.tools.get_mut(position);
                let same = first
                    .as_ref()
                    .and_then(|first| first.as_ref())
                    .is_some_and(|first| first.digest() == descriptor.digest());
                if !same && first.is_some_and(|first| first.take().is_some()) {
                    let reason = "the server lists two different tools of this name";
                    self.withhold(descriptor.name().as_str(), reason);
                }
            }
        }
    }

    fn withhold(&mut self, name: &str, reason: &str) {
        let withheld = WithheldTool {
            name: escaped(name, NAME_SHOWN),
            reason: escaped(reason, REASON_SHOWN),
        };
        if !self.withheld.contains(&withheld) {
            self.withheld.push(withheld);
        }
    }

    fn finish(self) -> Listed {
        Listed {
            tools: self.tools.into_iter().flatten().collect(),
            withheld: self.withheld,
        }
    }
}

/// The name of an item that is no tool, as far as it has one.
fn name_in(item: &str) -> String {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    serde_json::from_str::<Named>(item).map_or_else(|_| "(without a name)".to_owned(), |named| named.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, description: &str) -> String {
        format!(r#"{{"name":"{name}","description":"{description}","inputSchema":{{"type":"object"}}}}"#)
    }

    fn collect(limit: usize, pages: &[&str]) -> Result<Listed, Failure> {
        let mut collected = Collected::new(limit, true);
        for page in pages {
            collected.add(page)?;
        }
        Ok(collected.finish())
    }

    #[test]
    fn broken_tools_are_withheld_one_by_one() {
        let page = format!(
            r#"{{"tools":[{},7,{{"name":"b"}},{{"name":"a b","inputSchema":{{}}}},{},{{"name":"m","inputSchema":{{"properties":{{"a":{{"x-mcp-header":"a b"}}}}}}}}]}}"#,
            tool("a", "1"),
            tool("z", "1")
        );
        let listed = collect(100, &[&page]).unwrap();
        let names: Vec<_> = listed.tools.iter().map(|tool| tool.name().as_str()).collect();
        assert_eq!(names, ["a", "z"]);
        let withheld: Vec<_> = listed.withheld.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(withheld, ["(without a name)", "b", "a b", "m"]);
    }

    #[test]
    fn equal_duplicates_are_one_tool_and_conflicting_ones_none() {
        let first = format!(r#"{{"tools":[{},{}]}}"#, tool("a", "1"), tool("b", "1"));
        let second = format!(
            r#"{{"tools":[{},{},{}]}}"#,
            tool("b", "1"),
            tool("a", "2"),
            tool("a", "1")
        );
        let listed = collect(100, &[&first, &second]).unwrap();
        assert_eq!(listed.tools.len(), 1);
        assert_eq!(listed.tools[0].name().as_str(), "b");
        assert_eq!(listed.withheld.len(), 1);
        assert_eq!(listed.withheld[0].name, "a");
    }

    #[test]
    fn a_list_beyond_the_limit_is_an_error() {
        let page = format!(r#"{{"tools":[{},{}]}}"#, tool("a", "1"), tool("b", "1"));
        assert!(collect(2, &[&page]).is_ok());
        assert_eq!(collect(1, &[&page]).unwrap_err().reason, ReasonCode::ListTooLarge);
    }

    #[test]
    fn a_page_that_is_none_is_a_violation() {
        for page in [
            "{}",
            "[]",
            r#"{"tools":{}}"#,
            r#"{"tools":"x"}"#,
            r#"{"tools":[],"nextCursor":1}"#,
            r#"{"tools":[],"tools":[]}"#,
        ] {
            assert_eq!(
                collect(1, &[page]).unwrap_err().reason,
                ReasonCode::ProtocolViolation,
                "{page}"
            );
        }
    }

    #[test]
    fn cursors_go_back_as_they_came() {
        assert_eq!(list_params(None, None), "{}");
        let next = Collected::new(1, false).add(r#"{"tools":[],"nextCursor":"\ud800\"\u0041"}"#);
        let next = next.unwrap();
        assert_eq!(
            list_params(next.as_deref(), Some("{}")),
            r#"{"cursor":"\ud800\"\u0041","_meta":{}}"#
        );
    }
}
