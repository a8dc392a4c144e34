//! Where every record went: the kernel's counts beside the agent's own.
//!
//! Problem: a record that got lost must show as lost, and not as something that never happened. Approach: each side
//! counts what it does itself, by kind and by the CPU that the record was made on; once the rings are drained,
//! `produced = consumed + dropped` holds for each pair. The sums here are made from the parts, so an account that adds
//! up in total adds up everywhere or has been seen not to.
//!
//! Terms: *produced*: the programs tried to send it. *Consumed*: the agent read it. *Dropped*: its ring was full.
//! *Folded*: an event without a record of its own, because its cgroup had sent its share; it is in that cgroup's
//! totals.

use aya::maps::PerCpuValues;
use plimsoll_abi::{KIND_SLOTS, KINDS, Kind, UNTRACKED, dropped, folded, produced};
use serde::{Deserialize, Serialize};

use super::error::map_error;
use super::{Bpf, BpfError};

/// Records of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindCount {
    /// The programs tried to send.
    pub produced: u64,
    /// Read from the ring.
    pub consumed: u64,
    /// Found the ring full.
    pub dropped: u64,
    /// Got no record, but are in their cgroup's totals.
    pub folded: u64,
}

impl KindCount {
    /// What is still in the ring, or was read while this was counted. 0 once the rings are drained.
    #[must_use]
    pub const fn on_the_way(self) -> i64 {
        self.produced
            .wrapping_sub(self.consumed)
            .wrapping_sub(self.dropped) as i64
    }

    fn add(&mut self, other: KindCount) {
        self.produced += other.produced;
        self.consumed += other.consumed;
        self.dropped += other.dropped;
        self.folded += other.folded;
    }
}

/// One CPU's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuAccount {
    pub(super) kinds: [KindCount; KIND_SLOTS],
    pub(super) untracked: u64,
}

/// Where every record went, by kind and CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub(super) cpus: Vec<CpuAccount>,
    /// Records that this agent could not read.
    pub unreadable: u64,
}

impl Account {
    /// The counts of one kind on all CPUs.
    #[must_use]
    pub fn of(&self, kind: Kind) -> KindCount {
        let mut sum = KindCount::default();
        for cpu in 0..self.cpus.len() {
            sum.add(self.on(cpu, kind));
        }
        sum
    }

    /// The counts of one kind on one CPU.
    #[must_use]
    pub fn on(&self, cpu: usize, kind: Kind) -> KindCount {
        self.cpus
            .get(cpu)
            .and_then(|account| account.kinds.get(usize::from(kind.number())))
            .copied()
            .unwrap_or_default()
    }

    /// How many CPUs there can be.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// All kinds on all CPUs.
    #[must_use]
    pub fn all(&self) -> KindCount {
        let mut sum = KindCount::default();
        for kind in KINDS {
            sum.add(self.of(kind));
        }
        sum
    }

    /// Events that found their map full and so are missing from later totals.
    #[must_use]
    pub fn untracked(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.untracked).sum()
    }

    /// Records lost, of all kinds.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.all().dropped
    }

    /// Pairs of kind and CPU that do not add up: none once the rings are drained.
    pub fn open(&self) -> impl Iterator<Item = (usize, Kind, KindCount)> {
        (0..self.cpus.len()).flat_map(move |cpu| {
            KINDS
                .into_iter()
                .map(move |kind| (cpu, kind, self.on(cpu, kind)))
                .filter(|(.., count)| count.on_the_way() != 0)
        })
    }
}

/// An account as it is sent and printed: names instead of numbers, and only CPUs that have anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountReport {
    /// In the order of their numbers.
    pub kinds: Vec<KindReport>,
    /// Events that found their map full.
    pub untracked: u64,
    /// Records that the agent could not read.
    pub unreadable: u64,
}

/// One kind's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KindReport {
    /// Its name.
    pub kind: String,
    /// On all CPUs.
    #[serde(flatten)]
    pub count: KindCount,
    /// Produced, and neither consumed nor dropped: in the ring, or read while this was counted.
    pub on_the_way: i64,
    /// By CPU.
    pub cpus: Vec<CpuReport>,
}

