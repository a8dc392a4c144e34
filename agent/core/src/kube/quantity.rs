//! Kubernetes quantities: "500m", "1.5Gi", "1e3".
//!
//! Problem: every limit, request and threshold is text in this notation, and the kubelet's decisions depend on its
//! exact value, rounding and, in messages, on how it is printed again.
//!
//! Approach: a quantity is `mantissa × 10^exponent` plus the notation it was written in. The mantissa is an `i64` where
//! the text allows and an arbitrary integer otherwise, decided by the same rules as upstream. No value passes through a
//! float. Where upstream's integers wrap around, ours saturate, unless the answer is to be upstream's.
//!
//! Source: `k8s.io/apimachinery/pkg/api/resource` of Kubernetes 1.36 (`quantity.go`, `amount.go`, `suffix.go`).
//!
//! Terms: *format* is the notation (decimal suffix, binary suffix, exponent); *canonical* is the text with the largest
//! suffix that needs no fraction; *rounding up* is always away from zero.

mod parse;
mod wrapping;

use std::cmp::Ordering;
use std::fmt;
use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;

use num_bigint::{BigInt, Sign};
use num_traits::{Signed, ToPrimitive, Zero};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// The smallest step that a parsed quantity keeps: 10⁻⁹. Finer values are rounded up to it.
const NANO: i32 = -9;

/// The largest decimal exponent accepted, so that no sum needs more than some ten thousand digits. Upstream has no
/// limit (and takes unbounded time and memory to add `1e2000000000` and `1`).
pub const MAX_EXPONENT: i32 = 10_000;

/// The longest text accepted, in bytes, for the same reason.
pub const MAX_TEXT_BYTES: usize = 4096;

/// Why a text is not a quantity. The first three kinds are upstream's (`ErrFormatWrong`, `ErrSuffix`, `ErrNumeric`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a sign, digits and a suffix.
    #[error(
        "quantity {text:?} is malformed: write a number and an optional suffix, such as 500m, 1.5Gi or 2e3"
    )]
    Malformed {
        /// The text as given.
        text: String,
    },
    /// A suffix that does not exist.
    #[error(
        "quantity {text:?} has an unknown suffix: use n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei or e<exponent>"
    )]
    UnknownSuffix {
        /// The text as given.
        text: String,
    },
    /// No digits where a number has to be.
    #[error("quantity {text:?} has no digits: write a number before the suffix")]
    NoDigits {
        /// The text as given.
        text: String,
    },
    /// Beyond what this implementation computes with; upstream accepts it.
    #[error(
        "quantity is too large: at most {} characters and an exponent of at most {}",
        MAX_TEXT_BYTES,
        MAX_EXPONENT
    )]
    TooLarge,
}

/// The notation a quantity was written in and is printed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `12e6`. Upstream also prints a quantity without any format this way.
    DecimalExponent,
    /// `12Mi`: 12 × 2²⁰.
    BinarySI,
    /// `12M`: 12 × 10⁶.
    #[default]
    DecimalSI,
}

impl Format {
    /// Upstream's name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DecimalExponent => "DecimalExponent",
            Self::BinarySI => "BinarySI",
            Self::DecimalSI => "DecimalSI",
        }
    }
}

/// `mantissa × 10^exponent`. `Small` is upstream's `int64Amount`, `Big` its `infDecAmount`.
#[derive(Debug, Clone)]
enum Amount {
    Small { mantissa: i64, exponent: i32 },
    Big { mantissa: BigInt, exponent: i32 },
}

impl Amount {
    const ZERO: Self = Self::Small {
        mantissa: 0,
        exponent: 0,
    };

    fn sign(&self) -> i32 {
        match self {
            Self::Small { mantissa, .. } => mantissa.signum() as i32,
            Self::Big { mantissa, .. } => match mantissa.sign() {
                Sign::Minus => -1,
                Sign::NoSign => 0,
                Sign::Plus => 1,
            },
        }
    }

    fn exponent(&self) -> i32 {
        match self {
            Self::Small { exponent, .. } | Self::Big { exponent, .. } => *exponent,
        }
    }

    fn to_big(&self) -> BigInt {
        match self {
            Self::Small { mantissa, .. } => BigInt::from(*mantissa),
            Self::Big { mantissa, .. } => mantissa.clone(),
        }
    }

