//! The ladder as a table: one row per signal, one rung per mechanism, best first. Adding a signal or a mechanism is
//! adding a row or a rung here.

use super::LadderSignal;
use crate::probe::mechanism::Mechanism;

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
pub static LADDER: [Row; 14] = [
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
                gives: "interval from headroom and fastest growth seen",
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
    Row {
        signal: LadderSignal::CpuWait,
        rungs: &[
            Rung {
                mechanism: Psi,
                needs: &[Need::Psi],
                gives: "total of cpu.pressure per cgroup (cgroup v1: of the node)",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "the second number of /proc/PID/schedstat, of processes that a client asks for",
                lost: "waits of a cgroup are not added up: only those of processes that are still there can be read",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::ProcessBirth,
        rungs: &[
            Rung {
                mechanism: Tracepoint,
                needs: &[
                    Need::Program(&["process_fork"]),
                    Need::Program(&["process_exec"]),
                ],
                gives: "births from outside are reported; births and programs started are counted per pod",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "cgroup.procs of each pod, read now and then",
                lost: "a process born into a pod by CLONE_INTO_CGROUP has a wrong oom_score_adj for up to 5 s; processes that come and go between two readings are not seen",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::MemoryProtection,
        rungs: &[
            Rung {
                mechanism: Fentry,
                // Nothing before 7.2 can be hooked for memory.low.
                needs: &[
                    Need::Program(&["memcg_memory_event", "memcg_oom_kill"]),
                    Need::Program(&["memcg_memory_event", "memcg_oom_group_kill"]),
                ],
                gives: "oom_kill and oom_group_kill are counted in the kernel; low, too, from 7.2 on, else every 5 s in memory.events",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "low and oom_kill of each pod's memory.events, read every few seconds (cgroup v1 has no memory.low)",
                lost: "kills of a whole group are not distinguished from others; reclaim below memory.low is seen up to 5 s late",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::MemoryStall,
        rungs: &[
            Rung {
                mechanism: Fentry,
                needs: &[
                    Need::Program(&["stall_enter"]),
                    Need::Program(&["stall_leave"]),
                ],
                gives: "count, sum and longest of each cgroup's waits for memory",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "total of each pod's memory.pressure, every 5 s (cgroup v2 with PSI)",
                lost: "how many stalls there were and how long each lasted is not known; nothing on cgroup v1 or without PSI",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::ReclaimTime,
        rungs: &[
            Rung {
                mechanism: Fentry,
                needs: &[
                    Need::Program(&["limit_reclaim"]),
                    Need::Program(&["high_sleep"]),
                    Need::Program(&["node_reclaim"]),
                ],
                gives: "duration and pages of each cgroup's reclaim, with the owner of the limit; sleep for memory.high",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Tracepoint,
                needs: &[
                    Need::Program(&["limit_reclaim_tp", "limit_reclaim"]),
                    Need::Program(&["node_reclaim"]),
                ],
                gives: "duration and pages of reclaim, by the cgroup of the task that reclaims",
                lost: "which cgroup's limit it was is not known, nor how long tasks sleep for memory.high",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "how often limits were met, as under memory.high and memory.max",
                lost: "how long tasks reclaim or sleep is not known",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::Refault,
        rungs: &[
            Rung {
                mechanism: Fentry,
                needs: &[
                    Need::Program(&["refault_page"]),
                    Need::Program(&["swap_in_folio", "swap_in_page"]),
                ],
                gives: "pages read back per cgroup, from files and from swap, as it happens",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "workingset_refault and pswpin of each pod's memory.stat, every 5 s (cgroup v2)",
                lost: "only sums between two samples; pages from swap are not counted before Linux 6.13, and nothing on cgroup v1",
                beside: &[],
            },
        ],
    },
    Row {
        signal: LadderSignal::Pressure,
        rungs: &[
            Rung {
                mechanism: Psi,
                needs: &[Need::Psi],
                gives: "triggers on the node's pressure, averages of the pods' in each sample that asks for them",
                lost: "",
                beside: &[],
            },
            Rung {
                mechanism: Sampling,
                needs: &[],
                gives: "free memory in each sample",
                lost: "shortages that leave memory free (slow reclaim, disks, CPUs) are not seen, and thresholds on stalls never met",
                beside: &[],
            },
        ],
    },
];
