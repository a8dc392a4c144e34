//! In which order the `cpuset.cpus` of containers are written, so that no exclusive CPU is shared at any instant.
//!
//! Problem: a new placement changes many cgroups, and the kernel takes one write at a time. If a container is given its
//! exclusive CPUs before the others have left them, or gets its new ones before their former owner has moved, both run
//! there for a while; the kubelet does either, and repairs it within `cpuManagerReconcilePeriod` (10 s).
//!
//! Approach: two rounds. First every container *leaves*: a container keeps what it has now and is to have; one with
//! nothing to keep waits in the *common pool*, the CPUs that are exclusive neither now nor then. Then every container
//! *arrives*: each gets what it is to have.
//!
//! Why that is enough: while containers leave, each is on a part of what it has now, or in the common pool, so no
//! container moves to a CPU that is exclusive now. When the first arrives, each is on a part of what it is to have, or
//! in the common pool, so only its future owner is on a CPU that will be exclusive.
//!
//! Where there is no common pool (two CPUs, and the only exclusive one changes hands) containers have to share for as
//! long as two writes take. [`Order::shared`] lists them.

use crate::placement::cpu_set::CpuSet;

/// What a container runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpus {
    /// The CPUs, none of them offline.
    pub cpus: CpuSet,
    /// No other container may run there.
    pub exclusive: bool,
}

/// A container, now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The current CPUs: all online ones, if nothing was ever written.
    pub now: Cpus,
    /// The new CPUs. Not empty.
    pub then: Cpus,
}

/// One write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// Which of the changes it belongs to.
    pub change: usize,
    /// The CPUs.
    pub cpus: CpuSet,
}

/// What to write, first things first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Order {
    /// The first round. After it only containers that keep exclusive CPUs have any.
    pub leave: Vec<Write>,
    /// The second round.
    pub arrive: Vec<Write>,
    /// Changes that have to go straight to their new CPUs while another container may be there, because there is no
    /// common pool.
    pub shared: Vec<usize>,
}

/// The order for these changes on a machine with these CPUs online.
#[must_use]
pub fn order(online: CpuSet, changes: &[Change]) -> Order {
    let exclusive = |of: fn(&Change) -> Cpus| {
        let cpus = changes.iter().map(of).filter(|cpus| cpus.exclusive);
        cpus.fold(CpuSet::EMPTY, |all, cpus| all | cpus.cpus)
    };
    let common = online - exclusive(|change| change.now) - exclusive(|change| change.then);
    let mut order = Order::default();
    let by_round = |last: bool| {
        let changes = changes.iter().enumerate();
        changes.filter(move |(_, change)| change.then.exclusive == last)
    };
    for (index, change) in by_round(false).chain(by_round(true)) {
        let (now, then) = (change.now.cpus, change.then.cpus);
        let kept = now & then;
        let mut left = kept;
        if kept.is_empty() {
            left = common;
        }
        if left.is_empty() {
            order.shared.push(index);
            left = now;
        }
        if left != now {
            order.leave.push(Write {
                change: index,
                cpus: left,
            });
        }
        if left != then {
            order.arrive.push(Write {
                change: index,
                cpus: then,
            });
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cpus(list: &str, exclusive: bool) -> Cpus {
        Cpus {
            cpus: CpuSet::parse(list).unwrap(),
            exclusive,
        }
    }

    fn writes_and_shared(online: &str, changes: &[Change]) -> (Vec<(usize, String)>, Vec<usize>) {
        let order = order(CpuSet::parse(online).unwrap(), changes);
        let writes = order
            .leave
            .iter()
            .chain(&order.arrive)
            .map(|write| (write.change, write.cpus.to_string()));
        (writes.collect(), order.shared)
    }

    #[test]
    fn the_pool_shrinks_before_a_container_gets_exclusive_cpus() {
        let changes = [
            Change {
                now: cpus("0-3", false),
                then: cpus("2-3", true),
            },
            Change {
                now: cpus("0-3", false),
                then: cpus("0-1", false),
            },
        ];
        let writes = vec![(1, "0-1".into()), (0, "2-3".into())];
        assert_eq!(writes_and_shared("0-3", &changes), (writes, vec![]));
    }

    #[test]
    fn two_that_change_places_meet_nowhere() {
        let changes = [
            Change {
                now: cpus("1", true),
                then: cpus("2", true),
            },
            Change {
                now: cpus("2", true),
                then: cpus("1", true),
            },
        ];
        let writes =
            [(0, "0"), (1, "0"), (0, "2"), (1, "1")].map(|(index, list)| (index, list.to_owned()));
        assert_eq!(
            writes_and_shared("0-2", &changes),
            (writes.to_vec(), vec![])
        );
        let writes = [(0, "2"), (1, "1")].map(|(index, list)| (index, list.to_owned()));
        assert_eq!(
            writes_and_shared("1-2", &changes),
            (writes.to_vec(), vec![0, 1])
        );
    }

    /// Containers on at most ten CPUs: for each its exclusive CPUs, by owner; a container with none is in the shared
    /// pool.
    fn any_placement(containers: usize) -> impl Strategy<Value = Vec<Cpus>> {
        proptest::collection::vec(0..=2 * containers, 10).prop_map(move |owners| {
            let of = |owner: usize| {
                let exclusive = owners.iter().zip(0..).filter(|(who, _)| **who == owner);
                exclusive.map(|(_, cpu)| cpu).collect::<CpuSet>()
            };
            // Never empty: CPU 10 has no owner.
            let pool = (containers..=2 * containers)
                .map(of)
                .fold(CpuSet::of(10), |all, exclusive| all | exclusive);
            let on = |exclusive: CpuSet| Cpus {
                cpus: if exclusive.is_empty() {
                    pool
                } else {
                    exclusive
                },
                exclusive: !exclusive.is_empty(),
            };
            (0..containers).map(|container| on(of(container))).collect()
        })
    }

    proptest! {
        #[test]
        fn no_exclusive_cpu_is_shared_at_any_instant(now in any_placement(5), then in any_placement(5)) {
            let online: CpuSet = (0..=10).collect();
            let changes: Vec<Change> = now.iter().zip(&then).map(|(now, then)| Change { now: *now, then: *then }).collect();
            let order = order(online, &changes);
            prop_assert_eq!(&order.shared, &Vec::<usize>::new());
            let mut current: Vec<CpuSet> = now.iter().map(|cpus| cpus.cpus).collect();
            let writes: Vec<Write> = order.leave.iter().chain(&order.arrive).copied().collect();
            for (done, write) in writes.iter().enumerate() {
                prop_assert!(!write.cpus.is_empty() && write.cpus != current[write.change], "a write for nothing: {:?}", write);
                current[write.change] = write.cpus;
                for (owner, change) in changes.iter().enumerate() {
                    let stays = change.then.exclusive || done < order.leave.len();
                    let was = if change.now.exclusive && stays { change.now.cpus } else { CpuSet::EMPTY };
                    let has_arrived = !writes[done + 1..].iter().any(|write| write.change == owner);
                    let is = if change.then.exclusive && has_arrived && done >= order.leave.len() {
                        change.then.cpus
                    } else {
                        CpuSet::EMPTY
                    };
                    let exclusive = current[owner] & (was | is);
                    for (other, cpus) in current.iter().enumerate() {
                        prop_assert!(other == owner || exclusive.is_disjoint(cpus), "{} on {} of {}", other, exclusive & *cpus, owner);
                    }
                }
            }
            let wanted: Vec<CpuSet> = then.iter().map(|cpus| cpus.cpus).collect();
            prop_assert_eq!(current, wanted);
        }
    }
}
