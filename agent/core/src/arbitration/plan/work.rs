//! How much a cycle may search. Pods that are all different have to be looked at set by set, and many may wait: without a bound a cycle would take minutes.
//!
//! Half of the bound is for whoever comes first; half of that is for pods whose [turn](super::turns) it is, if there are any. The other half is shared out among the namespaces whose pods wait, so that one that makes its
//! searches long takes no more of it than its part.

/// How much is enough for a cycle.
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
    /// By namespace.
    own: Vec<u64>,
    pub(super) spent: u64,
}

impl Work {
    /// So much, where pods of these namespaces wait, and it is the turn of some.
    pub(super) fn new(most: u64, is_waiting: &[bool], has_turns: bool) -> Self {
        let waiting = is_waiting.iter().filter(|waits| **waits).count() as u64;
        let each = most / 2 / waiting.max(1);
        let in_turn = if has_turns { most / 4 } else { 0 };
        Self {
            in_turn,
            common: most / 2 - in_turn,
            own: is_waiting
                .iter()
                .map(|waits| if *waits { each } else { 0 })
                .collect(),
            spent: 0,
        }
    }

    /// How much a pod of the namespace may spend.
    pub(super) fn left(&self, namespace: usize, has_turn: bool) -> u64 {
        let in_turn = if has_turn { self.in_turn } else { 0 };
        in_turn + self.common + self.own[namespace]
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
        self.own[namespace] = self.own[namespace].saturating_sub(left);
    }
}
