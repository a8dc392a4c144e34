//! What programs of tests print, as numbers: those of `cargo test` and the guest tests.

use std::fmt;
use std::ops::AddAssign;

/// How many tests went which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Succeeded.
    pub(crate) passed: u64,
    /// Failed, or could not be run.
    pub(crate) failed: u64,
    /// Not run, with a reason.
    pub(crate) skipped: u64,
}

impl Counts {
    /// One stage that is a test by itself.
    pub(crate) fn one(passed: bool) -> Self {
        Self {
            passed: passed.into(),
            failed: (!passed).into(),
            skipped: 0,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// `N passed, N failed`, and `, N skipped` if any were.
impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(formatter, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// The number before `word` in a text like `3 passed; 1 failed`.
fn number_before(text: &str, word: &str) -> Option<u64> {
    let (before, _) = text.split_once(word)?;
    before.split_whitespace().next_back()?.parse().ok()
}

/// Counts of a program of tests, from its output (both streams) and whether it succeeded.
///
/// Such a program ends with `test result: …`. One that did not (it crashed) counts as a failure.
pub(crate) fn of_test_program(output: &str, success: bool) -> Counts {
    let mut counts = Counts::default();
    let mut results = output
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("test result:"));
    let result = results.next_back();
    if let Some(result) = result {
        counts += Counts {
            passed: number_before(result, " passed").unwrap_or(0),
            failed: number_before(result, " failed").unwrap_or(0),
            skipped: number_before(result, " ignored").unwrap_or(0),
        };
    }
    if !success || result.is_none() {
        counts.failed = counts.failed.max(1);
    }
    counts
}

/// What the guest test program has said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GuestTests {
    /// What did not end counts as failed.
    pub(crate) counts: Counts,
    /// The names of tests that failed or did not end.
    pub(crate) failed: Vec<String>,
    /// How many did not end.
    pub(crate) unfinished: usize,
    /// The last that began, if it did not end.
    pub(crate) during: Option<String>,
}

/// What the guest test program has said of the tests that it was to run, from its lines and exit status.
pub(crate) fn of_guest_tests(lines: &[String], planned: &[String], status: u8) -> GuestTests {
    let outcomes: Vec<(&str, GuestOutcome)> =
        lines.iter().filter_map(|line| outcome(line)).collect();
    let of = |name: &str| {
        let mut of_name = outcomes.iter().filter(|(test, _)| *test == name);
        of_name.next().map(|(_, outcome)| *outcome)
    };
    let mut results = GuestTests {
        counts: Counts::default(),
        failed: Vec::new(),
        unfinished: 0,
        during: None,
    };
    for name in planned {
        match of(name) {
            Some(GuestOutcome::Ok) => results.counts.passed += 1,
            Some(GuestOutcome::Skipped) => results.counts.skipped += 1,
            Some(GuestOutcome::Failed) => {
                results.counts.failed += 1;
                results.failed.push(name.clone());
            }
            None => {
                results.counts.failed += 1;
                results.unfinished += 1;
                results.failed.push(name.clone());
            }
        }
    }
    let begun = lines.iter().rev().find_map(|line| begun(line));
    results.during = begun
        .map(|(name, _)| name.to_owned())
        .filter(|name| of(name).is_none());
    // A program that says that all is well and ends with an error is not believed.
    if status != 0 {
        results.counts.failed = results.counts.failed.max(1);
    }
    results
}

/// Whether a line says that a test has begun or ended.
pub(crate) fn moves(line: &str) -> bool {
    begun(line).is_some() || outcome(line).is_some()
}

/// The test in a line `running NAME (3 of 40)`, and its number.
pub(crate) fn begun(line: &str) -> Option<(&str, u64)> {
    let (name, number) = line.trim().strip_prefix("running ")?.split_once(" (")?;
    let (number, _) = number.split_once(" of ")?;
    Some((name, number.parse().ok()?))
}

/// What a line `test NAME ... OUTCOME (TIME)` says: name and outcome.
pub(crate) fn outcome(line: &str) -> Option<(&str, GuestOutcome)> {
    let (name, outcome) = line.trim().strip_prefix("test ")?.split_once(" ... ")?;
    let outcome = match outcome.split([' ', ':']).next()? {
        "ok" => GuestOutcome::Ok,
        "FAILED" => GuestOutcome::Failed,
        "skipped" => GuestOutcome::Skipped,
        _ => return None,
    };
    Some((name, outcome))
}

/// How a guest test went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuestOutcome {
    Ok,
    Failed,
    Skipped,
}

/// The lines of tests that failed, with what they say, or were skipped.
pub(crate) fn notable(lines: &[String]) -> impl Iterator<Item = &str> {
    let mut is_failure = false;
    lines.iter().map(String::as_str).filter(move |line| {
        if let Some((_, outcome)) = outcome(line) {
            is_failure = outcome == GuestOutcome::Failed;
            return outcome != GuestOutcome::Ok;
        }
        // The harness indents a test's words.
        is_failure &= line.starts_with("    ");
        is_failure
    })
}

/// What the host's tests wrote into the file that `PLIMSOLL_TEST_NOTES` names: what was left out, and what is worth a
/// line (agent/tests/notes/mod.rs).
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    /// Tests that said that they cannot run here.
    pub(crate) left_out: u64,
    /// A line each.
    pub(crate) lines: Vec<String>,
}

