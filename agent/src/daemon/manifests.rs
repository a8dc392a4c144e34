//! The manifests: pods that are to be there, and what follows when one begins or ceases to run.

use std::sync::Arc;

use anyhow::Result;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::EventKind;

use super::{Agent, now_ns};
use crate::host::shown::Show as _;
use crate::input::manifests::{ManifestChange, ManifestPod};
use crate::pods::registry::{Populated, name_and_uid};

impl Agent {
    /// The manifests have changed. Opens the files of pods that are there already: not for the hot path.
    ///
    /// # Errors
    /// When the node's memory cannot be read.
    pub fn manifests(&mut self, change: ManifestChange) -> Result<()> {
        let ManifestChange {
            added,
            changed,
            removed,
            budgets,
            budgets_removed,
            refused,
            quotas,
            errors,
        } = change;
        for error in errors {
            self.warn(error.to_string());
        }
        self.tally.admissions[0] += added.len() as u64;
        self.admission_decided(refused, quotas);
        for ManifestPod {
            pod, file, line, ..
        } in added.into_iter().chain(changed)
        {
            // Whether it runs by now decides what may change.
            self.rescan_pod(&pod.uid());
            if self.admit_resize(&pod) {
                self.apply(pod, &format!("{}:{line}: ", file.shown()));
            }
            self.interrupt_if_listed()?;
        }
        for uid in removed {
            self.forget_resize(&uid);
            self.remove_pod(&uid);
            self.follow_departure(uid);
            self.interrupt_if_listed()?;
        }
        self.keep_kubepods();
        (self.tally.pods_listed, self.tally.pods_watched) = (true, true);
        self.pods_are_listed();
        // Limits were written, and an exclusive container has none on CPU time.
        self.containers_came();
        self.rescan_placement();
        self.look_after_cpu();
        for budget in budgets {
            self.handle_event(EventKind::BudgetApplied { budget });
        }
        for budget in budgets_removed {
            self.handle_event(EventKind::BudgetRemoved { budget });
        }
        // What they have behind them is not news.
        self.report_limits_at_once();
        self.make_room();
        self.hurry = true;
        self.ready();
        Ok(())
    }

    /// [`Agent::interrupt`], but not in the first list of pods: among those of it that are known by then the wrong one
    /// would go.
    ///
    /// # Errors
    /// When the node's memory cannot be read.
    pub(super) fn interrupt_if_listed(&mut self) -> Result<()> {
        if self.tally.pods_listed {
            self.interrupt()?;
        }
        Ok(())
    }

    /// A pod's source has it no more. What was started just now has to be ended too.
    pub(super) fn remove_pod(&mut self, uid: &PodUid) {
        self.rescan_pod(uid);
        if let Some(storage) = &mut self.storage {
            storage.note_ended(uid);
        }
        self.pods.remove(uid);
        self.handle_event(EventKind::PodRemoved { uid: uid.clone() });
    }

    /// For all pods, so that no sample has to make any.
    pub(super) fn make_room(&mut self) {
        let pods = self.pods.len();
        self.sample
            .pods
            .reserve(pods.saturating_sub(self.sample.pods.len()));
    }

    pub(super) fn changed(&mut self, Populated { uid, running }: Populated) {
        self.pods_changed = true;
        // Its CPUs, memory and devices were given before its first process, and are taken back with its last.
        if let Some(topology) = self.kubelet.as_ref().and_then(|work| work.topology()) {
            topology.prompt();
        }
        if running {
            self.containers_came();
        } else {
            self.timelines.gone(&uid, now_ns());
        }
        let kind = if running {
            EventKind::PodRunning { uid: uid.clone() }
        } else {
            EventKind::PodEmpty { uid: uid.clone() }
        };
        self.handle_event(kind);
        if !running && let Some(pod) = self.forget_resize(&uid) {
            self.apply(pod, "");
        }
    }

    /// Applies a pod, new or with another specification. Not for the hot path. What is wrong with it is said after
    /// `origin`.
    pub(super) fn apply(&mut self, pod: Arc<Pod>, origin: &str) {
        let uid = pod.uid();
        if let Err(error) = self.pods.apply(pod.clone()) {
            return self.warn(format!("{origin}pod {}: {error}", name_and_uid(&pod)));
        }
        if let Err(error) = pod.pressure_signal() {
            self.warn_of_pod(&uid, error);
        }
        if let Err(error) = pod.latency_critical() {
            self.warn_of_pod(&uid, error);
        }
        self.handle_event(EventKind::PodApplied { pod });
        self.rescan_pod(&uid);
        self.keep_pod(&uid);
        if let Err(error) = self.pods.apply_limits(&uid) {
            self.warn_of_pod(&uid, error);
        }
    }

    /// The cgroups above the pods follow which pods there are.
    pub(super) fn keep_kubepods(&mut self) {
        if let Some(kubepods) = &mut self.kubepods
            && let Err(error) = kubepods.follow(&self.pods)
        {
            self.warn(error.to_string());
        }
    }
}
