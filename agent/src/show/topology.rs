//! The machine as a tree in the terminal.

pub mod holders;
pub mod layout;
pub mod svg;

use std::collections::BTreeMap;

use plimsoll_core::kube::node_resource_topology::{NodeTopology, zone_name};
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::machine::{Core, Machine, NumaNode, page_size};

use crate::host::output::Style;
use crate::show::table::{Table, Tone, bytes};
use crate::show::topology::holders::Holders;
use crate::show::topology::layout::{Layout, Level, Part};

/// A longer tree is folded: parts that are alike share a line.
const LINES_MAX: usize = 32;
/// More nodes have no table of distances, but a line each.
const DISTANCE_COLUMNS_MAX: usize = 16;
/// Cores that are named one by one; of more, the first and the last are.
const CORES_NAMED_MAX: usize = 3;

/// What NUMA nodes have left, a line for each resource.
pub(crate) fn zones(topology: &NodeTopology, style: Style) -> String {
    let heading = ["ZONE", "RESOURCE", "CAPACITY", "ALLOCATABLE", "AVAILABLE"];
    let mut table = Table::new(&heading, &[2, 3, 4]);
    for (at, zone) in topology.zones.iter().enumerate() {
        for (resource, amounts) in &zone.resources {
            let is_of_bytes = resource == "memory" || resource.starts_with("hugepages-");
            let amount = |amount: u64| match is_of_bytes {
                true => bytes(amount.into()),
                false => amount.to_string(),
            };
            let row = vec![
                zone_name(at),
                resource.clone(),
                amount(amounts.capacity),
                amount(amounts.allocatable),
                amount(amounts.available),
            ];
            table.row(Tone::Plain, row);
        }
    }
    table.render(style)
}

/// The text, each line ended.
pub(crate) fn draw(
    machine: &Machine,
    holders: Option<&Holders>,
    all: bool,
    style: Style,
) -> String {
    let layout = Layout::of(machine);
    let tree = Tree {
        machine,
        holders,
        layout: &layout,
    };
    let mut text = tree.heading(style);
    text.push('\n');
    text += &tree.table(all).render(style);
    text += &tree.distances(style);
    text += &tree.claims(style);
    text
}

/// What the whole machine has, in one line. Shared with the picture.
pub(crate) fn summary(machine: &Machine, layout: &Layout) -> String {
    let count = |number: usize, what: &str, many: &str| {
        let what = if number == 1 { what } else { many };
        format!("{number} {what}")
    };
    let mut parts = Vec::new();
    for (level, what, many) in [
        (Level::Socket, "socket", "sockets"),
        (Level::Die, "die", "dies"),
    ] {
        if layout.count(level) > 0 {
            parts.push(count(layout.count(level), what, many));
        }
    }
    parts.push(count(machine.nodes().len(), "NUMA node", "NUMA nodes"));
    for (level, what, many) in [
        (Level::L3, "L3 cache", "L3 caches"),
        (Level::Uncore, "uncore cache", "uncore caches"),
    ] {
        if layout.count(level) > 0 {
            parts.push(count(layout.count(level), what, many));
        }
    }
    let cores = machine.cores().iter();
    let cores = cores.filter(|core| !(core.cpus & machine.online()).is_empty());
    parts.push(count(cores.count(), "core", "cores"));
    parts.push(count(machine.online().len() as usize, "CPU", "CPUs"));
    let memory: u64 = machine
        .nodes()
        .iter()
        .filter_map(|node| node.memory_bytes)
        .sum();
    if memory > 0 {
        parts.push(format!("{} of memory", bytes(memory.into())));
    }
    parts.join(", ")
}

/// `512 × 2Mi`, of sizes of which there are pages.
pub(crate) fn hugepages(node: &NumaNode) -> String {
    let sizes = node.hugepages.iter().filter(|it| it.pages > 0);
    let texts: Vec<String> = sizes
        .map(|it| format!("{} × {}", it.pages, page_size(it.page_bytes)))
        .collect();
    texts.join(", ")
}

struct Tree<'a> {
    machine: &'a Machine,
    holders: Option<&'a Holders>,
    layout: &'a Layout,
}

/// Parts that share a line.
type Run<'a> = Vec<&'a Part>;

