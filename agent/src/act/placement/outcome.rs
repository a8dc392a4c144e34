//! What became of a placement.

use std::fmt;
use std::sync::Arc;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::numa_mask::NumaMask;

use super::PlacementError;
use super::cgroups::Container;
use super::checkpoint::SetAside;
use super::kubelet_state::FOR_KUBELET;
use super::plugin_cpusets::FOREIGN;
use super::usable::Usable;
use crate::host::cgroup::CgroupPath;
use crate::host::irq::Moved;
use crate::pods::names::CRUN_CONTAINER;

/// One write to a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Whose.
    pub pod: PodUid,
    /// Which container; empty for the pod itself.
    pub container: String,
    /// Where.
    pub cgroup: CgroupPath,
    /// `cpuset.cpus`, `cpuset.mems` or `cpu.max`.
    pub what: &'static str,
    /// What; no nodes means those of the cgroup above.
    pub value: String,
}

/// Something that could not be done. It is tried again.
#[derive(Debug, Clone)]
pub struct Failed {
    /// Whose.
    pub pod: PodUid,
    /// Which container; empty for the pod itself.
    pub container: String,
    /// Why.
    pub error: Arc<PlacementError>,
}

/// Exclusive CPUs that went offline, or that pods cannot use any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// Whose.
    pub pod: PodUid,
    /// Which container.
    pub container: String,
    /// Which.
    pub cpus: CpuSet,
}

/// A container that is not where it is to be, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupied {
    /// Whose.
    pub pod: PodUid,
    /// Which container.
    pub container: String,
    /// Nobody else gets these CPUs.
    pub cpus: CpuSet,
}

/// A container that another plugin of the runtime has put on exclusive CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// Whose.
    pub pod: PodUid,
    /// Which container.
    pub container: String,
    /// The exclusive CPUs of others that it is on.
    pub cpus: CpuSet,
}

/// All that a turn did.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What pods could use.
    pub usable: Usable,
    /// The cgroup that all pods are in.
    pub of_all_pods: CgroupPath,
    /// What was written, in this order.
    pub written: Vec<Written>,
    /// What could not be.
    pub failed: Vec<Failed>,
    /// Who went straight to CPUs where somebody else may have been for as long as a few writes take, because there was
    /// no CPU to wait on.
    pub shared: Vec<Written>,
    /// Who could not be moved.
    pub occupied: Vec<Occupied>,
    /// Who was put by another program where others are to be alone.
    pub overlaps: Vec<Overlap>,
    /// Who lacks CPUs that it was given. One that has none left runs in the shared pool.
    pub unusable: Vec<Unusable>,
    /// Why the file of containers whose cpuset another plugin has set could not be written.
    pub foreign_not_kept: Option<String>,
    /// Why the state files for a kubelet could not be written.
    pub not_kept_for_kubelet: Option<String>,
    /// Why what was wanted could not be kept, and what was kept before: that was carried out.
    pub fell_back: Option<(String, Assignments)>,
    /// Why the checkpoint does not say yet that all of it is so.
    pub not_finished: Option<String>,
    /// A checkpoint that was none.
    pub set_aside: Option<SetAside>,
    /// Interrupts.
    pub interrupts: Moved,
    /// A cgroup whose CPUs somebody else has changed again and again, and does no more.
    pub uncontested: Option<CgroupPath>,
}

