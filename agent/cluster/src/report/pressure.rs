//! What a node under pressure and the arbitrator say to each other: two annotations of the Node.
//!
//! Problem: an annotation stays when its writer has gone, and each side would go by what was true an hour ago.
//! Approach: each has the time at which it was written, is written again every 25 s while it holds, and is void a
//! minute after its time. The clocks of two machines differ: what is dated further ahead than it would hold is void,
//! too.
//!
//! What the arbitrator does with it: `docs/reference/arbitrator.md`, "Nodes under pressure".

use std::collections::BTreeMap;

use plimsoll_core::kube::admission::names::dns_label_errors;
use plimsoll_core::protocol::cluster_link::{EXCESS_MAX, OVERUSED_MAX, OverusedNamespace};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::clock::{rfc3339_s, unix_ms_of};

/// Of the arbitrator: which namespaces with pods on the node use more of the cluster than they deserve.
pub const OVERUSED: &str = "plimsoll.dev/overused";
/// Both are written again so often while they hold, milliseconds.
pub const RENEWED_EVERY_MS: u64 = 25_000;
/// Bytes of an annotation that are looked at: more than the longest that is right.
const BYTES_MAX: usize = 128 << 10;
/// Resources of which something can be withheld.
const WITHHELD_MAX: usize = 64;

/// Namespaces that use more than they deserve, and since when that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverusedList {
    /// Milliseconds since 1970.
    pub at_unix_ms: u64,
    /// By name.
    pub namespaces: Vec<OverusedNamespace>,
}

impl OverusedList {
    /// The value of the annotation, with the namespaces that are furthest over where there are too many.
    #[must_use]
    pub fn value(excesses: &BTreeMap<String, u64>, unix_ms: u64) -> String {
        let mut all: Vec<(&String, u64)> = excesses.iter().map(|(name, by)| (name, *by)).collect();
        all.sort_by_key(|(_, by)| std::cmp::Reverse(*by));
        let first = all.into_iter().take(OVERUSED_MAX);
        let first: BTreeMap<&String, u64> = first
            .map(|(name, by)| (name, by.min(EXCESS_MAX.into())))
            .collect();
        json!({"at": rfc3339_s(unix_ms), "namespaces": first}).to_string()
    }

    /// Reads the annotation; nothing for what is none.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct List {
            at: String,
            namespaces: BTreeMap<String, u64>,
        }
        let list: List = parsed(text)?;
        // The agent refuses a list with one name that is none.
        let namespaces = list.namespaces.into_iter();
        let namespaces = namespaces.filter(|(name, _)| dns_label_errors(name).is_empty());
        let namespaces = namespaces.take(OVERUSED_MAX);
        Some(Self {
            at_unix_ms: unix_ms_of(&list.at)?,
            namespaces: namespaces
                .map(|(namespace, by)| OverusedNamespace {
                    namespace,
                    excess: u16::try_from(by).unwrap_or(EXCESS_MAX).min(EXCESS_MAX),
                })
                .collect(),
        })
    }
}

/// Nothing for what is longer than anything that is right, or is something else.
fn parsed<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    let text = (text.len() <= BYTES_MAX).then_some(text)?;
    serde_json::from_str(text).ok()
}

/// The value of [`WITHHELD_ANNOTATION`](plimsoll_core::protocol::cluster_link::WITHHELD_ANNOTATION); nothing where
/// nothing is withheld.
#[must_use]
pub fn withheld_value(memory_bytes: u64, unix_ms: u64) -> Option<String> {
    let value = || json!({"at": rfc3339_s(unix_ms), "memory": memory_bytes.to_string()});
    (memory_bytes > 0).then(|| value().to_string())
}

/// Reads the annotation: when it was written, and the quantities by resource. Nothing for what is none.
#[must_use]
pub fn read_withheld(text: &str) -> Option<(u64, BTreeMap<String, Value>)> {
    #[derive(Deserialize)]
    struct Withheld {
        at: String,
        #[serde(flatten)]
        quantities: BTreeMap<String, Value>,
    }
    let read: Withheld = parsed(text)?;
    let at_unix_ms = unix_ms_of(&read.at)?;
    (read.quantities.len() <= WITHHELD_MAX).then_some((at_unix_ms, read.quantities))
}

#[cfg(test)]
mod tests {
    use plimsoll_core::protocol::cluster_link::valid_ms;

    use super::*;

    const T_MS: u64 = 1_795_341_600_000;

    #[test]
    fn what_is_written_is_read_and_void_after_a_minute() {
        let excesses = [("a".to_owned(), 30), ("b".to_owned(), 5000)].into();
        let value = OverusedList::value(&excesses, T_MS);
        assert_eq!(
            value,
            r#"{"at":"2026-11-22T10:00:00Z","namespaces":{"a":30,"b":1000}}"#
        );
        let list = OverusedList::read(&value).unwrap();
        let found: Vec<(&str, u16)> = list
            .namespaces
            .iter()
            .map(|it| (it.namespace.as_str(), it.excess))
            .collect();
        assert_eq!(
            (list.at_unix_ms, found),
            (T_MS, vec![("a", 30), ("b", 1000)])
        );
        for (later_ms, left_ms) in [(0, 60_000), (59_999, 1), (60_000, 0), (u64::MAX - T_MS, 0)] {
            assert_eq!(valid_ms(T_MS, T_MS + later_ms), left_ms);
        }
        assert_eq!(valid_ms(T_MS, T_MS - 60_000), 60_000, "clocks differ");
        assert_eq!(valid_ms(T_MS, T_MS - 60_001), 0);
        let value = withheld_value(4 << 30, T_MS).unwrap();
        let (at, quantities) = read_withheld(&value).unwrap();
        assert_eq!((at, &quantities["memory"]), (T_MS, &json!("4294967296")));
        assert_eq!(withheld_value(0, T_MS), None);
    }

    #[test]
    fn the_furthest_over_are_kept_and_garbage_is_nothing() {
        let many: BTreeMap<String, u64> = (0..400).map(|at| (format!("n{at:03}"), at)).collect();
        let list = OverusedList::read(&OverusedList::value(&many, T_MS)).unwrap();
        assert_eq!(list.namespaces.len(), OVERUSED_MAX);
        assert_eq!(list.namespaces[0].namespace, "n144");
        let long = format!(
            r#"{{"at":"2026-11-22T10:00:00Z","namespaces":{{}}{}}}"#,
            " ".repeat(BYTES_MAX)
        );
        let garbage = [
            "",
            "[]",
            "{}",
            r#"{"at":"now","namespaces":{}}"#,
            r#"{"at":"2026-11-22T10:00:00Z","namespaces":{"a":-1}}"#,
            &long,
        ];
        for text in garbage {
            assert_eq!(OverusedList::read(text), None, "{text:.80}");
        }
        assert_eq!(read_withheld(&long), None);
        // Of no time: what is not known to be new holds nothing back.
        assert_eq!(read_withheld(r#"{"memory":"4Gi"}"#), None);
    }
}