/// Reads the file; lines are in no order.
pub(crate) fn notes(text: &str) -> Notes {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    // A test that says it twice is one test.
    lines.dedup();
    let mut left_out: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("left out: ")?.split_once(": "))
        .map(|(name, _)| name)
        .collect();
    left_out.dedup();
    Notes {
        left_out: left_out.len() as u64,
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
        }
    }

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_program_of_tests_that_does_not_say_how_it_ended_has_failed() {
        let result = "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        assert_eq!(of_test_program(result, false), counts(3, 2, 1));
        let good = "test result: ok. 3 passed; 0 failed; 0 ignored\n";
        assert_eq!(of_test_program(good, true), counts(3, 0, 0));
        assert_eq!(of_test_program(good, false), counts(3, 1, 0));
        assert_eq!(of_test_program("test a ... ok\n", false), counts(0, 1, 0));
        assert_eq!(of_test_program("", true), counts(0, 1, 0));
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn what_was_planned_is_compared_with_what_ended() {
        let output = lines(
            "[1.0] boot\nrunning a (1 of 2)\ntest a ... ok (1.0 s)\nrunning b (2 of 2)\ntest b ... skipped: no fentry\n\
             1 passed, 0 failed, 1 skipped\n\nPower down",
        );
        let results = of_guest_tests(&output, &names(&["a", "b"]), 0);
        assert_eq!(results.counts, counts(1, 0, 1));
        assert_eq!((results.unfinished, results.during), (0, None));
        assert_eq!(
            of_guest_tests(&output, &names(&["a", "b"]), 1).counts,
            counts(1, 1, 1)
        );
        let more = of_guest_tests(&output, &names(&["a", "b", "c"]), 0);
        assert_eq!(more.counts, counts(1, 1, 1), "c was never run");
        assert_eq!(more.failed, ["c"]);
        assert_eq!(
            notable(&output).collect::<Vec<_>>(),
            ["test b ... skipped: no fentry"]
        );
    }

    #[test]
    fn a_guest_that_dies_names_the_test_that_it_died_in() {
        let output = lines(
            "running a (1 of 4)\ntest a ... ok (2.5 s)\nrunning b (2 of 4)\ntest b ... FAILED (0.1 s)\nrunning c (3 of 4)\nKernel panic",
        );
        let results = of_guest_tests(&output, &names(&["a", "b", "c", "d"]), 125);
        assert_eq!(results.counts, counts(1, 3, 0));
        assert_eq!(results.failed, ["b", "c", "d"]);
        assert_eq!(
            (results.unfinished, results.during.as_deref()),
            (2, Some("c"))
        );
        assert_eq!(
            of_guest_tests(&[], &names(&["a"]), 125).counts,
            counts(0, 1, 0)
        );
    }

    #[test]
    fn notes_of_the_hosts_tests() {
        let text = "left out: b: needs root\ngolden vectors: 7\nleft out: a: no cgroup v2\nleft out: b: needs root\n";
        let notes = notes(text);
        assert_eq!(notes.left_out, 2);
        assert_eq!(
            notes.lines,
            [
                "golden vectors: 7",
                "left out: a: no cgroup v2",
                "left out: b: needs root"
            ]
        );
    }

    #[test]
    fn a_failure_is_told_with_its_words() {
        let output = lines(
            "test a ... ok (2.5 s)\ntest b ... FAILED (0.1 s)\n    no victim\n    kernel: killed\n[9.9] noise\n    noise\n\
             test c ... ok (0.2 s)\n    noise\n\n2 passed, 1 failed, 0 skipped",
        );
        let results = [
            "test b ... FAILED (0.1 s)",
            "    no victim",
            "    kernel: killed",
        ];
        assert_eq!(notable(&output).collect::<Vec<_>>(), results);
    }

    #[test]
    fn the_summary_line() {
        assert_eq!(counts(3, 0, 0).to_string(), "3 passed, 0 failed");
        assert_eq!(counts(3, 1, 2).to_string(), "3 passed, 1 failed, 2 skipped");
        let mut sum = Counts::one(true);
        sum += Counts::one(false);
        assert_eq!(sum, counts(1, 1, 0));
    }
}