    /// The mantissa this amount has when written with the exponent `to`, which is not above its own.
    fn big_at(&self, to: i32) -> BigInt {
        let places = self.exponent().saturating_sub(to).max(0);
        self.to_big() * BigInt::from(10).pow(places.unsigned_abs())
    }

    /// `self / 10^to` as an integer, rounded away from zero.
    fn integer_at(&self, to: i32) -> BigInt {
        if self.sign() == 0 {
            return BigInt::ZERO;
        }
        if self.exponent() >= to {
            return self.big_at(to);
        }
        round_up(
            &self.to_big(),
            to.saturating_sub(self.exponent()).unsigned_abs(),
        )
    }

    /// The same in 64 bits; `None` where it does not fit or the short way does not apply.
    fn small_integer_at(&self, to: i32) -> Option<i64> {
        let Self::Small { mantissa, exponent } = *self else {
            return None;
        };
        let places = i64::from(exponent) - i64::from(to);
        if places >= 0 {
            if mantissa == 0 {
                return Some(0);
            }
            let factor = 10i64.checked_pow(u32::try_from(places).ok()?)?;
            return mantissa.checked_mul(factor);
        }
        let factor = 10i64.checked_pow(u32::try_from(-places).ok()?)?;
        // The quotient is at most a tenth of an i64, so the step away from zero cannot overflow.
        Some(
            mantissa / factor
                + if mantissa % factor == 0 {
                    0
                } else {
                    mantissa.signum()
                },
        )
    }

    /// Thousandths, of an amount in whole units, thousands or thousandths, where they fit 64 bits.
    fn whole_milli(&self) -> Option<i64> {
        match *self {
            Self::Small {
                mantissa,
                exponent: -3,
            } => Some(mantissa),
            Self::Small {
                mantissa,
                exponent: 0,
            } => mantissa.checked_mul(1_000),
            Self::Small {
                mantissa,
                exponent: 3,
            } => mantissa.checked_mul(1_000_000),
            Self::Big {
                ref mantissa,
                exponent: -3,
            } => mantissa.to_i64(),
            _ => None,
        }
    }

    /// The mantissa, where 128 bits hold it.
    fn mantissa_128(&self) -> Option<i128> {
        match self {
            Self::Small { mantissa, .. } => Some(i128::from(*mantissa)),
            Self::Big { mantissa, .. } => mantissa.to_i128(),
        }
    }

    fn cmp(&self, other: &Self) -> Ordering {
        if let Some(order) = short_cmp(self, other) {
            return order;
        }
        match self.sign().cmp(&other.sign()) {
            Ordering::Equal if self.sign() == 0 => Ordering::Equal,
            Ordering::Equal => {
                let to = self.exponent().min(other.exponent());
                self.big_at(to).cmp(&other.big_at(to))
            }
            differ => differ,
        }
    }

    /// `self + other`, or `self - other` with `negate`. Exact.
    fn plus(&self, other: &Self, negate: bool) -> Self {
        if let (
            Self::Small {
                mantissa: a,
                exponent: x,
            },
            Self::Small {
                mantissa: b,
                exponent: y,
            },
        ) = (self, other)
            && let Some(sum) = small_sum((*a, *x), (*b, *y), negate)
        {
            return sum;
        }
        let to = self.exponent().min(other.exponent());
        let (a, b) = (self.big_at(to), other.big_at(to));
        Self::Big {
            mantissa: if negate { a - b } else { a + b },
            exponent: to,
        }
    }
}

/// The sum of two small amounts while it fits 64 bits at the finer of both exponents.
fn small_sum((a, x): (i64, i32), (b, y): (i64, i32), negate: bool) -> Option<Amount> {
    let b = if negate { b.checked_neg()? } else { b };
    if b == 0 {
        return Some(Amount::Small {
            mantissa: a,
            exponent: x,
        });
    }
    if a == 0 {
        return Some(Amount::Small {
            mantissa: b,
            exponent: y,
        });
    }
    if x == y {
        let mantissa = a.checked_add(b)?;
        return Some(Amount::Small {
            mantissa,
            exponent: x,
        });
    }
    let exponent = x.min(y);
    let at = |mantissa: i64, from_exponent: i32| {
        let places = u32::try_from(i64::from(from_exponent) - i64::from(exponent)).ok()?;
        mantissa.checked_mul(10i64.checked_pow(places)?)
    };
    Some(Amount::Small {
        mantissa: at(a, x)?.checked_add(at(b, y)?)?,
        exponent,
    })
}

