//! `status` of Consumers and Allocations: what it should be, and whether the difference to what is there is worth a
//! write.
//!
//! A changed condition is written at once, an amount when it differs by more than 1 % of the cluster, anything else
//! after a minute at another value (`docs/reference/arbitrator.md`, "In a cluster"): figures that change with every pod
//! must not fill etcd.

use std::collections::BTreeMap;

use plimsoll_core::arbitration::named::Named;
use plimsoll_core::arbitration::units::{Rounding, canonical, quantity_of};
use plimsoll_core::kube::quantity::Quantity;
use serde_json::{Value, json};

use super::judge::Row;
use crate::call::cut;
use crate::clock::rfc3339_s;

/// Bytes of a condition's message.
const MESSAGE_BYTES_MAX: usize = 1024;

/// A condition, without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: &'static str,
    /// `True` or `False`.
    pub is_true: bool,
    /// One word.
    pub reason: String,
    /// A sentence. Never empty: a server-side apply of 1.20 makes null of an empty text, and the resource refuses that.
    pub message: String,
}

/// What a status should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// `metadata.generation` of the Consumer.
    pub generation: i64,
    deserved: Named,
    used: Named,
    hard: Named,
    reserved: Named,
    dominant: Option<(String, u64, u64)>,
    passed_over: u64,
    /// In a fixed order.
    pub conditions: Vec<Condition>,
}

/// How much a status differs from what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// Not at all.
    None,
    /// By so little that it can wait.
    Little,
    /// By so many thousandths of the cluster, or a condition (1000).
    Much(u64),
}

fn amounts_in_words(amounts: &Named) -> String {
    let words: Vec<String> = amounts
        .iter()
        .map(|(name, amount)| format!("{} of {name}", quantity_of(name, *amount)))
        .collect();
    words.join(", ")
}

fn condition(kind: &'static str, is_true: bool, reason: &str, message: String) -> Condition {
    Condition {
        kind,
        is_true,
        reason: reason.to_owned(),
        message: cut(&message, MESSAGE_BYTES_MAX).to_owned(),
    }
}

fn accepted(row: &Row) -> Condition {
    match row.wrong.first() {
        None if row.pod_warnings.is_empty() => condition(
            "Accepted",
            true,
            "Accepted",
            "nothing is wrong with it".to_owned(),
        ),
        None => {
            let warnings = row.pod_warnings.iter();
            let texts: Vec<String> = warnings
                .map(|(warning, pods)| warning.text(*pods))
                .collect();
            condition("Accepted", true, "Accepted", texts.join("; "))
        }
        Some((reason, _)) => {
            let texts: Vec<&str> = row.wrong.iter().map(|(_, text)| text.as_str()).collect();
            condition("Accepted", false, reason, texts.join("; "))
        }
    }
}

fn overused(row: &Row) -> Condition {
    match row.over.keys().next() {
        None => condition(
            "Overused",
            false,
            "WithinDeserved",
            "within what it deserves".to_owned(),
        ),
        // The API takes no slash and the like in a reason.
        Some(_) => condition(
            "Overused",
            true,
            "AboveDeserved",
            format!("{} above what it deserves", amounts_in_words(&row.over)),
        ),
    }
}

fn underserved(row: &Row) -> Condition {
    let not_served = row.not_served.iter();
    let not_served: Vec<String> = not_served
        .map(|(why, pods)| format!("{pods} pods with {why}"))
        .collect();
    let not_served = match not_served.as_slice() {
        [] => String::new(),
        words => format!("no room is made for {}", words.join(", ")),
    };
    let and = if not_served.is_empty() { "" } else { "; " };
    match (row.waiting, row.blocked) {
        (0, _) if !not_served.is_empty() => condition("Underserved", true, "NotServed", not_served),
        (0, _) => condition(
            "Underserved",
            false,
            "NoneWaits",
            "no entitled pod waits for room".to_owned(),
        ),
        (waiting, 0) => condition(
            "Underserved",
            true,
            "Waiting",
            format!("{waiting} entitled pods wait for room{and}{not_served}"),
        ),
        (waiting, blocked) => condition(
            "Underserved",
            true,
            "Blocked",
            format!(
                "{waiting} entitled pods wait for room; for {blocked} of them no pods may be evicted that would make it: budgets, reservations, greater priorities, evicted pods that do not end on their nodes, or none that use too much{and}{not_served}"
            ),
        ),
    }
}

