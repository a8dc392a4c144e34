//! Objects of one kind, bounded, so that no tenant takes the room of others.
//!
//! Problem: what is kept has to be bounded, and objects of some kinds a tenant can make without an end: pending pods,
//! disruption budgets. With one bound for all together one namespace uses it up, and then nothing is known of the
//! objects of the others.
//!
//! Approach: an object that can be left out at the cost of its own namespace alone has a *bearer*, that namespace. A
//! namespace bears so many objects at most, of which a large one counts as several; where there is no room for an
//! object of any kind, one of the namespace that bears most gives way. Of what was left out it is known in which
//! namespace, until all are listed anew. An object without a bearer (a node, a pod that runs) is never left out but
//! where nothing else gives way: then all is in doubt.

use std::collections::{BTreeMap, BTreeSet};

/// How much is kept, as [weights](Borne::weight).
#[derive(Debug, Clone, Copy)]
pub struct Most {
    /// Of all namespaces together.
    pub in_all: usize,
    /// Of what one namespace bears.
    pub of_each: usize,
}

/// An object that is kept by a key.
pub trait Borne<K> {
    /// The namespace that bears the cost if the object is left out; nothing: all would.
    fn bearer<'a>(&'a self, key: &'a K) -> Option<&'a str>;

    /// As how many objects it counts, by the memory that it takes.
    fn weight(&self) -> usize {
        1
    }
}

/// Objects of a kind.
#[derive(Debug, Clone)]
pub struct Bounded<K, V> {
    all: BTreeMap<K, V>,
    listing: Option<BTreeSet<K>>,
    /// While a list is on its way: keys of objects with a bearer that it has not shown so far, by namespace.
    not_shown: BTreeMap<String, BTreeSet<K>>,
    /// What all weigh.
    weight: usize,
    /// Keys of objects with a bearer, and what they weigh, by namespace.
    borne: BTreeMap<String, Part<K>>,
    /// How much each namespace bears, least first.
    sizes: BTreeSet<(usize, String)>,
    /// Objects that were left out since the last list began, by namespace.
    left_out: BTreeMap<String, u64>,
    /// Those that were left out before it, until it is whole.
    left_out_before: BTreeMap<String, u64>,
}

/// What a namespace bears.
#[derive(Debug, Clone)]
struct Part<K> {
    keys: BTreeSet<K>,
    weight: usize,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            listing: None,
            not_shown: BTreeMap::new(),
            weight: 0,
            borne: BTreeMap::new(),
            sizes: BTreeSet::new(),
            left_out: BTreeMap::new(),
            left_out_before: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone, V: PartialEq + Borne<K>> Bounded<K, V> {
    /// One of them.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.all.get(key)
    }

