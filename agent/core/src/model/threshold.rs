//! Eviction thresholds: what the operator wrote, as the kubelet reads it.
//!
//! Rules: `ParseThresholdConfig` in pkg/kubelet/eviction/helpers.go of Kubernetes 1.36. A threshold without a grace
//! period is *hard*; a soft one with a grace period of `0s` is hard too. `0%` and `100%` (exactly these texts) switch a
//! threshold off. A hard `memory.available` is copied to `allocatableMemory.available` when node allocatable is
//! enforced on pods; those of `containerfs` are always copies of another file system's ([`for_layout`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::kube::duration::{self, DurationError};
use crate::kube::go_float::parse_f32;
use crate::kube::quantity::{Format, Quantity};
use crate::kube::resources::{EPHEMERAL_STORAGE, MEMORY, ResourceList};
use crate::model::file_system::ImageFsLayout;
pub use crate::model::signal::Operator;
use crate::model::signal::{Observation, SIGNALS, Signal};

/// An amount in the signal's unit, or a share of its capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// Bytes, inodes, processes.
    Absolute(u64),
    /// A fraction of the capacity: the bits of the `float32` that the kubelet keeps, so that equal configuration means
    /// equal thresholds and no rounding of ours comes in between.
    Fraction(u32),
}

impl Amount {
    /// The amount where the signal's capacity is known. The kubelet's arithmetic (`GetThresholdQuantity`): `float32`
    /// fraction, product in `float64`, truncated; what no `int64` can hold becomes the smallest one, as on amd64.
    pub fn of(self, capacity: u64) -> i64 {
        match self {
            Self::Absolute(amount) => i64::try_from(amount).unwrap_or(i64::MAX),
            Self::Fraction(bits) => {
                let product = capacity as f64 * f64::from(f32::from_bits(bits));
                // 2^63 is exact in float64; NaN is in no range.
                let fits =
                    (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&product);
                if fits { product as i64 } else { i64::MIN }
            }
        }
    }

    /// The same for people and for headroom: never below 0.
    pub fn units(self, capacity: u64) -> u64 {
        self.of(capacity).max(0).unsigned_abs()
    }
}

/// In which passes a threshold counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Passes {
    /// In all.
    #[default]
    All,
    /// In the first pass of the engine; later only for as long as it stays met with its minimum reclaim. See
    /// [`for_layout`].
    First,
    /// In all but the first.
    Later,
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
    /// In which passes it counts.
    #[serde(default)]
    pub passes: Passes,
}

impl Threshold {
    /// Whether pods are evicted at once, with a grace period of one second.
    pub fn is_hard(&self) -> bool {
        self.grace_ns == 0
    }

    /// Its value in the signal's unit, never below 0.
    pub fn amount(&self, capacity: u64) -> u64 {
        self.value.units(capacity)
    }

