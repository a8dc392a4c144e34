//! Figures of measurements, kept in `docs/reference/figures.json`, and what is worse than it was.
//!
//! Every figure is less the better. In guests whose clock counts instructions figures repeat, so a change of some
//! percent is a change of the code. What is *judged* says who makes the figure (`tests/src/guest/figure.rs`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::paths;

/// Where the report's figures are in the repository.
pub(super) fn committed() -> PathBuf {
    paths::root().join("docs/reference/figures.json")
}

/// A judged figure may be this much more than it was, in percent.
pub(super) const WORSE_PERCENT: i64 = 5;

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    /// Nanoseconds.
    Ns,
    Bytes,
    Count,
    /// Millionths.
    Ppm,
    /// Millionths above one.
    ExcessPpm,
}

impl Unit {
    /// What a figure may change by in any case: a timer that fires once more, a page, a rounding.
    fn slack(self) -> i64 {
        match self {
            Self::Ns => 500,
            Self::Bytes => 64 << 10,
            Self::Count => 0,
            Self::Ppm => 20,
            // Two neighbours in turn differ by that with nothing in between.
            Self::ExcessPpm => 2_000,
        }
    }
}

/// One figure, as the guest's program writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    pub(super) case: String,
    pub(super) figure: String,
    pub(super) unit: Unit,
    pub(super) median: i64,
    pub(super) min: i64,
    pub(super) max: i64,
    pub(super) n: u64,
    pub(super) judged: bool,
}

/// One measurement on one kernel, and what it was made with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    /// `uname -r` of the guest.
    pub(super) kernel: String,
    /// The revision that was measured; `+` behind it: with changes that are not committed.
    pub(super) revision: String,
    /// `rustc -V`.
    pub(super) rustc: String,
    /// Whether it was the build of the guests' tests, without link-time optimisation, and not the released one.
    pub(super) as_tested: bool,
    /// Debian packages of other systems in the guest, with their versions.
    pub(super) packages: Vec<String>,
    pub(super) figures: Vec<Figure>,
}

/// By measurement and kernel, `reaction/6.1`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Report {
    pub(super) runs: BTreeMap<String, Run>,
}

