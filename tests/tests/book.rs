//! The documentation: README.md fits on two screens, docs/SUMMARY.md lists every page, every relative link leads
//! somewhere.
//!
//! `docs/` is a book for mdbook, and is read in the repository too. A link inside `docs/` therefore stays inside
//! `docs/`: what is outside is not part of the book. `agent/tests/guides` runs the commands; here, pages without
//! commands are kept without.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use sources::root;

/// Two screens.
const README_LINES_MAX: usize = 120;
/// Pages outside the book. CONTRIBUTING.md and ARCHITECTURE.md are chapters by an include.
const IN_THE_ROOT: &[&str] = &[
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "SECURITY.md",
];
/// Pages whose commands `agent/tests/guides` runs.
const WITH_COMMANDS: &[&str] = &["README.md", "docs/guide/", "docs/incident.md"];
/// Marks of blocks on all other pages.
const MARKS: &[&str] = &["text", "yaml", "json"];

/// Comments of a source, with the numbers of their lines.
fn comments(source: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(source.lines().map(str::trim_start));
    lines.filter_map(|(number, line)| Some((number, line.strip_prefix("//")?)))
}

/// Pages that a comment names: `docs/incident.md`, with or without back-ticks.
fn pages_in(comment: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_alphanumeric() || "/._-".contains(letter);
    let words = comment.split(move |letter| !is_part(letter));
    let words = words.map(|word| word.trim_end_matches('.'));
    words.filter(|word| word.ends_with(".md"))
}

/// Headings that a comment names: `docs/incident.md`, "The node".
fn headings_in(comment: &str) -> impl Iterator<Item = (&str, &str)> {
    comment
        .split('`')
        .zip(comment.split('`').skip(1))
        .filter_map(|(page, rest)| {
            let heading = rest.strip_prefix(", \"")?.split_once('"')?.0;
            page.ends_with(".md").then_some((page, heading))
        })
}

/// What is wrong with what a comment names.
fn wrong_names(comment: &str) -> Vec<String> {
    let paths = pages_in(comment).chain(paths_in(comment));
    let lacking = paths.filter(|path| !root().join(path).exists());
    let mut wrong: Vec<String> = lacking
        .map(|path| format!("`{path}` is not there"))
        .collect();
    for (page, heading) in headings_in(comment) {
        let slug = anchors(&format!("# {heading}")).pop_first();
        if root().join(page).exists() && !anchors(&text(page)).contains(&slug.unwrap()) {
            wrong.push(format!("{page} has no heading \"{heading}\""));
        }
    }
    wrong
}

/// All Markdown files below `dir`, as paths from the root of the repository.
fn below(dir: &str, pages: &mut BTreeSet<String>) {
    for entry in fs::read_dir(root().join(dir)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{dir}/{name}");
        if entry.file_type().unwrap().is_dir() {
            below(&path, pages);
        } else if Path::new(&name).extension().is_some_and(|end| end == "md") {
            pages.insert(path);
        }
    }
}

fn book() -> BTreeSet<String> {
    let mut pages = BTreeSet::new();
    below("docs", &mut pages);
    pages
}

/// The text of a page, with the files that it includes.
fn text(page: &str) -> String {
    let path = root().join(page);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
    let mut whole = String::new();
    for line in text.lines() {
        match line.strip_prefix("{{#include ") {
            Some(rest) => {
                let included = rest.strip_suffix("}}").unwrap();
                let included = path.parent().unwrap().join(included);
                whole += &fs::read_to_string(&included)
                    .unwrap_or_else(|error| panic!("{page}: {}: {error}", included.display()));
            }
            None => {
                whole += line;
                whole.push('\n');
            }
        }
    }
    whole
}

/// A line of a page: outside blocks, or the mark that opens a block.
enum Line<'a> {
    Prose(usize, &'a str),
    Block(usize, &'a str),
}

fn lines(text: &str) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut in_block = false;
    for (line, number) in text.lines().zip(1..) {
        match line.trim_start().strip_prefix("```") {
            Some(mark) => {
                if !in_block {
                    lines.push(Line::Block(number, mark));
                }
                in_block = !in_block;
            }
            None if in_block => {}
            None => lines.push(Line::Prose(number, line)),
        }
    }
    lines
}

/// A line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Targets of the links and pictures in a line.
fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    line.split("](")
        .skip(1)
        .map(|rest| rest.split_once(')').unwrap().0.to_owned())
        .collect()
}

