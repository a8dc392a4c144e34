//! The parts of a machine as boxes in boxes.
//!
//! Problem: what contains what differs from machine to machine. A socket may have four NUMA nodes, a NUMA node two
//! sockets; an L3 may be a part of a node, or span two. Approach: a level with fewer parts is outside; levels with as
//! many parts keep the usual order (socket, die, node, L3, cluster). A part that is all there is in the part around it
//! is merged with it.

use std::collections::BTreeMap;
use std::fmt;

use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::machine::{Core, Machine};

/// What a part is, from the outside in unless a machine nests them differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Socket,
    Die,
    Node,
    L3,
    /// The kubelet's, where the machine does not say which L3 that is.
    Uncore,
    Cluster,
}

const LEVELS: [Level; 6] = [
    Level::Socket,
    Level::Die,
    Level::Node,
    Level::L3,
    Level::Uncore,
    Level::Cluster,
];

/// A part's number, and before it the socket in which that is unique, unless it is so on the machine.
type PartNumber = (Option<u32>, u32);

impl Level {
    /// The part that the core is in, if that is known.
    fn part(self, core: &Core) -> Option<PartNumber> {
        let within_socket = |id: Option<u32>| id.map(|id| (core.socket, id));
        let on_machine = |id: Option<u32>| id.map(|id| (None, id));
        match self {
            Self::Socket => on_machine(core.socket),
            Self::Die => within_socket(core.die),
            Self::Node => on_machine(core.node),
            Self::L3 => on_machine(core.l3),
            Self::Uncore => on_machine(core.uncore),
            Self::Cluster => within_socket(core.cluster),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Socket => "socket",
            Self::Die => "die",
            Self::Node => "NUMA node",
            Self::L3 => "L3",
            Self::Uncore => "uncore cache",
            Self::Cluster => "cluster",
        })
    }
}

/// A part of the machine. It has other parts, or it has cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// What it is: several names if nothing else is in the outer ones. A number is missing where the kernel does not
    /// say it.
    pub(crate) names: Vec<(Level, Option<u32>)>,
    pub(crate) children: Vec<Part>,
    /// All its cores, by their lowest CPU.
    pub(crate) cores: Vec<Core>,
    /// CPUs of its NUMA node that are offline, and of which the core is unknown.
    pub(crate) offline: CpuSet,
}

/// How many parts of each level a machine has, and the parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Levels of which the machine has parts, from the outside in.
    pub(crate) levels: Vec<(Level, usize)>,
    pub(crate) parts: Vec<Part>,
    /// Nodes in which there is no CPU.
    pub(crate) nodes_without_cpus: Vec<u32>,
    /// CPUs that are offline, and of which even the node is unknown.
    pub(crate) offline: CpuSet,
}

impl Part {
    /// Its number on this level, if it is the part of a level.
    pub(crate) fn id(&self, level: Level) -> Option<u32> {
        let name = self.names.iter().find(|(it, _)| *it == level);
        name.and_then(|(_, id)| *id)
    }

    /// All its CPUs, online or not.
    pub(crate) fn cpus(&self) -> CpuSet {
        let known = self
            .cores
            .iter()
            .fold(CpuSet::EMPTY, |all, core| all | core.cpus);
        known | self.offline
    }

    /// Cores by how many CPUs they have, most first.
    pub(crate) fn shape(&self) -> Vec<(u32, usize)> {
        let mut counts = BTreeMap::<u32, usize>::new();
        for core in &self.cores {
            *counts.entry(core.cpus.len()).or_default() += 1;
        }
        counts.into_iter().rev().collect()
    }
}

/// `socket 0, NUMA node 0`.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (level, id)) in self.names.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match id {
                Some(id) => write!(f, "{comma}{level} {id}")?,
                None => write!(f, "{comma}no {level}")?,
            }
        }
        Ok(())
    }
}

