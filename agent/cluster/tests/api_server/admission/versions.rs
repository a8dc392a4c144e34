//! In what older API servers answer otherwise than 1.36, which the core follows.
//!
//! Only 1.20 and 1.36 have been tried. An entry applies to every version before 1.36, and has to be needed by 1.20: one
//! that is not is out of date.

use super::Status;

/// What was tried last, which all is compared with.
const NEWEST: u32 = 36;
/// The older version that was tried.
const OLDER: u32 = 20;

/// A sentence that an older server writes otherwise.
struct Difference {
    name: &'static str,
    /// What both sides say without the difference.
    common: fn(&str) -> String,
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "a value that is no text is printed as the structure of the server's own code",
        common: |text| cut(text, "Invalid value: ", &[": "]),
    },
    Difference {
        name: "a request that is not right for its limit: without the limit's amount",
        common: |text| cut(text, " limit of ", &[", spec", "]"]).replace(" limit of ", " limit"),
    },
    Difference {
        name: "what containers have to set: without the names of the containers",
        common: without_containers,
    },
    Difference {
        name: "the name of a resource is a qualified name, and no label key",
        common: |text| text.replace("a valid label key ", "a qualified name "),
    },
    Difference {
        name: "a scope selector's bad value has words of its own",
        common: |text| cut(text, "convert selector: ", &["a valid label "]),
    },
    Difference {
        name: "what may change in a pod",
        common: |text| cut(text, "pod updates may not change fields other than ", &[]),
    },
    Difference {
        name: "the field of a class's value has the name that it has in the server's own code",
        common: |text| match text {
            "Value" => "value".to_owned(),
            text => text.replace("invalid: Value: ", "invalid: value: "),
        },
    },
];

/// Whole answers that older servers give otherwise; the reason of a [`Case`](super::cases::Case).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Newer {
    /// Pods have `spec.resources` since 1.32.
    PodLevel,
    /// Sidecars are there since 1.28.
    Sidecars,
    /// Containers without the resource made a pod's sum "not specified", and a sum was printed as a plain number.
    PodSums,
    /// Parts of huge pages were taken.
    HugePages,
}

impl Newer {
    pub(super) const ALL: [Self; 4] = [
        Self::PodLevel,
        Self::Sidecars,
        Self::PodSums,
        Self::HugePages,
    ];
}

/// The text without what stands between `after` and the first of `until`, or its end; wherever that is.
fn cut(text: &str, after: &str, until: &[&str]) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(after) {
        let (before, following) = rest.split_at(at + after.len());
        kept.push_str(before);
        let ends = until.iter().filter_map(|end| following.find(end));
        rest = &following[ends.min().unwrap_or(following.len())..];
    }
    kept + rest
}

/// `must specify cpu for: a; memory for: b` as `must specify cpu,memory`.
fn without_containers(text: &str) -> String {
    let Some((before, names)) = text.split_once("must specify ") else {
        return text.to_owned();
    };
    let names = names.split("; ");
    let names: Vec<&str> = names
        .map(|name| name.split(" for: ").next().unwrap_or(name))
        .collect();
    format!("{before}must specify {}", names.join(","))
}

/// The table for one server.
pub(super) struct Versions {
    minor: u32,
    /// How often each difference and each newer answer was needed.
    used: [Vec<usize>; 2],
}

impl Versions {
    pub(super) fn of(minor: u32) -> Self {
        let used = [DIFFERENCES.len(), Newer::ALL.len()];
        Self {
            minor,
            used: used.map(|count| vec![0; count]),
        }
    }

    /// Both answers without what is known to differ.
    pub(super) fn common(&mut self, ours: Status, theirs: Status) -> (Status, Status) {
        let (mut ours, mut theirs) = (ours, theirs);
        if self.minor >= NEWEST {
            return (ours, theirs);
        }
        for (difference, used) in DIFFERENCES.iter().zip(&mut self.used[0]) {
            if ours.is_same(&theirs) {
                break;
            }
            let (new, old) = (
                ours.mapped(difference.common),
                theirs.mapped(difference.common),
            );
            *used += usize::from((&new, &old) != (&ours, &theirs));
            (ours, theirs) = (new, old);
        }
        (ours, theirs)
    }

    /// Whether a difference has a reason; then it is counted.
    pub(super) fn explains(&mut self, newer: Option<Newer>) -> bool {
        let at = newer.filter(|_| self.minor < NEWEST);
        let at = at.and_then(|newer| Newer::ALL.iter().position(|known| *known == newer));
        at.map(|at| self.used[1][at] += 1).is_some()
    }

    pub(super) fn counts(&self) -> [usize; 2] {
        [0, 1].map(|at: usize| self.used[at].iter().sum())
    }

    /// What is in the tables and was not seen.
    pub(super) fn unused(&self) -> Vec<String> {
        let differences = DIFFERENCES.iter().map(|it| it.name.to_owned());
        let newer = Newer::ALL.iter().map(|newer| format!("{newer:?}"));
        let of_version = differences
            .zip(&self.used[0])
            .chain(newer.zip(&self.used[1]));
        let unused = of_version.filter(|(_, used)| self.minor == OLDER && **used == 0);
        unused.map(|(name, _)| name).collect()
    }
}
