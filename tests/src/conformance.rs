//! Golden vectors: the kubelet's own answers (of the arbitrator, those of a reference), checked line by line.
//!
//! A vector file has one JSON object per line, with the inputs and what Kubernetes 1.36.2 made of them. The file's name
//! says which rule it checks ([`FILES`]). Every line gets a [`Verdict`]; nothing is skipped. Where upstream's answer is
//! tagged as a defect, ours has to be the right one and the line counts as a known upstream defect.

mod admission;
mod arbitration_plan;
mod cgroup_config;
mod cpu_assignment;
mod cpu_static_policy;
mod drf_deserved;
mod machines;
mod memory_manager;
mod node_allocatable;
mod pods;
mod quantity;
mod rank;
mod seeds;
mod stats;
mod thresholds;
mod timeline;
mod topology_merge;

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

pub use machines::Machines;

/// What one vector came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Our answer is upstream's.
    Pass,
    /// Our answer is wrong, or the line cannot be read.
    Fail {
        /// Expected and actual.
        why: String,
    },
    /// Upstream's answer is tagged as a defect; ours is the right one.
    KnownUpstreamDefect(String),
    /// Our answer is another one, which the vector allows.
    Acceptable(String),
}

impl Verdict {
    /// Passes if there is no complaint.
    fn of(complaint: Result<(), String>) -> Self {
        match complaint {
            Ok(()) => Self::Pass,
            Err(why) => Self::Fail { why },
        }
    }
}

/// Checks one vector.
pub type Check = fn(&Value) -> Verdict;

/// The rules implemented so far, by the stem of their files. A held-out file may have more after the stem.
pub const FILES: &[(&str, Check)] = &[
    ("qos_class", pods::qos_class),
    ("oom_score_adj", pods::oom_score_adj),
    ("quantity", quantity::check),
    ("eviction_rank", rank::check),
    ("pod_resources", pods::pod_resources),
    ("eviction_thresholds_parse", thresholds::check),
    ("eviction_timeline", timeline::check),
    ("seeds_tables", seeds::check),
    ("cgroup_config", cgroup_config::check),
    ("node_allocatable", node_allocatable::check),
    ("memory_manager", memory_manager::check),
    ("topology_merge", topology_merge::check),
    ("cpu_assignment", cpu_assignment::check),
    ("cpu_static_policy", cpu_static_policy::check),
    ("drf_deserved", drf_deserved::check),
    ("arbitration_plan", arbitration_plan::check),
    ("limit_range", admission::functions::limit_range),
    ("resource_quota", admission::functions::resource_quota),
    ("admission_limit_range", admission::limit_range::check),
    ("admission_resource_quota", admission::resource_quota::check),
    ("priority", admission::priority::check),
    ("resource_names", admission::resource_names::check),
];

/// How many failures a report keeps in full.
const FAILURES_KEPT: usize = 20;

/// A line that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Counted from 1.
    pub line: usize,
    /// The vector's `id`, if it could be read.
    pub id: String,
    /// Expected and actual.
    pub why: String,
}

/// What a file came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The file's stem.
    pub name: String,
    /// Vectors on which we agree with upstream.
    pub passed: usize,
    /// Vectors on which we are wrong.
    pub failed: usize,
    /// Vectors on which upstream is wrong and we are not.
    pub known_upstream_defects: usize,
    /// Vectors on which we give another answer than the expected one, which they allow.
    pub acceptable: usize,
    /// The first failures.
    pub failures: Vec<Failure>,
}

impl Report {
    /// Whether nothing failed.
    pub fn is_success(&self) -> bool {
        self.failed == 0
    }

