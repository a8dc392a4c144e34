//! Sampling perf events for a tracing session.
//!
//! Problem: to see where tasks of some cgroups spend their time, with stacks, without a byte or an instruction more in
//! the agent that runs beside it. Approach: an object of its own ([`sampling_object`](super::object::sampling_object))
//! that this process loads for itself, one perf event per CPU and kind, and a ring that the session reads. When this is
//! dropped, everything is gone.
//!
//! A kernel that refuses one kind of event costs that kind: [`EventReport`] says why, the others go on.

use std::fs;

use aya::maps::{HashMap, MapData, PerCpuArray, RingBuf};
use aya::programs::ProgramError;
use aya::programs::perf_event::{
    PerfEvent, PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent,
};
use aya::{Ebpf, EbpfLoader};
use plimsoll_abi::Config;
use plimsoll_abi::sampling::{
    FRAME_BYTES, FRAMES_MAX, PERIOD_AT, SAMPLES_BYTES_MIN, Sample as SampleHead, SampleEvent,
    SamplingConfig, WANTED_MAX, counts,
};
use zerocopy::IntoBytes;

use super::btf::Btf;
use super::error::{map_error, reason};
use super::lifetime::take_map;
use super::loader::{Machine, check_ring_lock, kernel_types, parse_kernel_types};
use super::{BpfError, layout, lockdown};
use crate::kernel::perf_sample::{Sample, SampleError, decode};

/// The most samples per second and CPU that are asked for: beyond, the machine is busy with being looked at.
pub const FREQUENCY_MAX: u32 = 10_000;

/// What the kernel allows per second.
const RATE_MAX: &str = "/proc/sys/kernel/perf_event_max_sample_rate";
/// Who may use perf events.
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// The members of kernel structs without which no program here can find a task's cgroup.
const MEMBERS: [&str; 5] = [
    "task_struct.cgroups",
    "cgroup_subsys_state.cgroup",
    "cgroup_subsys_state.parent",
    "cgroup.kn",
    "kernfs_node.id",
];

/// The ring holds so long a time of samples as large as they can be, at the frequency that was asked for, on each CPU
/// and of each kind.
const RING_HOLDS_MS: u64 = 100;
/// Its limit.
const RING_BYTES_MAX: u64 = 64 << 20;

/// What a session samples.
#[derive(Clone, Debug)]
pub struct SamplingOptions {
    /// Which events.
    pub events: Vec<SampleEvent>,
    /// How many samples per second and CPU, of each event.
    pub frequency: u32,
    /// Ids of memory cgroups whose tasks are sampled, with all below them; `None`: everybody.
    pub cgroups: Option<Vec<u64>>,
}

/// What became of one kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventReport {
    /// Which.
    pub event: SampleEvent,
    /// On how many CPUs it is sampled.
    pub cpus: usize,
    /// Why it is not, or not on all of them.
    pub refused: Option<String>,
}

/// Where the samples of one event went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// The programs tried to send.
    pub produced: u64,
    /// Found the ring full.
    pub dropped: u64,
}

/// Perf events that are being sampled. Dropping it ends that.
pub struct Sampler {
    /// Until [`Sampler::stop`].
    ebpf: Option<Ebpf>,
    events: Vec<EventReport>,
    ring: RingBuf<MapData>,
    counts: PerCpuArray<MapData, u64>,
    consumed: [u64; SampleEvent::ALL.len()],
    unreadable: u64,
    last_error: Option<SampleError>,
}

