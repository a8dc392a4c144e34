//! How long the tasks of watched cgroups wait for a CPU.
//!
//! Problem: the program that sees it runs at every switch of every CPU. Approach: it is attached only while something asks
//! ([`Bpf::watch_run_queue`]), keeps totals only of the cgroups that were named ([`Bpf::follow_run_queue`]), and looks at a part
//! of the switches, by chance ([`OneIn`]; docs/decisions/0022-run-queue-latency.md has the figures). Nothing is sent: who wants to know reads the
//! totals and subtracts what they were before ([`RunQueueTotals::since`]).
//!
//! Cgroup ids are those of the hierarchy that has the cpu controller.

use aya::maps::{MapData, PerCpuHashMap, PerCpuValues};
use aya::programs::tp_btf::BtfTracePointLinkId;
use plimsoll_abi::run_queue_totals::{BUCKETS, COUNT, FIRST_BUCKET, MAX_NS, SUM_NS, WORDS};

use super::error::{map_error, reason};
use super::totals::is_absent;
use super::{Bpf, BpfError};

const PROGRAM: &str = "run_queue";

/// How many of the switches of a CPU are looked at: one in this many. Always a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneIn(u32);

impl OneIn {
    /// All of them.
    pub const EVERY: OneIn = OneIn(1);
    /// What costs little beside a switch and still sees hundreds a second of anything that is busy.
    pub const USUAL: OneIn = OneIn(8);

    /// One in `number`; `None` unless it is a power of two.
    #[must_use]
    pub const fn new(number: u32) -> Option<OneIn> {
        if number.is_power_of_two() {
            Some(OneIn(number))
        } else {
            None
        }
    }

    /// The number, at least 1.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Waits of a cgroup's tasks for a CPU: those that were looked at, one in [`RunQueueTotals::one_in`] by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunQueueTotals {
    /// The cgroup, in the hierarchy of the cpu controller. What is in cgroups below that have the controller is not counted with it.
    pub cgroup_id: u64,
    /// Of how many waits one was looked at.
    pub one_in: u32,
    /// Waits seen.
    pub count: u64,
    /// Their time.
    pub sum_ns: u64,
    /// The longest of them, since the cgroup is followed.
    pub max_ns: u64,
    /// How many were so long: bucket 0 below 1,024 ns, bucket n below 1,024 ns · 2^n, the last one all longer ones.
    pub buckets: [u64; BUCKETS],
}

impl RunQueueTotals {
    fn sum(cgroup_id: u64, one_in: OneIn, per_cpu: &PerCpuValues<[u64; WORDS]>) -> Self {
        let mut totals = RunQueueTotals {
            cgroup_id,
            one_in: one_in.number(),
            count: 0,
            sum_ns: 0,
            max_ns: 0,
            buckets: [0; BUCKETS],
        };
        for words in per_cpu.iter() {
            totals.count += words[COUNT];
            totals.sum_ns += words[SUM_NS];
            totals.max_ns = totals.max_ns.max(words[MAX_NS]);
            for (bucket, count) in totals.buckets.iter_mut().zip(&words[FIRST_BUCKET..]) {
                *bucket += count;
            }
        }
        totals
    }

    /// What has been added since `earlier`; the longest stays that of the whole time.
    #[must_use]
    pub fn since(&self, earlier: &RunQueueTotals) -> RunQueueTotals {
        let mut buckets = self.buckets;
        for (bucket, before) in buckets.iter_mut().zip(earlier.buckets) {
            *bucket = bucket.saturating_sub(before);
        }
        RunQueueTotals {
            count: self.count.saturating_sub(earlier.count),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            buckets,
            ..*self
        }
    }

    /// A time that at least `per_mille` of 1,000 waits did not exceed: the end of the bucket in which that one falls. `None` when
    /// nothing waited, or it falls into the last bucket, which has no end.
    #[must_use]
    pub fn quantile_ns(&self, per_mille: u32) -> Option<u64> {
        let seen: u64 = self.buckets.iter().sum();
        let wanted = seen
            .saturating_mul(u64::from(per_mille.min(1000)))
            .div_ceil(1000)
            .max(1);
        let mut below = 0;
        let bucket = self.buckets.iter().position(|count| {
            below += count;
            below >= wanted
        })?;
        (bucket < BUCKETS - 1).then(|| 1024 << bucket)
    }
}

pub(super) struct Watch {
    totals: PerCpuHashMap<MapData, u64, [u64; WORDS]>,
    one_in: OneIn,
    attached: Option<BtfTracePointLinkId>,
    cpus: usize,
}

impl Watch {
    pub(super) fn new(
        totals: PerCpuHashMap<MapData, u64, [u64; WORDS]>,
        one_in: OneIn,
        cpus: usize,
    ) -> Self {
        Watch {
            totals,
            one_in,
            attached: None,
            cpus,
        }
    }
}

impl Bpf {
    /// Whether waits for a CPU can be watched on this host.
    #[must_use]
    pub fn can_watch_run_queue(&self) -> bool {
        self.hooks
            .iter()
            .any(|hook| hook.program == PROGRAM && hook.is_usable())
    }

