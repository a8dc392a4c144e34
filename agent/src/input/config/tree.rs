//! Reading typed values out of a checked tree.
//!
//! A value that the check refused is `null` here and reads as absent, so a rule says nothing about what was named
//! already.

use plimsoll_core::kube::duration;
use plimsoll_core::kube::quantity::Quantity;

use super::document::{Node, Origin, Value};
use super::problem::Problem;

/// Feature gates that Plimsoll reads, with their defaults in 1.36 (`pkg/features/kube_features.go`).
pub(super) const GATES: [(&str, bool); 4] = [
    ("CustomCPUCFSQuotaPeriod", true),
    ("MemoryQoS", false),
    ("NodeSwap", true),
    ("QOSReserved", false),
];

/// A map of fields.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree<'a>(pub(crate) &'a Node);

impl<'a> Tree<'a> {
    fn value(self, field: &str) -> Option<&'a Value> {
        self.0.get(field).map(|node| &node.value)
    }

    /// Whether the field is there, right or wrong.
    pub(crate) fn has(self, field: &str) -> bool {
        self.0.get(field).is_some()
    }

    /// Where the field comes from, unless it is a default.
    pub(crate) fn given(self, field: &str) -> Option<Origin> {
        let origin = self.0.get(field)?.origin;
        (origin != Origin::Default).then_some(origin)
    }

    pub(crate) fn problem(self, field: &str, reason: impl Into<String>) -> Problem {
        let origin = self.0.get(field).map_or(self.0.origin, |node| node.origin);
        Problem::new(origin, field, reason)
    }

    pub(crate) fn text(self, field: &str) -> Option<&'a str> {
        match self.value(field)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn bool(self, field: &str) -> Option<bool> {
        match self.value(field)? {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn integer(self, field: &str) -> Option<i64> {
        match self.value(field)? {
            Value::Integer(value) => i64::try_from(*value).ok(),
            _ => None,
        }
    }

    pub(crate) fn number(self, field: &str) -> Option<f64> {
        match self.value(field)? {
            Value::Integer(value) => Some(*value as f64),
            Value::Float(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn duration_ns(self, field: &str) -> Option<u64> {
        u64::try_from(duration::parse_ns(self.text(field)?).ok()?).ok()
    }

    pub(crate) fn quantity(self, field: &str) -> Option<Quantity> {
        quantity(self.text(field)?)
    }

    pub(crate) fn object(self, field: &str) -> Option<Tree<'a>> {
        self.0.get(field).map(Tree)
    }

    /// The items of a list of texts.
    pub(crate) fn texts(self, field: &str) -> impl Iterator<Item = (&'a str, Origin)> + use<'a> {
        self.list(field)
            .iter()
            .filter_map(|item| match &item.value {
                Value::Text(text) => Some((text.as_str(), item.origin)),
                _ => None,
            })
    }

    /// The items of a list of objects.
    pub(crate) fn items(self, field: &str) -> impl Iterator<Item = Tree<'a>> + use<'a> {
        self.list(field).iter().map(Tree)
    }

    fn list(self, field: &str) -> &'a [Node] {
        match self.value(field) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }

    /// The entries of a map of texts.
    pub(crate) fn labels(
        self,
        field: &str,
    ) -> impl Iterator<Item = (&'a str, &'a str, Origin)> + use<'a> {
        let entries = match self.value(field) {
            Some(Value::Map(entries)) => entries.as_slice(),
            _ => &[],
        };
        entries.iter().filter_map(|entry| match &entry.node.value {
            Value::Text(text) => Some((entry.key.as_str(), text.as_str(), entry.node.origin)),
            _ => None,
        })
    }

    /// The entries of a map of quantities.
    pub(crate) fn quantities(
        self,
        field: &str,
    ) -> impl Iterator<Item = (&'a str, Quantity, Origin)> + use<'a> {
        self.labels(field)
            .filter_map(|(name, text, origin)| Some((name, quantity(text)?, origin)))
    }

    /// Whether a feature gate of [`GATES`] is on.
    pub(crate) fn gate(self, name: &str) -> bool {
        let set = self
            .object("featureGates")
            .and_then(|gates| gates.bool(name));
        set.unwrap_or_else(|| GATES.iter().any(|(known, on)| *known == name && *on))
    }
}

/// The amount of a resource list that has been checked.
pub(super) fn quantity(text: &str) -> Option<Quantity> {
    Quantity::parse(text).ok()
}
