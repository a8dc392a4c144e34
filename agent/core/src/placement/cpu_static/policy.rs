//! What is fixed while the agent runs: options, reserved CPUs, and how CPUs are taken under them.

use crate::placement::cpu_assignment::{CpuLayout, CpuSorting, NotEnoughCpus};
use crate::placement::cpu_set::CpuSet;
use crate::placement::numa_mask::NumaMask;
use crate::placement::topology::CpuTopology;

/// `cpuManagerPolicyOptions` (cpumanager/policy_options.go, 1.36), and what belongs to them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StaticCpuSettings {
    /// `full-pcpus-only`: whole cores, or none.
    pub full_pcpus_only: bool,
    /// `distribute-cpus-across-numa`: as many from each of the fewest NUMA nodes.
    pub distribute_across_numa: bool,
    /// `align-by-socket`: a hint means the sockets of its NUMA nodes.
    pub align_by_socket: bool,
    /// `distribute-cpus-across-cores`: spread over cores.
    pub distribute_across_cores: bool,
    /// `strict-cpu-reservation`: reserved CPUs are not in the shared pool either.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`: whole uncore caches where possible.
    pub prefer_uncore: bool,
    /// Reserved CPUs.
    pub reservation: CpuReservation,
    /// Whether `topologyManagerPolicy` is `single-numa-node`.
    pub single_numa_node: bool,
    /// CPUs that stay in the shared pool whatever is requested. The kubelet keeps none.
    pub shared_min: u32,
}

/// Which CPUs are never given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuReservation {
    /// How many: `kubeReserved` and `systemReserved` added up, rounded up to whole CPUs.
    pub count: u32,
    /// `reservedSystemCPUs`; empty if only the count is given: then they are taken as for a container.
    pub cpus: CpuSet,
}

/// A name among `cpuManagerPolicyOptions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StaticCpuOption {
    /// `full-pcpus-only`.
    FullPcpusOnly,
    /// `distribute-cpus-across-numa`.
    DistributeAcrossNuma,
    /// `align-by-socket`.
    AlignBySocket,
    /// `distribute-cpus-across-cores`.
    DistributeAcrossCores,
    /// `strict-cpu-reservation`.
    StrictReservation,
    /// `prefer-align-cpus-by-uncorecache`.
    PreferUncore,
}

/// Why there can be no such policy on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuPolicyError {
    /// Two options that exclude each other.
    #[error(
        "cpuManagerPolicyOptions: {} and {} exclude each other: leave one of them out",
        .first.name(), .second.name()
    )]
    Conflict {
        /// One of them.
        first: StaticCpuOption,
        /// The other.
        second: StaticCpuOption,
    },
    /// A socket has several NUMA nodes, and a container may have one.
    #[error(
        "cpuManagerPolicyOptions: align-by-socket widens hints to sockets, and topologyManagerPolicy single-numa-node \
         admits one NUMA node: leave one of them out"
    )]
    SocketsOnSingleNumaNode,
    /// A NUMA node has several sockets.
    #[error(
        "cpuManagerPolicyOptions: align-by-socket has no meaning with {sockets} sockets on {numa_nodes} NUMA nodes: leave it out"
    )]
    MoreSocketsThanNumaNodes {
        /// Sockets of the machine.
        sockets: u32,
        /// NUMA nodes of the machine.
        numa_nodes: u32,
    },
    /// Not as many CPUs as are to be reserved.
    #[error(
        "{wanted} CPUs are to be reserved (kubeReserved and systemReserved), but they would be {cpus:?}: make both the same number, and \
         no more than the machine has",
        cpus = .cpus.to_string()
    )]
    Reserve {
        /// How many are to be.
        wanted: u32,
        /// Those that are named, or could be taken.
        cpus: Box<CpuSet>,
    },
    /// A reserved CPU that is not online.
    #[error("reservedSystemCPUs: CPUs {cpus} are not online: name only CPUs of {online}")]
    ReservedUnknown {
        /// Those.
        cpus: Box<CpuSet>,
        /// The machine's.
        online: Box<CpuSet>,
    },
}

/// The static policy on a machine.
#[derive(Debug, Clone)]
pub struct StaticCpuPolicy {
    topology: CpuTopology,
    layout: CpuLayout,
    options: StaticCpuSettings,
    reserved: CpuSet,
    reserved_cores: CpuSet,
}

impl StaticCpuOption {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::FullPcpusOnly,
        Self::DistributeAcrossNuma,
        Self::AlignBySocket,
        Self::DistributeAcrossCores,
        Self::StrictReservation,
        Self::PreferUncore,
    ];

    /// As in the kubelet's configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FullPcpusOnly => "full-pcpus-only",
            Self::DistributeAcrossNuma => "distribute-cpus-across-numa",
            Self::AlignBySocket => "align-by-socket",
            Self::DistributeAcrossCores => "distribute-cpus-across-cores",
            Self::StrictReservation => "strict-cpu-reservation",
            Self::PreferUncore => "prefer-align-cpus-by-uncorecache",
        }
    }

    /// The option of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|option| option.name() == name)
    }
}

impl StaticCpuSettings {
    /// Switches an option on or off.
    pub fn set(&mut self, option: StaticCpuOption, on: bool) {
        let place = match option {
            StaticCpuOption::FullPcpusOnly => &mut self.full_pcpus_only,
            StaticCpuOption::DistributeAcrossNuma => &mut self.distribute_across_numa,
            StaticCpuOption::AlignBySocket => &mut self.align_by_socket,
            StaticCpuOption::DistributeAcrossCores => &mut self.distribute_across_cores,
            StaticCpuOption::StrictReservation => &mut self.strict_reservation,
            StaticCpuOption::PreferUncore => &mut self.prefer_uncore,
        };
        *place = on;
    }

