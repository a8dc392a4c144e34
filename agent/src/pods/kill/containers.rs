//! Ending a pod's containers one by one, and nothing new in its cgroup: for pods that a kubelet runs.
//!
//! **Problem.** What ends in such a pod is started again, and a sandbox that is killed costs more than it frees
//! ([`crate::pods::sandbox`]). **Approach.** `cgroup.max.descendants` of the pod's cgroup: what is there stays, and no
//! container's cgroup can be made. Each container's first process is killed before that ([`super::thread`] says why),
//! and `cgroup.kill` of each container follows. All files are opened when the cgroups appear. v1 has neither file:
//! there the processes are signalled, and what comes later has to be killed again.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::spared::{Spared, is_monitors};
use super::thread::{Files, write_here};
use super::{KeptCgroup, KillThread, Member, What, Write, if_there, read_populated};
use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath, Controller, Version};
use crate::host::file::{ControlFile, FileError};

/// How many cgroups there may be below one.
pub const HOLD_FILE: &str = "cgroup.max.descendants";

/// What is open for a pod's containers.
#[derive(Debug)]
pub(super) struct Containers {
    /// The pod's directory in the unified tree.
    unified: Option<PathBuf>,
    usage_file: &'static str,
    open: Vec<Container>,
    spared: Arc<Spared>,
    /// `cgroup.kill` of each container that is not left alone.
    kills: Files,
    hold: Option<Files>,
}

#[derive(Debug)]
struct Container {
    name: Box<OsStr>,
    id: u64,
    kill: Option<Arc<ControlFile>>,
    events: Option<ControlFile>,
    usage: Option<ControlFile>,
    /// At the kill.
    usage_bytes: AtomicU64,
}

impl Containers {
    pub(super) fn new(mounts: &CgroupMounts, pod: &CgroupPath) -> Self {
        let memory = mounts.hierarchy_of(Controller::Memory);
        let unified = mounts.unified().filter(|unified| unified.has(pod));
        Self {
            unified: unified.map(|unified| unified.dir(pod)),
            usage_file: match memory.map(|memory| memory.version) {
                Ok(Version::V1) => "memory.usage_in_bytes",
                _ => "memory.current",
            },
            open: Vec::new(),
            spared: Arc::default(),
            kills: Arc::default(),
            hold: None,
        }
    }

