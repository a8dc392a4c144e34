//! Text to quantity.
//!
//! The scanner takes sign, digits, fraction and suffix apart without looking at their value. Short decimal numbers then
//! become a 64-bit mantissa; everything else goes through an arbitrary integer that is rounded up to 10⁻⁹. Which of the
//! two is chosen shows in the result ([`Quantity::is_big`]), so the limits are upstream's.

use std::str::FromStr;
use std::sync::Arc;

use num_bigint::BigInt;
use num_traits::{Signed, Zero};

use super::{
    Amount, Format, MAX_EXPONENT, MAX_TEXT_BYTES, NANO, Quantity, QuantityError, round_up,
};

/// Decimal digits that always fit an `i64` (upstream `maxInt64Factors` of 1.36).
const SMALL_DIGITS: usize = 18;

/// Decimal suffixes and their powers of ten.
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// Binary suffixes in steps of 2¹⁰.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The suffix of `10^exponent`; empty for an exponent that has none.
pub(super) fn decimal_suffix(exponent: i32) -> &'static str {
    DECIMAL
        .iter()
        .find(|(_, power)| *power == exponent)
        .map_or("", |(suffix, _)| suffix)
}

/// The suffix of `1024^steps`; empty for a step that has none.
pub(super) fn binary_suffix(steps: i32) -> &'static str {
    usize::try_from(steps)
        .ok()
        .and_then(|at| BINARY.get(at))
        .copied()
        .unwrap_or("")
}

/// A text taken apart.
struct Scanned<'a> {
    negative: bool,
    /// Digits before the point without leading zeros; "0" where none are left.
    whole: &'a str,
    /// Digits after the point.
    fraction: &'a str,
    /// Whether any digit was written at all: "." and "-" read as zero, unless the slow way has to read them.
    has_digits: bool,
    suffix: &'a str,
}

/// The length of the prefix of `text` whose bytes all satisfy `wanted`.
fn span(text: &str, wanted: impl Fn(u8) -> bool) -> usize {
    text.bytes()
        .position(|byte| !wanted(byte))
        .unwrap_or(text.len())
}

fn scan(text: &str) -> Option<Scanned<'_>> {
    let digit = |byte: u8| byte.is_ascii_digit();
    let negative = text.starts_with('-');
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let zeros = span(rest, |byte| byte == b'0');
    let rest_after_zeros = &rest[zeros..];
    let (whole, rest) = rest_after_zeros.split_at(span(rest_after_zeros, digit));
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(span(rest, digit)),
        None => ("", rest),
    };
    // A suffix is letters, one optional sign, digits; whether it exists is looked up later.
    let letters = span(suffix, |byte| b"eEinumkKMGTP".contains(&byte));
    let exponent = &suffix[letters..];
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if span(exponent, digit) != exponent.len() {
        return None;
    }
    let has_digits = zeros > 0 || !whole.is_empty() || !fraction.is_empty();
    Some(Scanned {
        negative,
        whole: if whole.is_empty() { "0" } else { whole },
        fraction,
        has_digits,
        suffix,
    })
}

/// What a suffix multiplies by.
enum Scale {
    Ten { exponent: i64, format: Format },
    Two { exponent: u32 },
}

fn interpret(suffix: &str) -> Option<Scale> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(symbol, _)| *symbol == suffix) {
        return Some(Scale::Ten {
            exponent: i64::from(*exponent),
            format: Format::DecimalSI,
        });
    }
    if let Some(step) = (1u32..)
        .zip(&BINARY[1..])
        .find_map(|(step, symbol)| (*symbol == suffix).then_some(step))
    {
        return Some(Scale::Two {
            exponent: step * 10,
        });
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some(Scale::Ten {
        // `suffixHandler.interpret` keeps the lower 32 bits.
        exponent: i64::from(i64::from_str(exponent).ok()? as i32),
        format: Format::DecimalExponent,
    })
}

pub(super) fn parse(text: &str) -> Result<Quantity, QuantityError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(QuantityError::TooLarge);
    }
    let malformed = || QuantityError::Malformed {
        text: text.to_owned(),
    };
    if text.is_empty() {
        return Err(malformed());
    }
    if text == "0" {
        return Ok(Quantity {
            text: Some(Arc::from(text)),
            ..Quantity::default()
        });
    }
    let scanned = scan(text).ok_or_else(malformed)?;
    let scale = interpret(scanned.suffix).ok_or_else(|| QuantityError::UnknownSuffix {
        text: text.to_owned(),
    })?;
    let scale = bounded(scale, &scanned)?;
    if let Some(quantity) = parse_small(text, &scanned, &scale) {
        return Ok(quantity);
    }
    if !scanned.has_digits {
        return Err(QuantityError::NoDigits {
            text: text.to_owned(),
        });
    }
    parse_big(&scanned, &scale).ok_or_else(malformed)
}

