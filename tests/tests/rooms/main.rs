//! The rooms of the agent and of its decision core (ARCHITECTURE.md), and which of them may import which: read from the
//! paths in the source.
//!
//! Imports go downwards only. A room of the agent may use the rooms in its row of [`ROOMS`] and no other; an arrow that
//! no file uses any more has to leave the table, so that the table says what is, not what once was. A room of the core
//! may use all rooms after it in [`CORE_ROOMS`]: so a rule can be read, tested and changed without what stands above
//! it. `placement` stands below `model` there: it is a library about CPUs, memory and devices, which knows neither
//! events nor decisions; those carry its results. Nor do the files and folders of a room import each other in a circle.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod source;
#[path = "../sources/mod.rs"]
mod sources;

use std::collections::{BTreeMap, BTreeSet};

use source::{Crate, Module};

static AGENT: Crate = Crate::new("agent/src", "plimsoll").with_tests();
/// Its tests may go in circles.
static AGENT_ALONE: Crate = Crate::new("agent/src", "plimsoll");
/// Its tests may use what is above.
static CORE: Crate = Crate::new("agent/core/src", "plimsoll_core");

/// `plimsoll-cluster`.
static CLUSTER: Crate = Crate::new("agent/cluster/src", "plimsoll_cluster");

/// `plimsoll-runtime`.
static RUNTIME: Crate = Crate::new("agent/runtime/src", "plimsoll_runtime");

/// `plimsoll-trace`.
static TRACE: Crate = Crate::new("agent/trace/src", "plimsoll_trace");

/// `cargo xtask`.
static XTASK: Crate = Crate::new("xtask/src", "xtask");

/// What the tests share, and the programs in the guests.
static TESTS: Crate = Crate::new("tests/src", "tests");

/// Rooms and what each may import.
type Table = [(&'static str, &'static [&'static str])];

/// Crates with a table.
static TABLES: [(&Crate, &Table); 4] = [
    (&AGENT, &ROOMS),
    (&TRACE, &TRACE_ROOMS),
    (&CLUSTER, &CLUSTER_ROOMS),
    (&RUNTIME, &RUNTIME_ROOMS),
];

/// From the top to the bottom: a room, and the rooms that it may import.
const ROOMS: [(&str, &[&str]); 14] = [
    ("main", &["commands", "daemon", "host"]),
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

/// Of `plimsoll-trace`, as [`ROOMS`].
const TRACE_ROOMS: [(&str, &[&str]); 13] = [
    (
        "main",
        &[
            "session",
            "summary",
            "perfetto",
            "flame",
            "recording",
            "names",
            "groups",
            "selection",
            "file",
        ],
    ),
    ("session", &["recording", "spans", "stacks", "groups"]),
    ("summary", &["recording", "spans", "stacks", "groups"]),
    ("perfetto", &["recording", "spans", "stacks", "file"]),
    ("flame", &["recording", "file"]),
    ("recording", &["spans", "symbols", "stacks", "groups"]),
    ("spans", &["groups"]),
    ("symbols", &["names", "stacks"]),
    ("names", &[]),
    ("stacks", &[]),
    ("groups", &[]),
    ("selection", &[]),
    ("file", &[]),
];

/// Of `plimsoll-cluster`, as [`ROOMS`]. What decides (`arbitrate` and below) knows no connection.
const CLUSTER_ROOMS: [(&str, &[&str]); 16] = [
    ("main", &["cli"]),
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
            "watch_event",
            "clock",
        ],
    ),
    ("serve", &["metrics", "certificate"]),
    ("link", &["backoff"]),
    (
        "api",
        &["metrics", "report", "call", "watch_event", "backoff"],
    ),
    ("metrics", &["arbitrate", "report", "store"]),
    ("certificate", &["arbitrate"]),
    (
        "arbitrate",
        &["report", "call", "watch_event", "clock", "backoff"],
    ),
    ("report", &["store", "pod", "call", "clock", "backoff"]),
    ("store", &["pod"]),
    ("pod", &["clock"]),
    ("call", &[]),
    ("watch_event", &[]),
    ("clock", &[]),
    ("backoff", &[]),
];

/// Of `plimsoll-runtime`, as [`ROOMS`].
const RUNTIME_ROOMS: [(&str, &[&str]); 14] = [
    ("main", &["cli"]),
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
    (
        "nri",
        &["events", "outbox", "reconnect", "frames", "interface"],
    ),
    (
        "events",
        &[
            "cri",
            "connection",
            "outbox",
            "reconnect",
            "frames",
            "interface",
        ],
    ),
    ("outbox", &[]),
    ("reconnect", &[]),
    ("show", &["cri"]),
    ("cri", &["connection", "interface"]),
    ("pod_resources", &["connection", "interface"]),
    ("connection", &[]),
    ("frames", &[]),
    ("interface", &[]),
    ("limits", &[]),
];

/// Of the core, from the top to the bottom.
const CORE_ROOMS: [&str; 10] = [
    "engine",
    "explain",
    "policy",
    "model",
    "placement",
    "arbitration",
    "protocol",
    "kube",
    "shown",
    "zero",
];

/// Crates that only these rooms may use.
static CRATES: [(&Crate, &str, &[&str]); 6] = [
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
            // What is no room is a name of the crate's root, or a path that an inline module of tests takes through
            // `super`.
            let is_room = |target: &&String| rooms.iter().any(|(room, _)| room == target);
            let target = import.first().filter(is_room);
            let Some(target) = target.filter(|target| *target != module.room()) else {
                continue;
            };
            let arrow = (module.room().to_owned(), target.clone());
            let place = || format!("{}: {}", module.file, import.join("::"));
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
    let commands = AGENT.modules().iter();
    let commands: Vec<&Module> = commands
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
                wrong.push(format!("{}: {}", module.file, import.join("::")));
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
                module.file
            );
        }
    }
}

