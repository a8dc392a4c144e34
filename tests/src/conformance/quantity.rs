//! `quantity`: parsing, arithmetic and printing.
//!
//! Where a value does not fit 64 bits upstream wraps around or returns zero, and it rounds negative big decimals the
//! wrong way; from 10²¹ it loses the decimal suffix. Ours are clamped, exact and complete. Such a line counts as a known upstream defect only if our number follows from
//! the printed text *and* upstream's is what that defect makes of it; anything unexplained is a failure.

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive};
use plimsoll_core::kube::quantity::{Format, Quantity, QuantityError};
use serde::Deserialize;
use serde_json::Value;

use super::{Verdict, read, same};

/// A vector of any kind.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Vector {
    Parse(Parse),
    Arith(Arith),
    FormatInt(FormatInt),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Parse {
    Refused { input: String, error: String },
    Read(Box<Read>),
}

#[derive(Deserialize)]
struct Read {
    input: String,
    value: String,
    milli_value: String,
    value_nano: Option<String>,
    canonical: String,
    string: String,
    format: String,
    sign: i32,
    is_zero: bool,
    as_int64_exact: bool,
    approx_f64: String,
    dec_form: bool,
    #[serde(default)]
    value_artifact: bool,
    #[serde(default)]
    milli_value_artifact: bool,
    #[serde(default)]
    value_nano_artifact: bool,
}

#[derive(Deserialize)]
struct Arith {
    a: String,
    b: String,
    cmp: i32,
    sum: String,
    sum_value: String,
    sum_milli: String,
    diff: String,
    diff_value: String,
    diff_milli: String,
}

#[derive(Deserialize)]
struct FormatInt {
    int: String,
    binary_si: String,
    decimal_si: String,
    milli_decimal_si: String,
}

pub(super) fn check(vector: &Value) -> Verdict {
    match read(vector) {
        Ok(Vector::Parse(Parse::Refused { input, error })) => Verdict::of(refused(&input, &error)),
        Ok(Vector::Parse(Parse::Read(expected))) => {
            parsed(&expected).unwrap_or_else(|why| Verdict::Fail { why })
        }
        Ok(Vector::Arith(expected)) => arith(&expected).unwrap_or_else(|why| Verdict::Fail { why }),
        Ok(Vector::FormatInt(expected)) => Verdict::of(format_int(&expected)),
        Err(why) => Verdict::Fail { why },
    }
}

fn quantity(text: &str) -> Result<Quantity, String> {
    Quantity::parse(text).map_err(|error| error.to_string())
}

/// Upstream has one text per kind of error; the text is only used to tell the kinds apart.
fn refused(input: &str, error: &str) -> Result<(), String> {
    let kind = match Quantity::parse(input) {
        Ok(quantity) => return Err(format!("parsed as {quantity}, expected an error")),
        Err(QuantityError::Malformed { .. }) => "quantities must match",
        Err(QuantityError::UnknownSuffix { .. }) => "quantity's suffix",
        Err(QuantityError::NoDigits { .. }) => "numeric part",
        Err(QuantityError::TooLarge) => {
            return Err("refused as too large, a limit of our own".to_owned());
        }
    };
    if error.contains(kind) {
        Ok(())
    } else {
        Err(format!("error of kind {kind:?}, expected {error:?}"))
    }
}

fn parsed(expected: &Read) -> Result<Verdict, String> {
    let actual = quantity(&expected.input)?;
    let mut defects = Vec::new();
    defects.extend(same_text(
        "canonical",
        &actual,
        actual.canonical(),
        &expected.canonical,
    )?);
    defects.extend(same_text(
        "string",
        &actual,
        actual.to_string(),
        &expected.string,
    )?);
    same(
        "format",
        &actual.format().as_str(),
        &expected.format.as_str(),
    )?;
    same("sign", &actual.sign(), &expected.sign)?;
    same("is_zero", &actual.is_zero(), &expected.is_zero)?;
    same(
        "as_int64_exact",
        &actual.as_i64().is_some(),
        &expected.as_int64_exact,
    )?;
    same("dec_form", &actual.is_big(), &expected.dec_form)?;
    same(
        "approx_f64",
        &format!("{:x}", actual.approximate_f64().to_bits()),
        &expected.approx_f64,
    )?;
    for (what, exponent, upstream, is_artifact) in [
        ("value", 0, Some(&expected.value), expected.value_artifact),
        (
            "milli_value",
            -3,
            Some(&expected.milli_value),
            expected.milli_value_artifact,
        ),
        (
            "value_nano",
            -9,
            expected.value_nano.as_ref(),
            expected.value_nano_artifact,
        ),
    ] {
        let Some(upstream) = upstream else { continue };
        let defect = same_value(what, &actual, exponent, upstream)?;
        // Nanos of large values overflow without a tag of their own.
        if exponent != -9 {
            same(&format!("{what}_artifact"), &defect.is_some(), &is_artifact)?;
        }
        defects.extend(defect);
    }
    Ok(verdict(defects))
}