/// One line.
struct Line {
    /// Branches, and what it is.
    place: String,
    memory: String,
    hugepages: String,
    cores: String,
    cpus: CpuSet,
    siblings: String,
    held: String,
}

impl Tree<'_> {
    fn heading(&self, style: Style) -> String {
        let mut text = String::new();
        if let Some(name) = self.machine.name() {
            text += &(style.bold(name) + "\n");
        }
        text += &(summary(self.machine, self.layout) + "\n");
        for (cpus, what) in [
            (self.machine.offline(), "offline"),
            (self.machine.isolated(), "isolated from the scheduler"),
        ] {
            if !cpus.is_empty() {
                text += &style.yellow(&format!("{what}: CPUs {cpus}"));
                text.push('\n');
            }
        }
        text
    }

    fn table(&self, all: bool) -> Table {
        let mut lines = Vec::new();
        // First nothing is folded, then the smallest parts, then all that are alike.
        for folded_height in 0..=self.layout.levels.len() {
            lines.clear();
            let parts = self.layout.parts.iter().collect();
            self.lines(parts, "", folded_height, &mut lines);
            if all || lines.len() <= LINES_MAX {
                break;
            }
        }
        for node in &self.layout.nodes_without_cpus {
            lines.push(self.line_of_node(*node));
        }
        if !self.layout.offline.is_empty() {
            lines.push(Line::new(
                "unknown location".to_owned(),
                self.layout.offline,
            ));
        }
        self.with_columns_in_use(&lines)
    }

    /// Lines of parts that are beside each other, and of all below them.
    fn lines(&self, parts: Vec<&Part>, prefix: &str, folded_height: usize, into: &mut Vec<Line>) {
        let runs = self.runs(parts, folded_height);
        let count = runs.len();
        let outermost = prefix.is_empty();
        for (at, run) in runs.into_iter().enumerate() {
            let (fork, below) = match (outermost, at + 1 == count) {
                (true, _) => ("", " "),
                (false, true) => ("└─ ", "   "),
                (false, false) => ("├─ ", "│  "),
            };
            into.push(self.line(format!("{prefix}{fork}{}", names(&run)), &run));
            let children = run.iter().flat_map(|part| &part.children).collect();
            self.lines(children, &format!("{prefix}{below}"), folded_height, into);
        }
    }

    /// Puts parts that are alike into one run each, if they have at most so many levels below them.
    fn runs<'part>(&self, parts: Vec<&'part Part>, folded_height: usize) -> Vec<Run<'part>> {
        let mut runs = Vec::<Run<'part>>::new();
        for part in parts {
            let run = runs.last_mut().filter(|run| {
                let first = run.first();
                height(part) < folded_height && first.is_some_and(|first| self.alike(first, part))
            });
            match run {
                Some(run) => run.push(part),
                None => runs.push(vec![part]),
            }
        }
        runs
    }

    /// Whether two parts differ in nothing but their numbers, and no container holds CPUs of either alone.
    fn alike(&self, a: &Part, b: &Part) -> bool {
        let plain = |part: &Part| {
            let cpus = part.cpus();
            let exclusive = self.holders.iter().flat_map(|it| &it.exclusive);
            let mut taken = exclusive.map(|it| it.cpus);
            cpus.is_disjoint(&self.machine.offline()) && taken.all(|it| it.is_disjoint(&cpus))
        };
        let what = |part: &Part| -> Vec<(Level, bool)> {
            let names = part.names.iter();
            names.map(|(level, id)| (*level, id.is_some())).collect()
        };
        let memory = |part: &Part| {
            let node = self.node(part);
            node.map(|node| (node.memory_bytes, hugepages(node)))
        };
        what(a) == what(b)
            && a.shape() == b.shape()
            && memory(a) == memory(b)
            && plain(a)
            && plain(b)
            && a.children.len() == b.children.len()
            && a.children
                .iter()
                .zip(&b.children)
                .all(|(a, b)| self.alike(a, b))
    }

    fn node(&self, part: &Part) -> Option<&NumaNode> {
        part.id(Level::Node).and_then(|id| self.machine.node(id))
    }

    fn line(&self, place: String, run: &Run<'_>) -> Line {
        let cpus = run
            .iter()
            .fold(CpuSet::EMPTY, |all, part| all | part.cpus());
        let mut line = Line::new(place, cpus);
        let [first, ..] = run[..] else {
            return line;
        };
        let each = if run.len() > 1 { "each " } else { "" };
        if let Some(node) = self.node(first) {
            line.memory = node
                .memory_bytes
                .map_or_else(String::new, |value| each.to_owned() + &bytes(value.into()));
            line.hugepages = hugepages(node);
        }
        let shape = first.shape();
        let shape = shape.iter().map(|(threads, cores)| match threads {
            1 => cores.to_string(),
            _ => format!("{cores} × {threads}"),
        });
        line.cores = each.to_owned() + &shape.collect::<Vec<_>>().join(" + ");
        if first.children.is_empty() {
            let cores: Vec<Core> = run
                .iter()
                .flat_map(|part| part.cores.iter().copied())
                .collect();
            line.siblings = siblings(&cores);
            line.held = self.held(cpus);
        }
        line
    }

    fn line_of_node(&self, id: u32) -> Line {
        let mut line = Line::new(format!("{} {id}, no CPUs", Level::Node), CpuSet::EMPTY);
        if let Some(node) = self.machine.node(id) {
            line.memory = node
                .memory_bytes
                .map_or_else(String::new, |value| bytes(value.into()));
            line.hugepages = hugepages(node);
        }
        line
    }

    /// `default/web/app 2-3, shared pool 1`
    fn held(&self, cpus: CpuSet) -> String {
        let claims = self.holders.iter().flat_map(|it| it.claims());
        let here = claims.map(|(_, name, it)| (name, it & cpus));
        let here = here.filter(|(_, it)| !it.is_empty());
        let texts: Vec<String> = here.map(|(name, it)| format!("{name} {it}")).collect();
        texts.join(", ")
    }

    fn with_columns_in_use(&self, lines: &[Line]) -> Table {
        let offline = self.machine.offline();
        let columns: [(&'static str, bool); 8] = [
            ("PART", true),
            ("MEMORY", lines.iter().any(|line| !line.memory.is_empty())),
            (
                "HUGE PAGES",
                lines.iter().any(|line| !line.hugepages.is_empty()),
            ),
            ("CORES", true),
            ("CPUS", true),
            ("OFFLINE", !offline.is_empty()),
            (
                "SIBLINGS",
                lines.iter().any(|line| line.siblings.contains('+')),
            ),
            ("HELD BY", self.holders.is_some()),
        ];
        let in_use = columns.iter().filter(|(_, used)| *used);
        let heading: Vec<&'static str> = in_use.map(|(name, _)| *name).collect();
        let figures: &'static [usize] = if columns[1].1 { &[1] } else { &[] };
        let mut table = Table::new(&heading, figures);
        for line in lines {
            let online = line.cpus - offline;
            let cells = [
                line.place.clone(),
                line.memory.clone(),
                line.hugepages.clone(),
                line.cores.clone(),
                online.to_string(),
                (line.cpus & offline).to_string(),
                line.siblings.clone(),
                line.held.clone(),
            ];
            let cells = cells.into_iter().zip(&columns);
            let cells = cells.filter(|(_, (_, used))| *used).map(|(cell, _)| cell);
            let tone = if online.is_empty() && !line.cpus.is_empty() {
                Tone::Faint
            } else {
                Tone::Plain
            };
            table.row(tone, cells.collect());
        }
        table
    }
}

