//! `eviction_thresholds_parse`: what the kubelet makes of its eviction settings.

use std::collections::BTreeMap;

use plimsoll_core::model::file_system::ImageFsLayout;
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::{
    Amount, Operator, Passes, Threshold, ThresholdSettings, for_layout, parse,
};
use serde::Deserialize;
use serde_json::Value;

use super::{Verdict, read, same};

/// The settings of a vector; those of a time line have the same fields.
#[derive(Deserialize)]
pub(super) struct Settings {
    enforce_node_allocatable: Vec<String>,
    eviction_hard: BTreeMap<String, String>,
    eviction_soft: BTreeMap<String, String>,
    eviction_soft_grace_period: BTreeMap<String, String>,
    eviction_minimum_reclaim: BTreeMap<String, String>,
}

impl Settings {
    pub(super) fn settings(self) -> ThresholdSettings {
        ThresholdSettings {
            hard: self.eviction_hard,
            soft: self.eviction_soft,
            soft_grace_period: self.eviction_soft_grace_period,
            minimum_reclaim: self.eviction_minimum_reclaim,
            enforce_pods: self.enforce_node_allocatable.iter().any(|of| of == "pods"),
        }
    }
}

/// A threshold as vectors write it.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord, Clone, Debug)]
pub(super) struct ExpectedThreshold {
    grace_period_ns: u64,
    signal: String,
    operator: String,
    value: ExpectedAmount,
    min_reclaim: Option<ExpectedAmount>,
}

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord, Clone, Debug)]
#[serde(untagged)]
enum ExpectedAmount {
    Quantity { quantity_value: u64 },
    Percentage { percentage_f32_bits: u32 },
}

impl From<Amount> for ExpectedAmount {
    fn from(amount: Amount) -> Self {
        match amount {
            Amount::Absolute(quantity_value) => Self::Quantity { quantity_value },
            Amount::Fraction(percentage_f32_bits) => Self::Percentage {
                percentage_f32_bits,
            },
        }
    }
}

impl From<&Threshold> for ExpectedThreshold {
    fn from(threshold: &Threshold) -> Self {
        Self {
            grace_period_ns: threshold.grace_ns,
            signal: threshold.signal.row().name.to_owned(),
            operator: match threshold.operator {
                Operator::LessThan => "LessThan",
                Operator::GreaterThan => "GreaterThan",
                Operator::Never => "",
            }
            .to_owned(),
            value: threshold.value.into(),
            min_reclaim: threshold.min_reclaim.map(Into::into),
        }
    }
}

/// Thresholds in one order, so that two lists can be compared: the vectors are sorted by grace period and signal only.
pub(super) fn sorted<'a>(
    thresholds: impl IntoIterator<Item = &'a Threshold>,
) -> Vec<ExpectedThreshold> {
    let mut sorted: Vec<ExpectedThreshold> = thresholds.into_iter().map(Into::into).collect();
    sorted.sort_unstable();
    sorted
}

/// The same as keys of a map, which the kubelet makes of thresholds that are met: of two that are equal it has one,
/// unless pointers in them differ, as those to a quantity or to a minimum reclaim do (`thresholdsObservedAt`).
pub(super) fn as_keys<'a>(
    thresholds: impl IntoIterator<Item = &'a Threshold>,
) -> Vec<ExpectedThreshold> {
    let mut keys = sorted(thresholds);
    keys.dedup_by(|one, other| {
        one == other
            && one.min_reclaim.is_none()
            && matches!(one.value, ExpectedAmount::Percentage { .. })
    });
    keys
}

/// Compares thresholds, in whatever order either side has them.
pub(super) fn same_thresholds<'a>(
    what: &str,
    actual: impl IntoIterator<Item = &'a Threshold>,
    mut expected: Vec<ExpectedThreshold>,
) -> Result<(), String> {
    expected.sort_unstable();
    same(what, &sorted(actual), &expected)
}

/// Those that count in every pass but the first.
pub(super) fn lasting(thresholds: &[Threshold]) -> impl Iterator<Item = &Threshold> {
    thresholds
        .iter()
        .filter(|threshold| threshold.passes != Passes::First)
}

/// The file systems of a vector. `None`: a combination that the kubelet's own detection never gives, and for which it
/// copies nothing.
pub(super) fn layout(dedicated: bool, split: bool) -> Option<ImageFsLayout> {
    match (dedicated, split) {
        (false, false) => Some(ImageFsLayout::Shared),
        (true, false) => Some(ImageFsLayout::Dedicated),
        (true, true) => Some(ImageFsLayout::Split),
        (false, true) => None,
    }
}

