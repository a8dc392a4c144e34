//! Durations as Go writes them (`"1m30s"`, `"500ms"`, `"1.5h"`), the notation of every Kubernetes configuration file.
//!
//! Rule: `time.ParseDuration` of Go 1.26. Units `ns us µs ms s m h`, each number with its unit, an optional sign,
//! fractions computed as `float64` and truncated to whole nanoseconds; a bare `0` is allowed.

use std::time::Duration;

use thiserror::Error;

/// Why a text is not a duration.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DurationError {
    /// Not a number followed by a unit.
    #[error("invalid duration {0:?}: write a number and a unit, such as 30s, 1m30s or 500ms")]
    Invalid(String),
    /// A number without a unit.
    #[error("missing unit in duration {0:?}: add one of ns, us, ms, s, m, h")]
    MissingUnit(String),
    /// A unit that Go does not know.
    #[error("unknown unit {unit:?} in duration {text:?}: use ns, us, ms, s, m or h")]
    UnknownUnit {
        /// The unit as written.
        unit: String,
        /// The whole text.
        text: String,
    },
    /// More than about 292 years.
    #[error("duration {0:?} is too long: it must fit in 64 bits of nanoseconds")]
    Overflow(String),
    /// Less than nothing, where that has no meaning.
    #[error("duration {0:?} is negative: use 0 or more")]
    Negative(String),
}

const UNITS_NS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration that is not negative.
///
/// # Errors
/// [`DurationError`] with the text as written.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let ns = u64::try_from(parse_ns(text)?).map_err(|_| DurationError::Negative(text.into()))?;
    Ok(Duration::from_nanos(ns))
}

/// Reads a duration, in nanoseconds.
///
/// # Errors
/// [`DurationError`] with the text as written.
pub fn parse_ns(text: &str) -> Result<i64, DurationError> {
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(DurationError::Invalid(text.into()));
    }
    let overflow = || DurationError::Overflow(text.into());
    let mut total_ns: i128 = 0;
    while !rest.is_empty() {
        let number_len = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_len);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(DurationError::Invalid(text.into()));
        }
        let unit_len = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_len);
        if unit.is_empty() {
            return Err(DurationError::MissingUnit(text.into()));
        }
        let Some(&(_, unit_ns)) = UNITS_NS.iter().find(|(name, _)| *name == unit) else {
            return Err(DurationError::UnknownUnit {
                unit: unit.into(),
                text: text.into(),
            });
        };
        let whole: i128 = if whole.is_empty() {
            0
        } else {
            whole.parse().map_err(|_| overflow())?
        };
        total_ns += whole
            .checked_mul(i128::from(unit_ns))
            .ok_or_else(overflow)?;
        total_ns += i128::from(fraction_ns(fraction, unit_ns));
        if total_ns > i128::from(u64::MAX) {
            return Err(overflow());
        }
        rest = next;
    }
    i64::try_from(if negative { -total_ns } else { total_ns }).map_err(|_| overflow())
}

/// A fraction of a unit, by Go's arithmetic (`leadingFraction`): digits that would take the number beyond 2^63 are
/// ignored, the rest is a `float64`.
fn fraction_ns(digits: &str, unit_ns: u64) -> u64 {
    const MOST: u64 = 1 << 63;
    let (mut number, mut scale) = (0_u64, 1_f64);
    for digit in digits.bytes() {
        if number > (MOST - 1) / 10 {
            break;
        }
        let longer = number * 10 + u64::from(digit - b'0');
        if longer > MOST {
            break;
        }
        (number, scale) = (longer, scale * 10.0);
    }
    (number as f64 * (unit_ns as f64 / scale)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, ns) in [
            ("0", 0),
            ("0s", 0),
            ("-0", 0),
            ("30s", 30_000_000_000),
            ("1m30s", 90_000_000_000),
            ("500ms", 500_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("10us", 10_000),
            ("10\u{b5}s", 10_000),
            ("-5s", -5_000_000_000),
            ("+5s", 5_000_000_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("0.9999999999999999999s", 1_000_000_000),
            ("0.48382629255000m", 29_029_577_552),
        ] {
            assert_eq!(parse_ns(text), Ok(ns), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest_by_name() {
        assert_eq!(parse("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        assert!(matches!(parse("-1s"), Err(DurationError::Negative(_))));
        assert!(matches!(parse_ns(""), Err(DurationError::Invalid(_))));
        assert!(matches!(parse_ns("-"), Err(DurationError::Invalid(_))));
        assert!(matches!(parse_ns("."), Err(DurationError::Invalid(_))));
        assert!(matches!(parse_ns("s"), Err(DurationError::Invalid(_))));
        assert!(matches!(parse_ns("1.2.3s"), Err(DurationError::Invalid(_))));
        assert!(matches!(parse_ns("5"), Err(DurationError::MissingUnit(_))));
        assert!(matches!(
            parse_ns("1d"),
            Err(DurationError::UnknownUnit { .. })
        ));
        assert!(matches!(
            parse_ns("3000000h"),
            Err(DurationError::Overflow(_))
        ));
        assert!(matches!(
            parse_ns(&"9".repeat(60)),
            Err(DurationError::MissingUnit(_))
        ));
        assert!(matches!(
            parse_ns(&format!("{}s", "9".repeat(60))),
            Err(DurationError::Overflow(_))
        ));
    }
}
