//! What the runtime has told of the containers that it made (NRI): their names, and whose cpuset another plugin has
//! set.
//!
//! **Problem.** The runtime asks once, when it makes a container: before the API has its id, and sometimes before the
//! pod is known at all. A container of another plugin's that is forgotten is placed like any other. **Approach.**
//! Everything is kept with its pod, also for pods that are not known yet, and goes with the pod. Where there is too
//! much of it, what is not there any more goes first.

use std::collections::{BTreeSet, VecDeque};

use plimsoll_core::kube::pod_uid::PodUid;

use crate::act::placement::answered::{Answered, AnsweredSet};
use crate::act::placement::kubelet_cgroups::Names;
use crate::act::placement::plugin_cpusets;
use crate::pods::registry::Pods;

/// Containers of one pod.
pub(super) const CONTAINERS_MAX: usize = 64;
/// Pods that are not known.
pub(super) const UNKNOWN_PODS_MAX: usize = 256;

/// A container that the runtime makes.
#[derive(Debug)]
pub(in crate::daemon) struct MadeContainer {
    pub(in crate::daemon) id: String,
    pub(in crate::daemon) name: String,
    /// Another plugin has set its cpuset.
    pub(in crate::daemon) is_foreign: bool,
    /// The set that it is made with, by our answer.
    pub(in crate::daemon) answered: Option<AnsweredSet>,
}

/// All that was told.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// Names by id, until the API lists them.
    pub(super) names: Names,
    /// Containers whose cpuset another plugin has set.
    pub(super) foreign: plugin_cpusets::Ids,
    /// What the runtime makes containers with, by our answers.
    pub(super) answered: Answered,
    /// Pods that were not known when a container of theirs was made, the first first.
    unknown: VecDeque<PodUid>,
    /// It was said that there are too many.
    is_said: bool,
    /// Goes up with each change of `foreign`.
    pub(super) revision: u64,
}

impl Made {
    /// Goes on with what an agent before has known.
    pub(super) fn new(foreign: plugin_cpusets::Ids) -> Self {
        Self {
            foreign,
            ..Self::default()
        }
    }

    /// The runtime makes a container. `running`: the ids of those that its pod has. Returns what people should know.
    pub(super) fn note(
        &mut self,
        uid: &PodUid,
        container: MadeContainer,
        is_known: bool,
        running: impl FnOnce() -> BTreeSet<String>,
    ) -> Option<String> {
        let MadeContainer {
            id,
            name,
            is_foreign,
            answered,
        } = container;
        let mut forgotten = None;
        if !is_known {
            forgotten = self.note_unknown(uid);
        }
        if is_foreign {
            let ids = self.foreign.entry(uid.clone()).or_default();
            if ids.len() >= CONTAINERS_MAX {
                let running = running();
                let gone = ids.iter().position(|id| !running.contains(id));
                if gone.is_none() {
                    forgotten = Some(uid.clone());
                }
                ids.remove(gone.unwrap_or(0));
            }
            ids.retain(|known| *known != id);
            ids.push(id.clone());
        }
        if is_foreign || forgotten.is_some() {
            self.revision += 1;
        }
        if let Some(answered) = answered {
            let of_pod = self.answered.entry(uid.clone()).or_default();
            if of_pod.len() >= CONTAINERS_MAX {
                // A look has seen what they were made with.
                of_pod.clear();
            }
            of_pod.insert(id.clone(), answered);
        }
        self.name(uid, id, name);
        let pod = forgotten.filter(|_| !std::mem::replace(&mut self.is_said, true))?;
        Some(format!(
            "pod {pod}: another NRI plugin sets the cpusets of more than {CONTAINERS_MAX} containers of a pod, or of {UNKNOWN_PODS_MAX} pods that only the runtime knows: \
             those that were made first are placed like any other (reported once)"
        ))
    }

    /// The container with this id is called so.
    pub(super) fn name(&mut self, uid: &PodUid, id: String, name: String) {
        let names = self.names.entry(uid.clone()).or_default();
        if names.len() >= CONTAINERS_MAX {
            // The API lists those that run, and one that runs on its own CPUs is known by them.
            names.clear();
        }
        names.insert(id, name);
    }

    /// Returns a pod whose containers of other plugins are forgotten for it.
    fn note_unknown(&mut self, uid: &PodUid) -> Option<PodUid> {
        if self.unknown.contains(uid) {
            return None;
        }
        self.unknown.push_back(uid.clone());
        if self.unknown.len() <= UNKNOWN_PODS_MAX {
            return None;
        }
        let first = self.unknown.pop_front()?;
        self.names.remove(&first);
        self.answered.remove(&first);
        self.foreign.remove(&first).map(|_| first)
    }

