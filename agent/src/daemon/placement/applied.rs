//! How much of what is decided is so by now: what the runtime may be told (NRI).
//!
//! **Problem.** A container must not be made on CPUs that somebody else still runs on, and one that cannot be moved
//! must not keep all others out of their places. **Approach.** What the thread has carried out counts as a whole,
//! except on the CPUs where it has left somebody. Who is about to get others keeps those that it has and will have: the
//! runtime asks for containers that run too, when it changes their resources, and would move one on the shared pool
//! that is told of nothing.

use std::collections::BTreeMap;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::protocol::runtime_link::ContainerPlace;

use crate::act::placement::Occupied;

/// What is decided, and what was carried out.
#[derive(Debug, Default)]
pub(super) struct InForce {
    /// What the engine has decided last.
    decided: Option<Assignments>,
    /// What the thread has carried out last, except on the CPUs of `occupied`.
    applied: Option<Assignments>,
    /// Who could not be moved, and where it is.
    occupied: Vec<Occupied>,
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

    /// What was decided last has been carried out, except for these.
    pub(super) fn applied(&mut self, occupied: &[Occupied]) {
        let decided = self.decided.take();
        self.carried_out(decided.as_ref(), occupied);
        self.decided = decided;
    }

    /// In place of what was decided last, this has been carried out, except for these.
    pub(super) fn fell_back(&mut self, to: &Assignments, occupied: &[Occupied]) {
        self.carried_out(Some(to), occupied);
    }

    fn carried_out(&mut self, applied: Option<&Assignments>, occupied: &[Occupied]) {
        if self.applied.as_ref() != applied || self.occupied != occupied {
            self.applied = applied.cloned();
            self.occupied = occupied.to_vec();
            self.revision += 1;
        }
    }

    /// Nothing is any more: somebody else says where containers run. Where nothing could be done for another reason,
    /// what was carried out before is still so.
    pub(super) fn ended(&mut self) {
        if self.applied.take().is_some() {
            self.revision += 1;
        }
    }

    /// Where the runtime makes containers that have no CPUs of their own (NRI): not on CPUs that somebody is about to
    /// get, nor on those that somebody still has.
    pub(super) fn pool_of_new(&self, online: CpuSet) -> Option<CpuSet> {
        let (decided, applied) = (self.decided.as_ref()?, self.applied.as_ref()?);
        let both = decided.shared_pool & applied.shared_pool & online;
        let pool = decided.shared_pool & online;
        [both, pool].into_iter().find(|cpus| !cpus.is_empty())
    }

    /// Where the runtime makes the containers of a pod that hold something, and where those that run stay (NRI): once
    /// everybody else has left there.
    pub(super) fn places(&self, uid: &PodUid, online: CpuSet) -> BTreeMap<String, ContainerPlace> {
        let decided = self.decided.as_ref();
        let names = decided.and_then(|decided| decided.containers.get(uid));
        let names = names.into_iter().flat_map(BTreeMap::keys);
        let place = |name: &String| Some((name.clone(), self.place(uid, name, online)?));
        names.filter_map(place).collect()
    }

    fn place(&self, uid: &PodUid, name: &str, online: CpuSet) -> Option<ContainerPlace> {
        let (decided, applied) = (self.decided.as_ref()?, self.applied.as_ref()?);
        let cpus_in = |assignments: &Assignments| assignments.get(uid, name)?.cpus;
        let cpus = self.kept(uid, name, (cpus_in(decided), cpus_in(applied)), online);
        let nodes = applied.nodes(uid, name);
        // One that will be on other CPUs is to have its memory there.
        let stays = cpus.is_some() || nodes == decided.nodes(uid, name);
        let place = ContainerPlace {
            cpus: cpus.map(|cpus| cpus.to_string()),
            mems: nodes.filter(|_| stays).map(|nodes| nodes.to_string()),
        };
        (place != ContainerPlace::default()).then_some(place)
    }