impl Tree<'_> {
    /// How far nodes are from each other; nothing where that is not known, or there is one node.
    fn distances(&self, style: Style) -> String {
        let nodes = self.machine.nodes();
        let rows: Vec<(u32, &[u32])> = nodes
            .iter()
            .filter_map(|node| Some((node.id, node.distances.as_deref()?)))
            .collect();
        if nodes.len() < 2 || rows.is_empty() {
            return String::new();
        }
        let title = format!("\n{}\n", style.bold("DISTANCES"));
        if nodes.len() > DISTANCE_COLUMNS_MAX {
            let row = |(from, row): &(u32, &[u32])| {
                let mut by_distance = BTreeMap::<u32, Vec<u32>>::new();
                for (node, distance) in nodes.iter().zip(*row) {
                    by_distance.entry(*distance).or_default().push(node.id);
                }
                let groups: Vec<String> = by_distance
                    .iter()
                    .map(|(distance, to)| format!("{distance} to {}", list(to)))
                    .collect();
                format!("{from:>4}: {}\n", groups.join(", "))
            };
            return title + &rows.iter().map(row).collect::<String>();
        }
        let ids: Vec<String> = nodes.iter().map(|node| node.id.to_string()).collect();
        let mut text = title + "from \\ to";
        let cells = |cells: &mut dyn Iterator<Item = String>| {
            let cells = cells.map(|cell| format!("{cell:>5}"));
            cells.collect::<String>() + "\n"
        };
        text += &cells(&mut ids.into_iter());
        for (from, row) in rows {
            text += &format!("{from:>9}");
            text += &cells(&mut row.iter().map(u32::to_string));
        }
        text
    }

    /// Who holds which CPUs, and on which nodes.
    fn claims(&self, style: Style) -> String {
        let Some(holders) = self.holders else {
            return String::new();
        };
        let mut table = Table::new(&["HELD BY", "CPUS", "NUMA NODES"], &[]);
        for (_, name, cpus) in holders.claims() {
            let cores = self.machine.cores().iter();
            let here = cores.filter(|core| !core.cpus.is_disjoint(&cpus));
            let mut nodes: Vec<u32> = here.filter_map(|core| core.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            table.row(
                Tone::Plain,
                vec![name.to_owned(), cpus.to_string(), list(&nodes)],
            );
        }
        "\n".to_owned() + &table.render(style)
    }
}

