//! Which pods are to be rescanned, and when.
//!
//! **Problem.** A rescan of a pod (its cgroups, their files, the scores of its processes) takes a tenth of a
//! millisecond, and there are hundreds of pods. To rescan all of them whenever a cgroup comes or goes anywhere is dear,
//! and any process that may make cgroups decides how often. **Approach.** A record names its cgroup: only the pod that
//! owns the cgroup is rescanned; cgroups of no pod cost nothing. To the others something may have happened of which no
//! record tells, so they have their turn: a share of them at each *routine* look, all of them within a minute. Where
//! records do not tell of everything, or some were lost, all are looked at. However often it is asked for, looking
//! takes at most a tenth of the loop's time.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::state::PodState;

use super::{Agent, now_ns};
use crate::host::clock::rest_until_ns;
use crate::pods::cgroup_worker::{Done, Report};
use crate::pods::kill::{CGROUP_PATH_BYTES_MAX, CGROUPS_PER_POD_MAX};
use crate::pods::registry::Pods;
use crate::record::journal::Journal;

/// Routine looks in which each pod has its turn: a minute, as often as its scores are reviewed.
const SHARES: usize = 12;
/// A routine look comes early by this part of its period at most.
const EARLY_SHARE: u64 = 16;
/// Changes of one pod that one look can find: its cgroup was replaced, and the new one has processes.
const CHANGES_MAX: usize = 2;

/// The pods that are to be looked at.
#[derive(Debug)]
pub(super) struct Rescans {
    all: bool,
    pods: BTreeSet<PodUid>,
    /// As soon as may be; else they wait for the next routine look.
    is_asked: bool,
    /// As soon as a thread has news.
    waits_for_news: bool,
    rest_until_ns: u64,
    routine_at_ns: u64,
    routine_period_ns: u64,
    /// The last pod that had its turn.
    last: Option<PodUid>,
}

impl Rescans {
    /// Rescans all pods now, then every `routine_period`.
    pub(super) fn new(routine_period: Duration) -> Self {
        Self {
            all: true,
            pods: BTreeSet::new(),
            is_asked: true,
            waits_for_news: false,
            rest_until_ns: 0,
            routine_at_ns: 0,
            routine_period_ns: u64::try_from(routine_period.as_nanos()).unwrap_or(u64::MAX),
            last: None,
        }
    }

    /// Later rescans are this far apart.
    pub(super) fn set_period(&mut self, period: Duration) {
        self.routine_period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        self.routine_at_ns = self
            .routine_at_ns
            .min(super::now_ns().saturating_add(self.routine_period_ns));
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

    /// What was noted is to be looked at as soon as may be, and what goes with every look is to be done even if nothing
    /// was.
    pub(super) fn ask(&mut self) {
        self.is_asked = true;
    }

    /// The same as soon as a thread has news.
    pub(super) fn ask_with_news(&mut self) {
        self.waits_for_news = true;
    }

    /// A thread has news.
    pub(super) fn news(&mut self) {
        self.is_asked |= std::mem::take(&mut self.waits_for_news);
    }

    /// The loop is awake: a routine look that would wake it again soon comes now.
    pub(super) fn come_early(&mut self, now_ns: u64) {
        let soon_ns = now_ns.saturating_add(self.routine_period_ns / EARLY_SHARE);
        if self.routine_at_ns <= soon_ns {
            self.routine_at_ns = self.routine_at_ns.min(now_ns);
        }
    }

    /// When to look, nanoseconds: in the past if now.
    pub(super) fn at_ns(&self) -> u64 {
        let wanted_ns = if self.is_asked { 0 } else { self.routine_at_ns };
        wanted_ns.max(self.rest_until_ns)
    }

    /// Takes the pods to look at now, ascending. `is_reported`: records tell of all that happens to pods.
    pub(super) fn take(&mut self, now_ns: u64, pods: &Pods, is_reported: bool) -> Vec<PodUid> {
        let is_routine = self.routine_at_ns <= now_ns;
        let is_all = std::mem::take(&mut self.all) || !is_reported;
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
        self.rest_until_ns = rest_until_ns(began_ns, ended_ns);
    }
}

impl Agent {
    pub(super) fn rescan_pod(&mut self, uid: &PodUid) {
        for _ in 0..CHANGES_MAX {
            match self.pods.refresh(uid) {
                Ok(Some(change)) => self.changed(change),
                Ok(None) => break,
                Err(error) => {
                    self.rescans.note(uid);
                    self.warn_of_pod(uid, error);
                    break;
                }
            }
        }
        if self.pods.is_searched(uid) {
            self.rescans.note(uid);
            self.rescans.ask();
        }
        if self.pods.is_searched_by_thread(uid) {
            self.rescans.note(uid);
            self.rescans.ask_with_news();
        }
        if self.pods.note_more_cgroups(uid) {
            self.warn_of_pod(
                uid,
                format_args!(
                    "has more than {CGROUPS_PER_POD_MAX} cgroups, or one whose path is longer than {CGROUP_PATH_BYTES_MAX} bytes; processes in the others keep their oom_score_adj, \
                     and an eviction ends them too; look for what makes cgroups inside of its containers (reported once)"
                ),
            );
        }
        // It was given up as stuck, and has ended after all: nothing else comes back to it.
        let is_leaving = |pod: &PodState| pod.leaving.is_some();
        if self.pods.is_done(uid) && !self.engine.state().pods.get(uid).is_some_and(is_leaving) {
            self.left(uid);
        }
    }

