//! How `plimsoll exec` puts a container where it belongs before its first instruction.

use std::path::Path;

use plimsoll_core::kube::cgroup_config::{CgroupConfig, QUOTA_UNLIMITED};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::cpu_set::CpuSet;

use super::PlacementError;
use super::checkpoint::{Checkpoint, Found, LOCK_PATIENCE, PlacementLock};
use super::usable::usable_cpus;
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupMounts, CgroupPath};
use crate::host::cpuset::Cpuset;

/// A container's leave to start. While it is held, nobody is moved, and the placement stays as it is.
#[derive(Debug)]
pub struct StartPermit {
    lock: PlacementLock,
    pod: PodUid,
    checkpoint: Option<Checkpoint>,
    /// CPUs that pods can use.
    usable: CpuSet,
    notes: Vec<String>,
}

impl StartPermit {
    /// Waits until nobody is being moved, and reads what the pod was given. A pod that the placement does not know runs
    /// in the shared pool.
    ///
    /// # Errors
    /// [`PlacementError::Refused`] for a pod that could not be placed; a checkpoint that can neither be read nor set
    /// aside.
    pub fn begin(
        host: &HostRoot,
        (mounts, cgroup_root): (&CgroupMounts, &CgroupPath),
        state_dir: &Path,
        pod: &PodUid,
    ) -> Result<Self, PlacementError> {
        let lock = PlacementLock::shared(state_dir, LOCK_PATIENCE)?;
        let mut notes = Vec::new();
        let checkpoint = match Checkpoint::read(&lock, state_dir)? {
            Found::Nothing => None,
            Found::Checkpoint(checkpoint) => Some(*checkpoint),
            Found::Damaged(aside) => {
                notes.push(aside.to_string());
                None
            }
        };
        let refused = checkpoint
            .as_ref()
            .and_then(|checkpoint| checkpoint.assignments.refused.get(pod));
        if let Some(reason) = refused {
            return Err(PlacementError::Refused {
                pod: pod.clone(),
                reason: reason.clone(),
            });
        }
        let usable = match checkpoint {
            Some(_) => usable_cpus(host, mounts, cgroup_root)?.0,
            None => CpuSet::EMPTY,
        };
        Ok(Self {
            lock,
            pod: pod.clone(),
            checkpoint,
            usable,
            notes,
        })
    }

    /// What is to be told to whoever starts the container.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether this leave still counts. One that does not is to be asked for again: the agent has not waited for it,
    /// and has placed the pods anew. To be asked once the process is in its cgroup.
    ///
    /// # Errors
    /// [`PlacementError`] when the lock file cannot be looked at.
    pub fn is_current(&self) -> Result<bool, PlacementError> {
        Ok(self.lock.is_current()?)
    }

    /// Whether CPUs or memory are placed here, so that the container needs a cpuset.
    pub fn places(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Takes the CFS quota out of who has exclusive CPUs.
    pub fn free_of_quota(
        &self,
        container: &str,
        of_pod: &mut CgroupConfig,
        of_container: &mut CgroupConfig,
    ) {
        let Some(checkpoint) = &self.checkpoint else {
            return;
        };
        let free = |config: &mut CgroupConfig| {
            if config.cpu_quota_us.is_some() {
                config.cpu_quota_us = Some(QUOTA_UNLIMITED);
            }
        };
        if checkpoint.frees_pod(&self.pod) {
            free(of_pod);
        }
        if checkpoint.frees_container(&self.pod, container) {
            free(of_container);
        }
    }

    /// Writes the container's CPUs and NUMA nodes. No process is in its cgroup yet, so that no memory has to move.
    ///
    /// # Errors
    /// [`PlacementError::Cpuset`].
    pub fn place(
        &self,
        mounts: &CgroupMounts,
        cgroup: &CgroupPath,
        container: &str,
    ) -> Result<(), PlacementError> {
        let Some(checkpoint) = &self.checkpoint else {
            return Ok(());
        };
        let cpuset = Cpuset::at(mounts, cgroup)?;
        let cpus = checkpoint.starts_on(&self.pod, container, self.usable);
        // Nothing of the pool can be used any more: until the agent has planned anew, anything is better than not to
        // start.
        let others = self.usable - checkpoint.assignments.exclusive();
        let choices = [cpus, others, self.usable];
        let cpus = choices.into_iter().find(|cpus| !cpus.is_empty());
        cpuset.set_cpus(cpus.unwrap_or(self.usable))?;
        match checkpoint.assignments.nodes(&self.pod, container) {
            Some(nodes) => cpuset.set_mems(nodes)?,
            None => cpuset.inherit_mems()?,
        };
        Ok(())
    }
}
