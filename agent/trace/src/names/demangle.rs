//! Names as people wrote them, and none longer than a bound.
//!
//! A mangled name refers to its own parts, so that each can be a pair of the one before: 200 bytes stand for more text
//! than there is memory. The libraries bound how deep that goes, not how much it is; so they write into a buffer that
//! refuses what is beyond its end, which ends them. Text that is empty can be repeated without end all the same: only
//! the time of the [`child`](super::child) bounds that.

use std::fmt::{self, Write as _};

/// The longest name, bytes of UTF-8. What is longer is cut and ends in `…`.
pub const NAME_BYTES_MAX: usize = 512;
/// The longest name that is demangled.
const MANGLED_BYTES_MAX: usize = 4096;
const CUT: char = '…';

/// A text that takes no more than [`NAME_BYTES_MAX`].
#[derive(Debug, Default)]
struct Bounded {
    text: String,
    is_full: bool,
}

impl Bounded {
    /// The text, which ends in `…` if something was refused.
    fn finish(mut self) -> String {
        if self.is_full {
            let end = self
                .text
                .floor_char_boundary(NAME_BYTES_MAX - CUT.len_utf8());
            self.text.truncate(end);
            self.text.push(CUT);
        }
        self.text
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.is_full {
            return Err(fmt::Error);
        }
        let room = NAME_BYTES_MAX - self.text.len();
        self.text += &text[..text.floor_char_boundary(room)];
        self.is_full = text.len() > room;
        if self.is_full {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}

/// The name of a symbol: demangled if it is one of Rust or C++, and cut.
#[must_use]
pub fn name_of(symbol: &str) -> String {
    let mut name = Bounded::default();
    let is_written = symbol.len() <= MANGLED_BYTES_MAX
        && (demangle_rust(symbol, &mut name) || demangle_cpp(symbol, &mut name));
    if !is_written {
        name = Bounded::default();
        // It says itself whether all of it fits.
        name.write_str(symbol).ok();
    }
    name.finish()
}

/// Whether the name, or as much as fits, was written.
fn demangle_rust(symbol: &str, name: &mut Bounded) -> bool {
    rustc_demangle::try_demangle(symbol)
        // Without the hash.
        .is_ok_and(|symbol| write!(name, "{symbol:#}").is_ok() || name.is_full)
}

/// Whether the name, or as much as fits, was written.
fn demangle_cpp(symbol: &str, name: &mut Bounded) -> bool {
    // What Rust's has begun, if it failed after all.
    *name = Bounded::default();
    cpp_demangle::Symbol::new(symbol).is_ok_and(|symbol| {
        let written = symbol.structured_demangle(name, &cpp_demangle::DemangleOptions::default());
        written.is_ok() || name.is_full
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A C++ function of many parameters, each a template of the one before, twice: A, B<A, A>, B<B<A, A>, B<A, A>>.
    fn bomb(parameters: u32) -> String {
        let mut symbol = "_Z1f1A1BIS_S_E".to_owned();
        for number in (1..parameters).filter_map(|number| char::from_digit(number, 36)) {
            let number = number.to_ascii_uppercase();
            symbol += &format!("S0_IS{number}_S{number}_E");
        }
        symbol
    }

    #[test]
    fn a_symbol_that_stands_for_megabytes_takes_no_more_than_a_name_may() {
        let small = bomb(17);
        assert!(small.len() < 200, "{small}");
        let all = cpp_demangle::Symbol::new(&small).unwrap().demangle();
        assert!(all.unwrap().len() > 1 << 20);
        // The second would be deeper than the library goes.
        for symbol in [small, bomb(28)] {
            let name = name_of(&symbol);
            assert!(name.len() <= NAME_BYTES_MAX, "{name}");
            let begin = "f(A, B<A, A>, B<B<A, A>, B<A, A> >, ";
            assert!(name.starts_with(begin) && name.ends_with(CUT), "{name}");
        }
    }

    #[test]
    fn a_long_name_is_cut_between_two_characters() {
        let fits = "ü".repeat(NAME_BYTES_MAX / 2);
        assert_eq!(name_of(&fits), fits);
        for long in [format!("{fits}x"), format!("x{fits}"), "x".repeat(4 << 20)] {
            let name = name_of(&long);
            assert!((NAME_BYTES_MAX - 4..=NAME_BYTES_MAX).contains(&name.len()));
            assert_eq!(
                name.strip_suffix(CUT).map(|begin| long.starts_with(begin)),
                Some(true)
            );
        }
    }

    #[test]
    fn names_are_as_blazesym_made_them() {
        for (symbol, name) in [
            ("main", "main"),
            ("_ZN5space3fooEibc", "space::foo(int, bool, char)"),
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                "core::fmt::Write::write_fmt",
            ),
            ("_RNvC7mycrate3foo", "mycrate::foo"),
            ("_ZN", "_ZN"),
            ("", ""),
        ] {
            assert_eq!(name_of(symbol), name);
        }
    }
}
