//! The programs of tests that cargo has built: some at a time.
//!
//! Problem: cargo runs one after the other, and most of them wait for most of their time, for a runtime or for a clock:
//! all tests of the workspace took 13 minutes of which they could run for 7. Approach: cargo builds them and says where
//! they are, and each is run as cargo does it, in its package's directory.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::report::{self, Counts};
use crate::process::output::ProcessOutput;
use crate::progress::{Progress, Step};

/// Programs at a time.
const AT_ONCE: usize = 2;

/// A program of tests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TestProgram {
    file: PathBuf,
    /// Its package's directory.
    package: PathBuf,
    /// The file with its `main`, from there.
    source: PathBuf,
}

/// One line of `cargo test --message-format=json`; only what is needed of it.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
}

#[derive(Deserialize)]
struct Target {
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The programs of tests that cargo has built, as its messages say.
///
/// # Errors
/// There is none: then nothing would be tested.
pub(super) fn built(messages: &str) -> Result<Vec<TestProgram>> {
    let program = |line: &str| {
        // Lines about something else have other members.
        let message: Message = serde_json::from_str(line).ok()?;
        let file = message.executable.filter(|_| message.profile.test)?;
        let package = message.manifest_path.parent()?.to_owned();
        let source = message.target.src_path;
        let source = source.strip_prefix(&package).unwrap_or(&source).to_owned();
        Some(TestProgram {
            file,
            package,
            source,
        })
    };
    let programs: Vec<TestProgram> = messages.lines().filter_map(program).collect();
    ensure!(!programs.is_empty(), "cargo has built no test");
    Ok(programs)
}

/// What the programs have said, together.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) counts: Counts,
    /// The words of what failed.
    pub(super) log: String,
    /// Names of tests that failed.
    pub(super) failed_tests: Vec<String>,
    tests: u64,
    failed: u64,
    programs: usize,
}

