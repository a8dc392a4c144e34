//! Text of others, fit for a terminal.

/// Text of others, without what would move a terminal's cursor.
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c == ' ' || c.is_alphanumeric() || c.is_ascii_punctuation() {
            shown.push(c);
        } else {
            shown.extend(c.escape_unicode());
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_cursor_is_written_out() {
        assert_eq!(shown("a\u{1b}[2J \n é"), "a\\u{1b}[2J \\u{a} é");
    }
}
