//! The ledger of guest and host tests that fail at times.
//!
//! A test that fails at times has a fault, or shows one. It has no second chance: a failure fails the run, in the
//! ledger or not. The ledger is what is known of it, and is printed at the end of every run until it is empty.

use crate::progress::say;

/// A test that was seen to fail without a change.
struct Flaky {
    /// As the run names it.
    test: &'static str,
    /// `YYYY-MM-DD`.
    since: &'static str,
    /// What was seen, where, how often; what it may be.
    seen: &'static str,
}

/// The ledger.
const LEDGER: &[Flaky] = &[];

/// Prints the ledger.
pub(super) fn tell(failed_tests: &[String]) {
    for line in lines(LEDGER, failed_tests) {
        say("flaky", line);
    }
}

fn lines(ledger: &[Flaky], failed_tests: &[String]) -> Vec<String> {
    let line = |flaky: &Flaky| {
        let Flaky { test, since, seen } = flaky;
        let now = if failed_tests.iter().any(|failed| failed == test) {
            ", and failed in this run"
        } else {
            ""
        };
        format!("{test}, since {since}{now}: {seen}")
    };
    match ledger {
        [] => vec!["no test is known to fail at times (xtask/src/test/flaky.rs)".to_owned()],
        _ => ledger.iter().map(line).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_with_what_is_known_and_whether_it_failed_now() {
        let ledger = [
            Flaky {
                test: "a::b",
                since: "2026-01-02",
                seen: "1 of 40 on 6.1: no record",
            },
            Flaky {
                test: "c",
                since: "2026-01-03",
                seen: "once",
            },
        ];
        assert_eq!(
            lines(&ledger, &["a::b".to_owned()]),
            [
                "a::b, since 2026-01-02, and failed in this run: 1 of 40 on 6.1: no record",
                "c, since 2026-01-03: once"
            ]
        );
        assert_eq!(lines(&[], &[]).len(), 1, "an empty ledger is told, too");
    }
}
