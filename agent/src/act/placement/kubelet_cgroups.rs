//! Beside a kubelet: which of its cgroups is which container, and what their sets were before.
//!
//! **Problem.** A runtime names a container's cgroup by an id, and the API server says whose that is only when the
//! container runs. The cgroups are the runtime's: none may be made or moved, and what is written has to be undone when
//! nothing is placed any more. **Approach.** A cgroup is a container's by the ids that the API, or the runtime (NRI),
//! has told ([`Names`]). One that nobody has named, and that runs on just what a container of its pod holds, is that
//! container ([`claim`]): an agent that was started anew moves nobody. All others share the pool, the sandbox too.
//! Before a set is first written, a line in a ledger says what it was ([`Sets`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::memory::Block;
use plimsoll_core::placement::numa_mask::NumaMask;

use super::answered::AnsweredSet;
use super::cgroups::Container;
use super::kubelet_state::{MEMORY_MANAGER_STATE, MEMORY_POLICY_STATIC, MemoryManagerState};
use super::other_managers::policy_of;
use super::{NodePaths, PlacementError};
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupMounts, Controller, Version};
use crate::host::cpuset::{CPUS, Cpuset, MEMS};
use crate::host::file::read_text;
use crate::host::ledger::{Change, KnobError, Ledger, Restoration};
use crate::host::shown::Show as _;
use crate::pods;
use crate::pods::names::{KubeletTree, container_id};

/// Its ledger, in the state directory.
pub const CPUSETS_LEDGER: &str = "cpusets.jsonl";
/// Space that it reserves for lines to come, bytes: some two hundred. A container that comes while the state directory
/// is full must still be moved off others' exclusive CPUs.
const RESERVE_BYTES: u64 = 64 << 10;
/// After so many lines those of files that have gone are taken out.
const FORGET_EVERY: u32 = 256;

/// The names of containers by their ids, of pods in which a container holds something.
pub type Names = BTreeMap<PodUid, BTreeMap<String, String>>;

/// All cgroups in those of a kubelet's pods. One of which the name is not known is called as its directory, which names
/// no container: it is an id.
pub(super) fn list(
    mounts: &CgroupMounts,
    tree: &KubeletTree,
    names: &Names,
) -> Result<Vec<Container>, CgroupError> {
    // Said also before the first pod is there: without them nothing is ever placed.
    mounts.hierarchy_of(Controller::Cpuset)?;
    let mut found = Vec::new();
    for pod in tree.pods(mounts)? {
        let containers = match pods::cgroup::containers(mounts, &pod.path) {
            Ok(containers) => containers,
            Err(error) if error.is_vanished() => continue,
            Err(error) => return Err(error),
        };
        let of_pod = names.get(&pod.uid);
        for container in containers {
            let Ok(cpuset) = Cpuset::at(mounts, &container.path) else {
                let controller = Controller::Cpuset;
                return Err(CgroupError::NoController { controller });
            };
            let id = container_id(&container.name);
            let name = id.and_then(|id| of_pod?.get(id)).cloned();
            found.push(Container {
                pod: pod.uid.clone(),
                name: name.unwrap_or(container.name),
                pod_path: pod.path.clone(),
                path: container.path,
                id: container.id,
                cpuset,
            });
        }
    }
    Ok(found)
}

/// Names the containers that run on just what a container of their pod holds by the first of these, or held by the
/// next: a change may not have reached it.
pub(super) fn claim(containers: &mut [Container], known: &[&Assignments]) {
    for container in containers {
        let is_named = known
            .iter()
            .any(|one| one.get(&container.pod, &container.name).is_some());
        if !is_named && let Some(name) = known.iter().find_map(|one| holder(container, one)) {
            container.name = name;
        }
    }
}

/// The container that has just what this one runs on.
fn holder(container: &Container, assignments: &Assignments) -> Option<String> {
    let of_pod = assignments.containers.get(&container.pod)?;
    let (cpus, mems) = (container.cpuset.cpus().ok()?, container.cpuset.mems().ok()?);
    let is_its = |name: &&String| {
        let (wanted, nodes) = (
            assignments.cpus(&container.pod, name),
            assignments.nodes(&container.pod, name),
        );
        // What has neither is called as it is.
        wanted.cpus == cpus && (wanted.exclusive || nodes == Some(mems))
    };
    of_pod.keys().find(is_its).cloned()
}

