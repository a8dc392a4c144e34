//! Where the counts of limits come from, for each kind.

use crate::probe::ladder::{Choice, LadderSignal, Role};
use crate::probe::mechanism::Mechanism;
use crate::source::EpollError;
use crate::source::pod_events::PodEvents;

/// Where the counts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The BPF programs.
    Kernel,
    /// The cgroup's files.
    Files,
}

/// The origin of each kind, and whether files are also watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origins {
    /// `memory.high`, `memory.max` and out of memory.
    pub memory: Origin,
    /// OOM kills. Those that the kernel reports are told one by one elsewhere, and not counted here.
    pub oom_kills: Origin,
    /// CPU throttling.
    pub throttling: Origin,
    /// Waits for memory.
    pub stalls: Origin,
    /// Time spent on reclaim; from files it is not known.
    pub reclaim: Origin,
    /// Pages read back.
    pub refaults: Origin,
    /// Reclaim below `memory.low`.
    pub low: Origin,
    /// POLLPRI on `memory.events`.
    pub memory_events: bool,
    /// An eventfd on `memory.oom_control`.
    pub event_control: bool,
}

impl Origins {
    /// As the ladder has chosen. `counts_low`: whether the programs see that a cgroup is below its `memory.low`.
    pub fn of(choices: &[Choice], counts_low: bool) -> Self {
        let of = |signal| move |choice: &&Choice| choice.signal == signal;
        let origin = |signal| {
            let by_kernel = choices.iter().filter(of(signal)).any(|choice| {
                choice.role == Role::Primary
                    && matches!(choice.mechanism, Mechanism::Fentry | Mechanism::Tracepoint)
            });
            if by_kernel {
                Origin::Kernel
            } else {
                Origin::Files
            }
        };
        let uses = |signal, mechanism| {
            choices
                .iter()
                .filter(of(signal))
                .any(|choice| choice.mechanism == mechanism)
        };
        Self {
            memory: origin(LadderSignal::MemoryLimit),
            oom_kills: origin(LadderSignal::OomKill),
            throttling: origin(LadderSignal::CpuThrottling),
            stalls: origin(LadderSignal::MemoryStall),
            reclaim: origin(LadderSignal::ReclaimTime),
            refaults: origin(LadderSignal::Refault),
            low: if counts_low {
                Origin::Kernel
            } else {
                Origin::Files
            },
            memory_events: uses(LadderSignal::MemoryLimit, Mechanism::MemoryEvents)
                || uses(LadderSignal::OomKill, Mechanism::MemoryEvents),
            event_control: uses(LadderSignal::OomKill, Mechanism::EventControl),
        }
    }

    /// What the files are waited for with; `None` if none is to be.
    ///
    /// # Errors
    /// When the process has no descriptor left for it.
    pub fn events(self) -> Result<Option<PodEvents>, EpollError> {
        let watches = self.memory_events || self.event_control;
        watches.then(PodEvents::new).transpose()
    }

    /// Whether files tell of memory limits anything that should be known soon.
    pub(super) fn reads_memory_often(self) -> bool {
        self.memory == Origin::Files || self.oom_kills == Origin::Files
    }

    pub(super) fn reads_memory(self) -> bool {
        self.memory == Origin::Files
            || self.low == Origin::Files
            || self.oom_kills == Origin::Files
            || self.memory_events
            || self.event_control
    }
}