    /// What is of pods that have gone goes too. Before all pods `are_listed` nobody is gone.
    pub(super) fn retain(&mut self, pods: &Pods, are_listed: bool) {
        self.unknown.retain(|uid| !pods.contains(uid));
        let is_there = |uid: &PodUid| pods.contains(uid) || self.unknown.contains(uid);
        self.names.retain(|uid, _| is_there(uid));
        self.answered.retain(|uid, _| is_there(uid));
        let before = self.foreign.len();
        if are_listed {
            self.foreign.retain(|uid, _| is_there(uid));
        }
        if self.foreign.len() != before {
            self.revision += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::placement::numa_mask::NumaMask;
    use plimsoll_core::protocol::runtime_link::Adjustment;

    use super::*;
    use crate::host::cgroup::CgroupPath;
    use crate::host::cgroup::tests::fake_v2;

    fn made(made: &mut Made, uid: &str, id: usize, is_known: bool, running: &[&str]) -> bool {
        let container = MadeContainer {
            id: id.to_string(),
            name: "side".to_owned(),
            is_foreign: true,
            answered: None,
        };
        let running = || running.iter().map(|id| (*id).to_owned()).collect();
        let said = made.note(&uid.into(), container, is_known, running);
        said.is_some()
    }

    #[test]
    fn of_many_containers_those_that_run_are_kept() {
        let mut all = Made::default();
        // The first runs, and beside it another one is started again and again.
        for id in 0..3 * CONTAINERS_MAX {
            assert!(!made(&mut all, "a", id, true, &["0"]));
        }
        let ids = &all.foreign[&"a".into()];
        assert_eq!(ids.len(), CONTAINERS_MAX);
        let newest = (3 * CONTAINERS_MAX - 1).to_string();
        assert_eq!((&ids[0], ids.last()), (&"0".to_owned(), Some(&newest)));
        // All of them run.
        let ids = ids.clone();
        let running: Vec<&str> = ids.iter().map(String::as_str).collect();
        assert!(made(&mut all, "a", 1000, true, &running), "it is said");
        assert!(!made(&mut all, "a", 1001, true, &running), "once");
        assert_eq!(all.foreign[&"a".into()].len(), CONTAINERS_MAX);
    }

    #[test]
    fn what_is_of_a_pod_that_is_not_known_yet_stays_for_it() {
        let (_dir, host) = fake_v2();
        let mounts = host.cgroup_mounts().unwrap();
        let mut pods = Pods::new(host, mounts, CgroupPath::default());
        let mut all = Made::new([("gone".into(), vec!["1".to_owned()])].into());
        made(&mut all, "new", 2, false, &[]);
        let answered = AnsweredSet::of(&Adjustment {
            cpus: Some("2-3".to_owned()),
            mems: Some("1".to_owned()),
            oom_score_adj: None,
        });
        let container = MadeContainer {
            id: "3".to_owned(),
            name: "main".to_owned(),
            is_foreign: false,
            answered,
        };
        all.note(&"new".into(), container, false, BTreeSet::new);
        all.retain(&pods, false);
        assert_eq!(all.foreign.len(), 2);
        all.retain(&pods, true);
        assert_eq!(all.foreign.keys().collect::<Vec<_>>(), [&"new".into()]);
        let pod = r#"{"metadata":{"name":"new","uid":"new"},"spec":{"containers":[{"name":"c"}]}}"#;
        let pod = serde_json::from_str(pod).unwrap();
        pods.apply(std::sync::Arc::new(pod)).unwrap();
        all.retain(&pods, true);
        assert_eq!((all.foreign.len(), all.names.len()), (1, 1));
        let known = &all.answered[&"new".into()]["3"];
        assert_eq!(
            known.cpus.zip(known.mems).map(|it| (it.0.len(), it.1)),
            Some((2, NumaMask::of(1)))
        );
        // It has gone: pods that were known are not kept as unknown ones.
        pods.remove(&"new".into());
        all.retain(&pods, true);
        assert_eq!((all.foreign.len(), all.names.len()), (0, 0));
        assert!(all.answered.is_empty());
    }

    #[test]
    fn of_pods_that_nobody_knows_there_are_so_many() {
        let mut all = Made::default();
        for pod in 0..UNKNOWN_PODS_MAX {
            assert!(!made(&mut all, &format!("{pod:03}"), 1, false, &[]));
        }
        assert!(!made(&mut all, "000", 2, false, &[]), "it is among them");
        assert!(
            made(&mut all, "999", 1, false, &[]),
            "the first is forgotten"
        );
        assert!(!all.foreign.contains_key(&"000".into()));
        assert_eq!(all.foreign.len(), UNKNOWN_PODS_MAX);
        assert_eq!(all.names.len(), UNKNOWN_PODS_MAX);
    }
}
