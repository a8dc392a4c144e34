//! Whether the kernel's OOM killer takes one process, a container, or a pod: `memory.oom.group` of cgroup v2.
//!
//! **Problem.** A container of several processes that loses one of them often goes on, broken; a pod that loses a
//! container too. The kubelet has one switch for the node, and that for containers only (`singleProcessOOMKill`;
//! kubernetes#117793). **Approach.** When a cgroup of a pod is seen for the first time: the pod's own gets 1 where
//! `podOOMGroup` is on; a container's gets 1, or 0 with `singleProcessOOMKill: true`
//! (`pkg/kubelet/kuberuntime/kuberuntime_container_linux.go` of 1.36). Cgroups that bear no container's name are a
//! runtime's, and left alone. The kernel takes the topmost cgroup with a 1, up to the one whose limit was hit
//! (`mem_cgroup_get_oom_group`, mm/memcontrol.c): a pod goes as a whole when the node runs out, or the pod meets its
//! own limit; a container that meets its limit goes alone.
//!
//! A container's value goes with its cgroup, as its limits do. A pod's is ours alone, so it is in the ledger, and put
//! back on exit.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use plimsoll_core::kube::pod_uid::PodUid;

use crate::host::cgroup::{CgroupMounts, Controller, Version};
use crate::host::file::{FileError, read_text, write_text};
use crate::host::ledger::{KnobError, Ledger};
use crate::pods::registry::Pods;

const FILE: &str = "memory.oom.group";
/// So many pods add a line each to the ledger; then the lines of those that have ended are taken out.
const FORGET_EVERY: u32 = 256;

/// Sets `memory.oom.group` of pods and containers.
#[derive(Debug)]
pub struct OomGroups {
    /// `None`: pods stay as they are.
    ledger: Option<Ledger>,
    single_process: bool,
    /// The cgroups that have been seen, by their ids.
    seen: BTreeMap<PodUid, Vec<u64>>,
    lines: u32,
}

impl OomGroups {
    /// `None` where memory is not on cgroup v2, which has no such file. With a ledger, pods are taken as a whole.
    pub fn new(
        mounts: &CgroupMounts,
        single_process: bool,
        ledger: Option<Ledger>,
    ) -> Option<Self> {
        let memory = mounts.hierarchy_of(Controller::Memory).ok()?;
        (memory.version == Version::V2).then(|| Self {
            ledger,
            single_process,
            seen: BTreeMap::new(),
            lines: 0,
        })
    }

    /// Sets what has appeared of a pod since the last time. Not for the hot path.
    ///
    /// # Errors
    /// The first file or ledger that cannot be written; it is not tried again. A cgroup that has vanished is no error.
    pub fn follow(&mut self, uid: &PodUid, pods: &Pods) -> Result<(), KnobError> {
        let Some(pod) = pods.pod(uid) else {
            return Ok(());
        };
        let mut result = Ok(());
        let mut found = Vec::new();
        let before = self.seen.remove(uid).unwrap_or_default();
        for cgroup in pods.cgroups_of(uid) {
            found.push(cgroup.id);
            if before.contains(&cgroup.id) {
                continue;
            }
            let is_named = || {
                let name = cgroup.container_name().and_then(OsStr::to_str);
                name.is_some_and(|name| pod.container(name).is_some())
            };
            let set = if cgroup.is_pods_own() {
                self.set_pod(cgroup.dir)
            } else if cgroup.is_container() && is_named() {
                self.set_container(cgroup.dir).map_err(KnobError::from)
            } else {
                Ok(())
            };
            match set {
                Err(error) if !error.is_vanished() => result = result.and(Err(error)),
                _ => {}
            }
        }
        self.seen.insert(uid.clone(), found);
        result
    }

    /// Forgets pods that are not wanted any more.
    pub fn retain(&mut self, pods: &Pods) {
        self.seen.retain(|uid, _| pods.contains(uid));
    }

    fn set_pod(&mut self, dir: &Path) -> Result<(), KnobError> {
        let Some(ledger) = &mut self.ledger else {
            return Ok(());
        };
        ledger.write(&dir.join(FILE), "1")?;
        self.lines += 1;
        if self.lines == FORGET_EVERY {
            self.lines = 0;
            ledger.forget_vanished()?;
        }
        Ok(())
    }

