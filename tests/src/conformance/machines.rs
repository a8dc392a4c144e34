//! The machines that vectors refer to by name: `topologies.jsonl` beside the vector file.
//!
//! A vector `{"topology": "t10", …}` gets the machine itself in place of its name before it is checked. A file with
//! more after its stem may have machines of its own: `cpu_assignment-more.jsonl` looks into `topologies.jsonl`, then
//! `topologies-more.jsonl`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_core::placement::topology::{Cpu, CpuTopology, TopologyCounts};
use serde::Deserialize;
use serde_json::Value;

const STEM: &str = "topologies";

/// Machines by their `id`.
#[derive(Debug, Default)]
pub struct Machines(BTreeMap<String, Value>);

impl Machines {
    /// Those beside a vector file with this stem; none if there is no such file, which only matters to a vector that
    /// names one.
    ///
    /// # Errors
    /// If a file of machines is there and cannot be read: the path, and the system's reason.
    pub fn beside(path: &Path, stem: &str) -> Result<Self, (std::path::PathBuf, std::io::Error)> {
        let name = path.file_name().and_then(|name| name.to_str());
        let more = name
            .and_then(|name| name.strip_prefix(stem))
            .unwrap_or(".jsonl");
        let mut machines = Self::default();
        for file in [format!("{STEM}.jsonl"), format!("{STEM}{more}")] {
            let file = path.with_file_name(file);
            if !file.is_file() {
                continue;
            }
            let text = fs::read_to_string(&file).map_err(|source| (file, source))?;
            for line in text.lines() {
                if let Ok(machine) = serde_json::from_str::<Value>(line)
                    && let Some(id) = machine["id"].as_str()
                {
                    machines.0.insert(id.to_owned(), machine);
                }
            }
        }
        Ok(machines)
    }

    /// Puts the machine in place of its name. A name that nobody knows stays, and the check complains of it.
    pub fn place_into(&self, vector: &mut Value) {
        let Some(topology) = vector.get_mut("topology") else {
            return;
        };
        if let Some(machine) = topology.as_str().and_then(|name| self.0.get(name)) {
            *topology = machine.clone();
        }
    }
}

/// A machine as the file has it.
#[derive(Deserialize)]
pub(super) struct Machine {
    num_cpus: u32,
    num_cores: u32,
    num_sockets: u32,
    num_numa_nodes: u32,
    num_uncore_caches: u32,
    cpus: Vec<[u32; 5]>,
}

impl Machine {
    pub(super) fn topology(self) -> Result<CpuTopology, String> {
        let cpu = |[id, core, socket, numa, uncore]: [u32; 5]| Cpu {
            id,
            core,
            socket,
            numa,
            uncore,
        };
        let counts = TopologyCounts {
            cpus: self.num_cpus,
            cores: self.num_cores,
            sockets: self.num_sockets,
            numa_nodes: self.num_numa_nodes,
            uncore_caches: self.num_uncore_caches,
        };
        CpuTopology::with_counts(self.cpus.into_iter().map(cpu).collect(), counts)
            .map_err(|error| error.to_string())
    }
}
