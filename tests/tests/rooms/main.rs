//! The rooms of the agent and of its decision core (ARCHITECTURE.md), and which of them may import which: read from the paths in the source.
//!
//! Imports go downwards only. A room of the agent may use the rooms in its row of [`ROOMS`] and no other; an arrow that no file uses any more has to
//! leave the table, so that the table says what is, not what once was. A room of the core may use all rooms after it in [`CORE_ROOMS`]: so a rule can be
//! read, tested and changed without what stands above it. `placement` stands below `model` there: it is a library about CPUs, memory and devices, which
//! knows neither events nor decisions; those carry its results.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod source;

use std::collections::{BTreeMap, BTreeSet};

use source::{Crate, Module};

const AGENT: Crate = Crate {
    source: "agent/src",
    name: "plimsoll",
    with_tests: true,
};
/// Its tests may use what is above.
const CORE: Crate = Crate {
    source: "agent/core/src",
    name: "plimsoll_core",
    with_tests: false,
};

/// `plimsoll-cluster`.
const CLUSTER: Crate = Crate {
    source: "agent/cluster/src",
    name: "plimsoll_cluster",
    with_tests: false,
};

/// `plimsoll-runtime`.
const RUNTIME: Crate = Crate {
    source: "agent/runtime/src",
    name: "plimsoll_runtime",
    with_tests: false,
};

