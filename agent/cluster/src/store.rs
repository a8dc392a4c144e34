//! The pods of this node as the API shows them, and what has changed since the agent was told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::protocol::cluster_link::{PODS_BYTES_MAX, PODS_MAX};

use crate::pod::{NotTaken, SeenPod};

/// What the agent is to be told of a pod that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// Pods that made room for it: ended ones, or such as have not been started.
    pub displaced: Vec<PodUid>,
    /// The pod; `None` if the agent knows all that it reads of it.
    pub frame: Option<Arc<[u8]>>,
}

/// Pods that were not taken, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// No pods.
    pub garbage: u64,
    /// Too large for a frame, or for a line of the watch.
    pub too_large: u64,
    /// Of another node.
    pub other_node: u64,
    /// Beyond [`PODS_MAX`].
    pub too_many: u64,
    /// Taken without what cannot be read of them, or is too long ([`SeenPod::is_shortened`]).
    pub shortened: u64,
    /// Ended, and taken out again because a pod that has not ended needed the room.
    pub ended: u64,
}

/// The pods.
#[derive(Debug)]
pub struct Store {
    node: String,
    labels: bool,
    pods: BTreeMap<PodUid, SeenPod>,
    bytes: usize,
    /// UIDs of the list that is being read.
    listing: Option<BTreeSet<PodUid>>,
    is_listed: bool,
    /// Whether a pod was not taken, of the last list that is whole or since.
    lacks_some: bool,
    /// The same of the list that is being read.
    list_lacks_some: bool,
    /// What was not taken.
    pub dropped: Dropped,
}

impl Store {
    /// Empty. `labels`: whether the agent needs those of pods, for budgets.
    #[must_use]
    pub fn new(node: &str, labels: bool) -> Self {
        Self {
            node: node.to_owned(),
            labels,
            pods: BTreeMap::new(),
            bytes: 0,
            listing: None,
            is_listed: false,
            lacks_some: false,
            list_lacks_some: false,
            dropped: Dropped::default(),
        }
    }