/// Runs the programs with what `prepare` adds to the environment of each.
pub(super) fn run(
    programs: Vec<TestProgram>,
    prepare: &(impl Fn(&mut Command) + Sync),
    step: &Step,
) -> Results {
    let total = programs.len();
    let waiting = Mutex::new(VecDeque::from(programs));
    let results = Mutex::new(Results::default());
    let says = |change: &dyn Fn(&mut Results)| {
        let mut results = lock(&results);
        change(&mut results);
        step.at(Progress {
            done: results.tests,
            total: None,
            unit: "tests",
            now: format!(
                "{} failed, {} of {total} programs",
                results.failed, results.programs
            ),
        });
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                // The lock is not held while a program runs.
                while let Some(program) = take(&waiting) {
                    let ended = program.run(prepare, |line| {
                        says(&|results| results.line(line));
                    });
                    says(&|results| results.take(&program, &ended));
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn take(waiting: &Mutex<VecDeque<TestProgram>>) -> Option<TestProgram> {
    lock(waiting).pop_front()
}

/// A poisoned lock means that another thread panicked, and the scope passes that on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestProgram {
    fn run(
        &self,
        prepare: &impl Fn(&mut Command),
        on_line: impl FnMut(&str),
    ) -> Result<ProcessOutput> {
        let mut command = Command::new(&self.file);
        command
            .current_dir(&self.package)
            .env("CARGO_MANIFEST_DIR", &self.package);
        prepare(&mut command);
        ProcessOutput::run(&mut command, on_line)
    }

    /// What a person types to see it fail again.
    fn by_hand(&self) -> String {
        let package = self.package.display();
        format!("run it yourself: `cd {package} && {}`", self.file.display())
    }
}

impl Results {
    /// One more line of a program that runs.
    fn line(&mut self, line: &str) {
        if line.starts_with("test ") && !line.starts_with("test result") {
            self.tests += 1;
            self.failed += u64::from(line.ends_with(" ... FAILED"));
        }
    }

    /// One more program has ended.
    fn take(&mut self, program: &TestProgram, ended: &Result<ProcessOutput>) {
        self.programs += 1;
        let (counts, log) = match ended {
            Ok(ended) => {
                let text = ended.text();
                self.failed_tests.extend(failed_tests(&text));
                let counts = report::of_test_program(&text, ended.success());
                let mut log = failures(&text);
                if ended.hung {
                    log.push_str("\nit hung and was stopped");
                } else if !log.contains("test result: ") {
                    log.push_str(&format!("\nit ended without a result: {}", ended.status));
                }
                (counts, log)
            }
            Err(error) => (Counts::one(false), format!("{error:#}")),
        };
        self.counts += counts;
        if counts.failed > 0 {
            let name = program.package.join(&program.source);
            let by_hand = program.by_hand();
            self.log
                .push_str(&format!("-- {}\n{log}\n{by_hand}\n", name.display()));
        }
    }
}

/// A program's output without the tests that succeeded.
fn failures(log: &str) -> String {
    let is_shown = |line: &&str| {
        let passed = line.starts_with("test ") && line.ends_with(" ... ok");
        !passed && !line.is_empty() && !line.starts_with("running ")
    };
    log.lines().filter(is_shown).collect::<Vec<_>>().join("\n")
}

fn failed_tests(log: &str) -> Vec<String> {
    let failed = |line: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    };
    log.lines().filter_map(failed).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn program(directory: &Path, name: &str, script: &str) -> TestProgram {
        use std::os::unix::fs::PermissionsExt as _;
        let file = directory.join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        TestProgram {
            file,
            package: directory.to_owned(),
            source: name.into(),
        }
    }

    #[test]
    fn only_tests_are_run() {
        let message = |name: &str, is_test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/p/Cargo.toml","target":{{"src_path":"/p/src/{name}"}},"profile":{{"test":{is_test}}},"executable":{executable}}}"#
            )
        };
        let messages = [
            message("lib.rs", false, "null"),
            message("lib.rs", true, r#""/t/lib-1""#),
            message("main.rs", false, r#""/t/main""#),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let expected = TestProgram {
            file: "/t/lib-1".into(),
            package: "/p".into(),
            source: "src/lib.rs".into(),
        };
        assert_eq!(built(&messages.join("\n")).unwrap(), [expected]);
        assert!(built(&messages[3]).is_err());
    }

    #[test]
    fn what_failed_or_ended_early_is_told_and_the_rest_is_run() {
        let directory = tempfile::tempdir().unwrap();
        let one = |name, script| program(directory.path(), name, script);
        let programs = vec![
            one(
                "good",
                "pwd; echo 'test a ... ok'; echo 'test result: ok. 1 passed; 0 failed; 2 ignored'",
            ),
            one(
                "bad",
                "echo 'test b ... FAILED'; echo why; echo \"word: $WORD\"; echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored'; exit 101",
            ),
            one("crash", "echo 'test c ... ok'; kill -SEGV $$"),
            one("silent", "exit 0"),
        ];
        let prepare = |command: &mut Command| {
            command.env("WORD", "said");
        };
        let results = run(programs, &prepare, &Step::begin("test", "programs"));
        let counts = results.counts;
        assert_eq!((counts.passed, counts.failed, counts.skipped), (4, 3, 2));
        assert_eq!(results.failed_tests, ["b"]);
        assert_eq!((results.tests, results.programs), (3, 4));
        for part in [
            "bad",
            "test b ... FAILED\nwhy",
            "word: said",
            "crash",
            "signal",
            "silent",
        ] {
            assert!(results.log.contains(part), "{part}: {}", results.log);
        }
        assert!(!results.log.contains("test a"), "{}", results.log);
    }

    #[test]
    fn what_failed_is_left() {
        let log = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\n---- b stdout ----\nwhy";
        assert_eq!(failures(log), "test b ... FAILED\n---- b stdout ----\nwhy");
        assert_eq!(failed_tests(log), ["b"]);
    }
}