#[derive(Deserialize)]
struct Vector {
    #[serde(flatten)]
    settings: Settings,
    error_any_of: Option<Vec<String>>,
    thresholds: Option<Vec<ExpectedThreshold>>,
    resolved_at_capacity: Option<Resolved>,
    after_container_fs_update: Option<AfterUpdate>,
}

#[derive(Deserialize)]
struct Resolved {
    capacity: u64,
    values: Vec<ResolvedValue>,
}

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord, Clone, Debug)]
struct ResolvedValue {
    signal: String,
    quantity: i64,
    #[serde(default)]
    min_reclaim: Option<i64>,
}

#[derive(Deserialize)]
struct AfterUpdate {
    dedicated_image_fs: bool,
    split_container_image_fs: bool,
    thresholds: Vec<ExpectedThreshold>,
    warns_containerfs_overridden: bool,
}

pub(super) fn check(vector: &Value) -> Verdict {
    Verdict::of(read(vector).and_then(parsed))
}

fn parsed(vector: Vector) -> Result<(), String> {
    let settings = vector.settings.settings();
    let thresholds = match (parse(&settings), vector.error_any_of) {
        (Err(error), Some(theirs)) => return same_subject(&error.to_string(), &theirs),
        (Err(error), None) => return Err(format!("refused: {error}")),
        (Ok(_), Some(error)) => return Err(format!("accepted; the kubelet says {error:?}")),
        (Ok(thresholds), None) => thresholds,
    };
    let expected = vector.thresholds.ok_or("neither thresholds nor an error")?;
    same_thresholds("thresholds", &thresholds, expected)?;
    if let Some(resolved) = vector.resolved_at_capacity {
        let mut values: Vec<ResolvedValue> = thresholds
            .iter()
            .map(|threshold| ResolvedValue {
                signal: threshold.signal.row().name.to_owned(),
                quantity: threshold.value.of(resolved.capacity),
                min_reclaim: threshold
                    .min_reclaim
                    .map(|amount| amount.of(resolved.capacity)),
            })
            .collect();
        let mut expected = resolved.values;
        values.sort_unstable();
        expected.sort_unstable();
        same("values at capacity", &values, &expected)?;
    }
    let Some(after) = vector.after_container_fs_update else {
        return Ok(());
    };
    let layout = layout(after.dedicated_image_fs, after.split_container_image_fs);
    let updated = match layout {
        Some(layout) => for_layout(&settings, layout).map_err(|error| error.to_string())?,
        None => thresholds.clone(),
    };
    same_thresholds("with containerfs", lasting(&updated), after.thresholds)?;
    let overridden = thresholds.iter().any(|threshold| {
        matches!(
            threshold.signal,
            Signal::ContainerfsAvailable | Signal::ContainerfsInodesFree
        )
    });
    same("warning", &overridden, &after.warns_containerfs_overridden)
}

/// Both messages are about the same signal, where the kubelet's names one.
fn same_subject(ours: &str, theirs: &[String]) -> Result<(), String> {
    let names: Vec<&str> = plimsoll_core::model::signal::SIGNALS
        .iter()
        .map(|row| row.name)
        .collect();
    let about = |text: &str| names.iter().copied().find(|name| text.contains(name));
    // The list of all signals is part of our message about an unknown one.
    let ours_about = if ours.contains("unsupported eviction signal") {
        None
    } else {
        about(ours)
    };
    let agrees = theirs
        .iter()
        .any(|theirs| about(theirs).is_none() || about(theirs) == ours_about);
    if agrees {
        Ok(())
    } else {
        Err(format!("{ours:?} is about something else than {theirs:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `memory.available` as a hard threshold, and as a soft one without grace, which is hard, too.
    fn keys(value: &str, minimum_reclaim: Option<&str>) -> usize {
        let of = |value: &str| BTreeMap::from([("memory.available".to_owned(), value.to_owned())]);
        let settings = ThresholdSettings {
            hard: of(value),
            soft: of(value),
            soft_grace_period: of("0s"),
            minimum_reclaim: minimum_reclaim.map_or_else(BTreeMap::new, of),
            enforce_pods: false,
        };
        as_keys(&parse(&settings).unwrap()).len()
    }

    #[test]
    fn equal_percentages_are_one_key_and_pointers_make_two() {
        assert_eq!(keys("10%", None), 1);
        assert_eq!(keys("10%", Some("1Gi")), 2);
        assert_eq!(keys("1Gi", None), 2);
    }
}
