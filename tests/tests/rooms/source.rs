//! The source of a crate: its modules, and what each imports.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use crate::sources::{code, rust};

/// A crate whose imports are read.
pub(crate) struct Crate {
    /// Its source, from the repository's root.
    pub(crate) source: &'static str,
    /// What its programs call it.
    pub(crate) name: &'static str,
    /// Whether the code of its tests counts as well.
    with_tests: bool,
    /// Read once, for all tests.
    modules: OnceLock<Vec<Module>>,
}

/// A source file: its module's path within the crate, and every path that it imports.
pub(crate) struct Module {
    /// From the repository's root.
    pub(crate) file: &'static str,
    pub(crate) text: &'static str,
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
    pub(crate) const fn new(source: &'static str, name: &'static str) -> Self {
        Self {
            source,
            name,
            with_tests: false,
            modules: OnceLock::new(),
        }
    }

    pub(crate) const fn with_tests(mut self) -> Self {
        self.with_tests = true;
        self
    }

    /// Its modules, sorted by file.
    pub(crate) fn modules(&self) -> &[Module] {
        self.modules.get_or_init(|| self.read())
    }

    fn read(&self) -> Vec<Module> {
        let mut modules = Vec::new();
        for (file, text) in rust() {
            let Ok(name) = Path::new(file).strip_prefix(self.source) else {
                continue;
            };
            let is_test = name
                .iter()
                .any(|part| matches!(part.to_str(), Some("tests.rs" | "tests")));
            if is_test && !self.with_tests {
                continue;
            }
            let name = name.with_extension("");
            let mut path: Vec<String> = name
                .iter()
                .map(|part| part.to_str().unwrap().to_owned())
                .collect();
            // A program of several files.
            if name.starts_with("bin") && name.ends_with("main") {
                path.pop();
            }
            let imports = self.imports(text, &path);
            modules.push(Module {
                file,
                text,
                path,
                imports,
            });
        }
        modules
    }

    /// Every path of the crate that the text names, in `use` lines and within code: `crate::…`, the crate's own name,
    /// `self::…`, `super::…` and modules that the text declares.
    pub(crate) fn imports(&self, text: &str, importer: &[String]) -> Vec<Vec<String>> {
        let code = code(text, self.with_tests);
        let tokens = tokens(&code);
        let token = |at: usize| tokens.get(at).copied().unwrap_or_default();
        // A program beside the library is a crate of its own, whose root is its own file.
        let root = match importer {
            [first, program, ..] if first == "bin" => vec![first.clone(), program.clone()],
            _ => Vec::new(),
        };
        let importer = match importer {
            [file] if file == "lib" || file == "main" => &[],
            _ => importer,
        };
        let mut scope = Scope {
            crate_name: self.name,
            root,
            module: importer.to_vec(),
            children: BTreeSet::new(),
        };
        for (at, name) in tokens.iter().enumerate().skip(1) {
            if tokens[at - 1] == "mod" && token(at + 1) == ";" {
                scope.children.insert((*name).to_owned());
            }
        }
        let (mut found, mut depth, mut inline_modules) = (Vec::new(), 0, Vec::new());
        let mut at = 0;
        while at < tokens.len() {
            match tokens[at] {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if inline_modules.last() == Some(&depth) {
                        inline_modules.pop();
                        scope.module.pop();
                    }
                }
                "mod" if token(at + 2) == "{" => {
                    inline_modules.push(depth);
                    scope.module.push(token(at + 1).to_owned());
                    at += 1;
                }
                "use" if is_statement(at.checked_sub(1).map(token)) => {
                    let len = tokens[at..].iter().position(|token| *token == ";");
                    let end = at + len.unwrap_or(tokens.len() - at);
                    for path in spread(&tokens[at + 1..end]) {
                        found.extend(scope.resolved(&path));
                    }
                    at = end;
                }
                first if is_name(first) && token(at + 1) == "::" => {
                    let is_middle = at > 0 && tokens[at - 1] == "::";
                    let mut path = vec![first];
                    while token(at + 1) == "::" && is_name(token(at + 2)) {
                        path.push(token(at + 2));
                        at += 2;
                    }
                    if !is_middle {
                        found.extend(scope.resolved(&path));
                    }
                }
                _ => {}
            }
            at += 1;
        }
        found
    }
}

/// Where a path begins.
struct Scope {
    crate_name: &'static str,
    /// What `crate` is.
    root: Vec<String>,
    /// The module, with the inline ones around the place.
    module: Vec<String>,
    /// Modules that the file declares.
    children: BTreeSet<String>,
}

impl Scope {
    fn resolved(&self, path: &[&str]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let mut absolute = match *first {
            "crate" => self.root.clone(),
            name if name == self.crate_name => Vec::new(),
            "self" => self.module.clone(),
            "super" => self.module[..self.module.len().saturating_sub(1)].to_vec(),
            child if self.children.contains(child) => {
                [&self.module[..], &[child.to_owned()]].concat()
            }
            _ => return None,
        };
        for part in rest {
            if *part == "super" {
                absolute.pop();
            } else {
                absolute.push((*part).to_owned());
            }
        }
        Some(absolute)
    }
}

/// Whether `use` after this token begins a statement: in `+ use<'a>` it does not.
fn is_statement(before: Option<&str>) -> bool {
    before.is_none_or(|before| matches!(before, ";" | "{" | "}" | "]" | ")" | "pub"))
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names and numbers, `::`, and every other character that is no space.
fn tokens(code: &str) -> Vec<&str> {
    let is_inside = |c: char| c.is_alphanumeric() || c == '_';
    let (mut rest, mut tokens) = (code.trim_start(), Vec::new());
    while let Some(first) = rest.chars().next() {
        let len = if is_inside(first) {
            rest.find(|c| !is_inside(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(len);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// `a::{b, c::d as e}` as `a::b` and `a::c::d`.
fn spread<'a>(tree: &[&'a str]) -> Vec<Vec<&'a str>> {
    let Some(open) = tree.iter().position(|token| *token == "{") else {
        let path = tree.split(|token| *token == "as").next().unwrap();
        let names = path.iter().filter(|token| is_name(token));
        return vec![names.copied().collect()];
    };
    let before: Vec<&str> = tree[..open]
        .iter()
        .copied()
        .filter(|t| is_name(t))
        .collect();
    let inside = &tree[open + 1..tree.len() - 1];
    let mut depth = 0;
    let parts = inside.split(|token| {
        match *token {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        depth == 0 && *token == ","
    });
    let parts = parts.filter(|part| !part.is_empty());
    parts
        .flat_map(spread)
        .map(|mut path| {
            path.retain(|name| *name != "self" || before.is_empty());
            [&before[..], &path[..]].concat()
        })
        .collect()
}
