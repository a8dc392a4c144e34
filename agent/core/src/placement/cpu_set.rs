//! Sets of CPUs, and the kernel's list form of them (`0-3,8`).
//!
//! Problem: placement compares, joins and splits sets of CPUs thousands of times for one container, and the kernel, the
//! kubelet's state files and people all write them as text. Approach: one bit per CPU in an array of fixed size, so
//! that a set is copied, never allocated.
//!
//! List form: numbers and ranges `a-b`, separated by commas, as the kernel writes `cpuset.cpus`
//! (Documentation/admin-guide/cputopology.rst). White space around the whole is accepted, as files end with a newline.

use std::fmt;
use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Sub, SubAssign};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// CPUs are numbered below this.
pub const CPUS_MAX: u32 = 1024;

const WORDS: usize = CPUS_MAX as usize / 64;

/// A set of CPUs, by the kernel's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    words: [u64; WORDS],
}

/// Why a text is not a set of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    /// Neither a number nor a range.
    #[error("{part:?} in {list:?} is neither a CPU number nor a range like 0-3")]
    Malformed {
        /// The whole text.
        list: String,
        /// What is between two commas.
        part: String,
    },
    /// A range that runs backwards.
    #[error("range {part:?} in {list:?} runs backwards")]
    Backwards {
        /// The whole text.
        list: String,
        /// What is between two commas.
        part: String,
    },
    /// A CPU that [`CPUS_MAX`] leaves no room for.
    #[error("CPU {cpu} is beyond {max}, the highest that is supported", max = CPUS_MAX - 1)]
    TooHigh {
        /// Its number.
        cpu: u32,
    },
}

impl CpuSet {
    /// No CPU.
    pub const EMPTY: Self = Self { words: [0; WORDS] };

    /// One CPU.
    ///
    /// # Panics
    ///
    /// If `cpu` is not below [`CPUS_MAX`]: code that reads numbers from outside checks them (as parsing a list does).
    #[must_use]
    pub fn of(cpu: u32) -> Self {
        let mut set = Self::EMPTY;
        set.insert(cpu);
        set
    }

    /// Adds a CPU.
    ///
    /// # Panics
    ///
    /// If `cpu` is not below [`CPUS_MAX`].
    pub fn insert(&mut self, cpu: u32) {
        assert!(cpu < CPUS_MAX, "CPU {cpu} is not below {CPUS_MAX}");
        self.words[cpu as usize / 64] |= 1 << (cpu % 64);
    }

    /// Takes a CPU out, if it is there.
    pub fn remove(&mut self, cpu: u32) {
        if cpu < CPUS_MAX {
            self.words[cpu as usize / 64] &= !(1 << (cpu % 64));
        }
    }

