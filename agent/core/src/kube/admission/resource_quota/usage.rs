//! What an object counts, and what a quota takes of that.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::kube::quantity::Quantity;
use crate::kube::resources::ResourceList;

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
    fn position(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|(other, _)| other == name)
    }

    /// The amount of a name.
    pub fn get(&self, name: &str) -> Option<&Quantity> {
        let (_, amount) = self.0.get(self.position(name)?)?;
        Some(amount)
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

/// What one quota counts for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The quota.
    pub quota: String,
    /// All that the object counts, shared by the quotas.
    usage: Arc<Usage>,
    /// The places of what this quota counts of it.
    places: Vec<usize>,
}

impl Charge {
    /// Nothing so far.
    pub(super) fn new(quota: &str, usage: &Arc<Usage>, names: usize) -> Self {
        Self {
            quota: quota.to_owned(),
            usage: Arc::clone(usage),
            places: Vec::with_capacity(names),
        }
    }

    /// The quota counts what the object has under this name. The amount; `None`: it has nothing there.
    pub(super) fn add(&mut self, name: &str) -> Option<&Quantity> {
        let at = self.usage.position(name)?;
        self.places.push(at);
        let (_, amount) = self.usage.0.get(at)?;
        Some(amount)
    }

    /// What is added to what is in use, by name.
    pub fn added(&self) -> impl Iterator<Item = (&str, &Quantity)> {
        let amounts = self.places.iter().filter_map(|at| self.usage.0.get(*at));
        amounts.map(|(name, amount)| (name.as_ref(), amount))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds it to a list of what is in use; what that lacks is taken over.
    pub fn add_to(&self, used: &mut BTreeMap<String, Quantity>) {
        for (name, amount) in self.added() {
            match used.get_mut(name) {
                Some(value) => *value += amount,
                None => {
                    used.insert(name.to_owned(), amount.clone());
                }
            }
        }
    }
}

impl Serialize for Charge {
    /// `quota`, and `added`: amounts by name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let added: BTreeMap<&str, &Quantity> = self.added().collect();
        let mut charge = serializer.serialize_struct("Charge", 2)?;
        charge.serialize_field("quota", &self.quota)?;
        charge.serialize_field("added", &added)?;
        charge.end()
    }
}
