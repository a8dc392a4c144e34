//! The engine under random and hostile input.
//!
//! Problem: an agent that guards a node must not fall over an odd reading, and an unlucky order of events must not make
//! it evict whom it may not. Approach: histories from a seed. A step is an event made by [`generate`], or one whose
//! figures have been replaced by odd ones ([`mutate`]), so that also what no generator thinks of comes in. After each
//! step the rules of [`Case::step`] must hold. The same seed is the same history, so a failure is one number.

mod generate;
mod mutate;

use std::panic::AssertUnwindSafe;

use plimsoll_core::engine::Engine;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::bandwidth::CpuKnob;
use plimsoll_core::model::decision::{Decision, Reason};
use plimsoll_core::model::event::Event;
use plimsoll_core::model::options::Victims;
use plimsoll_core::model::state::NodeState;

/// Steps of one history.
const STEPS: u32 = 200;

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): every seed is as good as any
/// other.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in so many times.
    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    /// One of them. There is one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        // Below the length of a slice, hence a usize.
        &from[self.below(from.len() as u64) as usize]
    }
}

/// What a run came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Histories.
    pub cases: u64,
    /// Events.
    pub events: u64,
    /// Events with odd figures.
    pub mutated: u64,
    /// Decisions.
    pub decisions: u64,
    /// Evictions among them.
    pub evictions: u64,
}

/// A broken rule, and how to see it again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, step {step}: {why}; again with --seed {seed} --cases 1")]
pub struct Broken {
    /// The history.
    pub seed: u64,
    /// The step, from 0.
    pub step: u32,
    /// The rule.
    pub why: String,
}

/// Runs one history.
///
/// # Errors
/// The first broken rule.
pub fn run(seed: u64, tally: &mut Tally) -> Result<(), Broken> {
    let mut random = Random::new(seed);
    let config = generate::config(&mut random);
    let mut case = Case {
        engine: Engine::new(config),
        decisions: Vec::new(),
    };
    let mut now_ns = 0;
    tally.cases += 1;
    for step in 0..STEPS {
        let mut event = generate::event(&mut random, &mut now_ns);
        if random.one_in(4)
            && let Some(odd) = mutate::figures(&mut random, &event)
        {
            event = odd;
            tally.mutated += 1;
        }
        case.step(&event, random.one_in(16))
            .map_err(|why| Broken { seed, step, why })?;
        tally.events += 1;
        tally.decisions += case.decisions.len() as u64;
        let evictions = case.decisions.iter().filter(|own| is_eviction(own));
        tally.evictions += evictions.count() as u64;
    }
    Ok(())
}

fn is_eviction(decision: &Decision) -> bool {
    matches!(decision, Decision::Evict { .. })
}

/// The pod that a decision ends or takes memory from.
fn ended_or_held(decision: &Decision) -> Option<&PodUid> {
    match decision {
        Decision::Evict { uid, .. }
        | Decision::End { uid, .. }
        | Decision::Kill { uid, .. }
        | Decision::ReleaseMemory { uid }
        | Decision::Reclaim { uid, .. }
        | Decision::SetHigh { uid, .. }
        | Decision::Notify { uid, .. } => Some(uid),
        _ => None,
    }
}

struct Case {
    engine: Engine,
    decisions: Vec<Decision>,
}

impl Case {
    /// Takes one event and looks at what was decided. `resume`: the engine is also made anew from its state as text.
    fn step(&mut self, event: &Event, resume: bool) -> Result<(), String> {
        let before = self.engine.clone();
        self.decisions.clear();
        let engine = &mut self.engine;
        let decisions = &mut self.decisions;
        std::panic::catch_unwind(AssertUnwindSafe(|| engine.step(event, decisions)))
            .map_err(|_| format!("the engine panicked at {}", text(event)))?;
        self.judge(&before, event)?;
        let mut again = before.clone();
        self.must_agree(&mut again, event, "a second time")?;
        if resume {
            let state: NodeState = serde_json::from_str(&text(before.state()))
                .map_err(|error| format!("the state cannot be read back: {error}"))?;
            let mut resumed = Engine::resume(before.config().clone(), state);
            self.must_agree(&mut resumed, event, "resumed from its state")?;
        }
        Ok(())
    }

