//! The `oom_score_adj` of the pods' processes, and whether the kernel's OOM killer takes processes, containers or pods.

use anyhow::Result;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::policy::oom::order::OomPlan;

use super::{Agent, now_ns};
use crate::act::oom_group::OomGroups;
use crate::act::oom_order::OomOrdering;
use crate::act::oom_scores::OomScores;
use crate::pods::registry::Pods;

/// The order in which the kernel's OOM killer chooses: scores, and groups that go as a whole.
#[derive(Debug, Default)]
pub struct OomWork {
    /// `None`: the scores of processes are left as they are.
    pub scores: Option<OomScores>,
    /// `None`: scores are the kubelet's.
    pub order: Option<OomOrdering>,
    /// Whether it takes processes, containers or pods. `None`: memory is not on cgroup v2.
    pub groups: Option<OomGroups>,
}

impl OomWork {
    /// The scores, if they follow the order of eviction.
    pub(super) fn scores_in_order(&self) -> Option<&OomScores> {
        self.scores.as_ref().filter(|_| self.order.is_some())
    }

    /// The newest plan of the order.
    pub(super) fn plan(&self) -> Option<&OomPlan> {
        self.order.as_ref().and_then(OomOrdering::plan)
    }

    /// When newcomers get their scores, if there are any.
    pub(super) fn serve_at_ns(&self) -> Option<u64> {
        self.scores.as_ref().and_then(OomScores::serve_at_ns)
    }

    /// Forgets pods that are not there any more.
    pub(super) fn retain(&mut self, pods: &Pods) {
        if let Some(groups) = &mut self.groups {
            groups.retain(pods);
        }
        if let Some(scores) = &mut self.scores {
            scores.retain(pods);
        }
    }

    /// Scores that are in the order of eviction become the kubelet's again. The thread ends.
    pub(super) fn put_back(&mut self) {
        let scores = self.scores.take();
        if let (Some(mut scores), Some(_)) = (scores, &self.order) {
            let cgroups = scores.put_back(
                &mut |_, error| tracing::warn!(%error, "an oom_score_adj is not put back"),
            );
            if cgroups > 0 {
                tracing::warn!(
                    "processes in {cgroups} cgroups keep the oom_score_adj of the order of eviction: the kernel took too long to set it, or they fork faster; the next start sets it, beside a kubelet with oomScoreOrder Dynamic only"
                );
            }
        }
    }
}

impl Agent {
    /// What the thread for scores has done is taken in, and it gets what is to be done next: processes that were put
    /// into a cgroup come first.
    pub(super) fn serve_newcomers(&mut self) {
        let Some(scores) = &mut self.oom.scores else {
            return;
        };
        let mut failures = Vec::new();
        scores.keep_on(now_ns(), &mut |uid, error| {
            failures.push((uid.clone(), error.to_string()));
        });
        for (uid, failure) in failures {
            self.warn_of_pod(&uid, failure);
        }
    }

    /// Makes a new plan of the order of OOM kills if it is time, and has the scores written that differ.
    pub(super) fn order_oom_scores(&mut self) -> Result<()> {
        let (Some(order), Some(scores)) = (&mut self.oom.order, &mut self.oom.scores) else {
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
            self.keep_scores(&uid);
            self.interrupt()?;
        }
        Ok(())
    }

    /// The OOM killer's groups follow a pod's cgroups, and the scores its processes.
    pub(super) fn keep_oom(&mut self, uid: &PodUid) {
        if let Some(groups) = &mut self.oom.groups
            && let Err(error) = groups.follow(uid, &self.pods)
        {
            self.warn_of_pod(uid, error);
        }
        self.keep_scores(uid);
    }

    /// Has the scores of one pod brought up to date.
    fn keep_scores(&mut self, uid: &PodUid) {
        if let Some(scores) = &mut self.oom.scores {
            scores.follow(uid, &self.pods, now_ns());
            self.serve_newcomers();
        }
    }
}