/// `mantissa / 10^places`, rounded away from zero.
fn round_up(mantissa: &BigInt, places: u32) -> BigInt {
    // A decimal digit needs more than three bits: past this the quotient is below one and only the rounding unit is
    // left.
    if u64::from(places) > mantissa.bits() / 3 + 1 {
        return mantissa.signum();
    }
    let divisor = BigInt::from(10).pow(places);
    let quotient = mantissa / &divisor;
    if (mantissa % divisor).is_zero() {
        quotient
    } else {
        quotient + mantissa.signum()
    }
}

/// Compares where that needs no more than 128 bits.
fn short_cmp(a: &Amount, b: &Amount) -> Option<Ordering> {
    // As nearly all are.
    if let (Some(a), Some(b)) = (a.whole_milli(), b.whole_milli()) {
        return Some(a.cmp(&b));
    }
    let to = a.exponent().min(b.exponent());
    let at = |amount: &Amount| {
        let places = u32::try_from(i64::from(amount.exponent()) - i64::from(to)).ok()?;
        let mantissa = amount.mantissa_128()?;
        match places {
            0 => Some(mantissa),
            _ => mantissa.checked_mul(10i128.checked_pow(places)?),
        }
    };
    Some(at(a)?.cmp(&at(b)?))
}

/// Divides by `factor` while it divides; `value` is not zero.
fn strip_small(mut value: i64, factor: i64) -> (i64, i32) {
    let mut times = 0;
    while value % factor == 0 {
        value /= factor;
        times += 1;
    }
    (value, times)
}

/// Divides by `factor` while it divides; `value` is not zero.
fn strip_factors(mut value: BigInt, factor: u32) -> (BigInt, i32) {
    let factor = BigInt::from(factor);
    let mut times = 0;
    while (&value % &factor).is_zero() {
        value /= &factor;
        times += 1;
    }
    (value, times)
}

/// An exact amount of a resource.
///
/// Equality and order are of the value: `1Gi` equals `1024Mi`.
#[derive(Clone)]
pub struct Quantity {
    amount: Amount,
    format: Format,
    /// The text it was parsed from, where upstream prints that again instead of the canonical form.
    text: Option<Arc<str>>,
}

impl Quantity {
    /// Zero in the given notation.
    pub const fn zero(format: Format) -> Self {
        Self {
            amount: Amount::ZERO,
            format,
            text: None,
        }
    }

    /// A whole number (upstream `NewQuantity`).
    pub const fn from_value(value: i64, format: Format) -> Self {
        Self {
            amount: Amount::Small {
                mantissa: value,
                exponent: 0,
            },
            format,
            text: None,
        }
    }

    /// Thousandths (upstream `NewMilliQuantity`).
    pub const fn from_milli(milli: i64, format: Format) -> Self {
        Self {
            amount: Amount::Small {
                mantissa: milli,
                exponent: -3,
            },
            format,
            text: None,
        }
    }