    fn must_agree(&self, other: &mut Engine, event: &Event, how: &str) -> Result<(), String> {
        let mut decisions = Vec::new();
        other.step(event, &mut decisions);
        if text(&decisions) == text(&self.decisions)
            && text(other.state()) == text(self.engine.state())
        {
            Ok(())
        } else {
            Err(format!(
                "{how}: {} instead of {}",
                text(&decisions),
                text(&self.decisions)
            ))
        }
    }

    fn judge(&self, before: &Engine, event: &Event) -> Result<(), String> {
        let pods = &self.engine.state().pods;
        let mut for_thresholds = 0;
        for decision in &self.decisions {
            if let Some(uid) = ended_or_held(decision)
                && self.engine.config().exempt_uids.contains(uid)
            {
                return Err(format!(
                    "does something to the agent's pod: {}",
                    text(decision)
                ));
            }
            match decision {
                Decision::Evict { uid, reason, .. } => {
                    let pod = pods
                        .get(uid)
                        .ok_or_else(|| format!("evicts {uid}, which it does not know"))?;
                    if pod.row.exempt {
                        return Err(format!("evicts {uid}, which is exempt"));
                    }
                    if !pod.running {
                        return Err(format!("evicts {uid}, which has no process"));
                    }
                    let was_leaving = before.state().pods.get(uid).and_then(|pod| pod.leaving);
                    if was_leaving.is_some_and(|leaving| {
                        leaving.killed_at_ns.is_some() && leaving.evicted_for.is_some()
                    }) {
                        return Err(format!("evicts {uid}, which it has killed"));
                    }
                    for_thresholds += u32::from(matches!(reason, Reason::Threshold(_)));
                }
                Decision::Kill { uid, .. } | Decision::End { uid, .. }
                    if !pods.contains_key(uid) =>
                {
                    return Err(format!("ends {uid}, which it does not know"));
                }
                // Without a limit of its own it is held back for others.
                Decision::SetCpu {
                    uid,
                    knob: CpuKnob::Quota,
                    configured_us: None,
                    ..
                } => {
                    let pod = pods.get(uid);
                    if pod.is_none_or(|pod| pod.row.exempt || !pod.running) {
                        return Err(format!("holds back {uid}, which it may not"));
                    }
                }
                Decision::SetCpu {
                    knob: CpuKnob::Quota,
                    us,
                    configured_us: Some(configured_us),
                    ..
                } => {
                    let burst = self.engine.config().cpu.burst;
                    let most = burst.map_or(100, |burst| burst.quota_percent.max(100));
                    if u128::from(*us) * 100 > u128::from(*configured_us) * u128::from(most) {
                        return Err(format!("gives more than it may: {}", text(decision)));
                    }
                }
                Decision::SampleBy { at_ns } if *at_ns <= event.at_ns && event.at_ns < u64::MAX => {
                    return Err(format!("wants a sample at {at_ns}, which is past"));
                }
                _ => {}
            }
        }
        if for_thresholds > 1 && self.engine.config().options.victims == Victims::One {
            return Err(format!("{for_thresholds} victims at once"));
        }
        let bound = 16 + 8 * pods.len().max(before.state().pods.len());
        if self.decisions.len() > bound {
            return Err(format!("{} decisions for one event", self.decisions.len()));
        }
        Ok(())
    }
}

/// JSON, for comparing and for people.
fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("no JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_histories_hold_and_are_worth_something() {
        let mut tally = Tally::default();
        for seed in 0..30 {
            run(seed, &mut tally).unwrap_or_else(|broken| panic!("{broken}"));
        }
        assert_eq!((tally.cases, tally.events), (30, 30 * u64::from(STEPS)));
        assert!(tally.evictions > 25, "{tally:?}");
        assert!(tally.mutated > 500, "{tally:?}");
    }
}
