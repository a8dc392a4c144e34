//! The machines a guest can be: QEMU's flags for CPUs, caches and memory nodes.
//!
//! SMT siblings and shared caches only show with an Intel CPU model; `max` hides threads under software emulation.
//! All of these were looked at in the guest's sysfs.

use std::fmt;
use std::str::FromStr;

use crate::architecture::Architecture;

/// A guest's CPUs and memory nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    /// So many CPUs in one package, no threads.
    Flat(u16),
    /// 4 cores of 2 threads, one L3.
    Smt,
    /// 2 dies of 2 cores of 2 threads in one package and node, an L3 per die.
    Dies,
    /// 2 sockets of 2 cores of 2 threads, a memory node each, distance 21.
    Numa2,
    /// 2 memory nodes with so many CPUs each, no threads, distance 21: for memory alone, without the cost of many CPUs.
    Numa2Flat(u16),
    /// 4 sockets of 2 cores of 2 threads; distance 16 within a pair of nodes, 32 across.
    Numa4,
    /// 2 sockets of 2 dies of 2 cores of 2 threads; a node per die; distance 12 within a socket, 32 across.
    Multi,
    /// 4 sockets of 2 dies of a core of 2 threads; a node and an L3 per die; distance 12 within a socket, 32 across.
    Numa8,
    /// 2 sockets with a node each and a third node of slow memory without CPUs, described by an HMAT.
    Hmat,
}

/// QEMU's part for a topology.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    /// CPU model.
    pub(crate) cpu: &'static str,
    /// Memory, rounded down to a multiple of the nodes.
    pub(crate) memory_mb: u64,
    /// `-smp`, `-numa`, `-object` and `-machine` flags.
    pub(crate) flags: Vec<String>,
}

/// Shows SMT siblings and L3 sharing under TCG.
const CPU_WITH_THREADS: &str = "Icelake-Server";

impl Topology {
    /// Whether a guest of this architecture can be so: QEMU's machine for Arm shows neither dies nor, to the kernel,
    /// threads.
    pub(crate) fn fits(self, architecture: Architecture) -> bool {
        architecture == Architecture::Amd64 || matches!(self, Self::Flat(_) | Self::Numa2Flat(_))
    }

    /// The flags for this machine with `memory_mb` of memory in all.
    pub(crate) fn machine(self, memory_mb: u64) -> Machine {
        let smp = match self {
            Self::Flat(cpus) => format!("{cpus}"),
            Self::Smt => "8,sockets=1,cores=4,threads=2".to_owned(),
            Self::Dies => "8,sockets=1,dies=2,cores=2,threads=2".to_owned(),
            Self::Numa2 => "8,sockets=2,cores=2,threads=2".to_owned(),
            Self::Numa2Flat(cpus) => format!("{},sockets=2,cores={cpus}", u32::from(cpus) * 2),
            Self::Numa4 => "16,sockets=4,cores=2,threads=2".to_owned(),
            Self::Multi => "16,sockets=2,dies=2,cores=2,threads=2".to_owned(),
            Self::Numa8 => "16,sockets=4,dies=2,cores=1,threads=2".to_owned(),
            Self::Hmat => "4,sockets=2,cores=2".to_owned(),
        };
        let (nodes, nodes_with_cpus, cpus_per_node) = match self {
            Self::Flat(_) | Self::Smt | Self::Dies => (0, 0, 0),
            Self::Numa2 => (2, 2, 4),
            Self::Numa2Flat(cpus) => (2, 2, u64::from(cpus)),
            Self::Numa4 | Self::Multi => (4, 4, 4),
            Self::Numa8 => (8, 8, 2),
            Self::Hmat => (3, 2, 2),
        };
        let mut flags = vec!["-smp".to_owned(), smp];
        if self == Self::Hmat {
            flags.extend(["-machine".to_owned(), "hmat=on".to_owned()]);
        }
        let node_mb = memory_mb.checked_div(nodes).unwrap_or(0);
        for node in 0..nodes {
            flags.extend([
                "-object".to_owned(),
                format!("memory-backend-ram,id=m{node},size={node_mb}M"),
            ]);
            let first = node * cpus_per_node;
            let cpus = if node < nodes_with_cpus {
                format!("cpus={first}-{},", first + cpus_per_node - 1)
            } else {
                String::new()
            };
            let initiator = if node < nodes_with_cpus {
                ""
            } else {
                ",initiator=1"
            };
            flags.extend([
                "-numa".to_owned(),
                format!("node,nodeid={node},{cpus}memdev=m{node}{initiator}"),
            ]);
        }
        for (from, to, distance) in self.distances() {
            flags.extend([
                "-numa".to_owned(),
                format!("dist,src={from},dst={to},val={distance}"),
            ]);
        }
        if self == Self::Hmat {
            flags.extend(hmat_flags());
        }
        Machine {
            cpu: if matches!(self, Self::Flat(_) | Self::Numa2Flat(_)) {
                "max"
            } else {
                CPU_WITH_THREADS
            },
            memory_mb: if nodes == 0 {
                memory_mb
            } else {
                node_mb * nodes
            },
            flags,
        }
    }

