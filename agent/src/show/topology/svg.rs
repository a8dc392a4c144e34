//! The machine as a picture: boxes in boxes, a cell for each CPU, a legend, and the distances as a map of shades.
//!
//! Sizes come first, from the inside out ([`place`]): every box puts what it contains into as many columns as give it
//! about the shape of a screen. Then everything is written once, at its place. All lengths are pixels.

mod place;
mod write;

use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::machine::{Core, Machine, NumaNode};

use crate::show::table::bytes;
use crate::show::topology::holders::{Claim, Holders};
use crate::show::topology::layout::{Layout, Level, Part};
use crate::show::topology::{hugepages, summary};
use place::{Area, Placed, Size};

/// A CPU's cell, and the frame around the cells of a core.
const CELL: Size = Size { wide: 34, high: 22 };
const CORE_PADDING: u32 = 3;
/// A core with more threads has rows of so many.
const THREADS_IN_ROW: usize = 2;
/// Around what a box contains, and between two boxes.
const PADDING: u32 = 10;
const GAP: u32 = 10;
const CORE_GAP: u32 = 5;
/// The line with a box's name.
const TITLE_HIGH: u32 = 20;
/// Room for a character of a name (12 px, bold), for boxes that contain less than their name is long.
const CHARACTER_WIDE: u32 = 8;
const MARGIN: u32 = 24;
const LINE_HIGH: u32 = 22;
/// A cell of the map of distances, with its figure and, on machines with many nodes, without.
const DISTANCE_CELL: Size = Size { wide: 40, high: 24 };
const SMALL_DISTANCE_CELL: Size = Size { wide: 14, high: 12 };
const DISTANCES_IN_FIGURES_MAX: usize = 16;

/// Fills that people with any colour vision tell apart, with black text on them.
const EXCLUSIVE: [&str; 8] = [
    "#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#44bb99", "#99ddff", "#aaaa00", "#bbcc33",
];
const RESERVED: &str = "#9aa4b0";
const SHARED: &str = "#dfeee0";
const FREE: &str = "#ffffff";
const OFFLINE: &str = "url(#offline)";

/// The file.
pub(crate) fn draw(machine: &Machine, holders: Option<&Holders>) -> String {
    let layout = Layout::of(machine);
    let picture = Picture { machine, holders };
    let title = machine.name().unwrap_or("Topology").to_owned();
    let summary = summary(machine, &layout);
    let areas = layout.parts.iter().map(|part| picture.part(part));
    let machine_area = Area::of(areas.collect(), GAP, 0, 0);
    let beside = picture.without_cores(&layout);
    let distances = picture.distances();
    let legend = picture.legend(&layout);

    let mut high = MARGIN + 52;
    let blocks = [Some(machine_area), beside, Some(legend), distances];
    let mut placed = Vec::new();
    for block in blocks.into_iter().flatten() {
        let below = block.size.high + MARGIN;
        placed.push((high, block));
        high += below;
    }
    let text_wide = text_wide(&summary).max(text_wide(&title) * 13 / 8);
    let wide = placed.iter().map(|(_, block)| block.size.wide);
    let wide = wide.max().unwrap_or(0).max(text_wide) + 2 * MARGIN;
    let mut svg = write::empty(Size { wide, high }, &format!("{title}: {summary}"));
    svg.text((MARGIN, MARGIN + 14), "title", &title);
    svg.text((MARGIN, MARGIN + 36), "summary", &summary);
    for (top, block) in &placed {
        write::area(&mut svg, (MARGIN, *top), block);
    }
    svg.end()
}

fn text_wide(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX / 16) * CHARACTER_WIDE
}

struct Picture<'a> {
    machine: &'a Machine,
    holders: Option<&'a Holders>,
}