impl Sampler {
    /// Loads the programs and starts every event that this host allows.
    ///
    /// # Errors
    /// When nothing can be sampled at all: policy, capabilities, no BTF, or every event is refused. Less is in
    /// [`Sampler::events`].
    pub fn start(object: &[u8], options: &SamplingOptions) -> Result<Sampler, BpfError> {
        lockdown::check()?;
        check_rate(options.frequency)?;
        let machine = Machine::probe()?;
        let bytes = kernel_types()?;
        let btf = parse_kernel_types(&bytes)?;
        check_ring_lock(&btf)?;
        let resolved = layout::resolve(&btf);
        check_members(&resolved.missing, machine.hierarchies.memory_is_v1)?;
        let config = Config {
            memory_is_v1: u32::from(machine.hierarchies.memory_is_v1),
            ..Config::default()
        };
        let sampling = SamplingConfig {
            selected_only: u32::from(options.cgroups.is_some()),
            period_at: period_at(&btf)?,
        };
        let mut ebpf = EbpfLoader::new()
            // For relocations and targets, of which there are none here.
            .btf(None)
            .override_global("LAYOUT", resolved.layout.as_bytes(), true)
            .override_global("CONFIG", config.as_bytes(), true)
            .override_global("SAMPLING", sampling.as_bytes(), true)
            .map_max_entries("SAMPLES", ring_bytes(options, machine.cpus))
            .load(object)
            .map_err(|error| BpfError::Object {
                reason: reason(&error),
            })?;
        // Open until the programs are loaded, which are given it then.
        let _wanted = select(&mut ebpf, options.cgroups.as_deref().unwrap_or_default())?;
        let ring = take_map(&mut ebpf, "SAMPLES")?
            .try_into()
            .map_err(map_error("SAMPLES"))?;
        let counts = take_map(&mut ebpf, "SAMPLE_COUNTS")?
            .try_into()
            .map_err(map_error("SAMPLE_COUNTS"))?;
        let cpus = aya::util::online_cpus().map_err(|(path, source)| BpfError::Cpus {
            path: path.to_owned(),
            source,
        })?;
        let events: Vec<EventReport> = options
            .events
            .iter()
            .map(|event| attach(&mut ebpf, *event, &cpus, options.frequency))
            .collect();
        if let Some(first) = events.first()
            && events.iter().all(|event| event.cpus == 0)
        {
            return Err(BpfError::NoSampling {
                reason: format!(
                    "{}: {}",
                    first.event.name(),
                    first.refused.as_deref().unwrap_or("no CPU is online")
                ),
            });
        }
        Ok(Sampler {
            ebpf: Some(ebpf),
            events,
            ring,
            counts,
            consumed: [0; SampleEvent::ALL.len()],
            unreadable: 0,
            last_error: None,
        })
    }

    /// What became of each event that was asked for.
    #[must_use]
    pub fn events(&self) -> &[EventReport] {
        &self.events
    }

    /// Hands at most `budget` samples to `f`, oldest first. When it returns `budget` there may be more.
    pub fn drain(&mut self, budget: usize, mut f: impl FnMut(Sample<'_>)) -> usize {
        for taken in 0..budget {
            let Some(item) = self.ring.next() else {
                return taken;
            };
            match decode(&item) {
                Ok(sample) => {
                    self.consumed[usize::from(sample.event.number())] += 1;
                    f(sample);
                }
                Err(error) => {
                    self.unreadable += 1;
                    self.last_error = Some(error);
                }
            }
        }
        budget
    }

    /// Takes the programs away. What they have sent can still be read.
    pub fn stop(&mut self) {
        self.ebpf = None;
    }

    /// Where the samples of an event went.
    ///
    /// # Errors
    /// When the kernel refuses to show the counters.
    pub fn counts(&self, event: SampleEvent) -> Result<SampleCounts, BpfError> {
        let sum = |index| -> Result<u64, BpfError> {
            let counts = self
                .counts
                .get(&index, 0)
                .map_err(map_error("SAMPLE_COUNTS"))?;
            Ok(counts.iter().sum())
        };
        Ok(SampleCounts {
            produced: sum(counts::produced(event))?,
            dropped: sum(counts::dropped(event))?,
        })
    }

    /// Samples that were read.
    #[must_use]
    pub fn consumed(&self, event: SampleEvent) -> u64 {
        self.consumed[usize::from(event.number())]
    }

    /// Samples that could not be read, and what was wrong with the last one.
    #[must_use]
    pub fn unreadable(&self) -> (u64, Option<SampleError>) {
        (self.unreadable, self.last_error)
    }
}

/// Where the running kernel has what a sample stands for: one of the places that the programs know.
fn period_at(btf: &Btf<'_>) -> Result<u32, BpfError> {
    let at = btf.offset("bpf_perf_event_data.sample_period");
    at.filter(|at| PERIOD_AT.contains(at))
        .ok_or_else(|| BpfError::NoSampling {
            reason: match at {
                Some(at) => format!(
                    "bpf_perf_event_data.sample_period is at byte {at} on this architecture, and the programs know x86-64 and arm64"
                ),
                None => "this kernel's BTF has no bpf_perf_event_data.sample_period".to_owned(),
            },
        })
}

/// A power of two, as the kernel wants it.
fn ring_bytes(options: &SamplingOptions, cpus: usize) -> u32 {
    const SAMPLE_BYTES_MAX: u64 = (size_of::<SampleHead>() + 2 * FRAMES_MAX * FRAME_BYTES) as u64;
    let per_second = u64::from(options.frequency)
        .saturating_mul(cpus as u64)
        .saturating_mul(options.events.len() as u64);
    let wanted = per_second.saturating_mul(SAMPLE_BYTES_MAX) * RING_HOLDS_MS / 1000;
    let bytes = wanted
        .clamp(u64::from(SAMPLES_BYTES_MIN), RING_BYTES_MAX)
        .next_power_of_two();
    u32::try_from(bytes).unwrap_or(SAMPLES_BYTES_MIN)
}

/// Whether this kernel has each member of its structures by which a task's cgroup is found.
fn check_members(missing: &[&str], memory_is_v1: bool) -> Result<(), BpfError> {
    let of_hierarchy = if memory_is_v1 {
        "css_set.subsys[memory_cgrp_id]"
    } else {
        "css_set.dfl_cgrp"
    };
    let mut members = MEMBERS.into_iter().chain([of_hierarchy]);
    match members.find(|member| missing.contains(member)) {
        Some(member) => Err(BpfError::NoSampling {
            reason: format!("this kernel has no {member}, by which a task's cgroup is found"),
        }),
        None => Ok(()),
    }
}

/// Tells the programs which cgroups are selected, by a map that they have yet to be given.
fn select(ebpf: &mut Ebpf, cgroups: &[u64]) -> Result<HashMap<MapData, u64, u64>, BpfError> {
    let mut wanted: HashMap<MapData, u64, u64> = take_map(ebpf, "WANTED")?
        .try_into()
        .map_err(map_error("WANTED"))?;
    if cgroups.len() > WANTED_MAX as usize {
        return Err(BpfError::NoSampling {
            reason: format!(
                "{} cgroups are selected, but {WANTED_MAX} at most can be: select a cgroup above them",
                cgroups.len()
            ),
        });
    }
    for id in cgroups {
        wanted.insert(id, 1, 0).map_err(map_error("WANTED"))?;
    }
    Ok(wanted)
}

fn check_rate(frequency: u32) -> Result<(), BpfError> {
    // Unreadable: the attempt itself shows it.
    let allowed = fs::read_to_string(RATE_MAX)
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok());
    match allowed {
        Some(allowed) if frequency > allowed => Err(BpfError::NoSampling {
            reason: format!(
                "{frequency} samples per second are more than the {allowed} that {RATE_MAX} allows; ask for fewer"
            ),
        }),
        _ => Ok(()),
    }
}