impl Report {
    /// None where the file is not there.
    pub(super) fn read(path: &Path) -> Result<Self> {
        match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("cannot read {} as figures", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// What a guest's program left: the kernel's release, and the figures.
pub(super) fn read_figures(path: &Path) -> Result<(String, Vec<Figure>)> {
    #[derive(Deserialize)]
    struct Head {
        kernel: String,
    }
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut lines = text.lines();
    let head: Head = serde_json::from_str(lines.next().unwrap_or_default())
        .with_context(|| format!("{}: the first line names no kernel", path.display()))?;
    let figures = lines
        .map(serde_json::from_str)
        .collect::<Result<Vec<Figure>, _>>()
        .with_context(|| format!("{}: not a figure", path.display()))?;
    ensure!(!figures.is_empty(), "{}: no figures", path.display());
    Ok((head.kernel, figures))
}

/// A judged figure beside the report's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Same,
    /// From the report's to this.
    Better(i64, i64),
    Worse(i64, i64),
    /// The report has none.
    New,
    /// The report's was made with another kernel, compiler or build: what differs need not be Plimsoll.
    MadeOtherwise(i64, i64),
}

/// Compares two medians.
fn change(unit: Unit, before: i64, now: i64) -> Change {
    let beyond = |low: i64, high: i64| {
        let more = i128::from(high) - i128::from(low);
        more > i128::from(unit.slack())
            && more * 100 > i128::from(low).abs() * i128::from(WORSE_PERCENT)
    };
    if now > before && beyond(before, now) {
        Change::Worse(before, now)
    } else if before > now && beyond(now, before) {
        Change::Better(before, now)
    } else {
        Change::Same
    }
}

/// Whether what differs between two runs is a change of Plimsoll.
pub(super) fn is_made_alike(one: &Run, other: &Run) -> bool {
    one.kernel == other.kernel && one.rustc == other.rustc && one.as_tested == other.as_tested
}

/// Each judged figure of a run beside the report's; and those of the report that the run lacks.
pub(super) fn compare<'a>(
    before: &'a Run,
    now: &'a Run,
) -> (Vec<(&'a Figure, Change)>, Vec<&'a Figure>) {
    fn key(figure: &Figure) -> (&str, &str) {
        (&figure.case, &figure.figure)
    }
    let is_made_alike = is_made_alike(before, now);
    let known: BTreeMap<_, _> = before
        .figures
        .iter()
        .map(|figure| (key(figure), figure))
        .collect();
    let changes = now
        .figures
        .iter()
        .filter(|figure| figure.judged)
        .map(|figure| {
            let change = match known.get(&key(figure)) {
                None => Change::New,
                Some(known) if is_made_alike => change(figure.unit, known.median, figure.median),
                Some(known) => Change::MadeOtherwise(known.median, figure.median),
            };
            (figure, change)
        })
        .collect();
    let there: std::collections::BTreeSet<_> = now.figures.iter().map(key).collect();
    let missing = known
        .into_iter()
        .filter(|(key, figure)| figure.judged && !there.contains(key))
        .map(|(_, figure)| figure)
        .collect();
    (changes, missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &str, median: i64, judged: bool) -> Figure {
        Figure {
            case: "plimsoll".into(),
            figure: name.into(),
            unit: Unit::Ns,
            median,
            min: median,
            max: median,
            n: 1,
            judged,
        }
    }

    fn run(figures: Vec<Figure>) -> Run {
        Run {
            kernel: "6.1.0".into(),
            revision: "abc".into(),
            rustc: "rustc 1.95".into(),
            as_tested: false,
            packages: Vec::new(),
            figures,
        }
    }

    #[test]
    fn worse_is_more_than_five_percent_and_more_than_the_slack() {
        assert_eq!(change(Unit::Ns, 100_000, 105_000), Change::Same);
        assert_eq!(
            change(Unit::Ns, 100_000, 105_001),
            Change::Worse(100_000, 105_001)
        );
        assert_eq!(change(Unit::Ns, 100, 600), Change::Same);
        assert_eq!(change(Unit::Ns, 100, 601), Change::Worse(100, 601));
        assert_eq!(
            change(Unit::Ns, 105_001, 100_000),
            Change::Better(105_001, 100_000)
        );
        // A kill by the kernel where there was none.
        assert_eq!(change(Unit::Count, 0, 1), Change::Worse(0, 1));
        assert_eq!(
            change(Unit::Ns, i64::MIN, i64::MAX),
            Change::Worse(i64::MIN, i64::MAX)
        );
    }

    #[test]
    fn only_judged_figures_are_compared_and_a_missing_one_is_named() {
        let before = run(vec![
            figure("decision", 40_000, true),
            figure("gone", 50, true),
            figure("peer", 1, false),
        ]);
        let now = run(vec![
            figure("decision", 50_000, true),
            figure("added", 1, true),
            figure("peer", 9, false),
        ]);
        let (changes, missing) = compare(&before, &now);
        let changes: Vec<_> = changes
            .into_iter()
            .map(|(figure, change)| (figure.figure.as_str(), change))
            .collect();
        assert_eq!(
            changes,
            [
                ("decision", Change::Worse(40_000, 50_000)),
                ("added", Change::New)
            ]
        );
        let missing: Vec<_> = missing
            .into_iter()
            .map(|figure| figure.figure.as_str())
            .collect();
        assert_eq!(missing, ["gone"]);
        // With another kernel nothing is called worse.
        let now = Run {
            kernel: "6.1.1".into(),
            ..now
        };
        let (changes, _) = compare(&before, &now);
        assert_eq!(changes[0].1, Change::MadeOtherwise(40_000, 50_000));
    }

    #[test]
    fn what_a_guest_left_is_read_and_a_file_without_figures_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("figures.jsonl");
        let line = serde_json::to_string(&figure("decision", 1, true)).unwrap();
        fs::write(&path, format!("{{\"kernel\":\"6.1.0\"}}\n{line}\n")).unwrap();
        let (kernel, figures) = read_figures(&path).unwrap();
        assert_eq!((kernel.as_str(), figures.len()), ("6.1.0", 1));
        fs::write(&path, "{\"kernel\":\"6.1.0\"}\n").unwrap();
        assert!(read_figures(&path).is_err());
        fs::write(&path, format!("{line}\n")).unwrap();
        assert!(read_figures(&path).is_err());
    }
}
