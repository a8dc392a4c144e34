//! `quantity`: parsing, arithmetic and printing.
//!
//! Where a value does not fit 64 bits upstream wraps around or returns zero, and it rounds negative big decimals the
//! wrong way; from 10²¹ it loses the decimal suffix. Ours are clamped, exact and complete. Such a line counts as a
//! known upstream defect only if our number follows from the printed text *and* upstream's is what that defect makes of
//! it; anything unexplained is a failure.

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
    let (mantissa, own) = actual.mantissa_and_exponent();
    let digits = mantissa.to_string();
    // Upstream moves all factors of ten into the exponent, and some back to make it a multiple of three.
    let significant = digits.trim_end_matches('0');
    let zeros = i32::try_from(digits.len() - significant.len()).unwrap_or(i32::MAX);
    let exponent = own.saturating_add(zeros);
    let back = exponent.rem_euclid(3);
    let stripped = format!(
        "{significant}{}",
        &"00"[..usize::try_from(back).unwrap_or(0)]
    );
    // 10¹⁸ is the largest that has a suffix; upstream prints larger powers as nothing.
    let lost = actual.format() == Format::DecimalSI && exponent - back > 18;
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
        &actual.wrapping_scaled_value(exponent).to_string().as_str(),
        &upstream,
    )?;
    Ok(Some(format!(
        "{what}: upstream has {upstream}, exact is {ours}"
    )))
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
        // A big decimal is in nanos; these are the texts of `CanonicalizeBytes` of 1.36.2.
        for (text, upstream) in [
            ("10000000000000000000000000", "10"),
            (
                "1234567890123456789000000000000000000000",
                "1234567890123456789",
            ),
            ("100000000000000000000000000000m", "100"),
            ("-10000000000000000000000000", "-10"),
            ("2500000000000000000000000", "2500"),
        ] {
            let quantity = Quantity::parse(text).unwrap();
            let compared = |upstream| same_text("text", &quantity, quantity.canonical(), upstream);
            assert!(matches!(compared(upstream), Ok(Some(_))), "{text}");
            assert!(compared("7").is_err(), "{text}");
        }
        let quantity = Quantity::parse("1234567890123456789000").unwrap();
        let ours = quantity.canonical();
        assert_eq!(
            same_text("text", &quantity, ours, "1234567890123456789k"),
            Ok(None)
        );
        assert!(
            same_text(
                "text",
                &quantity,
                quantity.canonical(),
                "1234567890123456789"
            )
            .is_err()
        );
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