impl Picture<'_> {
    /// A box with all that it contains.
    fn part(&self, part: &Part) -> Area {
        let mut inside: Vec<Area> = part.children.iter().map(|child| self.part(child)).collect();
        let mut gap = GAP;
        if inside.is_empty() {
            inside = part
                .cores
                .iter()
                .map(|core| self.core(core, part))
                .collect();
            gap = CORE_GAP;
        }
        if !part.offline.is_empty() {
            // Cores of one thread, because no more is known.
            let cores = part.offline.iter().map(|cpu| Core {
                cpus: CpuSet::of(cpu),
                ..Core::default()
            });
            inside.extend(cores.map(|core| self.core(&core, part)));
        }
        let node = part.id(Level::Node).and_then(|id| self.machine.node(id));
        let title = titled(&part.to_string(), node);
        let mut area = Area::of(inside, gap, PADDING, TITLE_HIGH);
        area.size.wide = area.size.wide.max(text_wide(&title) + 2 * PADDING);
        area.drawn.insert(0, Placed::title(&title));
        let class = if part.id(Level::Node).is_some() {
            "node"
        } else {
            match part.names.first() {
                Some((Level::Socket, _)) => "socket",
                Some((Level::Die | Level::Cluster, _)) => "die",
                Some((Level::L3 | Level::Uncore, _)) => "l3",
                Some((Level::Node, _)) | None => "node",
            }
        };
        area.framed(class)
    }

    /// The frame of a core with a cell for each of its CPUs.
    fn core(&self, core: &Core, part: &Part) -> Area {
        let cells = core.cpus.iter().map(|cpu| {
            let (fill, used) = self.fill(cpu);
            let online = !self.machine.offline().contains(cpu);
            let isolated = self.machine.isolated().contains(cpu);
            let siblings = if core.cpus.len() > 1 {
                format!(", a thread of the core of CPUs {}", core.cpus)
            } else {
                String::new()
            };
            let more = if isolated {
                ", isolated from the scheduler"
            } else {
                ""
            };
            Area::cell(
                CELL,
                fill,
                match (online, isolated) {
                    (false, _) => "cpu off",
                    (true, true) => "cpu isolated",
                    (true, false) => "cpu",
                },
                cpu.to_string(),
                format!("CPU {cpu}{siblings}, {part}: {used}{more}"),
            )
        });
        let columns = THREADS_IN_ROW.min(core.cpus.len() as usize).max(1);
        Area::in_columns(cells.collect(), columns, 2, CORE_PADDING, 0).framed("core")
    }

    /// A CPU's colour, and its reason.
    fn fill(&self, cpu: u32) -> (&'static str, String) {
        if self.machine.offline().contains(cpu) {
            return (OFFLINE, "offline".to_owned());
        }
        let Some(holders) = self.holders else {
            return (FREE, "online".to_owned());
        };
        match holders.claim(cpu) {
            None => (FREE, "not assigned".to_owned()),
            Some(claim) => {
                let name = match claim {
                    Claim::Exclusive(at) => holders.exclusive[at].name.clone(),
                    Claim::Reserved => "reserved".to_owned(),
                    Claim::Shared => "shared pool".to_owned(),
                };
                (colour(claim), name)
            }
        }
    }

    /// Nodes that have memory only, and CPUs whose node is unknown.
    fn without_cores(&self, layout: &Layout) -> Option<Area> {
        let nodes = layout.nodes_without_cpus.iter().map(|id| {
            let title = titled(
                &format!("{} {id}, no CPUs", Level::Node),
                self.machine.node(*id),
            );
            let size = Size {
                wide: text_wide(&title) + 2 * PADDING,
                high: TITLE_HIGH + PADDING,
            };
            Area {
                size,
                drawn: vec![Placed::title(&title)],
            }
            .framed("node")
        });
        let mut areas: Vec<Area> = nodes.collect();
        if !layout.offline.is_empty() {
            areas.push(self.part(&Part {
                names: Vec::new(),
                children: Vec::new(),
                cores: Vec::new(),
                offline: layout.offline,
            }));
        }
        (!areas.is_empty()).then(|| Area::of(areas, GAP, 0, 0))
    }

    /// What colours and frames mean: only those that are there.
    fn legend(&self, layout: &Layout) -> Area {
        let mut rows: Vec<(&'static str, &'static str, String)> = Vec::new();
        let mut row = |fill, class, text: String| rows.push((fill, class, text));
        let claims = self.holders.iter().flat_map(|it| it.claims());
        for (claim, name, cpus) in claims {
            row(colour(claim), "cpu", format!("{name}: CPUs {cpus}"));
        }
        let free = if self.holders.is_some() {
            "not assigned"
        } else {
            "a CPU"
        };
        let smt = layout
            .parts
            .iter()
            .any(|part| part.shape().iter().any(|(threads, _)| *threads > 1));
        let threads = if smt {
            "; cells in one frame are threads of one core"
        } else {
            ""
        };
        row(FREE, "cpu", format!("{free}{threads}"));
        let isolated = self.machine.isolated();
        if !isolated.is_empty() {
            row(
                FREE,
                "cpu isolated",
                format!("isolated from the scheduler: CPUs {isolated}"),
            );
        }
        let offline = self.machine.offline();
        if !offline.is_empty() {
            row(OFFLINE, "cpu off", format!("offline: CPUs {offline}"));
        }
        let mut drawn = Vec::new();
        let mut wide = 0;
        let mut top = 0;
        for (fill, class, text) in rows {
            wide = wide.max(CELL.wide + GAP + text_wide(&text));
            let swatch = Area::cell(CELL, fill, class, String::new(), String::new());
            drawn.extend(swatch.drawn.into_iter().map(|it| it.moved(0, top)));
            drawn.push(Placed::text(CELL.wide + GAP, top + 15, "legend", &text));
            top += CELL.high + 6;
        }
        Area {
            size: Size { wide, high: top },
            drawn,
        }
    }

    /// A cell for each pair of nodes, the darker the farther; nothing for one node, or where distances are not known.
    fn distances(&self) -> Option<Area> {
        let nodes = self.machine.nodes();
        let rows: Option<Vec<&Vec<u32>>> =
            nodes.iter().map(|node| node.distances.as_ref()).collect();
        let rows = rows.filter(|rows| rows.len() > 1)?;
        let mut ranks: Vec<u32> = rows.iter().flat_map(|row| row.iter().copied()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let in_figures = nodes.len() <= DISTANCES_IN_FIGURES_MAX;
        let cell = if in_figures {
            DISTANCE_CELL
        } else {
            SMALL_DISTANCE_CELL
        };
        let title = "Distances between NUMA nodes, from the row's to the column's";
        let mut drawn = vec![Placed::text(0, 12, "legend", title)];
        let at = |index: usize, step: u32| u32::try_from(index).unwrap_or(0) * step;
        let (left, top) = (DISTANCE_CELL.wide, 2 * LINE_HIGH);
        for (index, node) in nodes.iter().enumerate() {
            if in_figures || index % 8 == 0 {
                let id = node.id.to_string();
                drawn.push(Placed::text(
                    left + at(index, cell.wide) + cell.wide / 2,
                    top - 6,
                    "axis",
                    &id,
                ));
                let middle = top + at(index, cell.high) + cell.high / 2 + 4;
                drawn.push(Placed::text(left / 2, middle, "axis", &id));
            }
        }
        for (y, (from, row)) in nodes.iter().zip(&rows).enumerate() {
            for (x, (to, distance)) in nodes.iter().zip(row.iter()).enumerate() {
                let rank = ranks.binary_search(distance).unwrap_or(0);
                let (fill, class) = shade(rank, ranks.len());
                let figure = if in_figures {
                    distance.to_string()
                } else {
                    String::new()
                };
                let tip = format!("from node {} to node {}: {distance}", from.id, to.id);
                let this = Area::cell(cell, fill, class, figure, tip);
                let (x, y) = (left + at(x, cell.wide), top + at(y, cell.high));
                drawn.extend(this.drawn.into_iter().map(|it| it.moved(x, y)));
            }
        }
        let size = Size {
            wide: (left + at(nodes.len(), cell.wide)).max(text_wide(title)),
            high: top + at(nodes.len(), cell.high),
        };
        Some(Area { size, drawn })
    }
}

