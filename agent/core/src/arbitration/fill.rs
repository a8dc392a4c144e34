//! Progressive filling in integers (`docs/reference/arbitrator.md`, "Who deserves how much").
//!
//! Problem: claimants share some room. Their dominant shares grow at once, at the rate of their weights, until nothing
//! can grow any more; each has at least its floor, and a resource that is used up stops only the classes that need it.
//!
//! Approach: a claimant has one fraction `x` of its open classes, from 0 to [`ONE`]. How `x` grows with the common
//! *level* is known beforehand: a path of straight segments ([`path`]). A phase ends at the greatest level at which the
//! sum of what all have is within the room ([`search`]). Resources that one level more would pass are then used up: a
//! claimant's cap for them is what it has of them. After at most one phase for each resource, and one more, all classes
//! are closed, and what is had is rounded to whole units ([`round`]).
//!
//! Terms: a *level* counts 2⁻⁶⁴ of a dominant share at a weight of 1. An amount times [`ONE`] is [`Fixed`]. A
//! *claimant* is a namespace or a group; claimants stand in the order of their names. *Whole* is what shares are
//! measured against (`T` of the specification), *given* what there is to share (`B`).
//!
//! Products fit 128 bits, as amounts are below 2⁶⁰ and weights at most 10⁶. Sums over claimants saturate, far above any
//! room.

mod path;
pub(super) mod round;
mod search;
mod shortage;

use super::amounts::{Amounts, ResourceSet, Table};
use super::demand::Demand;
use path::Paths;
pub(super) use shortage::scale_down;

/// An amount, or a share, times [`ONE`].
pub type Fixed = u128;

/// A whole class, a share of all that there is: the greatest `x`.
pub const ONE: Fixed = 1 << 64;

/// No cap.
const NO_CAP: Fixed = Fixed::MAX;

/// Who takes part in a filling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claimant<'a> {
    /// 1 to 1000000.
    pub(super) weight: u64,
    /// What it asks for.
    pub(super) demand: &'a Demand,
    /// What it has for sure (`g`): at most what it asks for.
    pub(super) floor: &'a [u64],
    /// What it does not pass, beside what it asks for; empty: nothing.
    pub(super) caps: &'a [Option<u64>],
    /// What it uses now: of two with the same claim to a unit, the one that uses it keeps it.
    pub(super) used: &'a [u64],
}

/// What is shared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room<'a> {
    /// What shares are measured against (`T`); of uncounted resources nothing.
    pub(super) whole: &'a [Option<u64>],
    /// What there is to give (`B`); of what nothing bounds, nothing.
    pub(super) given: &'a [Option<u64>],
}

/// How the filling of a class ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassEnd {
    /// The fraction of the class that is had, up to [`ONE`].
    pub fraction: Fixed,
    /// The resource that ended it before the whole was had.
    pub ended_by: Option<usize>,
}

/// What a filling came to; claimants as they were given.
#[derive(Debug)]
pub(super) struct Filled {
    /// What each claimant gets, in whole units.
    pub(super) amounts: Table<u64>,
    /// What each has for sure: its floor, or its part of what there is for floors.
    pub(super) floors: Table<u64>,
    /// By how much the floors together pass what there is.
    pub(super) shortage: Amounts,
    /// How each class of each claimant's demand ended.
    ends: Vec<ClassEnd>,
    /// The first class of each claimant in `ends`, and where the last one's end.
    first_class: Vec<usize>,
}

impl Filled {
    /// How each class of a claimant's demand ended.
    pub(super) fn ends(&self, claimant: usize) -> &[ClassEnd] {
        &self.ends[self.first_class[claimant]..self.first_class[claimant + 1]]
    }
}

/// Shares the room.
pub(super) fn fill(claimants: &[Claimant<'_>], room: Room<'_>) -> Filled {
    let mut filling = Filling::new(claimants, room);
    while !filling.growing.is_empty() {
        filling.run_phase();
    }
    filling.finish()
}

/// A filling that goes on.
struct Filling<'a> {
    claimants: &'a [Claimant<'a>],
    /// What shares are measured against; 0 of what no share is counted of.
    whole: Box<[Fixed]>,
    /// What a group's `hard` gives of what no node has, for claimants that ask for nothing else; 0 elsewhere.
    given_alone: Box<[Fixed]>,
    /// What there is to give.
    given: &'a [Option<u64>],
    floors: Table<u64>,
    shortage: Amounts,
    /// What each claimant does not pass, fixed.
    caps: Table<Fixed>,
    /// The fraction that each claimant has of its open classes.
    x: Vec<Fixed>,
    /// The first class of each claimant in `needs`, `sums` and `ends`, and where the last one's classes end.
    first_class: Vec<usize>,
    /// What the pods of each class request.
    needs: Vec<ResourceSet>,
    /// Their sums.
    sums: Table<u64>,
    /// The classes of all claimants; an open one has no end.
    ends: Vec<Option<ClassEnd>>,
    /// Claimants with open classes, ascending.
    growing: Vec<usize>,
    /// The sum of what all others have, fixed.
    settled: Box<[Fixed]>,
    used_up: Box<[bool]>,
}