    /// Whether there was a whole list.
    #[must_use]
    pub const fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Whether a pod that is not known is none of this node: all were listed, and none was left out.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.is_listed && !self.lacks_some
    }

    /// The pod of this UID.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&SeenPod> {
        self.pods.get(uid)
    }

    /// All, by UID.
    pub fn iter(&self) -> impl Iterator<Item = &SeenPod> {
        self.pods.values()
    }

    /// Whether a pod is in this namespace.
    #[must_use]
    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.pods.values().any(|pod| &*pod.namespace == namespace)
    }

    /// A list begins.
    pub fn list(&mut self) {
        self.listing = Some(BTreeSet::new());
        self.list_lacks_some = false;
    }

    /// The list is complete: the UIDs that are gone. Nothing is gone before that, however long a list takes.
    pub fn listed(&mut self) -> Vec<PodUid> {
        let Some(listed) = self.listing.take() else {
            return Vec::new();
        };
        self.is_listed = true;
        self.lacks_some = self.list_lacks_some;
        let gone = self.pods.keys().filter(|uid| !listed.contains(*uid));
        let gone: Vec<PodUid> = gone.cloned().collect();
        for uid in &gone {
            self.gone(uid);
        }
        gone
    }

    /// Reads an object of a list or of a watch.
    pub fn saw(&mut self, object: &[u8]) -> Change {
        match SeenPod::read(object, &self.node, self.labels) {
            Ok(pod) => {
                self.dropped.shortened += u64::from(pod.is_shortened);
                self.take(pod)
            }
            Err(why) => {
                self.left_out(why);
                // One that is known has not gone.
                let uid = SeenPod::uid_of(object).filter(|uid| self.pods.contains_key(uid));
                if let (Some(uid), Some(listing)) = (uid, &mut self.listing) {
                    listing.insert(uid);
                }
                Change::default()
            }
        }
    }

    /// A pod was not taken.
    pub const fn left_out(&mut self, why: NotTaken) {
        self.not_taken(why);
        if !matches!(why, NotTaken::OtherNode) {
            self.lacks();
        }
    }

    const fn lacks(&mut self) {
        self.lacks_some = true;
        self.list_lacks_some = true;
    }

    /// Counts what was not taken.
    pub const fn not_taken(&mut self, why: NotTaken) {
        match why {
            NotTaken::Garbage => self.dropped.garbage += 1,
            NotTaken::TooLarge => self.dropped.too_large += 1,
            NotTaken::OtherNode => self.dropped.other_node += 1,
        }
    }

    fn take(&mut self, pod: SeenPod) -> Change {
        let mut displaced = Vec::new();
        while !self.has_room_for(&pod) {
            let Some((uid, has_ended)) = self.least_needed(&pod) else {
                self.dropped.too_many += 1;
                self.lacks();
                return Change {
                    displaced,
                    frame: None,
                };
            };
            self.gone(&uid);
            if has_ended {
                self.dropped.ended += 1;
            } else {
                self.dropped.too_many += 1;
                self.lacks();
            }
            displaced.push(uid);
        }
        let known = self.pods.get(&pod.uid);
        let known_bytes = known.map_or(0, |known| known.frame.len());
        if let Some(listing) = &mut self.listing {
            listing.insert(pod.uid.clone());
        }
        let frame = pod.frame.clone();
        let is_new = known.is_none_or(|known| known.frame != frame);
        self.bytes = self.bytes - known_bytes + frame.len();
        self.pods.insert(pod.uid.clone(), pod);
        Change {
            displaced,
            frame: is_new.then_some(frame),
        }
    }

    fn has_room_for(&self, pod: &SeenPod) -> bool {
        let known = self.pods.get(&pod.uid);
        let known_bytes = known.map_or(0, |known| known.frame.len());
        (known.is_some() || self.pods.len() < PODS_MAX)
            && self.bytes - known_bytes + pod.frame.len() <= PODS_BYTES_MAX
    }

    /// The pod that makes room for another one, and whether it has ended. Whoever may create pods can leave ended ones
    /// on a node, and such as no kubelet accepts, as many as he likes: they keep no name from one that runs. Of those
    /// that have ended, one of which no eviction is told.
    fn least_needed(&self, other: &SeenPod) -> Option<(PodUid, bool)> {
        if other.phase.is_terminal() {
            return None;
        }
        let ended = self.pods.values().filter(|pod| pod.phase.is_terminal());
        if let Some(pod) = ended.min_by_key(|pod| pod.has_evicted_reason || pod.carries_eviction())
        {
            return Some((pod.uid.clone(), true));
        }
        let is_needed = |pod: &SeenPod| pod.has_started || pod.is_critical;
        let mut waiting = self.pods.values().filter(|_| is_needed(other));
        let waiting = waiting.find(|pod| !is_needed(pod))?;
        Some((waiting.uid.clone(), false))
    }

    /// It is gone. Returns whether it was known.
    pub fn gone(&mut self, uid: &PodUid) -> bool {
        let Some(pod) = self.pods.remove(uid) else {
            return false;
        };
        self.bytes -= pod.frame.len();
        true
    }

    /// The answer to a call shows a pod: `Some(false)` if it is another one than asked for. What the agent reads does
    /// not change by our own writes, and the watch brings it all the same: only what the reports read is taken.
    pub fn saw_in_answer(&mut self, uid: &PodUid, object: &[u8]) -> Option<bool> {
        let seen = SeenPod::read(object, &self.node, self.labels).ok()?;
        if seen.uid != *uid {
            return Some(false);
        }
        if let Some(known) = self.pods.get_mut(uid) {
            let frame = known.frame.clone();
            *known = SeenPod { frame, ..seen };
        }
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::api_pod;

    fn pod(uid: &str, version: &str) -> Vec<u8> {
        api_pod(uid, version).to_string().into_bytes()
    }

    #[test]
    fn only_what_decisions_read_goes_to_the_agent() {
        let mut store = Store::new("node-1", false);
        assert!(store.saw(&pod("u1", "1")).frame.is_some());
        // A heartbeat of the status.
        assert_eq!(store.saw(&pod("u1", "2")), Change::default());
        assert_eq!(&*store.get(&"u1".into()).unwrap().resource_version, "2");
    }

    #[test]
    fn nothing_is_gone_before_a_list_is_complete() {
        let mut store = Store::new("node-1", false);
        store.list();
        for uid in ["u1", "u2", "u3"] {
            store.saw(&pod(uid, "1"));
        }
        assert!(!store.is_listed());
        assert!(store.listed().is_empty() && store.is_listed());
        // A list that breaks off half-way, and the one after it.
        store.list();
        store.saw(&pod("u1", "1"));
        store.list();
        store.saw(&pod("u1", "1"));
        store.saw(&pod("u3", "1"));
        assert_eq!(store.iter().count(), 3);
        assert_eq!(store.listed(), ["u2".into()]);
        assert_eq!(SeenPod::uid_of(&pod("u3", "2")), Some("u3".into()));
        assert!(store.gone(&"u3".into()) && !store.gone(&"u3".into()));
        assert_eq!(store.bytes, store.get(&"u1".into()).unwrap().frame.len());
    }

    #[test]
    fn pods_are_bounded_and_what_is_beyond_is_counted() {
        let mut store = Store::new("node-1", false);
        for at in 0..PODS_MAX + 5 {
            store.saw(&pod(&format!("u{at}"), "1"));
        }
        store.saw(b"<html>");
        let mut other = api_pod("x", "1");
        other["spec"]["nodeName"] = "node-2".into();
        store.saw(other.to_string().as_bytes());
        let expected = Dropped {
            garbage: 1,
            too_large: 0,
            other_node: 1,
            too_many: 5,
            ended: 0,
            shortened: 0,
        };
        assert_eq!((store.iter().count(), store.dropped), (PODS_MAX, expected));
        // Those that are known may still change.
        assert_eq!(store.saw(&pod("u0", "2")), Change::default());
        assert_eq!(&*store.get(&"u0".into()).unwrap().resource_version, "2");
    }

    #[test]
    fn ended_pods_make_room_for_one_that_runs() {
        let mut store = Store::new("node-1", false);
        let ended = |uid: &str, reason: &str| {
            let mut pod = api_pod(uid, "1");
            pod["status"]["phase"] = "Failed".into();
            pod["status"]["reason"] = reason.into();
            pod.to_string().into_bytes()
        };
        store.saw(&ended("a", "Evicted"));
        for at in 1..PODS_MAX {
            store.saw(&ended(&format!("u{at}"), "OutOfcpu"));
        }
        // One that has ended displaces none.
        assert_eq!(store.saw(&ended("z", "OutOfcpu")), Change::default());
        let change = store.saw(&pod("runs", "1"));
        assert!(change.frame.is_some());
        assert_eq!(change.displaced, ["u1".into()]);
        assert!(store.get(&"a".into()).is_some() && store.get(&"u1".into()).is_none());
        assert!(!store.gone(&"u1".into()));
        assert_eq!((store.dropped.ended, store.dropped.too_many), (1, 1));
        let bytes: usize = store.iter().map(|pod| pod.frame.len()).sum();
        assert_eq!((store.iter().count(), store.bytes), (PODS_MAX, bytes));
    }

    /// Who may create pods can name this node in as many as he likes. No kubelet starts them.
    #[test]
    fn pods_that_never_start_keep_no_name_from_one_that_does() {
        let waiting = |uid: &str, priority: i32| {
            let mut pod = api_pod(uid, "1");
            pod["status"] = serde_json::json!({"phase": "Pending"});
            pod["spec"]["priority"] = priority.into();
            pod.to_string().into_bytes()
        };
        let mut store = Store::new("node-1", false);
        store.list();
        for at in 0..PODS_MAX {
            assert!(store.saw(&waiting(&format!("u{at:04}"), 0)).frame.is_some());
        }
        store.listed();
        assert!(store.is_complete());
        assert_eq!(store.saw(&waiting("more", 0)), Change::default());
        assert!(!store.is_complete(), "it may be there");
        let change = store.saw(&waiting("critical", 2_000_000_000));
        assert!(change.frame.is_some());
        assert_eq!(change.displaced, ["u0000".into()]);
        assert!(store.saw(&pod("runs", "1")).frame.is_some());
        // Those that run make room for nobody.
        assert_eq!(store.saw(&waiting("u0000", 0)), Change::default());
        assert!(store.get(&"runs".into()).is_some() && store.get(&"critical".into()).is_some());
        assert_eq!(
            (store.iter().count(), store.dropped.too_many),
            (PODS_MAX, 4)
        );
        // A list that has all of them again.
        store.list();
        assert!(!store.is_complete(), "it is not over");
        store.saw(&pod("runs", "2"));
        store.listed();
        assert!(store.is_complete());
    }
}