/// The anchors of a page: its headings, as mdbook and forges make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in lines(text) {
        let Line::Prose(_, line) = line else { continue };
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let slug: String = title
            .trim()
            .chars()
            .filter_map(|letter| match letter {
                ' ' => Some('-'),
                '-' | '_' => Some(letter),
                _ if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
                _ => None,
            })
            .collect();
        let count = seen.entry(slug.clone()).or_default();
        anchors.insert(match *count {
            0 => slug,
            count => format!("{slug}-{count}"),
        });
        *count += 1;
    }
    anchors
}

/// A link from a page as a path from the root of the repository, and its anchor.
fn resolve(page: &str, link: &str) -> Option<(String, Option<String>)> {
    let (file, anchor) = match link.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor.to_owned())),
        None => (link, None),
    };
    if file.is_empty() {
        return Some((page.to_owned(), anchor));
    }
    let mut path = PathBuf::new();
    for component in Path::new(page).parent()?.join(file).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            _ => return None,
        }
    }
    Some((path.to_str()?.to_owned(), anchor))
}

/// What is wrong with the links of a page.
fn wrong_links(page: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for line in lines(text) {
        let Line::Prose(number, line) = line else {
            continue;
        };
        for link in links(line) {
            if link.contains("://") {
                continue;
            }
            let why = match resolve(page, &link) {
                None => "leaves the repository".to_owned(),
                Some((file, _)) if page.starts_with("docs/") && !file.starts_with("docs/") => {
                    "leaves docs/, so the book cannot have it: write the file's name as code"
                        .to_owned()
                }
                Some((file, _))
                    if page.starts_with("docs/")
                        && page != "docs/SUMMARY.md"
                        && ["README.md", "SUMMARY.md"]
                            .iter()
                            .any(|end| file.ends_with(end)) =>
                {
                    "mdbook has no page of this name: link to the folder".to_owned()
                }
                Some((file, _)) if !root().join(&file).exists() => format!("there is no {file}"),
                Some((file, Some(anchor))) if !anchors(&self::text(&file)).contains(&anchor) => {
                    format!("{file} has no heading #{anchor}")
                }
                Some(_) => continue,
            };
            wrong.push(format!("{page}:{number}: link {link}: {why}"));
        }
    }
    wrong
}

#[test]
fn the_readme_fits_on_two_screens() {
    let count = text("README.md").lines().count();
    assert!(
        count <= README_LINES_MAX,
        "README.md has {count} lines, more than {README_LINES_MAX}: move something to docs/"
    );
}

#[test]
fn the_summary_lists_every_page_once() {
    let summary = text("docs/SUMMARY.md");
    let mut listed = BTreeSet::new();
    for line in summary.lines() {
        for link in links(line) {
            let (page, _) = resolve("docs/SUMMARY.md", &link).unwrap();
            assert!(
                listed.insert(page.clone()),
                "docs/SUMMARY.md lists {page} twice"
            );
        }
    }
    let mut pages = book();
    pages.remove("docs/SUMMARY.md");
    assert_eq!(
        listed, pages,
        "left: listed in docs/SUMMARY.md; right: below docs/"
    );
}