/// One CPU's part of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuReport {
    /// Its number.
    pub cpu: usize,
    /// Its counts.
    #[serde(flatten)]
    pub count: KindCount,
}

impl From<&Account> for AccountReport {
    fn from(account: &Account) -> Self {
        let cpus = |kind| {
            (0..account.cpus())
                .map(|cpu| CpuReport {
                    cpu,
                    count: account.on(cpu, kind),
                })
                .filter(|report| report.count != KindCount::default())
                .collect()
        };
        let kinds = KINDS.map(|kind| KindReport {
            kind: kind.name().to_owned(),
            count: account.of(kind),
            on_the_way: account.of(kind).on_the_way(),
            cpus: cpus(kind),
        });
        Self {
            kinds: kinds.into(),
            untracked: account.untracked(),
            unreadable: account.unreadable,
        }
    }
}

impl Bpf {
    /// Where every record went so far.
    ///
    /// # Errors
    /// When the kernel refuses to show the counters.
    pub fn account(&self) -> Result<Account, BpfError> {
        let count = |index: u32| -> Result<PerCpuValues<u64>, BpfError> {
            self.counts.get(&index, 0).map_err(map_error("COUNTS"))
        };
        let untracked = count(UNTRACKED)?;
        let rings = self.rings();
        let mut account = Account {
            cpus: vec![CpuAccount::default(); untracked.len()],
            unreadable: rings.iter().map(|ring| ring.unreadable).sum(),
        };
        for kind in KINDS {
            let slot = usize::from(kind.number());
            // Dropped first: a record that is sent in between counts as on its way, not as lost.
            let (dropped, produced) = (count(dropped(kind))?, count(produced(kind))?);
            let folded = count(folded(kind))?;
            for (cpu, part) in account.cpus.iter_mut().enumerate() {
                part.untracked = untracked[cpu];
                part.kinds[slot] = KindCount {
                    produced: produced[cpu],
                    consumed: self.consumed.get(cpu, slot),
                    dropped: dropped[cpu],
                    folded: folded[cpu],
                };
            }
        }
        Ok(account)
    }

    /// How many events of a kind went without a record of their own, or with one that was lost. Two map lookups.
    ///
    /// # Errors
    /// When the kernel refuses to show the counters.
    pub fn missed(&self, kind: Kind) -> Result<u64, BpfError> {
        let mut sum = 0;
        for index in [dropped(kind), folded(kind)] {
            let counts = self.counts.get(&index, 0).map_err(map_error("COUNTS"))?;
            sum += counts.iter().sum::<u64>();
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(of: &[(usize, Kind, [u64; 3])]) -> Account {
        let mut account = Account {
            cpus: vec![CpuAccount::default(); 2],
            unreadable: 0,
        };
        for &(cpu, kind, [produced, consumed, dropped]) in of {
            account.cpus[cpu].kinds[usize::from(kind.number())] = KindCount {
                produced,
                consumed,
                dropped,
                folded: 0,
            };
        }
        account
    }

    #[test]
    fn cpus_that_make_up_for_each_other_do_not_add_up() {
        let kind = Kind::OomKill;
        let account = account(&[(0, kind, [5, 4, 0]), (1, kind, [7, 6, 2])]);
        assert_eq!(account.of(kind).on_the_way(), 0);
        let open: Vec<_> = account
            .open()
            .map(|(cpu, kind, count)| (cpu, kind, count.on_the_way()))
            .collect();
        assert_eq!(open, [(0, kind, 1), (1, kind, -1)]);
    }

    #[test]
    fn sums_are_over_cpus_and_kinds() {
        let account = account(&[
            (0, Kind::OomKill, [5, 4, 1]),
            (1, Kind::OomKill, [7, 5, 2]),
            (1, Kind::CgroupMkdir, [1, 0, 1]),
        ]);
        assert_eq!(account.of(Kind::OomKill).produced, 12);
        assert_eq!(account.all().produced, 13);
        assert_eq!((account.lost(), account.open().count()), (4, 0));
        assert_eq!(account.on(9, Kind::OomKill), KindCount::default());
    }
}
