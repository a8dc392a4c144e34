//! The optional parts of the agent, all in one shape.
//!
//! **Problem.** These parts may be absent, and each has something to do at several moments of the loop. **Approach.** A
//! moment is a column, a part is a row, and the loop calls a column for all rows. A part that is absent does nothing at
//! any moment. What a part does for one decision is in [`Agent::act`](super::turn), what its thread reports is a
//! [`Wake`](super::wake::Wake).
//!
//! What has to have its turn at one place of the loop is called there, in `turn`: kills of the last line before a
//! sample is judged (`take_in_last_line_kills`); OOM scores, newcomers first (`serve_newcomers`, `order_oom_scores`),
//! then the runtime's answers again, once pods were rescanned (`send_answers`).

use plimsoll_core::kube::pod_uid::PodUid;

use super::Agent;
use super::wake::Sources;

/// What an optional part does, and when.
struct Feature {
    /// The loop begins.
    begin: fn(&mut Agent, &mut Sources),
    /// A sample has been taken and is about to be judged; when it was begun, and what was charged by then. Allocates
    /// nothing.
    note_sample: fn(&mut Agent, u64, Option<u64>),
    /// A sample has been taken and answered.
    after_sample: fn(&mut Agent),
    /// At the end of each turn.
    follow_up: fn(&mut Agent),
    /// A pod has been rescanned.
    rescan_pod: fn(&mut Agent, &PodUid),
    /// All pods that were to be rescanned have been.
    rescan: fn(&mut Agent),
    /// The loop has ended: what it holds is put back.
    end: fn(&mut Agent),
}

/// A part with nothing to do.
const NOTHING: Feature = Feature {
    begin: |_, _| {},
    note_sample: |_, _, _| {},
    after_sample: |_| {},
    follow_up: |_| {},
    rescan_pod: |_, _| {},
    rescan: |_| {},
    end: |_| {},
};

/// All of them, in the order in which they have their turn.
const FEATURES: [Feature; 11] = [
    // Which pods may run.
    Feature {
        begin: Agent::begin_admission,
        follow_up: Agent::report_departures,
        ..NOTHING
    },
    // The cgroups above the pods.
    Feature {
        rescan: Agent::keep_kubepods,
        ..NOTHING
    },
    // The kubelet that runs the pods.
    Feature {
        begin: |agent, _| agent.begin_kubelet(),
        follow_up: Agent::follow_up_kubelet,
        rescan_pod: Agent::keep_hold,
        end: Agent::end_kubelet,
        ..NOTHING
    },
    // The order in which the kernel's OOM killer chooses.
    Feature {
        rescan_pod: Agent::keep_oom,
        rescan: |agent| agent.oom.retain(&agent.pods),
        end: |agent| {
            // It would go on handing out what is put back.
            agent.nri = None;
            agent.oom.put_back();
        },
        ..NOTHING
    },
    // What the container runtime is answered: after what it follows from.
    Feature {
        follow_up: Agent::send_answers,
        rescan_pod: Agent::note_nri,
        rescan: Agent::rescan_nri,
        ..NOTHING
    },
    // Cgroups of pods that have left.
    Feature {
        rescan: Agent::report_cgroup_work,
        end: |agent| {
            if let Some(worker) = agent.pods.worker()
                && !worker.finish()
            {
                tracing::warn!(
                    "cgroups of pods that have left stay: there are too many to remove now"
                );
            }
        },
        ..NOTHING
    },
    // CPUs and NUMA nodes.
    Feature {
        begin: |agent, _| agent.begin_placement(),
        follow_up: Agent::give_back,
        rescan: Agent::rescan_placement,
        end: |agent| agent.placement = None,
        ..NOTHING
    },
    // CPU time.
    Feature {
        rescan: Agent::look_after_cpu,
        end: |agent| agent.cpu_work = None,
        ..NOTHING
    },
    // Disks.
    Feature {
        follow_up: Agent::order_storage_work,
        ..NOTHING
    },
    // What is tried before an eviction.
    Feature {
        end: |agent| agent.remedies = None,
        ..NOTHING
    },
    // The last line in the kernel.
    Feature {
        note_sample: |agent, at_ns, charged_bytes| {
            if let Some(last_line) = &mut agent.last_line {
                last_line.note_sample(at_ns, charged_bytes);
            }
        },
        after_sample: Agent::renew_last_line,
        follow_up: Agent::report_last_line_kills,
        rescan: Agent::report_uncounted_last_line_kills,
        end: Agent::end_last_line,
        ..NOTHING
    },
];

/// Each part in turn, at one of the moments of the loop.
impl Agent {
    pub(super) fn begin_features(&mut self, sources: &mut Sources) {
        for feature in &FEATURES {
            (feature.begin)(self, sources);
        }
    }

    pub(super) fn note_sample(&mut self, at_ns: u64, charged_bytes: Option<u64>) {
        for feature in &FEATURES {
            (feature.note_sample)(self, at_ns, charged_bytes);
        }
    }

    pub(super) fn after_sample(&mut self) {
        for feature in &FEATURES {
            (feature.after_sample)(self);
        }
    }

    pub(super) fn follow_up_features(&mut self) {
        for feature in &FEATURES {
            (feature.follow_up)(self);
        }
    }

    pub(super) fn keep_pod(&mut self, uid: &PodUid) {
        for feature in &FEATURES {
            (feature.rescan_pod)(self, uid);
        }
    }

    pub(super) fn rescan_features(&mut self) {
        for feature in &FEATURES {
            (feature.rescan)(self);
        }
    }

    pub(super) fn end_features(&mut self) {
        for feature in &FEATURES {
            (feature.end)(self);
        }
    }
}
