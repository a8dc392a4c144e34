//! The ladder as a table: one row per signal, one rung per mechanism, best first. Adding a signal or a mechanism is
//! adding a row or a rung here.

use super::{LadderSignal, Mechanism};

/// What a rung stands on.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// The first of these BPF programs, by their names in the object, that is attached.
    Program(&'static [&'static str]),
    /// `memory.events`: memory on cgroup v2.
    MemoryEvents,
    /// `cgroup.event_control`: memory on cgroup v1.
    EventControl,
    /// A PSI trigger on `/proc/pressure/memory`.
    Psi,
    /// An inotify instance.
    Inotify,
}

/// One way to get a signal.
#[derive(Debug)]
pub struct Rung {
    /// By which means.
    pub mechanism: Mechanism,
    /// All of them must be there.
    pub needs: &'static [Need],
    /// What is good about it.
    pub gives: &'static str,
    /// What is slower or invisible when it is this and not a higher one; empty for the top.
    pub lost: &'static str,
    /// What runs along with it where available, best first.
    pub beside: &'static [Mechanism],
}

/// One signal and its rungs, best first. The last is always sampling.
#[derive(Debug)]
pub struct Row {
    /// Which signal.
    pub signal: LadderSignal,
    /// Best first.
    pub rungs: &'static [Rung],
}

use Mechanism::{EventControl, Fentry, Inotify, MemoryEvents, Psi, Sampling, Tracepoint};

