//! CPU time: what both policies about it know, and when they decide.
//!
//! **Problem.** A pod is throttled by its limit while its node has time to spare, or waits behind pods that asked for
//! nothing. What helps the one can hurt its neighbours, and what is changed must be put back. **Approach.** Readings
//! come once a second ([`CpuReading`]) and are turned into what happened since the one before.
//! [`cpu_burst`](crate::policy::cpu::burst) and [`cpu_suppress`](crate::policy::cpu::suppress) look at that, each an
//! option. Every reading has the current and the configured values of a cgroup, so a write that failed, or that another
//! program undid, is seen.
//!
//! **Which pod comes first.** A pod that requests CPU time, is not throttled, shares its CPUs, and uses no more than
//! its request: the CPU time that it waits for was promised to it. One that uses more than its request waits for what
//! it was not promised. The annotation [`LATENCY_CRITICAL_ANNOTATION`](crate::kube::pod::LATENCY_CRITICAL_ANNOTATION)
//! says otherwise for a pod, both ways. A throttled task counts as waiting in the kernel's figures, so that a throttled
//! pod's are no evidence.

pub mod burst;
mod context;
pub mod suppress;

use std::sync::Arc;

use self::context::CpuContext;
use crate::kube::pod_uid::PodUid;
use crate::kube::qos::QosClass;
use crate::kube::resources::{CPU, eviction_request};
use crate::model::bandwidth::{CgroupCpu, CpuReading, CpuWhy, PodCpu, Waiter};
use crate::model::config::EngineConfig;
pub use crate::model::cpu_state::{CgroupState, CpuState, PodCpuState, WHOLE};
use crate::model::decision::Decision;
use crate::model::event::{Event, EventKind};
use crate::model::state::{NodeState, PodState};

impl PodCpuState {
    /// Whether one of its limits throttled it since the reading before.
    pub fn is_throttled(&self) -> bool {
        self.cgroups.values().any(|cgroup| cgroup.throttled > 0)
    }

    fn take(&mut self, reading: &PodCpu, interval_ns: u64, is_new: bool) {
        let micros = interval_ns / 1000;
        let rate = |grown: u64, per: u64| {
            u64::try_from(u128::from(grown) * u128::from(per) / u128::from(micros.max(1)))
                .unwrap_or(u64::MAX)
        };
        let grown_us = reading.usage_us.saturating_sub(self.usage_us);
        let waited_us = reading.waited_us.zip(self.waited_us);
        if !is_new && interval_ns > 0 {
            self.used_milli = rate(grown_us, 1000);
            self.waited = waited_us.map(|(now, then)| {
                let share = rate(now.saturating_sub(then), WHOLE.into());
                u32::try_from(share).unwrap_or(WHOLE).min(WHOLE)
            });
        }
        self.usage_us = reading.usage_us;
        self.waited_us = reading.waited_us;
        let listed = |name: &Arc<str>| {
            reading
                .cgroups
                .iter()
                .any(|cgroup| cgroup.container == *name)
        };
        self.cgroups.retain(|name, _| listed(name));
        for cgroup in &reading.cgroups {
            match self.cgroups.get_mut(&cgroup.container) {
                Some(known) => known.take(cgroup, interval_ns),
                None => {
                    let state = CgroupState {
                        reading: cgroup.clone(),
                        ..CgroupState::default()
                    };
                    self.cgroups.insert(Arc::clone(&cgroup.container), state);
                }
            }
        }
    }

    /// No figure of it has moved.
    fn stand_still(&mut self, interval_ns: u64) {
        self.used_milli = 0;
        self.waited = self.waited_us.map(|_| 0);
        for cgroup in self.cgroups.values_mut() {
            cgroup.counted_ns = interval_ns;
            (
                cgroup.periods,
                cgroup.throttled,
                cgroup.bursts,
                cgroup.used_us,
            ) = (0, 0, 0, 0);
        }
    }
}

impl CgroupState {
    fn take(&mut self, now: &CgroupCpu, interval_ns: u64) {
        let then = &self.reading;
        self.counted_ns = interval_ns;
        // A cgroup that was made anew under the same name begins at 0.
        self.periods = now.periods.saturating_sub(then.periods);
        self.throttled = now.throttled.saturating_sub(then.throttled);
        self.bursts = now.bursts.saturating_sub(then.bursts);
        self.used_us = now.usage_us.saturating_sub(then.usage_us);
        self.reading = now.clone();
    }
}