    /// Parses the text of a manifest (upstream `ParseQuantity`). White space is malformed.
    ///
    /// # Errors
    /// See [`QuantityError`].
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse::parse(text)
    }

    /// The value rounded away from zero to a whole number, clamped to an `i64` (upstream `Value`, which wraps around:
    /// [`Self::wrapping_scaled_value`]).
    pub fn value(&self) -> i64 {
        self.scaled_value(0)
    }

    /// Thousandths, as [`Self::value`] (upstream `MilliValue`).
    pub fn milli_value(&self) -> i64 {
        self.scaled_value(-3)
    }

    /// The value in units of `10^exponent`, rounded away from zero and clamped to an `i64` (upstream `ScaledValue`).
    pub fn scaled_value(&self, exponent: i32) -> i64 {
        self.amount.small_integer_at(exponent).unwrap_or_else(|| {
            let exact = self.amount.integer_at(exponent);
            exact.to_i64().unwrap_or(if exact.is_negative() {
                i64::MIN
            } else {
                i64::MAX
            })
        })
    }

    /// The value in units of 10⁻⁹, exact because no quantity is finer, clamped to an `i128`.
    pub fn nanos(&self) -> i128 {
        let exact = self.amount.integer_at(NANO);
        exact.to_i128().unwrap_or(if exact.is_negative() {
            i128::MIN
        } else {
            i128::MAX
        })
    }

    /// The value as a whole number where that loses nothing and needs no big integer (upstream `AsInt64`).
    pub fn as_i64(&self) -> Option<i64> {
        match self.amount {
            Amount::Small { exponent, .. } if exponent >= 0 => self.amount.small_integer_at(0),
            Amount::Small { .. } | Amount::Big { .. } => None,
        }
    }

    /// Whether the mantissa is an arbitrary integer (upstream: an `inf.Dec`) rather than an `i64`.
    pub fn is_big(&self) -> bool {
        matches!(self.amount, Amount::Big { .. })
    }

    /// The value as a float, for ratios and display only (upstream `AsApproximateFloat64`, bit for bit).
    pub fn approximate_f64(&self) -> f64 {
        let base = match &self.amount {
            Amount::Small { mantissa, .. } => *mantissa as f64,
            Amount::Big { mantissa, .. } => mantissa.to_f64().unwrap_or(f64::INFINITY),
        };
        match self.amount.exponent() {
            0 => base,
            exponent => base * pow10(exponent),
        }
    }

    /// The quantity as `mantissa × 10^exponent`, in the representation that upstream holds it in.
    pub fn mantissa_and_exponent(&self) -> (BigInt, i32) {
        (self.amount.to_big(), self.amount.exponent())
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        self.amount.sign()
    }

    /// Whether the value is zero.
    pub fn is_zero(&self) -> bool {
        self.sign() == 0
    }

    /// Whether it is more than `most` together with `more`.
    pub fn exceeds_with(&self, more: &Self, most: &Self) -> bool {
        let milli = |quantity: &Self| quantity.amount.whole_milli();
        if let (Some(first), Some(more), Some(most)) = (milli(self), milli(more), milli(most))
            && let Some(sum) = first.checked_add(more)
        {
            return sum > most;
        }
        let mut sum = self.clone();
        sum += more;
        sum > *most
    }

    /// The notation.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The canonical text (upstream `CanonicalizeBytes`): the largest suffix that needs no fraction.
    ///
    /// A binary quantity that is not whole, or below 1024 in magnitude, is written as a decimal one.
    pub fn canonical(&self) -> String {
        if self.is_zero() {
            return "0".to_owned();
        }
        if let Some(text) = self.canonical_small() {
            return text;
        }
        if self.format == Format::BinarySI
            && let Some(text) = self.canonical_binary()
        {
            return text;
        }
        let (mut mantissa, stripped) = strip_factors(self.amount.to_big(), 10);
        let exponent = self.amount.exponent().saturating_add(stripped);
        // Down to a multiple of three, and no further up than the largest suffix.
        let mut multiple = exponent - exponent.rem_euclid(3);
        if self.format != Format::DecimalExponent {
            multiple = multiple.min(18);
        }
        mantissa *= BigInt::from(10).pow((exponent - multiple).unsigned_abs());
        let suffix = match (self.format, multiple) {
            (_, 0) => String::new(),
            (Format::DecimalExponent, _) => format!("e{multiple}"),
            _ => parse::decimal_suffix(multiple).to_owned(),
        };
        format!("{mantissa}{suffix}")
    }

    /// The same without big integers, where that is possible; the amount is not zero.
    fn canonical_small(&self) -> Option<String> {
        let Amount::Small { mantissa, exponent } = self.amount else {
            return None;
        };
        if self.format == Format::BinarySI {
            // Below a whole unit it may be exact or not.
            let whole = (exponent >= 0).then(|| self.amount.small_integer_at(0))??;
            if whole.unsigned_abs() >= 1024 {
                let (mantissa, steps) = strip_small(whole, 1024);
                return Some(format!("{mantissa}{}", parse::binary_suffix(steps)));
            }
        }
        let (mantissa, stripped) = strip_small(mantissa, 10);
        let exponent = exponent.checked_add(stripped)?;
        let mut multiple = exponent - exponent.rem_euclid(3);
        if self.format != Format::DecimalExponent {
            multiple = multiple.min(18);
        }
        let factor = 10i64.checked_pow((exponent - multiple).unsigned_abs())?;
        let mantissa = mantissa.checked_mul(factor)?;
        Some(match (self.format, multiple) {
            (_, 0) => mantissa.to_string(),
            (Format::DecimalExponent, _) => format!("{mantissa}e{multiple}"),
            _ => format!("{mantissa}{}", parse::decimal_suffix(multiple)),
        })
    }

    fn canonical_binary(&self) -> Option<String> {
        let whole = self.amount.integer_at(0);
        let exact = Amount::Big {
            mantissa: whole.clone(),
            exponent: 0,
        }
        .cmp(&self.amount)
            == Ordering::Equal;
        if !exact || whole.magnitude() < BigInt::from(1024).magnitude() {
            return None;
        }
        let (mut mantissa, mut steps) = strip_factors(whole, 1024);
        while steps > 6 {
            mantissa *= 1024;
            steps -= 1;
        }
        Some(format!("{mantissa}{}", parse::binary_suffix(steps)))
    }

    /// This, as upstream's `Cmp` leaves it: what was compared with an `inf.Dec` has become one, and is still written as
    /// before.
    #[must_use]
    pub fn compared_with(&self, other: &Self) -> Self {
        let mut compared = self.clone();
        if let Amount::Small { mantissa, exponent } = self.amount
            && other.is_big()
        {
            compared.amount = Amount::Big {
                mantissa: mantissa.into(),
                exponent,
            };
        }
        compared
    }

    /// Rounds to whole units of `10^exponent`, away from zero (upstream `RoundUp`, which lets an `inf.Dec` forget how
    /// it was written).
    pub fn round_up(&mut self, exponent: i32) {
        if self.is_big() {
            self.text = None;
        }
        if self.amount.exponent() >= exponent {
            return;
        }
        self.text = None;
        self.amount = match self.amount.small_integer_at(exponent) {
            Some(mantissa) => Amount::Small { mantissa, exponent },
            None => Amount::Big {
                mantissa: self.amount.integer_at(exponent),
                exponent,
            },
        };
    }

    fn combine(&mut self, other: &Self, negate: bool) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.plus(&other.amount, negate);
        self.text = None;
    }
}