impl Line {
    fn new(place: String, cpus: CpuSet) -> Self {
        Self {
            place,
            memory: String::new(),
            hugepages: String::new(),
            cores: String::new(),
            cpus,
            siblings: String::new(),
            held: String::new(),
        }
    }
}

/// Levels below the part.
fn height(part: &Part) -> usize {
    part.children
        .iter()
        .map(|child| height(child) + 1)
        .max()
        .unwrap_or(0)
}

/// `socket 0, NUMA node 0`; of several parts `L3 0-7`.
fn names(run: &Run<'_>) -> String {
    match run[..] {
        [one] => one.to_string(),
        [first, ..] => {
            let levels = first.names.iter().map(|(level, _)| {
                let mut ids: Vec<u32> = run.iter().filter_map(|part| part.id(*level)).collect();
                ids.sort_unstable();
                ids.dedup();
                let many = if ids.len() > 1 { "s" } else { "" };
                format!("{level}{many} {}", list(&ids))
            });
            levels.collect::<Vec<_>>().join(", ")
        }
        [] => String::new(),
    }
}

/// Which CPUs are threads of the same core: `0+8 … 7+15`. All cores are named unless each follows the one before it in
/// the same step.
fn siblings(cores: &[Core]) -> String {
    let threads: Vec<Vec<u32>> = cores
        .iter()
        .map(|core| core.cpus.iter().collect())
        .collect();
    let runs = threads.chunk_by(|a, b| a.len() == b.len());
    let name = |core: &Vec<u32>| {
        let cpus: Vec<String> = core.iter().map(u32::to_string).collect();
        cpus.join("+")
    };
    let run = |run: &[Vec<u32>]| {
        let step = |pair: &[Vec<u32>]| -> Vec<i64> {
            let steps = pair[0].iter().zip(&pair[1]);
            steps.map(|(a, b)| i64::from(*b) - i64::from(*a)).collect()
        };
        let mut steps: Vec<Vec<i64>> = run.windows(2).map(step).collect();
        steps.dedup();
        match run {
            [first, .., last] if steps.len() == 1 && run.len() > CORES_NAMED_MAX => {
                format!("{} … {}", name(first), name(last))
            }
            all => all.iter().map(name).collect::<Vec<_>>().join(" "),
        }
    };
    runs.map(run).collect::<Vec<_>>().join(", ")
}

/// Numbers that ascend, in the kernel's list form; unlike CPUs they may be large.
fn list(ids: &[u32]) -> String {
    let runs = ids.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let texts = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(u32::to_string).collect(),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
