//! What an object counts, and what a quota takes of that.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::kube::quantity::{Format, Quantity};
use crate::kube::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, ResourceList};

/// One piece.
pub(super) fn one() -> Quantity {
    Quantity::from_value(1, Format::DecimalSI)
}

/// A name that nearly every quota is about, so that it is found without comparing texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    CountPods,
    Cpu,
    EphemeralStorage,
    LimitsCpu,
    LimitsEphemeralStorage,
    LimitsMemory,
    Memory,
    Pods,
    RequestsCpu,
    RequestsEphemeralStorage,
    RequestsMemory,
}

/// All of them, sorted by text, in the order of the type.
const KNOWN: [(&str, Known); 11] = [
    ("count/pods", Known::CountPods),
    (CPU, Known::Cpu),
    (EPHEMERAL_STORAGE, Known::EphemeralStorage),
    ("limits.cpu", Known::LimitsCpu),
    ("limits.ephemeral-storage", Known::LimitsEphemeralStorage),
    ("limits.memory", Known::LimitsMemory),
    (MEMORY, Known::Memory),
    ("pods", Known::Pods),
    ("requests.cpu", Known::RequestsCpu),
    (
        "requests.ephemeral-storage",
        Known::RequestsEphemeralStorage,
    ),
    ("requests.memory", Known::RequestsMemory),
];

impl Known {
    /// `None`: the name is another one.
    pub(super) fn of(name: &str) -> Option<Self> {
        let mut all = KNOWN.iter();
        all.find_map(|(text, known)| (*text == name).then_some(*known))
    }

    /// A set of one.
    pub(super) fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// No place.
const ABSENT: u8 = u8::MAX;

/// Amounts by name, sorted. Shorter lived than a [`ResourceList`], and made once for each object: most names are known
/// beforehand and are not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    amounts: Vec<(Cow<'static, str>, Quantity)>,
    /// Where each of [`KNOWN`] is; [`ABSENT`] if it is not, or only beyond 254 other names.
    places: [u8; KNOWN.len()],
}

impl Default for Usage {
    fn default() -> Self {
        Self::sorted(Vec::new())
    }
}

impl Usage {
    /// Amounts in any order; no name is there twice.
    pub(super) fn new(mut amounts: Vec<(Cow<'static, str>, Quantity)>) -> Self {
        amounts.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Self::sorted(amounts)
    }

    /// Amounts of known names, and others in any order; no name is there twice.
    pub(super) fn with_known(
        known: [Option<Quantity>; KNOWN.len()],
        others: Vec<(Cow<'static, str>, Quantity)>,
    ) -> Self {
        let mut amounts = Vec::with_capacity(known.len() + others.len());
        let mut places = [ABSENT; KNOWN.len()];
        for ((amount, (name, _)), place) in known.into_iter().zip(KNOWN).zip(&mut places) {
            if let Some(amount) = amount {
                *place = u8::try_from(amounts.len()).unwrap_or(ABSENT);
                amounts.push((Cow::Borrowed(name), amount));
            }
        }
        if others.is_empty() {
            return Self { amounts, places };
        }
        amounts.extend(others);
        Self::new(amounts)
    }

    fn sorted(amounts: Vec<(Cow<'static, str>, Quantity)>) -> Self {
        let mut places = [ABSENT; KNOWN.len()];
        let mut known = KNOWN.iter().zip(&mut places).peekable();
        // Both are sorted.
        for (at, (name, _)) in amounts.iter().enumerate() {
            while known
                .next_if(|((known, _), _)| *known < name.as_ref())
                .is_some()
            {}
            if let Some((_, place)) = known.next_if(|((known, _), _)| *known == name.as_ref()) {
                *place = u8::try_from(at).unwrap_or(ABSENT);
            }
        }
        Self { amounts, places }
    }

    /// The place of a name, `known` where it is one of those.
    pub(super) fn position(&self, name: &str, known: Option<Known>) -> Option<usize> {
        let place = known.map(|known| self.places.get(known as usize).copied());
        match place.flatten() {
            Some(place) if place != ABSENT => Some(usize::from(place)),
            Some(_) if self.amounts.len() < usize::from(ABSENT) => None,
            // Most names differ in length, so this is quicker than to halve the list.
            _ => self.amounts.iter().position(|(other, _)| other == name),
        }
    }

    /// The amount of a name.
    pub fn get(&self, name: &str) -> Option<&Quantity> {
        self.at(self.position(name, None)?)
    }

    fn at_with_name(&self, at: usize) -> Option<&(Cow<'static, str>, Quantity)> {
        self.amounts.get(at)
    }

    /// The amount at a place.
    pub(super) fn at(&self, at: usize) -> Option<&Quantity> {
        self.at_with_name(at).map(|(_, amount)| amount)
    }

    /// All amounts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Quantity)> {
        self.amounts
            .iter()
            .map(|(name, amount)| (name.as_ref(), amount))
    }

    /// Whether nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.amounts.is_empty()
    }

    /// The same without what is zero.
    pub(super) fn without_zeros(self) -> Self {
        if self.amounts.iter().all(|(_, amount)| !amount.is_zero()) {
            return self;
        }
        let mut amounts = self.amounts;
        amounts.retain(|(_, amount)| !amount.is_zero());
        Self::sorted(amounts)
    }

    /// By how much it is more than `before`; what is not more is left out.
    pub(super) fn increase(&self, before: &Self) -> Self {
        let grown = self.amounts.iter().map(|(name, amount)| {
            let mut amount = amount.clone();
            if let Some(before) = before.get(name) {
                amount -= before;
            }
            (name.clone(), amount)
        });
        Self::sorted(grown.filter(|(_, amount)| amount.sign() > 0).collect())
    }
}

impl From<ResourceList> for Usage {
    fn from(list: ResourceList) -> Self {
        let amounts = list.into_iter();
        Self::sorted(
            amounts
                .map(|(name, amount)| (Cow::Owned(name), amount))
                .collect(),
        )
    }
}

impl From<&Usage> for ResourceList {
    fn from(usage: &Usage) -> Self {
        let amounts = usage.iter();
        amounts
            .map(|(name, amount)| (name.to_owned(), amount.clone()))
            .collect()
    }
}

impl Serialize for Usage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// What quotas count for an object: one list of amounts, and for each quota the places of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Charges {
    all: Vec<OfQuota>,
    /// What each quota counts.
    places: Vec<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OfQuota {
    at: usize,
    usage: Arc<Usage>,
    name: Arc<str>,
    places: Range<usize>,
}

/// One amount that a quota counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The place of the name in the quota.
    pub(super) row: usize,
    /// The place of the amount in the usage.
    pub(super) amount: usize,
}

