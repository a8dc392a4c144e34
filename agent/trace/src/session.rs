//! A session from its start to its end: what is loaded, read, stopped and added up.
//!
//! Two sets of programs, both this process's own and gone with it: those that sample ([`Sampler`]), and of the agent's
//! those whose records make spans and marks ([`Bpf`], loaded as `plimsoll events` does it). An agent that runs beside
//! it keeps its own, with its own maps.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use plimsoll_abi::sampling::SampleEvent;
use rustix::time::ClockId;

use super::TraceError;
use super::groups::{GroupIndex, Groups};
use super::recording::{Clocks, Ending, Losses, Recorder, Recording, Refused, Waits, span_of};
use super::spans::SpanKind;
use super::stacks::Stacks;
use plimsoll::commands::trace::TraceEvent;
use plimsoll::host::HostRoot;
use plimsoll::host::cgroup_paths::Ids;
use plimsoll::host::clock::{now_ns, reading_ns};
use plimsoll::host::protect::raise_open_files;
use plimsoll::host::stop::Session;
use plimsoll::kernel::decode::Record;
use plimsoll::kernel::object::{object, sampling_object};
use plimsoll::kernel::perf_events::{Sampler, SamplingOptions};
use plimsoll::kernel::{
    AtEnd, Bpf, BpfOptions, Counts, Family, HookReport, HookSet, HookState, Unavailable,
};

/// Samples or records read from a ring before the other is looked at.
const BUDGET: usize = 1024;
/// Times [`BUDGET`] is more than any ring holds.
const ROUNDS: usize = 1024;
/// After the programs are gone one may still be running; then its sample is there.
const SETTLE: Duration = Duration::from_millis(5);

/// What a session is to do.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) events: Vec<TraceEvent>,
    pub(super) frequency: u32,
    pub(super) window: Duration,
    pub(super) length: Option<Duration>,
    pub(super) samples_max: usize,
    /// Ids of the selected memory cgroups; `None`: everything.
    pub(super) cgroups: Option<Vec<u64>>,
    /// What is selected, in words.
    pub(super) selection: String,
}

/// Runs a session until its time is over or a signal comes. `began` is called when everything is in place.
pub(super) fn run(
    plan: Plan,
    groups: Groups,
    host: &HostRoot,
    began: impl FnOnce(&[Refused]),
) -> Result<Recording, TraceError> {
    // Each CPU takes a descriptor for each event. Refused: an event that finds none says so.
    let _ = raise_open_files(host);
    let mut session = Session::until_signal().map_err(TraceError::Signals)?;
    let mut refused = Vec::new();
    let mut records = load_records(&plan, &mut refused)?;
    let mut sampler = load_sampler(&plan, &mut refused)?;
    if records.is_none() && sampler.is_none() {
        return Err(nothing(&refused));
    }
    let clocks = clocks();
    let mut recorder = Recorder::new(
        groups,
        Stacks::new(host.clone()),
        clocks.monotonic_ns,
        plan.samples_max,
    );
    // The programs have been adding up since they were attached.
    let before = match &records {
        Some(bpf) => totals(bpf, &mut recorder)?,
        None => BTreeMap::new(),
    };
    began(&refused);
    session.ends_after(plan.length);
    while let Some(left) = session.next_sleep() {
        thread::sleep(left);
        drain(&mut recorder, u64::MAX, sampler.as_mut(), records.as_mut());
    }
    // Taking programs away takes its time, too, and they go on meanwhile.
    let end_ns = now_ns();
    let waits = match &records {
        Some(bpf) => since(totals(bpf, &mut recorder)?, &before),
        None => BTreeMap::new(),
    };
    let mut losses = Losses::default();
    let mut events = Vec::new();
    if let Some(sampler) = &mut sampler {
        events = stop_sampling(sampler, &mut recorder, end_ns, &mut losses)?;
    }
    if let Some(bpf) = &mut records {
        let account = bpf.finish(AtEnd::Detach, |bpf| {
            drain(&mut recorder, end_ns, None, Some(bpf));
        })?;
        losses.records_dropped = account.lost();
        losses.records_unreadable = account.unreadable;
        losses.records_untracked = account.untracked();
    }
    Ok(recorder.finish(Ending {
        clocks,
        end_ns,
        frequency: plan.frequency,
        events,
        selection: plan.selection,
        waits,
        losses,
        refused,
    }))
}