/// A box's name with what its node has.
fn titled(name: &str, node: Option<&NumaNode>) -> String {
    let mut title = name.to_owned();
    if let Some(node) = node {
        if let Some(memory) = node.memory_bytes {
            title += &format!(" · {}", bytes(memory.into()));
        }
        let pages = hugepages(node);
        if !pages.is_empty() {
            title += &format!(" · {pages}");
        }
    }
    if title.is_empty() {
        title += "unknown location";
    }
    title
}

/// A claim's fill. More containers than colours take them in turn; their names are in the cells' tips and in the
/// legend.
fn colour(claim: Claim) -> &'static str {
    match claim {
        Claim::Exclusive(at) => EXCLUSIVE[at % EXCLUSIVE.len()],
        Claim::Reserved => RESERVED,
        Claim::Shared => SHARED,
    }
}

/// The shade of the n-th of so many distances, nearest first, and the class of text that can be read on it.
fn shade(rank: usize, of: usize) -> (&'static str, &'static str) {
    const SHADES: [&str; 6] = [
        "#f3f8fd", "#d3e4f5", "#a9cbea", "#6fa8d8", "#3a7fbd", "#1c568c",
    ];
    let at = rank * (SHADES.len() - 1) / of.saturating_sub(1).max(1);
    let at = at.min(SHADES.len() - 1);
    (
        SHADES[at],
        if at > 3 { "distance dark" } else { "distance" },
    )
}

#[cfg(test)]
mod tests;
