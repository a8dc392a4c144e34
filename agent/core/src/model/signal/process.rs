//! Processes and threads: both take a PID.

use crate::model::signal::row::{
    NodeCondition, Observation, Operator, Readings, Resource, Seen, Signal, SignalRow, Unit,
};

/// `pid.available`.
pub(super) const AVAILABLE: SignalRow = SignalRow {
    signal: Signal::PidAvailable,
    name: "pid.available",
    unit: Unit::Processes,
    operator: Operator::LessThan,
    condition: Some(NodeCondition::PidPressure),
    resource: Resource::Processes,
    kubelet: true,
    meaning: "processes and threads that can still be made: the smaller of pid_max and threads-max, minus those that exist",
    observe: available,
};

/// makeSignalObservations in pkg/kubelet/eviction/helpers.go: `MaxPID - NumOfRunningProcesses`.
fn available(readings: &Readings<'_>) -> Seen {
    let Some(processes) = &readings.sample.processes else {
        return Seen::NotRead;
    };
    Seen::Value(Observation {
        value: processes.max.saturating_sub(processes.running),
        capacity: processes.max,
        at_ns: Some(processes.at_ns),
    })
}