/// Applies a reading and decides what follows from it; releases pods that are being ended.
pub(crate) fn decide(
    config: &EngineConfig,
    state: &mut NodeState,
    event: &Event,
    first: usize,
    decisions: &mut Vec<Decision>,
) {
    let options = &config.cpu;
    if options.burst.is_none() && options.suppress.is_none() {
        return;
    }
    suppress::let_go(&mut state.cpu, first, decisions);
    match &event.kind {
        EventKind::CpuReading(reading) => {
            observe(state, reading);
            let NodeState {
                pods,
                placement,
                cpu,
                ..
            } = state;
            let context = CpuContext {
                pods,
                placement: placement.as_ref(),
                now_ns: reading.read_ns,
            };
            cpu.waiters = waiters(&context, cpu);
            if let Some(options) = &options.burst {
                burst::decide(options, &context, cpu, decisions);
            }
            if let Some(options) = &options.suppress {
                suppress::decide(options, &context, cpu, decisions);
            }
        }
        EventKind::CpuNotWritten { uid, container, .. } => {
            let now_ns = state.now_ns;
            suppress::not_written(&mut state.cpu, uid, now_ns);
            let pod_cpu = state.cpu.pods.get_mut(uid);
            if let Some(cgroup) = pod_cpu.and_then(|pod_cpu| pod_cpu.cgroups.get_mut(container)) {
                cgroup.grant.give_up(CpuWhy::NotWritten, now_ns);
            }
        }
        EventKind::PodEmpty { uid } => {
            state.cpu.pods.remove(uid);
            state.cpu.suppression.held.remove(uid);
        }
        _ => {}
    }
}

fn observe(state: &mut NodeState, reading: &CpuReading) {
    let NodeState { pods, cpu, .. } = state;
    let interval_ns = cpu
        .read_ns
        .map_or(0, |read_ns| reading.read_ns.saturating_sub(read_ns));
    cpu.pods
        .retain(|uid, _| pods.get(uid).is_some_and(|pod| pod.running && !pod.removed));
    for pod_cpu in cpu.pods.values_mut() {
        pod_cpu.stand_still(interval_ns);
    }
    for pod_reading in &reading.pods {
        if pods
            .get(&pod_reading.uid)
            .is_none_or(|pod| !pod.running || pod.removed)
        {
            continue;
        }
        let is_new = !cpu.pods.contains_key(&pod_reading.uid);
        let known = cpu.pods.entry(pod_reading.uid.clone()).or_default();
        known.take(pod_reading, interval_ns, is_new);
    }
    let (then, now) = (cpu.shared, reading.shared);
    // With other CPUs the totals are others, too.
    cpu.busy = match now.total_us.checked_sub(then.total_us) {
        Some(total_us) if total_us > 0 && now.cpus == then.cpus => {
            let busy_us = now.busy_us.saturating_sub(then.busy_us).min(total_us);
            let share = u128::from(busy_us) * u128::from(WHOLE) / u128::from(total_us);
            u32::try_from(share).unwrap_or(WHOLE)
        }
        _ => 0,
    };
    cpu.shared = now;
    cpu.source = reading.source;
    cpu.read_ns = Some(reading.read_ns);
    cpu.interval_ns = interval_ns;
}

/// Whether the CPU time that the pod waits for was promised to it by its request.
pub(crate) fn comes_first(pod: &PodState, pod_cpu: &PodCpuState, has_exclusive_cpus: bool) -> bool {
    if pod_cpu.is_throttled() || has_exclusive_cpus || pod.leaving.is_some() {
        return false;
    }
    // An invalid value is reported where manifests are read.
    match pod.pod.latency_critical() {
        Ok(Some(said)) => said,
        Ok(None) | Err(_) => {
            let request = eviction_request(&pod.pod, CPU).milli_value();
            let request_milli = u64::try_from(request).unwrap_or(0);
            pod.pod.qos_class() != QosClass::BestEffort
                && request_milli > 0
                && pod_cpu.used_milli <= request_milli
        }
    }
}

/// The two pods that wait longest, the longest first: for any pod, at least one of them is another pod.
fn waiters(context: &CpuContext<'_>, cpu: &CpuState) -> Vec<Waiter> {
    let Some(source) = cpu.source else {
        return Vec::new();
    };
    let mut found: Vec<(u32, &PodUid, &PodState)> = cpu
        .pods
        .iter()
        .filter_map(|(uid, pod_cpu)| {
            let pod = context.pods.get(uid)?;
            let waited = pod_cpu.waited.filter(|waited| *waited > 0)?;
            comes_first(pod, pod_cpu, context.has_exclusive_cpus(uid)).then_some((waited, uid, pod))
        })
        .collect();
    found.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(other.1)));
    let two = found.into_iter().take(2);
    two.map(|(waited, uid, pod)| Waiter {
        pod: Arc::from(pod.name.as_str()),
        uid: uid.clone(),
        waited,
        source,
    })
    .collect()
}