/// The ladder.
pub static LADDER: [Row; 8] = [
    Row {
        signal: LadderSignal::MemoryThreshold,
        rungs: &[
            Rung {
                mechanism: Fentry,
                needs: &[Need::Program(&["charges_count"])],
                gives: "reported by the charge that crosses it",
                lost: "",
                beside: &[Psi, Sampling],
            },
            // Above the tracepoints: it reports the very crossing, they only what follows when the whole node runs
            // short.
            Rung {
                mechanism: EventControl,
                needs: &[Need::EventControl],
                gives: "the kernel signals the crossing, within 128 page events of a CPU",
                lost: "a crossing is seen up to 128 page events of each CPU late, and without its time",
                beside: &[Tracepoint, Psi, Sampling],
            },
            Rung {
                mechanism: Tracepoint,
                needs: &[
                    Need::Program(&["kswapd_wake"]),
                    Need::Program(&["direct_reclaim"]),
                ],
                gives: "shortage of the whole node is reported as it begins",
                lost: "a threshold crossed while the node still has free memory is seen by the next sample, not at once",
                beside: &[Psi, Sampling],
            },
            Rung {
                mechanism: Psi,
                needs: &[Need::Psi],
                gives: "wakes when tasks stall on memory",
                lost: "a threshold crossed before tasks stall is seen by the next sample; stalls take 60-120 ms to show",
                beside: &[Sampling],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "interval from head-room and fastest growth seen",
                lost: "every crossing is seen by the next sample: growth faster than any before is seen late, perhaps after the kernel's OOM killer",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::NodeReclaim,
        rungs: &[
            Rung {
                mechanism: Tracepoint,
                needs: &[
                    Need::Program(&["kswapd_wake"]),
                    Need::Program(&["direct_reclaim"]),
                ],
                gives: "reported when kswapd wakes and when a task must reclaim by itself",
                lost: "",
                beside: &[Psi],
            },
            Rung {
                mechanism: Psi,
                needs: &[Need::Psi],
                gives: "wakes when tasks stall on memory",
                lost: "the early warning (kswapd woken) is invisible: only stalls that follow it are reported, 60-120 ms late",
                beside: &[],
            },
            Rung {
                mechanism: EventControl,
                needs: &[Need::EventControl],
                gives: "memory.pressure_level of the root cgroup",
                lost: "the early warning comes by memory.pressure_level, after some hundred pages of hard reclaim",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "free memory in each sample",
                lost: "there is no early warning between two samples",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::CgroupLifecycle,
        rungs: &[
            Rung {
                mechanism: Tracepoint,
                needs: &[
                    Need::Program(&["cgroup_mkdir"]),
                    Need::Program(&["cgroup_rmdir"]),
                ],
                gives: "reported with the cgroup's id as it happens",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Inotify,
                needs: &[Need::Inotify],
                gives: "the cgroup directories are watched",
                lost: "a cgroup that lives only for a moment may never be seen",
                beside: &[Sampling],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "the cgroup tree is walked",
                lost: "a new pod is not known, nor counted, until the next walk",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::ProcessAttach,
        rungs: &[
            Rung {
                mechanism: Tracepoint,
                needs: &[Need::Program(&["cgroup_attach_task"])],
                gives: "reported as it happens: oom_score_adj is right within milliseconds",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "cgroup.procs of each pod, read twice a second",
                lost: "a process put into a running container has a wrong oom_score_adj for up to 0.5 s, and keeps a higher one than its container's",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::OomKill,
        rungs: &[
            Rung {
                mechanism: Fentry,
                needs: &[Need::Program(&["oom_kill_process"])],
                gives: "reported with the victim and the cgroup whose limit was hit",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Tracepoint,
                needs: &[Need::Program(&["mark_victim"])],
                gives: "reported with the victim and its cgroup",
                lost: "the record names the victim but not the cgroup whose limit was hit",
                beside: &[MemoryEvents, EventControl],
            },
            Rung {
                mechanism: MemoryEvents,
                needs: &[Need::MemoryEvents],
                gives: "oom_kill of each pod's memory.events",
                lost: "a kill is counted per pod; which process died is not known",
                beside: &[],
            },
            Rung {
                mechanism: EventControl,
                needs: &[Need::EventControl],
                gives: "memory.oom_control of each pod",
                lost: "a pod that runs out of memory is reported; which process died is not known, nor a kill for the whole node at once",
                beside: &[Sampling],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "oom_kill of each pod, read every few seconds",
                lost: "a kill is seen up to 5 s late; which process died is not known",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::MemoryLimit,
        rungs: &[
            Rung {
                mechanism: Fentry,
                // One function on 7.2; before, one per kind, because the common one is inlined.
                needs: &[
                    Need::Program(&["memcg_memory_event", "memcg_high"]),
                    Need::Program(&["memcg_memory_event", "memcg_max"]),
                ],
                gives: "each event is counted in the kernel, with the cgroup that owns the limit",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: MemoryEvents,
                needs: &[Need::MemoryEvents],
                gives: "high and max of each pod's memory.events",
                lost: "looked at ten times a second at most; how long tasks were held up is not known",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "counters of each pod, read every few seconds",
                lost: "a pod at its limit is seen up to 5 s late",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::CpuThrottling,
        rungs: &[
            Rung {
                mechanism: Fentry,
                needs: &[
                    Need::Program(&["throttle_start"]),
                    Need::Program(&["throttle_stop"]),
                ],
                gives: "start, stop and duration per cgroup",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "nr_throttled and throttled time of cpu.stat, every 5 s",
                lost: "only sums between two samples: when a throttle began and how long each lasted is not known",
                beside: &[],
            },
        ],
    },
    // Whoever wants to know of waits asks for the program, or reads these files.
    Row {
        signal: LadderSignal::RunQueue,
        rungs: &[
            Rung {
                mechanism: Tracepoint,
                needs: &[Need::Program(&["run_queue"])],
                gives: "count, sum and histogram of waits per cgroup, on demand, one in eight",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Psi,
                needs: &[Need::Psi],
                gives: "total of cpu.pressure per cgroup (cgroup v1: of the node)",
                lost: "how many waits there were and how long each lasted is not known",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "the second number of /proc/PID/schedstat, of processes that somebody asks for",
                lost: "waits of a cgroup are not added up: only those of processes that are still there can be read",
                beside: &[],
            },
        ],
    },
];