#[test]
fn the_list_of_decisions_has_every_decision() {
    let list = text("docs/decisions/README.md");
    let listed: BTreeSet<String> = list
        .lines()
        .flat_map(links)
        .map(|link| format!("docs/decisions/{link}"))
        .collect();
    let pages = book();
    let decisions: BTreeSet<String> = pages
        .into_iter()
        .filter(|page| page.starts_with("docs/decisions/0"))
        .collect();
    assert_eq!(listed, decisions);
    let number = |page: &String| page["docs/decisions/".len()..][..4].parse::<u32>().unwrap();
    let taken: BTreeSet<u32> = decisions.iter().map(number).collect();
    let last = *taken.last().unwrap();
    for missing in (1..=last).filter(|number| !taken.contains(number)) {
        assert!(
            list.contains(&format!("{missing:04}")),
            "docs/decisions/README.md does not say why there is no {missing:04}"
        );
    }
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut pages = book();
    pages.extend(IN_THE_ROOT.iter().map(|page| (*page).to_owned()));
    let wrong: Vec<String> = pages
        .iter()
        .flat_map(|page| wrong_links(page, &text(page)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn wrong_links_are_found() {
    let wrong = |text: &str| wrong_links("docs/guide/none.md", text);
    let why = |text: &str| match wrong(text).as_slice() {
        [why] => why.clone(),
        other => panic!("{text}: {other:?}"),
    };
    assert!(why("a [b](install.mb)").contains("there is no docs/guide/install.mb"));
    assert!(why("[b](../incident.md#nowhere)").contains("has no heading #nowhere"));
    assert!(why("\n[b](../../README.md)").starts_with("docs/guide/none.md:2: "));
    assert!(why("[b](../../../x.md)").contains("leaves the repository"));
    assert!(why("[b](../decisions/README.md)").contains("link to the folder"));
    assert!(wrong("[b](../incident.md#the-node), `[c](d)`, [e](https://f/)").is_empty());
    assert!(wrong("```text\n[b](c)\n```\n").is_empty());
}

#[test]
fn only_pages_that_are_run_have_commands() {
    let mut pages = book();
    pages.extend(IN_THE_ROOT.iter().map(|page| (*page).to_owned()));
    for page in pages {
        if WITH_COMMANDS.iter().any(|start| page.starts_with(start)) {
            continue;
        }
        let text = text(&page);
        for line in lines(&text) {
            let Line::Block(number, mark) = line else {
                continue;
            };
            // A picture of the code, in ARCHITECTURE.md.
            let is_drawing = mark.is_empty() && !page.starts_with("docs/");
            assert!(
                MARKS.contains(&mark) || is_drawing || page == "docs/contributing/architecture.md",
                "{page}:{number}: a block marked {mark:?}, where only {MARKS:?} are; a page whose commands are run is in {WITH_COMMANDS:?}"
            );
        }
    }
}

/// Paths of this repository between back-ticks: `agent/src/daemon/turn.rs`.
fn paths_in(text: &str) -> impl Iterator<Item = &str> {
    let rooms = [
        "agent/", "ebpf/", "xtask/", "tests/", "benches/", "docs/", "deploy/",
    ];
    text.split('`').skip(1).step_by(2).filter(move |code| {
        rooms.iter().any(|room| code.starts_with(room))
            && code
                .chars()
                .all(|letter| letter.is_alphanumeric() || "/._-".contains(letter))
    })
}

#[test]
fn every_path_that_is_named_exists() {
    let mut pages = book();
    pages.extend(["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"].map(str::to_owned));
    // A decision that another one has replaced says what was.
    pages.retain(|page| !text(page).contains("\n**Superseded"));
    let mut named = 0;
    for page in &pages {
        for path in paths_in(&fs::read_to_string(root().join(page)).unwrap()) {
            named += 1;
            assert!(
                root().join(path).exists(),
                "{page} names `{path}`, which is not there"
            );
        }
    }
    assert!(named > 20, "{named} paths: the pages are read");
    let found: Vec<&str> = paths_in("`agent/src/x.rs` and `agent/src/{a,b}` and agent/y").collect();
    assert_eq!(found, ["agent/src/x.rs"]);
}

/// The rows of the tables below a heading of ARCHITECTURE.md, as their cells.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut parts = page.split("\n## ");
    let part = parts.find(|part| part.starts_with(heading)).unwrap();
    let lines = part.lines().filter(|line| line.starts_with("| "));
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split(" | ");
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    lines.map(cells).collect()
}

/// What stands between back-ticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Rooms whose rows name each of their files and folders. The others say what one finds there.
const LISTED: [&str; 9] = [
    "agent/src/daemon/",
    "agent/src/serve/",
    "agent/src/act/",
    "agent/src/pods/",
    "agent/src/record/",
    "agent/src/probe/",
    "agent/src/source/",
    "agent/src/input/",
    "agent/core/src/policy/",
];

/// The module or folder that a file is in, in a room.
fn module_in<'a>(room: &str, file: &'a str) -> Option<&'a str> {
    let part = file.strip_prefix(room)?.split('/').next()?;
    Some(part.trim_end_matches(".rs"))
}

