//! Lists that are read in pages.

use serde::Serialize;

/// The largest page, in items.
pub const PAGE_LIMIT: u32 = 500;

/// The page that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Items at most, 1 to [`PAGE_LIMIT`]; more is read as [`PAGE_LIMIT`], zero as one.
    pub limit: u32,
    /// Where the last page ended: the opaque text of [`Page::next`].
    pub cursor: Option<String>,
}

impl PageRequest {
    /// The first page of `limit` items.
    pub fn first(limit: u32) -> Self {
        Self { limit, cursor: None }
    }

    /// The number of items to read, within the limits.
    pub fn bounded_limit(&self) -> usize {
        self.limit.clamp(1, PAGE_LIMIT) as usize
    }
}

impl Default for PageRequest {
    fn default() -> Self {
        Self::first(50)
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Page<T> {
    /// The items, in the order of the list.
    pub items: Vec<T>,
    /// The cursor of the next page, when there is one.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// The same page with every item changed by `change`.
    pub fn map<U>(self, change: impl FnMut(T) -> U) -> Page<U> {
        Page {
            items: self.items.into_iter().map(change).collect(),
            next: self.next,
        }
    }
}
