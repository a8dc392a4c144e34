//! Which cgroups have their processes followed, and what of the kernel's map is to be written.
//!
//! **Problem.** The map has an entry for each followed cgroup. One that has gone missing would be missing for good if
//! the agent went by what it has added; but to add all of them at every look is a system call for each cgroup of the
//! node, every few seconds, for nothing. **Approach.** What is new is added at once. Of the others a share is added
//! again at each look, and after [`SHARES`] looks all were: a minute at rest, as long as a pod waits for its own turn.
//! An entry that is there stays as it is.

use std::collections::BTreeSet;
use std::ops::Bound;

/// Looks in which every followed cgroup has been added again.
const SHARES: usize = 12;

/// The cgroups whose entries this agent has added, but for those that were removed with their cgroup.
#[derive(Debug, Default)]
pub(super) struct Followed {
    ids: BTreeSet<u64>,
    /// The last one that was added again.
    last: Option<u64>,
    /// The greatest one at the begin of this round. What comes later is added anyway, and prolongs no round.
    round_to: Option<u64>,
}

/// What is to be written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// To be taken away, ascending.
    pub(super) gone: Vec<u64>,
    /// To be added if it is not there.
    pub(super) add: Vec<u64>,
}

impl Followed {
    /// What is to be written so that exactly the `wanted` are followed. [`Followed::removed`] and [`Followed::added`]
    /// are to follow, for each.
    pub(super) fn due(&mut self, wanted: &BTreeSet<u64>) -> Due {
        let gone = self.ids.difference(wanted).copied().collect();
        let mut add: Vec<u64> = wanted.difference(&self.ids).copied().collect();
        if self.last >= self.round_to {
            (self.last, self.round_to) = (None, self.ids.last().copied());
        }
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let to = self.round_to.map_or(Bound::Unbounded, Bound::Included);
        let len = self.ids.len().div_ceil(SHARES);
        let share: Vec<u64> = self.ids.range((after, to)).take(len).copied().collect();
        self.last = if share.len() < len {
            self.round_to
        } else {
            share.last().copied()
        };
        add.extend(share.into_iter().filter(|id| wanted.contains(id)));
        Due { gone, add }
    }

    /// Its entry is not there any more.
    pub(super) fn removed(&mut self, id: u64) {
        self.ids.remove(&id);
    }

    /// Its entry is there.
    pub(super) fn added(&mut self, id: u64) {
        self.ids.insert(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel's map would have it.
    fn look(followed: &mut Followed, wanted: &BTreeSet<u64>, map: &mut BTreeSet<u64>) -> usize {
        let due = followed.due(wanted);
        let calls = due.gone.len() + due.add.len();
        for id in due.gone {
            map.remove(&id);
            followed.removed(id);
        }
        for id in due.add {
            map.insert(id);
            followed.added(id);
        }
        calls
    }

    #[test]
    fn what_is_new_is_added_at_once_and_what_is_gone_is_taken_away() {
        let (mut followed, mut map) = (Followed::default(), BTreeSet::new());
        for wanted in [1..5, 3..9, 0..0, 7..8] {
            let wanted: BTreeSet<u64> = wanted.collect();
            look(&mut followed, &wanted, &mut map);
            assert_eq!(map, wanted);
        }
    }

    #[test]
    fn an_entry_that_has_gone_missing_is_there_again_after_so_many_looks() {
        for count in [1, 11, 12, 13, 100, 1000] {
            let wanted: BTreeSet<u64> = (0..count).collect();
            let (mut followed, mut map) = (Followed::default(), BTreeSet::new());
            look(&mut followed, &wanted, &mut map);
            for missing in [0, count / 2, count - 1] {
                map.remove(&missing);
                for _ in 0..SHARES {
                    look(&mut followed, &wanted, &mut map);
                }
                assert_eq!(map, wanted, "{missing} of {count}");
            }
        }
    }

    /// Ids of cgroups only grow: whoever makes and removes enough of them at each look must not keep the others from
    /// their turn.
    #[test]
    fn cgroups_that_come_and_go_keep_no_other_from_its_turn() {
        let (mut followed, mut map) = (Followed::default(), BTreeSet::new());
        let window = |look: u64| (0..60).chain(100 + look * 20..160 + look * 20).collect();
        look(&mut followed, &window(0), &mut map);
        map.remove(&7);
        for at in 1..=2 * SHARES as u64 {
            look(&mut followed, &window(at), &mut map);
        }
        assert!(map.contains(&7));
    }

    #[test]
    fn a_look_at_rest_costs_a_share_of_the_calls() {
        let wanted: BTreeSet<u64> = (0..1000).collect();
        let (mut followed, mut map) = (Followed::default(), BTreeSet::new());
        assert_eq!(look(&mut followed, &wanted, &mut map), 1000);
        assert_eq!(look(&mut followed, &wanted, &mut map), 84);
    }
}
