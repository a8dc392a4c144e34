//! Whether anybody places pods. Room that is made while the scheduler is away is room for nobody.
//!
//! Problem: the arbitrator sees a pod that does not start, and not why. After a minute it would take the hole for
//! missed, and make another one: with a scheduler that has died a pod is evicted for each pod that waits, twice.
//!
//! Approach: a scheduler that lives is seen to. It places pods, says of new ones why it cannot, and takes back a
//! nomination that was of no use. A hole that is free makes it try the pod for which it is, within its longest wait of
//! 10 s. So a hole that stays free without any sign from the scheduler is doubt, which ends with the next sign. A
//! scheduler of an early release may try and say nothing, so the doubt has an end, which comes later each time; and
//! while there was no sign for long, holes are made one after the other.

/// A hole that is free for so long without a sign is doubt: twice the longest time after which the scheduler tries a
/// pod again (`podMaxBackoffSeconds`).
const ANSWERS_MS: u64 = 20_000;
/// What happens together is seen so far apart at most: what was free with a sign just before was seen to be taken.
const TOGETHER_MS: u64 = 5_000;
/// A sign is worth so much: it says nothing any more about holes that are made later.
const LIVES_MS: u64 = 120_000;
/// Without a sign the next hole is begun so long after the one before: most victims have gone by then, and whether the
/// scheduler answers is known.
const ALONE_MS: u64 = 120_000;
/// So long the doubt lasts at most, the first one after a sign.
const DOUBT_MS: u64 = 600_000;
/// Each further one lasts twice as long, up to sixteen times.
const DOUBLINGS_MAX: u32 = 4;

/// What is known of the scheduler.
#[derive(Debug, Default)]
pub struct Scheduler {
    /// How many signs the store had counted.
    signs: u64,
    /// When the last one was seen.
    sign_ms: Option<u64>,
    /// Since when it is in doubt.
    silent_ms: Option<u64>,
    /// Holes that were free before say nothing: the doubt about them is over.
    asked_ms: u64,
    /// How many doubts have ended without a sign since the last one.
    ended: u32,
}

impl Scheduler {
    /// Looks at the number of signs so far, and at holes that are free: since when.
    pub fn look(&mut self, signs: u64, free_ms: impl IntoIterator<Item = u64>, mono_ms: u64) {
        if signs != self.signs {
            self.signs = signs;
            self.sign_ms = Some(mono_ms);
            self.silent_ms = None;
            self.ended = 0;
        }
        if let Some(since_ms) = self.silent_ms {
            if mono_ms >= since_ms + (DOUBT_MS << self.ended) {
                self.silent_ms = None;
                self.asked_ms = mono_ms;
                self.ended = (self.ended + 1).min(DOUBLINGS_MAX);
            }
            return;
        }
        let is_unanswered = |free_ms: u64| {
            free_ms >= self.asked_ms
                && mono_ms >= free_ms + ANSWERS_MS
                && self
                    .sign_ms
                    .is_none_or(|sign_ms| sign_ms + TOGETHER_MS < free_ms)
        };
        if free_ms.into_iter().any(is_unanswered) {
            self.silent_ms = Some(mono_ms);
        }
    }

    /// A hole is free, and nobody places pods.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        self.silent_ms.is_some()
    }

    /// Whether there was a sign that is worth something still.
    #[must_use]
    pub fn lives(&self, mono_ms: u64) -> bool {
        let sign_ms = self.sign_ms;
        sign_ms.is_some_and(|sign_ms| mono_ms < sign_ms + LIVES_MS)
    }

    /// Without one: whether another hole may be begun when the last one was begun at this time.
    #[must_use]
    pub fn may_begin(&self, begun_ms: Option<u64>, mono_ms: u64) -> bool {
        begun_ms.is_none_or(|begun_ms| mono_ms >= begun_ms + ALONE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_hole_without_a_sign_is_doubt_until_there_is_one() {
        let mut scheduler = Scheduler::default();
        scheduler.look(1, None, 1_000);
        scheduler.look(1, Some(6_000), 90_000);
        assert!(!scheduler.is_silent(), "the sign belongs to it");
        scheduler.look(1, Some(7_000), 26_999);
        assert!(!scheduler.is_silent());
        scheduler.look(1, Some(7_000), 27_000);
        assert!(scheduler.is_silent());
        // Also when the hole is given up.
        scheduler.look(1, None, 90_000);
        assert!(scheduler.is_silent());
        scheduler.look(2, None, 90_001);
        assert!(!scheduler.is_silent());
        // A pod that starts nowhere while others do is another matter.
        scheduler.look(3, Some(100_000), 110_000);
        scheduler.look(3, Some(100_000), 500_000);
        assert!(!scheduler.is_silent());
    }

    #[test]
    fn the_doubt_has_an_end_and_comes_back_with_the_next_hole() {
        let mut scheduler = Scheduler::default();
        let silent = |scheduler: &mut Scheduler, free_ms, ms| {
            scheduler.look(0, Some(free_ms), ms);
            scheduler.is_silent()
        };
        assert!(silent(&mut scheduler, 0, 20_000));
        assert!(silent(&mut scheduler, 0, 619_999));
        assert!(!silent(&mut scheduler, 0, 620_000));
        assert!(!silent(&mut scheduler, 0, 900_000), "the same hole");
        assert!(!silent(&mut scheduler, 700_000, 719_999));
        assert!(silent(&mut scheduler, 700_000, 720_000));
    }

    #[test]
    fn each_doubt_without_a_sign_lasts_twice_as_long_up_to_sixteen_times_and_a_sign_ends_that() {
        let mut scheduler = Scheduler::default();
        let lasts = |scheduler: &mut Scheduler, signs, from_ms: u64| {
            let free_ms = from_ms;
            scheduler.look(signs, [free_ms], from_ms + ANSWERS_MS);
            assert!(scheduler.is_silent());
            let mut ms = from_ms + ANSWERS_MS;
            while scheduler.is_silent() {
                ms += 1_000;
                scheduler.look(signs, [free_ms], ms);
            }
            (ms - from_ms - ANSWERS_MS) / 60_000
        };
        let (mut minutes, mut from_ms) = (Vec::new(), 0);
        for _ in 0..7 {
            minutes.push(lasts(&mut scheduler, 0, from_ms));
            from_ms += 100 * DOUBT_MS;
        }
        assert_eq!(minutes, [10, 20, 40, 80, 160, 160, 160]);
        scheduler.look(1, [], from_ms);
        assert_eq!(lasts(&mut scheduler, 1, from_ms + 60_000), 10);
    }

    #[test]
    fn a_sign_for_one_hole_says_nothing_of_a_later_one() {
        let mut scheduler = Scheduler::default();
        scheduler.look(1, [1_000], 2_000);
        // The scheduler ends. The pod of the first hole does not use it, for a reason of its own.
        scheduler.look(1, [1_000, 10_000], 29_999);
        assert!(!scheduler.is_silent());
        scheduler.look(1, [1_000, 10_000], 30_000);
        assert!(scheduler.is_silent());
    }

    #[test]
    fn without_a_sign_holes_are_begun_one_after_the_other() {
        let mut scheduler = Scheduler::default();
        assert!(scheduler.may_begin(None, 0));
        assert!(!scheduler.may_begin(Some(0), 119_999));
        assert!(scheduler.may_begin(Some(0), 120_000));
        assert!(!scheduler.lives(0));
        scheduler.look(1, None, 1_000);
        assert!(scheduler.lives(120_999) && !scheduler.lives(121_000));
    }
}
