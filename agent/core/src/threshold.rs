//! Eviction thresholds: what the operator wrote, as the kubelet reads it.
//!
//! Rules: `ParseThresholdConfig` in pkg/kubelet/eviction/helpers.go of Kubernetes 1.36. A threshold without a grace period
//! is *hard*; a soft one with a grace period of `0s` is hard too. `0%` and `100%` (exactly these texts) switch a threshold
//! off. A hard `memory.available` is copied to `allocatableMemory.available` when node allocatable is enforced on pods; those
//! of `containerfs` are always copies of another file system's ([`with_containerfs`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::duration::{self, DurationError};
use crate::policy::rank::ImageFsLayout;
use crate::quantity::Quantity;
use crate::signal::{Observation, SIGNALS, Signal};

/// On which side of a threshold's value a signal is dangerous.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operator {
    /// Below it: something runs out.
    LessThan,
    /// Above it: something piles up.
    GreaterThan,
    /// On neither: the kubelet's copy of a threshold that does not exist (`""`).
    Never,
}

/// An amount in the signal's unit, or a share of its capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// Bytes, inodes, processes.
    Absolute(u64),
    /// A fraction of the capacity: the bits of the `float32` that the kubelet keeps, so that equal configuration means equal
    /// thresholds and no rounding of ours comes in between.
    Fraction(u32),
}

impl Amount {
    /// The amount where the signal's capacity is known. The kubelet's arithmetic: `float32` fraction, product in `float64`,
    /// truncated.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Absolute(amount) => amount,
            Self::Fraction(bits) => (capacity as f64 * f64::from(f32::from_bits(bits))) as u64,
        }
    }
}

/// One eviction threshold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Threshold {
    /// What is watched.
    pub signal: Signal,
    /// On which side of `value` it is met.
    pub operator: Operator,
    /// The threshold is met while the signal shows less than this (stalls: more).
    pub value: Amount,
    /// How long it must be met before pods are evicted, in nanoseconds. 0 = hard.
    pub grace_ns: u64,
    /// How much more must be available before a threshold that was met counts as resolved.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// Whether pods are evicted at once, with a grace period of one second.
    pub fn is_hard(&self) -> bool {
        self.grace_ns == 0
    }

    /// Its value in the signal's unit.
    pub fn amount(&self, capacity: u64) -> u64 {
        self.value.of(capacity)
    }

    /// Its minimum reclaim in the signal's unit; 0 if it has none.
    pub fn reclaim(&self, capacity: u64) -> u64 {
        self.min_reclaim.map_or(0, |amount| amount.of(capacity))
    }

    /// What is missing until an observation satisfies it, in the signal's unit; `None` if it is not met. `with_reclaim`: its
    /// minimum reclaim is to be there too.
    pub fn shortfall(&self, observation: Observation, with_reclaim: bool) -> Option<u64> {
        let value = self.amount(observation.capacity);
        let reclaim = if with_reclaim {
            self.reclaim(observation.capacity)
        } else {
            0
        };
        let missing = match self.operator {
            Operator::LessThan => value
                .saturating_add(reclaim)
                .saturating_sub(observation.value),
            Operator::GreaterThan => observation
                .value
                .saturating_sub(value.saturating_sub(reclaim)),
            Operator::Never => 0,
        };
        (missing > 0).then_some(missing)
    }
}

