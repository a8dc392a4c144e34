//! How far a claimant gets at which level (`docs/reference/arbitrator.md`, "Who deserves how much").
//!
//! As long as the same classes are open, `x` grows in proportion to the level: the dominant resource is the one of
//! which the open classes together are the greatest share, and its share grows at the rate of the weight. A segment
//! ends where `x` is whole, or where a resource with a cap is at its cap: the classes that need it close there, and the
//! next segment begins.

use super::{ClassEnd, Filling, Fixed, NO_CAP, ONE, times};
use crate::arbitration::amounts::ResourceSet;

/// A straight part of a path.
#[derive(Debug, Clone, Copy)]
struct Segment {
    /// The level at which it starts.
    start: Fixed,
    /// The level from which on it has ended.
    end: Fixed,
    /// `x` at its start.
    from: Fixed,
    /// `x` at its end.
    to: Fixed,
    /// By the weight, what there is of the dominant resource, and how much of that the open classes are in total: `x`
    /// grows by `rate / total` a level.
    rate: Fixed,
    total: Fixed,
}

impl Segment {
    fn x_at(&self, level: Fixed) -> Fixed {
        if level >= self.end {
            return self.to;
        }
        let grown = (level - self.start) * self.rate / self.total;
        self.from + grown.min(self.to - self.from)
    }
}

/// The paths of all that grow, in the order of [`Filling::growing`].
#[derive(Debug)]
pub(super) struct Paths {
    segments: Vec<Segment>,
    /// Where the segments of each path start, and where the last path's end.
    first_segment: Vec<usize>,
    /// Of each class of the filling: where it ends on its path.
    ends: Vec<ClassEnd>,
}

impl Paths {
    pub(super) fn of(filling: &Filling<'_>) -> Self {
        let mut paths = Self {
            segments: Vec::with_capacity(filling.growing.len()),
            first_segment: vec![0],
            ends: (0..filling.ends.len())
                .map(|class| filling.end(class))
                .collect(),
        };
        let resources = filling.whole.len();
        let mut totals = Totals {
            open: vec![0; resources].into(),
            closed: vec![0; resources].into(),
        };
        let mut open = Vec::new();
        for claimant in &filling.growing {
            paths.add(filling, *claimant, &mut totals, &mut open);
        }
        paths
    }

    /// Adds the path of a claimant: segment by segment until all its classes are closed.
    fn add(
        &mut self,
        filling: &Filling<'_>,
        claimant: usize,
        totals: &mut Totals,
        open: &mut Vec<usize>,
    ) {
        let weight = Fixed::from(filling.claimants[claimant].weight);
        let classes = filling.classes(claimant);
        open.clear();
        open.extend(classes.filter(|class| filling.ends[*class].is_none()));
        let (mut level, mut x) = (0, filling.x[claimant]);
        while !open.is_empty() {
            totals.add_up(filling, claimant, open, &self.ends);
            let (next, at_cap) = totals.next(filling.caps.row(claimant), x);
            let mut segment = Segment {
                start: level,
                end: level,
                from: x,
                to: next,
                rate: 0,
                total: 1,
            };
            let dominant = totals.dominant(&filling.whole);
            if let Some((whole, total)) = dominant.or_else(|| totals.dominant(&filling.given_alone))
            {
                segment.rate = whole * weight;
                segment.total = total;
                segment.end = level.saturating_add(((next - x) * total).div_ceil(segment.rate));
            }
            self.segments.push(segment);
            open.retain(|class| {
                let ended_by = filling.needs[*class]
                    .iter()
                    .find(|resource| at_cap.contains(*resource));
                if next < ONE && ended_by.is_none() {
                    return true;
                }
                self.ends[*class] = ClassEnd {
                    fraction: next,
                    ended_by: ended_by.filter(|_| next < ONE),
                };
                false
            });
            (level, x) = (segment.end, next);
        }
        self.first_segment.push(self.segments.len());
    }

    fn segments(&self, path: usize) -> &[Segment] {
        &self.segments[self.first_segment[path]..self.first_segment[path + 1]]
    }

    /// The level from which on a path does not grow.
    pub(super) fn last_level(&self, path: usize) -> Fixed {
        self.segments(path).last().map_or(0, |last| last.end)
    }

    /// How far a path is at a level.
    pub(super) fn x_at(&self, path: usize, level: Fixed) -> Fixed {
        let segments = self.segments(path);
        let reached = segments
            .iter()
            .find(|segment| level < segment.end)
            .or(segments.last());
        reached.map_or(ONE, |segment| segment.x_at(level))
    }

    /// Where a class ends on its path.
    pub(super) fn end(&self, class: usize) -> ClassEnd {
        self.ends[class]
    }
}

/// What the classes of one claimant come to, by resource.
struct Totals {
    /// The sum of the open classes.
    open: Box<[Fixed]>,
    /// What is had of the closed ones, fixed.
    closed: Box<[Fixed]>,
}

impl Totals {
    fn add_up(
        &mut self,
        filling: &Filling<'_>,
        claimant: usize,
        open: &[usize],
        ends: &[ClassEnd],
    ) {
        self.open.fill(0);
        self.closed.fill(0);
        for class in filling.classes(claimant) {
            let sums = filling.sums.row(class);
            if open.contains(&class) {
                for (open, sum) in self.open.iter_mut().zip(sums) {
                    *open = open.saturating_add(Fixed::from(*sum));
                }
            } else {
                for (closed, sum) in self.closed.iter_mut().zip(sums) {
                    *closed = closed.saturating_add(times(*sum, ends[class].fraction));
                }
            }
        }
    }

    /// How far the open classes can grow from `x`, and the resources whose caps are reached there.
    fn next(&self, caps: &[Fixed], x: Fixed) -> (Fixed, ResourceSet) {
        let limit = |resource: usize| {
            let is_bound = caps[resource] != NO_CAP && self.open[resource] > 0;
            is_bound.then(|| {
                x.max(caps[resource].saturating_sub(self.closed[resource]) / self.open[resource])
            })
        };
        let limits = (0..caps.len()).filter_map(limit);
        let next = limits.fold(ONE, Fixed::min);
        let mut at_cap = ResourceSet::default();
        for resource in 0..caps.len() {
            if limit(resource).is_some_and(|limit| limit <= next) {
                at_cap.insert(resource);
            }
        }
        (next, at_cap)
    }

    /// The resource of which the open classes are the greatest share, of equals the lesser name: how much there is of
    /// it, and how much of it they are. Nothing if they need no counted resource.
    fn dominant(&self, whole: &[Fixed]) -> Option<(Fixed, Fixed)> {
        let mut greatest: Option<(Fixed, Fixed)> = None;
        for (whole, open) in whole.iter().zip(&self.open) {
            let is_greater =
                greatest.is_none_or(|(other_whole, other)| open * other_whole > other * whole);
            if *whole > 0 && *open > 0 && is_greater {
                greatest = Some((*whole, *open));
            }
        }
        greatest
    }
}