/// Why no event of the session can be had.
fn nothing(refused: &[Refused]) -> TraceError {
    let reasons = refused
        .iter()
        .map(|refused| format!("{}: {}", refused.event, refused.reason));
    TraceError::Nothing {
        reasons: reasons.collect::<Vec<_>>().join("; "),
    }
}

/// Takes the sampling programs away and what they have left in the ring; which events were sampled.
fn stop_sampling(
    sampler: &mut Sampler,
    recorder: &mut Recorder,
    end_ns: u64,
    losses: &mut Losses,
) -> Result<Vec<SampleEvent>, TraceError> {
    sampler.stop();
    thread::sleep(SETTLE);
    drain(recorder, end_ns, Some(sampler), None);
    let mut events = Vec::new();
    for report in sampler.events() {
        if report.cpus > 0 {
            events.push(report.event);
        }
        let counts = sampler.counts(report.event)?;
        // What is in neither count was being written when the programs were taken away.
        let seen = sampler.consumed(report.event) + counts.dropped;
        losses.samples_dropped.insert(
            report.event,
            counts.dropped + counts.produced.saturating_sub(seen),
        );
    }
    losses.samples_unreadable = sampler.unreadable().0;
    Ok(events)
}

/// Takes what the rings have, as many as they hold and not as many as a flood sends, and keeps what is not later than
/// `until_ns`.
fn drain(
    recorder: &mut Recorder,
    until_ns: u64,
    sampler: Option<&mut Sampler>,
    records: Option<&mut Bpf>,
) {
    if let Some(bpf) = records {
        let mut keep = |record: Record<'_>| {
            if record.ts_ns <= until_ns {
                recorder.record(&record);
            }
        };
        for _ in 0..ROUNDS {
            let taken = [
                // First: it has the names of cgroups that the others are about.
                bpf.drain_lifecycle(BUDGET, &mut keep),
                bpf.drain_critical(BUDGET, &mut keep),
                bpf.drain_pressure(BUDGET, &mut keep),
            ];
            if !taken.contains(&BUDGET) {
                break;
            }
        }
    }
    if let Some(sampler) = sampler {
        for _ in 0..ROUNDS {
            let taken = sampler.drain(BUDGET, |sample| {
                if sample.ts_ns <= until_ns {
                    recorder.sample(&sample);
                }
            });
            if taken < BUDGET {
                break;
            }
        }
    }
}

fn load_sampler(plan: &Plan, refused: &mut Vec<Refused>) -> Result<Option<Sampler>, TraceError> {
    let events: Vec<SampleEvent> = plan
        .events
        .iter()
        .filter_map(|event| event.sample())
        .collect();
    if events.is_empty() {
        return Ok(None);
    }
    let sampler = match Sampler::start(
        sampling_object()?,
        &SamplingOptions {
            events: events.clone(),
            frequency: plan.frequency,
            cgroups: plan.cgroups.clone(),
        },
    ) {
        Ok(sampler) => sampler,
        Err(error) => {
            for event in events {
                refused.push(Refused {
                    event: event.name(),
                    in_part: false,
                    reason: error.to_string(),
                });
            }
            return Ok(None);
        }
    };
    for report in sampler.events() {
        if let Some(reason) = &report.refused {
            refused.push(Refused {
                event: report.event.name(),
                in_part: report.cpus > 0,
                reason: reason.clone(),
            });
        }
    }
    Ok(Some(sampler))
}