    fn add(&mut self, line: usize, id: String, verdict: Verdict) {
        match verdict {
            Verdict::Pass => self.passed += 1,
            Verdict::KnownUpstreamDefect(_) => self.known_upstream_defects += 1,
            Verdict::Acceptable(_) => self.acceptable += 1,
            Verdict::Fail { why } => {
                self.failed += 1;
                if self.failures.len() < FAILURES_KEPT {
                    self.failures.push(Failure { line, id, why });
                }
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            passed,
            failed,
            known_upstream_defects,
            acceptable,
            failures,
        } = self;
        write!(
            f,
            "{name}: {passed} passed, {failed} failed, {known_upstream_defects} known upstream defects"
        )?;
        if *acceptable > 0 {
            write!(f, ", {acceptable} otherwise, as the vector allows")?;
        }
        for Failure { line, id, why } in failures {
            write!(f, "\n  line {line} ({id}): {why}")?;
        }
        if *failed > failures.len() {
            write!(f, "\n  and {} more", failed - failures.len())?;
        }
        Ok(())
    }
}

/// Why a file could not be checked at all.
#[derive(Debug, thiserror::Error)]
pub enum ConformanceError {
    /// Its name says nothing.
    #[error("{path}: no rule of that name is implemented; known are {known}. Name the file after one of them", known = known())]
    UnknownFile {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("{path}: {source}; give the path of a readable .jsonl file")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It has no vectors: a check that cannot fail is worth nothing.
    #[error("{path}: the file has no vectors; give one with a JSON object per line")]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

fn known() -> String {
    FILES
        .iter()
        .map(|(stem, _)| *stem)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The rule for a file, by its name: the stem of [`FILES`] alone or followed by anything but a letter or digit.
fn rule_for(path: &Path) -> Option<&'static (&'static str, Check)> {
    let name = path.file_name()?.to_str()?;
    FILES.iter().find(|(stem, _)| {
        let rest = name.strip_prefix(stem);
        rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric()))
    })
}

/// The check for a file, by its name.
pub fn check_for(path: &Path) -> Option<Check> {
    rule_for(path).map(|(_, check)| *check)
}

/// Checks every line of a file.
///
/// # Errors
/// If the file is unknown, unreadable or empty. A line that cannot be read is a failure in the report instead.
pub fn run(path: &Path) -> Result<Report, ConformanceError> {
    let check = check_for(path).ok_or_else(|| ConformanceError::UnknownFile {
        path: path.to_owned(),
    })?;
    run_with(path, check)
}

/// Checks every line of a file with the given check, whatever the file's name.
///
/// # Errors
/// If the file is unreadable or empty.
pub fn run_with(path: &Path, check: Check) -> Result<Report, ConformanceError> {
    let unreadable = |source| ConformanceError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let stem = rule_for(path).map_or("", |(stem, _)| *stem);
    let machines = Machines::beside(path, stem)
        .map_err(|(path, source)| ConformanceError::Unreadable { path, source })?;
    let name = path
        .file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let mut report = Report {
        name,
        passed: 0,
        failed: 0,
        known_upstream_defects: 0,
        acceptable: 0,
        failures: Vec::new(),
    };
    for (line, text) in
        (1..).zip(BufReader::new(File::open(path).map_err(unreadable)?).split(b'\n'))
    {
        let text = text.map_err(unreadable)?;
        match serde_json::from_slice::<Value>(&text) {
            Ok(mut vector) => {
                machines.place_into(&mut vector);
                let id = vector["id"].as_str().unwrap_or("no id").to_owned();
                report.add(line, id, check(&vector));
            }
            Err(error) => {
                report.add(
                    line,
                    "no id".to_owned(),
                    Verdict::Fail {
                        why: format!("not a JSON object: {error}"),
                    },
                );
            }
        }
    }
    if report.passed + report.failed + report.known_upstream_defects + report.acceptable == 0 {
        return Err(ConformanceError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(report)
}

/// Reads a vector; a missing or wrong field is named.
fn read<'a, T: Deserialize<'a>>(vector: &'a Value) -> Result<T, String> {
    T::deserialize(vector).map_err(|error| format!("not a vector of this kind: {error}"))
}

/// Complains unless both are equal.
fn same<T: PartialEq + fmt::Debug>(what: &str, actual: &T, expected: &T) -> Result<(), String> {
    if actual == expected {
        Ok(())
    } else {
        Err(format!("{what}: got {actual:?}, expected {expected:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, content: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        (dir, path)
    }

    const GOOD: &str = r#"{"id":"q","kind":"format_int","int":"1024","binary_si":"1Ki","decimal_si":"1024","milli_decimal_si":"1024m"}"#;

    #[test]
    fn good_and_bad_lines_are_counted() {
        let (_dir, path) = file(
            "quantity-more.jsonl",
            &format!("{GOOD}\nnonsense\n{{\"id\":\"x\"}}\n\n"),
        );
        let report = run(&path).unwrap();
        assert_eq!(
            (report.passed, report.failed, report.failures.len()),
            (1, 3, 3)
        );
        assert_eq!(
            (
                report.failures[0].line,
                report.failures[1].line,
                report.failures[2].line
            ),
            (2, 3, 4)
        );
        assert!(report.failures[1].why.contains("kind"), "{report}");
        assert!(
            report
                .to_string()
                .starts_with("quantity-more: 1 passed, 3 failed, 0 known upstream defects")
        );
    }

    #[test]
    fn a_wrong_answer_fails() {
        let (_dir, path) = file("quantity.jsonl", &GOOD.replace("1Ki", "1024"));
        assert!(!run(&path).unwrap().is_success());
    }

    #[test]
    fn unknown_unreadable_and_empty_files_are_errors() {
        let (dir, path) = file("quantitys.jsonl", GOOD);
        let error = run(&path).unwrap_err();
        assert!(
            matches!(error, ConformanceError::UnknownFile { .. })
                && error.to_string().contains("eviction_rank")
        );
        let missing = run(&dir.path().join("quantity.jsonl"));
        assert!(matches!(missing, Err(ConformanceError::Unreadable { .. })));
        let (_dir, path) = file("quantity.jsonl", "");
        assert!(matches!(run(&path), Err(ConformanceError::Empty { .. })));
    }
}
