//! On which machines each guest test runs.
//!
//! Problem: a test that depends on the kernel has to run on each kernel, one that does not has to run once, and some
//! need NUMA nodes or a kernel that was booted with certain parameters. Approach: a test declares where it runs
//! ([`On`], in the `TESTS` of its theme), and the machines are rows of one table ([`MACHINES`]). `cargo xtask test`
//! asks `guest_tests --plan` for the machines, starts a guest for each, and each guest runs `guest_tests --on NAME`,
//! which picks its tests by their declarations. What takes minutes and finds little, or what tests without
//! a guest show for the most part, runs with `--all` only ([`On::Weekly`]).
//!
//! With `--all`, a machine runs every test that fits it: a machine without NUMA nodes all tests that some such machine
//! runs, a machine that was booted with parameters all tests that are about parameters. There a test may be skipped for
//! what the machine lacks. Without `--all` it may not: a test declared for a machine on which it cannot run is a
//! failure.

use serde::{Deserialize, Serialize};

use super::harness::Test;
pub use super::on::{Machine, On};

/// What a machine is like, for `--all`: tests that run on one of a kind run on all of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One NUMA node, nothing special.
    Flat,
    /// One CPU.
    OneCpu,
    /// Two NUMA nodes.
    Numa2,
    /// Eight NUMA nodes.
    Numa8,
    /// Booted with parameters.
    Booted,
    /// Another processor, one NUMA node: what depends on the processor ([`ARM64_THEMES`]).
    Arm64,
    /// The same with a kernel that calls no program from a function: [`ARM64_OLD_THEMES`].
    Arm64Old,
}

/// The themes whose tests load programs into the kernel, read what these say, or act on it by system calls: a processor
/// has a part in nothing else.
const ARM64_THEMES: &[&str] = &["eviction", "ladder", "last_line", "records", "trace"];
/// Those that need no fentry.
const ARM64_OLD_THEMES: &[&str] = &["eviction", "ladder"];

impl Machine {
    fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::V6_1 | Self::Hybrid => Kind::OneCpu,
            Self::V6_1Smp | Self::V6_12 | Self::V7_2 => Kind::Flat,
            Self::Numa2 | Self::Numa2Hybrid => Kind::Numa2,
            Self::Numa8 => Kind::Numa8,
            Self::Confidential | Self::IntegrityNoPsi => Kind::Booted,
            Self::More => return None,
        })
    }
}

/// A row of [`MACHINES`].
#[derive(Debug)]
pub struct Row {
    machine: Machine,
    kind: Kind,
    kernel: &'static str,
    cgroup: &'static str,
    parameters: &'static str,
}

impl Row {
    /// Cgroup v2, one NUMA node.
    const fn flat(machine: Machine, kernel: &'static str, cgroup: &'static str) -> Self {
        Self {
            machine,
            kind: Kind::Flat,
            kernel,
            cgroup,
            parameters: "",
        }
    }

    const fn of(
        machine: Machine,
        kind: Kind,
        kernel: &'static str,
        cgroup: &'static str,
        parameters: &'static str,
    ) -> Self {
        Self {
            machine,
            kind,
            kernel,
            cgroup,
            parameters,
        }
    }

    /// The name, for `guest_tests --on`.
    #[must_use]
    pub fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Flat | Kind::Booted => "",
            Kind::OneCpu => "-cpu1",
            Kind::Numa2 => "-numa2",
            Kind::Numa8 => "-numa8",
            Kind::Arm64 | Kind::Arm64Old => "-arm64",
        };
        let cgroup = match self.cgroup {
            "cgroup2" => String::new(),
            other => format!("-{other}"),
        };
        let parameters: String = self
            .parameters
            .split_whitespace()
            .map(|parameter| format!("-{}", parameter.replace('=', "-")))
            .collect();
        format!("{}{cgroup}{kind}{parameters}", self.kernel)
    }

    /// As `cargo xtask vm --topology` has it.
    fn topology(&self) -> &'static str {
        match self.kind {
            Kind::Flat | Kind::Booted | Kind::Arm64 | Kind::Arm64Old => "flat:4",
            Kind::OneCpu => "flat:1",
            Kind::Numa2 => "numa2:2",
            Kind::Numa8 => "numa8",
        }
    }

    /// As `cargo xtask vm --arch` has it.
    fn architecture(&self) -> &'static str {
        match self.kind {
            Kind::Arm64 | Kind::Arm64Old => "arm64",
            _ => "amd64",
        }
    }

    fn memory_mb(&self) -> u64 {
        match self.kind {
            // Each node has room for its pods.
            Kind::Numa8 => 4096,
            // A node with pods and a hog.
            _ => 2048,
        }
    }

    /// The themes that it runs, where that does not follow from what the tests declare.
    fn themes(&self) -> Option<&'static [&'static str]> {
        match self.kind {
            Kind::Arm64 => Some(ARM64_THEMES),
            Kind::Arm64Old => Some(ARM64_OLD_THEMES),
            _ => None,
        }
    }

    /// Whether it runs this test.
    #[must_use]
    pub fn runs(&self, test: &Test, all: bool) -> bool {
        let declared = if all {
            test.on.machines_with_all()
        } else {
            test.on.machines()
        };
        if let Some(themes) = self.themes() {
            let theme = test.name.split("::").next();
            return all && theme.is_some_and(|theme| themes.contains(&theme));
        }
        // One CPU is what 6.1 boots with, and no more: what runs there runs on several, too.
        let is_alike =
            |kind: Kind| kind == self.kind || self.kind == Kind::Flat && kind == Kind::OneCpu;
        declared.contains(&self.machine)
            || all && declared.iter().any(|one| one.kind().is_some_and(is_alike))
    }

    /// The tests of this machine.
    #[must_use]
    pub fn tests(&self, tests: &[Test], all: bool) -> Vec<Test> {
        let runs = |test: &&Test| self.runs(test, all);
        tests.iter().filter(runs).copied().collect()
    }
}