    /// Attaches the program, or takes it away. Totals stay.
    ///
    /// # Errors
    /// When this host cannot have it ([`Bpf::can_watch_run_queue`]), or the kernel refuses.
    pub fn watch_run_queue(&mut self, on: bool) -> Result<(), BpfError> {
        if !self.can_watch_run_queue() {
            return Err(BpfError::NoRunQueue);
        }
        let refused = |error| BpfError::Attach {
            program: PROGRAM,
            reason: reason(&error),
        };
        let attached = self.run_queue.attached.take();
        // After `finish` there are no programs any more.
        let program = self.on_demand(PROGRAM).ok_or(BpfError::NoRunQueue)?;
        let attached = match (on, attached) {
            (true, None) => Some(program.attach().map_err(refused)?),
            (false, Some(link)) => {
                program.detach(link).map_err(refused)?;
                None
            }
            (_, unchanged) => unchanged,
        };
        self.run_queue.attached = attached;
        Ok(())
    }

    /// Keeps totals of this cgroup from now on, from zero if it is new. A map update: the kernel allocates room for it.
    ///
    /// # Errors
    /// When the kernel has no memory, or 1,024 cgroups are followed.
    pub fn follow_run_queue(&mut self, cgroup_id: u64) -> Result<(), BpfError> {
        // A cgroup that is followed already keeps its totals.
        if self.run_queue.totals.get(&cgroup_id, 0).is_ok() {
            return Ok(());
        }
        let failed = map_error("RUN_QUEUE");
        let zeros = PerCpuValues::try_from(vec![[0; WORDS]; self.run_queue.cpus])
            .map_err(|error| failed(error.into()))?;
        self.run_queue
            .totals
            .insert(cgroup_id, zeros, 0)
            .map_err(map_error("RUN_QUEUE"))
    }

    /// Forgets the totals of a cgroup; it need not be followed.
    ///
    /// # Errors
    /// When the kernel refuses the update.
    pub fn forget_run_queue(&mut self, cgroup_id: u64) -> Result<(), BpfError> {
        match self.run_queue.totals.remove(&cgroup_id) {
            Ok(()) | Err(aya::maps::MapError::KeyNotFound) => Ok(()),
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(map_error("RUN_QUEUE")(error)),
        }
    }

    /// The totals of every followed cgroup. Reads only.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn drain_run_queue(&self, mut f: impl FnMut(RunQueueTotals)) -> Result<(), BpfError> {
        for entry in self.run_queue.totals.iter() {
            let (cgroup_id, per_cpu) = entry.map_err(map_error("RUN_QUEUE"))?;
            f(RunQueueTotals::sum(
                cgroup_id,
                self.run_queue.one_in,
                &per_cpu,
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(waits_ns: &[u64]) -> RunQueueTotals {
        let mut words = [0; WORDS];
        for wait_ns in waits_ns {
            words[COUNT] += 1;
            words[SUM_NS] += wait_ns;
            words[MAX_NS] = words[MAX_NS].max(*wait_ns);
            words[FIRST_BUCKET + plimsoll_abi::run_queue_totals::bucket(*wait_ns)] += 1;
        }
        let cpus = aya::util::nr_cpus().unwrap();
        // All on one CPU, the others have seen nothing.
        let mut per_cpu = vec![[0; WORDS]; cpus];
        per_cpu[cpus - 1] = words;
        RunQueueTotals::sum(7, OneIn::USUAL, &PerCpuValues::try_from(per_cpu).unwrap())
    }

    #[test]
    fn totals_are_summed_over_the_cpus() {
        let seen = totals(&[500, 3_000, 10_000]);
        assert_eq!((seen.count, seen.sum_ns, seen.max_ns), (3, 13_500, 10_000));
        assert_eq!(
            (seen.buckets[0], seen.buckets[2], seen.buckets[4]),
            (1, 1, 1)
        );
        assert_eq!(seen.one_in, 8);
    }

    #[test]
    fn a_quantile_is_the_end_of_its_bucket() {
        let mut waits = vec![500; 98];
        waits.extend([3_000, 1_000_000]);
        let seen = totals(&waits);
        assert_eq!(seen.quantile_ns(500), Some(1_024));
        assert_eq!(seen.quantile_ns(980), Some(1_024));
        assert_eq!(seen.quantile_ns(990), Some(4_096));
        assert_eq!(seen.quantile_ns(1000), Some(1_024 << 10));
        assert_eq!(totals(&[]).quantile_ns(990), None);
        assert_eq!(totals(&[u64::MAX / 2]).quantile_ns(990), None, "no end");
    }

    #[test]
    fn what_came_between_is_a_difference() {
        let (earlier, later) = (totals(&[500]), totals(&[500, 500, 3_000]));
        let between = later.since(&earlier);
        assert_eq!((between.count, between.sum_ns), (2, 3_500));
        assert_eq!((between.buckets[0], between.buckets[2]), (1, 1));
        assert_eq!(later.since(&later).quantile_ns(500), None);
    }
}
