//! CPU requests and limits as shares, weight and quota, and back.

/// The least `cpu.shares`, and the value for nothing requested.
pub const SHARES_MIN: u64 = 2;
/// The largest `cpu.shares` the kernel takes.
pub const SHARES_MAX: u64 = 262_144;
/// `cpu.shares` of one CPU.
const SHARES_PER_CPU: i64 = 1024;
/// The least quota the kernel takes, in microseconds.
const QUOTA_US_MIN: i64 = 1000;
/// The usual CFS period, in microseconds.
pub const PERIOD_US: u64 = 100_000;
/// A quota of no limit.
pub const QUOTA_UNLIMITED: i64 = -1;

/// `cpu.shares` for a CPU request.
pub fn milli_cpu_to_shares(milli_cpu: i64) -> u64 {
    let shares = i128::from(milli_cpu) * i128::from(SHARES_PER_CPU) / 1000;
    u64::try_from(shares)
        .unwrap_or(0)
        .clamp(SHARES_MIN, SHARES_MAX)
}

/// The CFS quota in microseconds for a CPU limit; 0 for none.
pub fn milli_cpu_to_quota_us(milli_cpu: i64, period_us: u64) -> i64 {
    if milli_cpu == 0 {
        return 0;
    }
    let quota = i128::from(milli_cpu) * i128::from(period_us) / 1000;
    i64::try_from(quota).unwrap_or(i64::MAX).max(QUOTA_US_MIN)
}

/// v2 `cpu.weight` (1 to 10000) for v1 `cpu.shares`; 0, for unset, stays 0.
///
/// `ceil(10^((l² + 125l)/612 - 7/34))` with `l = log2(shares)`: a curve through (2, 1), (1024, 100) and (262144,
/// 10000), where the linear formula used until 2025 gave one CPU a weight of 39.
pub fn shares_to_weight(shares: u64) -> u64 {
    match shares {
        0 => 0,
        1..=SHARES_MIN => 1,
        SHARES_MAX.. => 10_000,
        _ => (weight_exact(shares) - WEIGHT_SLACK).ceil() as u64,
    }
}

/// Subtracted before rounding up, so that 1024 shares give 100 on every libm. No other number of shares is within a
/// hundred times this of a whole weight (tested for all), hence the result does not depend on the last bits of a float.
const WEIGHT_SLACK: f64 = 1e-8;

fn weight_exact(shares: u64) -> f64 {
    let l = (shares as f64).log2();
    10f64.powf((l * l + 125.0 * l) / 612.0 - 7.0 / 34.0)
}

/// The CPU request that shares stand for (`sharesToMilliCPU`); 0 for less than [`SHARES_MIN`].
pub fn shares_to_milli_cpu(shares: u64) -> i64 {
    if shares < SHARES_MIN {
        return 0;
    }
    let milli = (u128::from(shares) * 1000).div_ceil(SHARES_PER_CPU.unsigned_abs().into());
    i64::try_from(milli).unwrap_or(i64::MAX)
}

/// The CPU limit that a quota stands for (`quotaToMilliCPU`); 0 for none.
pub fn quota_us_to_milli_cpu(quota_us: i64, period_us: u64) -> i64 {
    if quota_us == QUOTA_UNLIMITED || period_us == 0 {
        return 0;
    }
    let milli = i128::from(quota_us) * 1000 / i128::from(period_us);
    i64::try_from(milli).unwrap_or(i64::MAX)
}

/// The shares that the kubelet takes a v2 `cpu.weight` for (`CPUWeightToCPUShares`).
///
/// This is not the inverse of [`shares_to_weight`]: the kubelet still inverts the linear formula used until 2025.
pub fn weight_to_shares(weight: u64) -> u64 {
    let above = u128::from(weight.saturating_sub(1)) * u128::from(SHARES_MAX - SHARES_MIN) / 9999;
    u64::try_from(above)
        .unwrap_or(u64::MAX)
        .saturating_add(SHARES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_weight_is_near_a_whole_number_but_one() {
        for shares in SHARES_MIN + 1..SHARES_MAX {
            let exact = weight_exact(shares);
            let distance = (exact - exact.round()).abs();
            assert!(
                shares == 1024 || distance > 100.0 * WEIGHT_SLACK,
                "{shares} shares: {exact}"
            );
            assert!(shares_to_weight(shares) >= shares_to_weight(shares - 1));
        }
        assert_eq!(
            [0, 1, 2, 1024, SHARES_MAX, u64::MAX].map(shares_to_weight),
            [0, 1, 1, 100, 10_000, 10_000]
        );
    }

    #[test]
    fn quota_and_shares_have_bounds() {
        assert_eq!(
            [0, 1, 500, 1_000_000_000].map(milli_cpu_to_shares),
            [2, 2, 512, SHARES_MAX]
        );
        assert_eq!(
            [0, 1, 1500].map(|milli| milli_cpu_to_quota_us(milli, PERIOD_US)),
            [0, 1000, 150_000]
        );
        assert_eq!(milli_cpu_to_quota_us(i64::MAX, PERIOD_US), i64::MAX);
    }

    #[test]
    fn what_was_requested_is_read_back_from_shares() {
        for milli in [2, 10, 50, 100, 333, 999, 1000, 1500, 64_000] {
            assert_eq!(shares_to_milli_cpu(milli_cpu_to_shares(milli)), milli);
        }
        assert_eq!([0, 1].map(shares_to_milli_cpu), [0, 0]);
        assert_eq!(quota_us_to_milli_cpu(QUOTA_UNLIMITED, PERIOD_US), 0);
        assert_eq!([0, 1, 10_000].map(weight_to_shares), [2, 2, SHARES_MAX]);
    }
}
