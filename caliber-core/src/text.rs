//! Showing foreign text to people: escaped and bounded.

use std::fmt::Write;

/// The longest piece of a foreign value that an error text repeats, in characters.
pub const SHOWN_CHARACTERS: usize = 120;

/// `value` in backticks, with everything invisible or directional escaped, cut after [`SHOWN_CHARACTERS`].
///
/// ```
/// use caliber_core::text::shown;
/// assert_eq!(shown("weather"), "`weather`");
/// assert_eq!(shown("a\u{202e}b\n"), "`a\\u{202e}b\\n`");
/// ```
pub fn shown(value: &str) -> String {
    format!("`{}`", escaped(value, SHOWN_CHARACTERS))
}

/// `value` with everything invisible or directional escaped, cut after `limit` characters.
pub fn escaped(value: &str, limit: usize) -> String {
    let mut out = String::with_capacity(value.len().min(limit) + 8);
    for (count, character) in value.chars().enumerate() {
        if count == limit {
            out.push('…');
            break;
        }
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            hidden if is_suspicious(hidden) => {
                // Writing to a `String` cannot fail.
                let _ = write!(out, "\\u{{{:x}}}", u32::from(hidden));
            }
            plain => out.push(plain),
        }
    }
    out
}

/// Whether a character can hide or reorder text: controls, zero-width, directional marks, tags, and
/// everything else without a glyph of its own.
pub fn is_suspicious(character: char) -> bool {
    character.is_control()
        || matches!(
            u32::from(character),
            0x00AD
                | 0x034F
                | 0x061C
                | 0x115F..=0x1160
                | 0x17B4..=0x17B5
                | 0x180B..=0x180F
                | 0x200B..=0x200F
                | 0x2028..=0x202E
                | 0x2060..=0x206F
                | 0x3164
                | 0xFE00..=0xFE0F
                | 0xFEFF
                | 0xFFA0
                | 0xFFF0..=0xFFFB
                | 0x1D173..=0x1D17A
                | 0xE0000..=0xE0FFF
        )
}

/// Whether `value` holds a character that [`is_suspicious`].
pub fn has_suspicious(value: &str) -> bool {
    value.chars().any(is_suspicious)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_nothing_and_keeps_ordinary_scripts() {
        assert_eq!(shown("天気 ü"), "`天気 ü`");
        assert_eq!(shown("\u{1b}[2J"), "`\\u{1b}[2J`");
        assert_eq!(shown("a\u{e0041}"), "`a\\u{e0041}`");
    }

    #[test]
    fn cuts_long_values() {
        let cut = shown(&"x".repeat(SHOWN_CHARACTERS + 1));
        assert_eq!(cut.chars().count(), SHOWN_CHARACTERS + 3);
        assert!(cut.ends_with("…`"));
    }
}