/// What one quota counts for an object.
#[derive(Debug, Clone, Copy)]
pub struct Charge<'a> {
    /// The quota.
    pub quota: &'a str,
    /// Its place among those that were checked.
    pub at: usize,
    usage: &'a Usage,
    places: &'a [Place],
}

impl Charges {
    /// With room for so many quotas, and amounts of all of them.
    pub(super) fn with_capacity(quotas: usize, amounts: usize) -> Self {
        Self {
            all: Vec::with_capacity(quotas),
            places: Vec::with_capacity(amounts),
        }
    }

    /// Whether no quota counts anything.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What each quota counts, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Charge<'_>> {
        self.all.iter().map(|of| Charge {
            quota: &of.name,
            at: of.at,
            usage: &of.usage,
            places: self.places.get(of.places.clone()).unwrap_or_default(),
        })
    }

    /// An amount of the quota that is being added.
    pub(super) fn add_place(&mut self, place: Place) {
        self.places.push(place);
    }

    /// Ends the quota that is being added. One that counts nothing is left out.
    pub(super) fn end_quota(&mut self, at: usize, quota: &Arc<str>, usage: &Arc<Usage>) {
        let from = self.all.last().map_or(0, |last| last.places.end);
        if from == self.places.len() {
            return;
        }
        self.all.push(OfQuota {
            at,
            usage: Arc::clone(usage),
            name: Arc::clone(quota),
            places: from..self.places.len(),
        });
    }

    /// Adds what other quotas count.
    pub(super) fn append(&mut self, more: &Self) {
        for (charge, of) in more.iter().zip(&more.all) {
            // Of the quotas that were left out the places are still there.
            let from = self.places.len();
            self.places.extend(charge.places);
            self.all.push(OfQuota {
                places: from..self.places.len(),
                ..of.clone()
            });
        }
    }

    /// The same without the quotas for which this does not hold.
    pub(super) fn retain(&mut self, holds: impl FnMut(Charge<'_>) -> bool) {
        let kept: Vec<bool> = self.iter().map(holds).collect();
        let mut kept = kept.into_iter();
        self.all.retain(|_| kept.next().unwrap_or(false));
    }
}

impl Charge<'_> {
    /// What is added to what is in use, by name.
    pub fn added(&self) -> impl Iterator<Item = (&str, &Quantity)> {
        let amounts = self.places.iter();
        let amounts = amounts.filter_map(|place| self.usage.at_with_name(place.amount));
        amounts.map(|(name, amount)| (name.as_ref(), amount))
    }

    /// The same by the place of the name in the quota.
    pub(super) fn by_row(&self) -> impl Iterator<Item = (usize, &Quantity)> {
        let places = self.places.iter();
        places.filter_map(|place| Some((place.row, self.usage.at(place.amount)?)))
    }
}

impl Serialize for Charges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl Serialize for Charge<'_> {
    /// `quota`, and `added`: amounts by name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let added: BTreeMap<&str, &Quantity> = self.added().collect();
        let mut charge = serializer.serialize_struct("Charge", 2)?;
        charge.serialize_field("quota", self.quota)?;
        charge.serialize_field("added", &added)?;
        charge.end()
    }
}