fn over_reserved(row: &Row) -> Condition {
    if row.short.is_empty() {
        condition(
            "OverReserved",
            false,
            "Covered",
            "what is reserved is there".to_owned(),
        )
    } else {
        condition(
            "OverReserved",
            true,
            "Short",
            format!(
                "more is reserved than there is: {} are missing; each gets its part",
                amounts_in_words(&row.short)
            ),
        )
    }
}

fn reclaim_pending(asked_for: &[String], held_back: Option<&str>) -> Condition {
    match asked_for {
        [] => condition(
            "ReclaimPending",
            false,
            "None",
            "no pod has notice".to_owned(),
        ),
        asked_for => {
            let hold = held_back
                .map(|why| format!("; held back: {why}"))
                .unwrap_or_default();
            let first: Vec<&str> = asked_for.iter().take(8).map(String::as_str).collect();
            condition(
                "ReclaimPending",
                true,
                "Notice",
                format!(
                    "{} pods have notice: {}{hold}",
                    asked_for.len(),
                    first.join(", ")
                ),
            )
        }
    }
}

impl Status {
    /// Of a Consumer. `asked_for`: its pods that have notice, in words. `held_back`: why none of them goes yet.
    #[must_use]
    pub fn of(row: &Row, generation: i64, asked_for: &[String], held_back: Option<&str>) -> Self {
        let conditions = vec![
            accepted(row),
            overused(row),
            underserved(row),
            over_reserved(row),
            reclaim_pending(asked_for, held_back),
        ];
        Self {
            generation,
            deserved: row.deserved.clone(),
            used: row.used.clone(),
            hard: row.hard.clone(),
            reserved: row.reserved.clone(),
            dominant: row.dominant.clone(),
            passed_over: row.passed_over,
            conditions,
        }
    }

