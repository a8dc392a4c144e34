//! Flags that override the file, with the kubelet's names.

use clap::Args;
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::Operator;

use super::document::{Entry, Node, Origin, Value};
use super::problem::Problem;

/// Flags that override the file.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Eviction (as the kubelet's flags of the same names)")]
pub struct EvictionFlags {
    /// Hard thresholds, e.g. 'memory.available<1Gi,nodefs.available<10%'; for stalls with '>', e.g.
    /// 'memoryPressure.full.avg10>20%'. kernelMemory.available<64Mi is added unless the signal is named
    #[arg(long, value_name = "THRESHOLDS")]
    pub eviction_hard: Option<String>,
    /// Soft thresholds, e.g. 'memory.available<2Gi'
    #[arg(long, value_name = "THRESHOLDS")]
    pub eviction_soft: Option<String>,
    /// Grace periods of the soft thresholds, e.g. 'memory.available=1m30s'
    #[arg(long, value_name = "PERIODS")]
    pub eviction_soft_grace_period: Option<String>,
    /// Amounts above the thresholds that must be available again, e.g. 'memory.available=200Mi'
    #[arg(long, value_name = "AMOUNTS")]
    pub eviction_minimum_reclaim: Option<String>,
    /// How long a node condition is kept after its thresholds are no longer met, e.g. '30s' [default: 5m]
    #[arg(long, value_name = "DURATION")]
    pub eviction_pressure_transition_period: Option<String>,
    /// Maximum grace period of a soft eviction [default: 0]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub eviction_max_pod_grace_period: Option<i64>,
}

impl EvictionFlags {
    /// The fields that the flags set, in the notation of a file.
    pub(super) fn fields(&self, problems: &mut Vec<Problem>) -> Vec<Entry> {
        let mut fields = Vec::new();
        let mut set = |flag: &'static str, field: &str, value: Value| {
            let mut node = Node::default_of(value);
            node.set_origin(Origin::Flag(flag));
            fields.push(Entry {
                key: field.to_owned(),
                origin: Origin::Flag(flag),
                node,
            });
        };
        let lists = [
            (
                "eviction-hard",
                "evictionHard",
                &self.eviction_hard,
                '<',
                "memory.available<1Gi",
            ),
            (
                "eviction-soft",
                "evictionSoft",
                &self.eviction_soft,
                '<',
                "memory.available<2Gi",
            ),
            (
                "eviction-soft-grace-period",
                "evictionSoftGracePeriod",
                &self.eviction_soft_grace_period,
                '=',
                "memory.available=1m30s",
            ),
            (
                "eviction-minimum-reclaim",
                "evictionMinimumReclaim",
                &self.eviction_minimum_reclaim,
                '=',
                "memory.available=200Mi",
            ),
        ];
        for (flag, field, text, separator, example) in lists {
            let Some(text) = text else { continue };
            set(
                flag,
                field,
                Value::Map(pairs(flag, text, separator, example, problems)),
            );
        }
        if let Some(text) = &self.eviction_pressure_transition_period {
            set(
                "eviction-pressure-transition-period",
                "evictionPressureTransitionPeriod",
                Value::Text(text.clone()),
            );
        }
        if let Some(seconds) = self.eviction_max_pod_grace_period {
            set(
                "eviction-max-pod-grace-period",
                "evictionMaxPodGracePeriod",
                Value::Integer(seconds.into()),
            );
        }
        fields
    }
}

/// What stands between a signal and its threshold.
fn sign_of(signal: &str) -> char {
    match Signal::from_name(signal).map(|signal| signal.row().operator) {
        Some(Operator::GreaterThan) => '>',
        _ => '<',
    }
}

fn pairs(
    flag: &'static str,
    text: &str,
    separator: char,
    example: &str,
    problems: &mut Vec<Problem>,
) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    for part in parts {
        // Most signals are dangerous below a value; stalls are above it, and are written so.
        let sign = match part.split_once(['<', '>']) {
            Some((signal, _)) if separator == '<' => sign_of(signal.trim()),
            _ => separator,
        };
        let pair = part
            .split_once(sign)
            .map(|(signal, value)| (signal.trim(), value.trim()))
            .filter(|(signal, value)| !signal.is_empty() && !value.is_empty());
        let Some((signal, value)) = pair else {
            problems.push(Problem::new(
                Origin::Flag(flag),
                "",
                format!("{part:?} is not SIGNAL{sign}VALUE; write for example '{example}'"),
            ));
            continue;
        };
        // Twice the same signal: the kubelet's flag takes the last one, too.
        entries.retain(|entry| entry.key != signal);
        entries.push(Entry {
            key: signal.to_owned(),
            origin: Origin::Flag(flag),
            node: Node::default_of(Value::Text(value.to_owned())),
        });
    }
    entries
}