fn attach(ebpf: &mut Ebpf, event: SampleEvent, cpus: &[u32], frequency: u32) -> EventReport {
    let (program, config) = match event {
        SampleEvent::CpuClock => ("sample_cpu_clock", SoftwareEvent::CpuClock),
        SampleEvent::PageFaults => ("sample_page_faults", SoftwareEvent::PageFaults),
        SampleEvent::ContextSwitches => ("sample_context_switches", SoftwareEvent::ContextSwitches),
    };
    let mut report = EventReport {
        event,
        cpus: 0,
        refused: None,
    };
    let found: Result<&mut PerfEvent, _> = ebpf
        .program_mut(program)
        .ok_or(ProgramError::UnexpectedProgramType)
        .and_then(TryInto::try_into);
    let program = match found.and_then(|program| program.load().map(|()| program)) {
        Ok(program) => program,
        Err(error) => {
            report.refused = Some(reason(&error));
            return report;
        }
    };
    for cpu in cpus {
        let attached = program.attach(
            PerfEventConfig::Software(config),
            PerfEventScope::AllProcessesOneCpu { cpu: *cpu },
            SamplePolicy::Frequency(u64::from(frequency)),
            false,
        );
        match attached {
            Ok(_) => report.cpus += 1,
            Err(error) => {
                let refused = advice(&reason(&error));
                report
                    .refused
                    .get_or_insert_with(|| format!("on CPU {cpu}: {refused}"));
            }
        }
    }
    report
}

/// The kernel's refusal of a perf event, with what to do about it.
fn advice(refusal: &str) -> String {
    if refusal.contains("EACCES") || refusal.contains("EPERM") {
        let paranoid = fs::read_to_string(PARANOID).unwrap_or_default();
        return format!(
            "{refusal}: sampling all processes needs CAP_PERFMON or CAP_SYS_ADMIN ({PARANOID} is {})",
            paranoid.trim()
        );
    }
    if refusal.contains("EMFILE") {
        return format!("{refusal}: raise the limit on open files (ulimit -n)");
    }
    refusal.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(frequency: u32) -> SamplingOptions {
        SamplingOptions {
            events: SampleEvent::ALL.to_vec(),
            frequency,
            cgroups: None,
        }
    }

    #[test]
    fn the_ring_is_a_power_of_two_within_its_bounds() {
        assert_eq!(ring_bytes(&options(99), 2), SAMPLES_BYTES_MIN);
        for (frequency, cpus) in [(99, 256), (999, 64), (FREQUENCY_MAX, 4096)] {
            let bytes = ring_bytes(&options(frequency), cpus);
            assert!(bytes.is_power_of_two(), "{bytes}");
            assert!(bytes > SAMPLES_BYTES_MIN && u64::from(bytes) <= RING_BYTES_MAX);
        }
    }

    #[test]
    fn a_refusal_says_which_capability() {
        assert!(advice("errno 13 (EACCES)").contains("CAP_PERFMON"));
        assert!(advice("errno 24 (EMFILE)").contains("ulimit -n"));
        assert_eq!(advice("errno 22 (EINVAL)"), "errno 22 (EINVAL)");
    }
}