    fn maps(&self) -> [(&'static str, &Named); 4] {
        [
            ("deserved", &self.deserved),
            ("used", &self.used),
            ("hard", &self.hard),
            ("reserved", &self.reserved),
        ]
    }

    /// As the API has it. Conditions that have not changed keep the time that is there.
    #[must_use]
    pub fn body(&self, there: &Value, unix_ms: u64) -> Value {
        let conditions: Vec<Value> = self
            .conditions
            .iter()
            .map(|condition| {
                let is_true = if condition.is_true { "True" } else { "False" };
                let known = find(there, condition.kind);
                let since = known
                    .filter(|known| known["status"] == is_true)
                    .and_then(|known| known["lastTransitionTime"].as_str().map(str::to_owned));
                json!({
                    "type": condition.kind, "status": is_true, "reason": condition.reason, "message": condition.message,
                    "observedGeneration": self.generation,
                    "lastTransitionTime": since.unwrap_or_else(|| rfc3339_s(unix_ms)),
                })
            })
            .collect();
        let mut body = json!({
            "observedGeneration": self.generation,
            "passedOver": self.passed_over,
            "conditions": conditions,
        });
        for (name, amounts) in self.maps() {
            let shown =
                |(name, amount): (&String, &u64)| (name.clone(), quantity_of(name, *amount));
            let amounts: BTreeMap<String, String> = amounts.iter().map(shown).collect();
            body[name] = json!(amounts);
        }
        if let Some((resource, share)) = self.share() {
            body["dominant"] = json!({"resource": resource, "share": share});
        }
        body
    }

    /// The dominant resource and its share, in hundredths.
    fn share(&self) -> Option<(&str, String)> {
        let (resource, used, capacity) = self.dominant.as_ref()?;
        let hundredths = u128::from(*used) * 100 / u128::from((*capacity).max(1));
        Some((
            resource,
            format!("{}.{:02}", hundredths / 100, hundredths % 100),
        ))
    }

    /// Compares with what is there.
    #[must_use]
    pub fn difference(&self, there: &Value, capacity: &Named) -> Difference {
        if there["observedGeneration"].as_i64() != Some(self.generation) {
            return Difference::Much(1000);
        }
        let mut difference = Difference::None;
        for condition in &self.conditions {
            let known = find(there, condition.kind);
            let is_true = if condition.is_true { "True" } else { "False" };
            match known {
                Some(known)
                    if known["status"] == is_true
                        && known["reason"] == condition.reason.as_str() =>
                {
                    if known["message"].as_str().unwrap_or_default() != condition.message {
                        difference = difference.max(Difference::Little);
                    }
                }
                _ => return Difference::Much(1000),
            }
        }
        for (name, amounts) in self.maps() {
            difference = difference.max(differ(amounts, &there[name], capacity));
        }
        let passed_over = there["passedOver"].as_u64().unwrap_or(0);
        let share = self
            .share()
            .map(|(resource, share)| json!({"resource": resource, "share": share}));
        if passed_over != self.passed_over || there.get("dominant") != share.as_ref() {
            difference = difference.max(Difference::Little);
        }
        difference
    }
}

fn find<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = status["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
}

fn differ(amounts: &Named, there: &Value, capacity: &Named) -> Difference {
    let empty = serde_json::Map::new();
    let there = there.as_object().unwrap_or(&empty);
    let mut difference = Difference::None;
    for name in amounts.keys().chain(there.keys()) {
        let wanted = amounts.get(name);
        let text = there.get(name).and_then(Value::as_str);
        if wanted.map(|wanted| quantity_of(name, *wanted)).as_deref() == text {
            continue;
        }
        let quantity = text.and_then(|text| Quantity::parse(text).ok());
        let is = quantity.map_or(0, |quantity| canonical(name, &quantity, Rounding::Down));
        let by = u128::from(is.abs_diff(wanted.copied().unwrap_or(0))) * 1000;
        let of = u128::from(capacity.get(name).copied().unwrap_or(1).max(1));
        let by = u64::try_from(by / of).unwrap_or(u64::MAX).min(999);
        difference = difference.max(if by > 10 {
            Difference::Much(by)
        } else {
            Difference::Little
        });
    }
    difference
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(used: u64) -> Row {
        Row {
            name: "a".into(),
            deserved: [("cpu".to_owned(), 4500)].into(),
            used: [("cpu".to_owned(), used)].into(),
            dominant: Some(("cpu".into(), used, 100_000)),
            ..Row::default()
        }
    }

    #[test]
    fn what_is_worth_a_write() {
        let capacity: Named = [("cpu".to_owned(), 100_000)].into();
        let written = Status::of(&row(4000), 3, &[], None).body(&Value::Null, 0);
        let differs = |row: &Row, generation, asked_for: &[String]| {
            Status::of(row, generation, asked_for, None).difference(&written, &capacity)
        };
        assert_eq!(differs(&row(4000), 3, &[]), Difference::None);
        // 1 % of the cluster, and more.
        assert_eq!(differs(&row(5000), 3, &[]), Difference::Little);
        assert_eq!(differs(&row(6000), 3, &[]), Difference::Much(20));
        assert_eq!(differs(&row(4000), 4, &[]), Difference::Much(1000));
        assert_eq!(
            differs(&row(4000), 3, &["a/x".into()]),
            Difference::Much(1000)
        );
        let mut over = row(4000);
        over.over = [("cpu".to_owned(), 500)].into();
        assert_eq!(differs(&over, 3, &[]), Difference::Much(1000));
        assert_eq!(
            Status::of(&row(1), 1, &[], None).difference(&Value::Null, &capacity),
            Difference::Much(1000)
        );
    }

    #[test]
    fn pods_for_which_no_room_is_made_are_said() {
        let mut row = row(0);
        row.not_served = [("a resource that no node has", 2)].into();
        let status = Status::of(&row, 1, &[], None);
        let underserved = status.conditions.iter();
        let underserved = underserved.filter(|it| it.kind == "Underserved");
        let said: Vec<(&str, &str)> = underserved
            .map(|it| (it.reason.as_str(), it.message.as_str()))
            .collect();
        assert_eq!(
            said,
            [(
                "NotServed",
                "no room is made for 2 pods with a resource that no node has"
            )]
        );
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_does() {
        let first = Status::of(&row(4000), 1, &[], None).body(&Value::Null, 1_795_341_600_000);
        let later = Status::of(&row(4000), 1, &["a/x for b/y".into()], Some("dry run"))
            .body(&first, 1_795_341_700_000);
        let conditions = first["conditions"].as_array().unwrap();
        assert!(
            conditions.iter().all(|it| it["message"] != ""),
            "an empty one is refused"
        );
        let time = |status: &Value, kind| find(status, kind).unwrap()["lastTransitionTime"].clone();
        assert_eq!(time(&later, "Overused"), time(&first, "Overused"));
        assert_ne!(
            time(&later, "ReclaimPending"),
            time(&first, "ReclaimPending")
        );
        let message = find(&later, "ReclaimPending").unwrap()["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(
            message,
            "1 pods have notice: a/x for b/y; held back: dry run"
        );
        assert_eq!(
            (&first["deserved"]["cpu"], &first["dominant"]["share"]),
            (&json!("4500m"), &json!("0.04"))
        );
    }
}
