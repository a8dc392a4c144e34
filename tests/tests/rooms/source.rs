//! The source of a crate: its modules, and what each imports.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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
                // A program of several files.
                if name.starts_with("bin") && name.ends_with("main") {
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

/// Without comments and the content of strings, without what only the documentation uses and, unless `with_tests`,
/// without tests.
pub(crate) fn code(text: &str, with_tests: bool) -> String {
    let text = without_text(text);
    let (mut rest, mut code) = (text.as_str(), String::new());
    while let Some(at) = rest.find("#[cfg(") {
        let (before, attribute) = rest.split_at(at);
        code.push_str(before);
        let is_of = |what| attribute["#[cfg(".len()..].starts_with(what);
        let skipped = if is_of("doc)]") || !with_tests && is_of("test)]") {
            item_len(attribute)
        } else {
            "#[cfg(".len()
        };
        let (skipped, after) = attribute.split_at(skipped);
        if skipped == "#[cfg(" {
            code.push_str(skipped);
        }
        rest = after;
    }
    code + rest
}

/// How long the item is that the text begins with, with its attributes.
fn item_len(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        let is_list = || text[at + 1..].trim_start().starts_with(';');
        if depth == 0 && (c == ';' || c == '}' && !is_list()) {
            return at + 1;
        }
    }
    text.len()
}

/// Without comments and what strings and characters contain; every line stays.
fn without_text(text: &str) -> String {
    let (mut rest, mut code) = (text, String::new());
    while let Some(first) = rest.chars().next() {
        let is_new_name = !code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let raw = raw_quote(rest).filter(|_| is_new_name);
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |at| at + 2)
        } else if let Some((opening, closing)) = raw {
            let end = rest[opening..].find(&closing);
            end.map_or(rest.len(), |at| opening + at + closing.len())
        } else if first == '"' {
            1 + until_quote(&rest[1..], '"')
        } else if let Some(inside) = rest.strip_prefix('\'')
            && (inside.starts_with('\\') || inside.chars().nth(1) == Some('\''))
        {
            1 + until_quote(inside, '\'')
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        let (skipped, after) = rest.split_at(skipped);
        code.extend(skipped.chars().filter(|c| *c == '\n'));
        code.push(' ');
        rest = after;
    }
    code
}

/// How long what opens a raw string is, and what closes it.
fn raw_quote(text: &str) -> Option<(usize, String)> {
    let inside = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let hashes = inside.len() - inside.trim_start_matches('#').len();
    let opening = text.len() - inside[hashes..].strip_prefix('"')?.len();
    Some((opening, format!("\"{}", "#".repeat(hashes))))
}

/// How much of the text the quote ends, which no backslash escapes.
fn until_quote(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if c == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
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
