//! The source itself: what may depend on what (ARCHITECTURE.md), read from cargo, and what no source may have.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Packages and all that they may depend on at run time. What is not listed may depend on what it needs.
const ALLOWED: [(&str, &[&str]); 2] = [
    // No tokio, aya, tracing, clock or random number: the core is a function of its input.
    (
        "plimsoll-core",
        &["num-bigint", "num-traits", "serde", "thiserror"],
    ),
    ("plimsoll-abi", &["zerocopy"]),
];

/// Packages that no package but these may depend on at run time.
const LEAVES: [(&str, &[&str]); 3] = [("tests", &["xtask"]), ("benches", &[]), ("xtask", &[])];

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
            "--manifest-path",
        ])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn dependencies(package: &Value) -> impl Iterator<Item = &str> {
    let all = package["dependencies"].as_array().unwrap();
    all.iter()
        .filter(|dependency| dependency["kind"].is_null())
        .map(|dependency| dependency["name"].as_str().unwrap())
}

#[test]
fn packages_depend_only_on_what_they_may() {
    let packages = packages();
    for (name, allowed) in ALLOWED {
        let package = packages
            .iter()
            .find(|package| package["name"] == name)
            .unwrap();
        for dependency in dependencies(package) {
            assert!(
                allowed.contains(&dependency),
                "{name} must not depend on {dependency}"
            );
        }
    }
    for (leaf, users) in LEAVES {
        assert!(
            packages.iter().any(|package| package["name"] == leaf),
            "{leaf} is gone: take it out of this test"
        );
        for package in &packages {
            let name = package["name"].as_str().unwrap();
            if !users.contains(&name) {
                assert!(
                    !dependencies(package).any(|dependency| dependency == leaf),
                    "{name} must not depend on {leaf}"
                );
            }
        }
    }
}

/// The versions of each package in a lock file.
fn locked(lock: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut versions: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let lines = package.lines();
            let mut values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
            values.next().unwrap().trim_matches('"')
        };
        let version = field("version");
        versions.entry(field("name")).or_default().insert(version);
    }
    versions
}

#[test]
fn what_is_fuzzed_is_what_is_released() {
    let released = locked(include_str!("../../Cargo.lock"));
    let fuzzed = locked(include_str!("../fuzz/Cargo.lock"));
    assert!(fuzzed.contains_key("plimsoll") && fuzzed.len() > 100);
    for (name, versions) in fuzzed {
        if let Some(released) = released.get(name) {
            assert!(
                versions.is_subset(released),
                "{name}: fuzzed {versions:?}, released {released:?}; in tests/fuzz: cargo update -p {name} --precise VERSION"
            );
        }
    }
}

/// Places where a test prints that it is left out: it would count as passed. `notes::left_out` (`agent/tests/notes`) is
/// counted.
fn printed_and_not_counted(source: &str) -> usize {
    let printed = source.split("println!(").skip(1);
    printed
        .filter(|rest| rest.trim_start().starts_with("\"left out"))
        .count()
}

#[test]
fn a_test_that_cannot_run_says_so_where_it_is_counted() {
    for (file, source) in sources::rust() {
        let count = printed_and_not_counted(source);
        assert_eq!(count, 0, "{file}: call `notes::left_out`");
    }
    let two = ["println", "eprintln"]
        .map(|name| format!("return {name}!(\n    \"left out: no mount\");"));
    assert_eq!(printed_and_not_counted(&two.concat()), 2);
}

/// Whether documentation has code that rustdoc would run.
fn has_documentation_tests(source: &str) -> bool {
    let documentation = source.lines().map(str::trim_start);
    let fences = documentation.filter_map(|line| {
        let text = line.strip_prefix("///").or(line.strip_prefix("//!"))?;
        text.trim_start().strip_prefix("```")
    });
    // Every other one ends what the one before it began.
    fences
        .step_by(2)
        .any(|language| language.is_empty() || language.starts_with("rust"))
}

