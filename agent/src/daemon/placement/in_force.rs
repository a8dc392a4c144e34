//! How much of what is decided is so by now: what the runtime may be told (NRI).
//!
//! **Problem.** A container must not be made on CPUs that somebody else still runs on, and one that cannot be moved must not keep all others out of their places.
//! **Approach.** What the thread has carried out counts as a whole, except on the CPUs where it has left somebody.

use std::collections::BTreeMap;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::runtime_link::ContainerPlace;
use plimsoll_core::placement::assignments::{Assignment, Assignments};
use plimsoll_core::placement::cpu_set::CpuSet;

/// What is decided, and what was carried out.
#[derive(Debug, Default)]
pub(super) struct InForce {
    /// What the engine has decided last.
    decided: Option<Assignments>,
    /// What the thread has carried out last, except on the CPUs of `occupied`.
    applied: Option<Assignments>,
    /// CPUs on which somebody is who could not be moved.
    occupied: CpuSet,
    /// Goes up with each change of the others.
    revision: u64,
}

impl InForce {
    /// The engine has decided.
    pub(super) fn decide(&mut self, assignments: &Assignments) {
        self.decided = Some(assignments.clone());
        self.revision += 1;
    }

    /// What was decided last.
    pub(super) fn decided(&self) -> Option<&Assignments> {
        self.decided.as_ref()
    }

    /// Another number than before: what [`Self::places`] and [`Self::pool_of_new`] say may be something else.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// What was decided last has been carried out, except on these CPUs.
    pub(super) fn applied(&mut self, occupied: CpuSet) {
        if self.applied == self.decided && self.occupied == occupied {
            return;
        }
        self.applied.clone_from(&self.decided);
        self.occupied = occupied;
        self.revision += 1;
    }

    /// In place of what was decided last, this has been carried out, except on these CPUs.
    pub(super) fn fell_back(&mut self, to: &Assignments, occupied: CpuSet) {
        if self.applied.as_ref() == Some(to) && self.occupied == occupied {
            return;
        }
        self.applied = Some(to.clone());
        self.occupied = occupied;
        self.revision += 1;
    }

    /// Nothing is any more: somebody else says where containers run. Where nothing could be done for another reason, what was carried out before is still so.
    pub(super) fn ended(&mut self) {
        if self.applied.take().is_some() {
            self.revision += 1;
        }
    }

    /// Where the runtime makes containers that have no CPUs of their own (NRI): not on CPUs that somebody is about to get, nor on those that somebody still
    /// has.
    pub(super) fn pool_of_new(&self, online: CpuSet) -> Option<CpuSet> {
        let (decided, applied) = (self.decided.as_ref()?, self.applied.as_ref()?);
        let both = decided.shared_pool & applied.shared_pool & online;
        let pool = decided.shared_pool & online;
        [both, pool].into_iter().find(|cpus| !cpus.is_empty())
    }

    /// Where the runtime makes the containers of a pod that hold something (NRI): once everybody else has left there.
    pub(super) fn places(&self, uid: &PodUid, online: CpuSet) -> BTreeMap<String, ContainerPlace> {
        let (Some(decided), Some(applied)) = (&self.decided, &self.applied) else {
            return BTreeMap::new();
        };
        let Some(of_pod) = decided.containers.get(uid) else {
            return BTreeMap::new();
        };
        let in_force = of_pod.iter().filter(|(name, assignment)| {
            applied.get(uid, name) == Some(*assignment)
                && assignment
                    .cpus
                    .is_none_or(|cpus| cpus.is_subset(&online) && cpus.is_disjoint(&self.occupied))
        });
        let place = |(name, assignment): (&String, &Assignment)| {
            let mems = decided.nodes(uid, name).map(|nodes| nodes.to_string());
            let cpus = assignment.cpus.map(|cpus| cpus.to_string());
            let is_any = cpus.is_none() && mems.is_none();
            (!is_any).then(|| (name.clone(), ContainerPlace { cpus, mems }))
        };
        in_force.filter_map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> CpuSet {
        CpuSet::parse(list).unwrap()
    }

    #[test]
    fn who_cannot_be_moved_keeps_only_its_own_cpus_from_others() {
        let one = |list: &str| {
            let assignment = Assignment {
                cpus: Some(cpus(list)),
                ..Assignment::default()
            };
            BTreeMap::from([("main".to_owned(), assignment)])
        };
        let decided = Assignments {
            shared_pool: cpus("0-1"),
            containers: BTreeMap::from([("a".into(), one("2-3")), ("b".into(), one("4-5"))]),
            refused: BTreeMap::new(),
        };
        let mut in_force = InForce::default();
        in_force.decide(&decided);
        let online = cpus("0-7");
        let placed = |in_force: &InForce, pod: &str| {
            let places = in_force.places(&pod.into(), online);
            places.get("main").and_then(|place| place.cpus.clone())
        };
        assert_eq!(placed(&in_force, "a"), None, "nothing is carried out yet");
        assert_eq!(in_force.pool_of_new(online), None);
        in_force.applied(cpus("3"));
        assert_eq!(placed(&in_force, "a"), None, "somebody is still there");
        assert_eq!(placed(&in_force, "b").as_deref(), Some("4-5"));
        assert_eq!(in_force.pool_of_new(online), Some(cpus("0-1")));
        in_force.applied(CpuSet::EMPTY);
        assert_eq!(placed(&in_force, "a").as_deref(), Some("2-3"));
        let revision = in_force.revision();
        in_force.applied(CpuSet::EMPTY);
        assert_eq!(in_force.revision(), revision, "it is the same again");
        in_force.ended();
        assert_eq!(placed(&in_force, "b"), None);
        assert_eq!(in_force.pool_of_new(online), None);
        assert_ne!(in_force.revision(), revision);
        // What is decided could not be kept, and what was before is so.
        let mut before = decided.clone();
        before.shared_pool = cpus("0-1,4-5");
        before.containers.remove(&PodUid::from("b"));
        in_force.fell_back(&before, CpuSet::EMPTY);
        assert_eq!(placed(&in_force, "a").as_deref(), Some("2-3"));
        assert_eq!(placed(&in_force, "b"), None);
        assert_eq!(in_force.pool_of_new(online), Some(cpus("0-1")));
        let revision = in_force.revision();
        in_force.fell_back(&before, CpuSet::EMPTY);
        assert_eq!(in_force.revision(), revision, "it is the same again");
    }
}
