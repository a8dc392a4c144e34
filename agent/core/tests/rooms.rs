//! The rooms of the decision core, and which may import which.
//!
//! Each room imports only rooms below it; so a rule can be read, tested and changed without what stands above it. The table is read against
//! every path that begins with `crate::` in the source, tests inside of it left out, since they may use what is above.
//!
//! `placement` stands below `model`, beside nothing but `kube`: it is a library about CPUs, memory and devices, which knows neither events nor
//! decisions; those carry its results.
#![expect(
    clippy::disallowed_methods,
    reason = "it reads the source of the core, which does no I/O itself"
)]
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the top. Each may import itself and the rooms after it.
const ROOMS: [&str; 6] = ["engine", "explain", "policy", "model", "placement", "kube"];

/// A source file: its module's path within the crate, and every path that it imports.
struct Module {
    path: Vec<String>,
    imports: Vec<Vec<String>>,
}

fn source_files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source_files(&path, into);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            into.push(path);
        }
    }
}

fn modules() -> Vec<Module> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    source_files(&root, &mut files);
    files.sort();
    let tests = |file: &PathBuf| {
        file.components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests.rs" | "tests")))
    };
    files.retain(|file| !tests(file) && *file != root.join("lib.rs"));
    let module = |file: &PathBuf| {
        let name = file.strip_prefix(&root).unwrap().with_extension("");
        let mut path: Vec<String> = name
            .iter()
            .map(|part| part.to_str().unwrap().to_owned())
            .collect();
        if path.last().is_some_and(|last| last == "mod") {
            path.pop();
        }
        let imports = imports(&fs::read_to_string(file).unwrap(), &path);
        Module { path, imports }
    };
    files.iter().map(module).collect()
}

/// Without comments, and without what only tests or the documentation use.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut skips = false;
    for line in text.lines() {
        if line.starts_with("#[cfg(test)]") {
            break;
        }
        if line.starts_with("#[cfg(doc)]") {
            skips = true;
            continue;
        }
        let line = line.split("//").next().unwrap();
        if !skips {
            code.push_str(line);
            code.push('\n');
        }
        skips &= !line.contains(';');
    }
    code
}

/// Every path of the crate that the text names: `crate::…`, and `self::…`, `super::…` and modules of its own in `use` lines.
fn imports(text: &str, importer: &[String]) -> Vec<Vec<String>> {
    let code = code(text);
    let mut found = Vec::new();
    let child_modules: BTreeSet<&str> = code
        .lines()
        .filter_map(|line| {
            let line = line
                .trim_start_matches("pub(crate) ")
                .trim_start_matches("pub ");
            line.strip_prefix("mod ")?.strip_suffix(';')
        })
        .collect();
    for statement in code.split(';') {
        let statement = statement.trim();
        let path = statement.find("use ").map(|at| statement.split_at(at));
        let path = path.filter(|(before, _)| {
            let before = before.trim_end();
            before.is_empty() || before.ends_with([']', '}', ')']) || before.ends_with("pub")
        });
        let path = path.map(|(_, path)| &path["use ".len()..]);
        if let Some(path) = path {
            for path in spread(path) {
                found.extend(resolved(&path, importer, &child_modules));
            }
        } else {
            for (at, _) in statement.match_indices("crate::") {
                let rest = &statement[at..];
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
                let path = &rest[..end.unwrap_or(rest.len())];
                found.extend(resolved(path, importer, &child_modules));
            }
        }
    }
    found
}

/// `a::{b, c::d}` as `a::b` and `a::c::d`.
fn spread(path: &str) -> Vec<String> {
    let path: String = path.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some((before, inside)) = path.split_once('{') else {
        let path = path.split(" as ").next().unwrap();
        return vec![path.trim().to_owned()];
    };
    let inside = inside.strip_suffix('}').unwrap_or(inside);
    let (mut depth, mut parts, mut part) = (0, Vec::new(), String::new());
    for c in inside.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    parts.push(part);
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts
        .flat_map(|part| spread(part.trim()))
        .map(|part| match part.as_str() {
            "self" => before.trim_end_matches("::").to_owned(),
            part => format!("{before}{part}"),
        })
        .collect()
}

fn resolved(
    path: &str,
    importer: &[String],
    child_modules: &BTreeSet<&str>,
) -> Option<Vec<String>> {
    let mut parts = path.split("::").map(str::to_owned);
    let first = parts.next()?;
    let mut absolute = match first.as_str() {
        "crate" => Vec::new(),
        "self" => importer.to_vec(),
        "super" => importer[..importer.len() - 1].to_vec(),
        module if child_modules.contains(module) => [importer, &[first]].concat(),
        _ => return None,
    };
    for part in parts {
        if part == "super" {
            absolute.pop();
        } else {
            absolute.push(part);
        }
    }
    Some(absolute)
}

#[test]
fn each_room_imports_only_what_is_below_it() {
    let place = |room: &str| ROOMS.iter().position(|listed| *listed == room);
    let mut wrong = Vec::new();
    for module in modules() {
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
fn no_file_of_the_vocabulary_is_in_a_circle() {
    let modules: Vec<Module> = modules()
        .into_iter()
        .filter(|module| module.path[0] == "model")
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
                #[cfg(doc)]\nuse crate::explain::E;\nfn f(x: crate::kube::pod::Pod) {}\n#[cfg(test)]\nmod tests { use crate::engine::F; }\n";
    let mut found: Vec<String> = imports(text, &importer)
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