impl<'a> Filling<'a> {
    fn new(claimants: &'a [Claimant<'a>], room: Room<'a>) -> Self {
        let resources = room.given.len();
        let (floors, shortage) = shortage::floors(claimants, room.given);
        let mut first_class = vec![0];
        let mut classes = 0;
        for claimant in claimants {
            classes += claimant.demand.classes.len();
            first_class.push(classes);
        }
        let mut sums = Table::new(classes, resources, 0);
        let mut needs = Vec::with_capacity(classes);
        for class in claimants
            .iter()
            .flat_map(|claimant| &claimant.demand.classes)
        {
            sums.row_mut(needs.len()).copy_from_slice(&class.amounts);
            needs.push(class.needs);
        }
        let given_alone = room.whole.iter().zip(room.given);
        let given_alone = given_alone.map(|(whole, given)| given.filter(|_| whole.is_none()));
        let of = |amount: Option<u64>| amount.map_or(0, Fixed::from);
        let mut filling = Self {
            claimants,
            whole: room.whole.iter().map(|whole| of(*whole)).collect(),
            given_alone: given_alone.map(of).collect(),
            given: room.given,
            floors,
            shortage,
            caps: Table::new(claimants.len(), resources, NO_CAP),
            x: vec![0; claimants.len()],
            first_class,
            needs,
            sums,
            ends: vec![None; classes],
            growing: Vec::with_capacity(claimants.len()),
            settled: vec![0; resources].into(),
            used_up: room.given.iter().map(|given| *given == Some(0)).collect(),
        };
        filling.set_caps();
        filling.settle((0..claimants.len()).collect());
        filling
    }

    /// The caps at the start: those of the claimants, and 0 of what there is nothing to give.
    fn set_caps(&mut self) {
        for (at, claimant) in self.claimants.iter().enumerate() {
            let row = self.caps.row_mut(at);
            for (cap, bound) in row.iter_mut().zip(claimant.caps) {
                *cap = bound.map_or(NO_CAP, fixed);
            }
            for (cap, used_up) in row.iter_mut().zip(&self.used_up) {
                if *used_up {
                    *cap = 0;
                }
            }
        }
    }

    /// Grows all until a resource is used up, or all have what they ask for.
    fn run_phase(&mut self) {
        let paths = Paths::of(self);
        let stop = search::find(self, &paths);
        let growing = std::mem::take(&mut self.growing);
        let mut had = vec![0; self.used_up.len()];
        for (path, claimant) in growing.iter().copied().enumerate() {
            let x = paths.x_at(path, stop.level);
            self.held(claimant, x, |class| paths.end(class), &mut had);
            for (cap, (passed, had)) in self
                .caps
                .row_mut(claimant)
                .iter_mut()
                .zip(stop.passed.iter().zip(&had))
            {
                if *passed {
                    *cap = *had;
                }
            }
            for class in self.classes(claimant) {
                let end = paths.end(class);
                self.ends[class] = (end.fraction <= x).then_some(end);
            }
            self.x[claimant] = x;
        }
        for (used_up, passed) in self.used_up.iter_mut().zip(stop.passed) {
            *used_up |= passed;
        }
        self.settle(growing);
    }

    /// Goes on with those of the candidates that have open classes, and adds up what the others have.
    fn settle(&mut self, candidates: Vec<usize>) {
        let mut had = vec![0; self.settled.len()];
        for at in candidates {
            if self.classes(at).any(|class| self.ends[class].is_none()) {
                self.growing.push(at);
                continue;
            }
            self.held_at_end(at, &mut had);
            for (sum, had) in self.settled.iter_mut().zip(&had) {
                *sum = sum.saturating_add(*had);
            }
        }
    }

    /// The places of a claimant's classes in `ends`.
    fn classes(&self, claimant: usize) -> std::ops::Range<usize> {
        self.first_class[claimant]..self.first_class[claimant + 1]
    }

    /// What a claimant has of each resource, fixed, when its open classes are at `x` and a class ends at `end`: the sum
    /// over its classes, or its floor.
    fn held(&self, claimant: usize, x: Fixed, end: impl Fn(usize) -> ClassEnd, had: &mut [Fixed]) {
        had.fill(0);
        for class in self.classes(claimant) {
            let fraction = x.min(end(class).fraction);
            for (had, sum) in had.iter_mut().zip(self.sums.row(class)) {
                // A resource without a share puts no bound on what a group asks for.
                *had = had.saturating_add(times(*sum, fraction));
            }
        }
        for (had, floor) in had.iter_mut().zip(self.floors.row(claimant)) {
            *had = (*had).max(fixed(*floor));
        }
    }

    /// The same, when all its classes are closed.
    fn held_at_end(&self, claimant: usize, had: &mut [Fixed]) {
        self.held(claimant, ONE, |class| self.end(class), had);
    }

    fn end(&self, class: usize) -> ClassEnd {
        self.ends[class].unwrap_or(ClassEnd {
            fraction: ONE,
            ended_by: None,
        })
    }

    fn finish(self) -> Filled {
        Filled {
            amounts: round::whole_units(&self),
            ends: (0..self.ends.len()).map(|class| self.end(class)).collect(),
            floors: self.floors,
            shortage: self.shortage,
            first_class: self.first_class,
        }
    }
}

/// An amount, fixed.
fn fixed(amount: u64) -> Fixed {
    Fixed::from(amount) << 64
}

/// A part of an amount, fixed.
fn times(amount: u64, fraction: Fixed) -> Fixed {
    Fixed::from(amount) * fraction
}