    /// All, by key.
    pub fn iter(&self) -> std::collections::btree_map::Iter<'_, K, V> {
        self.all.iter()
    }

    /// Those from this key on.
    pub fn from(&self, key: K) -> std::collections::btree_map::Range<'_, K, V> {
        self.all.range(key..)
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// What all of them weigh.
    #[must_use]
    pub const fn weight(&self) -> usize {
        self.weight
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many objects of the namespace were left out since they were last listed. While a list is on its way no fewer
    /// than before it.
    #[must_use]
    pub fn left_out_of(&self, namespace: &str) -> u64 {
        let counts = [&self.left_out, &self.left_out_before].map(|it| it.get(namespace));
        counts.into_iter().flatten().copied().max().unwrap_or(0)
    }

    /// The same, of all namespaces together.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        let all = [&self.left_out, &self.left_out_before];
        let namespaces: BTreeSet<&String> = all.into_iter().flat_map(BTreeMap::keys).collect();
        let counts = namespaces.into_iter().map(|it| self.left_out_of(it));
        counts.fold(0, u64::saturating_add)
    }

    /// Whether a list would find objects that were left out and have room now.
    pub(super) fn has_room_again(&self, most: Most) -> bool {
        let mut namespaces = self.left_out.keys();
        self.weight < most.in_all && namespaces.any(|it| self.borne_by(it) < most.of_each)
    }

    /// What the objects weigh that the namespace bears.
    #[must_use]
    pub fn borne_by(&self, namespace: &str) -> usize {
        self.borne.get(namespace).map_or(0, |part| part.weight)
    }

    pub(super) fn list(&mut self) {
        self.listing = Some(BTreeSet::new());
        let borne = self.borne.iter();
        self.not_shown = borne
            .map(|(namespace, part)| (namespace.clone(), part.keys.clone()))
            .collect();
        // The one before may not have come to its end.
        for (namespace, count) in std::mem::take(&mut self.left_out) {
            let before = self.left_out_before.entry(namespace).or_default();
            *before = count.max(*before);
        }
    }

    /// Whether something changed.
    pub(super) fn listed(&mut self) -> bool {
        let Some(listed) = self.listing.take() else {
            return false;
        };
        self.not_shown.clear();
        let before = std::mem::take(&mut self.left_out_before);
        let mut namespaces = before.keys();
        let is_none_left_out = namespaces.any(|it| !self.left_out.contains_key(it));
        let keys = self.all.keys();
        let gone: Vec<K> = keys.filter(|key| !listed.contains(key)).cloned().collect();
        gone.iter().for_each(|key| {
            self.take_out(key);
        });
        !gone.is_empty() || is_none_left_out
    }

    /// Whether something changed; nothing: there are too many, and nothing gives way.
    pub(in crate::arbitrate) fn put(&mut self, key: K, value: V, most: Most) -> Option<bool> {
        let before = self.all.get(&key);
        let weight = value.weight();
        let stays = before.is_some_and(|before| {
            before.bearer(&key) == value.bearer(&key) && before.weight() == weight
        });
        if stays {
            let changed = before != Some(&value);
            if let Some(keys) = value.bearer(&key).and_then(|it| self.not_shown.get_mut(it)) {
                keys.remove(&key);
            }
            self.note_listed(&key);
            self.all.insert(key, value);
            return Some(changed);
        }
        let bearer = value.bearer(&key).map(str::to_owned);
        // It counts otherwise from now on.
        self.take_out(&key);
        let of_bearer = |kept: &Self| bearer.as_deref().map(|it| kept.borne_by(it));
        while let (Some(bearer), Some(borne)) = (&bearer, of_bearer(self))
            && borne + weight > most.of_each
        {
            match self.not_listed_of(bearer) {
                Some(other) => self.take_out(&other),
                None => return self.leave_out(bearer.clone(), most),
            };
        }
        while self.weight + weight > most.in_all {
            let of_bearer = of_bearer(self);
            let gives_way = |(borne, _): &&(usize, String)| {
                of_bearer.is_none_or(|of_bearer| *borne > of_bearer + weight)
            };
            match (self.sizes.last().filter(gives_way).cloned(), &bearer) {
                (Some((_, other)), _) => self.give_way(other, most)?,
                (None, Some(bearer)) => return self.leave_out(bearer.clone(), most),
                (None, None) => return None,
            };
        }
        self.note_listed(&key);
        self.weight += weight;
        if let Some(bearer) = bearer {
            let part = self.borne.entry(bearer.clone()).or_insert_with(|| Part {
                keys: BTreeSet::new(),
                weight: 0,
            });
            part.keys.insert(key.clone());
            let before = part.weight;
            part.weight += weight;
            self.sizes.remove(&(before, bearer.clone()));
            self.sizes.insert((before + weight, bearer));
        }
        self.all.insert(key, value);
        Some(true)
    }

    fn note_listed(&mut self, key: &K) {
        if let Some(listing) = &mut self.listing {
            listing.insert(key.clone());
        }
    }

    /// One of the namespace's objects that the list which is on its way has not shown so far: it may be gone. If it is
    /// not, the list shows it later.
    fn not_listed_of(&self, namespace: &str) -> Option<K> {
        self.not_shown.get(namespace)?.last().cloned()
    }

    /// One object of the namespace makes room for another.
    fn give_way(&mut self, namespace: String, most: Most) -> Option<bool> {
        if let Some(key) = self.not_listed_of(&namespace) {
            return Some(self.take_out(&key));
        }
        let key = self.borne.get(&namespace)?.keys.last()?.clone();
        self.take_out(&key);
        self.leave_out(namespace, most)
    }

    /// One object of the namespace is not known. Whether that is new; nothing: there are more such namespaces than can
    /// be.
    fn leave_out(&mut self, namespace: String, most: Most) -> Option<bool> {
        if self.left_out.len() >= most.in_all && !self.left_out.contains_key(&namespace) {
            return None;
        }
        let count = self.left_out.entry(namespace).or_default();
        *count = count.saturating_add(1);
        Some(*count == 1)
    }

    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
    {
        self.take_out(key)
    }

    fn take_out<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
    {
        let Some((key, value)) = self.all.remove_entry(key) else {
            return false;
        };
        let weight = value.weight();
        self.weight -= weight;
        let bearer = value.bearer(&key);
        if let Some(keys) = bearer.and_then(|it| self.not_shown.get_mut(it)) {
            keys.remove::<K>(&key);
        }
        if let Some(bearer) = bearer
            && let Some(part) = self.borne.get_mut(bearer)
        {
            part.keys.remove::<K>(&key);
            let before = part.weight;
            part.weight -= weight;
            let left = part.weight;
            if left == 0 {
                self.borne.remove(bearer);
            }
            let bearer = bearer.to_owned();
            self.sizes.remove(&(before, bearer.clone()));
            if left > 0 {
                self.sizes.insert((left, bearer));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of namespace `.0`, or of none.
    #[derive(Debug, Clone, PartialEq)]
    struct Object(Option<&'static str>);

    impl Borne<u32> for Object {
        fn bearer<'a>(&'a self, _: &'a u32) -> Option<&'a str> {
            self.0
        }
    }

    /// Of namespace `.0`, as many objects as `.1`.
    #[derive(Debug, Clone, PartialEq)]
    struct Large(&'static str, usize);

    impl Borne<u32> for Large {
        fn bearer<'a>(&'a self, _: &'a u32) -> Option<&'a str> {
            Some(self.0)
        }

        fn weight(&self) -> usize {
            self.1
        }
    }

    #[test]
    fn a_large_object_counts_as_several() {
        let mut kept = Bounded::default();
        assert_eq!(kept.put(0, Large("flood", 5), MOST), Some(true));
        assert_eq!(kept.put(1, Large("flood", 3), MOST), Some(true));
        assert_eq!(kept.put(2, Large("flood", 1), MOST), Some(true), "left out");
        assert_eq!((kept.weight(), kept.left_out_of("flood")), (8, 1));
        // It has become smaller, and makes room.
        assert_eq!(kept.put(0, Large("flood", 4), MOST), Some(true));
        assert_eq!(kept.put(2, Large("flood", 1), MOST), Some(true));
        assert_eq!((kept.weight(), kept.borne_by("flood")), (8, 8));
        // One large object of another namespace costs the flood several.
        assert_eq!(kept.put(10, Large("quiet", 4), MOST), Some(true));
        assert_eq!((kept.borne_by("flood"), kept.borne_by("quiet")), (4, 4));
        assert_eq!(kept.sizes.len(), 2);
        assert!(kept.remove(&0) && kept.remove(&10));
        assert_eq!((kept.weight(), kept.sizes.len()), (0, 0));
    }

    const MOST: Most = Most {
        in_all: 10,
        of_each: 8,
    };

    fn keys(kept: &Bounded<u32, Object>) -> Vec<u32> {
        kept.iter().map(|(key, _)| *key).collect()
    }

    #[test]
    fn a_namespace_with_too_many_loses_its_own_and_no_other_namespace_does() {
        let mut kept = Bounded::default();
        for key in 0..8 {
            assert_eq!(kept.put(key, Object(Some("flood")), MOST), Some(true));
        }
        // The first one that is left out is news, the others are not.
        assert_eq!(kept.put(8, Object(Some("flood")), MOST), Some(true));
        assert_eq!(kept.put(9, Object(Some("flood")), MOST), Some(false));
        assert_eq!((kept.len(), kept.left_out_of("flood")), (8, 2));
        // What is known stays known, and changes.
        assert_eq!(kept.put(3, Object(Some("flood")), MOST), Some(false));
        assert_eq!(kept.put(20, Object(Some("quiet")), MOST), Some(true));
        assert_eq!(kept.put(21, Object(Some("quiet")), MOST), Some(true));
        // No room for all together: the flood gives way, to objects of any kind.
        assert_eq!(kept.put(22, Object(Some("quiet")), MOST), Some(true));
        assert_eq!(kept.put(30, Object(None), MOST), Some(true));
        assert_eq!(keys(&kept), [0, 1, 2, 3, 4, 5, 20, 21, 22, 30]);
        assert_eq!(
            (kept.left_out_of("flood"), kept.left_out_of("quiet")),
            (4, 0)
        );
        assert_eq!(kept.left_out(), 4);
    }

    /// A list takes a while, and until it ends nobody knows that fewer are there.
    #[test]
    fn what_was_left_out_stays_so_until_a_list_is_whole() {
        let mut kept = Bounded::default();
        for key in 0..9 {
            kept.put(key, Object(Some("flood")), MOST);
        }
        for _ in 0..2 {
            kept.list();
            assert_eq!((kept.left_out_of("flood"), kept.left_out()), (1, 1));
            kept.put(0, Object(Some("flood")), MOST);
            assert_eq!(kept.left_out_of("flood"), 1, "and it breaks off");
        }
        assert!(kept.listed());
        assert_eq!((keys(&kept), kept.left_out()), (vec![0], 0));
    }

    /// While no watch said so, all that was there went, and as much came.
    #[test]
    fn what_a_list_has_not_shown_gives_way_to_what_it_shows() {
        let mut kept = Bounded::default();
        for key in 0..8 {
            kept.put(key, Object(Some("a")), MOST);
        }
        kept.put(20, Object(Some("b")), MOST);
        kept.list();
        for key in 10..18 {
            assert!(kept.put(key, Object(Some("a")), MOST).is_some());
        }
        // No room for all together: what may be gone goes first.
        kept.put(21, Object(Some("b")), MOST);
        assert_eq!((kept.left_out_of("a"), kept.left_out_of("b")), (0, 0));
        kept.listed();
        assert_eq!(keys(&kept), [10, 11, 12, 13, 14, 15, 16, 17, 21]);
        // One that is there all the same, and comes later in the list, is left out.
        kept.list();
        for key in (10..19).chain([21]) {
            kept.put(
                key,
                Object(if key == 21 { Some("b") } else { Some("a") }),
                MOST,
            );
        }
        kept.listed();
        assert_eq!(kept.left_out_of("a"), 1);
        assert_eq!(kept.len(), 9);
    }

    #[test]
    fn who_bears_most_gives_way_until_all_bear_the_same() {
        let mut kept = Bounded::default();
        for key in 0..8 {
            kept.put(key, Object(Some("a")), MOST);
        }
        for key in 10..20 {
            kept.put(key, Object(Some("b")), MOST);
        }
        assert_eq!(keys(&kept), [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]);
        assert_eq!((kept.left_out_of("a"), kept.left_out_of("b")), (3, 5));
        // What has no bearer is in doubt for all, once nothing gives way any more.
        for key in 100..110 {
            assert!(kept.put(key, Object(None), MOST).is_some());
        }
        assert_eq!(kept.put(110, Object(None), MOST), None);
        assert_eq!(kept.put(0, Object(Some("a")), MOST), Some(false));
        assert_eq!(kept.len(), 10);
    }

    #[test]
    fn what_counts_otherwise_than_before_takes_the_room_that_it_then_has() {
        let mut kept = Bounded::default();
        for key in 0..9 {
            kept.put(key, Object(Some("a")), MOST);
        }
        assert!(!kept.has_room_again(MOST), "no room");
        // A pod starts.
        assert_eq!(kept.put(0, Object(None), MOST), Some(true));
        assert!(kept.has_room_again(MOST));
        assert_eq!(kept.put(8, Object(Some("a")), MOST), Some(true));
        assert_eq!(kept.len(), 9);
        assert!(!kept.has_room_again(MOST));
        assert!(kept.remove(&1) && !kept.remove(&1));
        assert!(kept.has_room_again(MOST));
        // After a list all is known.
        kept.list();
        for key in [0, 2, 3] {
            kept.put(key, Object(Some("a")), MOST);
        }
        assert!(kept.listed());
        assert_eq!((keys(&kept), kept.left_out()), (vec![0, 2, 3], 0));
        assert_eq!(kept.borne_by("a"), 3);
        assert_eq!(kept.sizes.len(), 1);
    }
}