/// The threshold maps of a kubelet configuration, as written.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ThresholdSettings {
    /// `evictionHard`.
    pub hard: BTreeMap<String, String>,
    /// `evictionSoft`.
    pub soft: BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`.
    pub soft_grace_period: BTreeMap<String, String>,
    /// `evictionMinimumReclaim`.
    pub minimum_reclaim: BTreeMap<String, String>,
    /// Whether `enforceNodeAllocatable` contains `pods`.
    pub enforce_pods: bool,
}

/// What is wrong with a threshold, and in which field.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ThresholdError {
    /// No such signal.
    #[error(
        "{field}: unsupported eviction signal {signal:?}: use one of {}",
        signal_names()
    )]
    UnknownSignal {
        /// The configuration field.
        field: &'static str,
        /// The name as written.
        signal: String,
    },
    /// Neither a quantity nor a percentage, or out of range.
    #[error("{field}: {signal}: {value:?} {reason}")]
    BadAmount {
        /// The configuration field.
        field: &'static str,
        /// The signal.
        signal: Signal,
        /// The value as written.
        value: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A grace period that is not one.
    #[error("evictionSoftGracePeriod: {signal}: {source}")]
    BadGracePeriod {
        /// The signal.
        signal: Signal,
        /// What is wrong.
        source: DurationError,
    },
    /// A grace period below zero.
    #[error("evictionSoftGracePeriod: {signal}: {value:?} must not be negative")]
    NegativeGracePeriod {
        /// The signal.
        signal: Signal,
        /// The value as written.
        value: String,
    },
    /// A soft threshold without its grace period.
    #[error(
        "evictionSoft: {signal} has no entry in evictionSoftGracePeriod: add one, for example \"30s\""
    )]
    NoGracePeriod {
        /// The signal.
        signal: Signal,
    },
}

fn signal_names() -> String {
    SIGNALS
        .iter()
        .map(|row| row.name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Reads the settings. Thresholds come out hard first, then soft, then the copies for allocatable memory, each group in the
/// order of signal names.
///
/// # Errors
/// The first [`ThresholdError`], naming field and signal; nothing is half-applied.
pub fn parse(settings: &ThresholdSettings) -> Result<Vec<Threshold>, ThresholdError> {
    let mut thresholds = statements("evictionHard", &settings.hard)?;
    let mut soft = statements("evictionSoft", &settings.soft)?;
    let mut grace_periods = BTreeMap::new();
    for (name, text) in &settings.soft_grace_period {
        let signal = signal("evictionSoftGracePeriod", name)?;
        let ns = duration::parse_ns(text)
            .map_err(|source| ThresholdError::BadGracePeriod { signal, source })?;
        let ns = u64::try_from(ns).map_err(|_| ThresholdError::NegativeGracePeriod {
            signal,
            value: text.clone(),
        })?;
        grace_periods.insert(signal, ns);
    }
    for threshold in &mut soft {
        let signal = threshold.signal;
        threshold.grace_ns = *grace_periods
            .get(&signal)
            .ok_or(ThresholdError::NoGracePeriod { signal })?;
    }
    thresholds.append(&mut soft);
    for (name, text) in &settings.minimum_reclaim {
        const FIELD: &str = "evictionMinimumReclaim";
        let signal = signal(FIELD, name)?;
        let amount = amount(FIELD, signal, text, Zero::Allowed)?;
        for threshold in thresholds
            .iter_mut()
            .filter(|threshold| threshold.signal == signal)
        {
            threshold.min_reclaim = Some(amount);
        }
    }
    if settings.enforce_pods {
        let copies: Vec<Threshold> = thresholds
            .iter()
            .filter(|threshold| threshold.signal == Signal::MemoryAvailable && threshold.is_hard())
            .map(|threshold| Threshold {
                signal: Signal::AllocatableMemoryAvailable,
                ..*threshold
            })
            .collect();
        thresholds.extend(copies);
    }
    Ok(thresholds)
}

/// The thresholds with those of `containerfs` as copies of the file system that holds writable layers: the node's, or the
/// images' where these have their own and are not split (`UpdateContainerFsThresholds` of the same file). What was configured
/// for `containerfs` is overridden; where there is nothing to copy the kubelet puts a threshold that is never met.
pub fn with_containerfs(thresholds: &[Threshold], layout: ImageFsLayout) -> Vec<Threshold> {
    use Signal::{
        ContainerfsAvailable, ContainerfsInodesFree, ImagefsAvailable, ImagefsInodesFree,
        NodefsAvailable, NodefsInodesFree,
    };
    let (bytes, inodes) = match layout {
        ImageFsLayout::Shared | ImageFsLayout::Split => (NodefsAvailable, NodefsInodesFree),
        ImageFsLayout::Dedicated => (ImagefsAvailable, ImagefsInodesFree),
    };
    let mut updated = thresholds.to_vec();
    for (copy, original) in [
        (ContainerfsAvailable, bytes),
        (ContainerfsInodesFree, inodes),
    ] {
        for hard in [true, false] {
            let find = |signal| {
                // The kubelet's loop keeps the last.
                thresholds
                    .iter()
                    .rposition(|own| own.signal == signal && own.is_hard() == hard)
            };
            let threshold = match find(original) {
                Some(at) => Threshold {
                    signal: copy,
                    ..thresholds[at]
                },
                None => Threshold {
                    signal: copy,
                    operator: Operator::Never,
                    value: Amount::Fraction(0),
                    grace_ns: 0,
                    min_reclaim: None,
                },
            };
            match find(copy) {
                Some(at) => updated[at] = threshold,
                None => updated.push(threshold),
            }
        }
    }
    updated
}

fn statements(
    field: &'static str,
    map: &BTreeMap<String, String>,
) -> Result<Vec<Threshold>, ThresholdError> {
    let mut thresholds = Vec::new();
    for (name, text) in map {
        let signal = signal(field, name)?;
        // Exactly these two texts; "0.0%" stays a threshold that never fires.
        if text == "0%" || text == "100%" {
            continue;
        }
        let value = amount(field, signal, text, Zero::Refused)?;
        thresholds.push(Threshold {
            signal,
            operator: signal.row().operator,
            value,
            grace_ns: 0,
            min_reclaim: None,
        });
    }
    Ok(thresholds)
}

fn signal(field: &'static str, name: &str) -> Result<Signal, ThresholdError> {
    Signal::from_name(name).ok_or_else(|| ThresholdError::UnknownSignal {
        field,
        signal: name.into(),
    })
}

/// Whether a quantity of zero is a value: not for a threshold, but for a minimum reclaim.
#[derive(Clone, Copy, PartialEq)]
enum Zero {
    Allowed,
    Refused,
}

fn amount(
    field: &'static str,
    signal: Signal,
    text: &str,
    zero: Zero,
) -> Result<Amount, ThresholdError> {
    let bad = |reason: String| ThresholdError::BadAmount {
        field,
        signal,
        value: text.into(),
        reason,
    };
    if let Some(number) = text.strip_suffix('%') {
        let percent: f32 = number
            .parse()
            .map_err(|_| bad("is not a percentage such as 5%".into()))?;
        let fraction = percent / 100.0;
        if !(0.0..=1.0).contains(&fraction) {
            return Err(bad("must be between 0% and 100%".into()));
        }
        return Ok(Amount::Fraction(fraction.to_bits()));
    }
    let quantity: Quantity = text
        .parse()
        .map_err(|error| bad(format!("is not a quantity such as 100Mi: {error}")))?;
    let bytes = quantity.value();
    match u64::try_from(bytes) {
        Ok(0) if zero == Zero::Refused => Err(bad(
            "must be more than zero; write 0% to switch the threshold off".into(),
        )),
        Ok(bytes) => Ok(Amount::Absolute(bytes)),
        Err(_) => Err(bad("must not be negative".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn hard(pairs: &[(&str, &str)]) -> ThresholdSettings {
        ThresholdSettings {
            hard: map(pairs),
            ..ThresholdSettings::default()
        }
    }

    #[test]
    fn hard_threshold_is_copied_to_allocatable_when_pods_are_enforced() {
        let mut settings = hard(&[("memory.available", "100Mi")]);
        settings.minimum_reclaim = map(&[("memory.available", "10Mi")]);
        settings.enforce_pods = true;
        let thresholds = parse(&settings).unwrap();
        let expected = Threshold {
            signal: Signal::MemoryAvailable,
            operator: Operator::LessThan,
            value: Amount::Absolute(100 << 20),
            grace_ns: 0,
            min_reclaim: Some(Amount::Absolute(10 << 20)),
        };
        assert_eq!(
            thresholds,
            [
                expected,
                Threshold {
                    signal: Signal::AllocatableMemoryAvailable,
                    ..expected
                }
            ]
        );
    }

    #[test]
    fn percentage_is_a_float32_share_of_capacity() {
        let thresholds = parse(&hard(&[("memory.available", "18.3%")])).unwrap();
        assert_eq!(thresholds[0].value, Amount::Fraction(1_044_079_706));
        assert_eq!(Amount::Fraction(1_022_739_087).of(101), 3);
    }

    #[test]
    fn zero_and_full_percentage_switch_off() {
        assert_eq!(parse(&hard(&[("memory.available", "0%")])), Ok(vec![]));
        assert_eq!(parse(&hard(&[("memory.available", "100%")])), Ok(vec![]));
        assert_eq!(
            parse(&hard(&[("memory.available", "0.0%")])).unwrap().len(),
            1
        );
    }

    #[test]
    fn soft_needs_a_grace_period_and_zero_makes_it_hard() {
        let mut settings = ThresholdSettings {
            soft: map(&[("memory.available", "1Gi")]),
            ..Default::default()
        };
        assert_eq!(
            parse(&settings),
            Err(ThresholdError::NoGracePeriod {
                signal: Signal::MemoryAvailable
            })
        );
        settings.soft_grace_period = map(&[("memory.available", "1m30s")]);
        assert_eq!(parse(&settings).unwrap()[0].grace_ns, 90_000_000_000);
        settings.soft_grace_period = map(&[("memory.available", "0s")]);
        assert!(parse(&settings).unwrap()[0].is_hard());
        settings.soft_grace_period = map(&[("memory.available", "-1s")]);
        assert!(matches!(
            parse(&settings),
            Err(ThresholdError::NegativeGracePeriod { .. })
        ));
    }

    #[test]
    fn errors_name_field_and_signal() {
        let message = |settings: &ThresholdSettings| parse(settings).unwrap_err().to_string();
        assert!(
            message(&hard(&[("memory.free", "1Gi")]))
                .starts_with("evictionHard: unsupported eviction signal")
        );
        for bad in ["", "1Qi", "-1Gi", "0", "x%", "-1%", "101%", "NaN%"] {
            let text = message(&hard(&[("memory.available", bad)]));
            assert!(
                text.starts_with("evictionHard: memory.available: "),
                "{text}"
            );
        }
    }
}