    /// Opens what has come and closes what is gone: `dirs` are the containers' directories with their ids. Those that
    /// cannot be opened are tried again at the next look, and the first error is returned.
    pub(super) fn refresh<'dirs>(
        &mut self,
        dirs: impl Iterator<Item = (&'dirs Path, u64)>,
    ) -> Result<(), FileError> {
        let mut known = std::mem::take(&mut self.open);
        let mut failed = None;
        for (dir, id) in dirs {
            let Some(name) = dir.file_name() else {
                continue;
            };
            let same = known
                .iter()
                .position(|one| one.id == id && *one.name == *name);
            let container = match same {
                Some(at) => Ok(known.swap_remove(at)),
                None => self.opened(dir, name, id),
            };
            match container {
                Ok(container) => self.open.push(container),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let has_monitors = self.open.iter().any(|one| is_monitors(&one.name));
        if self.spared.has_monitors != has_monitors {
            self.spared = Arc::new(Spared {
                sandbox: self.spared.sandbox.clone(),
                has_monitors,
            });
        }
        self.gather_kills();
        failed.map_or(Ok(()), Err)
    }

    fn opened(&self, dir: &Path, name: &OsStr, id: u64) -> Result<Container, FileError> {
        let unified = self.unified.as_ref().map(|pod| pod.join(name));
        let in_unified = |file| unified.as_ref().map(|dir| dir.join(file));
        Ok(Container {
            name: name.into(),
            id,
            kill: if_there(in_unified("cgroup.kill").map(ControlFile::open_to_write))?
                .map(Arc::new),
            events: if_there(in_unified("cgroup.events").map(ControlFile::open))?,
            usage: if_there(Some(ControlFile::open(dir.join(self.usage_file))))?,
            usage_bytes: AtomicU64::new(0),
        })
    }

    pub(super) fn cgroups(&self) -> impl Iterator<Item = (&OsStr, u64)> {
        self.open
            .iter()
            .map(|container| (&*container.name, container.id))
    }

    /// This one is the sandbox's, and is left alone.
    pub(super) fn spare(&mut self, name: Option<&OsStr>) {
        if self.spared.sandbox.as_deref() != name {
            self.spared = Arc::new(Spared {
                sandbox: name.map(Into::into),
                has_monitors: self.spared.has_monitors,
            });
            self.gather_kills();
        }
    }

    /// A kill that waits for the thread already is known by its files: they are others only if the containers are.
    fn gather_kills(&mut self) {
        let kills: Vec<_> = self.ending().filter_map(|one| one.kill.clone()).collect();
        let is_same = |one: (&Arc<ControlFile>, &Arc<ControlFile>)| Arc::ptr_eq(one.0, one.1);
        if kills.len() != self.kills.len() || !kills.iter().zip(&*self.kills).all(is_same) {
            self.kills = kills.into();
        }
    }

    /// The sandbox's.
    pub(super) fn spared(&self) -> Option<&OsStr> {
        self.spared.sandbox.as_deref()
    }

    /// Whether the pod is killed and looked at by its containers: its sandbox is known, or a monitor would die with the
    /// pod. CRI-O makes no sandbox by default (`drop_infra_ctr`), so that there the monitors alone tell.
    pub(super) fn is_by_container(&self) -> bool {
        self.spared.is_any()
    }

    /// Whether this directory of the pod is left alone.
    pub(super) fn spares(&self, name: &OsStr) -> bool {
        self.spared.has(name)
    }

    fn ending(&self) -> impl Iterator<Item = &Container> {
        self.open.iter().filter(|one| !self.spares(&one.name))
    }

    /// Opens the file by which the pod is held; `None` where there is none. The ledger has it.
    ///
    /// # Errors
    /// When it is there and cannot be opened.
    pub(super) fn arm_hold(&mut self) -> Result<(), FileError> {
        if self.hold.is_some() {
            return Ok(());
        }
        let file = self.unified.as_ref().map(|dir| dir.join(HOLD_FILE));
        let file = if_there(file.map(ControlFile::open_to_write))?;
        self.hold = file.map(|file| Arc::from([Arc::new(file)]));
        Ok(())
    }

    pub(super) fn disarm_hold(&mut self) {
        self.hold = None;
    }

    /// Whether it is held, once that is written. Allocates nothing.
    pub(super) fn hold(&self, write: Write<'_>) -> Result<bool, FileError> {
        match &self.hold {
            None => Ok(false),
            Some(files) => write(files, What::Hold).map(|()| true),
        }
    }

    /// Where that file is.
    pub(super) fn hold_path(&self) -> Option<PathBuf> {
        self.unified.as_ref().map(|dir| dir.join(HOLD_FILE))
    }

    /// Keeps what each container uses now. Allocates nothing.
    pub(super) fn note_usage(&self) {
        for one in &self.open {
            // Only a message has it.
            let usage = one.usage.as_ref().map_or(Ok(0), ControlFile::read_u64);
            one.usage_bytes.store(usage.unwrap_or(0), Ordering::Relaxed);
        }
    }

    pub(super) fn usages(&self) -> impl Iterator<Item = (&OsStr, u64)> {
        let usage = |one: &Container| one.usage_bytes.load(Ordering::Relaxed);
        self.ending().map(move |one| (&*one.name, usage(one)))
    }

    /// `cgroup.kill` of each. Returns whether all were killed so; else their processes have to be signalled. Allocates
    /// nothing.
    pub(super) fn kill(&self, write: Write<'_>) -> Result<bool, FileError> {
        write(&self.kills, What::Kill)?;
        Ok(self.ending().all(|one| one.kill.is_some()))
    }

    /// Whether any has a process, as far as the unified tree says. Allocates nothing.
    pub(super) fn is_populated(&self) -> Result<bool, FileError> {
        for events in self.ending().filter_map(|one| one.events.as_ref()) {
            match read_populated(events) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

impl super::PodKill {
    /// For a pod that a kubelet runs.
    ///
    /// # Errors
    /// As for [`super::PodKill::open`].
    pub fn beside_kubelet(
        mut self,
        mounts: &CgroupMounts,
        pod: &CgroupPath,
    ) -> Result<Self, CgroupError> {
        self.beside = Some(Containers::new(mounts, pod));
        self.refresh_containers()?;
        Ok(self)
    }

    pub(super) fn refresh_containers(&mut self) -> Result<(), FileError> {
        let Some(containers) = &mut self.beside else {
            return Ok(());
        };
        let cgroups = self.members.iter().map(Member::cgroup);
        let direct = cgroups.filter(KeptCgroup::is_container);
        containers.refresh(direct.map(|cgroup| (cgroup.dir, cgroup.id)))?;
        self.spare_in_sweep();
        Ok(())
    }

    /// A sweep leaves the same alone.
    fn spare_in_sweep(&mut self) {
        let containers = self.beside.as_ref().filter(|one| one.is_by_container());
        self.sweep.spared = containers.map(|one| Arc::clone(&one.spared));
    }

    /// The cgroups in the pod's, as of the last refresh: name and id; none for a pod that no kubelet runs.
    pub fn container_cgroups(&self) -> impl Iterator<Item = (&OsStr, u64)> {
        self.beside.iter().flat_map(Containers::cgroups)
    }

    /// The sandbox's cgroup is left alone; `None`: it is not known, and the pod is killed as a whole unless it has
    /// CRI-O's monitors.
    pub fn spare(&mut self, name: Option<&OsStr>) {
        if let Some(containers) = &mut self.beside {
            containers.spare(name);
            self.spare_in_sweep();
        }
    }

    /// The sandbox's cgroup.
    pub fn spared(&self) -> Option<&OsStr> {
        self.beside.as_ref()?.spared()
    }

    /// The file by which the pod is held; `None` on v1, and for a pod that no kubelet runs.
    pub fn hold_path(&self) -> Option<PathBuf> {
        self.beside.as_ref()?.hold_path()
    }

    /// From now on the pod may be held: the ledger has the file. Not for the hot path.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn arm_hold(&mut self) -> Result<(), FileError> {
        self.beside.as_mut().map_or(Ok(()), Containers::arm_hold)
    }

    /// The ledger does not have the file any more.
    pub fn disarm_hold(&mut self) {
        if let Some(containers) = &mut self.beside {
            containers.disarm_hold();
        }
    }

    /// Lets nothing new start in the pod's cgroup. Returns whether it is held: not on v1, nor before
    /// [`super::PodKill::arm_hold`]. With a thread it is once that has written the file. Allocates nothing.
    ///
    /// # Errors
    /// The kernel's, of what is written here.
    pub fn hold(&self, thread: Option<&KillThread>) -> Result<bool, FileError> {
        let Some(containers) = &self.beside else {
            return Ok(false);
        };
        match thread {
            Some(thread) => containers.hold(&|files, what| thread.write(files, what)),
            None => containers.hold(&write_here),
        }
    }

    /// Keeps what each container uses now. Allocates nothing.
    pub fn note_usage(&self) {
        if let Some(containers) = &self.beside {
            containers.note_usage();
        }
    }

    /// What each container used then, by its directory's name.
    pub fn usages(&self) -> impl Iterator<Item = (&OsStr, u64)> {
        self.beside.iter().flat_map(Containers::usages)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::host::cgroup::tests::fake_v2;

    #[test]
    fn one_that_cannot_be_opened_costs_no_other_and_is_opened_later() {
        let (_dir, host) = fake_v2();
        let mounts = host.cgroup_mounts().unwrap();
        let pod = CgroupPath::new("kubepods/podx").unwrap();
        let pod_dir = host.path("/sys/fs/cgroup/kubepods/podx");
        let dirs = ["a", "b", "c"].map(|name| pod_dir.join(name));
        for dir in &dirs {
            fs::create_dir_all(dir).unwrap();
            for file in ["cgroup.kill", "cgroup.events", "memory.current"] {
                fs::write(dir.join(file), "").unwrap();
            }
        }
        let found = |number: usize| {
            let dirs = dirs[..number].iter();
            dirs.map(|dir| (&**dir, dir.metadata().unwrap().ino()))
        };
        let mut containers = Containers::new(&mounts, &pod);
        containers.refresh(found(1)).unwrap();
        // What cannot be written is a directory here.
        let refused = dirs[1].join("cgroup.kill");
        fs::remove_file(&refused).unwrap();
        fs::create_dir(&refused).unwrap();
        assert!(containers.refresh(found(3)).is_err());
        let names = |containers: &Containers| {
            let names = containers.cgroups().map(|(name, _)| name.to_owned());
            let mut names: Vec<_> = names.collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&containers), ["a", "c"]);
        fs::remove_dir(&refused).unwrap();
        fs::write(&refused, "").unwrap();
        containers.refresh(found(3)).unwrap();
        assert_eq!(names(&containers), ["a", "b", "c"]);
    }
}