#[test]
fn only_some_rooms_use_these_crates() {
    for (of, name, rooms) in CRATES {
        for module in of.modules() {
            let (path, code) = (format!("{name}::"), sources::code(module.text, true));
            // Not the end of another name, and no part of a longer path (`plimsoll_core::kube`).
            let is_inside = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let uses = code
                .match_indices(&path)
                .any(|(at, _)| !code[..at].ends_with(is_inside));
            assert!(
                !uses || rooms.contains(&module.room()),
                "{} uses {name}, which is for {rooms:?} only",
                module.file
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

/// A name for each node, and what each imports of the others.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The files of a folder, and of the folders in it.
fn files(of: &Crate, room: &str) -> Graph {
    let modules = of.modules();
    let modules = modules.iter().filter(|module| module.path[0] == room);
    let modules: BTreeMap<&[String], &Module> =
        modules.map(|module| (&module.path[..], module)).collect();
    // The file that a path leads to is the longest module that it begins with.
    let file_of = |import: &[String]| {
        let mut lengths = (1..=import.len()).rev();
        let file = lengths.find_map(|len| modules.get_key_value(&import[..len]));
        file.map(|(path, _)| path.join("::"))
    };
    let imports = |module: &Module| {
        let paths = module.imports.iter();
        paths.filter_map(|path| file_of(path)).collect()
    };
    modules
        .iter()
        .map(|(path, module)| (path.join("::"), imports(module)))
        .collect()
}

/// What a room consists of: each file or folder in it with all below it. With `None`, what the crate consists of.
fn parts(of: &Crate, room: Option<&str>) -> Graph {
    let depth = usize::from(room.is_some());
    let is_inside =
        |path: &[String]| room.is_none_or(|room| path.first().is_some_and(|first| first == room));
    let modules = of.modules();
    let inside = || {
        modules
            .iter()
            .filter(|module| is_inside(&module.path) && module.path.len() > depth)
    };
    let mut graph = Graph::new();
    for module in inside() {
        graph.entry(module.path[depth].clone()).or_default();
    }
    for module in inside() {
        let paths = module.imports.iter().filter(|path| is_inside(path));
        let targets = paths.filter_map(|path| path.get(depth));
        let targets: Vec<String> = targets
            .filter(|target| graph.contains_key(*target))
            .cloned()
            .collect();
        graph
            .entry(module.path[depth].clone())
            .or_default()
            .extend(targets);
    }
    graph
}

/// The nodes that are in a circle, and what of one they import.
fn in_circles(mut graph: Graph) -> Vec<String> {
    for (name, imports) in &mut graph {
        imports.remove(name);
    }
    // Removes every node that imports none of the rest, or that none of the rest imports, until nothing changes.
    loop {
        let imported: BTreeSet<String> = graph.values().flatten().cloned().collect();
        let before = graph.len();
        let names: BTreeSet<String> = graph.keys().cloned().collect();
        graph.retain(|name, imports| {
            imported.contains(name) && imports.iter().any(|import| names.contains(import))
        });
        if graph.len() == before {
            break;
        }
    }
    let line = |(name, imports): (&String, &BTreeSet<String>)| {
        let imports = imports.iter().filter(|import| graph.contains_key(*import));
        let imports: Vec<&str> = imports.map(String::as_str).collect();
        format!("{name} -> {}", imports.join(", "))
    };
    graph.iter().map(line).collect()
}

#[test]
fn no_part_of_a_room_is_in_a_circle() {
    let mut wrong = Vec::new();
    for of in [
        &AGENT_ALONE,
        &CORE,
        &CLUSTER,
        &RUNTIME,
        &TRACE,
        &XTASK,
        &TESTS,
    ] {
        let modules = of.modules();
        assert!(modules.len() > 10, "too few files: {}", of.source);
        let rooms: BTreeSet<&str> = modules.iter().map(|module| &*module.path[0]).collect();
        for room in rooms.into_iter().map(Some).chain([None]) {
            let graph = parts(of, room);
            let room = room.unwrap_or("the rooms");
            let circle = in_circles(graph).into_iter();
            wrong.extend(circle.map(|line| format!("{}, {room}: {line}", of.source)));
        }
    }
    assert!(wrong.is_empty(), "in a circle:\n{}", wrong.join("\n"));
}

#[test]
fn circles_are_found() {
    let graph = |arrows: &[(&str, &str)]| -> Graph {
        let nodes = arrows.iter().flat_map(|(from, to)| [*from, *to]);
        let mut graph: Graph = nodes.map(|node| (node.into(), BTreeSet::new())).collect();
        for (from, to) in arrows {
            graph.get_mut(*from).unwrap().insert((*to).into());
        }
        graph
    };
    let without = graph(&[("a", "b"), ("a", "c"), ("b", "c"), ("c", "c")]);
    assert!(in_circles(without).is_empty());
    let with = graph(&[("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]);
    assert_eq!(in_circles(with), ["b -> c", "c -> b"]);
}

#[test]
fn no_file_of_the_vocabulary_or_the_policies_is_in_a_circle() {
    for room in ["model", "policy"] {
        let files = files(&CORE, room);
        assert!(files.len() > 20, "too few files: {}", files.len());
        let circles = in_circles(files);
        assert!(circles.is_empty(), "in a circle:\n{}", circles.join("\n"));
    }
}

/// A file and those in its folder are one thing in parts: what the parts share is in the file, and it puts them
/// together.
#[test]
fn files_are_in_no_circle_but_with_those_of_their_folder() {
    let mut wrong = Vec::new();
    for of in [&AGENT_ALONE, &CORE, &CLUSTER, &RUNTIME, &TRACE, &XTASK] {
        let modules = of.modules();
        let rooms: BTreeSet<&str> = modules.iter().map(|module| &*module.path[0]).collect();
        for room in rooms {
            let mut graph = files(of, room);
            for (file, imports) in &mut graph {
                let is_inside = |inner: &str, outer: &str| {
                    let rest = inner.strip_prefix(outer);
                    rest.is_some_and(|rest| rest.starts_with("::"))
                };
                imports.retain(|other| !is_inside(file, other) && !is_inside(other, file));
            }
            let circles = in_circles(graph).into_iter();
            wrong.extend(circles.map(|line| format!("{}: {line}", of.source)));
        }
    }
    assert!(wrong.is_empty(), "in a circle:\n{}", wrong.join("\n"));
}

#[test]
fn every_kind_of_path_is_read() {
    let importer: Vec<String> = vec!["policy".into(), "disk".into()];
    let text = "//! crate::engine\nmod inner;\npub(crate) use crate::model::{state::{A, self}, event::B as C};\nuse super::cpu;\nuse inner::D;\n\
                #[cfg(doc)]\nuse crate::explain::E;\n#[cfg(test)]\nmod more;\nfn f(x: crate::kube::pod::Pod, y: other_crate::G<crate::kube::H>) -> impl Fn() + use<'_> {\n\
                let url = \"http://crate::engine \\\" crate::engine\"; plimsoll_core::shown::i(); super::oom::j('\"', self::k()); inner::l::<u8>() }\n\
                mod part {\n use super::super::eviction;\n fn m() { super::n(); }\n}\nfn o() { super::p::q(); } /* crate::engine */\n\
                #[cfg(test)]\nmod tests { use crate::engine::F; }\n";
    let mut found: Vec<String> = CORE
        .imports(text, &importer)
        .iter()
        .map(|path| path.join("::"))
        .collect();
    found.sort();
    assert_eq!(
        found,
        [
            "kube::H",
            "kube::pod::Pod",
            "model::event::B",
            "model::state",
            "model::state::A",
            "policy::cpu",
            "policy::disk::inner::D",
            "policy::disk::inner::l",
            "policy::disk::k",
            "policy::disk::n",
            "policy::eviction",
            "policy::oom::j",
            "policy::p::q",
            "shown::i",
        ]
    );
}