fn verdict(defects: Vec<String>) -> Verdict {
    if defects.is_empty() {
        Verdict::Pass
    } else {
        Verdict::KnownUpstreamDefect(defects.join("; "))
    }
}

/// Compares a text with upstream's; returns upstream's defect, if that is the difference.
fn same_text(
    what: &str,
    actual: &Quantity,
    ours: String,
    upstream: &str,
) -> Result<Option<String>, String> {
    let (digits, exponent) = actual.mantissa_and_exponent();
    let digits = format!(
        "{digits}{}",
        "0".repeat(usize::try_from(exponent).unwrap_or(0))
    );
    let mut stripped = digits.as_str();
    while let Some(shorter) = stripped.strip_suffix("000") {
        stripped = shorter;
    }
    // 10¹⁸ is the largest that has a suffix; upstream prints larger powers as nothing.
    let lost =
        actual.format() == Format::DecimalSI && exponent >= 0 && digits.len() - stripped.len() > 18;
    if lost && upstream == stripped {
        return Ok(Some(format!(
            "{what}: upstream has {upstream}, without the suffix of {ours}"
        )));
    }
    same(what, &ours.as_str(), &upstream)?;
    Ok(None)
}

/// Compares a value in units of `10^exponent` with upstream's; returns upstream's defect, if that is the difference.
fn same_value(
    what: &str,
    actual: &Quantity,
    exponent: i32,
    upstream: &str,
) -> Result<Option<String>, String> {
    let ours = actual.scaled_value(exponent);
    // The text was compared before: it is upstream's, or what upstream's should be.
    same(
        what,
        &ours,
        &value_of_canonical(&actual.canonical(), exponent)?,
    )?;
    if ours.to_string() == upstream {
        return Ok(None);
    }
    same(
        what,
        &upstream_value(actual, exponent).to_string().as_str(),
        &upstream,
    )?;
    Ok(Some(format!(
        "{what}: upstream has {upstream}, exact is {ours}"
    )))
}

/// What 1.36 returns for `ScaledValue`, defects included.
fn upstream_value(actual: &Quantity, exponent: i32) -> i64 {
    let (mantissa, own) = actual.mantissa_and_exponent();
    let low_bits = |big: &BigInt| {
        let magnitude = (big.magnitude() & num_bigint::BigUint::from(u64::MAX))
            .to_u64()
            .unwrap_or(0)
            .cast_signed();
        if big.is_negative() {
            magnitude.wrapping_neg()
        } else {
            magnitude
        }
    };
    let places = own - exponent;
    let power = BigInt::from(10).pow(places.unsigned_abs());
    if places == 0 {
        return low_bits(&mantissa);
    }
    if !actual.is_big() {
        // `positiveScaleInt64` wraps around for these powers and gives up with zero for others.
        let exact = mantissa * power;
        return if exact.to_i64().is_some() || matches!(places, 1 | 2 | 3 | 6 | 9) {
            low_bits(&exact)
        } else {
            0
        };
    }
    if places > 0 {
        // `int64(math.Pow10(n))` saturates at the smallest integer on amd64.
        return low_bits(&mantissa).wrapping_mul(power.to_i64().unwrap_or(i64::MIN));
    }
    // `scaledValue` adds one for any remainder, whatever the sign, and divides the low bits if the number is short.
    if mantissa < BigInt::from(i64::MAX) && places > -19 {
        let (bits, power) = (low_bits(&mantissa), power.to_i64().unwrap_or(i64::MAX));
        return bits / power + i64::from(bits % power != 0);
    }
    let quotient = div_floor(&mantissa, &power);
    let exact = &quotient * &power == mantissa;
    low_bits(&quotient).wrapping_add(i64::from(!exact))
}

fn div_floor(a: &BigInt, b: &BigInt) -> BigInt {
    let quotient = a / b;
    if (a % b).is_negative() {
        quotient - 1
    } else {
        quotient
    }
}

