//! Pressure stall information: shares of time in which tasks waited for memory, disk or CPU.
//!
//! Source: Documentation/accounting/psi.rst of the kernel. `some`: at least one task waited; `full`: all that could run
//! waited. Averages over 10, 60 and 300 s lag behind by about their window; for the first sign of a stall the agent
//! arms the kernel's own trigger on the same file. The kubelet has no such threshold (kubernetes/enhancements#4205
//! raises conditions from it, alpha).

use crate::model::reading::{PressureReading, StallReading, StallShares};
use crate::model::signal::row::{
    NodeCondition, Observation, Operator, Readings, Resource, Seen, Signal, SignalRow, Unit,
};

/// All of the time, in hundredths of a percent.
pub const WHOLE: u64 = 10_000;

const MEMORY: SignalRow = SignalRow {
    signal: Signal::MemorySome10,
    name: "memoryPressure.some.avg10",
    unit: Unit::Share,
    operator: Operator::GreaterThan,
    condition: Some(NodeCondition::MemoryPressure),
    resource: Resource::Memory,
    kubelet: false,
    meaning: "share of time in which tasks waited for memory",
    observe: |_| Seen::NotRead,
};
const IO: SignalRow = SignalRow {
    condition: Some(NodeCondition::Stalled),
    resource: Resource::Io,
    meaning: "share of time in which tasks waited for the disk",
    ..MEMORY
};
const CPU: SignalRow = SignalRow {
    condition: Some(NodeCondition::Stalled),
    resource: Resource::Cpu,
    meaning: "share of time in which tasks waited for a CPU",
    ..MEMORY
};

fn share(
    readings: &Readings<'_>,
    of: fn(&PressureReading) -> Option<StallReading>,
    line: fn(&StallReading) -> StallShares,
    window: fn(&StallShares) -> u16,
) -> Seen {
    let Some(pressure) = &readings.sample.pressure else {
        return Seen::NotRead;
    };
    let seen = of(pressure).map(|stall| Observation {
        value: u64::from(window(&line(&stall))),
        capacity: WHOLE,
        at_ns: Some(pressure.at_ns),
    });
    seen.into()
}

pub(super) const MEMORY_SOME_10: SignalRow = SignalRow {
    signal: Signal::MemorySome10,
    name: "memoryPressure.some.avg10",
    observe: |readings| {
        share(
            readings,
            |all| all.memory,
            |stall| stall.some,
            |shares| shares.avg10,
        )
    },
    ..MEMORY
};

pub(super) const MEMORY_SOME_60: SignalRow = SignalRow {
    signal: Signal::MemorySome60,
    name: "memoryPressure.some.avg60",
    observe: |readings| {
        share(
            readings,
            |all| all.memory,
            |stall| stall.some,
            |shares| shares.avg60,
        )
    },
    ..MEMORY
};

pub(super) const MEMORY_SOME_300: SignalRow = SignalRow {
    signal: Signal::MemorySome300,
    name: "memoryPressure.some.avg300",
    observe: |readings| {
        share(
            readings,
            |all| all.memory,
            |stall| stall.some,
            |shares| shares.avg300,
        )
    },
    ..MEMORY
};

pub(super) const MEMORY_FULL_10: SignalRow = SignalRow {
    signal: Signal::MemoryFull10,
    name: "memoryPressure.full.avg10",
    observe: |readings| {
        share(
            readings,
            |all| all.memory,
            |stall| stall.full,
            |shares| shares.avg10,
        )
    },
    ..MEMORY
};

pub(super) const MEMORY_FULL_60: SignalRow = SignalRow {
    signal: Signal::MemoryFull60,
    name: "memoryPressure.full.avg60",
    observe: |readings| {
        share(
            readings,
            |all| all.memory,
            |stall| stall.full,
            |shares| shares.avg60,
        )
    },
    ..MEMORY
};

pub(super) const MEMORY_FULL_300: SignalRow = SignalRow {
    signal: Signal::MemoryFull300,
    name: "memoryPressure.full.avg300",
    observe: |readings| {
        share(
            readings,
            |all| all.memory,
            |stall| stall.full,
            |shares| shares.avg300,
        )
    },
    ..MEMORY
};