    /// Whether the CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        cpu < CPUS_MAX && self.words[cpu as usize / 64] >> (cpu % 64) & 1 == 1
    }

    /// How many CPUs.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Whether all CPUs here are in `other` too.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.words
            .iter()
            .zip(&other.words)
            .all(|(a, b)| a & !b == 0)
    }

    /// Whether the two have no CPU in common.
    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| a & b == 0)
    }

    /// How many CPUs the two have in common.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> u32 {
        let shared = self.words.iter().zip(&other.words).map(|(a, b)| a & b);
        shared.map(u64::count_ones).sum()
    }

    /// The lowest CPU.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The CPUs, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let words = self.words;
        (0..CPUS_MAX)
            .step_by(64)
            .zip(words)
            .flat_map(|(base, word)| Bits(word).map(move |bit| base + bit))
    }

    /// Reads the list form.
    ///
    /// # Errors
    ///
    /// Names the part that cannot be read.
    pub fn parse(list: &str) -> Result<Self, CpuSetError> {
        let mut set = Self::EMPTY;
        let trimmed = list.trim();
        if trimmed.is_empty() {
            return Ok(set);
        }
        for part in trimmed.split(',') {
            let malformed = || CpuSetError::Malformed {
                list: trimmed.into(),
                part: part.into(),
            };
            // `u32::from_str` takes a leading plus sign, which no list has.
            let number = |text: &str| {
                let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let number = digits.then(|| text.parse().ok()).flatten();
                number.ok_or_else(malformed)
            };
            let (first, last): (u32, u32) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(CpuSetError::Backwards {
                    list: trimmed.into(),
                    part: part.into(),
                });
            }
            if last >= CPUS_MAX {
                return Err(CpuSetError::TooHigh { cpu: last });
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

/// The numbers of the bits that are set, lowest first.
pub(crate) struct Bits(pub(crate) u64);

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

/// Writes numbers that ascend as the kernel writes lists.
pub(crate) fn write_list(
    numbers: impl Iterator<Item = u32>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let mut numbers = numbers.peekable();
    let mut separator = "";
    while let Some(first) = numbers.next() {
        let mut last = first;
        while let Some(next) = numbers.next_if_eq(&(last + 1)) {
            last = next;
        }
        if first == last {
            write!(f, "{separator}{first}")?;
        } else {
            write!(f, "{separator}{first}-{last}")?;
        }
        separator = ",";
    }
    Ok(())
}

/// The kernel's list form.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(self.iter(), f)
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(list: &str) -> Result<Self, CpuSetError> {
        Self::parse(list)
    }
}

/// # Panics
///
/// If a CPU is not below [`CPUS_MAX`].
impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::EMPTY;
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl BitOr for CpuSet {
    type Output = Self;

    fn bitor(mut self, other: Self) -> Self {
        self |= other;
        self
    }
}

impl BitOrAssign for CpuSet {
    fn bitor_assign(&mut self, other: Self) {
        self.words
            .iter_mut()
            .zip(other.words)
            .for_each(|(a, b)| *a |= b);
    }
}

impl BitAnd for CpuSet {
    type Output = Self;

    fn bitand(mut self, other: Self) -> Self {
        self &= other;
        self
    }
}

impl BitAndAssign for CpuSet {
    fn bitand_assign(&mut self, other: Self) {
        self.words
            .iter_mut()
            .zip(other.words)
            .for_each(|(a, b)| *a &= b);
    }
}

/// What is in the first and not in the second.
impl Sub for CpuSet {
    type Output = Self;

    fn sub(mut self, other: Self) -> Self {
        self -= other;
        self
    }
}

impl SubAssign for CpuSet {
    fn sub_assign(&mut self, other: Self) {
        self.words
            .iter_mut()
            .zip(other.words)
            .for_each(|(a, b)| *a &= !b);
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&list).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_written_as_the_kernel_does() {
        for list in ["", "0", "0-1", "0-3,8", "5,7,9-11", "63-64,1023"] {
            assert_eq!(CpuSet::parse(list).unwrap().to_string(), list);
        }
        assert_eq!(CpuSet::parse("3,1,2,1-2\n").unwrap().to_string(), "1-3");
    }

    #[test]
    fn what_is_no_list_is_refused_by_name() {
        let refused = |list: &str| CpuSet::parse(list).unwrap_err().to_string();
        assert_eq!(
            refused("0-3,x"),
            r#""x" in "0-3,x" is neither a CPU number nor a range like 0-3"#
        );
        assert_eq!(refused("4-3"), r#"range "4-3" in "4-3" runs backwards"#);
        assert_eq!(
            refused("0-1024"),
            "CPU 1024 is beyond 1023, the highest that is supported"
        );
        for list in [",", "1,", "-1", "1-", "+1", "1 - 2", "0-1-2", "99999999999"] {
            assert!(CpuSet::parse(list).is_err(), "{list}");
        }
    }

    proptest! {
        #[test]
        fn sets_do_what_sets_of_numbers_do(
            a in proptest::collection::btree_set(0..CPUS_MAX, 0..40),
            b in proptest::collection::btree_set(0..CPUS_MAX, 0..40),
        ) {
            let set = |numbers: &std::collections::BTreeSet<u32>| numbers.iter().copied().collect::<CpuSet>();
            let (x, y) = (set(&a), set(&b));
            prop_assert_eq!(x | y, set(&(&a | &b)));
            prop_assert_eq!(x & y, set(&(&a & &b)));
            prop_assert_eq!(x - y, set(&(&a - &b)));
            prop_assert_eq!(x.overlap(&y) as usize, (&a & &b).len());
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.is_disjoint(&y), a.is_disjoint(&b));
            prop_assert_eq!(x.len() as usize, a.len());
            prop_assert_eq!(x.iter().collect::<Vec<_>>(), a.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(CpuSet::parse(&x.to_string()).unwrap(), x);
        }
    }
}
