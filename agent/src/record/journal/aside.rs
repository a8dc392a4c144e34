//! What a journal has beside its steps: what limits have cost the pods, and the plan of OOM kills. No engine decides by
//! it; people ask for it.
//!
//! Problem: these figures move all the time, on a node with a thousand pods too, and a journal is for steps. Approach:
//! what is written is the totals of pods of which any has moved, every few seconds at most and after the steps; a plan,
//! when it says something else than the one before. Each file begins with all of it.

use std::collections::BTreeMap;

use plimsoll_core::engine::Engine;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::policy::oom::order::OomPlan;
use serde::{Deserialize, Serialize, Serializer};

use crate::record::limit_counts::{LimitCounts, LimitTotals};
use crate::record::snapshot::Snapshot;

/// Between two of them. A little less than housekeeping takes to come back, which brings the totals.
const EVERY_NS: u64 = 4_000_000_000;

/// What was known at a time, or what of it had changed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Aside {
    /// When: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// What limits have cost these pods since the agent first saw them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<PodUid, Counts>,
    /// The order of OOM kills, where the agent makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_plan: Option<OomPlan>,
}

/// Counts, written without those that are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counts(#[serde(serialize_with = "without_zeros")] pub LimitCounts);

fn without_zeros<S: Serializer>(counts: &LimitCounts, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts.named().into_iter().filter(|(_, count)| *count != 0))
}

/// The writer's memory of what it has written.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// All that a reader of the file knows by now.
    pub(super) known: Aside,
    /// The newest had something of limits.
    has_moved: bool,
}

impl Written {
    /// Whether it is time for the next.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.known.at_ns) >= EVERY_NS
    }

    /// What is to be written now, if there is anything. After the last change of a pod there is one more, without it:
    /// so much is needed to see that it has ended.
    pub(super) fn next<'a>(
        &mut self,
        now_ns: u64,
        limits: impl Iterator<Item = (&'a PodUid, LimitTotals)>,
        plan: Option<&OomPlan>,
    ) -> Option<Aside> {
        let mut changed = Aside {
            at_ns: now_ns,
            ..Aside::default()
        };
        let mut all = BTreeMap::new();
        for (uid, totals) in limits {
            let counts = Counts(totals.all);
            if self.known.limits.get(uid) != Some(&counts) {
                changed.limits.insert(uid.clone(), counts);
            }
            all.insert(uid.clone(), counts);
        }
        self.known.at_ns = now_ns;
        self.known.limits = all;
        if let Some(plan) = plan
            && !self
                .known
                .oom_plan
                .as_ref()
                .is_some_and(|it| says_the_same(it, plan))
        {
            self.known.oom_plan = Some(plan.clone());
            changed.oom_plan = Some(plan.clone());
        }
        let had_moved = std::mem::replace(&mut self.has_moved, !changed.limits.is_empty());
        (had_moved || self.has_moved || changed.oom_plan.is_some()).then_some(changed)
    }

    /// What was to be written is not in the file: all of it is written next time, which comes no sooner for that.
    pub(super) fn forget(&mut self) {
        let known = Aside {
            at_ns: self.known.at_ns,
            ..Aside::default()
        };
        *self = Self {
            known,
            ..Self::default()
        };
    }
}

/// Whether both have the same places and scores. Usage moves always.
fn says_the_same(one: &OomPlan, other: &OomPlan) -> bool {
    let said = |plan: &OomPlan| {
        let places = plan.containers.iter();
        places
            .map(|pod| {
                (
                    pod.uid.clone(),
                    pod.container.clone(),
                    pod.adj,
                    pod.current_adj,
                )
            })
            .collect::<Vec<_>>()
    };
    said(one) == said(other)
}

/// What asides have told a reader so far.
#[derive(Debug, Clone, Default)]
pub struct Recalled {
    limits: BTreeMap<PodUid, LimitTotals>,
    oom_plan: Option<OomPlan>,
}

impl Recalled {
    /// Takes one in.
    pub fn apply(&mut self, aside: Aside) {
        let Aside {
            at_ns,
            limits,
            oom_plan,
        } = aside;
        for (uid, it) in &mut self.limits {
            if !limits.contains_key(uid) {
                // Nothing new is something that one must know, too.
                let all = it.all;
                it.reach(at_ns, all);
            }
        }
        for (uid, Counts(counts)) in limits {
            self.limits.entry(uid).or_default().reach(at_ns, counts);
        }
        if oom_plan.is_some() {
            self.oom_plan = oom_plan;
        }
    }

