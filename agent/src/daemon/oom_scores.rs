//! The `oom_score_adj` of the pods' processes, and whether the kernel's OOM killer takes processes, containers or pods.

use anyhow::Result;
use plimsoll_core::model::units::PodUid;

use super::{Agent, now_ns};

impl Agent {
    /// Processes that were put into a cgroup get their scores: those of one cgroup in each turn, so that urgent work comes first.
    pub(super) fn serve_newcomers(&mut self) {
        let began_ns = now_ns();
        if let Some(scores) = &mut self.oom_scores
            && scores.serve_at_ns().is_some_and(|at_ns| at_ns <= began_ns)
        {
            let mut failures = Vec::new();
            let of = scores.serve(began_ns, &mut |error| failures.push(error.to_string()));
            scores.served(began_ns, now_ns());
            for (uid, failure) in of
                .iter()
                .flat_map(|uid| failures.iter().map(move |one| (uid, one)))
            {
                self.warn_of_pod(uid, failure);
            }
        }
    }

    /// Makes a new plan of the order of OOM kills if it is time, and writes the scores that differ, a pod at a time: urgent work comes
    /// first.
    pub(super) fn order_oom_scores(&mut self) -> Result<()> {
        let (Some(order), Some(scores)) = (&mut self.oom_order, &mut self.oom_scores) else {
            return Ok(());
        };
        let changed = match order.plan_if_due(self.engine.state(), scores, now_ns()) {
            Ok(changed) => changed,
            Err(error) => {
                self.warn(format!("the order of OOM kills stays as it is: {error}"));
                return Ok(());
            }
        };
        for uid in changed {
            self.note_nri(&uid);
            self.keep_oom_scores(&uid);
            self.interrupt()?;
        }
        Ok(())
    }

    /// The OOM killer's groups follow a pod's cgroups.
    pub(super) fn keep_oom_groups(&mut self, uid: &PodUid) {
        if let Some(groups) = &mut self.oom_groups
            && let Err(error) = groups.follow(uid, &self.pods)
        {
            self.warn_of_pod(uid, error);
        }
    }

    /// Scores that are in the order of eviction become the kubelet's again.
    pub(super) fn put_back_oom_scores(&mut self) {
        if let (Some(scores), Some(_)) = (&mut self.oom_scores, &self.oom_order) {
            scores
                .put_back(&mut |error| tracing::warn!(%error, "an oom_score_adj is not put back"));
        }
    }

    /// Brings the scores of one pod up to date, or asks for another look if there is too much to do.
    pub(super) fn keep_oom_scores(&mut self, uid: &PodUid) {
        let Some(scores) = &mut self.oom_scores else {
            return;
        };
        let mut failures = Vec::new();
        let is_left = scores.follow(uid, &self.pods, now_ns(), &mut |error| {
            failures.push(error.to_string())
        });
        if is_left {
            self.rescans.note(uid);
            self.rescans.ask();
        }
        for failure in failures {
            self.warn_of_pod(uid, failure);
        }
    }
}
