//! What must hold for any input.

use std::fmt::Write as _;

use plimsoll_core::model::signal::SIGNALS;
use proptest::prelude::*;

use super::files::FILES;
use super::*;
use crate::input::config::plimsoll::duration_text;

/// A value of this shape, made from a number; mostly one that is accepted.
fn value(field: &str, shape: &Shape, seed: u64) -> String {
    let amount = |seed: u64| match seed % 3 {
        0 => format!("{}%", seed / 3 % 101),
        1 => format!("{}Mi", seed / 3 % 10_000 + 1),
        _ => format!("{}", seed / 3 % 10_000_000 + 1),
    };
    let signal = |seed: u64| SIGNALS[seed as usize % SIGNALS.len()].name;
    match (field, shape) {
        ("evictionSoftGracePeriod", _) => {
            // For every signal, so that any soft threshold has its own.
            let periods: Vec<String> = SIGNALS
                .iter()
                .map(|row| format!("{}: {}", row.name, duration_text(seed % 1_000_000_000_000)))
                .collect();
            format!("{{{}}}", periods.join(", "))
        }
        (_, Shape::Map(Shape::Amount)) => {
            format!(
                "{{{}: {}, {}: {}}}",
                signal(seed),
                amount(seed),
                signal(seed / 7 + 1),
                amount(seed / 3)
            )
        }
        ("enforceNodeAllocatable", _) => ["[]", "[none]", "[pods]"][seed as usize % 3].into(),
        ("reservedSystemCPUs", _) => format!("{}-{},99", seed % 8, seed % 8 + seed / 8 % 8),
        ("qosReserved", _) => format!("{{memory: {}%}}", seed % 101),
        ("podLogsDir", _) => format!("/logs/{seed}"),
        ("memoryThrottlingFactor", _) => format!("{}", (seed % 999 + 1) as f64 / 1000.0),
        ("cpuCFSQuotaPeriod", _) => format!("{}us", 1000 + seed % 999_001),
        ("reservedMemory", _) => format!(
            "[{{numaNode: {}, limits: {{memory: {}}}}}]",
            seed % 8,
            seed % 1000 + 1
        ),
        ("kubeReserved" | "systemReserved", _) => {
            format!(
                "{{memory: {}, cpu: {}m, pid: {}}}",
                seed % 1_000_000,
                seed % 7777,
                seed % 5
            )
        }
        ("featureGates", _) => format!(
            "{{MemoryQoS: {}, Gate{seed}: true}}",
            seed.is_multiple_of(2)
        ),
        (_, Shape::Any) => format!("[{{a: {seed}}}, 5m, 0, true, 0.5]"),
        (_, Shape::Bool) => (seed.is_multiple_of(2)).to_string(),
        (_, Shape::Integer { min, max }) => {
            let width = (i128::from(*max) - i128::from(*min) + 1).min(1000);
            (i128::from(*min) + i128::from(seed) % width).to_string()
        }
        (_, Shape::Number) => format!("{}.5", seed % 10),
        (_, Shape::OneOf(texts)) => texts[seed as usize % texts.len()].into(),
        (_, Shape::Duration) => duration_text(seed % 100_000_000_000_000),
        (_, Shape::Quantity | Shape::Amount) => format!("{}Ki", seed % 1_000_000 + 1),
        (_, Shape::Text) => format!("\"a b: #{seed} \\\"\\n'\""),
        (_, Shape::List(inner)) => format!(
            "[{}, {}]",
            value("", inner, seed),
            value("", inner, seed / 3)
        ),
        (_, Shape::Map(inner)) => format!("{{\"x/{seed}: y\": {}}}", value("", inner, seed)),
        (_, Shape::Object(fields)) => {
            let inner: Vec<String> = fields
                .iter()
                .enumerate()
                .map(|(index, field)| {
                    format!(
                        "{}: {}",
                        field.name,
                        value(field.name, &field.shape, seed >> (index % 16))
                    )
                })
                .collect();
            format!("{{{}}}", inner.join(", "))
        }
    }
}

fn file() -> impl Strategy<Value = String> {
    let indices = 2..kubelet::FIELDS.len();
    prop::collection::btree_map(indices, any::<u64>(), 0..12).prop_map(|chosen| {
        let mut text = String::new();
        for (index, seed) in chosen {
            let field = &kubelet::FIELDS[index];
            writeln!(
                text,
                "{}: {}",
                field.name,
                value(field.name, &field.shape, seed)
            )
            .unwrap();
        }
        text
    })
}

/// A few seconds of cases, or `PROPTEST_CASES` of them.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 48;
    }
    config.max_global_rejects = 40 * config.cases;
    config
}

proptest! {
    #![proptest_config(config())]

    /// `config print`, as YAML or JSON, all fields or Plimsoll's own, read again means the same.
    #[test]
    fn what_is_printed_means_the_same(text in file()) {
        let before = match with_flags(&text, &EvictionFlags::default()) {
            Ok(effective) => effective,
            Err(ConfigError::Invalid(problems)) => {
                // What is refused has at least one reason with a field, and fields of different rules may contradict
                // each other.
                prop_assert!(problems.problems.iter().all(|problem| !problem.field.is_empty()), "{problems}");
                return Err(TestCaseError::reject("refused"));
            }
            Err(error) => panic!("{error}"),
        };
        for all in [false, true] {
            for printed in [before.yaml(all), before.json(all).to_string()] {
                let again = with_flags(&printed, &EvictionFlags::default());
                let again = again.unwrap_or_else(|error| panic!("{error}\n{printed}"));
                prop_assert_eq!(&again.config, &before.config, "{}", printed);
                prop_assert_eq!(again.json(all), before.json(all), "{}", printed);
            }
        }
    }

    /// No text is a panic: a file with a few bytes changed, or any text at all.
    #[test]
    fn no_text_is_a_panic(
        which in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), "[ -~\\n]{0,3}"), 0..6),
        other in "\\PC{0,60}",
    ) {
        let mut text = FILES[which].0.to_owned();
        for (at, with) in changes {
            let at = at.index(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
                text.replace_range(at..=at, &with);
            }
        }
        for text in [text, other] {
            if let Ok(effective) = with_flags(&text, &EvictionFlags::default()) {
                effective.remarks();
                prop_assert!(with_flags(&effective.yaml(true), &EvictionFlags::default()).is_ok());
            }
        }
    }
}
