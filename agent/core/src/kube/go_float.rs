//! Floating-point numbers as Go reads them (`strconv.ParseFloat` of 32 bits): the kubelet reads percentages so.
//!
//! Rust's own parser reads the same decimal numbers and rounds them the same way. Go reads more: underscores between
//! digits, and hexadecimal numbers.

/// `None`: Go refuses it. One that is too large is refused too, and NaN has no sign.
#[must_use]
pub fn parse_f32(text: &str) -> Option<f32> {
    if text.contains('_') && !has_underscores_between_digits(text) {
        return None;
    }
    let plain = text.replace('_', "");
    let (sign, unsigned) = match plain.as_bytes().first()? {
        b'-' => (-1.0, &plain[1..]),
        b'+' => (1.0, &plain[1..]),
        _ => (1.0, plain.as_str()),
    };
    let prefix = unsigned.get(..2);
    let is_hexadecimal = prefix.is_some_and(|it| it.eq_ignore_ascii_case("0x"));
    let number = match is_hexadecimal {
        true => sign * hexadecimal(&unsigned[2..])?,
        false => plain.parse().ok()?,
    };
    let is_too_large = number.is_infinite() && text.contains(|it: char| it.is_ascii_digit());
    let is_signed_nan = number.is_nan() && unsigned.len() < plain.len();
    (!is_too_large && !is_signed_nan).then_some(number)
}

/// `underscoreOK` of strconv: each is between two digits, or between a prefix of the base and a digit.
fn has_underscores_between_digits(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text).as_bytes();
    let prefix = match unsigned {
        [b'0', base, ..] if b"bBoOxX".contains(base) => 2,
        _ => 0,
    };
    let is_hexadecimal = prefix > 0 && unsigned[1].eq_ignore_ascii_case(&b'x');
    let is_digit = |byte: u8| byte.is_ascii_digit() || is_hexadecimal && byte.is_ascii_hexdigit();
    let (mut after_digit, mut after_underscore) = (prefix > 0, false);
    for byte in &unsigned[prefix..] {
        let (digit, underscore) = (is_digit(*byte), *byte == b'_');
        if underscore && !after_digit || after_underscore && !digit {
            return false;
        }
        (after_digit, after_underscore) = (digit, underscore);
    }
    !after_underscore
}

/// `H.Hp±D`, without the prefix. The exponent, of two, has to be there.
fn hexadecimal(text: &str) -> Option<f32> {
    let (mantissa, exponent) = text.split_once(['p', 'P'])?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits_only = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits_only.is_empty() || !digits_only.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Far more than the type has, and far from the end of what is computed with.
    let exponent = exponent
        .parse::<i32>()
        .unwrap_or(match exponent.starts_with('-') {
            true => i32::MIN,
            false => i32::MAX,
        });
    let mut exponent = i64::from(exponent);
    // 48 bits and one that says whether anything was left out: twice what the type has, so that rounding to it is
    // exact.
    let (mut bits, mut is_cut) = (0_u64, false);
    for (digits, of_fraction) in [(whole, false), (fraction, true)] {
        for digit in digits.chars() {
            let digit = digit.to_digit(16)?;
            if bits >> 44 == 0 {
                bits = bits << 4 | u64::from(digit);
                exponent -= if of_fraction { 4 } else { 0 };
            } else {
                is_cut |= digit != 0;
                exponent += if of_fraction { 0 } else { 4 };
            }
        }
    }
    if bits == 0 {
        return Some(0.0);
    }
    let exact = (bits << 1 | u64::from(is_cut)) as f64;
    let exponent = (exponent - 1).clamp(-1000, 1000) as i32;
    // In two steps: each is a number that the type has, and so is what comes of the first.
    Some((exact * 2_f64.powi(exponent / 2) * 2_f64.powi(exponent - exponent / 2)) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (text, number) in [
            ("10", 10.0),
            ("1_0", 10.0),
            ("1_23.50_0_0e+1_2", 1.235e14),
            ("0x1p3", 8.0),
            ("0X_1P-1", 0.5),
            ("-0x.8p1", -1.0),
            ("0x1.fffffep127", f32::MAX),
            // Half of the last place: to the even one. A digit beyond it: up.
            ("0x1000001p0", 16_777_216.0),
            ("0x1000003p0", 16_777_220.0),
            ("0x1000001.0000000000000000001p0", 16_777_218.0),
            ("0x1p-149", f32::from_bits(1)),
            ("0x1p-150", 0.0),
            ("0x1.8p-150", f32::from_bits(1)),
            ("0x0p99999999999", 0.0),
            ("+infinity", f32::INFINITY),
            ("-Inf", f32::NEG_INFINITY),
        ] {
            assert_eq!(parse_f32(text), Some(number), "{text}");
        }
        assert!(parse_f32("nan").is_some_and(f32::is_nan));
        for text in [
            "",
            "_1",
            "1_",
            "1__0",
            "1_.5",
            "1._5",
            "0x",
            "0x1",
            "0xp1",
            "0x1p",
            "0x1p+",
            "0x1e3",
            "0x1p1.5",
            "1p3",
            "0b1",
            "1e39",
            "0x1p128",
            "0x1p99999999999",
            "+nan",
            "-nan",
            "+",
            "1 ",
            "0x_p1",
            "0x1_p1",
            "0x1p_1",
            "0x+1p1",
            "5\u{a0}",
            "€5",
            "0€",
            "-€",
        ] {
            assert_eq!(parse_f32(text), None, "{text:?}");
        }
    }
}