pub(super) const IO_SOME_10: SignalRow = SignalRow {
    signal: Signal::IoSome10,
    name: "ioPressure.some.avg10",
    observe: |readings| {
        share(
            readings,
            |all| all.io,
            |stall| stall.some,
            |shares| shares.avg10,
        )
    },
    ..IO
};

pub(super) const IO_SOME_60: SignalRow = SignalRow {
    signal: Signal::IoSome60,
    name: "ioPressure.some.avg60",
    observe: |readings| {
        share(
            readings,
            |all| all.io,
            |stall| stall.some,
            |shares| shares.avg60,
        )
    },
    ..IO
};

pub(super) const IO_SOME_300: SignalRow = SignalRow {
    signal: Signal::IoSome300,
    name: "ioPressure.some.avg300",
    observe: |readings| {
        share(
            readings,
            |all| all.io,
            |stall| stall.some,
            |shares| shares.avg300,
        )
    },
    ..IO
};

pub(super) const IO_FULL_10: SignalRow = SignalRow {
    signal: Signal::IoFull10,
    name: "ioPressure.full.avg10",
    observe: |readings| {
        share(
            readings,
            |all| all.io,
            |stall| stall.full,
            |shares| shares.avg10,
        )
    },
    ..IO
};

pub(super) const IO_FULL_60: SignalRow = SignalRow {
    signal: Signal::IoFull60,
    name: "ioPressure.full.avg60",
    observe: |readings| {
        share(
            readings,
            |all| all.io,
            |stall| stall.full,
            |shares| shares.avg60,
        )
    },
    ..IO
};

pub(super) const IO_FULL_300: SignalRow = SignalRow {
    signal: Signal::IoFull300,
    name: "ioPressure.full.avg300",
    observe: |readings| {
        share(
            readings,
            |all| all.io,
            |stall| stall.full,
            |shares| shares.avg300,
        )
    },
    ..IO
};

pub(super) const CPU_SOME_10: SignalRow = SignalRow {
    signal: Signal::CpuSome10,
    name: "cpuPressure.some.avg10",
    observe: |readings| {
        share(
            readings,
            |all| all.cpu,
            |stall| stall.some,
            |shares| shares.avg10,
        )
    },
    ..CPU
};

pub(super) const CPU_SOME_60: SignalRow = SignalRow {
    signal: Signal::CpuSome60,
    name: "cpuPressure.some.avg60",
    observe: |readings| {
        share(
            readings,
            |all| all.cpu,
            |stall| stall.some,
            |shares| shares.avg60,
        )
    },
    ..CPU
};

pub(super) const CPU_SOME_300: SignalRow = SignalRow {
    signal: Signal::CpuSome300,
    name: "cpuPressure.some.avg300",
    observe: |readings| {
        share(
            readings,
            |all| all.cpu,
            |stall| stall.some,
            |shares| shares.avg300,
        )
    },
    ..CPU
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::Sample;
    use crate::model::options::Availability;
    use crate::model::signal::Observations;

    #[test]
    fn each_row_reads_the_figure_of_its_signal() {
        let shares = |first| StallShares {
            avg10: first,
            avg60: first + 1,
            avg300: first + 2,
            total_us: 0,
        };
        let stall = |first| {
            Some(StallReading {
                some: shares(first),
                full: shares(first + 10),
            })
        };
        let sample = Sample {
            pressure: Some(PressureReading {
                at_ns: 3,
                memory: stall(100),
                io: stall(200),
                cpu: stall(300),
            }),
            ..Sample::default()
        };
        let seen = Observations::default().updated(&Readings {
            sample: &sample,
            at_ns: 9,
            availability: Availability::Kubelet,
            swap_bytes: 0,
        });
        let shown: Vec<(&str, u64)> = seen
            .iter()
            .map(|(signal, observation)| (signal.row().name, observation.value))
            .collect();
        assert_eq!(shown[0], ("memoryPressure.some.avg10", 100));
        assert_eq!(shown[5], ("memoryPressure.full.avg300", 112));
        assert_eq!(shown[10], ("ioPressure.full.avg60", 211));
        assert_eq!(shown[14], ("cpuPressure.some.avg300", 302));
        assert_eq!(shown.len(), 15);
    }
}