/// The files of memory nodes that are as a kubelet has them in its own books.
///
/// # Errors
/// They cannot be read: then nobody knows which nodes are its own.
pub(super) fn nodes_of_kubelet(paths: &NodePaths) -> Result<BTreeSet<PathBuf>, PlacementError> {
    let path = paths
        .host
        .path(&paths.kubelet_dir)
        .join(MEMORY_MANAGER_STATE);
    let text = match read_text(&path) {
        Err(error) if error.is_vanished() => return Ok(BTreeSet::new()),
        text => text?,
    };
    let Some(tree) = &paths.kubelet else {
        return Ok(BTreeSet::new());
    };
    if policy_of(&text).is_some_and(|policy| policy != MEMORY_POLICY_STATIC) {
        return Ok(BTreeSet::new()); // it has no books
    }
    let state = MemoryManagerState::parse(&text);
    let state = state.map_err(|source| PlacementError::KubeletState { path, source })?;
    let mut kept = BTreeSet::new();
    for container in list(&paths.mounts, tree, &Names::new())? {
        let of_pod = state.entries.get(&container.pod);
        let mut blocks = of_pod.into_iter().flat_map(BTreeMap::values);
        let mems = match container.cpuset.mems() {
            Err(error) if error.is_vanished() => continue,
            mems => mems?,
        };
        let is_its = |blocks: &Vec<Block>| {
            let nodes = blocks.iter().map(|block| block.nodes);
            nodes.reduce(|all, nodes| all | nodes) == Some(mems)
        };
        if blocks.any(is_its) {
            kept.insert(container.cpuset.dir().join(MEMS));
        }
    }
    Ok(kept)
}

/// The sets that the agent, or the runtime for it, has written.
#[derive(Debug)]
pub(super) struct Sets {
    ledger: Ledger,
    /// Files of which the ledger says what they were.
    known: BTreeSet<PathBuf>,
    lines: u32,
}

impl Sets {
    /// Goes on with what an agent before has left.
    pub(super) fn open(host: &HostRoot, state_dir: &Path) -> Result<Self, KnobError> {
        let ledger = Ledger::open(host, state_dir.join(CPUSETS_LEDGER))?;
        let mut ledger = ledger.with_reserve(RESERVE_BYTES);
        let changes = ledger.changes()?.into_iter();
        let known = changes
            .filter_map(|change| match change {
                Change::Write { path, .. } => Some(path),
                _ => None,
            })
            .collect();
        Ok(Self {
            ledger,
            known,
            lines: 0,
        })
    }

    /// Sees to it that the container has a cpuset: on v2 the controller is enabled above it, where the runtime has not
    /// had that done.
    pub(super) fn adopt(
        &mut self,
        mounts: &CgroupMounts,
        container: &Container,
    ) -> Result<(), PlacementError> {
        let hierarchy = mounts.hierarchy_of(Controller::Cpuset)?;
        if hierarchy.version == Version::V1 || container.cpuset.dir().join(CPUS).exists() {
            return Ok(());
        }
        let mut above = hierarchy.mount.clone();
        for path in container.path.lineage() {
            self.ledger.enable(&above, Controller::Cpuset)?;
            above = hierarchy.dir(&path);
        }
        Ok(())
    }

    /// Before anything is written: a set that the runtime has written for us (NRI), as it was answered or as any of
    /// these has it, is to be none when it is undone. What else crun has written below the container's own cgroup is to
    /// be put back there. Whatever comes there later it writes with a set of ours.
    pub(super) fn note(
        &mut self,
        container: &Container,
        known: &[&Assignments],
        answered: Option<AnsweredSet>,
    ) -> Result<(), PlacementError> {
        let (pod, name) = (&container.pod, &container.name);
        let nested = container.nested();
        let file = container.cpuset.dir().join(CPUS);
        if !self.known.contains(&file) {
            let is_ours = |cpus: CpuSet| {
                answered.is_some_and(|answered| answered.cpus == Some(cpus))
                    || known.iter().any(|one| one.cpus(pod, name).cpus == cpus)
            };
            let cpus = container.cpuset.cpus()?;
            if !cpus.is_empty() && is_ours(cpus) {
                self.made(container, CPUS, &cpus.to_string())?;
            }
            if let Some(nested) = &nested
                && !is_ours(nested.cpus()?)
            {
                self.emptied(nested, CPUS)?;
            }
        }
        let file = container.cpuset.dir().join(MEMS);
        if !self.known.contains(&file) {
            let is_ours = |mems: NumaMask| {
                answered.is_some_and(|answered| answered.mems == Some(mems))
                    || known.iter().any(|one| one.nodes(pod, name) == Some(mems))
            };
            let mems = container.cpuset.mems()?;
            if is_ours(mems) {
                self.made(container, MEMS, &mems.to_string())?;
            }
            if let Some(nested) = &nested
                && !is_ours(nested.mems()?)
            {
                self.emptied(nested, MEMS)?;
            }
        }
        Ok(())
    }