impl Layout {
    pub(crate) fn of(machine: &Machine) -> Self {
        let (known, unknown): (Vec<Core>, Vec<Core>) = machine
            .cores()
            .iter()
            .partition(|core| core.socket.is_some());
        let mut levels: Vec<(Level, usize)> = LEVELS
            .into_iter()
            .filter_map(|level| Some((level, count_worth_showing(level, &known)?)))
            .collect();
        levels.sort_by_key(|(_, count)| *count);
        let order: Vec<Level> = levels.iter().map(|(level, _)| *level).collect();
        let mut layout = Self {
            levels,
            parts: parts(&known, &order),
            nodes_without_cpus: Vec::new(),
            offline: machine.offline(),
        };
        for core in &unknown {
            if let Some(part) = core
                .node
                .and_then(|node| innermost(&mut layout.parts, node))
            {
                part.offline |= core.cpus;
            }
        }
        let placed = layout
            .parts
            .iter()
            .fold(CpuSet::EMPTY, |all, part| all | all_cpus(part));
        layout.offline -= placed;
        let with_cpus = |node: u32| known.iter().any(|core| core.node == Some(node));
        let without = machine.nodes().iter().map(|node| node.id);
        layout.nodes_without_cpus = without.filter(|node| !with_cpus(*node)).collect();
        layout
    }

    /// How many parts the machine has of this level.
    pub(crate) fn count(&self, level: Level) -> usize {
        let count = self.levels.iter().find(|(it, _)| *it == level);
        count.map_or(0, |(_, count)| *count)
    }
}

fn all_cpus(part: &Part) -> CpuSet {
    let cpus = part.cpus();
    part.children
        .iter()
        .fold(cpus, |all, child| all | all_cpus(child))
}

/// How many parts of the level there are; `None` where it would tell nothing.
fn count_worth_showing(level: Level, cores: &[Core]) -> Option<usize> {
    let mut parts: Vec<_> = cores.iter().map(|core| level.part(core)).collect();
    let some_unknown = parts.contains(&None);
    parts.sort_unstable();
    parts.dedup();
    let known = parts.len() - usize::from(some_unknown);
    let sockets = distinct_sockets(cores);
    let shown = match level {
        Level::Socket | Level::Node | Level::L3 => known > 0,
        // One die in each socket is the socket.
        Level::Die => known > sockets,
        Level::Uncore => known > 0 && cores.iter().all(|core| core.l3.is_none()),
        // Hybrid machines have clusters of their small cores only.
        Level::Cluster => known > 0 && !some_unknown,
    };
    shown.then_some(known)
}

fn distinct_sockets(cores: &[Core]) -> usize {
    let sockets: std::collections::BTreeSet<_> = cores.iter().map(|core| core.socket).collect();
    sockets.len()
}

fn parts(cores: &[Core], levels: &[Level]) -> Vec<Part> {
    let Some((level, inner)) = levels.split_first() else {
        return Vec::new();
    };
    let mut known = BTreeMap::<PartNumber, Vec<Core>>::new();
    let mut unknown = Vec::new();
    for core in cores {
        match level.part(core) {
            Some(number) => known.entry(number).or_default().push(*core),
            None => unknown.push(*core),
        }
    }
    let part = |id: Option<u32>, cores: Vec<Core>| {
        let mut names = vec![(*level, id)];
        let mut children = parts(&cores, inner);
        if let [only] = &mut children[..] {
            names.append(&mut only.names);
            children = std::mem::take(&mut only.children);
        }
        Part {
            names,
            children,
            cores,
            offline: CpuSet::EMPTY,
        }
    };
    let numbered = known.into_iter();
    let mut all: Vec<Part> = numbered
        .map(|((_, id), cores)| part(Some(id), cores))
        .collect();
    if !unknown.is_empty() {
        all.push(part(None, unknown));
    }
    all
}

/// The first part that is the NUMA node.
fn innermost(parts: &mut [Part], node: u32) -> Option<&mut Part> {
    parts.iter_mut().find_map(|part| {
        if part.id(Level::Node) == Some(node) {
            Some(part)
        } else {
            innermost(&mut part.children, node)
        }
    })
}

#[cfg(test)]
mod tests;
