//! Who holds which CPUs.

use plimsoll_core::explain::PlacementExplanation;
use plimsoll_core::placement::cpu_set::CpuSet;

/// A container with CPUs of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// `namespace/pod/container`.
    pub name: String,
    /// Its CPUs.
    pub cpus: CpuSet,
}

/// What the CPUs of a node are used for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holders {
    /// Containers with exclusive CPUs.
    pub exclusive: Vec<Holder>,
    /// CPUs that are kept for the system (`reservedSystemCPUs`). Unless the policy is strict they are in the shared
    /// pool too.
    pub reserved: CpuSet,
    /// CPUs of all containers that have none of their own.
    pub shared: CpuSet,
}

/// What one CPU is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// By this one of [`Holders::exclusive`].
    Exclusive(usize),
    /// By the system.
    Reserved,
    /// By containers without exclusive CPUs.
    Shared,
}

impl Holders {
    /// Of an explained placement.
    pub fn of(explained: &PlacementExplanation) -> Self {
        let containers = explained.pods.iter().flat_map(|pod| {
            let exclusive = pod
                .containers
                .iter()
                .filter(|container| container.exclusive);
            exclusive.filter_map(|container| {
                Some(Holder {
                    name: format!("{}/{}", pod.pod, container.name),
                    cpus: container.cpus?,
                })
            })
        });
        Self {
            exclusive: containers.collect(),
            reserved: explained.reserved,
            shared: explained.shared_pool,
        }
    }

    /// What the CPU is used for; `None` if unused.
    pub fn claim(&self, cpu: u32) -> Option<Claim> {
        let exclusive = self.exclusive.iter().position(|it| it.cpus.contains(cpu));
        exclusive.map(Claim::Exclusive).or_else(|| {
            if self.reserved.contains(cpu) {
                Some(Claim::Reserved)
            } else {
                self.shared.contains(cpu).then_some(Claim::Shared)
            }
        })
    }

    /// Every claim with its name and CPUs: containers as they are listed, then reserved, then shared. Without those of
    /// no CPU.
    pub fn claims(&self) -> impl Iterator<Item = (Claim, &str, CpuSet)> {
        let exclusive = self.exclusive.iter().enumerate();
        let exclusive = exclusive.map(|(at, it)| (Claim::Exclusive(at), it.name.as_str(), it.cpus));
        let pools = [
            (Claim::Reserved, "reserved", self.reserved),
            (Claim::Shared, "shared pool", self.shared - self.reserved),
        ];
        let all = exclusive.chain(pools);
        all.filter(|(_, _, cpus)| !cpus.is_empty())
    }
}
