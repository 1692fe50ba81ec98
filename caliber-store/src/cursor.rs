//! Cursors of lists: the key of the last item of a page, marked with the list that it belongs to.

use std::str::FromStr;

use caliber_core::page::{Page, PageRequest};

use crate::error::Result;

/// One list, by the mark of its cursors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List(pub(crate) &'static str);

impl List {
    /// The key that the last page ended with.
    ///
    /// # Errors
    ///
    /// `Invalid` for a cursor of another list, or what is no cursor.
    pub(crate) fn after<K: FromStr>(self, request: &PageRequest) -> Result<Option<K>> {
        let Some(cursor) = &request.cursor else {
            return Ok(None);
        };
        let key = cursor
            .strip_prefix(self.0)
            .and_then(|rest| rest.strip_prefix('.'))
            .and_then(|key| key.parse().ok());
        match key {
            Some(key) => Ok(Some(key)),
            None => Err(caliber_core::Error::invalid(
                "cursor",
                "it does not come from a page of this list; begin without one",
            )
            .into()),
        }
    }

    /// How many rows to read for a page: one more than it shows tells whether there is another.
    pub(crate) fn rows(request: &PageRequest) -> i64 {
        i64::try_from(request.bounded_limit() + 1).unwrap_or(i64::MAX)
    }

    /// The page made of `rows`, each with its key.
    pub(crate) fn page<R, T>(
        self,
        mut rows: Vec<R>,
        request: &PageRequest,
        key: impl FnOnce(&R) -> String,
        item: impl FnMut(R) -> Result<T>,
    ) -> Result<Page<T>> {
        let more = rows.len() > request.bounded_limit();
        rows.truncate(request.bounded_limit());
        let last = rows.last().filter(|_| more);
        let next = last.map(|last| format!("{}.{}", self.0, key(last)));
        Ok(Page {
            items: rows.into_iter().map(item).collect::<Result<_>>()?,
            next,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_on_in_its_own_list_only() {
        let list = List("numbers");
        let request = PageRequest::first(2);
        let page = list
            .page(vec![1, 2, 3], &request, ToString::to_string, Ok)
            .unwrap();
        assert_eq!(page.items, [1, 2]);
        let next = PageRequest {
            limit: 2,
            cursor: page.next,
        };
        assert_eq!(list.after::<i64>(&next).unwrap(), Some(2));
        assert!(List("other").after::<i64>(&next).is_err());
        for foreign in ["", "numbers", "numbers.", "numbers.x", "2"] {
            let request = PageRequest {
                limit: 2,
                cursor: Some(foreign.to_owned()),
            };
            let refused = caliber_core::Error::from(list.after::<i64>(&request).unwrap_err());
            assert_eq!(refused.fields()[0].field, "cursor", "{foreign}");
        }
        let last = list.page(vec![1, 2], &request, ToString::to_string, Ok).unwrap();
        assert_eq!(last.next, None);
    }
}
