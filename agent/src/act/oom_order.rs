//! The dynamic order of OOM kills on this machine: reads what [`plimsoll_core::policy::oom::order`] needs, and hands
//! its scores on.
//!
//! **Problem.** The order follows usage, requests, limits and pods that come and go; recomputing it at each sample
//! would cost more than it is worth, and must never delay an eviction. **Approach.** At most once a second, after
//! everything urgent, the usage of each container is read, the plan is made, and scores that differ go to
//! [`OomScores`], which writes them a pod at a time. What the kernel does between two plans follows the older one,
//! whose places leave each container room to grow.
#![forbid(unsafe_code)]

use std::num::NonZeroU64;
use std::path::Path;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::resources::MEMORY;
use plimsoll_core::model::state::NodeState;
use plimsoll_core::policy::oom::order::{OomContainer, OomNode, OomPlan, OomPod, oom_plan};

use crate::act::oom_scores::OomScores;
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupMounts, Controller, Version};
use crate::host::file::{ControlFile, FileError};
use crate::host::meminfo::MeminfoFile;

/// Between two plans.
const PLAN_EVERY_NS: u64 = 1_000_000_000;

/// Makes plans.
#[derive(Debug)]
pub struct OomOrdering {
    meminfo: MeminfoFile,
    version: Version,
    page_bytes: NonZeroU64,
    planned_ns: Option<u64>,
    plan: Option<OomPlan>,
}

impl OomOrdering {
    /// Opens what is read each time.
    ///
    /// # Errors
    /// Without a memory controller, or when `/proc/meminfo` cannot be read.
    pub fn open(host: &HostRoot, mounts: &CgroupMounts) -> Result<Self, CgroupError> {
        let page_bytes = rustix::param::page_size() as u64;
        Ok(Self {
            meminfo: MeminfoFile::open(host)?,
            version: mounts.hierarchy_of(Controller::Memory)?.version,
            page_bytes: NonZeroU64::new(page_bytes).unwrap_or(NonZeroU64::MIN),
            planned_ns: None,
            plan: None,
        })
    }

    /// The newest plan.
    pub fn plan(&self) -> Option<&OomPlan> {
        self.plan.as_ref()
    }

    /// Makes a new plan if it is time, and gives its scores to `scores`. Returns the pods whose scores are to be
    /// written.
    ///
    /// # Errors
    /// When a file cannot be read; the older plan stays in force.
    pub fn plan_if_due(
        &mut self,
        state: &NodeState,
        scores: &mut OomScores,
        now_ns: u64,
    ) -> Result<Vec<PodUid>, FileError> {
        if self
            .planned_ns
            .is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < PLAN_EVERY_NS)
        {
            return Ok(Vec::new());
        }
        self.planned_ns = Some(now_ns);
        let memory = self.meminfo.read()?;
        let node = OomNode::new(memory.total, memory.swap_total, self.page_bytes);
        let plan = oom_plan(node, &self.pods(state, scores)?);
        let mut changed = Vec::new();
        for place in plan.changes() {
            scores.order(&place.uid, &place.container, Some(place.adj));
            changed.push(place.uid.clone());
        }
        changed.sort_unstable();
        changed.dedup();
        self.plan = Some(plan);
        Ok(changed)
    }

    fn pods(&self, state: &NodeState, scores: &OomScores) -> Result<Vec<OomPod>, FileError> {
        let mut pods = Vec::new();
        for (uid, pod_state) in &state.pods {
            let Some(pod) = scores.pod(uid) else {
                continue;
            };
            let mut containers = Vec::new();
            for container in scores.containers(uid) {
                let Some(spec) = pod.container(container.name) else {
                    continue;
                };
                let usage_bytes = match self.usage_bytes(container.dir) {
                    Ok(bytes) => bytes,
                    Err(error) if error.is_vanished() => continue,
                    Err(error) => return Err(error),
                };
                let request_bytes = spec.resources.request(MEMORY).value();
                containers.push(OomContainer {
                    name: container.name.to_owned(),
                    usage_bytes,
                    // Reading it would take a file for each process.
                    largest_process_bytes: 0,
                    request_bytes: u64::try_from(request_bytes).unwrap_or(0),
                    sidecar: spec.is_sidecar(),
                    kubelet_adj: container.kubelet_adj,
                    current_adj: Some(container.adj),
                });
            }
            pods.push(OomPod {
                row: pod_state.row.clone(),
                exempt: pod_state.row.exempt,
                containers,
            });
        }
        Ok(pods)
    }

    /// Memory and swap charged to a cgroup.
    fn usage_bytes(&self, dir: &Path) -> Result<u64, FileError> {
        let read = |name: &str| ControlFile::open(dir.join(name))?.read_u64();
        let if_there = |bytes: Result<u64, FileError>, otherwise: u64| match bytes {
            // Without swap accounting the file is not there.
            Err(error) if error.is_vanished() => Ok(otherwise),
            bytes => bytes,
        };
        match self.version {
            Version::V2 => {
                let memory = read("memory.current")?;
                let swap = if_there(read("memory.swap.current"), 0)?;
                Ok(memory.saturating_add(swap))
            }
            Version::V1 => {
                let memory = read("memory.usage_in_bytes")?;
                if_there(read("memory.memsw.usage_in_bytes"), memory)
            }
        }
    }
}