    /// Whether an option is on.
    #[must_use]
    pub fn has(&self, option: StaticCpuOption) -> bool {
        match option {
            StaticCpuOption::FullPcpusOnly => self.full_pcpus_only,
            StaticCpuOption::DistributeAcrossNuma => self.distribute_across_numa,
            StaticCpuOption::AlignBySocket => self.align_by_socket,
            StaticCpuOption::DistributeAcrossCores => self.distribute_across_cores,
            StaticCpuOption::StrictReservation => self.strict_reservation,
            StaticCpuOption::PreferUncore => self.prefer_uncore,
        }
    }

    /// `NewStaticPolicyOptions` and `ValidateStaticPolicyOptions`, 1.36.
    fn validate(&self, topology: &CpuTopology) -> Result<(), CpuPolicyError> {
        use StaticCpuOption::{
            DistributeAcrossCores, DistributeAcrossNuma, FullPcpusOnly, PreferUncore,
        };
        for (first, second) in [
            (FullPcpusOnly, DistributeAcrossCores),
            (DistributeAcrossNuma, DistributeAcrossCores),
            (PreferUncore, DistributeAcrossCores),
            (PreferUncore, DistributeAcrossNuma),
        ] {
            if self.has(first) && self.has(second) {
                return Err(CpuPolicyError::Conflict { first, second });
            }
        }
        if !self.align_by_socket {
            return Ok(());
        }
        if self.single_numa_node {
            return Err(CpuPolicyError::SocketsOnSingleNumaNode);
        }
        let counts = topology.counts();
        if counts.sockets > counts.numa_nodes {
            return Err(CpuPolicyError::MoreSocketsThanNumaNodes {
                sockets: counts.sockets,
                numa_nodes: counts.numa_nodes,
            });
        }
        Ok(())
    }
}

impl StaticCpuPolicy {
    /// The policy with these settings on that machine.
    ///
    /// # Errors
    ///
    /// If the settings contradict each other or the machine (`NewStaticPolicy`, 1.36).
    pub fn new(topology: CpuTopology, options: StaticCpuSettings) -> Result<Self, CpuPolicyError> {
        options.validate(&topology)?;
        let layout = CpuLayout::new(&topology);
        let mut policy = Self {
            topology,
            layout,
            options,
            reserved: CpuSet::EMPTY,
            reserved_cores: CpuSet::EMPTY,
        };
        let CpuReservation { count, cpus } = policy.options.reservation;
        let online = policy.topology.all();
        let reserved = if cpus.is_empty() {
            policy
                .take(&online, count)
                .map_err(|_| CpuPolicyError::Reserve {
                    wanted: count,
                    cpus: Box::new(online),
                })?
        } else {
            cpus
        };
        if reserved.len() != count {
            return Err(CpuPolicyError::Reserve {
                wanted: count,
                cpus: Box::new(reserved),
            });
        }
        if !reserved.is_subset(&online) {
            return Err(CpuPolicyError::ReservedUnknown {
                cpus: Box::new(reserved - online),
                online: Box::new(online),
            });
        }
        let cores = policy.topology.by_core().values();
        policy.reserved_cores = cores
            .filter(|core| !core.is_disjoint(&reserved))
            .fold(reserved, |cpus, core| cpus | *core);
        policy.reserved = reserved;
        Ok(policy)
    }

    /// Takes as many of those CPUs, as the options say (`takeByTopology`, 1.36).
    pub(super) fn take(&self, of: &CpuSet, count: u32) -> Result<CpuSet, NotEnoughCpus> {
        let options = &self.options;
        let sorting = if options.distribute_across_cores {
            CpuSorting::Spread
        } else {
            CpuSorting::Packed
        };
        if options.distribute_across_numa {
            let group = if options.full_pcpus_only {
                self.cpus_per_core()
            } else {
                1
            };
            return self.layout.take_distributed(of, count, group, sorting);
        }
        self.layout
            .take_packed(of, count, sorting, options.prefer_uncore)
    }

    /// The CPUs of these NUMA nodes; with `align-by-socket`, of all sockets that have one of them (`getAlignedCPUs`,
    /// 1.36).
    pub(super) fn cpus_near(&self, mask: NumaMask) -> CpuSet {
        let cpus = self.topology.cpus_of_nodes(mask);
        if !self.options.align_by_socket {
            return cpus;
        }
        let sockets = self.topology.by_socket().values();
        sockets
            .filter(|socket| !socket.is_disjoint(&cpus))
            .fold(CpuSet::EMPTY, |near, socket| near | *socket)
    }

    /// CPUs of a core: totals divided, as in the kubelet.
    #[must_use]
    pub fn cpus_per_core(&self) -> u32 {
        let counts = self.topology.counts();
        (counts.cpus / counts.cores).max(1)
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &StaticCpuSettings {
        &self.options
    }

    /// The machine.
    #[must_use]
    pub fn topology(&self) -> &CpuTopology {
        &self.topology
    }

    /// CPUs that are never given away.
    #[must_use]
    pub fn reserved(&self) -> CpuSet {
        self.reserved
    }

    /// Those and their siblings.
    #[must_use]
    pub fn reserved_cores(&self) -> CpuSet {
        self.reserved_cores
    }

    /// What the shared pool and all exclusive CPUs add up to.
    #[must_use]
    pub fn managed(&self) -> CpuSet {
        if self.options.strict_reservation {
            self.topology.all() - self.reserved
        } else {
            self.topology.all()
        }
    }

    pub(super) fn shared_min(&self) -> u32 {
        self.options.shared_min
    }
}
