//! What test programs print, as numbers: the output of `cargo test` and of the guest tests.

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

/// Counts of `cargo test --no-fail-fast`, from its output (both streams) and whether it succeeded.
///
/// Every test program ends with `test result: …`. One that was started and did not (it crashed) counts as a failure, as does a
/// build that failed.
pub(crate) fn of_cargo_test(output: &str, success: bool) -> Counts {
    let mut counts = Counts::default();
    let (mut started, mut ended) = (0_u64, 0_u64);
    for line in output.lines() {
        let line = line.trim_start();
        if line.starts_with("Running ") || line.starts_with("Doc-tests ") {
            started += 1;
        }
        let Some(result) = line.strip_prefix("test result:") else {
            continue;
        };
        ended += 1;
        counts += Counts {
            passed: number_before(result, " passed").unwrap_or(0),
            failed: number_before(result, " failed").unwrap_or(0),
            skipped: number_before(result, " ignored").unwrap_or(0),
        };
    }
    if !success {
        counts.failed += started.saturating_sub(ended);
        counts.failed = counts.failed.max(1);
    }
    counts
}

/// Counts of the guest test program, from its lines and exit status; failing ones are found by [`notable`].
///
/// The program's last word is its summary. Without it (a panic, a time-out), the tests seen so far count, and one failure for the rest.
pub(crate) fn of_guest_tests(lines: &[String], status: u8) -> Counts {
    let mut counts = guest_summary(lines).unwrap_or_else(|| {
        let mut seen = Counts {
            failed: 1,
            ..Counts::default()
        };
        for (_, outcome) in lines.iter().filter_map(|line| outcome(line)) {
            match outcome {
                GuestOutcome::Ok => seen.passed += 1,
                GuestOutcome::Failed => seen.failed += 1,
                GuestOutcome::Skipped => seen.skipped += 1,
            }
        }
        seen
    });
    // A program that says that all is well and ends with an error is not believed.
    if status != 0 {
        counts.failed = counts.failed.max(1);
    }
    counts
}

/// What a line `test NAME ... OUTCOME (TIME)` says: name and outcome.
fn outcome(line: &str) -> Option<(&str, GuestOutcome)> {
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
enum GuestOutcome {
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

/// The names of tests that failed, if the program came to its end.
pub(crate) fn failed_guest_tests(lines: &[String]) -> Vec<String> {
    let failed = |line: &String| {
        outcome(line)
            .filter(|(_, outcome)| *outcome == GuestOutcome::Failed)
            .map(|(name, _)| name.to_owned())
    };
    if guest_summary(lines).is_none() {
        return Vec::new();
    }
    lines.iter().filter_map(failed).collect()
}

/// The guest test program's last word, `N passed, N failed, N skipped`.
fn guest_summary(lines: &[String]) -> Option<Counts> {
    lines.iter().rev().find_map(|line| {
        let line = line.trim();
        let counts = Counts {
            passed: number_before(line, " passed,")?,
            failed: number_before(line, " failed")?,
            skipped: number_before(line, " skipped").unwrap_or(0),
        };
        line.starts_with(|first: char| first.is_ascii_digit())
            .then_some(counts)
    })
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
    fn cargo_test_programs_add_up() {
        let output = "     Running unittests src/lib.rs (target/debug/deps/a-1)\n\
            test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
               Doc-tests plimsoll\n\
            test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        assert_eq!(of_cargo_test(output, false), counts(15, 2, 1));
    }

    #[test]
    fn a_crash_and_a_broken_build_are_failures() {
        let crash = "Running a\ntest result: ok. 1 passed; 0 failed; 0 ignored\nRunning b\nerror: test failed\n";
        assert_eq!(of_cargo_test(crash, false), counts(1, 1, 0));
        assert_eq!(
            of_cargo_test("error: could not compile", false),
            counts(0, 1, 0)
        );
    }

    #[test]
    fn guest_summary_is_the_result() {
        let output = lines(
            "[1.0] boot\ntest a ... ok (1.0 s)\ntest b ... skipped: no fentry\n2 passed, 0 failed, 1 skipped\n\nPower down",
        );
        assert_eq!(failed_guest_tests(&output), [""; 0]);
        assert_eq!(of_guest_tests(&output, 0), counts(2, 0, 1));
        assert_eq!(of_guest_tests(&output, 1), counts(2, 1, 1));
        assert_eq!(
            notable(&output).collect::<Vec<_>>(),
            ["test b ... skipped: no fentry"]
        );
    }

    #[test]
    fn a_guest_without_summary_fails() {
        let output = lines("test a ... ok (2.5 s)\ntest b ... FAILED (0.1 s)\nKernel panic");
        assert_eq!(of_guest_tests(&output, 125), counts(1, 2, 0));
        assert_eq!(
            failed_guest_tests(&output),
            [""; 0],
            "what follows never ran"
        );
        assert_eq!(of_guest_tests(&[], 0), counts(0, 1, 0));
    }

    #[test]
    fn a_failure_is_told_with_its_words() {
        let output = lines(
            "test a ... ok (2.5 s)\ntest b ... FAILED (0.1 s)\n    no victim\n    kernel: killed\n[9.9] noise\n    noise\n\
             test c ... ok (0.2 s)\n    noise\n\n2 passed, 1 failed, 0 skipped",
        );
        let told = [
            "test b ... FAILED (0.1 s)",
            "    no victim",
            "    kernel: killed",
        ];
        assert_eq!(notable(&output).collect::<Vec<_>>(), told);
        assert_eq!(failed_guest_tests(&output), ["b"]);
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