    /// What is missing until an observation satisfies it, in the signal's unit; `None` if it is not met.
    /// `with_reclaim`: its minimum reclaim is to be there too.
    pub fn shortfall(&self, observation: Observation, with_reclaim: bool) -> Option<u64> {
        let value = i128::from(self.value.of(observation.capacity));
        let reclaim = match self.min_reclaim {
            Some(amount) if with_reclaim => i128::from(amount.of(observation.capacity)),
            _ => 0,
        };
        let shown = i128::from(observation.value);
        let missing = match self.operator {
            Operator::LessThan => value + reclaim - shown,
            Operator::GreaterThan => shown - (value - reclaim).max(0),
            Operator::Never => 0,
        };
        (missing > 0).then(|| u64::try_from(missing).unwrap_or(u64::MAX))
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

/// Reads the settings. Thresholds come out hard first, then soft, then the copies for allocatable memory, each group in
/// the order of signal names.
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
    let mut reclaims = BTreeMap::new();
    for (name, text) in &settings.minimum_reclaim {
        const FIELD: &str = "evictionMinimumReclaim";
        let signal = signal(FIELD, name)?;
        reclaims.insert(signal, amount(FIELD, signal, text, Zero::Allowed)?);
    }
    for threshold in &mut soft {
        let signal = threshold.signal;
        threshold.grace_ns = *grace_periods
            .get(&signal)
            .ok_or(ThresholdError::NoGracePeriod { signal })?;
    }
    thresholds.append(&mut soft);
    for threshold in &mut thresholds {
        threshold.min_reclaim = reclaims.get(&threshold.signal).copied();
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

/// Reads the settings for a node whose file systems are known: [`parse`], with those of `containerfs` as copies of the
/// file system that holds writable layers, which is the node's, or the images' where these have their own and are not
/// split (`UpdateContainerFsThresholds` of the same file). What was configured for `containerfs` is overridden; where
/// there is nothing to copy the kubelet puts a threshold that is never met.
///
/// The kubelet finds out about file systems in its first pass and judges that pass by the list as it was before
/// (`synchronize` in eviction_manager.go assigns the new one to a variable of an inner scope). So copies count
/// [after](Passes::Later) it, and what is overridden counts in the [first](Passes::First), unless the override was
/// written into the array that both lists share: that is so until the list outgrows it ([`Room`]).
///
/// # Errors
/// As [`parse`].
pub fn for_layout(
    settings: &ThresholdSettings,
    layout: ImageFsLayout,
) -> Result<Vec<Threshold>, ThresholdError> {
    use Signal::{
        ContainerfsAvailable, ContainerfsInodesFree, ImagefsAvailable, ImagefsInodesFree,
        NodefsAvailable, NodefsInodesFree,
    };
    let (bytes, inodes) = match layout {
        ImageFsLayout::Shared | ImageFsLayout::Split => (NodefsAvailable, NodefsInodesFree),
        ImageFsLayout::Dedicated => (ImagefsAvailable, ImagefsInodesFree),
    };
    let thresholds = parse(settings)?;
    let mut room = Room::of(settings, &thresholds);
    let mut updated = thresholds.clone();
    for (copy, original) in [
        (ContainerfsAvailable, bytes),
        (ContainerfsInodesFree, inodes),
    ] {
        for hard in [true, false] {
            // Of several the kubelet's loop keeps the last.
            let find = |signal| {
                thresholds.iter().rposition(|threshold| {
                    threshold.signal == signal && threshold.is_hard() == hard
                })
            };
            let threshold = match find(original) {
                Some(at) => Threshold {
                    signal: copy,
                    passes: Passes::Later,
                    ..thresholds[at]
                },
                None => Threshold {
                    signal: copy,
                    operator: Operator::Never,
                    value: Amount::Fraction(0),
                    grace_ns: 0,
                    min_reclaim: None,
                    passes: Passes::Later,
                },
            };
            match find(copy) {
                Some(at) if room.is_shared => {
                    updated[at] = Threshold {
                        passes: Passes::All,
                        ..threshold
                    };
                }
                Some(at) => {
                    updated[at].passes = Passes::First;
                    updated.push(threshold);
                }
                None => {
                    room.append(1);
                    updated.push(threshold);
                }
            }
        }
    }
    Ok(updated)
}

/// The array behind the kubelet's list of thresholds: whether the list before its last change and the one after still
/// share it.
#[derive(Clone, Copy)]
struct Room {
    used: usize,
    capacity: usize,
    is_shared: bool,
}

impl Room {
    /// What the kubelet's parser leaves: it appends the hard ones, then the soft ones, and begins a new array where
    /// copies for allocatable memory are made.
    fn of(settings: &ThresholdSettings, thresholds: &[Threshold]) -> Self {
        let stated = |map: &BTreeMap<String, String>| {
            map.values().filter(|text| !is_switched_off(text)).count()
        };
        let (hard, soft) = (stated(&settings.hard), stated(&settings.soft));
        let mut room = Self {
            used: 0,
            capacity: 0,
            is_shared: true,
        };
        if settings.enforce_pods {
            room.append(hard + soft);
            room.append(thresholds.len() - hard - soft);
        } else {
            room.append(hard);
            room.append(soft);
        }
        room.is_shared = true;
        room
    }

    /// Go's `append` for elements of 64 bytes: room for twice as many, or as many as there are, in whole size classes
    /// of its allocator.
    fn append(&mut self, more: usize) {
        const CLASSES: [usize; 20] = [
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24, 28, 32,
        ];
        self.used += more;
        if self.used > self.capacity {
            let wanted = self.used.max(2 * self.capacity);
            let class = CLASSES.into_iter().find(|class| *class >= wanted);
            self.capacity = class.unwrap_or(wanted);
            self.is_shared = false;
        }
    }
}

/// Exactly these two texts; "0.0%" stays a threshold that never fires.
fn is_switched_off(text: &str) -> bool {
    text == "0%" || text == "100%"
}

fn statements(
    field: &'static str,
    map: &BTreeMap<String, String>,
) -> Result<Vec<Threshold>, ThresholdError> {
    let mut thresholds = Vec::new();
    for (name, text) in map {
        let signal = signal(field, name)?;
        if is_switched_off(text) {
            continue;
        }
        let value = amount(field, signal, text, Zero::Refused)?;
        thresholds.push(Threshold {
            signal,
            operator: signal.row().operator,
            value,
            grace_ns: 0,
            min_reclaim: None,
            passes: Passes::All,
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

/// Whether a quantity of zero is a value: not for a threshold, but for a minimum reclaim. (For percentages the kubelet
/// has it the other way round, and no upper bound for a minimum reclaim.)
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
    if text.ends_with('%') {
        // All of them (strings.TrimRight): "5%%" is 5 % to the kubelet.
        let text = text.trim_end_matches('%');
        let percent =
            parse_f32(text).ok_or_else(|| bad("is not a percentage such as 5%".into()))?;
        let fraction = percent / 100.0;
        // Not a number passes both of the kubelet's tests, and then the threshold is never met.
        let (below, above) = (fraction < 0.0, fraction > 1.0);
        return match zero {
            Zero::Refused if below || above => Err(bad("must be between 0% and 100%".into())),
            Zero::Allowed if fraction <= 0.0 => Err(bad("must be more than 0%".into())),
            _ => Ok(Amount::Fraction(fraction.to_bits())),
        };
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

/// What hard `thresholds` keep free of a node's memory and disk: `memory.available` and `nodefs.available` only
/// (`hardEvictionReservation`). `hard`: the `evictionHard` that they were read from.
#[must_use]
pub fn eviction_reservation(
    thresholds: &[Threshold],
    hard: &BTreeMap<String, String>,
    capacity: &ResourceList,
) -> ResourceList {
    let mut reservation = ResourceList::new();
    for threshold in thresholds.iter().filter(|threshold| threshold.is_hard()) {
        let name = match threshold.signal {
            Signal::MemoryAvailable => MEMORY,
            Signal::NodefsAvailable => EPHEMERAL_STORAGE,
            _ => continue,
        };
        let capacity = capacity.get(name).map_or(0, Quantity::value);
        let bytes = threshold.amount(u64::try_from(capacity).unwrap_or(0));
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        // A quantity counts as it is written: a threshold has whole bytes.
        let exact = hard
            .get(threshold.signal.row().name)
            .and_then(|text| Quantity::parse(text).ok())
            .unwrap_or_else(|| Quantity::from_value(bytes, Format::BinarySI));
        reservation.insert(name.to_owned(), exact);
    }
    reservation
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
            passes: Passes::All,
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

    /// `strconv.ParseFloat`, which reads what it reads in tests/vectors, and has an error for these.
    #[test]
    fn what_go_reads_as_no_number_is_no_percentage() {
        for text in ["1e39%", "-1e39%", "+nan%", "-NaN%", "%", "x%"] {
            let settings = ThresholdSettings {
                minimum_reclaim: map(&[("memory.available", text)]),
                ..hard(&[("memory.available", "1Mi")])
            };
            assert!(parse(&settings).is_err(), "{text}");
        }
        assert!(parse(&hard(&[("memory.available", "NaN%")])).is_ok());
    }

    /// As `Value` of 1.36 rounds. An observation is a whole number, so that it is below the one if it is below the
    /// other.
    #[test]
    fn part_of_a_byte_is_rounded_up() {
        for (text, bytes) in [
            ("100.5Mi", 105_381_888),
            ("0.1", 1),
            ("0.0001", 1),
            ("1.1Ki", 1127),
            ("1n", 1),
        ] {
            let thresholds = parse(&hard(&[("memory.available", text)])).unwrap();
            assert_eq!(thresholds[0].value, Amount::Absolute(bytes), "{text}");
        }
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
        for bad in ["", "1Qi", "-1Gi", "0", "x%", "%", "-1%", "101%", "inf%"] {
            let text = message(&hard(&[("memory.available", bad)]));
            assert!(
                text.starts_with("evictionHard: memory.available: "),
                "{text}"
            );
        }
    }
}
