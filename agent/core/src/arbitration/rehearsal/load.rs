//! What comes over the days: streams of pods, drawn from a seed. The same seed makes the same pods, whatever the policy
//! does with them.

use crate::arbitration::cluster::Pod;

/// Seconds of a day.
pub const DAY_S: u64 = 86_400;

/// How the times of a stream are spread around their means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Arrivals are independent of each other, and so are run times: both exponential.
    Random,
    /// All the same.
    Even,
}

/// Pods that come again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// What each is, pending.
    pub pod: Pod,
    /// Seconds between arrivals, on average, at least 1.
    pub every: u64,
    /// Pods in one arrival.
    pub at_once: u64,
    /// Seconds for which each runs, on average.
    pub runs: u64,
    /// How both are spread.
    pub spread: Spread,
    /// Seconds of the day from and up to which they come; the second is greater, and at most [`DAY_S`].
    pub between: (u64, u64),
}

/// A pod that comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival {
    /// When, in seconds from the start.
    pub at: u64,
    /// Of which stream.
    pub stream: usize,
    /// For how long it runs.
    pub runs: u64,
}

/// All pods that come before the end, in the order in which they come. At most `most`: then the rest is left out, and
/// the second value is true.
#[must_use]
pub fn arrivals(streams: &[Stream], seed: u64, end: u64, most: usize) -> (Vec<Arrival>, bool) {
    let mut all = Vec::new();
    for (at, stream) in streams.iter().enumerate() {
        // Each has its own numbers: one stream more changes no other.
        let mut numbers = Numbers::new(seed ^ Numbers::new(at as u64).draw());
        let open = stream.between.1 - stream.between.0;
        let mut open_s = 0;
        loop {
            open_s += stream
                .spread
                .around(stream.every.max(1), &mut numbers)
                .max(1);
            let at_s = open_s / open * DAY_S + stream.between.0 + open_s % open;
            if at_s >= end {
                break;
            }
            for _ in 0..stream.at_once {
                if all.len() == most {
                    all.sort_unstable();
                    return (all, true);
                }
                all.push(Arrival {
                    at: at_s,
                    stream: at,
                    runs: stream.spread.around(stream.runs, &mut numbers).max(1),
                });
            }
        }
    }
    all.sort_unstable();
    (all, false)
}

impl Spread {
    fn around(self, mean: u64, numbers: &mut Numbers) -> u64 {
        match self {
            Self::Even => mean,
            Self::Random => exponential(numbers.draw(), mean),
        }
    }
}

/// Numbers that look random: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA
/// 2014).
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// The same seed makes the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to less than `below`, which is not 0.
    pub fn below(&mut self, below: u64) -> u64 {
        u64::try_from((u128::from(self.draw()) * u128::from(below)) >> 64).unwrap_or(0)
    }
}

/// `mean · -ln(u)`, where `u` is `draw` as a part of 2⁶⁴: in integers, so that it is the same on all machines.
fn exponential(draw: u64, mean: u64) -> u64 {
    const BITS: u32 = 16;
    /// The natural logarithm of 2.
    const LN_2: u128 = 45_426;
    let draw = draw | 1;
    let zeros = draw.leading_zeros();
    // From 1 to 2, with 63 bits behind the point: squared again and again, it shows its logarithm bit by bit.
    let mut square = u128::from(draw << zeros);
    let mut part = 0_u128;
    for _ in 0..BITS {
        square = (square * square) >> 63;
        part <<= 1;
        if square >= 1 << 64 {
            part |= 1;
            square >>= 1;
        }
    }
    let halvings = (u128::from(zeros + 1) << BITS) - part;
    let value = (u128::from(mean) * halvings * LN_2) >> (2 * BITS);
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_times_have_their_mean() {
        let mut numbers = Numbers::new(1);
        let draws: Vec<u64> = (0..100_000)
            .map(|_| exponential(numbers.draw(), 10_000))
            .collect();
        let mean = draws.iter().sum::<u64>() / 100_000;
        assert!((9_900..10_100).contains(&mean), "{mean}");
        // The median is ln 2 of the mean.
        let less = draws.iter().filter(|draw| **draw < 6_931).count();
        assert!((49_000..51_000).contains(&less), "{less}");
    }

    #[test]
    fn a_stream_comes_only_in_its_hours() {
        let stream = Stream {
            pod: Pod {
                requests: [1].into(),
                ..Pod::default()
            },
            every: 600,
            at_once: 2,
            runs: 60,
            spread: Spread::Even,
            between: (9 * 3600, 17 * 3600),
        };
        let (all, is_cut) = arrivals(std::slice::from_ref(&stream), 1, 2 * DAY_S, 1000);
        assert!(!is_cut);
        assert!(
            all.iter()
                .all(|arrival| (9 * 3600..17 * 3600).contains(&(arrival.at % DAY_S)))
        );
        assert_eq!(all.len(), 2 * (2 * 48 - 1));
        assert_eq!(arrivals(&[stream], 1, 2 * DAY_S, 10).0.len(), 10);
    }
}
