//! What an object counts, and what a quota takes of that.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::kube::quantity::Quantity;
use crate::kube::resources::ResourceList;

/// About as long is the name of a quota.
const NAME_BYTES: usize = 16;

/// Amounts by name, sorted. Shorter lived than a [`ResourceList`], and made once for each object: most names are known beforehand and are not copied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage(Vec<(Cow<'static, str>, Quantity)>);

impl Usage {
    /// Amounts in any order; no name is there twice.
    pub(super) fn new(mut amounts: Vec<(Cow<'static, str>, Quantity)>) -> Self {
        amounts.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Self(amounts)
    }

    /// The place of a name. Most names differ in length, so this is quicker than to halve the list.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|(other, _)| other == name)
    }

    /// The amount of a name.
    pub fn get(&self, name: &str) -> Option<&Quantity> {
        self.at(self.position(name)?)
    }

    /// The amount at a place.
    pub(super) fn at(&self, at: usize) -> Option<&Quantity> {
        self.0.get(at).map(|(_, amount)| amount)
    }

    /// All amounts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Quantity)> {
        self.0.iter().map(|(name, amount)| (name.as_ref(), amount))
    }

    /// Whether nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same without what is zero.
    pub(super) fn without_zeros(mut self) -> Self {
        self.0.retain(|(_, amount)| !amount.is_zero());
        self
    }

    /// By how much it is more than `before`; what is not more is left out.
    pub(super) fn increase(&self, before: &Self) -> Self {
        let grown = self.0.iter().map(|(name, amount)| {
            let mut amount = amount.clone();
            if let Some(before) = before.get(name) {
                amount -= before;
            }
            (name.clone(), amount)
        });
        Self(grown.filter(|(_, amount)| amount.sign() > 0).collect())
    }
}

impl From<ResourceList> for Usage {
    fn from(list: ResourceList) -> Self {
        let amounts = list.into_iter();
        Self(
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
    /// The names of the quotas, one after the other.
    names: String,
    /// Places in the usage of each quota.
    places: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OfQuota {
    at: usize,
    usage: Arc<Usage>,
    name: Range<usize>,
    places: Range<usize>,
}

/// What one quota counts for an object.
#[derive(Debug, Clone, Copy)]
pub struct Charge<'a> {
    /// The quota.
    pub quota: &'a str,
    /// Its place among those that were checked.
    pub at: usize,
    usage: &'a Usage,
    places: &'a [usize],
}

impl Charges {
    /// With room for so many quotas, and names of all of them.
    pub(super) fn with_capacity(quotas: usize, names: usize) -> Self {
        Self {
            all: Vec::with_capacity(quotas),
            names: String::with_capacity(quotas.saturating_mul(NAME_BYTES)),
            places: Vec::with_capacity(names),
        }
    }

    /// Whether no quota counts anything.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What each quota counts, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Charge<'_>> {
        self.all.iter().map(|of| Charge {
            quota: self.names.get(of.name.clone()).unwrap_or_default(),
            at: of.at,
            usage: &of.usage,
            places: self.places.get(of.places.clone()).unwrap_or_default(),
        })
    }

    /// A place of the quota that is being added: of what the object counts.
    pub(super) fn add_place(&mut self, at: usize) {
        self.places.push(at);
    }

    /// Ends the quota that is being added. One that counts nothing is left out.
    pub(super) fn end_quota(&mut self, at: usize, quota: &str, usage: &Arc<Usage>) {
        let from = self.all.last().map_or(0, |last| last.places.end);
        if from == self.places.len() {
            return;
        }
        let name = self.names.len();
        self.names.push_str(quota);
        self.all.push(OfQuota {
            at,
            usage: Arc::clone(usage),
            name: name..self.names.len(),
            places: from..self.places.len(),
        });
    }

    /// Adds what other quotas count.
    pub(super) fn append(&mut self, more: &Self) {
        for (charge, of) in more.iter().zip(&more.all) {
            // Of the quotas that were left out the places are still there.
            let from = self.places.len();
            self.places.extend(charge.places);
            let name = self.names.len();
            self.names.push_str(charge.quota);
            self.all.push(OfQuota {
                at: of.at,
                usage: Arc::clone(&of.usage),
                name: name..self.names.len(),
                places: from..self.places.len(),
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
        let amounts = self.places.iter().filter_map(|at| self.usage.0.get(*at));
        amounts.map(|(name, amount)| (name.as_ref(), amount))
    }

    /// Adds it to a list of what is in use; what that lacks is taken over.
    pub fn add_to(&self, used: &mut BTreeMap<String, Quantity>) {
        let mut lacking: Vec<(&str, &Quantity)> = Vec::new();
        let mut known = used.iter_mut().peekable();
        // Both are sorted.
        for (name, amount) in self.added() {
            while known.next_if(|(other, _)| other.as_str() < name).is_some() {}
            match known.peek_mut() {
                Some((other, value)) if *other == name => **value += amount,
                _ => lacking.push((name, amount)),
            }
        }
        for (name, amount) in lacking {
            used.insert(name.to_owned(), amount.clone());
        }
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