    /// The CPUs that a container has for itself by now, and will have.
    fn kept(
        &self,
        uid: &PodUid,
        name: &str,
        (decided, applied): (Option<CpuSet>, Option<CpuSet>),
        online: CpuSet,
    ) -> Option<CpuSet> {
        let (decided, applied) = (decided?, applied?);
        let is_own = |who: &&Occupied| who.pod == *uid && who.container == name;
        let others = self.occupied.iter().filter(|who| !is_own(who));
        let others = others.fold(CpuSet::EMPTY, |all, who| all | who.cpus);
        let kept = (decided & applied & online) - others;
        // Others are to leave first, unless it is there already: then it keeps what it can.
        let is_there = decided != applied || self.occupied.iter().any(|who| is_own(&who));
        (!kept.is_empty() && (kept == decided || is_there)).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::placement::assignments::Assignment;
    use plimsoll_core::placement::memory::Block;
    use plimsoll_core::placement::numa_mask::NumaMask;

    use super::*;

    fn cpus(list: &str) -> CpuSet {
        CpuSet::parse(list).unwrap()
    }

    fn on(pod: &str, list: &str) -> Occupied {
        Occupied {
            pod: pod.into(),
            container: "main".to_owned(),
            cpus: cpus(list),
        }
    }

    #[test]
    fn a_container_that_is_resized_keeps_what_it_has() {
        let held = |list: &str, mib: u64| {
            let block = Block {
                nodes: NumaMask::of(1),
                resource: "memory".to_owned(),
                bytes: mib << 20,
            };
            let assignment = Assignment {
                cpus: Some(cpus(list)),
                memory: vec![block],
                ..Assignment::default()
            };
            Assignments {
                shared_pool: cpus("0-7") - cpus(list),
                containers: [("a".into(), [("main".to_owned(), assignment)].into())].into(),
                refused: BTreeMap::new(),
            }
        };
        let online = cpus("0-7");
        let place = |in_force: &InForce| {
            let mut places = in_force.places(&"a".into(), online);
            let place = places.remove("main")?;
            assert_eq!(place.mems.as_deref(), Some("1"), "it stays on its node");
            place.cpus
        };
        let mut in_force = InForce::default();
        in_force.decide(&held("2-3", 100));
        in_force.applied(&[]);
        // More memory, more CPUs, fewer of them: not carried out yet.
        for (decided, expected) in [("2-3", "2-3"), ("2-5", "2-3"), ("3", "3")] {
            in_force.decide(&held(decided, 200));
            assert_eq!(place(&in_force).as_deref(), Some(expected), "{decided}");
        }
        in_force.decide(&held("6-7", 200));
        assert_eq!(place(&in_force), None, "it has to leave where it is");
        // Somebody cannot be moved off what it is to get: it does not stand in its own way.
        in_force.decide(&held("2-5", 200));
        in_force.applied(&[on("b", "4"), on("a", "2-3")]);
        assert_eq!(place(&in_force).as_deref(), Some("2-3,5"));
        in_force.applied(&[on("a", "2-3")]);
        assert_eq!(place(&in_force).as_deref(), Some("2-5"));
        in_force.applied(&[on("b", "2-5"), on("a", "2-3")]);
        assert_eq!(place(&in_force), None);
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
        in_force.applied(&[on("somebody", "3")]);
        assert_eq!(placed(&in_force, "a"), None, "somebody is still there");
        assert_eq!(placed(&in_force, "b").as_deref(), Some("4-5"));
        assert_eq!(in_force.pool_of_new(online), Some(cpus("0-1")));
        in_force.applied(&[]);
        assert_eq!(placed(&in_force, "a").as_deref(), Some("2-3"));
        let revision = in_force.revision();
        in_force.applied(&[]);
        assert_eq!(in_force.revision(), revision, "it is the same again");
        in_force.ended();
        assert_eq!(placed(&in_force, "b"), None);
        assert_eq!(in_force.pool_of_new(online), None);
        assert_ne!(in_force.revision(), revision);
        // What is decided could not be kept, and what was before is so.
        let mut before = decided.clone();
        before.shared_pool = cpus("0-1,4-5");
        before.containers.remove(&PodUid::from("b"));
        in_force.fell_back(&before, &[]);
        assert_eq!(placed(&in_force, "a").as_deref(), Some("2-3"));
        assert_eq!(placed(&in_force, "b"), None);
        assert_eq!(in_force.pool_of_new(online), Some(cpus("0-1")));
        let revision = in_force.revision();
        in_force.fell_back(&before, &[]);
        assert_eq!(in_force.revision(), revision, "it is the same again");
    }
}
