//! Text from elsewhere, made fit to be printed.
//!
//! **Problem.** A process chooses its command (15 bytes, any but NUL) and the names of its cgroups (255 bytes, any but
//! `/` and newline). Printed as they are, these bytes end a line and begin one that plimsoll never wrote, hide what
//! follows, or command the terminal. **Approach.** What is foreign is printed through [`Show::shown`]: a control
//! character, one that turns the direction of text, and a byte that is no UTF-8 are written as an escape, and what is
//! too long is cut. All programs of a node use this one; `agent/clippy.toml` refuses `Path::display`, so that no path
//! is printed otherwise. A text of several lines goes through [`page`] at last: newlines and our own colours stay. JSON
//! escapes by its own rules and keeps every character. **Terms.** *foreign*: chosen by a pod, a file or another
//! program.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Characters of a name or path that are shown. The longest names of cgroups and files have 255 bytes, and a pod has a
/// few levels.
pub const NAME_CHARACTERS_MAX: usize = 1024;
/// Characters of a line that are shown: a warning names a path or two.
pub const LINE_CHARACTERS_MAX: usize = 4096;
/// What stands where a text was cut.
const CUT: char = '…';
/// The colours that programs of Plimsoll print. None hides text.
const COLOURS: [&str; 6] = ["0", "1", "2", "31", "32", "33"];

/// Foreign text, which [`Display`](fmt::Display) writes on one line, without control characters, and not longer than
/// its bound.
///
/// Backslashes stay as they are, so a text that was shown once does not change when it is shown again.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    bytes: &'a [u8],
    characters_max: usize,
}

/// What can be shown.
pub trait Show {
    /// A name or path: at most [`NAME_CHARACTERS_MAX`] characters.
    fn shown(&self) -> Shown<'_>;
}

impl Show for [u8] {
    fn shown(&self) -> Shown<'_> {
        Shown {
            bytes: self,
            characters_max: NAME_CHARACTERS_MAX,
        }
    }
}

impl Show for str {
    fn shown(&self) -> Shown<'_> {
        self.as_bytes().shown()
    }
}

impl Show for OsStr {
    fn shown(&self) -> Shown<'_> {
        self.as_bytes().shown()
    }
}

impl Show for Path {
    fn shown(&self) -> Shown<'_> {
        self.as_os_str().shown()
    }
}

/// A sentence that has foreign text in it: at most [`LINE_CHARACTERS_MAX`] characters.
pub fn line(text: &str) -> Shown<'_> {
    line_of(text.as_bytes())
}

/// As [`line`], of bytes.
pub fn line_of(bytes: &[u8]) -> Shown<'_> {
    Shown {
        bytes,
        characters_max: LINE_CHARACTERS_MAX,
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.width().is_none() && f.precision().is_none() {
            return write(self, f);
        }
        // Columns are padded by what is shown.
        let mut text = String::new();
        write(self, &mut text)?;
        f.pad(&text)
    }
}

fn write(shown: &Shown<'_>, out: &mut impl fmt::Write) -> fmt::Result {
    let mut left = shown.characters_max;
    for chunk in shown.bytes.utf8_chunks() {
        // In pieces as long as they can be: standard error is not buffered, and each piece is a system call.
        let valid = chunk.valid();
        let mut piece = 0;
        for (index, character) in valid.char_indices() {
            if left == 0 {
                out.write_str(&valid[piece..index])?;
                return out.write_char(CUT);
            }
            left -= 1;
            if is_unfit(character) {
                out.write_str(&valid[piece..index])?;
                character_shown(character, out)?;
                piece = index + character.len_utf8();
            }
        }
        out.write_str(&valid[piece..])?;
        for byte in chunk.invalid() {
            if left == 0 {
                return out.write_char(CUT);
            }
            left -= 1;
            write!(out, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

fn character_shown(character: char, out: &mut impl fmt::Write) -> fmt::Result {
    match character {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        '\0'..='\x7f' if character.is_control() => write!(out, "\\x{:02x}", u32::from(character)),
        _ if is_unfit(character) => write!(out, "\\u{{{:x}}}", u32::from(character)),
        _ => out.write_char(character),
    }
}

/// Whether a terminal or a reader takes it for more than a character: C0, DEL, C1, what turns the direction of text
/// (Unicode's `Bidi_Control`), the two separators that end a line, the byte order mark, and tags, which are not
/// visible.
fn is_unfit(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// A text of several lines, as a report or an error with its causes: newlines and our own colours stay, all else that
/// is unfit is escaped.
pub fn page(text: &str) -> String {
    let mut page = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let colour = COLOURS.iter().find_map(|colour| {
            let after = rest.strip_prefix("\x1b[")?.strip_prefix(colour)?;
            after.strip_prefix('m')
        });
        if let Some(after) = colour {
            page.push_str(&rest[..rest.len() - after.len()]);
            rest = after;
            continue;
        }
        rest = &rest[character.len_utf8()..];
        if character == '\n' {
            page.push('\n');
        } else {
            // Writing to a String cannot fail.
            character_shown(character, &mut page).ok();
        }
    }
    page
}

/// Whether a text could do no more than be read: what tests ask of every line.
pub fn is_fit(text: &str) -> bool {
    !text.chars().any(is_unfit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        for (bytes, shown) in [
            (&b"web"[..], "web"),
            (b"\x1bc", "\\x1bc"),
            (b"a\nb\r\tc\0", "a\\nb\\r\\tc\\x00"),
            (b"\x7f", "\\x7f"),
            (b"\xff\xc3", "\\xff\\xc3"),
            ("\u{9b}8m".as_bytes(), "\\u{9b}8m"),
            ("\u{202e}gnp".as_bytes(), "\\u{202e}gnp"),
            ("a\u{2028}b\u{feff}".as_bytes(), "a\\u{2028}b\\u{feff}"),
            ("dev-\\x2d→ü".as_bytes(), "dev-\\x2d→ü"),
        ] {
            assert_eq!(bytes.shown().to_string(), shown);
        }
        assert_eq!(format!("[{:>6}]", Path::new("\x1b").shown()), "[  \\x1b]");
    }

    #[test]
    fn what_is_too_long_is_cut() {
        let long = "x".repeat(NAME_CHARACTERS_MAX + 1);
        let shown = long.shown().to_string();
        assert_eq!(shown.chars().count(), NAME_CHARACTERS_MAX + 1);
        assert!(shown.ends_with(CUT));
        assert_eq!(line(&long).to_string(), long);
    }

    #[test]
    fn a_page_keeps_its_lines_and_colours_and_no_other_command() {
        let page = super::page;
        for (text, wanted) in [
            ("a\n\x1b[31mred\x1b[0m\n", "a\n\x1b[31mred\x1b[0m\n"),
            ("\x1b[8mhidden", "\\x1b[8mhidden"),
            ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
            ("\x1b[31", "\\x1b[31"),
            ("a\rb", "a\\rb"),
        ] {
            assert_eq!(page(text), wanted);
        }
    }

    proptest! {
        #[test]
        fn nothing_shown_is_unfit_and_showing_it_again_changes_nothing(bytes in prop::collection::vec(any::<u8>(), 0..64), text in any::<String>()) {
            for shown in [bytes.shown().to_string(), text.shown().to_string()] {
                prop_assert!(is_fit(&shown), "{shown:?}");
                prop_assert_eq!(shown.shown().to_string(), shown);
            }
            let paged = page(&text).replace('\n', "");
            let plain = COLOURS.iter().fold(paged, |it, colour| it.replace(&format!("\x1b[{colour}m"), ""));
            prop_assert!(is_fit(&plain), "{plain:?}");
        }
    }
}