    fn distances(self) -> Vec<(u32, u32, u32)> {
        let (nodes, near, far) = match self {
            Self::Numa2 | Self::Numa2Flat(_) => return vec![(0, 1, 21)],
            Self::Numa4 => (4, 16, 32),
            Self::Multi => (4, 12, 32),
            Self::Numa8 => (8, 12, 32),
            Self::Flat(_) | Self::Smt | Self::Dies | Self::Hmat => return Vec::new(),
        };
        let pairs = (0..nodes).flat_map(|from| (from + 1..nodes).map(move |to| (from, to)));
        pairs
            .map(|(from, to)| (from, to, if from / 2 == to / 2 { near } else { far }))
            .collect()
    }
}

fn hmat_flags() -> Vec<String> {
    let mut flags = Vec::new();
    for initiator in 0..2 {
        for target in 0..3 {
            let (latency_ns, bandwidth) = match (initiator == target, target) {
                (true, _) => (10, "100G"),
                (_, 2) => (80, "10G"),
                _ => (20, "50G"),
            };
            let lb = format!("hmat-lb,initiator={initiator},target={target},hierarchy=memory");
            flags.extend([
                "-numa".to_owned(),
                format!("{lb},data-type=access-latency,latency={latency_ns}"),
            ]);
            flags.extend([
                "-numa".to_owned(),
                format!("{lb},data-type=access-bandwidth,bandwidth={bandwidth}"),
            ]);
        }
    }
    flags
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "flat" => Self::Flat(4),
            "smt" => Self::Smt,
            "dies" => Self::Dies,
            "numa2" => Self::Numa2,
            "numa4" => Self::Numa4,
            "multi" => Self::Multi,
            "numa8" => Self::Numa8,
            "hmat" => Self::Hmat,
            _ => match text
                .split_once(':')
                .map(|(name, cpus)| (name, cpus.parse()))
            {
                Some(("flat", Ok(cpus @ 1..=255))) => Self::Flat(cpus),
                Some(("numa2", Ok(cpus @ 1..=127))) => Self::Numa2Flat(cpus),
                _ => {
                    return Err(format!(
                        "`{text}` is not flat, flat:CPUS (1 to 255), smt, dies, numa2, numa2:CPUS (1 to 127 for each node), numa4, multi, numa8 or hmat"
                    ));
                }
            },
        })
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flat(cpus) => write!(formatter, "flat:{cpus}"),
            Self::Smt => formatter.write_str("smt"),
            Self::Dies => formatter.write_str("dies"),
            Self::Numa2 => formatter.write_str("numa2"),
            Self::Numa2Flat(cpus) => write!(formatter, "numa2:{cpus}"),
            Self::Numa4 => formatter.write_str("numa4"),
            Self::Multi => formatter.write_str("multi"),
            Self::Numa8 => formatter.write_str("numa8"),
            Self::Hmat => formatter.write_str("hmat"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in [
            "flat:1", "smt", "dies", "numa2", "numa2:1", "numa4", "multi", "numa8", "hmat",
        ] {
            assert_eq!(name.parse::<Topology>().unwrap().to_string(), name);
        }
        assert_eq!("flat".parse(), Ok(Topology::Flat(4)));
        for wrong in [
            "flat:0",
            "flat:256",
            "flat:x",
            "numa2:0",
            "numa2:128",
            "numa3",
            "",
        ] {
            assert!(wrong.parse::<Topology>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn arm_has_machines_without_threads() {
        let fits = |name: &str| name.parse::<Topology>().unwrap().fits(Architecture::Arm64);
        assert!(fits("flat") && fits("numa2:2"));
        assert!(!fits("smt") && !fits("numa2") && !fits("hmat"));
        assert!(Topology::Smt.fits(Architecture::Amd64));
    }

    #[test]
    fn flat_has_no_nodes() {
        let machine = Topology::Flat(1).machine(1000);
        assert_eq!(
            machine,
            Machine {
                cpu: "max",
                memory_mb: 1000,
                flags: vec!["-smp".into(), "1".into()]
            }
        );
    }

    #[test]
    fn numa2_splits_memory_and_cpus() {
        let machine = Topology::Numa2.machine(1537);
        assert_eq!(machine.memory_mb, 1536);
        assert_eq!(
            machine.flags.join(" "),
            "-smp 8,sockets=2,cores=2,threads=2 \
             -object memory-backend-ram,id=m0,size=768M -numa node,nodeid=0,cpus=0-3,memdev=m0 \
             -object memory-backend-ram,id=m1,size=768M -numa node,nodeid=1,cpus=4-7,memdev=m1 \
             -numa dist,src=0,dst=1,val=21"
        );
    }

    #[test]
    fn two_nodes_with_a_cpu_each() {
        let machine = Topology::Numa2Flat(1).machine(2048);
        assert_eq!(machine.cpu, "max");
        assert_eq!(
            machine.flags.join(" "),
            "-smp 2,sockets=2,cores=1 \
             -object memory-backend-ram,id=m0,size=1024M -numa node,nodeid=0,cpus=0-0,memdev=m0 \
             -object memory-backend-ram,id=m1,size=1024M -numa node,nodeid=1,cpus=1-1,memdev=m1 \
             -numa dist,src=0,dst=1,val=21"
        );
    }

    #[test]
    fn four_nodes_are_two_pairs() {
        let flags = Topology::Multi.machine(4096).flags.join(" ");
        for expected in [
            "dist,src=0,dst=1,val=12",
            "dist,src=2,dst=3,val=12",
            "dist,src=1,dst=2,val=32",
            "node,nodeid=3,cpus=12-15,memdev=m3",
        ] {
            assert!(flags.contains(expected), "{expected} in {flags}");
        }
        assert_eq!(flags.matches("-numa dist").count(), 6);
        let eight = Topology::Numa8.machine(4096);
        let flags = eight.flags.join(" ");
        for expected in [
            "-smp 16,sockets=4,dies=2,cores=1,threads=2",
            "dist,src=6,dst=7,val=12",
            "dist,src=5,dst=6,val=32",
            "node,nodeid=7,cpus=14-15,memdev=m7",
        ] {
            assert!(flags.contains(expected), "{expected} in {flags}");
        }
        assert_eq!(flags.matches("-numa dist").count(), 28);
        assert_eq!((eight.cpu, eight.memory_mb), (CPU_WITH_THREADS, 4096));
    }

    #[test]
    fn hmat_has_a_node_without_cpus() {
        let machine = Topology::Hmat.machine(3000);
        let flags = machine.flags.join(" ");
        assert!(
            flags.contains("-numa node,nodeid=2,memdev=m2,initiator=1"),
            "{flags}"
        );
        assert!(
            flags.contains(
                "initiator=1,target=2,hierarchy=memory,data-type=access-latency,latency=80"
            ),
            "{flags}"
        );
        assert_eq!(flags.matches("hmat-lb").count(), 12);
    }
}
