//! The source itself: what may depend on what (ARCHITECTURE.md), read from cargo.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

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
