//! When to look for memory that no cgroup is charged for.
//!
//! **Problem.** What waits in the queue of a socket is memory, and not of each kind of socket is it charged to a
//! cgroup: a pod without any capability had 750 MiB in 4,000 netlink sockets, and its cgroup 5 MiB. It was the last
//! that an eviction would take. The queues are listed, by network namespace, but to read the lists of all pods takes
//! milliseconds.
//! **Approach.** Such memory is neither free nor anonymous nor a file's. So what is none of these is followed, which
//! costs nothing, and the lists are read when that has moved by [`STEP_BYTES`]: at most every [`AGAIN_NS`], and less
//! often while the reason is another one (slab caches, compressed swap). While something is found they are read every
//! [`FOUND_AGAIN_NS`], and up to [`FOUND_AGAIN_MAX_NS`] while it stays the same, so that its end is seen.

use crate::model::event::NodeMemory;

/// A change of what is neither free nor anonymous nor a file's, after which to look, bytes.
pub const STEP_BYTES: u64 = 32 << 20;

/// Between two looks at least, nanoseconds.
pub const AGAIN_NS: u64 = 200_000_000;

/// After looks that found nothing at most, nanoseconds.
pub const AGAIN_MAX_NS: u64 = 1_600_000_000;

/// Between two looks while something is found, nanoseconds; twice as long each time that it is the same,
pub const FOUND_AGAIN_NS: u64 = 1_000_000_000;

/// and so long at most.
pub const FOUND_AGAIN_MAX_NS: u64 = 8_000_000_000;

/// What a look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookEnd {
    /// Nothing.
    Nothing,
    /// What the look before had found.
    Same,
    /// Something else.
    News,
}

/// Decides when to look.
#[derive(Debug, Clone, Default)]
pub struct UnchargedWatch {
    last: Option<Look>,
    /// After how long to look again at the earliest, nanoseconds.
    again_ns: u64,
    /// After how long to look again at what was found; `None`: nothing was.
    found_again_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    /// When it began, and then when it ended.
    at_ns: u64,
    /// As it began.
    other_bytes: u64,
}

impl UnchargedWatch {
    /// Whether to look now, given what the node has. If so, a look begins.
    pub fn begins(&mut self, now_ns: u64, node: &NodeMemory) -> bool {
        let other_bytes = other_bytes(node);
        let is_due = self.last.is_none_or(|last| {
            let since_ns = now_ns.saturating_sub(last.at_ns);
            let has_moved = other_bytes.abs_diff(last.other_bytes) >= STEP_BYTES;
            let is_old = self
                .found_again_ns
                .is_some_and(|again_ns| since_ns >= again_ns);
            (has_moved && since_ns >= self.again_ns) || is_old
        });
        if is_due {
            self.last = Some(Look {
                at_ns: now_ns,
                other_bytes,
            });
        }
        is_due
    }

    /// A look has ended. The time to the next one begins here: a pod decides how long a look takes.
    pub fn ended(&mut self, now_ns: u64, end: LookEnd) {
        if let Some(last) = &mut self.last {
            last.at_ns = now_ns;
        }
        let twice = |ns: u64, max_ns: u64| ns.saturating_mul(2).min(max_ns);
        (self.again_ns, self.found_again_ns) = match (end, self.found_again_ns) {
            (LookEnd::Nothing, _) => (twice(self.again_ns, AGAIN_MAX_NS).max(AGAIN_NS), None),
            (LookEnd::Same, Some(ns)) => (AGAIN_NS, Some(twice(ns, FOUND_AGAIN_MAX_NS))),
            (LookEnd::Same, None) | (LookEnd::News, _) => (AGAIN_NS, Some(FOUND_AGAIN_NS)),
        };
    }
}

/// What is neither free nor anonymous nor a file's.
fn other_bytes(node: &NodeMemory) -> u64 {
    node.capacity_bytes
        .saturating_sub(node.free_bytes)
        .saturating_sub(node.anon_bytes)
        .saturating_sub(node.file_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const S: u64 = 1_000_000_000;

    fn node(other_mib: u64) -> NodeMemory {
        NodeMemory {
            capacity_bytes: 1000 * MIB,
            free_bytes: (700 - other_mib) * MIB,
            anon_bytes: 200 * MIB,
            file_bytes: 100 * MIB,
            ..NodeMemory::default()
        }
    }

    #[test]
    fn a_node_at_rest_is_looked_at_once() {
        let mut watch = UnchargedWatch::default();
        assert!(watch.begins(S, &node(50)));
        watch.ended(S, LookEnd::Nothing);
        for at in 2..1000 {
            assert!(!watch.begins(at * S, &node(50 + at % 31)), "{at}");
        }
    }

    #[test]
    fn it_looks_when_the_kernel_takes_or_gives_back_a_step() {
        let mut watch = UnchargedWatch::default();
        assert!(watch.begins(S, &node(50)));
        watch.ended(S, LookEnd::Nothing);
        assert!(!watch.begins(2 * S, &node(81)));
        assert!(watch.begins(3 * S, &node(82)));
        watch.ended(3 * S, LookEnd::Nothing);
        assert!(watch.begins(6 * S, &node(50)));
    }

    #[test]
    fn other_reasons_cost_a_look_now_and_then() {
        let mut watch = UnchargedWatch::default();
        let mut looks = 0;
        for at in 0..1000 {
            if watch.begins(at * S / 100, &node(at % 2 * 100)) {
                looks += 1;
                watch.ended(at * S / 100, LookEnd::Nothing);
            }
        }
        // Ten seconds: after 0.2, 0.4, 0.8, and then every 1.6 s.
        assert!((8..=10).contains(&looks), "{looks}");
    }

    #[test]
    fn while_something_is_found_it_looks_every_second_and_soon_at_what_moves() {
        let mut watch = UnchargedWatch::default();
        assert!(watch.begins(S, &node(50)));
        watch.ended(S, LookEnd::News);
        assert!(!watch.begins(S + S / 2, &node(50)));
        assert!(watch.begins(2 * S, &node(50)));
        watch.ended(2 * S, LookEnd::News);
        assert!(!watch.begins(2 * S + AGAIN_NS - 1, &node(500)));
        assert!(watch.begins(2 * S + AGAIN_NS, &node(500)));
        watch.ended(2 * S + AGAIN_NS, LookEnd::Nothing);
        assert!(!watch.begins(60 * S, &node(500)));
    }

    #[test]
    fn a_look_that_takes_long_is_followed_by_a_rest() {
        let mut watch = UnchargedWatch::default();
        assert!(watch.begins(S, &node(50)));
        watch.ended(9 * S, LookEnd::News);
        assert!(!watch.begins(9 * S, &node(500)));
        assert!(watch.begins(9 * S + AGAIN_NS, &node(500)));
    }

    #[test]
    fn what_stays_the_same_is_looked_at_less_and_less() {
        let mut watch = UnchargedWatch::default();
        let looks = |watch: &mut UnchargedWatch, from_s: u64, mib: u64| {
            let mut at = Vec::new();
            for s in from_s..from_s + 30 {
                if watch.begins(s * S, &node(mib)) {
                    at.push(s - from_s);
                    let end = match at.len() {
                        1 => LookEnd::News,
                        _ => LookEnd::Same,
                    };
                    watch.ended(s * S, end);
                }
            }
            at
        };
        assert_eq!(looks(&mut watch, 1, 50), [0, 1, 3, 7, 15, 23]);
        // What moves is looked at at once.
        assert_eq!(looks(&mut watch, 31, 500), [0, 1, 3, 7, 15, 23]);
    }
}
