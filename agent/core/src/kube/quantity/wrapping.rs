//! What upstream returns for an amount that 64 bits do not hold.
//!
//! Source: `ScaledValue` in `quantity.go`, `positiveScaleInt64` in `math.go` and `scaledValue` in `scale_int.go` of
//! `k8s.io/apimachinery/pkg/api/resource`, 1.36.

use num_bigint::{BigInt, BigUint};
use num_traits::{Signed, ToPrimitive, Zero};

use super::{Amount, Quantity};

/// The powers of ten by which upstream multiplies in one step, without a look at the overflow.
const ONE_STEP: [i64; 5] = [1, 2, 3, 6, 9];
/// The first power of ten that 64 bits do not hold.
const POWER_TOO_LARGE: u32 = 19;

impl Quantity {
    /// As [`Self::scaled_value`], but with what upstream makes of an amount that 64 bits do not hold (`ScaledValue`):
    /// it wraps around or is 0, and a negative big decimal is rounded up. For decisions that are the API server's.
    pub fn wrapping_scaled_value(&self, exponent: i32) -> i64 {
        if let Some(value) = self.amount.small_integer_at(exponent) {
            return value;
        }
        let places = i64::from(self.amount.exponent()) - i64::from(exponent);
        let digits = u32::try_from(places.unsigned_abs()).unwrap_or(u32::MAX);
        match &self.amount {
            Amount::Small { mantissa, .. } if places > 0 => {
                let power = 10i64.checked_pow(digits).unwrap_or(0);
                if ONE_STEP.contains(&places) {
                    mantissa.wrapping_mul(power)
                } else {
                    0
                }
            }
            // Less than one unit is left of it.
            Amount::Small { .. } => self.scaled_value(exponent),
            Amount::Big { mantissa, .. } if places == 0 => low_bits(mantissa),
            // A float that is too large becomes the smallest integer, on amd64.
            Amount::Big { mantissa, .. } if places > 0 => {
                low_bits(mantissa).wrapping_mul(10i64.checked_pow(digits).unwrap_or(i64::MIN))
            }
            Amount::Big { mantissa, .. } => divided(mantissa, digits),
        }
    }
}

/// `mantissa / 10^digits`, rounded up, of which only the low bits count.
fn divided(mantissa: &BigInt, digits: u32) -> i64 {
    if digits < POWER_TOO_LARGE && *mantissa < BigInt::from(i64::MAX) {
        // A number far below zero counts as short, too.
        let (bits, power) = (low_bits(mantissa), 10i64.pow(digits));
        return bits / power + i64::from(bits % power != 0);
    }
    let power = BigInt::from(10).pow(digits);
    let (mut quotient, remainder) = (mantissa / &power, mantissa % power);
    if remainder.is_negative() {
        quotient -= 1;
    }
    low_bits(&quotient).wrapping_add(i64::from(!remainder.is_zero()))
}

/// Go's `big.Int.Int64`.
fn low_bits(number: &BigInt) -> i64 {
    let magnitude = number.magnitude() & BigUint::from(u64::MAX);
    let magnitude = magnitude.to_u64().unwrap_or(0).cast_signed();
    if number.is_negative() {
        magnitude.wrapping_neg()
    } else {
        magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those that `Value` and `MilliValue` of 1.36.2 returned.
    #[test]
    fn what_64_bits_do_not_hold_is_upstreams() {
        for (text, value, milli) in [
            ("8Ei", i64::MAX, -1000),
            ("50E", 0, 0),
            ("1E", 1_000_000_000_000_000_000, 0),
            ("1e21", 0, 0),
            ("9223372036854775808", i64::MIN, 0),
            ("18446744073709551617", 1, 1000),
            ("9223372036854775807500m", i64::MIN, -500),
            ("-1.5", -2, -1500),
            (
                "-12345678901234567890.5",
                -5_097_733_591,
                -5_097_733_592_501,
            ),
            (
                "10000000000000000000000000",
                1_590_897_978_359_414_784,
                4_477_988_020_393_345_024,
            ),
            (
                "12345678901234567890123e3",
                -7_484_280_360_333_952_776,
                5_097_733_592_125_180_096,
            ),
            (
                "-10000000000000000000000000",
                -4_003_012_202,
                -4_003_012_203_949,
            ),
            (
                "1000000000000000000000000000n",
                1_000_000_000_000_000_000,
                3_875_820_019_684_212_736,
            ),
        ] {
            let quantity = Quantity::parse(text).unwrap();
            let values = [0, -3].map(|exponent| quantity.wrapping_scaled_value(exponent));
            assert_eq!(values, [value, milli], "{text}");
        }
        let mut rounded = Quantity::parse("-12345678901234567890.5").unwrap();
        rounded.round_up(-3);
        assert_eq!(
            rounded.wrapping_scaled_value(-3),
            -4_807_115_922_877_859_396
        );
    }

    #[test]
    fn what_64_bits_hold_is_the_value() {
        for text in [
            "0",
            "1500m",
            "-1500m",
            "1n",
            "3Gi",
            "1e18",
            "9007199254740993",
        ] {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!(
                quantity.wrapping_scaled_value(0),
                quantity.value(),
                "{text}"
            );
        }
    }
}