/// The machines. Every `cargo xtask test` starts those that a test runs on each time, and `--all` starts all.
pub const MACHINES: &[Row] = &[
    Row::of(Machine::V6_1, Kind::OneCpu, "6.1", "cgroup2", ""),
    Row::flat(Machine::V6_1Smp, "6.1", "cgroup2"),
    Row::flat(Machine::V6_12, "6.12", "cgroup2"),
    Row::flat(Machine::V7_2, "7.2", "cgroup2"),
    Row::of(Machine::Hybrid, Kind::OneCpu, "6.1", "hybrid", ""),
    Row::of(Machine::Numa8, Kind::Numa8, "7.2", "cgroup2", ""),
    Row::of(Machine::Numa2, Kind::Numa2, "7.2", "cgroup2", ""),
    Row::of(Machine::Numa2Hybrid, Kind::Numa2, "6.1", "hybrid", ""),
    booted(Machine::Confidential, "6.12", "lockdown=confidentiality"),
    booted(Machine::IntegrityNoPsi, "7.2", "lockdown=integrity psi=0"),
    Row::flat(Machine::More, "6.1", "hybrid"),
    Row::flat(Machine::More, "6.1", "cgroup1"),
    Row::of(Machine::More, Kind::Numa8, "6.1", "cgroup2", ""),
    Row::of(Machine::More, Kind::Numa8, "6.12", "cgroup2", ""),
    Row::of(Machine::More, Kind::Numa2, "6.1", "cgroup2", ""),
    Row::of(Machine::More, Kind::Numa2, "6.12", "cgroup2", ""),
    booted(Machine::More, "6.1", "lockdown=integrity"),
    booted(Machine::More, "6.1", "lockdown=confidentiality"),
    booted(Machine::More, "6.1", "psi=0"),
    booted(Machine::More, "6.1", "lockdown=confidentiality psi=0"),
    booted(Machine::More, "6.12", "lockdown=integrity"),
    booted(Machine::More, "6.12", "psi=0"),
    booted(Machine::More, "6.12", "lockdown=confidentiality psi=0"),
    booted(Machine::More, "7.2", "lockdown=integrity"),
    booted(Machine::More, "7.2", "lockdown=confidentiality"),
    booted(Machine::More, "7.2", "psi=0"),
    booted(Machine::More, "7.2", "lockdown=confidentiality psi=0"),
    Row::of(Machine::More, Kind::Arm64Old, "6.1", "cgroup2", ""),
    Row::of(Machine::More, Kind::Arm64, "6.12", "cgroup2", ""),
    Row::of(Machine::More, Kind::Arm64, "7.2", "cgroup2", ""),
];

/// What a host that was booted so still allows.
const fn booted(machine: Machine, kernel: &'static str, parameters: &'static str) -> Row {
    Row::of(machine, Kind::Booted, kernel, "cgroup2", parameters)
}

/// A guest to be started: what `guest_tests --plan` prints, a line of JSON each.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedGuest {
    /// For `guest_tests --on`.
    pub name: String,
    /// As `cargo xtask vm --arch` has it, and so on.
    pub architecture: String,
    /// Kernel.
    pub kernel: String,
    /// Cgroup hierarchies.
    pub cgroup: String,
    /// CPUs and memory nodes.
    pub topology: String,
    /// Memory.
    pub memory_mb: u64,
    /// More kernel parameters.
    pub parameters: String,
    /// The names of its tests.
    pub tests: Vec<String>,
}

