//! `cpu_assignment`: which CPUs are taken for one request.
//!
//! The set has to be the kubelet's, CPU by CPU. Where the kubelet errs (a best combination overwritten, CPUs that were
//! not free, an endless loop) ours has to be valid, and at least as good by the kubelet's own measure as what is
//! recorded: no more NUMA nodes, and for a distributed request of as many nodes no worse a balance. Such a line counts
//! as a known upstream defect only if the record shows that defect.

use std::collections::BTreeMap;

use plimsoll_core::placement::cpu_assignment::{CpuLayout, CpuSorting};
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::topology::CpuTopology;
use serde::Deserialize;
use serde_json::Value;

use super::machines::Machine;
use super::{Verdict, read, same};

#[derive(Deserialize)]
struct Vector {
    topology: Machine,
    available: CpuSet,
    request: u32,
    algorithm: Algorithm,
    sorting: Sorting,
    prefer_uncore: bool,
    cpu_group_size: u32,
    expect: Expect,
    #[serde(default)]
    accept_any: Vec<Expect>,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Algorithm {
    Packed,
    Distributed,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Sorting {
    Packed,
    Spread,
}

#[derive(Deserialize, PartialEq, Debug)]
struct Expect {
    cpus: Option<CpuSet>,
    error: Option<ExpectedError>,
}

#[derive(Deserialize, PartialEq, Debug)]
struct ExpectedError {
    kind: String,
}

pub(super) fn check(vector: &Value) -> Verdict {
    match read(vector).and_then(compare) {
        Ok(None) => Verdict::Pass,
        Ok(Some(defect)) => Verdict::KnownUpstreamDefect(defect),
        Err(why) => Verdict::Fail { why },
    }
}

/// The defect, if upstream's answer is one and ours is better.
fn compare(vector: Vector) -> Result<Option<String>, String> {
    let Vector {
        topology,
        available,
        request,
        algorithm,
        sorting,
        prefer_uncore,
        cpu_group_size,
        expect,
        accept_any,
        tags,
    } = vector;
    let topology = topology.topology()?;
    let layout = CpuLayout::new(&topology);
    let sorting = match sorting {
        Sorting::Packed => CpuSorting::Packed,
        Sorting::Spread => CpuSorting::Spread,
    };
    let taken = match algorithm {
        Algorithm::Packed => layout.take_packed(&available, request, sorting, prefer_uncore),
        Algorithm::Distributed => {
            layout.take_distributed(&available, request, cpu_group_size, sorting)
        }
    };
    let answer = match taken {
        Ok(cpus) => Expect {
            cpus: Some(cpus),
            error: None,
        },
        Err(_) => Expect {
            cpus: None,
            error: Some(ExpectedError {
                kind: "not_enough_cpus".to_owned(),
            }),
        },
    };
    let Some(defect) = defect(&expect, &tags) else {
        if accept_any.contains(&answer) {
            return Ok(None);
        }
        same("cpus", &answer, &expect)?;
        return Ok(None);
    };

    let ours = answer.cpus.ok_or("CPUs are free, and none were taken")?;
    if ours.len() != request || !ours.is_subset(&available) {
        return Err(format!(
            "took {ours}: not {request} of the available {available}"
        ));
    }
    let judged = Judged {
        topology: &topology,
        available,
        request,
        group: cpu_group_size,
        distributed: algorithm == Algorithm::Distributed,
    };
    match (defect.as_str(), expect.cpus) {
        ("hang", None) => judged.shows_endless_loop()?,
        ("result_outside_available", Some(theirs)) if !theirs.is_subset(&available) => {}
        ("alias_sensitive", Some(theirs)) if theirs.is_subset(&available) => {}
        (defect, theirs) => return Err(format!("tagged {defect}, but the record is {theirs:?}")),
    }
    if let Some(theirs) = expect.cpus {
        same("number of CPUs in the record", &theirs.len(), &request)?;
        judged.at_least_as_good(&ours, &theirs)?;
    } else if judged.distributed {
        judged.in_whole_groups(&ours)?;
    }
    Ok(Some(defect))
}

fn defect(expect: &Expect, tags: &[String]) -> Option<String> {
    if let Some(error) = &expect.error {
        return (error.kind == "hang").then(|| error.kind.clone());
    }
    let known = ["alias_sensitive", "result_outside_available"];
    tags.iter()
        .find(|tag| known.contains(&tag.as_str()))
        .cloned()
}

/// What answers are measured against.
struct Judged<'a> {
    topology: &'a CpuTopology,
    available: CpuSet,
    request: u32,
    group: u32,
    distributed: bool,
}

impl Judged<'_> {
    fn per_node(&self, cpus: &CpuSet) -> BTreeMap<u32, u32> {
        let nodes = self.topology.by_numa().iter();
        nodes
            .map(|(node, all)| (*node, all.overlap(cpus)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// The population standard deviation of what is left on the nodes that had free CPUs, as the kubelet rounds it.
    fn balance(&self, taken: &CpuSet) -> f64 {
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        let nodes = self.per_node(&self.available);
        let left = self.available - *taken;
        let left: Vec<f64> = nodes
            .keys()
            .map(|node| f64::from(self.topology.by_numa()[node].overlap(&left)))
            .collect();
        let count = f64::from(u32::try_from(left.len()).unwrap_or(u32::MAX));
        let mean = rounded(left.iter().sum::<f64>() / count);
        let squares = left.iter().map(|left| (left - mean) * (left - mean));
        rounded((squares.sum::<f64>() / count).sqrt())
    }

    fn at_least_as_good(&self, ours: &CpuSet, theirs: &CpuSet) -> Result<(), String> {
        let nodes = |cpus: &CpuSet| self.per_node(cpus).len();
        if nodes(ours) > nodes(theirs).max(self.fewest_nodes()) {
            return Err(format!(
                "{ours} is on {} NUMA nodes, {theirs} on {}",
                nodes(ours),
                nodes(theirs)
            ));
        }
        // What was not free cannot be balanced against.
        if self.distributed && nodes(ours) == nodes(theirs) && theirs.is_subset(&self.available) {
            let (our_balance, their_balance) = (self.balance(ours), self.balance(theirs));
            if our_balance > their_balance {
                return Err(format!(
                    "balance {our_balance} of {ours}, {their_balance} of {theirs}"
                ));
            }
            self.in_whole_groups(ours)?;
        }
        Ok(())
    }

    /// On fewer NUMA nodes there are not enough free CPUs: what a record with CPUs that were not free may pretend.
    fn fewest_nodes(&self) -> usize {
        let mut free: Vec<u32> = self.per_node(&self.available).into_values().collect();
        free.sort_unstable_by(|a, b| b.cmp(a));
        let sums = free.iter().scan(0, |sum, free| {
            *sum += free;
            Some(*sum)
        });
        1 + sums.take_while(|sum| *sum < self.request).count()
    }

    /// Each node gives whole groups, unless the request as a whole had to be packed.
    fn in_whole_groups(&self, cpus: &CpuSet) -> Result<(), String> {
        let whole = |counts: BTreeMap<u32, u32>| -> u32 {
            counts.values().map(|count| count / self.group).sum()
        };
        let can = whole(self.per_node(&self.available)) * self.group >= self.request;
        if can && whole(self.per_node(cpus)) * self.group != self.request {
            return Err(format!("{cpus} is not in groups of {}", self.group));
        }
        Ok(())
    }

    /// The loop needs a node with CPUs that are no whole group.
    fn shows_endless_loop(&self) -> Result<(), String> {
        let mut counts = self.per_node(&self.available).into_values();
        if self.distributed && counts.any(|count| count % self.group != 0) {
            return Ok(());
        }
        Err("recorded as an endless loop, but nothing can loop here".to_owned())
    }
}