/// The sources of a target: the folder of a `main.rs` or `lib.rs`, or one file.
fn sources_of(target: &Value) -> Vec<&'static (String, String)> {
    let path = target["src_path"].as_str().unwrap();
    let root = sources::root().canonicalize().unwrap();
    let path = path.strip_prefix(root.to_str().unwrap()).unwrap();
    let path = path.trim_start_matches('/');
    let folder = path
        .strip_suffix("main.rs")
        .or(path.strip_suffix("lib.rs"))
        .unwrap_or(path);
    sources::rust()
        .iter()
        .filter(|(file, _)| file.starts_with(folder))
        .collect()
}

/// Cargo links a test program for each program, and asks rustdoc about each library, unless it is told that there is
/// nothing to run.
#[test]
fn where_no_test_is_run_there_is_none() {
    let mut checked = 0;
    for package in packages() {
        for target in package["targets"].as_array().unwrap() {
            let (name, kinds) = (&target["name"], target["kind"].as_array().unwrap());
            let is_tested = target["test"].as_bool().unwrap();
            if kinds.iter().any(|kind| kind == "lib") {
                assert!(is_tested, "{name}: the library has tests");
                let documented = sources_of(target)
                    .into_iter()
                    .find(|(_, source)| has_documentation_tests(source))
                    .map(|(file, _)| file);
                assert_eq!(
                    target["doctest"].as_bool(),
                    Some(documented.is_some()),
                    "{name}: `doctest` in its Cargo.toml, {documented:?}"
                );
                checked += 1;
            }
            if kinds.iter().any(|kind| kind == "bin") {
                let sources = sources_of(target);
                // Beside a library, a program is one file: the rest of the folder is the library's.
                let is_beside_a_library = sources.iter().any(|(file, _)| file.ends_with("/lib.rs"));
                let has_tests = sources.iter().any(|(file, source)| {
                    let is_its = !is_beside_a_library || file.ends_with("/main.rs");
                    is_its && source.contains("#[test]")
                });
                assert_eq!(is_tested, has_tests, "{name}: `test` in its Cargo.toml");
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked} targets");
    assert!(has_documentation_tests("/// ```\n/// f();\n/// ```"));
    assert!(has_documentation_tests(
        "//! ```text\n//! ```\n//! ```rust,no_run"
    ));
    assert!(!has_documentation_tests("/// ```yaml\n/// a: b\n/// ```"));
}

/// Words that are no names: what they stand for has a term.
const NO_NAMES: [&str; 9] = [
    "is_owed", "is_told", "looks", "own", "told", "told_ns", "Told", "untold", "whoever",
];
/// What is programs and no test.
const PRODUCT: [&str; 7] = [
    "agent/src/",
    "agent/core/src/",
    "agent/cluster/src/",
    "agent/runtime/src/",
    "agent/trace/src/",
    "ebpf/",
    "xtask/src/",
];

/// Those of [`NO_NAMES`] that the code of a source has.
fn no_names(source: &str) -> BTreeSet<String> {
    let code = sources::code(source, false);
    let names = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let names = names.filter(|name| NO_NAMES.contains(name));
    names.map(str::to_owned).collect()
}

#[test]
fn names_are_terms() {
    for (file, source) in sources::rust() {
        let is_test = file.ends_with("tests.rs") || file.contains("/tests/");
        let is_product = PRODUCT.iter().any(|folder| file.starts_with(folder));
        if is_product && !is_test {
            let found = no_names(source);
            assert!(found.is_empty(), "{file}: {found:?}: name the thing");
        }
    }
}

#[test]
fn names_are_found_in_code_alone() {
    let clean = "let a = \"told \\\" own\"; // whoever\nlet b = r#\"own \"told\"\"#; let c = ['\"', '\\'']; fn f<'own_>() {}\n#[cfg(test)]\nlet told = 1;";
    assert_eq!(no_names(clean), BTreeSet::new());
    let found = |source| no_names(source).into_iter().collect::<Vec<_>>();
    assert_eq!(
        found("let c = '\"'; let own = is_told(\"own\");"),
        ["is_told", "own"]
    );
    let after_tests = "\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nfn told() { }\nstruct A { a: u8, #[cfg(test)] told: u8 }\nlet own = 1;";
    assert_eq!(found(after_tests), ["own"]);
}

/// Threads that a source starts with as much stack as the standard library gives, 2 MiB: all memory of the agent is
/// locked.
fn without_a_stack_size(source: &str) -> usize {
    let code = sources::code(source, false);
    let started = code.matches("thread::spawn(").count();
    let built = code.split("thread::Builder::new()").skip(1);
    let is_sized = |rest: &&str| {
        let until_spawn = rest.split_once(".spawn(").map(|(before, _)| before);
        until_spawn.is_some_and(|before| before.contains(".stack_size("))
    };
    started + built.filter(|rest| !is_sized(rest)).count()
}

#[test]
fn every_thread_of_the_agent_has_a_stack_of_known_size() {
    let mut threads = 0;
    for (file, source) in sources::rust() {
        // Commands are programs of people and not locked.
        let is_agent = file.starts_with("agent/src/") && !file.starts_with("agent/src/commands/");
        if is_agent && !file.ends_with("tests.rs") && !file.contains("/tests/") {
            threads += sources::code(source, false)
                .matches("thread::Builder")
                .count();
            let count = without_a_stack_size(source);
            assert_eq!(count, 0, "{file}: give the thread a `stack_size`");
        }
    }
    assert!(threads > 2, "{threads} places: all are read");
    let named = "std::thread::Builder::new().name(name).spawn(f); thread::Builder::new().stack_size(1).spawn(f)";
    assert_eq!(without_a_stack_size(named), 1);
    assert_eq!(without_a_stack_size("std::thread::spawn(move || f());"), 1);
}

/// A module with modules of its own is `name.rs` beside the folder `name`. Only below the `tests` of a package
/// `name/mod.rs` stays: there cargo takes each `name.rs` for a test.
fn is_misplaced(file: &str) -> bool {
    file.ends_with("/mod.rs") && !file.contains("/tests/")
}

#[test]
fn modules_have_one_shape() {
    for (file, _) in sources::rust() {
        assert!(
            !is_misplaced(file),
            "{file}: move it to the name of its folder, with .rs"
        );
    }
    assert!(is_misplaced("tests/src/guest/mod.rs"));
    assert!(!is_misplaced("agent/tests/notes/mod.rs"));
}

/// Columns of a comment.
const COMMENT_COLUMNS_MAX: usize = 120;

/// Lines of comments that are longer than they may be. Tables, blocks of code and what is between back-ticks cannot be
/// wrapped.
fn long_comments(source: &str) -> Vec<usize> {
    let mut is_in_block = false;
    let mut long = Vec::new();
    for (number, line) in (1..).zip(source.lines()) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            is_in_block = false;
            continue;
        };
        let text = comment.trim_start_matches(['/', '!']).trim_start();
        is_in_block ^= text.starts_with("```");
        let code: usize = text
            .split('`')
            .skip(1)
            .step_by(2)
            .map(|code| code.chars().count())
            .sum();
        let columns = line.chars().count() - code;
        if columns > COMMENT_COLUMNS_MAX && !is_in_block && !text.starts_with('|') {
            long.push(number);
        }
    }
    long
}

#[test]
fn comments_are_no_wider_than_a_screen() {
    let mut wide = Vec::new();
    for (file, source) in sources::rust() {
        let lines = long_comments(source).into_iter();
        wide.extend(lines.map(|line| format!("{file}:{line}")));
    }
    assert!(
        wide.is_empty(),
        "comments of more than {COMMENT_COLUMNS_MAX} columns, wrap them:\n{}",
        wide.join("\n")
    );
    let long = "x ".repeat(60);
    let source = format!(
        "// {long}\nlet a; // {long}\n//! ```text\n//! {long}\n//! ```\n/// | {long}\n/// `{long}`"
    );
    assert_eq!(long_comments(&source), [1]);
}
