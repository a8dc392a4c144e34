//! Amounts of resources, in a dense form: one place for each resource of the cluster, in the order of the resources'
//! names.
//!
//! The specification compares names by bytes. Here a name is looked up once ([`Resources`]) and is a number from then
//! on; a lesser number is a lesser name.

use std::cmp::Ordering;

/// The most resources that one cluster can name: nodes, Consumers and pods together.
pub const RESOURCES_MAX: usize = 128;

/// Amounts are below this (section 2).
pub const AMOUNT_LIMIT: u64 = 1 << 60;

/// One amount for each resource, in canonical units: `cpu` in thousandths, everything else in its unit.
pub type Amounts = Box<[u64]>;

/// For each resource an amount or nothing. A bound: nothing bounds nothing. A capacity: no node has the resource.
pub type Bounds = Box<[Option<u64>]>;

/// The names of all resources, sorted; an amount's place is its resource's place here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    names: Vec<String>,
}

/// More resources than [`RESOURCES_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} resources are named, at most {RESOURCES_MAX} are possible; remove requests and bounds of resources that no node has"
)]
pub struct TooManyResources {
    /// How many.
    pub count: usize,
}

impl Resources {
    /// Of all names that occur; the same name may occur often.
    ///
    /// # Errors
    /// [`TooManyResources`].
    pub fn new(names: impl IntoIterator<Item = String>) -> Result<Self, TooManyResources> {
        let mut names: Vec<String> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        let count = names.len();
        if count > RESOURCES_MAX {
            return Err(TooManyResources { count });
        }
        Ok(Self { names })
    }

    /// How many resources there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether no resource is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The names, least first.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The place of a name.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.names
            .binary_search_by(|known| known.as_str().cmp(name))
            .ok()
    }

    /// Nothing of each.
    #[must_use]
    pub fn none(&self) -> Amounts {
        vec![0; self.len()].into()
    }

    /// No bound for any.
    #[must_use]
    pub fn unbounded(&self) -> Bounds {
        vec![None; self.len()].into()
    }
}

/// A row of values, one for each resource, for each of many things: in one piece of memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Table<T> {
    width: usize,
    cells: Vec<T>,
}

impl<T: Copy> Table<T> {
    /// So many rows of the same value.
    pub(super) fn new(rows: usize, width: usize, value: T) -> Self {
        Self {
            width,
            cells: vec![value; rows * width],
        }
    }

    /// The values of one thing.
    pub(super) fn row(&self, at: usize) -> &[T] {
        &self.cells[at * self.width..][..self.width]
    }

    /// The values of one thing.
    pub(super) fn row_mut(&mut self, at: usize) -> &mut [T] {
        &mut self.cells[at * self.width..][..self.width]
    }

    /// One value of each thing.
    pub(super) fn column(&self, place: usize) -> impl Iterator<Item = T> {
        self.cells.iter().skip(place).step_by(self.width).copied()
    }

    /// All rows; of a table with values.
    pub(super) fn rows(&self) -> impl Iterator<Item = &[T]> {
        self.cells.chunks_exact(self.width.max(1))
    }

    /// Has so many rows from now on; new ones are nothing.
    pub(super) fn resize(&mut self, rows: usize)
    where
        T: Default,
    {
        self.cells.resize(rows * self.width, T::default());
    }

    /// How many values a row has.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Copies a row over another.
    pub(super) fn move_row(&mut self, from: usize, to: usize) {
        self.cells
            .copy_within(from * self.width..(from + 1) * self.width, to * self.width);
    }
}

/// A set of resources. Sets are ordered as the sorted lists of their names are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceSet(u128);

impl ResourceSet {
    /// Those of which there is an amount above 0: what a pod with these requests needs.
    #[must_use]
    pub fn needed(amounts: &[u64]) -> Self {
        let places = amounts.iter().enumerate();
        let needed = places.filter(|(_, amount)| **amount > 0);
        Self(needed.fold(0, |set, (place, _)| set | 1 << place))
    }

    /// Those of which one side has more than the other.
    #[must_use]
    pub fn greater(amounts: &[u64], than: &[u64]) -> Self {
        let places = amounts.iter().zip(than).enumerate();
        let greater = places.filter(|(_, (amount, than))| amount > than);
        Self(greater.fold(0, |set, (place, _)| set | 1 << place))
    }

    /// One resource.
    #[must_use]
    pub fn of(place: usize) -> Self {
        Self(1 << place)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the resource is one of them.
    #[must_use]
    pub fn contains(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }

    /// Whether both have a resource.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The resources that both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Adds a resource.
    pub fn insert(&mut self, place: usize) {
        self.0 |= 1 << place;
    }

    /// The resources, least first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let place = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            Some(place)
        })
    }
}

impl Ord for ResourceSet {
    fn cmp(&self, other: &Self) -> Ordering {
        let differ = self.0 ^ other.0;
        if differ == 0 {
            return Ordering::Equal;
        }
        // Below the first difference both lists are the same. There one list has this resource; the other has a greater
        // one, or ends.
        let first = differ.trailing_zeros();
        let (has_it, other, order) = if self.0 >> first & 1 == 1 {
            (self, other, Ordering::Less)
        } else {
            (other, self, Ordering::Greater)
        };
        debug_assert!(has_it.contains(first as usize));
        let goes_on = other.0 >> first != 0;
        if goes_on { order } else { order.reverse() }
    }
}

impl PartialOrd for ResourceSet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_ordered_as_their_lists() {
        let sets: Vec<ResourceSet> = (0..64).map(ResourceSet).collect();
        for a in &sets {
            for b in &sets {
                let lists = a.iter().collect::<Vec<_>>().cmp(&b.iter().collect());
                assert_eq!(a.cmp(b), lists, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn names_are_places() {
        let resources =
            Resources::new(["pods", "cpu", "memory", "cpu"].map(str::to_owned)).unwrap();
        assert_eq!(
            resources.names().collect::<Vec<_>>(),
            ["cpu", "memory", "pods"]
        );
        assert_eq!(resources.place("memory"), Some(1));
        assert_eq!(resources.place("gpu"), None);
        let many = (0..=RESOURCES_MAX).map(|number| number.to_string());
        assert_eq!(Resources::new(many), Err(TooManyResources { count: 129 }));
    }
}