impl Outcome {
    /// One line for each thing that somebody should know.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.set_aside.iter().map(ToString::to_string).collect();
        remarks.extend(self.uncontested.iter().map(|cgroup| {
            format!(
                "{cgroup}: no other program changes its cpuset.cpus any more; placement goes on"
            )
        }));
        remarks.extend(self.fell_back.iter().map(|(why, _)| {
            format!(
                "{why}; placements stay as they are until this can be written; new containers run on the shared CPUs; plimsoll tries again"
            )
        }));
        remarks.extend(self.not_finished.iter().map(|why| {
            format!(
                "{why}; everything is in its place, and plimsoll tries again to write that down"
            )
        }));
        remarks.extend(self.foreign_not_kept.iter().map(|why| {
            format!(
                "{FOREIGN}: {why}; plimsoll tries again: after a restart before that, containers whose cpuset another NRI plugin has set are placed like any other"
            )
        }));
        remarks.extend(self.not_kept_for_kubelet.iter().map(|why| {
            format!(
                "{FOR_KUBELET}*: {why}; plimsoll tries again: give a kubelet none of these files before"
            )
        }));
        remarks.extend(self.failed.iter().map(ToString::to_string));
        remarks.extend(self.shared.iter().map(|shared| {
            format!(
                "pod {} container {}: no CPU was free to wait on, so that CPUs {} were shared for a moment; reserve one more CPU to avoid that",
                shared.pod, shared.container, shared.value
            )
        }));
        remarks.extend(self.overlaps.iter().map(ToString::to_string));
        remarks.extend(self.unusable.iter().map(ToString::to_string));
        if !self.usable.outside.is_empty() {
            remarks.push(format!(
                "CPUs {} are online, and no pod can run there: the kernel runs all that is in cgroup {} on {}; nothing is placed on them. If they came after the kubelet, restart it: it writes this set at its start; \
                 else take away what narrows it (cpuset.cpus, systemd AllowedCPUs=)",
                self.usable.outside, self.of_all_pods, self.usable.cpus
            ));
        }
        if self.interrupts.refused > 0 {
            remarks.push(format!(
                "{} interrupts are bound to exclusive CPUs {} and stay there",
                self.interrupts.refused, self.interrupts.interrupted
            ));
        }
        remarks.extend(self.interrupts.failed.clone());
        remarks
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {}", self.pod)?;
        if !self.container.is_empty() {
            write!(f, " container {}", self.container)?;
        }
        write!(f, ": {}", self.error)
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pod {} container {}: another NRI plugin has put it on CPUs {}, which are exclusive to other containers; keep that plugin off them",
            self.pod, self.container, self.cpus
        )
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pod {} container {}: its exclusive CPUs {} went offline, or out of the cpuset of all pods; bring them back, or have it placed anew",
            self.pod, self.container, self.cpus
        )
    }
}

impl Written {
    pub(super) fn cpus(container: &Container, cpus: CpuSet) -> Self {
        Self::new(container, "cpuset.cpus", cpus.to_string())
    }

    pub(super) fn mems(container: &Container, nodes: Option<NumaMask>) -> Self {
        let nodes = nodes.map_or_else(String::new, |nodes| nodes.to_string());
        Self::new(container, "cpuset.mems", nodes)
    }

    /// In the cgroup in which crun has its processes.
    pub(super) fn inherited(container: &Container, file: &'static str) -> Self {
        let cgroup = container.path.join(CRUN_CONTAINER);
        Self {
            cgroup: cgroup.unwrap_or_else(|_| container.path.clone()),
            ..Self::new(container, file, String::new())
        }
    }

    pub(super) fn quota(pod: &PodUid, container: &str, cgroup: &CgroupPath, value: String) -> Self {
        Self {
            pod: pod.clone(),
            container: container.to_owned(),
            cgroup: cgroup.clone(),
            what: "cpu.max",
            value,
        }
    }

    fn new(container: &Container, what: &'static str, value: String) -> Self {
        Self {
            pod: container.pod.clone(),
            container: container.name.clone(),
            cgroup: container.path.clone(),
            what,
            value,
        }
    }
}

impl Outcome {
    pub(super) fn fail(&mut self, pod: &PodUid, container: &str, error: PlacementError) {
        if !error.is_vanished() {
            self.failed.push(Failed {
                pod: pod.clone(),
                container: container.to_owned(),
                error: Arc::new(error),
            });
        }
    }
}