    /// What `engine` knows, and what has been told of its pods.
    pub fn snapshot(&self, engine: &Engine) -> Snapshot {
        let pods = &engine.state().pods;
        let limits = self
            .limits
            .iter()
            .filter(|(uid, _)| pods.contains_key(*uid));
        Snapshot {
            limits: limits.map(|(uid, it)| (uid.clone(), *it)).collect(),
            oom_plan: self.oom_plan.clone(),
            ..Snapshot::of(engine)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn totals(throttled_ns: u64) -> LimitTotals {
        let mut totals = LimitTotals::default();
        totals.all.throttled_ns = throttled_ns;
        totals
    }

    fn next(written: &mut Written, at_s: u64, pods: &[(&str, u64)]) -> Option<String> {
        let pods: Vec<(PodUid, LimitTotals)> = pods
            .iter()
            .map(|(uid, ns)| (PodUid::from(*uid), totals(*ns)))
            .collect();
        let aside = written.next(at_s * S, pods.iter().map(|(uid, it)| (uid, *it)), None);
        aside.map(|it| serde_json::to_string(&it).unwrap())
    }

    #[test]
    fn every_count_is_written_by_its_name() {
        let json: String = (1..)
            .zip(LimitCounts::default().named())
            .map(|(count, (name, _))| format!(r#","{name}":{count}"#))
            .collect();
        let counts: LimitCounts = serde_json::from_str(&format!("{{{}}}", &json[1..])).unwrap();
        assert!(
            counts.named().into_iter().map(|it| it.1).eq(1..=13),
            "{counts:?}"
        );
        let written = serde_json::to_value(Counts(counts)).unwrap();
        assert_eq!(written, serde_json::to_value(counts).unwrap());
    }

    #[test]
    fn what_has_moved_is_written_and_then_that_nothing_does() {
        let mut written = Written::default();
        let mut at = |at_s, pods: &[(&str, u64)]| next(&mut written, at_s, pods);
        assert_eq!(
            at(5, &[("a", 0), ("b", 7)]).unwrap(),
            r#"{"at_ns":5000000000,"limits":{"a":{},"b":{"throttledNs":7}}}"#
        );
        assert_eq!(
            at(10, &[("a", 0), ("b", 9)]).unwrap(),
            r#"{"at_ns":10000000000,"limits":{"b":{"throttledNs":9}}}"#
        );
        assert_eq!(
            at(15, &[("a", 0), ("b", 9)]).unwrap(),
            r#"{"at_ns":15000000000}"#
        );
        assert_eq!(at(20, &[("a", 0), ("b", 9)]), None);
        // Gone, and there again.
        assert_eq!(at(25, &[("b", 9)]), None);
        assert_eq!(
            at(30, &[("a", 0), ("b", 9)]).unwrap(),
            r#"{"at_ns":30000000000,"limits":{"a":{}}}"#
        );
        assert!(!written.is_due(33 * S) && written.is_due(34 * S));
        written.forget();
        assert!(!written.is_due(33 * S) && written.is_due(34 * S));
        assert!(
            next(&mut written, 35, &[("b", 9)])
                .unwrap()
                .contains(r#""b":{"throttledNs":9}"#)
        );
    }

    #[test]
    fn a_reader_has_totals_and_what_is_recent() {
        let mut recalled = Recalled::default();
        let mut apply = |text: &str| {
            recalled.apply(serde_json::from_str(text).unwrap());
            let totals = recalled.limits[&PodUid::from("a")];
            (
                totals.all.throttled_ns,
                totals.recent.throttled_ns,
                totals.recent_ns / S,
            )
        };
        // What a file begins with is not recent.
        assert_eq!(
            apply(r#"{"at_ns":5000000000,"limits":{"a":{"throttledNs":100}}}"#),
            (100, 0, 0)
        );
        assert_eq!(
            apply(r#"{"at_ns":10000000000,"limits":{"a":{"throttledNs":130}}}"#),
            (130, 30, 5)
        );
        assert_eq!(
            apply(r#"{"at_ns":15000000000,"limits":{"b":{}}}"#),
            (130, 0, 5)
        );
        // Another pod of the same name: fewer than there were.
        assert_eq!(
            apply(r#"{"at_ns":20000000000,"limits":{"a":{"throttledNs":4}}}"#),
            (4, 0, 0)
        );
    }
}