    /// A pod has left: see [`Pods::left`].
    pub(super) fn left(&mut self, uid: &PodUid) {
        if let Err(error) = self.pods.left(uid) {
            self.warn_of_pod(
                uid,
                format_args!("its cgroups stay: {error}; remove them when nothing runs there"),
            );
        }
    }

    /// What the thread for cgroups could not do.
    pub(super) fn report_cgroup_work(&mut self) {
        while let Some(Report { uid, done }) = self.pods.worker().and_then(|worker| worker.report())
        {
            match done {
                Done::Removed {
                    failure: Some(error),
                    ..
                } => self.warn_of_pod(&uid, error),
                Done::Removed { directories, .. } => {
                    tracing::debug!(%uid, directories, "cgroups were removed");
                }
                Done::Ended(Ok(ended)) if ended.is_empty => {
                    tracing::debug!(%uid, ?ended, "processes beyond the known cgroups were ended");
                    self.rescans.note(&uid);
                    self.rescans.ask();
                }
                Done::Ended(Ok(ended)) => self.warn_of_pod(
                    &uid,
                    format_args!(
                        "processes are left in its cgroups after {} walks with {} SIGKILLs",
                        ended.walks, ended.signals
                    ),
                ),
                Done::Ended(Err(error)) => self.warn_of_pod(&uid, error),
            }
        }
    }

    /// What can wait: new and gone cgroups of the pods that are to be looked at, the pressure ring, counts of lost
    /// records. `reports_cgroups`: records report cgroups that come and go.
    ///
    /// Between any two pods urgent work comes first: looking at all of a hundred pods takes longer than an eviction may
    /// wait.
    pub(super) fn rescan(&mut self, reports_cgroups: bool) -> Result<()> {
        let began_ns = now_ns();
        self.follow_kubelet_tree();
        let is_reported = reports_cgroups && self.follows_processes();
        for uid in self.rescans.take(began_ns, &self.pods, is_reported) {
            self.rescan_pod(&uid);
            self.keep_pod(&uid);
            self.interrupt()?;
        }
        self.follow_processes();
        self.look_for_unseen_pods(began_ns);
        self.rescan_features();
        self.report_limits()?;
        self.report_folded_oom_kills();
        self.report_lost_records();
        self.report_left_out_warnings();
        if let Some(error) = self.journal.as_mut().and_then(Journal::take_error) {
            self.warn(error.to_string());
        }
        self.rescans.done(began_ns, now_ns());
        Ok(())
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
        let mut rescans = Rescans::new(Duration::from_secs(5));
        assert_eq!(rescans.at_ns(), 0);
        assert_eq!(rescans.take(SECOND, &pods, true), uids(&["a", "b", "c"]));
        assert_eq!(rescans.at_ns(), 6 * SECOND);
        rescans.note(&PodUid::new("b"));
        assert_eq!(rescans.at_ns(), 6 * SECOND, "noted, not asked for");
        rescans.ask();
        assert_eq!(rescans.at_ns(), 0);
        assert_eq!(rescans.take(2 * SECOND, &pods, true), uids(&["b"]));
        assert_eq!(rescans.at_ns(), 6 * SECOND, "the routine keeps its time");
    }

    #[test]
    fn a_routine_look_comes_a_little_early_when_the_loop_is_awake_anyway() {
        let pods = pods(&["a"]);
        let mut rescans = Rescans::new(Duration::from_secs(5));
        rescans.take(0, &pods, true);
        rescans.come_early(4 * SECOND);
        assert_eq!(rescans.at_ns(), 5 * SECOND, "not much too early");
        rescans.come_early(5 * SECOND - SECOND / 4);
        assert_eq!(rescans.at_ns(), 5 * SECOND - SECOND / 4);
        rescans.come_early(6 * SECOND);
        assert_eq!(rescans.at_ns(), 5 * SECOND - SECOND / 4, "never later");
    }

    #[test]
    fn a_routine_look_takes_a_share_and_whatever_was_noted() {
        let pods = pods(&["a", "b", "c"]);
        let mut rescans = Rescans::new(Duration::from_secs(5));
        rescans.take(0, &pods, true);
        assert_eq!(rescans.take(5 * SECOND, &pods, true), uids(&["a"]));
        rescans.note(&PodUid::new("c"));
        assert_eq!(rescans.take(10 * SECOND, &pods, true), uids(&["b", "c"]));
        assert_eq!(rescans.take(15 * SECOND, &pods, true), uids(&["c"]));
        assert_eq!(rescans.take(20 * SECOND, &pods, true), uids(&["a"]));
    }

    #[test]
    fn where_records_do_not_tell_all_are_looked_at() {
        let pods = pods(&["a", "b"]);
        let mut rescans = Rescans::new(Duration::from_millis(500));
        rescans.take(0, &pods, false);
        assert_eq!(rescans.take(SECOND, &pods, false), uids(&["a", "b"]));
        rescans.take(SECOND, &pods, true);
        rescans.note_all();
        rescans.note(&PodUid::new("a"));
        rescans.ask();
        assert_eq!(rescans.take(SECOND, &pods, true), uids(&["a", "b"]));
        assert_eq!(rescans.take(SECOND, &pods, true), uids(&[]));
    }

    #[test]
    fn looking_takes_a_tenth_of_the_time() {
        const MS: u64 = 1_000_000;
        let mut rescans = Rescans::new(Duration::from_secs(5));
        rescans.take(1000 * MS, &pods(&[]), true);
        rescans.done(1000 * MS, 1007 * MS);
        rescans.ask();
        assert_eq!(rescans.at_ns(), 1070 * MS);
    }
}
