//! "Who deserves how much" of `docs/reference/arbitrator.md` in fractions of any size: what the integers of the core
//! stand for. Without groups.

use num_bigint::BigInt;
use num_traits::{Signed, Zero};
use plimsoll_core::arbitration::amounts::Amounts;
use plimsoll_core::arbitration::groups::{Ask, Consumer};

/// A fraction; its denominator is above 0.
#[derive(Debug, Clone)]
pub(crate) struct Ratio(BigInt, BigInt);

impl Ratio {
    fn new(above: impl Into<BigInt>, below: impl Into<BigInt>) -> Self {
        let (above, below) = (above.into(), below.into());
        let (mut a, mut b) = (above.abs(), below.clone());
        while !b.is_zero() {
            (a, b) = (b.clone(), a % b);
        }
        Self(above / &a, below / a)
    }

    fn whole(amount: u64) -> Self {
        Self(amount.into(), 1.into())
    }

    fn plus(&self, other: &Self) -> Self {
        Self::new(&self.0 * &other.1 + &other.0 * &self.1, &self.1 * &other.1)
    }

    fn minus(&self, other: &Self) -> Self {
        Self::new(&self.0 * &other.1 - &other.0 * &self.1, &self.1 * &other.1)
    }

    fn times(&self, other: &Self) -> Self {
        Self::new(&self.0 * &other.0, &self.1 * &other.1)
    }

    fn over(&self, other: &Self) -> Self {
        Self::new(&self.0 * &other.1, &self.1 * &other.0)
    }

    fn is_below(&self, other: &Self) -> bool {
        &self.0 * &other.1 < &other.0 * &self.1
    }

    fn greater<'a>(&'a self, other: &'a Self) -> &'a Self {
        if self.is_below(other) { other } else { self }
    }

    /// Whether a whole amount is at most so many 2⁻ᵇⁱᵗˢ of a unit away.
    pub(crate) fn is_within(&self, amount: u64, bits: u32, parts: u128) -> bool {
        let away = &self.0 - BigInt::from(amount) * &self.1;
        away.abs() << bits <= BigInt::from(parts) * &self.1
    }
}

struct State<'a> {
    weight: u64,
    ask: &'a Ask,
    floor: Vec<Ratio>,
    x: Ratio,
    /// Of each class, where it ended.
    end: Vec<Option<Ratio>>,
    cap: Vec<Option<Ratio>>,
}

impl State<'_> {
    fn open(&self, r: usize) -> Ratio {
        let classes = self.ask.demand.classes.iter().zip(&self.end);
        let open = classes.filter(|(_, end)| end.is_none());
        open.fold(Ratio::whole(0), |sum, (class, _)| {
            sum.plus(&Ratio::whole(class.amounts[r]))
        })
    }

    /// What is had of the classes, without the floor.
    fn filled(&self, r: usize) -> Ratio {
        let classes = self.ask.demand.classes.iter().zip(&self.end);
        classes.fold(Ratio::whole(0), |sum, (class, end)| {
            sum.plus(&Ratio::whole(class.amounts[r]).times(end.as_ref().unwrap_or(&self.x)))
        })
    }

    fn had(&self, r: usize) -> Ratio {
        self.filled(r).greater(&self.floor[r]).clone()
    }

    /// How fast `x` grows with the level; nothing if the open classes need nothing counted.
    fn rate(&self, whole: &[Option<u64>]) -> Option<Ratio> {
        let shares = whole.iter().enumerate().filter_map(|(r, whole)| {
            let whole = whole.filter(|whole| *whole > 0)?;
            Some(self.open(r).over(&Ratio::whole(whole)))
        });
        let greatest = shares.fold(Ratio::whole(0), |greatest, share| {
            greatest.greater(&share).clone()
        });
        Ratio::whole(0)
            .is_below(&greatest)
            .then(|| Ratio::whole(self.weight).over(&greatest))
    }

    fn is_growing(&self) -> bool {
        self.end.iter().any(Option::is_none)
    }

    /// Closes the classes that are whole, or need a resource whose cap is reached.
    fn close(&mut self) {
        let is_whole = !self.x.is_below(&Ratio::whole(1));
        let at_cap: Vec<usize> = (0..self.cap.len())
            .filter(|r| {
                self.cap[*r]
                    .as_ref()
                    .is_some_and(|cap| !self.filled(*r).is_below(cap))
            })
            .collect();
        for (class, end) in self.ask.demand.classes.iter().zip(&mut self.end) {
            let ends = is_whole || at_cap.iter().any(|r| class.amounts[*r] > 0);
            if end.is_none() && ends {
                *end = Some(self.x.clone());
            }
        }
    }
}