/// A word in back-ticks that could be a module, in the row of a room of the agent, is one of that room; and of a room
/// that lists them, none is missing.
#[test]
fn the_table_of_rooms_has_the_modules_that_there_are() {
    let sources: Vec<&String> = sources::rust().iter().map(|(file, _)| file).collect();
    let is_module = |word: &str| {
        word.chars()
            .all(|letter| letter.is_ascii_lowercase() || letter == '_')
    };
    let (mut room, mut named) = (String::new(), 0);
    let mut words: BTreeSet<(String, String)> = BTreeSet::new();
    for row in rows("Rooms") {
        if let Some(first) = quoted(&row[0]).next() {
            first.clone_into(&mut room);
        }
        if !room.starts_with("agent/") || !room.ends_with('/') {
            continue;
        }
        for word in quoted(&row[1]).map(|word| word.trim_end_matches('/')) {
            words.insert((room.clone(), word.to_owned()));
            if !is_module(word) {
                continue;
            }
            named += 1;
            let is_there = sources.iter().any(|file| {
                file.strip_prefix(&room).is_some_and(|below| {
                    below
                        .split('/')
                        .any(|part| part.trim_end_matches(".rs") == word)
                })
            });
            assert!(is_there, "ARCHITECTURE.md: `{word}` is not in {room}");
        }
    }
    assert!(named > 80, "{named} modules: the table is read");
    for room in LISTED {
        let modules = sources.iter().filter_map(|file| module_in(room, file));
        for module in modules.filter(|module| *module != "tests") {
            assert!(
                words.contains(&(room.to_owned(), module.to_owned())),
                "ARCHITECTURE.md: the row of {room} does not name `{module}`"
            );
        }
    }
    assert_eq!(module_in("a/src/", "a/src/b/c.rs"), Some("b"));
    assert_eq!(module_in("a/src/", "a/src/b.rs"), Some("b"));
}

/// The names of the threads that a source starts, outside its tests.
fn threads_of(source: &str) -> Vec<String> {
    let code = sources::code(source, false);
    let starts = [
        "WorkerThread::start(",
        "ListenerThread::start(",
        "thread::Builder::new()",
    ];
    let places = starts.iter().flat_map(|start| code.match_indices(start));
    let names = places.filter_map(|(at, _)| {
        // The name is the first text before the work begins.
        let before = source[at..].split("move |").next()?;
        let name = before.split('"').nth(1)?;
        Some(name.to_owned())
    });
    names.collect()
}

#[test]
fn the_table_of_threads_has_every_thread_of_the_agent() {
    let mut started = BTreeMap::new();
    for (file, source) in sources::rust() {
        let is_agent = file.starts_with("agent/src/") && !file.starts_with("agent/src/commands/");
        if is_agent && !file.ends_with("tests.rs") && !file.contains("/tests/") {
            for name in threads_of(source) {
                started.insert(name, file.clone());
            }
        }
    }
    let mut known = BTreeMap::new();
    for row in rows("Threads of the agent").iter().skip(1) {
        let rooms: Vec<&str> = quoted(&row[1]).collect();
        for name in quoted(&row[0]) {
            known.insert(name.to_owned(), rooms.join(" "));
        }
    }
    let names = |threads: &BTreeMap<String, String>| threads.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&known), names(&started));
    for (name, file) in &started {
        let rooms = known[name].split(' ');
        let is_there = |room: &str| file.starts_with(&format!("agent/src/{room}"));
        assert!(
            rooms.into_iter().any(is_there),
            "`{name}` is started in {file}"
        );
    }
    let text = "WorkerThread::start(\n \"a\", 1, move |x| { \"no\" }); thread::Builder::new().name(\"b\".to_owned())";
    assert_eq!(threads_of(text), ["a", "b"]);
}

#[test]
fn what_comments_of_sources_name_exists() {
    let mut named = 0;
    let mut wrong = Vec::new();
    for (file, source) in sources::rust() {
        for (number, comment) in comments(source) {
            named += pages_in(comment).count() + paths_in(comment).count();
            let of_line = wrong_names(comment).into_iter();
            wrong.extend(of_line.map(|why| format!("{file}:{number}: {why}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named > 100, "{named} names: the comments are read");
}

#[test]
fn wrong_names_in_comments_are_found() {
    let source = "//! One (NOWHERE.md, section 3).\nlet x = \"y.md\"; // no comment\n    /// `docs/incident.md`, \"The node\".";
    let read: Vec<_> = comments(source).collect();
    assert_eq!(
        read.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
        [1, 3]
    );
    assert_eq!(wrong_names(read[0].1), ["`NOWHERE.md` is not there"]);
    assert_eq!(wrong_names(read[1].1), [""; 0]);
    let why = |comment| wrong_names(comment).concat();
    assert_eq!(why("see `agent/src/x.rs`"), "`agent/src/x.rs` is not there");
    assert!(why("`docs/incident.md`, \"Nowhere\"").ends_with("has no heading \"Nowhere\""));
    assert_eq!(why("ARCHITECTURE.md, and docs/incident.md."), "");
}
