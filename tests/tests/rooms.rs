//! The rooms of the agent (ARCHITECTURE.md), and which of them may import which: read from the paths in the source.
//!
//! Imports go downwards only. A room may use the rooms in its row of [`ROOMS`] and no other; an arrow that nobody uses any more has to
//! leave the table, so that the table says what is, not what once was.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the top to the bottom: a room, and the rooms that it may import.
const ROOMS: [(&str, &[&str]); 14] = [
    ("main", &["commands", "daemon", "host"]),
    (
        "commands",
        &[
            "show", "daemon", "serve", "storage", "act", "pods", "record", "probe", "kernel",
            "input", "host",
        ],
    ),
    ("show", &["serve", "record", "probe", "kernel", "host"]),
    (
        "daemon",
        &[
            "serve", "storage", "act", "pods", "record", "probe", "source", "kernel", "input",
            "host",
        ],
    ),
    ("serve", &["pods", "record", "kernel", "host"]),
    ("storage", &["pods", "host"]),
    ("act", &["pods", "input", "host"]),
    ("pods", &["host"]),
    ("record", &["probe", "kernel", "host"]),
    ("probe", &["source", "kernel", "host"]),
    ("source", &["host"]),
    ("kernel", &["host"]),
    ("input", &[]),
    ("host", &[]),
];

/// Crates that only these rooms may use.
const CRATES: [(&str, &[&str]); 1] = [("aya", &["kernel"])];

fn agent() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/src")
}

/// All source files below `folder`, sorted.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The room of a file: its folder, or its own name, directly below `src`. Programs and `lib.rs` are `main`.
fn room_of(file: &Path) -> String {
    let path = file.strip_prefix(agent()).unwrap();
    let first = path.components().next().unwrap().as_os_str();
    let name = Path::new(first).file_stem().unwrap().to_str().unwrap();
    match name {
        "bin" | "lib" => "main",
        name => name,
    }
    .to_owned()
}

/// The first segments of paths that begin with `root::` in a line of code.
fn paths<'a>(line: &'a str, root: &'a str) -> impl Iterator<Item = &'a str> {
    let code = line.split("//").next().unwrap_or_default();
    code.match_indices(root).filter_map(move |(at, _)| {
        let starts = !code[..at]
            .ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':');
        let rest = code[at + root.len()..].strip_prefix("::")?;
        let end = rest
            .find(|next: char| !next.is_alphanumeric() && next != '_')
            .unwrap_or(rest.len());
        starts.then_some(&rest[..end])
    })
}

/// Room → room, with a line that has it.
fn arrows() -> BTreeMap<(String, String), String> {
    let mut arrows = BTreeMap::new();
    for file in sources(&agent()) {
        let room = room_of(&file);
        let text = fs::read_to_string(&file).unwrap();
        // `main` and the programs reach the library by its name.
        let root = if room == "main" { "plimsoll" } else { "crate" };
        for (number, line) in text.lines().enumerate() {
            for target in paths(line, root) {
                if target != room {
                    let line = format!("{}:{}: {}", file.display(), number + 1, line.trim());
                    arrows
                        .entry((room.clone(), target.to_owned()))
                        .or_insert(line);
                }
            }
        }
    }
    arrows
}

#[test]
fn rooms_import_only_what_is_below_them() {
    let order: Vec<&str> = ROOMS.iter().map(|(room, _)| *room).collect();
    for (at, (room, allowed)) in ROOMS.iter().enumerate() {
        for target in *allowed {
            let below = order.iter().position(|name| name == target);
            assert!(
                below.is_some_and(|below| below > at),
                "the table allows {room} → {target}, which is not below it"
            );
        }
    }
    let arrows = arrows();
    let wrong: Vec<String> = arrows
        .iter()
        .filter(|((room, target), _)| {
            !["testkit", "notes"].contains(&target.as_str())
                && !ROOMS
                    .iter()
                    .any(|(name, allowed)| name == room && allowed.contains(&target.as_str()))
        })
        .map(|((room, target), line)| format!("{room} → {target}: {line}"))
        .collect();
    assert!(
        wrong.is_empty(),
        "arrows that the table does not allow:\n{}",
        wrong.join("\n")
    );
    let used: BTreeSet<(&str, &str)> = arrows
        .keys()
        .map(|(room, target)| (room.as_str(), target.as_str()))
        .collect();
    for (room, allowed) in ROOMS {
        for target in allowed {
            assert!(
                used.contains(&(room, *target)),
                "no file of {room} imports {target} any more: take it out of the table"
            );
        }
    }
}

#[test]
fn there_are_no_other_rooms() {
    for file in sources(&agent()) {
        let room = room_of(&file);
        assert!(
            ["testkit", "notes"].contains(&room.as_str())
                || ROOMS.iter().any(|(name, _)| *name == room),
            "{} is in no room: name it in ROOMS, with what it may import",
            file.display()
        );
    }
}

#[test]
fn only_some_rooms_use_these_crates() {
    for file in sources(&agent()) {
        let room = room_of(&file);
        let text = fs::read_to_string(&file).unwrap();
        for (name, rooms) in CRATES {
            let uses = text.lines().any(|line| paths(line, name).next().is_some());
            assert!(
                !uses || rooms.contains(&room.as_str()),
                "{} uses {name}, which is for {rooms:?} only",
                file.display()
            );
        }
    }
}

#[test]
fn a_path_is_found_where_it_is_code() {
    let of = |line| paths(line, "crate").collect::<Vec<_>>();
    assert_eq!(of("use crate::host::file::FileError;"), ["host"]);
    assert_eq!(
        of("    crate::show::table(crate::act::x())"),
        ["show", "act"]
    );
    assert!(of("/// [`crate::daemon`]").is_empty());
    assert!(of("use other_crate::daemon;").is_empty());
}