/// What each gets of each resource. Floors together are within the capacity, and nobody is unlimited.
pub(crate) fn fill(
    consumers: &[Consumer],
    asks: &[Ask],
    capacity: &[Option<u64>],
) -> Vec<Vec<Ratio>> {
    let resources = 0..capacity.len();
    let mut states: Vec<State<'_>> = consumers
        .iter()
        .zip(asks)
        .map(|(consumer, ask)| State {
            weight: consumer.weight,
            ask,
            floor: floor(consumer, ask)
                .iter()
                .map(|floor| Ratio::whole(*floor))
                .collect(),
            x: Ratio::whole(0),
            end: vec![None; ask.demand.classes.len()],
            cap: capacity
                .iter()
                .map(|capacity| (*capacity == Some(0)).then(|| Ratio::whole(0)))
                .collect(),
        })
        .collect();
    loop {
        for r in resources.clone() {
            let Some(capacity) = capacity[r] else {
                continue;
            };
            let sum = states
                .iter()
                .fold(Ratio::whole(0), |sum, state| sum.plus(&state.had(r)));
            if !sum.is_below(&Ratio::whole(capacity)) {
                for state in &mut states {
                    if state.cap[r].is_none() {
                        state.cap[r] = Some(state.had(r));
                    }
                }
            }
        }
        states.iter_mut().for_each(State::close);
        if !states.iter().any(State::is_growing) {
            break;
        }
        if let Some(free) = states
            .iter_mut()
            .find(|state| state.is_growing() && state.rate(capacity).is_none())
        {
            free.x = Ratio::whole(1);
            continue;
        }
        let step = next_event(&states, capacity);
        for state in states.iter_mut().filter(|state| state.is_growing()) {
            if let Some(rate) = state.rate(capacity) {
                state.x = state.x.plus(&rate.times(&step));
            }
        }
    }
    states
        .iter()
        .map(|state| resources.clone().map(|r| state.had(r)).collect())
        .collect()
}

pub(crate) fn floor(consumer: &Consumer, ask: &Ask) -> Amounts {
    consumer
        .reserved
        .iter()
        .zip(&ask.demand.total)
        .map(|(reserved, asked)| *reserved.min(asked))
        .collect()
}

/// By how much the level grows until somebody is whole, passes its floor or reaches a cap, or a resource is used up.
fn next_event(states: &[State<'_>], capacity: &[Option<u64>]) -> Ratio {
    let mut least: Option<Ratio> = None;
    let mut consider = |left: Ratio, rate: &Ratio| {
        if Ratio::whole(0).is_below(&left) && Ratio::whole(0).is_below(rate) {
            let step = left.over(rate);
            if least.as_ref().is_none_or(|least| step.is_below(least)) {
                least = Some(step);
            }
        }
    };
    let mut sums: Vec<(Ratio, Ratio)> = vec![(Ratio::whole(0), Ratio::whole(0)); capacity.len()];
    for state in states {
        let rate = state.rate(capacity).unwrap_or(Ratio::whole(0));
        if state.is_growing() {
            consider(Ratio::whole(1).minus(&state.x), &rate);
        }
        for (r, (sum, sum_rate)) in sums.iter_mut().enumerate() {
            let filled = state.filled(r);
            let grows = state.open(r).times(&rate);
            consider(state.floor[r].minus(&filled), &grows);
            if let Some(cap) = &state.cap[r] {
                consider(cap.minus(&filled), &grows);
            }
            *sum = sum.plus(&state.had(r));
            if !filled.is_below(&state.floor[r]) {
                *sum_rate = sum_rate.plus(&grows);
            }
        }
    }
    for ((sum, rate), capacity) in sums.iter().zip(capacity) {
        if let Some(capacity) = capacity {
            consider(Ratio::whole(*capacity).minus(sum), rate);
        }
    }
    least.expect("somebody grows")
}
