//! How much a cycle may search. Pods that are all different have to be looked at set by set, and many may wait: without a bound a cycle would take minutes.
//!
//! Half of the bound is for whoever comes first. The other half is shared out among the namespaces whose pods wait, so that one that makes its searches long takes no more of it than its part.

/// Sets of two and three that a cycle tries at most: less than half a second.
const SETS_MAX: u64 = 4 << 20;

/// Pods that a cycle looks at at most, to find out who could leave, and each time that one is added to a larger set.
const STEPS_MAX: u64 = 16 << 20;

/// What may be done still, and what was.
#[derive(Debug)]
pub(super) struct Work {
    common: u64,
    /// By namespace.
    own: Vec<u64>,
    pub(super) spent: u64,
}

impl Work {
    /// Sets that are tried, where pods of these namespaces wait.
    pub(super) fn of_sets(is_waiting: &[bool]) -> Self {
        Self::new(SETS_MAX, is_waiting)
    }

    /// Pods that are looked at.
    pub(super) fn of_steps(is_waiting: &[bool]) -> Self {
        Self::new(STEPS_MAX, is_waiting)
    }

    fn new(most: u64, is_waiting: &[bool]) -> Self {
        let waiting = is_waiting.iter().filter(|waits| **waits).count() as u64;
        let each = most / 2 / waiting.max(1);
        Self {
            common: most / 2,
            own: is_waiting
                .iter()
                .map(|waits| if *waits { each } else { 0 })
                .collect(),
            spent: 0,
        }
    }

    /// How much a pod of the namespace may spend.
    pub(super) fn left(&self, namespace: usize) -> u64 {
        self.common + self.own[namespace]
    }

    /// So much was done for a pod of the namespace.
    pub(super) fn spend(&mut self, namespace: usize, done: u64) {
        let of_own = done.saturating_sub(self.common);
        self.common = self.common.saturating_sub(done);
        self.own[namespace] = self.own[namespace].saturating_sub(of_own);
        self.spent += done;
    }
}
