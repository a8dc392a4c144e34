//! A rehearsal of several policies as a table, as JSON and, in [`svg`], as a picture.

pub(crate) mod svg;

use plimsoll_core::arbitration::cluster::Cluster;
use plimsoll_core::arbitration::named::Condition;
use plimsoll_core::arbitration::rehearsal::Policy;
use plimsoll_core::arbitration::rehearsal::figures::{Figures, Outcome};
use serde_json::{Map, Value, json};

use crate::host::output::Style;
use crate::host::shown::line;
use crate::show::table::{Table, Tone};

/// One policy, and what it came to.
pub(crate) struct Run {
    pub(crate) policy: Policy,
    pub(crate) outcome: Outcome,
}

/// What is shown.
pub(crate) struct Shown<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) conditions: &'a [Condition],
    pub(crate) runs: &'a [Run],
    pub(crate) days: u64,
    pub(crate) seed: u64,
}

pub(crate) fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::Shares => "shares",
        Policy::Quotas => "quotas",
        Policy::Priorities => "priorities",
    }
}

/// A time as people read it, to the minute above an hour.
fn time(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, 0) => format!("{minutes}m"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, 0, _) => format!("{hours}h"),
        (hours, minutes, _) => format!("{hours}h{minutes}m"),
    }
}

impl Shown<'_> {
    /// Namespaces that had pods under some policy.
    pub(crate) fn namespaces(&self) -> Vec<usize> {
        let had_pods = |at: &usize| {
            self.runs.iter().any(|run| {
                let figures = &run.outcome.figures[*at];
                let is_parent = self
                    .cluster
                    .consumers
                    .iter()
                    .any(|consumer| consumer.parent == Some(*at));
                !is_parent && (figures.came > 0 || figures.used.iter().any(|used| *used > 0))
            })
        };
        (0..self.cluster.names.len()).filter(had_pods).collect()
    }

    /// The mean share of the cluster that was used, in tenths of a percent, of the resource of which most was used.
    fn share(outcome: &Outcome, used: &[u128]) -> u128 {
        let parts = used.iter().zip(&outcome.capacity);
        let shares = parts.filter_map(|(used, capacity)| {
            (used * 1000).checked_div(u128::from(*capacity) * u128::from(outcome.seconds))
        });
        shares.max().unwrap_or(0)
    }

    /// All namespaces together.
    fn all(&self, outcome: &Outcome) -> Figures {
        let mut all = Figures {
            used: vec![0; outcome.capacity.len()],
            ..Figures::default()
        };
        for at in self.namespaces() {
            let figures = &outcome.figures[at];
            all.came += figures.came;
            all.started += figures.started;
            all.ended += figures.ended;
            all.evicted += figures.evicted;
            all.lost_s += figures.lost_s;
            all.short_s += figures.short_s;
            all.below_reserved += figures.below_reserved;
            all.beyond_budget += figures.beyond_budget;
            all.waits_s.extend(&figures.waits_s);
            for (sum, used) in all.used.iter_mut().zip(&figures.used) {
                *sum += used;
            }
        }
        all.waits_s.sort_unstable();
        all
    }

    pub(crate) fn text(&self, style: Style) -> String {
        let mut table = Table::new(
            &[
                "NAMESPACE",
                "POLICY",
                "CAME",
                "ENDED",
                "EVICTED",
                "LOST",
                "WAIT 50 %",
                "95 %",
                "LONGEST",
                "SHORT",
                "SHARE",
            ],
            &[2, 3, 4, 5, 6, 7, 8, 9, 10],
        );
        let mut row = |namespace: &str, run: &Run, figures: &Figures| {
            let wait = |hundredths| time(Figures::percentile(&figures.waits_s, hundredths));
            let share = Self::share(&run.outcome, &figures.used);
            let tone = if run.policy == Policy::Shares {
                Tone::Plain
            } else {
                Tone::Faint
            };
            let cells = vec![
                namespace.to_owned(),
                name(run.policy).to_owned(),
                figures.came.to_string(),
                figures.ended.to_string(),
                figures.evicted.to_string(),
                time(figures.lost_s),
                wait(50),
                wait(95),
                wait(100),
                time(figures.short_s),
                format!("{}.{} %", share / 10, share % 10),
            ];
            table.row(tone, cells);
        };
        for at in self.namespaces() {
            for run in self.runs {
                row(&self.cluster.names[at], run, &run.outcome.figures[at]);
            }
        }
        for run in self.runs {
            row("(all)", run, &self.all(&run.outcome));
        }
        let mut text = table.render(style);
        text += "\nLOST: run time of evicted pods, which start over. SHORT: time with waiting pods that what is reserved would hold.\n";
        for run in self.runs {
            text += &self.promises(run);
        }
        for condition in self.conditions {
            text += &format!(
                "{}: {}: {}\n",
                line(&condition.object),
                condition.reason,
                line(&condition.message)
            );
        }
        text
    }

    /// What a policy broke.
    fn promises(&self, run: &Run) -> String {
        let all = self.all(&run.outcome);
        let mut broken = Vec::new();
        for (what, count) in [
            ("evictions beyond a disruption budget", all.beyond_budget),
            ("evictions to below what is reserved", all.below_reserved),
        ] {
            if count > 0 {
                broken.push(format!("{what}: {count}"));
            }
        }
        match run.outcome.loops {
            0 => broken.push("no pod went round".to_owned()),
            loops => broken.push(format!("evictions twice for the same pod: {loops}")),
        }
        format!("{}: {}.\n", name(run.policy), broken.join(", "))
    }

    /// Times in seconds, shares in thousandths of the cluster, what is used in canonical units times seconds.
    pub(crate) fn json(&self) -> Value {
        let policies = self.runs.iter().map(|run| {
            let namespaces = self.namespaces().into_iter().map(|at| {
                let mut figures = self.figures_json(run, &run.outcome.figures[at]);
                figures["name"] = json!(self.cluster.names[at]);
                figures["shareOverTime"] = json!(run.outcome.figures[at].parts);
                figures
            });
            json!({
                "policy": name(run.policy),
                "namespaces": namespaces.collect::<Vec<_>>(),
                "all": self.figures_json(run, &self.all(&run.outcome)),
                "repeats": run.outcome.repeats,
                "loops": run.outcome.loops,
            })
        });
        json!({
            "days": self.days,
            "seed": self.seed,
            "policies": policies.collect::<Vec<_>>(),
            "conditions": self.conditions.iter().map(|condition| json!({"object": condition.object, "reason": condition.reason, "message": condition.message})).collect::<Vec<_>>(),
        })
    }

    fn figures_json(&self, run: &Run, figures: &Figures) -> Value {
        let wait = |hundredths| Figures::percentile(&figures.waits_s, hundredths);
        let entitled = |hundredths| Figures::percentile(&figures.entitled_waits_s, hundredths);
        let used = self.cluster.resources.names().zip(&figures.used);
        let used = used.map(|(name, used)| (name.to_owned(), json!(used.to_string())));
        json!({
            "came": figures.came,
            "started": figures.started,
            "ended": figures.ended,
            "evicted": figures.evicted,
            "lostSeconds": figures.lost_s,
            "waitSeconds": {"mean": Figures::mean(&figures.waits_s), "p50": wait(50), "p95": wait(95), "longest": wait(100)},
            "entitledWaitSeconds": {"p50": entitled(50), "p95": entitled(95), "longest": entitled(100)},
            "shortSeconds": figures.short_s,
            "beyondBudget": figures.beyond_budget,
            "belowReserved": figures.below_reserved,
            "share": u64::try_from(Self::share(&run.outcome, &figures.used)).unwrap_or(u64::MAX),
            "usedSeconds": used.collect::<Map<_, _>>(),
        })
    }
}
