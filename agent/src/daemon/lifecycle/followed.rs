//! Of which cgroups the kernel tells the processes that are born there: each pod has its share of the places.
//!
//! **Problem.** There are [`FOLLOWED_MAX`] places, and a pod may have 256 cgroups. With the lowest ids first, sixteen
//! such pods take all places, and no pod that comes later has one. **Approach.** The first cgroup of every pod comes
//! before the second of any, and so on. A pod's own cgroup is its first, then the older ones: making more pushes
//! nothing of others out. Pods that do not have all of theirs are looked at again and again, and only those.

use std::collections::BTreeSet;

use plimsoll_core::kube::pod_uid::PodUid;

use crate::pods::registry::Pods;

/// Cgroups whose processes are followed; those of further ones are found by reading `cgroup.procs`.
pub(super) const FOLLOWED_MAX: usize = 4096;

/// What is followed.
#[derive(Debug, Default)]
pub(super) struct Followed {
    /// [`Pods::cgroups_generation`] that this is of.
    generation: Option<u64>,
    pub(super) ids: BTreeSet<u64>,
    /// Pods of which some cgroup is not.
    pub(super) left_out: Vec<PodUid>,
}

impl Followed {
    /// Brings it up to date.
    pub(super) fn refresh(&mut self, pods: &Pods) {
        let generation = pods.cgroups_generation();
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        let mut ranked = Vec::new();
        for (at, (_, cgroups)) in pods.cgroups().enumerate() {
            let mut ids: Vec<u64> = cgroups.map(|cgroup| cgroup.id).collect();
            if let Some((_, below)) = ids.split_first_mut() {
                below.sort_unstable();
            }
            let ranks = ids.into_iter().enumerate();
            ranked.extend(ranks.map(|(rank, id)| (rank, id, at)));
        }
        ranked.sort_unstable();
        let places = ranked.len().min(FOLLOWED_MAX);
        let (followed, others) = ranked.split_at(places);
        self.ids = followed.iter().map(|(_, id, _)| *id).collect();
        let others: BTreeSet<usize> = others.iter().map(|(.., at)| *at).collect();
        let uids = pods.cgroups().map(|(uid, _)| uid).enumerate();
        let left_out = uids.filter(|(at, _)| others.contains(at));
        self.left_out = left_out.map(|(_, uid)| uid.clone()).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use super::*;
    use crate::host::CgroupPath;
    use crate::host::cgroup::tests::fake_v2;
    use crate::pods::kill::CGROUPS_PER_POD_MAX;

    fn make(dir: &Path) -> u64 {
        fs::create_dir_all(dir).unwrap();
        for file in ["cgroup.procs", "memory.current", "memory.stat"] {
            fs::write(dir.join(file), "").unwrap();
        }
        dir.metadata().unwrap().ino()
    }

    fn apply(pods: &mut Pods, uid: &PodUid) {
        let json = format!(
            r#"{{"metadata":{{"name":"{uid}","uid":"{uid}"}},"spec":{{"containers":[{{"name":"c"}}]}}}}"#
        );
        pods.apply(std::sync::Arc::new(serde_json::from_str(&json).unwrap()))
            .unwrap();
    }

    #[test]
    fn a_pod_that_comes_after_pods_of_many_cgroups_is_followed() {
        let (_dir, host) = fake_v2();
        let mut pods = Pods::new(
            host.clone(),
            host.cgroup_mounts().unwrap(),
            CgroupPath::default(),
        );
        let dir_of = |uid: &PodUid| {
            host.path("/sys/fs/cgroup/kubepods/besteffort")
                .join(format!("pod{uid}"))
        };
        let greedy: Vec<PodUid> = (0..17).map(|it| PodUid::new(format!("g{it}"))).collect();
        let mut followed = Followed::default();
        for (count, uid) in (1..).zip(&greedy) {
            make(&dir_of(uid));
            for index in 1..CGROUPS_PER_POD_MAX {
                make(&dir_of(uid).join(format!("c{index}")));
            }
            apply(&mut pods, uid);
            pods.refresh(uid).unwrap();
            followed.refresh(&pods);
            let wanted = (count * CGROUPS_PER_POD_MAX).min(FOLLOWED_MAX);
            assert_eq!(followed.ids.len(), wanted);
            assert_eq!(followed.left_out.is_empty(), count < 17, "{count}");
        }
        let (late, dir) = (PodUid::new("late"), dir_of(&PodUid::new("late")));
        let ids = [make(&dir), make(&dir.join("c")), make(&dir.join("c/inner"))];
        apply(&mut pods, &late);
        pods.refresh(&late).unwrap();
        followed.refresh(&pods);
        assert!(ids.iter().all(|id| followed.ids.contains(id)));
        assert_eq!(followed.ids.len(), FOLLOWED_MAX);
        assert!(!followed.left_out.is_empty() && !followed.left_out.contains(&late));
    }
}