fn load_records(plan: &Plan, refused: &mut Vec<Refused>) -> Result<Option<Bpf>, TraceError> {
    let families: Vec<(TraceEvent, Family)> = plan
        .events
        .iter()
        .filter_map(|event| Some((*event, event.family()?)))
        .collect();
    if families.is_empty() {
        return Ok(None);
    }
    // With the names of cgroups that are made meanwhile.
    let hooks = families.iter().fold(
        HookSet::NONE.with(Family::Lifecycle),
        |hooks, (_, family)| hooks.with(*family),
    );
    let bpf = match Bpf::load(
        object()?,
        &BpfOptions {
            hooks,
            without: &[],
            window: plan.window,
            counts: Counts::EachCgroup,
        },
    ) {
        Ok(bpf) => bpf,
        Err(error) => {
            for (event, _) in families {
                refused.push(Refused {
                    event: event.name(),
                    in_part: false,
                    reason: error.to_string(),
                });
            }
            return Ok(None);
        }
    };
    for (event, family) in families {
        let hooks = bpf.hooks().iter().filter(|hook| hook.family == family);
        if let Some(reason) = missing(hooks.clone()) {
            refused.push(Refused {
                event: event.name(),
                in_part: hooks.clone().any(HookReport::is_attached),
                reason,
            });
        }
    }
    Ok(Some(bpf))
}

/// Why a family lacks a hook that it should have here, if it does. A target that this kernel does not have is no loss
/// where another hook takes its place.
fn missing<'hooks>(hooks: impl Iterator<Item = &'hooks HookReport> + Clone) -> Option<String> {
    let has_any = hooks.clone().any(HookReport::is_attached);
    hooks.into_iter().find_map(|hook| match &hook.state {
        HookState::Unavailable(Unavailable::NotNeeded { .. } | Unavailable::Partner { .. }) => None,
        HookState::Unavailable(Unavailable::NoTarget { .. }) if has_any => None,
        HookState::Unavailable(reason) => Some(reason.to_string()),
        HookState::Attached { .. } => None,
    })
}

/// The kernel side's own totals, which have what no record told.
fn totals(
    bpf: &Bpf,
    recorder: &mut Recorder,
) -> Result<BTreeMap<(GroupIndex, SpanKind), Waits>, TraceError> {
    let mut totals = Vec::new();
    bpf.drain_throttle(|total| {
        let waits = Waits {
            count: total.count,
            sum_ns: total.sum_ns,
            max_ns: total.max_ns,
        };
        totals.push((Ids::Cpu, total.cgroup_id, SpanKind::Throttled, waits));
    })?;
    bpf.drain_stalls(|total| {
        let waits = Waits {
            count: total.count,
            sum_ns: total.sum_ns,
            max_ns: total.max_ns,
        };
        totals.push((Ids::Memory, total.cgroup_id, span_of(total.cause), waits));
    })?;
    let mut waits = BTreeMap::new();
    for (ids, id, kind, total) in totals {
        let group = recorder.groups.of(ids, id);
        if total.count > 0 && recorder.groups.is_selected(group) {
            waits.insert((group, kind), total);
        }
    }
    Ok(waits)
}

/// What has been added since `before`. The longest stays that of the whole time, where anything was.
fn since(
    mut waits: BTreeMap<(GroupIndex, SpanKind), Waits>,
    before: &BTreeMap<(GroupIndex, SpanKind), Waits>,
) -> BTreeMap<(GroupIndex, SpanKind), Waits> {
    for (key, waits) in &mut waits {
        if let Some(before) = before.get(key) {
            waits.count = waits.count.saturating_sub(before.count);
            waits.sum_ns = waits.sum_ns.saturating_sub(before.sum_ns);
        }
    }
    waits.retain(|_, waits| waits.count > 0);
    waits
}

fn clocks() -> Clocks {
    Clocks {
        monotonic_ns: now_ns(),
        boottime_ns: reading_ns(ClockId::Boottime),
        realtime_ns: reading_ns(ClockId::Realtime),
    }
}
