//! Which pods are to be looked at again, and when.
//!
//! **Problem.** A look at a pod (its cgroups, their files, the scores of its processes) takes a tenth of a millisecond, and there are hundreds
//! of pods. To look at all of them whenever a cgroup comes or goes anywhere is dear, and whoever may make cgroups decides how often.
//! **Approach.** A record names its cgroup: only the pod whose it is is looked at, and nobody's cgroup costs nothing. To the others something may
//! have happened of which no record tells, so they have their turn: a share of them at each *routine* look, all of them within a minute. Where
//! records do not tell of everything, or some were lost, all are looked at. However often it is asked for, looking takes at most a
//! tenth of the loop's time.

use std::collections::BTreeSet;
use std::time::Duration;

use plimsoll_core::model::units::PodUid;

use crate::pods::registry::Pods;

/// Routine looks in which each pod has its turn: a minute, as often as its scores are reviewed.
const SHARES: usize = 12;
/// Time without a look after one, as a multiple of what that took.
const REST_PER_LOOK: u64 = 9;
/// But not more than this.
const REST_MAX_NS: u64 = 1_000_000_000;

/// The pods that are to be looked at.
#[derive(Debug)]
pub(super) struct Looks {
    all: bool,
    pods: BTreeSet<PodUid>,
    /// As soon as may be; else they wait for the next routine look.
    is_asked: bool,
    rest_until_ns: u64,
    routine_at_ns: u64,
    routine_period_ns: u64,
    /// The last pod that had its turn.
    last: Option<PodUid>,
}

impl Looks {
    /// At all pods, at once; later `routine_period` apart.
    pub(super) fn new(routine_period: Duration) -> Self {
        Self {
            all: true,
            pods: BTreeSet::new(),
            is_asked: true,
            rest_until_ns: 0,
            routine_at_ns: 0,
            routine_period_ns: u64::try_from(routine_period.as_nanos()).unwrap_or(u64::MAX),
            last: None,
        }
    }

    /// Something has happened to a pod. Allocates nothing if it is known already.
    pub(super) fn note(&mut self, uid: &PodUid) {
        if !self.pods.contains(uid) {
            self.pods.insert(uid.clone());
        }
    }

    /// Something may have happened to any.
    pub(super) fn note_all(&mut self) {
        self.all = true;
    }

    /// What was noted is to be looked at as soon as may be, and what goes with every look is to be done even if nothing was.
    pub(super) fn ask(&mut self) {
        self.is_asked = true;
    }

    /// When to look, nanoseconds: in the past if now.
    pub(super) fn at_ns(&self) -> u64 {
        let wanted_ns = if self.is_asked { 0 } else { self.routine_at_ns };
        wanted_ns.max(self.rest_until_ns)
    }

    /// Takes the pods to look at now, ascending. `is_told`: records tell of all that happens to pods.
    pub(super) fn take(&mut self, now_ns: u64, pods: &Pods, is_told: bool) -> Vec<PodUid> {
        let is_routine = self.routine_at_ns <= now_ns;
        let is_all = std::mem::take(&mut self.all) || !is_told;
        let mut noted = std::mem::take(&mut self.pods);
        self.is_asked = false;
        if is_routine || is_all {
            self.routine_at_ns = now_ns.saturating_add(self.routine_period_ns);
        }
        if is_all {
            return pods.uids();
        }
        if is_routine {
            let share = pods.uids_after(self.last.as_ref(), pods.len().div_ceil(SHARES));
            self.last = share.last().cloned();
            noted.extend(share);
        }
        noted.into_iter().collect()
    }

    /// Those that were taken have been looked at.
    pub(super) fn done(&mut self, began_ns: u64, ended_ns: u64) {
        let took_ns = ended_ns.saturating_sub(began_ns);
        self.rest_until_ns = ended_ns + took_ns.saturating_mul(REST_PER_LOOK).min(REST_MAX_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::CgroupPath;
    use crate::host::cgroup::tests::fake_v2;

    const SECOND: u64 = 1_000_000_000;

    fn uids(names: &[&str]) -> Vec<PodUid> {
        names.iter().map(|name| PodUid::new(*name)).collect()
    }

    fn pods(names: &[&str]) -> Pods {
        let (_dir, host) = fake_v2();
        let mounts = host.cgroup_mounts().unwrap();
        let mut pods = Pods::new(host, mounts, CgroupPath::default());
        for name in names {
            let json = format!(
                r#"{{"metadata":{{"name":"{name}","uid":"{name}"}},"spec":{{"containers":[{{"name":"c"}}]}}}}"#
            );
            let pod = serde_json::from_str(&json).unwrap();
            pods.apply(std::sync::Arc::new(pod)).unwrap();
        }
        pods
    }

    #[test]
    fn all_first_and_then_those_to_which_something_happened() {
        let pods = pods(&["a", "b", "c"]);
        let mut looks = Looks::new(Duration::from_secs(5));
        assert_eq!(looks.at_ns(), 0);
        assert_eq!(looks.take(SECOND, &pods, true), uids(&["a", "b", "c"]));
        assert_eq!(looks.at_ns(), 6 * SECOND);
        looks.note(&PodUid::new("b"));
        assert_eq!(looks.at_ns(), 6 * SECOND, "noted, not asked for");
        looks.ask();
        assert_eq!(looks.at_ns(), 0);
        assert_eq!(looks.take(2 * SECOND, &pods, true), uids(&["b"]));
        assert_eq!(looks.at_ns(), 6 * SECOND, "the routine keeps its time");
    }

    #[test]
    fn a_routine_look_takes_a_share_and_whatever_was_noted() {
        let pods = pods(&["a", "b", "c"]);
        let mut looks = Looks::new(Duration::from_secs(5));
        looks.take(0, &pods, true);
        assert_eq!(looks.take(5 * SECOND, &pods, true), uids(&["a"]));
        looks.note(&PodUid::new("c"));
        assert_eq!(looks.take(10 * SECOND, &pods, true), uids(&["b", "c"]));
        assert_eq!(looks.take(15 * SECOND, &pods, true), uids(&["c"]));
        assert_eq!(looks.take(20 * SECOND, &pods, true), uids(&["a"]));
    }

    #[test]
    fn where_records_do_not_tell_all_are_looked_at() {
        let pods = pods(&["a", "b"]);
        let mut looks = Looks::new(Duration::from_millis(500));
        looks.take(0, &pods, false);
        assert_eq!(looks.take(SECOND, &pods, false), uids(&["a", "b"]));
        looks.take(SECOND, &pods, true);
        looks.note_all();
        looks.note(&PodUid::new("a"));
        looks.ask();
        assert_eq!(looks.take(SECOND, &pods, true), uids(&["a", "b"]));
        assert_eq!(looks.take(SECOND, &pods, true), uids(&[]));
    }

    #[test]
    fn looking_takes_a_tenth_of_the_time() {
        const MS: u64 = 1_000_000;
        let mut looks = Looks::new(Duration::from_secs(5));
        looks.take(1000 * MS, &pods(&[]), true);
        looks.done(1000 * MS, 1007 * MS);
        looks.ask();
        assert_eq!(looks.at_ns(), 1070 * MS);
        // A loop that was held up by something else.
        looks.done(2000 * MS, 9000 * MS);
        assert_eq!(looks.at_ns(), 10_000 * MS);
    }
}