/// Rooms and what each may import.
type Table = [(&'static str, &'static [&'static str])];

/// Crates with a table.
const TABLES: [(&Crate, &Table); 3] = [
    (&AGENT, &ROOMS),
    (&CLUSTER, &CLUSTER_ROOMS),
    (&RUNTIME, &RUNTIME_ROOMS),
];

/// From the top to the bottom: a room, and the rooms that it may import.
const ROOMS: [(&str, &[&str]); 14] = [
    ("main", &["daemon", "host"]),
    (
        "commands",
        &[
            "show", "daemon", "serve", "storage", "act", "pods", "record", "probe", "source",
            "kernel", "input", "host",
        ],
    ),
    (
        "show",
        &["serve", "record", "probe", "kernel", "input", "host"],
    ),
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
    ("input", &["host"]),
    ("host", &[]),
];

/// Of `plimsoll-cluster`, as [`ROOMS`]. What decides (`arbitrate` and below) knows no connection.
const CLUSTER_ROOMS: [(&str, &[&str]); 16] = [
    ("main", &[]),
    ("cli", &["run", "serve", "api", "arbitrate", "report"]),
    (
        "run",
        &[
            "serve",
            "link",
            "api",
            "metrics",
            "certificate",
            "arbitrate",
            "report",
            "store",
            "pod",
            "call",
            "heard",
            "clock",
        ],
    ),
    ("serve", &["metrics", "certificate"]),
    ("link", &["backoff"]),
    ("api", &["metrics", "report", "call", "heard", "backoff"]),
    ("metrics", &["arbitrate", "report", "store"]),
    ("certificate", &["arbitrate"]),
    (
        "arbitrate",
        &["report", "call", "heard", "clock", "backoff"],
    ),
    ("report", &["store", "pod", "call", "clock", "backoff"]),
    ("store", &["pod"]),
    ("pod", &["clock"]),
    ("call", &[]),
    ("heard", &[]),
    ("clock", &[]),
    ("backoff", &[]),
];

/// Of `plimsoll-runtime`, as [`ROOMS`].
const RUNTIME_ROOMS: [(&str, &[&str]); 13] = [
    ("main", &[]),
    (
        "cli",
        &[
            "serve",
            "nri",
            "show",
            "cri",
            "pod_resources",
            "connection",
            "frames",
            "limits",
        ],
    ),
    ("serve", &["cri", "pod_resources", "connection", "frames"]),
    ("nri", &["events", "outbox", "frames", "interface"]),
    (
        "events",
        &["cri", "connection", "outbox", "frames", "interface"],
    ),
    ("outbox", &[]),
    ("show", &["cri"]),
    ("cri", &["connection", "interface"]),
    ("pod_resources", &["connection", "interface"]),
    ("connection", &[]),
    ("frames", &[]),
    ("interface", &[]),
    ("limits", &[]),
];

/// Of the core, from the top to the bottom.
const CORE_ROOMS: [&str; 8] = [
    "engine",
    "explain",
    "policy",
    "model",
    "placement",
    "arbitration",
    "kube",
    "shown",
];

/// Crates that only these rooms may use.
const CRATES: [(&Crate, &str, &[&str]); 6] = [
    (&AGENT, "aya", &["kernel"]),
    (&CLUSTER, "kube", &["api"]),
    (
        &RUNTIME,
        "tonic",
        &["connection", "cri", "events", "interface", "pod_resources"],
    ),
    (&CLUSTER, "tokio", &["cli", "run", "serve", "link", "api"]),
    (&CLUSTER, "tokio_rustls", &["serve", "certificate"]),
    (&CLUSTER, "rcgen", &["certificate"]),
];

/// Room → room of the crate, with a file that has it.
fn arrows(of: &Crate, rooms: &Table) -> BTreeMap<(String, String), String> {
    let mut arrows = BTreeMap::new();
    for module in of.modules() {
        for import in &module.imports {
            // What is no room is a name of the crate's root, or a path that an inline module of tests takes through `super`.
            let is_room = |target: &&String| rooms.iter().any(|(room, _)| room == target);
            let target = import.first().filter(is_room);
            let Some(target) = target.filter(|target| *target != module.room()) else {
                continue;
            };
            let arrow = (module.room().to_owned(), target.clone());
            let place = || format!("{}: {}", module.file.display(), import.join("::"));
            arrows.entry(arrow).or_insert_with(place);
        }
    }
    arrows
}

#[test]
fn rooms_import_only_what_is_below_them() {
    for (of, rooms) in TABLES {
        import_only_what_is_below(of, rooms);
    }
}

fn import_only_what_is_below(of: &Crate, rooms: &Table) {
    let order: Vec<&str> = rooms.iter().map(|(room, _)| *room).collect();
    for (at, (room, allowed)) in rooms.iter().enumerate() {
        for target in *allowed {
            let below = order.iter().position(|name| name == target);
            assert!(
                below.is_some_and(|below| below > at),
                "the table allows {room} → {target}, which is not below it"
            );
        }
    }
    let arrows = arrows(of, rooms);
    let wrong: Vec<String> = arrows
        .iter()
        .filter(|((room, target), _)| {
            !rooms
                .iter()
                .any(|(name, allowed)| name == room && allowed.contains(&target.as_str()))
        })
        .map(|((room, target), place)| format!("{room} → {target}: {place}"))
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
    for (room, allowed) in rooms {
        for target in *allowed {
            assert!(
                used.contains(&(*room, *target)),
                "no file of {room} imports {target} any more: take it out of the table"
            );
        }
    }
}

/// What several of them share is in a room below, but the command line itself and what exit statuses mean.
#[test]
fn no_command_imports_another() {
    const SHARED: [&str; 2] = ["cli", "exit_status"];
    let mut wrong = Vec::new();
    let commands = AGENT.modules().into_iter();
    let commands: Vec<Module> = commands
        .filter(|module| module.room() == "commands" && module.path.len() > 1)
        .collect();
    assert!(commands.len() > 20, "too few files: {}", commands.len());
    for module in commands.iter().filter(|module| module.path[1] != "cli") {
        for import in &module.imports {
            if let [room, command, ..] = &import[..]
                && room == "commands"
                && *command != module.path[1]
                && !SHARED.contains(&command.as_str())
            {
                let file = module.file.display();
                wrong.push(format!("{file}: {}", import.join("::")));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "a command imports another:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn there_are_no_other_rooms() {
    for (of, rooms) in TABLES {
        for module in of.modules() {
            let room = module.room();
            assert!(
                room == "testkit" || rooms.iter().any(|(name, _)| *name == room),
                "{} is in no room: name it in the table, with what it may import",
                module.file.display()
            );
        }
    }
}

#[test]
fn only_some_rooms_use_these_crates() {
    for (of, name, rooms) in CRATES {
        for module in of.modules() {
            let text = std::fs::read_to_string(&module.file).unwrap();
            let (path, code) = (format!("{name}::"), source::code(&text, true));
            // Not the end of another name, and no part of a longer path (`plimsoll_core::kube`).
            let is_inside = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let uses = code
                .match_indices(&path)
                .any(|(at, _)| !code[..at].ends_with(is_inside));
            assert!(
                !uses || rooms.contains(&module.room()),
                "{} uses {name}, which is for {rooms:?} only",
                module.file.display()
            );
        }
    }
}

#[test]
fn a_room_of_the_core_imports_only_what_is_below_it() {
    let place = |room: &str| CORE_ROOMS.iter().position(|listed| *listed == room);
    let mut wrong = Vec::new();
    for module in CORE.modules() {
        if module.path[0] == "lib" {
            continue;
        }
        let from =
            place(&module.path[0]).unwrap_or_else(|| panic!("{} is no room", module.path[0]));
        for import in &module.imports {
            let to = place(&import[0]).unwrap_or_else(|| panic!("{} is no room", import[0]));
            if to < from {
                wrong.push(format!(
                    "{} -> {}",
                    module.path.join("::"),
                    import.join("::")
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "upwards:\n{}", wrong.join("\n"));
}

/// The file that a path leads to: the longest module that it begins with.
fn file_of<'a>(
    import: &[String],
    files: &'a BTreeMap<Vec<String>, usize>,
) -> Option<&'a Vec<String>> {
    (1..=import.len())
        .rev()
        .find_map(|len| files.get_key_value(&import[..len]))
        .map(|(path, _)| path)
}

#[test]
fn no_file_of_the_vocabulary_or_the_policies_is_in_a_circle() {
    for room in ["model", "policy"] {
        no_file_is_in_a_circle(room);
    }
}

fn no_file_is_in_a_circle(room: &str) {
    let modules: Vec<Module> = CORE
        .modules()
        .into_iter()
        .filter(|module| module.path[0] == room)
        .collect();
    let numbers: BTreeMap<Vec<String>, usize> = modules
        .iter()
        .enumerate()
        .map(|(at, module)| (module.path.clone(), at))
        .collect();
    let mut left: BTreeMap<&[String], BTreeSet<&[String]>> = modules
        .iter()
        .map(|module| {
            let files = module
                .imports
                .iter()
                .filter_map(|import| file_of(import, &numbers));
            let others = files.filter(|path| **path != module.path);
            (&module.path[..], others.map(|path| &path[..]).collect())
        })
        .collect();
    assert!(left.len() > 20, "too few files: {}", left.len());
    // Removes every file whose imports are all removed, until nothing changes.
    loop {
        let free: Vec<&[String]> = left
            .iter()
            .filter(|(_, imports)| imports.iter().all(|import| !left.contains_key(import)))
            .map(|(path, _)| *path)
            .collect();
        if free.is_empty() {
            break;
        }
        for path in free {
            left.remove(path);
        }
    }
    let circle: Vec<String> = left
        .iter()
        .map(|(path, imports)| {
            let imports: Vec<String> = imports
                .iter()
                .filter(|import| left.contains_key(*import))
                .map(|import| import.join("::"))
                .collect();
            format!("{} -> {}", path.join("::"), imports.join(", "))
        })
        .collect();
    assert!(circle.is_empty(), "in a circle:\n{}", circle.join("\n"));
}

#[test]
fn every_kind_of_path_is_read() {
    let importer: Vec<String> = vec!["policy".into(), "disk".into()];
    let text = "//! crate::engine\nmod inner;\npub(crate) use crate::model::{state::{A, self}, event::B as C};\nuse super::cpu;\nuse inner::D;\n\
                #[cfg(doc)]\nuse crate::explain::E;\nfn f(x: crate::kube::pod::Pod, y: other_crate::G) {}\n#[cfg(test)]\nmod tests { use crate::engine::F; }\n";
    let mut found: Vec<String> = CORE
        .imports(text, &importer)
        .iter()
        .map(|path| path.join("::"))
        .collect();
    found.sort();
    assert_eq!(
        found,
        [
            "kube::pod::Pod",
            "model::event::B",
            "model::state",
            "model::state::A",
            "policy::cpu",
            "policy::disk::inner::D",
        ]
    );
}
