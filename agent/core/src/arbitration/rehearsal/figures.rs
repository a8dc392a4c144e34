//! What a rehearsal measures of each namespace.

use crate::arbitration::amounts::Amounts;

/// Of the whole length, so many parts of equal length are kept of a namespace's share.
pub const PARTS: usize = 96;

/// One namespace under one policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Figures {
    /// Pods that came, without those that were there at the start.
    pub came: u64,
    /// Of all pods, those that started for the first time.
    pub started: u64,
    /// Pods that ran to their end.
    pub ended: u64,
    /// Pods evicted; each comes back as a pending pod that starts over.
    pub evicted: u64,
    /// Seconds that evicted pods had run: work that is lost.
    pub lost_s: u64,
    /// Seconds from coming to the first start: of pods that never started, up to the end. Ascending at the end.
    pub waits_s: Vec<u64>,
    /// Seconds from becoming entitled to a start: only where the arbitrator decides. Ascending at the end.
    pub entitled_waits_s: Vec<u64>,
    /// Evictions after which the namespace was below what is reserved for it, in a resource of the victim.
    pub below_reserved: u64,
    /// Evictions that a disruption budget did not allow.
    pub beyond_budget: u64,
    /// Seconds in which a pod waited with which the namespace would still be within what is reserved for it, in every
    /// reserved resource that the pod requests.
    pub short_s: u64,
    /// What was used, summed over seconds, by resource.
    pub used: Vec<u128>,
    /// The share of the cluster used, in thousandths, by part of the length: of the resource of which most was used.
    pub parts: Vec<u64>,
}

impl Figures {
    /// The value below which so many hundredths of the waits are; 0 without any.
    #[must_use]
    pub fn percentile(waits_s: &[u64], hundredths: usize) -> u64 {
        let at = (waits_s.len() * hundredths).div_ceil(100).max(1) - 1;
        waits_s.get(at).copied().unwrap_or(0)
    }

    /// The mean of waits, rounded down.
    #[must_use]
    pub fn mean(waits_s: &[u64]) -> u64 {
        let count = u64::try_from(waits_s.len()).unwrap_or(u64::MAX);
        waits_s.iter().sum::<u64>().checked_div(count).unwrap_or(0)
    }
}

/// What a rehearsal came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// By Consumer; those of groups are empty.
    pub figures: Vec<Figures>,
    /// What there was of each resource at the start.
    pub capacity: Amounts,
    /// For how long.
    pub seconds: u64,
    /// Evictions of a pod that came back, for the same pod as before, which had been evicted as well.
    pub repeats: u64,
    /// Of these, those where no pod had come or ended in between: nothing but the policy made it go round.
    pub loops: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let waits: Vec<u64> = (1..=10).collect();
        assert_eq!(Figures::percentile(&waits, 50), 5);
        assert_eq!(Figures::percentile(&waits, 95), 10);
        assert_eq!(Figures::percentile(&[], 95), 0);
        assert_eq!(Figures::mean(&waits), 5);
    }
}
