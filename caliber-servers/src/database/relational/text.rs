//! Foreign text inside our own messages.

/// Characters of foreign text that a message shows.
const SHOWN_CHARS: usize = 200;

/// `text` escaped and bounded, in quotes.
pub(super) fn shown(text: &str) -> String {
    bounded(text.escape_debug(), true)
}

/// `text` on one line and bounded, as part of a sentence.
pub(super) fn one_line(text: &str) -> String {
    bounded(text.chars().map(|c| if c.is_control() { ' ' } else { c }), false)
}

fn bounded(chars: impl Iterator<Item = char>, quoted: bool) -> String {
    let mut shown = String::new();
    let mut chars = chars.peekable();
    if quoted {
        shown.push('"');
    }
    shown.extend(chars.by_ref().take(SHOWN_CHARS));
    if chars.peek().is_some() {
        shown.push('…');
    }
    if quoted {
        shown.push('"');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_escaped_and_bounded() {
        assert_eq!(shown("a\n\"b\"\u{0}"), r#""a\n\"b\"\0""#);
        assert_eq!(one_line("a\nb"), "a b");
        assert_eq!(shown(&"x".repeat(500)).chars().count(), SHOWN_CHARS + 3);
    }
}