/// The guests to start, those with most tests first.
#[must_use]
pub fn plan(tests: &[Test], all: bool) -> Vec<PlannedGuest> {
    let planned = |row: &Row| PlannedGuest {
        name: row.name(),
        architecture: row.architecture().to_owned(),
        kernel: row.kernel.to_owned(),
        cgroup: row.cgroup.to_owned(),
        topology: row.topology().to_owned(),
        memory_mb: row.memory_mb(),
        parameters: row.parameters.to_owned(),
        tests: row
            .tests(tests, all)
            .iter()
            .map(|test| test.name.to_owned())
            .collect(),
    };
    let mut guests: Vec<PlannedGuest> = MACHINES.iter().map(planned).collect();
    // Machines of `--all`, and those whose tests all are.
    guests.retain(|guest| all || !guest.tests.is_empty());
    guests.sort_by_key(|guest| std::cmp::Reverse(guest.tests.len()));
    guests
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::cases;
    use super::*;

    fn names(guests: &[PlannedGuest]) -> BTreeSet<&str> {
        let tests = guests.iter().flat_map(|guest| &guest.tests);
        tests.map(String::as_str).collect()
    }

    /// A test that is declared for a machine that nobody starts would never run.
    #[test]
    fn every_test_runs_somewhere() {
        let tests = cases::all();
        let everything: BTreeSet<&str> = tests.iter().map(|test| test.name).collect();
        assert_eq!(everything.len(), tests.len(), "a name is there twice");
        assert_eq!(names(&plan(&tests, true)), everything);
        let each_time = tests.iter().filter(|test| !test.on.machines().is_empty());
        let each_time: BTreeSet<&str> = each_time.map(|test| test.name).collect();
        assert_eq!(names(&plan(&tests, false)), each_time);
        for test in &tests {
            let declared = test.on.machines_with_all();
            assert!(!declared.is_empty(), "{} runs nowhere", test.name);
            assert!(!declared.contains(&Machine::More), "{}", test.name);
        }
    }

    #[test]
    fn machines_have_names_of_their_own_and_tests() {
        let guests = plan(&cases::all(), true);
        let names: BTreeSet<&str> = guests.iter().map(|guest| guest.name.as_str()).collect();
        assert_eq!(names.len(), MACHINES.len());
        assert!(names.contains("6.1-hybrid-numa2"), "{names:?}");
        assert!(names.contains("7.2-lockdown-integrity-psi-0"), "{names:?}");
        for guest in guests {
            assert!(!guest.tests.is_empty(), "{} has no test", guest.name);
        }
    }

    #[test]
    fn with_all_a_machine_runs_what_its_kind_runs() {
        let test = |name, on| Test {
            name,
            on,
            run: || unreachable!(),
        };
        let tests = [
            test("once", On::Once(Machine::V7_2)),
            test("each", On::EachKernel),
            test("oldest", On::Once(Machine::V6_1)),
            test("numa", On::These(&[Machine::Numa2])),
            test("weekly", On::Weekly(Machine::V7_2)),
            test("first", On::First(&[Machine::V7_2, Machine::Numa2])),
        ];
        let of = |name: &str, all: bool| {
            let guests = plan(&tests, all);
            let guest = guests.into_iter().find(|guest| guest.name == name);
            guest.map(|guest| guest.tests)
        };
        let some = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        assert_eq!(of("6.1-cpu1", false), some(&["each", "oldest"]));
        assert_eq!(of("6.1-cpu1", true), some(&["each", "oldest"]));
        assert_eq!(of("6.1", false), None);
        assert_eq!(
            of("6.1", true),
            some(&["once", "each", "oldest", "weekly", "first"])
        );
        assert_eq!(of("7.2", false), some(&["once", "each", "first"]));
        assert_eq!(
            of("7.2", true),
            some(&["once", "each", "oldest", "weekly", "first"])
        );
        assert_eq!(of("6.1-hybrid-cpu1", false), None);
        assert_eq!(of("6.12", false), None);
        assert_eq!(of("6.1-hybrid", false), None);
        assert_eq!(
            of("6.1-hybrid", true),
            some(&["once", "each", "oldest", "weekly", "first"])
        );
        assert_eq!(of("6.1-cgroup1", false), None);
        assert_eq!(of("6.12-numa2", true), some(&["numa", "first"]));
        assert_eq!(of("7.2-numa2", false), some(&["numa"]));
    }

    #[test]
    fn another_processor_runs_what_depends_on_it_and_only_with_all() {
        let guest = |all: bool| {
            let guests = plan(&cases::all(), all);
            guests.into_iter().find(|guest| guest.name == "7.2-arm64")
        };
        assert_eq!(guest(false), None);
        let guest = guest(true).unwrap();
        assert_eq!(guest.architecture, "arm64");
        for theme in ARM64_THEMES {
            let of_theme = |test: &String| test.starts_with(&format!("{theme}::"));
            assert!(guest.tests.iter().any(of_theme), "{theme}");
        }
        assert!(!guest.tests.iter().any(|test| test.starts_with("qos::")));
    }
}
