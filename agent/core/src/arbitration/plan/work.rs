//! How much a cycle may search. Pods that are all different have to be looked at set by set, and many may wait: without
//! a bound a cycle would take minutes.
//!
//! Half of the bound is for whoever comes first. The other half is shared out among the namespaces whose pods wait, so
//! that one that makes its searches long takes no more of it than its part. Where it is the [turn](super::turns) of
//! some pods, they have as much as whoever comes first has else, and the latter half of that: a search that a cycle can
//! end is ended in its turn, whatever comes before it.

/// How much is enough for a cycle, and for one with turns a quarter more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    /// Sets of two and three that a cycle tries: less than half a second.
    pub(super) sets: u64,
    /// Pods that it looks at, to find out who could leave, and each time that one is added to a larger set.
    pub(super) steps: u64,
}

impl Default for Most {
    fn default() -> Self {
        Self {
            sets: 4 << 20,
            steps: 16 << 20,
        }
    }
}

/// What may be done still, and what was.
#[derive(Debug)]
pub(super) struct Work {
    /// For pods whose turn it is.
    in_turn: u64,
    common: u64,
    by_namespace: Vec<u64>,
    pub(super) spent: u64,
}

impl Work {
    /// So much, where pods of these namespaces wait, and it is the turn of some.
    pub(super) fn new(most: u64, is_waiting: &[bool], has_turns: bool) -> Self {
        let waiting = is_waiting.iter().filter(|waits| **waits).count() as u64;
        let each = most / 2 / waiting.max(1);
        let in_turn = if has_turns { most / 2 } else { 0 };
        Self {
            in_turn,
            common: most / 2 - in_turn / 2,
            by_namespace: is_waiting
                .iter()
                .map(|waits| if *waits { each } else { 0 })
                .collect(),
            spent: 0,
        }
    }

    /// How much a pod of the namespace may spend.
    pub(super) fn left(&self, namespace: usize, has_turn: bool) -> u64 {
        let in_turn = if has_turn { self.in_turn } else { 0 };
        in_turn + self.common + self.by_namespace[namespace]
    }

    /// So much was done for a pod of the namespace.
    pub(super) fn spend(&mut self, namespace: usize, has_turn: bool, done: u64) {
        self.spent += done;
        let mut left = done;
        let in_turn = if has_turn { self.in_turn } else { 0 };
        let parts = [in_turn, self.common].map(|part| {
            let taken = part.min(left);
            left -= taken;
            taken
        });
        self.in_turn -= parts[0];
        self.common -= parts[1];
        self.by_namespace[namespace] = self.by_namespace[namespace].saturating_sub(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a pod whose search is longer than its part of a cycle and shorter than a cycle would never be decided,
    /// where others come before it.
    #[test]
    fn in_its_turn_a_pod_has_as_much_as_whoever_comes_first_has_without_turns() {
        for waiting in [1, 2, 7, 1000] {
            let is_waiting = vec![true; waiting];
            let first = Work::new(1 << 20, &is_waiting, false).left(0, false);
            let mut work = Work::new(1 << 20, &is_waiting, true);
            // Others come before it and take all that they can.
            for namespace in 1..waiting {
                let all = work.left(namespace, false);
                work.spend(namespace, false, all);
            }
            assert!(work.left(0, true) >= first, "{waiting}");
        }
    }
}