/// The value of a canonical text in units of `10^unit`, rounded away from zero and clamped to an `i64`.
///
/// Written apart from [`Quantity`], so that it can judge it where upstream cannot.
fn value_of_canonical(canonical: &str, unit: i32) -> Result<i64, String> {
    let unreadable = || format!("canonical {canonical:?} cannot be read");
    let digits_end = canonical
        .rfind(|c: char| c.is_ascii_digit())
        .ok_or_else(unreadable)?
        + 1;
    let (number, exponent, binary) = match canonical.find('e') {
        Some(at) => (
            &canonical[..at],
            canonical[at + 1..]
                .parse::<i32>()
                .map_err(|_| unreadable())?,
            0,
        ),
        None => {
            let (number, suffix) = canonical.split_at(digits_end);
            let step = |table: &str| {
                table
                    .split(' ')
                    .position(|own| own == suffix)
                    .and_then(|at| i32::try_from(at).ok())
            };
            match (step("n u m  k M G T P E"), step("- Ki Mi Gi Ti Pi Ei")) {
                (Some(step), _) => (number, 3 * step - 9, 0),
                (None, Some(step)) => (number, 0, 10 * step),
                (None, None) => return Err(unreadable()),
            }
        }
    };
    let limit = if number.starts_with('-') {
        i64::MIN
    } else {
        i64::MAX
    };
    // More digits than an i128 has, in nanos or more, are beyond an i64 in any case.
    let Ok(mantissa) = number.parse::<i128>() else {
        return Ok(limit);
    };
    let places = exponent - unit;
    let value = if places >= 0 {
        10i128
            .checked_pow(places.unsigned_abs())
            .and_then(|factor| mantissa.checked_mul(factor))
    } else {
        let factor = 10i128.pow(places.unsigned_abs());
        Some(mantissa / factor + (mantissa % factor).signum())
    };
    let value = value.and_then(|value| value.checked_mul(1i128 << binary));
    Ok(value
        .and_then(|value| i64::try_from(value).ok())
        .unwrap_or(limit))
}

fn arith(expected: &Arith) -> Result<Verdict, String> {
    let (a, b) = (quantity(&expected.a)?, quantity(&expected.b)?);
    same("cmp", &(a.cmp(&b) as i32), &expected.cmp)?;
    let mut sum = a.clone();
    sum += &b;
    let mut diff = a;
    diff -= &b;
    let mut defects = Vec::new();
    defects.extend(same_text("sum", &sum, sum.to_string(), &expected.sum)?);
    defects.extend(same_text("diff", &diff, diff.to_string(), &expected.diff)?);
    for (what, actual, exponent, upstream) in [
        ("sum_value", &sum, 0, &expected.sum_value),
        ("sum_milli", &sum, -3, &expected.sum_milli),
        ("diff_value", &diff, 0, &expected.diff_value),
        ("diff_milli", &diff, -3, &expected.diff_milli),
    ] {
        defects.extend(same_value(what, actual, exponent, upstream)?);
    }
    Ok(verdict(defects))
}

fn format_int(expected: &FormatInt) -> Result<(), String> {
    let int = expected
        .int
        .parse::<i64>()
        .map_err(|error| format!("int {:?}: {error}", expected.int))?;
    same(
        "binary_si",
        &Quantity::from_value(int, Format::BinarySI).to_string(),
        &expected.binary_si,
    )?;
    same(
        "decimal_si",
        &Quantity::from_value(int, Format::DecimalSI).to_string(),
        &expected.decimal_si,
    )?;
    same(
        "milli_decimal_si",
        &Quantity::from_milli(int, Format::DecimalSI).to_string(),
        &expected.milli_decimal_si,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(input: &str, canonical: &str, value: &str, is_artifact: bool) -> Verdict {
        check(&json!({
            "kind": "parse", "input": input, "canonical": canonical, "string": canonical, "format": "DecimalSI",
            "sign": 1, "is_zero": false, "as_int64_exact": false, "dec_form": false, "approx_f64": "44b52d02c7e14af6",
            "value": value, "value_artifact": is_artifact, "milli_value": "0", "milli_value_artifact": true,
        }))
    }

    #[test]
    fn a_lost_suffix_is_a_known_defect_and_any_other_text_is_a_failure() {
        let known = |verdict| matches!(verdict, Verdict::KnownUpstreamDefect(_));
        assert!(
            known(parse("100000E", "100", "0", true)),
            "{:?}",
            parse("100000E", "100", "0", true)
        );
        assert!(known(parse("100000E", "100000E", "0", true)));
        assert!(matches!(
            parse("100000E", "10", "0", true),
            Verdict::Fail { .. }
        ));
        // A wrong value, and one that no defect explains.
        assert!(matches!(
            parse("100000E", "100000E", "7", true),
            Verdict::Fail { .. }
        ));
        assert!(matches!(
            parse("100000E", "100000E", "0", false),
            Verdict::Fail { .. }
        ));
    }

    #[test]
    fn the_judge_of_values_rounds_and_clamps() {
        for (text, unit, value) in [
            ("1536Mi", 0, 1_610_612_736),
            ("-1500m", 0, -2),
            ("1500m", -3, 1500),
            ("1n", -3, 1),
            ("12e3", 0, 12_000),
            ("5E", 0, 5_000_000_000_000_000_000),
            ("50E", 0, i64::MAX),
            ("-50E", -9, i64::MIN),
            ("0", 0, 0),
        ] {
            assert_eq!(value_of_canonical(text, unit), Ok(value), "{text}");
        }
    }
}
