//! Cgroups that wait for a look, and whose turn it is: each pod's in turn, so that none keeps those of others waiting.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use plimsoll_core::kube::pod_uid::PodUid;

/// Ids of cgroups, by pod. Each is in it once, which its user sees to: no more than there are.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pods: BTreeMap<PodUid, VecDeque<u64>>,
    /// The pod that had its turn last.
    last: Option<PodUid>,
}

impl Queue {
    pub(super) fn push(&mut self, uid: &PodUid, id: u64) {
        match self.pods.get_mut(uid) {
            Some(ids) => ids.push_back(id),
            None => {
                self.pods.insert(uid.clone(), VecDeque::from([id]));
            }
        }
    }

    /// The next one, of the pod after the last.
    pub(super) fn pop(&mut self) -> Option<(PodUid, u64)> {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.pods.range((after, Bound::Unbounded)).next();
        let uid = next.or_else(|| self.pods.first_key_value())?.0.clone();
        let ids = self.pods.get_mut(&uid)?;
        let id = ids.pop_front();
        if ids.is_empty() {
            self.pods.remove(&uid);
        }
        self.last = Some(uid.clone());
        Some((uid, id?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Of that pod only these wait.
    pub(super) fn retain_of(&mut self, uid: &PodUid, is_wanted: impl Fn(u64) -> bool) {
        if let Some(ids) = self.pods.get_mut(uid) {
            ids.retain(|id| is_wanted(*id));
            if ids.is_empty() {
                self.pods.remove(uid);
            }
        }
    }

    pub(super) fn retain(&mut self, mut is_wanted: impl FnMut(&PodUid) -> bool) {
        self.pods.retain(|uid, _| is_wanted(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pod_has_its_turn() {
        let mut queue = Queue::default();
        let (a, b) = (PodUid::new("a"), PodUid::new("b"));
        for id in [9, 3, 7] {
            queue.push(&a, id);
        }
        queue.push(&b, 1);
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|it| it.1).collect();
        assert_eq!(order, [9, 1, 3, 7]);
        assert!(queue.is_empty());
        queue.push(&a, 2);
        assert_eq!(queue.pop(), Some((a, 2)), "from the first again");
    }
}
