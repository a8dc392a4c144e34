//! Where a phase ends (`docs/reference/arbitrator.md`, "Who deserves how much"): the greatest level at which nothing
//! passes the room.
//!
//! What all have together grows with the level, nearly in straight lines. So the level is narrowed from both sides by
//! false position: a straight line through what is known below and above says where to look next. When one side stays
//! where it is, its weight is halved each time, so that the guess goes beyond the line (the method "Illinois"). A guess
//! decides nothing: both sides are always exact sums.
//!
//! A claimant that has the same on both sides has the same in between. It is added to one constant and not looked at
//! again; near the end few are left.

use super::path::Paths;
use super::{Filling, Fixed};
use crate::arbitration::amounts::Table;

/// After so many guesses the rest is bisected.
const GUESSES_MAX: u32 = 100;

/// How a phase ends.
pub(super) struct Stop {
    /// The greatest level at which nothing passes the room, or at which all paths have ended.
    pub(super) level: Fixed,
    /// The resources that one level more would pass; none if all paths end before.
    pub(super) passed: Vec<bool>,
}

/// Finds the end of a phase.
pub(super) fn find(filling: &Filling<'_>, paths: &Paths) -> Stop {
    let last = (0..filling.growing.len())
        .map(|path| paths.last_level(path))
        .max();
    let mut search = Search::new(filling, paths, last.unwrap_or(0));
    if !search.passes(&search.high) {
        return Stop {
            level: search.high.level,
            passed: search.passed(&search.high),
        };
    }
    for guesses in 0.. {
        if search.high.level - search.low.level <= 1 {
            break;
        }
        search.narrow(guesses < GUESSES_MAX);
    }
    Stop {
        level: search.low.level,
        passed: search.passed(&search.high),
    }
}

/// What is had at one level.
struct Side {
    level: Fixed,
    /// Of all claimants, by resource.
    sums: Box<[Fixed]>,
    /// Of each claimant that is looked at.
    had: Table<Fixed>,
    /// How often its weight is halved.
    halvings: u32,
}

struct Search<'a> {
    filling: &'a Filling<'a>,
    paths: &'a Paths,
    /// What there is, fixed; of what nothing bounds, the greatest number.
    given: Box<[Fixed]>,
    /// The paths that are looked at.
    active: Vec<usize>,
    /// What all others have.
    constant: Box<[Fixed]>,
    /// The greatest level known to pass nothing.
    low: Side,
    /// The least level known to pass something.
    high: Side,
    /// The table of a side that was given up, to be filled again.
    spare: Table<Fixed>,
}

impl<'a> Search<'a> {
    fn new(filling: &'a Filling<'a>, paths: &'a Paths, last: Fixed) -> Self {
        let resources = filling.given.len();
        let nowhere = || Side {
            level: 0,
            sums: vec![0; resources].into(),
            had: Table::new(0, resources, 0),
            halvings: 0,
        };
        let given = filling.given.iter();
        let mut search = Self {
            filling,
            paths,
            given: given
                .map(|given| given.map_or(Fixed::MAX, super::fixed))
                .collect(),
            active: (0..filling.growing.len()).collect(),
            constant: filling.settled.clone(),
            low: nowhere(),
            high: nowhere(),
            spare: Table::new(0, resources, 0),
        };
        search.high = search.side(last);
        search.low = search.side(0);
        search.fold();
        search
    }

    /// What is had at a level: exact.
    fn side(&mut self, level: Fixed) -> Side {
        let mut had = std::mem::replace(&mut self.spare, Table::new(0, self.given.len(), 0));
        had.resize(self.active.len());
        let mut side = Side {
            level,
            sums: self.constant.clone(),
            had,
            halvings: 0,
        };
        for (row, path) in self.active.iter().enumerate() {
            let x = self.paths.x_at(*path, level);
            let had = side.had.row_mut(row);
            self.filling.held(
                self.filling.growing[*path],
                x,
                |class| self.paths.end(class),
                had,
            );
            for (sum, had) in side.sums.iter_mut().zip(had) {
                *sum = sum.saturating_add(*had);
            }
        }
        side
    }

    fn passes(&self, side: &Side) -> bool {
        side.sums
            .iter()
            .zip(&self.given)
            .any(|(sum, given)| sum > given)
    }

    fn passed(&self, side: &Side) -> Vec<bool> {
        side.sums
            .iter()
            .zip(&self.given)
            .map(|(sum, given)| sum > given)
            .collect()
    }

    /// Looks at one level between both sides, which becomes one of them.
    fn narrow(&mut self, by_guess: bool) {
        let (low, high) = (self.low.level, self.high.level);
        let level = if by_guess {
            self.guess()
        } else {
            low + (high - low) / 2
        };
        let side = self.side(level.clamp(low + 1, high - 1));
        // What is on the other side stays: the next guess goes nearer to it.
        let given_up = if self.passes(&side) {
            self.low.halvings += 1;
            std::mem::replace(&mut self.high, side)
        } else {
            self.high.halvings += 1;
            std::mem::replace(&mut self.low, side)
        };
        self.spare = given_up.had;
        self.fold();
    }

    /// Where straight lines through both sides pass the room: the least such level of all resources.
    fn guess(&self) -> Fixed {
        let (low, high) = (&self.low, &self.high);
        let mut least = high.level;
        for (resource, given) in self.given.iter().enumerate() {
            let excess = high.sums[resource].saturating_sub(*given) >> high.halvings.min(127);
            if excess > 0 {
                let room = (given - low.sums[resource]) >> low.halvings.min(127);
                let line = low.level + part(high.level - low.level, room, room + excess);
                least = least.min(line);
            }
        }
        least
    }

    /// Stops to look at those that have the same on both sides.
    fn fold(&mut self) {
        let mut kept = 0;
        for row in 0..self.active.len() {
            if self.low.had.row(row) == self.high.had.row(row) {
                for (sum, had) in self.constant.iter_mut().zip(self.low.had.row(row)) {
                    *sum = sum.saturating_add(*had);
                }
                continue;
            }
            self.low.had.move_row(row, kept);
            self.high.had.move_row(row, kept);
            self.active[kept] = self.active[row];
            kept += 1;
        }
        self.active.truncate(kept);
    }
}

/// About `length * part / whole`, for a part of a whole.
fn part(length: Fixed, part: Fixed, whole: Fixed) -> Fixed {
    let bits = 128 - whole.leading_zeros();
    let shift = bits.saturating_sub(63);
    let (part, whole) = (part >> shift, (whole >> shift).max(1));
    length / whole * part + length % whole * part / whole
}