    fn set_container(&self, dir: &Path) -> Result<(), FileError> {
        let path = dir.join(FILE);
        let wanted = if self.single_process { "0" } else { "1" };
        if read_text(&path)?.trim_end() == wanted {
            return Ok(());
        }
        write_text(&path, wanted)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;

    use plimsoll_core::kube::pod::Pod;

    use super::*;
    use crate::host::HostRoot;
    use crate::host::cgroup::CgroupPath;

    struct Fake {
        dir: tempfile::TempDir,
        host: HostRoot,
        pods: Pods,
    }

    impl Fake {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path();
            fs::create_dir_all(root.join("proc/self")).unwrap();
            fs::write(
                root.join("proc/self/mounts"),
                "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            )
            .unwrap();
            let cgroups = root.join("sys/fs/cgroup");
            fs::create_dir_all(&cgroups).unwrap();
            fs::write(cgroups.join("cgroup.controllers"), "cpu memory\n").unwrap();
            let host = HostRoot::new(root);
            let mounts = host.cgroup_mounts().unwrap();
            let mut pods = Pods::new(host.clone(), mounts, CgroupPath::default());
            let pod: Pod = serde_json::from_str(
                r#"{"metadata":{"name":"p","uid":"u"},"spec":{"containers":[{"name":"main"}]}}"#,
            )
            .unwrap();
            pods.apply(Arc::new(pod.with_defaults())).unwrap();
            let fake = Self { dir, host, pods };
            for name in ["", "main", "main/inner", "0123abcd"] {
                fake.make(name);
            }
            fake
        }

        fn path(&self, name: &str) -> PathBuf {
            let pod = "sys/fs/cgroup/kubepods/besteffort/podu";
            self.dir.path().join(pod).join(name)
        }

        fn make(&self, name: &str) {
            let dir = self.path(name);
            fs::create_dir_all(&dir).unwrap();
            for (file, text) in [
                ("cgroup.procs", ""),
                ("cgroup.kill", ""),
                ("memory.current", "0\n"),
                ("memory.stat", "inactive_file 0\n"),
                (FILE, "0\n"),
            ] {
                fs::write(dir.join(file), text).unwrap();
            }
        }

        fn group(&self, name: &str) -> String {
            let text = fs::read_to_string(self.path(name).join(FILE)).unwrap();
            text.trim_end().to_owned()
        }

        fn follow(&mut self, groups: &mut OomGroups) {
            let uid = PodUid::from("u");
            self.pods.refresh(&uid).unwrap();
            groups.follow(&uid, &self.pods).unwrap();
        }

        fn groups(&self, single_process: bool, pods: bool) -> OomGroups {
            let mounts = self.host.cgroup_mounts().unwrap();
            let ledger = || Ledger::open(&self.host, self.dir.path().join("knobs")).unwrap();
            OomGroups::new(&mounts, single_process, pods.then(ledger)).unwrap()
        }

        fn all(&self) -> [String; 4] {
            ["", "main", "main/inner", "0123abcd"].map(|name| self.group(name))
        }
    }

    #[test]
    fn containers_are_taken_as_a_whole_as_the_kubelet_has_it() {
        let mut fake = Fake::new();
        let mut groups = fake.groups(false, false);
        fake.follow(&mut groups);
        assert_eq!(fake.all(), ["0", "1", "0", "0"]);
        // Once: what somebody sets afterwards stays.
        fs::write(fake.path("main").join(FILE), "0\n").unwrap();
        fake.follow(&mut groups);
        assert_eq!(fake.group("main"), "0");
    }

    #[test]
    fn with_single_process_kills_they_are_not() {
        let mut fake = Fake::new();
        fs::write(fake.path("main").join(FILE), "1\n").unwrap();
        let mut groups = fake.groups(true, false);
        fake.follow(&mut groups);
        assert_eq!(fake.all(), ["0", "0", "0", "0"]);
    }

    #[test]
    fn a_pod_is_taken_as_a_whole_on_request_and_put_back_at_the_end() {
        let mut fake = Fake::new();
        let mut groups = fake.groups(false, true);
        fake.follow(&mut groups);
        assert_eq!(fake.all(), ["1", "1", "0", "0"]);
        let mut ledger = Ledger::open(&fake.host, fake.dir.path().join("knobs")).unwrap();
        assert_eq!(ledger.forget_vanished().unwrap(), 0);
        assert_eq!(ledger.restore().unwrap().restored(), 1);
        assert_eq!(fake.all(), ["0", "1", "0", "0"]);
    }

    #[test]
    fn pods_that_have_ended_leave_no_lines() {
        let mut fake = Fake::new();
        let mut groups = fake.groups(false, true);
        fake.follow(&mut groups);
        fs::remove_dir_all(fake.path("")).unwrap();
        let path = fake.dir.path().join("knobs");
        let mut ledger = Ledger::open(&fake.host, &path).unwrap();
        assert_eq!(ledger.forget_vanished().unwrap(), 1);
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn v1_has_no_groups() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        fs::write(
            dir.path().join("proc/self/mounts"),
            "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n",
        )
        .unwrap();
        let mounts = HostRoot::new(dir.path()).cgroup_mounts().unwrap();
        assert!(OomGroups::new(&mounts, false, None).is_none());
    }
}