/// The scale of something that can be computed with. Of zero a smaller one does, which has the same value.
fn bounded(scale: Scale, scanned: &Scanned<'_>) -> Result<Scale, QuantityError> {
    let most = i64::from(MAX_EXPONENT);
    match scale {
        Scale::Ten { exponent, format } if exponent > most => {
            let digits = [scanned.whole, scanned.fraction];
            let is_zero = digits
                .iter()
                .all(|digits| digits.bytes().all(|byte| byte == b'0'));
            let exponent = most;
            is_zero
                .then_some(Scale::Ten { exponent, format })
                .ok_or(QuantityError::TooLarge)
        }
        scale => Ok(scale),
    }
}

/// The way for numbers that surely fit 64 bits.
fn parse_small(text: &str, scanned: &Scanned<'_>, scale: &Scale) -> Option<Quantity> {
    let digits = format!("{}{}", scanned.whole, scanned.fraction);
    let fits = match scale {
        Scale::Ten { .. } => digits.len() <= SMALL_DIGITS,
        // 2^n has about 3n/10 decimal digits; a fraction always takes the slow way.
        Scale::Two { exponent } => {
            scanned.fraction.is_empty()
                && usize::try_from(exponent * 3 / 10)
                    .is_ok_and(|decimal_digits| digits.len() + decimal_digits <= 14)
        }
    };
    if !fits {
        return None;
    }
    let number = i64::from_str(&digits).ok()?;
    let (mantissa, exponent, format, reuse) = match scale {
        Scale::Ten { exponent, format } => {
            let exponent =
                i32::try_from(exponent - i64::try_from(scanned.fraction.len()).ok()?).ok()?;
            if exponent < NANO {
                return None;
            }
            let reuse = exponent % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0');
            (number, exponent, *format, reuse)
        }
        Scale::Two { exponent } => (
            number.checked_mul(1i64 << exponent)?,
            0,
            Format::BinarySI,
            number & 7 != 0,
        ),
    };
    Some(Quantity {
        amount: Amount::Small {
            mantissa: if scanned.negative {
                -mantissa
            } else {
                mantissa
            },
            exponent,
        },
        format,
        text: reuse.then(|| Arc::from(text)),
    })
}

/// The way for everything else: `None` only if the digits are not a number, which the scanner excludes.
fn parse_big(scanned: &Scanned<'_>, scale: &Scale) -> Option<Quantity> {
    let mut mantissa = BigInt::from_str(&format!("{}{}", scanned.whole, scanned.fraction)).ok()?;
    let mut exponent = -i64::try_from(scanned.fraction.len()).ok()?;
    let mut format = Format::BinarySI;
    match scale {
        Scale::Ten {
            exponent: suffix_exponent,
            format: suffix_format,
        } => {
            exponent = exponent.saturating_add(*suffix_exponent);
            format = *suffix_format;
        }
        Scale::Two { exponent: bits } => mantissa <<= bits,
    }
    // Bounded above by MAX_EXPONENT. Below, non-zero values end at one nano; a zero keeps its exponent, within bounds.
    let mut exponent = i32::try_from(exponent).unwrap_or(i32::MIN);
    if !mantissa.is_zero() {
        mantissa = match exponent.saturating_sub(NANO) {
            up @ 0.. => mantissa * BigInt::from(10).pow(up.unsigned_abs()),
            down => round_up(&mantissa, down.unsigned_abs()),
        };
        exponent = NANO;
    }
    exponent = exponent.max(-MAX_EXPONENT);
    if format == Format::BinarySI {
        let one = BigInt::from(10).pow(NANO.unsigned_abs());
        let max = BigInt::from(i64::MAX) * &one;
        if mantissa > max {
            mantissa = BigInt::from(i64::MAX);
            exponent = 0;
        } else if mantissa.is_positive() && mantissa < one {
            format = Format::DecimalSI;
        }
    }
    if scanned.negative {
        mantissa = -mantissa;
    }
    Some(Quantity {
        amount: Amount::Big { mantissa, exponent },
        format,
        text: None,
    })
}
