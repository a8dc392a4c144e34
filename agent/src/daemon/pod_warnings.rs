//! Which warnings about a pod are said.
//!
//! **Problem.** A pod may bring about the same failure at each look, hundreds of times in a second: the log is filled,
//! and what it had to say of others is gone. **Approach.** Each pod has a few warnings at hand, and another every
//! [`EVERY_NS`]. Those beyond are counted, and said by their number as soon as the pod may be spoken of again.

use std::collections::BTreeMap;

use plimsoll_core::kube::pod_uid::PodUid;

/// Warnings about one pod in a row.
const AT_HAND_MAX: u32 = 16;
/// One more.
const EVERY_NS: u64 = 10_000_000_000;
/// Pods that something was said of, before those that may say everything are forgotten.
const PODS_MAX: usize = 4096;

/// What each pod has said.
#[derive(Debug, Default)]
pub(super) struct PodWarnings {
    pods: BTreeMap<PodUid, Said>,
    left_out: u64,
}

#[derive(Debug, Clone, Copy)]
struct Said {
    at_hand: u32,
    /// When `at_hand` was last true.
    counted_ns: u64,
    left_out: u64,
}

impl Said {
    fn count_anew(&mut self, now_ns: u64) {
        let more = now_ns.saturating_sub(self.counted_ns) / EVERY_NS;
        self.counted_ns += more * EVERY_NS;
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        self.at_hand = self.at_hand.saturating_add(more).min(AT_HAND_MAX);
    }
}

impl PodWarnings {
    /// Whether a warning about this pod is said now. One that is not has been counted.
    pub(super) fn may_say(&mut self, uid: &PodUid, now_ns: u64) -> bool {
        if self.pods.len() >= PODS_MAX && !self.pods.contains_key(uid) {
            self.pods.retain(|_, said| {
                said.count_anew(now_ns);
                said.at_hand < AT_HAND_MAX || said.left_out > 0
            });
        }
        if self.pods.len() >= PODS_MAX && !self.pods.contains_key(uid) {
            self.left_out += 1;
            return false;
        }
        let said = self.pods.entry(uid.clone()).or_insert(Said {
            at_hand: AT_HAND_MAX,
            counted_ns: now_ns,
            left_out: 0,
        });
        said.count_anew(now_ns);
        // What was left out is said first.
        if said.left_out == 0 && said.at_hand > 0 {
            said.at_hand -= 1;
            return true;
        }
        said.left_out += 1;
        self.left_out += 1;
        false
    }

    /// How many warnings about which pods were left out, of those that may be spoken of again.
    pub(super) fn take_left_out(&mut self, now_ns: u64) -> Vec<(PodUid, u64)> {
        let mut left_out = Vec::new();
        for (uid, said) in self.pods.iter_mut().filter(|(_, said)| said.left_out > 0) {
            said.count_anew(now_ns);
            if said.at_hand > 0 {
                said.at_hand -= 1;
                left_out.push((uid.clone(), std::mem::take(&mut said.left_out)));
            }
        }
        left_out
    }

    /// All that were left out.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_warnings_about_one_pod_is_counted_and_said_by_its_number() {
        let (loud, quiet) = (PodUid::new("loud"), PodUid::new("quiet"));
        let mut warnings = PodWarnings::default();
        let said = (0..1000)
            .filter(|at| warnings.may_say(&loud, *at * 1_000_000))
            .count();
        assert_eq!(said, AT_HAND_MAX as usize);
        assert!(warnings.may_say(&quiet, 0), "another pod");
        let left_out = 1000 - u64::from(AT_HAND_MAX);
        assert_eq!(warnings.left_out(), left_out);
        assert!(warnings.take_left_out(EVERY_NS - 1).is_empty());
        assert!(!warnings.may_say(&loud, EVERY_NS), "that number first");
        assert_eq!(
            warnings.take_left_out(EVERY_NS),
            [(loud.clone(), left_out + 1)]
        );
        assert!(!warnings.may_say(&loud, EVERY_NS));
        assert_eq!(
            warnings.take_left_out(2 * EVERY_NS),
            [(loud.clone(), 1)],
            "once"
        );
        assert!(warnings.may_say(&loud, 3 * EVERY_NS));
        assert!(!warnings.may_say(&loud, 3 * EVERY_NS), "as it comes in");
    }

    #[test]
    fn no_more_pods_are_kept_than_fit() {
        let mut warnings = PodWarnings::default();
        let uid = |number: usize| PodUid::new(number.to_string());
        for number in 0..PODS_MAX {
            assert!(warnings.may_say(&uid(number), 0));
        }
        assert!(!warnings.may_say(&uid(PODS_MAX), 1), "all have just spoken");
        assert_eq!(warnings.left_out(), 1);
        assert!(warnings.may_say(&uid(PODS_MAX), EVERY_NS));
        assert_eq!(warnings.pods.len(), 1);
    }
}