/// Go's `math.Pow10`: a product of two table entries, hence not always the nearest float.
fn pow10(exponent: i32) -> f64 {
    let literal = |exponent: i32| format!("1e{exponent}").parse::<f64>().unwrap_or(f64::NAN);
    match exponent {
        0..=308 => literal(exponent / 32 * 32) * literal(exponent % 32),
        -323..0 => literal(-(-exponent / 32 * 32)) / literal(-exponent % 32),
        ..-323 => 0.0,
        _ => f64::INFINITY,
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::zero(Format::default())
    }
}

impl AddAssign<&Quantity> for Quantity {
    /// Exact. A zero on the left takes the other's format (upstream `Add`).
    fn add_assign(&mut self, other: &Quantity) {
        self.combine(other, false);
    }
}

impl SubAssign<&Quantity> for Quantity {
    /// Exact. A zero on the left takes the other's format (upstream `Sub`).
    fn sub_assign(&mut self, other: &Quantity) {
        self.combine(other, true);
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.amount.cmp(&other.amount)
    }
}

impl fmt::Display for Quantity {
    /// Upstream `String`: the text that was parsed where it counts as canonical enough, else the canonical form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.pad(text),
            None => f.pad(&self.canonical()),
        }
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quantity({self})")
    }
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// Takes a string or, as manifests have `cpu: 1` and `cpu: 0.5`, a number; null is zero (upstream `UnmarshalJSON`).
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity such as 500m, \"1.5Gi\" or 2")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
        Quantity::parse(text.trim()).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Quantity, E> {
        // The shortest digits that read back as this float are the digits that were written.
        self.visit_str(&value.to_string())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Quantity, E> {
        Ok(Quantity::default())
    }

    fn visit_none<E: de::Error>(self) -> Result<Quantity, E> {
        Ok(Quantity::default())
    }
}

#[cfg(test)]
mod tests;