    /// A set below a container's own cgroup is about to follow that.
    fn emptied(&mut self, nested: &Cpuset, file: &str) -> Result<(), PlacementError> {
        let path = nested.dir().join(file);
        if self.known.contains(&path) {
            return Ok(());
        }
        self.ledger.record_ahead(&path, "")?;
        self.recorded(path)
    }

    /// What the file would have without us: on v2 nothing, on v1 what the one above has.
    fn made(
        &mut self,
        container: &Container,
        file: &str,
        value: &str,
    ) -> Result<(), PlacementError> {
        let old = container.cpuset.inherited(file)?;
        let path = container.cpuset.dir().join(file);
        self.ledger.record_made(&path, &old, value)?;
        self.recorded(path)
    }

    /// A set is about to be written.
    pub(super) fn record(
        &mut self,
        container: &Container,
        file: &str,
        value: &str,
    ) -> Result<(), PlacementError> {
        let path = container.cpuset.dir().join(file);
        self.ledger.record_ahead(&path, value)?;
        self.recorded(path)
    }

    fn recorded(&mut self, path: PathBuf) -> Result<(), PlacementError> {
        self.known.insert(path);
        self.lines += 1;
        if self.lines >= FORGET_EVERY {
            self.lines = 0;
            // The line is there; that those of files that are gone stay does no harm.
            if let Err(error) = self.ledger.forget_vanished() {
                tracing::warn!(%error, "lines of cpusets that are gone stay in the ledger for now");
            }
            self.known.retain(|path| path.exists());
        }
        Ok(())
    }

    /// Whether the container's memory nodes are of our making.
    pub(super) fn has_nodes(&self, container: &Container) -> bool {
        self.known.contains(&container.cpuset.dir().join(MEMS))
    }

    /// The kubelet places from now on. Memory nodes are as they were before, except in the files of `kept`: it writes
    /// them only of containers that it starts itself, and ours would stay for as long as a container runs. CPUs stay,
    /// and are its own: those of all its containers it writes itself, but not one that has the value that it wants.
    pub(super) fn hand_over(
        &mut self,
        kept: impl FnOnce() -> Result<BTreeSet<PathBuf>, PlacementError>,
    ) -> Result<(), PlacementError> {
        if self.known.is_empty() {
            return Ok(());
        }
        let kept = kept()?;
        let is_nodes = |path: &Path| path.file_name().is_some_and(|name| name == MEMS);
        let restoration = self.ledger.restore_those(|change| {
            is_nodes(change.subject()) && !kept.contains(change.subject())
        })?;
        for remark in restoration.remarks() {
            tracing::warn!("{}", remark.shown());
        }
        let is_set = |change: &Change| matches!(change, Change::Write { .. });
        self.ledger.forget_those(is_set)?;
        self.known.clear();
        Ok(())
    }

    /// Everything is as it was before.
    pub(super) fn restore(&mut self) -> Result<Restoration, KnobError> {
        let restoration = self.ledger.restore()?;
        self.known.clear();
        for remark in restoration.remarks() {
            tracing::warn!("{}", remark.shown());
        }
        Ok(restoration)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::cgroup::CgroupPath;
    use crate::host::cgroup::tests::fake_v2;

    #[test]
    fn a_kernel_without_cpusets_is_said_before_the_first_pod_is_there() {
        let (_dir, host) = fake_v2();
        fs::create_dir_all(host.path("/sys/fs/cgroup/kubepods")).unwrap();
        let list = || {
            let mounts = host.cgroup_mounts().unwrap();
            let tree = KubeletTree::find(&mounts, &CgroupPath::default()).unwrap();
            list(&mounts, &tree, &Names::new())
        };
        assert!(list().unwrap().is_empty());
        let controllers = host.path("/sys/fs/cgroup/cgroup.controllers");
        fs::write(controllers, "cpu io memory pids\n").unwrap();
        let error = list().unwrap_err().to_string();
        assert!(
            error.contains("cgroup controller cpuset is not available"),
            "{error}"
        );
    }
}
