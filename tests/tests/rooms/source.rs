//! The source of a crate: its modules, and what each imports.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A crate whose imports are read.
pub(crate) struct Crate {
    /// Its source, from the repository's root.
    pub(crate) source: &'static str,
    /// What its programs call it.
    pub(crate) name: &'static str,
    /// Whether the code of its tests counts as well.
    pub(crate) with_tests: bool,
}

/// A source file: its module's path within the crate, and every path that it imports.
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) path: Vec<String>,
    pub(crate) imports: Vec<Vec<String>>,
}

impl Module {
    /// The first part of its path. Programs and `lib.rs` are `main`.
    pub(crate) fn room(&self) -> &str {
        match self.path[0].as_str() {
            "bin" | "lib" => "main",
            room => room,
        }
    }
}

impl Crate {
    /// Its modules, sorted by file.
    pub(crate) fn modules(&self) -> Vec<Module> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(self.source);
        let mut files = Vec::new();
        source_files(&root, &mut files);
        files.sort();
        let is_test = |file: &PathBuf| {
            let name = file.strip_prefix(&root).unwrap();
            name.components()
                .any(|part| matches!(part.as_os_str().to_str(), Some("tests.rs" | "tests")))
        };
        files.retain(|file| self.with_tests || !is_test(file));
        files
            .into_iter()
            .map(|file| {
                let name = file.strip_prefix(&root).unwrap().with_extension("");
                let mut path: Vec<String> = name
                    .iter()
                    .map(|part| part.to_str().unwrap().to_owned())
                    .collect();
                if path.last().is_some_and(|last| last == "mod") {
                    path.pop();
                }
                let text = fs::read_to_string(&file).unwrap();
                let imports = self.imports(&text, &path);
                Module {
                    file,
                    path,
                    imports,
                }
            })
            .collect()
    }

    /// Every path of the crate that the text names: `crate::…`, and `self::…`, `super::…` and modules of its own in `use` lines.
    pub(crate) fn imports(&self, text: &str, importer: &[String]) -> Vec<Vec<String>> {
        let code = code(text, self.with_tests);
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
                    found.extend(self.resolved(&path, importer, &child_modules));
                }
            } else {
                for (at, _) in statement.match_indices("crate::") {
                    // Not the end of another name.
                    if statement[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                        continue;
                    }
                    let rest = &statement[at..];
                    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
                    let path = &rest[..end.unwrap_or(rest.len())];
                    found.extend(self.resolved(path, importer, &child_modules));
                }
            }
        }
        found
    }

    fn resolved(
        &self,
        path: &str,
        importer: &[String],
        child_modules: &BTreeSet<&str>,
    ) -> Option<Vec<String>> {
        let mut parts = path.split("::").map(str::to_owned);
        let first = parts.next()?;
        let mut absolute = match first.as_str() {
            name if name == "crate" || name == self.name => Vec::new(),
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

/// Without comments, without what only the documentation uses and, unless `with_tests`, without tests.
pub(crate) fn code(text: &str, with_tests: bool) -> String {
    let mut code = String::new();
    let mut skips = false;
    for line in text.lines() {
        if !with_tests && line.starts_with("#[cfg(test)]") {
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
